"""Precisions by operator: which lose most, what keeps them, and what that is by rounding in PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

import luminal
from luminal import mixed
from luminal.cli import app
from luminal.core import interp
from luminal.core import target as targets
from luminal.core.errors import InputError
from luminal.core.pipeline import compile_graph
from luminal.core.precision import BF16
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.numeric.rounding import rounded
from luminal.core.types import bf16, f32
from luminal.module import Module
from tests.schedule_support import run_program

ROWS, WIDTH, CLASSES = 12, 96, 8


def weights() -> dict[str, np.ndarray[Any, Any]]:
    """Of a body that is added to what it reads, small, and of a head."""
    random = np.random.default_rng(3)
    body, head = random.standard_normal((WIDTH, WIDTH)) * 1e-3, random.standard_normal((WIDTH, CLASSES)) * 0.1
    return {"body_w": body.astype(np.float32), "head_w": head.astype(np.float32)}


def model() -> onnx.ModelProto:
    """``(x + x body_w) head_w``: what the head rounds is nearly all of the error."""
    nodes = [
        helper.make_node("MatMul", ["x", "body_w"], ["product"], "body"),
        helper.make_node("Add", ["x", "product"], ["sum"], "sum"),
        helper.make_node("MatMul", ["sum", "head_w"], ["y"], "head"),
    ]
    kept = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    graph = helper.make_graph(
        nodes, "mixed", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, CLASSES])], kept,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def given() -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(4).standard_normal((ROWS, WIDTH)).astype(np.float32)}


def narrow(values: Any) -> torch.Tensor:
    return torch.as_tensor(values).to(torch.float32).bfloat16().double()


def expected(body: bool, head: bool) -> np.ndarray[Any, Any]:
    """What the model computes in float64 where the operands of these two are rounded to bfloat16, by PyTorch."""
    x, (w, v) = torch.from_numpy(given()["x"]).double(), (torch.from_numpy(a).double() for a in weights().values())
    product = narrow(x) @ narrow(w) if body else x @ w
    total = x + product
    return (narrow(total) @ narrow(v) if head else total @ v).numpy()


def error(found: np.ndarray[Any, Any]) -> float:
    exact = expected(False, False)
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))


# ---- what is rounded -------------------------------------------------------------------------------------------------

CHOICES: tuple[tuple[mixed.Choice, bool, bool], ...] = (
    ("bf16", True, True),
    ({"*": "bf16", "head": "fp32"}, True, False),
    ("*=bf16,MatMul 'body'=fp32", False, True),
    ({"body": "bf16"}, True, False),
    ({"body": "fp32", "head": "fp32"}, False, False),
)


@pytest.mark.parametrize(("precision", "body", "head"), CHOICES, ids=str)
@pytest.mark.parametrize("target", ["avx2", "avx512-bf16"])
def test_the_operators_that_are_named_keep_their_operands(
    precision: mixed.Choice, body: bool, head: bool, target: str
) -> None:
    """The first target stores values wide, the second narrow."""
    if targets.obstacle(targets.ALL[target]):  # its program in Python
        (graph,) = mixed.applied({"main": luminal.read(model())}, precision).values()
        chosen = targets.parse(target, mixed.lowest(precision))
        found = run_program(compile_graph(graph, chosen), given())["y"]
    else:
        compiled = luminal.compile(model(), precision=precision, target=target, name="mixed")
        assert isinstance(compiled, Module)
        found = compiled.run(given())["y"]
    wanted = expected(body, head)
    # A value beside a tie may be rounded the other way than of the sum in float64.
    assert np.abs(found - wanted).max() < (2e-3 if head else 2e-6) * np.abs(wanted).max()
    others = [expected(*other) for other in ((True, True), (True, False), (False, True), (False, False))]
    nearest = min(others, key=lambda other: float(np.abs(found - other).mean()))
    assert np.array_equal(nearest, wanted)


def test_what_is_kept_is_stored_beside_what_is_rounded() -> None:
    """A value that two operators read, of which one is kept, lies in memory in both forms: the kept one is exact."""
    random = np.random.default_rng(0)
    v, w = (random.standard_normal((WIDTH, 8)).astype(np.float32) for _ in range(2))
    nodes = [helper.make_node("Sin", ["x"], ["s"], "sin"), helper.make_node("MatMul", ["s", "v"], ["a"], "one"),
             helper.make_node("MatMul", ["s", "w"], ["b"], "other")]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "both", [value("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [value(name, TensorProto.FLOAT, [ROWS, 8]) for name in "ab"],
        [numpy_helper.from_array(array, name) for name, array in (("v", v), ("w", w))],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    read = mixed.applied({"main": luminal.read(proto)}, {"*": "bf16", "one": "fp32"})["main"]
    changed = rounded(Contracted.of(read), BF16)
    types = {node: {x.source.dtype for x in (c.a, c.b)} for node, c in changed.contractions.items()}
    by_name = {read_name: types[node] for read_name, node in changed.graph.outputs}
    assert by_name == {"a": {f32}, "b": {bf16}}
    s = np.sin(given()["x"].astype(np.float64))
    found = dict(zip("ab", interp.run(changed.graph, given()).outputs, strict=True))
    np.testing.assert_allclose(found["a"], s @ v, atol=2e-5)
    np.testing.assert_allclose(found["b"], (narrow(s) @ narrow(w)).numpy(), atol=0.1)
    assert np.abs(found["b"] - s @ w).max() > 1e-2


def test_weights_of_few_bits_stay_where_fp32_is_named() -> None:
    """And ``diff`` allows no more for them than for float32."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval(), torch.randn(4, 256)
    both = luminal.compile(module, (x,), weights="int8")
    one = luminal.compile(module, (x,), weights="int8", precision={"linear_1": "fp32"})
    assert isinstance(both, Module) and isinstance(one, Module)
    assert (both.approximated("weights"), one.approximated("weights")) == (2, 1)
    assert one.approximated("precision") == 1 and "linear_1" in str(one.explain())
    with torch.no_grad():
        exact = module.double()(x.double())
        module.float()
    far = [float((m(x).double() - exact).norm() / exact.norm()) for m in (both, one)]
    assert 0 < far[1] < far[0]


# ---- what is lost ----------------------------------------------------------------------------------------------------


def test_the_operator_that_loses_most_is_named() -> None:
    report = luminal.diff(model(), given(), precision="bf16", mixed=True)
    assert report.ok and report.mixed is not None
    found = report.mixed
    assert [loss.origin.name for loss in found.losses] == ["head", "body"]
    alone = {loss.origin.name: loss.error for loss in found.losses}
    for name, by in (("head", (False, True)), ("body", (True, False))):
        assert alone[name] == pytest.approx(error(expected(*by)), rel=0.02)
    assert found.error == pytest.approx(error(expected(True, True)), rel=0.02) and found.exact < 1e-6
    assert found.kept == 1 and found.precision == {"*": "bf16", "MatMul 'head'": "fp32"}
    assert found.left == pytest.approx(alone["body"], rel=0.05)
    assert found.bytes == 2 * WIDTH * CLASSES and found.wide == pytest.approx(CLASSES / (CLASSES + WIDTH))
    assert "precision={'*': 'bf16'" in str(report)
    said = json.loads(json.dumps(report.as_json(), allow_nan=False))["mixed"]
    assert said["keep"]["precision"] == found.precision and "What operators lose" in report.html()
    # What it advises is what it says, in a library.
    kept = luminal.compile(model(), precision=found.precision)
    assert isinstance(kept, Module) and error(kept.run(given())["y"]) == pytest.approx(found.left, rel=0.05)
    assert luminal.diff(model(), given(), precision=found.precision).ok


def test_weights_that_lose_most_are_named() -> None:
    """Of two layers, one has an outlier in each column, so that int8 has few levels for the rest."""
    random = np.random.default_rng(1)
    plain, spiked = (random.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(2))
    spiked[0] *= 60
    module = nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU(), nn.Linear(256, 256, bias=False)).eval()
    with torch.no_grad():
        module[0].weight.copy_(torch.from_numpy(plain.T))
        module[2].weight.copy_(torch.from_numpy(spiked.T))
    report = luminal.diff(module, (torch.from_numpy(random.standard_normal((4, 256)).astype(np.float32)),),
                          weights="int8", mixed=True)  # fmt: skip
    assert report.mixed is not None and report.mixed.option == "int8"
    assert [loss.origin.name for loss in report.mixed.losses] == ["linear_1", "linear"]
    assert report.mixed.precision == {"aten.linear.default 'linear_1'": "fp32"}
    assert report.mixed.losses[0].bytes == 3 * 256 * 256


# ---- what is said and refused ----------------------------------------------------------------------------------------

BAD: tuple[tuple[mixed.Choice, str], ...] = (
    ({"nobody": "fp32"}, "no operator is named 'nobody'"),
    ({"haed": "bf16"}, "the nearest to 'haed' are 'head'"),
    ({"head": "int8"}, "unknown precision 'int8' of 'head'"),
    ({"head": "bf16", "body": "fp16"}, "expected one besides fp32 in a model, found bf16 and fp16"),
    ("head=half", "unknown precision 'half' of 'head'"),
)


@pytest.mark.parametrize(("precision", "said"), BAD, ids=[said for _, said in BAD])
def test_what_is_no_precision_by_operator(precision: mixed.Choice, said: str) -> None:
    with pytest.raises(InputError, match=said):
        luminal.compile(model(), precision=precision)


def test_what_mixed_needs(tmp_path: Path) -> None:
    for options in ({}, {"precision": "bf16", "weights": "int8"}):
        with pytest.raises(InputError, match="mixed: expected a precision of fp16, bf16, or weights of int8"):
            luminal.diff(model(), mixed=True, **options)
    with pytest.raises(InputError, match="not of two sides"):
        luminal.diff(model(), "interpreter", precision={"head": "bf16"})
    with pytest.raises(InputError, match="tf32 is that of all operators"):
        luminal.compile(model(), target="cuda:sm_90", precision={"head": "tf32"})


def test_the_command_line_takes_and_gives_both(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "mixed.onnx")
    run = CliRunner().invoke
    answer = run(app, ["diff", str(tmp_path / "mixed.onnx"), "--precision", "bf16", "--mixed", "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["mixed"]["keep"]["precision"]["MatMul 'head'"] == "fp32"
    answer = run(app, ["compile", str(tmp_path / "mixed.onnx"), "--precision", "*=bf16,head=fp32", "-o",
                       str(tmp_path / "build")])  # fmt: skip
    assert answer.exit_code == 0, answer.output
    manifest = json.loads((tmp_path / "build" / "manifest.json").read_text())
    assert manifest["target"]["precision"] == "bf16"
    (noted,) = [made for made in manifest["approximations"] if made["option"] == "precision"]
    assert noted["what"] == "operands stay fp32" and noted["origins"] == ["MatMul 'head'"]
    answer = run(app, ["compile", str(tmp_path / "mixed.onnx"), "--precision", "head=half", "-o", str(tmp_path / "x")])
    assert answer.exit_code == 2 and "unknown precision" in answer.output
