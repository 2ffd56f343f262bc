"""Matrix products, einsum, convolution and pooling against numpy and PyTorch, in every combination of attributes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from luminal.core import interp, ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.decompose import contraction, pooling
from luminal.core.errors import ShapeError
from luminal.core.movement import transpose
from luminal.core.types import bf16, f16, f32
from tests.accuracy import Array, run
from tests.test_decompose_reduction import close, normal


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (7, 3, 4)),
        ((2, 0), (0, 3)), ((0, 2), (2, 3)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((1, 1), (1, 1)),
    ],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = normal(*a), normal(*b, seed=1)
    close(run(contraction.matmul, x, y), np.matmul(x, y))
    integers = (x * 50).astype(np.int8), (y * 50).astype(np.int8)
    assert np.array_equal(run(contraction.matmul, *integers), np.matmul(*integers))


def test_products_of_matrices() -> None:
    x, weight, bias = normal(2, 3, 4), normal(5, 4, seed=1), normal(5, seed=2)
    close(run(contraction.linear, x, weight, bias), F.linear(*map(torch.from_numpy, (x, weight, bias))))
    for trans_a, trans_b in itertools.product((False, True), repeat=2):
        a, b, c = normal(*((4, 3) if trans_a else (3, 4))), normal(*((5, 4) if trans_b else (4, 5)), seed=1), normal(5)
        expected = 0.5 * (a.T if trans_a else a) @ (b.T if trans_b else b) + 2 * c
        close(
            run(lambda a, b, c, ta=trans_a, tb=trans_b: contraction.gemm(a, b, c, 0.5, 2.0, ta, tb), a, b, c), expected
        )
    with pytest.raises(ShapeError, match="inner sizes differ"):
        run(contraction.matmul, x, weight)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=repr)
def test_narrow_products_accumulate_in_float32(dtype: Any) -> None:
    a, b = normal(4, 512).astype(dtype.numpy), normal(512, 3, seed=1).astype(dtype.numpy)
    found = run(contraction.matmul, a, b)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert found.dtype == dtype.numpy
    assert np.all(np.abs(found.astype(np.float64) - expected) <= 0.51 * dtype.eps * np.abs(expected) + 1e-4)


def test_a_contraction_is_a_sum_over_a_product_of_views() -> None:
    """Nothing between the operands and the sum holds more than an operand does."""
    x, w = ir.input_("x", (2, 8, 9, 9), f32), ir.input_("w", (6, 4, 3, 3), f32)
    q, k = ir.input_("q", (2, 4, 5, 8), f32), ir.input_("k", (2, 4, 7, 8), f32)
    for node in (
        contraction.conv(x, w, groups=2, pads_begin=[1, 1], pads_end=[1, 1]),
        contraction.matmul(q, transpose(k, -1, -2)),
    ):
        kinds = [n.op for n in traverse.topological([node])]
        assert set(kinds) <= {ops.INPUT, ops.VIEW, ops.MUL, ops.SUM_REDUCE} and kinds.count(ops.MUL) == 1


EQUATIONS = (
    ("ij,jk->ik", (2, 3), (3, 4)), ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)), ("ij,jk", (2, 3), (3, 4)),
    ("ba,ab", (2, 3), (3, 2)), ("i,i", (4,), (4,)), ("i,j->ij", (2,), (3,)), ("ii->i", (3, 3)), ("ii", (3, 3)),
    ("iij->j", (3, 3, 2)), ("ij->ji", (2, 3)), ("ij->", (2, 3)), ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk->...ik", (6, 5, 2, 3), (5, 3, 4)), ("i...->...", (2, 3, 4)), ("b...d,d...->b...", (2, 3, 4), (4, 3)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("bhld,bhsd->bhls", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("ij, kj -> ik", (2, 3), (4, 3)), ("iji,jk->k", (2, 3, 2), (3, 4)), ("a,b,c->cab", (2,), (3,), (4,)),
    ("...a,...a->...", (2, 3), (3,)),
)  # fmt: skip


@pytest.mark.parametrize(("equation", "shapes"), [(e, s) for e, *s in EQUATIONS], ids=lambda v: str(v))
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    close(run(lambda *x: contraction.einsum(equation, *x), *operands), np.einsum(equation, *operands))


def test_einsum_refuses_what_does_not_fit() -> None:
    x = normal(2, 3)
    for equation in ("ij,jk->ik", "i->i", "ij->ik", "ii->i", "ij->ii"):
        with pytest.raises(ShapeError):
            run(lambda a, e=equation: contraction.einsum(e, a), x)


CONVOLUTIONS = [F.conv1d, F.conv2d, F.conv3d]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolution(rank: int, groups: int) -> None:
    sizes = (7, 8, 6)[:rank]
    x = normal(2, 4, *sizes)
    for stride, pad, dilation, kernel in itertools.product((1, 2), (0, 1, 2), (1, 2), (1, 3)):
        weight, bias = normal(8, 4 // groups, *[kernel] * rank, seed=1), normal(8, seed=2)
        found = run(
            lambda a, w, b, s=stride, p=pad, d=dilation: contraction.conv(
                a, w, b, [s] * rank, [p] * rank, [p] * rank, [d] * rank, groups
            ), x, weight, bias,
        )  # fmt: skip
        tensors = map(torch.from_numpy, (x, weight, bias))
        close(found, CONVOLUTIONS[rank - 1](*tensors, stride, pad, dilation, groups), 1e-5)


def test_uneven_padding_and_unequal_axes() -> None:
    x, weight = normal(1, 3, 9, 11), normal(2, 3, 3, 2, seed=1)
    found = run(lambda a, w: contraction.conv(a, w, None, [2, 1], [1, 0], [2, 3], [1, 4]), x, weight)
    padded = F.pad(torch.from_numpy(x), (0, 3, 1, 2))
    close(found, F.conv2d(padded, torch.from_numpy(weight), None, (2, 1), 0, (1, 4)), 1e-5)
    with pytest.raises(ShapeError, match="do not fit"):
        run(lambda a, w: contraction.conv(a, w, groups=3), x, weight)


def test_convolution_and_pooling_of_a_symbolic_image() -> None:
    n, h = sym.var("n", 1, 4), sym.var("h", 5, 20)
    x, w = ir.input_("x", (n, 3, h, h), f32), ir.input_("w", (4, 3, 3, 3), f32)
    nodes = [
        contraction.conv(x, w, None, [2, 2], [1, 1], [1, 1]), pooling.max_pool(x, [3, 3], [2, 2], [1, 1], [1, 1]),
        pooling.avg_pool(x, [3, 3], [2, 2], [1, 1], [1, 1], ceil_mode=True, count_include_pad=False),
        pooling.adaptive_avg_pool(x, [3, 2]),
    ]  # fmt: skip
    weight = normal(4, 3, 3, 3, seed=1)
    for size in (5, 8, 13):
        image = normal(2, 3, size, size, seed=size)
        t = torch.from_numpy(image)
        expected = [
            F.conv2d(t, torch.from_numpy(weight), None, 2, 1), F.max_pool2d(t, 3, 2, 1),
            F.avg_pool2d(t, 3, 2, 1, True, False), F.adaptive_avg_pool2d(t, (3, 2)),
        ]  # fmt: skip
        for found, real in zip(interp.evaluate(nodes, {"x": image, "w": weight}), expected, strict=True):
            close(found, real, 1e-5)


# ---- pooling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_pool(rank: int) -> None:
    x = normal(2, 3, *(9, 8, 7)[:rank])
    x.reshape(-1)[5] = np.nan
    reference: Any = [F.max_pool1d, F.max_pool2d, F.max_pool3d][rank - 1]
    for kernel, stride, pad, dilation, ceil in itertools.product((2, 3), (1, 2, 3), (0, 1), (1, 2), (False, True)):
        found = run(
            lambda a, k=kernel, s=stride, p=pad, d=dilation, c=ceil: pooling.max_pool(
                a, [k] * rank, [s] * rank, [p] * rank, [p] * rank, [d] * rank, c
            ), x,
        )  # fmt: skip
        close(found, reference(torch.from_numpy(x), kernel, stride, pad, dilation, ceil))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("include_pad", [False, True])
def test_avg_pool(rank: int, include_pad: bool) -> None:
    x = normal(2, 3, *(9, 8, 7)[:rank])
    reference: Any = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][rank - 1]
    for kernel, stride, pad, ceil in itertools.product((2, 3), (1, 2, 3), (0, 1), (False, True)):
        attributes: Any = ([kernel] * rank, [stride] * rank, [pad] * rank, [pad] * rank, None, ceil, include_pad)
        found = run(lambda a, attributes=attributes: pooling.avg_pool(a, *attributes), x)
        close(found, reference(torch.from_numpy(x), kernel, stride, pad, ceil, include_pad))
    if rank == 2:
        found = run(lambda a: pooling.avg_pool(a, [3, 2], [1, 2], divisor_override=5), x)
        close(found, F.avg_pool2d(torch.from_numpy(x), (3, 2), (1, 2), divisor_override=5))


def test_dilated_avg_pool_counts_its_own_taps() -> None:
    x = normal(1, 1, 7)
    ones = np.ones_like(x)
    kernel = torch.ones(1, 1, 3)
    total = F.conv1d(torch.from_numpy(x), kernel, None, 1, 2, 2)
    taps = F.conv1d(torch.from_numpy(ones), kernel, None, 1, 2, 2)
    found = run(lambda a: pooling.avg_pool(a, [3], [1], [2], [2], [2], count_include_pad=False), x)
    close(found, total / taps)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (9, 8), (4, 3), (5, None), (10, 11)])
def test_adaptive_pool(size: tuple[int, int | None]) -> None:
    x = normal(2, 3, 9, 8)
    t = torch.from_numpy(x)
    close(run(lambda a: pooling.adaptive_avg_pool(a, size), x), F.adaptive_avg_pool2d(t, size))
    close(run(lambda a: pooling.adaptive_max_pool(a, size), x), F.adaptive_max_pool2d(t, size))


def test_integer_max_pool_pads_with_the_lowest() -> None:
    x: Array = np.full((1, 1, 4), -128, np.int8)
    assert np.array_equal(run(lambda a: pooling.max_pool(a, [3], [1], [1], [1]), x), x)
