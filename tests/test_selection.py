"""Selections whose size data decides, against numpy: in the interpreter, and compiled in one library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import luminal
from luminal.core import interp, ir, types
from luminal.core import symbolic as sym
from luminal.core.decompose import selection, suppression
from luminal.core.errors import ShapeError
from luminal.core.ir import Graph, Node
from luminal.module import Module

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]
N = sym.var("n", 0, 12)


def graph(build: Callable[..., list[Node]], *nodes: Node) -> Graph:
    measured: ir.Measured = {}
    with ir.measuring(measured):
        results = build(*nodes)
    outputs = tuple((f"y{k}", node) for k, node in enumerate(results))
    return Graph("selection", nodes, outputs, (*sym.variables(N), *measured), measured=measured)


def picked(x: Node, condition: Node) -> list[Node]:
    """``x [n, 3]``, ``condition [n]``."""
    rows = ir.expand(ir.view(condition, (N, 1), [ir.axes((N, 1))[0]]), x.shape)
    return [
        selection.nonzero(x), selection.compress(x, condition, 0, "rows"), selection.masked_select(x, rows, "elements")
    ]  # fmt: skip


def expected(x: Array, condition: Array) -> list[Array]:
    return [np.argwhere(x), x[condition], x[condition].reshape(-1)]


PICKED = graph(picked, ir.input_("x", (N, 3), types.f32), ir.input_("condition", (N,), types.bool_))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 999), n=st.integers(0, 12), density=st.sampled_from([0.0, 0.4, 1.0]))
def test_what_is_picked(seed: int, n: int, density: float) -> None:
    random = np.random.default_rng(seed)
    x = random.choice([0.0, -0.0, 1.5, np.nan, np.inf], (n, 3)).astype(np.float32)
    condition = random.random(n) < density
    for found, wanted in zip(
        interp.run(PICKED, {"x": x, "condition": condition}).outputs, expected(x, condition), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


# ---- overlapping boxes -----------------------------------------------------------------------------------------------


def kept_boxes(boxes: Array, scores: Array, most: int, overlap: float, least: float) -> list[list[int]]:
    """One class after the other, box by box."""
    found: list[list[int]] = []
    for batch, classes in enumerate(scores):
        for number, row in enumerate(classes):
            kept: list[int] = []
            for box in np.argsort(-row, kind="stable"):
                alone = all(_overlap(boxes[batch, box], boxes[batch, other]) <= overlap for other in kept)
                if row[box] > least and alone and len(kept) < most:
                    kept.append(int(box))
            found += [[batch, number, box] for box in kept]
    return found


def _overlap(a: Array, b: Array) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    common = float(np.prod(np.maximum(high - low, 0)))
    return common / float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common) if common else 0.0


def suppress(boxes: Node, scores: Node, most: Node) -> list[Node]:
    overlap, least = ir.constant(0.4, types.f32), ir.constant(0.1, types.f32)
    kept, order = suppression.suppressed(boxes, scores, most, overlap, least)
    return [selection.nonzero(kept), order]


BOXES = graph(
    suppress, ir.input_("boxes", (2, N, 4), types.f32), ir.input_("scores", (2, 3, N), types.f32),
    ir.input_("most", (), types.i64),
)  # fmt: skip


def draw_boxes(random: np.random.Generator, n: int, most: int) -> dict[str, Array]:
    low = random.random((2, n, 2)).astype(np.float32)
    boxes = np.concatenate([low, low + 0.2 + random.random((2, n, 2)).astype(np.float32)], -1)
    return {"boxes": boxes, "scores": random.random((2, 3, n)).astype(np.float32), "most": np.array(most)}


def check_boxes(inputs: dict[str, Array], at: Array, order: Array) -> None:
    found = [[int(b), int(c), int(order[b, c, k])] for b, c, k in at]
    assert found == kept_boxes(inputs["boxes"], inputs["scores"], int(inputs["most"]), 0.4, 0.1)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), n=st.integers(0, 12), most=st.sampled_from([0, 2, 99]))
def test_boxes_that_overlap_a_better_one_are_left_out(seed: int, n: int, most: int) -> None:
    inputs = draw_boxes(np.random.default_rng(seed), n, most)
    check_boxes(inputs, *interp.run(BOXES, inputs).outputs)


def test_boxes_and_scores_that_do_not_fit() -> None:
    boxes, scores = ir.input_("boxes", (2, 5, 4), types.f32), ir.input_("scores", (2, 3, 6), types.f32)
    some = ir.constant(1, types.i64), ir.constant(0.5, types.f32), None
    with pytest.raises(ShapeError, match=r"found \[2, 5, 4\] and \[2, 3, 6\]"):
        suppression.suppressed(boxes, scores, *some)


# ---- compiled --------------------------------------------------------------------------------------------------------


def test_compiled() -> None:
    module = luminal.compile({"picked": PICKED, "boxes": graph(suppress, *BOXES.inputs)}, name="selection")
    assert isinstance(module, Module)
    random = np.random.default_rng(5)
    for n in (0, 1, 7, 12):
        x, condition = random.choice([0.0, 2.0], (n, 3)).astype(np.float32), random.random(n) < 0.5
        found = module["picked"].run({"x": x, "condition": condition}).values()
        for value, wanted in zip(found, expected(x, condition), strict=True):
            np.testing.assert_array_equal(value, wanted)
        inputs = draw_boxes(random, n, 3)
        check_boxes(inputs, *module["boxes"].run(inputs).values())
