"""Contractions, found by the roles of axes.

``SumReduce(Mul(a, b))`` is a contraction where some reduced axis indexes both operands and some kept axis indexes only
one of them. A kept axis in both operands is *batch*; in A alone, *M*; in B alone, *N*; a reduced axis is *K*. Two axes
that index one operand dimension together are a window, so a convolution is a contraction whose A is a window view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.symbolic import Int, Var


@dataclass(frozen=True)
class Operand:
    """An operand of the product: element ``index`` of ``source`` under ``valid``, over the product's axes; elsewhere
    ``fill`` (the bytes of one element of ``source``). ``source`` may be stored in a narrower type than the product's.
    """

    source: Node
    index: tuple[Int, ...]
    valid: tuple[Int, ...]
    fill: bytes

    @property
    def variables(self) -> set[Var]:
        return {v for e in self.index for v in sym.variables(e)}


@dataclass(frozen=True)
class Roles:
    """The axes of a contraction by role, as positions in the product's shape. ``along_rows`` says that its result, or
    what becomes of it, is an output that lies in memory along one of M."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: Operand
    b: Operand
    along_rows: bool = False


def operand(node: Node) -> Operand:
    """``node`` seen through its view, and through a widening cast of what it views."""
    index, valid, fill = ir.axes(node.shape), (), b""
    if node.op is ops.VIEW:
        attr = node.attr
        node, index, valid, fill = node.inputs[0], attr.index, attr.valid, attr.fill
    if node.op is ops.CAST and _widens(node) and not any(fill):
        inner = operand(node.inputs[0])
        by = ir.rename(node.shape, index)
        filled = inner.source.dtype.has_zero or not valid
        if not inner.valid and filled:
            index = tuple(sym.substitute(e, by) for e in inner.index)
            return Operand(inner.source, index, valid, bytes(inner.source.dtype.itemsize) if valid else b"")
    return Operand(node, index, valid, fill)


def _widens(node: Node) -> bool:
    """Whether a cast gives every value in a wider type of the same kind; memory is read as integers of whole bytes."""
    wide, narrow = node.dtype, node.inputs[0].dtype
    if narrow.bits >= wide.bits:
        return False
    if wide.is_float:
        return narrow.is_float
    whole = wide.is_integer and narrow.is_integer and narrow.compute == narrow
    return whole and wide.min <= narrow.min


def roles(node: Node) -> Roles | None:
    """The roles of the axes of ``node`` where it is a contraction, else None."""
    if node.op is not ops.SUM_REDUCE or node.inputs[0].op is not ops.MUL:
        return None
    product = node.inputs[0]
    if product.dtype.compute != product.dtype:
        return None  # each product rounds to its own type, which a sum in registers would skip
    left, right = (operand(x) for x in product.inputs)
    innermost = next(
        (k for k in reversed(range(product.rank)) if k not in node.attr.axes and product.shape[k] != 1), -1
    )
    ranked = sorted(
        ((left, right), (right, left)),
        key=lambda pair: (not is_constant(pair[1].source), not _depends(pair[1], product, innermost)),
    )
    for a, b in ranked:
        found = _assign(node, product, a, b)
        if found is not None:
            return found
    return None


def prepared_roles(node: Node) -> Roles | None:
    """The roles of the axes of a contraction that is prepared: A is the first factor, B the second. What was padded or
    packed may suggest the other order: a window that moves by its own length is a number of its axes, without a border.
    """
    product = node.inputs[0]
    a, b = (operand(x) for x in product.inputs)
    return _assign(node, product, a, b)


def _depends(x: Operand, product: Node, axis: int) -> bool:
    return axis >= 0 and sym.as_var(ir.axes(product.shape)[axis]) in x.variables


def _assign(node: Node, product: Node, a: Operand, b: Operand) -> Roles | None:
    groups: dict[str, list[int]] = {"batch": [], "m": [], "n": [], "k": []}
    for position, axis in enumerate(ir.axes(product.shape)):
        variable = sym.as_var(axis)
        in_a, in_b = variable in a.variables, variable in b.variables
        if position in node.attr.axes:
            if variable is not None and not (in_a and in_b):
                return None
            groups["k"].append(position)
        elif variable is None:
            continue
        elif not (in_a or in_b):
            return None
        else:
            groups["batch" if in_a and in_b else "m" if in_a else "n"].append(position)
    if not groups["n"] or not any(product.shape[k] != 1 for k in groups["k"]):
        return None
    over = ir.axes(product.shape)
    n = {sym.as_var(over[k]) for k in groups["n"]}
    k = {sym.as_var(over[k]) for k in groups["k"]} - {None}
    groups["k"].sort(key=lambda axis: not _in_window(a, over, axis, n | k))
    windowed = any(sym.variables(e) & n and sym.variables(e) & k and not _separates(e) for e in b.index)
    zero = not any(a.fill) and not any(b.fill)
    if windowed or not zero:
        return None
    return Roles(tuple(groups["batch"]), tuple(groups["m"]), tuple(groups["n"]), tuple(groups["k"]), a, b)


def _in_window(a: Operand, over: tuple[Int, ...], axis: int, others: set[Var | None]) -> bool:
    """Whether a K axis of A shares a dimension with an M axis. Such axes go outside the others, which then run along
    memory where channels are last."""
    variable = sym.as_var(over[axis])
    return any(variable in (found := sym.variables(e)) and found - others for e in a.index)


def _separates(index: Int) -> bool:
    """Whether an index is the mixed-radix number of its axes (a reshape), not a window, where values coincide."""
    terms = sorted(((c, m) for m, c in index.terms), key=lambda t: t[0]) if isinstance(index, sym.Expr) else []
    reach = 0
    for coefficient, monomial in terms:
        high = sym.upper(sym.Expr(((monomial, 1),))) if monomial else None
        if high is None or coefficient <= reach:
            return False
        reach += coefficient * high
    return True


def run_of(shape: tuple[Int, ...], found: Roles) -> int:
    """The axis of K, of a product of this ``shape``, along which terms lie side by side."""
    return next(k for k in reversed(found.k) if shape[k] != 1)


def run_axes(product: Node, found: Roles) -> tuple[int, ...]:
    """The axes of A's source, the innermost last, along which a matrix unit reads terms that lie side by side: one;
    two, where the terms are all those of some positions of a window; none, where there is no such axis."""
    over = ir.axes(product.shape)[run_of(product.shape, found)]
    term = sym.as_var(over)
    if term is None:
        return ()
    at = [axis for axis, index in enumerate(found.a.index) if term in sym.variables(index)]
    whole = [axis for axis in at if found.a.index[axis] == sym.mod(over, found.a.source.shape[axis])]
    if len(at) == 2 and len(whole) == 1:
        return (*(axis for axis in at if axis not in whole), *whole)
    linear = (sym.coefficient(index, term) for index in found.a.index)
    return tuple(axis for axis, x in enumerate(linear) if x is not None and x[0] == 1)[:1]


def apart(product: Node, found: Roles) -> int:
    """The bytes between rows of A that follow each other, 0 where that is not known before there are layouts.

    Inputs are row-major; of what is computed, and has a buffer of its own, what K alone indexes comes to lie innermost.
    """
    source, over = found.a.source, ir.axes(product.shape)
    rows = [v for k in found.m if (v := sym.as_var(over[k])) is not None]
    summed = {sym.as_var(over[k]) for k in found.k}
    along = [d for d, index in enumerate(found.a.index) if rows and rows[-1] in sym.variables(index)]
    if len(along) != 1 or (linear := sym.coefficient(found.a.index[along[0]], rows[-1])) is None:
        return 0
    of_sums = [sym.variables(e) & summed and not sym.variables(e).intersection(rows) for e in found.a.index]
    inside = [d > along[0] if source.op.kind is Kind.SOURCE else of_sums[d] for d in range(source.rank)]
    elements = linear[0] * sym.product(size for size, counts in zip(source.shape, inside, strict=True) if counts)
    return abs(elements) * source.dtype.itemsize if isinstance(elements, int) else 0


# ---- constants -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    """What a node depends on, where that is constants and positions alone: the elements of the largest constant, 0 for
    none, and whether positions are among it."""

    elements: int
    positions: bool


_knowledge: WeakKeyDictionary[Node, _Known | None] = WeakKeyDictionary()
DIGITS = 8  # elements at most that one of a constant holds


def is_constant(node: Node) -> bool:
    """Whether ``node`` depends on constants alone; on positions too where it is not much larger than the constants."""
    known = _known(node)
    if known is None or not known.elements:
        return False
    return not known.positions or (isinstance(node.size, int) and node.size <= DIGITS * known.elements)


def is_computed(node: Node) -> bool:
    """Whether ``node`` depends on constants and positions alone, constants among them."""
    known = _known(node)
    return known is not None and known.elements > 0


def _known(node: Node) -> _Known | None:
    stack = [node]
    while stack:
        current = stack[-1]
        pending = [x for x in current.inputs if x not in _knowledge]
        stack += pending
        if not pending:
            _knowledge[current] = _found(current)
            stack.pop()
    return _knowledge[node]


def _found(node: Node) -> _Known | None:
    if node.op is ops.CONSTANT:
        return _Known(max(1, math.prod(node.attr.shape)), False)
    if node.op is ops.IOTA:
        return _Known(0, True) if isinstance(node.size, int) else None
    below = [known for x in node.inputs if (known := _knowledge[x]) is not None]
    if not below or len(below) < len(node.inputs):
        return None
    return _Known(max(known.elements for known in below), any(known.positions for known in below))
