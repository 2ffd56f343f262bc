"""What instructions do, as far as addresses and branches depend on it: integers and predicates exactly, float32 by
numpy. Products of matrices give ones.

What NVIDIA does not document is from the use that its compilers make of it, and is tested by whole kernels: that each
element of a result is written once, and where each is read (``tests/test_benchmarks_static.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from benchmarks.gpu.static.operands import (
    M32,
    WARP,
    ZERO,
    Array,
    Lanes,
    Mask,
    Reader,
    Writer,
    into,
    into_pair,
    into_predicate,
    into_real,
    is_predicate,
    pair,
    predicate,
    real,
    register,
    signed,
    word,
)
from benchmarks.gpu.static.sass import Instruction

Step: TypeAlias = Callable[[Lanes, Mask], None]

# Two ones in bfloat16; in float32 nearly one: what lies in memory that nobody filled, and what matrices give.
ONES = 0x3F803F80


class UnknownInstruction(ValueError):
    """An instruction whose effect is not described here."""


def _split(instruction: Instruction) -> tuple[str, list[str], list[str], list[str]]:
    """Destination, predicates written beside it, operands, and predicates read at the end."""
    first, *rest = instruction.operands
    written: list[str] = []
    while rest and is_predicate(rest[0]) and not rest[0].startswith("!") and "SEL" not in instruction.name:
        written.append(rest.pop(0))
    read: list[str] = []
    while rest and is_predicate(rest[-1]):
        read.insert(0, rest.pop())
    return first, written, rest, read


def _carry(s: Lanes, read: list[Reader]) -> Any:
    return sum(p(s).astype(np.int64) for p in read) if read else 0


def _multiply_add(i: Instruction) -> Step:
    to, written, (a, b, c), read = _split(i)
    extended = [predicate(p) for p in read] if "X" in i.modifiers else []
    sign = "U32" not in i.modifiers and "MOV" not in i.modifiers
    x, y = word(a), word(b)
    if "WIDE" in i.modifiers or "HI" in i.modifiers:
        z, high = pair(c), "HI" in i.modifiers
        write, carried = (into if high else into_pair)(to), [into_predicate(p) for p in written]

        def wide(s: Lanes, mask: Mask) -> None:
            p, q = x(s), y(s)
            if sign:
                product = np.asarray(signed(p) * signed(q)).astype(np.uint64)
            else:
                product = np.asarray(p & M32).astype(np.uint64) * np.asarray(q & M32).astype(np.uint64)
            added = product + z(s)
            total = added + np.asarray(_carry(s, extended)).astype(np.uint64)
            for place in carried:
                place(s, mask, (added < product) | (total < added))
            write(s, mask, (total >> np.uint64(32)).astype(np.int64) if high else total)

        return wide
    z, write = word(c), into(to)
    return lambda s, mask: write(s, mask, x(s) * y(s) + z(s) + _carry(s, extended))


def _add(i: Instruction) -> Step:
    to, written, operands, read = _split(i)
    readers, write = [word(o) for o in operands], into(to)
    carried = [into_predicate(p) for p in written]
    extended = [predicate(p) for p in read] if "X" in i.modifiers else []

    def step(s: Lanes, mask: Mask) -> None:
        total = sum(f(s) for f in readers) + _carry(s, extended)
        write(s, mask, total)
        for number, place in enumerate(carried, 1):
            place(s, mask, np.broadcast_to(np.asarray(total >> 32 >= number), (s.threads,)))

    return step


def _lea(i: Instruction) -> Step:
    to, written, operands, read = _split(i)
    high, write = "HI" in i.modifiers, into(to)
    carried = [into_predicate(p) for p in written]
    extended = [predicate(p) for p in read] if "X" in i.modifiers else []
    shift = int(operands[-1], 16)
    a, b = word(operands[0]), word(operands[1])
    upper = word(operands[2]) if high and "SX32" not in i.modifiers else None

    def step(s: Lanes, mask: Mask) -> None:
        low = a(s) & M32
        if not high:
            scaled = low << shift & M32
        elif upper is None:
            scaled = signed(low) >> 32 - shift & M32
        else:
            scaled = (upper(s) << shift | low >> 32 - shift) & M32
        total = scaled + b(s) + _carry(s, extended)
        write(s, mask, total)
        for place in carried:
            place(s, mask, np.broadcast_to(np.asarray(total >> 32 >= 1), (s.threads,)))

    return step


def _looked_up(table: int, a: Any, b: Any, c: Any) -> Any:
    """Bit by bit, what a table of eight bits has for three: ``a`` is the highest digit of the place in it."""
    full, found = M32, 0
    for place in range(8):
        if table >> place & 1:
            found = found | (
                (a if place & 4 else a ^ full) & (b if place & 2 else b ^ full) & (c if place & 1 else c ^ full)
            )
    return found


def _logic(i: Instruction) -> Step:
    operands = list(i.operands)
    to_predicate = into_predicate(operands.pop(0)) if is_predicate(operands[0]) else None
    to, a, b, c, table = operands[:5]
    x, y, z, bits, write = word(a), word(b), word(c), int(table, 16), into(to)

    def step(s: Lanes, mask: Mask) -> None:
        value = _looked_up(bits, x(s) & M32, y(s) & M32, z(s) & M32)
        write(s, mask, value)
        if to_predicate is not None:
            to_predicate(s, mask, np.broadcast_to(np.asarray(value) != 0, (s.threads,)))

    return step


def _predicate_logic(i: Instruction) -> Step:
    first, second, a, b, c, table, other = i.operands[:7]
    x, y, z = predicate(a), predicate(b), predicate(c)
    writers = [(into_predicate(first), int(table, 16)), (into_predicate(second), int(other, 16))]

    def step(s: Lanes, mask: Mask) -> None:
        place = 4 * x(s).astype(int) + 2 * y(s) + z(s)
        values = [(write, bits >> place & 1) for write, bits in writers]
        for write, value in values:
            write(s, mask, value.astype(bool))

    return step


def _shift(i: Instruction) -> Step:
    to, low, by, high = i.operands
    a, count, b, write = word(low), word(by), word(high), into(to)
    left, upper = "L" in i.modifiers, "HI" in i.modifiers
    sign = not left and {"S32", "S64"} & set(i.modifiers)
    most = 63 if {"U64", "S64"} & set(i.modifiers) else 32
    wrapped = "W" in i.modifiers

    def step(s: Lanes, mask: Mask) -> None:
        value = np.asarray(a(s) & M32).astype(np.uint64) | np.asarray(b(s) & M32).astype(np.uint64) << np.uint64(32)
        by = np.asarray(count(s) & M32).astype(np.uint64)
        by = by & np.uint64(31 if most == 32 else 63) if wrapped else np.minimum(by, np.uint64(most))
        if left:
            moved = value << by
        elif sign:
            moved = (value.astype(np.int64) >> by.astype(np.int64)).astype(np.uint64)
        else:
            moved = value >> by
        write(s, mask, (moved >> np.uint64(32) if upper else moved & np.uint64(M32)).astype(np.int64))

    return step


def _extend(i: Instruction) -> Step:
    to, a, bits = i.operands[:3]
    x, write, width = word(a), into(to), int(bits, 16)
    half = 0 if "U32" in i.modifiers else 1 << width - 1
    return lambda s, mask: write(s, mask, (x(s) & (1 << width) - 1 ^ half) - half)


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip


def _joined(modifiers: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    """How a comparison and another predicate become one."""
    return np.logical_or if "OR" in modifiers else np.logical_xor if "XOR" in modifiers else np.logical_and


def _compare(i: Instruction) -> Step:
    first, second, a, b, other, *lower = i.operands
    x, y, c, how = word(a), word(b), predicate(other), i.modifiers[0]
    below = predicate(lower[0]) if "EX" in i.modifiers else None
    unsigned, join = "U32" in i.modifiers, _joined(i.modifiers)
    writers = into_predicate(first), into_predicate(second)

    def step(s: Lanes, mask: Mask) -> None:
        p, q = x(s) & M32, y(s) & M32
        if not unsigned:
            p, q = signed(p), signed(q)
        if below is None:
            found = COMPARED[how](p, q)
        elif how in ("EQ", "NE"):
            found = (p == q) & below(s) if how == "EQ" else (p != q) | below(s)
        else:  # the upper halves of 64 bits, of which the lower were compared before
            found = (p < q if how[0] == "L" else p > q) | (p == q) & below(s)
        rest = c(s)
        writers[0](s, mask, join(found, rest))
        writers[1](s, mask, join(np.logical_not(found), rest))

    return step


def _select(i: Instruction) -> Step:
    to, a, b, which = i.operands
    x, y, p, write = word(a), word(b), predicate(which), into(to)
    return lambda s, mask: write(s, mask, np.where(p(s), x(s), y(s)))


def _least(i: Instruction) -> Step:
    to, _, (a, b), (least,) = _split(i)
    x, y, p, write = word(a), word(b), predicate(least), into(to)
    as_is: Callable[[Any], Any] = (lambda v: v & M32) if "U32" in i.modifiers else signed

    def step(s: Lanes, mask: Mask) -> None:
        u, v = as_is(x(s)), as_is(y(s))
        write(s, mask, np.where(p(s), np.minimum(u, v), np.maximum(u, v)))

    return step


def _least_of_sum(i: Instruction) -> Step:
    to, a, b, c, least = i.operands
    x, y, z, p, write = word(a), word(b), word(c), predicate(least), into(to)
    as_is: Callable[[Any], Any] = (lambda v: v & M32) if "U32" in i.modifiers else signed

    def step(s: Lanes, mask: Mask) -> None:
        u, v = as_is(x(s) + y(s)), as_is(z(s))
        write(s, mask, np.where(p(s), np.minimum(u, v), np.maximum(u, v)))

    return step


def _permute(i: Instruction) -> Step:
    to, a, selector, b = i.operands
    x, which, y, write = word(a), word(selector), word(b), into(to)

    def step(s: Lanes, mask: Mask) -> None:
        value = np.asarray(x(s) & M32).astype(np.uint64) | np.asarray(y(s) & M32).astype(np.uint64) << np.uint64(32)
        chosen: Any = which(s)
        found: Any = 0
        for place in range(4):
            nibble = chosen >> 4 * place & 15
            byte = (value >> np.asarray(8 * (nibble & 7)).astype(np.uint64)).astype(np.int64) & 255
            byte = np.where(nibble & 8, np.where(byte & 128, 255, 0), byte)
            found = found | byte << 8 * place
        write(s, mask, found)

    return step


def _move(i: Instruction) -> Step:
    x, write = word(i.operands[1]), into(i.operands[0])
    return lambda s, mask: write(s, mask, x(s))


def _constant(i: Instruction) -> Step:
    if "64" in i.modifiers:
        z, write_pair = pair(i.operands[1]), into_pair(i.operands[0])
        return lambda s, mask: write_pair(s, mask, z(s))
    if not i.operands[1].startswith("c[0x0][0x"):
        raise UnknownInstruction(str(i))
    return _move(i)


SPECIAL: dict[str, Callable[[Lanes], Any]] = {
    "SR_TID.X": lambda s: s.thread,
    "SR_CTAID.X": lambda s: s.block[0],
    "SR_CTAID.Y": lambda s: s.block[1],
    "SR_CTAID.Z": lambda s: s.block[2],
    "SR_LANEID": lambda s: s.thread % WARP,
    "SRZ": lambda s: 0,
}
_NOUGHT = ("SR_TID.Y", "SR_TID.Z", "SR_CgaCtaId", "SR_CgaSize", "SR_VIRTCFG", "SR_VIRTID", "SR_CLOCKLO")


def _special(i: Instruction) -> Step:
    name = i.operands[1]
    if name not in SPECIAL and name not in _NOUGHT:
        raise UnknownInstruction(str(i))
    value: Callable[[Lanes], Any] = SPECIAL.get(name, lambda s: 0)
    if i.name in ("CS2R", "CS2UR") and "32" not in i.modifiers:
        write_pair = into_pair(i.operands[0])
        return lambda s, mask: write_pair(s, mask, value(s))
    write = into(i.operands[0])
    return lambda s, mask: write(s, mask, value(s))


def _absolute(i: Instruction) -> Step:
    x, write = word(i.operands[1]), into(i.operands[0])
    return lambda s, mask: write(s, mask, np.abs(signed(x(s))))


def _to_float(i: Instruction) -> Step:
    write = into_real(i.operands[0])
    if {"U64", "S64"} & set(i.modifiers):
        z = pair(i.operands[1])
        kind = np.uint64 if "U64" in i.modifiers else np.int64
        return lambda s, mask: write(s, mask, np.asarray(z(s)).astype(kind).astype(np.float64))
    x, unsigned = word(i.operands[1]), "U32" in i.modifiers
    return lambda s, mask: write(s, mask, (x(s) & M32 if unsigned else signed(x(s))) * 1.0)


def _rounding(i: Instruction) -> Callable[[Any], Any]:
    ways = {"FLOOR": np.floor, "CEIL": np.ceil, "TRUNC": np.trunc}
    return next((ways[m] for m in i.modifiers if m in ways), np.rint)


def _round(i: Instruction) -> Step:
    x, write, how = real(i.operands[1]), into_real(i.operands[0]), _rounding(i)
    return lambda s, mask: write(s, mask, how(x(s)))


def _to_integer(i: Instruction) -> Step:
    x, how = real(i.operands[1]), _rounding(i)
    if "U64" in i.modifiers:
        write_pair = into_pair(i.operands[0])
        return lambda s, mask: write_pair(s, mask, np.maximum(how(x(s).astype(np.float64)), 0).astype(np.uint64))
    write = into(i.operands[0])
    least, most = (0, M32) if "U32" in i.modifiers else (-(1 << 31), (1 << 31) - 1)
    return lambda s, mask: write(
        s, mask, np.clip(np.nan_to_num(how(x(s).astype(np.float64))), least, most).astype(np.int64)
    )


def _count(i: Instruction) -> Step:
    x, write = word(i.operands[1]), into(i.operands[0])

    def ones(value: Any) -> Any:
        return sum(np.asarray(value) >> place & 1 for place in range(32))

    if i.name.endswith("POPC"):
        return lambda s, mask: write(s, mask, ones(x(s) & M32))

    def leading(s: Lanes, mask: Mask) -> None:
        value = np.asarray(x(s) & M32)
        highest = np.floor(np.log2(np.maximum(value, 1))).astype(np.int64)
        write(s, mask, np.where(value == 0, M32, 31 - highest if "SH" in i.modifiers else highest))

    return leading


# ---- floats ----------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "RCP": lambda x: 1 / x, "RSQ": lambda x: 1 / np.sqrt(x), "SQRT": np.sqrt, "EX2": np.exp2, "LG2": np.log2,
    "SIN": np.sin, "COS": np.cos, "TANH": np.tanh,
}  # fmt: skip


def _real_function(i: Instruction) -> Step:
    if i.modifiers[0] not in FUNCTIONS:
        raise UnknownInstruction(str(i))
    x, write, of = real(i.operands[1]), into_real(i.operands[0]), FUNCTIONS[i.modifiers[0]]
    return lambda s, mask: write(s, mask, of(x(s)))


def _real_arithmetic(i: Instruction) -> Step:
    to, *operands = i.operands
    readers, write = [real(o) for o in operands if not is_predicate(o)], into_real(to)
    of: Callable[..., Any]
    if i.name == "FMNMX":
        least = predicate(operands[-1])
        x, y = readers
        return lambda s, mask: write(s, mask, np.where(least(s), np.fmin(x(s), y(s)), np.fmax(x(s), y(s))))
    if i.name == "FFMA":
        of = lambda a, b, c: a.astype(np.float64) * b + c  # noqa: E731
    else:
        of = np.add if i.name == "FADD" else np.multiply
    return lambda s, mask: write(s, mask, of(*(f(s) for f in readers)))


def _real_compare(i: Instruction) -> Step:
    first, second, a, b, other = i.operands
    x, y, c, how, join = real(a), real(b), predicate(other), i.modifiers[0], _joined(i.modifiers)
    writers = into_predicate(first), into_predicate(second)

    def holds(p: Any, q: Any) -> Any:
        unordered = np.isnan(p) | np.isnan(q)
        if how in ("NAN", "NUM"):
            return unordered if how == "NAN" else ~unordered
        found = COMPARED[how.removesuffix("U")](p, q)
        return found | unordered if how.endswith("U") else found & ~unordered

    def step(s: Lanes, mask: Mask) -> None:
        found, rest = np.broadcast_to(holds(x(s), y(s)), (s.threads,)), c(s)
        writers[0](s, mask, join(found, rest))
        writers[1](s, mask, join(~found, rest))

    return step


def _pack(i: Instruction) -> Step:
    """Two float32 as halves of a word, cut; the first is the upper one."""
    to, *operands = i.operands
    write = into(to)
    readers = [word(o) for o in operands if not is_predicate(o)]

    def step(s: Lanes, mask: Mask) -> None:
        values = [np.asarray(f(s) & M32) for f in readers[:2]]
        upper, lower = values if len(values) == 2 else (np.asarray(0), values[0])
        write(s, mask, (upper >> 16 << 16 | lower >> 16) + np.zeros(s.threads, np.int64))

    return step


def _gives(writers: Sequence[Writer], value: Any) -> Step:
    """Writes the same into every register."""

    def step(s: Lanes, mask: Mask) -> None:
        for write in writers:
            write(s, mask, value)

    return step


def _ones(i: Instruction) -> Step:
    """Values that no address depends on. Where a predicate asks for the slow path of a division, it is not taken."""
    to = i.operands[0]
    if is_predicate(to):
        return _gives([into_predicate(o) for o in i.operands[:2] if is_predicate(o)], i.name != "FCHK")
    of_warp, number = register(to)
    prefix = "UR" if of_warp else "R"
    count = 2 if i.name.startswith("D") else _results(i)
    return _gives([into(f"{prefix}{number + k}") for k in range(count if number != ZERO else 0)], ONES)


def _results(i: Instruction) -> int:
    """The registers of a thread that a product of matrices writes."""
    if "GMMA" in i.name:
        columns = next(int(m.split("x")[1]) for m in i.modifiers if "x" in m)
        return columns // 2 if "F32" in i.modifiers or i.name == "IGMMA" else columns // 4
    if i.name.endswith("MMA"):
        return 4 if i.modifiers[0].startswith("168") and "F16" not in i.modifiers[1:2] else 2
    return 1


def _shuffle(i: Instruction) -> Step:
    valid, to, value, by, limits = i.operands
    x, b, c = word(value), word(by), word(limits)
    write, write_valid, how = into(to), into_predicate(valid), i.modifiers[0]

    def step(s: Lanes, mask: Mask) -> None:
        given = np.broadcast_to(np.asarray(x(s)), (s.threads,))
        lane, by, limit = s.thread % WARP, b(s) & 31, c(s)
        segment = limit >> 8 & 31
        least, most = lane & segment, (lane & segment) | (limit & 31 & ~segment)
        source = {"BFLY": lane ^ by, "DOWN": lane + by, "UP": lane - by, "IDX": least | by & ~segment}[how]
        inside = source >= most if how == "UP" else source <= most
        source = np.where(inside, source, lane)
        write_valid(s, mask, inside)
        write(s, mask, given[s.thread - lane + source])

    return step


def _vote(i: Instruction) -> Step:
    """What of a warp's threads have a predicate set."""
    operands = list(i.operands)
    p = predicate(operands.pop())
    how = i.modifiers[0] if i.modifiers else "ALL"
    to = [into(o) for o in operands if not is_predicate(o)]
    to_predicate = [into_predicate(o) for o in operands if is_predicate(o)]

    def step(s: Lanes, mask: Mask) -> None:
        active = np.ones(s.threads, bool) if mask is None else mask
        given = np.broadcast_to(p(s), (s.threads,)).reshape(-1, WARP)
        active = active.reshape(-1, WARP)
        ballot = ((given & active) * (1 << np.arange(WARP, dtype=np.int64))).sum(1)
        whole = {"ANY": (given & active).any(1), "ALL": (given | ~active).all(1)}
        whole["EQ"] = whole["ALL"] | ~whole["ANY"]
        for write in to:
            write(s, mask, ballot.repeat(WARP))
        for write in to_predicate:
            write(s, mask, whole[how].repeat(WARP))

    return step


def _elect(i: Instruction) -> Step:
    """One thread of each warp."""
    writers = [into_predicate(o) for o in i.operands[:1] if is_predicate(o)]

    def step(s: Lanes, mask: Mask) -> None:
        for write in writers:
            write(s, mask, s.thread % WARP == 0)

    return step


def _none(i: Instruction) -> Step:
    return lambda s, mask: None


_STEPS: dict[str, Callable[[Instruction], Step]] = {
    **dict.fromkeys(("IMAD", "UIMAD"), _multiply_add),
    **dict.fromkeys(("IADD3", "UIADD3", "VIADD", "UVIADD", "IADD"), _add),
    **dict.fromkeys(("LEA", "ULEA"), _lea),
    **dict.fromkeys(("LOP3", "ULOP3"), _logic),
    **dict.fromkeys(("PLOP3", "UPLOP3"), _predicate_logic),
    **dict.fromkeys(("SHF", "USHF"), _shift),
    **dict.fromkeys(("SGXT", "USGXT"), _extend),
    **dict.fromkeys(("ISETP", "UISETP"), _compare),
    **dict.fromkeys(("SEL", "USEL", "FSEL"), _select),
    **dict.fromkeys(("IMNMX", "VIMNMX", "UVIMNMX"), _least),
    "VIADDMNMX": _least_of_sum,
    **dict.fromkeys(("PRMT", "UPRMT"), _permute),
    **dict.fromkeys(("MOV", "UMOV", "R2UR", "UR2R"), _move),
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), _constant),
    **dict.fromkeys(("S2R", "S2UR", "CS2R", "CS2UR"), _special),
    **dict.fromkeys(("IABS", "UIABS"), _absolute),
    **dict.fromkeys(("I2F", "I2FP"), _to_float),
    "F2I": _to_integer,
    "FRND": _round,
    **dict.fromkeys(("POPC", "UPOPC", "FLO", "UFLO"), _count),
    "MUFU": _real_function,
    **dict.fromkeys(("FADD", "FMUL", "FFMA", "FMNMX"), _real_arithmetic),
    "FSETP": _real_compare,
    "F2FP": _pack,
    **dict.fromkeys(
        ("HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA", "QGMMA", "HADD2", "HFMA2", "HMUL2", "HMNMX2", "HSETP2", "FCHK",
         "F2F", "MOVM", "DADD", "DMUL", "DFMA", "DSETP", "DMNMX"),
        _ones,
    ),
    "SHFL": _shuffle,
    **dict.fromkeys(("VOTE", "VOTEU"), _vote),
    "ELECT": _elect,
    **dict.fromkeys(
        ("NOP", "BREAK", "BSSY", "BSYNC", "DEPBAR", "LDGDEPBAR", "ERRBAR", "MEMBAR", "FENCE", "WARPSYNC", "WARPGROUP",
         "CCTL", "YIELD", "USETMAXREG", "ACQBULK", "PREEXIT", "UTMALDG", "UTMASTG", "UTMACMDFLUSH", "UTMACCTL",
         "UTMAPF", "UBLKCP", "ARRIVES", "CGAERRBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "WARPGROUPSET", "BPT", "NANOSLEEP"),
        _none,
    ),
    "SYNCS": lambda i: _ones(i) if is_predicate(i.operands[0]) else _none(i),
}  # fmt: skip


def step_of(instruction: Instruction) -> Step:
    """What an instruction does that neither branches nor reads or writes memory. Where that is not described, it raises
    UnknownInstruction when it is carried out."""
    make = _STEPS.get(instruction.name, _unknown)
    try:
        return make(instruction)
    except UnknownInstruction:
        return _unknown(instruction)


def _unknown(i: Instruction) -> Step:
    def step(s: Lanes, mask: Mask) -> None:
        raise UnknownInstruction(str(i))

    return step


def every(mask: Mask, threads: int) -> Array:
    """The threads in which an instruction takes effect."""
    return np.ones(threads, bool) if mask is None else mask
