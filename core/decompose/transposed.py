"""What runs windows backwards: transposed convolution, and the sum of overlapping blocks.

Element ``o`` of an axis of the result takes tap ``t`` of window ``l`` where ``l*stride + t*dilation = o + padding``.
With ``o + padding = q*stride + p`` the taps that a remainder ``p`` takes are every stride-th, from window ``q``
backwards: so each remainder is an ordinary sum over a window, with its own part of the kernel, and no zeros are put in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.common import widened
from luminal.core.decompose.contraction import conv, sliding
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, axes, reduce, view
from luminal.core.movement import permute, reshape, slice_
from luminal.core.symbolic import Int


@dataclass(frozen=True)
class _Axis:
    """One spatial axis: ``taps`` of each remainder, from window ``first`` on, with ``count`` windows."""

    kernel: int
    stride: int
    dilation: int
    padding: Int
    size: Int

    @property
    def taps(self) -> int:
        return self.kernel if self.stride == 1 else (self.dilation * (self.kernel - 1)) // self.stride + 1

    @property
    def first(self) -> Int:
        return sym.floordiv(self.padding, self.stride)

    @property
    def count(self) -> Int:
        return sym.ceildiv(self.size + self.padding, self.stride) - self.first

    @property
    def reach(self) -> int:
        """How many windows lie between two taps of a remainder."""
        return self.dilation if self.stride == 1 else 1

    def tap(self, number: Int, remainder: Int) -> tuple[Int, list[Int]]:
        """The tap of the kernel that is the ``number``-th of a remainder, and the conditions that there is one."""
        if self.stride == 1:
            return number, []
        place = number * self.stride + remainder
        tap = sym.floordiv(place, self.dilation)
        return tap, [self.kernel - 1 - tap, sym.mod(place, self.dilation) * -1]


def _axes(
    kernel: Sequence[Int],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[Int],
    sizes: Sequence[Int],
) -> list[_Axis]:
    known = [k for k in kernel if isinstance(k, int)]
    if len(known) != len(kernel):
        raise ShapeError(f"windows: the sizes of the kernel, {list(kernel)}, must be known")
    return [_Axis(*each) for each in zip(known, strides, dilations, padding, sizes, strict=True)]


@widened
def conv_transpose(
    x: Node, weight: Node, bias: Node | None, strides: Sequence[int], pads_begin: Sequence[Int], sizes: Sequence[Int],
    dilations: Sequence[int], groups: int = 1,
) -> Node:  # fmt: skip
    """The gradient of a convolution with respect to its input (Dumoulin and Visin, 2016).

    ``x`` is ``[N, C, *spatial]``, ``weight`` ``[C, M/groups, *kernel]``, ``bias`` ``[M]``; the result is
    ``[N, M, *sizes]``. It is one convolution that computes the remainders by the stride as channels, which are then
    laid between each other (Shi et al., 2016). Raises ShapeError where channels and groups do not fit.
    """
    spatial = x.rank - 2
    channels, per_group = weight.shape[:2]
    if spatial < 1 or weight.rank != x.rank or channels != x.shape[1] or sym.mod(channels, groups) != 0:
        raise ShapeError(
            f"transposed convolution: a weight of shape {list(weight.shape)} and {groups} groups do not fit "
            f"{list(x.shape)}"
        )
    over = _axes(weight.shape[2:], strides, dilations, pads_begin, sizes)
    remainders = [axis.stride for axis in over]
    begin: list[Int] = [axis.reach * (axis.taps - 1) - axis.first for axis in over]
    end: list[Int] = [axis.count + axis.first - size for axis, size in zip(over, x.shape[2:], strict=True)]
    phases = conv(x, _by_remainder(weight, over, groups), None, None, begin, end, [axis.reach for axis in over], groups)
    counts = phases.shape[2:]
    split = reshape(phases, [x.shape[0], groups * per_group, *remainders, *counts])
    order = [k for pair in zip(range(2 + spatial, 2 + 2 * spatial), range(2, 2 + spatial), strict=True) for k in pair]
    result = reshape(
        permute(split, [0, 1, *order]),
        [*split.shape[:2], *(count * stride for count, stride in zip(counts, remainders, strict=True))],
    )
    result = _cut(result, over)
    return result if bias is None else result + reshape(bias, [1, groups * per_group, *[1] * spatial])


@widened
def conv_weight_gradient(
    x: Node, gradient: Node, kernel: Sequence[Int], strides: Sequence[int], padding: Sequence[Int],
    dilations: Sequence[int], groups: int,
) -> Node:  # fmt: skip
    """``[M, C/groups, *kernel]``: the gradient of a convolution of ``x [N, C, *spatial]`` with respect to its weight,
    from the one for its result ``[N, M, *windows]``."""
    spatial, counts = len(kernel), gradient.shape[2:]
    taps = sliding(x, kernel, strides, padding, padding, dilations, counts=counts)
    # [N, g, 1, C/g, *windows, *kernel] times [N, g, M/g, 1, *windows, 1..], summed over N and the windows
    channels, filters = (sym.floordiv(operand.shape[1], groups) for operand in (x, gradient))
    left = reshape(taps, [x.shape[0], groups, 1, channels, *counts, *kernel])
    right = reshape(gradient, [x.shape[0], groups, filters, 1, *counts, *[1] * spatial])
    total = reduce(ops.SUM_REDUCE, left * right, [0, *range(4, 4 + spatial)])
    return reshape(total, [groups * filters, channels, *kernel])


def _by_remainder(weight: Node, over: Sequence[_Axis], groups: int) -> Node:
    """``[groups * M/groups * remainders, C/groups, *taps]``, the taps from the last window on."""
    channels, filters = weight.shape[:2]
    each = sym.floordiv(channels, groups)
    shape = (groups, filters, *(axis.stride for axis in over), each, *(axis.taps for axis in over))
    index = axes(shape)
    places: list[Int] = []
    valid: list[Int] = []
    for k, axis in enumerate(over):
        place, conditions = axis.tap(axis.taps - 1 - index[3 + len(over) + k], index[2 + k])
        places.append(place)
        valid += conditions
    fill = bytes(weight.dtype.itemsize)
    parts = view(weight, shape, [index[0] * each + index[2 + len(over)], index[1], *places], valid, fill)
    return reshape(parts, [sym.product(shape[: 2 + len(over)]), *shape[2 + len(over) :]])


def _cut(x: Node, over: Sequence[_Axis]) -> Node:
    """The windows' sum without the padding before and after the result."""
    for k, axis in enumerate(over):
        x = slice_(x, k + 2, axis.padding - axis.first * axis.stride, axis.size)
    return x


@widened
def fold(
    x: Node, kernel: Sequence[int], strides: Sequence[int], pads_begin: Sequence[Int], sizes: Sequence[Int],
    pads_end: Sequence[Int], dilations: Sequence[int],
) -> Node:  # fmt: skip
    """Blocks laid over each other and summed: ``[N, C * prod(kernel), windows] -> [N, C, *sizes]`` (ONNX Col2Im,
    torch.nn.functional.fold). Raises ShapeError where the number of blocks is not that of the windows."""
    over = _axes(kernel, strides, dilations, pads_begin, sizes)
    windows = [
        sym.floordiv(axis.size + axis.padding + after - axis.dilation * (axis.kernel - 1) - 1, axis.stride) + 1
        for axis, after in zip(over, pads_end, strict=True)
    ]
    if x.rank != 3 or sym.product(windows) != x.shape[2]:
        apart = [(sym.product(windows), x.shape[2])] if x.rank == 3 else []
        raise ShapeError(f"blocks of shape {list(x.shape)} do not fit {windows} windows", apart)
    batch, channels = x.shape[0], sym.floordiv(x.shape[1], sym.product(kernel))
    blocks = reshape(x, [batch, channels, *kernel, *windows])
    shape = [batch, channels]
    for axis in over:
        shape += [axis.count, axis.stride, axis.taps]
    index = axes(tuple(shape))
    taps: list[Int] = []
    places: list[Int] = []
    valid: list[Int] = []
    for k, (axis, count) in enumerate(zip(over, windows, strict=True)):
        q, remainder, number = index[2 + 3 * k : 5 + 3 * k]
        tap, conditions = axis.tap(number, remainder)
        place = q + axis.first - number * axis.reach
        taps.append(tap)
        places.append(place)
        valid += [*conditions, place, count - 1 - place]
    terms = view(blocks, shape, [*index[:2], *taps, *places], valid, bytes(x.dtype.itemsize))
    total = reduce(ops.SUM_REDUCE, terms, [4 + 3 * k for k in range(len(over))])
    return _cut(reshape(total, [batch, channels, *(axis.count * axis.stride for axis in over)]), over)
