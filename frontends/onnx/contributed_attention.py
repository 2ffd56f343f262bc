"""Attention of the domain com.microsoft, as onnxruntime's optimisers and model builders write it.

Heads are the second axis throughout: queries ``[batch, heads, length, size]``.
"""

from __future__ import annotations

import math

from luminal.core import symbolic as sym
from luminal.core.decompose import attention, contraction, normalize
from luminal.core.decompose.compare import equal, less, less_equal, logical_and
from luminal.core.decompose.indexing import below_diagonal, stack, take
from luminal.core.decompose.quantization import centred, integer_product
from luminal.core.decompose.reduction import sum_
from luminal.core.decompose.rotary import rotated
from luminal.core.decompose.scattering import put, scatter_elements
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant, dim, expand, iota, select
from luminal.core.movement import concatenate, pad, permute, reshape, slice_, unsqueeze
from luminal.core.symbolic import Int, floordiv
from luminal.core.types import DType, f32, i32, i64
from luminal.frontends.onnx.contributed import DOMAIN
from luminal.frontends.onnx.heads import by_head, joined
from luminal.frontends.onnx.registry import Call, operator


def _scale(call: Call) -> float | None:
    return call.number("scale", 0.0) or None


def _parts(x: Node, axis: int, sizes: list[Int]) -> list[Node]:
    """``x`` cut along ``axis``."""
    result: list[Node] = []
    start: Int = 0
    for size in sizes:
        result.append(slice_(x, axis, start, size))
        start = start + size
    return result


# ---- masks -----------------------------------------------------------------------------------------------------------


def _mask(call: Call, position: int, batch: Int, length: Int, total: Int, dtype: DType) -> Node | None:
    """What an optional mask adds to scores of type ``dtype``: 0, or ``mask_filter_value`` where a key is left out."""
    lowest = call.number("mask_filter_value", -10000.0)
    mask = call.get(position)
    if mask is None:
        return None
    keys = iota(total)
    if mask.rank == 1:
        # How many keys there are; or where they end, and behind that where they begin.
        count, remainder = sym.floordiv(mask.shape[0], batch), sym.mod(mask.shape[0], batch)
        if remainder != 0 or not isinstance(count, int) or count not in (1, 2):
            raise UnsupportedError(f"a mask {list(mask.shape)} for a batch of {batch} is not supported")
        ends, *starts = (reshape(cast(part, i64), [batch, 1]) for part in _parts(mask, 0, [batch] * count))
        valid = less(keys, ends)
        for start in starts:
            valid = logical_and(valid, less_equal(start, keys))
    elif mask.rank == 4:
        past = total - length
        valid = less(0, slice_(slice_(mask, 2, past, length), 3, 0, total))
    elif mask.rank in (2, 3):
        valid = less(0, mask)
    else:
        raise ModelError(f"expected a mask of 1 to 4 axes, found {list(mask.shape)}")
    if valid.rank < 4:
        valid = unsqueeze(valid, [1, 2] if valid.rank == 2 else [1])
    return select(valid, constant(0.0, dtype), lowest)


def _added(a: Node | None, b: Node | None) -> Node | None:
    return a + b if a is not None and b is not None else b if a is None else a


def _attended(call: Call, q: Node, k: Node, v: Node, mask: Node | None) -> Node:
    """Attention to all keys, or, where ``unidirectional``, to those before and at each query, the last keys being its
    own."""
    if call.flag("unidirectional"):
        length, total = q.shape[2], k.shape[2]
        reached = below_diagonal(length, total, total - length)
        if mask is None:
            mask = reached
        else:
            mask = select(reached, mask, -math.inf)
    return attention.scaled_dot_product_attention(q, k, v, mask, scale=_scale(call))


# ---- self-attention with its projection ------------------------------------------------------------------------------


@operator("Attention", domain=DOMAIN)
def _attention(call: Call) -> tuple[Node, ...]:
    if call.flag("do_rotary") or call.flag("past_present_share_buffer"):
        raise UnsupportedError("rotary embeddings and shared buffers inside Attention are not supported")
    call.ignore("rotary_embedding_dim")
    projected = contraction.linear(call[0], permute(call[1], [1, 0]), call.get(2))
    return _self_attention(call, projected, 3, 4, call.get(5))


@operator("QAttention", domain=DOMAIN)
def _quantized_attention(call: Call) -> tuple[Node, ...]:
    """The projection is one of integers."""
    if call.flag("do_rotary") or call.flag("past_present_share_buffer"):
        raise UnsupportedError("rotary embeddings and shared buffers inside QAttention are not supported")
    product = integer_product(call[0], call.get(6), call[1], call.get(7))
    return _self_attention(call, cast(product, f32) * (call[3] * call[4]) + call[2], 5, 8, None)


def _self_attention(call: Call, projected: Node, mask: int, past: int, added: Node | None) -> tuple[Node, ...]:
    """Attention of queries, keys and values beside each other; ``mask`` and ``past`` are positions of inputs."""
    batch, length, width = projected.shape
    sizes: list[Int] = [*(call.integers("qkv_hidden_sizes") or ())] or [floordiv(width, 3)] * 3
    q, k, v = (by_head(part, call.integer("num_heads")) for part in _parts(projected, 2, sizes))
    before = call.get(past)
    if before is not None:
        parts = [reshape(part, part.shape[1:]) for part in _parts(before, 0, [1, 1])]
        k, v = concatenate([parts[0], k], 2), concatenate([parts[1], v], 2)
    kept = _mask(call, mask, batch, length, k.shape[2], q.dtype)
    result = joined(_attended(call, q, k, v, _added(kept, added)))
    return (result, stack([k, v], 0)) if call.wants(1) else (result,)


# ---- attention of projected queries, keys and values -----------------------------------------------------------------


@operator("MultiHeadAttention", domain=DOMAIN)
def _multi_head_attention(call: Call) -> tuple[Node | None, ...]:
    if call.get(8) is not None or call.get(9) is not None or call.wants(3):
        raise UnsupportedError("shared buffers, beams and the output of scores are not supported")
    heads, query, key, value = call.integer("num_heads"), call[0], call.get(1), call.get(2)
    if query.rank == 5:  # [batch, length, heads, 3, size]
        q, k, v = (reshape(part, [*query.shape[:2], -1]) for part in _parts(query, 3, [1, 1, 1]))
    elif key is None:
        raise ModelError("expected keys, or queries of 5 axes that hold them")
    elif key.rank == 5:
        q = query
        k, v = (reshape(part, [*key.shape[:2], -1]) for part in _parts(key, 3, [1, 1]))
    elif value is None:
        raise ModelError("expected values, or keys of 5 axes that hold them")
    else:
        q, k, v = query, key, value
    bias = call.get(3)
    if bias is not None:
        widths = [q.shape[-1] * (1 if x.rank == 3 else 0) for x in (q, k)]
        rest = bias.shape[0] - sum(widths)
        q, k, v = (
            x if x.rank == 4 else x + part for x, part in zip((q, k, v), _parts(bias, 0, [*widths, rest]), strict=True)
        )
    q, k, v = (by_head(x, heads) for x in (q, k, v))
    if call.get(6) is not None:
        k, v = concatenate([call[6], k], 2), concatenate([call[7], v], 2)
    mask = _mask(call, 4, q.shape[0], q.shape[2], k.shape[2], q.dtype)
    return joined(_attended(call, q, k, v, _added(mask, call.get(5)))), k, v


@operator("GroupQueryAttention", domain=DOMAIN)
def _group_query_attention(call: Call) -> tuple[Node, ...]:
    """Keys and values are put behind those of the cache, of which each sequence has a number of its own."""
    _refuse_uncommon(call)
    heads, shared, query = call.integer("num_heads"), call.integer("kv_num_heads"), call[0]
    if call.get(1) is None:
        size = floordiv(query.shape[2], heads + 2 * shared)
        q, k, v = _parts(query, 2, [heads * size, shared * size, shared * size])
    else:
        q, k, v = query, call[1], call[2]
    q, k, v = by_head(q, heads), by_head(k, shared), by_head(v, shared)
    batch, _, length, _ = q.shape
    past: Int = 0 if call.get(3) is None else call[3].shape[2]
    (total,) = call.values(6)
    room = sym.maximum(past, total)
    # Sequences that begin may be shorter than the batch is long: what is behind their ends is not looked at.
    ends = reshape(cast(call[5], i64), [batch, 1]) + 1
    start = select(equal(dim(length), dim(total)), constant(0, i64), ends - dim(length))
    at = start + unsqueeze(iota(length), [0])
    if call.flag("do_rotary"):
        places = call.get(9)
        angles = at if places is None else cast(places, i64)
        cos, sin = (unsqueeze(take(call[position], angles), [1]) for position in (7, 8))
        turned = call.flag("rotary_interleaved")
        q, k = rotated(q, cos, sin, turned), rotated(k, cos, sin, turned)
    else:
        call.ignore("rotary_interleaved")
    if past != 0 or room != length:
        k, v = (_put(call.get(position), new, at, room) for position, new in ((3, k), (4, v)))
    columns, here = iota(room), unsqueeze(at, [1, 3])
    mask = less_equal(columns, here) if call.flag("causal", True) else less(columns, unsqueeze(ends, [1, 3]))
    window = call.integer("local_window_size", -1)
    if window > 0:
        mask = logical_and(mask, less(here - window, columns))
    extra = call.get(10)
    if extra is not None:
        if extra.shape[-1] != room:
            extra = pad(extra, [0] * 4, [0, 0, 0, room - extra.shape[-1]])
        mask = select(mask, extra, -math.inf)
    sink = call.get(11)
    if sink is None and call.integer("smooth_softmax", -1) == 1:
        sink = expand(constant(0.0, q.dtype), (heads,))
    result = attention.scaled_dot_product_attention(
        q, k, v, mask, scale=_scale(call), enable_gqa=True, softcap=call.number("softcap", 0.0), sink=sink
    )
    return joined(result), k, v


def _refuse_uncommon(call: Call) -> None:
    named = [name for name in ("sliding_window_cache", "qk_output") if call.integer(name, 0)]
    named += [name for name in ("k_quant_type", "v_quant_type") if call.text(name, "NONE") != "NONE"]
    call.ignore("kv_cache_bit_width", "qk_norm_epsilon")
    if named or any(call.get(position) is not None for position in (12, 13, 14, 15)) or call.wants(3):
        raise UnsupportedError(f"{', '.join(named) or 'quantised caches and norms inside it'} are not supported")


def _put(cache: Node | None, new: Node, at: Node, room: Int) -> Node:
    """``new [batch, heads, length, size]`` at the rows ``at [batch, length]`` of a cache, which grows to ``room``."""
    batch, heads, _, size = new.shape
    if cache is None:
        cache = expand(constant(0.0, new.dtype), (batch, heads, room, size))
    elif cache.shape[2] != room:
        cache = pad(cache, [0] * 4, [0, 0, room - cache.shape[2], 0])
    if batch == 1:
        return put(cache, reshape(at, [at.size]), new, 2)
    return scatter_elements(cache, expand(unsqueeze(at, [1, 3]), new.shape), new, 2)


# ---- positions and words ---------------------------------------------------------------------------------------------


@operator("RotaryEmbedding", domain=DOMAIN)
def _rotary_embedding(call: Call) -> Node:
    if call.flag("is_packed_batching") or call.number("scale", 1.0) != 1:
        raise UnsupportedError("packed batches and scales are not supported")
    x, places, width = call[0], cast(call[1], i64), call[2].shape[1]
    heads: Int = call.integer("num_heads", 0)
    if not call.integer("rotary_embedding_dim", 0) and x.rank == 3:
        heads = floordiv(x.shape[2], width * 2)
    split = by_head(x, heads)
    batch, _, length, _ = split.shape
    if places.rank == 1:
        places = expand(unsqueeze(places, [1]) + unsqueeze(iota(length), [0]), (batch, length))
    cos, sin = (unsqueeze(take(call[position], places), [1]) for position in (2, 3))
    result = rotated(split, cos, sin, call.flag("interleaved"))
    return result if x.rank == 4 else joined(result)


@operator("EmbedLayerNormalization", domain=DOMAIN)
def _embed_layer_normalization(call: Call) -> tuple[Node, ...]:
    """The embeddings of words, positions and segments, their norm, and how many words each mask lets in."""
    call.ignore("mask_index_type")
    words, segments, places = call[0], call.get(1), call.get(8)
    total = take(call[2], words) + take(call[3], iota(words.shape[1]) if places is None else places)
    if segments is not None:
        total = total + take(call[4], segments)
    return _embedded(call, total, call[5], call[6]), _admitted(call), total


@operator("QEmbedLayerNormalization", domain=DOMAIN)
def _quantized_embed_layer_normalization(call: Call) -> tuple[Node, ...]:
    """The same with tables, weight and bias of bytes, each with a scale and a zero point."""
    words, segments = call[0], call.get(1)
    group = [call.get(position) is not None for position in (1, 4, 10, 15)]
    if any(group) and not all(group):
        raise ModelError("segments, their embeddings, scale and zero point must be given together, or not at all")

    def real(number: int, places: Node | None = None) -> Node:
        """Input 2 and those after it, or its rows at ``places``."""
        table = call[2 + number] if places is None else take(call[2 + number], places)
        return cast(centred(table, reshape(call[13 + number], [])), f32) * reshape(call[8 + number], [])

    total = real(0, words) + real(1, iota(words.shape[1]))
    if segments is not None:
        total = total + real(2, segments)
    return _embedded(call, total, real(3), real(4)), _admitted(call)


def _embedded(call: Call, total: Node, weight: Node, bias: Node) -> Node:
    return normalize.layer_norm(total, [-1], weight, bias, call.number("epsilon", 1e-12))


def _admitted(call: Call) -> Node:
    """How many words of each sequence the mask at input 7 lets in; 0 without a mask."""
    mask = call.get(7)
    if mask is None:
        return expand(constant(0, i32), (call[0].shape[0],))
    return cast(sum_(cast(mask, i64), 1), i32)
