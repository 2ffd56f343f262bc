"""The demonstration, whole, and what the measurements at real sizes stand on."""

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import luminal
from benchmarks import accuracy, machine, zoo
from luminal.codegen import emulation
from luminal.module import Module
from tests import device_support
from tests.runtime_example import run

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(900)
def test_demo() -> None:
    done = subprocess.run([sys.executable, ROOT / "examples" / "demo.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all agree" in done.stdout and "main.c" in done.stdout


CUDA_H = device_support.cuda_include()
PROGRAMS = (
    "main.c", pytest.param("on_gpu.c", marks=pytest.mark.skipif(CUDA_H is None, reason="needs cuda.h of NVIDIA's CUDA"))
)  # fmt: skip


@dataclass(frozen=True)
class ForGpu:
    """A model of one layer, compiled for a GPU that is emulated, in ``folder``; sentences for it, and their
    similarities by PyTorch."""

    folder: Path
    tokens: str
    similarities: NDArray[np.float32]

    def program(self, source: str, output: Path) -> Path:
        """The C program ``source`` for the model, with the stand-in for the driver."""
        (self.folder / "libcuda.so").unlink(missing_ok=True)
        (self.folder / "libcuda.so").symlink_to(emulation.DRIVER)
        cuda = [] if source == "main.c" else [f"-I{CUDA_H}", "-lcuda"]
        run(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", ROOT / "examples" / "c" / source, f"-I{self.folder}",
             f"-L{self.folder}", "-lminilm", *cuda, f"-Wl,-rpath,{self.folder}", "-o", output])  # fmt: skip
        return output

    def run(self, program: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program], input=self.tokens, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def for_gpu(tmp_path_factory: pytest.TempPathFactory) -> ForGpu:
    model = zoo.minilm(layers=1, batch=2, seq=3)
    module = luminal.compile(
        model.module, model.inputs, dims=model.dims, name="minilm", target="cuda:sm_90", emulate=True
    )
    assert isinstance(module, Module)
    ids, mask, _ = model.inputs
    tokens = " ".join(str(int(value)) for part in (torch.tensor(ids.shape), ids, mask) for value in part.flatten())
    with torch.no_grad():
        _, embeddings = model.module(ids, mask, torch.zeros_like(ids))  # one kind of text, as the programs have it
    folder = module.export(tmp_path_factory.mktemp("minilm"), python_module=False)
    return ForGpu(folder, tokens, (embeddings @ embeddings.T).numpy())


@pytest.mark.parametrize("source", PROGRAMS)
def test_a_c_program_runs_a_library_for_a_gpu(source: str, for_gpu: ForGpu, tmp_path: Path) -> None:
    done = for_gpu.run(for_gpu.program(source, tmp_path / "program"))
    assert done.returncode == 0, done.stderr
    found = np.array([[float(value) for value in line.split()] for line in done.stdout.splitlines()])
    np.testing.assert_allclose(found, for_gpu.similarities, atol=1e-5)


@pytest.mark.parametrize("source", PROGRAMS)
def test_a_c_program_says_what_is_missing(source: str, for_gpu: ForGpu, tmp_path: Path) -> None:
    program = for_gpu.program(source, tmp_path / "program")
    done = for_gpu.run(program, LUMINAL_CUDA_DRIVER="/nowhere/libcuda.so.1")
    assert done.returncode == 1
    assert done.stderr.startswith("minilm_open: this machine has no CUDA driver, which the library needs: /nowhere/lib")
    done = for_gpu.run(program, LUMINAL_CUDA_FAIL="cuInit:1:100")
    assert done.returncode == 1 and "no CUDA-capable device is detected" in done.stderr


def test_the_page_of_errors_names_the_machine_and_holds_every_row() -> None:
    line = accuracy.Line("net", "ONNX", "symbolic", 1.5, 2e-6, 1e-6, 3e-6, "onnxruntime", True, 1.0)
    page = accuracy.markdown([line])
    assert machine.describe() in page
    assert "| net | 1.5 M | ONNX | symbolic | 2.0e-06 | 1.0e-06 | onnxruntime | 3.0e-06 | agrees |" in page
    assert not dataclasses.replace(line, error=2e-5).ok


def test_peak_sees_memory_that_is_gone_again() -> None:
    with machine.Peak() as peak:
        held = np.ones(1 << 25)
        # Long enough for the sampling to look.
        for _ in range(3):
            held += held.sum() * 1e-30
        del held
    assert (1 << 27) < peak.bytes < (1 << 30)
