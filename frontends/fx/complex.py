"""Complex tensors: every one is a tensor of pairs, with the operators that know of it in a table of their own."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from luminal.core import movement, types
from luminal.core import symbolic as sym
from luminal.core.decompose import complex as pairs
from luminal.core.decompose import conversion, fourier
from luminal.core.decompose import math as math_
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, broadcast, cast, constant, expand
from luminal.core.types import DType
from luminal.frontends.fx import (  # noqa: F401 - for their lines
    contraction,
    creation,
    indexing,
    linear_algebra,
    pointwise,
    reduction,
    scattering,
    shape,
    sizes,
)
from luminal.frontends.fx.promotion import Scalar, as_node
from luminal.frontends.fx.registry import COMPLEX, TABLE, Entry, aten, aten_name, table

# The type of the parts.
PARTS = {torch.complex32: types.f16, torch.complex64: types.f32, torch.complex128: types.f64}


@dataclass(frozen=True)
class Complex:
    """A complex tensor ``[..]`` as real and imaginary parts ``[.., 2]``."""

    pairs: Node


@dataclass(frozen=True)
class ComplexType:
    """A complex element type, by the type of its parts."""

    parts: DType


Operand: TypeAlias = Complex | Node | Scalar | complex


# For operators with complex operands or results; ``result`` is the type of parts.
_complex = partial(aten, entries=COMPLEX)


def _pairs(value: Operand, dtype: DType) -> Node:
    """A complex number or tensor with parts of ``dtype``; a real one has no imaginary part."""
    if isinstance(value, Complex):
        return cast(value.pairs, dtype)
    if isinstance(value, complex):
        return constant([value.real, value.imag], dtype)
    real = as_node(value, dtype)
    return pairs.pairs(real, constant(0, dtype))


# ---- the same to both parts --------------------------------------------------------------------------------------


# The arguments, by their names in ATen's schemas and in decompositions, that hold elements of the result; others are
# places and conditions.
_ELEMENTS = frozenset({"self", "x", "weight", "other", "tensors", "src", "source", "value", "values"})


def _by_parts(entry: Entry) -> Callable[..., Any]:
    names = tuple(inspect.signature(entry.handler).parameters)

    def handler(*arguments: Any, **named: Any) -> Any:
        given = dict(zip(names, arguments, strict=False)) | named
        real, imaginary = (
            entry.handler(**{k: pytree.tree_map(part, v) if k in _ELEMENTS else v for k, v in given.items()})
            for part in (_real_part, _imaginary_part)
        )
        if isinstance(real, Node):
            return Complex(pairs.pairs(real, imaginary))
        return [Complex(pairs.pairs(*both)) for both in zip(real, imaginary, strict=True)]

    return handler


def _real_part(value: Any) -> Any:
    if isinstance(value, Complex):
        return pairs.parts(value.pairs)[0]
    return value.real if isinstance(value, complex) else value


def _imaginary_part(value: Any) -> Any:
    """The imaginary part; of a real tensor, zeros of its type and shape."""
    if isinstance(value, Complex):
        return pairs.parts(value.pairs)[1]
    if isinstance(value, Node):
        return expand(constant(0, value.dtype), value.shape)
    return value.imag if isinstance(value, int | float | complex) else value


_BOTH = """alias clone detach lift_fresh_copy positive view reshape _unsafe_view permute transpose.int t expand squeeze
squeeze.dim squeeze.dims unsqueeze slice.Tensor select.int unbind.int split.Tensor split_with_sizes cat stack flip roll
repeat diagonal unfold pad constant_pad_nd neg sum sum.dim_IntList mean mean.dim cumsum tril triu index.Tensor
index_select gather where.self where.ScalarOther where.ScalarSelf where.Scalar fill.Scalar fill.Tensor
masked_fill.Scalar masked_fill.Tensor slice_scatter select_scatter diagonal_scatter index_copy index_put index_add
scatter.src scatter_add flatten.using_ints unflatten.int movedim.int movedim.intlist swapaxes narrow chunk tile
broadcast_tensors repeat_interleave.self_int take_along_dim embedding mT numpy_T detach_ lift alias_copy
view_copy _reshape_copy expand_copy permute_copy transpose_copy.int t_copy slice_copy.Tensor select_copy.int
diagonal_copy"""
for _overload in _BOTH.split():
    _entry = TABLE[aten_name(_overload)]
    COMPLEX[aten_name(_overload)] = Entry(_by_parts(_entry), _entry.wants)
for _name in ("operator.getitem", aten_name("_assert_tensor_metadata")):
    COMPLEX[_name] = TABLE[_name]


# ---- parts, and types ----------------------------------------------------------------------------------------------


def _parts_to_real(function: Callable[[Node], Node]) -> Callable[[Complex], Node]:
    return lambda self: function(self.pairs)


def _parts_to_parts(function: Callable[[Node], Node]) -> Callable[[Complex], Complex]:
    return lambda self: Complex(function(self.pairs))


def _real_to_parts(function: Callable[..., Node]) -> Callable[..., Complex]:
    return lambda *given: Complex(function(*given))


table(
    {
        "view_as_real": lambda z: z,
        "real": lambda z: pairs.parts(z)[0],
        "imag": lambda z: pairs.parts(z)[1],
        "abs": pairs.magnitude,
        "angle": pairs.angle,
    },
    _parts_to_real,
    COMPLEX,
)
table(
    {
        "_conj _conj_physical conj conj_physical": pairs.conjugate,
        "resolve_conj resolve_neg contiguous": lambda z: z,
        "exp": pairs.exponential,
        "log": pairs.logarithm,
        "log2": lambda z: pairs.logarithm(z) / math.log(2),
        "log10": lambda z: pairs.logarithm(z) / math.log(10),
        "sqrt": pairs.root,
        "rsqrt": lambda z: pairs.quotient(_pairs(1, z.dtype), pairs.root(z)),
        "sin": pairs.sine,
        "cos": pairs.cosine,
        "sinh": pairs.hyperbolic_sine,
        "cosh": pairs.hyperbolic_cosine,
        "tan": lambda z: pairs.times_i(-pairs.hyperbolic_tangent(pairs.times_i(z))),
        "tanh": pairs.hyperbolic_tangent,
        "sigmoid": lambda z: pairs.quotient(_pairs(1, z.dtype), _pairs(1, z.dtype) + pairs.exponential(-z)),
        "sgn": pairs.direction,
    },
    _parts_to_parts,
    COMPLEX,
)
_MADE: dict[str, Callable[..., Node]] = {"view_as_complex": lambda x: x, "complex": pairs.pairs, "polar": pairs.polar}
table(_MADE, _real_to_parts, COMPLEX)


def _shaped(entry: Entry) -> Callable[[Complex | Node, Complex | Node], Complex | Node]:
    """The shape of the second operand, whatever it holds."""

    def handler(self: Complex | Node, other: Complex | Node) -> Complex | Node:
        like = _real_part(other)
        moved: Complex | Node = (_by_parts(entry) if isinstance(self, Complex) else entry.handler)(self, like)
        return moved

    return handler


table({name: TABLE[aten_name(name)] for name in ("expand_as", "view_as", "reshape_as")}, _shaped, COMPLEX)


@_complex("view.dtype", "view_copy.dtype")
def view_as_type(self: Complex | Node, dtype: ComplexType | DType) -> Complex | Node:
    """A complex number is two floats, one after the other."""
    floats = self
    if isinstance(self, Complex):
        z = self.pairs
        floats = movement.reshape(z, [*z.shape[:-2], z.shape[-2] * 2]) if z.rank > 1 else z
    assert isinstance(floats, Node)
    if isinstance(dtype, DType):
        return conversion.reinterpreted(floats, dtype)
    x = conversion.reinterpreted(floats, dtype.parts)
    return Complex(movement.reshape(x, [*x.shape[:-1], sym.floordiv(x.shape[-1], 2), 2]))


@_complex("to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as")
def to_given(self: Complex | Node, *given: Any, dtype: ComplexType | DType | None = None, result: DType) -> Any:
    wanted = next((a for a in given if isinstance(a, ComplexType | DType)), dtype)
    if isinstance(given[0] if given else None, Complex | Node):
        wanted = None if isinstance(given[0], Complex) else given[0].dtype
    return to(self, dtype=wanted, result=result)


@_complex("_to_copy")
def to(self: Complex | Node, *, dtype: ComplexType | DType | None = None, result: DType) -> Complex | Node:
    """Of a complex tensor that becomes real, the real part stays."""
    if isinstance(dtype, DType):
        return cast(_real_part(self), dtype)
    return Complex(_pairs(self, result))


@_complex("copy")
def copy(self: Complex | Node, src: Complex | Node, non_blocking: bool = False, *, result: DType) -> Complex | Node:
    """Of a complex tensor that is written into a real one, the real part."""
    if isinstance(self, Complex):
        return Complex(expand(_pairs(src, result), self.pairs.shape))
    return expand(cast(_real_part(src), result), self.shape)


def _filled(size: Sequence[Any], value: Operand, dtype: DType) -> Complex:
    return Complex(expand(_pairs(value, dtype), [*size, 2]))


@_complex("full", "new_full")
def full(*arguments: Any, dtype: ComplexType | None = None, result: DType) -> Complex:
    return _filled(arguments[-2], arguments[-1], result)


@_complex("zeros", "new_zeros", "empty.memory_format", "new_empty", "empty_permuted", "empty_strided")
def zeros(*arguments: Any, dtype: ComplexType | None = None, result: DType) -> Complex:
    return _filled(_size(arguments), 0, result)


@_complex("ones", "new_ones")
def ones(*arguments: Any, dtype: ComplexType | None = None, result: DType) -> Complex:
    return _filled(_size(arguments), 1, result)


def _size(arguments: Sequence[Any]) -> list[Any]:
    return next(a for a in arguments if isinstance(a, list))


@_complex("full_like")
def full_like(
    self: Complex | Node, fill_value: Operand, *, dtype: ComplexType | DType | None = None, result: DType
) -> Complex | Node:
    """In the type of ``self``, or in one that may be real."""
    size = self.pairs.shape[:-1] if isinstance(self, Complex) else self.shape
    if isinstance(dtype, DType):
        return expand(as_node(_real_part(fill_value), dtype), size)
    return _filled(size, fill_value, result)


def _like(value: int) -> Callable[..., Complex | Node]:
    return lambda self, *, dtype=None, result: full_like(self, value, dtype=dtype, result=result)


table({"zeros_like empty_like": 0, "ones_like": 1}, _like, COMPLEX)


@_complex("scalar_tensor")
def scalar_tensor(s: Operand, *, dtype: ComplexType | None = None, result: DType) -> Complex:
    return _filled([], s, result)


# ---- arithmetic ----------------------------------------------------------------------------------------------------


@_complex("add.Tensor", "add.Scalar")
def add(self: Operand, other: Operand, alpha: Operand = 1, *, result: DType) -> Complex:
    return Complex(_pairs(self, result) + _scaled(other, alpha, result))


@_complex("sub.Tensor", "sub.Scalar")
def sub(self: Operand, other: Operand, alpha: Operand = 1, *, result: DType) -> Complex:
    return Complex(_pairs(self, result) - _scaled(other, alpha, result))


@_complex("rsub.Tensor", "rsub.Scalar")
def rsub(self: Operand, other: Operand, alpha: Operand = 1, *, result: DType) -> Complex:
    return sub(other, self, alpha, result=result)


def _scaled(value: Operand, alpha: Operand, dtype: DType) -> Node:
    z = _pairs(value, dtype)
    return z if alpha == 1 else pairs.product(z, _pairs(alpha, dtype))


@_complex("mul.Tensor", "mul.Scalar")
def mul(self: Operand, other: Operand, *, result: DType) -> Complex:
    return Complex(pairs.product(_pairs(self, result), _pairs(other, result)))


@_complex("div.Tensor", "div.Scalar")
def div(self: Operand, other: Operand, *, result: DType) -> Complex:
    return Complex(pairs.quotient(_pairs(self, result), _pairs(other, result)))


@_complex("reciprocal")
def reciprocal(self: Complex, *, result: DType) -> Complex:
    return Complex(pairs.quotient(_pairs(1, result), self.pairs))


@_complex("square")
def square(self: Complex, *, result: DType) -> Complex:
    return mul(self, self, result=result)


@_complex("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(self: Operand, exponent: Operand, *, result: DType) -> Complex:
    """Small constant exponents are spelled out as PyTorch's own kernel does."""
    base = _pairs(self, result)
    if not isinstance(exponent, Complex | Node) and exponent in _POWERS:
        return Complex(_POWERS[exponent](base))
    return Complex(pairs.power(base, _pairs(exponent, result)))


_POWERS: dict[Any, Callable[[Node], Node]] = {
    0.5: pairs.root,
    1: lambda z: z,
    2: lambda z: pairs.product(z, z),
    3: lambda z: pairs.product(pairs.product(z, z), z),
}


@_complex("lerp.Scalar", "lerp.Tensor")
def lerp(self: Operand, end: Operand, weight: Operand, *, result: DType) -> Complex:
    return add(self, mul(sub(end, self, result=result), weight, result=result), result=result)


@_complex("addcmul")
def addcmul(self: Operand, tensor1: Operand, tensor2: Operand, value: Operand = 1, *, result: DType) -> Complex:
    return add(self, mul(tensor1, tensor2, result=result), value, result=result)


def _condition(holds: Callable[[Node], Node], together: Callable[[Node, Node], Node]) -> Callable[..., Node]:
    """What is true of a number where it is true of one part, or of both."""
    return lambda self: together(*map(holds, pairs.parts(self.pairs)))


table(
    {"isnan": math_.isnan, "isinf": math_.isinf},
    lambda holds: _condition(holds, operator.or_),
    COMPLEX,
)
table({"isfinite": math_.isfinite}, lambda holds: _condition(holds, operator.and_), COMPLEX)


@_complex("eq.Tensor", "eq.Scalar")
def equal(self: Operand, other: Operand) -> Node:
    """Whether both parts are."""
    dtype = next(z.pairs.dtype for z in (self, other) if isinstance(z, Complex))
    real, imaginary = pairs.parts(math_.equal(*broadcast(_pairs(self, dtype), _pairs(other, dtype))))
    return real & imaginary


@_complex("ne.Tensor", "ne.Scalar")
def not_equal(self: Operand, other: Operand) -> Node:
    return math_.logical_not(equal(self, other))


# ---- contractions ------------------------------------------------------------------------------------------------


def _product(function: Callable[[Node, Node], Node]) -> Callable[..., Complex]:
    return lambda a, b, *, result: Complex(function(_pairs(a, result), _pairs(b, result)))


def _along(equation: str, conjugated: bool = False) -> Callable[[Node, Node], Node]:
    """A product with one operand, perhaps of conjugates, whose letters do not depend on ranks."""
    return lambda a, b: pairs.einsum(equation, pairs.conjugate(a) if conjugated else a, b)


_PRODUCTS: dict[str, Callable[[Node, Node], Node]] = {
    "matmul linalg_matmul mm bmm mv dot": pairs.matmul,
    "outer ger": _along("i,j->ij"),
    "vdot": _along("i,i->", conjugated=True),
    "inner": lambda a, b: pairs.einsum(f"{'abcdefgh'[: a.rank - 2]}k,{'ijlmnopq'[: b.rank - 2]}k", a, b),
}
table(_PRODUCTS, _product, COMPLEX)


@_complex("linear")
def linear(input: Operand, weight: Operand, bias: Operand | None = None, *, result: DType) -> Complex:
    found = pairs.einsum("...k,nk->...n", _pairs(input, result), _pairs(weight, result))
    return Complex(found if bias is None else found + _pairs(bias, result))


@_complex("addmm", "baddbmm", "addmv")
def addmm(
    self: Operand, mat1: Operand, mat2: Operand, beta: Operand = 1, alpha: Operand = 1, *, result: DType
) -> Complex:
    product = Complex(pairs.matmul(_pairs(mat1, result), _pairs(mat2, result)))
    if beta == 0:
        return mul(product, alpha, result=result)
    return add(mul(self, beta, result=result), product, alpha, result=result)


@_complex("einsum")
def einsum(equation: str, tensors: Sequence[Operand], *, path: Sequence[int] | None = None, result: DType) -> Complex:
    return Complex(pairs.einsum(equation, *(_pairs(tensor, result) for tensor in tensors)))


def _convolution(entry: Entry) -> Callable[..., Complex]:
    def handler(
        input: Operand, weight: Operand, bias: Operand | None = None, *options: Any, result: DType, **named: Any
    ) -> Complex:
        a, b = (_pairs(value, result) for value in (input, weight))
        found = pairs.bilinear(lambda x, w: entry.handler(x, w, None, *options, **named), a, b)
        if bias is None:
            return Complex(found)
        spatial = b.rank - 3
        return Complex(found + movement.unsqueeze(_pairs(bias, result), range(1, 1 + spatial)))

    return handler


table(
    {
        overload: TABLE[aten_name(overload)]
        for rank in (1, 2, 3)
        for overload in (f"conv{rank}d", f"conv{rank}d.padding")
    }
    | {"convolution": TABLE[aten_name("convolution")]},
    _convolution,
    COMPLEX,
)


@_complex("linalg_inv", "inverse")
def inverse(A: Complex) -> Complex:
    """By the inverse of real matrices of twice the size."""
    found = linear_algebra.inverse(pairs.blocks(A.pairs))
    return Complex(pairs.of_columns(movement.slice_(found, -1, 0, A.pairs.shape[-2])))


@_complex("linalg_solve")
def solve(A: Operand, B: Operand, *, left: bool = True, result: DType) -> Complex:
    """By real equations of twice the size."""
    a, b = _pairs(A, result), _pairs(B, result)
    if not left:  # X A = B is A.T X.T = B.T
        a, b = movement.transpose(a, -2, -3), movement.transpose(b, -2, -3)
    is_vector = b.rank == 2 or (b.rank == a.rank - 1 and b.shape[:-1] == a.shape[:-2])
    right = movement.unsqueeze(b, [b.rank - 1]) if is_vector else b
    found = pairs.of_columns(linear_algebra.solve(pairs.blocks(a), pairs.columns(right)))
    if is_vector:
        return Complex(movement.squeeze(found, [-2]))
    return Complex(found if left else movement.transpose(found, -2, -3))


def _spread(overload: str, finish: Callable[[Node], Node]) -> Callable[..., Node]:
    """A variance is that of the real parts and that of the imaginary ones."""
    entry = TABLE[aten_name(overload)]

    def handler(self: Complex, *options: Any, **named: Any) -> Node:
        real, imaginary = (entry.handler(part, *options, **named) for part in pairs.parts(self.pairs))
        return finish(real + imaginary)

    return handler


for _overload in ("", ".dim", ".correction"):
    _complex(f"var{_overload}")(_spread(f"var{_overload}", lambda variance: variance))
    _complex(f"std{_overload}")(_spread(f"var{_overload}", math_.sqrt))


@_complex("linalg_vector_norm")
def vector_norm(self: Complex, *options: Any, result: DType, **named: Any) -> Node:
    """The norm of the magnitudes."""
    return reduction.vector_norm(pairs.magnitude(self.pairs), *options, result=result, **named)


# ---- Fourier transforms --------------------------------------------------------------------------------------------


def _scale(lengths: Sequence[Any], normalization: int) -> float:
    """ATen's modes of scaling: none, by 1 / sqrt(n), by 1 / n, where n is the number of elements."""
    if not all(isinstance(length, int) for length in lengths):
        raise ShapeError(f"dft: the lengths {list(lengths)} must be known")
    count = math.prod(lengths)
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization]


@_complex("_fft_c2c")
def complex_fft(self: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    axes, z = _axes(dim, self.pairs.rank - 1), self.pairs
    return Complex(fourier.fft(z, axes, not forward, _scale([z.shape[k] for k in axes], normalization)))


@_complex("_fft_r2c")
def real_fft(self: Node, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    axes = _axes(dim, self.rank)
    scale = _scale([self.shape[k] for k in axes], normalization)
    return Complex(fourier.fft(movement.unsqueeze(self, [-1]), axes, False, scale, onesided))


@_complex("_fft_c2r")
def inverse_real_fft(self: Complex, dim: Sequence[int], normalization: int, last_dim_size: int) -> Node:
    z = self.pairs
    axes = _axes(dim, z.rank - 1)
    scale = _scale([*(z.shape[k] for k in axes[:-1]), last_dim_size], normalization)
    return movement.squeeze(fourier.inverse_real_fft(z, axes, last_dim_size, scale), [-1])


def _axes(dim: Sequence[int], rank: int) -> list[int]:
    return [axis % rank for axis in dim]
