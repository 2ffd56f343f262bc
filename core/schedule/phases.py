"""Phases: consecutive steps between which no thread has to wait for another.

The tasks of every step of a phase are divided into the same number of shares, so that a thread runs its shares of one
step and then, at once, the same shares of the next. That is right for any division among threads if no share of one
step touches what another share of another step writes. It is proved from the offsets: share ``s`` of every such access
lies in ``[base + s*stride, base + (s+1)*stride)`` elements of the buffer, with one ``base`` and one ``stride``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, product

from luminal.core import symbolic as sym
from luminal.core.program import Phase
from luminal.core.schedule import nest as ln
from luminal.core.schedule.lower import accesses, statements, touched, values
from luminal.core.schedule.tile import typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target

BOUNDS = 16  # that are tried of an index at most
SHARES = 32  # as few as this are enough to divide among the threads of a desktop machine; of a larger one,
EVEN = 2  # for each thread
SHARES_EACH = 4  # for each thread, at the most, where the values between the steps would go through memory
PART = 8  # of the last cache: a value larger than this part has left it when another step reads it


@dataclass(frozen=True)
class Step:
    """A launch of ``nest``: ``buffers`` are what its arrays are, in order; equal ones share memory, others do not."""

    nest: ln.LoopNest
    buffers: tuple[Hashable, ...]


@dataclass(frozen=True)
class Slab:
    """What consecutive parts of a nest touch of an array: part ``p`` of ``parts`` lies in ``[base + p*stride, base +
    (p+1)*stride)`` elements for every ``base`` in ``first .. last``."""

    parts: Int
    stride: Int
    first: int
    last: int


def phases(steps: Sequence[Step], target: Target) -> tuple[Phase, ...]:
    """The phases of more than one step, in order; each is as long as can be, from the first step on."""
    found: list[Phase] = []
    first = 0
    while first < len(steps):
        last = first
        best: Phase | None = None
        while last + 1 < len(steps) and (longer := _phase(steps, first, last + 1, target)) is not None:
            best, last = longer, last + 1
        if best is not None:
            found.append(best)
        first = last + 1
    return tuple(found)


def _phase(steps: Sequence[Step], first: int, last: int, target: Target) -> Phase | None:
    inside = steps[first : last + 1]
    if sum(step.nest.checked for step in inside) > 1:
        return None  # a status says in which step it was raised, by the phase's one step that can
    counts = sorted(set(chain.from_iterable(_prefixes(step.nest) for step in inside)), key=typical, reverse=True)
    for shares in counts:
        tasks = tuple(_times(step.nest.task_count, shares) for step in inside)
        even = typical(shares) >= _enough(target) or set(tasks) == {1}
        even = even or (suffice(shares, target) and _between(inside, shares) > target.l3 // PART)
        if all(tasks) and even and _independent(inside, shares):
            return Phase(first, last, shares, tasks, _linked(inside))
    return None


def suffice(shares: Int, target: Target) -> bool:
    """Whether so many shares can be divided among the threads of ``target``, if not as evenly as more of them."""
    return typical(shares) >= min(_enough(target), SHARES_EACH * target.threads)


def _enough(target: Target) -> int:
    """Shares that threads divide evenly."""
    return max(SHARES, EVEN * target.threads)


def portion(steps: Sequence[Step], shares: Int, buffer: Hashable) -> tuple[int, int] | None:
    """The ``first`` and ``length`` of the portions of ``buffer`` that hold all that each of the ``shares`` touches, or
    None, where there are none or where sizes that are not known decide on them."""
    options = _options(_uses(steps)[buffer], steps, shares)
    lengths = (length for length in _common(options) if isinstance(length, int))
    return min(((max(o[n].first for o in options), n) for n in lengths), key=lambda found: found[1], default=None)


def _linked(steps: Sequence[Step]) -> bool:
    """Whether a step reads what an earlier one wrote."""
    written: set[Hashable] = set()
    for step in steps:
        buffers = {array.name: buffer for array, buffer in zip(step.nest.arrays, step.buffers, strict=True)}
        read, stored = touched(step.nest.body)
        if any(name in read and buffer in written for name, buffer in buffers.items()):
            return True
        written |= {buffer for name, buffer in buffers.items() if name in stored}
    return False


def _between(steps: Sequence[Step], shares: Int) -> int:
    """Bytes of the largest buffer that several steps use, and one of them writes."""
    sizes = [0]
    for used in _uses(steps).values():
        if len({number for number, _ in used}) > 1 and any(array.written for _, array in used):
            strides = [stride for stride in _common(_options(used, steps, shares)) if isinstance(stride, int)]
            sizes.append(min(strides, default=0) * typical(shares) * used[0][1].dtype.itemsize)
    return max(sizes)


def _independent(steps: Sequence[Step], shares: Int) -> bool:
    """Whether no share of one step touches what another share of another step writes."""
    return all(
        _common(_options(used, steps, shares))
        for used in _uses(steps).values()
        if len({number for number, _ in used}) > 1 and any(array.written for _, array in used)
    )


def _uses(steps: Sequence[Step]) -> dict[Hashable, list[tuple[int, ln.Array]]]:
    """For each buffer, the numbers of the steps that use it, and as what."""
    users: dict[Hashable, list[tuple[int, ln.Array]]] = {}
    for number, step in enumerate(steps):
        for array, buffer in zip(step.nest.arrays, step.buffers, strict=True):
            users.setdefault(buffer, []).append((number, array))
    return users


def _options(used: Sequence[tuple[int, ln.Array]], steps: Sequence[Step], shares: Int) -> list[dict[Int, Slab]]:
    """For each use of a buffer, the slabs that shares divide it into, by their stride from share to share."""
    every = (slabs(steps[number].nest, array.name) for number, array in used)
    return [{k: slab for slab in use if (k := _stride(slab, shares)) is not None} for use in every]


def _common(options: Sequence[dict[Int, Slab]]) -> list[Int]:
    """The strides of the divisions into slabs, a slab for each share, that hold all uses of a buffer."""
    return [
        stride
        for stride in set(options[0]).intersection(*options[1:])
        if max(option[stride].first for option in options) <= min(option[stride].last for option in options)
    ]


def _stride(slab: Slab, shares: Int) -> Int | None:
    """The stride from share to share; None where shares hold no whole number of parts."""
    times = _times(slab.parts, shares)
    return slab.stride * times if times else None


def _times(count: Int, of: Int) -> int:
    """How many times ``of`` makes ``count``; 0 where no whole number of times."""
    quotient = sym.floordiv(count, of)
    return quotient if isinstance(quotient, int) and quotient * of == count else 0


# ---- what a nest touches -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 10)
def _prefixes(nest: ln.LoopNest) -> tuple[Int, ...]:
    """Into how many parts the outermost one, two, ... parallel loops divide the tasks."""
    loops = nest.tasks
    counts = (sym.product(loop.extent for loop in loops[: k + 1]) for k in range(len(loops)))
    return tuple(count for count in counts if typical(count) > 1)


@lru_cache(maxsize=1 << 12)
def slabs(nest: ln.LoopNest, array: str) -> tuple[Slab, ...]:
    """The slabs of ``array``, for each of the outermost parallel loops whose iterations touch slabs apart."""
    loops = nest.tasks
    dims = set(nest.dims)
    shorter = _shorter(nest)
    found: list[Slab] = []
    part: Int = 0
    for depth, loop in enumerate(loops):
        part = part * loop.extent + sym.var(loop.axis.name, loop.axis.lo, loop.axis.hi)
        linear = [sym.coefficient(offset, loop.axis) for offset in offsets(nest, array)]
        strides = {c[0] for c in linear if c is not None}
        if None in linear or len(strides) != 1:
            continue
        (stride,) = strides
        if not sym.always(stride - 1) or not sym.variables(stride) <= dims:
            continue
        inner = [offset - part * stride for offset in offsets(nest, array)]
        ends = [_highest(offset + 1 - stride, shorter) for offset in inner]
        starts = [_lowest(offset, shorter) for offset in inner]
        if None not in ends and None not in starts:
            first, last = max(e for e in ends if e is not None), min(s for s in starts if s is not None)
            if first <= last:
                parts = sym.product(outer.extent for outer in loops[: depth + 1])
                found.append(Slab(parts, stride, first, last))
    return tuple(found)


def _shorter(nest: ln.LoopNest) -> list[dict[Var, Int]]:
    """For axes whose loops go less far than their bounds, always or for some values of others, as in the last block:
    variables bounded by that. Where it is the smaller of two, there is one of each."""
    body = statements(nest.body)
    named = _named(body)
    extents: dict[Var, set[Int]] = {}
    for axis, extent in chain.from_iterable(map(_axes, body)):
        extents.setdefault(axis, set()).add(_spelled(extent, named))
    single = {axis: next(iter(of)) for axis, of in extents.items() if len(of) == 1}
    found = {axis: e for axis, e in single.items() if not isinstance(e, int) or axis.hi != e - 1}
    options: list[dict[Var, Int]] = []
    for chosen in islice(product(*(sym.either(extent, "min") for extent in found.values())), BOUNDS):
        by: dict[Var, Int] = {}
        for axis, extent in zip(found, chosen, strict=True):  # outer loops first, with which the extents of others vary
            by[axis] = sym.axis(axis.name, sym.substitute(extent, by))
        options.append(by)
    return options


def _highest(value: Int, shorter: Sequence[dict[Var, Int]]) -> int | None:
    """The lowest proven upper bound of ``value``."""
    found = (sym.upper(e) for by in shorter for e in sym.either(sym.substitute(value, by), "min"))
    return min((bound for bound in found if bound is not None), default=None)


def _lowest(value: Int, shorter: Sequence[dict[Var, Int]]) -> int | None:
    """The highest proven lower bound of ``value``."""
    found = (sym.lower(e) for by in shorter for e in sym.either(sym.substitute(value, by), "max"))
    return max((bound for bound in found if bound is not None), default=None)


def offsets(nest: ln.LoopNest, array: str) -> tuple[Int, ...]:
    """Every offset, over loop axes, at which ``nest`` may read or write ``array``, masks left out."""
    body = statements(nest.body)
    named = _named(body)
    found = chain.from_iterable(_offsets(statement, array) for statement in body)
    return tuple(dict.fromkeys(_spelled(offset, named) for offset in found))


def _named(body: Sequence[ln.Statement]) -> dict[Var, Int]:
    """The names of index expressions, and what they stand for."""
    values: dict[Var, set[Int]] = {}
    for statement in body:
        if isinstance(statement, ln.Assign):
            values.setdefault(statement.axis, set()).add(statement.value)
    return {axis: next(iter(given)) for axis, given in values.items() if len(given) == 1}


def _axes(statement: ln.Statement) -> list[tuple[Var, Int]]:
    """The axes that a statement goes through, and how far."""
    match statement:
        case ln.Loop():
            return [(statement.axis, statement.extent)]
        case ln.Reduction() | ln.Reductions():
            return [(loop.axis, loop.extent) for loop in statement.loops]
        case ln.Contract():
            row = sym.as_var(sym.axis("e0", statement.rows))
            rows = [] if row is None else [(row, statement.rows)]
            return rows + [(loop.axis, loop.extent) for loop in statement.loops]
        case _:
            return []


def _offsets(statement: ln.Statement, array: str) -> list[Int]:
    found = [access.offset for value in values(statement) for access in accesses(value) if access.array == array]
    match statement:
        case ln.Store() if statement.array == array:
            found.append(statement.offset)
        case ln.Sort() | ln.Keep() if statement.array == array:
            found.append(statement.offset + sym.axis("e2", statement.extent))  # any of those that are put in order
        case ln.Contract():
            row, column = sym.axis("e0", statement.rows), sym.axis("e1", statement.columns)
            if statement.a == array:
                found.append(statement.a_offset + statement.a_row * row)
            if statement.b == array and statement.prologue is None:
                b = statement.b_offset + statement.b_column * column
                if statement.unit is not None:
                    k, group = sym.expr(statement.loops[-1].axis), statement.unit.group
                    b = statement.b_offset + sym.floordiv(k, group) * (statement.columns * group) + column * group
                    b = b + sym.mod(k, group)
                found.append(b)
    return found


def _spelled(offset: Int, named: dict[Var, Int]) -> Int:
    """``offset`` with the names of index expressions replaced by what they stand for."""
    while sym.variables(offset) & named.keys():
        offset = sym.substitute(offset, named)
    return offset
