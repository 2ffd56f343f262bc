"""Images and volumes of PyTorch resampled and sampled: every mode in the interpreter, a model compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import luminal
from luminal.core.errors import ModelError, UnsupportedError
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import to_numpy
from tests.fx_support import Call, Family, check, difference, floats, integers, together

# ---- resampling and sampling ------------------------------------------------------------------------

NEAREST = ("nearest", "nearest-exact")
SIZES: dict[str, dict[str, Any]] = {
    "larger": {"size": (15, 20)},
    "smaller": {"size": (4, 3)},
    "to one": {"size": (1, 1)},
    "one axis": {"size": (7, 18)},
    "twice": {"scale_factor": 2},
    "factors": {"scale_factor": (1.7, 0.63)},
    "factor near one": {"scale_factor": 1.05},
    "factors made anew": {"scale_factor": (1.7, 0.63), "recompute_scale_factor": True},
}


# Where the sizes stay, PyTorch's kernel for small images does not look at the factor.
NEAREST_SIZES = {name: size for name, size in SIZES.items() if name != "factor near one"}


def interpolations(modes: Iterable[str], sizes: dict[str, dict[str, Any]] = SIZES, **options: Any) -> Family:
    def function(mode: str, size: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: F.interpolate(x, mode=mode, **size, **options)

    return {f"{mode}, {name}": function(mode, size) for mode in modes for name, size in sizes.items()}


def test_nearest_elements() -> None:
    family = interpolations(NEAREST, NEAREST_SIZES)
    check(together(family), floats(2, 3, 7, 9))
    check(together(family), integers(0, 256, 2, 3, 7, 9, dtype=torch.uint8))


@pytest.mark.parametrize("mode", NEAREST)
def test_nearest_elements_where_rounding_decides(mode: str) -> None:
    sizes = [(2, 41), (2, 47), (2, 82), (3, 21), (7, 49), (33, 11), (83, 249), (20, 20.9), (20, 40.9)]

    def by(n: int, size: float) -> dict[str, Any]:
        return {"size": size} if isinstance(size, int) else {"scale_factor": size / n}

    for dtype in (torch.float32, torch.float64):
        wide = torch.arange(83, dtype=dtype)
        check(lambda x: [F.interpolate(x[None, None, :n], **by(n, m), mode=mode) for n, m in sizes], wide)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("antialias", [False, True])
def test_interpolation(align: bool, antialias: bool) -> None:
    family = interpolations(("bilinear", "bicubic"), align_corners=align, antialias=antialias)
    check(together(family), floats(2, 3, 7, 9))


def test_interpolation_along_one_axis_and_three() -> None:
    check(
        lambda x: [
            F.interpolate(each, size=size, scale_factor=factor, mode=mode, align_corners=align)
            for mode, each in (("linear", x[0, 0]), ("trilinear", x))
            for size, factor in ((9, None), (None, 1.6), (1, None))
            for align in (False, True)
        ],
        floats(2, 2, 4, 3, 5),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_interpolation_of_other_floats(dtype: torch.dtype) -> None:
    family = interpolations(("bilinear", "bicubic"), align_corners=False)
    check(together(family | interpolations(NEAREST, NEAREST_SIZES)), floats(2, 3, 7, 9, dtype=dtype))


def test_interpolation_of_any_size() -> None:
    family: Family = {
        "nearest, twice": lambda x: F.interpolate(x, scale_factor=2),
        "nearest, exact": lambda x: F.interpolate(x, scale_factor=2.5, mode="nearest-exact"),
        "nearest, size": lambda x: F.interpolate(x, size=(x.shape[2] * 3, 11)),
        "bilinear": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        "bilinear, size": lambda x: F.interpolate(x, size=(23, x.shape[3] + 1), mode="bilinear", align_corners=True),
        "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    }
    inputs = [(floats(2, 3, *size),) for size in ((5, 8), (7, 4), (2, 2), (12, 16))]
    dims = {"args_0": (None, None, "height", "width"), "height": (2, 16), "width": (2, 16)}
    check(together(family), *inputs[0], dims=dims, others=inputs[1:])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True), "fix the sizes"),
        (lambda x: F.interpolate((x * 9).to(torch.uint8), size=(4, 4), mode="bilinear"), "float type"),
    ],
)
def test_resampling_that_has_no_meaning_here(function: Callable[..., Any], expected: str) -> None:
    dims = {"args_0": (None, None, "height", None), "height": (2, 16)}
    with pytest.raises(UnsupportedError) as error:
        importer.load(Call(function), (floats(1, 2, 5, 6),), dims=dims)
    assert expected in str(error.value)


def test_a_symbolic_size_by_an_inexact_factor() -> None:
    function = Call(lambda x: F.interpolate(x, scale_factor=1.3))
    with pytest.raises(ModelError, match=r"upsample_nearest2d.*state the size instead"):
        importer.load(function, (floats(1, 2, 5, 6),), dims={"args_0": (None, None, "height", None)})


@pytest.mark.parametrize("align", [False, True])
def test_grid_sampling(align: bool) -> None:
    grid = floats(2, 5, 6, 2, seed=1) * 1.2
    grid[:, 0] = torch.linspace(-2, 2, 6)[:, None]  # halfway between elements, too
    grid[:, 1] = torch.arange(-6, 6).reshape(6, 2) / 4
    space = floats(2, 3, 4, 2, 3, seed=2) * 1.2
    paddings = ("zeros", "border", "reflection")
    check(
        lambda x, grid, volume, space: {
            "areas": [
                F.grid_sample(x, grid, mode, padding, align)
                for mode in ("bilinear", "nearest", "bicubic")
                for padding in paddings
            ],
            "volumes": [
                F.grid_sample(volume, space, mode, padding, align)
                for mode in ("bilinear", "nearest")
                for padding in paddings
            ],
        },
        floats(2, 3, 5, 4), grid, floats(2, 2, 4, 3, 5), space,
        tolerance=4e-6,
    )  # fmt: skip


# ---- compiled ---------------------------------------------------------------------------------------


class UNet(nn.Module):
    """One level down and up again, joined with what was there, and enlarged."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1)
        self.joined = nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        skip = F.relu(self.first(x))
        up = self.up(F.relu(self.inner(F.max_pool2d(skip, 2))))
        up = F.interpolate(up, size=skip.shape[2:], mode="bilinear", align_corners=True)
        result = self.head(F.relu(self.joined(torch.cat([up, skip], 1))))
        return tuple(F.interpolate(result, scale_factor=2, mode=mode) for mode in ("nearest", "bicubic"))


def agrees(module: nn.Module, compiled: Callable[..., Any], *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        expected, found = module(*inputs), compiled(*inputs)
    for wanted, result in zip(expected, found, strict=True):
        assert not difference(to_numpy(result), to_numpy(wanted), 1e-5)


@pytest.mark.parametrize(
    "dims",
    [None, {"x": ("batch", None, "height", None), "batch": (1, 4), "height": (4, 40)}],
    ids=["of one size", "of any size"],
)
def test_a_unet(dims: Mapping[str, Any] | None) -> None:
    torch.manual_seed(0)
    module = UNet().eval()
    compiled = luminal.compile(module, (floats(2, 3, 17, 12),), dims=dims)
    for batch, height in [(2, 17), *([(1, 4), (3, 30)] if dims else [])]:
        agrees(module, compiled, floats(batch, 3, height, 12))


def test_sampling_folding_and_positions_compiled() -> None:
    def function(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        return (
            F.grid_sample(x, grid, "bicubic", "reflection", False),
            F.grid_sample(x, grid, "nearest", "border", True),
            F.interpolate(x, size=(4, 5), mode="bilinear", antialias=True),
            F.fold(x.reshape(2, 4, 36), (7, 7), 2),
            values, places,
            torch.linalg.det(x[..., :3, :3]), *torch.linalg.slogdet(x[..., :3, :3]),
            x.logcumsumexp(2),
        )  # fmt: skip

    module, inputs = Call(function), (floats(2, 4, 6, 6), floats(2, 5, 3, 2, seed=1) * 1.2)
    agrees(module, luminal.compile(module, inputs), *inputs)
