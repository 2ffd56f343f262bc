"""The programs that make and read machine code: nvcc, ptxas and nvdisasm, none of which needs a GPU."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from luminal.codegen import cuda, dialects, render, toolchain
from luminal.codegen.emitter import KernelText, emit
from luminal.codegen.host import INCLUDE, namespace
from luminal.core.errors import BuildError
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.machine_code import sass

ADVICE = "put it on PATH, or install the package nvidia-cuda-nvdisasm, or triton, which brings it"


@cache
def find(name: str, folders: tuple[str, ...] = ()) -> str:
    """The path of a program: in ``folders``, on PATH, or in a package of this Python that brings it.

    Raises BuildError where there is none.
    """
    places = list(folders)
    for package, inner in (("triton", "backends/nvidia/bin"), ("nvidia", "*/bin")):
        found = importlib.util.find_spec(package)
        for root in (found.submodule_search_locations or ()) if found is not None else ():
            places += map(str, sorted(Path(root).glob(inner)))
    first = [shutil.which(name, path=folder) for folder in folders]
    path = next(filter(None, [*first, shutil.which(name), *(shutil.which(name, path=p) for p in places),
                              shutil.which(name, path="/usr/local/cuda/bin")]), None)  # fmt: skip
    if path is None:
        raise BuildError(f"found no {name}: {ADVICE}")
    return path


def _said(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed:\n  {done.stderr.strip()[:2000]}")
    return done.stdout + done.stderr


def disassembled(cubin: Path, folders: tuple[str, ...] = ()) -> dict[str, sass.Code]:
    """The kernels in a file of machine code. Raises BuildError where nvdisasm is missing or cannot read it."""
    return sass.parse(_said([find("nvdisasm", folders), str(cubin)]))


@dataclass(frozen=True)
class Image:
    """A kernel's machine code, and what the assembler said of it: registers of a thread, bytes that it spills, bytes of
    shared memory."""

    code: sass.Code
    registers: int
    spilled: int
    shared: int


def assembled(ptx: Path, architecture: str, assembler: Sequence[str]) -> dict[str, int]:
    """What the assembler, with its flags, says of a file of PTX with one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*assembler, "-v", f"-arch={architecture}", str(ptx), "-o", str(Path(folder) / "out.cubin")]
        return next(iter(cuda.resources(_said(command)).values()))


def number(architecture: str) -> int:
    """90 of ``sm_90a``."""
    return int(re.sub(r"\D", "", architecture))


def newest(target: Target) -> str:
    """The last architecture that libraries for a target have machine code for, such as ``sm_90``."""
    return max(target.features, key=number)


def texts(program: Program, target: Target) -> dict[str, KernelText]:
    """The kernels of a program as luminal writes them, by name."""
    dims = {dim.name: place for place, dim in enumerate(program.dims)}
    dialect = dialects.ALL[target.dialect]
    return {kernel.name: emit(kernel, dims, dialect, target.costs.prefetch) for kernel in program.kernels}


def images(texts: Mapping[str, KernelText], target: Target, folders: tuple[str, ...] = ()) -> dict[str, Image]:
    """Their machine code for the newest architecture, compiled with the flags that libraries are.

    Raises BuildError where nvcc or nvdisasm is missing, or refuses.
    """
    compiler, goal = toolchain.find_nvcc(), newest(target)
    code = cuda.compiled(goal)
    flags = [*target.flags, f"-gencode=arch=compute_{code},code=sm_{code}", "-cubin", "-Xptxas", "-v",
             f"-DLM_NAMESPACE={namespace('counted')}", f"-I{INCLUDE}"]  # fmt: skip
    found: dict[str, Image] = {}
    with tempfile.TemporaryDirectory(prefix="luminal-") as name:
        folder = Path(name)
        for kernel, text in texts.items():
            (folder / f"{kernel}.cu").write_text(render.kernel_text(text), encoding="utf-8")
            cubin = folder / f"{kernel}.cubin"
            done = compiler.run([*flags, f"{kernel}.cu", "-o", str(cubin)], folder)
            if done.returncode:
                raise BuildError(f"nvcc rejected {kernel}:\n  {done.stderr.strip()[:2000]}")
            uses = cuda.resources(done.stdout + done.stderr)[f"sm_{code}"]
            uses["shared"] = max(uses["shared"], text.signature.requested)
            found[kernel] = Image(disassembled(cubin, folders)[kernel], **uses)
    return found
