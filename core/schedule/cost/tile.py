"""Cycles of a contraction in register tiles of a core of one shape.

A step of a tile of ``r`` rows and ``v`` vectors has ``r*v`` multiply-adds and ``r + v`` loads, two of each a cycle. It
takes at least the latency of a multiply-add, and at least the time in which its row of the panel arrives: the first
tile that reads the panel waits for that, or every tile where the second-level cache does not hold the panel. With few
rows this is all that counts, and padding columns cost as much as others. Where the panel is not in the first-level
cache, a low and wide tile waits for the second, and any tile takes a little longer. So does each load beside
multiply-adds of vectors: one thread alone on a core hides them, but with a second one, as on most rented machines, 14 x
2 takes a tenth longer than 9 x 3. Storing a tile takes time for each row, whose cache lines are new, and for each
vector; stored transposed, for each column, since whole vectors are transposed however few rows there are. Measured
against products of many shapes: see ``tests/test_blocking.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luminal.core.matrix import MatrixUnit
from luminal.core.target import Target


@dataclass(frozen=True)
class Product:
    """What tiles of vectors compute: ``rows`` of A, consecutive in runs of the lengths ``lines``, by ``columns`` of B,
    in ``steps`` steps. A row of a panel takes ``size`` bytes for each column, of which ``stored`` are read from memory;
    ``operations`` compute a vector from these. ``unit`` multiplies, where there is one. Results are stored
    ``along_rows`` or along columns."""

    rows: int
    lines: Sequence[int]
    columns: int
    steps: int
    size: int
    stored: float
    operations: int
    unit: MatrixUnit | None
    along_rows: bool


def vector_cycles(product: Product, rows: int, vectors: int, columns: int, target: Target) -> float:
    """Cycles of the product in tiles of ``rows`` by ``vectors``, ``columns`` wide: the sum for all rows taken together
    and for each line, as ``lines`` has them."""
    return sum(product.rows / line * _of_line(product, line, rows, vectors, columns, target) for line in product.lines)


def _of_line(product: Product, line: int, rows: int, vectors: int, columns: int, target: Target) -> float:
    """Cycles of the rows of one ``line``."""
    arithmetic, memory, tiles = target.costs.arithmetic, target.costs.memory, target.costs.tiles
    count = -(-line // rows)
    height = line / count
    near = 2 * (height + columns) * product.steps * product.size <= target.l1
    row = product.stored * columns
    held = row * product.steps <= target.l2
    latency = arithmetic.latency if product.unit is None else product.unit.latency
    arriving = memory.from_l3 * row / (product.rows / height if held else 1)
    again = 0.0 if near else memory.from_l2_again * row
    loads = height + vectors
    step = max(height * vectors / arithmetic.per_cycle, loads / arithmetic.per_cycle, latency, arriving, again)
    step += 0.0 if near else tiles.far_load * vectors
    step += tiles.load * loads if product.unit is None else 0.0
    step += product.operations * vectors / arithmetic.per_cycle
    store = height * (tiles.row_stored + tiles.vector_stored * vectors)
    if product.along_rows:
        store = tiles.column_transposed * columns
    return count * -(-product.columns // columns) * (product.steps * step + store)


def matrix_cycles(unit: MatrixUnit, high: int, wide: int, lines: Sequence[int], columns: int, whole: bool) -> float:
    """Cycles of a step, for each row of A and for all ``columns``, in tiles of ``high`` by ``wide`` registers of
    ``unit``. A product of two registers reads one of each operand; registers of the shorter side are read once.
    ``lines`` are runs of rows; they end with ``whole`` tiles, or how tiles divide them is not known."""
    rows = high * unit.rows
    tiles = sum((-(-line // rows) if whole else line / rows) / line for line in lines)
    return unit.cycles * tiles * -(-columns // (wide * unit.columns)) * (high * wide + (high + wide) * unit.load)
