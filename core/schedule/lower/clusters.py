"""A cluster as a loop nest: plain serial loops that say what is computed. Transforms then say how."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from luminal.core import ops, ranges
from luminal.core import symbolic as sym
from luminal.core.grid import aligned
from luminal.core.ir import Node, axes, rename
from luminal.core.matching import flatten
from luminal.core.ops import COSTLY, Kind
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.fusion.assemblies import Part
from luminal.core.schedule.fusion.cluster import Chain, Cluster, is_literal
from luminal.core.schedule.fusion.layout import Layouts
from luminal.core.schedule.fusion.reads import merged_index
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.neutral import neutral_unless
from luminal.core.schedule.nest.walk import accesses, expressions, reads, statements, variables_bound
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target
from luminal.core.traverse import topological


@dataclass(frozen=True)
class Lowered:
    """A nest, and for each of its array arguments the stored value that it is. For a contraction, ``product`` has the
    loop over each axis of its product, None for an axis of extent 1."""

    nest: ln.LoopNest
    arguments: tuple[Node, ...]
    product: tuple[Var | None, ...] = ()

    def loops(self, axes: Iterable[int]) -> list[Var]:
        """The loops over ``axes`` of the product."""
        return [v for k in axes if (v := self.product[k]) is not None]


@dataclass
class _Lowering:
    cluster: Cluster
    layouts: Layouts
    target: Target
    arrays: dict[Node, str] = field(default_factory=dict)
    written: set[Node] = field(default_factory=set)
    finished: dict[Node, str] = field(default_factory=dict)  # reductions whose value has a name
    row_buffers: dict[Node, str] = field(default_factory=dict)  # values of a row in local arrays
    row: tuple[Var, ...] = ()  # the axes of these arrays
    lets: list[ln.Let] = field(default_factory=list)
    looked_up: int = 0
    given: dict[Node, Callable[..., ln.Scalar]] = field(default_factory=dict)  # inputs of a body, as ``value`` is
    body: frozenset[Node] = frozenset()
    memo: dict[tuple[Node, tuple[Int, ...], tuple[Int, ...]], ln.Scalar] = field(default_factory=dict)

    # ---- values ---------------------------------------------------------------------------------------------------

    def value(self, node: Node, index: tuple[Int, ...], valid: tuple[Int, ...] = ()) -> ln.Scalar:
        """``node`` at ``index``, as a scalar; reads happen only where ``valid`` holds."""
        key = (node, index, valid)
        if key not in self.memo:
            self.memo[key] = self._value(node, index, valid)
        return self.memo[key]

    def _value(self, node: Node, index: tuple[Int, ...], valid: tuple[Int, ...]) -> ln.Scalar:
        if node.op is ops.VIEW:
            return self._view(node, index, valid)
        if is_literal(node):
            return ln.literal(node.attr.array.tobytes(), node.dtype)
        if node.op is ops.IOTA:
            return ln.index(index[0])
        if node.op is ops.DIM:
            return ln.index(node.attr.value)
        if node in self.given:
            return self.given[node](index, valid)
        if node in self.row_buffers:
            return ln.load(self.row_buffers[node], self.row_offset(), node.dtype)
        if node in self.finished:
            return ln.temporary(self.finished[node], node.dtype)
        if node in self.cluster.index or node in self.layouts.fusion.inline or node in self.body:
            return self._computed(node, index, valid)
        return ln.load(
            self.array(node), self.layouts.offset(node, index), node.dtype, valid, bytes(node.dtype.itemsize)
        )

    def _view(self, node: Node, index: tuple[Int, ...], valid: tuple[Int, ...]) -> ln.Scalar:
        by = rename(node.shape, index)
        inner = tuple(sym.substitute(e, by) for e in node.attr.index)
        mask = tuple(m for v in node.attr.valid if not sym.always(m := sym.substitute(v, by)))
        needed = tuple(dict.fromkeys(valid + mask))
        base = self.value(node.inputs[0], inner, needed)
        if not mask:
            return base
        if isinstance(base.leaf, ln.Access) and base.leaf.valid == needed:
            return ln.load(base.leaf.array, base.leaf.offset, base.dtype, base.leaf.valid, node.attr.fill)
        return ln.select(mask, base, ln.literal(node.attr.fill, node.dtype))

    def _computed(self, node: Node, index: tuple[Int, ...], valid: tuple[Int, ...]) -> ln.Scalar:
        if node.op is ops.CONTIGUOUS:
            return self.value(node.inputs[0], index, valid)
        if node.op is ops.GATHER:
            return self._gather(node, index, valid)
        assert node.op.kind is Kind.ELEMENTWISE, node
        operands = tuple(self.value(x, index, valid) for x in node.inputs)
        return ln.apply(node.op, operands, node.attr, node.dtype)

    def _gather(self, node: Node, index: tuple[Int, ...], valid: tuple[Int, ...]) -> ln.Scalar:
        data, positions = node.inputs
        axis = node.attr.axis
        span = index[axis : axis + positions.rank]
        place = self.value(positions, span, valid)
        if valid:
            zero = ln.literal(bytes(place.dtype.itemsize), place.dtype)
            place = ln.select(valid, place, zero)
        extent = data.shape[axis]
        looked = self.look_up(place, extent, None if ranges.within(positions, extent) else node.attr.failure)
        if not sym.always(extent - 1):
            valid = (*valid, extent - 1)  # nothing can be read from an empty table, not even after a failed look-up
        return self.value(data, (*index[:axis], looked, *index[axis + positions.rank :]), valid)

    def look_up(self, place: ln.Scalar, extent: Int, failure: ops.Failure | None) -> Int:
        """The index ``place``, read at run time, into an axis of ``extent``; a run whose index is out of range fails
        with ``failure``, None where it cannot be."""
        known = (x for x in self.lets if x.value is place and (x.extent, x.failure) == (extent, failure))
        let = next(known, None)
        if let is None:
            let = ln.Let(sym.Var(f"g{self.looked_up}", 0, extent - 1), place, extent, failure)
            self.looked_up += 1
            self.lets.append(let)
        return sym.expr(let.axis)

    def array(self, node: Node) -> str:
        node = self.layouts.owner(node)
        return self.arrays.setdefault(node, f"x{len(self.arrays)}")

    def row_offset(self) -> Int:
        return flatten([sym.expr(a) for a in self.row], [_extent(a) for a in self.row])

    # ---- statements ------------------------------------------------------------------------------------------------

    def with_lets(self, *statements: ln.Statement) -> tuple[ln.Statement, ...]:
        """The lookups that values computed since the last call need, then ``statements``."""
        lets, self.lets = self.lets, []
        self.memo.clear()
        return (*lets, *statements)

    def store(self, node: Node) -> ln.Store:
        index = self.cluster.index[node]
        self.written.add(self.layouts.owner(node))
        value = self.value(node, index)
        return ln.Store(self.array(node), self.layouts.offset(node, index), value)

    def stores(self, nodes: Sequence[Node]) -> list[ln.Statement]:
        """The stores of ``nodes``. What is stored where an old value lies is stored after all that read that."""
        waiting = [self.store(node) for node in nodes]
        reads = {id(store): {x.array for x in accesses(store.value)} for store in waiting}
        ordered: list[ln.Statement] = []
        while waiting:
            free = (s for s in waiting if not any(s.array in reads[id(other)] for other in waiting if other is not s))
            store = next(free, None)
            if store is None:  # each is read for another: all are computed before any is stored
                names = {id(s): f"new{k}" for k, s in enumerate(waiting)}
                defined = [ln.Define(names[id(s)], s.value) for s in waiting]
                left = [replace(s, value=ln.temporary(names[id(s)], s.value.dtype)) for s in waiting]
                return [*ordered, *defined, *left]
            waiting.remove(store)
            ordered.append(store)
        return ordered

    def stored(self) -> list[Node]:
        return [n for n in self.cluster.index if n in self.layouts.fusion.stored]

    def reduction(self, node: Node, name: str, axes: list[Var], buffered: list[Node]) -> tuple[ln.Statement, ...]:
        operand = node.inputs[0]
        index = self.cluster.operand_index.get(node)
        if index is None:
            over: list[Int] = [sym.expr(a) for a in axes]
            index = merged_index(operand, node.attr.axes, self.cluster.index[node], over)
        before: list[ln.Statement] = []
        for row in buffered:
            value = self.value(row, self.cluster.index[row])
            self.row_buffers[row] = f"row{len(self.row_buffers)}"
            before += self.with_lets(ln.Store(self.row_buffers[row], self.row_offset(), value))
        value = self.value(operand, index)
        loops = tuple(ln.Loop(a, _extent(a), "serial", ()) for a in axes)
        statements = self.with_lets()
        result = ln.Reduction(name, node.op, node.dtype, loops, (*before, *statements), value)
        self.finished[node] = name
        return (result,)


def _extent(axis: Var) -> Int:
    return axis.hi + 1


def _loops(axes: list[Var], body: tuple[ln.Statement, ...], kind: str = "serial") -> tuple[ln.Statement, ...]:
    for axis in reversed(axes):
        body = (ln.Loop(axis, _extent(axis), kind, body),)
    return body


def _variables(axes: tuple[Int, ...]) -> list[Var]:
    return [v for a in axes if (v := sym.as_var(a)) is not None]


def lower(cluster: Cluster, layouts: Layouts, target: Target) -> Lowered:
    """The serial nest that computes ``cluster``; ``target`` says how many bytes of a row may be buffered."""
    state = _Lowering(cluster, layouts, target)
    body: tuple[ln.Statement, ...]
    if cluster.chain is not None:
        body = _chain(state, cluster.chain)
    elif cluster.kind == "contraction":
        body = _contraction(state)
    elif cluster.kind == "row":
        body = _row(state)
    elif cluster.kind == "scatter":
        body = _scatter(state)
    elif cluster.kind == "scan":
        body = _scan(state)
    elif cluster.kind == "sort":
        body = _sort(state)
    else:
        stores = state.stores(state.stored())
        body = _loops(_variables(cluster.axes), state.with_lets(*stores))
    lowered = _lowered(state, body)
    if cluster.contraction is None or cluster.chain is not None:
        return lowered
    return replace(lowered, product=_axes_of_product(cluster, cluster.contraction))


def _axes_of_product(cluster: Cluster, found: Contraction) -> tuple[Var | None, ...]:
    """The loop over each axis of the product that a cluster sums, named as in ``_contraction``."""
    summed = iter(_summed_axes([found.shape[k] for k in sorted(found.k)], 0))
    unreduced = iter(cluster.axes)
    return tuple(
        (next(summed) if size != 1 else None) if k in found.k else sym.as_var(next(unreduced))
        for k, size in enumerate(found.shape)
    )


def lower_part(whole: Node, part: Part, layouts: Layouts, target: Target) -> Lowered:
    """The nest that writes one box of an assembly."""
    cluster = Cluster(0, "map", part.extents)
    state = _Lowering(cluster, layouts, target)
    index = tuple(low + axis for (low, _), axis in zip(part.bounds, cluster.axes, strict=True))
    by = rename(whole.shape, index)
    if part.source is None:
        value = ln.literal(part.fill, whole.dtype)
    else:
        value = state.value(part.source, tuple(sym.substitute(e, by) for e in part.index))
    state.written.add(layouts.owner(whole))
    store = ln.Store(state.array(whole), layouts.offset(whole, index), value)
    return _lowered(state, _loops(_variables(cluster.axes), state.with_lets(store)))


def lower_copy(result: Node, into: Node, layouts: Layouts, target: Target) -> Lowered:
    """The nest that copies ``result`` to where ``into`` lies."""
    box = tuple((0, extent) for extent in into.shape)
    return lower_part(into, Part(box, result, axes(into.shape)), layouts, target)


def _lowered(state: _Lowering, body: tuple[ln.Statement, ...]) -> Lowered:
    reductions = [s for s in statements(body) if isinstance(s, ln.Reduction)]
    arrays = tuple(
        ln.Array(
            name, node.dtype, node in state.written, _is_finite(node) and _bears_masks(name, reductions),
            node not in state.layouts.unaligned,
        )
        for node, name in state.arrays.items()
    )  # fmt: skip
    return Lowered(ln.LoopNest(arrays, _dims(body), body, _looks_up(body)), tuple(state.arrays))


def _is_finite(node: Node) -> bool:
    """Whether ``node`` is a constant without infinities and NaN: its products with zero are zero."""
    return node.op is ops.CONSTANT and node.dtype.is_float and node.attr.is_finite


def _bears_masks(name: str, reductions: list[ln.Reduction]) -> bool:
    """Whether a mask of a reduction can be dropped only if the numbers of the array are finite."""
    known = frozenset({name})
    return any(neutral_unless(s.value, s.op, known) != neutral_unless(s.value, s.op, frozenset()) for s in reductions)


def _contraction(state: _Lowering) -> tuple[ln.Statement, ...]:
    node = next(iter(state.cluster.index))
    reduction = state.reduction(node, "sum0", _reduced_axes(node, 0), [])
    stores = state.stores(state.stored())
    return _loops(_variables(state.cluster.axes), (*reduction, *state.with_lets(*stores)))


def _scatter(state: _Lowering) -> tuple[ln.Statement, ...]:
    """The new elements stored into the old value, which lies in the result's place, in order of their positions."""
    (node,) = state.cluster.index
    old, positions, new = node.inputs
    axis, by, axes = node.attr.axis, node.attr.by, state.cluster.axes
    between = axes[axis : axis + positions.rank]
    at = state.look_up(state.value(positions, between), old.shape[axis], node.attr.failure)
    index = (*axes[:axis], at, *axes[axis + positions.rank :])
    state.written.add(state.layouts.owner(node))
    place, value = state.layouts.offset(node, index), state.value(new, axes)
    if by is not None:
        value = ln.apply(by, (ln.load(state.array(node), place, node.dtype), value), None, node.dtype)
    room = () if sym.always(old.shape[axis] - 1) else (old.shape[axis] - 1,)
    body = state.with_lets(ln.Store(state.array(node), place, value, room))
    body = _loops(_variables(axes[axis + positions.rank :]), body)
    body = _loops(_variables(between), body, "ordered")
    return _loops(_variables(axes[:axis]), body)


def _scan(state: _Lowering) -> tuple[ln.Statement, ...]:
    """Every result of the body at one element, from the carries, which lie where their last values will be. At the
    first element the carries are their first values."""
    cluster = state.cluster
    step, inputs = next((n.attr, n.inputs) for n in cluster.index)
    members = {n.attr.result: n for n in cluster.index}
    place, element = cluster.axes[0], cluster.axes[1:]
    count = len(step.carries)
    began = (place - 1,)

    def carry(number: int) -> Callable[..., ln.Scalar]:
        def value(index: tuple[Int, ...], valid: tuple[Int, ...]) -> ln.Scalar:
            node, first = members[number], state.value(inputs[number], index, valid)
            if place == 0:
                return first
            array, offset, known = state.array(node), state.layouts.offset(node, index), valid + began
            if isinstance(first.leaf, ln.Literal):
                return ln.load(array, offset, node.dtype, known, first.leaf.bits)
            before = ln.load(array, offset, node.dtype, known, bytes(node.dtype.itemsize))
            return ln.select(began, before, first)

        return value

    def slice_(number: int) -> Callable[..., ln.Scalar]:
        return lambda index, valid: state.value(inputs[count + number], (place, *index), valid)

    def shared(number: int) -> Callable[..., ln.Scalar]:
        return lambda index, valid: state.value(inputs[count + len(step.slices) + number], index, valid)

    state.given = {x: carry(k) for k, x in enumerate(step.carries)}
    state.given |= {x: slice_(k) for k, x in enumerate(step.slices)}
    state.given |= {x: shared(k) for k, x in enumerate(step.shared)}
    computed = (node for node in topological(step.results) if node.op is not ops.CONSTANT)  # constants lie in memory
    state.body = frozenset(computed) - state.given.keys()
    names: dict[ln.Scalar, str] = {}
    stores: list[ln.Statement] = []
    for number, node in members.items():
        state.written.add(state.layouts.owner(node))
        name = names.setdefault(state.value(step.results[number], element), f"s{len(names)}")
        offset = state.layouts.offset(node, cluster.index[node])
        stores.append(ln.Store(state.array(node), offset, ln.temporary(name, node.dtype)))
    values = [ln.Define(name, value) for value, name in names.items()]
    inner = _loops(_variables(element), state.with_lets(*values, *stores))
    return _loops(_variables((place,)), inner, "ordered")


def _sort(state: _Lowering) -> tuple[ln.Statement, ...]:
    """Rows sorted where they lie; or the least of each row, kept in a heap while the row is read, and then sorted."""
    (node,) = state.cluster.index
    (operand,) = node.inputs
    *outer, last = state.cluster.axes
    state.written.add(state.layouts.owner(node))
    array, count = state.array(node), node.shape[-1]
    start = state.layouts.offset(node, (*outer, 0))
    body: tuple[ln.Statement, ...] = (ln.Sort(array, start, count),)
    if node.shape != operand.shape:
        place = sym.axis("e0", count)
        most = ln.literal(np.array(node.dtype.max, node.dtype.numpy).tobytes(), node.dtype)
        filled = _loops(_variables((place,)), (ln.Store(array, start + place, most),))
        value = state.value(operand, (*outer, last))
        scan = _loops(_variables((last,)), state.with_lets(ln.KeepLeast(array, start, count, value)), "ordered")
        body = (*filled, *scan, *body)
    return _loops(_variables(tuple(outer)), body)


def _reduced_axes(node: Node, first: int) -> list[Var]:
    """The axes that a contraction sums over, ``k`` with numbers from ``first`` on."""
    return _summed_axes([node.inputs[0].shape[k] for k in node.attr.axes], first)


def _summed_axes(extents: Sequence[Int], first: int) -> list[Var]:
    longer = (extent for extent in extents if extent != 1)
    return [sym.Var(f"k{number}", 0, extent - 1) for number, extent in enumerate(longer, first)]


def _chain(state: _Lowering, chain: Chain) -> tuple[ln.Statement, ...]:
    """A row, computed by the first contraction or read, in a local array; reductions along it; the last contraction."""
    cluster, along = state.cluster, chain.along
    state.row = (along,)
    row, last = chain.row, chain.last[0]
    inner: tuple[ln.Statement, ...] = ()
    if chain.first:
        inner = state.reduction(chain.first[0], "sum0", _reduced_axes(chain.first[0], 1), [])
    value = state.value(row, chain.at)
    inner += state.with_lets(ln.Store("row0", state.row_offset(), value))
    body = [ln.Alloc("row0", row.dtype, _bound([along])), *_loops([along], inner)]
    state.row_buffers[row] = "row0"
    for number, node in enumerate(n for n in chain.middle if n.op.kind is Kind.REDUCE):
        body += state.reduction(node, f"r{number}", [along], [])
    result = state.reduction(last, "sum1", [along], [])
    stores = [state.store(n) for n in state.stored()]
    rows = {v for n in chain.middle for e in cluster.index[n] for v in sym.variables(e)}
    axes = _variables(cluster.axes)
    body += _loops([v for v in axes if v not in rows], (*result, *state.with_lets(*stores)))
    return _loops([v for v in axes if v in rows], tuple(body))


def _row(state: _Lowering) -> tuple[ln.Statement, ...]:
    cluster = state.cluster
    row = [v for v in _variables(cluster.axes) if v in cluster.row]
    state.row = tuple(row)
    reductions = [n for n in cluster.index if n.op.kind is Kind.REDUCE]
    buffered = _values_to_buffer(state, reductions, row)
    body: list[ln.Statement] = []
    for number, node in enumerate(reductions):
        first = [n for n, at in buffered.items() if at is node]
        body += state.reduction(node, f"r{number}", row, first)
    along = [n for n in state.stored() if any(sym.variables(e) & cluster.row for e in cluster.index[n])]
    once = [n for n in state.stored() if n not in along]
    allocs = [ln.Alloc(name, node.dtype, _bound(row)) for node, name in state.row_buffers.items()]
    elements = _loops(row, state.with_lets(*state.stores(along))) if along else ()
    late = _read_by(state, once, elements)
    body += state.with_lets(*state.stores([n for n in once if n not in late]))
    body += elements
    body += state.with_lets(*state.stores(late))
    return _loops(_variables(cluster.outer), (*allocs, *body))


def _read_by(state: _Lowering, once: Sequence[Node], elements: tuple[ln.Statement, ...]) -> list[Node]:
    """Of the values ``once`` for each row, those stored where an old value lies that ``elements`` of the row are
    computed from, or others of these are."""
    read = {x.array for statement in statements(elements) for x in reads(statement)}
    found: list[Node] = []
    while more := [n for n in once if n not in found and state.array(n) in read]:
        found += more
        read |= {x.array for n in more for x in accesses(state.store(n).value)}
        state.with_lets()  # they are made again, when they are stored
    return [n for n in once if n in found]


def _bound(row: list[Var]) -> int:
    total = sym.upper(sym.product(_extent(a) for a in row))
    assert total is not None
    return total


def _values_to_buffer(state: _Lowering, reductions: list[Node], row: list[Var]) -> dict[Node, Node]:
    """Costly values of the row that two passes read, or values that only they are computed for, each with the first
    reduction that computes it: they are kept in a local array.

    Only where the row is contiguous, so that it is the vectorised axis, and in order, as far as the target has room.
    """
    cluster = state.cluster
    limit = sym.upper(sym.product(_extent(a) for a in row))
    if limit is None or not _row_is_contiguous(state, reductions[0], row):
        return {}
    needed = {r: _needed(r.inputs[0], state, reductions) for r in reductions}
    finally_needed: set[Node] = set()
    for node in state.stored():
        if node not in reductions:
            finally_needed |= _needed(node, state, reductions)
    readers = _readers(set().union(finally_needed, reductions, *needed.values()))
    buffered: dict[Node, Node] = {}
    room = state.target.row_buffer_bytes(r.dtype for r in reductions)
    for costly in (node for node in cluster.index if node.op in COSTLY):
        node = _final_reader(costly, state, readers)
        size = aligned(limit * node.dtype.itemsize)
        if node in buffered or size > room:
            continue
        if not all(any(v in sym.variables(e) for e in cluster.index[node]) for v in row):
            continue
        passes = [r for r in reductions if node in needed[r]]
        if passes and len(passes) + (node in finally_needed) > 1:
            buffered[node] = passes[0]
            room -= size
    return buffered


def _final_reader(node: Node, state: _Lowering, readers: Mapping[Node, list[Node]]) -> Node:
    """The value that ``node`` is computed for: its only reader, and so on, while elements are as many and bytes no
    more."""
    while node not in state.layouts.fusion.stored and len(readers[node]) == 1:
        (reader,) = readers[node]
        index = state.cluster.index
        if reader.op.kind is not Kind.ELEMENTWISE or index.get(reader) != index[node]:
            break
        if reader.dtype.itemsize > node.dtype.itemsize:
            break
        node = reader
    return node


def _readers(nodes: Collection[Node]) -> dict[Node, list[Node]]:
    """For each of ``nodes`` and their operands, the nodes among them that read it."""
    found: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node in nodes:
        for x in dict.fromkeys(node.inputs):
            found.setdefault(x, []).append(node)
    return found


def _needed(root: Node, state: _Lowering, finished: list[Node]) -> set[Node]:
    """The members and inline values that ``root`` is computed from, up to ``finished`` reductions."""
    found: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        computed = node.op is ops.VIEW or node in state.cluster.index or node in state.layouts.fusion.inline
        if computed and node not in found and node not in finished:
            found.add(node)
            stack.extend(node.inputs)
    return found


def _row_is_contiguous(state: _Lowering, reduction: Node, row: list[Var]) -> bool:
    probe = _Lowering(state.cluster, state.layouts, state.target, row=tuple(row))
    (statement,) = probe.reduction(reduction, "r", row, [])
    assert isinstance(statement, ln.Reduction)
    slopes = [sym.coefficient(a.offset, row[-1]) for a in accesses(statement.value)]
    return any(s is not None and s[0] == 1 for s in slopes)


def _looks_up(body: tuple[ln.Statement, ...]) -> bool:
    """Whether a look-up may fail."""
    return any(isinstance(s, ln.Let) and s.failure is not None for s in statements(body))


def _dims(body: tuple[ln.Statement, ...]) -> tuple[Var, ...]:
    """The dimension symbols: variables that no statement binds."""
    used = {v for statement in statements(body) for e in expressions(statement) for v in sym.variables(e)}
    return tuple(sorted(used - variables_bound(body), key=lambda v: v.name))
