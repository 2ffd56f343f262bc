"""Grids of blocks of threads: the description of a GPU for the scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.precision import FP32, TF32, Precision
from luminal.core.printer import brief
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, bf16, f16, f32, i8, i32

# Of all GPUs that are described: CUDA C++ Programming Guide, "SIMT Architecture"; PTX ISA, "State Spaces", "cp.async".
# Apple's have SIMD groups of as many threads.
WARP = 32  # threads that run in step
REGISTER = 4  # bytes of a register of a thread
ALIGNMENT = 16  # bytes; of an array in shared memory
COPIES = (4, 8, 16)  # bytes that a thread can copy at once, ahead too
SMALL = 8  # rows and columns of the matrices by which warps load operands of fragments: PTX ISA, "ldmatrix"
LANE = Var("lane", 0, WARP - 1)
ELEMENT = Var("e", 0, 3)


@dataclass(frozen=True, repr=False)
class Fragment:
    """A product of small matrices that the ``warp`` lanes of a warp compute together.

    The operands have ``rows x depth`` and ``depth x columns`` elements of type ``dtype``, the result ``rows x columns``
    sums of type ``sum``, of which every lane holds ``elements``: lane ``lane`` holds as its number ``element`` the one
    in ``row`` and ``column``, both expressions over these variables. Operands of float32 are rounded to ``precision``
    first.

    Where it is not 0, ``lanes_of_row`` neighbouring lanes hold the elements of each of their rows. The columns are then
    divided into strips of ``SMALL``. Of a strip, after those before it, a lane holds ``neighbours`` of its first row,
    then those of the next; and a row of fragments that is rounded to ``dtype`` is a left operand as it lies.

    ``each_byte`` is its number of multiply-adds in the time in which a processor's shared memory serves a byte; where
    it is 0, products do not wait for that.

    Where it has ``panels``, the lanes are those of several warps, which read both operands from shared memory, where
    these lie as ``in_panels`` says.
    """

    name: str
    dtype: DType
    rows: int
    columns: int
    depth: int
    row: Int
    column: Int
    warp: int = WARP
    precision: Precision = FP32
    lane: Var = LANE
    element: Var = ELEMENT
    panels: bool = False
    lanes_of_row: int = 0
    each_byte: int = 0
    sum: DType = f32

    def __repr__(self) -> str:
        return f"Fragment({self.name}, {self.dtype})"

    @property
    def elements(self) -> int:
        """Elements of the result that a lane holds."""
        return self.rows * self.columns // self.warp

    @property
    def neighbours(self) -> int:
        """Elements of one row in a strip of the result that a lane holds, if lanes hold parts of rows like that."""
        return SMALL // self.lanes_of_row if self.lanes_of_row else 0

    @property
    def of_strip(self) -> int:
        """Elements of a strip of the result that a lane holds."""
        return self.elements * SMALL // self.columns


# Of a block with threads that only copy: CUTLASS, "KernelTmaWarpSpecializedCooperative".
COPIERS = 128  # threads of a group whose registers the others get, one of which copies
COPYING = 40  # registers that such a thread keeps
STEP, MOST = 8, 256  # PTX ISA, "setmaxnreg": registers of a thread are multiples of it, and so many at most

# PTX ISA, "Shared Memory Matrix Layout" of wgmma, 128-byte swizzling: the pattern repeats every eight lines.
PANEL = 128  # bytes of a line of a panel
LINES = 8
# PTX ISA, "Tensors"; CUDA Driver API, "cuTensorMapEncodeTiled": boxes that a device copies as one.
BOX_RANK = 5
BOX_LINES = 256
PARTS = PANEL // ALIGNMENT  # of a line, which change places


def in_panels(offset: int, itemsize: int, rows: int, row: int) -> int:
    """Where element ``offset`` of a matrix lies whose operations read panels. It has ``rows`` rows of ``row`` elements.
    A panel has ``PANEL`` bytes of every row, line by line; in line number i, part p of ``ALIGNMENT`` bytes is at place
    p xor i % LINES. Panels follow each other, and begin at multiples of ``PANEL * LINES`` bytes."""
    wide, part = PANEL // itemsize, ALIGNMENT // itemsize
    line, column = divmod(offset, row)
    place = (column // wide * rows + line) * wide + column % wide
    return place ^ line % LINES * part


class Place(NamedTuple):
    """A row and a column."""

    row: Int
    column: Int


# Of a matrix of 2 * SMALL rows and columns, whose elements the lanes of a warp hold, SMALL of them each.
def in_pairs(lane: Int, element: Int) -> Place:
    """Where element number ``element`` of ``lane`` is, as fragments leave them: pairs of neighbours in two rows."""
    low, high = sym.mod(element, 2), sym.floordiv(element, 4)
    return Place(
        sym.floordiv(lane, 4) + sym.mod(sym.floordiv(element, 2), 2) * SMALL, sym.mod(lane, 4) * 2 + low + high * SMALL
    )


def in_rows(lane: Int, element: Int) -> Place:
    """Where it is, when each lane has neighbours of one row."""
    return Place(sym.floordiv(lane, 2), sym.mod(lane, 2) * SMALL + element)


def aligned(size: int) -> int:
    """The bytes that an array of ``size`` bytes takes of shared memory."""
    return -(-size // ALIGNMENT) * ALIGNMENT


# CUDA C++ Programming Guide, "Compute Capabilities": 4-byte registers of a multiprocessor.
REGISTERS = 64 << 10
BESIDE = 64  # registers of a thread for operands, addresses and loops, besides those that hold arrays: estimated
ENOUGH = 16  # warps of a multiprocessor with which a kernel that holds arrays in registers hides its waits: estimated
ROW_REGISTERS = REGISTERS // (ENOUGH * WARP) - BESIDE  # of a thread for arrays, with which so many warps have room


def blocks_at_once(threads: int, registers: int) -> int:
    """How many blocks of ``threads``, each of which holds arrays in so many ``registers``, are enough for a
    multiprocessor, where it has room for more; else 0."""
    room, enough = REGISTERS // (threads * (registers + BESIDE)), max(1, ENOUGH * WARP // threads)
    return enough if room > enough else 0


def more_registers(threads: int, copiers: int) -> int:
    """Registers of each of ``threads`` of a block that is alone on a multiprocessor, when each of ``copiers`` keeps
    ``COPYING`` of its own; 0 where all of them may have as many as there are without that."""
    own = REGISTERS // (threads + copiers) // STEP * STEP
    return (own + (own - COPYING) * copiers // threads) // STEP * STEP if own < MOST else 0


NARROW = 8  # bits of a float whose values may all be tried


@cache
def _holds(wide: DType, narrow: DType) -> bool:
    """Whether ``wide`` has every value of ``narrow``, a float of at most ``NARROW`` bits."""
    if not narrow.is_float or narrow.bits > NARROW:
        return False
    values = np.arange(1 << narrow.bits).astype(np.uint8).view(narrow.numpy).astype(np.float32)
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(wide.numpy).astype(np.float32), values, equal_nan=True))


class Processor(NamedTuple):
    """What the blocks that a processor runs at once share: its 4-byte ``registers``, bytes of ``shared`` memory, and
    places for ``threads``."""

    registers: int
    shared: int
    threads: int


class BlockTile(NamedTuple):
    """A tile of a block: ``rows`` by ``columns``; each thread has a square of ``side`` by ``side``. ``rate`` is its
    number of multiply-adds in the time in which a block that reads nothing does one; estimated. One of ``groups`` is
    for groups of warps that multiply together, alone."""

    rows: int
    columns: int
    side: int
    rate: float
    groups: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block of which each has a square."""
        return self.rows * self.columns // self.side**2


@dataclass(frozen=True)
class BlockCosts:
    """The costs of blocks of threads by which schedules are chosen; all estimated, none measured on a device yet
    (``docs/experiments/gpus.md``)."""

    short: int = 16  # elements of a row that one thread reduces alone
    each: int = 4  # elements of a long row for each thread
    wide: int = 16  # bytes that a thread reads or writes at once
    depth: int = 64  # bytes of each row of A, or column of B, that are staged at once
    few: int = 8  # rows of a product with constants at most, for blocks to sum it column by column, without tiles
    digits: tuple[int, ...] = (2, 4, 8, 1)  # numbers that share a byte which a thread takes at once
    turns: int = 4  # of a thread that sums a column, before more threads share that
    staged: int = 16  # products of a term in the time that one of its factors is staged
    side: int = 4  # rows and columns of a chain that a thread has
    steps: int = 4  # of a product that are written out: their loads overlap, and the sums still stay in registers
    sums_share: int = 2  # running sums of a chain may take 1/sums_share of the registers of a thread
    four_warps: int = 64  # rows of a tile that four warps share; eight share a higher one, or lanes would hold too much
    sorting: int = 2  # blocks that share the memory of a processor while each sorts a row in it
    grouped: float = 0.6  # of the time of a product, where groups of warps multiply from shared memory: an estimate
    grouped_ahead: tuple[int, ...] = (2, 3, 1, 0)  # steps that groups of warps copy ahead; the first if costs are equal
    handed_ahead: tuple[int, ...] = (3, 2, 1)  # the same, where warps that only copy hand stages over
    handed_time: float = 0.95  # of the time of groups, where they wait for no copies and store while the next come
    # Products in the time in which an element of a product is stored with its neighbours: estimated.
    storing: float = 8.0
    storing_each: float = 32.0  # the same, where it is stored by itself
    idle: int = 4  # times longer that one pass of a chain may take because processors are idle
    spare: int = 32  # registers of a thread for addresses, loops, and what is computed between arrays
    warps: int = 8  # that a processor needs at once for some to compute while the others wait for memory
    # Where two cost the same, the first is taken.
    tiles: tuple[BlockTile, ...] = (
        BlockTile(64, 64, 4, 0.7), BlockTile(128, 128, 8, 1.0), BlockTile(32, 32, 4, 0.7),
        BlockTile(64, 128, 8, 0.85), BlockTile(128, 64, 8, 0.85), BlockTile(64, 64, 8, 0.7),
        BlockTile(32, 64, 4, 0.7), BlockTile(64, 32, 4, 0.7), BlockTile(32, 128, 4, 0.7), BlockTile(128, 32, 4, 0.7),
        BlockTile(128, 256, 8, 1.2, groups=True),
    )  # fmt: skip
    holding_time: float = 0.5  # of the time of a chain, where registers hold what lies in between: estimated
    holders: int = 4  # warps of such a chain, each of which has whole rows
    # Rows and columns at once of such a chain; those of a warp and a running sum are in its registers.
    held_tiles: tuple[tuple[int, int], ...] = ((128, 64), (64, 64), (64, 32))
    grouped_tiles: tuple[tuple[int, int], ...] = ((128, 128), (128, 64), (64, 64))  # where groups of warps multiply
    chain_tiles: tuple[tuple[int, int], ...] = ((64, 64), (64, 32), (32, 64), (32, 32))  # rows, columns at once

    def warps_of(self, rows: int) -> int:
        """Warps that share a tile of so many rows, two of them one below the other."""
        return 8 if rows > self.four_warps else 4


@dataclass(frozen=True, repr=False)
class BlockLimits:
    """The limits of a block: ``threads``, bytes of ``shared`` memory, and 4-byte ``registers`` of each thread, of which
    ``spare`` are for values that are in no array."""

    threads: int
    shared: int
    registers: int
    spare: int = BlockCosts.spare

    __repr__ = brief


@dataclass(frozen=True)
class Grid:
    """A GPU, which runs a kernel as a grid of tasks, each by a block of threads that share memory.

    ``threads`` are those of a block, a multiple of ``warp``, which run in step; ``shared`` is the memory of a block, in
    bytes; ``processors`` is how many blocks that fill their threads' registers run at once, ``processor`` what each of
    them has, if it has room for several; ``ahead`` says that copies
    into shared memory need not be waited for; ``fragments`` are the products that warps compute, ``groups`` those of
    several warps together, for which a block can have ``requested`` bytes of shared memory. A kernel can have
    ``buffers`` arguments, where that is limited. ``emulated`` says that this machine can emulate it; others have
    drivers for CPUs. ``costs`` are what schedules are chosen by.
    """

    threads: int = 256
    warp: int = WARP
    shared: int = 48 << 10
    processors: int = 128
    processor: Processor = field(default=Processor(64 << 10, 100 << 10, 1024))
    ahead: bool = False
    fragments: tuple[Fragment, ...] = ()
    groups: tuple[Fragment, ...] = ()
    requested: int = 0
    buffers: int | None = None
    emulated: bool = True
    costs: BlockCosts = field(default=BlockCosts(), repr=False)

    def row_buffer_bytes(self, reduced: Iterable[DType]) -> int:
        """Bytes of shared memory left to a block that reduces values of these types: each warp stores one partial
        result of each type there."""
        return self.shared - sum(aligned(self.threads // self.warp * dtype.itemsize) for dtype in reduced)

    def multiplied(self, a: DType, b: DType) -> DType | None:
        """The type of 16 bits in which fragments multiply matrices of these types, one of them or both of floats of
        fewer bits, all of whose values it holds; None where there is none, or both are of a fragment's type."""
        if not any(dtype.is_float and dtype.bits <= NARROW for dtype in (a, b)):
            return None
        types = dict.fromkeys(f.dtype for f in self.fragments if f.precision == FP32 and f.dtype.itemsize == 2)
        return next((t for t in types if all(x == t or _holds(t, x) for x in (a, b))), None)

    def fragment(self, a: DType, b: DType, precision: Precision) -> Fragment | None:
        """The fragment for matrices of these types with sums in float32: in ``precision``, else exact; None if there is
        neither."""
        found = [f for f in self.fragments if f.dtype == a == b and f.sum == f32 and f.precision in (precision, FP32)]
        return next((f for f in found if f.precision == precision), found[0] if found else None)

    def of_blocks(self, terms: int) -> Fragment | None:
        """The fragment that sums a block of so many products of signed bytes exactly, in whole steps: the deepest; None
        if there is none."""
        fitting = [f for f in self.fragments if (f.dtype, f.sum) == (i8, i32) and terms % f.depth == 0]
        return max(fitting, key=lambda f: f.depth, default=None)

    def group(self, a: DType, b: DType, rows: int, columns: int) -> Fragment | None:
        """The product of a group of warps for matrices of these types and a tile of ``rows`` and ``columns``: the
        widest; None if there is none."""
        fitting = [f for f in self.groups if f.dtype == a == b and rows % f.rows == columns % f.columns == 0]
        return max(fitting, key=lambda f: f.columns, default=None)


_L, _E = map(sym.expr, (LANE, ELEMENT))

# PTX ISA, "Matrix Fragments for mma.m16n8k8", "... for mma.m16n8k16" and "... for mma.m16n8k32": a lane holds pairs of
# neighbouring columns in two rows.
MMA = tuple(
    Fragment(
        name, dtype, 16, 8, depth,
        sym.floordiv(_L, 4) + 8 * sym.floordiv(_E, 2), 2 * sym.mod(_L, 4) + sym.mod(_E, 2), precision=precision,
        lanes_of_row=lanes, each_byte=products // 128, sum=total,
    )
    # The last are multiply-adds of a processor in a cycle, which serves 128 bytes (NVIDIA A100 whitepaper, table 2).
    for name, dtype, total, depth, precision, lanes, products in (
        ("m16n8k16", f16, f32, 16, FP32, 4, 1024), ("m16n8k16", bf16, f32, 16, FP32, 4, 1024),
        ("m16n8k8_tf32", f32, f32, 8, TF32, 0, 512),
        ("m16n8k32", i8, i32, 32, FP32, 0, 2048), ("m16n8k16", i8, i32, 16, FP32, 0, 2048),
    )
)  # fmt: skip


def _wgmma(dtype: DType, columns: int) -> Fragment:
    """PTX ISA, "Register Fragments" of wgmma.mma_async.m64nNk16: each of four warps has 16 rows, and a lane of it pairs
    of neighbouring columns in two of them, as in mma.m16n8k16."""
    lane, element = Var("lane", 0, 4 * WARP - 1), Var("e", 0, columns // 2 - 1)
    x, e = sym.expr(lane), sym.expr(element)
    row = 16 * sym.floordiv(x, WARP) + sym.floordiv(sym.mod(x, WARP), 4) + 8 * sym.mod(sym.floordiv(e, 2), 2)
    column = 8 * sym.floordiv(e, 4) + 2 * sym.mod(x, 4) + sym.mod(e, 2)
    return Fragment(
        f"m64n{columns}k16", dtype, 64, columns, 16, row, column, 4 * WARP, lane=lane, element=element, panels=True,
        lanes_of_row=4,
    )  # fmt: skip


WGMMA = tuple(_wgmma(dtype, columns) for columns in (64, 128, 256) for dtype in (f16, bf16))

# Metal does not document which lane holds what of a simdgroup_matrix; measured by others; not checked on a device yet.
SIMDGROUP = tuple(
    Fragment(
        "simdgroup8x8", dtype, 8, 8, 8,
        sym.mod(sym.floordiv(_L, 2), 4) + 4 * sym.floordiv(_L, 16),
        2 * sym.mod(_L, 2) + 4 * sym.mod(sym.floordiv(_L, 8), 2) + _E,
    )
    for dtype in (f32, f16, bf16)
)  # fmt: skip
