"""Chains of contractions: graphs of them, their serial nests, and what they should compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.core import interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import compare, contraction, exponential, hyperbolic, reduction
from luminal.core.ir import Node
from luminal.core.schedule.contraction.contracted import contractions
from luminal.core.schedule.fusion import chain, fuse, layout
from luminal.core.schedule.fusion.cluster import Cluster
from luminal.core.schedule.lower import clusters
from luminal.core.schedule.nest import interpreter
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.prepare import graph as preparation
from tests.schedule_graphs import Source

Array = np.ndarray[Any, Any]
Built = tuple[ir.Graph, dict[str, Array]]
HEADS, DEPTH, ROWS, COLUMNS, WIDTH = 2, 3, 11, 21, 5


def attend_or_zero(q: Node, k: Node, v: Node, change: Callable[[Node], Node] = lambda scores: scores) -> Node:
    """``softmax(change(q @ k.T)) @ v``, 0 where the softmax is NaN: how PyTorch exports its attention to ONNX."""
    weights = reduction.softmax(change(contraction.matmul(q, movement.transpose(k, -2, -1))), -1)
    return contraction.matmul(ir.select(compare.isnan(weights), 0.0, weights), v)


def attend(q: Node, k: Node, v: Node, change: Callable[[Node], Node] = lambda scores: scores) -> Node:
    """``softmax(2 * change(q @ k.T)) @ v``, spelled out, the factor after the maximum is taken off."""
    scores = change(contraction.matmul(q, movement.transpose(k, -2, -1)))
    weights = exponential.exp((scores - reduction.max_(scores, [-1], True)) * 2)
    return contraction.matmul(weights * ir.unary(ops.RECIP, reduction.sum_(weights, [-1], True)), v)


def attend_as_read(q: Node, k: Node, v: Node, change: Callable[[Node], Node] = lambda scores: scores) -> Node:
    """``softmax(change(scores)) @ v``, where scores are read: no product is summed."""
    each = (movement.slice_(q, -1, 0, 1), movement.transpose(movement.slice_(k, -1, 0, 1), -2, -1))
    scores = ir.binary(ops.MAX, *(ir.expand(x, (HEADS, ROWS, COLUMNS)) for x in each))
    return contraction.matmul(reduction.softmax(change(scores), -1), v)


def positions(shape: tuple[sym.Int, ...], axis: int) -> Node:
    """The position along ``axis`` everywhere in ``shape``."""
    others = [k for k in range(len(shape)) if k != axis]
    return ir.expand(movement.unsqueeze(ir.iota(shape[axis]), others), shape)


def capped(scores: Node) -> Node:
    """Soft capping and a bias that depends on the distance."""
    distance = ir.cast(positions(scores.shape, 1) - positions(scores.shape, 2), types.f32)
    return hyperbolic.tanh(scores * 0.2) * 5 + distance * 0.1


def causal(scores: Node) -> Node:
    return ir.select(positions(scores.shape, 2) < positions(scores.shape, 1) + 1, scores, -math.inf)


def window(scores: Node) -> Node:
    """Four columns up to the row's own."""
    near = positions(scores.shape, 1) < positions(scores.shape, 2) + 4
    return ir.select(near, causal(scores), -math.inf)


def plain(scores: Node, mask: Node) -> Node:
    return scores


def added(scores: Node, mask: Node) -> Node:
    return scores + mask


def causal_alone(scores: Node, mask: Node) -> Node:
    return causal(scores)


def attention(source: Source, q: Node, k: Node, v: Node, scale: float, change: Callable[[Node, Node], Node]) -> Built:
    """``softmax(change(scale * q @ k.T, mask)) @ v`` of any size, with a mask that is one more input of ``source``."""
    queries, keys = q.shape[-2], k.shape[-2]
    mask = source.input(queries, keys, dtype=q.dtype)
    scores = change(contraction.matmul(q, movement.transpose(k, -2, -1)) * scale, mask)
    y = contraction.matmul(reduction.softmax(scores, -1), v)
    dims = {v for extent in (queries, keys) for v in sym.variables(extent)}
    return ir.Graph("rows", tuple(source.nodes), (("y", y),), tuple(dims)), source.arrays


CHANGES: dict[str, Callable[[Node], Node]] = {
    "plain": lambda scores: scores, "scaled": lambda scores: scores * 0.3, "capped": capped, "causal": causal,
    "window": window,
}  # fmt: skip


def with_mask(masked: slice, special: float = 0.0) -> Callable[[Node], Node]:
    """A change that adds -inf to the columns ``masked`` of one row, and ``special`` to one score of another."""
    mask = np.zeros((HEADS, ROWS, COLUMNS), np.float32)
    mask[0, 4, masked] = -np.inf
    mask[1, 5, 3] = special
    return lambda scores: scores + ir.constant(mask)


def poisoned(first: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Values, and the same with NaN from the column ``first`` on."""
    v = np.random.default_rng(0).standard_normal((HEADS, COLUMNS, WIDTH)).astype(np.float32)
    return {"x2": v}, {"x2": np.where(np.arange(COLUMNS)[:, None] < first, v, np.float32(np.nan))}


def special_scores(special: float) -> dict[str, Array]:
    """Queries and keys of one head of which some products are ``special``, and of one row positive ones."""
    random = np.random.default_rng(1)
    q = random.standard_normal((HEADS, ROWS, DEPTH)).astype(np.float32)
    k = np.abs(random.standard_normal((HEADS, COLUMNS, DEPTH))).astype(np.float32)
    q[0, 3] = abs(q[0, 3])
    k[0, 17, 0] = special
    return {"x0": q, "x1": k}


@dataclass(frozen=True)
class Made:
    """The serial nest of a chain, its arrays, and what it should compute."""

    lowered: clusters.Lowered
    cluster: Cluster
    arrays: dict[str, Array]
    expected: Array


def make(
    change: Callable[[Node], Node],
    arrays: dict[str, Array] | None = None,
    target: targets.Target = targets.X86_64,
    form: Callable[..., Node] = attend,
) -> Made:
    source = Source()
    q, k, v = (source.input(HEADS, n, d) for n, d in ((ROWS, DEPTH), (COLUMNS, DEPTH), (COLUMNS, WIDTH)))
    source.arrays |= arrays or {}
    graph = ir.Graph("chain", tuple(source.nodes), (("y", form(q, k, v, change)),))
    prepared = preparation.prepare(graph.results, contractions(graph.results), target, {})
    fusion = chain.link_chains(fuse.fuse(prepared.roots, prepared.contractions))
    arranged = layout.assign_layouts(fusion)
    (cluster,) = (c for c in fusion.clusters if c.chain is not None)
    lowered = clusters.lower(cluster, arranged, target)
    nodes = [n for n in lowered.arguments if n not in prepared.roots]
    values = interp.evaluate(nodes, source.arrays)
    flat = {a.name: np.ascontiguousarray(x).reshape(-1) for a, x in zip(lowered.nest.arrays, values, strict=False)}
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    return Made(lowered, cluster, flat, expected)


def run(nest: ln.LoopNest, made: Made) -> Array:
    output = next(a for a in nest.arrays if a.written)
    found = np.full(made.expected.size, np.nan, np.float32)
    assert interpreter.run(nest, {**made.arrays, output.name: found})
    return found.reshape(made.expected.shape)


def assert_close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * math.sqrt(COLUMNS) * types.f32.eps * 5)
