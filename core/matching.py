"""Matching axes: the views between two values inverted, so that one is indexed by the axes of the other."""

from __future__ import annotations

from luminal.core import ir
from luminal.core import symbolic as sym
from luminal.core.symbolic import Int, Var


def cuts(variable: Var, expressions: tuple[Int, ...]) -> list[Int]:
    """The places at which expressions divide an axis, ascending: ``[64]`` where ``n//64`` and ``n%64`` occur."""
    found: dict[Int, None] = {}
    for expression in expressions:
        for atom in sym.atoms(expression):
            _cut(atom, variable, found)
    return sorted(found, key=lambda c: (sym.upper(c) or 0, str(c)))


def _cut(atom: sym.Atom, variable: Var, found: dict[Int, None]) -> Int | None:
    """Record the cuts inside ``atom``. Returns the scale of the axis in it (64 in ``n//64``) if it is a digit."""
    if atom == variable:
        return 1
    if isinstance(atom, sym.FloorDiv | sym.Mod):
        inner = sym.atoms(atom.num)
        if len(inner) == 1 and atom.num == _only(inner):
            scale = _cut(next(iter(inner)), variable, found)
            if scale is not None:
                found[scale * atom.den] = None
                return scale * atom.den if isinstance(atom, sym.FloorDiv) else scale
        else:
            for other in inner:
                _cut(other, variable, found)
    return None


def _only(inner: set[sym.Atom]) -> Int:
    return sym.expr(next(iter(inner)))


def digits(variable: Var, extent: Int, at: list[Int], prefix: str) -> list[tuple[Int, Int, Int]] | None:
    """The axes that an axis splits into at cuts, fastest first: ``(axis, extent, scale)``; None where cuts do not
    nest."""
    result: list[tuple[Int, Int, Int]] = []
    below: Int = 1
    for number, cut in enumerate([*at, extent]):
        if sym.mod(cut, below) != 0:
            return None
        size = sym.floordiv(cut, below)
        result.append((sym.axis(f"{prefix}{variable.name}_{number}", size), size, below))
        below = cut
    return result


def invert(
    shape: tuple[Int, ...], index: tuple[Int, ...], source: tuple[Int, ...], at: tuple[Int, ...]
) -> tuple[Int, ...] | None:
    """The index ``i`` over a domain such that ``index(i)``, an element of ``source``, is ``at``; ``index`` maps
    elements of ``shape`` to elements of ``source``. None where that map is not one to one, or is no rearrangement of
    axes."""
    if sym.product(shape) != sym.product(source):
        return None
    parts: dict[Var, list[tuple[Int, Int, Int]]] = {}
    by: dict[Var, Int] = {}
    for axis, extent in zip(ir.axes(shape), shape, strict=True):
        variable = sym.as_var(axis)
        if variable is None:
            continue
        split = digits(variable, extent, cuts(variable, index), "d_")
        if split is None:
            return None
        parts[variable] = split
        by[variable] = _join([a for a, _, _ in split], [s for _, _, s in split])
    flat = flatten([sym.substitute(e, by) for e in index], source)
    target = flatten(at, source)
    result: list[Int] = []
    for axis in ir.axes(shape):
        variable = sym.as_var(axis)
        if variable is None:
            result.append(0)
            continue
        total: Int = 0
        for digit, extent, scale in parts[variable]:
            of = sym.as_var(digit)
            if of is None:
                continue
            linear = sym.coefficient(flat, of)
            if linear is None or linear[0] == 0:
                return None
            total = total + sym.mod(sym.floordiv(target, linear[0]), extent) * scale
        result.append(total)
    forward = ir.rename(shape, result)
    return tuple(result) if tuple(sym.substitute(e, forward) for e in index) == tuple(at) else None


def _join(values: list[Int], scales: list[Int]) -> Int:
    total: Int = 0
    for value, scale in zip(values, scales, strict=True):
        total = total + value * scale
    return total


def flatten(index: tuple[Int, ...] | list[Int], shape: tuple[Int, ...] | list[Int]) -> Int:
    """The row-major position of ``index`` in ``shape``."""
    total: Int = 0
    for position, extent in zip(index, shape, strict=True):
        total = total * extent + position
    return total
