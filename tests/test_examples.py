"""The demonstration, whole, and the pages that the benchmarks write."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import accuracy, machine
from luminal.timing import Timing

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(900)
def test_demo() -> None:
    done = subprocess.run([sys.executable, ROOT / "examples" / "demo.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all agree" in done.stdout and "main.c" in done.stdout


def test_pages_name_the_machine_and_hold_every_row() -> None:
    line = accuracy.Line("net", "ONNX", 1.5, 2e-6, 1e-6, 3e-6, "onnxruntime", True, 1.0)
    page = accuracy.markdown([line])
    assert machine.describe() in page and "| net | 1.5 M | ONNX | 2.0e-06 | 1.0e-06 | onnxruntime |" in page
    assert not accuracy.Line("net", "ONNX", 1.5, 2e-5, 1e-6, 3e-6, "onnxruntime", True, 1.0).ok
    module: Any = None
    times = {name: Timing((seconds,)) for name, seconds in {"ONNX": 0.5, "onnxruntime": 1.0, "torch": 2.0}.items()}
    result = benchmarks.Result("net", times, {"ONNX": benchmarks.Compiled(module, 3.0, 0.25, 1 << 30)})
    page = benchmarks.markdown([result], 2, 4)
    assert "| net | ONNX | 0.50 | 0.25 | 500 ms | 1 s | 2 s | 3 s | 250 ms | 1.00 GiB |" in page


def test_peak_sees_memory_that_is_gone_again() -> None:
    with machine.Peak() as peak:
        held = np.ones(1 << 25)
        # Long enough for the sampling to look.
        for _ in range(3):
            held += held.sum() * 1e-30
        del held
    assert (1 << 27) < peak.bytes < (1 << 30)
