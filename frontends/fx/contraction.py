"""Matrix products, convolutions and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from luminal.core import movement
from luminal.core import symbolic as sym
from luminal.core.decompose import attention, contraction, factorisation, reduction
from luminal.core.decompose import transposed as backwards
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, cast
from luminal.core.symbolic import Int
from luminal.core.types import DType
from luminal.frontends.fx.pointwise import product
from luminal.frontends.fx.promotion import Scalar, as_node, promote
from luminal.frontends.fx.registry import aten, direct

T = TypeVar("T")

direct(
    {
        "matmul linalg_matmul mm bmm mv dot": contraction.matmul,
        "linear": contraction.linear,
        "det linalg_det": factorisation.det,
        "slogdet linalg_slogdet": factorisation.slogdet,
    }
)


@aten("inner")
def inner(self: Node, other: Node) -> Node:
    """The sum of products along the last axes of both: ``[.., K] x [.., K] -> [.., ..]``; a number multiplies."""
    if self.rank == 0 or other.rank == 0:
        return self * other
    rows = movement.reshape(other, [sym.product(other.shape[:-1]), other.shape[-1]])
    return movement.reshape(contraction.linear(self, rows), [*self.shape[:-1], *other.shape[:-1]])


@aten("addmm", "baddbmm", "addmv")
def addmm(self: Node, mat1: Node, mat2: Node, beta: Scalar = 1, alpha: Scalar = 1) -> Node:
    """``beta * self + alpha * (mat1 @ mat2)``; with ``beta`` 0, ``self`` is not read, NaN and all."""
    wide = self.dtype.compute
    product = _scaled(contraction.matmul(cast(mat1, wide), cast(mat2, wide)), alpha)
    return cast(product if beta == 0 else product + _scaled(cast(self, wide), beta), self.dtype)


@aten("addbmm")
def addbmm(self: Node, batch1: Node, batch2: Node, beta: Scalar = 1, alpha: Scalar = 1) -> Node:
    """As ``addmm`` of the sum of the products of ``[B, M, K]`` and ``[B, K, N]``: one product over B and K."""
    batch, rows, depth = batch1.shape
    left = movement.reshape(movement.permute(batch1, [1, 0, 2]), [rows, batch * depth])
    right = movement.reshape(batch2, [batch * depth, batch2.shape[2]])
    return addmm(self, left, right, beta, alpha)


def _scaled(x: Node, factor: Scalar) -> Node:
    return x if factor == 1 else x * as_node(factor, x.dtype)


@aten("outer", "ger")
def outer(self: Node, vec2: Node, *, result: DType) -> Node:
    a, b = promote([self, vec2], result)
    return product(movement.unsqueeze(a, [1]), movement.unsqueeze(b, [0]))


@aten("einsum")
def einsum(equation: str, tensors: Sequence[Node], *, path: Sequence[int] | None = None) -> Node:
    return contraction.einsum(equation, *tensors)


@aten("_trilinear")
def trilinear(
    i1: Node, i2: Node, i3: Node, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Node:  # fmt: skip
    """The sum of products of three tensors, each with axes put in."""
    wide = i1.dtype.compute
    a, b, c = (movement.unsqueeze(cast(x, wide), axes) for x, axes in ((i1, expand1), (i2, expand2), (i3, expand3)))
    return cast(reduction.sum_(a * b * c, sumdim), i1.dtype)


@aten("_linalg_det")
def det_and_factors(A: Node) -> tuple[Node, None, None]:
    """The determinants; the factors are for gradients."""
    return factorisation.det(A), None, None


@aten("_linalg_slogdet")
def slogdet_and_factors(A: Node) -> tuple[Node, Node, None, None]:
    """Signs and logarithms; the factors are for gradients."""
    return *factorisation.slogdet(A), None, None


# ---- convolution ---------------------------------------------------------------------------------


@aten("convolution", "_convolution")
def convolution(
    input: Node, weight: Node, bias: Node | None, stride: Sequence[int], padding: Sequence[Int],
    dilation: Sequence[int], backwards: bool, output_padding: Sequence[Int], groups: int, *options: bool,
) -> Node:  # fmt: skip
    if backwards:
        return conv_transpose(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return _convolve(input, weight, bias, stride, padding, dilation, groups)


@aten("conv1d", "conv2d", "conv3d")
def conv(
    input: Node, weight: Node, bias: Node | None = None, stride: Sequence[int] | int = 1,
    padding: Sequence[Int] | int = 0, dilation: Sequence[int] | int = 1, groups: int = 1,
) -> Node:  # fmt: skip
    return _convolve(input, weight, bias, stride, padding, dilation, groups)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_named_padding(
    input: Node, weight: Node, bias: Node | None = None, stride: Sequence[int] | int = 1, padding: str = "valid",
    dilation: Sequence[int] | int = 1, groups: int = 1,
) -> Node:  # fmt: skip
    """``same`` pads by ``dilation * (kernel - 1)`` in all, the odd element at the end."""
    spatial = weight.rank - 2
    total: list[Int] = [0] * spatial
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(each(dilation, spatial), weight.shape[2:], strict=True)]
    before = [t // 2 for t in total]
    after = [t - b for t, b in zip(total, before, strict=True)]
    return _convolve(input, weight, bias, stride, before, dilation, groups, after)


def _convolve(
    x: Node, weight: Node, bias: Node | None, stride: Sequence[int] | int, before: Sequence[Int] | Int,
    dilation: Sequence[int] | int, groups: int, after: Sequence[Int] | None = None,
) -> Node:  # fmt: skip
    spatial = weight.rank - 2
    batched = _batched(x, weight.rank)
    pads: list[Int] = each(before, spatial)
    result = contraction.conv(
        batched, weight, bias, each(stride, spatial), pads, after or pads, each(dilation, spatial), groups
    )
    return result if batched is x else movement.squeeze(result, [0])


def _batched(x: Node, rank: int) -> Node:
    """``x`` of ``rank`` axes: a batch of one where it has none."""
    return x if x.rank == rank else movement.unsqueeze(x, [0])


@aten("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    input: Node, weight: Node, bias: Node | None = None, stride: Sequence[int] | int = 1,
    padding: Sequence[Int] | int = 0, output_padding: Sequence[Int] | int = 0, groups: int = 1,
    dilation: Sequence[int] | int = 1,
) -> Node:  # fmt: skip
    spatial = weight.rank - 2
    steps, reaches = each(stride, spatial), each(dilation, spatial)
    pads: list[Int] = each(padding, spatial)
    extra: list[Int] = each(output_padding, spatial)
    batched = _batched(input, weight.rank)
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(batched.shape[2:], steps, pads, reaches, weight.shape[2:], extra, strict=True)
    ]
    result = backwards.conv_transpose(batched, weight, bias, steps, pads, sizes, reaches, groups)
    return result if batched is input else movement.squeeze(result, [0])


@aten("convolution_backward")
def convolution_backward(
    grad_output: Node, input: Node, weight: Node, bias_sizes: Sequence[Int] | None, stride: Sequence[int] | int,
    padding: Sequence[Int] | int, dilation: Sequence[int] | int, transposed: bool, output_padding: Sequence[Int],
    groups: int, output_mask: Sequence[bool],
) -> tuple[Node | None, Node | None, Node | None]:  # fmt: skip
    """The gradients for the input, the weight and the bias, as far as ``output_mask`` asks for them."""
    spatial = weight.rank - 2
    steps, reaches = each(stride, spatial), each(dilation, spatial)
    pads: list[Int] = each(padding, spatial)
    sizes, kernel = input.shape[2:], weight.shape[2:]
    of_input = of_weight = of_bias = None
    if output_mask[0] and transposed:
        of_input = _convolve(grad_output, weight, None, steps, pads, reaches, groups)
    elif output_mask[0]:
        of_input = backwards.conv_transpose(grad_output, weight, None, steps, pads, sizes, reaches, groups)
    if output_mask[1]:
        # A transposed convolution is one from its result to its input.
        source, result = (grad_output, input) if transposed else (input, grad_output)
        of_weight = backwards.conv_weight_gradient(source, result, kernel, steps, pads, reaches, groups)
    if output_mask[2]:
        of_bias = reduction.sum_(grad_output, [0, *range(2, 2 + spatial)])
    return of_input, of_weight, of_bias


@aten("col2im")
def col2im(
    self: Node, output_size: Sequence[Int], kernel_size: Sequence[int] | int, dilation: Sequence[int] | int,
    padding: Sequence[int] | int, stride: Sequence[int] | int,
) -> Node:  # fmt: skip
    kernel, reaches, pads, steps = (each(value, 2) for value in (kernel_size, dilation, padding, stride))
    batched = _batched(self, 3)
    result = backwards.fold(batched, kernel, steps, pads, each(output_size, 2), pads, reaches)
    return result if batched is self else movement.squeeze(result, [0])


def each(value: Sequence[T] | T, count: int) -> list[T]:
    """One value for each of ``count`` spatial axes; a single one stands for all."""
    if not isinstance(value, Sequence):
        return [value] * count
    return list(value) * count if len(value) == 1 else list(value)


# ---- attention -----------------------------------------------------------------------------------


@aten("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Node, key: Node, value: Node, attn_mask: Node | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Node:  # fmt: skip
    if dropout_p != 0:
        raise UnsupportedError("attention with dropout; export the module in evaluation mode, after .eval()")
    return attention.scaled_dot_product_attention(query, key, value, attn_mask, is_causal, scale, enable_gqa)


@aten("_scaled_dot_product_flash_attention_for_cpu")
def attention_for_gradients(
    query: Node, key: Node, value: Node, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Node | None = None, scale: float | None = None,
) -> tuple[Node, Node]:  # fmt: skip
    """PyTorch takes it without dropout alone, and for keys of as many heads as queries."""
    return attention.attention_and_sums(query, key, value, attn_mask, is_causal, scale)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad_out: Node, query: Node, key: Node, value: Node, out: Node, logsumexp: Node, dropout_p: float, is_causal: bool,
    *, attn_mask: Node | None = None, scale: float | None = None,
) -> tuple[Node, Node, Node]:  # fmt: skip
    return attention.attention_backward(grad_out, query, key, value, out, logsumexp, attn_mask, is_causal, scale)
