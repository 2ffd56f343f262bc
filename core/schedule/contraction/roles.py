"""Contractions: sums over products of two operands, found by the roles of their axes.

``SumReduce(Mul(a, b))`` is a contraction where some reduced axis indexes both operands and some kept axis indexes only
one of them. A kept axis in both operands is *batch*; in A alone, *M*; in B alone, *N*; a reduced axis is *K*. Two axes
that index one operand dimension together are a window, so a convolution is a contraction whose A is a window view.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.ir import Node, Shape
from luminal.core.ops import Kind
from luminal.core.schedule.contraction.contraction import Contraction, Operand, operand
from luminal.core.sizes import typical
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


def contraction_of(node: Node) -> Contraction | None:
    """``node`` as a contraction, or None. B is the constant operand, else the one that the innermost axis of the result
    indexes; if the axes have no roles so, the other one."""
    if node.op is not ops.SUM_REDUCE or node.inputs[0].op is not ops.MUL:
        return None
    product = node.inputs[0]
    if product.dtype.compute != product.dtype:
        return None  # each product is rounded to a narrow type; a sum in registers would skip that rounding
    left, right = (operand(x) for x in product.inputs)
    innermost = next(
        (k for k in reversed(range(product.rank)) if k not in node.attr.axes and product.shape[k] != 1), -1
    )
    ranked = sorted(
        ((left, right), (right, left)),
        key=lambda pair: (not is_constant(pair[1].source), not _depends(pair[1], product, innermost)),
    )
    assigned = (_assigned(product.shape, product.dtype, node.attr.axes, a, b) for a, b in ranked)
    return next((found for found in assigned if found is not None), None)


def exchanged(found: Contraction) -> Contraction | None:
    """The contraction with A and B in each other's place, so that rows of its result are columns; None if it is none,
    or if B is constant, and packed where it is compiled."""
    if is_constant(found.b.source) or found.prologue is not None:
        return None
    return _assigned(found.shape, found.dtype, found.k, found.b, found.a)


def over_taps(found: Contraction) -> list[Contraction]:
    """Other orders of the axes of a contraction whose rows are the taps of a window that a longer sum slides over, as
    in the gradient of a convolution by its weights; none of any other. The terms are in the order of A's dimensions, so
    that neighbours are near each other in memory. Rows are the taps; or, since these are few, and a tile of few rows
    reads B as often as one of many, the longest axis of M that is a whole dimension of A, as channels are."""
    over, shape, a = found.axes, found.shape, found.a
    rows = [k for k in found.m if shape[k] != 1]
    if not rows or not _slid_over(found, rows[-1]):
        return []
    found = replace(found, k=tuple(sorted(found.k, key=lambda k: _dimension(a, over[k]))))
    held = list(zip(a.index, a.source.shape, strict=True))
    whole = [k for k in rows if (over[k], shape[k]) in held]
    if not whole:
        return [found]
    longest = max(whole, key=lambda k: typical(shape[k]))
    return [found, replace(found, m=(*(k for k in found.m if k != longest), longest))]


def _slid_over(found: Contraction, tap: int) -> bool:
    """Whether the axis ``tap`` of M shares a dimension of A with a longer axis of K."""
    over, shape = found.axes, found.shape
    beside = [sym.variables(e) for e in found.a.index if sym.variables(over[tap]) <= sym.variables(e)]
    summed = [k for k in found.k if any(sym.variables(over[k]) & found for found in beside)]
    return any(typical(shape[k]) > typical(shape[tap]) for k in summed)


def _dimension(a: Operand, axis: Int) -> int:
    """The first dimension of A that an axis moves along; 0 for an axis of extent 1."""
    return next((d for d, e in enumerate(a.index) if sym.variables(e) & sym.variables(axis)), 0)


def _depends(x: Operand, product: Node, axis: int) -> bool:
    return axis >= 0 and sym.as_var(ir.axes(product.shape)[axis]) in x.variables


def _assigned(shape: Shape, dtype: DType, summed: Collection[int], a: Operand, b: Operand) -> Contraction | None:
    """The sum along the axes ``summed`` of products of that ``shape``, with ``a`` as A and ``b`` as B; None if some
    axis has no role, or N or K is empty."""
    groups: dict[str, list[int]] = {"batch": [], "m": [], "n": [], "k": []}
    over = ir.axes(shape)
    for position, axis in enumerate(over):
        variable = sym.as_var(axis)
        in_a, in_b = variable in a.variables, variable in b.variables
        if position in summed:
            if variable is not None and not (in_a and in_b):
                return None
            groups["k"].append(position)
        elif variable is None:
            continue
        elif not (in_a or in_b):
            return None
        else:
            groups["batch" if in_a and in_b else "m" if in_a else "n"].append(position)
    if not groups["n"] or not any(shape[k] != 1 for k in groups["k"]):
        return None
    n = {sym.as_var(over[k]) for k in groups["n"]}
    k = {sym.as_var(over[k]) for k in groups["k"]} - {None}
    groups["k"].sort(key=lambda axis: not _in_window(a, over, axis, n | k))
    windowed = any(sym.variables(e) & n and sym.variables(e) & k and not _separates(e) for e in b.index)
    zero = not any(a.fill) and not any(b.fill)
    if windowed or not zero:
        return None
    if not all(sym.variables(c) <= b.variables for c in b.valid):
        return None  # B is packed, and masked, without axes of M
    batch, m, n_axes, k_axes = (tuple(groups[role]) for role in ("batch", "m", "n", "k"))
    return Contraction(shape, dtype, batch, m, n_axes, k_axes, a, b)


def _in_window(a: Operand, over: tuple[Int, ...], axis: int, others: set[Var | None]) -> bool:
    """Whether a K axis of A shares a dimension with an M axis. Such K axes are ordered before the others, so that the
    innermost K axis is contiguous where channels are last."""
    variable = sym.as_var(over[axis])
    return any(variable in (found := sym.variables(e)) and found - others for e in a.index)


def _separates(index: Int) -> bool:
    """Whether an index is a mixed-radix number of its axes, as in a reshape: unlike a window, values are distinct."""
    terms = sorted(((c, m) for m, c in index.terms), key=lambda t: t[0]) if isinstance(index, sym.Expr) else []
    reach = 0
    for coefficient, monomial in terms:
        high = sym.upper(sym.Expr(((monomial, 1),))) if monomial else None
        if high is None or coefficient <= reach:
            return False
        reach += coefficient * high
    return True


def run_axes(found: Contraction) -> tuple[int, ...]:
    """The axes of A's source, innermost last, along which a matrix unit reads a run of terms: one; two, if the run is
    all terms of several positions of a window; none, if the source has no such axis."""
    over = found.axes[found.run]
    term = sym.as_var(over)
    if term is None:
        return ()
    at = [axis for axis, index in enumerate(found.a.index) if term in sym.variables(index)]
    whole = [axis for axis in at if found.a.index[axis] == sym.mod(over, found.a.source.shape[axis])]
    if len(at) == 2 and len(whole) == 1:
        return (*(axis for axis in at if axis not in whole), *whole)
    linear = (sym.coefficient(index, term) for index in found.a.index)
    return tuple(axis for axis, x in enumerate(linear) if x is not None and x[0] == 1)[:1]


def row_stride(found: Contraction) -> int:
    """The bytes between neighbouring rows of A; 0 if unknown before layouts are chosen. Inputs are row-major; computed
    sources are expected to have the axes that K alone indexes innermost."""
    source, over = found.a.source, found.axes
    rows = [v for k in found.m if (v := sym.as_var(over[k])) is not None]
    summed = {sym.as_var(over[k]) for k in found.k}
    along = [d for d, index in enumerate(found.a.index) if rows and rows[-1] in sym.variables(index)]
    if len(along) != 1 or (linear := sym.coefficient(found.a.index[along[0]], rows[-1])) is None:
        return 0
    of_sums = [sym.variables(e) & summed and not sym.variables(e).intersection(rows) for e in found.a.index]
    inside = [d > along[0] if source.op.kind is Kind.SOURCE else of_sums[d] for d in range(source.rank)]
    elements = linear[0] * sym.product(size for size, counts in zip(source.shape, inside, strict=True) if counts)
    return abs(elements) * source.dtype.itemsize if isinstance(elements, int) else 0
