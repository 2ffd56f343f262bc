"""Minimal filtering of convolutions, when compiling: an option of the user, with an error budget.

``m`` outputs of a filter of ``r`` taps take ``m + r - 1`` products of transformed input tiles and transformed filters,
instead of ``m*r`` (``toom_cook``; Winograd, 1980; Lavin and Gray, 2015). Each product is summed over the channels
before it is transformed back: a contraction with the positions in a tile as its batch.

It applies to float32 contractions with constant filters whose A is read in windows of 2 to 5 neighbours, one apart,
along one or two axes of known size; other axes may have symbolic sizes. Filters are transformed in float64 and rounded
once. Of all ``m`` that cost less than the direct sum (``cost.filtering``), the fastest within the budget (``error``) is
taken; if there is none, the sum stays. An infinity or NaN of the input reaches all outputs of its tile, up to ``m - 1``
places further than in the direct sum.

Elementwise work on the result is done on each output of a tile, so that it joins the kernel that transforms the
products back.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from luminal.core import interp, ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.movement import concatenate, varies
from luminal.core.ops import Kind
from luminal.core.origins import Approximation
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.contraction.roles import contraction_of
from luminal.core.schedule.cost import filtering as cost
from luminal.core.schedule.numeric.toom_cook import Array, Filtering, Matrix, along_axes, filtering
from luminal.core.sizes import typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target

TAPS = range(2, 6)  # of a filter along an axis
LARGEST = 8  # elements of a tile along an axis, m + r - 1: for accuracy

# The sample of a convolution on which its error is measured: a limit of effort.
SAMPLED_TILES = 24
SAMPLED_FILTERS = 32


def parse(budget: Any, target: Target) -> float | None:
    """The error budget as a float; None if ``budget`` is. Raises InputError if it is no finite number above 0, if the
    target is a GPU, or if its precision would round transformed tiles."""
    if budget is None:
        return None
    try:
        found = float(budget) if not isinstance(budget, bool) and isinstance(budget, numbers.Real) else math.nan
    except OverflowError:
        found = math.inf
    if not 0 < found < math.inf:
        raise InputError(f"winograd: expected the largest error allowed, a finite number above 0, found {budget!r}")
    if target.grid is not None:
        raise InputError(f"winograd: expected a CPU as the target, found {target.name}")
    if target.precision.unit:
        raise InputError(f"winograd: expected the precision fp32, found {target.precision.name}")
    return found


# ---- convolutions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """An axis of M (``rows``, of extent ``count``) and one of K (``depth``, of extent ``taps``), as positions in the
    product's shape, which occur only as their sum in A's index."""

    rows: int
    depth: int
    count: int
    taps: int


@dataclass(frozen=True)
class Windowed:
    """A contraction ``total`` whose A is read in ``windows``; ``found`` is it without their axes in M and K. Filters
    are ``[batch, N, K, *taps]`` in float64, the axes of each role flattened."""

    total: Node
    found: Contraction
    windows: tuple[Window, ...]
    filters: Array

    @property
    def product(self) -> Node:
        return self.total.inputs[0]

    def extents(self, axes: Iterable[int]) -> tuple[Int, ...]:
        return tuple(self.product.shape[k] for k in axes)


def windowed(node: Node) -> Windowed | None:
    """``node`` as a convolution that minimal filtering computes, or None."""
    found = contraction_of(node)
    if found is None or node.dtype != types.f32 or found.a.source.dtype != types.f32:
        return None
    windows = _windows(found)
    if not 1 <= len(windows) <= 2 or not is_constant(found.b.source):
        return None
    rows, depth = {w.rows for w in windows}, {w.depth for w in windows}
    rest = replace(found, m=tuple(k for k in found.m if k not in rows), k=tuple(k for k in found.k if k not in depth))
    shape = found.shape
    order = (*found.batch, *found.n, *rest.k, *(w.depth for w in windows))
    sizes = [shape[k] for k in order]
    if not all(isinstance(size, int) for size in sizes):
        return None
    over, at = found.axes, ir.axes(tuple(sizes))
    by = {v: at[order.index(k)] for k, axis in enumerate(over) if k in order and (v := sym.as_var(axis)) is not None}
    read = found.b.over(by).read(tuple(sizes))
    (filters,) = interp.evaluate([ir.cast(read, types.f64)])
    if not np.isfinite(filters).all():
        return None
    batch, n, k = (math.prod(int(str(shape[x])) for x in axes) for axes in (found.batch, found.n, rest.k))
    return Windowed(node, rest, windows, filters.reshape(batch, n, k, *(w.taps for w in windows)))


def _windows(found: Contraction) -> tuple[Window, ...]:
    """The pairs of an axis of M and one of K of which A's index and masks depend only on the sum."""
    over = found.axes
    windows: list[Window] = []
    for rows, depth in itertools.product(found.m, found.k):
        count, taps = found.shape[rows], found.shape[depth]
        row, tap = sym.as_var(over[rows]), sym.as_var(over[depth])
        if row is None or tap is None or not isinstance(count, int) or not isinstance(taps, int) or taps not in TAPS:
            continue
        if all(_adds(e, row, tap) for e in (*found.a.index, *found.a.valid)):
            windows.append(Window(rows, depth, count, taps))
    apart = len({w.rows for w in windows}) == len({w.depth for w in windows}) == len(windows)
    return tuple(windows) if apart else ()


def _adds(index: Int, row: Var, tap: Var) -> bool:
    """Whether an index depends on ``row + tap``, or on neither of the two."""
    of_row, of_tap = (sym.coefficient(index, v) for v in (row, tap))
    return of_row is not None and of_tap is not None and isinstance(of_row[0], int) and of_row[0] == of_tap[0]


# ---- how large a tile -----------------------------------------------------------------------------------------------


def chosen(x: Windowed, budget: float, target: Target) -> tuple[tuple[Filtering, ...], float] | None:
    """The fastest filtering within the budget, for each window of ``x``, and its error; None if none is within it and
    faster than the direct sum."""
    most = target.costs.filtering.worth * _direct_cycles(x, target)
    candidates: list[tuple[float, tuple[Filtering, ...]]] = []
    for m in range(2, LARGEST):
        if all(m + w.taps - 1 <= LARGEST and m <= w.count for w in x.windows):
            each = tuple(filtering(m, w.taps) for w in x.windows)
            candidates.append((_cycles(x, each, target), each))
    fitting = sorted((c for c in candidates if c[0] < most), key=lambda c: c[0])
    return next(((each, found) for _, each in fitting if (found := error(x, each)) <= budget), None)


def _direct_cycles(x: Windowed, target: Target) -> float:
    rows = typical(sym.product(x.extents(x.found.m))) * math.prod(w.count for w in x.windows)
    return cost.direct_cycles(math.prod(x.filters.shape), rows, target)


def _cycles(x: Windowed, each: Sequence[Filtering], target: Target) -> float:
    """The estimated cycles of ``x`` by minimal filtering."""
    batch, n, k, *_ = x.filters.shape
    tiles = typical(sym.product(x.extents(x.found.m)))
    tiles *= math.prod(-(-w.count // f.m) for w, f in zip(x.windows, each, strict=True))
    positions = math.prod(f.size for f in each)
    to, back = (_operations([getattr(f, name) for f in each]) for name in ("input", "output"))
    return float(batch * cost.filtered_cycles(tiles, positions, k, n, to, back, target))


def _operations(matrices: Sequence[Matrix]) -> int:
    """The multiply-adds of ``along_axes``."""
    count = 0
    for axis, matrix in enumerate(matrices):
        others = math.prod(len(m) for m in matrices[:axis]) * math.prod(len(m[0]) for m in matrices[axis + 1 :])
        count += others * sum(bool(x) for row in matrix for x in row)
    return count


def error(x: Windowed, each: Sequence[Filtering]) -> float:
    """The largest error of ``x`` by minimal filtering in float32, relative to the root mean square of the outputs,
    measured with the filters of ``x`` and standard normal inputs on a fixed sample of tiles and filters."""
    batch, n, k, *_ = x.filters.shape
    some = x.filters[0 : batch : max(1, batch // 2), :: max(1, n // SAMPLED_FILTERS)]
    sizes = [f.size for f in each]
    inputs = np.random.default_rng(0).standard_normal((*sizes, SAMPLED_TILES, k), np.float32)
    found: list[Array] = []
    exact: list[Array] = []
    with np.errstate(over="ignore", invalid="ignore"):  # huge filters overflow, and no budget allows their errors
        transformed = _transformed(some, each)
        tile = along_axes([f.input for f in each], {at: inputs[at] for at in np.ndindex(*sizes)})
        for part, filters in zip(np.moveaxis(transformed, 1, 0), some, strict=True):
            products = {at: x @ part[number].T for number, (at, x) in enumerate(tile.items())}
            found += along_axes([f.output for f in each], products).values()
            exact += _outputs(inputs.astype(np.float64), filters, [f.m for f in each])
        apart = float(np.max([np.abs(x - y).max() for x, y in zip(found, exact, strict=True)]))
        scale = math.sqrt(float(np.mean(np.square(exact))))
    return apart / scale if scale else 0.0


def _outputs(inputs: Array, filters: Array, count: Sequence[int]) -> Iterator[Array]:
    """The outputs of tiles ``[*inputs, tiles, K]`` with filters ``[N, K, *taps]``: ``[tiles, N]`` by position."""
    for at in np.ndindex(*count):
        terms = [
            inputs[tuple(a + t for a, t in zip(at, tap, strict=True))] @ filters[(..., *tap)].T
            for tap in np.ndindex(*filters.shape[2:])
        ]
        yield np.sum(terms, axis=0)


def _transformed(filters: Array, each: Sequence[Filtering]) -> Array:
    """``filters`` ``[batch, N, K, *taps]`` as float32 ``[positions, batch, N, K]``."""
    for f in each:
        common = math.lcm(*(x.denominator for row in f.taps for x in row))
        whole = np.array([[float(x * common) for x in row] for row in f.taps])
        filters = np.tensordot(filters, whole, (3, 1)) / common
    return np.moveaxis(filters.reshape(*filters.shape[:3], -1), -1, 0).astype(np.float32)


# ---- the graph ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiled:
    """A value of ``shape``, cut into tiles of ``m`` along ``axes``. ``parts`` has, for each position in a tile, the
    elements there of all tiles: of ``shape``, but with each of ``axes`` replaced by an axis of tiles and one of 1."""

    parts: dict[tuple[int, ...], Node]
    axes: tuple[int, ...]
    m: tuple[int, ...]
    shape: tuple[Int, ...]


def transformed(graph: Graph, budget: float, target: Target) -> Graph:
    """``graph`` with convolutions by minimal filtering where that pays on ``target`` and the error is within
    ``budget``; each is noted in ``approximations``. Names and origins stay."""
    names, origins = dict(graph.names), dict(graph.origins)
    rewriter = _Rewriter(budget, target, names, origins, traverse.users(traverse.everything(graph.roots)))
    roots = remade(graph.roots, origins, rewriter.made)
    made = graph.approximations + tuple(rewriter.approximations)
    return graph.computing(roots, names=names, origins=origins, approximations=made)


class _Rewriter:
    def __init__(
        self,
        budget: float,
        target: Target,
        names: dict[Node, str],
        origins: ir.Origins,
        readers: Mapping[Node, Sequence[Node]],
    ) -> None:
        self.budget = budget
        self.target = target
        self.names = names
        self.origins = origins
        self.readers = readers
        self.approximations: list[Approximation] = []
        self.tiled: dict[Node, Tiled] = {}

    def made(self, node: Node, operands: Sequence[Node]) -> Node:
        """The replacement of ``node`` over ``operands``: a sum by minimal filtering where chosen, a view or elementwise
        primitive of such a sum on each output of a tile, and other nodes rebuilt."""
        new = traverse.rebuild(node, operands) if operands else node
        if new.op is ops.SUM_REDUCE and (x := windowed(new)) is not None:
            found = chosen(x, self.budget, self.target)
            if found is None:
                return new
            each, error = found
            tiles = "x".join(f"F({f.m}, {f.r})" for f in each)
            what = f"{tiles}, error {error:.2g}"
            self.approximations.append(Approximation("winograd", what, self.origins.get(node, ())))
            return self._whole(self._filtered(x, each), self._few_follow(node))
        tiled = next((self.tiled[x] for x in operands if x in self.tiled), None)
        if tiled is not None and node.op is ops.VIEW:
            moved = _moved(tiled, node)
            return new if moved is None else self._whole(moved)
        if tiled is not None and node.op.kind is Kind.ELEMENTWISE and node.op is not ops.CONTIGUOUS:
            parts = {
                at: ir.elementwise(node.op, *(self._part(x, tiled, at) for x in operands), attr=node.attr)
                for at in tiled.parts
            }
            return self._whole(replace(tiled, parts=parts))
        return new

    def _part(self, x: Node, like: Tiled, at: tuple[int, ...]) -> Node:
        """The elements of ``x`` at position ``at`` of the tiles of ``like``; 0 beyond its end."""
        known = self.tiled.get(x)
        if known is not None and (known.axes, known.m) == (like.axes, like.m):
            return known.parts[at]
        shape = like.parts[at].shape
        over = iter(ir.axes(shape))
        index: list[Int] = []
        for axis in range(x.rank):
            if axis in like.axes:
                k = like.axes.index(axis)
                index.append(next(over) * like.m[k] + at[k])
                next(over)
            else:
                index.append(next(over))
        varying = varies(x)
        valid = [x.shape[axis] - 1 - index[axis] for axis in like.axes if varying[axis]]
        return ir.view(x, shape, index, valid, bytes(x.dtype.itemsize))

    def _few_follow(self, node: Node) -> bool:
        """Whether few elementwise primitives and views follow ``node``: those that do are repeated for each output of a
        tile."""
        most = self.target.costs.filtering.followed
        found: dict[Node, None] = {node: None}
        waiting = [node]
        while waiting and len(found) <= most:
            for reader in self.readers[waiting.pop()]:
                follows = reader.op is ops.VIEW or reader.op.kind is Kind.ELEMENTWISE
                if follows and reader.op is not ops.CONTIGUOUS and reader not in found:
                    found[reader] = None
                    waiting.append(reader)
        return len(found) <= most

    def _whole(self, x: Tiled, followed: bool = True) -> Node:
        """The value whose tiles ``x`` has. If ``followed``, elementwise work on it will be done on the tiles."""
        parts = dict(x.parts)
        places = [axis + k + 1 for k, axis in enumerate(x.axes)]
        for k in reversed(range(len(places))):
            firsts = dict.fromkeys(at[:k] for at in parts)
            parts = {head: concatenate([parts[*head, j] for j in range(x.m[k])], places[k]) for head in firsts}
        together = parts[()]
        sizes = dict(zip(x.axes, x.m, strict=True))
        shape = tuple(-(-size // sizes[k]) * sizes[k] if k in sizes else size for k, size in enumerate(x.shape))
        index: list[Int] = []
        for axis, at in enumerate(ir.axes(shape)):
            index += [sym.floordiv(at, sizes[axis]), sym.mod(at, sizes[axis])] if axis in sizes else [at]
        whole = ir.unary(ops.CONTIGUOUS, ir.view(together, shape, index))
        result = ir.view(whole, x.shape, ir.axes(x.shape))
        if followed:
            self.tiled[result] = x
        return result

    def _filtered(self, x: Windowed, each: Sequence[Filtering]) -> Tiled:
        """The outputs of ``x`` by their position in a tile."""
        found, product = x.found, x.product
        tiles = [-(-w.count // f.m) for w, f in zip(x.windows, each, strict=True)]
        batch, m, n, k = (x.extents(axes) for axes in (found.batch, found.m, found.n, found.k))
        # The inputs of all tiles, [batch, M, K, *inputs], with the padding around them in memory.
        order = (*found.batch, *found.m, *found.k, *(w.rows for w in x.windows))
        lengths = [t * f.m + f.r - 1 for t, f in zip(tiles, each, strict=True)]
        shape = (*batch, *m, *k, *lengths)
        at = ir.axes(shape)
        by: dict[Var, Int] = {}
        for axis, variable in enumerate(map(sym.as_var, ir.axes(product.shape))):
            if variable is not None:
                by[variable] = at[order.index(axis)] if axis in order else 0
        index, valid = ([sym.substitute(e, by) for e in part] for part in (found.a.index, found.a.valid))
        last = [w.count + w.taps - 2 - at[order.index(w.rows)] for w in x.windows]
        inputs = ir.view(found.a.source, shape, index, [*valid, *last], bytes(found.a.source.dtype.itemsize))
        if inputs.op is ops.VIEW and inputs.attr.valid:
            inputs = ir.unary(ops.CONTIGUOUS, inputs)
        # Transformed tiles, [positions, batch, M, *tiles, K].
        part = (1, *batch, *m, *tiles, *k)
        over = ir.axes(part)[1:]
        outer, inner = over[: len(batch) + len(m)], over[len(part) - 1 - len(k) :]
        numbers = over[len(outer) : len(outer) + len(tiles)]
        elements = {
            p: ir.view(inputs, part, [*outer, *inner, *(t * f.m + e for t, f, e in zip(numbers, each, p, strict=True))])
            for p in np.ndindex(*(f.size for f in each))
        }
        left = concatenate(list(along_axes([f.input for f in each], elements).values()), 0)
        right = ir.constant(_transformed(x.filters, each))
        if found.b.source in self.names:
            self.names[right] = self.names[found.b.source]
        # Products, [positions, batch, M, *tiles, N, K], summed over K.
        whole = (left.shape[0], *batch, *m, *tiles, *n, *k)
        over = ir.axes(whole)
        head, rest = over[: -len(n) - len(k) or None], over[len(whole) - len(n) - len(k) :]
        flat = [_flat(over[1 : 1 + len(batch)], batch), _flat(rest[: len(n)], n), _flat(rest[len(n) :], k)]
        a = ir.view(left, whole, [*head, *rest[len(n) :]])
        b = ir.view(right, whole, [over[0], *flat])
        total = ir.reduce(ops.SUM_REDUCE, a * b, range(len(whole) - len(k), len(whole)))
        return self._outputs(x, each, total, tiles)

    def _outputs(self, x: Windowed, each: Sequence[Filtering], total: Node, tiles: Sequence[int]) -> Tiled:
        found, product = x.found, x.product
        kept = [axis for axis in range(product.rank) if axis not in x.total.attr.axes]
        rows = [w.rows for w in x.windows]
        shape: list[Int] = []
        place: dict[int, int] = {}
        for axis in kept:
            place[axis] = len(shape)
            shape += [tiles[rows.index(axis)], 1] if axis in rows else [product.shape[axis]]
        over = ir.axes(tuple(shape))
        index = [over[place[axis]] for axis in (*found.batch, *found.m, *rows, *found.n)]
        products = {
            p: ir.view(total, shape, [number, *index]) for number, p in enumerate(np.ndindex(*(f.size for f in each)))
        }
        outputs = along_axes([f.output for f in each], products)
        axes = tuple(kept.index(axis) for axis in rows)
        return Tiled(outputs, axes, tuple(f.m for f in each), x.total.shape)


def _moved(x: Tiled, view: Node) -> Tiled | None:
    """``x`` under a view that permutes axes (tiled ones in order), or adds or removes extents of 1; else None."""
    over = ir.axes(view.shape)
    at = [over.index(e) if sym.as_var(e) is not None and e in over else None for e in view.attr.index]
    used = [k for k in at if k is not None]
    plain = all(k is not None or size == 1 for k, size in zip(at, x.shape, strict=True))
    same = all(view.shape[k] == x.shape[j] for j, k in enumerate(at) if k is not None)
    once = sorted(used) == [k for k, size in enumerate(view.shape) if size != 1]
    axes = [k for axis in x.axes if (k := at[axis]) is not None]
    if view.attr.valid or not (plain and same and once) or len(axes) < len(x.axes) or axes != sorted(axes):
        return None
    parts = {}
    for place, part in x.parts.items():
        source = _starts(len(x.shape), x.axes)
        to = _starts(view.rank, axes)
        shape: list[Int] = [1] * (view.rank + len(axes))
        for j, k in enumerate(at):
            if k is not None:
                shape[to[k]] = part.shape[source[j]]
        inner = ir.axes(tuple(shape))
        index: list[Int] = [0] * part.rank
        for j, k in enumerate(at):
            if k is not None:
                index[source[j]] = inner[to[k]]
        parts[place] = ir.view(part, shape, index)
    return Tiled(parts, tuple(axes), x.m, view.shape)


def _starts(rank: int, tiled: Sequence[int]) -> list[int]:
    """The position of each axis in a part's shape, in which each tiled axis is two axes."""
    return [axis + sum(other < axis for other in tiled) for axis in range(rank)]


def _flat(index: Sequence[Int], extents: Sequence[Int]) -> Int:
    total: Int = 0
    for at, extent in zip(index, extents, strict=True):
        total = total * extent + at
    return total
