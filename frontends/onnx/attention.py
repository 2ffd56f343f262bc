"""Attention: the common case directly; caches of valid lengths, windows and the output of scores by the function body
that ONNX's schema gives."""

from __future__ import annotations

import math

from luminal.core import types
from luminal.core.decompose import attention
from luminal.core.decompose.indexing import below_diagonal
from luminal.core.ir import Node, select
from luminal.core.movement import concatenate, pad
from luminal.core.symbolic import Int
from luminal.frontends.onnx.heads import by_head, joined
from luminal.frontends.onnx.registry import Call, operator
from luminal.frontends.onnx.tensors import ELEMENT_NUMBERS

_UNBOUNDED = -1


@operator("Attention", since=23)
def _attention(call: Call) -> tuple[Node, ...] | None:
    precision = call.integer("softmax_precision", 0)
    plain = (
        call.integer("left_window_size", _UNBOUNDED) == _UNBOUNDED
        and call.integer("right_window_size", _UNBOUNDED) == _UNBOUNDED
        and call.get(6) is None
        and not call.wants(3)
        and (precision != ELEMENT_NUMBERS[types.f64] or call[0].dtype == types.f64)
    )
    if not plain:
        return None
    call.ignore("qk_matmul_output_mode")
    packed = call[0].rank == 3
    heads = (call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0), call.integer("kv_num_heads", 0))
    q, k, v = (by_head(call[position], count) for position, count in enumerate(heads))
    past: Int = 0
    if call.get(4) is not None:
        past = call[4].shape[2]
        k, v = concatenate([call[4], k], 2), concatenate([call[5], v], 2)
    causal, mask = call.flag("is_causal"), call.get(3)
    if mask is not None and mask.shape[-1] != k.shape[2]:
        # Keys beyond the mask are not attended to.
        after = [*[0] * (mask.rank - 1), k.shape[2] - mask.shape[-1]]
        mask = pad(mask, [0] * mask.rank, after, 0 if mask.dtype.is_bool else -math.inf)
    if causal and past != 0:
        reached = below_diagonal(q.shape[2], k.shape[2], past)
        mask = reached if mask is None else _both(reached, mask)
        causal = False
    scale = call.number("scale") if "scale" in call.attributes else None
    result = attention.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=True, softcap=call.number("softcap", 0.0)
    )
    return joined(result) if packed else result, k, v


def _both(reached: Node, mask: Node) -> Node:
    return reached & mask if mask.dtype.is_bool else select(reached, mask, -math.inf)
