"""Scaled dot-product attention, as views, products and reductions."""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.common import require_float, widened
from luminal.core.decompose.compare import equal, maximum
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.exponential import LOG2_E, exp, exp2
from luminal.core.decompose.hyperbolic import tanh
from luminal.core.decompose.indexing import below_diagonal
from luminal.core.decompose.reduction import logsumexp, max_, sum_
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, select, unary
from luminal.core.movement import reshape, transpose, unsqueeze
from luminal.core.symbolic import Int


@widened
def scaled_dot_product_attention(
    q: Node, k: Node, v: Node, mask: Node | None = None, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, softcap: float = 0.0, sink: Node | None = None,
    k_scales: Node | None = None, v_scales: Node | None = None,
) -> Node:  # fmt: skip
    """``softmax(q @ k.T * scale + mask) @ v`` (Vaswani et al., 2017).

    ``q`` is ``[.., H, L, E]``, ``k`` ``[.., H, S, E]``, ``v`` ``[.., H, S, Ev]``; the result is ``[.., H, L, Ev]``.
    ``mask`` broadcasts to ``[.., H, L, S]``: bool keeps where it is true, floats are added. ``is_causal`` keeps
    ``column <= row``. ``scale`` defaults to ``1/sqrt(E)``. With ``enable_gqa`` query heads share key heads: ``H``
    becomes the axes (key head, member of its group) and nothing is repeated. A ``softcap`` above 0 bounds scores, as
    ``softcap * tanh(scores / softcap)``, before the mask; ``sink [H]`` is the score of one more key, whose value is
    zero. ``k_scales`` and ``v_scales [.., H, S]`` are factors of the rows of ``k`` and ``v``, of which scores and
    weights are multiplied, so that products read what is stored. A row whose every position is masked gives zeros, as
    in PyTorch.
    """
    require_float(q, "scaled_dot_product_attention")
    scale = _scale(q, scale)
    heads: Int = q.shape[-3] if q.rank > 2 else 1
    grouped = enable_gqa and q.rank > 2 and k.shape[-3] != heads
    if grouped:
        shared = k.shape[-3]
        if sym.mod(heads, shared) != 0:
            raise ShapeError(f"attention: {heads} query heads do not divide among {shared} key heads")
        group = sym.floordiv(heads, shared)
        q = reshape(q, [*q.shape[:-3], shared, group, *q.shape[-2:]])
        k, v = unsqueeze(k, [-3]), unsqueeze(v, [-3])
        mask = None if mask is None else _grouped_mask(mask, heads, shared, group)
        sink = None if sink is None else reshape(sink, [shared, group])
    k_scales, v_scales = (
        None if scales is None else unsqueeze(scales, [-2, -3] if grouped else [-2]) for scales in (k_scales, v_scales)
    )
    # The scale has the factor between powers of e and of 2, so that no weight is multiplied by it; but a mask of floats
    # cannot have it, whose least number would become -inf.
    power, unit = (exp2, LOG2_E) if mask is None or mask.dtype.is_bool else (exp, 1.0)
    factor = scale / softcap if softcap > 0 else scale * unit
    if _takes_factor(q):  # there are fewer queries than scores, and what computes them scales them as it stores them
        scores = matmul(q * factor, transpose(k, -2, -1))
    else:
        scores = matmul(q, transpose(k, -2, -1)) * factor
    scores = scores if k_scales is None else scores * k_scales
    if softcap > 0:
        scores = tanh(scores) * (softcap * unit)
    scores = _masked(scores, mask, is_causal)
    largest = max_(scores, -1, keepdims=True)
    if sink is not None:
        sink = unsqueeze(sink, [-1, -2]) * unit
        largest = maximum(largest, sink)
    weights = power(scores - largest)
    total = sum_(weights, -1, keepdims=True)
    if sink is not None:
        total = total + power(sink - largest)
    weights = weights if v_scales is None else weights * v_scales
    result = matmul(weights * unary(ops.RECIP, total), v)
    if mask is not None:
        result = select(equal(largest, -math.inf), 0, result)
    return reshape(result, [*result.shape[:-4], heads, *result.shape[-2:]]) if grouped else result


def attention_and_sums(
    q: Node, k: Node, v: Node, mask: Node | None = None, is_causal: bool = False, scale: float | None = None
) -> tuple[Node, Node]:
    """The attention, and for its gradients the logarithm of the sum of each row's exponentials, ``[.., H, L]``, of the
    type that arithmetic is done in; operands as above."""
    result = scaled_dot_product_attention(q, k, v, mask, is_causal, scale)
    q, k = cast(q, q.dtype.compute), cast(k, k.dtype.compute)
    mask = mask if mask is None or mask.dtype.is_bool else cast(mask, q.dtype)
    return result, logsumexp(_scores(q, k, mask, is_causal, scale), -1)


def attention_backward(
    gradient: Node, q: Node, k: Node, v: Node, result: Node, sums: Node, mask: Node | None = None,
    is_causal: bool = False, scale: float | None = None,
) -> tuple[Node, Node, Node]:  # fmt: skip
    """What ``gradient``, that of ``result``, makes the gradients of ``q``, ``k`` and ``v`` (Dao et al., 2022, algorithm
    4): weights are computed again from the ``sums`` of ``attention_and_sums``."""
    types = [x.dtype for x in (q, k, v)]
    gradient, q, k, v, result = (cast(x, x.dtype.compute) for x in (gradient, q, k, v, result))
    mask = mask if mask is None or mask.dtype.is_bool else cast(mask, q.dtype)
    rows = unsqueeze(sums, [-1])
    # Of a row that is masked altogether the sum is 0, and nothing depends on it.
    weights = select(equal(rows, -math.inf), 0, exp(_scores(q, k, mask, is_causal, scale) - rows))
    along = sum_(gradient * result, -1, keepdims=True)
    of_scores = weights * (matmul(gradient, transpose(v, -2, -1)) - along) * _scale(q, scale)
    found = (
        matmul(of_scores, k),
        matmul(transpose(of_scores, -2, -1), q),
        matmul(transpose(weights, -2, -1), gradient),
    )
    of_q, of_k, of_v = (cast(x, dtype) for x, dtype in zip(found, types, strict=True))
    return of_q, of_k, of_v


def _scores(q: Node, k: Node, mask: Node | None, is_causal: bool, scale: float | None) -> Node:
    return _masked(matmul(q, transpose(k, -2, -1)) * _scale(q, scale), mask, is_causal)


def _masked(scores: Node, mask: Node | None, is_causal: bool) -> Node:
    if is_causal:
        scores = select(below_diagonal(*scores.shape[-2:]), scores, -math.inf)
    if mask is not None:
        scores = select(mask, scores, -math.inf) if mask.dtype.is_bool else scores + mask
    return scores


def _scale(q: Node, scale: float | None) -> float:
    if scale is not None:
        return scale
    depth = q.shape[-1]
    if not isinstance(depth, int):
        raise ShapeError(f"attention: the size of a head, {depth}, must be known")
    return 1 / math.sqrt(depth)


def _takes_factor(node: Node) -> bool:
    """Whether a factor costs nothing where ``node`` is computed: it is more than a view or a conversion of what lies in
    memory already, and is not rounded to fewer bits, which are stored, and multiplied by matrix units, as they are."""
    while node.op in (ops.VIEW, ops.CAST):
        (node,) = node.inputs
        if node.dtype.compute != node.dtype:
            return False
    return node.op.kind is not ops.Kind.SOURCE


def _grouped_mask(mask: Node, heads: Int, shared: Int, group: Int) -> Node:
    """A mask over heads as one over (key head, member of its group)."""
    if mask.rank < 3:
        return mask
    if mask.shape[-3] == heads:
        return reshape(mask, [*mask.shape[:-3], shared, group, *mask.shape[-2:]])
    return unsqueeze(mask, [-3])
