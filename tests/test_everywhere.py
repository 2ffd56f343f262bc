"""What ``benchmarks.everywhere`` and ``benchmarks.watching`` do, on a small network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import everywhere, watching, zoo
from benchmarks.results import Results
from luminal.comparison import inputs as drawing
from luminal.comparison.foreign import Foreign, runner
from luminal.core import target as targets
from luminal.core.errors import TargetError
from tests import drawn

pytest.importorskip("ziglang")

BAD = 1e-3  # is added to a result


def network() -> zoo.Model:
    module = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    drawn.draw(module, seed=1, spread=0.2)
    return zoo.Model(module, (torch.ones(2, 2, 8, 8),), {"batch": (1, 4), "input": {0: "batch"}})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(everywhere, "SUBJECTS", {"small": ("Small", network)})
    everywhere.subject.cache_clear()
    yield everywhere.subject("small")
    everywhere.subject.cache_clear()


@pytest.mark.parametrize(
    ("form", "target", "done"),
    [
        ("library", "x86-64-multi", "run"), ("static", "host", "run"), ("source", "host", "run"),
        ("wheel", "host", "imported by Python"), ("library", "aarch64-macos", "a C program is linked with it"),
        ("static", "x86-64-musl", "run"),
    ],
)  # fmt: skip
def test_a_library_is_run_or_linked(form: str, target: str, done: str, small: everywhere.Subject) -> None:
    row = everywhere.measured(small, form, targets.parse(target))
    assert row["ok"] and row["done"] == done, row
    assert (row["error"] is None) == (done == "a C program is linked with it")
    assert row["error"] is None or 0 < row["error"] < 1e-6
    assert row["library"] > 1000 and row["weights"] >= 8 * 36 * 5 * 4


def test_a_wrong_result_and_a_broken_library_are_found(
    small: everywhere.Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Foreign.run
    monkeypatch.setattr(Foreign, "run", lambda self, x: {k: v + np.float32(BAD) for k, v in right(self, x).items()})
    row = everywhere.measured(small, "library", targets.parse("x86-64"))
    assert not row["ok"] and row["error"] > everywhere.TOLERANCE
    program = Foreign.program

    def without_library(self: Foreign, inputs: Any) -> Path:
        (self.folder / "libsmall.dylib").unlink()
        return program(self, inputs)

    monkeypatch.setattr(Foreign, "program", without_library)
    row = everywhere.measured(small, "library", targets.parse("aarch64-macos"))
    assert not row["ok"] and "does not link" in row["done"]


def test_the_page_has_a_row_for_each(small: everywhere.Subject, tmp_path: Path) -> None:
    found = Results(tmp_path / "machines.json")
    for target, error in (("x86-64", 2e-7), ("avx2-macos", None)):
        found.put(f"small library {target}",
                  {"ok": True, "done": "done so", "error": error, "library": 5000, "weights": 2 * 10**6})  # fmt: skip
    text = everywhere.page(found)
    assert "| `x86-64` | library | done so | Small | 5 KB | 2.0 MB | 2.0e-07 |" in text
    assert "1 libraries were run, 1 of them within the tolerance, 1 linked, 0 failed." in text
    assert max(map(len, text.splitlines())) <= 120
    assert json.loads((tmp_path / "machines.json").read_text())


def test_what_needs_no_loader_runs_without_one() -> None:
    """A static program for musl needs no loader, and for this processor no emulator either."""
    assert runner(targets.parse("x86-64-musl"), alone=True).command == ()
    with pytest.raises(TargetError, match="macOS"):
        runner(targets.parse("x86-64-macos"), alone=True)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
@pytest.mark.skipif(bool(targets.obstacle(targets.AVX2)), reason="needs AVX2")
def test_nothing_is_executed_for_watching_while_nobody_watches(small: everywhere.Subject) -> None:
    """A run looks twice for each step whether somebody watches: a load, a comparison and a branch each."""
    inputs = drawing.draw(small.graph, drawing.sizes(small.graph))
    looking, not_looking = watching.instructions(small.graph, inputs)
    steps = 6  # at most
    assert 0 <= looking - not_looking <= 8 * steps and not_looking > 10_000
