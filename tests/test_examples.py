"""The demonstration, whole, and what the measurements at real sizes stand on."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import accuracy, machine

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(900)
def test_demo() -> None:
    done = subprocess.run([sys.executable, ROOT / "examples" / "demo.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all agree" in done.stdout and "main.c" in done.stdout


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
