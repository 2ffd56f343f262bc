"""Products of many rows on GPUs whose factors are integers with a scale for each block: fragments of bytes sum the
blocks exactly, and tiles scale the sums."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen import dialects
from luminal.core import interp, ir, movement, types
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph, compile_graphs
from luminal.core.rules import constant
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import statements
from luminal.core.schedule.numeric import activations
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from tests.codegen_gpu_support import Emulated
from tests.schedule_support import refusals, run_program, transforms
from tests.test_scaled_blocks import KINDS, A, Case, Stored, given, graph, real, stored

Array = np.ndarray
ROWS = 40  # over a tile
SM_80, SM_90, METAL = (targets.GPUS[name] for name in ("cuda:sm_80", "cuda:sm_90", "metal"))
CASES = {  # blocks of terms, and the fragment that sums them
    "of 32": (Case(192, 32, 32), "m16n8k32"),
    "of 16": (Case(96, 32, 16), "m16n8k16"),
    "of 64": (Case(256, 64, 128), "m16n8k32"),
    "of rows": (Case(320, 320, 320), "m16n8k32"),
    "an odd number": (Case(160, 32, 32, columns=19), "m16n8k32"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of real models do, which are too large to be folded."""
    monkeypatch.setattr(constant, "SMALL", 0)


def tiles(program: Program) -> list[ln.Contract]:
    kernels = (kernel.nest.body for kernel in program.kernels)
    return [s for body in kernels for s in statements(body) if isinstance(s, ln.Contract)]


def emulated(program: Program, target: Target, folder: Path) -> Emulated:
    return Emulated({k.name: k.nest for k in program.kernels}, dialects.ALL[target.dialect], folder)


@pytest.mark.parametrize("executed", ["nest", "kernel"])
@pytest.mark.parametrize("name", CASES)
def test_fragments_sum_blocks_of_integers(name: str, executed: str, tmp_path: Path) -> None:
    case, fragment = CASES[name]
    program = compile_graph(graph((case,), ROWS), SM_80)
    assert not refusals(program)
    found = tiles(program)
    assert found and all(x.fragment is not None and x.fragment.name == fragment and x.scales for x in found)
    assert {x.a_type for x in found} == {x.b_type for x in found} == {types.i8}
    inputs = given((case,), ROWS)
    run = {} if executed == "nest" else {"run_kernel": emulated(program, SM_80, tmp_path).run_nest}
    case.check(run_program(program, inputs, **run)["y0"], *case.inputs(ROWS), in_blocks=True)


@pytest.mark.parametrize("target", [SM_80, SM_90], ids=lambda t: t.name)
def test_integers_of_few_bits_are_computed_as_they_are_staged(target: Target, tmp_path: Path) -> None:
    """And what moves blocks of weights is a product of its own."""
    program = compile_graph(stored(KINDS, ROWS), target)
    assert not refusals(program)
    names = [x.fragment.name for x in tiles(program) if x.scales is not None and x.fragment is not None]
    assert set(names) == {"m16n8k16", "m16n8k32"}
    whole, scale = A.inputs(ROWS)
    results = run_program(
        program, {"whole": whole, "scale": scale}, run_kernel=emulated(program, target, tmp_path).run_nest
    )
    for case in KINDS:
        case.check(results[case.kind.name], whole, scale)


@pytest.mark.parametrize("case", KINDS, ids=lambda case: case.kind.name)
def test_prompts_and_steps_of_decoding_read_the_same_weights(case: Stored) -> None:
    many, one = stored((case,), ROWS), stored((case,), 1)
    both = compile_graphs("both", {"many": many, "one": one}, SM_80)
    alone = compile_graph(one, SM_80)
    held, of_one = (sum(b.size for b in made.buffers if b.space == "constant") for made in (both, alone))
    assert held == of_one


def test_rows_that_are_not_finite_are_nan_as_in_the_sum_of_real_numbers(tmp_path: Path) -> None:
    case = Case(128, 32, 32)
    x = ir.input_("x", (ROWS, case.depth), types.f32)
    weights, scales = map(ir.constant, case.weights())
    product = contraction.matmul(x, movement.transpose(real(weights, scales), 0, 1))
    made = activations.rounded(Graph("odd", (x,), (("y", product),), ()), "q8")
    program = compile_graph(made, SM_80)
    assert all(tile.scales is not None for tile in tiles(program))
    values = np.random.default_rng(0).standard_normal((ROWS, case.depth)).astype(np.float32)
    values[1, 3], values[2, 40], values[3, 5], values[4] = np.inf, -np.inf, np.nan, 0
    (wanted,) = interp.run(made, {"x": values}).outputs
    found = run_program(program, {"x": values}, run_kernel=emulated(program, SM_80, tmp_path).run_nest)["y"]
    assert np.isnan(wanted[1:4]).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(found[4], 0)


def test_other_gpus_and_single_blocks_multiply_floats() -> None:
    for made, target in ((graph((Case(192, 32, 32),), ROWS), METAL), (graph((Case(32, 32, 32),), ROWS), SM_80)):
        assert all(tile.scales is None for tile in tiles(compile_graph(made, target)))


def test_what_is_no_block_is_refused() -> None:
    program = compile_graph(graph((Case(192, 32, 32),), ROWS), SM_80)
    tile = tiles(program)[0]
    with pytest.raises(SpecError, match="fragments sum integers in blocks with scales, and nothing else so"):
        replace(tile, scales=None)
    (kernel,) = (kernel for kernel in program.kernels if transforms(kernel, Stage))
    (stage,), nest = transforms(kernel, Stage), kernel.scheduled.serial
    assert nest is not None
    for part in itertools.takewhile(lambda part: part is not stage, kernel.scheduled.schedule):
        nest = part(nest)
    with pytest.raises(ScheduleError, match="no fragment of integers takes blocks of 32 terms in whole steps"):
        replace(stage, depth=16)(nest)
