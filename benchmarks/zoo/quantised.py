"""Linear layers whose weights are small integers, with a scale for each group of them."""

from __future__ import annotations

import torch
from torch import nn

GROUP = 32  # weights of a scale


class QuantisedLinear(nn.Module):
    """A linear layer without bias: integers ``[rows, groups, GROUP]`` times scales ``[rows, groups, 1]`` of float16,
    multiplied in float32. ``GROUP`` divides the number of columns."""

    def __init__(self, layer: nn.Linear, bits: int) -> None:
        super().__init__()
        groups = layer.weight.detach().unflatten(1, (-1, GROUP))
        most = 2 ** (bits - 1) - 1
        scales = (groups.abs().amax(-1, keepdim=True) / most).clamp(min=torch.finfo(torch.float16).tiny).half()
        self.register_buffer("codes", (groups / scales.float()).round().clamp(-most, most).to(torch.int8))
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = (self.codes.float() * self.scales.float()).flatten(1)
        return nn.functional.linear(x, weight)


def quantise(module: nn.Module, bits: int) -> nn.Module:
    """``module`` with all its linear layers, which have no biases, in integers of so many bits: in place, one after the
    other, since there may be no room for both."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                assert child.bias is None, name
                setattr(parent, name, QuantisedLinear(child, bits))
    return module
