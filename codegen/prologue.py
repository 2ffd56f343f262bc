"""The prologue of a tile operation as C++: a row of B, computed from arrays in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from luminal.codegen import patterns
from luminal.codegen.cpp import ctype
from luminal.codegen.expressions import Expressions
from luminal.codegen.frame import Frame, Group, Value
from luminal.codegen.indices import Indices
from luminal.codegen.signature import Pointer
from luminal.codegen.threads import Threads
from luminal.core import symbolic as sym
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_leaves, substitute_scalar
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


@dataclass(frozen=True)
class Source:
    """An array that a prologue reads: the tile function's parameter ``name`` points to its element ``start``."""

    name: str
    array: str
    dtype: DType
    start: Int


@dataclass(frozen=True)
class Row:
    """A row of B that a tile function computes: ``value`` over ``column``, from ``sources``, the first of them B."""

    column: Var
    value: ln.Scalar
    sources: tuple[Source, ...]

    def render(self, frame: Frame, contract: ln.Contract) -> str:
        """Adds the computation to the frame, invariant parts outside the loops; returns the name of the array of
        vectors."""
        lane = Var("lane", 0, contract.lanes - 1)
        pointers = {s.name: Pointer(s.name, s.name, s.dtype, False) for s in self.sources}
        indices = Indices(frame)
        threads = Threads(frame, indices, ln.LoopNest((), (), ()))
        expressions = Expressions(frame, indices, threads, pointers, patterns.beside_tiles)
        vectors: list[str] = []
        frame.scopes[0].variables[lane] = Value("0")
        for first in range(0, contract.columns, contract.lanes):
            value = substitute_scalar(self.value, {self.column: first + sym.expr(lane)}, {})
            with frame.vector(Group(lane, contract.lanes, only=True)):
                vectors.append(expressions.vector(value))
        name = frame.names.fresh("right")
        frame.line(f"const vec<{ctype(contract.dtype)}, {contract.lanes}> {name}[] = {{{', '.join(vectors)}}};")
        return name


def computed_row(
    contract: ln.Contract, prologue: ln.Prologue, types: Mapping[str, DType], resolve: Callable[[Int], Int]
) -> Row:
    """The row of B over parameters of the tile function: each offset is split into the tile's start and a part over its
    loops. ``types`` are the element types of the arrays."""
    axes = frozenset(loop.axis for loop in contract.loops) | {prologue.column}
    sources = [Source("b", contract.b, contract.b_type, split(resolve(contract.b_offset), axes)[0])]
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
