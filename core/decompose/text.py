"""Operators on texts. What depends on the letters of a text is a function of the host; all else is as for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from luminal.core import ir, movement, texts
from luminal.core import symbolic as sym
from luminal.core.decompose import selection
from luminal.core.decompose.automaton import automaton, together
from luminal.core.decompose.compare import logical_not, maximum
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.reduction import max_, sum_
from luminal.core.errors import UnsupportedError
from luminal.core.host import MOST_PARTS
from luminal.core.ir import Node, bitcast, broadcast, cast, constant, dim, expand, scatter, select
from luminal.core.movement import reshape, slice_
from luminal.core.types import DType, f32, f64, i64, u64

Array = np.ndarray[Any, Any]


def constants(values: Sequence[str]) -> Node:
    """A vector of texts."""
    return constant(texts.of(values, (len(values),)))


def literal(value: str) -> Node:
    """One text, a scalar."""
    return constant(texts.of([value], ()))


def numbers(x: Node) -> Node:
    """The numbers of texts, int64: equal where the texts are. Their order says nothing."""
    return bitcast(x, i64)


def numbers_of(values: Sequence[str]) -> Array:
    """The same of known texts."""
    return texts.of(values, (len(values),)).view(np.int64)


def concatenate(a: Node, b: Node) -> Node:
    """Each text of ``a`` and behind it that of ``b``; broadcast."""
    a, b = broadcast(a, b)
    return ir.host("concatenate", [a, b], a.shape)


def split(x: Node, delimiter: str, most: int | None = None, name: str = "parts") -> tuple[Node, Node]:
    """The parts of each text between delimiters, along a new last axis with empty texts behind them, and how many
    there are (int64). An empty ``delimiter`` is any white space, of which parts hold none. After ``most`` delimiters,
    the rest is one part.

    The new axis is as long as the run finds, up to ``MOST_PARTS``; its size is called ``name``.
    """
    by, times = literal(delimiter), constant(-1 if most is None else most, i64)
    counts = ir.host("count_parts", [x, by, times], x.shape)
    longest = max_(movement.concatenate([reshape(counts, (x.size,)), constant(np.zeros(1, np.int64))], 0))
    size = selection.measured(longest, MOST_PARTS if most is None else min(most + 1, MOST_PARTS), name)
    return ir.host("split", [x, by, times], (*x.shape, size)), counts


def tokens(
    x: Node, patterns: Sequence[str], *, separating: bool, least: int = 1, marked: bool = False, fill: str = "",
    name: str = "tokens",
) -> Node:  # fmt: skip
    """The parts of each text along a new last axis: those that the one pattern matches, from the left and as long as
    they can be; or if ``separating``, what is left where all that the first pattern matches is taken out of a text, the
    second's out of its parts, and so on. Tokens of fewer characters than ``least`` are left out. If ``marked``,
    ``\\x02`` comes before and ``\\x03`` behind them.

    The new axis, which is called ``name``, is as long as the run finds, and empty where no text has tokens; behind
    shorter rows is ``fill``. Raises as ``matches`` does, and UnsupportedError for a pattern that depends on what is
    around it, or separates at nothing.
    """
    automata = [automaton(pattern, inside=True) for pattern in patterns]
    for pattern, (_, states) in zip(patterns, automata, strict=True):
        if separating and states[0, 0]:
            raise UnsupportedError(f"the pattern {pattern!r} separates at nothing: expected one that takes a character")
    tables = [constant(table) for table in together(automata)]
    rule = constant(np.array([separating, least, marked], np.int64))
    counts = ir.host("count_tokens", [x, *tables, rule], x.shape)
    longest = max_(movement.concatenate([reshape(counts, (x.size,)), constant(np.zeros(1, np.int64))], 0))
    ends = 2 if marked else 0
    longest = longest + cast(longest > 0, i64) * ends
    size = selection.measured(longest, MOST_PARTS + ends, name)
    return ir.host("tokens", [x, *tables, rule, literal(fill)], (*x.shape, size))


def lower(x: Node) -> Node:
    """Each character in lower case, as Unicode maps it by itself."""
    return ir.host("map_characters", [x, constant(_cases("lower"))], x.shape)


def upper(x: Node) -> Node:
    """Each character in upper case, as Unicode maps it by itself: up to three characters."""
    return ir.host("map_characters", [x, constant(_cases("upper"))], x.shape)


def matches(x: Node, pattern: str) -> Node:
    """Whether a regular expression, in RE2's syntax, matches the whole of each text; in linear time.

    Raises ModelError and UnsupportedError as ``automaton`` does.
    """
    classes, states = automaton(pattern)
    return ir.host("match", [x, constant(classes), constant(states)], x.shape)


def parsed(x: Node, dtype: DType) -> Node:
    """The number that each text says, in decimal, plain or scientific, INF or NaN: as int64 and uint64 exactly, else
    the nearest float64, converted."""
    through = dtype if dtype in (i64, u64) else f64
    return cast(ir.host(f"parse_{through}", [x], x.shape), dtype)


def formatted(x: Node) -> Node:
    """The shortest text from which each number can be read back, floats of 16 bits and fewer as float32. Bools are the
    numbers 1 and 0, as onnxruntime has them."""
    if x.dtype.is_float:
        dtype = f64 if x.dtype == f64 else f32
    else:
        dtype = u64 if x.dtype == u64 else i64
    return ir.host(f"format_{dtype}", [cast(x, dtype)], x.shape)


def converted(x: Node, to: DType) -> Node:
    """Texts as numbers or numbers as texts (``parsed``, ``formatted``)."""
    if x.dtype == to:
        return x
    return parsed(x, to) if x.dtype.is_text else formatted(x)


def without(x: Node, drop: Node, name: str = "kept") -> Node:
    """Those of a vector of texts at which ``drop`` does not hold; one empty text where that is none.

    Raises ShapeError where ``x`` has no known largest size. The size of the result is called ``name``.
    """
    (size,) = x.shape
    stays = cast(logical_not(drop), i64)
    slot = select(drop, dim(size), cumsum(stays, 0, exclusive=True))  # one more, which is then left out
    kept = scatter(expand(literal(""), (size + 1,)), slot, x, 0)
    count = maximum(sum_(stays), constant(1, i64))
    return slice_(kept, 0, 0, selection.measured(count, sym.maximum(size, 1), name))


@cache
def _cases(method: str) -> Array:
    """The table of ``map_characters`` that one of Python's methods gives."""
    rows: list[list[int]] = []
    for code in range(0x110000):
        image = getattr(chr(code), method)()
        if image == chr(code):
            continue
        if len(image) > 1:
            rows.append([code, code, 0, *map(ord, image), *[0] * (3 - len(image))])
            continue
        by = ord(image) - code
        if rows and rows[-1][2] and rows[-1][3] == by and code - rows[-1][1] in (1, 2):
            first, last, step, *_ = rows[-1]
            if first == last or step == code - last:
                rows[-1][1:3] = code, code - last
                continue
        rows.append([code, code, 1, by, 0, 0])
    return np.array(rows, np.int32)
