"""Shapes as values, and movement of data without arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luminal.core import symbolic as sym
from luminal.core import symval, types
from luminal.core.decompose import indexing, selection
from luminal.core.errors import ModelError
from luminal.core.facts import ImpliedBound
from luminal.core.ir import Node, broadcast_shape, constant, dim, expand
from luminal.core.movement import concatenate, permute, reshape, slice_, squeeze, unsqueeze
from luminal.core.symbolic import Int
from luminal.frontends.onnx.padding import padded
from luminal.frontends.onnx.registry import Call, operator, wrap_axis

operator("Identity")(lambda call: call[0])


@operator("Shape")
def _shape(call: Call) -> Node:
    x = call[0]
    start, end = call.integer("start", 0), call.integer("end", x.rank)
    sizes = x.shape[slice(start, end)]
    if all(isinstance(size, int) for size in sizes):
        return constant(np.array(sizes, np.int64))
    return concatenate([reshape(dim(size), [1]) for size in sizes], 0)


@operator("Size")
def _size(call: Call) -> Node:
    return dim(call[0].size)


# ---- reshapes ------------------------------------------------------------------------------------------------------


@operator("Reshape")
def _reshape(call: Call) -> Node:
    x = call[0]
    shape = call.values(1)
    if not call.flag("allowzero"):
        if any(size == 0 for size in shape[x.rank :]):
            raise ModelError(f"the shape {shape} copies sizes that an input of {x.rank} axes does not have")
        shape = [x.shape[k] if size == 0 else size for k, size in enumerate(shape)]
    return reshape(x, shape)


@operator("Flatten")
def _flatten(call: Call) -> Node:
    x = call[0]
    axis = call.integer("axis", 1)
    axis = axis if axis == x.rank else wrap_axis(axis, x.rank)
    return reshape(x, [sym.product(x.shape[:axis]), sym.product(x.shape[axis:])])


operator("Squeeze")(lambda call: squeeze(call[0], call.axes(call[0].rank)))


@operator("Unsqueeze")
def _unsqueeze(call: Call) -> Node:
    x = call[0]
    axes = call.integers("axes")
    axes = call.integers_at(1) if axes is None else axes
    return unsqueeze(x, [wrap_axis(axis, x.rank + len(axes)) for axis in axes])


@operator("Transpose")
def _transpose(call: Call) -> Node:
    x = call[0]
    order = call.integers("perm")
    return permute(x, list(reversed(range(x.rank))) if order is None else order)


@operator("DepthToSpace")
def _depth_to_space(call: Call) -> Node:
    """Specification: blocks of channels (outermost in mode DCR, innermost in CRD) become rows and columns."""
    x, block, mode = call[0], call.integer("blocksize"), call.text("mode", "DCR")
    if mode not in ("DCR", "CRD") or x.rank != 4:
        raise ModelError(f"expected mode DCR or CRD and 4 axes, found {mode!r} and {x.rank}")
    batch, channels, height, width = x.shape
    depth = sym.floordiv(channels, block * block)
    if mode == "DCR":
        split = permute(reshape(x, [batch, block, block, depth, height, width]), [0, 3, 4, 1, 5, 2])
    else:
        split = permute(reshape(x, [batch, depth, block, block, height, width]), [0, 1, 4, 2, 5, 3])
    return reshape(split, [batch, depth, height * block, width * block])


@operator("SpaceToDepth")
def _space_to_depth(call: Call) -> Node:
    x, block, mode = call[0], call.integer("blocksize"), call.text("mode", "DCR")
    if mode not in ("DCR", "CRD") or x.rank != 4:
        raise ModelError(f"expected mode DCR or CRD and 4 axes, found {mode!r} and {x.rank}")
    batch, channels, height, width = x.shape
    rows, columns = sym.floordiv(height, block), sym.floordiv(width, block)
    split = reshape(x, [batch, channels, rows, block, columns, block])
    order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    return reshape(permute(split, order), [batch, channels * block * block, rows, columns])


# ---- repetition ----------------------------------------------------------------------------------------------------


operator("Expand")(lambda call: expand(call[0], broadcast_shape(call[0].shape, tuple(call.values(1)))))
operator("Tile")(lambda call: indexing.tile(call[0], call.values(1)))


@operator("ConstantOfShape")
def _constant_of_shape(call: Call) -> Node:
    value = call.tensor("value")
    element = constant(0.0, types.f32) if value is None else constant(value.reshape(()))
    return expand(element, call.values(0))


# ---- slices --------------------------------------------------------------------------------------------------------


operator("Concat")(lambda call: concatenate(call.operands, call.axis(call[0].rank)))


@operator("Split")
def _split(call: Call) -> tuple[Node, ...]:
    x = call[0]
    axis = call.axis(x.rank, 0)
    call.ignore("num_outputs")
    sizes: Sequence[Int] | None = call.integers("split")
    if sizes is None and call.get(1) is not None:
        if symval.value(call[1]) is None:
            return tuple(selection.split(x, call[1], axis, f"{next(name for name in call.outputs if name)}_size"))
        sizes = call.values(1)
    if sizes is None:
        parts = call.integer("num_outputs", len(call.outputs))
        if parts != len(call.outputs):
            raise ModelError(f"expected as many outputs as the {parts} of num_outputs, found {len(call.outputs)}")
        each = sym.ceildiv(x.shape[axis], parts)
        sizes = [*[each] * (parts - 1), x.shape[axis] - each * (parts - 1)]
    return tuple(indexing.split(x, sizes, axis))


@operator("Slice")
def _slice_by_attributes(call: Call) -> Node:
    starts, ends, axes = call.integers("starts"), call.integers("ends"), call.integers("axes")
    if starts is None or ends is None:
        raise ModelError("the attributes 'starts' and 'ends' are required")
    return _slice(call, starts, ends, axes, None)


@operator("Slice", since=10)
def _slice_by_inputs(call: Call) -> Node:
    axes = call.integers_at(3) if call.get(3) is not None else None
    steps = call.integers_at(4) if call.get(4) is not None else None
    return _slice(call, call.values(1), call.values(2), axes, steps)


def _slice(
    call: Call, starts: Sequence[Int], ends: Sequence[Int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> Node:
    x = call[0]
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(axes) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError(
            f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps do not match"
        )
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = wrap_axis(axis, x.rank)
        _imply(call, end, x.shape[axis])
        first, size = _range(start, end, step, x.shape[axis])
        x = slice_(x, axis, first, size, step)
    return x


def _imply(call: Call, end: Int, extent: Int) -> None:
    """A slice up to a size without declared bounds is assumed to fit: the extent of the axis bounds that size."""
    if isinstance(extent, int) and not sym.always(extent - end):
        for size in sorted(call.assumed & sym.variables(end), key=str):
            linear = sym.coefficient(end, size)
            if linear is not None and all(isinstance(part, int) for part in linear):
                slope, rest = linear
                upper = sym.floordiv(extent - rest, slope) if sym.always(slope - 1) else size.lo - 1
                if isinstance(upper, int) and size.lo <= upper:
                    raise ImpliedBound(size, upper)


def _range(start: Int, end: Int, step: int, extent: Int) -> tuple[Int, Int]:
    """The first index and the number of elements of ``start:end:step`` in an axis, clamped into it as Python does."""
    if step == 0:
        raise ModelError("a step of 0 selects nothing in no order")
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    first, last = (sym.maximum(low, sym.minimum(indexing.from_front(end, extent), high)) for end in (start, end))
    size = sym.ceildiv(last - first, step) if step > 0 else sym.ceildiv(first - last, -step)
    return first, sym.maximum(size, 0)


# ---- padding -------------------------------------------------------------------------------------------------------


@operator("Pad")
def _pad_by_attributes(call: Call) -> Node:
    pads = call.integers("pads")
    if pads is None:
        raise ModelError("the attribute 'pads' is required")
    x = call[0]
    return padded(x, list(range(x.rank)), pads, call.text("mode", "constant"), call.number("value", 0.0))


@operator("Pad", since=11)
def _pad_by_inputs(call: Call) -> Node:
    x = call[0]
    axes = list(range(x.rank))
    if call.get(3) is not None:
        axes = [wrap_axis(axis, x.rank) for axis in call.integers_at(3)]
    value: Node | float = 0 if call.get(2) is None else reshape(call[2], [])
    return padded(x, axes, call.values(1), call.text("mode", "constant"), value)
