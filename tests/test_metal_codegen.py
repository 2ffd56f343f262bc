"""What is generated around the kernels of a library for Metal: its text and host code, built, and emulated."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen import build, emulation, headers, metal, render, weights
from luminal.codegen.emitter import KernelText
from luminal.core import target as targets
from luminal.core import types
from luminal.core.errors import SpecError, UnsupportedError
from luminal.core.schedule.nest import ir
from luminal.core.schedule.program.ir import Kernel
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.symbolic import Var
from luminal.runtime import loader
from tests import metal_check, metal_support
from tests.codegen_programs import COLUMNS, scaled_rows
from tests.codegen_support import array, axis, of, output
from tests.mach_o import MachO
from tests.runtime_example import run
from tests.schedule_support import changed

PROGRAM = scaled_rows(threads=32)
METAL = targets.GPUS["metal"]
BUNDLE = render.render(PROGRAM, METAL)


def passed(kernel: KernelText) -> list[str]:
    """The types of the buffers of a kernel."""
    found = [f"device {pointer.type}" for pointer in kernel.signature.pointers]
    found += ["device Status*"] if kernel.signature.checked else []
    return found + (["constant int64_t*"] if kernel.signature.reads_dims else [])


def test_the_library_launches_its_kernels(tmp_path: Path) -> None:
    bundle = emulation.emulated(BUNDLE)
    path = build.build(bundle, tmp_path).library
    fake = metal_support.FakeMetal(path.with_name(emulation.DRIVER))
    weights.write(
        path.with_name(f"{bundle.name}.weights"),
        bundle.source_hash,
        bundle.plan,
        iter(PROGRAM.constants.values()),
        bundle.content_id,
    )
    library = loader.load(path)
    weight = PROGRAM.constants["weight"]
    for rows in (1, 5, 32):
        x = np.random.default_rng(rows).standard_normal((rows, COLUMNS)).astype(np.float32)
        np.testing.assert_array_equal(library.run([x])[0], x * x * weight)
        np.testing.assert_array_equal(library.run([x], entry="weigh_only")[0], x * weight)
    assert fake.faults() == []


def test_the_library_is_built_for_a_mac(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    library = MachO(build.build(BUNDLE, tmp_path).library.read_bytes())
    assert library.architecture == "arm64" and library.libraries == ["/usr/lib/libSystem.B.dylib"]
    text = re.search(rb"#define LM_NAMESPACE scaled_rows_model.*?kernel void weigh\(.*?\n\}\n", library.data, re.DOTALL)
    assert text, "the text of the kernels is not in the library"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, with the headers that they need alone."""
    folder = tmp_path_factory.mktemp("project")
    texts = {f"include/{header}": headers.text(header) for header in headers.needed(BUNDLE.files.values())}
    for name, text in {**BUNDLE.files, **texts}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def cmake_path() -> str:
    cmake, ninja = pytest.importorskip("cmake"), pytest.importorskip("ninja")
    return f"{cmake.CMAKE_BIN_DIR}:{ninja.BIN_DIR}:/usr/bin:/bin"


def test_the_exported_project_builds(project: Path, tmp_path: Path) -> None:
    """On any machine, with a compiler for Macs."""
    pytest.importorskip("ziglang")
    compilers = {}
    for language, command in (("C", "cc"), ("CXX", "c++")):
        compilers[language] = tmp_path / command
        start = f'exec "{sys.executable}" -m ziglang {command} --target=aarch64-macos.14.0 "$@" -fno-sanitize=undefined'
        compilers[language].write_text(f"#!/bin/sh\n{start}\n")
        compilers[language].chmod(0o755)
    options = ["-DCMAKE_SYSTEM_NAME=Darwin", "-DCMAKE_SYSTEM_PROCESSOR=arm64"]
    options += [f"-DCMAKE_{language}_COMPILER={path}" for language, path in compilers.items()]
    # CMake's own trials would have ziglang compile a C++ library first, which takes longer than all else.
    options += [f"-DCMAKE_CXX_COMPILER_{what}" for what in ("ID_RUN=ON", "ID=Clang", "FORCED=ON")]
    environment = {**os.environ, "PATH": cmake_path()}
    run(["cmake", "-G", "Ninja", "-S", project, "-B", tmp_path / "build", *options], environment)
    run(["cmake", "--build", tmp_path / "build"], environment)
    library = MachO((tmp_path / "build" / "libscaled_rows.dylib").read_bytes())
    assert library.architecture == "arm64" and "_scaled_rows_run" in library.exports


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac is what the project is for")
def test_the_exported_project_says_what_it_is_for(project: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"compiled for Macs with Apple's\s+processors, not for Linux on"):
        run(["cmake", "-G", "Ninja", "-S", project, "-B", tmp_path], {"PATH": cmake_path()})


# ---- the text of the kernels -----------------------------------------------------------------------------------------


def test_the_text_is_whole_and_right() -> None:
    pytest.importorskip("ziglang")
    text = metal.shader_text((BUNDLE.files[path] for path in BUNDLE.kernels), BUNDLE.namespace)
    assert metal_check.errors(text) == []
    for kernel in BUNDLE.kernels.values():
        assert metal_check.binding_errors(text, kernel.signature.name, passed(kernel)) == []
    assert text in BUNDLE.files["shaders.cpp"]


def test_headers_stand_once_in_the_text() -> None:
    source = '#include "luminal/index.hpp"\n\nkernel void {}() {{}}\n'
    text = metal.shader_text([source.format("first"), source.format("second")], "m_model")
    assert text.startswith("#define LM_NAMESPACE m_model\n")
    assert '#include "' not in text and "#pragma once" not in text
    once = "compilers refuse precompiled headers"  # in namespace.hpp, which index.hpp includes
    assert text.count(once) == 1 and text.index(once) < text.index("first") < text.index("second")
    with pytest.raises(SpecError, match=r"luminal/index.hpp is included under a condition"):
        metal.shader_text([f"#if 1\n{source}#endif\n"], "m_model")


# ---- what is refused -------------------------------------------------------------------------------------------------


def copying(count: int, dtype: types.DType) -> Kernel:
    """Adds up nothing: stores one of ``count - 1`` arrays."""
    rows = Var("rows", 1, 32)
    r, row = axis("r", of(rows))
    store = ir.Store("out", row, ir.load("x0", row, dtype))
    arrays = [replace(array(f"x{number}"), dtype=dtype) for number in range(count - 1)]
    loop = ir.Loop(r, of(rows), "parallel", (store,))
    nest = ir.LoopNest((replace(output("out"), dtype=dtype), *arrays), (rows,), (loop,))
    return Kernel("copy", Scheduled(nest), ("Concat '/joined' (model.py:9)",))


def test_float64_is_refused_by_name() -> None:
    metal.check(PROGRAM)
    program = replace(PROGRAM, kernels=(*PROGRAM.kernels, copying(2, types.f64)))
    with pytest.raises(UnsupportedError, match=r"Metal has no float64, in which Concat '/joined' \(model.py:9\) comp"):
        metal.check(program)


def test_float64_between_two_casts_is_refused_too() -> None:
    kernel = copying(2, types.f32)
    (loop,) = kernel.nest.body
    assert isinstance(loop, ir.Loop)
    (store,) = loop.body
    assert isinstance(store, ir.Store)
    wide = ir.literal(np.float64(1).tobytes(), types.f64)
    inside = replace(loop, body=(replace(store, value=wide),))
    with pytest.raises(UnsupportedError, match="Metal has no float64"):
        metal.check(replace(PROGRAM, kernels=(changed(kernel, body=(inside,)),)))


def test_more_buffers_than_metal_takes_are_refused() -> None:
    program = replace(PROGRAM, kernels=(*PROGRAM.kernels, copying(32, types.f32)))
    with pytest.raises(
        UnsupportedError, match=r"Concat '/joined' \(model.py:9\) needs 32 buffers at once, .* takes 31"
    ):
        render.render(program, METAL)
