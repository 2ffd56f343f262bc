"""Normalisation and pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from luminal.core import movement
from luminal.core import symbolic as sym
from luminal.core.decompose import indexing, normalize, pooling, reduction, scattering
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node
from luminal.core.symbolic import Int
from luminal.frontends.fx.contraction import each
from luminal.frontends.fx.registry import aten, register, table

Result = TypeVar("Result", Node, tuple[Node, Node])

# ---- normalisation -------------------------------------------------------------------------------


def _last(x: Node, normalized_shape: Sequence[Int]) -> range:
    return range(x.rank - len(normalized_shape), x.rank)


@aten("layer_norm")
def layer_norm(
    input: Node, normalized_shape: Sequence[Int], weight: Node | None = None, bias: Node | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Node:  # fmt: skip
    return normalize.layer_norm(input, _last(input, normalized_shape), weight, bias, eps)


@aten("native_layer_norm")
def native_layer_norm(
    input: Node, normalized_shape: Sequence[Int], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, Node, Node]:
    """The normalised values, the means and the reciprocals of the standard deviations."""
    over = _last(input, normalized_shape)
    return normalize.layer_norm(input, over, weight, bias, eps), *_statistics(input, over, eps)


def _statistics(x: Node, over: Sequence[int], eps: float) -> tuple[Node, Node]:
    return reduction.mean(x, over, keepdims=True), normalize.inverse_deviation(x, over, eps)


@aten("rms_norm")
def rms_norm(
    input: Node, normalized_shape: Sequence[Int], weight: Node | None = None, eps: float | None = None
) -> Node:
    """Without ``eps`` PyTorch takes the distance from 1 to the next number of the type."""
    return normalize.rms_norm(input, _last(input, normalized_shape), weight, input.dtype.eps if eps is None else eps)


_TRAINING = "batch normalisation by the statistics of the batch; export the module in evaluation mode, after .eval()"


@aten("native_batch_norm")
def training_batch_norm(*arguments: object) -> Node:
    raise UnsupportedError(_TRAINING)


@aten("_native_batch_norm_legit_functional")
def batch_norm_and_statistics(
    input: Node, weight: Node | None, bias: Node | None, running_mean: Node, running_var: Node, training: bool,
    momentum: float, eps: float,
) -> tuple[Node, Node, Node, Node, Node]:  # fmt: skip
    """The normalised values, the batch's means and reciprocals of standard deviations, and the new running statistics,
    of which the variances are without bias."""
    if not training:
        result = normalize.batch_norm(input, weight, bias, running_mean, running_var, eps)
        nothing = indexing.full((0,), 0, running_mean.dtype)
        return result, nothing, nothing, running_mean, running_var
    result, mean, inverse = batch_norm_of_batch(input, weight, bias, training, momentum, eps)
    unbiased = reduction.variance(input, [axis for axis in range(input.rank) if axis != 1])
    moved = [old * (1 - momentum) + new * momentum for old, new in ((running_mean, mean), (running_var, unbiased))]
    return result, mean, inverse, moved[0], moved[1]


@aten("batch_norm")
def batch_norm(
    input: Node, weight: Node | None, bias: Node | None, running_mean: Node | None, running_var: Node | None,
    training: bool, momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Node:  # fmt: skip
    """With stored statistics; a layer that stores none normalises by those of the batch in either mode."""
    if running_mean is None or running_var is None:
        return batch_norm_of_batch(input, weight, bias, training, momentum, eps)[0]
    if training:
        raise UnsupportedError(_TRAINING)
    return normalize.batch_norm(input, weight, bias, running_mean, running_var, eps)


@aten("_native_batch_norm_legit_no_training")
def native_batch_norm(
    input: Node, weight: Node | None, bias: Node | None, running_mean: Node, running_var: Node, momentum: float,
    eps: float,
) -> tuple[Node, None, None]:  # fmt: skip
    """The normalised values; the statistics are for training."""
    return normalize.batch_norm(input, weight, bias, running_mean, running_var, eps), None, None


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    input: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float, eps: float
) -> tuple[Node, Node, Node]:
    """Normalised by the statistics of the batch, which follow: the means and the reciprocals of the standard
    deviations."""
    over = [k for k in range(input.rank) if k != 1]
    means, inverses = (movement.reshape(x, [input.shape[1]]) for x in _statistics(input, over, eps))
    scale, shift = (None if x is None else normalize.channels(x, input) for x in (weight, bias))
    return normalize.layer_norm(input, over, scale, shift, eps), means, inverses


@aten("group_norm")
def group_norm(
    input: Node, num_groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Node:  # fmt: skip
    return normalize.group_norm(input, num_groups, weight, bias, eps)


@aten("native_group_norm")
def native_group_norm(
    input: Node, weight: Node | None, bias: Node | None, N: Int, C: Int, HxW: Int, group: int, eps: float
) -> tuple[Node, Node, Node]:
    """The normalised values, the means and the reciprocals of the standard deviations, ``[N, group]``."""
    parts = movement.reshape(input, [N, group, sym.floordiv(C, group) * HxW])
    means, inverses = (movement.reshape(x, [N, group]) for x in _statistics(parts, [2], eps))
    return normalize.group_norm(input, group, weight, bias, eps), means, inverses


@aten("instance_norm")
def instance_norm(
    input: Node, weight: Node | None, bias: Node | None, running_mean: Node | None, running_var: Node | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Node:  # fmt: skip
    if use_input_stats:
        return normalize.instance_norm(input, weight, bias, eps)
    return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


# ---- pooling -------------------------------------------------------------------------------------


def _pool(function: Callable[..., Result], spatial: int) -> Callable[..., Result]:
    """Pooling over the last ``spatial`` axes; a stride left out is the kernel's size."""

    def handler(
        self: Node, kernel_size: Sequence[int] | int, stride: Sequence[int] | int = (),
        padding: Sequence[int] | int = 0, *options: object, **named: object,
    ) -> Result:  # fmt: skip
        kernel = each(kernel_size, spatial)
        steps = kernel if stride in ((), []) else each(stride, spatial)
        pads = each(padding, spatial)
        return function(self, kernel, steps, pads, *options, **named)

    return handler


def _max_pool(
    x: Node, kernel: list[int], strides: list[int], pads: list[int], dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> Node:  # fmt: skip
    return pooling.max_pool(x, kernel, strides, pads, pads, each(dilation, len(kernel)), ceil_mode)


def _avg_pool(
    x: Node, kernel: list[int], strides: list[int], pads: list[int], ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Node:  # fmt: skip
    return pooling.avg_pool(
        x, kernel, strides, pads, pads, None, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
        divisor_override=divisor_override,
    )  # fmt: skip


for _spatial in (1, 2, 3):
    table({f"max_pool{_spatial}d": _max_pool, f"avg_pool{_spatial}d": _avg_pool}, partial(_pool, spatial=_spatial))


def _max_pool_with_places(
    x: Node, kernel: list[int], strides: list[int], pads: list[int], dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> tuple[Node, Node]:  # fmt: skip
    windows = kernel, strides, pads, pads, each(dilation, len(kernel)), ceil_mode
    return pooling.max_pool(x, *windows), pooling.max_pool_place(x, *windows)


for _spatial in (2, 3):
    register(f"aten.max_pool{_spatial}d_with_indices.default", _pool(_max_pool_with_places, _spatial))


@aten("max_pool2d_with_indices_backward")
def max_pool_backward(
    grad_output: Node, self: Node, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, indices: Node,
) -> Node:  # fmt: skip
    """What each window's gradient adds to the element that it chose."""
    lead, pixels = self.shape[:-2], sym.product(self.shape[-2:])
    grads, places = (movement.reshape(x, [*lead, sym.product(x.shape[-2:])]) for x in (grad_output, indices))
    zeros = indexing.full([*lead, pixels], 0, self.dtype)
    return movement.reshape(scattering.scatter_elements(zeros, places, grads, -1, "add"), self.shape)


@aten("avg_pool2d_backward")
def avg_pool_backward(
    grad_output: Node, self: Node, kernel_size: Sequence[int] | int, stride: Sequence[int] | int,
    padding: Sequence[int] | int, ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Node:  # fmt: skip
    return _pool(_avg_pool_gradient, 2)(
        self, kernel_size, stride, padding, grad_output, count_include_pad, divisor_override
    )


def _avg_pool_gradient(
    x: Node, kernel: list[int], strides: list[int], pads: list[int], gradient: Node, *options: Any
) -> Node:
    return pooling.avg_pool_gradient(gradient, x.shape[-2:], kernel, strides, pads, *options)


@aten("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool_backward(grad_output: Node, self: Node) -> Node:
    return pooling.adaptive_avg_pool_gradient(grad_output, self.shape[-2:])


def _adaptive_avg(spatial: int) -> Callable[..., Node]:
    return lambda self, output_size: pooling.adaptive_avg_pool(self, each(output_size, spatial))


def _adaptive_max(spatial: int) -> Callable[..., tuple[Node, Node]]:
    def handler(self: Node, output_size: Sequence[int] | int) -> tuple[Node, Node]:
        parts = each(output_size, spatial)
        return pooling.adaptive_max_pool(self, parts), pooling.adaptive_max_pool_place(self, parts)

    return handler


for _spatial in (1, 2, 3):
    register(f"aten.adaptive_avg_pool{_spatial}d.default", _adaptive_avg(_spatial))
    register(f"aten.adaptive_max_pool{_spatial}d.default", _adaptive_max(_spatial))
for _spatial in (2, 3):
    register(f"aten._adaptive_avg_pool{_spatial}d.default", _adaptive_avg(_spatial))
