"""The zoo's models through the PyTorch front end and the interpreter: real widths, few layers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from benchmarks import zoo
from luminal.core import interp
from luminal.core.ir import Graph
from luminal.frontends.fx import importer
from tests.fx_support import Call, run


def outputs(model: zoo.Model, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    with torch.no_grad():
        result = model.module(*inputs)
    return list(result) if isinstance(result, tuple) else [result]


def agrees(graph: Graph, model: zoo.Model, inputs: tuple[torch.Tensor, ...]) -> None:
    for found, expected in zip(run(graph, inputs), outputs(model, inputs), strict=True):
        reference = expected.numpy()
        assert found.shape == reference.shape
        assert abs(found - reference).max() <= 1e-5 * abs(reference).max()


@functools.cache
def decoder() -> zoo.Model:
    return zoo.tinyllama(layers=1, seq=9)


CASES = {"minilm": lambda: zoo.minilm(seq=9), "bert_base": lambda: zoo.bert_base(layers=1, seq=9), "tinyllama": decoder}


@pytest.mark.parametrize("name", CASES)
def test_language_models_of_any_size(name: str) -> None:
    model = CASES[name]()
    graph = importer.load(model.module, model.inputs, dims=model.dims)
    assert [v.name for v in graph.dims] == ["batch", "seq"]
    for batch, seq in ((2, 9), (1, 1), (3, 24)):
        agrees(graph, model, zoo.sentences(batch, seq, 30000)[: len(model.inputs)])


def test_a_decoder_without_a_mask_makes_its_own() -> None:
    module = decoder().module.decoder
    model = zoo.Model(Call(lambda ids: module(ids).logits).eval(), zoo.sentences(2, 6, 32000)[:1], {})
    dims = {"args_0": ("batch", "seq"), "batch": (1, 4), "seq": (1, 64)}
    graph = importer.load(model.module, model.inputs, dims=dims)
    for batch, seq in ((2, 6), (1, 1), (3, 40)):
        agrees(graph, model, zoo.sentences(batch, seq, 32000)[:1])


def test_resnet() -> None:
    model = zoo.resnet50(depths=(1, 2, 1, 1), batch=2, size=64)
    graph = importer.load(model.module, model.inputs, dims=model.dims)
    agrees(graph, model, model.inputs)
    agrees(graph, model, (model.inputs[0][:1],))


@pytest.mark.parametrize(
    "make",
    [
        lambda: zoo.bert_base(2),
        lambda: zoo.tinyllama(2),
        lambda: zoo.resnet50((2, 2, 2, 2), size=64),
        lambda: zoo.mobilenet(False, size=64),
        lambda: zoo.convnext((1, 1, 1, 1), size=64),
        lambda: zoo.vit(2, size=32),
        lambda: zoo.whisper_encoder(2, positions=16),
    ],
    ids=["bert_base", "tinyllama", "resnet50", "mobilenet", "convnext", "vit", "whisper"],
)
def test_blocks_keep_a_standard_deviation_near_one(make: Callable[[], zoo.Model]) -> None:
    model = make()
    found: dict[str, float] = {}

    def record(name: str) -> object:
        def hook(block: object, inputs: object, output: object) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            assert isinstance(tensor, torch.Tensor)
            found[name] = tensor.std().item()

        return hook

    blocks = {"BertLayer", "LlamaDecoderLayer", "ResNetBottleNeckLayer", "ViTLayer", "ConvNextLayer"}
    blocks |= {"MobileNetV2InvertedResidual", "WhisperEncoderLayer"}
    for name, block in model.module.named_modules():
        if type(block).__name__ in blocks:
            block.register_forward_hook(record(name))
    results = outputs(model, model.inputs)
    assert len(found) >= 2 and all(0.5 < value < 2 for value in found.values()), found
    assert all(0.3 < tensor.std() < 3 for tensor in results)


def test_float64_reference_agrees_with_the_typed_run() -> None:
    model = zoo.bert_base(1)
    graph = importer.load(model.module, model.inputs)
    arrays = {node.attr.name: t.numpy() for node, t in zip(graph.inputs, model.inputs, strict=True)}
    typed, exact = (interp.run(graph, arrays, mode).outputs[0] for mode in interp.MODES)
    assert 0 < abs(typed - exact).max() < 1e-5 * abs(exact).max()
