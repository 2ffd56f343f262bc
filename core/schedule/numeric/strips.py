"""Large values that several products share, computed again in strips of rows.

The gradients of an attention read its weights, which are as many as queries times keys: kept from the forward pass,
they take most of the memory of a step of training. Here the products that read such values become a loop over strips of
rows (as Dao et al., 2022, but with whole rows). A round computes its rows of all large values anew, from operands that
are far smaller, and the statistics of these rows; a result that has the rows gets its part, and one that sums over them
is added to. No round needs the rows of another, so no large value is ever whole.

Nothing here knows what is computed. A region begins with products that are larger than their operands and cheap to
compute again, and goes on through elementwise functions, views and reductions of these, up to other products.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Graph, Node, Origins
from luminal.core.movement import concatenate, slice_
from luminal.core.ops import Kind
from luminal.core.origins import Approximation
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.contraction.roles import contraction_of
from luminal.core.sizes import largest
from luminal.core.structured import scan
from luminal.core.symbolic import Var
from luminal.core.target import Target
from luminal.core.types import f32

MOST_NODES = 100  # of an expression that every round computes instead of reading it


class _Unfit(Exception):
    """A region cannot be computed in strips of the axis that was tried."""


def in_strips(graph: Graph, target: Target) -> Graph:
    """``graph`` with the products that share large values in loops over strips of these."""
    if target.grid is not None:
        return graph  # kernels of few rows would leave most processors idle
    origins: Origins = dict(graph.origins)
    noted: list[Approximation] = []
    roots = graph.roots
    while (found := next(_ways(roots, target), None)) is not None:
        where = tuple(dict.fromkeys(origin for node in found.region.exits for origin in origins.get(node, ())))
        noted.append(Approximation("reductions", found.described, where))
        with ir.originating(origins, *where):
            results = found.results()

        def make(node: Node, operands: Sequence[Node], results: Mapping[Node, Node] = results) -> Node:
            return results[node] if node in results else traverse.rebuild(node, operands)

        roots = remade(roots, origins, make)
    if not noted:
        return graph
    return graph.computing(roots, origins=origins, approximations=(*graph.approximations, *noted))


# ---- regions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Region:
    """Products ``exits`` that read large values, and the nodes ``inside`` that are computed for them: operands first.
    Of these the ``seeds`` are products."""

    exits: tuple[Node, ...]
    inside: tuple[Node, ...]
    seeds: tuple[Node, ...]


def _regions(roots: Sequence[Node], target: Target) -> Iterator[_Region]:
    """The regions that are worth strips: two products or more, of which none depends on another, of two large products
    or more. One alone is summed while the large one is computed (``fusion.chain``)."""
    order = traverse.topological(roots)
    if sum(node.op is ops.SUM_REDUCE and _is_large(node, target) for node in order) < 2:
        return
    products = {node: found for node in order if (found := contraction_of(node)) is not None}
    seeds = {node for node, found in products.items() if _is_seed(node, found, target)}
    if len(seeds) < 2:
        return
    users = traverse.users(roots)
    factors = {node.inputs[0] for node in products if all(user in products for user in users[node.inputs[0]])}
    large = _computed_from(order, seeds, {*products, *factors}, target)
    for inside in _connected(order, large):
        exits: set[Node] = set()
        for reader in {user for node in inside for user in users[node]} - inside:
            exits.update(users[reader] if reader in factors else (reader,))
        if len(seeds & inside) < 2 or not (seeds | inside).isdisjoint(exits) or not inside.isdisjoint(roots):
            continue
        outside = set(order).difference(inside, factors)
        for level in _levels(order, exits):
            needed = set(traverse.topological(level, stops=outside.difference(level)))
            region = _Region(
                tuple(level),
                tuple(node for node in order if node in needed and node in inside),
                tuple(node for node in order if node in needed and node in seeds),
            )
            if len(level) > 1 and len(region.seeds) > 1 and all(node in products for node in level):
                yield region


def _is_seed(node: Node, found: Contraction, target: Target) -> bool:
    """Whether a product is much larger than its operands, too large for the cache, and computed in few steps."""
    costs = target.costs.memory
    read = ([k for k, a in enumerate(found.axes) if sym.as_var(a) in x.variables] for x in (found.a, found.b))
    operands = sum(largest(found.count(axes)) for axes in read)
    few = largest(found.count(found.k)) <= costs.again
    return few and _is_large(node, target) and largest(node.size) >= costs.larger * operands


def _is_large(node: Node, target: Target) -> bool:
    return largest(node.size) * f32.itemsize >= _room(target)


def _room(target: Target) -> int:
    """Bytes of the largest value of a strip, at most."""
    return target.costs.memory.l2_strip * target.l2


def _computed_from(
    order: Sequence[Node], seeds: Collection[Node], products: Collection[Node], target: Target
) -> set[Node]:
    """The ``seeds`` and what is computed from them without other ``products``: large values element by element, and the
    statistics of their rows."""
    found = set(seeds)
    statistics: set[Node] = set()
    for node in order:
        if node in products or found.isdisjoint(node.inputs) or node.op is ops.CONTIGUOUS:
            continue
        if node.op.kind is Kind.REDUCE:
            if statistics.isdisjoint(node.inputs):
                statistics.add(node)
                found.add(node)
        elif node.op is ops.VIEW or node.op.kind is Kind.ELEMENTWISE:
            if _is_large(node, target):
                found.add(node)
            elif all(x in statistics or _is_given(x) for x in node.inputs):
                statistics.add(node)
                found.add(node)
    return found


def _is_given(node: Node) -> bool:
    """Whether ``node`` is a constant or an input, or a view of one."""
    return (node.inputs[0] if node.op is ops.VIEW else node).op.kind is Kind.SOURCE


def _connected(order: Sequence[Node], among: Collection[Node]) -> list[set[Node]]:
    """The nodes ``among`` in sets, of which none reads another."""
    found: dict[Node, set[Node]] = {}
    for node in order:
        if node in among:
            joined = {node}.union(*(found[x] for x in node.inputs if x in found))
            found |= dict.fromkeys(joined, joined)
    return list({id(part): part for part in found.values()}.values())


def _levels(order: Sequence[Node], exits: Collection[Node]) -> list[list[Node]]:
    """``exits`` by how many of them come before, each after another: none depends on another of its level."""
    before: dict[Node, int] = {}
    found: dict[int, list[Node]] = {}
    for node in order:
        level = max((before[x] for x in node.inputs), default=0)
        before[node] = level + (node in exits)
        if node in exits:
            found.setdefault(level, []).append(node)
    return [found[level] for level in sorted(found)]


# ---- strips --------------------------------------------------------------------------------------------------------


def _ways(roots: Sequence[Node], target: Target) -> Iterator[_Way]:
    """For each region the way that makes strips small enough in the fewest rounds, where there is one."""
    for region in _regions(roots, target):
        ways: list[_Way] = []
        for axis in range(region.seeds[0].rank):
            try:
                ways.append(_way(region, axis, target))
            except _Unfit:
                continue
        if ways:
            yield min(ways, key=lambda way: (max(way.bytes, _room(target)), way.extent // way.rows))


@dataclass(frozen=True)
class _Way:
    """A region in strips of ``rows`` of ``extent``. ``axis`` has the axis that is cut, of each node inside and of each
    factor of an exit."""

    region: _Region
    axis: Mapping[Node, int]
    extent: int
    rows: int

    @property
    def bytes(self) -> int:
        """Bytes of the largest value of a strip."""
        return max(largest(node.size) for node in self.region.seeds) // self.extent * self.rows * f32.itemsize

    @property
    def described(self) -> str:
        """What is done, in words."""
        count = len(self.region.exits)
        return f"{count} products of values that are computed again, {self.rows} of {self.extent} rows at a time"

    def sums(self, node: Node) -> bool:
        """Whether the exit ``node`` sums over the rows."""
        return self.axis[node.inputs[0]] in node.attr.axes

    def place(self, node: Node) -> int:
        """The axis of the exit ``node`` that is cut."""
        at, axes = self.axis[node.inputs[0]], node.attr.axes
        return at - len([k for k in axes if k < at])

    def results(self) -> dict[Node, Node]:
        """What the exits are replaced by."""
        exits, rows = self.region.exits, self.rows
        rounds, rest = divmod(self.extent, rows)
        strip = _Strip(self, rows)
        values = [strip.product(node, self.axis[node.inputs[0]]) for node in exits]
        summed = [k for k, node in enumerate(exits) if self.sums(node)]
        others = [k for k in range(len(exits)) if k not in summed]

        def step(carries: Sequence[Node], parts: Sequence[Node]) -> tuple[list[Node], list[Node]]:
            here = traverse.substitute(values, dict(zip(strip.read.values(), parts, strict=True)))
            return [total + here[k] for total, k in zip(carries, summed, strict=True)], [here[k] for k in others]

        first = [ir.expand(ir.constant(0, exits[k].dtype), exits[k].shape) for k in summed]
        totals, parts = scan(step, first, [_in_rounds(x, axis, rounds, rows) for x, axis in strip.read])
        found = dict(zip((exits[k] for k in summed), totals, strict=True))
        found |= {exits[k]: _joined(part, self.place(exits[k])) for part, k in zip(parts, others, strict=True)}
        if not rest:
            return found
        last = _Strip(self, rest)
        values = [last.product(node, self.axis[node.inputs[0]]) for node in exits]
        read = {parameter: slice_(x, axis, rounds * rows, rest) for (x, axis), parameter in last.read.items()}
        for node, value in zip(exits, traverse.substitute(values, read), strict=True):
            begun = found[node]
            found[node] = begun + value if self.sums(node) else concatenate([begun, value], self.place(node))
        return found


def _in_rounds(x: Node, axis: int, rounds: int, rows: int) -> Node:
    """The first ``rounds`` strips of ``x`` along a new first axis."""
    shape = (rounds, *x.shape[:axis], rows, *x.shape[axis + 1 :])
    number, *index = ir.axes(shape)
    index[axis] = number * rows + index[axis]
    return ir.view(x, shape, index)


def _joined(parts: Node, axis: int) -> Node:
    """Strips along the first axis as one value."""
    rounds, *shape = parts.shape
    rows = shape[axis]
    shape[axis] = rounds * rows
    index = list(ir.axes(tuple(shape)))
    number, index[axis] = sym.floordiv(index[axis], rows), sym.mod(index[axis], rows)
    return ir.view(parts, shape, (number, *index))


def _way(region: _Region, axis: int, target: Target) -> _Way:
    """``region`` in strips of the ``axis`` of its first seed. Raises _Unfit where that is not possible."""
    extent = region.seeds[0].shape[axis]
    axes = _axes(region, axis)
    if not isinstance(extent, int):
        raise _Unfit
    summed = any(axes[node.inputs[0]] in node.attr.axes for node in region.exits)
    least = target.costs.sizes.strip_rows if summed else 1
    row = _Way(region, axes, extent, 1)
    most = min(max(_room(target) // row.bytes, least), extent // 2)
    if most < least:
        raise _Unfit
    rows = next((n for n in range(most, most // 2, -1) if extent % n == 0), most)
    for node in region.exits:
        _Strip(row, 1).product(node, axes[node.inputs[0]])  # raises where a value has no such strips
    return _Way(region, axes, extent, rows)


def _axes(region: _Region, axis: int) -> dict[Node, int]:
    """The axis of every node of ``region``, and of the factors of its exits, that goes with ``axis`` of the first
    seed."""
    inside = {*region.inside, *(node.inputs[0] for node in region.exits)}
    readers: dict[Node, list[Node]] = {}
    for node in inside.difference(region.seeds):
        for x in node.inputs:
            readers.setdefault(x, []).append(node)
    found = {region.seeds[0]: axis}
    waiting = [region.seeds[0]]

    def add(node: Node, at: int | None) -> None:
        if at is None or found.get(node, at) != at:
            raise _Unfit
        if node not in found:
            found[node] = at
            waiting.append(node)

    for node in waiting:
        for x in () if node in region.seeds else node.inputs:
            if x in inside:
                add(x, _of_operand(node, found[node]))
        for reader in readers.get(node, ()):
            add(reader, _of_result(reader, found[node]))
    if len(found) < len(inside):
        raise _Unfit
    return found


def _of_operand(node: Node, axis: int) -> int | None:
    """The axis of the operand of ``node`` that goes with its own ``axis``."""
    if node.op is ops.VIEW:
        return _viewed(node, axis)
    if node.op.kind is Kind.REDUCE:
        return [k for k in range(node.inputs[0].rank) if k not in node.attr.axes][axis]
    return axis


def _of_result(node: Node, axis: int) -> int | None:
    """The axis of ``node`` that goes with that ``axis`` of its operand."""
    if node.op is ops.VIEW:
        return next((k for k in range(node.rank) if _viewed(node, k) == axis), None)
    if node.op.kind is Kind.REDUCE:
        return None if axis in node.attr.axes else axis - sum(k < axis for k in node.attr.axes)
    return axis


def _viewed(node: Node, axis: int) -> int | None:
    """The axis of its operand along which a view goes as along its own ``axis``, element by element; None where there
    is no such."""
    cut = sym.as_var(ir.axes(node.shape)[axis])
    at = [k for k, e in enumerate(node.attr.index) if cut in sym.variables(e)]
    if len(at) != 1 or any(cut in sym.variables(e) for e in node.attr.valid):
        return None
    (where,) = at
    whole = node.inputs[0].shape[where] == node.shape[axis]
    return where if whole and sym.as_var(node.attr.index[where]) == cut else None


@dataclass
class _Strip:
    """Strips of ``rows``. ``read`` has the values from outside that are cut along an axis, each with the parameter that
    stands for its part."""

    way: _Way
    rows: int
    read: dict[tuple[Node, int], Node] = field(default_factory=dict)
    memo: dict[tuple[Node, int], Node] = field(default_factory=dict)

    def product(self, node: Node, axis: int) -> Node:
        """The part of a product whose factors are cut along ``axis``: of its rows, or the sum over these."""
        (factor,) = node.inputs
        return ir.reduce(node.op, self._made(factor, axis), node.attr.axes)

    def _of(self, node: Node, axis: int) -> Node:
        """The rows of ``node``, cut along ``axis``."""
        if (node, axis) not in self.memo:
            self.memo[node, axis] = self._computed(node, axis)
        return self.memo[node, axis]

    def _computed(self, node: Node, axis: int) -> Node:
        inside = node in self.way.axis
        if inside and self.way.axis[node] != axis:
            raise _Unfit
        if node.op is ops.VIEW:
            return self._view(node, axis)
        if node in self.way.region.seeds:
            before = _of_operand(node, axis)
            assert before is not None
            return self.product(node, before)
        if inside and node.op.kind is Kind.REDUCE:
            before = _of_operand(node, axis)
            assert before is not None
            return ir.reduce(node.op, self._of(node.inputs[0], before), node.attr.axes)
        if inside or (node.op.kind is Kind.ELEMENTWISE and _is_spread(node)):
            return self._made(node, axis)
        return self._part(node, axis)

    def _made(self, node: Node, axis: int) -> Node:
        """An elementwise ``node``."""
        operands = tuple(self._of(x, axis) for x in node.inputs)
        return ir.made(node.op, operands, node.attr, self._shape(node, axis), node.dtype)

    def _shape(self, node: Node, axis: int) -> ir.Shape:
        return (*node.shape[:axis], self.rows, *node.shape[axis + 1 :])

    def _part(self, node: Node, axis: int) -> Node:
        if (node, axis) not in self.read:
            parameter = ir.input_(f"strip {len(self.read)}", self._shape(node, axis), node.dtype)
            self.read[node, axis] = parameter
        return self.read[node, axis]

    def _view(self, node: Node, axis: int) -> Node:
        (x,), view, shape = node.inputs, node.attr, self._shape(node, axis)
        where = _viewed(node, axis)
        if where is not None:
            return _over(self._of(x, where), shape, node, ir.rename(node.shape, ir.axes(shape)))
        if x in self.way.axis:
            raise _Unfit
        used = {v for e in (*view.index, *view.valid) for v in sym.variables(e)}
        if sym.as_var(ir.axes(node.shape)[axis]) not in used:
            return _over(x, shape, node, {})
        # Its elements without the axes along which they repeat lie in memory, and are cut.
        kept = [k for k, a in enumerate(ir.axes(node.shape)) if sym.as_var(a) in used]
        once = tuple(node.shape[k] for k in kept)
        places = list(ir.axes(node.shape))
        for k, e in zip(kept, ir.axes(once), strict=True):
            places[k] = e
        whole = _over(x, once, node, ir.rename(node.shape, places))
        if largest(whole.size) > largest(x.size):
            raise _Unfit
        over = ir.axes(shape)
        return ir.view(self._part(whole, kept.index(axis)), shape, [over[k] for k in kept])


def _over(x: Node, shape: ir.Shape, node: Node, by: Mapping[Var, sym.Int]) -> Node:
    """The view ``node`` as a view of ``x`` of another ``shape``, over axes that are put in ``by``."""
    index, valid = ([sym.substitute(e, by) for e in part] for part in (node.attr.index, node.attr.valid))
    return ir.view(x, shape, index, valid, node.attr.fill)


def _is_spread(node: Node) -> bool:
    """Whether ``node`` is computed element by element from values that together are far smaller, as a mask is from
    positions."""
    inner, leaves = {node: None}, dict[Node, None]()
    for x in (waiting := [node]):
        for y in x.inputs:
            if y.op is ops.VIEW or (y.op.kind is Kind.ELEMENTWISE and y.op is not ops.CONTIGUOUS):
                waiting += [y] if y not in inner else []
                inner[y] = None
            else:
                leaves[y] = None
        if len(inner) > MOST_NODES:
            return False
    return 2 * sum(largest(x.size) for x in leaves) < largest(node.size)
