"""What a contraction is made of: its operands, the axes by role, and the tile that computes it.

Each contraction is found once (``contracted.contractions``). From then on this value travels with its node to the loop
nest: a pass that changes the node hands on an explicit ``replace`` of the value, and nobody finds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.decisions import Asked
from luminal.core.ir import Node, Shape
from luminal.core.matrix import MatrixUnit
from luminal.core.printer import brief
from luminal.core.schedule.contraction.prologue import Prologue
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


@dataclass(frozen=True)
class Operand:
    """An operand of the product: element ``index`` of ``source`` under ``valid``, over the product's axes; elsewhere
    ``fill`` (the bytes of one element of ``source``). ``source`` may be stored in a narrower type than the product's.
    """

    source: Node
    index: tuple[Int, ...]
    valid: tuple[Int, ...] = ()
    fill: bytes = b""

    @property
    def variables(self) -> set[Var]:
        return {v for e in self.index for v in sym.variables(e)}

    def over(self, by: dict[Var, Int]) -> Operand:
        """The operand over other axes: ``by`` gives each old axis as an expression of the new ones."""
        index, valid = (tuple(sym.substitute(e, by) for e in part) for part in (self.index, self.valid))
        return replace(self, index=index, valid=valid)

    def moved(self, now: Callable[[Node], Node]) -> Operand:
        """The operand with its source replaced by ``now(source)``, seen through a widening cast."""
        return replace(self, source=now(self.source)).through_casts()

    def read(self, shape: Shape) -> Node:
        """The view of the source that a product of that ``shape`` reads, in the source's type."""
        return ir.view(self.source, shape, self.index, self.valid, self.fill)

    def through_casts(self) -> Operand:
        """The operand read from before a widening cast, if the source is one. Masked elements stay zero."""
        cast = self.source
        if cast.op is not ops.CAST or not _widens(cast) or any(self.fill):
            return self
        inner = operand(cast.inputs[0])
        if inner.valid or not (inner.source.dtype.has_zero or not self.valid):
            return self
        index = inner.over(ir.rename(cast.shape, self.index)).index
        return Operand(inner.source, index, self.valid, bytes(inner.source.dtype.itemsize) if self.valid else b"")


def operand(node: Node) -> Operand:
    """``node`` seen through its view, and through a widening cast of what it views."""
    if node.op is ops.VIEW:
        return Operand(node.inputs[0], node.attr.index, node.attr.valid, node.attr.fill).through_casts()
    return Operand(node, ir.axes(node.shape)).through_casts()


def _widens(node: Node) -> bool:
    """Whether a cast keeps every value, in a wider type of the same kind; integers below a byte are not read so."""
    wide, narrow = node.dtype, node.inputs[0].dtype
    if narrow.bits >= wide.bits:
        return False
    if wide.is_float:
        return narrow.is_float
    whole = wide.is_integer and narrow.is_integer and narrow.compute == narrow
    return whole and wide.min <= narrow.min


@dataclass(frozen=True, repr=False)
class Tile:
    """A register tile: at most ``rows`` of A times ``vectors`` vectors of ``lanes`` columns of B. A matrix ``unit``, if
    any, sums ``depth`` terms at a time. ``unpacked``: a panel of B that a prologue computes is computed once, before
    the tiles of rows that share it. ``scaled``: a factor of what it computes, the same for a block of terms, multiplies
    the block's sum. ``in_lines``: the threads of a block divide the terms of a column, which lie side by side.
    ``asked`` is the question that the tile answers, if it is to be recorded."""

    rows: int
    vectors: int
    lanes: int
    unit: MatrixUnit | None = None
    depth: int = 1
    unpacked: bool = False
    scaled: bool = False
    in_lines: bool = False
    asked: Asked | None = field(default=None, compare=False, repr=False)

    __repr__ = brief

    def __str__(self) -> str:
        unit = "" if self.unit is None else f" on {self.unit}, {self.depth} terms at a time"
        computed = ", panels computed before" if self.unpacked else ""
        scaled = ", sums of blocks scaled" if self.scaled else ""
        divided = ", terms divided among threads" if self.in_lines else ""
        return f"{self.rows} rows by {self.vectors} vectors of {self.lanes}{unit}{computed}{scaled}{divided}"

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def group(self) -> int:
        """Consecutive elements of a column that lie side by side in panels."""
        return 1 if self.unit is None else self.unit.group


@dataclass(frozen=True)
class Contraction:
    """A sum over the product of ``a`` and ``b``; ``shape`` and ``dtype`` are the product's. ``batch``, ``m``, ``n`` and
    ``k`` are the axes by role, as positions in the shape; those of ``k`` are summed. ``along_rows``: the result, or an
    output computed from it, has an axis of M innermost in memory.

    ``prologue`` is how B is to be computed from narrow constants, from where that is found to where they are packed.
    ``scale``, if any, multiplies A: integers in blocks along K, which ``blocks`` finds. It is the same for each run.
    ``apart``: the products with what moves blocks of B may be summed apart (``numeric/moved_blocks.py``).
    Preparation for kernels adds the ``tile`` that computes the sum, and ``runs``, the axes of A's source, innermost
    last, along which a matrix unit reads terms side by side."""

    shape: Shape
    dtype: DType
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: Operand
    b: Operand
    along_rows: bool = False
    prologue: Prologue | None = None
    tile: Tile | None = None
    runs: tuple[int, ...] = ()
    scale: Operand | None = None
    apart: bool = False

    @property
    def axes(self) -> tuple[Int, ...]:
        """The axes of the product (the constant 0 for extent 1)."""
        return ir.axes(self.shape)

    def count(self, axes: Iterable[int]) -> Int:
        """The product of the extents of ``axes``."""
        return sym.product(self.shape[k] for k in axes)

    @property
    def run(self) -> int:
        """The axis of K along which terms lie side by side."""
        return next(k for k in reversed(self.k) if self.shape[k] != 1)

    def moved(self, now: Callable[[Node], Node]) -> Contraction:
        """The contraction with each operand's source replaced by ``now(source)``."""
        b, scale = self.b.moved(now), None if self.scale is None else self.scale.moved(now)
        return replace(self, a=self.a.moved(now), b=b, prologue=self.prologue if b == self.b else None, scale=scale)

    def node(self) -> Node:
        """The contraction as primitives: a SumReduce of a Mul of both operands, cast to ``dtype``."""
        factors = (x.read(self.shape) for x in (self.a, self.b))
        a, b = (x if x.dtype == self.dtype else ir.cast(x, self.dtype) for x in factors)
        if self.scale is not None:
            a = a * self.scale.read(self.shape)
        product = ir.elementwise(ops.MUL, a, b)
        return ir.reduce(ops.SUM_REDUCE, product, sorted(self.k))

    def computed_in_tiles(self, node: Node) -> tuple[Node, ...]:
        """What tiles compute of A as they read it, in the primitives of ``node``."""
        scaled = node.inputs[0].inputs[0]
        return () if self.scale is None else (scaled, *(x for x in scaled.inputs if x.op is ops.CAST))
