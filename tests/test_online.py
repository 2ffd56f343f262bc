"""Reductions that read others along their axis, in parts: which are, what comes of them, and how exact it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import luminal
from luminal.core import interp, ir, movement, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, exponential, hyperbolic, indexing, normalize, reduction
from luminal.core.decompose.arithmetic import abs_
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.numeric import long_reductions, online
from luminal.core.sizes import typical
from luminal.core.target import Target
from luminal.module import Module
from tests.compiled_support import assert_same_bits
from tests.schedule_support import run_program, with_costs

Array = np.ndarray[Any, Any]
EPS = types.f32.eps

# Parts of 12 elements, of which 2 are worth it.
SIZES = {"part": 12, "parts": 2, "part_columns": 4}
TARGET = with_costs(targets.AVX512, sizes=SIZES)
N = sym.var("n", 1, 64)
LENGTHS = [50, 48, N]
INFINITE = np.inf


def given_(name: str, *shape: sym.Int) -> Node:
    return ir.input_(name, shape, types.f32)


def graph(*roots: Node) -> Graph:
    inputs = tuple(node for node in traverse.topological(roots) if node.op is ops.INPUT)
    dims = {v for node in inputs for size in node.shape for v in sym.variables(size)}
    return Graph("g", inputs, tuple((f"y{k}", root) for k, root in enumerate(roots)), tuple(dims))


def fourth(x: Node) -> Node:
    return (x * x) * (x * x)


def in_parts(whole: Graph, target: Target = TARGET) -> Graph:
    found = online.in_parts(whole, target)
    assert found is not whole, "nothing is in parts"
    return found


def longest_row(found: Graph) -> int:
    """The most terms that one reduction reduces."""
    reductions = [node for node in traverse.topological(found.roots) if node.op.kind is ops.Kind.REDUCE]
    return max(math.prod(typical(n.inputs[0].shape[k]) for k in n.attr.axes) for n in reductions)


def decode(heads: int, n: sym.Int, depth: int, change: Callable[[Node], Node] = lambda scores: scores) -> Node:
    """One query of each head against all keys."""
    q, k, v = given_("q", heads, 1, depth), given_("k", heads, n, depth), given_("v", heads, n, depth)
    scores = change(contraction.matmul(q, movement.transpose(k, -2, -1)) * 0.3)
    return contraction.matmul(reduction.softmax(scores, -1), v)


def grouped(n: sym.Int) -> Node:
    """One query of each of two heads to a head of keys."""
    q, k, v = given_("q", 2, 2, 1, 4), given_("k", 2, n, 4), given_("v", 2, n, 4)

    def each(x: Node) -> Node:
        return ir.expand(movement.unsqueeze(x, [1]), (2, 2, n, 4))

    scores = contraction.matmul(q, movement.transpose(each(k), -2, -1)) * 0.3
    return contraction.matmul(reduction.softmax(scores, -1), each(v))


def with_sink(n: sym.Int) -> Node:
    """Weights of which a part goes to no key: the maximum of a row is at least a number of the head's."""
    q, k, v = given_("q", 2, 1, 4), given_("k", 2, n, 4), given_("v", 2, n, 4)
    sink = movement.unsqueeze(given_("sink", 2), [1, 2])
    scores = contraction.matmul(q, movement.transpose(k, -2, -1))
    most = ir.binary(ops.MAX, reduction.max_(scores, [-1], True), sink)
    weights = exponential.exp(scores - most)
    total = reduction.sum_(weights, [-1], True) + exponential.exp(sink - most)
    return contraction.matmul(weights * ir.unary(ops.RECIP, total), v)


def of_rows(form: Callable[[Node], Node]) -> Callable[[sym.Int], Node]:
    return lambda n: form(given_("x", 2, n))


FORMS: dict[str, Callable[[sym.Int], Node]] = {
    "softmax": of_rows(lambda x: reduction.softmax(x, -1)),
    "log softmax": of_rows(lambda x: reduction.log_softmax(x, -1)),
    "log of a sum": of_rows(lambda x: reduction.logsumexp(x, [-1])),
    "sum of weights": of_rows(lambda x: reduction.sum_(exponential.exp(x - reduction.max_(x, [-1], True)), [-1])),
    "variance": of_rows(lambda x: reduction.variance(x, [-1])),
    "layer norm": of_rows(lambda x: normalize.layer_norm(x, -1)),
    "a query": lambda n: decode(2, n, 4),
    "a query, capped": lambda n: decode(2, n, 4, lambda scores: hyperbolic.tanh(scores * 0.2) * 5),
    "grouped queries": grouped,
    "a sink": with_sink,
}


def drawn(whole: Graph, n: int, seed: int = 0, scale: float = 1.0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    shapes = {x.attr.name: [n if size == N else size for size in x.shape] for x in whole.inputs}
    return {name: (scale * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


# ---- what they give --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_parts_give_what_the_whole_gives(form: str, length: sym.Int) -> None:
    whole = graph(FORMS[form](length))
    found = in_parts(whole)
    sizes = (1, 11, 12, 13, 64) if length is N else (length,)
    assert longest_row(found) <= 25 or length is N
    program = compile_graph(whole, TARGET)
    for n in sizes:
        values = drawn(whole, n, n, scale=3)
        with np.errstate(all="ignore"):  # the variance of one number
            (expected,) = interp.run(whole, values, mode="float64").outputs
            outputs = (interp.run(found, values).outputs[0], run_program(program, values)["y0"])
        bound = 32 * math.sqrt(n) * EPS * max(1.0, float(np.nanmax(np.abs(expected), initial=0)))
        for output in outputs:
            np.testing.assert_allclose(output, expected, rtol=0, atol=bound, equal_nan=True)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", [*FORMS][:6])
def test_special_values_come_out_as_from_the_whole(form: str, special: float) -> None:
    """One in a first, a middle and a last part, two in different parts, a part of them, and nothing else."""
    whole = graph(FORMS[form](50))
    found = in_parts(whole)
    for places in ([0], [20], [49], [3, 30], range(12), range(50)):
        values = drawn(whole, 50)
        values["x"][1, list(places)] = special
        with np.errstate(all="ignore"):
            (expected,), (output,) = (interp.run(g, values).outputs for g in (whole, found))
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize("masked", [slice(0, 9), slice(9, 50), slice(0, 12), slice(0, 50)], ids=str)
def test_keys_that_are_masked_in_part_or_whole(masked: slice, special: float) -> None:
    mask = np.zeros((2, 1, 50), np.float32)
    mask[0, 0, masked] = special
    whole = graph(decode(2, 50, 4, lambda scores: scores + ir.constant(mask)))
    values = drawn(whole, 50)
    with np.errstate(all="ignore"):
        (expected,), (output,) = (interp.run(g, values).outputs for g in (whole, in_parts(whole)))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_large_scores_are_taken_off_their_own_maximum() -> None:
    whole = graph(decode(2, 50, 4))
    values = drawn(whole, 50)
    values["q"] *= 1000
    (expected,) = interp.run(whole, values, mode="float64").outputs
    (output,) = interp.run(in_parts(whole), values).outputs
    np.testing.assert_allclose(output, expected, rtol=0, atol=1000 * 4 * 32 * EPS)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6, -1e6])
@pytest.mark.parametrize("form", ["variance", "layer norm"])
def test_moments_of_numbers_far_from_zero_lose_no_digit(form: str, offset: float) -> None:
    """The largest error of parts is not above that of two passes, each in parts of its own."""
    worst: dict[str, float] = {"two passes": 0.0, "parts": 0.0}
    whole, target = graph(FORMS[form](20_000)), with_costs(targets.AVX512, sizes={"part": 1000, "parts": 2})
    found, apart = in_parts(whole, target), long_reductions.in_parts(Contracted.of(whole), target).graph
    for seed in range(5):
        values = drawn(whole, 0, seed)
        values["x"] += np.float32(offset)
        (expected,) = interp.run(whole, values, mode="float64").outputs
        for name, by in (("two passes", apart), ("parts", found)):
            (output,) = interp.run(by, values).outputs
            worst[name] = max(worst[name], float(np.abs(output - expected).max() / np.abs(expected).max()))
    assert worst["parts"] <= max(1.1 * worst["two passes"], 8 * EPS), worst


# ---- what is derived -------------------------------------------------------------------------------------------------

UNARY: list[Callable[[Node], Node]] = [
    lambda x: x * 0.5, lambda x: x + 1.25, lambda x: -x, hyperbolic.tanh, lambda x: x * x,
    lambda x: ir.binary(ops.MAX, x, 0.25), lambda x: ir.select(ir.binary(ops.LESS_THAN, x, 0.0), -INFINITE, x),
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.sampled_from(range(len(UNARY))), max_size=3),
    values=st.lists(st.sampled_from(range(len(UNARY) - 1)), max_size=2),
    scale=st.sampled_from([0.25, 1.0, 2.0]),
    length=st.sampled_from([25, 36, N]),
    seed=st.integers(0, 99),
)
def test_any_function_of_elements_before_and_beside_the_exponential(
    scores: list[int], values: list[int], scale: float, length: sym.Int, seed: int
) -> None:
    x, v = given_("x", 2, length), given_("v", 2, length)
    for number in scores:
        x = UNARY[number](x)
    for number in values:
        v = UNARY[number](v)
    weights = exponential.exp((x - reduction.max_(x, [-1], True)) * scale)
    whole = graph(reduction.sum_(weights * v, [-1]) / reduction.sum_(weights, [-1]))
    found = in_parts(whole)
    data = drawn(whole, 25 if length is N else length, seed)
    with np.errstate(all="ignore"):
        expected, sizes = (interp.run(g, data, mode="float64").outputs[0] for g in (whole, graph(_largest(v))))
        (output,) = interp.run(found, data).outputs
    np.testing.assert_allclose(output, expected, rtol=0, atol=200 * EPS * max(1.0, float(sizes.max())))


def _largest(v: Node) -> Node:
    return reduction.max_(ir.binary(ops.MAX, v, -v), [0, 1])


@pytest.mark.parametrize(
    "form",
    [
        lambda x: reduction.sum_(exponential.exp(x - reduction.mean(x, [-1], True)), [-1]),
        lambda x: reduction.sum_(exponential.exp(x + reduction.max_(x, [-1], True)), [-1]),
        lambda x: reduction.sum_(hyperbolic.tanh(x - reduction.max_(x, [-1], True)), [-1]),
        lambda x: reduction.max_(x * reduction.sum_(x, [-1], True), [-1]),
        lambda x: reduction.sum_(fourth(x / reduction.max_(abs_(x), [-1], True)), [-1]),
    ],
    ids=["not its maximum", "a sum", "no exponential", "a maximum", "a fourth power, which is at most 1"],
)
def test_what_does_not_follow_is_left_whole(form: Callable[[Node], Node]) -> None:
    whole = graph(form(given_("x", 2, 50)))
    assert online.in_parts(whole, TARGET) is whole


def test_rows_that_may_be_empty_are_left_whole() -> None:
    whole = graph(reduction.softmax(given_("x", 2, sym.var("m", 0, 64)), -1))
    assert online.in_parts(whole, TARGET) is whole


def test_rows_enough_for_all_threads_and_short_ones_are_left_whole() -> None:
    for shape in ((16, 50), (2, 11)):
        whole = graph(reduction.softmax(given_("x", *shape), -1))
        assert online.in_parts(whole, TARGET) is whole
    many = replace(TARGET, threads=64)
    assert longest_row(in_parts(graph(reduction.softmax(given_("x", 16, 50), -1)), many)) <= 12


@pytest.mark.parametrize(
    ("target", "rows"), [(targets.AVX512, 11), (targets.GPUS["cuda:sm_80"], 700)], ids=["avx512", "cuda"]
)
def test_rows_with_a_sink_are_one_pass(target: Target, rows: int) -> None:
    """What the sum takes off is bounded by a number of the head's, so rows that are -inf are zero, and not NaN."""
    heads, columns = 3, 21
    q, k, v = (given_(name, heads, n, 4) for name, n in (("q", rows), ("k", columns), ("v", columns)))
    sink = ir.expand(movement.unsqueeze(given_("sink", heads), [1, 2]), (heads, rows, 1))
    mask = np.zeros((heads, rows, columns), np.float32)
    mask[1, 3], mask[2, 4, :20] = -np.inf, -np.inf
    scores = contraction.matmul(q, movement.transpose(k, -2, -1)) + ir.constant(mask)
    most = ir.binary(ops.MAX, reduction.max_(scores, [-1], True), sink)
    weights = exponential.exp(scores - most)
    total = reduction.sum_(weights, [-1], True) + exponential.exp(sink - most)
    whole = graph(contraction.matmul(weights * ir.unary(ops.RECIP, total), v))
    program = compile_graph(whole, target)
    (kernel,) = (kernel for kernel in program.kernels if kernel.name.startswith("chain"))
    assert any("times Exp2[" in line and "Max(r0'" in line for line in kernel.scheduled.derived)
    if target.grid is None:
        values = drawn(whole, 0)
        (expected,) = interp.run(whole, values, mode="float64").outputs
        assert not expected[1, 3].any()
        found = run_program(program, values)["y0"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=32 * math.sqrt(columns) * EPS)


def test_a_compiled_model_says_how_its_reductions_follow_each_other() -> None:
    """Soft-capped scores with a relative bias: one pass, whose memory is linear in the length."""
    n, reach = 200, 2 * 200 - 1
    q, k, v = (given_(name, 4, n, 16) for name in "qkv")
    table = given_("table", 4, reach)
    at = ir.expand(ir.constant(np.arange(n)[:, None] - np.arange(n)[None] + n - 1), (4, n, n))
    bias = indexing.gather_elements(ir.expand(movement.unsqueeze(table, [1]), (4, n, reach)), at, -1)
    scores = hyperbolic.tanh((contraction.matmul(q, movement.transpose(k, -2, -1)) + bias) * 0.1) * 10
    whole = graph(contraction.matmul(reduction.softmax(scores, -1), v))
    module = luminal.compile(whole)
    assert isinstance(module, Module) and module.program is not None
    assert module.program.entries[0].arena_size < 4 * n * n * 4 / 2
    said = module.explain()
    assert "r1 = SumReduce of Exp2" in said and "with a new r0', times Exp2" in said and "sum1 = SumReduce" in said
    values = drawn(whole, 0)
    (expected,) = interp.run(whole, values, mode="float64").outputs
    (found,) = module.run(values).values()
    np.testing.assert_allclose(found, expected, rtol=0, atol=32 * math.sqrt(n) * EPS)


def test_the_derivation_is_said() -> None:
    whole = in_parts(graph(FORMS["a query"](50), FORMS["variance"](50)))
    said = "\n".join(made.what for made in whole.approximations)
    assert "a part moves by an exponential of the difference" in said
    assert "parts merge by their first two moments" in said


# ---- what that costs -------------------------------------------------------------------------------------------------


def tasks(kernel: Any, n: int) -> int:
    return math.prod(int(sym.evaluate(loop.extent, {"n": n})) for loop in kernel.nest.tasks)


@pytest.mark.parametrize("length", [8192, sym.var("n", 1, 8192)], ids=str)
def test_one_query_of_eight_heads_has_tasks_for_all_threads_and_little_memory(length: sym.Int) -> None:
    """Weights of 8 rows, maxima and sums of 64 parts; no copy of keys or values."""
    program = compile_graph(graph(decode(8, length, 128)), replace(targets.AVX512, threads=8))
    assert (sym.upper(program.entries[0].arena_size) or 0) < 3 * 8 * 8192 * 4
    reading = [k for k in program.kernels if any("v" in launch.arguments or "k" in launch.arguments
               for launch in program.entries[0].launches if program.kernels[launch.kernel] is k)]  # fmt: skip
    assert len(reading) == 2 and all(tasks(k, 8192) >= 512 for k in reading)


def test_a_norm_of_rows_of_a_million_is_compiled() -> None:
    """Two kernels find the moments; no matrix of a million rows and columns is made on the way."""
    program = compile_graph(graph(FORMS["layer norm"](1 << 20)), targets.AVX512)
    assert (sym.upper(program.entries[0].arena_size) or 0) < 1 << 16
    assert sum("x" in launch.arguments for launch in program.entries[0].launches) == 2


def test_a_gpu_shares_a_query_among_its_processors() -> None:
    program = compile_graph(graph(decode(8, 8192, 128)), targets.GPUS["cuda:sm_80"])
    assert sum(tasks(kernel, 0) >= 108 for kernel in program.kernels) >= 3


@pytest.mark.parametrize("form", ["a query", "variance", "log of a sum"])
def test_a_library_gives_the_same_bits_on_any_number_of_threads(form: str) -> None:
    whole = graph(FORMS[form](N))
    module = luminal.compile(whole, target=with_costs(targets.detect(), sizes=SIZES))
    values = drawn(whole, 50)
    found = list(module.run(values).values())
    (expected,) = interp.run(whole, values, mode="float64").outputs
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
    for threads in (1, 3):
        assert_same_bits(list(luminal.load(module.folder, threads=threads).run(values).values()), found)
