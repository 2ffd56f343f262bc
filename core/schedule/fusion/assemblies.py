"""Values put together from parts: concatenations and paddings as regions of one buffer.

A stored value that selects by position among other stored values, or is a padded view of one, is an *assembly*: boxes
of its index space, each a copy of some value or a constant. A part that has a kernel of its own and fills a box
completely is *placed*: its kernel writes straight into the box, a sub-buffer of the whole. The other boxes (the border
of a padding, parts that are inputs) are written by small kernels, one for each box; nothing is selected at run time.

A scatter is an assembly of one part: its old value is placed in its buffer, or copied there where anything else reads
it; then the kernel of the scatter writes the new elements. A sort of whole rows is treated alike, and sorts in its
buffer. The last value of a loop's carry lies where its first value did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.matching import invert
from luminal.core.schedule.fusion.cluster import Cluster, Fusion, is_literal
from luminal.core.symbolic import Int

Bounds = tuple[tuple[Int, Int], ...]


@dataclass(frozen=True)
class Part:
    """A box of an assembly: along axis ``k`` the positions ``bounds[k][0] .. bounds[k][1] - 1``.

    It holds ``source`` at ``index`` (over the axes of the whole), or the constant ``fill`` (the bytes of one element).
    """

    bounds: Bounds
    source: Node | None
    index: tuple[Int, ...] = ()
    fill: bytes = b""

    @property
    def extents(self) -> tuple[Int, ...]:
        return tuple(high - low for low, high in self.bounds)


@dataclass(frozen=True)
class Placement:
    """A value inside the buffer of ``whole``: ``index``, over the value's axes, is the element of the whole that each
    of its elements is. The whole may contain the value, or be written over it."""

    whole: Node
    index: tuple[Int, ...]

    def at(self, node: Node, index: tuple[Int, ...]) -> tuple[Int, ...]:
        """The element of the whole at which ``node``, the placed value, has its element ``index``."""
        by = ir.rename(node.shape, index)
        return tuple(sym.substitute(e, by) for e in self.index)


@dataclass(frozen=True)
class Assemblies:
    """``placed`` says which values lie inside others; ``parts`` are the boxes that an assembly's own kernels write."""

    placed: Mapping[Node, Placement]
    parts: Mapping[Node, tuple[Part, ...]]

    def owner(self, node: Node) -> Node:
        """The value whose buffer holds ``node``."""
        while node in self.placed:
            node = self.placed[node].whole
        return node

    def within(self, node: Node, index: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]]:
        """The value whose buffer holds ``node``, and the element of that value that is ``node``'s element ``index``."""
        while (placement := self.placed.get(node)) is not None:
            node, index = placement.whole, placement.at(node, index)
        return node, index


class _UndecidedError(Exception):
    """The value is no assembly, or the box of an element cannot be decided at compile time."""


def find_assemblies(fusion: Fusion, fixed: frozenset[Node]) -> Assemblies:
    """The assemblies among the stored values. Values in ``fixed`` have buffers of their own."""
    home = {n: c for c in fusion.clusters for n in c.index}
    placed: dict[Node, Placement] = {}
    left: dict[Node, tuple[Part, ...]] = {}
    readers = traverse.users(fusion.roots)
    begun = {first for c in fusion.clusters if c.kind == "steps" for n in c.index if (first := _carry(n)) is not None}
    for cluster in fusion.clusters:
        if cluster.kind in ("scatter", "sort"):
            (changed,) = cluster.index
            old = changed.inputs[0]
            if old.shape != changed.shape:
                continue  # the least elements of a row have a buffer of their own
            alone = old in fusion.stored and old not in fixed and readers[old] == [changed]
            if alone and not _is_read_elsewhere(old, placed, readers, home, fusion):
                placed[old], left[changed] = Placement(changed, ir.axes(changed.shape)), ()
            else:
                left[changed] = (Part(tuple((0, d) for d in changed.shape), old, ir.axes(changed.shape)),)
            continue
        if cluster.kind == "steps":
            placed |= {first: Placement(n, ir.axes(n.shape)) for n in cluster.index if (first := _carry(n)) is not None}
            continue
        whole = _assembled(cluster, fusion)
        if whole is None or whole in begun:
            continue
        try:
            box = tuple((0, d) for d in whole.shape)
            parts = _Decomposition(whole, fusion.stored).parts(whole, ir.axes(whole.shape), box)
        except _UndecidedError:
            continue
        mine: dict[Node, Placement] = {}
        rest: list[Part] = []
        for part in parts:
            rest.append(part)
            placement = _placement(part, whole)
            source = part.source
            if placement is None or source is None or source in fixed or source in placed or source in mine:
                continue
            if source in fusion.stored and not _reads_any(home[source], {whole, *mine}):
                mine[source] = placement
                rest.pop()
        if mine:
            placed |= mine
            left[whole] = tuple(rest)
    return Assemblies(placed, left)


def _is_read_elsewhere(
    whole: Node,
    placed: dict[Node, Placement],
    readers: Mapping[Node, list[Node]],
    home: Mapping[Node, Cluster],
    fusion: Fusion,
) -> bool:
    """Whether anything outside the buffer of ``whole`` reads a value in it: it could see the change."""
    inside = {whole}
    for node, placement in reversed(placed.items()):
        if placement.whole not in inside:
            continue
        inside.add(node)
        waiting = list(readers[node])
        while waiting:
            user = waiting.pop()
            if user.op is ops.VIEW or user in fusion.inline:
                waiting += readers[user]
            elif home.get(user) not in (home[placement.whole], home[node]):
                return True
    return False


def _carry(node: Node) -> Node | None:
    """The first value of a carry of a loop, if ``node`` is its last."""
    if node.op is ops.COND or node.attr.result >= len(node.attr.carries):
        return None
    first: Node = node.inputs[node.attr.result]
    return first


def _assembled(cluster: Cluster, fusion: Fusion) -> Node | None:
    """The only stored value of a cluster that only moves values, if there is exactly one."""
    stored = [n for n in cluster.index if n in fusion.stored]
    moves = all(n.op in (ops.SELECT, ops.CONTIGUOUS) for n in cluster.index)
    return stored[0] if cluster.kind == "map" and len(stored) == 1 and moves else None


def _reads_any(cluster: Cluster, nodes: set[Node]) -> bool:
    """Whether a cluster reads any of ``nodes``: then it cannot write into their buffer."""
    seen: set[Node] = set()
    stack = [x for n in cluster.index for x in n.inputs]
    while stack:
        node = stack.pop()
        if node in nodes:
            return True
        if node not in seen and (node.op is ops.VIEW or node.op.kind is ops.Kind.ELEMENTWISE):
            seen.add(node)
            stack.extend(node.inputs)
    return False


def _placement(part: Part, whole: Node) -> Placement | None:
    """Where a part's source lies in the whole, if the box holds all of it in the whole's order of axes; None otherwise.
    Axes of the source may be merged in the whole, and axes of extent 1 be missing."""
    source = part.source
    if source is None or source.op.kind is ops.Kind.SOURCE:
        return None
    low = [first for first, _ in part.bounds]
    by = ir.rename(whole.shape, [a + s for a, s in zip(ir.axes(part.extents), low, strict=True)])
    index = tuple(sym.substitute(e, by) for e in part.index)
    at: tuple[Int, ...] | None = None
    if source.shape == part.extents:
        same = all(d == 1 or i == e for i, e, d in zip(index, ir.axes(source.shape), source.shape, strict=True))
        at = ir.axes(source.shape) if same else None
    elif source.op is ops.SORT:
        return None  # a row is sorted where it is contiguous
    elif source.rank > whole.rank or _longer_axes(source.shape) == _longer_axes(part.extents):
        at = invert(part.extents, index, source.shape, ir.axes(source.shape))
    return None if at is None else Placement(whole, tuple(a + s for a, s in zip(at, low, strict=True)))


def _longer_axes(shape: tuple[Int, ...]) -> tuple[Int, ...]:
    return tuple(size for size in shape if size != 1)


# ---- boxes ----------------------------------------------------------------------------------------------------------


@dataclass
class _Decomposition:
    """Divides one stored value into boxes."""

    whole: Node
    stored: Mapping[Node, Cluster]

    def parts(self, node: Node, index: tuple[Int, ...], bounds: Bounds) -> list[Part]:
        """The parts of ``node`` at ``index`` inside a box. Raises _UndecidedError where it is no assembly."""
        if any(low == high for low, high in bounds):
            return []
        if is_literal(node):
            return [Part(bounds, None, fill=node.attr.array.tobytes())]
        if node.op in (ops.INPUT, ops.CONSTANT) or (node in self.stored and node is not self.whole):
            return [Part(bounds, node, index)]
        if node.op is ops.VIEW:
            return self._viewed(node, index, bounds)
        if node.op is ops.CONTIGUOUS:
            return self.parts(node.inputs[0], index, bounds)
        if node.op is ops.SELECT:
            condition, yes, no = node.inputs
            inside, outside = _cut(self.whole, bounds, _condition(condition, index))
            return self.parts(yes, index, inside) + [p for box in outside for p in self.parts(no, index, box)]
        raise _UndecidedError

    def _viewed(self, node: Node, index: tuple[Int, ...], bounds: Bounds) -> list[Part]:
        by = ir.rename(node.shape, index)
        inner = tuple(sym.substitute(e, by) for e in node.attr.index)
        border: list[Part] = []
        for condition in node.attr.valid:
            bounds, outside = _cut(self.whole, bounds, sym.substitute(condition, by))
            border += [Part(box, None, fill=node.attr.fill) for box in outside if all(a != b for a, b in box)]
        return border + self.parts(node.inputs[0], inner, bounds)


def _condition(node: Node, index: tuple[Int, ...]) -> Int:
    """A comparison of positions as an expression that is at least 0 where it holds."""
    if node.op is ops.VIEW and not node.attr.valid:
        by = ir.rename(node.shape, index)
        return _condition(node.inputs[0], tuple(sym.substitute(e, by) for e in node.attr.index))
    if node.op is not ops.LESS_THAN:
        raise _UndecidedError
    a, b = (_position(x, index) for x in node.inputs)
    return b - a - 1


def _position(node: Node, index: tuple[Int, ...]) -> Int:
    if node.op is ops.VIEW and not node.attr.valid:
        by = ir.rename(node.shape, index)
        return _position(node.inputs[0], tuple(sym.substitute(e, by) for e in node.attr.index))
    if node.op is ops.IOTA:
        return index[0]
    if node.op is ops.DIM:
        value: Int = node.attr.value
        return value
    if is_literal(node) and node.dtype.is_integer:
        return int(node.attr.array.reshape(-1)[0])
    raise _UndecidedError


def _cut(whole: Node, bounds: Bounds, condition: Int) -> tuple[Bounds, list[Bounds]]:
    """The box of ``bounds`` where ``condition >= 0`` holds, and the boxes where it does not (at most one)."""
    for position, axis in enumerate(ir.axes(whole.shape)):
        variable = sym.as_var(axis)
        linear = None if variable is None else sym.coefficient(condition, variable)
        if linear is None or linear[0] not in (1, -1):
            continue
        slope, rest = linear
        if any(sym.as_var(a) in sym.variables(rest) for a in ir.axes(whole.shape) if sym.as_var(a) is not None):
            break
        low, high = bounds[position]
        # slope 1: holds from -rest on; slope -1: holds up to rest.
        place = _clamped(rest * -1 if slope == 1 else rest + 1, low, high)
        first = (*bounds[:position], (low, place), *bounds[position + 1 :])
        second = (*bounds[:position], (place, high), *bounds[position + 1 :])
        return (second, [first]) if slope == 1 else (first, [second])
    if sym.always(condition):
        return bounds, []
    raise _UndecidedError


def _clamped(place: Int, low: Int, high: Int) -> Int:
    if sym.always(low - place):
        return low
    if sym.always(place - high):
        return high
    if sym.always(place - low) and sym.always(high - place):
        return place
    raise _UndecidedError
