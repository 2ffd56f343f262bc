"""Quantised blocks, as data: what the bytes of a block hold, and how they become numbers.

A row of a matrix is divided into blocks of as many elements each. A block has small integers and numbers that all of
them are multiplied with or moved by, in the order of a C struct of ggml (``layout``). A ``Kind`` keeps these as arrays,
no larger than the file's bytes by more than 3 %, and computes the real matrix from them in primitives. Where a kernel
computes with the matrix, it reads the arrays (``core/schedule/contraction/narrow.py``).

Decoding gives the bits that ggml's reference gives. Of the kinds that have ``encode``, it rounds as that does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from luminal.core import ir, ops, types
from luminal.core.ir import Node
from luminal.core.movement import reshape

Array: TypeAlias = np.ndarray[Any, Any]
Nodes: TypeAlias = Mapping[str, Node]


@dataclass(frozen=True)
class Kind:
    """A kind of blocks of ``size`` elements. ``number`` is GGUF's. ``parts`` takes the arrays that are kept, each
    ``[.., blocks, n]``, from an array ``[.., blocks]`` of ``layout``; ``decode`` computes the real elements
    ``[.., blocks, size]`` in float32 from them. ``encode`` rounds float32 ``[.., blocks, size]`` to ``layout``."""

    name: str
    number: int
    size: int
    layout: np.dtype[Any]
    decode: Callable[[Nodes], Node]
    parts: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)
    encode: Callable[[Array], Array] | None = None

    def __repr__(self) -> str:
        return self.name

    def taken(self, blocks: Array, part: str) -> Array:
        """The array of that name: a field of ``layout`` as it is, or what ``parts`` makes of the fields."""
        found = self.parts[part](blocks) if part in self.parts else blocks[part]
        return found if found.ndim > blocks.ndim else found[..., None]

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the arrays that are kept."""
        assert self.layout.names is not None
        return (*(name for name in self.layout.names if name != "packed"), *self.parts)

    def real(self, parts: Nodes) -> Node:
        """The real matrix ``[.., columns]`` in float32, from its parts."""
        decoded = self.decode(parts)
        *rows, blocks, size = decoded.shape
        return reshape(decoded, [*rows, blocks * size])


# ---- decoding ------------------------------------------------------------------------------------------------------


def _digits(x: Node, bits: int, run: int) -> Node:
    """Unsigned numbers of so many ``bits`` from bytes ``[.., n]``. Each ``run`` of bytes holds, one behind the other,
    the numbers in its lowest bits, those in the next, and so on."""
    *outer, count = x.shape
    per = 8 // bits
    grouped = reshape(x, [*outer, count // run, 1, run])
    amounts = reshape(ir.cast(ir.iota(per), types.u8) * bits, [per, 1])
    shifted = ir.binary(ops.SHR, ir.expand(grouped, (*outer, count // run, per, run)), amounts)
    return reshape(shifted & ((1 << bits) - 1), [*outer, count * per])


def _centred(x: Node, middle: int) -> Node:
    return ir.cast(ir.cast(x, types.i8) + -middle, types.f32)


def _float(x: Node) -> Node:
    return ir.cast(x, types.f32)


def _grouped(x: Node, scale: Node) -> Node:
    """``x`` ``[.., size]`` as ``[.., groups, size / groups]``, a group for each number in ``scale``."""
    *outer, groups = scale.shape
    return reshape(x, [*outer, groups, x.shape[-1] // groups])


def _scaled(x: Node, scale: Node, least: Node | None = None) -> Node:
    """``x * scale + least``, with a number in ``scale`` and ``least`` for each group of ``x``."""
    found = _grouped(x, scale) * reshape(scale, [*scale.shape, 1])
    if least is not None:
        found = found + reshape(least, [*least.shape, 1])
    return reshape(found, x.shape)


def _q4_0(parts: Nodes) -> Node:
    return _scaled(_centred(_digits(parts["quants"], 4, 16), 8), _float(parts["scale"]))


def _q4_1(parts: Nodes) -> Node:
    return _scaled(_float(_digits(parts["quants"], 4, 16)), _float(parts["scale"]), _float(parts["least"]))


def _five(parts: Nodes, run: int, high: int) -> Node:
    low = _digits(parts["quants"], 4, run)
    return low | ir.binary(ops.SHL, _digits(parts["high"], 1, high), 4)


def _q5_0(parts: Nodes) -> Node:
    return _scaled(_centred(_five(parts, 16, 1), 16), _float(parts["scale"]))


def _q5_1(parts: Nodes) -> Node:
    return _scaled(_float(_five(parts, 16, 1)), _float(parts["scale"]), _float(parts["least"]))


def _q8_0(parts: Nodes) -> Node:
    return _scaled(_float(parts["quants"]), _float(parts["scale"]))


def _with_least(x: Node, parts: Nodes) -> Node:
    scales = _float(parts["scale"]) * _float(parts["scales"])
    return _scaled(_float(x), scales, -(_float(parts["least"]) * _float(parts["leasts"])))


def _q4_k(parts: Nodes) -> Node:
    return _with_least(_digits(parts["quants"], 4, 32), parts)


def _q5_k(parts: Nodes) -> Node:
    return _with_least(_five(parts, 32, 32), parts)


def _q6_k(parts: Nodes) -> Node:
    six = _digits(parts["quants"], 4, 64) | ir.binary(ops.SHL, _digits(parts["high"], 2, 32), 4)
    return _scaled(_centred(six, 32), _float(parts["scale"]) * _float(parts["scales"]))


def _scales_of_six_bits(blocks: Array) -> Array:
    low, _, high = _thirds(blocks)
    return np.concatenate([low & 63, (high & 15) | (low >> 2 & 48)], -1)


def _leasts_of_six_bits(blocks: Array) -> Array:
    _, low, high = _thirds(blocks)
    return np.concatenate([low & 63, high >> 4 | (low >> 2 & 48)], -1)


def _thirds(blocks: Array) -> list[Array]:
    """Of eight scales and eight minimums in 12 bytes: four bytes with the first scales in their lower six bits, four
    with the first minimums, and four with the lower bits of the other scales and minimums, whose upper bits are in the
    upper bits of the first eight bytes."""
    return np.split(blocks["packed"], 3, -1)


# ---- rounding ------------------------------------------------------------------------------------------------------


def _encoded_q8_0(x: Array) -> Array:
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    return _block(Q8_0, scale, _away(x * _reciprocal(scale)).astype(np.int8))


def _encoded_q4_0(x: Array) -> Array:
    at = np.abs(x).argmax(-1, keepdims=True)
    scale = np.take_along_axis(x, at, -1) / np.float32(-8)
    whole = np.trunc(x * _reciprocal(scale) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return _block(Q4_0, scale, whole[..., :16] | whole[..., 16:] << 4)


def _block(kind: Kind, scale: Array, quants: Array) -> Array:
    found = np.empty(scale.shape[:-1], kind.layout)
    with np.errstate(over="ignore"):
        found["scale"] = scale[..., 0]
    found["quants"] = quants
    return found


def _reciprocal(scale: Array) -> Array:
    """``1 / scale``, or 0 where that is not finite: all elements of the block round to zeros."""
    with np.errstate(divide="ignore", over="ignore"):
        found = 1 / scale
    return np.where(np.isfinite(found), found, np.float32(0))


def _away(x: Array) -> Array:
    """``x`` rounded to whole numbers, halves away from zero."""
    size = np.abs(x)
    whole = np.floor(size)
    return np.copysign(whole + np.floor(2 * (size - whole)), x)


# ---- the table -----------------------------------------------------------------------------------------------------


def _layout(**fields: Any) -> np.dtype[Any]:
    return np.dtype([(name, *(of if isinstance(of, tuple) else (of,))) for name, of in fields.items()])


_SIX_BITS = {"scales": _scales_of_six_bits, "leasts": _leasts_of_six_bits}

Q4_0 = Kind("Q4_0", 2, 32, _layout(scale="<f2", quants=("u1", 16)), _q4_0, encode=_encoded_q4_0)
Q4_1 = Kind("Q4_1", 3, 32, _layout(scale="<f2", least="<f2", quants=("u1", 16)), _q4_1)
Q5_0 = Kind("Q5_0", 6, 32, _layout(scale="<f2", high=("u1", 4), quants=("u1", 16)), _q5_0)
Q5_1 = Kind("Q5_1", 7, 32, _layout(scale="<f2", least="<f2", high=("u1", 4), quants=("u1", 16)), _q5_1)
Q8_0 = Kind("Q8_0", 8, 32, _layout(scale="<f2", quants=("i1", 32)), _q8_0, encode=_encoded_q8_0)
Q4_K = Kind(
    "Q4_K", 12, 256, _layout(scale="<f2", least="<f2", packed=("u1", 12), quants=("u1", 128)), _q4_k, _SIX_BITS
)  # fmt: skip
Q5_K = Kind(
    "Q5_K", 13, 256, _layout(scale="<f2", least="<f2", packed=("u1", 12), high=("u1", 32), quants=("u1", 128)),
    _q5_k, _SIX_BITS,
)  # fmt: skip
Q6_K = Kind(
    "Q6_K", 14, 256, _layout(quants=("u1", 128), high=("u1", 64), scales=("i1", 16), scale="<f2"), _q6_k
)  # fmt: skip

ALL = {kind.name: kind for kind in (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)}
NUMBERED = {kind.number: kind for kind in ALL.values()}
ENCODED = {kind.name.lower(): kind for kind in ALL.values() if kind.encode is not None}
