"""The examples of training, in small: from Python, and alone from C."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime_example import run

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "train"


def output(name: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", *arguments], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "s left" in done.stderr and (folder / f"{name}.svg").read_text().startswith("<svg")
    return done.stdout


def test_a_gpt_learns_characters_as_it_does_in_pytorch(tmp_path: Path) -> None:
    said = output("gpt", tmp_path, "--steps", "8", "--compare")
    (first, last), (theirs_first, theirs_last) = re.findall(r"loss (\S+) -> (\S+)", said)
    assert first == theirs_first and float(last) < float(first)
    assert abs(float(last) - float(theirs_last)) < 2e-3


def test_adapters_over_rounded_weights(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    said = output("lora", tmp_path, "--epochs", "2")
    before, after = (float(x) for x in re.findall(r"(?:before|after): (\S+)%", said))
    assert before < 60 < 70 < after


def test_digits_from_python_and_from_c(tmp_path: Path) -> None:
    """The program in C is stopped after an epoch, and goes on."""
    pytest.importorskip("sklearn")
    said = output("digits", tmp_path, "--export", "build", "--epochs", "2")
    assert float(re.search(r"test accuracy (\S+)%", said)[1]) > 90  # type: ignore[index]
    build = tmp_path / "build"
    run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", FOLDER / "digits.c", f"-I{build}", f"-L{build}", "-ldigits",
         f"-Wl,-rpath,{build}", "-o", tmp_path / "train"])  # fmt: skip

    def trained(epochs: int) -> str:
        command = [tmp_path / "train", build / "digits.data", tmp_path / "digits.safetensors", str(epochs)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "going on" not in trained(1)
    said = trained(3)
    assert "going on from step 22" in said and "step 66 of 66" in said
    assert float(re.search(r"test accuracy (\S+)%", said)[1]) > 93  # type: ignore[index]
