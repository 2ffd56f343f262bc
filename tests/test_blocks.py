"""Schedules for blocks of threads as candidates: what is listed, in which order, that each is right, and measuring."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import dialects
from luminal.core import interp, ir, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decisions import KINDS, Decisions, Kind, Question, Trial
from luminal.core.decompose import attention, contraction, reduction
from luminal.core.grid import BlockTile
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.cost import blocks
from luminal.core.schedule.cost.blocks import Block
from luminal.core.schedule.grid.legality import registers, shared_bytes
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.target import Target
from luminal.tuning import devices, records, search
from luminal.tuning.bench import Bench
from luminal.tuning.devices import DeviceBench
from luminal.tuning.records import Records
from tests.codegen_gpu_support import Emulated
from tests.schedule_support import run_program, transforms

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]
# With few processors, of which a small model fills all.
CUDA, METAL = (
    replace(target, grid=replace(target.grid, processors=2))
    for name in ("cuda:sm_90", "metal")
    if (target := targets.GPUS[name]).grid is not None
)


def product(dtype: types.DType) -> Graph:
    x, w = ir.input_("x", (70, 24), dtype), ir.input_("w", (90, 24), dtype)
    return Graph("product", (x, w), (("y", contraction.linear(x, w, None)),))


def rows() -> Graph:
    x = ir.input_("x", (5, 264), types.f32)
    return Graph("rows", (x,), (("y", reduction.softmax(x, -1)), ("z", x * 2.0)))


def attending() -> Graph:
    q, k, v = (ir.input_(name, (2, 70, 16), types.f32) for name in "qkv")
    return Graph("attention", (q, k, v), (("y", attention.scaled_dot_product_attention(q, k, v)),))


# What each model asks on a target, and of how many candidates at least.
MODELS: dict[str, tuple[Callable[[], Graph], Target, dict[str, int]]] = {
    "product": (lambda: product(types.f32), CUDA, {"tile": 10, "block": 5}),
    "product of fragments": (lambda: product(types.bf16), CUDA, {"tile": 10, "block": 9}),
    "product on Metal": (lambda: product(types.f32), METAL, {"tile": 10, "block": 3}),
    "rows": (rows, CUDA, {"pass": 4}),
    "attention": (attending, CUDA, {"tile": 10, "chain": 6}),  # the chain has tiles of its own
}
KIND: dict[str, Kind] = {"tile": "layout", "block": "schedule", "pass": "schedule", "chain": "schedule"}


def inputs(graph: Graph) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {x.attr.name: random.standard_normal(x.shape).astype(x.dtype.numpy) for x in graph.inputs}


def compiled(graph: Graph, target: Target, decisions: Decisions) -> Program:
    return compile_graph(graph, replace(target, decisions=decisions))


@cache
def listed(name: str) -> dict[str, Question[Any]]:
    made, target, _ = MODELS[name]
    trial = Trial(KINDS, 0, {})
    compiled(made(), target, trial)
    assert not trial.refusals
    return trial.questions


@cache
def tried(name: str) -> tuple[Program, ...]:
    """The programs of all candidates, the questions of each kind one after the other."""
    made, target, _ = MODELS[name]
    found = []
    for kind in KINDS:
        counts = [len(q.candidates) for q in listed(name).values() if q.kind == kind]
        found += [compiled(made(), target, Trial((kind,), number, {})) for number in range(max(counts, default=0))]
    return tuple(found)


@pytest.mark.parametrize("name", MODELS)
def test_candidates_are_values_in_the_order_of_their_estimates(name: str) -> None:
    made, target, topics = MODELS[name]
    questions = listed(name).values()
    assert {q.topic for q in questions} == topics.keys()
    for question in questions:
        assert question.kind == KIND[question.topic] and len(question.candidates) >= topics[question.topic]
        estimates = [candidate.estimate for candidate in question.candidates]
        assert estimates == sorted(estimates) and pickle.loads(pickle.dumps(question)) == question
        assert len({str(candidate) for candidate in question.candidates}) == len(question.candidates)
    by_formula = compile_graph(made(), target)
    assert [k.nest for k in tried(name)[0].kernels] == [k.nest for k in by_formula.kernels]
    assert not any(kernel.scheduled.asked for kernel in by_formula.kernels)


@pytest.mark.parametrize("name", [name for name in MODELS if "Metal" not in name])
def test_each_candidate_is_legal_and_gives_what_float64_does(name: str, tmp_path: Path) -> None:
    graph, target, _ = MODELS[name][0](), *MODELS[name][1:]
    kernels: dict[Any, Kernel] = {kernel.nest: kernel for program in tried(name) for kernel in program.kernels}
    assert len(kernels) > 4 and not any(kernel.scheduled.refusal for kernel in kernels.values())
    for nest in kernels:
        assert target.block.threads >= nest.threads and shared_bytes(nest) <= target.block.shared
        assert registers(nest) + target.block.spare <= target.block.registers
    emulated = Emulated({f"k{n}": nest for n, nest in enumerate(kernels)}, dialects.ALL[target.dialect], tmp_path)
    arrays = inputs(graph)
    wanted = interp.run(graph, arrays, mode="float64").outputs
    for program in {tuple(k.nest for k in program.kernels): program for program in tried(name)}.values():
        found = run_program(program, arrays, run_kernel=emulated.run_nest)
        for (output, node), exact in zip(graph.outputs, wanted, strict=True):
            apart = np.abs(found[output].astype(np.float64) - exact.astype(np.float64)).max()
            assert apart <= 8 * max(node.dtype.eps, types.f32.eps) * np.abs(exact.astype(np.float64)).max()


def test_an_answer_is_followed_and_one_that_is_no_candidate_is_not() -> None:
    for name in ("product", "attention", "rows"):
        made, target, _ = MODELS[name]
        plain = compile_graph(made(), target)
        for question in (q for q in listed(name).values() if (name, q.topic) != ("attention", "tile")):
            text = str(question.candidates[-1])
            after = compiled(made(), target, Decisions({question.name: text}))
            (asked,) = {a for kernel in after.kernels for a in kernel.scheduled.asked}
            assert str(asked) == f"{question.name}: {text}"
            assert {k.nest for k in after.kernels} != {k.nest for k in plain.kernels}
            stale = compiled(made(), target, Decisions({question.name: "some other way"}))
            assert [k.nest for k in stale.kernels] == [k.nest for k in plain.kernels]


def test_what_a_block_has_no_room_for_is_no_candidate() -> None:
    small = replace(CUDA, grid=replace(CUDA.grid, shared=12 << 10))  # type: ignore[arg-type]
    trial = Trial(KINDS, 0, {})
    program = compiled(product(types.f32), small, trial)
    assert transforms(program.kernels[0], Stage) and not program.kernels[0].scheduled.refusal
    tiles = [q for q in trial.questions.values() if q.topic == "tile"]
    assert 0 < len(tiles[0].candidates) < len(CUDA.grid.costs.tiles)  # type: ignore[union-attr]


# ---- the cost --------------------------------------------------------------------------------------------------------

GRID = targets.GPUS["cuda:sm_90"].grid
assert GRID is not None
TILE = BlockTile(64, 64, 4, 0.7)


def test_registers_and_shared_memory_decide_how_many_blocks_are_resident() -> None:
    assert blocks.resident(GRID, Block(256, 64, 0)) == 4
    assert blocks.resident(GRID, Block(256, 64, 100 << 10)) == 2
    assert blocks.resident(GRID, Block(64, 16, 0)) == 32  # places for threads
    assert blocks.resident(GRID, Block(256, 255, 1 << 20)) == 1
    assert blocks.occupancy(GRID, Block(256, 64, 0)) == 1 and blocks.occupancy(GRID, Block(128, 64, 200 << 10)) == 0.5


def test_fragments_are_as_fast_as_shared_memory_hands_them_operands() -> None:
    """A tile of 32 x 32 by two pairs of warps: 32 rows are stored once and read twice, and so are 32 columns."""
    fragment = targets.GPUS["cuda:sm_80"].fragment(types.bf16, types.bf16)
    assert fragment is not None
    small, large = BlockTile(32, 32, 4, 0.7), BlockTile(128, 128, 8, 1.0)
    moved = (32 + 32) * (1 + 2) * 2
    assert blocks.of_fragments(small, fragment, 2).rate == 32 * 32 / (8 * moved)
    assert blocks.of_fragments(large, fragment, 4) == large and blocks.of_fragments(small, None, 2) == small


@pytest.mark.parametrize(("size", "tile"), [(512, (64, 64)), (1024, (128, 128)), (4096, (128, 128))])
def test_tiles_are_no_smaller_than_their_waves_ask_for(size: int, tile: tuple[int, int]) -> None:
    """A wave of large tiles is done before several of small ones that wait for shared memory."""
    a, b = (ir.input_(name, (size, size), types.bf16) for name in "ab")
    graph = Graph("any", (a, b), (("y", contraction.matmul(a, b)),))
    (kernel,) = compile_graph(graph, targets.GPUS["cuda:sm_80"]).kernels
    (stage,) = transforms(kernel, Stage)
    assert (stage.rows, stage.columns) == tile


def test_time_goes_by_the_processor_with_the_most_blocks() -> None:
    block = Block(256, 64, 8 << 10)
    per_block = 64 * 64 / 0.7
    full = 64 * GRID.processors
    assert blocks.block_cycles(GRID, TILE, block, 1, 64, 64) == blocks.block_cycles(GRID, TILE, block, 1, full, 64)
    assert blocks.block_cycles(GRID, TILE, block, 1, full, 64) == per_block
    assert blocks.block_cycles(GRID, TILE, block, 1, full + 1, 64) == 2 * per_block
    assert blocks.block_cycles(GRID, TILE, Block(128, 64, 200 << 10), 1, full, 64) == 2 * per_block
    waiting = [blocks.waiting_cycles(GRID, TILE, Block(256, held, 0), 1, full, 64) for held in (64, 128, 255)]
    assert waiting == sorted(waiting) and waiting[0] < waiting[2]


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [(128, 384, (32, 32)), (4096, 4096, (128, 128)), (704, 1408, (64, 128)), (1536, 704, (128, 64))],
)
def test_the_tile_that_is_done_first_is_the_first(rows: int, columns: int, tile: tuple[int, int]) -> None:
    """Small tiles for a few waves, large ones for many; and one of a size between where that saves the second wave."""
    x, w = ir.input_("x", (rows, 64), types.f32), ir.input_("w", (columns, 64), types.f32)
    graph = Graph("any", (x, w), (("y", contraction.linear(x, w, None)),))
    (kernel,) = compile_graph(graph, targets.GPUS["cuda:sm_90"]).kernels
    (stage,) = transforms(kernel, Stage)
    assert (stage.rows, stage.columns) == tile


# ---- measuring -------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Records:
    monkeypatch.delenv("LUMINAL_NO_RECORDS")
    monkeypatch.setenv("LUMINAL_RECORDS", str(tmp_path / "user"))
    return Records()


def test_candidates_are_measured_on_a_device(own_records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one that is emulated: each candidate runs there, and gives what the interpreter does."""
    monkeypatch.setattr(DeviceBench, "beam", 2)
    x = ir.input_("x", (sym.var("n", 1, 16), 72), types.f32)
    graph = Graph("small", (x,), (("y", reduction.softmax(x, -1)),), tuple(sym.variables(x.shape[0])))
    target = replace(CUDA, name="cuda:sm_90")
    with DeviceBench(target, 1, emulate=True) as bench:
        outcome = search.tune("small", {"main": graph}, target, 1, 1e9, own_records, bench=bench)
        found = own_records.latest(bench.machine)
    assert [question.partition(" ")[0] for question in found] == ["pass"] and len(outcome.answers) == 1
    (rows,) = found.values()
    assert len(rows) == 2 and all(row.runs and "it " not in row.fault for row in rows)


def test_times_of_a_device_hold_for_any_number_of_threads() -> None:
    cpu = targets.AVX2
    assert records.machine(CUDA, 1) == records.machine(replace(CUDA, threads=3), 2) != records.machine(METAL, 1)
    assert records.machine(cpu, 1) != records.machine(cpu, 2)
    assert isinstance(devices.bench(METAL, 1), DeviceBench) and type(devices.bench(cpu, 1)) is Bench
