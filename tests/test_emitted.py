"""Other forms of an export: a static library, sources alone, a wheel; and one library for several instruction sets."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from luminal.cli import app
from luminal.core import target as targets
from luminal.core.errors import InputError
from tests.images_support import assert_right, compiled, outputs, source
from tests.runtime_example import NATIVE, run

HOST = "avx2" if targets.supported(targets.AVX2) else "host"
PROGRAM = ("-std=c99", NATIVE / "images_test.c")


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def made(form: str, target: str = HOST) -> Path:
        folder = tmp_path_factory.mktemp(form)
        return compiled(target).export(folder, emit=form, python_module=False)

    return functools.cache(made)


def program(folder: Path, *links: str | Path) -> list[str | Path]:
    """A program that is linked with the library in ``folder``."""
    run(["gcc", *PROGRAM, f"-I{folder}", *links, "-o", folder / "program"])
    return [folder / "program"]


def test_a_static_library_is_linked_into_a_program(export: Any) -> None:
    folder = export("static")
    (folder / "libimages.so").unlink()
    command = program(folder, folder / "libimages.a", "-pthread", "-ldl", "-lm")
    assert "libimages" not in run(["readelf", "-d", folder / "program"])
    assert_right(outputs(command, folder))


def test_sources_build_by_the_command_that_they_name(export: Any) -> None:
    folder = export("source")
    assert not (folder / "libimages.so").exists()
    command = re.findall(r"^//     (c\+\+ .*)$", (folder / "images.cpp").read_text(), re.MULTILINE)
    run([*command[0].replace("c++", "g++", 1).split()], folder=folder)
    assert_right(outputs(program(folder, folder / "libimages.so", f"-Wl,-rpath,{folder}"), folder))


def test_a_wheel_computes_the_model_without_luminal(export: Any, tmp_path: Path) -> None:
    folder = export("wheel")
    (wheel,) = folder.glob("*.whl")
    assert re.fullmatch(r"images-1\.0\+[0-9a-f]{12}-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path, wheel])
    np.save(tmp_path / "x.npy", source()[1].numpy())
    code = """if True:
        import sys
        import numpy as np
        import images
        model, x = images.Model(threads=2), np.load("x.npy")
        (found,) = model.run({"input": x}).values()
        np.save("y.npy", found)
        for wrong in ({"input": x[:0]}, {"input": x.astype(np.float64)}, {"other": x}):
            try:
                model.run(wrong)
            except images.ModelError as error:
                print(error)
        assert not any(name.startswith("luminal") for name in sys.modules)"""
    said = run([sys.executable, "-c", code], folder=tmp_path).splitlines()
    assert_right(np.load(tmp_path / "y.npy"))
    assert 'outside the bounds 1..4 of "batch"' in said[0]
    assert said[1] == "input 'input': expected elements of type float32, found float64"
    assert said[2] == "entry 'main' takes input; found other"


def test_equal_models_give_equal_wheels(export: Any, tmp_path: Path) -> None:
    (one,) = export("wheel").glob("*.whl")
    (other,) = compiled(HOST).export(tmp_path, emit="wheel", python_module=False).glob("*.whl")
    assert one.name == other.name and one.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(one) as archive:
        names = set(archive.namelist())
    assert {"images/__init__.py", "images/libimages.so", "images/images.weights", "images/manifest.json"} <= names


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="emit: expected one of library, static, source, wheel, found 'exe'"):
        compiled(HOST).export(tmp_path, emit="exe")
    answer = CliRunner().invoke(app, ["compile", "model.onnx", "-o", str(tmp_path), "--emit", "exe"])
    assert answer.exit_code == 2


# ---- several levels --------------------------------------------------------------------------------------------------


def test_one_library_takes_the_best_instructions_of_its_machine(export: Any) -> None:
    """The same library on this machine, and on emulated ones with fewer instructions."""
    folder = export("library", "x86-64-multi")
    command = program(folder, folder / "libimages.so", f"-Wl,-rpath,{folder}")
    assert_right(outputs(command, folder))
    text = run(["objdump", "-d", "--no-show-raw-insn", folder / "libimages.so"])
    assert re.search(r"%k[1-7]|%ymm(1[6-9]|[23]\d)", text)  # kernels for AVX-512 are among them
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("needs qemu-x86_64: install Debian's package qemu-user")
    found = [outputs(["qemu-x86_64", "-cpu", cpu, *command], folder) for cpu in ("Nehalem", "max")]
    for values in found:
        assert_right(values)


def test_its_manifest_names_one_weights_file(export: Any) -> None:
    folder = export("library", "x86-64-multi")
    assert json.loads((folder / "manifest.json").read_text())["target"]["features"] == []
    assert len(list(folder.glob("*.weights"))) == 1


def test_the_list_of_targets_is_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "luminal", "targets", "macos"], capture_output=True, text=True)
    assert done.returncode == 0 and "aarch64-macos" in done.stdout and "x86-64-windows" not in done.stdout
    assert "C, C++, Python" not in done.stdout
    none = subprocess.run([sys.executable, "-m", "luminal", "targets", "pentium"], capture_output=True, text=True)
    assert none.returncode == 2 and not none.stdout and "expected a part of a target's name" in none.stderr
