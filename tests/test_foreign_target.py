"""Libraries for machines that this one is not: built, exported, refused here with a reason, and run in an emulator."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import replace
from pathlib import Path

import cmake
import ninja
import pytest
import torch

import luminal
from luminal.codegen import toolchain
from luminal.core import target as targets
from luminal.core.errors import BuildError, TargetError
from luminal.module import Module
from tests import compiled_support, emulation
from tests.compiled_support import SmallEncoder, arguments, assert_computes, printed_by
from tests.runtime_example import NATIVE, run

TARGET = targets.AARCH64

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="aarch64 is foreign to x86_64")
built = pytest.mark.skipif(bool(emulation.missing_compiler(TARGET)), reason=emulation.missing_compiler(TARGET))
runs = pytest.mark.skipif(bool(emulation.missing(TARGET)), reason=emulation.missing(TARGET))


@pytest.fixture(scope="module")
def module() -> Module:
    return compiled_support.compiled("encoder_a", target="neon")[1]


@pytest.fixture(scope="module")
def exported(module: Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return module.export(tmp_path_factory.mktemp("exported"))


# ---- what is written -------------------------------------------------------------------------------------------------


@built
def test_the_export_is_complete_but_for_the_python_module(module: Module, exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    assert names == {
        "libencoder_a.so", "encoder_a.h", "encoder_a.hpp", "encoder_a.weights", "manifest.json", "library.cpp",
        "kernels", "exports.map", "CMakeLists.txt", "python_module.cpp", "include",
    }  # fmt: skip
    assert module.manifest["target"] == {
        "name": "aarch64",
        "architecture": "aarch64",
        "features": ["asimd"],
        "precision": "fp32",
    }


@built
def test_the_library_is_for_the_other_machine_and_needs_its_libc_only(exported: Path) -> None:
    library = exported / "libencoder_a.so"
    assert "AArch64" in run(["readelf", "-h", library])
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", library])))
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
    symbols = run(["nm", "-D", library])
    assert set(re.findall(r"@(\w+)_", symbols)) == {"GLIBC"}
    found = set(re.findall(r" T (\w+)", symbols))
    assert found and all(name.startswith("encoder_a_") for name in found)
    assert library.stat().st_size < 200_000  # the compiler's own parts come with debug information
    assert f"{Path.home()}/".encode() not in library.read_bytes()


# ---- what is refused -------------------------------------------------------------------------------------------------


@built
def test_a_module_for_another_machine_says_so_when_it_is_called(module: Module, exported: Path) -> None:
    assert "encoder_a" in repr(module) and module.input_names == ["ids", "weight"]
    assert module.accepts(*arguments()) and len(module.output_names) == 3
    for call in (lambda: module(*arguments()), lambda: module.run({}), lambda: module.library):
        with pytest.raises(TargetError, match="for aarch64, and this machine is x86_64; load its exported folder"):
            call()
    with pytest.raises(OSError, match="compiled for aarch64, and this machine is x86_64: load it"):
        luminal.load(exported)
    with pytest.raises(TargetError, match="for aarch64"):
        luminal.diff(SmallEncoder().eval(), arguments(), target="aarch64")


def test_a_machine_without_the_instructions_is_told_which(tmp_path: Path) -> None:
    better = replace(targets.X86_64, name="better", features=("time-travel",))
    x = torch.zeros(3)
    module = luminal.compile(torch.nn.ReLU(), (x,), target=better, name="better")
    assert isinstance(module, Module)
    with pytest.raises(TargetError, match="for machines with time-travel, which this one lacks"):
        module(x)
    with pytest.raises(RuntimeError, match="compiled for machines with time-travel, which this one lacks"):
        luminal.load(module.export(tmp_path, python_module=False))


# ---- compilers -------------------------------------------------------------------------------------------------------


def test_a_compiler_for_the_wrong_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    with pytest.raises(BuildError, match=r"CXX names 'g\+\+', which compiles for x86_64-.*, not for aarch64: unset it"):
        toolchain.find("aarch64")
    assert toolchain.find("x86_64").command == toolchain.find().command


def test_without_a_compiler_for_the_machine_the_user_learns_where_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        BuildError, match=r"found no C\+\+ compiler for riscv64: install the clang .*pip install ziglang"
    ):
        toolchain.find("riscv64")


# ---- what it computes ------------------------------------------------------------------------------------------------


def program_for(library: Path, header: Path, folder: Path) -> list[str]:
    """A command that runs tests/native/encoder_test.c on the library in an emulator."""
    program = folder / "program"
    source = ["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-x", "c", str(NATIVE / "encoder_test.c"), "-x", "none"]
    links = [f"-I{header}", f"-L{library}", "-lencoder_a", f"-Wl,-rpath,{library}"]
    emulation.link_program(TARGET, [*source, *links, "-o", str(program)])
    return [*emulation.command(TARGET), str(program)]


@runs
def test_a_c_program_computes_the_model(module: Module, exported: Path, tmp_path: Path) -> None:
    program = program_for(exported, exported, tmp_path)
    assert module.graph is not None
    for batch, length in ((3, 7), (1, 1), (4, 8)):
        inputs = dict(zip(module.input_names, (v.numpy() for v in arguments(batch, length)), strict=True))
        found = printed_by(program, exported / "encoder_a.weights", batch, length)
        assert_computes(module.graph, inputs, found, 100)


@runs
def test_the_exported_project_builds(exported: Path, tmp_path: Path) -> None:
    """With CMake and the compiler for the other machine, to a library that computes the same bits."""
    compiler = toolchain.find(TARGET.architecture)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([cmake.CMAKE_BIN_DIR, ninja.BIN_DIR, os.environ["PATH"]]),
        "CC": " ".join(compiler.linker).replace("g++", "gcc"),
        "CXX": " ".join(compiler.command),
    }
    machine = ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={TARGET.architecture}"]
    configure = ["cmake", "-G", "Ninja", "-S", exported, "-B", tmp_path / "build"]
    # CMake's own trials would have ziglang compile a C++ library first, which takes longer than all else.
    configure += [f"-DCMAKE_CXX_COMPILER_{what}" for what in ("ID_RUN=ON", "ID=Clang", "FORCED=ON")]
    with pytest.raises(AssertionError, match="compiled for aarch64, not for x86_64: see the head of this file"):
        run(configure, environment)
    shutil.rmtree(tmp_path / "build")
    run([*configure, *machine], environment)
    run(["cmake", "--build", tmp_path / "build"], environment)
    weights = exported / "encoder_a.weights"
    found, expected = (
        printed_by(program_for(library, exported, tmp_path), weights, 3, 7)
        for library in (tmp_path / "build", exported)
    )
    compiled_support.assert_same_bits(found, expected)
