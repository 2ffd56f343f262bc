"""Compiles text for GPUs where there is none: CUDA by nvcc; Metal's shading language is checked by clang."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.vector_support import INCLUDE, NATIVE

NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/bin:/usr/local/cuda/bin")

# The versions of the language that the headers are written for.
CUDA = ("-std=c++17", "-fmad=false", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra")
METAL = (
    "-x", "c++", "-std=c++17", "-nostdinc++", "-D__METAL_VERSION__=310", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-attributes", "-Wno-unused-parameter", "-Wno-unused-command-line-argument",
    f"-I{INCLUDE / 'luminal/device/check'}",
)  # fmt: skip

_SHARED = re.compile(r"^(\s+)(?:alignas\(\d+\) )?threadgroup (\w+) (\w+)\[([^\]]+)\];", re.MULTILINE)
_COMMON = ("-DLM_NAMESPACE=model_test", f"-I{INCLUDE}", f"-I{NATIVE}")


def without_nvcc() -> str:
    """Why CUDA cannot be compiled here; empty where it can."""
    return "" if NVCC else "needs nvcc: install NVIDIA's CUDA toolkit, or put its bin folder on PATH"


def without_clang() -> str:
    """Why Metal's language cannot be checked here; empty where it can."""
    found = importlib.util.find_spec("ziglang") is not None
    return "" if found else "needs clang of the package index: pip install ziglang"


def compile_cuda(source: Path, compute: str, folder: Path) -> tuple[str, Path]:
    """What nvcc and ptxas say of ``source`` for a compute capability (``sm_90``), and the binary."""
    assert NVCC is not None
    binary = folder / f"{source.stem}.{compute}.cubin"
    command = [NVCC, *CUDA, *_COMMON, f"-arch={compute}", "-Xptxas", "-v", "-cubin", "-o", str(binary), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[:4000]
    return result.stdout + result.stderr, binary


def check_metal(text: str, folder: Path) -> list[str]:
    """The errors and warnings that clang finds in ``text``, in Metal's shading language.

    Shared arrays become references to such: clang lets no function declare an array of an address space.
    """
    source = folder / "kernel.metal"
    source.write_text(_SHARED.sub(r"\1threadgroup \2 (&\3)[\4] = shared_array<\2[\4]>();", text))
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "c++",
        *METAL,
        *_COMMON,
        "-c",
        "-o",
        str(folder / "kernel.o"),
        str(source),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in result.stderr.splitlines() if re.search(r"\b(error|warning): ", line)]
    assert result.returncode == 0 or found, result.stderr[:4000]
    return found
