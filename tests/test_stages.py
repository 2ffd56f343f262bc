"""One small model at each stage of the compiler, as text: what docs/architecture.md shows, cut down by docs/tour.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from luminal.codegen import render
from luminal.core import config, interp, printer, target
from luminal.core.errors import SpecError
from luminal.core.pipeline import PASSES, compile_graph
from luminal.core.schedule.fusion.text import fusion_text
from luminal.core.schedule.nest.text import nest_text
from luminal.core.schedule.numeric import long_reductions
from luminal.core.schedule.program import ir
from luminal.frontends.onnx import importer
from tests.conftest import Golden
from tests.schedule_support import run_program

STAGES = ("graph", "canonical", "prepared", "fusion", "nests", "program", "kernels")


def model() -> Any:
    """``softmax(relu((x W + b) * 1))`` over groups of five: a fold, a contraction with its epilogue, a row."""
    random = np.random.default_rng(0)
    constants = {
        "W": random.integers(-4, 5, (6, 20)).astype(np.float32) / 4,
        "b": random.integers(-4, 5, 20).astype(np.float32) / 4,
        "one": np.array(1, np.float32),
        "shape": np.array([0, 4, 5]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["xw"], "hidden"),
        helper.make_node("Add", ["xw", "b"], ["sum"], "bias"),
        helper.make_node("Mul", ["sum", "one"], ["same"], "identity"),
        helper.make_node("Relu", ["same"], ["activated"], "activation"),
        helper.make_node("Reshape", ["activated", "shape"], ["groups"], "group"),
        helper.make_node("Softmax", ["groups"], ["probabilities"], "normalisation", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "groups",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 6])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", 4, 5])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def reached() -> dict[str, Any]:
    """The value of every stage that the pipeline announces."""
    found: dict[str, Any] = {}
    graph = importer.load(model(), dims={"rows": (1, 8)})
    assert compile_graph(graph, target.AVX2, found.__setitem__) is found["program"]
    return found


@pytest.fixture(scope="module")
def texts(reached: dict[str, Any]) -> dict[str, str]:
    compiled = reached["program"]
    bundle = render.render(compiled, target.AVX2)
    return {
        "graph": printer.text(reached["graph"]),
        "canonical": printer.text(reached["long reductions"]),
        "prepared": printer.text(reached["preparation for kernels"]),
        "fusion": fusion_text(reached["arrangement"]),
        "nests": "\n\n".join(f"{kernel.name}:\n{nest_text(kernel.nest)}" for kernel in compiled.kernels),
        "program": ir.text(compiled),
        "kernels": "\n".join(bundle.files[path] for path in bundle.kernels),
    }


@pytest.mark.parametrize("number", range(len(STAGES)), ids=STAGES)
def test_stage(number: int, texts: dict[str, str], golden: Golden) -> None:
    stage = STAGES[number]
    suffix = "cpp" if stage == "kernels" else "txt"
    golden.check(f"stages/{number}_{stage}.{suffix}", texts[stage].rstrip("\n") + "\n")


def test_what_each_stage_does(texts: dict[str, str]) -> None:
    """Golden files are blessed easily: what must hold whatever their details."""
    assert tuple(texts) == STAGES
    assert "Constant one 1.0" in texts["graph"] and "Constant one" not in texts["canonical"]
    for operator in ("hidden", "bias", "identity", "activation", "normalisation"):
        assert all(f"'{operator}'" in texts[stage] for stage in ("graph", "canonical", "program", "kernels"))
    assert "contraction(" in texts["fusion"] and "row(" in texts["fusion"]
    assert "contract over" in texts["nests"]


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_every_stage_computes_the_same(rows: int, reached: dict[str, Any]) -> None:
    inputs = {"x": np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)}
    (expected,) = ReferenceEvaluator(model()).run(None, inputs)
    for stage in ("graph", *(name for name in PASSES if name in reached)):
        (found,) = interp.run(reached[stage], inputs).outputs
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, err_msg=stage)
    found = run_program(reached["program"], inputs)["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("chosen", "precision", "absent"),
    [
        ("avx512-vnni", "bf16", set()),
        ("avx512-vnni", "fp32", {"rounding of operands", "fewer digits"}),
        ("x86-64", "bf16", {"integer contractions", "blocks that a number moves"}),
    ],
)
def test_only_passes_that_apply_are_run(chosen: str, precision: str, absent: set[str]) -> None:
    reached: list[str] = []
    graph = importer.load(model(), dims={"rows": (1, 8)})
    compile_graph(graph, target.parse(chosen, precision), lambda stage, value: reached.append(stage))
    assert reached == ["graph", *(name for name in PASSES if name not in absent), "arrangement", "program"]


def test_the_order_of_sums_is_left_where_it_is_to_be() -> None:
    reached: list[str] = []
    graph = importer.load(model(), dims={"rows": (1, 8)})
    compile_graph(graph, target.parse("avx2", algebra="exact"), lambda stage, value: reached.append(stage))
    ordering = {"algebra", "strips", "online reductions", "blocks that a number moves"}
    assert not ordering & {*reached} and ordering < {*PASSES}


@pytest.mark.parametrize(("check", "named"), [("1", "long reductions"), ("0", "preparation for kernels")])
def test_a_pass_that_breaks_the_graph_is_named(check: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config.CHECK.variable, check)
    monkeypatch.setattr(
        long_reductions,
        "in_parts",
        lambda whole, target: replace(whole, graph=replace(whole.graph, outputs=whole.graph.outputs * 2)),
    )
    with pytest.raises(SpecError, match=f"after {named}: .*outputs repeat"):
        compile_graph(importer.load(model(), dims={"rows": (1, 8)}), target.AVX2)
