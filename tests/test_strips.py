"""Large values that products share, computed again in strips: which are, what comes of them, and how exact it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import luminal
from luminal.core import interp, ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import attention
from luminal.core.gradient import gradients
from luminal.core.ir import Graph, Node
from luminal.core.schedule.numeric import strips
from luminal.core.target import Target
from tests.drawn import draw

TARGET = replace(targets.AVX512, l2=4 << 10)
BATCH = sym.var("batch", 1, 3)
EPS = types.f32.eps


def given(name: str, *shape: sym.Int) -> Node:
    return ir.input_(name, shape, types.f32)


def graph(*roots: Node) -> Graph:
    inputs = tuple(node for node in traverse.topological(roots) if node.op is ops.INPUT)
    dims = tuple({v for node in inputs for size in node.shape for v in sym.variables(size)})
    return Graph("g", inputs, tuple((f"y{k}", root) for k, root in enumerate(roots)), dims)


def scans(found: Graph) -> int:
    """How many loops there are; a loop has a node for each result."""
    return len({node.attr.results for node in traverse.topological(found.roots) if node.op is ops.SCAN})


def products(found: Graph, size: sym.Int) -> int:
    """How many sums of so many elements are computed outside of loops."""
    return sum(n.op is ops.SUM_REDUCE and n.size == size for n in traverse.topological(found.roots))


def backward(shape: Sequence[sym.Int], keys: int, causal: bool = False, masked: bool = False) -> Graph:
    """The gradients of the sum of an attention's squares."""
    (*outer, _, depth) = shape
    q, k, v = given("q", *shape), given("k", *outer, keys, depth), given("v", *outer, keys, depth)
    mask = given("mask", shape[-2], keys) if masked else None
    result = attention.scaled_dot_product_attention(q, k, v, mask, causal)
    return graph(*gradients(result, [q, k, v], result + result))


def inputs_of(found: Graph, batch: int = 2) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = ((node, [int(sym.evaluate(size, {"batch": batch})) for size in node.shape]) for node in found.inputs)
    return {node.attr.name: random.standard_normal(shape, np.float32) for node, shape in shapes}


def eager(inputs: dict[str, np.ndarray], causal: bool, dtype: torch.dtype) -> list[np.ndarray]:
    q, k, v = (torch.from_numpy(inputs[name]).to(dtype).requires_grad_() for name in "qkv")
    mask = torch.from_numpy(inputs["mask"]).to(dtype) if "mask" in inputs else None
    result = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    return [x.double().numpy() for x in torch.autograd.grad(result.square().sum(), (q, k, v))]


def check(found: Sequence[np.ndarray], exact: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> None:
    """Each value is at most twice as far from the exact one as the other."""
    for value, wanted, theirs in zip(found, exact, other, strict=True):
        error, most = (float(np.linalg.norm(x.astype(np.float64) - wanted)) for x in (value, theirs))
        assert error <= 2 * most + EPS * float(np.linalg.norm(wanted))


def check_beside(before: Graph, after: Graph) -> None:
    """The same beside ``before``, whose sums are whole: both are compared with that graph in float64."""
    inputs = inputs_of(before)
    exact = interp.run(before, inputs, mode="float64").outputs
    check(interp.run(after, inputs).outputs, exact, interp.run(before, inputs).outputs)


CASES = {
    "heads": ((1, 2, 64, 8), 64, False, False),
    "rows": ((1, 1, 64, 8), 64, False, False),
    "rows and what is left": ((1, 1, 97, 8), 80, False, False),
    "causal": ((1, 97, 8), 97, True, False),
    "masked": ((1, 64, 8), 64, False, True),
    "any batch": ((BATCH, 2, 64, 8), 64, True, False),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_in_strips_are_as_exact_as_eager(case: str) -> None:
    shape, keys, causal, masked = CASES[case]
    before = backward(shape, keys, causal, masked)
    after = strips.in_strips(before, TARGET)
    assert scans(after) == 1 and scans(before) == 0
    size = sym.product(shape[:-1]) * keys
    assert products(after, size) == 1 and products(before, size) == 2  # scores of the forward pass; its gradients, too
    inputs = inputs_of(before)
    found = interp.run(after, inputs).outputs
    check(found, eager(inputs, causal, torch.float64), eager(inputs, causal, torch.float32))


def test_a_backward_pass_of_its_own_is_in_strips() -> None:
    """As PyTorch's graphs have it: from the result, and the logarithms of sums."""
    q, k, v, g, y = (given(name, 1, 2, 64, 8) for name in "qkvgy")
    before = graph(*attention.attention_backward(g, q, k, v, y, given("sums", 1, 2, 64), is_causal=True))
    after = strips.in_strips(before, TARGET)
    assert scans(after) == 1 and products(after, 2 * 64 * 64) == 0
    check_beside(before, after)


def test_two_layers_have_a_loop_each() -> None:
    x = given("x", 1, 64, 8)
    first = attention.scaled_dot_product_attention(x, x, x)
    second = attention.scaled_dot_product_attention(first, first, first)
    before = graph(*gradients(second, [x], second))
    after = strips.in_strips(before, TARGET)
    assert scans(after) == 2 and products(after, 64 * 64) == 2 and products(before, 64 * 64) == 4
    check_beside(before, after)


def test_what_stays_whole() -> None:
    """Forward passes, values that the cache holds, values that are returned or are no larger than what they are
    computed from, and everything on a GPU."""
    q, k, v = (given(name, 1, 64, 8) for name in "qkv")
    forward = graph(attention.scaled_dot_product_attention(q, k, v))
    before = backward((1, 64, 8), 64)
    wide = backward((1, 64, 40), 96)
    scores = next(n for n in traverse.topological(before.roots) if n.op is ops.EXP2)
    returned = graph(*before.roots, scores)
    for unchanged, target in (
        (forward, TARGET), (before, targets.AVX512), (wide, TARGET), (returned, TARGET),
        (before, replace(targets.GPUS["metal"], l2=TARGET.l2)),
    ):  # fmt: skip
        assert strips.in_strips(unchanged, target) is unchanged


# ---- compiled ------------------------------------------------------------------------------------------------------

HEADS, LENGTH, DEPTH = 4, 256, 8
SCORES = HEADS * LENGTH * LENGTH * types.f32.itemsize


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.joint, self.out = nn.Linear(32, 3 * HEADS * DEPTH), nn.Linear(HEADS * DEPTH, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.joint(x).view(-1, LENGTH, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(-1, LENGTH, HEADS * DEPTH))


class Loss(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x).square().mean()


@cache
def module() -> Attention:
    made = Attention()
    draw(made, 0, 0.5)
    return made


X = torch.from_numpy(np.random.default_rng(0).standard_normal((1, LENGTH, 32), np.float32))


def small() -> Target:
    """This machine, with a cache that holds a few rows of the scores."""
    return replace(targets.detect(), l2=16 << 10)


def test_compiled_gradients_are_as_exact_as_eager() -> None:
    loss = Loss(module())
    made = luminal.grad(loss, (X,), target=small())
    assert "products of values that are computed again" in made.module.explain()
    found = {name: value.numpy() for name, value in made(X).items()}

    def grads(dtype: torch.dtype) -> list[np.ndarray]:
        there = Loss(Attention())
        there.load_state_dict(loss.state_dict())
        there = there.to(dtype)
        parts = torch.autograd.grad(there(X.to(dtype)), list(there.parameters()))
        return [part.double().numpy() for part in parts]

    names = [name for name, _ in loss.named_parameters()]
    check([found[name] for name in names], grads(torch.float64), grads(torch.float32))


def test_no_scores_lie_in_the_memory_of_a_step() -> None:
    parameters = list(module().parameters())
    step = luminal.compile_training(
        module(), nn.MSELoss(), torch.optim.SGD(parameters, lr=0.1), (X,), (X,), target=small(), name="attending"
    )
    assert step.memory["train"] < SCORES
    losses = [float(step(X, X)) for _ in range(4)]
    assert losses[3] < losses[0]
