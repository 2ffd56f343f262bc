"""What instructions of float32 do, by numpy, and those that convert between floats and integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from luminal.machine_code.integers import COMPARED, joined
from luminal.machine_code.operands import (
    M32,
    Lanes,
    Mask,
    Step,
    UnknownInstruction,
    into,
    into_pair,
    into_predicate,
    into_real,
    is_predicate,
    pair,
    predicate,
    real,
    signed,
    word,
)
from luminal.machine_code.sass import Instruction


def to_float(i: Instruction) -> Step:
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


def rounded(i: Instruction) -> Step:
    x, write, how = real(i.operands[1]), into_real(i.operands[0]), _rounding(i)
    return lambda s, mask: write(s, mask, how(x(s)))


def to_integer(i: Instruction) -> Step:
    x, how = real(i.operands[1]), _rounding(i)
    if "U64" in i.modifiers:
        write_pair = into_pair(i.operands[0])
        return lambda s, mask: write_pair(s, mask, np.maximum(how(x(s).astype(np.float64)), 0).astype(np.uint64))
    write = into(i.operands[0])
    least, most = (0, M32) if "U32" in i.modifiers else (-(1 << 31), (1 << 31) - 1)
    return lambda s, mask: write(
        s, mask, np.clip(np.nan_to_num(how(x(s).astype(np.float64))), least, most).astype(np.int64)
    )


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "RCP": lambda x: 1 / x, "RSQ": lambda x: 1 / np.sqrt(x), "SQRT": np.sqrt, "EX2": np.exp2, "LG2": np.log2,
    "SIN": np.sin, "COS": np.cos, "TANH": np.tanh,
}  # fmt: skip


def real_function(i: Instruction) -> Step:
    if i.modifiers[0] not in FUNCTIONS:
        raise UnknownInstruction(str(i))
    x, write, of = real(i.operands[1]), into_real(i.operands[0]), FUNCTIONS[i.modifiers[0]]
    return lambda s, mask: write(s, mask, of(x(s)))


def real_arithmetic(i: Instruction) -> Step:
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


def real_compare(i: Instruction) -> Step:
    first, second, a, b, other = i.operands
    x, y, c, how, join = real(a), real(b), predicate(other), i.modifiers[0], joined(i.modifiers)
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


def pack(i: Instruction) -> Step:
    """Two float32 as halves of a word, cut; the first is the upper one."""
    to, *operands = i.operands
    write = into(to)
    readers = [word(o) for o in operands if not is_predicate(o)]

    def step(s: Lanes, mask: Mask) -> None:
        values = [np.asarray(f(s) & M32) for f in readers[:2]]
        upper, lower = values if len(values) == 2 else (np.asarray(0), values[0])
        write(s, mask, (upper >> 16 << 16 | lower >> 16) + np.zeros(s.threads, np.int64))

    return step
