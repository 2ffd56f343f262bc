"""Gathers, ranges, rearrangements and attention against numpy and PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from luminal.core import interp, ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import uniform
from luminal.core.decompose import attention, indexing, scattering
from luminal.core.decompose.compare import maximum
from luminal.core.errors import DTypeError, ShapeError
from luminal.core.types import bf16, f32, from_numpy, i64
from tests.accuracy import run
from tests.test_decompose_reduction import close, normal

DATA = normal(4, 3, 5)


def test_take_counts_negative_positions_from_the_end() -> None:
    index = np.array([[0, -1], [2, 1]])
    for axis in (0, 1, -1):
        assert np.array_equal(run(lambda a, i, k=axis: indexing.take(a, i, k), DATA, index), np.take(DATA, index, axis))
    assert np.array_equal(run(indexing.take, DATA, np.array(-2, np.int32)), DATA[-2])
    assert np.array_equal(run(indexing.embedding, DATA, np.array([3, 0], np.int32)), DATA[[3, 0]])


@pytest.mark.parametrize("position", [-5, 4])
def test_positions_out_of_range_fail(position: int) -> None:
    """Also where several indices are made one, and the sum of their parts would be in range."""
    index = np.array([position])
    with pytest.raises(IndexError):
        run(indexing.take, DATA, index)
    with pytest.raises(IndexError):
        run(lambda a, i, j: indexing.index(a, [i, j]), DATA, index, np.array([1]))
    with pytest.raises(IndexError):
        run(lambda a, i: indexing.gather_elements(a, i, 0), DATA, index.reshape(1, 1, 1))
    with pytest.raises(IndexError):
        run(indexing.gather_nd, DATA, np.array([[position, 0]]))


def test_embedding_has_no_negative_positions() -> None:
    with pytest.raises(IndexError):
        run(indexing.embedding, DATA, np.array([-1]))


def test_known_positions_are_not_wrapped() -> None:
    data = ir.input_("x", (8, 2), f32)
    for index in (ir.iota(3), ir.iota(3) + 2, ir.constant(np.array([1, 2]), i64), ir.dim(sym.var("n", 0, 7))):
        assert not any(n.op is ops.SELECT for n in traverse.topological([indexing.take(data, index)]))
    unknown = indexing.take(data, ir.input_("i", (3,), i64))
    assert any(n.op is ops.SELECT for n in traverse.topological([unknown]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis: int) -> None:
    extent = DATA.shape[axis]
    index = np.random.default_rng(axis).integers(-extent, extent, (2, 3, 4))
    expected = torch.gather(torch.from_numpy(DATA), axis, torch.from_numpy(index % extent))
    close(run(lambda a, i: indexing.gather_elements(a, i, axis), DATA, index), expected, 0)


def test_gather_nd() -> None:
    assert np.array_equal(run(indexing.gather_nd, DATA, np.array([[0, 1], [3, -1]])), DATA[[0, 3], [1, -1]])
    assert np.array_equal(run(indexing.gather_nd, DATA, np.array([[[0]], [[3]]])), DATA[[[0], [3]]])
    batched = run(lambda a, i: indexing.gather_nd(a, i, 1), DATA, np.array([[1], [2], [0], [0]]))
    assert np.array_equal(batched, DATA[range(4), [1, 2, 0, 0]])


@pytest.mark.parametrize("how", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_scatter_reduce(how: str, include_self: bool, dtype: type) -> None:
    random = np.random.default_rng(5)
    data, new = (random.integers(-9, 10, shape).astype(dtype) for shape in ((4, 5), (3, 7)))
    index = random.integers(0, 5, (3, 7))
    tensors = (torch.from_numpy(x) for x in (data, index, new))
    data_, index_, new_ = tensors
    expected = data_.scatter_reduce(1, index_, new_, how, include_self=include_self).numpy()
    found = run(lambda d, i, n: scattering.scatter_reduce(d, i, n, 1, how, include_self), data, index, new)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("special", [np.nan, np.inf, -0.0])
def test_minima_and_maxima_of_special_numbers(special: float) -> None:
    data = np.array([0.0, 1.0, -1.0], np.float32)
    new, index = np.array([special, special, 2.0], np.float32), np.array([0, 1, 2])
    for how, meaning in (("max", np.maximum), ("min", np.minimum)):
        found = run(lambda d, i, n, by=how: scattering.put(d, i, n, 0, by), data, index, new)
        np.testing.assert_array_equal(found, meaning(data, new))


def test_the_last_of_several_at_one_position_stays() -> None:
    new = normal(6, 5)
    index = np.array([1, 3, -1, 1, 0, 1])
    expected = DATA[:, 0].copy()
    expected[[3, 0, 1]] = new[[2, 4, 5]]
    found = run(lambda d, i, n: scattering.put(d, i, n, 0), DATA[:, 0].copy(), index, new)
    assert np.array_equal(found, expected)


def test_sums_are_added_one_after_the_other() -> None:
    new = normal(100)
    total = np.float32(0.5)
    for x in new:
        total += x
    found = run(lambda d, i, n: scattering.put(d, i, n, 0, "add"), np.full(1, 0.5, np.float32), np.zeros(100, int), new)
    assert found[0] == total


def test_scatter_nd_and_its_positions() -> None:
    index, new = np.array([[0, 1], [3, -1]]), normal(2, 5)
    expected = DATA.copy()
    expected[[0, 3], [1, 2]] = new
    assert np.array_equal(run(scattering.scatter_nd, DATA, index, new), expected)
    everything = run(scattering.scatter_nd, DATA, np.zeros((2, 0), np.int64), normal(2, 4, 3, 5))
    assert np.array_equal(everything, normal(2, 4, 3, 5)[1])


def test_putting_at_several_indices() -> None:
    i, j = np.array([0, 1, 2]), np.array([[1], [-2]])
    for indices, take in (
        ((i, j), np.s_[i, j]), ((i, None, j), np.s_[i, :, j]), ((None, i, j), np.s_[:, i, j]), ((None, j), np.s_[:, j]),
    ):  # fmt: skip
        expected = DATA.copy()
        expected[take] = new = normal(*DATA[take].shape)
        arrays = [x for x in indices if x is not None]

        def put(d: ir.Node, n: ir.Node, *at: ir.Node, indices: tuple[object, ...] = indices) -> ir.Node:
            rest = iter(at)
            return scattering.index_put(d, [None if x is None else next(rest) for x in indices], n)

        assert np.array_equal(run(put, DATA, new, *arrays), expected)


@pytest.mark.parametrize("position", [-5, 4])
def test_positions_to_write_out_of_range_fail(position: int) -> None:
    index = np.array([position])
    with pytest.raises(IndexError):
        run(scattering.put, DATA, index, DATA[:1])
    with pytest.raises(IndexError):
        run(lambda d, i, n: scattering.scatter_elements(d, i, n, 0), DATA, index.reshape(1, 1, 1), DATA[:1, :1, :1])
    with pytest.raises(IndexError):
        run(scattering.scatter_nd, DATA, np.array([[position, 0]]), DATA[:1, 0])


def test_what_does_not_fit_in_a_scatter_is_refused() -> None:
    data, index = ir.input_("x", (4, 3), f32), ir.input_("i", (2,), i64)
    with pytest.raises(ShapeError, match=r"expected new elements \[2, 3\], found \[3, 2\]"):
        ir.scatter(data, index, ir.input_("n", (3, 2), f32), 0)
    with pytest.raises(DTypeError, match="must have one type, found float32, bfloat16"):
        ir.scatter(data, index, ir.input_("n", (2, 3), bf16), 0)
    with pytest.raises(DTypeError, match="indices must be int64, found float32"):
        ir.scatter(data, ir.input_("i", (2,), f32), ir.input_("n", (2, 3), f32), 0)
    with pytest.raises(ShapeError, match="one shape of positions and elements"):
        scattering.scatter_elements(data, index, index, 0)


def test_several_indices() -> None:
    i, j = np.array([0, 1, 2]), np.array([[1], [-2]])
    assert np.array_equal(run(lambda a, i, j: indexing.index(a, [i, j]), DATA, i, j), DATA[i, j])
    assert np.array_equal(run(lambda a, i, j: indexing.index(a, [i, None, j]), DATA, i, j), DATA[i, :, j])
    assert np.array_equal(run(lambda a, i, j: indexing.index(a, [None, i, j]), DATA, i, j), DATA[:, i, j])
    assert np.array_equal(run(lambda a, j: indexing.index(a, [None, j]), DATA, j), DATA[:, j])
    assert np.array_equal(run(lambda a, i, j: indexing.index(a, [i, j, i]), DATA, i, j), DATA[i, j, i])


def test_one_hot() -> None:
    index = np.array([[0, 3], [-1, 9]])
    expected = np.array([[[1, 0, 0, 0], [0, 0, 0, 1]], [[0, 0, 0, 1], [0, 0, 0, 0]]])
    assert np.array_equal(run(lambda i: indexing.one_hot(i, 4), index), expected)
    found = run(lambda i: indexing.one_hot(i, 4, 5.0, -1.0, 0, f32), index)
    assert np.array_equal(found, np.moveaxis(expected, -1, 0) * 6.0 - 1)


@pytest.mark.parametrize(
    "bounds", [(0, 10, 3), (10, 0, -3), (0, 0, 1), (5, 2, 1), (2, 9, 1), (0.0, 1.0, 0.1), (1.0, -1.0, -0.3)]
)
def test_arange(bounds: tuple[float, float, float]) -> None:
    expected = np.arange(*bounds)
    (found,) = interp.evaluate([indexing.arange(*bounds, from_numpy(expected.dtype))])
    close(found, expected, 1e-15)


def test_arange_of_a_symbolic_size() -> None:
    n = sym.var("n", 0, 9)
    (found,) = interp.evaluate([indexing.arange(1, n, 2)], dims={"n": 6})
    assert found.tolist() == [1, 3, 5]
    with pytest.raises(ShapeError, match="step"):
        indexing.arange(0, 3, 0)


@pytest.mark.parametrize("offset", [-4, -1, 0, 2, 6])
def test_triangles(offset: int) -> None:
    assert np.array_equal(run(lambda a: indexing.tril(a, offset), DATA), np.tril(DATA, offset))
    assert np.array_equal(run(lambda a: indexing.triu(a, offset), DATA), np.triu(DATA, offset))
    assert np.array_equal(interp.evaluate([indexing.eye(3, 4, offset)])[0], np.eye(3, 4, offset))


def test_triangle_of_infinities_has_no_nan() -> None:
    x = np.full((3, 3), -np.inf, np.float32)
    assert not np.isnan(run(indexing.triu, x)).any()


def test_rearrangements() -> None:
    for repeats in ([2, 1, 3], [2, 1, 1, 3], [3], [0, 1, 1]):
        assert np.array_equal(run(lambda a, r=repeats: indexing.tile(a, r), DATA), np.tile(DATA, repeats))
    assert np.array_equal(run(lambda a: indexing.repeat_interleave(a, 3, 1), DATA), np.repeat(DATA, 3, 1))
    for axis in (0, 1, -1):
        found = run(lambda a, b, k=axis: indexing.stack([a, b], k), DATA, DATA + 1)
        assert np.array_equal(found, np.stack([DATA, DATA + 1], axis))
    assert np.array_equal(run(lambda a: indexing.roll(a, [1, -2], [0, 2]), DATA), np.roll(DATA, [1, -2], [0, 2]))
    for found, part in zip(
        run(lambda a: indexing.split(a, [1, 3, 1], 2), DATA), np.split(DATA, [1, 4], 2), strict=True
    ):
        assert np.array_equal(found, part)
    with pytest.raises(ShapeError, match="add up"):
        run(lambda a: indexing.split(a, [1, 3], 2), DATA)
    filled = run(lambda a, m: indexing.masked_fill(a, m, -1.0), DATA, DATA[0] > 0)
    assert np.array_equal(filled, np.where(DATA[0] > 0, np.float32(-1), DATA))
    assert np.array_equal(interp.evaluate([indexing.full((2, 3), 1.5, f32)])[0], np.full((2, 3), 1.5))


# ---- attention -------------------------------------------------------------------------------------------------------


def heads(h: int = 4, shared: int = 4, rows: int = 5, columns: int = 7) -> list[np.ndarray]:
    return [normal(2, h, rows, 8), normal(2, shared, columns, 8, seed=1), normal(2, shared, columns, 6, seed=2)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention(causal: bool, scale: float | None) -> None:
    for operands in (heads(), heads(rows=7), [x[0, 0] for x in heads()], heads(columns=1)):
        expected = F.scaled_dot_product_attention(*map(torch.from_numpy, operands), is_causal=causal, scale=scale)
        found = run(
            lambda q, k, v: attention.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale), *operands
        )
        close(found, expected)


def test_masks() -> None:
    operands = heads()
    kept = np.random.default_rng(0).random((2, 1, 5, 7)) < 0.5
    kept[0, 0, 2] = False  # a row whose every position is masked is zero
    for mask in (kept, normal(5, 7), np.where(kept, 0, -np.inf).astype(np.float32)):
        expected = F.scaled_dot_product_attention(*map(torch.from_numpy, (*operands, mask)))
        close(run(attention.scaled_dot_product_attention, *operands, mask), expected)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_what_the_scale_multiplies(kind: str, computed: bool) -> None:
    """Queries where they are computed, else scores; by the factor of powers of 2 too, unless a mask of floats is added:
    a row of the least number is an average."""
    operands, kept = heads(), np.random.default_rng(0).random((5, 7)) < 0.5
    least = np.where(np.arange(5)[:, None] == 2, np.finfo(np.float32).min, kept.astype(np.float32))
    arrays = [*operands, *{"none": [], "bool": [kept], "float": [least]}[kind]]

    def attend(q: ir.Node, *others: ir.Node) -> ir.Node:
        return attention.scaled_dot_product_attention(maximum(q, -1.0) if computed else q, *others)

    first, *others = map(torch.from_numpy, arrays)
    close(run(attend, *arrays), F.scaled_dot_product_attention(first.clamp(min=-1) if computed else first, *others))
    inputs = [ir.input_(f"x{i}", array.shape, from_numpy(array.dtype)) for i, array in enumerate(arrays)]
    order = traverse.topological([attend(*inputs)])
    unit = 1.0 if kind == "float" else math.log2(math.e)
    numbers = [(node.shape, uniform(node.inputs[1])) for node in order if node.op is ops.MUL]
    assert (operands[0].shape if computed else (2, 4, 5, 7), np.float32(unit / math.sqrt(8))) in numbers
    assert {node.attr.scale for node in order if node.op is ops.EXP2} == {math.log2(math.e) / unit}


@pytest.mark.parametrize("added", [None, normal(5, 7)])
def test_soft_caps_and_sinks(added: np.ndarray | None) -> None:
    """A cap bounds scores before a mask is added; a sink is the score of one more key, whose value is zero."""
    operands, sink = heads(), normal(4, seed=3)
    q, k, v = map(torch.from_numpy, operands)
    scores = torch.tanh(q @ k.mT * (0.5 / 1.5)) * 1.5 + (0 if added is None else torch.from_numpy(added))
    sinks = torch.from_numpy(sink).reshape(4, 1, 1).expand(2, 4, 5, 1)
    expected = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1] @ v

    def attend(q: ir.Node, k: ir.Node, v: ir.Node, sink: ir.Node, mask: ir.Node | None = None) -> ir.Node:
        return attention.scaled_dot_product_attention(q, k, v, mask, scale=0.5, softcap=1.5, sink=sink)

    close(run(attend, *operands, sink, *([] if added is None else [added])), expected)


def test_shared_heads_are_views() -> None:
    operands = heads(h=6, shared=2)
    generator = np.random.default_rng(0)
    masks = [None, *(generator.random(shape) < 0.7 for shape in ((2, 6, 5, 7), (2, 1, 5, 7), (5, 7)))]
    for mask in masks:
        arrays = operands if mask is None else [*operands, mask]
        expected = F.scaled_dot_product_attention(*map(torch.from_numpy, arrays), enable_gqa=True)
        close(run(lambda *a: attention.scaled_dot_product_attention(*a, enable_gqa=True), *arrays), expected)
    with pytest.raises(ShapeError, match="do not divide"):
        run(lambda *a: attention.scaled_dot_product_attention(*a, enable_gqa=True), *heads(h=5, shared=2))


def test_attention_over_a_symbolic_sequence() -> None:
    n = sym.var("n", 1, 16)
    q, k, v = (ir.input_(name, (2, 4, n, 8), f32) for name in "qkv")
    node = attention.scaled_dot_product_attention(q, k, v, is_causal=True)
    for size in (1, 6, 16):
        values = {name: normal(2, 4, size, 8, seed=ord(name)) for name in "qkv"}
        expected = F.scaled_dot_product_attention(*map(torch.from_numpy, values.values()), is_causal=True)
        close(interp.evaluate([node], values)[0], expected)


def test_narrow_attention_rounds_once() -> None:
    operands = [x.astype(bf16.numpy) for x in heads()]
    found = run(attention.scaled_dot_product_attention, *operands)
    wide = F.scaled_dot_product_attention(*(torch.from_numpy(x.astype(np.float64)) for x in operands)).numpy()
    assert found.dtype == bf16.numpy
    assert np.all(np.abs(found.astype(np.float64) - wide) <= 0.51 * bf16.eps * np.abs(wide) + 1e-6)
