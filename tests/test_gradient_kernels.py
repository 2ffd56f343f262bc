"""Kernels of a convolutional network's gradients: how often they read what, and in which order; beside PyTorch."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import luminal
import luminal.gradients
from luminal.core import interp, ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.adjoint import of_view
from luminal.core.errors import ScheduleError
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.nest import interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.program.ir import Program
from luminal.core.schedule.transform.join import JoinReductions
from luminal.core.schedule.transform.unroll_jam import UnrollAndJam
from tests.schedule_support import contracts, transformed

IMAGES, CHANNELS, SIZE = 3, 32, 16
TARGETS = ["avx2", "avx512"]


class Stage(torch.nn.Module):
    """Two convolutions with normalisations, and windows of stride 2 over what they give."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Conv2d(8, CHANNELS, 1, bias=False)
        self.norm = torch.nn.BatchNorm2d(CHANNELS)
        self.second = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.last = torch.nn.BatchNorm2d(CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.last(self.second(self.norm(self.first(x)).relu())).relu()
        return torch.nn.functional.max_pool2d(h, 3, 2, 1).square().mean()


@pytest.fixture(scope="module")
def stage() -> tuple[Stage, torch.Tensor, luminal.gradients.Gradients]:
    x = torch.randn(IMAGES, 8, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    module = Stage().train()
    return module, x, luminal.grad(module, (x,), value=True, threads=2)


def program(found: luminal.gradients.Gradients, target: str) -> Program:
    assert found.module.graph is not None
    return compile_graph(found.module.graph, targets.parse(target, threads=2))


def test_gradients_are_those_of_float64(stage: tuple[Stage, torch.Tensor, luminal.gradients.Gradients]) -> None:
    module, x, found = stage
    exact = copy.deepcopy(module).double()
    exact(x.double()).backward()
    _, gradients = found(x)
    for name, p in exact.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(gradients[name].double(), p.grad, rtol=1e-4, atol=3e-6 * float(p.grad.abs().max()))


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_a_gradient_by_weights_are_channels(
    stage: tuple[Stage, torch.Tensor, luminal.gradients.Gradients], target: str
) -> None:
    """Not the three taps of a row of the window, which are as many as the smallest tiles have rows. Terms are summed
    image by image."""
    terms = [IMAGES, SIZE, SIZE]
    extents = {c: [loop.extent for loop in c.loops] for c in contracts(program(stage[2], target))}
    by_weights = {c: found for c, found in extents.items() if sorted(map(str, found)) == sorted(map(str, terms))}
    assert by_weights and all(found == terms and c.max_rows > 3 for c, found in by_weights.items())


@pytest.mark.parametrize("target", TARGETS)
def test_sums_over_the_same_elements_are_one_pass(
    stage: tuple[Stage, torch.Tensor, luminal.gradients.Gradients], target: str
) -> None:
    """The sums of a normalisation's backward pass, whose terms are products of the same two values."""
    kernels = transformed(program(stage[2], target), JoinReductions)
    joined = [s for k in kernels for s in walk.statements(k.nest.body) if isinstance(s, ln.Reductions)]
    assert sum(len({name.split("_")[0] for name in s.names}) > 1 for s in joined) >= 2
    assert any(s.blocks for s in joined)  # 768 elements of a channel are more than a block
    for kernel in kernels:  # and each thread has columns of its own
        assert kernel.nest.tasks and all(sym.always(loop.extent - 2) for loop in kernel.nest.tasks[:1])


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_windows_gradient_gives_is_stored_along_vectors(
    stage: tuple[Stage, torch.Tensor, luminal.gradients.Gradients], target: str
) -> None:
    kernels = [k for k in program(stage[2], target).kernels if _reads_by_quotients(k.nest)]
    assert kernels
    for kernel in kernels:
        vectors = [s for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Loop) and s.kind == "vector"]
        stores = [s for s in walk.statements(vectors) if isinstance(s, ln.Store)]
        slopes = [sym.coefficient(s.offset, vectors[0].axis) for s in stores]
        assert slopes and all(slope is not None and slope[0] == 1 for slope in slopes)


def _reads_by_quotients(nest: ln.LoopNest) -> bool:
    """Whether the kernel finds by a quotient how far a window reaches, as with a stride."""
    found = (s for s in walk.statements(nest.body) if isinstance(s, ln.Reduction | ln.Reductions))
    return any(isinstance(a, sym.MinMax) for s in found for x in s.loops for a in sym.atoms(x.extent))


@pytest.mark.parametrize(
    ("size", "window", "stride", "padding", "read"),
    [(13, 3, 2, 1, 2), (24, 5, 3, 2, 2), (19, 4, 2, 0, 2), (11, 3, 1, 1, 3), (12, 2, 2, 0, 1), (12, 2, 3, 0, 1)],
)
def test_a_windows_gradient_reads_only_the_taps_that_reach(
    size: int, window: int, stride: int, padding: int, read: int
) -> None:
    """Of 3 taps with stride 2, at most 2 reach an element. Beside numpy, element by element."""
    count = (size + 2 * padding - window) // stride + 1
    x, g = (ir.input_(name, shape, types.f32) for name, shape in (("x", (size,)), ("g", (count, window))))
    i, k = ir.axes((count, window))
    at = i * stride + k - padding
    made = of_view(x, g, [at], [at, size - 1 - at])
    assert made is not None
    sums = [n for n in traverse.topological([made]) if n.op is ops.SUM_REDUCE]
    assert max((n.inputs[0].shape[-1] for n in sums), default=1) == read
    values = np.arange(count * window, dtype=np.float32).reshape(count, window) + 1
    expected = np.zeros(size, np.float32)
    for place, value in np.ndenumerate(values):
        where = place[0] * stride + place[1] - padding
        if 0 <= where < size:
            expected[where] += value
    (found,) = interp.evaluate([_given(made, g, values)])
    np.testing.assert_array_equal(found, expected)


def _given(root: ir.Node, by: ir.Node, value: np.ndarray) -> ir.Node:
    became: dict[ir.Node, ir.Node] = {}
    for node in traverse.topological([root]):
        became[node] = ir.constant(value) if node is by else traverse.rebuild(node, [became[x] for x in node.inputs])
    return became[root]


F32 = types.f32


def columns(second: str = "x") -> ln.LoopNest:
    """Of each of 4 columns of ``x``, 6 rows: a sum, the sum of squares, and both added to each element. The second sum
    reads the first where it is of ``"r0"``."""
    c, k = sym.Var("c", 0, 3), sym.Var("k", 0, 5)
    element = ln.load("x", sym.expr(k) * 4 + sym.expr(c), F32)
    total, squares = ln.temporary("r0", F32), ln.temporary("r1", F32)
    other = element if second == "x" else total
    loop = ln.Loop(k, 6, "serial", ())
    result = ln.apply(ops.ADD, (ln.apply(ops.ADD, (element, total), None, F32), squares), None, F32)
    body: tuple[ln.Statement, ...] = (
        ln.Reduction("r0", ops.SUM_REDUCE, F32, (loop,), (), element),
        ln.Reduction("r1", ops.SUM_REDUCE, F32, (loop,), (), ln.apply(ops.MUL, (element, other), None, F32)),
        replace(loop, body=(ln.Store("y", sym.expr(k) * 4 + sym.expr(c), result),)),
    )
    arrays = (ln.Array("x", F32, False), ln.Array("y", F32, True))
    return ln.LoopNest(arrays, (), (ln.Loop(c, 4, "serial", body),))


def test_joined_and_jammed_columns_are_the_same() -> None:
    x = np.arange(24, dtype=np.float32)
    total, squares = x.reshape(6, 4).sum(0), (x * x).reshape(6, 4).sum(0)
    for nest in (columns(), JoinReductions()(columns()), UnrollAndJam("c")(JoinReductions()(columns()))):
        arrays = {"x": x, "y": np.zeros(24, np.float32)}
        interpreter.run(nest, arrays)
        np.testing.assert_array_equal(arrays["y"], (x.reshape(6, 4) + total + squares).ravel())
    jammed = UnrollAndJam("c")(JoinReductions()(columns())).body
    assert [type(s).__name__ for s in jammed] == ["Reductions", "Loop"] and len(walk.inside(jammed[1])) == 4


def test_a_sum_that_reads_another_waits_for_it() -> None:
    nest = columns("r0")
    assert JoinReductions()(nest) == nest


def test_a_loop_that_is_as_long_as_its_column_says_is_not_jammed() -> None:
    nest = columns()
    (outer,) = nest.body
    assert isinstance(outer, ln.Loop)
    *sums, loop = outer.body
    assert isinstance(loop, ln.Loop)
    longer = replace(outer, body=(*sums, replace(loop, extent=sym.expr(outer.axis) + 1)))
    with pytest.raises(ScheduleError, match="a loop lies inside"):
        UnrollAndJam("c")(replace(nest, body=(longer,)))
