"""Phases: what they may hold, and that programs compute the same however far their threads drift apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import build, weights
from luminal.codegen.render import render
from luminal.core import interp, ir, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.costs import COSTS
from luminal.core.decompose import contraction
from luminal.core.errors import SpecError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.nest.footprint import Slab, slabs
from luminal.core.schedule.program import interpreter, phases, spec
from luminal.core.schedule.program import ir as programs
from luminal.core.schedule.program.ir import Phase
from luminal.core.schedule.program.phases import NestLaunch
from luminal.core.symbolic import Expr, Int
from luminal.core.target import Target
from luminal.runtime import loader
from tests import schedule_support
from tests.codegen_programs import scaled_rows
from tests.codegen_support import array, axis, of, op, output
from tests.schedule_support import changed
from tests.test_schedule_random import Builder

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

ROWS = 64


def nest(reads: list[Int], writes: Int, *loops: tuple[sym.Var, Int], parallel: int = 1) -> ln.LoopNest:
    """``out[writes]`` is the sum of ``in[r]`` for every ``r`` of ``reads``, in a nest of ``loops``."""
    value = ln.load("in", reads[0], types.f32)
    for offset in reads[1:]:
        value = op(ops.ADD, value, ln.load("in", offset, types.f32))
    body: tuple[ln.Statement, ...] = (ln.Store("out", writes, value),)
    for depth, (variable, extent) in reversed(list(enumerate(loops))):
        body = (ln.Loop(variable, extent, "parallel" if depth < parallel else "serial", body),)
    dims = {v for _, extent in loops for v in sym.variables(extent)}
    return ln.LoopNest((array("in"), output("out")), tuple(dims), body)


ROW, row = axis("r", ROWS)
COLUMN, column = axis("c", 8)
PLACE = row * 8 + column
LOOPS = ((ROW, ROWS), (COLUMN, 8))
plain = nest([PLACE], PLACE, *LOOPS)


def found(*steps: tuple[ln.LoopNest, str]) -> tuple[Phase, ...]:
    """The phases of steps given as nests with the letters of what they read and write."""
    return phases.phases([NestLaunch(made, tuple(letters)) for made, letters in steps], targets.X86_64)


def test_rows_that_only_the_same_thread_needs() -> None:
    assert found((plain, "ab"), (plain, "bc"), (plain, "cd")) == (Phase(0, 2, ROWS, (1, 1, 1), True),)


def test_what_an_earlier_step_wrote_is_written_over_while_it_is_in_the_cache() -> None:
    body: tuple[ln.Statement, ...] = (ln.Store("out", PLACE, ln.load("out", PLACE, types.f32)),)
    for variable, extent in reversed(LOOPS):
        body = (ln.Loop(variable, extent, "parallel" if variable is ROW else "serial", body),)
    over = ln.LoopNest((output("out"),), (), body)
    assert found((plain, "ab"), (over, "b")) == (Phase(0, 1, ROWS, (1, 1), True),)


def test_independent_steps() -> None:
    elsewhere = nest([7 - column], row * 8 + 7 - column, *LOOPS)
    assert found((elsewhere, "ab"), (elsewhere, "ac")) == (Phase(0, 1, ROWS, (1, 1)),)


@pytest.mark.parametrize("shift", [-8, -1, 1, 8])
def test_what_another_row_needs_is_waited_for(shift: int) -> None:
    shifted = nest([PLACE, PLACE + shift], PLACE, *LOOPS)
    assert found((plain, "ab"), (shifted, "bc")) == ()  # reads what another share wrote
    assert found((shifted, "ab"), (plain, "ca")) == ()  # writes over what another share reads
    assert found((plain, "ac"), (nest([PLACE], PLACE + shift, *LOOPS), "bc")) == ()  # writes over what it wrote
    assert found((shifted, "ab"), (plain, "bc")) == (Phase(0, 1, ROWS, (1, 1), True),)


def test_another_stride_is_waited_for() -> None:
    wider = nest([row * 9 + column], PLACE, *LOOPS)
    assert found((plain, "ab"), (wider, "bc")) == ()
    across = nest([column * ROWS + row], PLACE, *LOOPS)
    assert found((plain, "ab"), (across, "bc")) == ()


def test_a_phase_ends_where_a_thread_would_wait() -> None:
    shifted = nest([PLACE + 1], PLACE, *LOOPS)
    steps = (plain, "ab"), (plain, "bc"), (shifted, "cd"), (plain, "de"), (plain, "ef")
    assert found(*steps) == (Phase(0, 1, ROWS, (1, 1), True), Phase(2, 4, ROWS, (1, 1, 1), True))


def test_shares_of_several_tasks() -> None:
    fine = nest([PLACE], PLACE, *LOOPS, parallel=2)
    assert found((plain, "ab"), (fine, "bc")) == (Phase(0, 1, ROWS, (1, 8), True),)
    four, quarter = axis("q", ROWS // 4)
    within, place = axis("p", 32)
    coarse = nest([quarter * 32 + place], quarter * 32 + place, (four, ROWS // 4), (within, 32))
    assert found((coarse, "ab"), (plain, "bc")) == ()  # too few shares to divide evenly
    assert found((coarse, "ab"), (coarse, "bc")) == (Phase(0, 1, ROWS // 4, (1, 1), True),)
    steps = [NestLaunch(coarse, ("a", "b")), NestLaunch(plain, ("b", "c"))]
    between = 4 * 8 * ROWS  # bytes
    for threads, cache, phase in ((4, between, True), (5, between, False), (4, COSTS.memory.l3_value * between, False)):
        target = replace(targets.X86_64, threads=threads, l3=cache)
        assert phases.phases(steps, target) == ((Phase(0, 1, ROWS // 4, (1, 4), True),) if phase else ())


def test_shares_between_the_loops_of_a_grid() -> None:
    """Two grids of different width share their rows alone; a grid in the other order shares nothing."""
    three, third = axis("t", 3)
    grid = nest(
        [row * 24 + third * 8 + column], row * 24 + third * 8 + column, *LOOPS[:1], (three, 3), LOOPS[1], parallel=2
    )
    turned = nest([row * 24 + third * 8 + column], row * 24 + third * 8 + column, (three, 3), *LOOPS, parallel=2)
    wide, part = axis("w", 24)
    whole = nest([row * 24 + part], row * 24 + part, LOOPS[0], (wide, 24), parallel=2)
    assert found((grid, "ab"), (whole, "bc")) == (Phase(0, 1, 3 * ROWS, (1, 8), True),)
    flipped = nest([row * 24 + 23 - part], row * 24 + part, LOOPS[0], (wide, 24), parallel=2)
    assert found((grid, "ab"), (flipped, "bc")) == (Phase(0, 1, ROWS, (3, 24), True),)
    assert found((turned, "ab"), (whole, "bc")) == ()


def test_symbolic_sizes() -> None:
    rows = sym.Var("rows", 1, 256)
    r, place = axis("r", of(rows))
    symbolic = nest([place * 8 + column], place * 8 + column, (r, of(rows)), LOOPS[1])
    assert found((symbolic, "ab"), (symbolic, "bc")) == (Phase(0, 1, of(rows), (1, 1), True),)
    transposed = nest([column * of(rows) + place], place * 8 + column, (r, of(rows)), LOOPS[1])
    assert found((symbolic, "ab"), (transposed, "bc")) == ()


def test_one_step_at_most_can_raise_a_status() -> None:
    checked = replace(plain, checked=True)
    assert found((plain, "ab"), (checked, "bc"), (plain, "cd")) == (Phase(0, 2, ROWS, (1, 1, 1), True),)
    assert found((checked, "ab"), (checked, "bc"), (plain, "cd")) == (Phase(1, 2, ROWS, (1, 1), True),)


def test_portions_hold_what_a_share_touches() -> None:
    def portion(buffer: str, shares: Int, *steps: tuple[ln.LoopNest, str]) -> tuple[int, int] | None:
        return phases.portion([NestLaunch(made, tuple(letters)) for made, letters in steps], shares, buffer)

    assert portion("b", ROWS, (plain, "ab"), (plain, "bc")) == (0, 8)
    assert portion("b", ROWS // 4, (plain, "ab"), (plain, "bc")) == (0, 32)
    inside = nest([row * 8 + 3], row * 8 + 3, (ROW, ROWS))
    assert portion("b", ROWS, (plain, "ab"), (inside, "bc")) == (0, 8)
    behind = nest([row * 8 + 9], row * 8 + 9, (ROW, ROWS))  # a border of 9 elements before
    first, length = portion("b", ROWS, (behind, "ab"), (behind, "bc")) or (0, 0)
    assert (first <= 9 < first + length, length) == (True, 8)
    assert portion("b", ROWS, (plain, "ab"), (nest([PLACE + 1], PLACE, *LOOPS), "bc")) is None
    rows, width = sym.Var("rows", 1, 256), sym.Var("width", 1, 64)
    r, place = axis("r", of(rows))
    high = nest([place * 8 + column], place * 8 + column, (r, of(rows)), LOOPS[1])
    assert portion("b", of(rows), (high, "ab"), (high, "bc")) == (0, 8)
    c, across = axis("c", of(width))
    wide = nest([row * of(width) + across], row * of(width) + across, (ROW, ROWS), (c, of(width)))
    assert portion("b", ROWS, (wide, "ab"), (wide, "bc")) is None  # the length is not known


def test_serial_steps_stay_by_themselves() -> None:
    serial = nest([PLACE], PLACE, *LOOPS, parallel=0)
    assert found((serial, "ab"), (serial, "bc"), (plain, "de")) == ()


def test_slabs_leave_room_for_what_is_not_touched() -> None:
    inside = nest([row * 8 + 3], row * 8 + 3, (ROW, ROWS))
    assert slabs(inside, "out") == (Slab(ROWS, 8, -4, 3),)
    assert found((plain, "ab"), (inside, "bc")) == (Phase(0, 1, ROWS, (1, 1), True),)


def test_named_indices_and_tiles() -> None:
    """A tile of four rows: its rows are named, and its operand is read through the tile operation."""
    tiles, tile = axis("t", ROWS)
    first = sym.Var("first", 0, 4 * ROWS - 4)
    inner, i = axis("i", 4)
    begin = ln.Assign(first, tile * 4)
    k, kept = axis("k", 8)
    contract = ln.Contract(
        "tile", types.f32, "in", types.f32, of(first) * 8 + kept, 8, "w", types.f32, kept * 8,
        (ln.Loop(k, 8, "serial", ()),), 4, 4, 8, 8,
    )  # fmt: skip
    value = ln.load("tile", i * 8 + column, types.f32)
    place: Expr = (of(first) + i) * 8 + column
    store = ln.Loop(inner, 4, "serial", (ln.Loop(COLUMN, 8, "serial", (ln.Store("out", place, value),)),))
    body = (begin, ln.Alloc("tile", types.f32, 32), contract, store)
    product = ln.LoopNest((array("in"), array("w"), output("out")), (), (ln.Loop(tiles, ROWS, "parallel", body),))
    assert slabs(product, "in") == slabs(product, "out") == (Slab(ROWS, 32, 0, 0),)
    assert found((product, "awb"), (product, "bwc")) == (Phase(0, 1, ROWS, (1, 1), True),)
    assert found((product, "awb"), (product, "abc")) == ()  # all of b, by every share


def parallel(target: Target) -> Target:
    """``target`` for which every kernel is worth dividing among threads."""
    return schedule_support.with_costs(target, threads={"written": 1, "shares": 1, "shares_each": 0})


def test_random_programs_in_any_order_of_shares() -> None:
    target = parallel(targets.X86_64)
    together = portions = 0
    for seed in range(1000, 1400):
        builder = Builder(seed)
        for _ in range(int(builder.random.integers(3, 10))):
            builder.grow()
        graph = builder.graph()
        program = compile_graph(graph, target)
        if not program.entries[0].region.phases:
            continue
        together += len(program.entries[0].region.phases)
        portions += sum(len(phase.portions) for phase in program.entries[0].region.phases)
        expected = schedule_support.run_program(one_by_one(program), builder.arrays)
        for order in range(2):
            for name, value in schedule_support.run_program(program, builder.arrays, order).items():
                assert value.tobytes() == expected[name].tobytes(), f"seed {seed}, {name}"
    assert together > 40 and portions > 6, (together, portions)


def layers() -> tuple[programs.Program, Graph, dict[str, np.ndarray]]:
    """Four narrow products in a row, and what they are given."""
    x = ir.input_("x", (96, 16), types.f32)
    random = np.random.default_rng(0)
    y = x
    for _ in range(4):
        y = contraction.matmul(y, ir.constant(random.standard_normal((16, 16)).astype(np.float32)))
    graph = Graph("layers", (x,), (("y", y),), ())
    arrays = {"x": random.standard_normal((96, 16)).astype(np.float32)}
    return compile_graph(graph, parallel(targets.AVX2)), graph, arrays


def test_what_a_phase_uses_lives_as_long_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow layers in a row: the last could overwrite the first, if threads waited for each other."""
    monkeypatch.setattr(phases, "portion", lambda *_: None)
    program, graph, arrays = layers()
    (phase,) = program.entries[0].region.phases
    assert (phase.first, phase.last, phase.portions) == (0, 3, ())
    (expected,) = interp.run(graph, arrays).outputs
    np.testing.assert_allclose(schedule_support.run_program(program, arrays)["y"], expected, rtol=1e-4, atol=1e-4)
    moved = tuple(replace(b, offset=0) if b.space == "arena" else b for b in program.buffers)
    with pytest.raises(SpecError, match="overlap"):
        spec.check(replace(program, buffers=moved))


def test_a_share_has_portions_of_what_its_phase_alone_uses(tmp_path: Path) -> None:
    program, graph, arrays = layers()
    (entry,) = program.entries
    (phase,) = entry.region.phases
    between = [b.name for b in program.buffers if b.space == "share"]
    assert entry.arena_size == 0 and len(between) == 3
    assert [(p.buffer, p.first, p.length * phase.shares) for p in phase.portions] == [(b, 0, 96 * 16) for b in between]
    (expected,) = interp.run(graph, arrays).outputs
    np.testing.assert_allclose(schedule_support.run_program(program, arrays)["y"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(interpreter.run(program, arrays, {})["y"], expected, rtol=1e-4, atol=1e-4)
    bundle = render(program, targets.AVX2)
    stack = max(walk.stack_bytes(kernel.nest) for kernel in program.kernels)
    assert f"needs {64 + -(-stack // 1024)} KiB of stack" in bundle.files[f"{bundle.name}.h"]
    path = build.build(bundle, tmp_path).library
    constants = [program.constants[name] for name in bundle.plan.offsets]
    weights.write(
        path.with_name(f"{bundle.name}.weights"), bundle.source_hash, bundle.plan, constants, bundle.content_id
    )
    library = loader.load(path, threads=2)
    np.testing.assert_allclose(library.run(arrays)[0], expected, rtol=1e-4, atol=1e-4)

    def given(**changes: Any) -> programs.Program:
        region = replace(entry.region, phases=(replace(phase, **changes),))
        return replace(program, entries=(replace(entry, region=region),))

    first, *others = phase.portions
    shifted = given(portions=(replace(first, first=1), *others))
    with pytest.raises(SpecError, match=f"{first.buffer} is written outside a portion"):
        schedule_support.run_program(shifted, arrays)
    with pytest.raises(SpecError, match=f"portions of {first.buffer} have 0 elements"):
        spec.check(given(portions=(replace(first, length=0), *others)))
    flag = programs.Branch(first.buffer, programs.Region(()), programs.Region(()))
    steps = replace(entry.region, steps=(*entry.region.steps, flag))
    with pytest.raises(SpecError, match=f"{first.buffer} is used outside a phase with portions of it"):
        spec.check(replace(program, entries=(replace(entry, region=steps),)))
    with pytest.raises(SpecError, match=f"{first.buffer} is used outside a phase with portions of it"):
        spec.check(given(portions=tuple(others)))
    second, third = others
    assert first.offset == third.offset != second.offset  # who computes the third needs the second alone
    assert program.portion_size == 2 * program.bytes_of(first)
    with pytest.raises(SpecError, match=f"the portions of {first.buffer} and {second.buffer} overlap"):
        spec.check(given(portions=(first, replace(second, offset=first.offset), third)))
    with pytest.raises(SpecError, match=f"a portion of {second.buffer} is not aligned"):
        spec.check(given(portions=(first, replace(second, offset=second.offset + 32), third)))
    with pytest.raises(SpecError, match=f"portions of {first.buffer}, but no share goes through all steps at once"):
        spec.check(given(linked=False))
    with pytest.raises(SpecError, match="y is somewhere as a whole"):
        spec.check(given(portions=(*phase.portions, programs.Portion("y", 0, 16))))


def test_a_batch_goes_through_windows_sample_by_sample() -> None:
    """Products of samples are kept apart, and a window does not reach from one into the next, whatever its border."""
    samples, channels, side = 8, 16, 8
    random = np.random.default_rng(0)

    def weight(*shape: int) -> ir.Node:
        return ir.constant(random.standard_normal(shape).astype(np.float32))

    def graph(samples: int) -> Graph:
        x = ir.input_("x", (samples, channels, side, side), types.f32)
        y = contraction.conv(x, weight(24, channels, 1, 1))
        y = contraction.conv(y, weight(24, 1, 3, 3), pads_begin=[1, 1], pads_end=[1, 1], groups=24)
        y = contraction.conv(y, weight(channels, 24, 1, 1))
        y = contraction.conv(y, weight(channels, 1, 3, 3), None, [2, 2], [0, 0], [1, 1], groups=channels)
        return Graph("windows", (x,), (("y", contraction.conv(y, weight(24, channels, 1, 1))),), ())

    target = replace(targets.AVX512, threads=2, l3=1 << 14)  # that does not hold what lies between two steps
    program = compile_graph(graph(samples), target)
    (entry,) = program.entries
    (phase,) = entry.region.phases
    assert (phase.shares, phase.first, phase.last) == (samples, 0, len(entry.steps) - 1)
    assert len(phase.portions) == 4 and entry.arena_size == 0
    taken = sum(program.bytes_of(p) for p in phase.portions)
    assert program.portion_size < taken  # the first is written over
    arrays = {"x": random.standard_normal((samples, channels, side, side)).astype(np.float32)}
    expected = schedule_support.run_program(one_by_one(program), arrays)["y"]
    for order in range(2):
        assert schedule_support.run_program(program, arrays, order)["y"].tobytes() == expected.tobytes()
    few = graph(samples // 2)
    assert compile_graph(few, target).entries[0].arena_size > 0  # too few for as many threads
    assert compile_graph(few, replace(target, threads=1)).entries[0].arena_size == 0
    assert compile_graph(graph(samples), replace(target, threads=16)).entries[0].arena_size > 0
    assert compile_graph(graph(samples), replace(targets.AVX512, threads=2)).entries[0].arena_size > 0  # it holds that


def one_by_one(program: programs.Program) -> programs.Program:
    (entry,) = program.entries
    return replace(program, entries=(replace(entry, region=replace(entry.region, phases=())),))


def test_the_specification_of_phases() -> None:
    good = scaled_rows()
    main, other = good.entries
    rows = of(good.dims[0])

    def check(*found: Phase, program: programs.Program = good) -> None:
        spec.check(replace(program, entries=(replace(main, region=replace(main.region, phases=found)), other)))

    check(Phase(0, 1, rows, (1, 1)))
    with pytest.raises(SpecError, match="no phase can be there"):
        check(Phase(1, 2, rows, (1, 1)))
    with pytest.raises(SpecError, match="no phase can be there"):
        check(Phase(0, 1, rows, (1, 1)), Phase(1, 1, rows, (1,)))
    with pytest.raises(SpecError, match=r"rows tasks are not rows shares of 2"):
        check(Phase(0, 1, rows, (1, 2)))
    kernels = tuple(changed(kernel, checked=True) for kernel in good.kernels)
    with pytest.raises(SpecError, match="more than one can raise a status"):
        check(Phase(0, 1, rows, (1, 1)), program=replace(good, kernels=kernels))
