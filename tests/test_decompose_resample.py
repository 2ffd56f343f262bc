"""Resampling and sampling at positions, against PyTorch: sizes known and symbolic, element types, both ends."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from luminal.core import interp, ir, types
from luminal.core import symbolic as sym
from luminal.core.decompose import arithmetic, sampling, transposed
from luminal.core.decompose.resample import Method, Resampling, resample, scaled_size
from luminal.core.types import DType

Array = np.ndarray[Any, Any]


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SYMBOLIC = [
    (Method("nearest", "asymmetric", "floor"), "nearest", None),
    (Method("linear", "pytorch_half_pixel"), "bilinear", False),
    (Method("cubic", "pytorch_half_pixel"), "bicubic", False),
]


@pytest.mark.parametrize(("method", "mode", "align"), SYMBOLIC, ids=lambda value: str(value))
@pytest.mark.parametrize("scale", [2.0, 1.5, 0.5])
def test_one_graph_serves_every_size(method: Method, mode: str, align: bool | None, scale: float) -> None:
    height, width = sym.var("h", 4, 64), sym.var("w", 4, 64)
    x = ir.input_("x", (2, 3, height, width), types.f32)
    along = [Resampling(axis, scaled_size(x.shape[axis], scale), scale) for axis in (2, 3)]
    y = resample(x, along, method)
    for sizes in ((4, 4), (8, 5), (13, 64)):
        given = values(2, 3, *sizes)
        (found,) = interp.evaluate([y], {"x": given})
        tensor = torch.from_numpy(given)
        wanted = functional.interpolate(
            tensor.double(), scale_factor=scale, mode=mode, align_corners=align, recompute_scale_factor=False
        )
        np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [types.f16, types.bf16, types.f64], ids=str)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_narrow_floats_are_rounded_once(dtype: DType, mode: str) -> None:
    given = values(1, 2, 9, 7).astype(dtype.numpy)
    x = ir.input_("x", given.shape, dtype)
    along = [Resampling(2, 5), Resampling(3, 3)]
    (found,) = interp.evaluate([resample(x, along, Method(mode, antialias=True))], {"x": given})
    (wide,) = interp.evaluate([resample(x, along, Method(mode, antialias=True))], {"x": given}, mode="float64")
    assert found.dtype == dtype.numpy
    np.testing.assert_allclose(found.astype(np.float64), wide, rtol=dtype.eps, atol=dtype.eps)
    tensor = torch.from_numpy(given.astype(np.float64))
    exact = functional.interpolate(tensor, (5, 3), mode=f"bi{mode}", antialias=True).numpy()
    if (
        mode == "linear"
    ):  # of another cubic parameter in PyTorch, and without weight beyond the ends, which ONNX repeats
        inner = (slice(None), slice(None), slice(1, -1), slice(1, -1))
        np.testing.assert_allclose(wide[inner], exact[inner], rtol=1e-6, atol=1e-6)


def test_integers_are_rounded_and_saturated() -> None:
    given = np.array([[0, 255, 0, 255, 255]], np.uint8)
    x = ir.input_("x", given.shape, types.u8)
    y = resample(x, [Resampling(1, 10, 2.0)], Method("cubic"))
    (found,) = interp.evaluate([y], {"x": given})
    (exact,) = interp.evaluate([resample(ir.cast(x, types.f64), [Resampling(1, 10, 2.0)], Method("cubic"))],
                               {"x": given})  # fmt: skip
    assert exact.min() < 0 and exact.max() > 255
    np.testing.assert_array_equal(found, np.clip(np.rint(exact), 0, 255))


def test_repeating_and_thinning_out_move_nothing() -> None:
    x = ir.input_("x", (1, 6), types.f32)
    for size in (12, 18, 3, 2):
        y = resample(x, [Resampling(1, size)], Method("nearest", "asymmetric", "floor"))
        assert y.op.name == "View"


# ---- at places that data give --------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", sampling.PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    image, grid = values(2, 3, 5, 6), values(2, 4, 7, 2, seed=1) * 1.5
    x, g = ir.input_("x", image.shape, types.f32), ir.input_("g", grid.shape, types.f32)
    (found,) = interp.evaluate([sampling.grid_sample(x, g, mode, padding, align)], {"x": image, "g": grid})
    name = mode if mode == "nearest" else f"bi{mode}"
    wanted = functional.grid_sample(torch.from_numpy(image), torch.from_numpy(grid), name, padding, align)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=2e-6)


def test_what_lies_outside_counts_as_zero_beside_an_infinity() -> None:
    image = np.full((1, 1, 2, 2), np.inf, np.float32)
    grid = np.full((1, 1, 1, 2), 3, np.float32)
    x, g = ir.input_("x", image.shape, types.f32), ir.input_("g", grid.shape, types.f32)
    (found,) = interp.evaluate([sampling.grid_sample(x, g)], {"x": image, "g": grid})
    assert found.item() == 0


# ---- windows run backwards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "more"),
    [((1, 1), (0, 0), (1, 1), (0, 0)), ((2, 3), (1, 2), (1, 1), (1, 0)), ((4, 2), (0, 1), (3, 2), (2, 1)),
     ((1, 5), (2, 0), (2, 1), (0, 4))],
)  # fmt: skip
def test_transposed_convolution(
    stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], more: tuple[int, int], groups: int
) -> None:
    image, weight, bias = values(2, 4, 5, 6), values(4, 3, 3, 2, seed=1), values(3 * groups, seed=2)
    wanted = functional.conv_transpose2d(
        *map(torch.from_numpy, (image, weight, bias)), stride, padding, more, groups, dilation
    ).numpy()
    height, width = sym.var("h", 1, 9), sym.var("w", 1, 9)
    x = ir.input_("x", (2, 4, height, width), types.f32)
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + m + 1
        for n, s, p, d, k, m in zip((height, width), stride, padding, dilation, (3, 2), more, strict=True)
    ]
    y = transposed.conv_transpose(
        x, ir.constant(weight), ir.constant(bias), stride, padding, sizes, dilation, groups
    )  # fmt: skip
    (found,) = interp.evaluate([y], {"x": image})
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [((1, 1), (0, 0), (1, 1)), ((2, 3), (1, 2), (1, 1)), ((3, 2), (0, 1), (2, 3))]
)
def test_fold_is_the_transpose_of_unfold(
    stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> None:
    kernel, sizes = (3, 2), (8, 7)
    unfolded = functional.unfold(torch.zeros(2, 2, *sizes), kernel, dilation, padding, stride)
    blocks = values(*unfolded.shape)
    wanted = functional.fold(torch.from_numpy(blocks), sizes, kernel, dilation, padding, stride).numpy()
    x = ir.input_("x", blocks.shape, types.f32)
    (found,) = interp.evaluate(
        [transposed.fold(x, kernel, stride, padding, sizes, padding, dilation)], {"x": blocks}
    )  # fmt: skip
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)


def test_halves_are_rounded_away_from_zero() -> None:
    below = np.nextafter(np.float32(0.5), np.float32(0))
    pairs = {
        below: 0.0, -below: -0.0, 0.5: 1.0, -0.5: -1.0, 1.5: 2.0, 2.5: 3.0, -2.5: -3.0, 2.25: 2.0, -0.0: -0.0,
        8388609.0: 8388609.0, math.inf: math.inf, -math.inf: -math.inf, math.nan: math.nan,
    }  # fmt: skip
    given, wanted = (np.array([*values], np.float32) for values in (pairs.keys(), pairs.values()))
    (found,) = interp.evaluate([arithmetic.round_away(ir.constant(given))], {})
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(wanted[:-1]))


@pytest.mark.parametrize("largest", [False, True])
def test_regions_without_end_are_pooled_in_a_limited_number_of_steps(largest: bool) -> None:
    ends = [[0, 0, math.inf, math.inf], [0, 0, 3e38, 3e38], [math.nan, 0, 1, 1], [0, 0, 2, 2]]
    regions, image = ir.constant(np.float32(ends)), np.ones((1, 1, 3, 2), np.float32)
    batch = ir.constant(np.zeros(4, np.int64))
    (found,) = interp.evaluate([sampling.roi_align(ir.constant(image), regions, batch, (1, 1), 0, 1, 0, largest)], {})
    assert found.shape == (4, 1, 1, 1) and (found[3] == (0.5 if largest else 1)).all()


def test_the_largest_of_elements_below_every_number() -> None:
    image = ir.constant(np.full((1, 1, 3, 2), -np.inf, np.float32))
    regions, batch = ir.constant(np.float32([[0, 0, 1, 1]])), ir.constant(np.zeros(1, np.int64))
    (found,) = interp.evaluate([sampling.roi_max_pool(image, regions, batch, (1, 2), 1.0)], {})
    assert (found == -np.inf).all()


# ---- positions on an element and halfway between two -----------------------------------------------------------------

EXACT: dict[str, Any] = {
    "half_pixel": lambda place, scale, before, after: (place + HALF) / scale - HALF,
    "pytorch_half_pixel": lambda place, scale, before, after: (
        (place + HALF) / scale - HALF if scale * before > 1 else Fraction(0)
    ),
    "half_pixel_symmetric": lambda place, scale, before, after: (
        Fraction(before, 2) * (1 - after / (scale * before)) + (place + HALF) / scale - HALF
    ),
    "tf_half_pixel_for_nn": lambda place, scale, before, after: (place + HALF) / scale,
    "asymmetric": lambda place, scale, before, after: place / scale,
    "align_corners": lambda place, scale, before, after: (
        place * (before - 1) / (scale * before - 1) if scale * before > 1 else Fraction(0)
    ),
}
HALF = Fraction(1, 2)
ROUNDED: dict[str, Any] = {
    "round_prefer_floor": lambda x: math.ceil(x - HALF),
    "round_prefer_ceil": lambda x: math.floor(x + HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}
SIZES = [1, 2, 3, 5, 7, 10, 15, 16, 20, 33, 60]
SCALES = [0.5, 1.5, 2, 1 / 3, 0.6, 0.1, 0.2, 0.7, 0.75, 0.8, 1.1, 1.2, 1.25, 2.5, 3, 3.3, 7 / 3]


@pytest.mark.parametrize("rounding", ROUNDED)
@pytest.mark.parametrize("mode", EXACT)
def test_the_nearest_element_is_that_of_exact_arithmetic(mode: str, rounding: str) -> None:
    """By the formulas of ONNX's specification, in rational numbers, and with scales as float32 holds them. onnxruntime
    computes in float32, where 3 / 0.6 is 5; as 0.6 is 0.60000002 there, the exact quotient is below 5."""
    for before in (1, 3, 5, 7, 10, 50):
        x = ir.input_("x", (before,), types.i32)
        scales = [float(np.float32(scale)) for scale in SCALES]
        cases = [Resampling(0, size) for size in SIZES if size != before]  # where the size stays, nothing is done
        cases += [Resampling(0, scaled_size(before, scale), scale) for scale in scales if scale * before >= 1]
        nodes = [resample(x, [by], Method("nearest", mode, rounding)) for by in cases]
        for by, found in zip(cases, interp.evaluate(nodes, {"x": np.arange(before, dtype=np.int32)}), strict=True):
            assert isinstance(by.size, int)
            scale = Fraction(by.size, before) if by.scale is None else Fraction(by.scale)
            places = [EXACT[mode](Fraction(k), scale, before, by.size) for k in range(by.size)]
            wanted = [min(max(ROUNDED[rounding](place), 0), before - 1) for place in places]
            assert found.tolist() == wanted, (before, by)
