"""Weights that earlier steps fetch: how much, when, by whom, and that nothing else changes."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import luminal
from luminal.codegen import render
from luminal.codegen.emitter import emit
from luminal.core import ir, pipeline, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, reduction
from luminal.core.ir import Graph, Node
from luminal.core.schedule.nest.ir import Contract, Loop, Statement
from luminal.core.schedule.nest.walk import statements
from luminal.core.schedule.program import ir as programs
from luminal.core.schedule.program import prefetch
from luminal.core.schedule.program.ir import HostCall, Kernel, Launch, Phase, Program, Region
from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.target import Target
from tests.compiled_support import assert_computes, assert_same_bits
from tests.emulation import HOST, OTHERS

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

AVX512 = replace(targets.AVX512, threads=2, l3=32 << 20)
WIDTH = 512


def linear(x: Node, columns: int) -> Node:
    random = np.random.default_rng(columns)
    weight = random.standard_normal((columns, int(str(x.shape[-1])))).astype(np.float32)
    return contraction.linear(x, ir.constant(weight), None)


def classifier(rows: Int, classes: int, between: int = 0) -> Graph:
    """A product of many rows, their mean, and a product of that; ``between`` them, products of as many rows as that
    makes, without a maximum."""
    x = ir.input_("x", (rows, WIDTH), types.f32)
    y = linear(x, WIDTH)
    for _ in range(between):
        y = linear(y, WIDTH)
    y = linear(reduction.mean(y, (0,), True), classes)
    return Graph("classifier", (x,), (("y", y),), tuple(sym.variables(rows)))


def compiled(graph: Graph, target: Target = AVX512) -> Program:
    return pipeline.compile_graph(graph, target)


def launches(program: Program) -> list[Launch]:
    return list(program.entries[0].launches)


def fetched(program: Program) -> dict[str, list[tuple[int, int]]]:
    """From where to where of each constant launches fetch, in their order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for step in launches(program):
        if step.fetch is not None:
            tasks = program.kernels[step.kernel].nest.task_count
            assert isinstance(tasks, int)
            part = step.fetch.first, step.fetch.first + step.fetch.part * tasks
            found.setdefault(step.fetch.buffer, []).append(part)
    return found


def rows_of_tiles(kernel: Kernel) -> set[int]:
    return {s.max_rows for s in statements(kernel.nest.body) if isinstance(s, Contract)}


def tiles(body: tuple[Statement, ...]) -> int:
    """How many tiles a run of ``body`` sums."""
    found = [s for s in body if isinstance(s, Loop | Contract)]
    return sum(1 if isinstance(s, Contract) else typical(s.extent) * tiles(s.body) for s in found)


def test_the_weights_of_a_single_row_are_fetched_by_the_products_before_it() -> None:
    program = compiled(classifier(128, 3000, between=3))
    ((name, parts),) = fetched(program).items()
    (last,) = (step for step in launches(program) if name in step.arguments)
    assert rows_of_tiles(program.kernels[last.kernel]) == {1}
    assert parts[0][0] == 0 and parts[-1][1] >= program.buffer(name).size
    assert all(end >= first for (_, end), (first, _) in pairwise(parts))
    fetching = {step.kernel for step in launches(program) if step.fetch is not None}
    assert fetching == {number for number, kernel in enumerate(program.kernels) if kernel.fetches}
    assert all(min(rows_of_tiles(program.kernels[number])) > 1 for number in fetching)
    assert f", fetches {name} from 0 on, " in programs.text(program)


def test_as_late_as_memory_gives_it() -> None:
    """The last product before it fetches as much as it has time for, the ones before that the rest; none more than a
    line with each step of a tile."""
    few, many = (compiled(classifier(128, classes, between=4)) for classes in (300, 3000))
    counts = [len(parts) for program in (few, many) for parts in fetched(program).values()]
    assert counts[0] == 1 < counts[1]
    for program in (few, many):
        steps = [step for step in launches(program) if rows_of_tiles(program.kernels[step.kernel]) - {1}]
        assert steps[-1].fetch is not None
        assert all(0 < step.fetch.stride <= 64 for step in steps if step.fetch is not None)


def test_nobody_fetches_where_all_wait_for_memory() -> None:
    """Products of one row, as of a decoder: each reads weights as fast as they come."""
    x = ir.input_("x", (1, WIDTH), types.f32)
    program = compiled(Graph("decoder", (x,), (("y", linear(linear(linear(x, WIDTH), WIDTH), WIDTH)),), ()))
    assert not fetched(program) and not any(kernel.fetches for kernel in program.kernels)


def test_what_the_cache_would_lose_again_is_not_fetched() -> None:
    """4 MiB of weights, which three quarters of a last cache of 6 MiB hold, but not with the 1 MiB of the product that
    would have to fetch them."""
    graph = classifier(1024, 2048, between=1)
    assert fetched(compiled(graph, replace(AVX512, l3=8 << 20)))
    assert not fetched(compiled(graph, replace(AVX512, l3=6 << 20)))
    # Of three products that would fetch a part each, the first is too early: the others read 2 MiB after it.
    graph = classifier(64, 2048, between=4)
    counts = [len(*fetched(compiled(graph, replace(AVX512, l3=size << 20))).values()) for size in (8, 32)]
    assert counts == [2, 3]


def test_what_lies_between_may_read_anything() -> None:
    """Nothing is fetched across a step that is no launch."""
    program = compiled(classifier(1024, 1000))
    (entry,) = program.entries
    first, *rest = (replace(step, fetch=None) for step in launches(program))
    for call, found in ((), True), ((HostCall("f", ()),), False):
        other = replace(program, entries=(replace(entry, region=Region((first, *call, *rest))),))
        assert bool(fetched(prefetch.with_fetches(other, AVX512))) == found


def test_what_several_read_is_fetched_for_the_first_of_them() -> None:
    x = ir.input_("x", (1024, WIDTH), types.f32)
    y = reduction.mean(linear(linear(x, WIDTH), WIDTH), (0,), True)
    matrix = ir.constant(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32))
    for _ in range(3):
        y = contraction.linear(y * 2.0, matrix, None)
    program = compiled(Graph("tied", (x,), (("y", y),), ()))
    assert [len(parts) for parts in fetched(program).values()] == [1]


def test_blocks_of_a_gpu_fetch_nothing() -> None:
    assert not fetched(compiled(classifier(1024, 1000), targets.parse("cuda:sm_90")))


def test_sizes_that_are_not_known() -> None:
    """As many bytes fall to each step as there are, or none, if there are more steps than that; never more in all."""
    program = compiled(classifier(sym.var("rows", 1, 4096), 1000))
    ((fetch, kernel),) = ((s.fetch, program.kernels[s.kernel]) for s in launches(program) if s.fetch is not None)
    sizes = {rows: sym.evaluate(kernel.nest.task_count * fetch.part, {"rows": rows}) for rows in (1, 8, 64, 512, 4096)}
    assert all(size <= program.buffer(fetch.buffer).size for size in sizes.values())
    assert sizes[64] > 0.9 * program.buffer(fetch.buffer).size > sizes[1] > 0
    assert sym.evaluate(fetch.stride, {"rows": 1}) == 64


def test_calls_say_where_tasks_begin() -> None:
    """A task fetches its own part, wherever a thread begins; and a launch that fetches nothing of a kernel that others
    have fetch, one line again and again."""
    program = compiled(classifier(128, 1000, between=3))
    text = render.render(program, AVX512).files["library.cpp"]
    for step in launches(program):
        if step.fetch is not None:
            first = f" + {step.fetch.first}" if step.fetch.first else ""
            assert re.search(rf"weights<char>\(weight\d+{re.escape(first)}\) \+\s+begin \* {step.fetch.part},", text)
    (other,) = {step.kernel for step in launches(program) if step.fetch is not None}
    assert any(step.kernel == other and step.fetch is None for step in launches(program))
    assert "context.weights<char>(0), 0, begin, end)" in " ".join(text.split())


def test_shares_of_a_phase_begin_where_their_tasks_do() -> None:
    program = compiled(classifier(1024, 1000))
    (entry,) = program.entries
    first = launches(program)[0]
    assert first.fetch is not None and isinstance(first.fetch.part, int)
    phase = Phase(0, 0, 7, (24,))
    phased = replace(program, entries=(replace(entry, region=replace(entry.region, phases=(phase,))),))
    text = " ".join(render.render(phased, AVX512).files["library.cpp"].split())
    assert f") + begin * {first.fetch.part * 24}, {first.fetch.stride}, begin * 24, end * 24)" in text


@pytest.mark.parametrize(
    ("target", "precision", "depth"),
    [(AVX512, None, WIDTH), (targets.AVX512_BF16, "bf16", WIDTH // 2), (targets.AVX512_AMX, "bf16", WIDTH // 32)],
    ids=lambda value: getattr(value, "name", value),
)
def test_each_step_of_a_tile_fetches(target: Target, precision: str | None, depth: int) -> None:
    target = replace(targets.parse(target, precision), threads=2, l3=32 << 20)
    program = compiled(classifier(1024, 1000), target)
    (step,) = (step for step in launches(program) if step.fetch is not None)
    kernel = program.kernels[step.kernel]
    assert step.fetch is not None
    assert step.fetch.part == step.fetch.stride * depth * tiles(kernel.nest.tasks[-1].body)
    text = emit(kernel, {})
    (function,) = ("\n".join(lines) for lines in text.functions)
    inside = function[function.rindex("for (") :]
    assert inside.index("prefetch_to_l2(ahead);") < inside.index("ahead += ahead_step;") < inside.index("sum.step(")
    assert "const char* ahead, int64_t ahead_step) {" in function and "return ahead;" in function
    calls = [line for line in text.body if "_tile0<" in line]
    assert calls and all("ahead = " in line and "ahead, ahead_step)" in line for line in calls)
    other = emit(replace(kernel, fetches=False), {})
    assert "ahead_step" not in "\n".join([*other.body, *itertools.chain(*other.functions), other.signature.definition])


@pytest.mark.parametrize("target", [HOST, *OTHERS], ids=lambda target: target.name)
def test_results_are_what_they_are_without(target: Target) -> None:
    """Rows that no number of threads divides, and weights that fetching goes beyond the end of."""
    target = replace(target, threads=2, l3=32 << 20)
    graph = classifier(150, 1003, between=1)
    x = np.random.default_rng(1).standard_normal((150, WIDTH)).astype(np.float32)
    module = luminal.compile(graph, target=target)
    assert fetched(module.program)
    one, two = (list(luminal.load(module.folder, threads=threads).run({"x": x}).values()) for threads in (1, 2))
    assert_computes(graph, {"x": x}, one, 3 * WIDTH)
    assert_same_bits(two, one)
