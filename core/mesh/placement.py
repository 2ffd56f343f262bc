"""Where a value lies along one axis of a mesh: whole on each rank, split along one of its axes, owned, or as partial
results.

A device axis is an axis: a split one has a digit that says which rank holds an element. An axis of ``n`` positions that
is split among P ranks with ``inner`` positions each is ``n/(P*inner)`` by P by ``inner``; so parts of what was joined,
three matrices beside each other, say, stay split alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from luminal.core import ir
from luminal.core import symbolic as sym
from luminal.core.ir import Node, Shape
from luminal.core.ops import Failure
from luminal.core.symbolic import Int, Var


@dataclass(frozen=True)
class Whole:
    """Every rank has all of it."""

    def __str__(self) -> str:
        return "whole"


@dataclass(frozen=True)
class Split:
    """A rank has ``inner`` positions of ``axis`` in turn."""

    axis: int
    inner: int

    def __str__(self) -> str:
        return f"axis {self.axis} in parts of {self.inner}"


@dataclass(frozen=True)
class Partial:
    """A rank has a value of the whole shape; the value is the ``sum`` of all ranks' in their order, or the ``max``."""

    by: str

    def __str__(self) -> str:
        return f"partial {self.by}"


@dataclass(frozen=True)
class Lookup:
    """Positions, ``index``, of which each looks up something along an axis of a table. A rank has ``inner`` of the
    ``extent`` positions of that axis in turn, and owns what looks these up. ``failure`` says how a run fails where a
    position is out of range."""

    index: Node
    extent: int
    inner: int
    failure: Failure


@dataclass(frozen=True)
class Owned:
    """A rank has what belongs to the positions of ``lookup`` that it owns, in their order: those are along as many axes
    as the index has, from ``axis`` on, which are one axis of what the rank has, as long as data decides."""

    axis: int
    lookup: Lookup

    @property
    def axes(self) -> range:
        return range(self.axis, self.axis + self.lookup.index.rank)

    def __str__(self) -> str:
        return f"owned along axis {self.axis}"


Placement: TypeAlias = Whole | Split | Partial | Owned
WHOLE = Whole()

RANK = "rank of the mesh"  # the variable that stands for a rank in indices


def rank(size: int) -> Int:
    """The number of a rank among ``size``, as a variable."""
    return sym.expr(Var(RANK, 0, size - 1))


def flat(shape: Shape, over: Sequence[Int]) -> Int:
    """The position, in row-major order, of ``over`` in ``shape``."""
    place: Int = 0
    for extent, axis in zip(shape, over, strict=True):
        place = place * extent + axis
    return place


def merged(shape: Shape, axes: range, extent: Int) -> Shape:
    """``shape`` with one axis of that extent in the place of ``axes``."""
    return (*shape[: axes.start], extent, *shape[axes.stop :])


def splits(shape: Shape, size: int) -> list[Split]:
    """The ways to split a value of that shape along one axis, one part for each of ``size`` ranks."""
    return [
        Split(axis, extent // size)
        for axis, extent in enumerate(shape)
        if isinstance(extent, int) and extent and extent % size == 0
    ]


def fits(placement: Placement, shape: Shape, size: int) -> bool:
    """Whether a value of that shape can lie so."""
    if isinstance(placement, Owned):
        return placement.axes.stop <= len(shape)
    if not isinstance(placement, Split):
        return True
    extent = shape[placement.axis] if placement.axis < len(shape) else 0
    return isinstance(extent, int) and extent > 0 and extent % (size * placement.inner) == 0


def local(shape: Shape, placement: Placement, size: int) -> Shape:
    """The shape of what a rank has."""
    if not isinstance(placement, Split):
        return shape
    return tuple(sym.floordiv(d, size) if k == placement.axis else d for k, d in enumerate(shape))


def position(there: Int, inner: int, size: int, who: Int) -> Int:
    """The position in the whole axis of position ``there`` of what rank ``who`` has."""
    return sym.floordiv(there, inner) * (size * inner) + who * inner + sym.mod(there, inner)


def owner(whole: Int, inner: int, size: int) -> Int:
    """The rank that has a position of the whole axis."""
    return sym.mod(sym.floordiv(whole, inner), size)


def place(whole: Int, inner: int, size: int) -> Int:
    """Where in its part the owner has a position of the whole axis."""
    return sym.floordiv(whole, size * inner) * inner + sym.mod(whole, inner)


def in_whole(shape: Shape, placement: Placement, size: int, who: Int) -> dict[Var, Int]:
    """What to put for the canonical axes of ``shape`` to have the positions of rank ``who``, over the canonical axes of
    what it has."""
    if not isinstance(placement, Split):
        return {}
    here = ir.axes(local(shape, placement, size))[placement.axis]
    variable = sym.as_var(ir.axes(shape)[placement.axis])
    assert variable is not None
    return {variable: position(here, placement.inner, size, who)}
