"""Resampling of images and volumes, and sampling at positions that a tensor holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from luminal.core import symbolic as sym
from luminal.core import types
from luminal.core.decompose import indexing, resample, sampling
from luminal.core.decompose.common import count
from luminal.core.decompose.compare import maximum
from luminal.core.decompose.resample import Method, Resampling
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant, iota, multiply_add
from luminal.core.symbolic import Int
from luminal.core.types import DType
from luminal.frontends.fx.registry import aten, register

# ---- resampling ----------------------------------------------------------------------------------


def _upsample(x: Node, sizes: Sequence[Int] | None, scales: Sequence[float | None] | None) -> list[Resampling]:
    """The resampling along each spatial axis, to ``sizes`` or by the factors ``scales``. A factor that is given is used
    as it is, even where the ratio of the sizes differs."""
    spatial = x.rank - 2
    factors = [None] * spatial if scales is None else list(scales)
    factors += [None] * (spatial - len(factors))
    extents = x.shape[2:]
    if sizes is None:
        sizes = [_scaled(n, f) for n, f in zip(extents, factors, strict=True)]
    return [Resampling(2 + k, size, factors[k] or None) for k, size in enumerate(sizes)]


def _scaled(extent: Int, factor: float | None) -> Int:
    """The product rounded towards zero. Symbolic sizes need a factor with few binary digits, for which a float product
    is exact; for other factors PyTorch's sizes depend on how each product rounds."""
    assert factor is not None
    if isinstance(extent, int):
        return int(extent * factor)
    if Fraction(factor).denominator > 1 << 16:
        raise ModelError(
            f"resampling the symbolic size {extent} by {factor}: expected a factor with few binary digits, such as 1.5 "
            "or 0.25; state the size instead"
        )
    return resample.scaled_size(extent, factor)


@dataclass(frozen=True)
class Interpolation:
    """A method of interpolation. With ``keeps_equal``, an axis whose size stays the same is left alone, whatever the
    factor."""

    method: Method
    keeps_equal: bool = True

    def __call__(self, x: Node, along: Sequence[Resampling], align_corners: bool) -> Node:
        if not x.dtype.is_float:
            raise UnsupportedError(f"interpolation of {x.dtype}; convert the operand to a float type")
        antialias = self.method.antialias
        planned: list[Resampling] = []
        for by in along:
            extent = x.shape[by.axis]
            if align_corners:
                by = replace(by, scale=_aligned(extent, by.size) if antialias else None)
            if self.keeps_equal and by.size == extent:
                by = replace(by, scale=None)
            elif antialias and by.scale is None and not (isinstance(extent, int) and isinstance(by.size, int)):
                raise UnsupportedError(f"antialiasing from {extent} to {by.size} elements; fix the sizes")
            planned.append(by)
        # Antialiasing leaves its places half a pixel in with aligned corners too; the ratio alone is theirs.
        transform = "align_corners" if align_corners and not antialias else "half_pixel"
        return resample.resample(x, planned, replace(self.method, transform=transform))


def _aligned(extent: Int, size: Int) -> float | None:
    """The ratio of the distances between the first and last elements, where it is known."""
    if not isinstance(extent, int) or not isinstance(size, int):
        return None
    return (size - 1) / (extent - 1) if extent > 1 and size > 1 else math.inf


_INTERPOLATIONS = {
    "upsample_linear1d": Interpolation(Method("linear")),
    "upsample_bilinear2d": Interpolation(Method("linear")),
    "upsample_trilinear3d": Interpolation(Method("linear")),
    "upsample_bicubic2d": Interpolation(Method("cubic"), keeps_equal=False),
    "_upsample_bilinear2d_aa": Interpolation(Method("linear", antialias=True, exclude_outside=True)),
    "_upsample_bicubic2d_aa": Interpolation(Method("cubic", cubic=-0.5, antialias=True, exclude_outside=True)),
}


def _of_factors(interpolation: Interpolation) -> Callable[..., Node]:
    def handler(
        input: Node, output_size: Sequence[Int] | None, align_corners: bool, scale_factors: Sequence[float] | None
    ) -> Node:
        return interpolation(input, _upsample(input, output_size, scale_factors), align_corners)

    return handler


def _of_sizes(interpolation: Interpolation) -> Callable[..., Node]:
    def handler(self: Node, output_size: Sequence[Int], align_corners: bool, *scales: float | None) -> Node:
        return interpolation(self, _upsample(self, output_size, scales), align_corners)

    return handler


for _name, _interpolation in _INTERPOLATIONS.items():
    register(f"aten.{_name}.default", _of_sizes(_interpolation))
    register(f"aten.{_name}.vec", _of_factors(_interpolation))


def _nearest(x: Node, along: Sequence[Resampling], place: Callable[[Node, Node], Node]) -> Node:
    """A factor that is given decides, as in PyTorch; but PyTorch's kernel for images whose height and width sum up to
    at most 128 uses the sizes where they are equal or doubled."""
    for by in along:
        x = _nearest_along(x, by, place)
    return x


def _nearest_along(x: Node, by: Resampling, place: Callable[[Node, Node], Node]) -> Node:
    extent = x.shape[by.axis]
    times = sym.floordiv(by.size, extent)
    if isinstance(times, int) and _is_power_of_two(times) and by.size == extent * times and by.scale in (None, times):
        return indexing.repeat_interleave(x, times, by.axis)  # the same: computed positions would be exact here
    dtype = x.dtype.compute if x.dtype.is_float else types.f32
    return resample.nearest(x, by.axis, place(iota(by.size), _step(extent, by, dtype)), "floor")


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _step(extent: Int, by: Resampling, dtype: DType) -> Node:
    """The distance of neighbouring positions, rounded as PyTorch rounds it, since it decides which element is read."""
    if by.scale is not None:
        return constant(1 / by.scale, dtype)
    return count(extent, dtype) / count(by.size, dtype)


def _at_start(index: Node, step: Node) -> Node:
    return cast(cast(index, step.dtype) * step, types.f32)


def _at_centre(index: Node, step: Node) -> Node:
    """Positions of the centres, clamped at 0, plus 0.5; the product and the subtraction of 0.5 round once."""
    return cast(maximum(multiply_add(cast(index, step.dtype) + 0.5, step, -0.5), 0) + 0.5, types.f32)


def _nearest_of_factors(place: Callable[[Node, Node], Node]) -> Callable[..., Node]:
    def handler(input: Node, output_size: Sequence[Int] | None, scale_factors: Sequence[float] | None) -> Node:
        return _nearest(input, _upsample(input, output_size, scale_factors), place)

    return handler


def _nearest_of_sizes(place: Callable[[Node, Node], Node]) -> Callable[..., Node]:
    def handler(self: Node, output_size: Sequence[Int], *scales: float | None) -> Node:
        return _nearest(self, _upsample(self, output_size, scales), place)

    return handler


for _name, _place in {"upsample_nearest": _at_start, "_upsample_nearest_exact": _at_centre}.items():
    for _spatial in (1, 2, 3):
        register(f"aten.{_name}{_spatial}d.default", _nearest_of_sizes(_place))
        register(f"aten.{_name}{_spatial}d.vec", _nearest_of_factors(_place))


# ---- sampling ------------------------------------------------------------------------------------

_MODES = ("linear", "nearest", "cubic")


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(input: Node, grid: Node, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Node:
    mode, padding = _MODES[interpolation_mode], sampling.PADDINGS[padding_mode]
    return sampling.grid_sample(input, grid, mode, padding, align_corners, rounded_inside=True)
