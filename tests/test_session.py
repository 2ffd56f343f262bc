"""Scripts that were written for onnxruntime, on luminal's sessions."""

from __future__ import annotations

import importlib
import logging
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import luminal
from luminal import session
from luminal.core.errors import InputError, LuminalError, ModelError

Array = np.ndarray[Any, Any]


def model(seed: int = 0) -> onnx.ModelProto:
    """y = softmax(x W), and the largest of each row, for any number of rows."""
    weights = np.random.default_rng(seed).standard_normal((6, 5)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Softmax", ["product"], ["y"], axis=-1),
            helper.make_node("ArgMax", ["y"], ["label"], axis=-1, keepdims=0),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 6])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 5]),
            helper.make_tensor_value_info("label", TensorProto.INT64, ["rows"]),
        ],
        [numpy_helper.from_array(weights, "w")],
        doc_string="of a test",
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    made.producer_name, made.model_version = "tests", 3
    helper.set_model_props(made, {"author": "nobody"})
    return made


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("session") / "classifier.onnx"
    onnx.save(model(), where)
    return where


@pytest.fixture(scope="module")
def opened(path: Path) -> luminal.InferenceSession:
    return luminal.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def other(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def described(args: Any) -> list[tuple[str, str, list[Any]]]:
    return [(arg.name, arg.type, list(arg.shape)) for arg in args]


def test_it_says_what_onnxruntime_says(opened: luminal.InferenceSession, other: Any) -> None:
    assert described(opened.get_inputs()) == described(other.get_inputs())
    assert described(opened.get_outputs()) == described(other.get_outputs())
    assert opened.get_providers() == other.get_providers()
    assert opened.get_overridable_initializers() == other.get_overridable_initializers()
    fields = ("producer_name", "domain", "description", "version", "graph_name", "graph_description")
    mine, theirs = opened.get_modelmeta(), other.get_modelmeta()
    assert [getattr(mine, name) for name in fields] == [getattr(theirs, name) for name in fields]
    assert mine.custom_metadata_map == theirs.custom_metadata_map == {"author": "nobody"}


@pytest.mark.parametrize("rows", [1, 3, 5000], ids=str)  # the last is beyond the default bounds
def test_it_runs_on_any_size(opened: luminal.InferenceSession, other: Any, rows: int) -> None:
    feeds = {"x": np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)}
    for names in (None, [], ["label"], ["label", "y"]):
        found, wanted = opened.run(names, feeds), other.run(names, feeds)
        assert isinstance(found, list) and len(found) == len(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_a_size_is_compiled_for_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    real = luminal.api.compile

    def counted(*args: Any, **options: Any) -> Any:
        compiled.append(options.get("dims"))
        return real(*args, **options)

    monkeypatch.setattr(luminal.api, "compile", counted)
    opened = luminal.InferenceSession(path)
    for rows in (2, 5000, 3, 5000):
        opened.run(None, {"x": np.ones((rows, 6), np.float32)})
    assert compiled == [None, {"rows": 5000}]


def test_a_model_that_was_exported_for_one_size_is_compiled_for_that_of_a_call(other: Any) -> None:
    """A reshape to 6 columns by 2 rows holds for two rows alone, which the file does not say."""
    made = model()
    made.graph.initializer.append(numpy_helper.from_array(np.array([2, 6], np.int64), "two"))
    made.graph.node.insert(0, helper.make_node("Reshape", ["x", "two"], ["rows"]))
    made.graph.node[1].input[0] = "rows"
    opened = luminal.InferenceSession(made.SerializeToString())
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    np.testing.assert_allclose(opened.run(["y"], {"x": x})[0], other.run(["y"], {"x": x})[0], rtol=1e-5)
    with pytest.raises(LuminalError, match="reshape"):
        opened.run(None, {"x": np.ones((3, 6), np.float32)})


def test_what_does_not_fit_is_said(opened: luminal.InferenceSession) -> None:
    x = np.ones((2, 6), np.float32)
    for names, feeds, words in (
        (["z"], {"x": x}, "no output 'z'; its outputs are y, label"),
        (None, {}, "missing: x"),
        (None, {"x": x, "k": x}, "unknown: k"),
        (None, {"x": x.astype(np.float64)}, r"expected tensor\(float\), found an array of float64"),
        (None, {"x": np.ones((2, 7), np.float32)}, r"expected the shape \['rows', 6\], found \[2, 7\]"),
        (None, {"x": x[0]}, r"found \[6\]"),
    ):
        with pytest.raises(InputError, match=words):
            opened.run(names, feeds)
    for call in (opened.io_binding, opened.end_profiling):
        with pytest.raises(InputError, match="luminal's sessions"):
            call()
    with pytest.raises(ModelError, match="no file"):
        luminal.InferenceSession("none.onnx")
    with pytest.raises(ModelError):
        luminal.InferenceSession(b"no model")


def test_threads_that_call_at_once_compile_once(path: Path) -> None:
    opened = luminal.InferenceSession(path, disabled_optimizers=["ConstantFolding"])
    x = np.random.default_rng(0).standard_normal((4000, 6)).astype(np.float32)
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(lambda _: opened.run(["y"], {"x": x})[0], range(8))
    assert all(np.array_equal(first, found) for found in others)
    assert len(opened._model.modules) == 2  # one for the default bounds, one for 4000 rows


def test_options(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = session.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = session.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_free_dimension_override_by_name("rows", 4)
    try:
        with caplog.at_level(logging.INFO, "luminal"):
            opened = session.InferenceSession(path, options, providers=[("CUDAExecutionProvider", {}), session.CPU])
    finally:
        session.set_default_logger_severity(2)
    said = [record.getMessage() for record in caplog.records]
    for words in ("inter_op_num_threads changes nothing", "graph_optimization_level", "'CUDAExecutionProvider'"):
        assert any(words in line for line in said), said
    (module,) = opened._model.modules
    assert module.program is not None and not module.interface.dims  # the size is fixed
    assert opened.run(["y"], {"x": np.ones((4, 6), np.float32)})[0].shape == (4, 5)
    with pytest.raises(InputError, match=r"no option 'intra_op_threads'; the nearest .* 'intra_op_num_threads'"):
        options.intra_op_threads = 1
    with pytest.raises(InputError, match="luminal profile"):
        options.enable_profiling = True
    with pytest.raises(InputError, match="SessionOptions, found"):
        session.InferenceSession(path, onnxruntime.SessionOptions())  # type: ignore[arg-type]


def test_every_option_of_onnxruntime_is_known() -> None:
    known = {name for name in dir(onnxruntime.SessionOptions) if not name.startswith("_")}
    assert {name for name in known if not hasattr(session.SessionOptions(), name)} <= _LATER
    known = {name for name in dir(onnxruntime.InferenceSession) if not name.startswith("_")}
    assert {name for name in known if not hasattr(session.InferenceSession, name)} <= _LATER


# What scripts for inference on a CPU have no use for.
_LATER = {
    "add_external_initializers", "add_external_initializers_from_files_in_memory", "add_provider",
    "add_provider_for_devices", "clear_ep_context_data_read_func", "create_ortvalue_from_shape_and_type",
    "get_input_epdevices", "get_input_memory_infos", "get_inputs_ep_devices", "get_inputs_memory_info",
    "get_output_memory_infos", "get_outputs_memory_info", "get_profiling_start_time_ns",
    "get_provider_graph_assignment_info", "get_tuning_results", "has_providers", "release_captured_graph",
    "run_with_ortvaluevector", "set_ep_context_data_read_func", "set_ep_dynamic_options",
    "set_ep_selection_policy", "set_load_cancellation_flag", "set_provider_selection_policy",
    "set_provider_selection_policy_delegate", "set_tuning_results",
}  # fmt: skip


# ---- packages that were written for onnxruntime ----------------------------------------------------------------------


@contextmanager
def in_place_of_onnxruntime() -> Iterator[None]:
    """``import onnxruntime`` gives luminal's sessions."""
    capi = types.ModuleType("onnxruntime.capi")
    capi._pybind_state = session  # type: ignore[attr-defined]
    names = {"onnxruntime": session, "onnxruntime.capi": capi, "onnxruntime.capi._pybind_state": session}
    before = {name: found for name, found in sys.modules.items() if name.partition(".")[0] == "onnxruntime"}
    for name in before:
        del sys.modules[name]
    sys.modules.update(names)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def fresh(name: str) -> Any:
    """The package of that name, imported anew, with whatever ``import onnxruntime`` gives now."""
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name]:
        del sys.modules[loaded]
    return importlib.import_module(name)


def both(name: str, use: Any) -> tuple[Any, Any]:
    """What ``use`` makes of a package on luminal's sessions, and on onnxruntime's."""
    pytest.importorskip(name)
    with in_place_of_onnxruntime():
        mine = use(fresh(name))
    return mine, use(fresh(name))


def picture() -> Array:
    """A page with a few words, drawn with Pillow's own letters."""
    image = pytest.importorskip("PIL.Image")
    draw, font = pytest.importorskip("PIL.ImageDraw"), pytest.importorskip("PIL.ImageFont")
    page = image.new("RGB", (320, 128), "white")
    draw.Draw(page).text((20, 20), "luminal 2026", fill="black", font=font.load_default(32))
    draw.Draw(page).text((20, 74), "compiles OCR", fill="black", font=font.load_default(32))
    return np.asarray(page)


def test_rapidocr_reads_a_page() -> None:
    def use(package: Any) -> list[str]:
        found, _ = package.RapidOCR()(picture())
        return [text for _, text, _ in found]

    mine, theirs = both("rapidocr_onnxruntime", use)
    assert mine == theirs and "2026" in " ".join(mine)


def test_nudenet_detects_what_it_did() -> None:
    def use(package: Any) -> Any:
        return package.NudeDetector().detect(picture())

    mine, theirs = both("nudenet", use)
    assert [row["class"] for row in mine] == [row["class"] for row in theirs]
    for left, right in zip(mine, theirs, strict=True):
        assert left["score"] == pytest.approx(right["score"], abs=1e-4)


def test_silero_hears_speech_with_its_state() -> None:
    sound = np.random.default_rng(0).standard_normal(512 * 6).astype(np.float32) * 0.1

    def use(package: Any) -> list[float]:
        torch = pytest.importorskip("torch")
        heard = package.load_silero_vad(onnx=True)
        return [float(heard(torch.from_numpy(part), 16000)) for part in sound.reshape(6, 512)]

    mine, theirs = both("silero_vad", use)
    np.testing.assert_allclose(mine, theirs, atol=1e-4)
