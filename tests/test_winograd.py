"""Convolutions by minimal filtering: the algebra, which are chosen, and what is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import luminal
from luminal.core import interp, ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core.decompose.activation import gelu, relu, silu
from luminal.core.decompose.contraction import conv
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.numeric import toom_cook, winograd
from luminal.core.schedule.numeric.winograd import Filtering, filtering
from luminal.core.target import parse as target
from luminal.module import Module
from tests.schedule_support import with_costs

Array = np.ndarray[Any, Any]
Follow = Callable[[Node], Node]


# ---- the algebra ----------------------------------------------------------------------------------------------------


def times(matrix: toom_cook.Matrix, vector: Sequence[Fraction]) -> list[Fraction]:
    return [sum((a * x for a, x in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@settings(deadline=None)  # the first of a size makes its matrices
@given(st.integers(1, 9), st.integers(1, 7), st.data())
def test_filtering_is_exact(m: int, r: int, data: st.DataObject) -> None:
    """``A^T [(G g) . (B^T d)]`` are the m outputs of a filter of r taps, in fractions."""
    numbers = st.integers(-99, 99).map(Fraction)
    f = filtering(m, r)
    d, g = ([data.draw(numbers) for _ in range(length)] for length in (f.size, r))
    products = [a * b for a, b in zip(times(f.taps, g), times(f.input, d), strict=True)]
    expected = [sum((d[k + j] * g[j] for j in range(r)), Fraction(0)) for k in range(m)]
    assert times(f.output, products) == expected and len(products) == m + r - 1


TARGET = target("avx512")
SIZES = [(m, r) for r in winograd.TAPS for m in range(2, winograd.LARGEST) if m + r - 1 <= winograd.LARGEST]


@pytest.mark.parametrize(("m", "r"), SIZES)
def test_transforms_are_products_with_the_matrices(m: int, r: int) -> None:
    """However rows share what they add: integers times quotients by powers of two, which float64 holds."""
    f = filtering(m, r)
    rng = np.random.default_rng(0)
    for matrix in (f.input, f.output):
        exact = np.array(matrix, np.float64)
        assert [[Fraction(x) for x in row] for row in exact] == [list(row) for row in matrix]
        tile = {(i, j): rng.integers(-9, 9, 5).astype(np.float64) for i in range(len(exact[0])) for j in range(f.size)}
        whole = np.array([[tile[i, j] for j in range(f.size)] for i in range(len(exact[0]))])
        found = winograd.along_axes([matrix, f.input], tile)
        expected = np.einsum("ai,bj,ijx->abx", exact, np.array(f.input, np.float64), whole)
        assert all(np.array_equal(x, expected[at]) for at, x in found.items())


# ---- graphs ---------------------------------------------------------------------------------------------------------


def layer(
    shape: Sequence[Any],
    filters: Array,
    begin: Sequence[int],
    end: Sequence[int] | None = None,
    follow: Follow = lambda y: y,
    **how: Any,
) -> Graph:
    """A convolution, its bias, and what follows."""
    x = ir.input_("x", shape, types.f32)
    bias = ir.constant(np.arange(len(filters), dtype=np.float32))
    y = conv(x, ir.constant(filters), bias, pads_begin=begin, pads_end=end or begin, **how)
    dims = tuple(v for size in shape for v in sym.variables(size))
    result = follow(y)
    inputs = [n for n in traverse.topological([result]) if n.op is ops.INPUT]
    return Graph("layer", tuple(inputs), (("y", result),), dims)


def forced(monkeypatch: pytest.MonkeyPatch, m: int) -> None:
    monkeypatch.setattr(winograd, "chosen", lambda x, *_: (tuple(filtering(m, w.taps) for w in x.windows), 0.0))


def whole_filters(shape: Sequence[int], each: Sequence[Filtering]) -> Array:
    """Integers that the matrices G transform to integers."""
    common = math.prod(math.lcm(*(x.denominator for row in f.taps for x in row)) for f in each)
    return (common * np.random.default_rng(1).integers(-3, 4, shape)).astype(np.float32)


BATCH = sym.var("batch", 1, 4)
HEAD = ir.constant(np.arange(6, dtype=np.float32).reshape(1, 6, 1, 1))


def gated(y: Node) -> Node:
    """Reads the result twice, beside a value of its shape and one of a row's."""
    other = ir.input_("other", y.shape, types.f32)
    return relu(y * other + HEAD) * y


CASES: dict[str, tuple[Graph, int, dict[str, tuple[int, ...]]]] = {}


def case(name: str, m: int, x: tuple[Any, ...], w: tuple[int, ...], *pads: Sequence[int], **how: Any) -> None:
    taps = w[2:]
    graph = layer(x, whole_filters(w, [filtering(m, r) for r in taps if r > 1]), *pads, **how)
    CASES[name] = graph, m, {"x": tuple(3 if size is BATCH else size for size in x)}


case("whole tiles", 4, (1, 5, 8, 12), (6, 5, 3, 3), [1, 1])
case("partial tiles", 4, (2, 5, 7, 9), (6, 5, 3, 3), [1, 1])
case("no padding", 2, (1, 5, 9, 8), (6, 5, 3, 3), [0, 0])
case("asymmetric padding", 3, (1, 5, 7, 8), (6, 5, 3, 3), [2, 0], [0, 1])
case("five taps", 2, (1, 4, 7, 9), (6, 4, 5, 5), [2, 2])
case("two and four taps", 3, (1, 4, 9, 9), (6, 4, 2, 4), [0, 1])
case("one axis", 6, (2, 5, 20), (6, 5, 3), [1])
case("one axis of two", 4, (2, 5, 6, 9), (6, 5, 1, 3), [0, 1])
case("groups", 4, (1, 8, 7, 7), (6, 4, 3, 3), [1, 1], groups=2)
case("symbolic batch", 4, (BATCH, 5, 7, 7), (6, 5, 3, 3), [1, 1], follow=relu)
case("what follows", 4, (1, 5, 6, 7), (6, 5, 3, 3), [1, 1], follow=gated)


def drawn(graph: Graph, shapes: dict[str, tuple[int, ...]], whole: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    sizes = {n.attr.name: shapes.get(n.attr.name) or tuple(int(str(d)) for d in n.shape) for n in graph.inputs}
    if whole:
        return {name: rng.integers(-4, 5, size).astype(np.float32) for name, size in sizes.items()}
    return {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_graph_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, of integers: in float64 nothing is rounded."""
    graph, m, shapes = CASES[name]
    forced(monkeypatch, m)
    found = winograd.transformed(graph, 1.0, TARGET)
    assert sums(found) == 1 < sums_of_tiles(found)
    values = drawn(graph, shapes, whole=True)
    (expected,), (y,) = (interp.run(x, values, "float64").outputs for x in (graph, found))
    np.testing.assert_array_equal(y, expected)


def sums(graph: Graph) -> int:
    return sum(n.op is ops.SUM_REDUCE for n in traverse.topological(graph.roots))


def sums_of_tiles(graph: Graph) -> int:
    """The positions of the tiles that the one sum multiplies."""
    return max(int(str(n.shape[0])) for n in traverse.topological(graph.roots) if n.op is ops.SUM_REDUCE)


def test_a_row_that_two_windows_read_is_another_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one axis has a stride or a dilation, the other is filtered; where both have, none."""
    forced(monkeypatch, 4)
    filters = whole_filters((6, 5, 3, 3), [filtering(4, 3)])
    for how, positions in (({"strides": [2, 1]}, 6), ({"dilations": [1, 2]}, 6), ({"strides": [2, 2]}, None)):
        graph = layer((1, 5, 9, 9), filters, [1, 1], **how)
        found = winograd.transformed(graph, 1.0, TARGET)
        assert (found.roots == graph.roots) if positions is None else sums_of_tiles(found) == positions
        values = drawn(graph, {}, whole=True)
        (expected,), (y,) = (interp.run(x, values, "float64").outputs for x in (graph, found))
        np.testing.assert_array_equal(y, expected)


# ---- what is chosen -------------------------------------------------------------------------------------------------


def normal(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def tile(graph: Graph, budget: float) -> int | None:
    """The outputs of a tile along an axis; None where the graph stays as it is."""
    found = [x for n in traverse.topological(graph.roots) if (x := winograd.windowed(n)) is not None]
    chosen = winograd.chosen(found[0], budget, TARGET) if found else None
    assert (winograd.transformed(graph, budget, TARGET).roots == graph.roots) == (chosen is None)
    if chosen is None:
        return None
    each, error = chosen
    assert error == winograd.error(found[0], each) <= budget
    return each[0].m


def test_the_fastest_within_the_budget() -> None:
    graph = layer((1, 64, 56, 56), normal(64, 64, 3, 3), [1, 1])
    (x,) = (x for n in traverse.topological(graph.roots) if (x := winograd.windowed(n)) is not None)
    errors = {m: winograd.error(x, (filtering(m, 3),) * 2) for m in (2, 3, 4)}
    assert errors[2] < errors[3] < errors[4] < 1e-4
    assert tile(graph, 1e-3) == tile(graph, errors[4]) == 4
    assert tile(graph, errors[4] * 0.99) == 3
    assert tile(graph, errors[2] * 0.99) is None


def test_what_stays_a_sum() -> None:
    """Few channels or rows, where nothing is won; channel by channel; filters of a call; sizes that are not known."""
    assert tile(layer((1, 3, 56, 56), normal(64, 3, 3, 3), [1, 1]), 1.0) is None
    assert tile(layer((1, 512, 7, 7), normal(512, 512, 3, 3), [1, 1]), 1.0) is None
    assert tile(layer((1, 64, 56, 56), normal(64, 1, 3, 3), [1, 1], groups=64), 1.0) is None
    assert tile(layer((1, 64, 56, 56), normal(64, 64, 1, 1), [0, 0]), 1.0) is None
    assert tile(layer((1, 64, 56, 56), normal(64, 64, 7, 7), [3, 3]), 1.0) is None
    assert tile(layer((1, 64, sym.var("h", 16, 64), sym.var("w", 16, 64)), normal(64, 64, 3, 3), [1, 1]), 1.0) is None
    x, w = (ir.input_(name, shape, types.f32) for name, shape in (("x", (1, 64, 56, 56)), ("w", (64, 64, 3, 3))))
    assert tile(Graph("given", (x, w), (("y", conv(x, w)),), ()), 1.0) is None
    infinite = normal(64, 64, 3, 3)
    infinite[0, 0, 0, 0] = np.inf
    assert tile(layer((1, 64, 56, 56), infinite, [1, 1]), 1.0) is None


# ---- what is compiled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As near as float32 comes: each product and sum rounds once, in tiles of at most 8 x 8 after factors below 64."""
    graph, m, shapes = CASES[name]
    forced(monkeypatch, m)
    values = drawn(graph, shapes)
    module = luminal.compile(graph, winograd=1.0, threads=2)
    assert isinstance(module, Module)
    (expected,) = interp.run(graph, values, "float64").outputs
    (found,) = module.run(values).values()
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


class Block(nn.Module):
    """Two convolutions and what goes past them, at sizes that tiles of four do not divide."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(32, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def test_a_module_within_its_budget() -> None:
    eager = with_costs(target("host"), filtering={"moved": 0.0})
    model, x = Block().eval(), torch.randn(2, 32, 27, 25, generator=torch.Generator().manual_seed(1))
    direct, module = (luminal.compile(model, (x,), winograd=budget, threads=2, target=eager) for budget in (None, 1e-3))
    with torch.no_grad():
        expected = model.double()(x.double())
    model.float()
    apart = [(m(x).double() - expected).abs().max() / expected.square().mean().sqrt() for m in (direct, module)]
    assert apart[0] < apart[1] < 1e-3
    tiny = luminal.compile(model, (x,), winograd=1e-9, threads=2, target=eager)
    assert isinstance(direct, Module) and isinstance(tiny, Module)
    assert tiny.library.metadata["source_hash"] == direct.library.metadata["source_hash"]
    assert isinstance(module, Module) and [m.approximated("winograd") for m in (direct, module, tiny)] == [0, 2, 0]
    for made, name in zip(module.manifest["approximations"], ("conv2d", "conv2d_1"), strict=True):
        tiles, _, error = made["what"].partition(", error ")
        assert tiles.startswith("F(") and 0 < float(error) < 1e-3
        assert f"{name!r}" in made["origins"][0] and made["option"] == "winograd"
    lazy = luminal.compile(model, winograd=1e-3, threads=2, target=eager)
    assert torch.equal(lazy(x), module(x))
    report = luminal.diff(model, (x,), winograd=1e-3, threads=2, target=eager)
    assert report.ok and "winograd 0.001 (operators: 2)" in str(report), str(report)


def test_diff_blames_no_kernel_for_how_far_an_infinity_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, 4)
    x = torch.randn(1, 16, 24, 24, generator=torch.Generator().manual_seed(1))
    x[0, 0, 5, 5] = torch.inf
    report = luminal.diff(nn.Conv2d(16, 16, 3), (x,), winograd=1e-3, threads=2)
    assert not report.ok and "elements are NaN or infinite on one side only" in str(report)
    assert report.finding is not None and report.finding.stage == "what was chosen", str(report)


def test_what_takes_many_operations_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each output of a tile: it reads the whole."""
    forced(monkeypatch, 4)
    counts = []
    for follow in (silu, lambda y: gelu(gelu(y))):
        direct = layer((1, 16, 24, 24), normal(16, 16, 3, 3), [1, 1], follow=follow)
        graph = winograd.transformed(direct, 1.0, TARGET)
        counts.append(sum(n.op is ops.EXP2 for n in traverse.everything(graph.roots)))
    assert counts == [16, 2]


def test_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy with its border, a kernel for all positions of a tile, the product, and one back with what follows."""
    forced(monkeypatch, 4)
    x = ir.input_("x", (1, 16, 24, 24), types.f32)
    y = x
    for _ in range(3):
        y = relu(
            conv(y, ir.constant(normal(16, 16, 3, 3)), ir.constant(normal(16)), pads_begin=[1, 1], pads_end=[1, 1])
        )
    graph = winograd.transformed(Graph("chain", (x,), (("y", y),), ()), 1.0, TARGET)
    seen: dict[str, Any] = {}
    compile_graph(graph, target("avx2"), lambda stage, value: seen.update({stage: value}))
    kinds = [c.kind for c in seen["arrangement"].fusion.clusters if len(c.index) > 1 or c.kind != "map"]
    assert kinds == ["map", "contraction", "map"] * 3
    placed = seen["arrangement"].assemblies.placed
    inside = [n for n in seen["arrangement"].fusion.stored if n.op is ops.CONTIGUOUS and n in placed]
    first = next(n for n in seen["arrangement"].fusion.clusters[0].index)
    assert seen["arrangement"].order(first) == (1, 2, 0)  # channels last, though the input has them first
    assert len(inside) == 2  # results of 24 x 24 lie inside the border that the next reads


# ---- the option -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, -1e-3, math.nan, math.inf, 10**400, "1e-3", True])
def test_other_budgets_are_refused(budget: Any) -> None:
    graph = layer((1, 4, 8, 8), normal(4, 4, 3, 3), [1, 1])
    with pytest.raises(InputError, match=r"winograd: expected the largest error allowed, a finite .*, found"):
        luminal.compile(graph, winograd=budget)


def test_a_budget_is_any_real_number() -> None:
    assert [winograd.parse(x, target("avx2")) for x in (None, 1, np.int64(1), np.float32(0.5))] == [None, 1, 1, 0.5]


def test_other_targets_are_refused() -> None:
    graph = layer((1, 4, 8, 8), normal(4, 4, 3, 3), [1, 1])
    with pytest.raises(InputError, match="winograd: expected a CPU as the target, found cuda:sm_80"):
        luminal.compile(graph, winograd=1e-3, target="cuda:sm_80")
    with pytest.raises(InputError, match="winograd: expected the precision fp32, found bf16"):
        luminal.compile(graph, winograd=1e-3, precision="bf16")
