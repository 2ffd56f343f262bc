"""The operands of a sum of products in a nest: elements of A and B, and the scalars that compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import accesses
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

ZERO: Int = 0


def product_of(reduction: ln.Reduction) -> tuple[ln.Access, ln.Access]:
    """The two array elements, A and B, whose product is summed; either may be masked, and may be converted as it is
    loaded. Raises ScheduleError where something else is summed."""
    if reduction.op is not ops.SUM_REDUCE or reduction.value.op is not ops.MUL or reduction.before:
        raise ScheduleError("what is reduced is not a sum over a product alone")
    scaled = scales_of(reduction)
    factors = reduction.value.operands if scaled is None else scaled.factors
    a, b = (x.operands[0].leaf if x.op is ops.CAST else x.leaf for x in factors)
    if not isinstance(a, ln.Access) or not isinstance(b, ln.Access):
        raise ScheduleError("the sum is not over a product of two array elements")
    return a, b


def element_and_value(reduction: ln.Reduction) -> tuple[ln.Access, ln.Scalar]:
    """A, an array element that may be masked, and B, an element too or computed from elements that are not masked, of
    a sum over their product; each as it is before it is converted to the type of the sum, and without its scale. Raises
    ScheduleError where something else is summed."""
    if reduction.op is not ops.SUM_REDUCE or reduction.value.op is not ops.MUL or reduction.before:
        raise ScheduleError("what is reduced is not a sum over a product alone")
    if (scaled := scales_of(reduction)) is not None:
        left, right = (x.operands[0] for x in scaled.factors)
        if isinstance(left.leaf, ln.Access) and accesses(right):
            return left.leaf, right
    left, right = (x.operands[0] if x.op is ops.CAST else x for x in reduction.value.operands)
    if _is_element(reduction.value.operands[1]):
        return product_of(reduction)[0], right
    right = right if right.dtype.is_float else reduction.value.operands[1]
    if not isinstance(left.leaf, ln.Access) or not accesses(right) or any(x.valid for x in accesses(right)):
        raise ScheduleError("the sum is not over a product of an array element and what is computed from such")
    return left.leaf, right


class Scaled(NamedTuple):
    """Two ``factors``, an element of an array and one that may be computed in integers, and what each is multiplied
    by: ``left`` is an element of an array too."""

    factors: tuple[ln.Scalar, ln.Scalar]
    left: ln.Scalar
    right: ln.Scalar


def scales_of(reduction: ln.Reduction) -> Scaled | None:
    """The factors and scales of a sum over products of scaled elements; None for other reductions."""
    sides = reduction.value.operands
    if reduction.value.op is not ops.MUL or any(side.op is not ops.MUL for side in sides):
        return None
    (a, left), (b, right) = (_integer_first(side) for side in sides)
    integers = _is_element(b) or (b.op is ops.CAST and b.operands[0].dtype.is_integer)
    elements = _is_element(a) and integers and isinstance(left.leaf, ln.Access)
    return Scaled((a, b), left, right) if elements else None


def _integer_first(product: ln.Scalar) -> tuple[ln.Scalar, ln.Scalar]:
    x, y = product.operands
    return (x, y) if x.op is ops.CAST and x.operands[0].dtype.is_integer else (y, x)


def operands_of(reduction: ln.Reduction) -> tuple[ln.Access, ln.Access, ln.Scalar | None]:
    """A, B and None, as ``product_of`` gives them. Where B is computed from array elements: A, the element of the
    largest array, and the scalar that computes B, in integers where it is scaled. Raises ScheduleError where something
    else is summed."""
    scaled = scales_of(reduction)
    factors = reduction.value.operands if scaled is None else scaled.factors
    if reduction.value.op is not ops.MUL or _is_element(factors[1]):
        return (*product_of(reduction), None)
    computed = factors[1] if scaled is None else factors[1].operands[0]
    read = accesses(computed)
    a = accesses(factors[0])
    if reduction.op is not ops.SUM_REDUCE or reduction.before or not _is_element(factors[0]) or not a:
        raise ScheduleError("the sum is not over a product of an array element and what is computed from such")
    if not read or any(x.valid for x in (*a, *read)):
        raise ScheduleError("what is multiplied is computed from masked elements, or from none")
    return a[0], max(read, key=lambda x: sym.upper(x.offset) or 0), computed


def _is_element(value: ln.Scalar) -> bool:
    """Whether ``value`` is an element of an array, converted or not."""
    return value.op is None or (value.op is ops.CAST and value.operands[0].op is None)


def factors_of(reduction: ln.Reduction, n: Var) -> tuple[ln.Access, ln.Access]:
    """The two array elements whose product is summed: A, and B, which depends on ``n``. Neither is masked."""
    found = product_of(reduction)
    if any(x.valid for x in found):
        raise ScheduleError("tensorise: a factor is masked")
    with_n = [x for x in found if n in sym.variables(x.offset)]
    if len(with_n) != 1:
        raise ScheduleError(f"tensorise: {n} must index one factor, it indexes {len(with_n)}")
    (b,) = with_n
    return next(x for x in found if x is not b), b


def stored_type(nest: ln.LoopNest, array: str) -> DType:
    return next(a.dtype for a in nest.arrays if a.name == array)


def loops_of_b(contract: ln.Contract) -> list[ln.Loop]:
    """The loops along which B moves. With a prologue, steps of other loops may read from the same byte; a unit takes
    those together."""
    if contract.prologue is None or contract.unit is not None:
        return list(contract.loops)
    return [loop for loop in contract.loops if loop.axis in sym.variables(contract.b_offset)]


def loops_over_blocks(contract: ln.Contract) -> int:
    """How many of the loops count blocks, whose sums are added, scaled or not."""
    of_integers = contract.unit is not None or contract.fragment is not None
    return len(contract.loops) - 1 if contract.scales is not None and of_integers else contract.outer


def flat_index(loops: Sequence[ln.Loop]) -> Int:
    """The number of the current iteration of nested ``loops``, each counted up to its upper bound."""
    number = ZERO
    for loop in loops:
        number = number * (loop.axis.hi + 1) + sym.expr(loop.axis)
    return number
