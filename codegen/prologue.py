"""The prologue of a tile operation as C++: a row of B, computed from arrays in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from luminal.codegen import patterns
from luminal.codegen.cpp import ctype
from luminal.codegen.expressions import Expressions
from luminal.codegen.frame import Frame, Group, Value
from luminal.codegen.indices import Indices
from luminal.codegen.signature import Pointer
from luminal.codegen.threads import Threads
from luminal.core import symbolic as sym
from luminal.core.matrix import MatrixUnit
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_leaves, substitute_scalar
from luminal.core.schedule.nest.walk import accesses
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, i8


@dataclass(frozen=True)
class Source:
    """An array that a prologue reads: the tile function's parameter ``name`` points to its element ``start``."""

    name: str
    array: str
    dtype: DType
    start: Int


@dataclass(frozen=True)
class Row:
    """A row that a tile function computes, of B or of its scales: ``value`` over ``column``, from ``sources``."""

    column: Var
    value: ln.Scalar
    sources: tuple[Source, ...]

    def render(self, frame: Frame, contract: ln.Contract, name: str) -> str:
        """Adds the computation to the frame, invariant parts outside the loops; returns the name of the array of
        vectors, like ``name``."""
        lane = Var("lane", 0, contract.lanes - 1)
        places = [{self.column: first + sym.expr(lane)} for first in range(0, contract.columns, contract.lanes)]
        return self._vectors(frame, lane, places, contract.dtype, name, patterns.beside_tiles)

    def bytes(self, frame: Frame, contract: ln.Contract, unit: MatrixUnit, axis: Var, k: Int) -> str:
        """As ``render``, for the signed bytes that ``unit`` takes at once: those of ``k`` along ``axis``, and of the
        others in its group, side by side."""
        lane = Var("lane", 0, contract.lanes * unit.group - 1)
        within, column = sym.mod(sym.expr(lane), unit.group), sym.floordiv(sym.expr(lane), unit.group)
        firsts = range(0, contract.columns, contract.lanes)
        places = [{self.column: first + column, axis: k + within} for first in firsts]
        return self._vectors(frame, lane, places, i8, "right", patterns.in_bytes)

    def sharing(self, axis: Var, unit: MatrixUnit, steps: int) -> int:
        """How many of the ``steps`` of ``unit`` along ``axis`` read from the same bytes, at most."""

        def at(number: int) -> list[Int]:
            return [sym.substitute(x.offset, {axis: number * unit.depth}) for x in accesses(self.value)]

        apart = (n for n in range(1, steps) if all(x != y for x, y in zip(at(0), at(n), strict=True)))
        return next(apart, steps)

    def _vectors(
        self,
        frame: Frame,
        lane: Var,
        places: Sequence[Mapping[Var, Int]],
        dtype: DType,
        name: str,
        function: patterns.Function,
    ) -> str:
        assert isinstance(lane.hi, int)
        lanes = lane.hi + 1
        pointers = {s.name: Pointer(s.name, s.name, s.dtype, False) for s in self.sources}
        indices = Indices(frame)
        threads = Threads(frame, indices, ln.LoopNest((), (), ()))
        expressions = Expressions(frame, indices, threads, pointers, function)
        vectors: list[str] = []
        frame.scopes[0].variables[lane] = Value("0")
        for by in places:
            with frame.vector(Group(lane, lanes, only=True)):
                vector = expressions.vector(substitute_scalar(self.value, by, {}))
                vectors.append(vector if self.value.dtype.compute == dtype else f"bitcast<{ctype(dtype)}>({vector})")
        name = frame.names.fresh(name)
        frame.line(f"const vec<{ctype(dtype)}, {lanes}> {name}[] = {{{', '.join(vectors)}}};")
        return name


def computed_row(
    contract: ln.Contract,
    prologue: ln.Prologue,
    sources: list[Source],
    types: Mapping[str, DType],
    resolve: Callable[[Int], Int],
) -> Row:
    """The row over parameters of the tile function: each offset is split into the tile's start and a part over its
    loops. Arrays that it reads and that are not yet among the ``sources`` are added. ``types`` are the element types of
    the arrays."""
    axes = frozenset(loop.axis for loop in contract.loops) | {prologue.column}
    by: dict[ln.Scalar, ln.Scalar] = {}
    for scalar in ln.postorder(prologue.value):
        if isinstance(scalar.leaf, ln.Access):
            array = scalar.leaf.array
            start, moving = split(resolve(scalar.leaf.offset), axes)
            found = next((s for s in sources if (s.array, s.start) == (array, start)), None)
            if found is None:
                found = Source(f"c{len(sources) - 1}", array, types[array], start)
                sources.append(found)
            by[scalar] = ln.load(found.name, moving, scalar.dtype)
    return Row(prologue.column, replace_leaves(prologue.value, by), tuple(sources))


def split(offset: Int, axes: frozenset[Var]) -> tuple[Int, Int]:
    """``offset`` as the sum of its terms without ``axes`` and of those with them."""
    if isinstance(offset, int):
        return offset, 0
    moving: Int = 0
    for monomial, coefficient in offset.terms:
        term = sym.Expr(((monomial, coefficient),)) if monomial else coefficient
        if sym.variables(term) & axes:
            moving = moving + term
    return offset - moving, moving
