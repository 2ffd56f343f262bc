"""The functions of the host: what a ``Host`` node may call, each with its types and its meaning.

A library runs them between its kernels, on the thread that called it (``luminal/texts.hpp`` has them in C++). Operands
lie in memory, row-major.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.core import texts
from luminal.core.errors import DTypeError, InputError
from luminal.core.numerics import convert
from luminal.core.types import DType, bool_, f32, f64, i32, i64, text, u64

Array = np.ndarray[Any, Any]

_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)

MOST_PARTS = 1024  # most parts of one text that is split: a run reserves memory for these


@dataclass(frozen=True)
class Function:
    """One function: the types of its operands and of its result, and its meaning on arrays and the result's shape.

    ``total`` says what it computes, and what it refuses.
    """

    operands: tuple[DType, ...]
    result: DType
    meaning: Callable[..., Array]
    total: str

    def check(self, name: str, operands: Sequence[DType]) -> None:
        """Raises DTypeError where the operands do not fit."""
        if tuple(operands) != self.operands:
            expected, found = (", ".join(map(str, types)) for types in (self.operands, operands))
            raise DTypeError(f"{name}: expected operands of {expected}, found {found}")


def call(name: str, operands: Sequence[Array], shape: Sequence[int]) -> Array:
    """The result of a function on arrays. Raises InputError for what it refuses."""
    return FUNCTIONS[name].meaning(*operands, shape=tuple(shape))


def _concatenated(a: Array, b: Array, shape: tuple[int, ...]) -> Array:
    pairs = zip(texts.strings(a), texts.strings(b), strict=True)
    return texts.of((x + y for x, y in pairs), shape)


def _parts(x: str, delimiter: str, most: int) -> list[str]:
    """The parts of ``x`` between delimiters, split ``most`` times at the most; an empty delimiter is any white space,
    and none of it is in the parts."""
    parts = x.split(delimiter, most) if delimiter else x.split(None, most)
    if len(parts) > MOST_PARTS:
        raise InputError(f"a text of {len(parts)} parts is split; expected {MOST_PARTS} at the most")
    return parts


def _counted(x: Array, delimiter: Array, most: Array, shape: tuple[int, ...]) -> Array:
    (by,) = texts.strings(delimiter)
    counts = [len(_parts(each, by, int(most))) for each in texts.strings(x)]
    return np.array(counts, np.int64).reshape(shape)


def _split(x: Array, delimiter: Array, most: Array, shape: tuple[int, ...]) -> Array:
    (by,) = texts.strings(delimiter)
    rows = [_parts(each, by, int(most)) for each in texts.strings(x)]
    return texts.of((part for row in rows for part in (*row, *[""] * (shape[-1] - len(row)))), shape)


def _mapped(x: Array, table: Array, shape: tuple[int, ...]) -> Array:
    table = table.reshape(-1, 6)
    return texts.of(("".join(_image(ord(c), table) for c in each) for each in texts.strings(x)), shape)


def _image(character: int, table: Array) -> str:
    """The image of a character. Its row of ``table`` is ``first, last, step, ..``; after the step comes the offset to
    its image, or if the step is 0, the image itself, up to three characters."""
    row = int(np.searchsorted(table[:, 1], character))
    first, last, step, *image = map(int, table[row]) if row < len(table) else (1, 0, 1, 0)
    if not first <= character <= last:
        return chr(character)
    if step == 0:
        return "".join(chr(c) for c in image if c)
    return chr(character + image[0] if (character - first) % step == 0 else character)


def _matched(x: Array, classes: Array, states: Array, shape: tuple[int, ...]) -> Array:
    """``classes`` are those of the 256 bytes; a row of ``states`` is whether the state accepts, and what follows it, by
    class."""
    states = states.reshape(-1, int(classes.max()) + 2)
    found = [_accepts(classes, states, each.encode()) for each in texts.strings(x)]
    return np.array(found, bool).reshape(shape)


def _accepts(classes: Array, states: Array, content: bytes) -> bool:
    state = 0
    for byte in content:
        state = int(states[state, 1 + classes[byte]])
    return bool(states[state, 0])


def _longest(content: bytes, at: int, classes: Array, states: Array, start: int) -> int:
    """How many bytes, from ``at`` on, the automaton accepts at the most; 0 where it accepts none."""
    state, best = start, 0
    for count, byte in enumerate(content[at:], 1):
        state = int(states[state, 1 + classes[byte]])
        if state < 0:
            break
        if states[state, 0]:
            best = count
    return best


def _tokens(content: bytes, tables: tuple[Array, Array, Array], separating: bool, least: int) -> list[bytes]:
    """The parts of a text: what the automaton accepts, from the left and as much as it can each time; or what lies
    between such, for each of the automata after the other if they are ``separating``. Those of fewer characters than
    ``least`` are left out."""
    classes, states, starts = tables
    parts = [content]
    for by, start in zip(classes, starts, strict=True):
        found: list[bytes] = []
        for part in parts:
            at = begin = 0
            while at < len(part):
                size = _longest(part, at, by, states, int(start))
                if size and separating:
                    found.append(part[begin:at])
                    begin = at + size
                elif size:
                    found.append(part[at : at + size])
                at += size or 1
            if separating:
                found.append(part[begin:])
        parts = found
    kept = [part for part in parts if len(part.decode()) >= max(least, 1)]
    if len(kept) > MOST_PARTS:
        raise InputError(f"a text of {len(kept)} tokens; expected {MOST_PARTS} at the most")
    return kept


def _rows_of_tokens(x: Array, classes: Array, states: Array, starts: Array, rule: Array) -> list[list[str]]:
    """``rule`` is whether automata separate, the least characters of a token, and whether ends are marked."""
    tables = classes.reshape(-1, 256), states.reshape(-1, int(classes.max()) + 2), starts.reshape(-1)
    separating, least, _ = map(int, rule)
    rows = [_tokens(each.encode(), tables, bool(separating), least) for each in texts.strings(x)]
    return [[part.decode() for part in row] for row in rows]


def _count_tokens(x: Array, classes: Array, states: Array, starts: Array, rule: Array, shape: tuple[int, ...]) -> Array:
    rows = _rows_of_tokens(x, classes, states, starts, rule)
    return np.array([len(row) for row in rows], np.int64).reshape(shape)


def _tokenised(
    x: Array, classes: Array, states: Array, starts: Array, rule: Array, fill: Array, shape: tuple[int, ...]
) -> Array:
    (behind,) = texts.strings(fill)
    found: list[str] = []
    for row in _rows_of_tokens(x, classes, states, starts, rule) if shape[-1] else []:
        marked = ["\x02", *row, "\x03"] if rule[2] else row
        found += [*marked, *[behind] * (shape[-1] - len(marked))]
    return texts.of(found, shape)


def _parsing(dtype: DType) -> Function:
    def meaning(x: Array, shape: tuple[int, ...]) -> Array:
        return np.array([_number(each, dtype) for each in texts.strings(x)], dtype.numpy).reshape(shape)

    said = "nearest" if dtype.is_float else "exactly where it is whole, else truncated; saturated"
    return Function((text,), dtype, meaning, f"the number that each text says, {said}; refuses what says none")


def _number(x: str, dtype: DType) -> Any:
    if not _NUMBER.fullmatch(x):
        raise InputError(f"{x!r} is no number")
    if dtype.is_float:
        return float(x)
    if _WHOLE.fullmatch(x):
        return min(max(int(x), dtype.min), dtype.max)
    return convert(np.array(float(x)), dtype)


def _formatted(x: Array, shape: tuple[int, ...]) -> Array:
    return texts.of((_shortest(each) for each in x.reshape(-1)), shape)


def _shortest(x: Any) -> str:
    """The shortest text that reads back as ``x``: plain, or scientific where that is shorter."""
    if x.dtype.kind in "iu" or not np.isfinite(x):
        return str(x).replace("nan", "NaN").replace("inf", "INF")
    scientific = np.format_float_scientific(x, trim="-", exp_digits=2)
    plain = np.format_float_positional(x, trim="-")
    return plain if len(plain) <= len(scientific) else scientific


def _formatting(dtype: DType) -> Function:
    total = "the shortest text that reads back as the number; NaN, INF and -INF"
    return Function((dtype,), text, _formatted, total)


FUNCTIONS: dict[str, Function] = {
    "concatenate": Function((text, text), text, _concatenated, "the first text and behind it the second"),
    "count_parts": Function((text, text, i64), i64, _counted,
                            "how many parts each text has between delimiters, split so often at the most (-1: any); "
                            f"refuses more than {MOST_PARTS}"),
    "split": Function((text, text, i64), text, _split, "the parts, along a new last axis, and empty texts behind them"),
    "map_characters": Function((text, i32), text, _mapped, "each character as the table maps it"),
    "match": Function((text, i32, i32), bool_, _matched, "whether the automaton accepts the bytes of each text"),
    "count_tokens": Function((text, i32, i32, i64, i64), i64, _count_tokens,
                             f"how many tokens each text has, unmarked; refuses more than {MOST_PARTS}"),
    "tokens": Function((text, i32, i32, i64, i64, text), text, _tokenised,
                       "the tokens, along a new last axis, and the last operand behind them"),
    "parse_float64": _parsing(f64),
    "parse_int64": _parsing(i64),
    "parse_uint64": _parsing(u64),
    "format_float32": _formatting(f32),
    "format_float64": _formatting(f64),
    "format_int64": _formatting(i64),
    "format_uint64": _formatting(u64),
}  # fmt: skip
