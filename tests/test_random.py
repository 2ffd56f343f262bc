"""Random numbers: the generator, its distributions, and models that draw."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import luminal
from luminal.core import interp, ir, traverse
from luminal.core import symbolic as sym
from luminal.core.decompose import random
from luminal.core.errors import InputError, ShapeError, UnsupportedError
from luminal.core.types import DType, bf16, f16, f32, f64, i8, i64, u32
from luminal.frontends.fx import importer as fx
from luminal.frontends.onnx import importer as onnx_importer
from luminal.module import Module

Array = np.ndarray[Any, Any]

COUNT = 40_000


def state(seed: int = 0, call: int = 0) -> dict[str, Array]:
    return {random.STATE: np.array([seed, call])}


def drawn(draw: Callable[[random.Words], ir.Node], count: int = COUNT, seed: int = 1, call: int = 0) -> Array:
    return interp.evaluate([draw(random.Random().words((count,)))], state(seed, call))[0]


# ---- the generator ---------------------------------------------------------------------------------------------------

# Random123's kat_vectors (Salmon et al., version 1.14): counter, key, words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_known_answers(counter: str, key: str, words: str) -> None:
    c, k = ([ir.constant(int(word, 16), u32) for word in text.split()] for text in (counter, key))
    found = interp.evaluate(random.philox((c[0], c[1], c[2], c[3]), (k[0], k[1])))
    assert " ".join(f"{int(word):08x}" for word in found) == words


def reference(counter: list[int], key: list[int]) -> list[int]:
    """Philox in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        left, right = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [right >> 32 ^ c[1] ^ k[0], right % 2**32, left >> 32 ^ c[3] ^ k[1], left % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3, -1])
def test_counters_are_position_draw_and_call_and_the_key_is_the_seed(seed: int) -> None:
    draws = random.Random()
    nodes = [draws.words((2, 3)) for _ in range(2)]
    for call in (0, 5, 2**32 + 1):
        for number, words in enumerate(nodes):
            found = np.stack([w.reshape(-1) for w in interp.evaluate(words, state(seed, call))], 1)
            key = [seed % 2**64 % 2**32, seed % 2**64 >> 32]
            assert found.tolist() == [reference([p, 0, number, call % 2**32], key) for p in range(6)]


def test_positions_beyond_32_bits_are_told_apart() -> None:
    n = sym.var("n", 1, 2**33)
    words = random.Random().words((n,))
    assert len({*map(tuple, np.stack(interp.evaluate(words, state(), {"n": 4}), 1).tolist())}) == 4
    few = random.Random().words((sym.var("m", 1, 2**10),))
    assert len(traverse.topological(words)) > len(traverse.topological(few))  # its high word is known to be zero


@pytest.mark.parametrize("rounds", [[0], [5], [2**32 + 1, 3]])
def test_rounds_of_loops_have_keys_of_their_own(rounds: list[int]) -> None:
    draws, key = random.Random(), [9, 0]
    with ExitStack() as loops:
        for number in rounds:
            loops.enter_context(draws.each(ir.constant(number, i64)))
            key = reference([number % 2**32, number >> 32, 2**32 - 1, 0], key)[:2]
        words = draws.words((3,))
    found = np.stack(interp.evaluate(words, state(9, 4)), 1)
    assert found.tolist() == [reference([p, 0, 0, 4], key) for p in range(3)]


def test_a_seed_of_its_own_takes_the_place_of_the_model_s() -> None:
    own, shared = random.Random().words((4,), seed=7), random.Random().words((4,))
    first, second, third = (interp.evaluate([w], state(s))[0] for w, s in ((own[0], 1), (own[0], 2), (shared[0], 7)))
    assert np.array_equal(first, second) and np.array_equal(first, third)


# ---- distributions ---------------------------------------------------------------------------------------------------


def smirnov(values: Array, cumulative: Callable[[Array], Array]) -> float:
    """The largest distance from the cumulative distribution, times the root of the count: 1.95 in a thousand exceed."""
    ordered = np.sort(values.astype(np.float64))
    heights, n = cumulative(ordered), len(values)
    above, below = np.arange(1, n + 1) / n - heights, heights - np.arange(n) / n
    return float(max(above.max(), below.max()) * math.sqrt(n))


def squares(counts: Array, expected: Array) -> float:
    """Pearson's chi-squared by its standard deviation, from its mean: normal for many cells."""
    cells = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - cells) / math.sqrt(2 * cells))


def bell(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_draws_are_distributed_as_they_say(dtype: DType) -> None:
    uniform = drawn(lambda w: random.uniform(w, dtype))
    assert smirnov(uniform, lambda x: x) < 1.95
    assert smirnov(drawn(lambda w: random.normal(w, dtype)), bell) < 1.95
    assert smirnov(drawn(lambda w: random.exponential(w, dtype)), lambda x: -np.expm1(-x)) < 1.95
    cells = np.bincount((uniform * 256).astype(int), minlength=256)
    assert abs(squares(cells, np.full(256, COUNT / 256))) < 3.3


@pytest.mark.parametrize(("dtype", "digits"), [(f16, 11), (bf16, 8), (f32, 24), (f64, 53)], ids=str)
def test_uniform_numbers_are_multiples_below_one(dtype: DType, digits: int) -> None:
    values = drawn(lambda w: random.uniform(w, dtype)).astype(np.float64)
    scaled = values * 2.0**digits
    assert (scaled == np.floor(scaled)).all() and values.min() >= 0 and values.max() < 1
    assert (scaled % 2 == 1).mean() == pytest.approx(0.5, abs=0.02)
    words = (np.uint32(2**32 - 1),) * 4
    (largest,) = interp.evaluate([random.uniform(tuple(map(ir.constant, map(np.array, words))), dtype)])  # type: ignore[arg-type]
    assert float(largest) == 1 - 2.0**-digits


def test_extreme_words_give_finite_numbers() -> None:
    for word in (0, 2**32 - 1):
        words = (ir.constant(word, u32),) * 4
        for dtype in (f32, f64, f16, bf16):
            found = interp.evaluate([random.normal(words, dtype), random.exponential(words, dtype)])
            assert all(np.isfinite(x.astype(np.float64)).all() for x in found)


@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 10, i64), (-5, 2, i8), (-(2**62), 2**62, i64), (0, 2**32, i64)])
def test_integers_are_even_over_their_range(low: int, high: int, dtype: DType) -> None:
    values = drawn(lambda w: random.integers(w, low, high, dtype)).astype(object)
    assert low <= min(values) and max(values) < high
    parts = min(high - low, 64)
    cells = np.bincount([int(v - low) * parts // (high - low) for v in values], minlength=parts)
    widths = np.full(parts, COUNT / parts)
    assert abs(squares(cells, widths)) < 3.3
    with pytest.raises(ShapeError, match="a range that holds some"):
        random.integers(random.Random().words((2,)), 3, 3, i64)


def test_bernoulli_is_never_and_always_at_its_ends() -> None:
    for p in (0.0, 0.1, 0.75, 1.0):
        values = drawn(lambda w, p=p: random.bernoulli(w, ir.constant(p, f32)))  # type: ignore[misc]
        assert abs(values.mean() - p) <= 3.3 * math.sqrt(p * (1 - p) / COUNT)


def test_categories_follow_their_weights() -> None:
    weights = np.array([[1, 0, 2, 1, 0], [0, 0, 5, 0, 0]], np.float32)
    words = random.Random().words((2, COUNT))
    (found,) = interp.evaluate([random.categories(words, ir.constant(weights))], state(3))
    cells = np.bincount(found[0], minlength=5)
    assert cells[1] == cells[4] == 0 and (found[1] == 2).all()
    assert abs(squares(cells[[0, 2, 3]], COUNT * np.array([0.25, 0.5, 0.25]))) < 3.3


def test_categories_without_replacement_are_chosen_in_turn_by_what_is_left() -> None:
    weights = np.array([1, 0, 2, 5], np.float32)
    rows = np.broadcast_to(weights, (COUNT, 4))
    chosen = random.distinct_categories(random.Random().words((COUNT, 4)), ir.constant(rows), 4)
    (found,) = interp.evaluate([chosen], state(3))
    assert (np.sort(found) == np.arange(4)).all() and (found[:, 3] == 1).all()
    orders = list(itertools.permutations([0, 2, 3]))
    seen = Counter(map(tuple, found[:, :3].tolist()))
    likely = [weights[a] / 8 * weights[b] / (8 - weights[a]) for a, b, _ in orders]
    assert abs(squares(np.array([seen[order] for order in orders]), COUNT * np.array(likely))) < 3.3


@pytest.mark.parametrize("size", [0, 1, 3])
def test_permutations_are_equally_likely(size: int) -> None:
    calls = 600
    permuted = random.permutation(random.Random().words((size,)))
    seen = Counter(tuple(interp.evaluate([permuted], state(5, call))[0].tolist()) for call in range(calls))
    orders = list(itertools.permutations(range(size)))
    assert set(seen) == set(orders)
    if size > 1:
        even = np.full(len(orders), calls / len(orders))
        assert abs(squares(np.array([seen[order] for order in orders]), even)) < 3.3


def test_a_permutation_is_the_order_of_numbers_of_64_bits() -> None:
    """Words that differ in their high half, in their low half, and above the sign."""
    low = np.array([5, 0, 7, 7, 1], np.uint32)
    high = np.array([1, 2**31, 0, 2**32 - 1, 1], np.uint32)
    words = (ir.constant(low), ir.constant(high), ir.constant(low), ir.constant(low))
    assert interp.evaluate([random.permutation(words)])[0].tolist() == [2, 4, 0, 1, 3]


def test_draws_calls_and_seeds_are_independent() -> None:
    draws = random.Random()
    first, second = (random.uniform(draws.words((COUNT,)), f64) for _ in range(2))
    many = [interp.evaluate([x], state(*at))[0] for x in (first, second) for at in ((0, 0), (0, 1), (1, 0))]
    many += [many[0][1:].copy(), many[0][:-1].copy()]  # neighbours
    for k, a in enumerate(many[:6]):
        for b in many[k + 1 : 6]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 3.5 / math.sqrt(COUNT)
    assert abs(np.corrcoef(many[6], many[7])[0, 1]) < 3.5 / math.sqrt(COUNT)


# ---- models of PyTorch -----------------------------------------------------------------------------------------------


class Draws(nn.Module):
    """One of each kind."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "dropped": nn.functional.dropout(x, 0.25, True),
            "uniform": torch.rand_like(x),
            "normal": torch.randn(x.shape[0], 50),
            "integers": torch.randint(-3, 5, (x.shape[0], 9)),
            "chosen": torch.multinomial(x.abs() + 0.1, 5, replacement=True),
            "picked": torch.multinomial(x.abs() + 0.1, 5),
            "permuted": torch.randperm(30),
        }


X = torch.randn(12, 40, generator=torch.Generator().manual_seed(0))
DIMS = {"batch": (1, 16), "x": {0: "batch"}}
TARGETS = (
    {"threads": 1}, {"threads": 2}, {"target": "x86-64"}, {"target": "cuda:sm_90", "emulate": True},
    {"target": "metal", "emulate": True},
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> ir.Graph:
    return luminal.read(Draws(), (X,), dims=DIMS)


def expected(graph: ir.Graph, x: Array, seed: int, call: int) -> dict[str, Array]:
    found = interp.run(graph, {"x": x} | state(seed, call)).outputs
    return dict(zip([name for name, _ in graph.outputs], found, strict=True))


@pytest.mark.parametrize("options", TARGETS, ids=lambda o: f"{o.get('target', 'host')}-{o.get('threads', 0)}")
def test_every_target_draws_what_the_interpreter_does(graph: ir.Graph, options: dict[str, Any]) -> None:
    module = luminal.compile(graph, seed=11, **options)
    assert isinstance(module, Module)
    for call, rows in enumerate((12, 3, 12)):
        x = X[:rows].numpy()
        found, wanted = module.run({"x": x}), expected(graph, x, 11, call)
        for name in ("dropped", "uniform", "integers", "chosen"):
            np.testing.assert_array_equal(found[name], wanted[name])
        np.testing.assert_allclose(found["normal"], wanted["normal"], rtol=2e-6, atol=1e-6)
        np.testing.assert_array_equal(module.state[random.STATE], [11, call + 1])


def test_seeds_and_resets(graph: ir.Graph) -> None:
    module = luminal.compile(graph, threads=1)
    other = luminal.compile(graph, threads=1, seed=5)
    assert isinstance(module, Module) and isinstance(other, Module)
    first, second = (module.run({"x": X.numpy()})["uniform"] for _ in range(2))
    assert not np.array_equal(first, second)
    module.reset()
    np.testing.assert_array_equal(module.run({"x": X.numpy()})["uniform"], first)
    with pytest.raises(InputError, match="seed: expected an integer of 64 bits"):
        module.seed(2**64)
    module.seed(5)
    np.testing.assert_array_equal(module.run({"x": X.numpy()})["uniform"], other.run({"x": X.numpy()})["uniform"])
    quiet = luminal.compile(nn.Linear(4, 4).eval(), (X[:, :4],), seed=3)
    assert isinstance(quiet, Module)
    with pytest.raises(InputError, match="the model draws no random numbers"):
        quiet.seed(1)


@pytest.mark.parametrize("seed", ["x", None, 1.5, True, 2**64, -(2**63) - 1])
def test_seeds_that_are_none(seed: Any) -> None:
    for call in (
        lambda: luminal.compile("absent.onnx", seed=seed),
        lambda: luminal.diff("absent.onnx", seed=seed),
        lambda: random.first(seed),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == f"seed: expected an integer of 64 bits, -2**63..2**64-1, found {seed!r}"


@pytest.mark.parametrize(("seed", "held"), [(np.int64(3), 3), (2**64 - 1, -1), (-1, -1), (np.uint64(2**63), -(2**63))])
def test_seeds_of_64_bits_with_a_sign_or_without(seed: Any, held: int) -> None:
    np.testing.assert_array_equal(random.first(seed).attr.array, [held, 0])


def test_dropout_keeps_what_is_kept_and_scales_it(graph: ir.Graph) -> None:
    dropped = expected(graph, X.numpy(), 0, 0)["dropped"]
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], X.numpy()[kept] / 0.75, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 3.3 * math.sqrt(0.75 * 0.25 / X.numel())


def test_diff_of_a_model_that_draws_is_against_the_interpreter() -> None:
    report = luminal.diff(nn.Sequential(nn.Linear(40, 8), nn.Dropout()).train(), (X,))
    assert report.ok and report.reference == "interpreter"


CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Array], bool]]] = {
    "randn_like": (torch.randn_like, lambda v: abs(v.std() - 1) < 0.1),
    "rand": (lambda x: torch.rand(x.shape), lambda v: v.min() >= 0 and v.max() < 1),
    "half": (lambda x: torch.rand(x.shape, dtype=torch.float16), lambda v: v.dtype == np.float16),
    "randint": (lambda x: torch.randint(7, (900,)), lambda v: set(v.tolist()) == set(range(7))),
    "randint_like": (lambda x: torch.randint_like(x, 2, 4), lambda v: set(v.ravel().tolist()) == {2, 3}),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), lambda v: abs(v.mean() - 0.3) < 0.1),
    "bernoulli p": (lambda x: x.clone().bernoulli_(0.3), lambda v: abs(v.mean() - 0.3) < 0.1),
    "normal": (lambda x: torch.normal(x * 0 + 5, 0.1), lambda v: abs(v.mean() - 5) < 0.1),
    "normal of": (lambda x: torch.normal(2.0, 0.5, (400,)), lambda v: abs(v.std() - 0.5) < 0.1),
    "normal_": (lambda x: x.clone().normal_(3, 2), lambda v: abs(v.mean() - 3) < 0.4),
    "uniform_": (lambda x: x.clone().uniform_(-2, 4), lambda v: v.min() < -1.5 and v.max() > 3.5),
    "exponential_": (lambda x: x.clone().exponential_(2.0), lambda v: abs(v.mean() - 0.5) < 0.1 and v.min() > 0),
    "log_normal_": (lambda x: x.clone().log_normal_(0, 1), lambda v: abs(np.log(v).std() - 1) < 0.1),
    "cauchy_": (lambda x: x.clone().cauchy_(1, 2), lambda v: abs(np.median(v) - 1) < 0.6),
    "geometric_": (lambda x: x.clone().geometric_(0.5), lambda v: v.min() == 1 and abs(v.mean() - 2) < 0.3),
    "random_": (lambda x: x.clone().random_(3), lambda v: set(v.ravel().tolist()) == {0, 1, 2}),
    "multinomial": (lambda x: torch.multinomial(torch.tensor([0, 1.0, 0]), 1), lambda v: v.tolist() == [1]),
    "multinomial 3": (
        lambda x: torch.multinomial(torch.tensor([[1, 0, 2.0, 3], [0, 1, 1, 1]]), 3),
        lambda v: np.array_equal(np.sort(v), [[0, 2, 3], [1, 2, 3]]),
    ),
    "randperm": (lambda x: torch.randperm(40, dtype=torch.int32), lambda v: sorted(v.tolist()) == list(range(40))),
    "dropout": (lambda x: nn.functional.dropout1d(x[None], 0.5, True)[0], lambda v: set((v != 0).mean(1)) == {0, 1}),
}


@pytest.mark.parametrize("name", CALLS)
def test_operators_of_pytorch(name: str) -> None:
    function, holds = CALLS[name]

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    eager = function(X)
    found, _ = interp.run(fx.load(Model(), (X,)), {"x": X.numpy()}).outputs
    assert found.shape == tuple(eager.shape) and str(found.dtype) == str(eager.dtype).removeprefix("torch.")
    assert holds(eager.numpy()) and holds(found)


class DrawsInLoops(nn.Module):
    """A number for each pair of a row and a column, as far as a loop goes; and one for each of its rounds."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def column(carried: torch.Tensor, element: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return carried.clone(), element + torch.rand(())

        def row(element: torch.Tensor) -> torch.Tensor:
            return scan(column, element[0], element)[1]

        def step(number: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return number + 1, torch.cat([seen[1:], torch.rand(1)])

        last = while_loop(lambda number, seen: number < 5, step, (torch.zeros((), dtype=torch.int64), torch.zeros(8)))
        return map_(row, x), last[1]


def test_loops_in_loops_draw_anew_in_each_round() -> None:
    graph = fx.load(DrawsInLoops(), (torch.zeros(6, 7),))
    pairs, seen, _ = interp.run(graph, {"x": np.zeros((6, 7), np.float32)} | state(3)).outputs
    assert len(np.unique(pairs)) == 42 and smirnov(pairs.ravel(), lambda v: v) < 1.95
    assert (seen[:3] == 0).all() and len(np.unique(seen[3:])) == 5
    module = luminal.compile(graph, seed=3)
    assert isinstance(module, Module)
    found = list(module.run({"x": np.zeros((6, 7), np.float32)}).values())
    for value, wanted in zip(found, (pairs, seen), strict=True):
        np.testing.assert_array_equal(value, wanted)


# ---- models in ONNX --------------------------------------------------------------------------------------------------


def onnx_graph(*nodes: onnx.NodeProto, opset: int = 22) -> ir.Graph:
    return onnx_importer.load(onnx_model(*nodes, opset=opset).SerializeToString())


def onnx_model(*nodes: onnx.NodeProto, opset: int = 22, shape: Sequence[int] = (12, 40)) -> onnx.ModelProto:
    """``nodes`` on x, floats of ``shape``, ratio 0.25 and a training mode; their outputs y0, y1, ..."""
    names = [name for node in nodes for name in node.output]
    made = helper.make_graph(
        list(nodes), "draws", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info(name) for name in names],
        [
            helper.make_tensor("ratio", TensorProto.FLOAT, [], [0.25]),
            helper.make_tensor("on", TensorProto.BOOL, [], [1]),
        ],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)])


def values(graph: ir.Graph, seed: int = 0) -> list[Array]:
    return interp.run(graph, {"x": X.numpy()} | state(seed)).outputs[: len(graph.returned)]


def test_operators_of_onnx() -> None:
    node = helper.make_node
    uniform, normal, like, bell_, coin, chosen, dropped, mask = values(
        onnx_graph(
            node("RandomUniform", [], ["y0"], shape=[30, 50], low=-2.0, high=3.0),
            node("RandomNormal", [], ["y1"], shape=[40, 50], mean=1.0, scale=2.0, dtype=TensorProto.DOUBLE),
            node("RandomUniformLike", ["x"], ["y2"]),
            node("RandomNormalLike", ["x"], ["y3"], dtype=TensorProto.FLOAT16),
            node("Bernoulli", ["y2"], ["y4"], dtype=TensorProto.INT32),
            node("Multinomial", ["x"], ["y5"], sample_size=7, dtype=TensorProto.INT64),
            node("Dropout", ["x", "ratio", "on"], ["y6", "y7"], seed=-3),
        )
    )
    assert smirnov(uniform.ravel(), lambda v: (v + 2) / 5) < 1.95 and uniform.dtype == np.float32
    assert smirnov((normal.ravel() - 1) / 2, bell) < 1.95 and normal.dtype == np.float64
    assert smirnov(like.ravel(), lambda v: v) < 1.95 and bell_.dtype == np.float16
    assert coin.dtype == np.int32 and abs(coin.mean() - 0.5) < 0.1
    assert chosen.dtype == np.int64 and chosen.shape == (12, 7) and chosen.max() < 40
    np.testing.assert_allclose(dropped, np.where(mask, X.numpy() / 0.75, 0), rtol=1e-6)
    assert mask.dtype == bool and abs(mask.mean() - 0.75) < 0.07


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreter", "compiled"])
def test_coins_of_onnx_fall_by_their_probabilities(compiled: bool) -> None:
    """Instead of the cases of Bernoulli and Dropout in ONNX's own suite, which expect the numbers that numpy draws."""
    p = np.random.default_rng(0).random((200, 200), np.float32)
    node = helper.make_node
    model = onnx_model(
        node("Bernoulli", ["x"], ["y0"]),
        node("Bernoulli", ["x"], ["y1"], dtype=TensorProto.DOUBLE, seed=2.5),
        node("RandomUniformLike", ["x"], ["u"]),  # what its function body spells out
        node("Less", ["u", "x"], ["y2"]),
        node("Dropout", ["x", "ratio", "on"], ["y3", "y4"]),
        node("Dropout", ["x", "", "on"], ["y5", "y6"], seed=1),
        shape=p.shape,
    )
    graph = onnx_importer.load(model.SerializeToString())
    if compiled:
        module = luminal.compile(graph, threads=1)
        assert isinstance(module, Module)
        found = module.run({"x": p})
    else:
        found = expected(graph, p, 0, 0)
    coins = [found[name] for name in ("y0", "y1", "y2")]
    assert [coin.dtype for coin in coins] == [np.float32, np.float64, np.bool_]
    kept = [(found["y3"], found["y4"], 0.75), (found["y5"], found["y6"], 0.5)]
    for coin, chance in [*((c.astype(float), p) for c in coins), *((m.astype(float), p * 0 + k) for _, m, k in kept)]:
        assert set(np.unique(coin)) == {0, 1}
        for low in np.arange(0, 1, 0.125):
            cell = (chance >= low) & (chance < low + 0.125)
            spread = math.sqrt((chance[cell] * (1 - chance[cell])).sum())
            assert abs(coin[cell].sum() - chance[cell].sum()) <= 3.3 * spread
    for dropped, mask, share in kept:
        np.testing.assert_allclose(dropped, np.where(mask, p / share, 0), rtol=1e-6)
    falls = [coin - p for coin in coins]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert abs(np.corrcoef(falls[a].ravel(), falls[b].ravel())[0, 1]) < 3.5 / math.sqrt(p.size)


def loop(iterations: int) -> ir.Graph:
    return onnx_importer.load(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
            test (float[2] x) => (float[2] last, float[n, 2] rows) {{
              n = Constant <value: tensor = int64 {{{iterations}}}> ()  go = Constant <value: tensor = bool {{1}}> ()
              last, rows = Loop (n, go, x) <
                body: graph = body (int64 i, bool c, float[2] y) => (bool d, float[2] z, float[2] r)
                  {{ d = Identity (c)  r = RandomUniformLike (y)  z = Add (y, r) }}
              >
            }}""")
    )


@pytest.mark.parametrize("options", [{}, {"target": "cuda:sm_90", "emulate": True}], ids=["host", "cuda"])
def test_each_iteration_of_a_loop_draws_anew(options: dict[str, Any]) -> None:
    x = np.zeros(2, np.float32)
    graph = loop(100)
    last, rows, _ = interp.run(graph, {"x": x} | state(11)).outputs
    assert len(np.unique(rows)) == rows.size == 200 and smirnov(rows.ravel(), lambda v: v) < 1.95
    np.testing.assert_allclose(last, rows.sum(0), rtol=1e-5)
    module = luminal.compile(graph, seed=11, **options)
    assert isinstance(module, Module)
    first, second = (module.run({"x": x})["rows"] for _ in range(2))
    np.testing.assert_array_equal(first, rows)
    assert not np.isin(second, rows).any()


def test_seeds_of_onnx_operators_are_theirs_alone() -> None:
    node = helper.make_node
    made = onnx_graph(
        node("RandomUniformLike", ["x"], ["y0"], seed=3.5),
        node("RandomUniformLike", ["x"], ["y1"]),
        node("RandomUniformLike", ["x"], ["y2"], seed=3.5),
    )
    first, second = values(made, seed=1), values(made, seed=2)
    assert np.array_equal(first[0], second[0]) and not np.array_equal(first[1], second[1])
    assert not np.array_equal(first[0], first[2])  # each node draws for itself


def test_a_generator_of_pytorch_is_refused_wherever_it_is_used() -> None:
    generator = torch.Generator().manual_seed(1)

    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.bernoulli(x, generator=generator), torch.rand(3, generator=generator)

    with pytest.raises(UnsupportedError) as raised:
        fx.load(Drawing(), (torch.rand(3),))
    for operator in ("aten.bernoulli.default", "aten.rand.generator"):
        (place,) = (line for line in str(raised.value).splitlines() if operator in line)
        assert place.endswith("a generator of PyTorch's own: leave it out, and give luminal.compile a seed")
