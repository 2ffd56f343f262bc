"""Operators of the domain com.microsoft that ONNX has by now, or nearly so: exporters wrote them before that."""

from __future__ import annotations

from luminal.core import symbolic as sym
from luminal.core import types
from luminal.core.decompose import (
    contraction,
    distance,
    distinct,
    factorisation,
    indexing,
    sampling,
    selection,
)
from luminal.core.decompose.common import widened
from luminal.core.decompose.reduction import sum_
from luminal.core.errors import ModelError
from luminal.core.ir import Node, cast, expand
from luminal.core.movement import reshape, slice_, unsqueeze
from luminal.frontends.onnx.contributed import DOMAIN
from luminal.frontends.onnx.indexing import ranged, triangle
from luminal.frontends.onnx.padding import padded
from luminal.frontends.onnx.registry import Call, describe, operator, wrap_axis

operator("Trilu", domain=DOMAIN)(triangle)
operator("GatherND", domain=DOMAIN)(lambda call: indexing.gather_nd(call[0], cast(call[1], types.i64)))


@operator("Range", domain=DOMAIN)
def _range(call: Call) -> Node:
    return ranged(call, [call[0], call[1], call.get(2)])


@operator("ExpandDims", domain=DOMAIN)
def _expand_dims(call: Call) -> Node:
    return unsqueeze(call[0], [wrap_axis(call.integer_at(1), call[0].rank + 1)])


@operator("Unique", domain=DOMAIN)
def _unique(call: Call) -> tuple[Node, Node, Node]:
    """Distinct elements as they first occur, which of them each element is, and how often each occurs."""
    x = call[0]
    if x.rank != 1:
        raise ModelError(f"expected one axis, found {describe(x)}")
    found = distinct.distinct(x, by_value=False)
    size = selection.measured(found.count, x.shape[0], f"{next(name for name in call.outputs if name)}_count")
    first, times = (slice_(part, 0, 0, size) for part in (found.first, found.times))
    return indexing.take(x, first, 0), found.number, times


@operator("Pad", domain=DOMAIN)
def _pad(call: Call) -> Node:
    value: Node | float = 0 if call.get(2) is None else reshape(call[2], [])
    return padded(call[0], list(range(call[0].rank)), call.values(1), call.text("mode", "constant"), value)


_SAMPLED = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}


@operator("GridSample", domain=DOMAIN)
def _grid_sample(call: Call) -> Node:
    mode = _SAMPLED[call.choice("mode", "bilinear", _SAMPLED)]
    padding = call.choice("padding_mode", "zeros", sampling.PADDINGS)
    return sampling.grid_sample(call[0], call[1], mode, padding, call.flag("align_corners"))


@operator("Inverse", domain=DOMAIN)
def _inverse(call: Call) -> Node:
    """Of each matrix; of one that has none, infinities and NaN."""
    x = call[0]
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise ModelError(f"expected square matrices, found {describe(x)}")
    return _inverses(x)


@widened
def _inverses(x: Node) -> Node:
    many = reshape(x, [sym.product(x.shape[:-2]), *x.shape[-2:]])
    packed, _, order, _ = factorisation.lu(many)
    identity = expand(indexing.eye(x.shape[-2], x.shape[-1], dtype=x.dtype), many.shape)
    return reshape(factorisation.lu_solve(packed, order, identity), x.shape)


@operator("CDist", domain=DOMAIN)
def _distances(call: Call) -> Node:
    """Of every row of one matrix from every row of another."""
    metric = call.choice("metric", "sqeuclidean", ("sqeuclidean", "euclidean"))
    a, b = call[0], call[1]
    if metric == "euclidean":
        return distance.cdist(a, b)
    apart = unsqueeze(a, [1]) - unsqueeze(b, [0])
    return sum_(apart * apart, 2)


@operator("MatMulInteger16", domain=DOMAIN)
def _matmul_of_16_bits(call: Call) -> Node:
    """In 32 bits, of the sign that the first matrix has."""
    wide = types.u32 if call[0].dtype == types.u16 else types.i32
    return contraction.matmul(cast(call[0], wide), cast(call[1], wide))
