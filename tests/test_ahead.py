"""Weights that earlier steps fetch: how much, when, by whom, and that nothing else changes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import luminal
from luminal.codegen import render
from luminal.core import ir, pipeline, types
from luminal.core import program as programs
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, reduction
from luminal.core.ir import Graph, Node
from luminal.core.program import Kernel, Launch, Program
from luminal.core.schedule.lower import statements
from luminal.core.schedule.nest import Contract
from luminal.core.symbolic import Int
from luminal.core.target import Target
from tests.compiled_support import assert_computes, assert_same_bits
from tests.emulation import INSTRUCTION_SETS

HOST = targets.detect()
OTHERS = [target for target in INSTRUCTION_SETS if target.flags != HOST.flags and targets.supported(target)]
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
            tasks = sym.product(loop.extent for loop in program.kernels[step.kernel].nest.tasks)
            assert isinstance(tasks, int)
            part = step.fetch.first, step.fetch.first + step.fetch.part * tasks
            found.setdefault(step.fetch.buffer, []).append(part)
    return found


def rows_of_tiles(kernel: Kernel) -> set[int]:
    return {s.max_rows for s in statements(kernel.nest.body) if isinstance(s, Contract)}


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
    assert f", fetches {name} from 0" in programs.text(program)


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
    """4 MiB of weights, with 1 MiB of another product's between: a last cache of 4 MiB holds neither."""
    graph = classifier(1024, 2048, between=1)
    assert fetched(compiled(graph)) and not fetched(compiled(graph, replace(AVX512, l3=4 << 20)))


def test_blocks_of_a_gpu_fetch_nothing() -> None:
    assert not fetched(compiled(classifier(1024, 1000), targets.parse("cuda:sm_90")))


def test_sizes_that_are_not_known() -> None:
    program = compiled(classifier(sym.var("rows", 1, 4096), 1000))
    assert [step.fetch for step in launches(program) if step.fetch is not None]


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
