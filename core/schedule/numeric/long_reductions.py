"""Long reductions in two steps: parts are reduced, then the results of the parts.

Where there are few results, threads share the parts. Parts also bound the error of a sum, which in one accumulator
grows with the length. Contractions stay whole: threads share their tiles, which are summed in blocks. Parts do not
depend on the number of threads, so results do not either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from luminal.core import ir, numerics, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.costs import Sizes
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.rewrite import readers
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.sizes import largest, typical
from luminal.core.symbolic import Int
from luminal.core.target import Target

Readers: TypeAlias = dict[Node, set[Node | None]]

ACCURATE_TERMS = 2048  # most terms that one accumulator sums: for accuracy


def in_parts(whole: Contracted, target: Target) -> Contracted:
    """The graph with its long reductions in parts, sized for ``target``.

    The result of a part is not rounded: it has the type in which the reduction computes.
    """
    read_by = readers(whole.graph.roots)

    def made(node: Node, operands: Sequence[Node]) -> Node:
        new = traverse.rebuild(node, operands)
        if node.op.kind is not Kind.REDUCE or node in whole.contractions:
            return new
        return _reduced(new, node, read_by, target)

    return whole.remade(lambda roots, became: made)


def _reduced(new: Node, node: Node, read_by: Readers, target: Target) -> Node:
    """The reduction ``new``, rebuilt from ``node``, in parts if it is long. The parts' results are reduced alike."""
    long = _Long.of(new, target)
    if not (long.is_shared or long.is_inexact):
        return new
    (x,), axes, op = new.inputs, new.attr.axes, new.op
    cut = Cut.of(x.shape, axes, long.most)
    whole = cut.applied(node, x, read_by)
    if whole is None:
        return new
    wide = new.dtype.compute if op is ops.SUM_REDUCE else new.dtype
    parts = cut.masked(ir.cast(whole, wide), numerics.of_nothing(op, wide).tobytes())
    within = ir.reduce(op, parts, [k + 1 for k in axes if k >= cut.axis])
    total = ir.reduce(op, within, [k for k in axes if k <= cut.axis])
    return ir.cast(_reduced(total, total, {within: {total}}, target), new.dtype)


@dataclass(frozen=True)
class _Long:
    """The numbers that decide about a reduction: ``terms`` of a result, ``columns`` (results side by side in a task),
    ``tasks``, how many tasks are ``enough``, and the ``sizes`` of parts."""

    node: Node
    terms: int
    columns: int
    tasks: int
    enough: int
    sizes: Sizes

    @classmethod
    def of(cls, node: Node, target: Target) -> _Long:
        """The reduction ``node`` on ``target``."""
        shape, axes = node.inputs[0].shape, node.attr.axes
        grid, sizes = target.grid, target.costs.sizes
        enough, widest = (sizes.reductions, sizes.part_columns) if grid is None else (grid.processors, grid.threads)
        inner = max(1, math.prod(typical(size) for size in shape[axes[-1] + 1 :]))
        terms = math.prod(largest(shape[k]) for k in axes)
        return cls(node, terms, min(inner, widest), typical(node.size) // inner * -(-inner // widest), enough, sizes)

    @property
    def most(self) -> int:
        """Terms of a part, at most."""
        return self.sizes.part if self.columns == 1 else min(self.sizes.part // self.columns, ACCURATE_TERMS)

    @property
    def is_shared(self) -> bool:
        """Whether it has too few tasks, and work enough for more threads."""
        return self.tasks < self.enough and self.terms * self.columns >= self.sizes.part * self.sizes.parts

    @property
    def is_inexact(self) -> bool:
        """Whether one accumulator would sum too many terms. It may if lanes are different results; a reduction along
        memory has an accumulator in each lane, and is handled with other rows."""
        sums = self.node.op is ops.SUM_REDUCE and self.node.dtype.is_float
        return sums and self.columns > 1 and self.terms > ACCURATE_TERMS


@dataclass(frozen=True)
class Cut:
    """A shape ``before`` with ``axis`` split in two: parts, and ``each`` positions in a part. The ``run`` axes after
    ``axis`` are reduced, too."""

    before: ir.Shape
    axis: int
    each: int
    run: int

    @classmethod
    def of(cls, shape: ir.Shape, axes: tuple[int, ...], most: int) -> Cut:
        """The split of a ``shape`` that is reduced over ``axes`` into parts of at most ``most`` terms."""
        inside = 1
        for axis in reversed(axes):
            extent = largest(shape[axis])
            if inside * extent > most:
                break
            inside *= extent
        run = next((k for k in range(len(shape) - axis - 1) if axis + 1 + k not in axes), len(shape) - axis - 1)
        return cls(shape, axis, _divisor(shape[axis], most // inside), run)

    @property
    def shape(self) -> ir.Shape:
        count = sym.ceildiv(self.before[self.axis], self.each)
        return (*self.before[: self.axis], count, self.each, *self.before[self.axis + 1 :])

    @property
    def place(self) -> Int:
        """The position along the unsplit axis."""
        at = ir.axes(self.shape)
        return at[self.axis] * self.each + at[self.axis + 1]

    @property
    def inside(self) -> Int:
        """Not negative if ``place`` is inside the unsplit axis; counted over the run, which may become one loop."""
        at, end = self.place, self.before[self.axis]
        for k in range(self.axis + 1, self.axis + 1 + self.run):
            at, end = at * self.before[k] + ir.axes(self.shape)[k + 1], end * self.before[k]
        return end - 1 - at

    def _cut(self, x: Node) -> Node:
        """``x`` split, with zeros beyond its end."""
        at = ir.axes(self.shape)
        index = (*at[: self.axis], self.place, *at[self.axis + 2 :])
        return ir.view(x, self.shape, index, (self.inside,), bytes(x.dtype.itemsize))

    def masked(self, x: Node, outside: bytes) -> Node:
        """``x``, already of the split shape, with ``outside`` beyond the end of the unsplit axis."""
        return ir.view(x, x.shape, ir.axes(x.shape), (self.inside,), outside)

    def applied(self, node: Node, x: Node, read_by: Readers) -> Node | None:
        """``x``, which ``node`` reduces, split; elements beyond its end are arbitrary. Elementwise nodes that only this
        reduction reads are rebuilt on split operands, so that they need not be stored. None if splitting an operand
        would force a value to be stored that is not stored now."""
        (whole,) = node.inputs
        now, own = {whole: x}, {node}
        for part in (reached := [whole]):
            if part in own or part.op.kind is not Kind.ELEMENTWISE or part.op is ops.CONTIGUOUS:
                continue
            if read_by[part] <= own:
                own.add(part)
                now |= zip(part.inputs, now[part].inputs, strict=True)
                reached += part.inputs
        cut: dict[Node, Node] = {}
        for part in traverse.topological([whole]):
            if part in own:
                cut[part] = ir.elementwise(part.op, *(cut[y] for y in part.inputs), attr=part.attr)
            elif part in now:
                source, view = (part.inputs[0], {part}) if part.op is ops.VIEW else (part, own)
                computed = source.op is ops.GATHER or (source.op.kind is Kind.ELEMENTWISE and source is not part)
                if computed and read_by[source] <= view:
                    return None
                cut[part] = self._cut(now[part])
        return cut[whole]


def _divisor(extent: Int, most: int) -> int:
    """The largest divisor of ``extent`` above ``most // 2``, up to ``most``; ``most`` if none is, or if symbolic."""
    if not isinstance(extent, int):
        return most
    return next((each for each in range(most, most // 2, -1) if extent % each == 0), most)
