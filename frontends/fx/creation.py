"""Tensors made from sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core.decompose import indexing
from luminal.core.ir import Node, expand
from luminal.core.symbolic import Int
from luminal.core.types import DType
from luminal.frontends.fx.promotion import Operand, Scalar, as_node
from luminal.frontends.fx.registry import aten


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
    return indexing.arange(start, end, step, result)


@aten("eye", "eye.m")
def eye(n: Int, m: Int | None = None, *, dtype: DType | None = None, result: DType) -> Node:
    return indexing.eye(n, n if m is None else m, dtype=result)


@aten("tril")
def tril(self: Node, diagonal: Int = 0) -> Node:
    return indexing.tril(self, diagonal)


@aten("triu")
def triu(self: Node, diagonal: Int = 0) -> Node:
    return indexing.triu(self, diagonal)
