"""Small decoders as ONNX files, in the forms that exporters give them: onnxruntime-genai's and optimum's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, HEADS, SHARED, SIZE, INNER, LAYERS, CONTEXT = 96, 64, 4, 2, 16, 96, 2, 200
BLOCK = 32
Array = NDArray[Any]
MICROSOFT = "com.microsoft"


class _Writer:
    """Nodes and weights while they come together."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.drawn = np.random.default_rng(seed)

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **given: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], domain=domain, **given))
        return outputs[0]

    def weight(self, name: str, value: Array) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def draw(self, *shape: int, spread: float) -> Array:
        return (self.drawn.standard_normal(shape) * spread).astype(np.float32)

    def four_bits(self, x: str, name: str, rows: int, columns: int) -> str:
        """``MatMulNBits`` with a matrix of ``columns`` outputs in 4 bits."""
        packed = self.drawn.integers(0, 256, (columns, rows // BLOCK, BLOCK // 2), np.uint8)
        scales = np.abs(self.draw(columns * rows // BLOCK, spread=0.04)) + 0.02
        zeros = self.drawn.integers(0x66, 0x9A, columns * (-(-(rows // BLOCK) // 2)), np.uint8)
        inputs = [x, self.weight(f"{name}.q", packed), self.weight(f"{name}.s", scales.astype(np.float32)),
                  self.weight(f"{name}.z", zeros)]  # fmt: skip
        return self.node("MatMulNBits", inputs, [f"{name}.y"], MICROSOFT, K=rows, N=columns, bits=4, block_size=BLOCK)


def genai(folder: Path, seed: int = 0) -> Path:
    """A folder as the model builder of onnxruntime-genai writes it: ``GroupQueryAttention`` with its rotary positions,
    and matrices in ``MatMulNBits``."""
    w = _Writer(seed)
    w.weight("one", np.array([1], np.int64))
    total = w.node("ReduceSum", ["attention_mask", "one"], ["mask.sum"], keepdims=1)
    w.node("Sub", [total, "one"], ["mask.last"])
    w.node("Cast", ["mask.last"], ["seqlens_k"], to=TensorProto.INT32)
    w.node("Shape", ["attention_mask"], ["mask.shape"])
    w.node("Gather", ["mask.shape", w.weight("axis", np.array(1, np.int64))], ["mask.length"], axis=0)
    w.node("Cast", ["mask.length"], ["total_seq_len"], to=TensorProto.INT32)
    angles = np.arange(CONTEXT)[:, None] * 10_000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    w.weight("cos_cache", np.cos(angles).astype(np.float32))
    w.weight("sin_cache", np.sin(angles).astype(np.float32))
    x = w.node("Gather", [w.weight("embedding", w.draw(VOCABULARY, WIDTH, spread=1.0)), "input_ids"], ["hidden"])
    norm = w.weight("norm.0", 1 + w.draw(WIDTH, spread=0.2))
    normed = w.node("SimplifiedLayerNormalization", [x, norm], ["normed.0"], epsilon=1e-5, axis=-1, stash_type=1)
    for layer in range(LAYERS):
        q, k, v = (
            w.four_bits(normed, f"{role}.{layer}", WIDTH, count * SIZE)
            for role, count in (("q", HEADS), ("k", SHARED), ("v", SHARED))
        )
        past, present = (
            [f"{what}.{layer}.{kind}" for kind in ("key", "value")] for what in ("past_key_values", "present")
        )
        seen = w.node(
            "GroupQueryAttention",
            [q, k, v, *past, "seqlens_k", "total_seq_len", "cos_cache", "sin_cache"], [f"attention.{layer}", *present],
            MICROSOFT, num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1, rotary_interleaved=0, scale=SIZE**-0.5,
            local_window_size=-1, softcap=0.0,
        )  # fmt: skip
        added = w.four_bits(seen, f"o.{layer}", WIDTH, WIDTH)
        normed, x = _skipped(w, x, added, f"network.{layer}")
        gate, up = (w.four_bits(normed, f"{role}.{layer}", WIDTH, INNER) for role in ("gate", "up"))
        share = w.node("Sigmoid", [gate], [f"share.{layer}"])
        active = w.node("Mul", [gate, share], [f"active.{layer}"])
        inner = w.node("Mul", [active, up], [f"inner.{layer}"])
        normed, x = _skipped(w, x, w.four_bits(inner, f"down.{layer}", INNER, WIDTH), f"after.{layer}")
    w.node("MatMul", [normed, w.weight("head", w.draw(WIDTH, VOCABULARY, spread=0.5))], ["logits"])
    batch, count = "batch_size", "sequence_length"
    inputs = [_value("input_ids", TensorProto.INT64, batch, count),
              _value("attention_mask", TensorProto.INT64, batch, "total_sequence_length")]  # fmt: skip
    outputs = [_value("logits", TensorProto.FLOAT, batch, count, VOCABULARY)]
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            inputs.append(_cached(f"past_key_values.{layer}.{kind}", "past_sequence_length"))
            outputs.append(_cached(f"present.{layer}.{kind}", "total_sequence_length"))
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, w.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "decoder.onnx")
    described = {"model": {"type": "llama", "context_length": CONTEXT, "vocab_size": VOCABULARY, "eos_token_id": 5,
                           "decoder": {"filename": "decoder.onnx"}}}  # fmt: skip
    (folder / "genai_config.json").write_text(json.dumps(described))
    return folder


def _skipped(w: _Writer, x: str, added: str, name: str) -> tuple[str, str]:
    """The norm of a sum, and the sum."""
    weight = w.weight(f"{name}.norm", 1 + w.draw(WIDTH, spread=0.2))
    outputs = [f"{name}.normed", "", "", f"{name}.sum"]
    w.node("SkipSimplifiedLayerNormalization", [x, added, weight], outputs, MICROSOFT, epsilon=1e-5)
    return outputs[0], outputs[3]


def _value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _cached(name: str, rows: str) -> onnx.ValueInfoProto:
    return _value(name, TensorProto.FLOAT, "batch_size", SHARED, rows, SIZE)


class Step(torch.nn.Module):
    """A model of transformers as exporters see it: the cache is among the arguments and results."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        found = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, cache=cache,
            use_cache=True,
        )  # fmt: skip
        return found.logits, *(x for layer in found.cache.layers for x in (layer.keys, layer.values))


def optimum(model: Any, folder: Path) -> Path:
    """A folder as optimum writes it: ``model.onnx`` with plain operators, and ``config.json``."""
    config = model.config
    batch, count, past = 2, 3, 4
    heads, size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    kept = [torch.zeros(batch, heads, past, size) for _ in range(2 * config.num_hidden_layers)]
    places = torch.arange(past, past + count).expand(batch, count)
    given = (
        torch.ones(batch, count, dtype=torch.int64),
        torch.ones(batch, past + count, dtype=torch.int64),
        places,
        kept,
    )
    dim = torch.export.Dim.DYNAMIC
    shapes = ({0: dim, 1: dim}, {0: dim, 1: dim}, {0: dim, 1: dim}, [{0: dim, 2: dim} for _ in kept])
    names = [f"{{}}.{layer}.{kind}" for layer in range(config.num_hidden_layers) for kind in ("key", "value")]
    folder.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        Step(model).eval(), given, folder / "model.onnx", dynamo=True, dynamic_shapes=shapes,
        input_names=["input_ids", "attention_mask", "position_ids", *(n.format("past_key_values") for n in names)],
        output_names=["logits", *(name.format("present") for name in names)], external_data=False, verbose=False,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    return folder


class Session:
    """onnxruntime's answer to a sequence, its cache carried along."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.names = [value.name for value in self.session.get_inputs()]
        self.cache: dict[str, Array] = {
            value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
            for value in self.session.get_inputs() if value.name.startswith("past")
        }  # fmt: skip
        self.length = 0

    def step(self, tokens: Sequence[int]) -> Array:
        """The logits after the last of ``tokens``."""
        given = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, self.length + len(tokens)), np.int64)}
        if "position_ids" in self.names:
            given["position_ids"] = np.arange(self.length, self.length + len(tokens))[None]
        logits, *kept = self.session.run(None, {**given, **self.cache})
        self.cache = dict(zip(self.cache, kept, strict=True))
        self.length += len(tokens)
        result: Array = logits[0, -1]
        return result
