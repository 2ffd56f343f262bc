"""What instructions of integers and predicates do, exactly: sums with carries, shifts, comparisons, moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from luminal.machine_code.operands import (
    M32,
    TRUE,
    Lanes,
    Mask,
    Reader,
    Step,
    UnknownInstruction,
    into,
    into_pair,
    into_predicate,
    is_predicate,
    pair,
    predicate,
    signed,
    word,
)
from luminal.machine_code.sass import Instruction


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


def multiply_add(i: Instruction) -> Step:
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


def dot(i: Instruction) -> Step:
    """The products of four bytes each, signed or not, and a sum."""
    to, a, b, c = i.operands
    if i.modifiers[:1] != ("4A",) or len(i.modifiers) != 3:
        raise UnknownInstruction(str(i))
    x, y, z, write = word(a), word(b), word(c), into(to)
    of_x, of_y = (128 if kind == "S8" else 0 for kind in i.modifiers[1:])

    def step(s: Lanes, mask: Mask) -> None:
        p, q = x(s), y(s)
        parts = [((p >> n & 255 ^ of_x) - of_x) * ((q >> n & 255 ^ of_y) - of_y) for n in (0, 8, 16, 24)]
        write(s, mask, sum(parts) + z(s))

    return step


def add(i: Instruction) -> Step:
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


def lea(i: Instruction) -> Step:
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


def logic(i: Instruction) -> Step:
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


def predicate_logic(i: Instruction) -> Step:
    first, second, a, b, c, table, other = i.operands[:7]
    x, y, z = predicate(a), predicate(b), predicate(c)
    writers = [(into_predicate(first), int(table, 16)), (into_predicate(second), int(other, 16))]

    def step(s: Lanes, mask: Mask) -> None:
        place = 4 * x(s).astype(int) + 2 * y(s) + z(s)
        values = [(write, bits >> place & 1) for write, bits in writers]
        for write, value in values:
            write(s, mask, value.astype(bool))

    return step


def shift(i: Instruction) -> Step:
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


def extend(i: Instruction) -> Step:
    to, a, bits = i.operands[:3]
    x, write, width = word(a), into(to), int(bits, 16)
    half = 0 if "U32" in i.modifiers else 1 << width - 1
    return lambda s, mask: write(s, mask, (x(s) & (1 << width) - 1 ^ half) - half)


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip


def joined(modifiers: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    """How a comparison and another predicate become one."""
    return np.logical_or if "OR" in modifiers else np.logical_xor if "XOR" in modifiers else np.logical_and


def compare(i: Instruction) -> Step:
    first, second, a, b, other, *lower = i.operands
    x, y, c, how = word(a), word(b), predicate(other), i.modifiers[0]
    below = predicate(lower[0]) if "EX" in i.modifiers else None
    unsigned, join = "U32" in i.modifiers, joined(i.modifiers)
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


def select(i: Instruction) -> Step:
    to, a, b, which = i.operands
    x, y, p, write = word(a), word(b), predicate(which), into(to)
    return lambda s, mask: write(s, mask, np.where(p(s), x(s), y(s)))


def least(i: Instruction) -> Step:
    to, _, (a, b), (least,) = _split(i)
    x, y, p, write = word(a), word(b), predicate(least), into(to)
    as_is: Callable[[Any], Any] = (lambda v: v & M32) if "U32" in i.modifiers else signed

    def step(s: Lanes, mask: Mask) -> None:
        u, v = as_is(x(s)), as_is(y(s))
        write(s, mask, np.where(p(s), np.minimum(u, v), np.maximum(u, v)))

    return step


def least_of_sum(i: Instruction) -> Step:
    to, a, b, c, least = i.operands
    x, y, z, p, write = word(a), word(b), word(c), predicate(least), into(to)
    as_is: Callable[[Any], Any] = (lambda v: v & M32) if "U32" in i.modifiers else signed

    def step(s: Lanes, mask: Mask) -> None:
        u, v = as_is(x(s) + y(s)), as_is(z(s))
        write(s, mask, np.where(p(s), np.minimum(u, v), np.maximum(u, v)))

    return step


def permute(i: Instruction) -> Step:
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


def move(i: Instruction) -> Step:
    x, write = word(i.operands[1]), into(i.operands[0])
    return lambda s, mask: write(s, mask, x(s))


def constant(i: Instruction) -> Step:
    if "64" in i.modifiers:
        z, write_pair = pair(i.operands[1]), into_pair(i.operands[0])
        return lambda s, mask: write_pair(s, mask, z(s))
    if not i.operands[1].startswith("c[0x0][0x"):
        raise UnknownInstruction(str(i))
    return move(i)


def absolute(i: Instruction) -> Step:
    x, write = word(i.operands[1]), into(i.operands[0])
    return lambda s, mask: write(s, mask, np.abs(signed(x(s))))


def count(i: Instruction) -> Step:
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


def _byte(text: str) -> tuple[str, int]:
    """A register, and the lowest bit of the byte of it that is meant."""
    name, _, which = text.partition(".")
    return name, 8 * int(which.removeprefix("B")) if which else 0


def from_predicates(i: Instruction) -> Step:
    """Predicates become bits of a byte, those that the mask at the end names; the others are an operand's."""
    to, _, other, mask_of = i.operands
    which = next((8 * int(m[1]) for m in i.modifiers if m in ("B0", "B1", "B2", "B3")), 0)
    y, bits, write = word(other), word(mask_of), into(to)

    def step(s: Lanes, mask: Mask) -> None:
        taken = (bits(s) & 0x7F) << which
        found = sum(s.p[number].astype(np.int64) << number for number in range(TRUE)) << which
        write(s, mask, (found & taken) | (y(s) & M32 & ~taken))

    return step


def to_predicates(i: Instruction) -> Step:
    """Bits of a byte become those predicates that the mask at the end names."""
    _, source, mask_of = i.operands
    name, low = _byte(source)
    x, bits = word(name), int(mask_of, 16)
    writers = [(number, into_predicate(f"P{number}")) for number in range(TRUE) if bits >> number & 1]

    def step(s: Lanes, mask: Mask) -> None:
        value = np.broadcast_to(np.asarray(x(s)), (s.threads,))
        for number, write in writers:
            write(s, mask, (value >> low + number & 1).astype(bool))

    return step
