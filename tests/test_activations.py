"""Activations that are rounded where quantised weights multiply them: which, how, and what is said of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import luminal
from luminal import api, cli
from luminal.core import interp, ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.numeric import activations, quantise
from luminal.frontends.llm import blocks, families, graph
from luminal.frontends.llm.cache import Room
from luminal.frontends.llm.checkpoint import Module as Checkpoint
from luminal.module import Module
from tests.llm_support import VOCABULARY, logits, models
from tests.test_quantise import rounded as rounded_weights

Array = np.ndarray[Any, Any]
UNIT = 2.0**-24
ROWS, DEPTH, COLUMNS = 5, 512, 160


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x: Array, to: str, block: int) -> Array:
    """``x [rows, K]`` as the formulas have it."""
    if to == "bf16":
        return np.asarray(x.astype(ml_dtypes.bfloat16).astype(np.float32))
    parts = x.reshape(x.shape[0], -1, block)
    scale = np.abs(parts).max(-1, keepdims=True) / np.float32(127)
    whole = np.rint(parts / np.where(scale == 0, np.float32(1), scale))
    return np.asarray((whole * scale.astype(np.float64)).reshape(x.shape))


def linear(depth: int = DEPTH) -> tuple[Graph, Array]:
    weight = drawn(0, COLUMNS, depth)
    rows = sym.Var("rows", 1, 64)
    x = ir.input_("x", (sym.expr(rows), depth), types.f32)
    y = contraction.matmul(x, movement.transpose(ir.constant(weight), 0, 1))
    return Graph("linear", (x,), (("y", y),), (rows,)), weight


@pytest.mark.parametrize("to", ["bf16", "q8"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_products_are_those_of_the_rounded_numbers(weights: str, to: str) -> None:
    """Of one row and of several: one with zeros, one with numbers of very different sizes."""
    graph, weight = linear()
    module = luminal.compile(graph, weights=weights, activations=to, threads=2)
    assert isinstance(module, Module)
    x = drawn(1, ROWS, DEPTH)
    x[1], x[2, ::3] = 0, x[2, ::3] * 1e-5
    real = rounded(x, to, DEPTH if weights == "int8" else 32).astype(np.float64)
    factors = real, rounded_weights(weight, weights).astype(np.float64).T
    wanted, magnitudes = factors[0] @ factors[1], np.abs(factors[0]) @ np.abs(factors[1])
    for count in (1, ROWS):
        found = module(x[:count])
        assert (np.abs(found - wanted[:count]) <= 4 * np.sqrt(DEPTH) * UNIT * magnitudes[:count]).all()
    exact = x.astype(np.float64) @ factors[1]
    assert np.abs(wanted - exact).max() > 1e3 * UNIT * magnitudes.max()  # rounding is seen
    assert module.approximated("activations") == 1 and f"activations: : {to}" in module.explain()


def test_one_scale_of_a_row_gives_sums_of_integers() -> None:
    """A unit for bytes computes them, of a prompt as of one token."""
    graph, _ = linear()
    target = targets.parse("avx512-vnni")
    scheme = quantise.parse("int8")
    assert scheme is not None
    made = activations.rounded(quantise.quantised(graph, scheme), "q8")
    seen: dict[str, Any] = {}
    program = compile_graph(made, target, seen.__setitem__)
    tiles = [kernel for kernel in program.kernels if "vpdpbusd" in str(kernel.nest)]
    assert len(tiles) == 1


def test_what_is_not_quantised_or_fills_no_blocks_stays() -> None:
    graph, _ = linear()
    assert activations.rounded(graph, "q8").roots == graph.roots
    scheme = quantise.parse("int4-128")
    assert scheme is not None
    made = activations.rounded(quantise.quantised(graph, scheme), "q8")
    assert [x.option for x in made.approximations] == ["weights", "activations"]
    odd, _ = linear(420)  # of int8 rows, whatever their length
    assert len(activations.rounded(quantise.quantised(odd, quantise.ALL["int8"]), "q8").approximations) == 2


def test_names_are_checked() -> None:
    graph, _ = linear()
    with pytest.raises(InputError, match="unknown activations 'q4': expected float32, bf16, q8"):
        luminal.compile(graph, activations="q4")
    assert activations.parse("float32") is None


@pytest.mark.parametrize(("to", "weights"), [("q8", "int8"), ("q8", "int4"), ("bf16", "int8")])
def test_diff_knows_of_it(to: str, weights: str) -> None:
    """What rounding explains is no mismatch; without the option the same library would be one."""
    module = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256)).eval()
    with torch.no_grad():
        for number, value in enumerate(module.parameters()):
            value.copy_(torch.from_numpy(drawn(number, *value.shape)) / 16)
    x = torch.from_numpy(drawn(9, 3, 256))
    report = luminal.diff(module, (x,), weights=weights, activations=to, threads=2)
    assert report.ok and f"activations in {to} (operators: 2)" in str(report.as_json())


class Stop(Exception):
    """Nothing more is to be seen."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("activations") / "model.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(256, 512).eval(), (torch.zeros(3, 256),)), path)
    return path


COMMANDS: dict[str, list[str]] = {
    "compile": ["-o", "built"], "bench": [], "profile": [], "view": ["-o", "page.html"], "tune": ["--budget", "1"],
    "plan": ["--mesh", "tensor=2", "--node", "1GFLOP/s,1GB/s"], "diff": [],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_compiles_takes_them(
    command: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph that is compiled, or whose kernels are measured, has rounded activations."""
    found: list[str] = []

    def seen(name: str, graphs: Mapping[str, Graph], *_: Any, **__: Any) -> None:
        found.extend(x.what for graph in graphs.values() for x in graph.approximations if x.option == "activations")
        raise Stop

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "compile_graphs", seen)
    monkeypatch.setattr(api.tuning, "tune", seen)
    given = [command, str(program), "--weights", "int8", *COMMANDS[command], "--activations"]
    result = CliRunner().invoke(cli.app, [*given, "q8"])
    assert isinstance(result.exception, Stop), result.output
    assert found == ["q8"]
    result = CliRunner().invoke(cli.app, [*given, "q7"])
    assert result.exit_code == 2 and "'q7'" in result.output


# ---- language models -------------------------------------------------------------------------------------------------


def entry(name: str, length: int) -> Graph:
    """The entry that reads a prompt, of a model with blocks of 8 bits."""
    config, tensors = families.read(Checkpoint(models(name).single), 64, blocks.ENCODED["q8_0"])
    made = graph.graphs("model", config, tensors, Room(64, chunk=length))["prefill"]
    assert len(tensors.approximations(made)) > 0
    return made


@pytest.mark.parametrize(
    ("name", "products"),
    # Two layers, of four products of attention and those of the network, and the head; routers stay as they are, and of
    # the second mixture, whose experts have 48 features between, what is multiplied with these.
    [("llama", 2 * 7 + 1), ("gpt2", 2 * 6 + 1), ("mixtral", 2 * 7 + 1), ("qwen3_moe", 2 * 6 + 1)],
)
@pytest.mark.parametrize("to", ["bf16", "q8"])
def test_every_product_with_blocks_takes_rounded_activations(name: str, products: int, to: str) -> None:
    for made in (entry(name, 8), entry(name, 1)):
        found = activations.rounded(made, to).approximations
        assert [x.what for x in found if x.option == "activations"] == [to] * products


def test_a_language_model_computes_from_rounded_numbers() -> None:
    """As transformers does in float64 with what its products read rounded alike. Beside a tie a number may be rounded
    the other way: what that changes is a small part of what rounding does, and a product that is not rounded more."""
    prompt = np.random.default_rng(2).integers(0, VOCABULARY, 12)
    made = activations.rounded(entry("llama", 12), "q8")
    given: dict[str, Array] = {"tokens": prompt[None], "positions": np.zeros(1, np.int64)}
    given |= {state.name: interp.evaluate([state.initial])[0] for state in made.states}
    left = dict(zip([name for name, _ in made.outputs], interp.run(made, given).outputs, strict=False))
    found = left["logits.next"][0]

    def by_blocks(x: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        parts = x.reshape(*x.shape[:-1], -1, 32)
        scale = parts.abs().amax(-1, keepdim=True) / 127
        return (torch.round(parts / scale) * of(scale)).reshape(x.shape)

    whole = copy.deepcopy(models("llama").double)
    for module in whole.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            module.weight.data = by_blocks(module.weight.data, lambda scale: scale.half().double())
    plain = logits(whole, prompt)[-1]
    for module in whole.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, args: (by_blocks(args[0], lambda scale: scale),))
    wanted = logits(whole, prompt)[-1]
    assert np.abs(found - wanted).max() < 0.05 * np.abs(plain - wanted).max()
