"""Tiles: the parts of a contraction that are summed in registers, and which of them suits its sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.decisions import Candidate
from luminal.core.grid import BlockTile
from luminal.core.matrix import MatrixUnit
from luminal.core.schedule.contraction.contraction import Contraction, Tile
from luminal.core.schedule.contraction.prologue import Prologue
from luminal.core.schedule.contraction.roles import row_stride
from luminal.core.schedule.cost import blocks
from luminal.core.schedule.cost import tile as cost
from luminal.core.sizes import largest, least, typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target
from luminal.core.types import f32


def choose_tile(
    target: Target,
    found: Contraction,
    columns_of_b: int | None = None,
    prologue: Prologue | None = None,
    widest: int = 1 << 30,
    unit: MatrixUnit | None = None,
    scaled: bool = False,
) -> Tile:
    """The register tile with the least estimated cycles for a contraction, unless the target's decisions name another.
    If B was packed before, tiles of ``columns_of_b`` columns come first. ``prologue`` computes B from packed weights,
    ``unit`` is a unit of vectors. The tile has at most ``widest`` columns, or one vector.

    With ``scaled`` sums of blocks, each vector of columns takes a register for what is added to signed bytes, and one
    for its scales. Totals are only read where a block ends, so they may leave the registers.

    The operations and registers of a prologue count for each vector of B.

    Rows whose addresses differ by a multiple of a large power of two fall into the same cache sets. More rows than ways
    evict each other from the first-level cache, and every step waits for the second: 14 x 2 takes 1.3 times as long. So
    a tile has no more rows than there are ways.
    """
    tiles, cycles = _tiles(target, found, prologue, widest, unit, scaled)
    about = (f"packed in {columns_of_b}", f"at most {widest}", *(("scaled",) if scaled else ()))
    return _chosen(target, tiles, cycles, columns_of_b, lambda: _described(found, prologue, about))


def least_cycles(target: Target, found: Contraction) -> float:
    """The estimated cycles of a contraction in tiles of vectors that suit it best."""
    return min(_tiles(target, found)[1])


def _tiles(
    target: Target,
    found: Contraction,
    prologue: Prologue | None = None,
    widest: int = 1 << 30,
    unit: MatrixUnit | None = None,
    scaled: bool = False,
) -> tuple[list[Tile], Sequence[float]]:
    """The tiles that ``choose_tile`` chooses from, and the estimated cycles with each; where these are to suit several
    numbers of rows, how many times as long as the best each takes at worst."""
    lanes = target.lanes(found.dtype) if unit is None else unit.columns
    group = 1 if unit is None else unit.group
    size = found.dtype.itemsize if unit is None else group * unit.right.itemsize
    columns = typical(found.count(found.n))

    def product(rows: Callable[[Int], int]) -> cost.Product:
        return cost.Product(
            max(1, rows(found.count(found.m))),
            lines(found, rows),
            columns,
            steps=-(-typical(found.count(found.k)) // group),
            size=size,
            stored=size if prologue is None else prologue.bytes,
            operations=0 if prologue is None else prologue.operations,
            unit=unit,
            along_rows=found.along_rows,
        )

    # Weights of few bits are read fast: a few rows more than usual take more time than all else.
    sizes = (typical,) if prologue is None and not scaled else (least, typical, largest)
    products = list(dict.fromkeys(product(rows) for rows in sizes))
    lengths = lines(found)

    costs, between = target.costs, row_stride(found) or 1
    ways = target.l1 // math.gcd(between, costs.memory.l1_way)  # of all sets that rows fall into
    budget = target.registers - (1 if prologue is None else 3)  # for an element of A, and what a prologue computes
    per_vector = 3 if scaled else 1 if prologue is None else 1 + prologue.held
    tiles = [
        Tile(min(r, costs.tiles.most_rows, ways), v, lanes, unit, group)
        for v in (1, 2, 3, 4, 6, 8)
        if (r := (budget - per_vector * v) // v) >= min(max(lengths), costs.tiles.low)
        and v * lanes <= max(lanes, min(columns + lanes - 1, widest))
    ]
    times = [
        [cost.vector_cycles(product, tile.rows, tile.vectors, tile.columns, target) for tile in tiles]
        for product in products
    ]
    if len(times) == 1:
        return tiles, times[0]
    best = [min(of_size) for of_size in times]  # how many times as long as the best tile for a size, at worst
    return tiles, [max(own / of for own, of in zip(each, best, strict=True)) for each in zip(*times, strict=True)]


def _chosen(
    target: Target, tiles: list[Tile], cycles: Iterable[float], columns_of_b: int | None, described: Callable[[], str]
) -> Tile:
    """The decision among ``tiles``: among those of ``columns_of_b`` columns, if there are any."""
    candidates = [Candidate("layout", tile, estimate) for tile, estimate in zip(tiles, cycles, strict=True)]
    fitting = [candidate for candidate in candidates if candidate.content.columns == columns_of_b]
    chosen, asked = target.decisions.ask("tile", described, fitting or candidates)
    return replace(chosen, asked=asked)


def _described(found: Contraction, prologue: Prologue | None, about: tuple[str, ...]) -> str:
    """A text of all that decides how fast a contraction is: its axes by role, how A and B are read, and ``about``, on
    the columns of its tiles."""
    dims: dict[Var, Int] = {}

    def text(value: Int) -> str:
        return str(sym.substitute(value, _numbered(dims, sym.variables(value) - axes)))

    axes = {v for axis in found.axes if (v := sym.as_var(axis)) is not None}
    parts = [f"{role} {[text(found.shape[k]) for k in getattr(found, role)]}" for role in ("batch", "m", "n", "k")]
    for name, operand in (("A", found.a), ("B", found.b)):
        where = "constant" if is_constant(operand.source) else "computed"
        index = [text(e) for e in (*operand.source.shape, *operand.index, *operand.valid)]
        parts.append(f"{name} {where} {operand.source.dtype} {index}")
    if prologue is not None:
        leaves = [f"{leaf.dtype} every {leaf.every}" for leaf in prologue.leaves]
        parts.append(f"B of {', '.join(leaves)} by {prologue.operations} operations, {prologue.held} held")
    if found.along_rows:
        parts.append("stored along rows")
    return "\n".join(
        [str(found.dtype), *parts, *about, *(f"{dim} {v.lo}..{sym.upper(v.hi)}" for v, dim in dims.items())]
    )


def _numbered(dims: dict[Var, Int], variables: set[Var]) -> dict[Var, Int]:
    """``dims``, from symbolic sizes to numbered names, after adding ``variables`` to it."""
    for v in sorted(variables - dims.keys(), key=lambda v: (v.lo, sym.upper(v.hi) or 0, v.name)):
        dims[v] = sym.var(f"d{len(dims)}", v.lo, v.hi)
    return dims


def unit_tile(target: Target, unit: MatrixUnit, found: Contraction, columns_of_b: int | None = None) -> Tile | None:
    """The tile of a matrix ``unit`` for a contraction, as ``choose_tile`` gives one of vectors. None if the unit cannot
    take the runs of terms in equal steps, and for a single row, unless the unit works on vectors and B is constant: a
    matrix of one row, or packing B for it, costs more than the row."""
    depth = step_depth(unit, [size for k in found.k if (size := found.shape[k]) != 1])
    if not depth or not (found.m or (unit.in_vectors and is_constant(found.b.source))):
        return None
    if unit.in_vectors:
        return choose_tile(target, found, columns_of_b, unit=unit)
    return _matrix_tile(target, unit, depth, found, columns_of_b)


def _matrix_tile(target: Target, unit: MatrixUnit, depth: int, found: Contraction, columns_of_b: int | None) -> Tile:
    """The tile of ``unit`` with the least estimated cycles; of ``columns_of_b`` columns, if there is one."""
    lengths = lines(found)
    fixed = all(isinstance(found.shape[k], int) for k in found.m)  # else how tiles divide the rows is unknown
    columns = typical(found.count(found.n))

    sizes = [
        (high, wide)
        for high, wide in itertools.product(range(1, unit.registers), repeat=2)
        if high <= wide and high * wide + high + 1 <= unit.registers
    ]
    tiles = [Tile(high * unit.rows, wide, unit.columns, unit, depth) for high, wide in sizes]
    cycles = (cost.matrix_cycles(unit, high, wide, lengths, columns, fixed) for high, wide in sizes)
    about = (f"packed in {columns_of_b}",)
    return _chosen(target, tiles, cycles, columns_of_b, lambda: _described(found, None, about))


def step_depth(unit: MatrixUnit, sizes: Sequence[Int]) -> int:
    """The terms that a step of ``unit`` takes along the innermost of the K axes, which have these ``sizes``; 0 if it
    cannot take them.

    A last step that is shorter costs little in vectors. In matrices it copies its operands, so steps divide a run that
    is repeated, and must not be too short."""
    if unit.in_vectors:
        return unit.depth
    *outer, run = sizes
    divisors = [d for d in range(unit.group, unit.depth + 1, unit.group) if isinstance(run, int) and run % d == 0]
    depth = max(divisors, default=0)
    if depth > unit.depth // 2 and typical(run) <= unit.few_steps * unit.depth:
        return depth
    if all(size == 1 for size in outer):
        return min(unit.depth, -(-run // unit.group) * unit.group) if isinstance(run, int) else unit.depth
    return depth if depth >= unit.depth // (unit.part_of_run if depth == run else unit.part_of_runs) else 0


def block_tile(target: Target, found: Contraction) -> Tile:
    """The tile of a block of threads with the least estimated cycles for all blocks on all processors, unless the
    target's decisions name another. Each thread computes ``lanes`` rows and ``lanes`` columns of it.

    Tiles for which a block has no room are none, unless it has room for none of them."""
    grid = target.grid
    assert grid is not None
    sizes = tuple(typical(found.count(axes)) for axes in (found.batch, found.m, found.n))
    narrow = found.a.source.dtype
    narrow = grid.multiplied(narrow, found.b.source.dtype) or narrow
    fragment = target.fragment(narrow, narrow) if found.dtype == f32 else None
    if found.scale is not None:
        fragment = grid.of_blocks(int(str(found.shape[found.run])))
    grouped = found.dtype == f32 and any(f.dtype == narrow for f in grid.groups)

    def block(tile: BlockTile) -> blocks.Block:
        threads = tile.threads if fragment is None else fragment.warp * grid.costs.warps_of(tile.rows)
        return blocks.product_block(grid, tile, threads, found.dtype.itemsize, grid.costs.depth, grid.ahead)

    there = [tile for tile in grid.costs.tiles if grouped or not tile.groups] or list(grid.costs.tiles)
    tiles = [tile for tile in there if block(tile).fits(target.block)] or there
    candidates = [
        Candidate("layout", Tile(tile.rows, tile.columns // tile.side, tile.side), estimate)
        for tile in tiles
        for served in (blocks.of_fragments(tile, fragment, grid.costs.warps_of(tile.rows) // 2),)
        for estimate in (blocks.block_cycles(grid, served, block(tile), *sizes),)
    ]
    chosen, asked = target.decisions.ask("tile", lambda: _described(found, None, ()), candidates)
    return replace(chosen, asked=asked)


def lines(found: Contraction, size_of: Callable[[Int], int] = typical) -> tuple[int, int]:
    """Two counts of rows, one of which tiles will divide: the extent of the innermost axis of M, and of all inner axes
    of M that span whole dimensions of A, whose rows most layouts put one after the other. Which of them it is depends
    on the layout of the result, too: a border around it leaves gaps between lines, as in the operand of windows."""
    held = list(zip(found.a.index, found.a.source.shape, strict=True))
    shape, over = found.shape, found.axes
    axes = [k for k in reversed(found.m) if shape[k] != 1]
    whole = itertools.takewhile(lambda k: (over[k], shape[k]) in held, axes)
    innermost = max(1, size_of(shape[axes[0]])) if axes else 1
    return innermost, max(innermost, math.prod(size_of(shape[k]) for k in whole))
