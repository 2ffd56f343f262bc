"""Random weights that keep activations in range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D  # a linear layer with its weight transposed


@torch.no_grad()
def randomise(
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    deviations: Mapping[str, float] | None = None,
    shift: float = 0.0,
    balanced: bool = False,
    seed: int = 0,
) -> nn.Module:
    """Random parameters, such that every layer's output on ``inputs`` has a standard deviation of one.

    One forward pass sets the layers in the order in which they run: a layer's weights are scaled by what they do to
    its input, and a batch normalisation's stored statistics are those of its input. ``deviations`` gives layers whose
    names end in a key another standard deviation.

    ``shift`` is the mean that batch normalisations give. With random weights, each of them that comes before a
    rectifier multiplies a relative error by about 1.2 (Yang et al., "A mean field theory of batch normalization",
    2019), and rounding grows exponentially with depth, as it does not in a trained network. A mean of one leaves most
    values unrectified, and rounding small.

    ``balanced`` makes matrices that no layer applies, such as those of experts, as small as they are wide, lest a
    softmax of what they give is a step.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        # Vectors are scales and shifts; their spread makes one that is left out visible.
        parameter.normal_(generator=generator)
        if parameter.ndim == 1:
            parameter.mul_(0.1)
        elif balanced and parameter.ndim > 1:
            parameter.div_(parameter.shape[-1] ** 0.5)
    hooks = []
    for name, layer in module.named_modules():
        target = next((value for end, value in (deviations or {}).items() if name.endswith(end)), 1.0)
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Embedding | Conv1D):
            hooks.append(layer.register_forward_hook(_scaled_to(target)))
        elif isinstance(layer, nn.BatchNorm2d):
            layer.weight.add_(1).mul_(target)
            layer.bias.add_(shift)
            hooks.append(layer.register_forward_pre_hook(_take_statistics))
        elif "norm" in type(layer).__name__.lower() and isinstance(getattr(layer, "weight", None), nn.Parameter):
            layer.weight.add_(1)
    module(*inputs)
    for hook in hooks:
        hook.remove()
    return module


def _scaled_to(target: float) -> Any:
    def hook(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: Any) -> Any:
        if not isinstance(output, torch.Tensor):
            return output  # a layer of the model's own, derived from one of these
        factor = target / output.std()
        for parameter in layer.parameters():
            parameter.mul_(factor)
        return output * factor

    return hook


def _take_statistics(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    assert isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None
    variance, mean = torch.var_mean(inputs[0], (0, 2, 3))
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)
