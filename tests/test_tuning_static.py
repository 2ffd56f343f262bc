"""Schedules judged by machine code, where no GPU measures them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import luminal
from luminal.core import device, ir, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, reduction
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.machine_code import kernels
from luminal.tuning import devices, judge, records
from luminal.tuning.bench import Contender, Part
from luminal.tuning.devices import BEAM, DeviceBench
from luminal.tuning.judge import Faulty, Judge, Judged, StaticBench
from luminal.tuning.outcome import BEHIND
from luminal.tuning.records import Records

CUDA = targets.GPUS["cuda:sm_90"]
needs_tools = pytest.mark.skipif(bool(judge.lacking(CUDA)), reason=judge.lacking(CUDA))


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Records:
    monkeypatch.delenv("LUMINAL_NO_RECORDS")
    monkeypatch.setenv("LUMINAL_RECORDS", str(tmp_path / "user"))
    monkeypatch.setattr(device, "missing", lambda dialect, features: "it has none")
    return Records()


def product() -> Graph:
    x, w = ir.input_("x", (96, 64), types.bf16), ir.input_("w", (96, 64), types.bf16)
    return Graph("product", (x, w), (("y", contraction.linear(x, w, None)),))


def schedule(kernel: Kernel) -> str:
    return str(kernel.scheduled.schedule)


def test_what_is_judged_the_best_is_taken_and_spills_are_not(
    own_records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And compilations for a GPU that is not there take it."""
    own = schedule(compile_graph(product(), CUDA).kernels[0])

    def read(self: Judge, program: Program, kernel: Kernel, at: Mapping[str, int]) -> Judged:
        found = schedule(kernel)
        if "depth=64" in found:
            raise Faulty("the compiler rejects it")
        return Judged(1.0 if found == own else 0.5 if "depth=16" in found else 2.0, 0) if "ahead=True" in found else (
            Judged(0.1, 8)
        )  # fmt: skip

    monkeypatch.setattr(judge, "lacking", lambda target: "")
    monkeypatch.setattr(Judge, "_read", read)
    outcome = luminal.tune(product(), budget=1e9, target=CUDA)
    assert not isinstance(outcome, list)
    chosen = {answer.question.partition(" ")[0]: answer for answer in outcome.answers}["block"]
    assert chosen.measured[0].best == 1.0 and chosen.chosen.best == 0.5 and not chosen.chosen.fault
    assert "it spills 8 bytes of the registers of a thread" in {row.fault for row in chosen.measured}
    assert "the compiler rejects it" in {row.fault for row in chosen.measured}
    assert outcome.seconds is not None and outcome.seconds == (1.0, 0.5) and outcome.changed >= 1
    assert "without a GPU nothing ran" in str(outcome)
    assert [records.STATIC in machine for machine in own_records.machines()] == [True]

    def compiled() -> str:
        decisions = records.decisions(CUDA, 1, own_records)
        return schedule(compile_graph(product(), replace(CUDA, decisions=decisions)).kernels[0])

    assert "depth=16" in compiled() and compiled() != own
    monkeypatch.setattr(device, "missing", lambda dialect, features: "")
    assert compiled() == own, "where there is such a GPU, only what was measured on it counts"


@needs_tools
@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_90"])
def test_machine_code_is_judged_at_typical_sizes(name: str, own_records: Records) -> None:
    """Of kernels that read a symbolic size, too."""
    x = ir.input_("x", (sym.var("n", 1, 64), 1024), types.f32)
    graph = Graph("rows", (x,), (("y", reduction.softmax(x, -1)),), tuple(sym.variables(x.shape[0])))
    outcome = luminal.tune(graph, budget=1e9, target=name)
    assert not isinstance(outcome, list) and outcome.sizes == {"n": 8}
    (answer,) = outcome.answers
    assert len(answer.measured) > 2 and all(row.runs == 1 and 1e-8 < row.best < 1e-3 for row in answer.measured)
    assert answer.fastest.best == min(row.best for row in answer.measured)


def test_on_a_device_the_most_promising_are_measured() -> None:
    program = compile_graph(product(), CUDA)
    (kernel,) = program.kernels
    part = Part(kernel, next(iter(program.entries[0].launches)), 1)
    contenders = [Contender(k, kernel.scheduled.schedule, program, (part,)) for k in range(BEAM + 3)]  # type: ignore[arg-type]

    class Known(Judge):
        def of(self, contender: Contender) -> float:
            if contender.place in (0, 5):
                raise Faulty("it spills")
            return float(-contender.place)

    bench = DeviceBench(CUDA, 1, emulate=True)
    assert bench._behind(contenders) == {}, "nothing is known of machine code"
    bench.judge = Known(CUDA)
    # The default is measured in any case; of the nine others that can be, the first two have the largest estimates.
    assert bench._behind(contenders) == {5: "it spills", 1: BEHIND, 2: BEHIND}


def row(blocks: int, occupancy: float = 1.0, in_flight: int = 0) -> kernels.Row:
    return {
        "blocks": blocks, "issued": {"float": 4 * 1000 * blocks}, "multiplied": 0, "at_once": 0, "operands": 0,
        "moved": {"shared": {"waves": 500 * blocks}, "global": {"sectors": 0}}, "occupancy": occupancy,
        "in_flight": in_flight,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "cycles"),
    [
        (row(132), 1000.0),  # what is issued hides what shared memory serves
        (row(264), 2000.0),  # two blocks, one after the other
        (row(133), 2000.0),
        (row(132, occupancy=8 / 64), 1250.0),  # half of the warps that hide all
        (row(132, occupancy=8 / 64, in_flight=1), 1000.0),  # copies under way hide as much again
        (row(132, occupancy=4 / 64), 1375.0),
    ],
)
def test_the_estimate_is_that_of_the_processor_with_the_most_blocks(kernel: Any, cycles: float) -> None:
    assert kernels.seconds(kernel, 90) * kernels.PROCESSORS[90].clock == pytest.approx(cycles)


def test_what_cannot_be_judged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "machine code for metal cannot be read" in judge.lacking(targets.GPUS["metal"])
    assert isinstance(devices.bench(targets.GPUS["metal"], 1), DeviceBench)
    monkeypatch.setattr(judge, "lacking", lambda target: "found no nvdisasm")
    assert isinstance(devices.bench(CUDA, 1), DeviceBench)
    monkeypatch.setattr(judge, "lacking", lambda target: "")
    assert isinstance(devices.bench(CUDA, 1), StaticBench)
