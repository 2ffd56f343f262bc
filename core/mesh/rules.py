"""How the ranks of a mesh may divide the work of one node: a table of rules, keyed by the primitive's kind.

A rule says how the result may lie where an operand lies so (``forward``), the other way round (``backward``), and
whether a rank can compute its part of the result of such parts of the operands (``modes``), without a word of others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from luminal.core import constants, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.mesh import placement as where
from luminal.core.mesh import views
from luminal.core.mesh.placement import WHOLE, Lookup, Owned, Partial, Placement, Split, Whole
from luminal.core.ops import Kind
from luminal.core.types import DType

MOST = 12  # placements of one value that are looked at

_COMBINED = {ops.SUM_REDUCE: "sum", ops.MAX_REDUCE: "max"}
_JOINING = {ops.ADD: "sum", ops.MAX: "max"}  # of partial values, partial values


@dataclass(frozen=True)
class Mode:
    """One way to compute a node: how its operands have to lie, and how its result then does. ``shared``: each rank does
    its part of the work, not all of it."""

    operands: tuple[Placement, ...]
    result: Placement
    shared: bool

    def reading(self, node: Node, operand: Node) -> list[Placement]:
        """How one operand has to lie: once what ``node`` reads twice alike."""
        return list(dict.fromkeys(p for x, p in zip(node.inputs, self.operands, strict=True) if x is operand))


def candidates(
    order: Sequence[Node], size: int, given: Mapping[Node, Placement], weights: Collection[Node] = ()
) -> dict[Node, tuple[Placement, ...]]:
    """For each node, how its value may lie: whole; split along an axis; and what follows of how others may lie.
    ``given`` are those that are settled: of tables alone that are, or that are matrices and made of ``weights``, each
    rank looks up what it has of a split axis."""
    tables = _tables(order, given, weights)
    before: dict[Node, set[Node]] = {}  # of a look-up's index, what it depends on
    found: dict[Node, dict[Placement, None]] = {node: {} for node in order}
    waiting: list[Node] = []
    readers: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for operand in dict.fromkeys(node.inputs):
            readers[operand].append(node)

    def add(node: Node, placements: Iterable[Placement]) -> None:
        for placement in placements:
            known = found[node]
            if node in given and placement != given[node]:
                continue
            if isinstance(placement, Owned):
                index = placement.lookup.index
                if index not in before:
                    before[index] = set(traverse.topological([index]))
                if node in before[index]:
                    continue  # it is needed to know who owns it
            if placement not in known and len(known) < MOST and where.fits(placement, node.shape, size):
                known[placement] = None
                waiting.append(node)
                if isinstance(placement, Owned) and node.dtype.is_float:
                    add(node, [Partial("sum")])  # with zeros in the place of others' elements

    for node in order:
        add(node, [given.get(node, WHOLE)])
        if node.op.kind not in (Kind.VIEW, Kind.STRUCTURED) and node.op is not ops.IOTA:
            add(node, where.splits(node.shape, size))

    def follow(reader: Node, placements: Iterable[Placement]) -> None:
        in_parts = reader.op is ops.GATHER and reader.inputs[0] not in tables
        add(reader, (p for p in placements if not (in_parts and isinstance(p, Partial | Owned))))

    for node in order:
        for reader in readers[node]:
            follow(reader, _partials(reader, node, where.splits(node.shape, size)))
    while waiting:
        node = waiting.pop(0)
        placements = list(found[node])
        for reader in readers[node]:
            for number, operand in enumerate(reader.inputs):
                if operand is node:
                    follow(reader, (p for x in placements for p in forward(reader, number, x, size)))
        for number, operand in enumerate(node.inputs):
            add(operand, (p for x in placements for p in backward(node, number, x, size)))
    return {node: tuple(placements) for node, placements in found.items()}


def _tables(order: Sequence[Node], given: Mapping[Node, Placement], weights: Collection[Node]) -> set[Node]:
    found = {node for node in order if node in weights or node.op is ops.CONSTANT}
    for node in order:
        if node.inputs and (node.op is ops.VIEW or node.op.kind is Kind.ELEMENTWISE) and found.issuperset(node.inputs):
            found.add(node)
    return {*given, *(node for node in found if node.rank > 2)}


def _partials(node: Node, operand: Node, placements: Iterable[Split]) -> Iterator[Placement]:
    for placement in placements:
        for number, x in enumerate(node.inputs):
            if x is operand:
                yield from (p for p in forward(node, number, placement, 0) if isinstance(p, Partial))


def forward(node: Node, number: int, operand: Placement, size: int) -> Iterator[Placement]:
    """How the result of ``node`` may lie where operand ``number`` lies so."""
    op = node.op
    if op is ops.VIEW:
        if size:
            yield from views.results(node, operand, size)
    elif isinstance(operand, Partial):
        if op in (ops.MUL, ops.SUM_REDUCE, ops.ADD, ops.MAX, ops.MAX_REDUCE, ops.CONTIGUOUS, ops.EXCHANGE):
            yield operand
    elif isinstance(operand, Owned):
        if op.kind is Kind.ELEMENTWISE or op is ops.CONTIGUOUS:
            yield operand
        elif op.kind is Kind.REDUCE and not set(operand.axes).intersection(node.attr.axes):
            yield Owned(operand.axis - sum(a < operand.axis for a in node.attr.axes), operand.lookup)
    elif isinstance(operand, Split):
        axis = operand.axis
        if op.kind is Kind.ELEMENTWISE or op is ops.CONTIGUOUS:
            yield operand
        elif op.kind is Kind.REDUCE:
            if axis not in node.attr.axes:
                yield Split(axis - sum(a < axis for a in node.attr.axes), operand.inner)
            elif combines(node.dtype, op):
                yield Partial(_COMBINED[op])
        elif op is ops.GATHER:
            moved = _gathered(node, number, axis)
            if moved is not None:
                yield Split(moved, operand.inner)
            else:
                if node.dtype.is_float:
                    yield Partial("sum")
                if (lookup := _lookup(node, operand)) is not None:
                    yield Owned(axis, lookup)
        elif op is ops.SCATTER:
            moved = _scattered(node, number, axis)
            if moved is not None:
                yield Split(moved, operand.inner)
            elif number == 1 and _adds_to_zeros(node):
                yield Partial("sum")
        elif op is ops.SORT:
            if axis != node.rank - 1:
                yield operand
        elif op is ops.EXCHANGE:
            moved = axis + _axes_put_in_front(node)
            if axis > 0 or node.attr.kind in ("gather", "broadcast", "shift"):
                yield Split(moved, operand.inner)


def _lookup(node: Node, table: Split) -> Lookup | None:
    """The look-up of a gather in a table that is split along the axis of the positions; None where a rank cannot have
    room for what it owns."""
    index, extent = node.inputs[1], node.inputs[0].shape[node.attr.axis]
    if not index.rank or sym.upper(index.size) is None or not isinstance(extent, int):
        return None
    return Lookup(index, extent, table.inner, node.attr.failure)


def backward(node: Node, number: int, result: Placement, size: int) -> Iterator[Placement]:
    """How operand ``number`` of ``node`` may lie where the result lies so."""
    op = node.op
    if op is ops.VIEW:
        yield from views.operands(node, result, size)
    elif isinstance(result, Owned):
        if op.kind is Kind.ELEMENTWISE or op is ops.CONTIGUOUS:
            yield result
    elif isinstance(result, Split):
        if op.kind is Kind.ELEMENTWISE or op in (ops.CONTIGUOUS, ops.SORT):
            yield result
        elif op.kind is Kind.REDUCE:
            kept = [k for k in range(node.inputs[0].rank) if k not in node.attr.axes]
            yield Split(kept[result.axis], result.inner)
        elif op is ops.GATHER:
            for axis in range(node.inputs[number].rank):
                if _gathered(node, number, axis) == result.axis:
                    yield Split(axis, result.inner)
        elif op is ops.SCATTER:
            for axis in range(node.inputs[number].rank):
                if _scattered(node, number, axis) == result.axis:
                    yield Split(axis, result.inner)
        elif op is ops.EXCHANGE:
            moved = result.axis - _axes_put_in_front(node)
            if moved >= 0:
                yield Split(moved, result.inner)


def modes(
    node: Node, result: Iterable[Placement], operands: Mapping[Node, Sequence[Placement]], size: int
) -> list[Mode]:
    """The ways to compute ``node`` so that its result lies as one of ``result``, of ``operands`` that may lie so."""
    found: dict[Mode, None] = {}
    for placement in result:
        for given in _operands(node, placement, operands, size):
            found[Mode(given, placement, _is_shared(node, given, placement))] = None
    return list(found)


def _is_shared(node: Node, operands: Sequence[Placement], result: Placement) -> bool:
    """Whether each rank computes other elements, rather than all of them, of partial values, say."""
    if isinstance(result, Partial) and node.op is not ops.GATHER:
        return any(isinstance(operand, Split) for operand in operands)
    return isinstance(result, Split | Owned)


def _operands(
    node: Node, result: Placement, known: Mapping[Node, Sequence[Placement]], size: int
) -> Iterator[tuple[Placement, ...]]:
    """The placements of all operands of which a rank can compute its part of the result."""
    op, count = node.op, len(node.inputs)
    if op.kind is Kind.SOURCE:
        if result == WHOLE or op is ops.INPUT:
            yield ()
    elif op is ops.VIEW:
        for operand in known[node.inputs[0]]:
            if isinstance(result, Owned):
                fits = isinstance(operand, Whole | Owned) and views.picked(node, operand, result) is not None
            else:
                fits = not isinstance(operand, Owned) and views.viewed(node, operand, result, size) is not None
            if fits:
                yield (operand,)
    elif isinstance(result, Whole):
        yield (WHOLE,) * count
    elif isinstance(result, Partial):
        yield from _partial_operands(node, result, known)
    elif isinstance(result, Owned):
        yield from _owned_operands(node, result, known)
    elif op.kind is Kind.ELEMENTWISE or op in (ops.CONTIGUOUS, ops.SORT):
        if op is not ops.SORT or result.axis != node.rank - 1:
            yield (result,) * count
    elif op is ops.GATHER:
        for both in product([WHOLE, *backward(node, 0, result, size)], [WHOLE, *backward(node, 1, result, size)]):
            if sum(x != WHOLE for x in both) == 1:
                yield both
    elif op is ops.SCATTER:
        for old, new in product(backward(node, 0, result, size), backward(node, 2, result, size)):
            yield old, WHOLE, new
    elif op.kind is Kind.REDUCE or op is ops.EXCHANGE:
        for operand in backward(node, 0, result, size):
            if result in list(forward(node, 0, operand, size)):
                yield (operand,)


def _partial_operands(
    node: Node, result: Partial, known: Mapping[Node, Sequence[Placement]]
) -> Iterator[tuple[Placement, ...]]:
    op = node.op
    if op.kind is Kind.REDUCE and _COMBINED[op] == result.by and combines(node.dtype, op):
        yield (result,)
        for operand in known[node.inputs[0]]:
            if isinstance(operand, Split) and operand.axis in node.attr.axes:
                yield (operand,)
    elif _JOINING.get(op) == result.by:
        yield (result, result)
    elif op is ops.MUL and result.by == "sum" and node.dtype.is_float:
        yield (result, WHOLE)
        yield (WHOLE, result)
    elif op in (ops.CONTIGUOUS, ops.EXCHANGE):
        yield (result,)
    elif op is ops.GATHER and result.by == "sum" and node.dtype.is_float:
        for split in known[node.inputs[0]]:  # a rank looks up what it has, and zeros in place of the rest
            if isinstance(split, Split) and split.axis == node.attr.axis:
                yield split, WHOLE
    elif op is ops.SCATTER and result.by == "sum" and _adds_to_zeros(node):
        for split in known[node.inputs[1]]:  # a rank adds its own elements to zeros
            if isinstance(split, Split):
                yield WHOLE, split, Split(node.attr.axis + split.axis, split.inner)


def _owned_operands(
    node: Node, result: Owned, known: Mapping[Node, Sequence[Placement]]
) -> Iterator[tuple[Placement, ...]]:
    op = node.op
    if op.kind is Kind.ELEMENTWISE or op is ops.CONTIGUOUS:
        yield (result,) * len(node.inputs)
    elif op is ops.GATHER and result.axis == node.attr.axis and result.lookup.index is node.inputs[1]:
        for split in known[node.inputs[0]]:
            if isinstance(split, Split) and split.axis == node.attr.axis and _lookup(node, split) == result.lookup:
                yield split, WHOLE
    elif op.kind is Kind.REDUCE:
        for operand in known[node.inputs[0]]:
            if isinstance(operand, Owned) and result in list(forward(node, 0, operand, 0)):
                yield (operand,)


def combines(dtype: DType, op: ops.Op) -> bool:
    """Whether what ranks computed of parts may be combined without a rounding more: not where each part was rounded to
    a narrow type."""
    return op is ops.MAX_REDUCE or not dtype.is_float or dtype.bits >= 32


def _gathered(node: Node, number: int, axis: int) -> int | None:
    """The axis of a gather's result that an axis of its operand ``number`` becomes."""
    index = node.inputs[1]
    at: int = node.attr.axis
    if number == 1:
        return at + axis
    if axis == at:
        return None
    return axis if axis < at else axis + index.rank - 1


def _scattered(node: Node, number: int, axis: int) -> int | None:
    """The axis of a scatter's result that an axis of its operand ``number`` becomes: those beside the positions, along
    which each rank puts its part of the new elements into its part of the old."""
    at: int = node.attr.axis
    if number == 0:
        return None if axis == at else axis
    if number == 1 or at <= axis < at + node.inputs[1].rank:
        return None
    return axis if axis < at else axis - node.inputs[1].rank + 1


def _axes_put_in_front(node: Node) -> int:
    return node.rank - node.inputs[0].rank


def _adds_to_zeros(node: Node) -> bool:
    """Whether a scatter adds to nothing, so that what ranks have scattered may be added up."""
    value = constants.uniform(node.inputs[0])
    return node.attr.by is ops.ADD and value is not None and not value.any()
