"""Mixtures of experts against onnxruntime, and against float64 where its kernels round, or have no such case."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

import luminal
from luminal.core.errors import LuminalError
from tests import onnx_models as models
from tests.onnx_models import floats

Array = np.ndarray[Any, Any]
Model = tuple[onnx.ModelProto, dict[str, Array]]

EXPERTS, WIDTH, INNER = 4, 32, 64
SWIGLU: dict[str, Any] = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.5}
KINDS: dict[str, dict[str, Any]] = {
    **{name: {"activation_type": name} for name in ("relu", "gelu", "silu", "identity")},
    "swiglu, interleaved": {"activation_type": "swiglu", "swiglu_fusion": 1, **SWIGLU},
    "swiglu, no limit": {"activation_type": "swiglu", "swiglu_fusion": 1},
}


def scaled(*shape: int, seed: int, by: float = 6.0) -> Array:
    return floats(*shape, seed=seed) / np.float32(by)


def mixture(rows: tuple[int, ...], **options: Any) -> Model:
    """Weights as float32; the third layer is there where swiglu is not fused."""
    fusion, gated = options.get("swiglu_fusion", 0), options.get("activation_type") == "swiglu"
    first = (2 if fusion else 1) * INNER
    inputs = [
        floats(*rows, WIDTH), floats(math.prod(rows), EXPERTS, seed=1), scaled(EXPERTS, first, WIDTH, seed=2),
        scaled(EXPERTS, first, seed=3), scaled(EXPERTS, WIDTH, INNER, seed=4), scaled(EXPERTS, WIDTH, seed=5),
    ]  # fmt: skip
    if gated and not fusion:
        inputs += [scaled(EXPERTS, INNER, WIDTH, seed=6), scaled(EXPERTS, INNER, seed=7)]
    return models.one("MoE", *inputs, fixed=range(2, len(inputs)), domain="com.microsoft", **options)


def quantized(bits: int, block: int, zeros: bool, rows: tuple[int, ...] = (2, 3), **options: Any) -> Model:
    first, each = (2 if options.get("swiglu_fusion") else 1) * INNER, 8 // bits
    generator = np.random.default_rng(0)

    def packed(*shape: int) -> Array:
        return generator.integers(0, 256, (*shape[:-1], -(-shape[-1] // each))).astype(np.uint8)

    def scales(outputs: int, depth: int) -> Array:
        return np.abs(floats(EXPERTS, outputs, *([depth // block] if block else []), seed=8)) / np.float32(20)

    def points(outputs: int, depth: int) -> Array:
        return packed(EXPERTS, outputs, depth // block) if block else packed(EXPERTS, outputs)

    layers = [(first, WIDTH), (WIDTH, INNER)]
    inputs: list[Array | None] = [floats(*rows, WIDTH), floats(math.prod(rows), EXPERTS, seed=1)]
    for k, (outputs, depth) in enumerate(layers):
        inputs += [packed(EXPERTS, outputs, depth), scales(outputs, depth), scaled(EXPERTS, outputs, seed=k)]
    inputs += [None, None, None, *(points(*layer) for layer in layers if zeros)]
    fixed = [k for k in range(2, len(inputs)) if inputs[k] is not None]
    given = {"expert_weight_bits": bits, "k": 2, **({"block_size": block} if block else {}), **options}
    return models.one("QMoE", *inputs, fixed=fixed, domain="com.microsoft", **given)


@pytest.mark.parametrize(("k", "normalised", "rows"), [(1, 0, (5,)), (2, 0, (2, 3)), (2, 1, (1,)), (4, 1, (5,))])
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_experts(options: dict[str, Any], k: int, normalised: int, rows: tuple[int, ...]) -> None:
    """Of one row the chosen experts alone are computed, of five all."""
    proto, given = mixture(rows, k=k, normalize_routing_weights=normalised, **options)
    models.assert_close(models.imported(proto, given), models.by_onnxruntime(proto, given))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 0), (4, 16), (4, 32), (8, 0), (2, 0), (2, 16)])
@pytest.mark.parametrize("kind", ["relu", "silu", "swiglu, interleaved"])
def test_quantised_experts(kind: str, bits: int, block: int, zeros: bool) -> None:
    for rows in ((2, 3), (1,)):
        proto, given = quantized(bits, block, zeros, rows, normalize_routing_weights=1, **KINDS[kind])
        models.assert_close(models.imported(proto, given), models.by_onnxruntime(proto, given), 2e-6)


@pytest.mark.parametrize("normalised", [0, 1])
@pytest.mark.parametrize("given_weights", [False, True])
def test_shares_of_quantised_experts(given_weights: bool, normalised: bool) -> None:
    """Those of a softmax sum to 1 whatever the attribute says; it holds for those that are given."""
    proto, given = quantized(4, 16, False, normalize_routing_weights=normalised)
    if given_weights:
        (node,) = proto.graph.node
        node.input.extend([""] * (14 - len(node.input)) + ["shares"])
        given["shares"] = np.abs(floats(6, EXPERTS, seed=9))
        proto.graph.input.append(models.declared("shares", given["shares"]))
    models.assert_close(models.imported(proto, given), models.by_onnxruntime(proto, given), 2e-6)


# ---- float64 ---------------------------------------------------------------------------------------------------------


def in_float64(
    x: Array,
    router: Array,
    k: int,
    first: Any,
    second: Any,
    third: Any = None,
    fusion: int = 0,
    among: bool = False,
) -> Array:
    """Of swiglu, by ONNX's formulas, or of relu where there is neither a third layer nor a fused one."""
    shares = np.exp(router.astype(np.float64))
    shares /= shares.sum(1, keepdims=True)
    if among:  # shares are those among the chosen
        shares /= np.sort(shares)[:, -k:].sum(1, keepdims=True)
    result = np.zeros((len(x), WIDTH))
    for row, scores in enumerate(router):
        for expert in np.argsort(-scores, kind="stable")[:k]:
            inner, up = (None if w is None else w[0][expert] @ x[row] + w[1][expert] for w in (first, third))
            if fusion == 2:
                inner, up = np.split(inner, 2)
            if up is None:
                inner = np.maximum(inner, 0)
            else:
                gate, up = np.minimum(inner, 1.5), np.clip(up, -1.5, 1.5)
                inner = gate / (1 + np.exp(-float(np.float32(1.702)) * gate)) * (up + 1)
            result[row] += shares[row, expert] * (second[0][expert] @ inner + second[1][expert])
    return result


def weights(proto: onnx.ModelProto) -> dict[int, Array]:
    """The initializers as float64, by the positions of inputs."""
    return {
        int(t.name[1:]): onnx.numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer
    }  # fmt: skip


@pytest.mark.parametrize("fusion", [0, 2])
def test_other_layouts_of_swiglu(fusion: int) -> None:
    """onnxruntime's CPU kernel has the interleaved one alone."""
    proto, given = mixture((5,), k=2, activation_type="swiglu", swiglu_fusion=fusion, **SWIGLU)
    w, x = weights(proto), given["x0"].astype(np.float64)
    third = (w[6], w[7]) if fusion == 0 else None
    wanted = in_float64(x, given["x1"], 2, (w[2], w[3]), (w[4], w[5]), third, fusion)
    models.assert_close(models.imported(proto, given), [wanted.astype(np.float32)])


def test_bytes_in_blocks() -> None:
    """onnxruntime quantises the rows, too, for those."""
    proto, given = quantized(8, 16, False, (6,))
    w, x = weights(proto), given["x0"].astype(np.float64)
    first, second = ((w[k] - 128) * np.repeat(w[k + 1], 16, 2) for k in (2, 5))
    wanted = in_float64(x, given["x1"], 2, (first, w[4]), (second, w[7]), among=True)
    models.assert_close(models.imported(proto, given), [wanted.astype(np.float32)])


@pytest.mark.parametrize("rows", [1, 7])
def test_as_a_library(rows: int) -> None:
    proto, given = quantized(4, 16, True, (rows,), **KINDS["swiglu, interleaved"])
    found = luminal.compile(proto).run(given)["y0"]
    models.assert_close([found], models.by_onnxruntime(proto, given), 2e-6)


# ---- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 5}, "expected k of 1 to 4"),
        ({"use_sparse_mixer": 1}, "use_sparse_mixer"),
        ({"activation_type": "tanh"}, "expected one of relu"),
        ({"activation_type": "swiglu", "swiglu_fusion": 0}, None),
    ],
    ids=str,
)
def test_bad_attributes_are_refused(options: dict[str, Any], message: str | None) -> None:
    proto, given = mixture((5,), **options)
    if message is None:  # without the third layer that it needs
        del proto.graph.node[0].input[6:]
        message = "swiglu_fusion"
    with pytest.raises(LuminalError, match=message):
        models.imported(proto, given)


@pytest.mark.parametrize(
    ("bits", "options", "message"),
    [
        (4, {"quant_type": "fp4"}, "quant_type"),
        (4, {"weights_prepacked": 1}, "weights_prepacked"),
        (4, {"expert_weight_bits": 3}, "3 bits"),
        (4, {"block_size": 8}, "scales for each"),
    ],
    ids=str,
)
def test_bad_weights_are_refused(bits: int, options: dict[str, Any], message: str) -> None:
    proto, given = quantized(bits, 16, False, **options)
    with pytest.raises(LuminalError, match=message):
        models.imported(proto, given)
