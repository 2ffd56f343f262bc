"""What ``Module.export`` writes: complete, self-contained, the same bytes each time, and usable without luminal."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import cmake
import ninja
import numpy as np
import pytest
import torch

import luminal
from luminal import artifact
from luminal.core import ir, types
from luminal.core.data import digest
from luminal.core.errors import InputError
from luminal.core.schedule.program.ir import Program
from luminal.module import Module
from luminal.progress import Stages
from luminal.runtime import loader
from tests import compiled_support, sanitized
from tests.codegen_programs import scaled_rows
from tests.codegen_support import HOST_TARGETS
from tests.compiled_support import WIDTH, SmallEncoder, arguments, outputs, printed_by
from tests.runtime_example import LINK_LIBRARIES, NATIVE, WARNINGS, run

ROOT = Path(__file__).resolve().parents[1]
C_FLAGS = ("-std=c99", "-D_POSIX_C_SOURCE=200809L", *WARNINGS)


@pytest.fixture(scope="module")
def module() -> Module:
    return compiled_support.compiled("encoder_a")[1]


@pytest.fixture(scope="module")
def exported(module: Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return module.export(tmp_path_factory.mktemp("exported"), python_module=False)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_support.compiled("encoder_b", seed=1)[1].export(
        tmp_path_factory.mktemp("other"), python_module=False
    )


def link(*folders: Path) -> list[str]:
    names = {folder: json.loads((folder / "manifest.json").read_text())["name"] for folder in folders}
    return [flag for f in folders for flag in (f"-I{f}", f"-L{f}", f"-l{names[f]}", f"-Wl,-rpath,{f}")]


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_the_folder_is_complete(module: Module, exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    assert names == {
        "libencoder_a.so", "encoder_a.h", "encoder_a.hpp", "encoder_a.weights", "manifest.json", "library.cpp",
        "kernels", "exports.map", "CMakeLists.txt", "python_module.cpp", "include",
    }  # fmt: skip
    manifest = json.loads((exported / "manifest.json").read_text())
    assert manifest == module.manifest
    assert manifest["name"] == "encoder_a" and manifest["compiler"] == f"luminal {luminal.__version__}"
    assert {f"{kernel['name']}.cpp" for kernel in manifest["kernels"]} == {
        path.name for path in (exported / "kernels").iterdir()
    }
    assert all(kernel["origins"] for kernel in manifest["kernels"])
    assert manifest["source_hash"] == module.library.metadata["source_hash"]
    original = {name for name, _ in SmallEncoder().named_parameters()}
    assert {constant["name"] for constant in module.library.metadata["constants"]} >= original


def test_needs_libc_only_and_exports_its_abi_only(exported: Path) -> None:
    library = exported / "libencoder_a.so"
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", library])))
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
    found = {line.split()[-1] for line in run(["nm", "-D", "--defined-only", library]).splitlines()}
    functions = "abi_version metadata_json open close context_create context_destroy workspace_size output_shape run"
    functions += " set_weights reset get_state set_state last_error"
    assert found == {f"encoder_a_{name}" for name in functions.split()}


def test_a_loaded_folder_computes_the_same(module: Module, exported: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(exported, tmp_path / "moved")
    for folder in (exported, moved):
        compiled_support.assert_same_bits(outputs(luminal.load(folder)), outputs(module))
    nested = luminal.load(moved)(*arguments())
    assert list(nested) == ["tokens", "pooled", "width"] and nested["width"] == WIDTH
    assert isinstance(nested["pooled"], tuple) and isinstance(nested["tokens"], torch.Tensor)


def program(name: str) -> Program:
    program = scaled_rows(name)
    return dataclasses.replace(program, digests={key: digest(value) for key, value in program.constants.items()})


def test_another_process_may_finish_the_same_model_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between this one's last look at the cache and its renaming."""
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    model, rename, others = program("raced"), Path.rename, []

    def late(work: Path, folder: Path) -> Path:
        shutil.copytree(work, folder)
        others.append(folder)
        return rename(work, folder)

    monkeypatch.setattr(Path, "rename", late)
    folder = artifact.build(model, HOST_TARGETS[0], Stages())
    assert others == [folder] and (folder / "manifest.json").is_file()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_another_compiler_makes_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    folders = []
    for command in ("g++", "g++ -fno-tree-vectorize", "g++"):
        monkeypatch.setenv("CXX", command)
        folders.append(artifact.build(program("compiled"), HOST_TARGETS[0], Stages()))
    assert folders[0] == folders[2] != folders[1]


def test_the_remains_of_a_model_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    folder = artifact.build(program("remains"), HOST_TARGETS[0], Stages())
    (folder / "manifest.json").unlink()
    assert artifact.build(program("remains"), HOST_TARGETS[0], Stages()) == folder
    assert not artifact.problem(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


# ---- other languages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", [("gcc", "-std=c99", "-x", "c"), ("g++", "-std=c++11", "-x", "c++")])
def test_the_header_stands_alone(exported: Path, compiler: tuple[str, ...]) -> None:
    run([*compiler, *WARNINGS, "-fsyntax-only", exported / "encoder_a.h"])


def test_a_c_program(module: Module, exported: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    run(["gcc", *C_FLAGS, NATIVE / "encoder_test.c", "-o", program, *link(exported)])
    for batch, length in ((3, 7), (1, 1), (4, 8)):
        found = printed_by([program], exported / "encoder_a.weights", batch, length)
        compiled_support.assert_same_bits(found, outputs(module, batch, length))


def test_two_models_in_one_cpp_program(exported: Path, other: Path, tmp_path: Path) -> None:
    program = tmp_path / "two"
    source = NATIVE / "encoder_two_test.cpp"
    run(["g++", "-std=c++17", *WARNINGS, source, "-o", program, *link(exported, other), *LINK_LIBRARIES])
    printed = run([program, exported / "encoder_a.weights", other / "encoder_b.weights"]).split()
    numbers = np.arange(21)
    inputs = {"ids": (numbers * 7 % 50).reshape(3, 7), "weight": (numbers % 5 * 0.25).astype(np.float32).reshape(3, 7)}
    expected = [list(luminal.load(folder).run(inputs).values())[1] for folder in (exported, other)]
    np.testing.assert_array_equal(np.array(printed, np.float32), np.concatenate([e.ravel() for e in expected]))


def test_sanitizers(module: Module, exported: Path, tmp_path: Path) -> None:
    """The generated sources and the runtime, watched for bad memory accesses and undefined behaviour."""
    program = tmp_path / "watched"
    objects = sanitized.objects(exported, tmp_path)
    main = tmp_path / "main.o"
    run(["gcc", *C_FLAGS, *sanitized.FLAGS, f"-I{exported}", "-c", NATIVE / "encoder_test.c", "-o", main])
    run(["g++", *sanitized.FLAGS, main, *objects, "-o", program, *LINK_LIBRARIES])
    for batch, length in ((1, 1), (3, 7), (4, 8)):
        for value, expected in zip(
            printed_by([program], exported / "encoder_a.weights", batch, length),
            outputs(module, batch, length),
            strict=True,
        ):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def test_the_exported_project_builds(module: Module, exported: Path, tmp_path: Path) -> None:
    project = shutil.copytree(exported, tmp_path / "project")
    (project / "libencoder_a.so").unlink()
    build = tmp_path / "build"
    path = os.pathsep.join([cmake.CMAKE_BIN_DIR, ninja.BIN_DIR, os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    run(["cmake", "-G", "Ninja", "-S", project, "-B", build], environment)
    run(["cmake", "--build", build], environment)
    library = loader.load(build / "libencoder_a.so")
    found = library.run([value.numpy() for value in arguments(3, 7)])
    compiled_support.assert_same_bits(found, outputs(module))


USE_MODULE = """
import sys

sys.path[:0] = sys.argv[1:3]
import numpy as np
import encoder_a

arrays = np.load(sys.argv[3])
found = encoder_a.run(arrays["ids"], weight=arrays["weight"])
try:
    encoder_a.run(arrays["ids"] + 50, arrays["weight"])
except IndexError as error:
    assert "embedding" in str(error), error
else:
    raise AssertionError("an index out of range was accepted")
assert not {"luminal", "torch", "ml_dtypes"} & set(sys.modules)
np.savez(sys.argv[4], *found.values())
"""


def test_the_python_module_needs_numpy_alone(module: Module, tmp_path: Path) -> None:
    folder = module.export(tmp_path / "exported")
    ids, weight = (value.numpy() for value in arguments(3, 7))
    np.savez(tmp_path / "in.npz", ids=ids, weight=weight)
    script = tmp_path / "use_module.py"
    script.write_text(USE_MODULE)
    # Isolated, so that luminal cannot be found: numpy is laid alone into a folder of the path.
    alone = tmp_path / "site"
    alone.mkdir()
    site = Path(np.__file__).parents[1]
    for path in site.glob("numpy*"):
        (alone / path.name).symlink_to(path)
    run([sys.executable, "-I", "-S", script, folder, alone, tmp_path / "in.npz", tmp_path / "out.npz"], folder=tmp_path)
    found = np.load(tmp_path / "out.npz")
    compiled_support.assert_same_bits([found[f"arr_{k}"] for k in range(3)], outputs(module))


TWO_MODULES = """
import sys

sys.path[:0] = sys.argv[1:3]
import numpy as np
import first
import second

for module, factor in ((first, 2), (second, 3)):
    for found in (module.run(np.ones(4, np.float32)), module.Model(threads=1)(np.ones(4, np.float32))):
        (values,) = found.values()
        assert (values == factor).all(), (module, values)
"""


def test_the_modules_of_two_models_go_into_one_process(tmp_path: Path) -> None:
    """With ziglang's C++ library in each: test_packaging.py."""
    for name, factor in (("first", 2.0), ("second", 3.0)):
        x = ir.input_("x", (4,), types.f32)
        compiled = luminal.compile(ir.Graph(name, (x,), (("y", x * factor),)))
        assert isinstance(compiled, Module)
        compiled.export(tmp_path / name)
    (tmp_path / "use.py").write_text(TWO_MODULES)
    run([sys.executable, tmp_path / "use.py", tmp_path / "first", tmp_path / "second"], folder=tmp_path)


def test_what_python_modules_have_in_common_is_compiled_once(
    module: Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module.export(tmp_path / "first")
    x = ir.input_("x", (5,), types.f32)
    other = luminal.compile(ir.Graph("other", (x,), (("y", x * 7.0),)))
    assert isinstance(other, Module)
    (other.folder / artifact.module_file("other")).unlink(missing_ok=True)
    with caplog.at_level("DEBUG", "luminal.build"):
        other.export(tmp_path / "second")
    (command,) = [record.getMessage() for record in caplog.records]
    assert "python_module.cpp" in command and "-DLM_RUNTIME_ELSEWHERE" in command
    assert "pybind11" not in (other.folder / "python_module.cpp").read_text()  # whose headers take seconds


def test_an_export_without_the_python_module_has_none(module: Module, tmp_path: Path) -> None:
    """Also where an earlier export compiled it: compiled models are shared through the cache."""
    name = artifact.module_file("encoder_a")
    assert (module.export(tmp_path / "with") / name).exists()
    assert not (module.export(tmp_path / "without", python_module=False) / name).exists()


# ---- the same bytes --------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


COMPILE = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from tests.compiled_support import compiled

compiled("encoder_a")[1].export(Path(sys.argv[2]), python_module=False)
"""


def test_an_export_replaces_an_earlier_one_that_is_in_use(module: Module, tmp_path: Path) -> None:
    """What was loaded stays as it was: files are replaced, and not written over."""
    folder = module.export(tmp_path / "exported", python_module=False)
    loaded = luminal.load(folder)
    before = outputs(loaded)
    assert module.export(folder, python_module=False) == folder
    compiled_support.assert_same_bits(outputs(loaded), before)
    assert not [item for item in folder.rglob(".*") if item.is_file()]


def test_an_export_that_the_disk_had_no_room_for_can_be_repeated(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []

    def full(source: Path, path: Path) -> None:
        copied.append(source.name)
        if len(copied) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shutil.copyfile(source, path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy2", full)
        with pytest.raises(InputError, match=r"folder '.*exported': .* found: No space left on device"):
            module.export(tmp_path / "exported", python_module=False)
    folder = module.export(tmp_path / "exported", python_module=False)
    assert sorted(p.name for p in folder.rglob("*.cpp")) == sorted(p.name for p in module.folder.rglob("*.cpp"))
    assert not [item for item in folder.rglob(".*") if item.is_file()]


def test_the_same_model_gives_the_same_bytes(exported: Path, tmp_path: Path) -> None:
    """Compiled again, from nothing: in another process, folder and cache, with another seed of Python's hashes."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "LUMINAL_CACHE": str(tmp_path / "cache")}
    run([sys.executable, "-c", COMPILE, ROOT, tmp_path / "again"], environment, elsewhere)
    assert contents(tmp_path / "again") == contents(exported)


def test_nothing_tells_where_it_was_made(exported: Path) -> None:
    places = {str(ROOT), str(Path.home()), tempfile.gettempdir(), str(Path(sys.prefix)), os.getcwd()}
    for path in exported.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [place for place in places if len(place) > 1 and f"{place}/".encode() in content], path
    for path in [*exported.glob("*.*"), *exported.rglob("kernels/*")]:
        if path.suffix in (".cpp", ".h", ".hpp", ".json", ".txt", ".map"):
            text = path.read_text()
            assert not re.search(r"(?<![\w./$}])/(home|root|Users|usr|tmp|var|opt|mnt)\b", text), path


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_bad_weights_are_refused(exported: Path, other: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "folder")
    weights = folder / "encoder_a.weights"
    good = weights.read_bytes()

    def refusal(content: bytes) -> str:
        weights.write_bytes(content)
        with pytest.raises(OSError) as caught:
            luminal.load(folder)
        return str(caught.value)

    assert f"is truncated: it has {len(good) - 1} of {len(good)} bytes" in refusal(good[:-1])
    assert "is truncated" in refusal(good[:100]) and "is truncated" in refusal(b"")
    assert "belongs to another build" in refusal((other / "encoder_b.weights").read_bytes())
    assert "is not a weights file of luminal" in refusal(bytes(len(good)))
    weights.rename(folder / "renamed.weights")
    with pytest.raises(OSError, match=r"cannot open the weights file .*encoder_a\.weights.*: No such file"):
        luminal.load(folder)
    (folder / "renamed.weights").write_bytes(good)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "weights": "renamed.weights"}))
    compiled_support.assert_same_bits(outputs(luminal.load(folder)), outputs(luminal.load(exported)))


def test_a_model_without_weights(tmp_path: Path) -> None:
    doubled = luminal.compile(torch.nn.ReLU(), (torch.zeros(3),), name="plain")
    assert isinstance(doubled, Module)
    folder = doubled.export(tmp_path / "plain", python_module=False)
    np.testing.assert_array_equal(luminal.load(folder)(np.float32([-1, 0, 2])), [0, 0, 2])
