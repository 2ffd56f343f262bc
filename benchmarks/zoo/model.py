"""What a model of the zoo is, and how it becomes an ONNX file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn


class Model(NamedTuple):
    """``module(*inputs)`` runs; ``dims`` is what ``luminal.compile(module, inputs, dims=dims)`` takes."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    dims: Mapping[str, Any]

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """The ranges alone: what ``luminal.compile`` takes for an ONNX file, whose axes have names already."""
        return {
            key: value
            for key, value in self.dims.items()
            if isinstance(value, tuple) and all(isinstance(bound, int) for bound in value)
        }


def to_onnx(model: Model, path: Path, dynamic: bool = True) -> Path:
    """``model`` exported to ONNX, with its symbolic dimensions or at the sizes of its inputs; its weights go to another
    file beside ``path``."""
    from luminal.frontends.fx.export import dynamic_shapes

    # The exporter warns of every optional package that is missing.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    inputs, shapes = dynamic_shapes(model.module, model.inputs, model.dims) if dynamic else (model.inputs, None)
    torch.onnx.export(
        model.module,
        inputs,
        path,
        dynamo=True,
        dynamic_shapes=shapes,
        external_data=True,
        verbose=False,
    )
    return path
