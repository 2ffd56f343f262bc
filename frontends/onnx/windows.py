"""The attributes that convolutions and poolings share: kernel, strides, dilations, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luminal.core import symbolic as sym
from luminal.core.errors import ModelError
from luminal.core.ir import Node
from luminal.core.symbolic import Int
from luminal.frontends.onnx.registry import Call, exactly


@dataclass(frozen=True)
class Window:
    """One entry for each spatial axis."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads_begin: list[Int]
    pads_end: list[Int]

    @property
    def sizes(self) -> tuple[list[int], list[int], list[Int], list[Int], list[int]]:
        """In the order in which poolings take them."""
        return self.kernel, self.strides, self.pads_begin, self.pads_end, self.dilations


def kernel_window(call: Call, x: Node, weight: Node) -> Window:
    """The window of the kernel ``weight [out, in, *kernel]`` over ``x [batch, channels, *sizes]``.

    Raises ModelError where they have other axes, and as ``window``.
    """
    if x.rank < 3 or weight.rank != x.rank:
        raise ModelError(f"expected an input and a kernel of one rank, at least 3, found {x.rank} and {weight.rank}")
    kernel = [size for size in weight.shape[2:] if isinstance(size, int)]
    exactly(kernel, x.rank - 2, "fixed sizes of the kernel")
    return window(call, x.shape[2:], kernel)


def window(call: Call, sizes: Sequence[Int], kernel: Sequence[int] | None = None) -> Window:
    """The window that slides over spatial axes of ``sizes``; ``kernel`` is known from the weights of a convolution.

    Raises ModelError where an attribute has the wrong number of entries or one that is not positive.
    """
    given = call.integers("kernel_shape") or kernel
    if given is None:
        raise ModelError("the attribute 'kernel_shape' is required")
    axes = len(sizes)
    kernel = list(given) if kernel is None else list(kernel)
    if list(given) != kernel:
        raise ModelError(f"kernel_shape {list(given)} does not fit the kernel's {kernel}")
    strides, dilations = call.integers("strides") or [1] * axes, call.integers("dilations") or [1] * axes
    pads = call.integers("pads") or [0] * (2 * axes)
    for name, values in {"kernel_shape": kernel, "strides": strides, "dilations": dilations}.items():
        exactly(values, axes, f"entries of {name!r}")
        if min(values) < 1:
            raise ModelError(f"attribute {name!r}: expected positive numbers, found {values}")
    exactly(pads, 2 * axes, "entries of 'pads'")
    automatic = call.text("auto_pad", "NOTSET")
    begin: list[Int] = list(pads[:axes])
    end: list[Int] = list(pads[axes:])
    if automatic == "VALID":
        begin, end = [0] * axes, [0] * axes
    elif automatic in ("SAME_UPPER", "SAME_LOWER"):
        totals = [_same(*one) for one in zip(sizes, kernel, strides, dilations, strict=True)]
        halves: list[Int] = [sym.floordiv(total, 2) for total in totals]
        others: list[Int] = [total - half for total, half in zip(totals, halves, strict=True)]
        begin, end = (halves, others) if automatic == "SAME_UPPER" else (others, halves)
    elif automatic not in ("NOTSET", ""):
        raise ModelError(f"attribute 'auto_pad': expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {automatic!r}")
    return Window(kernel, strides, dilations, begin, end)


def _same(size: Int, kernel: int, stride: int, dilation: int) -> Int:
    """Padding with which ``ceil(size / stride)`` windows fit."""
    reach = (sym.ceildiv(size, stride) - 1) * stride + (kernel - 1) * dilation + 1
    return sym.maximum(reach - size, 0)
