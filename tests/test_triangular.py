"""Sums up to a position: triangular factors in blocks, however they are spelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.core import interp, ir, movement, ops, traverse
from luminal.core import target as targets
from luminal.core.algebra import distances, stage
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.power import pow_
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import rewritten
from luminal.core.types import f32
from luminal.frontends.fx import importer

AVX2 = targets.parse("avx2", None, 2)
LENGTH, WIDTH = 256, 8
APART = np.arange(LENGTH)[:, None] - np.arange(LENGTH)  # how far a column lies before a row


def attention(matrix: np.ndarray[Any, Any]) -> Graph:
    """``((q k') * m) v`` of two heads."""
    length = matrix.shape[-1]
    q, k, v = (ir.input_(name, (2, length, WIDTH), f32) for name in "qkv")
    products = matmul(q, movement.transpose(k, 1, 2))
    masked = products * ir.expand(ir.constant(matrix.astype(np.float32)), products.shape)
    return Graph("g", (q, k, v), (("y", matmul(masked, v)),))


def drawn(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {n.attr.name: rng.standard_normal(n.shape).astype(np.float32) for n in graph.inputs}


def multiplications(graph: Graph) -> int:
    return sum(int(n.size) for n in traverse.topological(graph.roots) if n.op is ops.MUL)


def errors(spelled: Graph, derived: Graph) -> tuple[float, float]:
    """Of both, against float64, relative to the sum of absolute values, and to what float32 cannot tell from zero:
    each of the sum's terms may lose half of the smallest subnormal number, which is ``eps * tiny``."""
    inputs = drawn(spelled)
    (exact,) = interp.run(spelled, inputs, mode="float64").outputs
    (magnitude,) = interp.run(spelled, {k: np.abs(x) for k, x in inputs.items()}, mode="float64").outputs
    magnitude = magnitude + inputs["v"].shape[1] * np.abs(inputs["v"]).max() * np.finfo(np.float32).tiny
    found = [np.abs(interp.run(g, inputs).outputs[0] - exact) / magnitude for g in (spelled, derived)]
    return float(found[0].max()), float(found[1].max())


DECAYING = {
    "mask": np.tril(np.ones((LENGTH, LENGTH))),
    "before a position": np.tril(np.ones((LENGTH, LENGTH)), -1),
    "after a position": np.triu(np.ones((LENGTH, LENGTH))),
    "decay": np.tril(0.97 ** np.maximum(APART, 0)),
    "decay backwards": np.triu(0.9 ** np.maximum(-APART, 0)),
    "strong decay": np.tril(1e-6 ** np.maximum(APART, 0.0)),
    "growth": np.tril(1.01 ** np.maximum(APART, 0)),
    "a decay for each head": np.tril(np.array([0.5, 0.99])[:, None, None] ** np.maximum(APART, 0)),
    "decays of their own": np.tril(
        np.exp(np.subtract.outer(*[np.cumsum(-np.abs(np.sin(np.arange(LENGTH))))] * 2).clip(max=0))
    ),
}


@pytest.mark.parametrize("name", DECAYING)
def test_a_triangular_matrix_is_taken_in_blocks(name: str) -> None:
    graph = attention(DECAYING[name])
    found = stage.improved(graph, AVX2)
    assert multiplications(found) < 0.3 * multiplications(graph)
    spelled, derived = errors(graph, found)
    assert derived <= max(2 * spelled, np.finfo(np.float32).eps)


OTHERS = {
    "of any numbers": np.tril(np.random.default_rng(0).random((LENGTH, LENGTH))),
    "a band": np.tril(np.ones((LENGTH, LENGTH))) - np.tril(np.ones((LENGTH, LENGTH)), -40),
    "not triangular": 0.97 ** np.abs(APART),
    "of no whole blocks": np.tril(np.ones((LENGTH - 1, LENGTH - 1))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_matrices_stay(name: str) -> None:
    graph = attention(OTHERS[name])
    assert stage.improved(graph, AVX2) is graph


def test_the_work_grows_with_the_length() -> None:
    counts = [multiplications(stage.improved(attention(np.tril(np.ones((n, n)))), AVX2)) for n in (512, 1024, 2048)]
    assert counts[1] < 2.3 * counts[0] and counts[2] < 2.3 * counts[1]


def test_blocks_are_replayed_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = attention(DECAYING["decay"])
    found = stage.improved(graph, AVX2)
    forms = {made.region: made.form for made in found.approximations}
    monkeypatch.setattr(stage, "cheapest_form", None)
    assert stage.improved(graph, replace(AVX2, forms=forms)).results == found.results


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_decays(data: Any) -> None:
    """A column times a row on one side of the diagonal, with zeros and powers that vanish among them."""
    length = data.draw(st.sampled_from([64, 96, 128]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    logs = np.cumsum(-rng.exponential(data.draw(st.sampled_from([0.01, 1.0, 30.0])), length))
    with np.errstate(over="ignore"):
        matrix = np.tril(np.exp(logs[:, None] - logs), data.draw(st.integers(-2, 0)))
    if data.draw(st.booleans()):
        matrix[:, rng.integers(0, length, 5)] = 0
    matrix = matrix.T if data.draw(st.booleans()) else matrix
    graph = attention(matrix)
    spelled, derived = errors(graph, stage.improved(graph, AVX2))
    assert derived <= max(2 * spelled, np.finfo(np.float32).eps)


class Written(torch.nn.Module):
    """Causal attention without an exponential, as people write it; a head decays by ``gamma``, if it decays."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)))
        self.register_buffer("holds", torch.tril(torch.ones(LENGTH, LENGTH)) > 0)
        self.register_buffer("gamma", 1 - torch.exp2(-3.0 - torch.arange(2))[:, None, None])

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.function(self, q @ k.transpose(-1, -2), torch.arange(LENGTH)) @ v


SPELLINGS: dict[str, Callable[..., torch.Tensor]] = {
    "buffer": lambda m, x, i: x * m.mask,
    "masked_fill": lambda m, x, i: x.masked_fill(~m.holds, 0.0) / 8,
    "where": lambda m, x, i: torch.where(m.holds, x, 0.0),
    "tril": lambda m, x, i: torch.tril(x),
    "ones": lambda m, x, i: x * torch.tril(torch.ones(LENGTH, LENGTH)),
    "positions": lambda m, x, i: x * (i[:, None] >= i).float(),
    "decay": lambda m, x, i: x * torch.where(i[:, None] >= i, m.gamma ** (i[:, None] - i), 0.0),
    "decay, tril": lambda m, x, i: x * torch.tril(m.gamma ** (i[:, None] - i).clamp(min=0)),
    "decay, exp": lambda m, x, i: x * torch.exp((i[:, None] - i) * torch.log(m.gamma)).masked_fill(i[:, None] < i, 0.0),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_as_people_write_it(name: str) -> None:
    module = Written(SPELLINGS[name]).eval()
    q, k, v = (torch.randn(1, 2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(s)) for s in range(3))
    graph = rewritten(importer.load(module, (q, k, v)), replace(AVX2, algebra="exact"))
    found = stage.improved(graph, AVX2)
    assert found.approximations and multiplications(found) < 0.4 * multiplications(graph)
    (result,) = interp.run(
        found, {n.attr.name: x.numpy() for n, x in zip(graph.inputs, (q, k, v), strict=True)}
    ).outputs
    with torch.no_grad():
        exact = module.double()(q.double(), k.double(), v.double()).numpy()
    assert np.abs(result - exact).max() < 1e-6 * np.abs(exact).max()


# ---- matrices that depend on distances alone -------------------------------------------------------------------------


def positions(length: int, heads: int = 3) -> tuple[Node, Node, Node]:
    """The row and the column of each element of ``[heads, length, length]``, and a number of each head."""
    shape = (heads, length, length)
    head = ir.constant(np.linspace(0.2, 0.9, heads).astype(np.float32))
    return tuple(movement.along(x, k, shape) for k, x in ((1, ir.iota(length)), (2, ir.iota(length)), (0, head)))  # type: ignore[return-value]


def floats(x: Node) -> Node:
    return ir.cast(x, f32)


BY_DISTANCE: dict[str, Callable[[Node, Node, Node], Node]] = {
    "power": lambda t, s, head: pow_(head, floats(t - s)),
    "power of floats": lambda t, s, head: pow_(head, floats(t) - floats(s)),
    "scaled": lambda t, s, head: ir.unary(ops.EXP2, floats(t * 3 - s * 3 + 7) * head),
    "clamped": lambda t, s, head: ir.unary(ops.EXP2, head * floats(ir.binary(ops.MAX, t - s, 2))),
    "masked": lambda t, s, head: ir.select(ir.binary(ops.LESS_THAN, t, s), 0.0, pow_(head, floats(t - s))),
    "a band": lambda t, s, head: ir.select(ir.binary(ops.LESS_THAN, t - s, 4), head, floats(s - t)),
    "a table": lambda t, s, head: head * table(t.shape),
}


def table(shape: tuple[Any, ...]) -> Node:
    """A number for each distance."""
    _, row, column = ir.axes(shape)
    return ir.view(ir.constant(np.arange(31.0, dtype=np.float32) ** 2), shape, [row - column + 15])


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_what_depends_on_distances_is_computed_once_for_each(name: str) -> None:
    node = BY_DISTANCE[name](*positions(16))
    found = distances.by_distance(node, 1, 2, 1 << 20)
    assert found is not None and found.shape == (3, 31)
    (whole,) = interp.run([node], {}, mode="float64").outputs
    np.testing.assert_array_equal(distances.spread(found), whole)


OTHERWISE: dict[str, Callable[[Node, Node, Node], Node]] = {
    "sum": lambda t, s, head: floats(t + s) * head,
    "product": lambda t, s, head: floats(t * s) * head,
    "scaled apart": lambda t, s, head: floats(t * 2 - s) * head,
    "row alone": lambda t, s, head: floats(t - s) * floats(t),
    "another comparison": lambda t, s, head: ir.select(ir.binary(ops.LESS_THAN, t, s + s), 0.0, head),
    "numbers": lambda t, s, head: head * ir.constant(np.random.default_rng(0).random(t.shape).astype(np.float32)),
    "rounds of rows": lambda t, s, head: head * floats(ir.binary(ops.MOD, t, 4) - ir.binary(ops.MOD, s, 4)),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_depends_on_more_is_not(name: str) -> None:
    assert distances.by_distance(OTHERWISE[name](*positions(16)), 1, 2, 1 << 20) is None


def test_distances_of_an_array() -> None:
    array = DECAYING["a decay for each head"]
    found = distances.of_array(array)
    assert found is not None and found.shape == (2, 2 * LENGTH - 1)
    np.testing.assert_array_equal(distances.spread(found), array)
    assert distances.of_array(OTHERS["of any numbers"]) is None


class Retention(torch.nn.Module):
    """Retention (Sun et al., 2023) as its authors write it: the forward computes how positions decay."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("gamma", 1 - torch.exp2(-5.0 - torch.arange(heads)))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i = torch.arange(q.shape[-2])
        apart = i[:, None] - i[None, :]
        decay = torch.where(apart >= 0, torch.pow(self.gamma[:, None, None], apart), 0.0)
        return (q @ k.transpose(-1, -2) * decay) @ v


@pytest.mark.parametrize("length", [256, 2048])
def test_a_large_matrix_that_the_model_computes(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(1, 8, length, 64, generator=torch.Generator().manual_seed(s)) for s in range(3))
    graph = rewritten(importer.load(Retention(8).eval(), (q, k, v)), replace(AVX2, algebra="exact"))
    found = stage.improved(graph, AVX2)
    assert found.approximations and multiplications(found) < 0.4 * multiplications(graph)
    if length > 256:
        return
    inputs = {n.attr.name: x.numpy() for n, x in zip(graph.inputs, (q, k, v), strict=True)}
    (result,) = interp.run(found, inputs).outputs
    exact = Retention(8).double()(q.double(), k.double(), v.double()).numpy()
    assert np.abs(result - exact).max() < 1e-6 * np.abs(exact).max()
