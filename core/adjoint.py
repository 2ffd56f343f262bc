"""The adjoint of a view: a sum of masked views.

A view reads its operand at ``index(i)``. Its adjoint gives each element ``j`` of the operand the sum of the elements
``i`` that read it, those with ``index(i) == j``. These are equations over integers within bounds, one for each axis of
the operand, and they are solved for ``i``: quotients and remainders become unknowns of their own, joined by ``F ==
n*quotient + remainder``; an equation in which each unknown is a digit gives them all; and where an equation leaves
several ways, as that of a window does, the shortest axis is left free and summed over. A window that reads
``stride*i + dilation*k`` thus gives a sum over ``k`` of views at ``(j - dilation*k) // stride``, valid where that
divides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.expressions import Atom, FloorDiv, MinMax, Mod, atoms, operands, terms_of
from luminal.core.ir import Node
from luminal.core.symbolic import Int, Var

# A sum reads so many elements for each element of the view, at most; a window reads as many as its stride has steps.
MOST_READ = 64


def of_view(x: Node, g: Node, index: Sequence[Int], valid: Sequence[Int]) -> Node | None:
    """What the gradient ``g`` of a view of ``x`` gives each element of ``x``; None where no sum of a fair length does.
    ``index`` and ``valid`` are over the axes of ``g``, each of which occurs in them."""
    chosen = next((atom for e in index for atom in _inside(e) if isinstance(atom, MinMax)), None)
    if chosen is not None:
        return _by_cases(x, g, index, valid, chosen)
    alone = {atom for e in index for atom in atoms(e) if e == sym.expr(atom)}
    system = _System(ir.axes(g.shape), alone)
    places = [sym.axis(f"j{k}", size) for k, size in enumerate(x.shape)]
    for e, place in zip(index, places, strict=True):
        system.equations.append(system.linear(e) - place)
    solution = system.solved()
    conditions = system.conditions + [sym.substitute(e, solution) for e in valid]
    if system.failed:
        return None
    at = [sym.substitute(axis, solution) for axis in ir.axes(g.shape)]
    return _summed(x, g, places, system.free, at, [c for c in conditions if not sym.always(c)])


def _inside(e: Int) -> list[Atom]:
    """All atoms in an expression, outermost first."""
    found: list[Atom] = []
    for atom in sorted(atoms(e), key=lambda atom: atom.key):
        found += [atom, *(deeper for part in operands(atom) for deeper in _inside(part))]
    return found


def _by_cases(x: Node, g: Node, index: Sequence[Int], valid: Sequence[Int], chosen: MinMax) -> Node | None:
    """The sum over both sides of a minimum or maximum, each where it is the side that counts."""
    sign = 1 if chosen.which == "min" else -1
    first, second = (chosen.b - chosen.a) * sign, (chosen.a - chosen.b) * sign - 1
    parts = [
        of_view(x, g, [_with(e, chosen, side) for e in index], [*(_with(e, chosen, side) for e in valid), counts])
        for side, counts in ((chosen.a, first), (chosen.b, second))
        if not sym.never(counts)
    ]
    if any(part is None for part in parts):
        return None
    total = parts[0]
    for part in parts[1:]:
        assert total is not None and part is not None
        total = total + part
    return total


def _with(e: Int, atom: Atom, by: Int) -> Int:
    """``e`` with ``by`` in the place of ``atom``."""
    result: Int = 0
    for monomial, factor in terms_of(e):
        term: Int = factor
        for a in monomial:
            if a == atom:
                term = term * by
            elif isinstance(a, FloorDiv | Mod):
                divide = sym.floordiv if isinstance(a, FloorDiv) else sym.mod
                term = term * divide(_with(a.num, atom, by), _with(a.den, atom, by))
            elif isinstance(a, MinMax):
                choose = sym.minimum if a.which == "min" else sym.maximum
                term = term * choose(_with(a.a, atom, by), _with(a.b, atom, by))
            else:
                term = term * sym.expr(a)
        result = result + term
    return result


@dataclass
class _System:
    """Equations, each ``expression == 0``, over unknowns that count from 0: ``extents``, of those that are not found
    yet, is None where there is no bound above."""

    axes: Sequence[Int]
    indices: Collection[Atom]  # that are indices of the view by themselves
    equations: list[Int] = field(default_factory=list)
    conditions: list[Int] = field(default_factory=list)  # that hold where none is below 0
    extents: dict[Var, Int | None] = field(default_factory=dict)
    own: set[Var] = field(default_factory=set)  # unknowns that are axes
    divided: dict[tuple[Int, Int], tuple[Int, Int]] = field(default_factory=dict)
    found: dict[Var, Int] = field(default_factory=dict)
    free: list[Var] = field(default_factory=list)
    failed: bool = False

    def __post_init__(self) -> None:
        for axis in self.axes:
            v = sym.as_var(axis)
            if v is not None:
                self.extents[v] = v.hi + 1
                self.own.add(v)

    def linear(self, e: Int) -> Int:
        """``e`` with an unknown for each quotient and remainder of unknowns."""
        result: Int = 0
        for monomial, factor in terms_of(e):
            term: Int = factor
            for atom in monomial:
                term = term * self._lifted(atom)
            result = result + term
        return result

    def _lifted(self, atom: Atom) -> Int:
        if not isinstance(atom, FloorDiv | Mod) or self.extents.keys().isdisjoint(sym.variables(sym.expr(atom))):
            return sym.expr(atom)
        num, den = self.linear(atom.num), atom.den
        if (num, den) not in self.divided:
            number = len(self.divided)
            least, most = sym.lower(num), sym.upper(num)
            # A quotient that is an index counts from 0, wherever the view reads.
            shortest = sym.lower(den) or 1
            begin = 0 if FloorDiv(atom.num, den) in self.indices or least is None else min(least // shortest, 0)
            self.failed |= least is None
            quotient = Var(f"q{number}", 0, (most or 0) - begin)
            remainder = sym.as_var(sym.axis(f"r{number}", den))
            assert remainder is not None
            self.extents[quotient] = None if most is None else most // shortest - begin + 1
            self.extents[remainder] = den
            self.divided[num, den] = sym.expr(quotient) + begin, sym.expr(remainder)
            self.equations.append((sym.expr(quotient) + begin) * den + sym.expr(remainder) - num)
        quotient_, remainder_ = self.divided[num, den]
        return quotient_ if isinstance(atom, FloorDiv) else remainder_

    def solved(self) -> dict[Var, Int]:
        """Each unknown as an expression over places and free axes."""
        while self.equations:
            known = next((e for e in self.equations if not self._unknown(e)), None)
            if known is not None:
                self.equations.remove(known)
                if known != 0:
                    self.conditions += [known, known * -1]
                continue
            solved = next((k for k, e in enumerate(self.equations) if self._digits(e)), None)
            if solved is None:
                self._leave_free()
            else:  # what is left of it is among the conditions
                del self.equations[solved]
            if self.failed:
                break
        for v in [v for v in self.extents if v in self.own]:
            self._release(v)
        return self.found

    def _unknown(self, e: Int) -> list[Var]:
        return sorted((v for v in sym.variables(e) if v in self.extents), key=lambda v: v.name)

    def _digits(self, e: Int) -> bool:
        """Solve an equation for all its unknowns, if its coefficients are such that each is a digit."""
        slopes: dict[Var, Int] = {}
        rest = e
        for v in self._unknown(e):
            split = sym.coefficient(rest, v)
            if split is None or self._unknown(split[0]):
                return False
            slopes[v], rest = split
        if len(slopes) == 1:
            ((v, slope),) = slopes.items()
            if sym.always(slope * -1 - 1):
                slope, rest = slope * -1, rest * -1
            if not sym.always(slope - 1):
                return False
            self._found(v, sym.floordiv(rest * -1, slope), slope, rest)
            return True
        if any(self.extents[v] is None for v in slopes) and not self._one_unbounded(slopes):
            return False
        # Unknowns with negative slopes count down instead; the first counts up.
        if sym.always(next(iter(slopes.values())) * -1 - 1) or any(self.extents[v] is None for v in _falling(slopes)):
            slopes, rest = {v: slope * -1 for v, slope in slopes.items()}, rest * -1
        down = _falling(slopes)
        if any(self.extents[v] is None for v in down):
            return False
        for v in down:
            extent = self.extents[v]
            assert extent is not None
            rest = rest + slopes[v] * (extent - 1)
            slopes[v] = slopes[v] * -1
        if not all(sym.always(slope - 1) for slope in slopes.values()):
            return False
        order: list[Var] = []
        left = dict(slopes)
        while left:
            top = next((v for v in left if self._exceeds(left, v)), None)
            if top is None:
                return False
            order.append(top)
            del left[top]
        value: Int = rest * -1
        for k, v in enumerate(order):
            digit = sym.floordiv(value, slopes[v])
            last = k == len(order) - 1
            if last and slopes[v] != 1:
                over = sym.mod(value, slopes[v])
                self.conditions.append(over * -1)
            value = value - digit * slopes[v]
            extent = self.extents[v]
            self._set(v, extent - 1 - digit if v in down and extent is not None else digit)
        return True

    def _one_unbounded(self, slopes: dict[Var, Int]) -> bool:
        return sum(self.extents[v] is None for v in slopes) == 1

    def _exceeds(self, slopes: dict[Var, Int], v: Var) -> bool:
        """Whether a step of ``v`` is more than all other unknowns can add up to."""
        reach: Int = 1
        for other, slope in slopes.items():
            if other != v:
                extent = self.extents[other]
                if extent is None:
                    return False
                reach = reach + slope * (extent - 1)
        return sym.always(slopes[v] - reach)

    def _found(self, v: Var, value: Int, slope: Int, rest: Int) -> None:
        if slope != 1:
            self.conditions.append(sym.mod(rest * -1, slope) * -1)
        self._set(v, value)

    def _set(self, v: Var, value: Int) -> None:
        extent = self.extents.pop(v)
        self.conditions.append(value)
        if extent is not None:
            self.conditions.append(extent - 1 - value)
        by = {v: value}
        self.equations = [sym.substitute(e, by) for e in self.equations]
        self.conditions = [sym.substitute(e, by) for e in self.conditions]
        self.found = {u: sym.substitute(e, by) for u, e in self.found.items()}
        self.found[v] = value

    def _leave_free(self) -> None:
        """Sum over the shortest axis that stands in an equation."""
        every = {v for e in self.equations for v in self._unknown(e)} & self.own
        if not every:
            self.failed = True
            return
        shortest = min(every, key=lambda v: (sym.upper(v.hi) or 0, v.name))
        self._release(self._in_steps(shortest) or shortest)

    def _in_steps(self, v: Var) -> Var | None:
        """Where ``v`` is longer than the step ``s`` of the one other unknown beside it, an axis to be left free in its
        place, which counts steps: of each ``s`` values of ``v`` one solves the equation. Else None."""
        (e, *others) = [e for e in self.equations if v in self._unknown(e)]
        beside, extent, split = [u for u in self._unknown(e) if u != v], self.extents[v], sym.coefficient(e, v)
        if others or len(beside) != 1 or split is None or split[0] not in (1, -1) or not isinstance(extent, int):
            return None
        # v + slope*u + rest == 0
        linear = sym.coefficient(split[1] * split[0], beside[0])
        slope, rest = linear or (0, 0)
        if not isinstance(slope, int) or not 1 < abs(slope) < extent:
            return None
        step = abs(slope)
        count = Var(f"{v.name}_steps", 0, (extent - 1) // step)
        self.equations.remove(e)
        self.extents[count] = count.hi + 1
        self._set(v, sym.expr(count) * step + sym.mod(rest * -1, step))
        self._set(beside[0], (sym.floordiv(rest * -1, step) - sym.expr(count)) * (slope // step))
        return count

    def _release(self, v: Var) -> None:
        del self.extents[v]
        self.free.append(v)


def _falling(slopes: dict[Var, Int]) -> set[Var]:
    return {v for v, slope in slopes.items() if sym.always(slope * -1 - 1)}


def _ceil(size: int, by: Int) -> int | None:
    least = by if isinstance(by, int) else sym.lower(by)
    return None if not least else -(-size // least)


def _summed(
    x: Node, g: Node, places: Sequence[Int], free: Sequence[Var], at: Sequence[Int], conditions: Sequence[Int]
) -> Node | None:
    """The sum over the ``free`` axes of ``g`` at ``at``, where no condition is below 0; each axis of ``x`` that decides
    neither which elements are summed nor where they are read is put in after the sum."""
    most = sym.upper(sym.product([v.hi + 1 for v in free])) if free else 1
    whole, given = sym.upper(x.size), sym.upper(g.size)
    loose = set(free)
    inner = [c for c in conditions if not loose.isdisjoint(sym.variables(c))]
    read = {v for e in (*at, *inner) for v in sym.variables(e)}
    used = [k for k, place in enumerate(places) if sym.as_var(place) in read]
    if free:
        whole = sym.upper(sym.product([x.shape[k] for k in used]))
        if most is None or whole is None or given is None or most * whole > MOST_READ * max(given, 1):
            return None
    shape = tuple(x.shape[k] for k in used) + tuple(v.hi + 1 for v in free)
    over = ir.axes(shape)
    by = {v: over[n] for n, k in enumerate(used) if (v := sym.as_var(places[k])) is not None}
    by |= {v: over[len(used) + n] for n, v in enumerate(free)}
    fill = np.zeros((), x.dtype.numpy).tobytes()
    inside = inner if free else [*conditions]
    if not free:
        used = list(range(x.rank))
        shape, over = x.shape, ir.axes(x.shape)
        by = {v: over[k] for k in used if (v := sym.as_var(places[k])) is not None}
    part = ir.view(
        g, shape, [sym.substitute(e, by) for e in at], [sym.substitute(c, by) for c in inside], fill
    )  # fmt: skip
    if not free:
        return part
    part = ir.reduce(ops.SUM_REDUCE, part, range(len(used), len(shape)))
    outer = [c for c in conditions if c not in inner]
    by = {v: axis for place, axis in zip(places, ir.axes(x.shape), strict=True) if (v := sym.as_var(place)) is not None}
    return ir.view(part, x.shape, [ir.axes(x.shape)[k] for k in used], [sym.substitute(c, by) for c in outer], fill)
