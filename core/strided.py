"""Views and contractions on numpy arrays, without copies where strides can express them.

An expanded axis is an axis of stride 0: it is dropped before any work is done and put back afterwards. So a sum over a
product of expanded operands never sees the product, and an elementwise function of a repeated row runs on one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.numerics import Array
from luminal.core.symbolic import Int

LIMIT = 256 << 20  # bytes of temporaries that one contraction may hold


def repeated(x: Array) -> tuple[bool, ...]:
    """For each axis, whether all positions along it are one element in memory."""
    return tuple(n == 1 or s == 0 for n, s in zip(x.shape, x.strides, strict=True))


def broadcast_apply(function: Callable[..., Array], *operands: Array) -> Array:
    """An elementwise ``function`` of operands of one shape, computed once along the axes that repeat in all of them."""
    if not operands[0].ndim:
        return function(*operands)
    shape = operands[0].shape
    where = [all(column) for column in zip(*map(repeated, operands), strict=True)]
    if not any(w and n > 1 for w, n in zip(where, shape, strict=True)):
        return function(*operands)
    once = tuple(slice(0, 1) if w else slice(None) for w in where)
    return np.broadcast_to(function(*(o[once] for o in operands)), shape)


# ---- views ---------------------------------------------------------------------------------------------------------


def read(x: Array, attr: ops.View, shape: tuple[int, ...], over: tuple[Int, ...]) -> Array:
    """The view ``attr`` of ``x``: strided without a copy where the positions are affine, from a padded copy where the
    mask is a border around an affine view, and gathered element by element otherwise.

    ``shape`` and every expression hold numbers for the dimension symbols; ``over`` are the axes of ``shape``.
    """
    if 0 in shape:
        return np.empty(shape, x.dtype)
    mask = [v for v in attr.valid if not sym.always(v)]
    if any(sym.never(v) for v in mask):
        return np.broadcast_to(np.frombuffer(attr.fill, x.dtype).reshape(()), shape)
    index = attr.index
    if mask:
        padded = _padded(x, attr, mask, shape)
        if padded is None:
            return _gathered(x, attr, mask, shape, over)
        x, index = padded
    for source in (x, np.asarray(x, order="C")):
        strided = _strided(source, index, shape, over)
        if strided is not None:
            return strided
    return _gathered(x, ops.View(index), (), shape, over)


def _strided(x: Array, index: Sequence[Int], shape: tuple[int, ...], over: Sequence[Int]) -> Array | None:
    """``x`` at ``index`` as a strided array on the same memory, if the byte offset is affine in the axes."""
    offset: Int = 0
    for position, stride in zip(index, x.strides, strict=True):
        offset = offset + position * stride
    strides = []
    for axis in over:
        variable = sym.as_var(axis)
        linear = (0, offset) if variable is None else sym.coefficient(offset, variable)
        if linear is None or not isinstance(linear[0], int):
            return None
        strides.append(linear[0])
        offset = linear[1]
    if not isinstance(offset, int):
        return None
    origin = {v: 0 for axis in over if (v := sym.as_var(axis)) is not None}
    first = [int(sym.evaluate(sym.substitute(e, origin), {})) for e in index]
    start = x[tuple(slice(f, f + 1) for f in first)]
    bits = start.view(f"V{start.itemsize}")  # what numpy knows of some types of ml_dtypes does not name them
    return as_strided(bits, shape, strides, writeable=False).view(x.dtype)


def _padded(
    x: Array, attr: ops.View, mask: Sequence[Int], shape: tuple[int, ...]
) -> tuple[Array, tuple[Int, ...]] | None:
    """``x`` with a border of the fill value and the index into it, if ``mask`` only keeps the index inside ``x`` and
    the border is not larger than what is read."""
    inside = [c for e, n in zip(attr.index, x.shape, strict=True) for c in (e, n - 1 - e)]
    if any(v not in inside for v in mask):
        return None
    amounts: list[tuple[int, int]] = []
    for position, extent in zip(attr.index, x.shape, strict=True):
        low, high = sym.lower(position), sym.upper(position)
        if low is None or high is None:
            return None
        amounts.append((max(0, -low), max(0, high - extent + 1)))
    padded = tuple(b + n + a for n, (b, a) in zip(x.shape, amounts, strict=True))
    if np.prod(padded, dtype=np.float64) > 2 * x.size + 2 * np.prod(shape, dtype=np.float64):
        return None
    result = np.full(padded, np.frombuffer(attr.fill, x.dtype)[0], x.dtype)
    result[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, amounts, strict=True))] = x
    return result, tuple(e + b for e, (b, _) in zip(attr.index, amounts, strict=True))


def _gathered(x: Array, attr: ops.View, mask: Sequence[Int], shape: tuple[int, ...], over: Sequence[Int]) -> Array:
    """``x`` read by arrays of positions, over the axes that the positions depend on."""
    env: dict[str, Array] = {}
    for k, axis in enumerate(over):
        variable = sym.as_var(axis)
        if variable is not None:
            env[variable.name] = np.arange(shape[k]).reshape([-1 if j == k else 1 for j in range(len(shape))])
    positions = [np.clip(sym.evaluate(e, env), 0, n - 1) for e, n in zip(attr.index, x.shape, strict=True)]
    if 0 in x.shape:
        return np.broadcast_to(np.frombuffer(attr.fill, x.dtype), shape)
    value = x[tuple(positions)]
    if mask:
        valid = np.all(np.broadcast_arrays(*(sym.evaluate(v, env) >= 0 for v in mask)), axis=0)
        value = np.where(valid, value, np.frombuffer(attr.fill, x.dtype)[0])
    return np.broadcast_to(value, shape)


# ---- contractions --------------------------------------------------------------------------------------------------


def is_contraction(a: Array, b: Array) -> bool:
    """Whether ``a * b`` is larger than both, because each repeats along an axis of the other."""
    return any(ra != rb for ra, rb in zip(repeated(a), repeated(b), strict=True))


def contract(a: Array, b: Array, axes: Sequence[int], dtype: Any) -> Array:
    """The sum of ``a * b`` over ``axes``, accumulated in ``dtype``: float32, float64 or an integer type, which wraps.

    The operands have one shape. Axes of both are batch, of ``a`` alone M, of ``b`` alone N, and those summed K; the
    work is one batched matrix product, in pieces that hold ``LIMIT`` bytes.
    """
    rank = a.ndim
    in_a, in_b = [not r for r in repeated(a)], [not r for r in repeated(b)]
    kept = [k for k in range(rank) if k not in axes]
    batch = [k for k in kept if in_a[k] and in_b[k]]
    rows = [k for k in kept if in_a[k] and not in_b[k]]
    columns = [k for k in kept if in_b[k] and not in_a[k]]
    left, right = _arranged(a, [*batch, *rows, *axes]), _arranged(b, [*batch, *axes, *columns])
    present = [*batch, *rows, *columns]
    out = np.empty([a.shape[k] for k in present], dtype)
    _fill(out, left, right, (len(batch), len(rows)))
    ordered = out.transpose(sorted(range(len(present)), key=lambda p: present[p]))
    spread = ordered[tuple(slice(None) if k in present else None for k in kept)]
    return np.broadcast_to(spread, [a.shape[k] for k in kept])


def _arranged(x: Array, order: Sequence[int]) -> Array:
    """``x`` with its axes in ``order``, the others (along which it repeats) dropped."""
    small = x[tuple(slice(None) if k in order else 0 for k in range(x.ndim))]
    remaining = sorted(order)
    return small.transpose([remaining.index(k) for k in order])


def _fill(out: Array, a: Array, b: Array, counts: tuple[int, int]) -> None:
    """``out[batch, rows, columns] = a[batch, rows, k] @ b[batch, k, columns]``; ``counts`` are the axes of ``out``
    that are batch and rows. Halves an axis of the larger operand until a piece fits."""
    batch, rows = counts
    own = range(batch, batch + rows) if a.size >= b.size else range(batch + rows, out.ndim)
    splittable = [k for k in (*range(batch), *own) if out.shape[k] > 1]
    if (a.size + b.size + out.size) * max(8, out.itemsize) <= LIMIT or not splittable:
        count = int(np.prod(out.shape[:batch], dtype=np.int64))
        m = int(np.prod(out.shape[batch : batch + rows], dtype=np.int64))
        n = int(np.prod(out.shape[batch + rows :], dtype=np.int64))
        k = int(np.prod(a.shape[batch + rows :], dtype=np.int64))
        out[...] = _matrix_product(a, (count, m, k), b, (count, k, n), out.dtype).reshape(out.shape)
        return
    axis = max(splittable, key=lambda k: out.shape[k])
    middle = out.shape[axis] // 2
    for part in (slice(0, middle), slice(middle, None)):
        piece_a, piece_b = a, b
        if axis < batch + rows:
            piece_a = a[(slice(None),) * axis + (part,)]
        if axis < batch:
            piece_b = b[(slice(None),) * axis + (part,)]
        elif axis >= batch + rows:
            piece_b = b[(slice(None),) * (b.ndim - (out.ndim - axis)) + (part,)]
        _fill(out[(slice(None),) * axis + (part,)], piece_a, piece_b, counts)


def _matrix_product(a: Array, a_shape: tuple[int, ...], b: Array, b_shape: tuple[int, ...], dtype: Any) -> Array:
    if dtype.kind not in "iu":
        # A sum starts from +0; adding it makes sure, whatever the library's order of accumulation.
        product = a.astype(dtype, copy=False).reshape(a_shape) @ b.astype(dtype, copy=False).reshape(b_shape)
        return np.asarray(product + dtype.type(0))
    largest = [float(np.abs(x.astype(np.float64)).max(initial=0)) for x in (a, b)]
    # Doubles hold every partial sum exactly below 2**53, and have a fast matrix product, which integers have not.
    exact = np.float64 if largest[0] * largest[1] * a_shape[-1] < 2.0**53 else dtype
    whole = a.astype(exact).reshape(a_shape) @ b.astype(exact).reshape(b_shape)
    return np.asarray(whole.astype(np.int64).astype(dtype) if exact is np.float64 else whole)


def in_pieces(function: Callable[..., Array], a: Array, b: Array, axes: Sequence[int], dtype: Any) -> Array:
    """``function(a, b)``, which sums an elementwise expression over ``axes``, in pieces of the other axes such that the
    expression has at most ``LIMIT`` bytes of doubles at a time."""
    kept = [k for k in range(a.ndim) if k not in axes]
    splittable = [k for k in kept if a.shape[k] > 1]
    if a.size * 8 <= LIMIT or not splittable:
        return function(a, b)
    axis = max(splittable, key=lambda k: a.shape[k])
    out = np.empty([a.shape[k] for k in kept], dtype)
    middle = a.shape[axis] // 2
    for part in (slice(0, middle), slice(middle, None)):
        at = (slice(None),) * axis + (part,)
        out[(slice(None),) * kept.index(axis) + (part,)] = in_pieces(function, a[at], b[at], axes, dtype)
    return out
