"""Compiles CUDA text where there is no GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.vector_support import INCLUDE, NATIVE

NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/bin:/usr/local/cuda/bin")

FLAGS = (
    "-std=c++17", "-fmad=false", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", "-DLM_NAMESPACE=model_test",
    f"-I{INCLUDE}", f"-I{NATIVE}",
)  # fmt: skip


needs_nvcc = pytest.mark.skipif(
    NVCC is None, reason="needs nvcc: install NVIDIA's CUDA toolkit, or put its bin folder on PATH"
)


def cuda_include() -> Path | None:
    """The folder of ``cuda.h``, the declarations of the driver."""
    near = [Path(NVCC).resolve().parent.parent / "include"] if NVCC else []
    return next((f for f in (*near, *Path("/usr/local").glob("cuda*/include")) if (f / "cuda.h").exists()), None)


def compile_cuda(source: Path, compute: str, folder: Path) -> tuple[str, Path]:
    """What nvcc and ptxas say of ``source`` for a compute capability (``sm_90``), and the binary."""
    assert NVCC is not None
    binary = folder / f"{source.stem}.{compute}.cubin"
    command = [NVCC, *FLAGS, f"-arch={compute}", "-Xptxas", "-v", "-cubin", "-o", str(binary), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[:4000]
    return result.stdout + result.stderr, binary
