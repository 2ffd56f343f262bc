"""Cycles of blocks of threads: the waves in which all processors run them, and how many a processor has room for.

Cycles are those of a processor that does one multiply-add in each: its real rate is not needed to compare schedules of
one product. Nothing here was measured on a device: `luminal tune` does that, where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from luminal.core.grid import REGISTER, SMALL, WARP, BlockLimits, BlockTile, Fragment, Grid


@dataclass(frozen=True)
class Block:
    """What a block takes of a processor: ``threads``, 4-byte ``registers`` of each, bytes of ``shared`` memory."""

    threads: int
    registers: int
    shared: int

    def fits(self, limits: BlockLimits) -> bool:
        """Whether a block may take as much."""
        return self.threads <= limits.threads and self.registers <= limits.registers and self.shared <= limits.shared


def of_fragments(tile: BlockTile, fragment: Fragment | None, across: int) -> BlockTile:
    """``tile`` at the rate at which shared memory hands it the operands of ``fragment``, where that is lower. Pairs of
    warps, one below the other, lie ``across`` the tile: rows are stored once and read by all that lie beside each
    other, columns by both of a pair."""
    if fragment is None or not fragment.each_byte or tile.groups:
        return tile
    moved = (tile.rows * (1 + across) + tile.columns * (1 + 2)) * fragment.dtype.itemsize
    return tile._replace(rate=min(tile.rate, tile.rows * tile.columns / (fragment.each_byte * moved)))


def product_block(
    grid: Grid, tile: BlockTile, threads: int, itemsize: int, staged: int, ahead: int, wide: bool = False
) -> Block:
    """What a block of ``threads`` takes for a tile of sums of ``itemsize`` bytes: the sums, a row and a column of a
    step, and ``staged`` bytes of each row and column, once more for each step that they are copied ``ahead``; with
    ``wide``, what sums pass through."""
    words = max(1, itemsize // REGISTER)
    held = tile.rows * tile.columns // threads * words + 2 * tile.side * words
    stages = (tile.rows + tile.columns) * staged * (1 + ahead)
    return Block(threads, held + grid.costs.spare, stages + threads * SMALL * itemsize * wide)


def resident(grid: Grid, block: Block) -> int:
    """How many such blocks a processor runs at once."""
    of = grid.processor
    counts = of.registers // (block.threads * block.registers), of.threads // block.threads
    return max(1, min(*counts, of.shared // max(1, block.shared)))


def occupancy(grid: Grid, block: Block) -> float:
    """The warps of resident blocks, as a part of those that hide the latency of memory; at most 1."""
    return min(1.0, resident(grid, block) * block.threads / (WARP * grid.costs.warps))


def block_cycles(grid: Grid, tile: BlockTile, block: Block, batch: int, rows: int, columns: int) -> float:
    """Cycles of a step of ``batch`` products in tiles of blocks, on all processors at once."""
    return _waves(grid, tile, batch, rows, columns) * tile.rows * tile.columns / (tile.rate * occupancy(grid, block))


def handed_cycles(grid: Grid, tile: BlockTile, threads: int, batch: int, rows: int, columns: int) -> float:
    """As ``block_cycles``, for groups of warps in blocks that stay, one on each processor. Of few threads it waits for
    what others would hide, unless no processor has a second tile: then nobody has others."""
    waves = _waves(grid, tile, batch, rows, columns)
    busy = min(1.0, threads / (WARP * grid.costs.warps)) if waves > 1 else 1.0
    of_tile = tile.rows * tile.columns / (tile.rate * busy)
    return waves * of_tile * grid.costs.grouped * grid.costs.handed_time


def storing_cycles(grid: Grid, tile: BlockTile, terms: int, wide: bool, batch: int, rows: int, columns: int) -> float:
    """The part of a step, one of ``terms``, of the time in which threads store what they have summed, ``wide`` or each
    element by itself."""
    each = grid.costs.storing if wide else grid.costs.storing_each
    return _waves(grid, tile, batch, rows, columns) * tile.rows * tile.columns * each / terms


def waiting_cycles(grid: Grid, tile: BlockTile, block: Block, batch: int, rows: int, columns: int) -> float:
    """The cycles of a step in which processors wait for what it stages, where that is not copied ahead: other blocks
    on the same processor compute meanwhile."""
    staging = grid.costs.staged * (tile.rows + tile.columns) / resident(grid, block)
    return _waves(grid, tile, batch, rows, columns) * staging


def chain_cycles(grid: Grid, tile: tuple[int, int], waves: int) -> int:
    """Cycles of a term of two contractions in one pass, in tiles of so many rows and columns that all processors
    compute in ``waves``; comparable with ``block_cycles``."""
    rows, columns = tile
    return waves * (rows * columns + grid.costs.staged * (rows + columns))


def held_cycles(grid: Grid, tile: tuple[int, int], waves: int, grouped: bool = False) -> float:
    """The same, where what lies between the contractions stays in registers; of warps that multiply in groups, if
    ``grouped``."""
    return chain_cycles(grid, tile, waves) * grid.costs.holding_time * (grid.costs.grouped if grouped else 1)


def _waves(grid: Grid, tile: BlockTile, batch: int, rows: int, columns: int) -> int:
    """How many blocks the processor with the most has."""
    return -(-batch * -(-rows // tile.rows) * -(-columns // tile.columns) // grid.processors)
