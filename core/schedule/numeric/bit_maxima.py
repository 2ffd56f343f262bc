"""Maxima of floats that are not negative, computed on their bits.

Without the sign bit, the bits of such floats are integers in the same order, and a NaN is above all others. The maximum
of two integers is one instruction; that of two floats takes several, because either may be NaN. And integers stay as
narrow as the stored floats, so a vector holds more of them. ``cost.traffic.reads_again`` says whether it pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.movement import pad
from luminal.core.rules.pattern import Real, Rule
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.cost.traffic import reads_again
from luminal.core.schedule.numeric import signs
from luminal.core.types import bf16, f16, f32, f64, u16, u32, u64

MOST_TAPS = 64  # taps along each axis of a window that are tested for being always inside: a limit of effort

_BITS = {f16: u16, bf16: u16, f32: u32, f64: u64}


def of_bits(whole: Contracted) -> Contracted:
    """The graph with ``RULE`` applied to maxima over windows that share elements."""

    def made(node: Node, operands: Sequence[Node]) -> Node:
        if node.op is ops.MAX_REDUCE and reads_again(node.inputs[0]) and _has_no_sign(node):
            return _largest_bits(operands[0], node.attr.axes)
        return traverse.rebuild(node, operands)

    return whole.remade(lambda roots, became: made)


def _has_no_sign(node: Node) -> bool:
    """Whether ``node`` is a maximum of floats, none negative, over windows of which none is padding alone."""
    if node.op is not ops.MAX_REDUCE or node.dtype not in _BITS:
        return False
    x, axes = node.inputs[0], node.attr.axes
    if not (all(sym.always(x.shape[k] - 1) for k in axes) and _never_wins(x) and _reaches_inside(x, axes)):
        return False  # the largest of nothing is -inf
    return _source(x) in signs.not_negative(traverse.topological([_source(x)]))


def _source(x: Node) -> Node:
    """The node that ``x`` views, or ``x`` itself."""
    return x.inputs[0] if x.op is ops.VIEW else x


def _never_wins(x: Node) -> bool:
    """Whether ``x`` has no padding, or padding of at most zero, so that a padding of zero gives the same maxima."""
    padded = x.op is ops.VIEW and x.attr.valid
    return not padded or bool(np.frombuffer(x.attr.fill, x.dtype.numpy).astype(np.float64)[0] <= 0)


def _reaches_inside(x: Node, axes: tuple[int, ...]) -> bool:
    """Whether some tap along ``axes`` is proven to be no padding in every window of ``x``."""
    over, masks = ir.axes(x.shape), set(x.attr.valid if x.op is ops.VIEW else ())
    for axis in map(sym.as_var, (over[k] for k in axes)):
        if axis is None:
            continue
        own = {mask for mask in masks if axis in sym.variables(mask)}
        taps = range(min(MOST_TAPS, sym.lower(axis.hi + 1) or 0))
        if not any(all(sym.always(sym.substitute(mask, {axis: tap})) for mask in own) for tap in taps):
            return False
        masks -= own
    return not masks


def _largest_bits(x: Node, axes: tuple[int, ...]) -> Node:
    """The maximum of ``x`` over ``axes``, computed on the bits of the floats that it views, before a widening cast."""
    whole = _source(x)
    narrow = whole.inputs[0] if whole.op is ops.CAST and _widens(whole) else whole
    bits = _BITS[narrow.dtype]
    if x is not whole:
        narrow = ir.view(narrow, x.shape, x.attr.index, x.attr.valid, bytes(bits.itemsize))
    magnitudes = ir.binary(ops.AND, ir.bitcast(narrow, bits), int(bits.max) // 2)
    return ir.cast(ir.bitcast(ir.reduce(ops.MAX_REDUCE, magnitudes, axes), narrow.dtype), x.dtype)


def _widens(cast: Node) -> bool:
    return cast.inputs[0].dtype in _BITS and cast.inputs[0].dtype.bits < cast.dtype.bits


def _examples() -> Iterator[Node]:
    x = ir.input_("x", (4, 9), f32)
    positive = ir.binary(ops.MAX, x, 0.0)
    yield ir.reduce(ops.MAX_REDUCE, positive, [1])
    yield ir.reduce(ops.MAX_REDUCE, pad(positive, [0, 1], [0, 0], -1), [0, 1])
    yield ir.reduce(ops.MAX_REDUCE, ir.cast(ir.cast(positive, bf16), f32), [0])


RULE = Rule(
    "MaxReduce(x) = float(MaxReduce(bits(x))), no x below zero",
    (ops.MAX_REDUCE,),
    lambda node: _largest_bits(node.inputs[0], node.attr.axes) if _has_no_sign(node) else None,
    _examples,
    Real("schedule.numeric.bit_maxima, where windows share elements; a result of -0 is 0, and which NaN it is is open"),
)
