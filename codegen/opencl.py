"""Libraries that run by OpenCL 3: host code for Linux, with the kernels inside, each compiled to an image.

Kernels are C++ for OpenCL, which few drivers read. So clang compiles them: to SPIR-V, which drivers are to take
(``clCreateProgramWithIL``), where ``llvm-spirv`` is installed; and to SPIR, LLVM's own code, which pocl took before.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from luminal.codegen import lacking, library
from luminal.codegen.emitter import KernelText
from luminal.codegen.host import IMAGES, LIBRARY, PUBLIC, Host, image_path
from luminal.codegen.toolchain import Toolchain
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target

# No product and sum become one but where fma() says so, and denormal numbers count.
FLAGS = (
    "-x", "cl", "-cl-std=clc++2021", "-target", "spir64-unknown-unknown", "-O2", "-ffp-contract=off",
    "-Wno-unknown-pragmas", "-emit-llvm", "-c",
)  # fmt: skip


def make_image(
    clang: Toolchain, translator: Toolchain | None, flags: tuple[str, ...], source: str, image: Path, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Compiles ``source`` in ``folder`` to an image: two sizes, then as many bytes of SPIR-V and of SPIR. What the
    command that failed, or the last one, says."""
    spir, spirv = (image.with_suffix(ending) for ending in (".bc", ".spv"))
    try:
        done = clang.run([*FLAGS, *flags, source, "-o", str(spir)], folder)
        if done.returncode == 0 and translator is not None:
            done = translator.run([str(spir), "-o", str(spirv)], folder)
        if done.returncode == 0:
            portable = spirv.read_bytes() if translator is not None else b""
            image.write_bytes(struct.pack("<QQ", len(portable), spir.stat().st_size) + portable + spir.read_bytes())
        return done
    finally:
        spir.unlink(missing_ok=True)
        spirv.unlink(missing_ok=True)


def _more(
    program: Program, target: Target, kernels: Mapping[str, KernelText], sources: Mapping[str, str]
) -> Mapping[str, Any]:
    return {"images": [{"name": PurePosixPath(path).stem, "path": image_path(path)} for path in kernels]}


HOST = Host(
    "opencl",
    ".cl",
    library.LaunchDescriber,
    {"opencl/library.cpp.j2": LIBRARY, "cuda/images.cpp.j2": IMAGES, **PUBLIC},
    lacking.lacking("OpenCL, as luminal uses it,", "OpenCL devices"),
    _more,
)
