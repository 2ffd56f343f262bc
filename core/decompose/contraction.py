"""Contractions: matrix products, einsum and convolution, each a sum over a product of views.

The operands are views over the axes of the product, so nothing is materialised. Floats of fewer than 32 bits are
multiplied and accumulated in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.common import widened
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, axes, reduce, view
from luminal.core.movement import pad, permute, reshape, squeeze, transpose, unsqueeze, windows
from luminal.core.relations import unequal
from luminal.core.symbolic import Int


@widened
def matmul(a: Node, b: Node) -> Node:
    """The matrix product ``[.., M, K] x [.., K, N] -> [.., M, N]`` with numpy's rules: batch axes broadcast, a vector
    is a row on the left and a column on the right and its axis is dropped from the result.

    Raises ShapeError where the inner sizes differ.
    """
    if a.rank == 0 or b.rank == 0:
        raise ShapeError("matmul: operands must have at least one axis")
    left = unsqueeze(a, [0]) if a.rank == 1 else a
    right = unsqueeze(b, [1]) if b.rank == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise ShapeError(
            f"matmul: inner sizes differ in {list(a.shape)} x {list(b.shape)}", [(left.shape[-1], right.shape[-2])]
        )
    product = unsqueeze(left, [left.rank - 1]) * unsqueeze(transpose(right, -2, -1), [right.rank - 2])
    result = reduce(ops.SUM_REDUCE, product, [-1])
    if a.rank == 1:
        result = squeeze(result, [-2])
    return squeeze(result, [-1]) if b.rank == 1 else result


@widened
def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """``x @ weight.T + bias``: ``[.., K] x [N, K] -> [.., N]``."""
    result = matmul(x, transpose(weight, 0, 1) if weight.rank == 2 else weight)
    return result if bias is None else result + bias


@widened
def gemm(
    a: Node, b: Node, c: Node | None = None, alpha: float = 1.0, beta: float = 1.0,
    trans_a: bool = False, trans_b: bool = False,
) -> Node:  # fmt: skip
    """``alpha * (a @ b) + beta * c`` with either matrix transposed first (ONNX Gemm, BLAS)."""
    result = matmul(transpose(a, 0, 1) if trans_a else a, transpose(b, 0, 1) if trans_b else b)
    result = result if alpha == 1 else result * alpha
    if c is None or beta == 0:
        return result
    return result + (c if beta == 1 else c * beta)


@widened
def einsum(equation: str, *operands: Node) -> Node:
    """Einstein summation: ``einsum("bij,bjk->bik", a, b)`` (numpy.einsum, ONNX Einsum, torch.einsum).

    A label repeated within an operand takes its diagonal; ``...`` stands for axes that broadcast; without ``->`` the
    result has those and every label that occurs once, in alphabetical order. Operands are contracted from left to
    right, each label summed as soon as no later operand has it. Raises ShapeError where the equation does not fit.
    """
    terms, output = _labels(equation, operands)
    (labels, result), *rest = [_diagonal(term, x) for term, x in zip(terms, operands, strict=True)]
    for position, (more, x) in enumerate(rest, 1):
        later = {*output, *(label for term in terms[position + 1 :] for label in term)}
        labels, result = _summed(labels, result, later | set(more))
        more, x = _summed(more, x, later | set(labels))
        both = [*labels, *(label for label in more if label not in labels)]
        labels, result = _summed(both, _aligned(labels, result, both) * _aligned(more, x, both), later)
    labels, result = _summed(labels, result, set(output))
    return permute(result, [labels.index(label) for label in output])


def _labels(equation: str, operands: Sequence[Node]) -> tuple[list[list[str]], list[str]]:
    """The labels of every operand's axes, and of the result's; the axes of an ellipsis are numbered from the last."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ShapeError(f"einsum {equation!r}: {len(parts)} terms for {len(operands)} operands")
    terms: list[list[str]] = []
    widest = 0
    for part, x in zip(parts, operands, strict=True):
        before, ellipsis, after = part.partition("...")
        free = x.rank - len(before) - len(after)
        if free < 0 or (free and not ellipsis):
            raise ShapeError(f"einsum {equation!r}: {part!r} does not label the {x.rank} axes of {list(x.shape)}")
        widest = max(widest, free)
        terms.append([*before, *map(str, range(free - 1, -1, -1)), *after])
    shared = [str(k) for k in range(widest - 1, -1, -1)]
    if arrow:
        before, ellipsis, after = right.partition("...")
        output = [*before, *(shared if ellipsis else []), *after]
    else:
        flat = [label for term in terms for label in term]
        output = shared + sorted(label for label in set(flat) if flat.count(label) == 1 and label not in shared)
    if len(set(output)) != len(output) or not set(output) <= {label for term in terms for label in term}:
        raise ShapeError(f"einsum {equation!r}: every label of the result must occur once there and in an operand")
    return terms, output


def _diagonal(labels: list[str], x: Node) -> tuple[list[str], Node]:
    """Axes with the same label as one axis."""
    unique = list(dict.fromkeys(labels))
    if len(unique) == len(labels):
        return labels, x
    shape = tuple(x.shape[labels.index(label)] for label in unique)
    apart = unequal(x.shape, [shape[unique.index(label)] for label in labels])
    if apart:
        raise ShapeError(f"einsum: axes that share a label differ in {list(x.shape)}", apart)
    return unique, view(x, shape, [axes(shape)[unique.index(label)] for label in labels])


def _summed(labels: list[str], x: Node, kept: set[str]) -> tuple[list[str], Node]:
    """``x`` summed over the labels that are not ``kept``."""
    dropped = [k for k, label in enumerate(labels) if label not in kept]
    return [label for label in labels if label in kept], reduce(ops.SUM_REDUCE, x, dropped)


def _aligned(labels: list[str], x: Node, order: list[str]) -> Node:
    """``x`` with its axes in ``order``, and axes of extent 1 where it has no such label."""
    present = [label for label in order if label in labels]
    moved = permute(x, [labels.index(label) for label in present])
    return unsqueeze(moved, [k for k, label in enumerate(order) if label not in labels])


@widened
def conv(
    x: Node, weight: Node, bias: Node | None = None, strides: Sequence[int] | None = None,
    pads_begin: Sequence[Int] | None = None, pads_end: Sequence[Int] | None = None,
    dilations: Sequence[int] | None = None, groups: int = 1,
) -> Node:  # fmt: skip
    """Cross-correlation over any number of spatial axes.

    ``x`` is ``[N, C, *spatial]``, ``weight`` ``[M, C/groups, *kernel]``, ``bias`` ``[M]``; the result is
    ``[N, M, *windows]``. Strides and dilations default to 1, zero padding to 0. Groups are a batch axis of the
    contraction.
    """
    spatial = x.rank - 2
    kernel = weight.shape[2:]
    channels, filters = x.shape[1], weight.shape[0]
    if spatial < 1 or weight.rank != x.rank:
        raise ShapeError(f"conv: input {list(x.shape)} and weight {list(weight.shape)} must both be [N, C, *spatial]")
    if weight.shape[1] * groups != channels or sym.mod(filters, groups) != 0:
        raise ShapeError(
            f"conv: {channels} input channels and {groups} groups do not fit a weight of shape {list(weight.shape)}",
            [(channels, weight.shape[1] * groups)],
        )
    taps = sliding(x, kernel, strides, pads_begin, pads_end, dilations)
    outputs = taps.shape[2 : 2 + spatial]
    # [N, g, 1, *outputs, C/g, *kernel] times [1, g, M/g, 1.., C/g, *kernel]
    per_group = weight.shape[1]
    taps = reshape(taps, [taps.shape[0], groups, per_group, *outputs, *kernel])
    order = [0, 1, *range(3, 3 + spatial), 2, *range(3 + spatial, 3 + 2 * spatial)]
    taps = unsqueeze(permute(taps, order), [2])
    filter_shape = [groups, sym.floordiv(filters, groups), *[1] * spatial, per_group, *kernel]
    product = taps * reshape(weight, filter_shape)
    result = reduce(ops.SUM_REDUCE, product, range(3 + spatial, product.rank))
    result = reshape(result, [x.shape[0], filters, *outputs])
    return result if bias is None else result + reshape(bias, [1, filters, *[1] * spatial])


def sliding(
    x: Node, kernel: Sequence[Int], strides: Sequence[int] | None, pads_begin: Sequence[Int] | None,
    pads_end: Sequence[Int] | None, dilations: Sequence[int] | None, value: float = 0,
    counts: Sequence[Int] | None = None,
) -> Node:  # fmt: skip
    """Windows over the last ``len(kernel)`` axes of ``x``, padded with ``value``: ``[.., *windows, *kernel]``.

    ``counts`` states the number of windows along each axis where it is not the number that fits.
    """
    spatial = len(kernel)
    lead = x.rank - spatial
    before, after = pads_begin or [0] * spatial, pads_end or [0] * spatial
    result = pad(x, [0] * lead + list(before), [0] * lead + list(after), value)
    for k, size in enumerate(kernel):
        if not isinstance(size, int):
            raise ShapeError(f"windows: the kernel's size {size} must be known")
        result = windows(
            result, lead + k, size, strides[k] if strides else 1, dilations[k] if dilations else 1,
            count=counts[k] if counts else None,
        )  # fmt: skip
    return result
