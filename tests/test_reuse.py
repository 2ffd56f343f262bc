"""Results in the place of operands: where they may be, and that programs compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from luminal.core import interp, movement
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import activation, contraction, reduction
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.fusion import in_place as reuse
from luminal.core.schedule.nest.walk import arrays_touched
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from tests.schedule_graphs import BATCH, Source
from tests.schedule_support import check_outputs, run_program

ROWS, WIDTH = 6, 8


def product(s: Source, x: Node) -> Node:
    return contraction.linear(x, s.weight(WIDTH, WIDTH))


def compiled(s: Source, *outputs: Node, target: Target = targets.AVX512) -> tuple[Graph, Program]:
    named = tuple((f"y{k}", node) for k, node in enumerate(outputs))
    dims = {v for node in s.nodes for size in node.shape for v in sym.variables(size)}
    graph = Graph("reuse", tuple(s.nodes), named, tuple(dims))
    return graph, compile_graph(graph, target)


def in_place(program: Program) -> int:
    """The number of steps that write over what they read."""
    nests = [program.kernels[step.kernel].nest for step in program.entries[0].launches]
    return sum(
        bool(set.intersection(*arrays_touched(nest.body)) & {array.name for array in nest.arrays}) for nest in nests
    )


def check(s: Source, graph: Graph, program: Program) -> None:
    expected = interp.run(graph, s.arrays).outputs
    for seed in range(3):  # of the order in which tasks run
        check_outputs(graph, expected, run_program(program, s.arrays, seed), depth=4 * WIDTH)


def blocks(s: Source, x: Node, count: int) -> Node:
    for _ in range(count):
        x = x + product(s, activation.relu(product(s, x)))
    return product(s, x)


@pytest.mark.parametrize("rows", [ROWS, BATCH], ids=["fixed", "symbolic"])
def test_a_residual_stream_stays_in_its_place(rows: sym.Int) -> None:
    s = Source()
    graph, program = compiled(s, blocks(s, product(s, s.input(rows, WIDTH)), 4))
    assert in_place(program) == 4
    # The stream, and the hidden values of a block.
    assert len({b.offset for b in program.buffers if b.space == "arena"}) == 2
    check(s, graph, program)


def test_axes_of_extent_1_are_no_difference() -> None:
    s = Source()
    x = product(s, s.input(ROWS, WIDTH))
    wide = movement.reshape(x, (ROWS, 1, WIDTH))
    y = wide + movement.reshape(product(s, activation.relu(product(s, x))), (ROWS, 1, WIDTH))
    graph, program = compiled(s, product(s, y))
    assert in_place(program) == 1
    check(s, graph, program)


def test_nothing_is_written_over_on_a_gpu() -> None:
    s = Source()
    _, program = compiled(s, blocks(s, product(s, s.input(ROWS, WIDTH)), 4), target=targets.GPUS["cuda:sm_90"])
    assert in_place(program) == 0


def read_later(s: Source, x: Node) -> tuple[Node, ...]:
    y = x + product(s, activation.relu(product(s, x)))
    return (product(s, activation.relu(product(s, y)) * movement.flip(x, [0])),)


def read_at_other_elements(s: Source, x: Node) -> tuple[Node, ...]:
    return (product(s, movement.flip(x, [0]) + product(s, activation.relu(product(s, x)))),)


def read_at_other_elements_too(s: Source, x: Node) -> tuple[Node, ...]:
    return (product(s, x * (movement.flip(x, [1]) + product(s, activation.relu(product(s, x))))),)


def multiplied(s: Source, x: Node) -> tuple[Node, ...]:
    return (product(s, x + product(s, x)),)


def returned(s: Source, x: Node) -> tuple[Node, ...]:
    return x, product(s, x + product(s, activation.relu(product(s, x))))


def the_result_returned(s: Source, x: Node) -> tuple[Node, ...]:
    return (x + product(s, activation.relu(product(s, x))),)


REFUSED: list[Callable[[Source, Node], tuple[Node, ...]]] = [
    read_later,
    read_at_other_elements,
    read_at_other_elements_too,
    multiplied,
    returned,
    the_result_returned,
]


@pytest.mark.parametrize("made", REFUSED, ids=lambda made: made.__name__)
def test_what_is_read_again_is_not_written_over(made: Callable[[Source, Node], tuple[Node, ...]]) -> None:
    s = Source()
    graph, program = compiled(s, *made(s, product(s, s.input(ROWS, WIDTH))))
    assert in_place(program) == 0
    check(s, graph, program)


# What a step makes of two values; most that are stored are read by several of those that follow.
STEPS: dict[str, Callable[[Source, Node, Node], Node]] = {
    "residual": lambda s, x, y: x + product(s, y),
    "gated": lambda s, x, y: activation.relu(product(s, x)) * y,
    "flipped": lambda s, x, y: movement.flip(x, [0]) + product(s, y),
    "both": lambda s, x, y: product(s, x) + movement.flip(x, [1]) * y,
    "halves": lambda s, x, y: movement.slice_(movement.concatenate([x, product(s, y)], 0), 0, ROWS // 2, ROWS),
    "sum": lambda s, x, y: product(s, x + y),
    "scaled": lambda s, x, y: x / (1.0 + reduction.sum_(y * y, (1,), True)),
}


@settings(max_examples=60, deadline=None)
@example([("both", 1, 1), ("scaled", 2, 1), ("flipped", 3, 2), ("sum", 2, 1)], False)  # a chain, and a sum beside it
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=7),
    st.booleans(),
)
def test_programs_compute_the_same(steps: list[tuple[str, int, int]], both: bool) -> None:
    """``steps``: what each makes of the value so many before it, and so many; every bit of the results is as where each
    value has a place of its own."""
    s = Source()
    values = [product(s, s.input(ROWS, WIDTH))] * 3
    for name, first, second in steps:
        values.append(STEPS[name](s, values[-first], values[-second]))
    outputs = values[-2 if both else -1 :]
    _, program = compiled(s, *outputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reuse, "in_place", lambda arranged: arranged)
        _, apart = compiled(s, *outputs)
    expected = run_program(apart, s.arrays)
    for seed in range(2):
        found = run_program(program, s.arrays, seed)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
