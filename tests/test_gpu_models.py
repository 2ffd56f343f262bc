"""Whole models as kernels for GPUs, run by the emulator, against the interpreter of graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import luminal
from benchmarks import zoo
from benchmarks.zoo import language
from luminal.codegen import dialects
from luminal.comparison.measure import distance
from luminal.comparison.oracle import Oracle
from luminal.core import interp
from luminal.core import target as targets
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.target import Target
from luminal.frontends.fx import importer
from luminal.module import Module
from luminal.tensors import to_numpy
from tests.codegen_gpu_support import Emulated
from tests.schedule_support import refusals, run_program

CUDA, METAL = targets.GPUS["cuda:sm_90"], targets.GPUS["metal"]


def decoder() -> zoo.Model:
    """A small model of Llama's shape: grouped queries, rotated positions, gated layers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    module = language.Decoder(transformers.LlamaForCausalLM(config)).eval()
    dims = {name: {0: "batch", 1: "seq"} for name in ("input_ids", "attention_mask")}
    return zoo.Model(module, zoo.sentences(2, 5, 64)[:2], {**dims, "batch": (1, 4), "seq": (1, 16)})


def few(model: zoo.Model) -> zoo.Model:
    """Two images: its normalisations took their statistics of more."""
    return model._replace(inputs=(model.inputs[0][:2],))


# Few layers, small inputs.
MODELS: dict[str, Callable[[], zoo.Model]] = {
    "decoder": decoder,
    "minilm": lambda: zoo.minilm(batch=1, seq=3),
    "mobilenet": lambda: few(zoo.mobilenet(repeats=False, batch=16, size=32)),
    "resnet50": lambda: few(zoo.resnet50((1, 1, 1, 1), batch=16, size=32)),
}


@cache
def made(name: str, symbolic: bool, dtype: torch.dtype) -> tuple[Graph, dict[str, np.ndarray[Any, Any]]]:
    model = MODELS[name]()
    module = model.module.to(dtype)
    examples = tuple(x.to(dtype) if x.is_floating_point() else x for x in model.inputs)
    graph = importer.load(module, examples, dims=model.dims if symbolic else None)
    return graph, {node.attr.name: to_numpy(x, node.attr.name) for node, x in zip(graph.inputs, examples, strict=True)}


ATTENDING = ("decoder", "minilm")  # of whose kernels one is a chain


def outputs(name: str, graph: Graph, inputs: dict[str, np.ndarray[Any, Any]], target: Target, folder: Path) -> Any:
    """What the kernels of ``graph``, the model ``name``, give under emulation."""
    program = compile_graph(graph, target)
    assert not refusals(program)
    assert any(kernel.name.startswith("chain") for kernel in program.kernels) == (name in ATTENDING)
    emulated = Emulated({k.name: k.nest for k in program.kernels}, dialects.ALL[target.dialect], folder)
    return run_program(program, inputs, run_kernel=emulated.run_nest)


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.dialect)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_agrees_with_the_interpreter(name: str, target: Target, symbolic: bool, tmp_path: Path) -> None:
    graph, inputs = made(name, symbolic, torch.float32)
    found = outputs(name, graph, inputs, target, tmp_path)
    for (output, _), expected in zip(graph.outputs, interp.run(graph, inputs).outputs, strict=True):
        reference = expected.astype(np.float64)
        assert np.abs(found[output] - reference).max() <= 1e-5 * np.abs(reference).max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.dialect)
@pytest.mark.parametrize("name", ["decoder", "mobilenet"])
def test_a_model_of_few_digits_agrees_with_float64(
    name: str, target: Target, dtype: torch.dtype, tmp_path: Path
) -> None:
    graph, inputs = made(name, False, dtype)
    found = outputs(name, graph, inputs, target, tmp_path)
    oracle = Oracle(graph, inputs)
    for output, node in graph.outputs:
        apart = distance(found[output], oracle.exact(node))
        assert not oracle.refutes(node, found[output]), (apart, oracle.allowed(node))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", [name for name, t in targets.GPUS.items() if t.grid is not None and t.grid.emulated])
def test_windows_with_a_border_are_contractions_of_rounded_operands(name: str, precision: str, tmp_path: Path) -> None:
    """The second convolution reads, under a mask, what the first one leaves rounded."""
    if precision not in map(str, targets.GPUS[name].precisions):
        pytest.skip(f"{name} has no products in {precision}")
    torch.manual_seed(0)
    layers = (
        torch.nn.Conv2d(4, 8, 3, 1, 1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1),
        torch.nn.Conv2d(8, 8, 3, 2, 1),
    )
    module, x = torch.nn.Sequential(*layers).eval(), torch.randn(2, 4, 12, 12)
    graph = importer.load(module, (x,))
    target = targets.parse(name, precision)
    program = compile_graph(graph, target)
    assert sum(kernel.name.startswith("contraction") for kernel in program.kernels) == 2
    emulated = Emulated({k.name: k.nest for k in program.kernels}, dialects.ALL[target.dialect], tmp_path)
    inputs = {node.attr.name: to_numpy(x, node.attr.name) for node in graph.inputs}
    ((output, node),) = graph.outputs
    found = run_program(program, inputs, run_kernel=emulated.run_nest)[output]
    oracle = Oracle(graph, inputs, precision=target.precision)
    assert not oracle.refutes(node, found), (distance(found, oracle.exact(node)), oracle.allowed(node))


@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.dialect)
def test_an_emulated_library_agrees_with_the_interpreter(target: Target) -> None:
    """Host code and plan of memory included, at two sizes of batch and sequence."""
    graph, inputs = made("decoder", True, torch.float32)
    module = luminal.compile(graph, target=target, emulate=True)
    assert isinstance(module, Module)
    shorter = {name: np.ascontiguousarray(x[:1, :3]) for name, x in inputs.items()}
    for values in (inputs, shorter, inputs):
        found = module.run(values)
        for (output, _), expected in zip(graph.outputs, interp.run(graph, values).outputs, strict=True):
            reference = expected.astype(np.float64)
            assert np.abs(found[output] - reference).max() <= 1e-5 * np.abs(reference).max()
