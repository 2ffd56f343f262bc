"""The whole operator table: importing this module registers every theme's operators."""

from __future__ import annotations

from luminal.frontends.onnx import (  # noqa: F401 - imported for the operators that they register
    attention,
    classical,
    contraction,
    contributed,
    contributed_attention,
    contributed_experts,
    contributed_quantization,
    contributed_standard,
    image,
    indexing,
    linear_models,
    logic,
    math,
    normalization,
    pooling,
    quantization,
    random,
    recurrent,
    reduction,
    resize,
    selection,
    shape,
    signal,
    sorting,
    texts,
    training,
    trees,
)
from luminal.frontends.onnx.registry import find, names

__all__ = ["find", "names"]
