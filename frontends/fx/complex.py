"""Complex tensors: every one is a tensor of pairs, with the operators that know of it in a table of their own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from luminal.core import movement, types
from luminal.core.decompose import complex as pairs
from luminal.core.decompose import fourier
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, constant, expand
from luminal.core.types import DType
from luminal.frontends.fx import (  # noqa: F401 - for their lines
    creation,
    indexing,
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
_ELEMENTS = frozenset({"self", "x", "other", "tensors", "src", "source", "value", "values"})


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
index_select gather where.self fill.Scalar fill.Tensor masked_fill.Scalar masked_fill.Tensor slice_scatter
select_scatter diagonal_scatter index_copy index_put"""
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
    },
    _parts_to_parts,
    COMPLEX,
)
_MADE: dict[str, Callable[..., Node]] = {"view_as_complex": lambda x: x, "complex": pairs.pairs, "polar": pairs.polar}
table(_MADE, _real_to_parts, COMPLEX)


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


@_complex("full", "zeros", "ones")
def full(size: Sequence[Any], fill_value: complex = 0, *, dtype: ComplexType | None = None, result: DType) -> Complex:
    return Complex(expand(_pairs(complex(fill_value), result), [*size, 2]))


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
