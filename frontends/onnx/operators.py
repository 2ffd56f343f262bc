"""The whole operator table: importing this module reads in every theme."""

from __future__ import annotations

from luminal.frontends.onnx import (
    attention,
    classical,
    contraction,
    contributed,
    contributed_attention,
    contributed_quantization,
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

__all__ = ["THEMES", "find", "names"]

THEMES = (
    random,
    attention,
    classical,
    contraction,
    contributed,
    contributed_attention,
    contributed_quantization,
    image,
    indexing,
    linear_models,
    logic,
    math,
    normalization,
    pooling,
    quantization,
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
