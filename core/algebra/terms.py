"""Sums of products over named axes: what a region of a graph computes, however it is spelled.

A term is ``y[o] = sum over axes r of f1[..] * f2[..] * .. * fn[..]``: each factor is a tensor that is read at positions
which are functions of the axes. Products, quotients, sums, views and gathers are read through; every other node is a
factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from luminal.core import constants, interp, ir, limits, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Failure
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


@dataclass(frozen=True)
class Lookup:
    """A position that ``table``, a tensor of int64, holds at ``index``, which is over the axes of a term."""

    table: Node
    index: tuple[Int, ...]
    failure: Failure

    def over(self, by: Mapping[Var, Int]) -> Lookup:
        return replace(self, index=tuple(sym.substitute(e, by) for e in self.index))


Position: TypeAlias = Int | Lookup


def variables(position: Position) -> set[Axis]:
    """The axes on which a position depends."""
    parts = position.index if isinstance(position, Lookup) else (position,)
    return {v for e in parts for v in sym.variables(e) if isinstance(v, Axis)}


@dataclass(frozen=True)
class Axis(Var):
    """An axis of a term; ``summed`` if the result does not have it."""

    summed: bool = False


def plain(axis: Axis) -> Coordinate:
    """The axis itself, as a coordinate."""
    return Coordinate(sym.expr(axis), axis.hi + 1)


@dataclass(frozen=True)
class Coordinate:
    """A dimension of a tensor, of ``extent`` elements: the tensor is read at ``position``, where every ``valid`` is not
    negative, and is zero elsewhere."""

    position: Position
    extent: Int
    valid: tuple[Int, ...] = ()

    @cached_property
    def axis(self) -> Axis | None:
        """The axis that the coordinate is, if it is nothing else."""
        found = None if isinstance(self.position, Lookup) or self.valid else sym.as_var(self.position)
        return found if isinstance(found, Axis) else None

    @cached_property
    def axes(self) -> frozenset[Axis]:
        """The axes on which it depends."""
        found = variables(self.position).union(*(sym.variables(v) for v in self.valid))
        return frozenset(v for v in found if isinstance(v, Axis))

    def __str__(self) -> str:
        if isinstance(self.position, Lookup):
            return f"{self.position.table.op}[{', '.join(map(str, self.position.index))}]"
        return str(self.position)


@dataclass(frozen=True)
class Factor:
    """A tensor, and the coordinate of each of its dimensions: ``node``, or else the sum of the values that the paths
    ``added`` compute, at so much ``cost``. The product is divided by it if it ``divides``. ``name`` is unique among the
    factors of a region, and says from which of them this one is made (``form``)."""

    node: Node | None
    coordinates: tuple[Coordinate, ...]
    divides: bool = False
    added: tuple[Any, ...] = ()
    cost: float = 0.0
    name: str = field(default="", compare=False)

    @cached_property
    def axes(self) -> frozenset[Axis]:
        return frozenset(axis for c in self.coordinates for axis in c.axes)

    @property
    def dtype(self) -> DType:
        return self.added[0].dtype if self.node is None else self.node.dtype


@dataclass(frozen=True)
class Term:
    """The product of ``factors``, summed over those of their axes that are ``summed``."""

    factors: tuple[Factor, ...]

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset(axis for factor in self.factors for axis in factor.axes)


@dataclass(frozen=True)
class Region:
    """``root`` as a sum of ``terms``. ``result`` is the position, over their axes, along each dimension of ``root``;
    ``spelled`` are the nodes that compute it as the model spells it."""

    root: Node
    terms: tuple[Term, ...]
    result: tuple[Int, ...]
    spelled: tuple[Node, ...]


class Unreadable(Exception):
    """A node cannot be read through where it stands."""


def read(root: Node, inside: Callable[[Node], bool]) -> Region:
    """The sum that ``root`` computes. It is read through nodes that are ``inside``, as far as that is possible."""
    reader = _Reader(inside)
    result = tuple(reader.axis(extent, summed=False) for extent in root.shape)
    products = reader.visit(root, result, (), is_root=True)
    products = [restricted for p in products if (restricted := _restricted(_without_identities(p))) is not None]
    leaves = [leaf for product in products for leaf in product]
    by = _digits([*result, *(e for leaf in leaves for e in (*leaf.at, *leaf.valid))])
    terms = numbered(_term(product, by, root.dtype) for product in products)
    return Region(root, terms, tuple(sym.substitute(e, by) for e in result), tuple(reader.spelled))


def numbered(terms: Iterable[Term]) -> tuple[Term, ...]:
    """``terms`` with names for their factors."""
    names = (f"f{k}" for k in itertools.count())
    return tuple(Term(tuple(replace(f, name=next(names)) for f in term.factors)) for term in terms)


def _term(product: _Product, by: Mapping[Var, Int], dtype: DType) -> Term:
    """``product`` over digits of its axes. A digit to be summed on which no factor depends is a factor, its extent."""
    factors = [leaf.over(by).factor() for leaf in product]
    summed = {v for leaf in product for v in leaf.axes if isinstance(v, Axis) and v.summed}
    digits = {v for axis in summed for v in sym.variables(sym.substitute(sym.expr(axis), by))}
    idle = digits.difference(*(factor.axes for factor in factors))
    return Term((*factors, *(_count(v, dtype).factor() for v in sorted(idle, key=str))))


@dataclass(frozen=True)
class _Leaf:
    """A node that is a factor, read at ``at``, and zero unless every ``valid`` is not negative."""

    node: Node
    at: tuple[Position, ...]
    valid: tuple[Int, ...]
    divides: bool = False

    @property
    def axes(self) -> set[Var]:
        return {v for e in self.at for v in variables(e)}

    def over(self, by: Mapping[Var, Int]) -> _Leaf:
        at = tuple(e.over(by) if isinstance(e, Lookup) else sym.substitute(e, by) for e in self.at)
        return replace(self, at=at, valid=tuple(sym.substitute(e, by) for e in self.valid))

    def factor(self) -> Factor:
        return _factor(self.node, self.at, self.valid, self.divides)


_Product: TypeAlias = tuple[_Leaf, ...]
_Read: TypeAlias = Callable[[Node, Sequence[Position], tuple[Int, ...]], list[_Product]]


class _Reader:
    """Reads nodes as sums of products."""

    def __init__(self, inside: Callable[[Node], bool]) -> None:
        self.inside = inside
        self.spelled: list[Node] = []
        self.count = itertools.count()

    def axis(self, extent: Int, summed: bool) -> Int:
        if extent == 1:
            return 0
        name = f"{'r' if summed else 'o'}{next(self.count)}"
        return sym.expr(Axis(name, 0, extent - 1, summed))

    def visit(
        self, node: Node, at: Sequence[Position], valid: tuple[Int, ...], is_root: bool = False
    ) -> list[_Product]:
        """``node`` at the position ``at``, masked by ``valid``."""
        spelled = len(self.spelled)
        try:
            if not is_root and not self.inside(node):
                raise Unreadable
            self.spelled.append(node)
            return self.through(node, at, valid)
        except Unreadable:
            del self.spelled[spelled:]
            return [(_leaf(node, at, valid),)]

    def through(self, node: Node, at: Sequence[Position], valid: tuple[Int, ...]) -> list[_Product]:
        """The same from the operands of ``node``."""
        if any(map(_rounds, node.inputs)):
            raise Unreadable
        if node.op in (ops.MUL, ops.MULTIPLY_ADD):
            a, b = (self.distributed(x, at, valid) for x in node.inputs[:2])
            products = [(*left, *right) for left in a for right in b]
            return [*products, *(product for x in node.inputs[2:] for product in self.visit(x, at, valid))]
        if node.op is ops.ADD:
            return [product for x in node.inputs for product in self.visit(x, at, valid)]
        if node.op is ops.DIV and node.dtype.is_float and not valid:  # zeros that a mask reads are no divisors
            divisor = replace(_leaf(*_seen_through(node.inputs[1], at), ()), divides=True)
            return [(*product, divisor) for product in self.visit(node.inputs[0], at, valid)]
        if node.op is ops.SUM_REDUCE:
            return self.sum(node, at, valid)
        if node.op is ops.GATHER:
            data, table = node.inputs
            first = node.attr.axis
            index = at[first : first + table.rank]
            if not any(isinstance(e, Lookup) for e in index):
                found = Lookup(table, tuple(index), node.attr.failure)  # type: ignore[arg-type]
                return self.visit(data, [*at[:first], found, *at[first + table.rank :]], valid)
        if node.op is ops.VIEW:
            return self.view(node, at, valid)
        if node.op is ops.SELECT and constants.is_decided(node):
            raise Unreadable  # it is known when compiling as it is
        if node.op is ops.SELECT and (mask := _mask(node, at)) is not None:
            kept, indicator = mask
            return [(*product, indicator) for product in self.visit(kept, at, valid)]
        if node.op is ops.SELECT:
            holds = _condition(node.inputs[0], at)
            cases = zip(node.inputs[1:], (holds, -1 - holds), strict=True)
            return [product for x, case in cases for product in self.masked(x, at, valid, [case], self.distributed)]
        raise Unreadable

    def distributed(self, node: Node, at: Sequence[Position], valid: tuple[Int, ...]) -> list[_Product]:
        """``node`` as a factor of a product: a sum only if a product of its terms is no less accurate."""
        spelled = len(self.spelled)
        found = self.visit(node, at, valid)
        outside = {v for e in at for v in variables(e)}
        if len(found) == 1 or _is_select(node) or _distributes(found, node.dtype, outside):
            return found
        del self.spelled[spelled:]
        return [(_leaf(*_seen_through(node, at), valid),)]

    def sum(self, node: Node, at: Sequence[Position], valid: tuple[Int, ...]) -> list[_Product]:
        (x,) = node.inputs
        dropped, kept = set(node.attr.axes), iter(at)
        inner = [self.axis(d, True) if k in dropped else next(kept) for k, d in enumerate(x.shape)]
        own = {v for k in dropped for v in variables(inner[k])}
        result: list[_Product] = []
        for product in self.visit(x, inner, valid):
            idle = own.difference(*(leaf.axes for leaf in product))  # every element along these is the same
            result.append((*product, *(_count(v, node.dtype) for v in sorted(idle, key=str))))
        return result

    def view(self, node: Node, at: Sequence[Position], valid: tuple[Int, ...]) -> list[_Product]:
        moved = [_viewed(e, node, at) for e in node.attr.index]
        mask: list[Int] = []
        if any(node.attr.fill):
            raise Unreadable
        for condition in node.attr.valid:
            position = _viewed(condition, node, at)
            if isinstance(position, Lookup):
                raise Unreadable
            mask.append(position)
        return self.masked(node.inputs[0], moved, valid, mask, self.visit)

    def masked(
        self, node: Node, at: Sequence[Position], valid: tuple[Int, ...], more: Sequence[Int], read: _Read
    ) -> list[_Product]:
        """``node`` at ``at``, masked by ``valid`` and by ``more``."""
        mask = [v for v in more if not sym.always(v)]
        found = read(node, at, (*valid, *mask))
        for product in found:
            if not {v for leaf in product for v in leaf.valid}.issuperset(mask):
                raise Unreadable  # it depends on axes that no factor has
        return found


def _rounds(node: Node) -> bool:
    """Whether ``node`` is a number so large that what is added to it is rounded: that is what it is added for."""
    source = node.inputs[0] if node.op is ops.VIEW else node
    if not node.dtype.is_float or source.op is not ops.CONSTANT or source.shape:
        return False
    return abs(float(source.attr.array)) * float(np.finfo(node.dtype.numpy).eps) > _ROUNDING


_ROUNDING = 0.25


def _is_select(node: Node) -> bool:
    """Whether ``node`` is a select, whose cases are zero where the others are not: they cannot cancel."""
    while node.op is ops.VIEW:
        node = node.inputs[0]
    return node.op is ops.SELECT


def _mask(node: Node, at: Sequence[Position]) -> tuple[Node, _Leaf] | None:
    """The case of a select whose other one is zero, and one where it is taken, zero elsewhere: a constant over two
    axes, or more. None if it is no such select."""
    condition, *cases = node.inputs
    zero = next((k for k, x in enumerate(cases) if is_zero(x)), None)
    if zero is None:
        return None
    condition, at = _seen_through(condition, at)
    axes = sorted({v for e in at for v in variables(e)}, key=str)
    counts = [v.hi + 1 for v in axes]
    sizes = [n for n in counts if isinstance(n, int)]
    if len(axes) < 2 or len(sizes) < len(counts) or math.prod(sizes) > limits.TABLE:
        return None
    where: dict[str, Any] = {
        v.name: np.arange(n).reshape([-1 if j == k else 1 for j in range(len(axes))])
        for k, (v, n) in enumerate(zip(axes, sizes, strict=True))
    }
    if any(isinstance(e, Lookup) for e in at) or not constants.is_decided(condition):
        return None
    index = tuple(np.asarray(sym.evaluate(e, where)) for e in at)  # type: ignore[arg-type]
    holds = interp.run([condition], {}).outputs[0][index]
    ones = np.broadcast_to(holds != (zero == 0), sizes).astype(node.dtype.numpy)
    return cases[1 - zero], _leaf(ir.constant(ones, node.dtype), [sym.expr(v) for v in axes], ())


def is_zero(node: Node) -> bool:
    source = node.inputs[0] if node.op is ops.VIEW else node
    return source.op is ops.CONSTANT and not source.shape and not source.attr.array


def _condition(node: Node, at: Sequence[Position]) -> Int:
    """What is not negative where ``node``, a comparison of positions, holds, and negative where it does not."""
    node, at = _seen_through(node, at)
    if node.op is not ops.LESS_THAN:
        raise Unreadable
    left, right = (_number(x, at) for x in node.inputs)
    return right - left - 1


def _number(node: Node, at: Sequence[Position]) -> Int:
    """The integer that ``node`` is at ``at``."""
    node, at = _seen_through(node, at)
    if node.op is ops.IOTA and not isinstance(at[0], Lookup):
        return at[0]
    if node.op is ops.DIM:
        value: Int = node.attr.value
        return value
    if node.op is ops.CONSTANT and node.dtype.is_integer and not node.shape:
        return int(node.attr.array)
    raise Unreadable


def _without_identities(product: _Product) -> _Product:
    """``product`` without identity matrices along whose rows or columns is summed: the sum has one element."""
    for leaf in product:
        found = _renamed_by(leaf)
        if found is not None:
            return _without_identities(tuple(x.over(found) for x in product if x is not leaf))
    return product


def _renamed_by(leaf: _Leaf) -> dict[Var, Int] | None:
    """The position that a summed axis has in every term that is not zero, if a leaf is an identity matrix."""
    source = leaf.node.inputs[0] if leaf.node.op is ops.VIEW else leaf.node
    if source.op is not ops.CONSTANT or leaf.divides or leaf.valid or leaf.node.rank != 2:
        return None
    for axis, other in (leaf.at, leaf.at[::-1]):
        row = None if isinstance(axis, Lookup) or isinstance(other, Lookup) else sym.as_var(axis)
        if (
            isinstance(row, Axis)
            and row.summed
            and row not in variables(other)
            and leaf.node.shape == (row.hi + 1,) * 2
        ):
            if np.count_nonzero(source.attr.array) != row.hi + 1:  # most matrices are told apart by that
                return None
            array = interp.run([leaf.node], {}).outputs[0]
            return {row: other} if np.array_equal(array, np.eye(len(array))) else None  # type: ignore[dict-item]
    return None


def _restricted(product: _Product) -> _Product | None:
    """``product`` with each summed axis as long as masks on it alone leave it; None if they leave nothing."""
    for axis in sorted({v for leaf in product for v in leaf.axes if v.summed}, key=str):  # type: ignore[attr-defined]
        masks = {v for leaf in product for v in leaf.valid if sym.variables(v) == {axis}}
        low, high = 0, axis.hi
        for mask in masks:
            slope, rest = sym.coefficient(mask, axis) or (0, 0)
            if isinstance(rest, int) and isinstance(high, int) and slope in (1, -1):
                low, high = (max(low, -rest), high) if slope == 1 else (low, min(high, rest))
        if (low, high) == (0, axis.hi):
            continue
        if isinstance(high, int) and low > high:
            return None
        by = {axis: low if low == high else sym.expr(Axis(axis.name, 0, high - low, summed=True)) + low}
        product = tuple(leaf.over(by) for leaf in product)
        product = tuple(replace(x, valid=tuple(v for v in x.valid if not sym.always(v))) for x in product)
    return product


def _count(axis: Var, dtype: DType) -> _Leaf:
    """The number of elements along an axis."""
    return _leaf(ir.cast(ir.dim(axis.hi + 1), dtype), (), ())


def _leaf(node: Node, at: Sequence[Position], valid: Iterable[Int]) -> _Leaf:
    used = {v for e in at for v in variables(e)}
    found = _Leaf(node, tuple(at), tuple(v for v in valid if sym.variables(v) & used))
    found.factor()  # Unreadable, if it is that
    return found


def _seen_through(node: Node, at: Sequence[Position]) -> tuple[Node, Sequence[Position]]:
    while node.op is ops.VIEW and not node.attr.valid:
        node, at = node.inputs[0], [_viewed(e, node, at) for e in node.attr.index]
    return node, at


def _distributes(products: Sequence[_Product], dtype: DType, outside: Collection[Axis]) -> bool:
    """Whether a factor may be multiplied with each of ``products`` instead of with their sum.

    Integers: always. Of floats, if one product is a sum, over axes that are not ``outside`` of it, and the others are
    constants: then each is at most as large as the sum of them all and of the sum's terms, whose roundings the spelled
    form has too. Otherwise two large terms might cancel first, as in ``(x - m)*w``.
    """
    if not dtype.is_float:
        return True
    varying = [product for product in products if not all(leaf.node.op is ops.CONSTANT for leaf in product)]
    sums = [p for p in varying if any(v.summed and v not in outside for leaf in p for v in leaf.axes)]  # type: ignore[attr-defined]
    return len(varying) <= 1 and len(varying) == len(sums)


def _viewed(index: Int, node: Node, at: Sequence[Position]) -> Position:
    """``index``, over the axes of a view, with ``at`` put for them."""
    own = ir.axes(node.shape)
    used = sym.variables(index)
    looked = [k for k, e in enumerate(own) if isinstance(at[k], Lookup) and sym.as_var(e) in used]
    if looked and index != own[looked[0]]:
        raise Unreadable  # a function of a position that a table holds
    if looked:
        return at[looked[0]]
    by = {v: at[k] for k, e in enumerate(own) if (v := sym.as_var(e)) is not None and v in used}
    return sym.substitute(index, by)  # type: ignore[arg-type]


def _factor(node: Node, at: Sequence[Position], valid: Sequence[Int], divides: bool = False) -> Factor:
    """``node`` read at ``at`` under ``valid``, with one dimension for each coordinate: those that are the same are one,
    and there are none for fixed positions."""
    coordinates: list[Coordinate] = []
    index: list[Int] = []  # of the node, over `own`
    own: list[Coordinate] = []
    for extent, position in zip(node.shape, at, strict=True):
        conditions = tuple(v for v in valid if _is_of(v, position))
        coordinates.append(Coordinate(position, extent, conditions))
    if any(v for v in valid if not any(v in c.valid for c in coordinates)):
        if any(isinstance(c.position, Lookup) for c in coordinates):
            raise Unreadable
        return _over_axes(node, at, valid, divides)
    for c in coordinates:
        axes = sorted(c.axes, key=lambda v: v.name)
        if not isinstance(c.position, Lookup) and not c.valid and _is_direct(c, axes):
            for axis in axes:
                if plain(axis) not in own:
                    own.append(plain(axis))
        elif c not in own:
            own.append(c)
    shape = tuple(c.extent for c in own)
    over = ir.axes(shape)
    by = {c.axis: over[k] for k, c in enumerate(own) if c.axis is not None}
    for c in coordinates:
        index.append(over[own.index(c)] if c in own else sym.substitute(c.position, by))  # type: ignore[arg-type]
    return Factor(ir.view(node, shape, index), tuple(own), divides)


def _is_of(condition: Int, position: Position) -> bool:
    """Whether a condition is a bound of the position."""
    if isinstance(position, Lookup | int):
        return False
    return isinstance(condition - position, int) or isinstance(condition + position, int)


def _is_direct(c: Coordinate, axes: Sequence[Axis]) -> bool:
    """Whether a position is best read over its axes: it has no fewer values than they have together, for certain."""
    if len(axes) <= 1 and not isinstance(c.position, int):
        return not axes or sym.coefficient(c.position, axes[0]) is not None  # type: ignore[arg-type]
    return isinstance(c.position, int) or sym.always(c.extent - sym.product(v.hi + 1 for v in axes))


def _over_axes(node: Node, at: Sequence[Position], masks: Sequence[Int], divides: bool) -> Factor:
    axes = sorted({v for e in at for v in variables(e)}.union(*(_axes(v) for v in masks)), key=lambda v: v.name)
    shape = tuple(v.hi + 1 for v in axes)
    by: dict[Var, Int] = dict(zip(axes, ir.axes(shape), strict=True))
    index = [sym.substitute(e, by) for e in at]  # type: ignore[arg-type]
    valid = [sym.substitute(v, by) for v in masks]
    found = ir.view(node, shape, index, valid, bytes(node.dtype.itemsize))
    return Factor(found, tuple(plain(v) for v in axes), divides)


def _axes(value: Int) -> set[Axis]:
    return {v for v in sym.variables(value) if isinstance(v, Axis)}


def _digits(positions: Iterable[Position]) -> dict[Var, Int]:
    """Axes that positions divide by a number, as sums of two axes: a number of wholes, and a rest. What a reshape has
    joined is so taken apart."""
    by: dict[Var, Int] = {}
    waiting = [e for position in positions for e in (position.index if isinstance(position, Lookup) else (position,))]
    while True:
        found = min(((a.name, den, a) for e in waiting for a, den in _divided(e)), default=None)
        if found is None:
            return by
        name, den, axis = found
        high = Axis(f"{name}a", 0, sym.floordiv(axis.hi + 1, den) - 1, axis.summed)
        parts: dict[Var, Int] = {axis: sym.expr(high) * den + sym.expr(Axis(f"{name}b", 0, den - 1, axis.summed))}
        by = {v: sym.substitute(e, parts) for v, e in by.items()} | parts
        waiting = [sym.substitute(e, parts) for e in waiting]


def _divided(value: Int) -> Iterator[tuple[Axis, int]]:
    """The axes that ``value`` divides by a number of which their extents are multiples, with that number."""
    for atom in sym.atoms(value):
        if isinstance(atom, sym.FloorDiv | sym.Mod):
            axis, den = sym.as_var(atom.num), atom.den
            if isinstance(axis, Axis) and isinstance(den, int) and 1 < den != axis.hi + 1 and _is_multiple(axis, den):
                yield axis, den
        for inner in sym.operands(atom):
            yield from _divided(inner)


def _is_multiple(axis: Axis, of: int) -> bool:
    return sym.mod(axis.hi + 1, of) == 0
