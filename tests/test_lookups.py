"""What is known of look-ups: between what their positions lie, and functions of what they give."""

from typing import Any

import numpy as np
import pytest

from luminal.codegen.render import render
from luminal.core import interp, ir, ops, ranges
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import indexing, math
from luminal.core.ir import Graph, Node
from luminal.core.movement import along, pad
from luminal.core.pipeline import compile_graphs
from luminal.core.rewrite import simplify
from luminal.core.traverse import everything
from luminal.core.types import f32, i8, i32, i64, u8

SIZE = sym.var("n", 1, 50)
TABLE = ir.constant(np.array([3, 0, 7, 2], np.int32))
X = ir.input_("x", (SIZE,), i32)
NARROW = ir.input_("narrow", (SIZE,), i8)
INDEX = ir.input_("index", (SIZE,), i64)


def bounded() -> list[tuple[Node, tuple[Any, Any] | None]]:
    read = indexing.take(TABLE, INDEX)
    return [
        (TABLE, (0, 7)),
        (read, (0, 7)),
        (read * 2 + 1, (1, 15)),
        (ir.cast(read, i64), (0, 7)),
        (ir.iota(SIZE), (0, SIZE - 1)),
        (ir.iota(SIZE) * 4 + ir.cast(read, i64), (0, 4 * SIZE + 3)),
        (ir.select(X < 3, read, 20), (0, 20)),
        (along(ir.iota(3), 0, (3, 2)), (0, 2)),
        (ir.cast(NARROW, i64), (-128, 127)),
        (ir.cast(X < 3, i64), (0, 1)),
        (ir.dim(SIZE), (SIZE, SIZE)),
        (INDEX, None),
        (INDEX + 1, None),
        (pad(ir.cast(read, i64), [1], [0]), None),  # the fill is not looked at
        (ir.cast(read, i64) * -1, None),
        (ir.constant(np.array([200, 100], np.uint8)) + 100, (0, 255)),  # it wraps
        (ir.cast(ir.input_("f", (3,), f32), i64), None),
        (ir.constant(np.zeros(0, np.int64)), None),
        (ir.cast(ir.constant(np.array([300])), u8), (0, 255)),
    ]


@pytest.mark.parametrize("number", range(len(bounded())))
def test_between_what_elements_lie(number: int) -> None:
    node, wanted = bounded()[number]
    assert ranges.range_of(node) == wanted


def test_positions_that_are_bounded_are_inside() -> None:
    read = indexing.take(TABLE, INDEX)
    assert ranges.within(read, 8) and not ranges.within(read, 7)
    assert not ranges.within(read + -1, 8)
    assert ranges.within(ir.iota(SIZE), SIZE) and not ranges.within(ir.iota(SIZE), SIZE - 1)


def sources(index: Node) -> str:
    data = ir.input_("data", (8,), f32)
    graph = Graph("looked", (data, X), (("y", ir.gather(data, index, 0)),), (sym.as_var(SIZE),))
    target = targets.parse("avx2")
    program = compile_graphs("looked", {"main": graph}, target)
    return "".join(render(program, target).files.values())


def test_a_look_up_that_constants_bound_is_not_checked() -> None:
    place = math.less(X, 3)
    known = indexing.take(TABLE, ir.cast(place, i64))
    assert "status->raise" not in sources(ir.cast(known, i64))
    assert "status->raise" in sources(ir.cast(known + 1, i64))
    assert "status->raise" in sources(ir.cast(X, i64))


# ---- functions of look-ups -----------------------------------------------------------------------------------------


def graph_of(*results: Node) -> Graph:
    return Graph("lookups", (INDEX, X), tuple((f"y{k}", node) for k, node in enumerate(results)), (sym.as_var(SIZE),))


def same(graph: Graph) -> Graph:
    """``graph``, simplified, with the same results."""
    changed = simplify(graph)
    given = {"index": np.arange(4, dtype=np.int64), "x": np.array([5, 1, 2, 9], np.int32)}
    for a, b in zip(interp.run(graph, given).outputs, interp.run(changed, given).outputs, strict=True):
        np.testing.assert_array_equal(a, b)
    return changed


def lookups(graph: Graph) -> list[Node]:
    return [node for node in everything(graph.results) if node.op is ops.GATHER]


VALUES = ir.constant(np.array([0.5, np.nan, -2, np.inf], np.float32))
OTHERS = ir.constant(np.array([4, 3, 2, 1], np.float32))
LABELS = ir.constant(np.arange(10, 18))


@pytest.mark.parametrize(
    "node",
    [
        math.exp(ir.gather(VALUES, INDEX, 0)) * 3,
        ir.gather(VALUES, INDEX, 0) + ir.gather(OTHERS, INDEX, 0),
        ir.select(ir.gather(VALUES, INDEX, 0) < 1, ir.gather(OTHERS, INDEX, 0), -1),
        ir.gather(LABELS, ir.cast(ir.gather(TABLE, INDEX, 0), i64), 0) * 2,
        ir.cast(ir.gather(TABLE, INDEX, 0), f32) / 7,
    ],
)
def test_a_function_of_look_ups_is_a_look_up(node: Node) -> None:
    changed = same(graph_of(node))
    (found,) = lookups(changed)
    assert changed.results[0] is found and found.inputs[0].op is ops.CONSTANT


@pytest.mark.parametrize(
    "results",
    [
        [math.exp(ir.gather(VALUES, INDEX, 0)), math.abs_(ir.gather(VALUES, INDEX, 0))],  # two for one
        [ir.gather(VALUES, INDEX, 0) * ir.cast(X, f32)],  # of something else, too
        [ir.gather(VALUES, INDEX, 0) + ir.gather(OTHERS, ir.cast(X, i64), 0)],
        [ir.gather(ir.constant(np.arange(3.0)), ir.cast(ir.gather(TABLE, INDEX, 0), i64), 0) * 2],  # a run that fails
    ],
)
def test_what_would_be_more_look_ups_or_cannot_be_computed_stays(results: list[Node]) -> None:
    graph = graph_of(*results)
    before = {node.inputs[0] for node in lookups(graph)}
    assert {node.inputs[0] for node in lookups(simplify(graph))} == before


def test_an_index_out_of_range_still_fails() -> None:
    graph = simplify(graph_of(math.exp(ir.gather(VALUES, INDEX, 0))))
    with pytest.raises(IndexError):
        interp.run(graph, {"index": np.array([4]), "x": np.zeros(1, np.int32)})
