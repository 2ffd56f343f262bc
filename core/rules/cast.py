"""Rules of Cast, Bitcast and Round."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from luminal.core import ir, ops
from luminal.core.ir import Node
from luminal.core.rules.pattern import BITS, BOOL, EXAMPLE_SHAPE, FLOATS, INTEGERS, NUMBERS, Rule
from luminal.core.types import DType

_ROUNDING_MODES = ("even", "floor", "ceil", "trunc")


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of ``narrow`` is a value of ``wide`` (NaN, infinities and signed zero included)."""
    if narrow.is_bool:
        return True
    if wide.is_bool or "c" in (wide.kind, narrow.kind):
        return False
    if wide.is_float and narrow.is_float:
        return wide in FLOATS and wide.bits >= 32 and wide.bits > narrow.bits
    if wide.is_float:
        return wide in FLOATS and max(-int(narrow.min), int(narrow.max)) <= 2 / wide.eps
    return wide.is_integer and narrow.is_integer and wide.min <= narrow.min and narrow.max <= wide.max


def _cast_of_cast(node: Node) -> Node | None:
    inner = node.inputs[0]
    if inner.op is not ops.CAST:
        return None
    x = inner.inputs[0]
    source, middle, to = x.dtype, inner.dtype, node.dtype
    wraps = source.is_integer and middle.is_integer and to.is_integer and middle.bits >= to.bits
    # From a float, an integer saturates; from an integer, it wraps.
    saturates = source.is_integer and middle.is_float and to.is_integer and not _holds(to, source)
    return ir.cast(x, to) if wraps or (_holds(middle, source) and not saturates) else None


def _casts() -> Iterator[Node]:
    for source, middle, to in product(NUMBERS + BOOL, repeat=3):
        if len({source, middle}) == 2 and middle != to:
            node = ir.cast(ir.cast(ir.input_("x", EXAMPLE_SHAPE, source), middle), to)
            if _cast_of_cast(node) is not None:
                yield node


def _bitcast_of_bitcast(node: Node) -> Node | None:
    inner = node.inputs[0]
    return ir.bitcast(inner.inputs[0], node.dtype) if inner.op is ops.BITCAST else None


def _bitcasts() -> Iterator[Node]:
    x = ir.input_("x", EXAMPLE_SHAPE, FLOATS[0])
    yield ir.bitcast(ir.bitcast(x, INTEGERS[0]), FLOATS[0])
    yield ir.bitcast(ir.bitcast(x, INTEGERS[0]), INTEGERS[-1])


def _round_of_whole(node: Node) -> Node | None:
    inner = node.inputs[0]
    whole = inner.op is ops.ROUND or (inner.op is ops.CAST and not inner.inputs[0].dtype.is_float)
    return inner if whole else None


def _rounds() -> Iterator[Node]:
    for dtype in FLOATS:
        for inner, outer in product(_ROUNDING_MODES, repeat=2):
            x = ir.unary(ops.ROUND, ir.input_("x", EXAMPLE_SHAPE, dtype), ops.Rounding(inner))
            yield ir.unary(ops.ROUND, x, ops.Rounding(outer))
        for source in BITS:
            yield ir.unary(ops.ROUND, ir.cast(ir.input_("x", EXAMPLE_SHAPE, source), dtype), ops.Rounding("floor"))


RULES = (
    Rule("Cast[c](Cast[b](x: a)) = Cast[c](x), b holding every a", (ops.CAST,), _cast_of_cast, _casts),
    Rule("Bitcast[c](Bitcast[b](x)) = Bitcast[c](x)", (ops.BITCAST,), _bitcast_of_bitcast, _bitcasts),
    Rule("Round(x) = x, x whole", (ops.ROUND,), _round_of_whole, _rounds),
)
