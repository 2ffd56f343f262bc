"""Type promotion over operands: tensors with axes outrank scalar tensors, which outrank Python numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from luminal.core import types
from luminal.core.decompose import conversion
from luminal.core.ir import Node, cast, constant, dim
from luminal.core.symbolic import Expr
from luminal.core.types import DType
from luminal.frontends.fx.dtypes import join

Scalar: TypeAlias = int | float | bool | Expr
Operand: TypeAlias = Node | Scalar

_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def scalar_type(value: Scalar) -> DType:
    """The type of a Python number in promotion."""
    if isinstance(value, bool):
        return types.bool_
    return types.f32 if isinstance(value, float) else types.i64


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """Operands of lower priority matter only where they are of a higher kind."""
    if higher is None or lower is None:
        return higher or lower
    return join(higher, lower) if _KINDS[lower.kind] > _KINDS[higher.kind] else higher


def result_type(*operands: Operand) -> DType:
    """The common type of the operands, as ``torch.result_type`` has it (default float type float32)."""
    levels: list[DType | None] = [None, None, None]
    for operand in operands:
        level, dtype = (
            (2, scalar_type(operand)) if not isinstance(operand, Node) else (operand.rank == 0, operand.dtype)
        )
        found = levels[level]
        levels[level] = dtype if found is None else join(found, dtype)
    with_axes, without, numbers = levels
    result = _combine(with_axes, _combine(without, numbers))
    assert result is not None, "promotion of no operands"
    return result


def converted(x: Node, dtype: DType) -> Node:
    """``x.to(dtype)``. In 8-bit floats without a negative zero, numbers beyond the largest become NaN; in a type
    without a sign, the sign is dropped."""
    if x.dtype != dtype and dtype in (types.f8e4m3fnuz, types.f8e5m2fnuz):
        return conversion.overflowing(x, dtype)
    if x.dtype != dtype and dtype == types.f8e8m0:
        return conversion.to_power_of_two(x, "nearest", saturate=False)
    return cast(x, dtype)


def as_node(value: Operand, dtype: DType) -> Node:
    """``value`` as a node of ``dtype``: a tensor is cast, a number rounds once, a symbolic size is read at run time."""
    if isinstance(value, Node):
        return cast(value, dtype)
    if isinstance(value, Expr):
        return cast(dim(value), dtype)
    if isinstance(value, float) and not dtype.is_float:
        value = bool(value) if dtype.is_bool else int(value)
    return constant(value, dtype)


def promote(operands: Sequence[Operand], dtype: DType | None = None) -> list[Node]:
    """The operands as nodes of one type: ``dtype``, or their common type."""
    dtype = dtype or result_type(*operands)
    return [as_node(operand, dtype) for operand in operands]
