"""Random graphs through fusion, layouts and schedules, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from luminal.core import interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import activation, contraction, pooling
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from tests.schedule_support import run_program

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Random = np.random.Generator
COUNT = sym.var("n", 1, 5)
SIZE = 3  # of COUNT, in every run
LARGEST = 6000  # elements of one value at the bounds: the interpreter of nests is slow


class Builder:
    """A growing graph: values to build on, the inputs and their arrays."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.symbolic = self.random.random() < 0.4
        self.inputs: list[Node] = []
        self.arrays: dict[str, Any] = {}
        self.values = [self.input(self.shape(int(self.random.integers(1, 4)))) for _ in range(2)]

    def input(self, shape: tuple[sym.Int, ...]) -> Node:
        node = ir.input_(f"x{len(self.inputs)}", shape, types.f32)
        sizes = [int(sym.evaluate(d, {"n": SIZE})) for d in shape]
        self.arrays[node.attr.name] = self.random.standard_normal(sizes).astype(np.float32)
        self.inputs.append(node)
        return node

    def shape(self, rank: int) -> tuple[sym.Int, ...]:
        sizes: list[sym.Int] = [int(self.random.choice([1, 2, 3, 4, 6])) for _ in range(rank)]
        if self.symbolic and self.random.random() < 0.6:
            sizes[int(self.random.integers(rank))] = COUNT
        return tuple(sizes)

    def recent(self) -> Node:
        return self.values[-1 - int(self.random.integers(min(5, len(self.values))))]

    def axis(self, x: Node) -> int:
        return int(self.random.integers(x.rank))

    def grow(self) -> None:
        """Apply one random step to a recent value, where it fits."""
        x = self.recent()
        if x.rank:
            y = STEPS[int(self.random.integers(len(STEPS)))](self, x)
            if y is not None and (sym.upper(y.size) or LARGEST) < LARGEST:
                self.values.append(y)

    def graph(self) -> Graph:
        outputs = [v for v in self.values[2:] if self.random.random() < 0.25] + [self.values[-1]]
        named = tuple((f"y{k}", node) for k, node in enumerate(outputs))
        dims = {v for node in self.inputs for d in node.shape for v in sym.variables(d)}
        return Graph("random", tuple(self.inputs), named, tuple(dims))


def activate(b: Builder, x: Node) -> Node:
    return activation.relu(x) if b.random.random() < 0.5 else activation.sigmoid(x)


def permute(b: Builder, x: Node) -> Node:
    return movement.permute(x, [int(k) for k in b.random.permutation(x.rank)])


def reduce_and_use(b: Builder, x: Node) -> Node:
    axes = [k for k in range(x.rank) if b.random.random() < 0.5] or [b.axis(x)]
    y = ir.reduce(ops.SUM_REDUCE if b.random.random() < 0.5 else ops.MAX_REDUCE, x, axes)
    return x - ir.expand(movement.unsqueeze(y, axes), x.shape) if b.random.random() < 0.6 else y


def merge_axes(b: Builder, x: Node) -> Node | None:
    if x.rank < 2:
        return None
    k = int(b.random.integers(x.rank - 1))
    return movement.reshape(x, (*x.shape[:k], x.shape[k] * x.shape[k + 1], *x.shape[k + 2 :]))


def split_axis(b: Builder, x: Node) -> Node | None:
    k = b.axis(x)
    size = x.shape[k]
    even = isinstance(size, int) and size % 2 == 0
    return movement.reshape(x, (*x.shape[:k], 2, size // 2, *x.shape[k + 1 :])) if even and x.rank < 6 else None


def pad(b: Builder, x: Node) -> Node:
    before, after = b.random.integers(0, 2, (2, x.rank))
    return movement.pad(x, [int(v) for v in before], [int(v) for v in after], float(b.random.integers(0, 2)))


def join(b: Builder, x: Node) -> Node:
    k = b.axis(x)
    fits = [
        v for v in b.values if v.rank == x.rank and v.shape[:k] == x.shape[:k] and v.shape[k + 1 :] == x.shape[k + 1 :]
    ]
    other = fits[int(b.random.integers(len(fits)))]
    return movement.concatenate([x, other, x][: int(b.random.integers(2, 4))], k)


def multiply_matrix(b: Builder, x: Node) -> Node:
    k, columns = b.axis(x), int(b.random.choice([1, 5, 16, 19]))
    last = movement.permute(x, [*(i for i in range(x.rank) if i != k), k])
    if isinstance(x.shape[k], int) and b.random.random() < 0.5:
        weight = ir.constant(b.random.standard_normal((x.shape[k], columns)).astype(np.float32))
    else:
        weight = b.input((x.shape[k], columns))
    return contraction.matmul(last, weight)


def inner_products(b: Builder, x: Node) -> Node | None:
    y = b.recent()
    if not y.rank or y.shape[-1] != x.shape[-1] or x.rank + y.rank > 6:
        return None
    return ir.reduce(ops.SUM_REDUCE, movement.reshape(x, (*x.shape[:-1], *[1] * (y.rank - 1), x.shape[-1])) * y, [-1])


def combine(b: Builder, x: Node) -> Node:
    fits = [v for v in b.values if v.shape == x.shape]
    y = fits[int(b.random.integers(len(fits)))]
    return [lambda: x + y, lambda: x * y, lambda: ir.select(x < y, x, y * 2.0)][int(b.random.integers(3))]()


def flip(b: Builder, x: Node) -> Node:
    return movement.flip(x, [b.axis(x)])


def take_part(b: Builder, x: Node) -> Node | None:
    k = b.axis(x)
    size = x.shape[k]
    if not isinstance(size, int) or size < 2:
        return None
    return movement.slice_(x, k, 1, size // 2, 2) if b.random.random() < 0.5 else movement.slice_(x, k, 0, size - 1)


def slide(b: Builder, x: Node) -> Node | None:
    k = b.axis(x)
    size = x.shape[k]
    fits = isinstance(size, int) and size >= 3 and x.rank < 6
    return movement.windows(x, k, 2, int(b.random.integers(1, 3))) if fits else None


STEPS: list[Callable[[Builder, Node], Node | None]] = [
    activate, permute, reduce_and_use, merge_axes, split_axis, pad, join, multiply_matrix, inner_products, combine,
    flip, take_part, slide,
]  # fmt: skip


def check(seed: int) -> None:
    """One random graph."""
    builder = Builder(seed)
    for _ in range(int(builder.random.integers(3, 10))):
        builder.grow()
    compare(seed, builder.graph(), builder.arrays)


def compare(seed: int, graph: Graph, arrays: dict[str, Any]) -> None:
    """``graph`` on two targets against the interpreter of graphs."""
    expected = interp.run(graph, arrays).outputs
    exact = interp.run(graph, arrays, mode="float64").outputs
    for target in (targets.X86_64, targets.AVX512):
        found = run_program(compile_graph(graph, target), arrays)
        for (name, _), value, real in zip(graph.outputs, expected, exact, strict=True):
            # Sums in another order err as much again as the interpreter's own do, and at least a few roundings.
            finite = np.isfinite(real)
            scale = float(np.abs(real[finite]).max(initial=1.0))
            allowed = 64 * types.f32.eps * scale + 4 * float(np.abs(value[finite] - real[finite]).max(initial=0.0))
            assert found[name].shape == value.shape
            np.testing.assert_allclose(found[name], real, rtol=0, atol=allowed, err_msg=f"seed {seed}, {name}")


def windows(seed: int) -> tuple[Graph, dict[str, Any]]:
    """A reduction over windows of one or two axes, of every kind, between what may come before and after it."""
    random = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high + 1))

    def weight(*shape: int) -> Node:
        values = random.standard_normal(shape).astype(np.float32)
        if random.random() < 0.1:
            values.reshape(-1)[0] = random.choice([np.inf, np.nan, -0.0])
        return ir.constant(values)

    spatial, channels = draw(1, 2), int(random.choice([1, 2, 4, 6, 16, 16, 20]))
    batch = COUNT if random.random() < 0.3 else draw(1, 2)
    sizes = [draw(3, 26), draw(3, 6)][:spatial][::-1]
    x = ir.input_("x0", (batch, channels, *sizes), types.f32)
    values = random.standard_normal((SIZE if batch is COUNT else batch, channels, *sizes)).astype(np.float32)
    if random.random() < 0.3:
        values[..., 0] = random.choice([np.inf, -np.inf, np.nan, -0.0])
    y = contraction.conv(x, weight(channels, channels, *[1] * spatial)) if random.random() < 0.7 else x

    kernel = [draw(1, min(5, size)) for size in sizes]
    stride = [draw(1, 3) for _ in sizes]
    spread = [draw(1, 2) if (k - 1) * 2 < size else 1 for k, size in zip(kernel, sizes, strict=True)]
    before, after = ([draw(0, k // 2) for k in kernel] for _ in range(2))
    kind = random.choice(["sum", "mean", "most"])
    if kind == "sum":
        groups = int(random.choice([g for g in (1, 2, 4, channels) if channels % g == 0]))
        filters = groups * draw(1, 3) if random.random() < 0.5 else channels
        y = contraction.conv(
            y, weight(filters, channels // groups, *kernel), weight(filters), stride, before, after, spread, groups
        )
    elif kind == "mean":
        y = pooling.avg_pool(y, kernel, stride, before, after, count_include_pad=bool(random.random() < 0.5))
    else:
        y = pooling.max_pool(y, kernel, stride, before, after, spread, ceil_mode=bool(random.random() < 0.5))
    if random.random() < 0.5:
        y = activation.relu(y)
    if random.random() < 0.3:
        y = y + y * 0.5
    if random.random() < 0.3:
        y = contraction.conv(y, weight(3, int(y.shape[1]), *[1] * spatial))
    dims = tuple(v for d in x.shape for v in sym.variables(d))
    return Graph("windows", (x,), (("y0", y),), dims), {"x0": values}


@pytest.mark.parametrize("start", range(0, 200, 25))
def test_random_windows_compute_what_they_say(start: int) -> None:
    for seed in range(start, start + 25):
        compare(seed, *windows(seed))


@pytest.mark.parametrize("start", range(0, 300, 25))
def test_random_graphs_compute_what_they_say(start: int) -> None:
    for seed in range(start, start + 25):
        check(seed)
