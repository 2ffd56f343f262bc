"""Constants, generated tensors, and elements picked or put by position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from luminal.core import interp, limits, ops, symval, types
from luminal.core import symbolic as sym
from luminal.core.decompose import indexing, scattering, selection, text
from luminal.core.errors import InputError, ModelError, UnsupportedError
from luminal.core.ir import Node, binary, cast, constant, dim, iota
from luminal.core.movement import permute, reshape, slice_, unsqueeze
from luminal.core.symbolic import Int
from luminal.frontends.onnx.registry import Call, counted, deciders, operator, scalar, undecided, wrap_axis
from luminal.frontends.onnx.tensors import element_type

# ---- made from nothing ---------------------------------------------------------------------------------------------


@operator("Constant")
def _constant(call: Call) -> Node:
    for name in ("value", "sparse_value"):
        array = call.tensor(name)
        if array is not None:
            return constant(array)
    if "value_int" in call.attributes:
        return constant(call.integer("value_int"), types.i64)
    if "value_float" in call.attributes:
        return constant(call.number("value_float"), types.f32)
    integers, numbers = call.integers("value_ints"), call.numbers("value_floats")
    if integers is not None:
        return constant(np.array(integers, np.int64))
    if numbers is not None:
        return constant(np.array(numbers, np.float32))
    if "value_string" in call.attributes:
        return text.literal(call.text("value_string"))
    several = call.texts("value_strings")
    if several is not None:
        return text.constants(several)
    raise ModelError("no attribute gives a value")


@operator("Range")
def _range(call: Call) -> Node:
    call.ignore("stash_type")  # the type to compute in: it is float64, rounded once
    return ranged(call, [call[0], call[1], call[2]])


def ranged(call: Call, given: Sequence[Node | None]) -> Node:
    """The numbers from the first input on, up to the second, by steps of the third, or 1."""
    dtype = call[0].dtype
    fixed = all(node is None or interp.constant_value(node) is not None for node in given)
    if dtype.is_float and fixed:
        start, limit, delta = (
            1.0 if node is None else float(scalar(call.array(k), f"input {k}")) for k, node in enumerate(given)
        )
        return indexing.arange(start, limit, delta, dtype)
    if dtype.is_integer and any(node is not None and symval.value(node) is None for node in given):
        return _found_numbers(call, given)
    # Floats that are symbolic sizes are whole numbers.
    first, end, step = ([1] if node is None else call.values(k) for k, node in enumerate(given))
    if not len(first) == len(end) == len(step) == 1:
        raise ModelError("expected one start, one limit and one delta")
    if not isinstance(step[0], int):
        raise UnsupportedError(f"a delta of {step[0]} is not supported: it must be a fixed number")
    return indexing.arange(first[0], end[0], step[0], dtype)


def _found_numbers(call: Call, given: Sequence[Node | None]) -> Node:
    """The numbers of a range whose start or limit a run finds, for which there is room as ``dims`` says."""
    first, limit, step = given
    assert first is not None and limit is not None
    by = 1 if step is None else symval.scalar(step)
    if not isinstance(by, int):
        raise undecided(call[2], 2)
    name = counted(call.outputs[0])
    begin, bounds = symval.scalar(first), call.bounds(name)
    least, most = (0, None) if bounds is None else (bounds.low, bounds.high)
    if most is None and by > 0 and isinstance(begin, int):
        end = symval.most(limit)
        most = None if end is None else max(0, -((begin - end) // by))
    if most is None or most > limits.TABLE:
        error = InputError(
            "the data of a call decides how many numbers there are: state how many there can be, "
            f"dims={{{name!r}: (0, MOST)}}"
        )
        error.deciding = deciders(limit)
        raise error
    return selection.numbers(reshape(first, []), reshape(limit, []), by, (least, most), name)


@operator("EyeLike")
def _eye_like(call: Call) -> Node:
    x = call[0]
    if x.rank != 2:
        raise ModelError(f"expected a matrix, found {x.rank} axes")
    dtype = element_type(call.integer("dtype"), "attribute 'dtype'") if "dtype" in call.attributes else x.dtype
    return indexing.eye(x.shape[0], x.shape[1], call.integer("k", 0), dtype)


@operator("Trilu")
def triangle(call: Call) -> Node:
    """The upper or the lower triangle of each matrix."""
    diagonal = call.integer_at(1) if call.get(1) is not None else 0
    return indexing.triu(call[0], diagonal) if call.flag("upper", True) else indexing.tril(call[0], diagonal)


@operator("OneHot")
def _one_hot(call: Call) -> Node:
    depth, values = call.values(1), call[2]
    if len(depth) != 1 or values.shape != (2,):
        raise ModelError(f"expected one depth and two values, found {len(depth)} and {list(values.shape)}")
    off, on = (reshape(slice_(values, 0, k, 1), []) for k in (0, 1))
    index = cast(call[0], types.i64)
    axis = wrap_axis(call.integer("axis", -1), index.rank + 1)
    return indexing.one_hot(index, depth[0], on, off, axis, values.dtype)


# ---- picked by position --------------------------------------------------------------------------------------------


@operator("Gather")
def _gather(call: Call) -> Node:
    x, index = call[0], call[1]
    axis = call.axis(x.rank, 0)
    places = symval.value(index) if index.size != 0 else None
    run = None if places is None else _run(list(places.reshape(-1)), x.shape[axis])
    if run is None:
        return indexing.take(x, index, axis)
    # Evenly spaced places that are known to exist are a slice, which moves nothing.
    start, step = run
    picked = slice_(x, axis, start, index.size, step)
    return reshape(picked, [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _run(places: list[Int], extent: Int) -> tuple[Int, int] | None:
    """First place and step of evenly spaced places that surely lie in an axis, counted from its front."""
    places = [place + extent if sym.never(place) else place for place in places]
    step = places[1] - places[0] if len(places) > 1 else 1
    if not isinstance(step, int) or any(b - a != step for a, b in pairwise(places)):
        return None
    inside = all(sym.always(end) and sym.always(extent - 1 - end) for end in (places[0], places[-1]))
    return (places[0], step) if inside else None


@operator("ReverseSequence")
def _reverse_sequence(call: Call) -> Node:
    """Of each sequence of a batch, the first elements backwards, as many as its length says."""
    time, batch = wrap_axis(call.integer("time_axis", 0), call[0].rank), call.integer("batch_axis", 1)
    x, axes = call[0], [wrap_axis(batch, call[0].rank), time]
    if sorted(axes) != [0, 1]:
        raise ModelError(f"expected time_axis and batch_axis 0 and 1, found {time} and {batch}")
    if call[1].shape != (x.shape[axes[0]],):
        raise ModelError(f"expected a length for each of {x.shape[axes[0]]} sequences, found {list(call[1].shape)}")
    order = [*axes, *range(2, x.rank)]
    moved = indexing.reversed_sequences(permute(x, order), cast(call[1], types.i64))
    return permute(moved, [*np.argsort(axes), *range(2, x.rank)])


@operator("GatherElements")
def _gather_elements(call: Call) -> Node:
    return indexing.gather_elements(call[0], cast(call[1], types.i64), call.axis(call[0].rank, 0))


operator("GatherND")(lambda call: indexing.gather_nd(call[0], call[1], call.integer("batch_dims", 0)))


# ---- put at positions ----------------------------------------------------------------------------------------------


def _reduction(call: Call) -> str:
    """How a scatter combines what meets at a position."""
    by = call.choice("reduction", "none", ("none", "add", "mul", "max", "min"))
    return "" if by == "none" else by


@operator("Scatter", "ScatterElements")
def _scatter_elements(call: Call) -> Node:
    axis = call.axis(call[0].rank, 0)
    return scattering.scatter_elements(call[0], cast(call[1], types.i64), call[2], axis, _reduction(call))


operator("ScatterND")(lambda call: scattering.scatter_nd(call[0], call[1], call[2], _reduction(call)))


@operator("TensorScatter")
def _tensor_scatter(call: Call) -> Node:
    cache, update = call[0], call[1]
    axis = wrap_axis(call.integer("axis", -2), cache.rank)
    circular = call.choice("mode", "linear", ("linear", "circular")) == "circular"
    if axis == 0:
        raise ModelError("the axis of the batch (0) cannot be written along")
    if cache.rank < 2 or update.rank != cache.rank:
        raise ModelError(f"expected an update of the cache's rank, at least 2, found {update.rank} for {cache.rank}")
    batch, length = cache.shape[0], update.shape[axis]
    first = call.get(2)
    first = indexing.full([batch], 0, types.i64) if first is None else cast(first, types.i64)
    position = unsqueeze(first, [1]) + unsqueeze(iota(length), [0])
    if circular:
        position = binary(ops.MOD, position, dim(cache.shape[axis]))
    samples = unsqueeze(iota(batch), [1])
    order = [0, axis, *(k for k in range(1, cache.rank) if k != axis)]
    indices = [samples, position]
    moved = scattering.index_put(permute(cache, order), indices, permute(update, order))
    return permute(moved, [order.index(k) for k in range(cache.rank)])
