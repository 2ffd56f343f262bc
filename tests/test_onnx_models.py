"""Models of three kinds, exported by PyTorch's own exporter, against PyTorch: small here, but whole."""

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.core import interp, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.rewrite import simplify
from luminal.frontends.onnx import importer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

VOCABULARY = 100
BOUNDS = {"batch": (1, 8), "length": (1, 64)}
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """How to make one kind of model, and arguments for it of given sizes."""

    build: Callable[[], Any]
    arguments: Callable[[int, int], Arguments]
    dynamic: dict[str, dict[int, str]]


def bert() -> Any:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=VOCABULARY
    )
    return transformers.BertModel(config)


def resnet() -> Any:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck", num_labels=5
    )
    return transformers.ResNetForImageClassification(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=VOCABULARY, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def tokens(batch: int, length: int) -> Any:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(batch))


def masked_tokens(batch: int, length: int) -> Arguments:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, (length + 1) // 2 :] = 0
    return {"input_ids": tokens(batch, length), "attention_mask": mask}


def images(batch: int, _: int) -> Arguments:
    return {"pixel_values": torch.randn(batch, 3, 33, 47, generator=torch.Generator().manual_seed(batch))}


SEQUENCE = {0: "batch", 1: "length"}
KINDS = {
    "bert": Kind(bert, masked_tokens, {"input_ids": SEQUENCE, "attention_mask": SEQUENCE}),
    "resnet": Kind(resnet, images, {"pixel_values": {0: "batch"}}),
    "llama": Kind(llama, lambda b, n: {"input_ids": tokens(b, n)}, {"input_ids": SEQUENCE}),
}


@dataclass(frozen=True)
class Exported:
    kind: Kind
    module: Any
    path: Path


@pytest.fixture(
    scope="module", params=[("bert", 18), ("bert", 23), ("resnet", 18), ("llama", 18), ("llama", 23)],
    ids=lambda p: f"{p[0]}-{p[1]}",
)  # fmt: skip
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    name, opset = request.param
    kind = KINDS[name]
    torch.manual_seed(0)
    module = kind.build().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:  # the library's own initialisation is so narrow that errors would not show
                parameter.mul_(3)
    path = tmp_path_factory.mktemp(name) / f"{name}.onnx"
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (), str(path), kwargs=kind.arguments(2, 7), dynamo=True, opset_version=opset,
            dynamic_shapes=kind.dynamic, external_data=True, verbose=False,
        )  # fmt: skip
    logging.disable(logging.NOTSET)
    yield Exported(kind, module, path)


@pytest.mark.parametrize(("batch", "length"), [(2, 7), (3, 16), (1, 1)])
def test_agrees_with_pytorch_at_every_size(exported: Exported, batch: int, length: int) -> None:
    graph = importer.load(exported.path, dims={n: b for n, b in BOUNDS.items() if n in dims(exported.kind)})
    arguments = exported.kind.arguments(batch, length)
    found = interp.run(graph, {name: value.numpy() for name, value in arguments.items()}).outputs
    with torch.no_grad():
        wanted = list(exported.module(**arguments).values())
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        reference = b.numpy()
        assert a.dtype == reference.dtype and a.shape == reference.shape
        assert np.abs(reference).max() > 0.1
        assert np.abs(a - reference).max() <= 2e-6 * np.abs(reference).max()


def dims(kind: Kind) -> set[str]:
    return {name for axes in kind.dynamic.values() for name in axes.values()}


def test_what_the_graph_says_of_itself(exported: Exported) -> None:
    graph = importer.load(exported.path)
    assert {v.name for v in graph.dims} == dims(exported.kind)
    assert graph.structure["inputs"] == list(exported.kind.dynamic)
    order = traverse.topological(graph.results)
    weights = [node for node in order if node.op is ops.CONSTANT and node.attr.array.size >= 32]
    assert weights and all(node in graph.names for node in weights)
    assert set(graph.names.values()) & {name for name, _ in exported.module.named_parameters()}
    # Whatever computes carries an origin, and the exporter's stack traces lead to a line.
    origins = [graph.origins.get(node, ()) for node in order if node.op not in (ops.INPUT, ops.CONSTANT)]
    assert all(origins)
    assert sum(any(o.location for o in each) for each in origins) > len(origins) / 2


def test_no_arithmetic_on_shapes_is_left(exported: Exported) -> None:
    """Every size is an expression over the inputs' sizes, and simplified, one number alone computes nothing."""
    graph = importer.load(exported.path)
    order = traverse.topological(graph.results)
    assert all(sym.variables(d) <= set(graph.dims) for node in order for d in node.shape)
    for node in traverse.topological(simplify(graph).results):
        if node.dtype.is_integer and node.op.kind is ops.Kind.ELEMENTWISE:
            assert node.size != 1, node
