"""What is wrong with a call, a file, a model or a machine is said clearly, by the documented class, without a crash."""

from __future__ import annotations

import ctypes
import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import luminal
from luminal.codegen import interface, toolchain
from luminal.core import ir, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.errors import ArtifactError, BuildError, InputError, LuminalError, ModelError, UnsupportedError
from luminal.core.pipeline import compile_graph
from luminal.module import Module
from tests import compiled_support
from tests.abi_support import LM_FLOAT32, LM_FLOAT64, LM_INT64, Value, value_at
from tests.comparison_models import classifier, saved
from tests.compiled_support import SmallEncoder, arguments


@pytest.fixture(scope="module")
def module() -> Module:
    return compiled_support.compiled("encoder_a")[1]


IDS, WEIGHT = arguments(2, 5)


# ---- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((IDS.int(), WEIGHT), {}, 'input "ids" has element type int32'),
        ((IDS, WEIGHT.double()), {}, 'input "weight" has element type float64'),
        ((IDS, WEIGHT[0]), {}, 'input "weight" has rank 1, expected rank 2'),
        ((IDS, WEIGHT[:1]), {}, 'has size 1, but "batch" is 2'),
        ((IDS[:, :4], WEIGHT), {}, 'has size 5, but "length" is 4'),
        ((IDS.repeat(17, 1)[:33], torch.ones(33, 5)), {}, 'size 33, outside the bounds 1..4 of "batch"'),
        ((IDS[:0], WEIGHT[:0]), {}, 'size 0, outside the bounds 1..4 of "batch"'),
        ((IDS.repeat(1, 2), WEIGHT.repeat(1, 2)), {}, 'size 10, outside the bounds 1..8 of "length"'),
        ((IDS,), {}, "the argument weight is missing"),
        ((IDS, WEIGHT, WEIGHT), {}, "expected at most 2 arguments"),
        ((IDS, WEIGHT), {"weight": WEIGHT}, "weight given by position and by name"),
        ((IDS, WEIGHT), {"other": WEIGHT}, "unknown arguments other"),
        ((IDS, "text"), {}, "expected an array of numbers"),
        ((IDS, object()), {}, "expected an array of numbers"),
    ],
)
def test_arguments_that_do_not_fit(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # InputError is one
        module(*args, **kwargs)
    assert message in str(caught.value)
    module(IDS, WEIGHT)


def test_an_index_out_of_range_names_the_operator(module: Module) -> None:
    for wrong in (50, -51, 2**62, -(2**63)):
        ids = IDS.clone()
        ids[1, 3] = wrong
        with pytest.raises(IndexError, match=r"aten\.embedding.*'embedding'.*compiled_support\.py:\d+"):
            module(ids, WEIGHT)
    assert torch.isfinite(module(IDS, WEIGHT)["tokens"]).all()


def test_values_that_are_not_numbers_pass_through(module: Module) -> None:
    found = module(IDS, torch.full_like(WEIGHT, torch.nan))
    assert torch.isnan(found["pooled"][0]).all() and torch.isfinite(found["tokens"]).all()


# ---- the C ABI -------------------------------------------------------------------------------------------------------


OK, INVALID_ARGUMENT, BAD_WEIGHTS = 0, 1, 5  # enum lm_status
NULL = None


def sizes(*numbers: int) -> Any:
    return (ctypes.c_int64 * len(numbers))(*numbers)


class Native:
    """The compiled model as a C program sees it, with a set of good arguments."""

    def __init__(self, module: Module) -> None:
        self.functions = ctypes.CDLL(str(module.library.path))
        self.library, self.context = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.call("open", NULL, ctypes.byref(self.library)) == OK
        assert self.call("context_create", self.library, ctypes.byref(self.context)) == OK
        self.arrays = [IDS.numpy().copy(), WEIGHT.numpy().copy()]
        self.arrays += [np.zeros((2, 5, 24), np.float32), np.zeros((2, 24), np.float32), np.zeros(2, np.int64)]
        values = [
            value_at(a.ctypes.data, LM_INT64 if a.dtype == np.int64 else LM_FLOAT32, a.shape) for a in self.arrays
        ]
        self.inputs, self.outputs = (Value * 2)(*values[:2]), (Value * 3)(*values[2:])

    def call(self, name: str, *args: Any) -> int:
        return int(self.functions[f"encoder_a_{name}"](*args))

    def run(self, entry: int = 0, stream: Any = NULL) -> int:
        return self.call("run", self.context, entry, self.inputs, self.outputs, stream)

    def message(self, context: bool = True) -> str:
        text = ctypes.create_string_buffer(1000)
        self.call("last_error", self.library, self.context if context else NULL, text, ctypes.c_size_t(len(text)))
        return text.value.decode()


@pytest.fixture
def native(module: Module) -> Iterator[Native]:
    made = Native(module)
    yield made
    made.call("context_destroy", made.context)
    assert made.call("close", made.library) == OK


def put(side: str, number: int, **fields: Any) -> Callable[[Native], None]:
    """Set fields of one value."""

    def change(native: Native) -> None:
        for name, value in fields.items():
            setattr(getattr(native, side)[number], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("inputs", 0, data=None), 'input "ids" has no data (a null pointer)'),
        (put("inputs", 1, shape=None), 'input "weight" has no shape (a null pointer)'),
        (put("outputs", 2, data=None), 'output "pooled_1" has no data (a null pointer)'),
        (put("outputs", 0, shape=None), 'output "tokens" has no shape (a null pointer)'),
        (put("inputs", 0, dtype=LM_FLOAT64), 'input "ids" has element type float64, expected int64'),
        (put("inputs", 0, dtype=99), 'input "ids" has element type unknown (99), expected int64'),
        (put("outputs", 0, dtype=LM_FLOAT64), 'output "tokens" has element type float64'),
        (put("inputs", 1, rank=1), 'input "weight" has rank 1, expected rank 2: [batch, length]'),
        (put("inputs", 1, rank=-1), 'input "weight" has rank -1'),
        (put("inputs", 0, shape=sizes(33, 5)), 'has size 33, outside the bounds 1..4 of "batch"'),
        (put("inputs", 0, shape=sizes(2**62, 5)), 'outside the bounds 1..4 of "batch"'),
        (put("inputs", 0, shape=sizes(-1, 5)), "has a negative size, -1"),
        (put("inputs", 1, shape=sizes(2, 6)), 'has size 6, but "length" is 5 (from input "ids", axis 1)'),
        (put("outputs", 0, shape=sizes(2, 5, 23)), 'output "tokens", axis 2, has size 23, expected 24'),
        (put("outputs", 1, shape=sizes(3, 24)), 'axis 0, has size 3, expected 2'),
        (put("inputs", 0, strides=sizes(1, 2)), 'input "ids" is not contiguous'),
        (put("inputs", 0, strides=sizes(0, 0)), 'input "ids" is not contiguous'),
        (put("outputs", 0, strides=sizes(240, 48, 2)), 'output "tokens" is not contiguous'),
        (put("inputs", 0, device=1), 'input "ids" lies on device 1, expected the CPU (0)'),
        (lambda n: put("inputs", 1, data=n.inputs[1].data + 1)(n), 'input "weight" is misaligned'),
    ],
)  # fmt: skip
def test_values_at_the_c_abi(native: Native, change: Callable[[Native], None], message: str) -> None:
    change(native)
    assert native.run() == INVALID_ARGUMENT
    assert message in native.message()
    assert not any(array.any() for array in native.arrays[2:]), "outputs were written"


def test_good_values_at_the_c_abi(native: Native, module: Module) -> None:
    put("inputs", 0, strides=sizes(5, 1))(native)
    assert native.run() == OK
    expected = module.library.run([IDS.numpy(), WEIGHT.numpy()])
    compiled_support.assert_same_bits(native.arrays[2:], expected)


def test_handles_at_the_c_abi(native: Native) -> None:
    inputs, outputs = native.inputs, native.outputs
    run = native.functions["encoder_a_run"]
    assert run(NULL, 0, inputs, outputs, NULL) == INVALID_ARGUMENT
    assert run(native.context, 0, NULL, outputs, NULL) == INVALID_ARGUMENT and "null pointer" in native.message()
    assert run(native.context, 0, inputs, NULL, NULL) == INVALID_ARGUMENT and "null pointer" in native.message()
    for entry in (1, -1):
        assert native.run(entry) == INVALID_ARGUMENT
        assert f"entry {entry} does not exist: the model has 1" in native.message()
    assert native.run(stream=ctypes.c_void_p(1)) == INVALID_ARGUMENT and "stream" in native.message()
    assert native.call("output_shape", native.context, 0, inputs, 3, sizes(0, 0, 0)) == INVALID_ARGUMENT
    assert "output 3 does not exist" in native.message()
    assert native.call("output_shape", native.context, 0, inputs, 0, NULL) == INVALID_ARGUMENT
    size = ctypes.c_size_t()
    assert native.call("workspace_size", native.library, 0, sizes(5, 5), ctypes.byref(size)) == INVALID_ARGUMENT
    assert '"batch" is 5, outside its bounds 1..4' in native.message(context=False)
    assert native.call("close", native.library) == INVALID_ARGUMENT
    assert "still has contexts" in native.message(context=False)
    assert native.call("set_weights", native.library, b"x" * 64, ctypes.c_size_t(64)) in (INVALID_ARGUMENT, BAD_WEIGHTS)
    assert native.message(context=False)
    assert native.run() == OK


# ---- files and models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_truncated_onnx_files(kept: float, tmp_path: Path) -> None:
    content = saved(classifier(), tmp_path).read_bytes()
    length = int(len(content) * kept) if isinstance(kept, float) else kept
    path = tmp_path / "truncated.onnx"
    path.write_bytes(content[:length])
    with pytest.raises(ModelError, match=r"truncated\.onnx|node|initializer|tensor|value"):
        luminal.compile(path)


def test_corrupt_onnx_files(tmp_path: Path) -> None:
    """Random damage is refused, or harmless; it never ends in anything but one of luminal's own errors."""
    good = classifier().SerializeToString()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        content = bytearray(good)
        for place in random.integers(0, len(good), 4):
            content[place] = random.integers(0, 256)
        try:
            luminal.read(bytes(content))
        except LuminalError as error:
            assert str(error)
            refused += 1
    assert refused > 20


def test_what_is_no_model(module: Module) -> None:
    with pytest.raises(ModelError, match=r"expected the path, bytes or ModelProto of an ONNX model.*found int"):
        luminal.compile(3)
    with pytest.raises(ModelError, match="found function; make a function the forward of a module"):
        luminal.compile(lambda x: x)
    with pytest.raises(ModelError, match="found a compiled model; give the one that it was compiled from"):
        luminal.tune(module, budget=1)
    with pytest.raises(ModelError, match=r"nowhere\.onnx"):
        luminal.compile("nowhere.onnx")
    with pytest.raises(ModelError, match=r"nowhere\.pt2"):
        luminal.compile("nowhere.pt2")
    with pytest.raises(OSError, match=r"nowhere"):
        luminal.load("nowhere")


def test_a_damaged_program_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "damaged.pt2"
    path.write_bytes(b"nothing of an archive")
    log, said = logging.getLogger("torch.export"), io.StringIO()
    handler = logging.StreamHandler(said)
    log.addHandler(handler)
    try:
        with pytest.raises(ModelError, match=r"damaged\.pt2' is no program saved by torch\.export\.save"):
            luminal.compile(path)
    finally:
        log.removeHandler(handler)
    assert not said.getvalue()


def test_unsupported_onnx_operators_are_listed_at_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        luminal.compile(classifier(unknown=True), dims={"batch": (1, 4)})
    assert [(place.op, place.node) for place in caught.value.places] == [
        ("nowhere.Perhaps", "first"),
        ("nowhere.Never", "second"),
    ]
    assert "float32[batch, 19]" in caught.value.places[0].operands
    for word in ("Perhaps 'first'", "float32[batch, 19]", "Never 'second'"):
        assert word in str(caught.value)


def test_a_size_that_an_onnx_file_froze_can_be_fixed() -> None:
    shape = onnx.numpy_helper.from_array(np.array([-1, 9, 2, 2]), "shape")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "old", [x], [y], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert luminal.read(model).relations == ("seq = 9 (Reshape 'y')",)
    assert luminal.read(model, dims={"seq": 9}).relations == ()
    with pytest.raises(LuminalError, match=r"one size of batch, fix it: --dim batch=SIZE"):
        luminal.read(model, dims={"seq": 8, "batch": (1, 8)})


class Unsupported(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        values = torch.linalg.eigvalsh(x @ x.T)
        return values, torch.special.erfcx(x), torch.linalg.svd(x)[1]


def test_unsupported_pytorch_operators_are_listed_at_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        luminal.compile(Unsupported().eval(), (torch.rand(3, 3),))
    places = caught.value.places
    assert [place.op for place in places] == [
        "aten._linalg_eigh.default",
        "aten.special_erfcx.default",
        "aten._linalg_svd.default",
    ]
    for place in places:
        assert "test_bad_input.py:" in place.location and place.operands[0] == "float32[3, 3]"
        assert f"{place.op} '{place.node}'(float32[3, 3]" in str(caught.value) and place.location in str(caught.value)


def test_a_module_in_training_mode() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.AlphaDropout(0.5))
    with pytest.raises(UnsupportedError, match=r"eval\(\)"):
        luminal.compile(model, (torch.zeros(2, 4),))
    assert isinstance(luminal.compile(model.eval(), (torch.zeros(2, 4),)), Module)


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"nothing": ("batch", "length")}, "dims names axes of nothing; the inputs are ids, weight"),
        ({"ids": ("batch", None), "batch": (5, 9)}, "has 2 elements, outside dims"),
        ({"other": (1, 4)}, "dims gives a range to other, but no axis has that name"),
        ({"ids": {7: "batch"}}, "axis 7 is out of range"),
    ],
)
def test_dims_that_do_not_fit_a_module(dims: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        luminal.compile(SmallEncoder().eval(), arguments(), dims=dims)
    assert message in str(caught.value)


RANGE = "expected a range (low, high), (low, high, step) or a size"


def test_options_that_do_not_fit_an_onnx_model() -> None:
    for options, message in (
        ({"dims": {"depth": (1, 4)}}, "depth"),
        ({"dims": {"batch": (9, 3)}}, "expected 0 <= lower <= upper"),
        (
            {"dims": ({0: "batch"},)},
            "dims: expected a mapping of names to ranges, as {'n': (1, 64)}, found ({0: 'batch'},)",
        ),
        (
            {"dims": {"x": {0: "batch"}}},
            f"dims['x']: {RANGE}, found {{0: 'batch'}}; sizes have",
        ),
        (
            {"dims": {"x": ("batch", None)}},
            f"dims['x']: {RANGE}, found ('batch', None)",
        ),
        (
            {"dims": {"batch": "1:4"}},
            f"dims['batch']: {RANGE}, found '1:4'",
        ),
        (
            {"dims": {"batch": "14"}},
            f"dims['batch']: {RANGE}, found '14'",
        ),
        (
            {"dims": {"batch": (1.5, 4)}},
            f"dims['batch']: {RANGE}, found (1.5, 4)",
        ),
        (
            {"dims": {"batch": None}},
            f"dims['batch']: {RANGE}, found None",
        ),
        ({"constants": {"z": np.zeros(3)}}, "z"),
        ({"constants": {"x": np.zeros((2, 8))}}, "must be float32, found float64"),
        ({"constants": {"x": np.zeros((2, 9), np.float32)}}, "axis 1 of 'x': expected 8, found 9"),
    ):
        with pytest.raises(InputError) as caught:
            luminal.compile(classifier(), **options)  # type: ignore[arg-type]
        assert message in str(caught.value)
    with pytest.raises(ValueError, match="unknown target 'abacus'"):
        luminal.compile(classifier(), target="abacus")


@pytest.mark.parametrize("threads", [-1, 1024, 2.5, "2", None, True])
def test_threads_that_are_no_number_of_them(threads: Any, module: Module) -> None:
    """They are refused before any work: before a model or a folder is looked at."""
    for call in (
        lambda: luminal.compile("absent.onnx", threads=threads),
        lambda: luminal.compile(torch.nn.ReLU(), threads=threads),
        lambda: luminal.tune("absent.onnx", budget=1, threads=threads),
        lambda: luminal.diff("absent.onnx", threads=threads),
        lambda: luminal.load("absent", threads=threads),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == f"threads: expected 0..1023 (0: one for each CPU), found {threads!r}"
    assert isinstance(luminal.load(module.folder, threads=np.int64(2)), Module)  # type: ignore[arg-type]


def test_an_input_that_decides_shapes() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    y = onnx.ValueInfoProto(name="y")
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"], "fold")], "folding", [x, shape], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(InputError, match=r"Reshape 'fold'.*depends on the data of 'shape'.*constants="):
        luminal.compile(model).export("folder")
    fixed = luminal.compile(model, constants={"shape": np.array([2, 3])})
    assert isinstance(fixed, Module) and fixed.run({"x": np.arange(6, dtype=np.float32)})["y"].shape == (2, 3)


# ---- machines --------------------------------------------------------------------------------------------------------


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain, "_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"found no C\+\+ compiler on PATH.*install g\+\+ or clang\+\+.*pip install"):
        luminal.compile(classifier(), dims={"batch": (1, 4)})


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BuildError, match="LUMINAL_CACHE"):
        luminal.compile(classifier(), dims={"batch": (1, 4)})


def test_a_library_for_another_machine(module: Module, tmp_path: Path) -> None:
    """A library that needs what this machine lacks says so; tests/test_runtime.py has the case of a missing feature."""
    folder = module.export(tmp_path / "foreign", python_module=False)
    (folder / "libencoder_a.so").write_bytes(b"\x7fELF" + bytes(500))
    with pytest.raises(ArtifactError, match=r"has 504 of .* bytes: export the model again"):
        luminal.load(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["libencoder_a.so"]  # as if it had been written so
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OSError, match="cannot load the library"):
        luminal.load(folder)


def test_bad_input_does_not_end_the_process() -> None:
    """An interpreter without pytest around it: an error is an exception, and the exit is orderly."""
    script = (
        "import numpy as np, luminal\n"
        "from tests.comparison_models import classifier\n"
        "model = luminal.compile(classifier(), dims={'batch': (1, 4)})\n"
        "for x in (np.zeros((5, 8), np.float32), np.zeros((2, 8)), None, 'x', np.zeros((2, 7), np.float32)):\n"
        "    try:\n"
        "        model(x)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 5, done.stderr


# ---- names and dimensions -------------------------------------------------------------------------------------------


def small(*shape: int) -> tuple[torch.nn.Module, torch.Tensor]:
    return torch.nn.ReLU().eval(), torch.zeros(shape)


@pytest.mark.parametrize("name", ["my model", "int", "2d", ""])
def test_a_name_that_is_no_identifier(name: str) -> None:
    module, x = small(2)
    with pytest.raises(InputError, match="identifier of C"):
        luminal.read(module, (x,), name=name)


def test_a_class_named_like_a_keyword_gets_a_name_that_compiles() -> None:
    kind = type("Int", (torch.nn.ReLU,), {})
    assert luminal.read(kind().eval(), (torch.zeros(2),)).name == "int_value"


# libraries; headers; functions of C and of POSIX, and what they are prefixes of; types; where a program begins
@pytest.mark.parametrize(
    "name",
    [
        *("c", "m", "M", "dl", "pthread", "gcc_s"),
        *("time", "Time", "string", "stdio", "signal", "features", "python"),
        *("exp", "logf", "malloc", "read", "index", "shm", "tm", "main"),
    ],
)
def test_a_name_that_the_system_has_itself(name: str, tmp_path: Path) -> None:
    module, x = small(2)
    with pytest.raises(InputError, match=f"another name than '{name}', such as '{name}_model'"):
        luminal.read(module, (x,), name=name)
    assert luminal.read(type(name, (torch.nn.ReLU,), {})(), (x,)).name == f"{name.lower()}_model"
    onnx.save(classifier(), tmp_path / f"{name}.onnx")
    assert luminal.read(tmp_path / f"{name}.onnx").name == f"{name}_model"


@pytest.mark.parametrize("name", ["classifier", "timer", "Exp", "logs", "resnet50"])
def test_a_name_that_the_system_has_not(name: str) -> None:
    assert interface.library_name(name) == name


@pytest.mark.parametrize("name", ["time", "main"])
def test_headers_of_a_model_that_is_named_like_something_of_c(name: str, tmp_path: Path) -> None:
    """They compile beside those of C and C++, with the model's folder among the folders of headers."""
    onnx.save(classifier(), tmp_path / f"{name}.onnx")
    model = luminal.compile(tmp_path / f"{name}.onnx", dims={"batch": (1, 4)})
    assert isinstance(model, Module)
    source = f"""
#include <unistd.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <{name}_model.hpp>
int main() {{ return {name}_model::Library().handle() == nullptr; }}
"""
    folder = model.export(tmp_path / "folder", python_module=False)
    (tmp_path / "program.cpp").write_text(source)
    options = ("-std=c++17", "-fsyntax-only", f"-I{folder}", str(tmp_path / "program.cpp"))
    found = subprocess.run([*toolchain.find().command, *options], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_a_folder_is_no_model(module: Module, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        luminal.compile(tmp_path)
    assert str(caught.value) == f"expected the file of a model, found the folder {str(tmp_path)!r}"
    with pytest.raises(ModelError, match=r"found the folder .*; it holds a compiled model, which luminal\.load opens"):
        luminal.compile(str(module.folder))


def test_a_file_that_is_not_there_is_missed_before_a_framework_is_imported() -> None:
    script = """
import sys, luminal
try:
    luminal.read("absent.pt2")
except luminal.LuminalError as error:
    print(error, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "there is no file 'absent.pt2' False\n", done.stderr


def test_one_tensor_instead_of_the_arguments() -> None:
    module, x = small(1, 8)
    with pytest.raises(ModelError, match=r"write \(x,\)"):
        luminal.read(module, x)


def test_a_range_without_an_axis() -> None:
    module, x = small(4, 8)
    with pytest.raises(ModelError, match="no axis has that name"):
        luminal.read(module, (x,), dims={"batch": (1, 32)})


def test_a_range_that_an_exported_program_does_not_have() -> None:
    module, x = small(4, 8)
    with pytest.raises(ModelError, match="the program has no dimension batch"):
        luminal.read(torch.export.export(module, (x,)), dims={"batch": (1, 32)})
    program = torch.export.export(module, (x,), dynamic_shapes={"input": {0: torch.export.Dim.DYNAMIC}})
    with pytest.raises(ModelError, match=r"it has s\d+\. Give the range .* --dim s\d+=1:32"):
        luminal.read(program, dims={"batch": (1, 32)})


def graph_over(dim: str, output: str) -> ir.Graph:
    size = sym.var(dim, 1, 8)
    variable = sym.as_var(size)
    assert variable is not None
    x = ir.input_("x", (size, 8), types.f32)
    return ir.Graph("named", (x,), ((output, x * 2.0),), (variable,))


@pytest.mark.parametrize("name", ["a0", "i1", "k2_0", "g0", "at", "d_i0_1"])
def test_a_dimension_named_like_a_generated_axis(name: str) -> None:
    with pytest.raises(ModelError, match="another name"):
        compile_graph(graph_over(name, "y"), targets.X86_64)


@pytest.mark.parametrize("name", ["batch", "d_model", "attention", "kv", "a", "time"])
def test_ordinary_names_of_dimensions(name: str) -> None:
    compile_graph(graph_over(name, "y"), targets.X86_64)


def test_an_output_named_like_an_input() -> None:
    with pytest.raises(ModelError, match="x names an input and an output"):
        compile_graph(graph_over("batch", "x"), targets.X86_64)


# ---- names that C takes for something else ---------------------------------------------------------------------------


def test_dimensions_may_have_the_names_of_macros() -> None:
    dims = {"NULL": (1, 4), "EOF": (1, 4), "input": ("NULL", "EOF")}
    model = luminal.compile(torch.nn.Softmax(-1), (torch.zeros(2, 3),), dims=dims)
    x = torch.randn(4, 2)
    torch.testing.assert_close(model(x), torch.softmax(x, -1))
