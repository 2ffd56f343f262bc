"""What is generated around the kernels of a library for Metal: its text and host code, built, and run on the stand-in.

The kernels here are those for CPUs, one block doing one task: what launches them is under test.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen import build, metal, render, weights
from luminal.codegen.emitter import KernelText
from luminal.codegen.platform import LINUX
from luminal.codegen.render import SourceBundle
from luminal.core import target as targets
from luminal.core import types
from luminal.core.errors import SpecError, UnsupportedError
from luminal.core.program import Kernel
from luminal.core.schedule import nest as ir
from luminal.core.symbolic import Var
from luminal.runtime import loader
from tests import metal_check, metal_support
from tests.codegen_programs import COLUMNS, scaled_rows
from tests.codegen_support import array, axis, of, output
from tests.mach_o import MachO
from tests.metal_support import EMULATOR
from tests.runtime_example import INCLUDE, run

PROGRAM = scaled_rows()
DIMS = {dim.name: number for number, dim in enumerate(PROGRAM.dims)}
KERNELS = [render.emit(kernel, DIMS) for kernel in PROGRAM.kernels]


def passed(kernel: KernelText) -> list[str]:
    """The types of the buffers of a kernel."""
    found = [f"device {pointer.type}" for pointer in kernel.signature.pointers]
    found += ["device Status*"] if kernel.signature.checked else []
    return found + (["constant int64_t*"] if kernel.signature.reads_dims else [])


def empty_kernel(kernel: KernelText) -> str:
    """A kernel that does nothing, with the parameters that it must have."""
    names = [f"x{number}" for number in range(len(passed(kernel)))]
    bound = [f"{kind} {name} [[buffer({i})]]" for i, (kind, name) in enumerate(zip(passed(kernel), names, strict=True))]
    numbers = ["uint block [[threadgroup_position_in_grid]]", "uint lane [[thread_index_in_threadgroup]]"]
    unused = "".join(f"    (void){name};\n" for name in (*names, "block", "lane"))
    parameters = ",\n    ".join([*bound, *numbers])
    return f"#include <metal_stdlib>\n\nkernel void {kernel.signature.name}(\n    {parameters}) {{\n{unused}}}\n"


def metal_bundle() -> SourceBundle:
    sources = {f"kernels/{kernel.signature.name}.metal": empty_kernel(kernel) for kernel in KERNELS}
    threads = {kernel.signature.name: 1 for kernel in KERNELS}
    return metal.bundle(PROGRAM, targets.AARCH64, KERNELS, sources, threads)


def cpu_image(folder: Path) -> Path:
    """The kernels for CPUs as an image: block number ``block`` does task ``block``."""
    parts = ['#include "emulator.h"\n', *map(render.kernel_text, KERNELS)]
    rows = []
    for kernel in KERNELS:
        sign = kernel.signature
        arguments = {"status": "nullptr", "dims": f"static_cast<const int64_t*>(arguments[{len(sign.pointers)}])"}
        arguments |= {p.array: f"static_cast<{p.type}>(arguments[{i}])" for i, p in enumerate(sign.pointers)}
        call = f"lm::{sign.name}({', '.join(sign.values(arguments))}, block, block + 1)"
        parts.append(f"static void call_{sign.name}(void* const* arguments, uint32_t block, uint32_t) {{ {call}; }}\n")
        rows.append(f'{{"{sign.name}", call_{sign.name}, 1}}, ')
    source = (metal_support.NATIVE / "metal_example_image.cpp").read_text()
    emulator = source[source.index("int lm_emulate(") : source.index("/// Device buffers")]
    table = f"extern const lm_emulated_kernel lm_emulated_kernels[] = {{{''.join(rows)}{{nullptr, nullptr, 0}}}};\n"
    parts.append(f'extern "C" {{\nstatic int registered = 0;\n{table}{emulator}}}\n')
    (folder / "image.cpp").write_text("".join(parts))
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-DLM_NAMESPACE=image_model", f"-I{INCLUDE}", f"-I{EMULATOR}"]
    run(["g++", *flags, folder / "image.cpp", "-o", folder / "image.so"])
    return folder / "image.so"


def test_the_library_launches_its_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = metal_support.FakeMetal(metal_support.build_fake(tmp_path))
    monkeypatch.setenv("LUMINAL_METAL_RUNTIME", str(fake.path))
    monkeypatch.setenv("LUMINAL_METAL_IMAGE", str(cpu_image(tmp_path)))
    bundle = replace(metal_bundle(), target=targets.X86_64, platform=LINUX)
    path = build.build(bundle, tmp_path / "out")
    weights.write(
        path.with_name(f"{bundle.name}.weights"), bundle.source_hash, bundle.plan, iter(PROGRAM.constants.values())
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
    bundle = metal_bundle()
    library = MachO(build.build(bundle, tmp_path).read_bytes())
    assert library.architecture == "arm64" and library.libraries == ["/usr/lib/libSystem.B.dylib"]
    text = re.search(rb"#define LM_NAMESPACE scaled_rows_model.*?kernel void weigh\(.*?\}\n", library.data, re.DOTALL)
    assert text, "the text of the kernels is not in the library"


def test_the_exported_project_builds(tmp_path: Path) -> None:
    cmake, ninja = pytest.importorskip("cmake"), pytest.importorskip("ninja")
    for name, text in metal_bundle().files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "include").symlink_to(INCLUDE)
    environment = {"PATH": f"{cmake.CMAKE_BIN_DIR}:{ninja.BIN_DIR}:/usr/bin:/bin"}
    run(["cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build"], environment)
    run(["cmake", "--build", tmp_path / "build"], environment)
    assert "T scaled_rows_run" in run(["nm", "-D", tmp_path / "build" / "libscaled_rows.so"])


# ---- the text of the kernels -----------------------------------------------------------------------------------------


def test_the_text_is_whole_and_right() -> None:
    pytest.importorskip("ziglang")
    bundle = metal_bundle()
    text = metal.shader_text((bundle.files[path] for path in bundle.kernels), bundle.namespace)
    text = text.replace("Status*", "int32_t*")
    assert metal_check.errors(text) == []
    for kernel in KERNELS:
        assert metal_check.binding_errors(text, kernel.signature.name, passed(kernel)) == []
    assert text in bundle.files["shaders.cpp"]


def test_headers_stand_once_in_the_text() -> None:
    source = '#include "luminal/index.hpp"\n\nkernel void {}() {{}}\n'
    text = metal.shader_text([source.format("first"), source.format("second")], "m_model")
    assert text.startswith("#define LM_NAMESPACE m_model\n")
    assert '#include "' not in text and "#pragma once" not in text
    once = "define LM_NAMESPACE as model_"  # in namespace.hpp, which index.hpp includes
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
    return Kernel("copy", nest, ("Concat '/joined' (model.py:9)",))


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
    inside = replace(kernel.nest, body=(replace(loop, body=(replace(store, value=wide),)),))
    with pytest.raises(UnsupportedError, match="Metal has no float64"):
        metal.check(replace(PROGRAM, kernels=(replace(kernel, nest=inside),)))


def test_more_buffers_than_metal_takes_are_refused() -> None:
    kernel = render.emit(copying(metal.MOST_BUFFERS + 1, types.f32), {"rows": 0})
    with pytest.raises(
        UnsupportedError, match=r"Concat '/joined' \(model.py:9\) needs 32 buffers at once, .* takes 31"
    ):
        metal.bundle(PROGRAM, targets.AARCH64, [kernel], {"kernels/copy.metal": ""}, {"copy": 1})
