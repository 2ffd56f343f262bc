"""Tensors made from sizes and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from luminal.core.decompose import indexing
from luminal.core.ir import Node, cast, constant, expand, iota
from luminal.core.symbolic import Int
from luminal.core.types import DType, i64
from luminal.frontends.fx.promotion import Operand, Scalar, as_node
from luminal.frontends.fx.registry import aten, direct, table


@aten("full", "new_full")
def full(*arguments: object, dtype: DType | None = None, result: DType) -> Node:
    *_, size, fill_value = arguments  # new_full starts with the tensor whose type it would take
    assert isinstance(size, list)
    return _filled(size, fill_value, result)  # type: ignore[arg-type]


@aten("zeros", "new_zeros", "empty.memory_format", "new_empty", "empty_permuted", "empty_strided", "new_empty_strided")
def zeros(*arguments: object, dtype: DType | None = None, result: DType) -> Node:
    """Zeros; what PyTorch leaves unwritten is zero too, so that a library's results never depend on memory."""
    return _filled(_size(arguments), 0, result)


@aten("ones", "new_ones")
def ones(*arguments: object, dtype: DType | None = None, result: DType) -> Node:
    return _filled(_size(arguments), 1, result)


def _size(arguments: Sequence[object]) -> list[Int]:
    return next(a for a in arguments if isinstance(a, list))


@aten("full_like")
def full_like(self: Node, fill_value: Operand, *, dtype: DType | None = None) -> Node:
    return _filled(self.shape, fill_value, dtype or self.dtype)


@aten("zeros_like", "empty_like")
def zeros_like(self: Node, *, dtype: DType | None = None) -> Node:
    return _filled(self.shape, 0, dtype or self.dtype)


@aten("ones_like")
def ones_like(self: Node, *, dtype: DType | None = None) -> Node:
    return _filled(self.shape, 1, dtype or self.dtype)


@aten("fill.Scalar", "fill.Tensor")
def fill(self: Node, value: Operand) -> Node:
    return _filled(self.shape, value, self.dtype)


def _filled(size: Sequence[Int], value: Operand, dtype: DType) -> Node:
    return expand(as_node(value, dtype), size)


@aten("scalar_tensor")
def scalar_tensor(s: Scalar, *, dtype: DType | None = None, result: DType) -> Node:
    return as_node(s, result)


@aten("arange", "arange.start", "arange.start_step")
def arange(*bounds: Scalar, dtype: DType | None = None, step: Scalar = 1, result: DType) -> Node:
    """``start, start + step, ..`` below ``end``: computed in the result's type, as PyTorch does."""
    if len(bounds) == 3:
        start, end, step = bounds
    else:
        start, end = bounds if len(bounds) == 2 else (0, bounds[0])
    if result.is_integer and all(isinstance(v, int | float) for v in (start, end, step)):
        # Bounds and step are truncated; but for int64 the number of elements follows from them as they were.
        first, stride = int(start), int(step)  # type: ignore[arg-type]
        span = (int(end) - first) / stride if result == i64 else (end - start) / step  # type: ignore[operator, arg-type]
        return cast(iota(max(math.ceil(span), 0)) * stride + first, result)
    return indexing.arange(start, end, step, result)


@aten("eye", "eye.m")
def eye(n: Int, m: Int | None = None, *, dtype: DType | None = None, result: DType) -> Node:
    return indexing.eye(n, n if m is None else m, dtype=result)


def _positions(function: Callable[[int, int, int], tuple[Any, ...]]) -> Callable[..., Node]:
    def handler(row: int, col: int, offset: int = 0, *, result: DType, **options: object) -> Node:
        return constant(np.stack(function(row, offset, col)), result)

    return handler


table({"tril_indices": np.tril_indices, "triu_indices": np.triu_indices}, _positions)
direct({"tril": indexing.tril, "triu": indexing.triu})
