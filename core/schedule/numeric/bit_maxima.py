"""Maxima of overlapping windows, taken of the bits of their floats where none is below zero.

The bits of such floats, but for the sign, are integers in the same order, and those of a NaN are above all others. The
larger of two integers is one instruction where that of two floats, of which either may be NaN, is several; and a vector
holds as many narrow ones as it has bytes for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Graph, Node, Origins
from luminal.core.ops import Kind
from luminal.core.schedule.numeric import signs
from luminal.core.types import bf16, f16, f32, f64, u16, u32, u64

MOST_TAPS = 64  # along each axis of a window, that are asked whether they are always inside

_BITS = {f16: u16, bf16: u16, f32: u32, f64: u64}


def of_bits(graph: Graph) -> Graph:
    """``graph`` with such maxima; those are 0 where they were -0, and a NaN may be another."""
    origins: Origins = dict(graph.origins)
    return graph.computing(_of_bits(graph.roots, origins), origins=origins)


def _of_bits(roots: Iterable[Node], origins: Origins) -> tuple[Node, ...]:
    roots = tuple(roots)
    order = ir.topological(roots)
    known = signs.not_negative(order)
    made: dict[Node, Node] = {}
    for node in order:
        operands = [made[x] for x in node.inputs]
        with ir.originating(origins, *origins.get(node, ())):
            if node.op.kind is Kind.STRUCTURED:
                bodies = (_of_bits(body, origins) for body in node.attr.bodies)
                made[node] = ir.structured(node.op, operands, node.attr.over(*bodies))
            elif _is_of_windows(node) and node.inputs[0].inputs[0] in known:
                made[node] = _largest_bits(operands[0], node.attr.axes)
            else:
                made[node] = ir.rebuild(node, operands)
    return tuple(made[root] for root in roots)


def _is_of_windows(node: Node) -> bool:
    """Whether ``node`` is the largest of windows that share elements, each with one at least that is no padding."""
    if node.op is not ops.MAX_REDUCE or node.dtype not in _BITS or node.inputs[0].op is not ops.VIEW:
        return False
    windows = node.inputs[0]
    shares = sym.always(windows.size - windows.inputs[0].size - 1)
    return shares and _never_wins(windows) and _reaches_inside(windows, node.attr.axes)


def _never_wins(windows: Node) -> bool:
    """Whether what ``windows`` have outside is no larger than zero, which takes its place, and no NaN."""
    view = windows.attr
    return not view.valid or bool(np.frombuffer(view.fill, windows.dtype.numpy).astype(np.float64)[0] <= 0)


def _reaches_inside(windows: Node, axes: tuple[int, ...]) -> bool:
    """Whether a tap is known that is no padding in any of the ``windows``, which lie along ``axes``."""
    over, masks = ir.axes(windows.shape), set(windows.attr.valid)
    for axis in map(sym.as_var, (over[k] for k in axes)):
        if axis is None:
            continue
        own = {mask for mask in masks if axis in sym.variables(mask)}
        taps = range(min(MOST_TAPS, sym.lower(axis.hi + 1) or 0))
        if not any(all(sym.always(sym.substitute(mask, {axis: tap})) for mask in own) for tap in taps):
            return False
        masks -= own
    return not masks


def _largest_bits(windows: Node, axes: tuple[int, ...]) -> Node:
    """The largest of ``windows`` over ``axes``, by their bits."""
    whole = windows.inputs[0]
    narrow = whole.inputs[0] if whole.op is ops.CAST and _widens(whole) else whole
    bits = _BITS[narrow.dtype]
    taps = ir.view(narrow, windows.shape, windows.attr.index, windows.attr.valid, bytes(bits.itemsize))
    magnitudes = ir.binary(ops.AND, ir.bitcast(taps, bits), int(bits.max) // 2)
    return ir.cast(ir.bitcast(ir.reduce(ops.MAX_REDUCE, magnitudes, axes), narrow.dtype), windows.dtype)


def _widens(cast: Node) -> bool:
    return cast.inputs[0].dtype in _BITS and cast.inputs[0].dtype.bits < cast.dtype.bits
