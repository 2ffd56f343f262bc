"""``Module.profile`` and ``luminal profile``: tables, JSON, rooflines and traces."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import luminal
from luminal import cli, profile, profiled, roofline
from luminal.core.errors import InputError
from luminal.module import Module
from luminal.peak import Peak
from luminal.runtime import loader

WIDTH, ROWS = 256, 512
PEAK = Peak(8e10, 1e10)


class Layers(nn.Module):
    """Two contractions large enough for two threads, with a softmax behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.softmax(self.first(x), -1)), -1)


@pytest.fixture(scope="module")
def module() -> Module:
    compiled = luminal.compile(Layers().eval(), (torch.zeros(ROWS, WIDTH),), name="layers")
    assert isinstance(compiled, Module)
    return compiled


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.rand(ROWS, WIDTH)


def test_kernels_and_operators_add_up(module: Module, x: torch.Tensor) -> None:
    found = module.profile(x, runs=5, threads=2, peak=False)
    assert found.run_seconds > 0 and found.threads == 2
    for rows in (found.kernels, found.operators):
        assert sum(row.seconds for row in rows) == pytest.approx(found.seconds)
        assert sum(row.operations for row in rows) == 2 * 2 * ROWS * WIDTH * WIDTH
        assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    origins = " ".join(origin for row in found.operators for origin in row.origins)
    assert all(name in origins for name in ("aten.linear.default", "'linear_1'", "aten.softmax.int", "'softmax_1'"))
    said = json.loads(json.dumps(found.as_json()))
    assert said["peak"] is None and len(said["launches"]) == len(found.launches) and "layers" in str(found)


def test_a_folder_is_profiled_by_what_it_says_of_itself(module: Module, x: torch.Tensor, tmp_path: Path) -> None:
    again = luminal.load(module.export(tmp_path / "build", python_module=False))
    found, known = (m.profile(x, runs=3, threads=1, peak=False) for m in (again, module))
    assert {row.name for row in found.launches} == {row.name for row in known.launches}
    assert {row.origins for row in found.launches} == {row.origins for row in known.launches}
    with pytest.raises(InputError, match="roofline"):
        found.roofline()


def test_each_entry_has_its_own_launches() -> None:
    models = {"wide": nn.Linear(8, 64).eval(), "square": nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval()}
    several = luminal.compile(models, {name: (torch.zeros(2, 8),) for name in models}, name="several", threads=1)
    for name, terms in (("wide", 8 * 64), ("square", 8 * 8)):
        found = several[name].profile(torch.ones(2, 8), runs=3, threads=1, peak=False)
        assert sum(row.operations for row in found.launches) == 2 * 2 * terms
        assert all(row.seconds > 0 for row in found.launches)


def test_the_trace_has_every_task_of_every_thread(module: Module, x: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    module.profile(x, runs=20, threads=2, peak=False, trace=path)
    found = json.loads(path.read_text())
    assert found["otherData"] == {"model": "layers", "lost": 0}
    steps = [event for event in found["traceEvents"] if event.get("cat") == "step"]
    tasks = [event for event in found["traceEvents"] if event.get("cat") == "tasks"]
    kernels = {row.name for row in profile.launches(module, {module.input_names[0]: x.numpy()}, 1, 2)}
    assert {event["name"] for event in steps} == kernels and all(event["args"]["operators"] for event in steps)
    named = [event["args"]["name"] for event in found["traceEvents"] if event["ph"] == "M"]
    assert named == ["thread 0", "thread 1"] and {event["tid"] for event in steps} == {0}
    covered = 0
    for step in steps:
        begins, ends = step["ts"], step["ts"] + step["dur"]
        own = [event for event in tasks if begins <= event["ts"] < ends]
        assert all(event["args"]["step"] == step["args"]["step"] for event in own)
        assert all(event["ts"] + event["dur"] <= ends + 0.002 for event in own)
        ranges = sorted((event["args"]["first"], event["args"]["end"]) for event in own)
        assert [first for first, _ in ranges] == [0, *(end for _, end in ranges[:-1])][: len(ranges)]
        covered += len(own)
    assert covered == len(tasks) > len(steps) and {event["tid"] for event in tasks} == {0, 1}


def test_a_trace_is_written_when_the_library_is_closed(module: Module, x: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    library = loader.load(module.folder, threads=1, trace=path)
    library.run([x.numpy()])
    assert path.read_text() == ""
    del library
    gc.collect()
    names = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
    assert any("aten.linear.default 'linear_1'" in name for name in names)
    with pytest.raises(ValueError, match="cannot write the trace"):
        loader.load(module.folder, trace=tmp_path / "none" / "trace.json")


def kernel(name: str, **changes: Any) -> profile.KernelTime:
    fields = {"launches": 1, "seconds": 1e-3, "operations": 10**7, "bytes": 10**6, "unit": "FMA", "threads": 1}
    return profile.KernelTime(name, **{**fields, **changes}, origins=("Op '<&>'",))


def test_what_is_merged_adds_up() -> None:
    times = [kernel("a"), kernel("b", seconds=5e-3), kernel("a", seconds=2e-3, operations=3, bytes=4)]
    longest, together = profile.merged(times, lambda time: time.name)
    assert longest == times[1]
    assert together == kernel("a", launches=2, seconds=3e-3, operations=10**7 + 3, bytes=10**6 + 4)


def test_rooflines_place_kernels_by_their_work() -> None:
    kernels = [kernel("fast"), kernel("slow", seconds=4e-3), kernel("map", operations=0), kernel("wide", unit="bf16")]
    picture = roofline.draw("a & b", kernels, Peak(8e10, 1e10, bf16=1e12))
    root = ElementTree.fromstring(picture)
    name = "{http://www.w3.org/2000/svg}"
    fast, slow, wide = root.iter(f"{name}circle")  # what has no operations has no place
    assert fast.get("cx") == slow.get("cx") == wide.get("cx") and float(fast.attrib["cy"]) < float(slow.attrib["cy"])
    assert float(slow.attrib["r"]) > float(fast.attrib["r"])
    assert len(list(root.iter(f"{name}path"))) == 2  # a roof for each unit
    assert "Op '<&>'" in (fast.find(f"{name}title").text or "")  # type: ignore[union-attr]
    assert "prefers-color-scheme: dark" in picture
    with pytest.raises(InputError, match="peak"):
        profiled.Profile("x", tuple(kernels), 1.0, 1).roofline()
    assert "<circle" in profiled.Profile("x", tuple(kernels), 1.0, 1, PEAK).roofline()


def test_the_command(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiled.Probe, "measure", lambda probe, runs=7: PEAK)
    program = tmp_path / "layers.pt2"
    torch.export.save(torch.export.export(Layers().eval(), (torch.zeros(ROWS, WIDTH),)), program)
    drawn, traced = tmp_path / "roof.svg", tmp_path / "trace.json"
    common = ["profile", str(program), "--runs", "3", "--threads", "1"]
    result = CliRunner().invoke(cli.app, [*common, "--roofline", str(drawn), "--trace", str(traced), "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["peak"]["bytes"] == PEAK.bytes and said["kernels"][0]["operations"] > 0
    assert "<circle" in drawn.read_text() and json.loads(traced.read_text())["traceEvents"]
    folder = module.export(tmp_path / "build", python_module=False)
    result = CliRunner().invoke(cli.app, ["profile", str(folder), "--runs", "3"])
    assert result.exit_code == 0 and "by source operators" in result.output, result.output
    np.save(tmp_path / "x.npy", np.zeros((1, 2), np.float32))
    given = ["--input", f"{module.input_names[0]}={tmp_path / 'x.npy'}"]
    assert CliRunner().invoke(cli.app, ["profile", str(folder), *given]).exit_code == 2
