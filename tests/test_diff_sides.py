"""``luminal.diff(a, b)``: two sides of any kind, and what is no side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import luminal
from luminal.cli import app
from luminal.comparison import foreign, sides
from luminal.core import ir, ops
from luminal.core import target as targets
from luminal.core.errors import InputError, LuminalError, TargetError
from luminal.core.ir import Graph
from luminal.core.types import f16, i64
from luminal.module import Module
from tests.comparison_models import classifier

DIMS = {"batch": (1, 16)}


def _off() -> onnx.ModelProto:
    """The classifier with another bias."""
    model = classifier()
    bias = numpy_helper.to_array(model.graph.initializer[1]) + np.float32(0.25)
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(bias, "b"))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``right.onnx`` and ``off.onnx``, ``library``: the former compiled, and ``empty``."""
    found = tmp_path_factory.mktemp("sides")
    onnx.save(classifier(), found / "right.onnx")
    onnx.save(_off(), found / "off.onnx")
    luminal.compile(found / "right.onnx", dims=DIMS, target="avx2").export(found / "library", python_module=False)
    (found / "empty").mkdir()
    return found


AGREE = (
    ("right.onnx@onnxruntime", "interpreter"),
    ("interpreter", "right.onnx@onnxruntime"),
    ("right.onnx@interpreter", "right.onnx"),
    ("right.onnx@avx2", "luminal"),
    ("library", "right.onnx"),
    ("right.onnx@interpreter", "library"),
    ("library", "library"),
)


def _at(folder: Path, side: str) -> str:
    return str(folder / side) if (folder / side.partition("@")[0]).exists() else side


@pytest.mark.parametrize("pair", AGREE, ids="-".join)
def test_sides_that_agree(folder: Path, pair: tuple[str, str]) -> None:
    a, b = (_at(folder, side) for side in pair)
    report = luminal.diff(a, b, dims=None if pair == ("library", "library") else DIMS)
    assert report.ok and not report.undecided and report.worst < 1e-6, str(report)
    assert report.target != "host" and report.reference


def test_a_name_runs_the_model_of_the_other_side(folder: Path) -> None:
    report = luminal.diff(_at(folder, "right.onnx@interpreter"), "onnxruntime", dims=DIMS)
    assert (report.target, report.reference) == ("interpreter", "onnxruntime")
    assert [trial.dims for trial in report.trials] == [{"batch": 3}, {"batch": 1}]


@pytest.mark.parametrize(
    "pair", [("off.onnx@interpreter", "right.onnx"), ("library", "off.onnx"), ("off.onnx@onnxruntime", "library")]
)
def test_sides_that_differ(folder: Path, pair: tuple[str, str], tmp_path: Path) -> None:
    a, b = (_at(folder, side) for side in pair)
    report = luminal.diff(a, b, dims=DIMS, save=tmp_path)
    assert not report.ok and report.worst > 1e-3 and report.finding is not None
    if "library" in pair:
        assert report.finding.stage == "another model or version"
        assert "library library computes something else" in report.finding.explanation


def test_pytorch_and_onnx(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = torch.nn.Linear(4, 3).eval(), torch.randn(2, 4)
    weights = {"w": module.weight.detach().numpy(), "c": module.bias.detach().numpy()}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["a", "w", "c"], ["out"], "gemm", transB=1)], "gemm",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "gemm.onnx")
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "linear.pt2")
    report = luminal.diff(f"{tmp_path / 'linear.pt2'}@torch", tmp_path / "gemm.onnx")
    assert report.ok and (report.target, report.reference) == ("torch", "onnxruntime")
    report = luminal.diff(f"{tmp_path / 'gemm.onnx'}@interpreter", module, (x,))
    assert report.ok and report.reference == "torch" and [t.inputs for t in report.trials] == ["given"]


def _by(target: str) -> str:
    """What runs code for ``target`` here; empty where nothing does."""
    try:
        return foreign.runner(targets.parse(target)).name
    except TargetError:
        return ""


@pytest.mark.parametrize("target", ["aarch64", "wasm32", "x86-64-windows", "x86-64-musl"])
def test_a_library_for_another_machine(folder: Path, target: str) -> None:
    by = _by(target)
    if not by:
        with pytest.raises(TargetError, match=f"{target}: expected"):
            foreign.runner(targets.parse(target))
        pytest.skip(f"nothing here runs code for {target}")
    report = luminal.diff(_at(folder, "right.onnx@interpreter"), target, dims=DIMS)
    assert report.ok and report.reference == f"luminal for {target}, under {by}", str(report)


@pytest.mark.parametrize("target", ["wasm32", "x86-64-windows"])
def test_types_other_than_float32_cross_over(target: str) -> None:
    """Values lie one behind another in the files that the program reads and writes."""
    if not _by(target):
        pytest.skip(f"nothing here runs code for {target}")
    x, y = ir.input_("x", (3, 2), f16), ir.input_("y", (5,), i64)
    results = (("sum", x + x), ("less", ir.binary(ops.LESS_THAN, y, y + 1)), ("twice", y + y))
    graph = Graph("types", (x, y), results)
    values = {"x": np.arange(6, dtype=np.float16).reshape(3, 2), "y": np.array([0, -1, 2**62 - 1, 7, -(2**61)])}
    compiled = luminal.compile(graph, target=target)
    assert isinstance(compiled, Module)
    found = foreign.Foreign(compiled, graph, targets.parse(target)).run(values)
    assert [found[name].dtype for name, _ in results] == [np.float16, np.bool_, np.int64]
    np.testing.assert_array_equal(found["sum"], 2 * values["x"])
    np.testing.assert_array_equal(found["twice"], 2 * values["y"])
    assert found["less"].all()


def test_nothing_here_runs_what_is_for_a_mac() -> None:
    with pytest.raises(TargetError, match="expected a machine that runs programs for macOS"):
        foreign.runner(targets.parse("aarch64-macos"))


def test_an_emulated_gpu(folder: Path) -> None:
    report = luminal.diff(_at(folder, "right.onnx@interpreter"), "cuda:sm_80", dims=DIMS)
    assert report.ok and (targets.supported(targets.parse("cuda:sm_80")) or "emulated" in report.reference)


BAD: tuple[tuple[Sequence[Any], str], ...] = (
    (("right.onnx", "nonsense"), "expected a file, the folder of an exported model"),
    (("right.onnx", "right.onnx@nonsense"), "there is no such file"),
    (("avx2", "interpreter"), "expected a model on one side, found two names"),
    (("library", "interpreter"), "beside a library, which nothing else can run"),
    (("library@avx2", "right.onnx"), "an exported library runs by itself"),
    (("empty", "right.onnx"), "found a folder without a manifest.json"),
    (("right.onnx@torch", "right.onnx"), "torch cannot run a model of the kind onnx"),
)


@pytest.mark.parametrize(("pair", "said"), BAD, ids=[" ".join(pair) for pair, _ in BAD])
def test_what_is_no_pair(folder: Path, pair: Sequence[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        luminal.diff(*(_at(folder, side) for side in pair), dims=DIMS)


def test_sides_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"], "sum")], "sum",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "ab"],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    path = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    with pytest.raises(InputError, match="the inputs differ: a: float32, b: float32 on one side"):
        luminal.diff(f"{path}@interpreter", f"{folder / 'right.onnx'}@interpreter")
    with pytest.raises(InputError, match="not of two sides"):
        luminal.diff(_at(folder, "right.onnx"), "interpreter", dims=DIMS, weights="int8")


def test_on_the_command_line(folder: Path) -> None:
    words = ["diff", f"{folder / 'right.onnx'}@interpreter", "onnxruntime", "--dim", "batch=1:16"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0 and "agrees" in found.stdout, found.output
    off = CliRunner().invoke(app, ["diff", str(folder / "library"), str(folder / "off.onnx"), "--dim", "batch=1:16"])
    assert off.exit_code == 1 and "another model or version" in off.stdout, off.output
    none = CliRunner().invoke(app, ["diff", str(folder / "library")])
    assert none.exit_code == 2 and "something to compare with" in none.output


def test_names_of_sides() -> None:
    for name in (*sides.NAMES, "neon", "arm64"):
        assert sides.is_name(name)
    assert not sides.is_name("x.onnx") and sides.has_name("cuda:sm_80") and not sides.has_name(Path("x.onnx"))
    with pytest.raises(LuminalError):
        sides.parse("x.onnx")
