"""Forecasts of models on a mesh: what they count, how times follow from rates, the command."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import luminal
from luminal import api, cli, meshes, planning
from luminal.core import target as targets
from luminal.core.errors import InputError, UnsupportedError
from luminal.core.mesh import traffic
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.program.ir import Program
from luminal.llm import reading
from luminal.planning import Node, Outlook
from tests.test_llm_mesh import models as language_models
from tests.test_mesh import FREE, model

NODE = "100GFLOP/s,20GB/s"
TARGET = targets.AVX2


@cache
def outlook(ranks: int = 2) -> Outlook:
    module, x = model("block")
    return luminal.plan(
        module, (x,), mesh={"tensor": ranks}, shard={"0.up.weight": {"tensor": 0}}, link=FREE, node=NODE, threads=1
    )


@cache
def programs() -> tuple[Program, Program]:
    """Of one rank alone, and of a rank among two, divided as over a free link."""
    module, x = model("block")
    graphs = {"main": api.read(module, (x,))}
    divided = meshes.divided(graphs, {"tensor": 2}, {"0.up.weight": {"tensor": 0}}, FREE)
    alone, rank = (compile_graphs("block", each, TARGET) for each in (graphs, divided.ranks[0]))
    return alone, rank


def over(link: str, node: str = NODE) -> Outlook:
    """The same programs, over another link, or on another node."""
    rates = planning.parse_node(node)
    return planning.outlook({"tensor": 2}, *programs(), TARGET, 1, rates, meshes.parse_link(link))


def test_what_is_sent_is_what_the_graph_of_a_rank_sends() -> None:
    module, x = model("block")
    graph = api.read(module, (x,))
    divided = meshes.divided({"main": graph}, {"tensor": 2}, {"0.up.weight": {"tensor": 0}}, FREE)
    assert outlook().divided["main"].traffic == traffic.sent(divided.ranks[0]["main"])
    assert outlook().divided["main"].traffic["tensor"].messages > 0 and not outlook().alone["main"].traffic
    assert outlook().plan == tuple(meshes.explained(divided))


def test_a_rank_has_a_part_of_the_weights_and_of_the_work() -> None:
    two, four = outlook(), outlook(4)
    assert four.memory.weights < two.memory.weights < two.memory_alone.weights
    whole = two.memory_alone.weights  # less than the module's: vectors that are equal are stored once
    assert whole / 2 <= two.memory.weights < whole * 0.75
    assert whole <= sum(value.numel() for value in model("block")[0].parameters()) * 4
    assert two.divided["main"].computing < two.alone["main"].computing
    assert two.memory.all == two.memory.weights + two.memory.states + two.memory.arena and two.memory.arena > 0


def test_times_follow_from_the_rates() -> None:
    """A node twice as fast takes half the time; a slow link is waited for, and a free one is not."""
    base, fast = over(FREE), over(FREE, "200GFLOP/s,40GB/s")
    assert base.alone["main"].seconds == pytest.approx(2 * fast.alone["main"].seconds)
    free, slow = base.divided["main"], over("1MB/s,1ms").divided["main"]
    assert slow.computing == free.computing
    sent = slow.traffic["tensor"]
    assert slow.exchanging == pytest.approx(sent.messages * 1e-3 + sent.bytes / 1e6)  # two ranks: one message each
    assert slow.exchanging - slow.computing <= slow.waiting <= slow.exchanging
    assert free.waiting <= free.exchanging < 0.1 * free.computing
    assert over(FREE).speedup("main") > 1 > over("1MB/s,1ms").speedup("main")


def test_a_measured_run_scales_all_of_them() -> None:
    before = over("10GB/s,5us")
    seen = before.scaled(1.0)
    assert seen.alone["main"].seconds == pytest.approx(1.0)
    assert seen.divided["main"].computing == pytest.approx(
        before.divided["main"].computing / before.alone["main"].computing
    )
    assert seen.divided["main"].waiting <= before.divided["main"].waiting


def test_loops_count_their_rounds() -> None:
    def steps(x: torch.Tensor, length: int) -> torch.Tensor:
        return torch._higher_order_ops.scan(lambda s, y: (torch.tanh(s + y), s * 1), x[0], x[:length])[0]

    def seconds(length: int) -> float:
        module = torch.nn.Module()
        module.forward = lambda x: steps(x, length)  # type: ignore[assignment]
        graph = api.read(module.eval(), (torch.randn(64, 512),))
        program = compile_graphs("loop", {"main": graph}, TARGET)
        found = planning.forecasts(program, TARGET, 1, Node(1e11, 2e10), meshes.parse_link(None))
        return found["main"].computing

    assert 3.5 < seconds(32) / seconds(8) < 4.5


def test_a_thousand_ranks_take_no_longer_to_foretell() -> None:
    found = luminal.plan(
        torch.nn.Linear(64, 64).eval(), (torch.randn(2048, 64),), mesh={"data": 1024}, node=NODE,
        shard={"input": {"data": 0}, "output": {"data": 0}}, threads=1,
    )  # fmt: skip
    assert found.ranks == 1024 and found.speedup("main") > 50
    assert found.memory.weights == found.memory_alone.weights
    assert found.divided["main"].traffic["data"] == traffic.Traffic()


def test_kernels_of_gpus_take_what_their_operations_or_their_bytes_take() -> None:
    """One product of matrices of 1024 rows and columns: for two ranks half of them."""

    def seconds(node: str) -> tuple[float, float]:
        module = torch.nn.Linear(1024, 1024, bias=False).eval()
        shard = {"weight": {"tensor": 0}, "output": {"tensor": 1}}
        mesh = {"tensor": 2}
        found = luminal.plan(module, (torch.randn(1024, 1024),), mesh=mesh, shard=shard, node=node, target="cuda:sm_90")
        assert found.threads is None and set(planning.OF_GPUS) < set(found.not_modelled)
        return found.alone["main"].computing, found.divided["main"].computing

    operations, whole = 2 * 1024**3, 3 * 4 << 20
    assert seconds("1TFLOP/s,1000TB/s") == pytest.approx((operations / 1e12, operations / 2e12))
    assert seconds("1000TFLOP/s,1GB/s") == pytest.approx((whole / 1e9, whole * 2 / 3 / 1e9))


def test_this_machine_is_measured_where_no_node_is_described() -> None:
    found = luminal.plan(torch.nn.Linear(8, 8).eval(), (torch.randn(4, 8),), mesh={"data": 2}, threads=1)
    assert found.node.operations > 1e8 and found.node.bytes > 1e8


# ---- the command -----------------------------------------------------------------------------------------------------


@cache
def onnx_bytes() -> bytes:
    random = np.random.default_rng(0)
    weights = {"up": random.standard_normal((64, 256)), "down": random.standard_normal((256, 64))}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "up"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "down"], ["y"]),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 64])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return onnx.helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mlp.onnx").write_bytes(onnx_bytes())
    return tmp_path / "mlp.onnx"


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    return done.exit_code, done.output


def test_the_command_shows_a_table_and_what_it_leaves_out(file: Path) -> None:
    code, said = run("plan", file, "--mesh", "tensor=2", "--link", FREE, "--node", NODE)
    assert code == 0 and "2 ranks (tensor 2)" in said and "not modelled: caches" in said
    assert "up: axis 1 in parts of 128 along tensor" in said and "down: axis 0 in parts of 128 along tensor" in said


def test_programs_get_one_object(file: Path) -> None:
    code, said = run("plan", file, "--mesh", "tensor=2", "--node", NODE, "--json", "--shard", "up=tensor:1")
    found = json.loads(said[said.index("{") :])
    assert code == 0 and found["ranks"] == 2 and found["mesh"] == {"tensor": 2}
    assert found["divided"]["main"]["traffic"]["tensor"]["messages"] == 1
    assert found["memory"]["weights"] < found["memory_alone"]["weights"]


def test_compile_takes_a_mesh(file: Path, tmp_path: Path) -> None:
    code, said = run("compile", file, "--mesh", "tensor=2", "--shard", "up=tensor:1", "-o", tmp_path / "out")
    assert code == 0, said
    assert {"mlp.weights", "mlp.weights.1"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_language_models_are_foretold_from_their_checkpoints(tmp_path: Path) -> None:
    """A prompt and a token: two ranks have half of each large matrix, and exchange what a layer's two pairs of products
    give, once each."""
    single, _ = language_models(layers=2)
    single.save_pretrained(tmp_path / "llama")
    mesh = ("--mesh", "tensor=2", "--link", FREE, "--node", NODE)
    code, said = run("plan", tmp_path / "llama", *mesh, "--context", 64, "--json")
    found = json.loads(said[said.index("{") :])
    assert code == 0 and found["divided"].keys() == {"prefill", "decode"}
    code, said = run("plan", tmp_path / "llama", *mesh, "--context", 64)
    lines = [line for line in said.splitlines() if "mlp.up_proj" in line and line.startswith("decode")]
    assert code == 0 and lines == [
        "decode: model.layers.*.mlp.up_proj.weight: axis 0 in parts of 64 along tensor (2 of them)"
    ]
    whole = luminal.llm.plan(single, mesh={"tensor": 2}, link=FREE, node=NODE, context=128)
    assert found["memory"]["states"] < whole.memory.states < whole.memory_alone.states
    large = sum(p.numel() * 4 for p in single.parameters() if p.dim() == 2)
    assert large / 2 <= whole.memory.weights < large * 0.75 and whole.memory_alone.weights >= large
    graphs = reading.read(single, context=128).graphs
    divided = meshes.divided({"decode": graphs["decode"]}, {"tensor": 2}, link=FREE)
    assert whole.divided["decode"].traffic == traffic.sent(divided.ranks[0]["decode"])
    assert whole.speedup("prefill") > 1 and whole.divided["prefill"].computing > whole.divided["decode"].computing


@pytest.mark.parametrize("more", [("--dim", "batch=2"), ("--algebra", "exact")])
def test_options_of_other_models_are_none_of_language_models(more: tuple[str, str], tmp_path: Path) -> None:
    code, said = run("plan", tmp_path, "--mesh", "tensor=2", *more)
    assert code == 2 and f"{more[0]} is for .onnx and .pt2 files, found a language model" in said


def test_a_folder_that_holds_no_language_model_is_refused(file: Path) -> None:
    (file.parent / "empty").mkdir()
    for folder in (file.parent, file.parent / "empty"):
        code, said = run("plan", folder, "--mesh", "tensor=2")
        assert code and str(folder) in said.replace("\n", ""), said
    code, said = run("plan", file, "--mesh", "tensor=2", "--context", 64)
    assert code == 2 and "--context: expected a language model" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--mesh tensor=2"),
        (["--mesh", "tensor"], "expected AXIS=SIZE"),
        (["--mesh", "tensor=1"], "expected 2 .. 4096 ranks, found 1"),
        (["--mesh", "tensor=2", "--node", "fast"], "expected two rates such as 500GFLOP/s,40GB/s, found 'fast'"),
        (["--mesh", "tensor=2", "--node", "0GFLOP/s,1GB/s"], "expected two rates"),
        (["--mesh", "tensor=2", "--link", "10"], "expected a rate and a time such as 25GB/s,10us"),
        (["--mesh", "tensor=2", "--shard", "up"], "expected NAME=AXIS:NUMBER"),
        (["--mesh", "tensor=2", "--shard", "up=tensor"], "NAME=whole"),
        (["--mesh", "tensor=2", "--shard", "up=data:0"], "expected an axis of tensor"),
        (["--mesh", "tensor=2", "--measured", "-1"], "expected seconds of a run"),
        (["--mesh", "tensor=2", "--target", "cuda:sm_80"], "node: expected what cuda:sm_80 computes and moves"),
    ],
)
def test_what_makes_no_sense_is_refused(file: Path, more: list[str], said: str) -> None:
    code, output = run("plan", file, *more)
    assert code == 2 and said in " ".join(output.replace("│", " ").split())


def test_a_target_without_meshes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a mesh of devices is for CPUs and for NVIDIA's GPUs"):
        luminal.plan(
            torch.nn.Linear(8, 8).eval(), (torch.randn(4, 8),), mesh={"data": 2}, target="metal", node=NODE,
            shard={"input": {"data": 0}, "output": {"data": 0}},
        )  # fmt: skip


def test_a_node_is_two_rates() -> None:
    assert planning.parse_node("1.5TFLOP/s, 40GB/s") == Node(1.5e12, 4e10)
    with pytest.raises(InputError, match="two rates"):
        planning.parse_node("1..5TFLOP/s,40GB/s")
