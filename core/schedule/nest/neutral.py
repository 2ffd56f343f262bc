"""Terms that change nothing: the conditions without which a value is the identity of a reduction."""

from __future__ import annotations

import numpy as np

from luminal.core import numerics, ops
from luminal.core.ops import Op
from luminal.core.schedule.nest import ir as ln
from luminal.core.symbolic import Int
from luminal.core.types import DType


def finite_arrays(nest: ln.LoopNest) -> frozenset[str]:
    """The names of the arrays that hold finite numbers alone."""
    return frozenset(array.name for array in nest.arrays if array.finite)


def neutral_unless(value: ln.Scalar, op: Op, finite: frozenset[str]) -> list[Int]:
    """Conditions (``>= 0``); where any of them fails, ``value`` changes nothing as a term of a reduction with ``op``.

    A sum starts from +0, which no term turns into -0, so a zero of either sign is neutral. ``finite`` names the arrays
    whose products with zero are zero.
    """
    leaf = value.leaf
    if isinstance(leaf, ln.Access):
        return list(leaf.valid) if leaf.fill == _identity(op, value.dtype) else []
    if value.op is ops.SELECT:
        condition, chosen, other = value.operands
        if not (isinstance(condition.leaf, ln.Holds) and isinstance(other.leaf, ln.Literal)):
            return []
        masks = condition.leaf.valid if other.leaf.bits == _identity(op, value.dtype) else ()
        return [*masks, *neutral_unless(chosen, op, finite)] if masks else []
    if op is not ops.SUM_REDUCE:
        conditions, blank = _constant_unless(value)
        return conditions if blank == _identity(op, value.dtype) else []
    if value.op is ops.CAST:
        return neutral_unless(value.operands[0], op, finite)
    if value.op is ops.MUL:
        a, b = value.operands
        found = neutral_unless(a, op, finite) if _is_finite(b, finite) else []
        return found + (neutral_unless(b, op, finite) if _is_finite(a, finite) else [])
    return []


def _constant_unless(value: ln.Scalar) -> tuple[list[Int], bytes]:
    """Conditions (``>= 0``) and a number's bytes: where any fails, ``value`` is the number. Both are empty where not
    known."""
    found: dict[ln.Scalar, tuple[list[Int], bytes]] = {}
    for scalar in ln.postorder(value):
        leaf, parts = scalar.leaf, [found[operand] for operand in scalar.operands]
        conditions = [condition for own, _ in parts for condition in own]
        if isinstance(leaf, ln.Literal):
            found[scalar] = [], leaf.bits
        elif isinstance(leaf, ln.Access):
            found[scalar] = list(leaf.valid), leaf.fill
        elif scalar.op is not None and sum(bool(own) for own, _ in parts) == 1 and all(bits for _, bits in parts):
            typed = zip(scalar.operands, parts, strict=True)
            operands = (np.frombuffer(bits, operand.dtype.numpy) for operand, (_, bits) in typed)
            found[scalar] = conditions, numerics.apply(scalar.op, scalar.attr, *operands).tobytes()
        else:
            found[scalar] = [], b""
    return found[value]


def _identity(op: Op, dtype: DType) -> bytes:
    return numerics.of_nothing(op, dtype).tobytes()


def _is_finite(value: ln.Scalar, finite: frozenset[str]) -> bool:
    """Whether ``value`` is known to be neither infinite nor NaN."""
    if not value.dtype.is_float:
        return True
    if isinstance(value.leaf, ln.Access):
        fill = value.leaf.fill
        return value.leaf.array in finite and (not fill or bool(np.isfinite(np.frombuffer(fill, value.dtype.numpy))[0]))
    if isinstance(value.leaf, ln.Literal):
        return bool(np.isfinite(np.frombuffer(value.leaf.bits, value.dtype.numpy))[0])
    if value.op is ops.CAST:
        (operand,) = value.operands
        return operand.dtype.is_float and operand.dtype.bits < value.dtype.bits and _is_finite(operand, finite)
    return False
