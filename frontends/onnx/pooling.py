"""Pooling over windows and over whole images."""

from __future__ import annotations

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose import math, pooling, reduction, scattering
from luminal.core.decompose.common import widened
from luminal.core.ir import Node, constant, expand
from luminal.core.ir import reduce as reduce_
from luminal.core.movement import pad, reshape
from luminal.frontends.onnx.registry import Call, operator
from luminal.frontends.onnx.windows import window


@operator("MaxPool")
def _max_pool(call: Call) -> tuple[Node, ...]:
    over = window(call, call[0].shape[2:])
    columns = call.flag("storage_order")
    sizes = (*over.sizes, call.flag("ceil_mode"))
    largest = pooling.max_pool(call[0], *sizes)
    return (largest, pooling.max_pool_index(call[0], *sizes, columns)) if call.wants(1) else (largest,)


@operator("MaxUnpool")
def _max_unpool(call: Call) -> Node:
    """Elements at the positions that MaxPool found, zeros elsewhere. Positions count in a tensor of the smallest shape;
    a larger ``output_shape`` adds zeros behind it."""
    x, places = call[0], call[1]
    over = window(call, x.shape[2:])
    sizes = [
        (size - 1) * stride + kernel - before - after
        for size, stride, kernel, before, after in zip(
            x.shape[2:], over.strides, over.kernel, over.pads_begin, over.pads_end, strict=True
        )
    ]
    shape = (*x.shape[:2], *sizes)
    zeros = expand(constant(0, x.dtype), (sym.product(shape),))
    found = reshape(scattering.put(zeros, reshape(places, [x.size]), reshape(x, [x.size])), shape)
    if call.get(2) is None:
        return found
    wanted = call.values(2)
    return pad(found, [0] * found.rank, [more - size for more, size in zip(wanted, shape, strict=True)])


operator("AveragePool")(lambda call: averaged(call, call[0]))


def averaged(call: Call, x: Node) -> Node:
    """``x`` in the windows that the attributes of a call describe."""
    sizes, counted = window(call, x.shape[2:]).sizes, call.flag("count_include_pad")
    return pooling.avg_pool(x, *sizes, call.flag("ceil_mode"), count_include_pad=counted)


@operator("LpPool")
def _lp_pool(call: Call) -> Node:
    order, over = call.integer("p", 2), window(call, call[0].shape[2:])
    counts = pooling.window_counts(call[0].shape[2:], *over.sizes, call.flag("ceil_mode"))

    @widened
    def pool(x: Node) -> Node:
        powers = _power(math.abs_(x), order)
        taps = pooling.windows_of(powers, over.kernel, over.strides, over.pads_begin, over.dilations, counts, 0)
        return _root(reduce_(ops.SUM_REDUCE, taps, range(x.rank, taps.rank)), order)

    return pool(call[0])


def _power(x: Node, order: int) -> Node:
    return x if order == 1 else x * x if order == 2 else math.pow_(x, float(order))


def _root(x: Node, order: int) -> Node:
    return x if order == 1 else math.sqrt(x) if order == 2 else math.pow_(x, 1 / order)


# ---- over whole images ---------------------------------------------------------------------------------------------


operator("GlobalAveragePool")(lambda call: reduction.mean(call[0], range(2, call[0].rank), True))
operator("GlobalMaxPool")(lambda call: reduction.max_(call[0], range(2, call[0].rank), True))


@operator("GlobalLpPool")
def _global_lp_pool(call: Call) -> Node:
    order = call.integer("p", 2)

    @widened
    def pool(x: Node) -> Node:
        return _root(reduction.sum_(_power(math.abs_(x), order), range(2, x.rank), True), order)

    return pool(call[0])
