"""The loop nest: the one thing that code generation reads, for every target.

A nest is a tree of statements over scalar expressions. Expressions are interned, so equal subexpressions are one object
and an emitter computes each once. Offsets are in elements, over loop axes, dimension symbols and ``Let`` variables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from luminal.core.errors import SpecError
from luminal.core.grid import Fragment
from luminal.core.matrix import MatrixUnit
from luminal.core.ops import Failure, Op
from luminal.core.schedule.nest.fields import Fields
from luminal.core.schedule.nest.hand_over import HandOver
from luminal.core.schedule.nest.scalars import (
    Access,
    Holds,
    Index,
    Leaf,
    Literal,
    Scalar,
    Temporary,
    apply,
    holds,
    index,
    literal,
    load,
    postorder,
    select,
    temporary,
    text,
)
from luminal.core.symbolic import Int, Var, product
from luminal.core.types import DType

# Scalars are read as parts of nests.
__all__ = [
    "Access",
    "Holds",
    "Index",
    "Leaf",
    "Literal",
    "Scalar",
    "Temporary",
    "apply",
    "holds",
    "index",
    "literal",
    "load",
    "postorder",
    "select",
    "temporary",
    "text",
]

# The names of axes of nests and of views. Nothing else may have such a name.
_AXIS_NAME = re.compile(r"[aegiktv]\d\w*|c0|k_\d|d_i\d\w*|at|tid")


def names_axis(name: str) -> bool:
    """Whether ``name`` has the form of an axis name, which no dimension may have."""
    return _AXIS_NAME.fullmatch(name) is not None


Indices: TypeAlias = tuple[Int, ...]


# ---- statements ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """``body`` for ``axis`` in ``0 .. extent-1``.

    ``kind`` is one of:

    ``parallel``
        outermost and perfectly nested; together they number the tasks, the first varying slowest.
    ``serial``, ``unroll``
        one iteration after the other; unrolled, the axis is a constant in each.
    ``ordered``
        as serial, but an iteration reads what those before it wrote: their order is part of the meaning.
    ``vector``
        ``lanes`` consecutive values at a time, the last group partial where ``lanes`` does not divide ``extent``.
    ``across``
        as serial, inside a vector loop, ``lanes`` iterations at a time: elements that lie side by side along this axis
        and apart along the vectors are loaded as rows and transposed in registers. What all iterations store side by
        side without a gap is stored after the last of them.
    ``thread``
        the ``lanes`` threads of the task divide the iterations: thread ``t`` runs ``t``, ``t + lanes``, ...
    """

    axis: Var
    extent: Int
    kind: str
    body: tuple[Statement, ...]
    lanes: int = 1
    fields: ClassVar[Fields] = Fields(binds=("axis",), indices=("extent",), body=("body",), other=("kind", "lanes"))


@dataclass(frozen=True)
class Let:
    """``axis`` takes an index that was read at run time (``value``, int64). A value outside ``0 .. extent-1`` raises
    the run's status, as ``failure`` says, and ``axis`` becomes 0; ``failure`` is None where there is no such value.
    Visible to the statements that follow in the same body."""

    axis: Var
    value: Scalar
    extent: Int
    failure: Failure | None = Failure.INDEX
    fields: ClassVar[Fields] = Fields(binds=("axis",), scalars=("value",), indices=("extent",), other=("failure",))


@dataclass(frozen=True)
class Define:
    """``name`` is ``value`` for the statements that follow."""

    name: str
    value: Scalar
    fields: ClassVar[Fields] = Fields(scalars=("value",), other=("name",))


@dataclass(frozen=True)
class Reduction:
    """``name`` is the reduction with ``op`` (an ``ops`` row: SumReduce or MaxReduce) of ``value`` over ``loops``.

    ``loops`` are headers (their bodies empty), the last innermost; it may be a vector loop, or a thread loop, whose
    result all threads know. ``before`` are statements that run in the innermost body before ``value`` is read. Several
    ``accumulators``, a power of two, take the steps of the innermost loop in turn; after those of a ``part``, or of the
    loop, what they have joins a total, and they begin anew. Partial results combine in one fixed order.
    """

    name: str
    op: Op
    dtype: DType
    loops: tuple[Loop, ...]
    before: tuple[Statement, ...]
    value: Scalar
    accumulators: int = 1
    part: int = 0
    fields: ClassVar[Fields] = Fields(
        scalars=("value",), nested=("loops",), body=("before",), other=("name", "op", "dtype", "accumulators", "part")
    )


@dataclass(frozen=True)
class Reductions:
    """The reductions ``names``, all with ``op``, computed together over the same serial ``loops``, so that they share
    loads. In every iteration each of ``terms``, a name and a value, joins the reduction of that name, in order. It may
    have several terms in an iteration, or none; over no loops there is one iteration. With ``blocks`` above 0, each
    iteration of the first ``blocks`` loops is a block, and their results are combined in order. ``part``: as above.
    """

    names: tuple[str, ...]
    op: Op
    dtype: DType
    loops: tuple[Loop, ...]
    terms: tuple[tuple[str, Scalar], ...]
    part: int = 0
    blocks: int = 0
    fields: ClassVar[Fields] = Fields(
        terms=("terms",), nested=("loops",), other=("names", "op", "dtype", "part", "blocks")
    )


@dataclass(frozen=True)
class Store:
    """``array[offset] = value``. Where ``valid`` is given, only where every condition is at least zero.

    With ``ahead``, allowed for a copy of an array element into a shared array, the copy is asynchronous: no thread, not
    even the one that issues it, sees the value before the next barrier that does not leave it under way.
    """

    array: str
    offset: Int
    value: Scalar
    valid: tuple[Int, ...] = ()
    ahead: bool = False
    fields: ClassVar[Fields] = Fields(
        scalars=("value",), indices=("offset",), conditions=("valid",), writes=("array",), other=("ahead",)
    )


@dataclass(frozen=True)
class Sort:
    """The ``extent`` elements of ``array`` from ``offset`` on, integers, are put in ascending order. All threads of a
    task do it together."""

    array: str
    offset: Int
    extent: Int
    fields: ClassVar[Fields] = Fields(indices=("offset", "extent"), reads=("array",), writes=("array",))


@dataclass(frozen=True)
class KeepLeast:
    """``value`` replaces the greatest of the ``extent`` elements of ``array`` from ``offset`` on, where it is less.
    They are integers and form a heap: no element is greater than the one at half its place, places counted from 1. They
    were filled with equal numbers, and nothing but such statements has changed them since."""

    array: str
    offset: Int
    extent: Int
    value: Scalar
    fields: ClassVar[Fields] = Fields(
        scalars=("value",), indices=("offset", "extent"), reads=("array",), writes=("array",)
    )


@dataclass(frozen=True)
class Combine:
    """Each of the ``count`` elements of ``array`` from ``offset`` on, in the thread's part of an array in registers,
    becomes the reduction with ``op`` (as of ``Reduction``) of those that ``lanes`` neighbouring threads have at the
    same place: threads ``g*lanes`` to ``g*lanes + lanes-1``. ``lanes`` is a power of two within a warp. It lies in a
    loop that threads divide, of which it is the only statement that touches ``array``."""

    array: str
    offset: Int
    count: int
    op: Op
    dtype: DType
    lanes: int
    fields: ClassVar[Fields] = Fields(
        indices=("offset",), reads=("array",), writes=("array",), other=("count", "op", "dtype", "lanes")
    )


@dataclass(frozen=True)
class Regroup:
    """The lanes of each warp exchange elements, so that each has neighbours: those of a matrix that they hold as
    fragments leave them (``grid.in_pairs``), ``SMALL`` each from ``offset`` on in their parts of ``array``, in
    registers, are held row by row afterwards (``grid.in_rows``). They pass ``through`` a shared array, from ``place``
    on, where each warp has as many elements of its own. It lies in a loop that threads divide, of which it is the only
    statement that touches ``array``."""

    array: str
    offset: Int
    dtype: DType
    through: str
    place: Int
    fields: ClassVar[Fields] = Fields(
        indices=("offset", "place"), reads=("array", "through"), writes=("array", "through"), other=("dtype",)
    )


@dataclass(frozen=True)
class If:
    """``body`` where every condition of ``valid`` is at least zero."""

    valid: tuple[Int, ...]
    body: tuple[Statement, ...]
    fields: ClassVar[Fields] = Fields(conditions=("valid",), body=("body",))


@dataclass(frozen=True)
class Alloc:
    """An array of ``extent`` elements (a compile-time number), visible to the statements that follow.

    ``space`` says whose it is: ``local``, of whoever runs this statement; ``shared``, one for all threads of the task;
    ``registers``, an equal part for each thread of the task: offsets are ``t*part`` plus what is constant once loops
    are unrolled, ``t`` being the axis of the thread loop around.

    Where ``row`` is not 0, the array is a matrix with rows of so many elements, which lies in memory as products of
    groups of warps read it (``grid.in_panels``). Offsets are those of the matrix, row by row, all the same.
    """

    name: str
    dtype: DType
    extent: int
    space: str = "local"
    row: int = 0
    fields: ClassVar[Fields] = Fields(other=("name", "dtype", "extent", "space", "row"))


@dataclass(frozen=True)
class Barrier:
    """No thread of the task passes before all threads have arrived. Each then sees what all have written to shared
    arrays, and with ``all_memory`` to the arrays of the kernel too.

    The asynchronous copies since the last barrier are a group, if there are any, and so are the products in the
    background. The last ``left`` groups of copies, and the last ``products`` groups of products, may stay under way."""

    all_memory: bool = False
    left: int = 0
    products: int = 0
    fields: ClassVar[Fields] = Fields(other=("all_memory", "left", "products"))


@dataclass(frozen=True)
class Assign:
    """``axis`` is ``value`` for the statements that follow: a named subexpression of indices."""

    axis: Var
    value: Int
    fields: ClassVar[Fields] = Fields(binds=("axis",), indices=("value",))


@dataclass(frozen=True)
class Prefetch:
    """The cache line of ``array[offset]`` comes into the cache. This changes no value."""

    array: str
    offset: Int
    fields: ClassVar[Fields] = Fields(indices=("offset",), other=("array",))


@dataclass(frozen=True)
class CopyBox:
    """A copy of a box of ``source`` into ``array``, a shared array in panels, which a device may do as one. ``body``
    does the same element by element, asynchronously.

    ``source`` is seen as a tensor of ``sizes``, whose elements along the first dimension lie side by side from
    ``first`` on, and along the others ``strides`` apart. The box begins at ``origin`` and has a row of ``array`` along
    the first dimension, ``lines`` along the second, and one element along others. Zeros stand for what lies outside.
    """

    array: str
    source: str
    origin: Indices
    sizes: Indices
    strides: Indices
    first: Int
    lines: int
    row: int
    body: tuple[Statement, ...] = ()
    fields: ClassVar[Fields] = Fields(
        indices=("origin", "sizes", "strides", "first"), body=("body",), reads=("source",), writes=("array",),
        other=("lines", "row"),
    )  # fmt: skip


@dataclass(frozen=True)
class Prologue:
    """An element of B that is computed from elements of arrays: ``value`` at ``column`` of a tile, over the axes of the
    contract's loops. Every array is read at consecutive elements by consecutive columns."""

    column: Var
    value: Scalar
    fields: ClassVar[Fields] = Fields(binds=("column",), scalars=("value",))


@dataclass(frozen=True)
class Scales:
    """What the sum of a block is multiplied by: for each ``row`` an element of an array, or nothing, for each
    ``column`` a value as a prologue computes it. Both are over the loops of the contract that count blocks."""

    row: Var | None
    left: Scalar | None
    column: Var
    right: Scalar
    fields: ClassVar[Fields] = Fields(binds=("row", "column"), scalars=("left", "right"))


@dataclass(frozen=True)
class Contract:
    """A tile operation: an outer product summed over ``loops``, the accumulators in registers.

    With ``outer`` above 0, registers sum blocks of terms: one block for each iteration of the first ``outer`` loops.
    The sums of blocks are added in ``tile``, in order.

    Meaning, for ``i < rows`` and ``j < columns``, with ``K`` running over ``loops`` in order::

        tile[tile_offset + i*tile_row + j] = sum over K of  A[a_offset + i*a_row] * B[b_offset + j*b_column]

    ``a_offset`` and ``b_offset`` are over the axes of ``loops`` too. Operands of type ``a_type`` and ``b_type`` convert
    to ``dtype`` when they are loaded. ``rows`` is an expression in ``1 .. max_rows``; ``columns`` is a multiple of
    ``lanes``, and all of them can be read in ``B``. ``tile`` names an ``Alloc`` that holds ``max_rows`` such rows,
    ``tile_row`` (``columns``, where None) elements apart. With ``accumulate`` the sum is added to what the tile holds.

    With ``fragment``, the lanes of a warp multiply together, and a thread's part of the tile holds its elements of
    every fragment, one row of fragments after the other; ``a_offset`` and ``b_offset`` are those of the warp, and
    ``loops`` is one loop, a multiple of the fragment's depth long, inside of those over blocks. Where the fragment
    reads panels, its lanes are those of several warps, and ``A`` and ``B`` are matrices in panels (``Alloc``) whose
    terms lie along a row or down. In the ``background`` such a product is under way until a barrier waits for it:
    before, nobody writes its operands, and nothing but other such products uses its tile.

    With ``held``, ``A`` lies in registers: a thread's part of it holds elements as a part of a tile does, of as many
    rows and of all terms as columns, and they are rounded to ``a_type``. ``a_offset`` is then the first of the thread's
    elements of the strip (``Fragment``) in which term K is, and ``a_row`` is how many a row of fragments has.

    With ``unit``, a matrix unit multiplies, in steps of ``depth`` terms along the last of ``loops``, ``k``: ``A`` has
    these side by side, and ``B`` in groups. With ``g`` the unit's group, the element of ``B`` above is then::

        B[b_offset + k//g * columns*g + j*g + k%g]

    ``b_offset`` is then not over ``k``. A last step may be shorter. Where threads divide the tile, ``steps`` steps of
    the innermost loop are written out one after the other. With a ``prologue``, its value replaces the element of B;
    ``b`` is the one of its arrays that is read fastest, and ``b_offset`` the first column's element of that array. With
    ``scales``, the sum of a block joins the others, in ``dtype``, times these: ``outer`` counts the blocks, or the
    operands are signed bytes, which a unit of vectors sums over the last loop, in whole steps, and which a ``prologue``
    may compute of B, in the unit's groups; or which a ``fragment`` of integers sums so, and in no other way.

    ``a_ahead`` and ``b_ahead``, where given, are elements of ``A`` and ``B`` that each step may prefetch for a later
    tile. They change no value, and may lie beyond the end of an array.

    Raises SpecError for more than one of ``fragment``, ``unit`` and ``prologue`` (but the last two with ``scales``),
    for ``outer`` with a fragment, a unit or ``accumulate``, for ``a_ahead`` with a unit, for ``scales`` without
    blocks or, but of fragments, with ``accumulate``, for those of rows without a unit or fragment, for a fragment of
    integers without, in the ``background`` without panels, and for an operand in registers that the fragment does not
    take.
    """

    tile: str
    dtype: DType
    a: str
    a_type: DType
    a_offset: Int
    a_row: Int
    b: str
    b_type: DType
    b_offset: Int
    loops: tuple[Loop, ...]
    rows: Int
    max_rows: int
    columns: int
    lanes: int
    tile_offset: Int = 0
    tile_row: int | None = None
    accumulate: bool = False
    a_ahead: Int | None = None
    b_ahead: Int | None = None
    outer: int = 0
    b_column: Int = 1
    fragment: Fragment | None = None
    unit: MatrixUnit | None = None
    depth: int = 1
    prologue: Prologue | None = None
    scales: Scales | None = None
    steps: int = 1
    background: bool = False
    held: bool = False
    fields: ClassVar[Fields] = Fields(
        indices=("a_offset", "a_row", "b_offset", "b_column", "rows", "tile_offset", "a_ahead", "b_ahead"),
        nested=("loops", "prologue", "scales"), reads=("a", "b"), writes=("tile",),
        other=(
            "dtype", "a_type", "b_type", "max_rows", "columns", "lanes", "tile_row", "accumulate", "outer", "fragment",
            "unit", "depth", "steps", "background", "held",
        ),
    )  # fmt: skip

    def __post_init__(self) -> None:
        exclusive = ("fragment", "unit"), ("fragment", "prologue"), ("outer", "fragment"), ("outer", "unit")
        unscaled = (("unit", "prologue"),) if self.scales is None else ()
        for names in (*exclusive, *unscaled, ("outer", "accumulate"), ("a_ahead", "unit")):
            given = [name for name in names if getattr(self, name)]
            if len(given) > 1:
                raise SpecError(f"contract {self.tile}: {' and '.join(given)} exclude each other")
        of_unit = self.unit is not None and self.unit.in_vectors
        of_fragment = self.fragment is not None and self.fragment.sum.is_integer
        if of_fragment != (self.fragment is not None and self.scales is not None and self.scales.left is not None):
            raise SpecError(f"contract {self.tile}: fragments sum integers in blocks with scales, and nothing else so")
        if self.scales and not of_fragment and (self.accumulate or not (of_unit if self.scales.left else self.outer)):
            raise SpecError(f"contract {self.tile}: only blocks are scaled, of rows those of a unit, in an empty tile")
        if self.background and not (self.fragment is not None and self.fragment.panels):
            raise SpecError(f"contract {self.tile}: only groups of warps multiply in the background")
        if self.held and not (self.fragment is not None and self.fragment.lanes_of_row):
            raise SpecError(f"contract {self.tile}: {self.fragment} takes no operand from registers")


Statement: TypeAlias = (
    Loop
    | Let
    | Define
    | Reduction
    | Reductions
    | Store
    | Sort
    | KeepLeast
    | Combine
    | Regroup
    | If
    | Alloc
    | Barrier
    | Assign
    | Prefetch
    | CopyBox
    | HandOver
    | Contract
)


@dataclass(frozen=True)
class Array:
    """An array argument of a kernel, and whether the kernel writes it. ``finite``: the kernel may rely on no element
    being infinite or NaN. ``aligned``: it begins at a multiple of the widest memory access of a thread."""

    name: str
    dtype: DType
    written: bool
    finite: bool = False
    aligned: bool = True


@dataclass(frozen=True)
class LoopNest:
    """One kernel: array arguments in order, the dimension symbols that it reads, and its body.

    ``checked`` says that a ``Let`` may raise the run's status. ``threads`` run each task: what stands outside thread
    loops all of them compute alike, and one of them stores. ``copiers`` more copy boxes, which they hand over. Two
    kernels are the same exactly when their nests are equal; names inside are canonical.
    """

    arrays: tuple[Array, ...]
    dims: tuple[Var, ...]
    body: tuple[Statement, ...]
    checked: bool = False
    threads: int = 1
    copiers: int = 0

    @property
    def tasks(self) -> tuple[Loop, ...]:
        """The parallel loops, outermost first."""
        loops: list[Loop] = []
        body = self.body
        while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "parallel":
            loops.append(body[0])
            body = body[0].body
        return tuple(loops)

    @property
    def task_count(self) -> Int:
        """How many tasks there are."""
        return product(loop.extent for loop in self.tasks)
