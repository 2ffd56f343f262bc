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
from luminal.comparison import sides
from luminal.core import target as targets
from luminal.core.errors import InputError, LuminalError
from tests import emulation
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


@pytest.mark.skipif(bool(emulation.missing(targets.AARCH64)), reason=emulation.missing(targets.AARCH64) or "-")
def test_a_library_for_another_architecture(folder: Path) -> None:
    report = luminal.diff(_at(folder, "right.onnx@interpreter"), "aarch64", dims=DIMS)
    assert report.ok and "aarch64" in report.reference and "qemu" in report.reference, str(report)


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
