"""Movement of data, as views: reshape, permute, slice, flip, pad, windows. Nothing here copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, axes, dim, iota, select, view
from luminal.core.symbolic import Int


def reshape(x: Node, shape: Sequence[Int]) -> Node:
    """``x`` in row-major order under another shape with as many elements; one size may be -1.

    Raises ShapeError where the sizes do not agree.
    """
    shape = list(shape)
    position = None
    if -1 in shape:
        position = shape.index(-1)
        rest = sym.product(shape[:position] + shape[position + 1 :])
        shape[position] = 0 if rest == 0 else sym.floordiv(x.size, rest)
    if sym.product(shape) != x.size:
        wanted = sym.product(shape)
        known = all(isinstance(size, int) for k, size in enumerate(shape) if k != position)
        # A number in the place of a symbol is its size, if the sizes agree then: the shape was recorded for that.
        apart = [
            (a, b)
            for a, b in zip(x.shape, shape, strict=False)
            if known and isinstance(b, int) and (s := sym.as_var(a)) and sym.substitute(wanted - x.size, {s: b}) == 0
        ]
        raise ShapeError(f"cannot reshape {list(x.shape)} ({x.size} elements) to {shape}", [*apart, (wanted, x.size)])
    if x.size == 0:
        return view(x, shape, [0] * x.rank)
    # Leading and trailing sizes that agree pass through; only the middle is linearised.
    head = 0
    while head < min(x.rank, len(shape)) and x.shape[head] == shape[head]:
        head += 1
    tail = 0
    while tail < min(x.rank, len(shape)) - head and x.shape[-1 - tail] == shape[-1 - tail]:
        tail += 1
    over = axes(tuple(shape))
    flat: Int = 0
    for position in range(head, len(shape) - tail):
        flat = flat * shape[position] + over[position]
    middle: list[Int] = []
    for size in reversed(x.shape[head : x.rank - tail]):
        middle.append(sym.mod(flat, size))
        flat = sym.floordiv(flat, size)
    return view(x, shape, [*over[:head], *reversed(middle), *over[len(shape) - tail :]])


def permute(x: Node, order: Sequence[int]) -> Node:
    """Axis ``k`` of the result is axis ``order[k]`` of ``x``."""
    order = [a % x.rank for a in order]
    if sorted(order) != list(range(x.rank)):
        raise ShapeError(f"{list(order)} is not a permutation of the axes of {list(x.shape)}")
    shape = tuple(x.shape[a] for a in order)
    over = axes(shape)
    return view(x, shape, [over[order.index(k)] for k in range(x.rank)])


def transpose(x: Node, a: int, b: int) -> Node:
    """Axes ``a`` and ``b`` exchanged; raises ShapeError where ``x`` has none such."""
    if not all(-x.rank <= axis < x.rank for axis in (a, b)):
        raise ShapeError(f"{list(x.shape)} has no axes {a} and {b}")
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def unsqueeze(x: Node, positions: Sequence[int]) -> Node:
    """Axes of extent 1 put in at ``positions`` of the result."""
    rank = x.rank + len(positions)
    at = {p % rank for p in positions}
    if len(at) != len(positions):
        raise ShapeError(f"axes {list(positions)} repeat for a result of rank {rank}")
    sizes = iter(x.shape)
    return reshape(x, [1 if k in at else next(sizes) for k in range(rank)])


def squeeze(x: Node, positions: Sequence[int] | None = None) -> Node:
    """Axes of extent 1 removed: those named (all of extent 1, else ShapeError), or every one."""
    at = {k for k, d in enumerate(x.shape) if d == 1} if positions is None else {p % x.rank for p in positions}
    if any(x.shape[k] != 1 for k in at):
        raise ShapeError(f"cannot squeeze axes {sorted(at)} of {list(x.shape)}")
    return reshape(x, [d for k, d in enumerate(x.shape) if k not in at])


def slice_(x: Node, axis: int, start: Int, size: Int, step: int = 1) -> Node:
    """``size`` elements of ``axis`` from ``start``, ``step`` apart (negative steps walk backwards)."""
    axis %= x.rank
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    index = list(axes(shape))
    index[axis] = index[axis] * step + start
    return view(x, shape, index)


def flip(x: Node, over: Sequence[int]) -> Node:
    """``x`` reversed along the axes ``over``."""
    index = list(axes(x.shape))
    for axis in over:
        index[axis] = x.shape[axis] - 1 - index[axis]
    return view(x, x.shape, index)


def pad(x: Node, before: Sequence[Int], after: Sequence[Int], value: float = 0) -> Node:
    """``before[k]`` and ``after[k]`` elements of ``value`` around axis ``k``; negative amounts crop."""
    shape = tuple(b + d + a for b, d, a in zip(before, x.shape, after, strict=True))
    over = axes(shape)
    index = [o - b for o, b in zip(over, before, strict=True)]
    valid = index + [d - 1 - e for d, e in zip(x.shape, index, strict=True)]
    return view(x, shape, index, valid, np.array(value, x.dtype.numpy).tobytes())


def windows(x: Node, axis: int, size: int, stride: int = 1, dilation: int = 1, *, count: Int | None = None) -> Node:
    """Sliding windows along ``axis``: it becomes the number of windows, and the window itself a new last axis.

    Result shape: ``[.., count, .., size]`` with ``count = (extent - dilation*(size-1) - 1) // stride + 1`` by default.
    """
    axis %= x.rank
    if count is None:
        count = sym.floordiv(x.shape[axis] - dilation * (size - 1) - 1, stride) + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    over = axes(shape)
    index = list(over[:-1])
    index[axis] = over[axis] * stride + over[-1] * dilation
    return view(x, shape, index)


def concatenate(parts: Sequence[Node], axis: int) -> Node:
    """``parts`` joined along ``axis``: a select by position among their padded views, which are split apart again when
    the kernel's index set is split."""
    if any(part.rank != parts[0].rank or not part.rank for part in parts):
        raise ShapeError(f"expected parts of as many axes, found {', '.join(str(list(p.shape)) for p in parts)}")
    axis %= parts[0].rank
    parts = [p for p in parts if p.shape[axis] != 0] or [parts[0]]
    total: Int = 0
    for part in parts:
        total = total + part.shape[axis]
    result: Node | None = None
    start = total
    for part in reversed(parts):
        start = start - part.shape[axis]
        before: list[Int] = [0] * part.rank
        after: list[Int] = [0] * part.rank
        before[axis], after[axis] = start, total - start - part.shape[axis]
        placed = pad(part, before, after)
        if result is None:
            result = placed
            continue
        end = start + part.shape[axis]
        position = along(iota(total), axis, result.shape)
        result = select(position < dim(end), placed, result)
    assert result is not None
    return result


def along(x: Node, axis: int | None, shape: Sequence[Int]) -> Node:
    """A vector laid along ``axis`` of ``shape`` (or a scalar, with ``axis`` None), repeated over the other axes."""
    shape = tuple(shape)
    return view(x, shape, [] if axis is None else [axes(shape)[axis % len(shape)]])


def varies(x: Node) -> list[bool]:
    """For each axis of ``x``, whether elements may differ along it."""
    if x.op is not ops.VIEW:
        return [d != 1 for d in x.shape]
    found = {v for e in (*x.attr.index, *x.attr.valid) for v in sym.variables(e)}
    return [sym.as_var(axis) in found for axis in axes(x.shape)]


def once(x: Node, keep: Sequence[bool]) -> Node:
    """``x`` at position 0 of the axes that are not to ``keep``, which become of extent 1."""
    shape = tuple(d if k else 1 for d, k in zip(x.shape, keep, strict=True))
    return view(x, shape, [a if k else 0 for a, k in zip(axes(x.shape), keep, strict=True)])
