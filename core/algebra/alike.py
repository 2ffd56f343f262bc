"""Regions that differ in their tensors alone: what was found for one holds for all, as for the layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from luminal.core import symbolic as sym
from luminal.core.algebra.paths import Path, is_known, over
from luminal.core.algebra.terms import Axis, Coordinate, Factor, Lookup, Region
from luminal.core.ir import Node
from luminal.core.symbolic import Int


def described(region: Region) -> tuple[str, tuple[Node, ...], tuple[sym.Var, ...]]:
    """All of ``region`` that its forms depend on, as text with numbers for its tensors, and the tensors. Sizes that are
    not known have numbers too, and their bounds: no name of the model is in the text. They come last: a path is of the
    sizes of its region."""
    tensors: dict[Node, int] = {}
    dims: dict[sym.Var, sym.Int] = {}

    def number(node: Node) -> int:
        return tensors.setdefault(node, len(tensors))

    def named(e: Int) -> str:
        for v in sorted(sym.variables(e), key=str):
            if not isinstance(v, Axis) and v not in dims:
                dims[v] = sym.var(f"n{len(dims)}", v.lo, v.hi)
        return str(sym.substitute(e, dims))

    def size(extent: Int) -> str:
        """An extent, with the bounds of the sizes in it."""
        bounds = ", ".join(
            f"{named(sym.expr(v))} in {v.lo}..{named(v.hi)}" for v in sorted(sym.variables(extent), key=str)
        )
        return f"{named(extent)}{f' ({bounds})' if bounds else ''}"

    def along(axis: Axis) -> str:
        return f"{'sum ' if axis.summed else ''}{axis} <= {size(axis.hi)}"

    def coordinate(c: Coordinate) -> str:
        if isinstance(c.position, Lookup):
            table, index = c.position.table, ", ".join(map(named, c.position.index))
            position = f"{number(table)}:{table.op}[{index}] {c.position.failure}"
        else:
            position = named(c.position)
        return " ".join([f"{position} < {size(c.extent)}", *(f"if {named(v)}" for v in c.valid)])

    def factor(f: Factor) -> str:
        assert f.node is not None
        kind = "constant" if is_known(f) else "data"
        sign = "/" if f.divides else "*"
        return f"{sign} {number(f.node)}:{kind} {f.node.dtype} [{', '.join(map(coordinate, f.coordinates))}]"

    lines = [f"{region.root.dtype} {list(map(size, region.root.shape))} at {list(map(named, region.result))}"]
    for term in region.terms:
        lines.append("+ " + ", ".join(map(along, sorted(term.axes, key=str))))
        lines += map(factor, term.factors)
    return "\n".join(lines), tuple(tensors), tuple(dims)


def renewed(path: Path, by: Mapping[Node, Node]) -> Path:
    """``path`` over other tensors."""

    def coordinate(c: Coordinate) -> Coordinate:
        if not isinstance(c.position, Lookup):
            return c
        return replace(c, position=replace(c.position, table=by.get(c.position.table, c.position.table)))

    def factor(f: Factor) -> Factor:
        return f if f.node is None else replace(f, node=by.get(f.node, f.node))

    return over(path, coordinate, factor)
