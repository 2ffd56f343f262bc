"""Contractions of integers that have a scale for each block along K, on both sides.

In ``sum over b of s[m,b] t[b,n] (sum over k in block b of a[m,k] w[k,n])``, a unit that multiplies bytes computes the
inner sums, exactly, and the tile scales them. Where ``w`` are numbers of fewer bits, or put together from such, the
tile computes their bytes as it reads them. The sum of real numbers that a model writes, ``sum over k of (a s) (w
t)``, rounds every factor and term. This one rounds three times for each block, so it is within the bound of the other.

Of an infinite scale the sums would differ: ``t`` is finite, and where activations are rounded ``s`` is finite or NaN.

Where ``a`` are real numbers, no unit sums them, but tiles of few rows still scale the sum of a block, instead of its
terms (``same_scale``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from luminal.core import interp, ir, ops
from luminal.core import symbolic as sym
from luminal.core.grid import Grid
from luminal.core.ir import Node
from luminal.core.matrix import MatrixUnit
from luminal.core.schedule.contraction import narrow
from luminal.core.schedule.contraction.contraction import Contraction, Operand
from luminal.core.schedule.contraction.prologue import Computed, Leaf, Part, Place, Prologue
from luminal.core.symbolic import Int
from luminal.core.target import Target
from luminal.core.types import DType, f32, i8, i32, u8


def in_blocks(found: Contraction, prologue: Prologue, target: Target) -> tuple[Contraction, MatrixUnit] | None:
    """``found``, whose B ``prologue`` computes, with integers as A, their ``scale``, and a last axis of K that runs
    within a block; and the unit that sums a block in whole steps. None where there is none, or another form."""
    unit = next((unit for unit in target.units_of(u8, i8, i32) if unit.in_vectors), None)
    blocks = None if unit is None else same_scales(found, prologue)
    if unit is None or blocks is None or blocks.terms % (unit.depth * blocks.per):
        return None
    split = _of_integers(found, blocks)
    moves = [axis for k in split.k if (axis := sym.as_var(split.axes[k])) is not None]
    place: Int = 0  # of an element in memory
    for index, size in zip(split.a.index, split.a.source.shape, strict=True):
        place = place * size + index
    if any(sym.coefficient(place, axis) is None for axis in moves):
        return None
    return split, unit


def by_fragments(found: Contraction, prologue: Prologue, grid: Grid) -> Contraction | None:
    """The same for the warps of a GPU, which stage as many terms of a block at once, or of several; None where there is
    a single one, or no fragment sums it in whole steps."""
    blocks = same_scales(found, prologue)
    if blocks is None:
        return None
    blocks = blocks._replace(terms=math.gcd(blocks.terms, grid.costs.depth // i8.itemsize))
    if grid.of_blocks(blocks.terms) is None or found.shape[blocks.along] == blocks.terms:
        return None
    return _of_integers(found, blocks)


def _of_integers(found: Contraction, blocks: Blocks) -> Contraction:
    """``found`` with a last axis of K that runs within a block, integers as A, and their scale."""
    split = _split(found, blocks.along, blocks.terms)
    a, scale = (_over(found, split, blocks.along, blocks.terms, place) for place in (blocks.whole, blocks.scale))
    return replace(split, a=a, scale=scale)


class Blocks(NamedTuple):
    """Blocks of so many ``terms`` of K, which runs ``along`` one axis: A are integers, ``whole``, times a ``scale`` for
    each, and so is B, of whose integers at most ``per`` share a byte."""

    along: int
    terms: int
    per: int
    whole: Place
    scale: Place


def same_scales(found: Contraction, prologue: Prologue) -> Blocks | None:
    """The blocks along K of ``found``, whose B ``prologue`` computes, in which signed bytes have the same scales on
    both sides; their products sum exactly in int32. None of other forms."""
    along = [k for k in found.k if found.shape[k] != 1]
    depth = found.shape[along[0]] if len(along) == 1 else None
    of_b = _scaled_blocks(prologue)
    if found.dtype != f32 or found.a.valid or not isinstance(depth, int) or of_b is None:
        return None
    parts = integers_and_scale(found.a)
    if parts is None:
        return None
    whole, scale = parts
    every, per = of_b
    terms = math.gcd(every, narrow.same_for(scale[1], [(found.axes[along[0]], depth)]))
    return Blocks(along[0], terms, per, whole, scale) if terms * 128 * 128 < 2**31 else None


def _scaled_blocks(prologue: Prologue) -> tuple[int, int] | None:
    """For how many positions along K the scale is the same, and how many integers at most share a byte, where B is
    signed bytes, or computed in such, times finite scales; else None."""
    for whole, scale in _by_scales(prologue.root):
        if isinstance(whole, Computed) and whole.op is ops.CAST:
            leaves = _leaves_in_bytes(whole.operands[0])
            if leaves and _is_signed(whole.operands[0]):
                return scale.every, max(leaf.per for leaf in leaves)
    return None


def same_scale(prologue: Prologue) -> int:
    """For how many positions along K one scale multiplies B, where B is sums of integers of at most 8 bits times finite
    scales; else 1. A sum of such positions may be multiplied by the scale: it neither overflows nor vanishes where that
    of scaled terms does not, if rows of A have moderate numbers."""
    return next((scale.every for whole, scale in _by_scales(prologue.root) if _is_small(whole)), 1)


def _by_scales(root: Computed) -> list[tuple[Part, Leaf | Computed]]:
    """What moderate scales multiply, each the same for several positions along K, and these scales."""
    pairs = (root.operands, root.operands[::-1]) if root.op is ops.MUL else ()
    return [(x, y) for x, y in pairs if not isinstance(y, Node) and y.every > 1 and _is_moderate(y)]


def _is_small(part: Part) -> bool:
    """Whether ``part`` is an integer of at most 8 bits as a number, or its sum with, or difference from, another or a
    moderate number."""
    terms = part.operands if isinstance(part, Computed) and part.op is ops.ADD else (part,)
    return all(map(_is_small_term, terms))


def _is_small_term(part: Part) -> bool:
    if not isinstance(part, Computed):
        return _is_moderate(part)
    if part.op is ops.MUL:
        negated = [x for x in part.operands if not (isinstance(x, Node) and interp.evaluate([x])[0] == -1)]
        part = negated[0] if len(negated) == 1 else part
    return isinstance(part, Computed) and part.op is ops.CAST and _is_byte(part.operands[0])


def _is_byte(part: Part) -> bool:
    """Whether a model has ``part`` as an integer of at most 8 bits."""
    return _type(part).is_integer and _type(part).bits <= 8


def _leaves_in_bytes(part: Part) -> list[Leaf] | None:
    """The leaves of ``part`` where it is integers of at most 8 bits, computed of such for each position; else None."""
    if not _is_byte(part):
        return None
    if isinstance(part, Leaf):
        return [part] if part.every == 1 else None
    below = [_leaves_in_bytes(x) for x in part.operands] if isinstance(part, Computed) else []
    return None if None in below else [leaf for leaves in below if leaves for leaf in leaves]


def _is_signed(part: Part) -> bool:
    """Whether the integers of ``part``, of at most 8 bits, fit into signed bytes."""
    return _type(part).kind == "i" or _bits(part) < 8


def _bits(part: Part) -> int:
    """How many bits the unsigned integers of ``part`` take at most, up to 8."""
    if isinstance(part, Leaf):
        return 8 // part.per if part.per > 1 else part.dtype.bits
    if isinstance(part, Node):
        (value,) = interp.evaluate([part])
        return int(value).bit_length() if value >= 0 else 8
    if part.op is ops.SHL and isinstance(part.operands[1], Node):
        return min(8, _bits(part.operands[0]) + int(interp.evaluate([part.operands[1]])[0]))
    return max(map(_bits, part.operands)) if part.op in (ops.CAST, ops.OR) else 8


def _type(part: Part) -> DType:
    """The type in which a model has ``part``."""
    while isinstance(part, Computed):
        if part.op is ops.CAST:
            cast: DType = part.attr.dtype
            return cast
        part = part.operands[0]
    return part.source.dtype if isinstance(part, Leaf) else part.dtype


def _is_moderate(part: Part) -> bool:
    """Whether the numbers of a leaf, a number, or a product of such, are integers, or of sizes that float16 has: a sum
    of integers times such a scale neither overflows nor loses bits."""
    if isinstance(part, Computed):
        return part.op in (ops.MUL, ops.CAST) and all(map(_is_moderate, part.operands))
    source = part.source if isinstance(part, Leaf) else part
    if not isinstance(source, Node) or source.op is not ops.CONSTANT or source.dtype.is_integer:
        return isinstance(source, Node) and source.op is ops.CONSTANT
    (values,) = interp.evaluate([source])
    sizes, half = np.abs(values.astype(np.float64)), np.finfo(np.float16)
    return bool(((sizes == 0) | (sizes >= float(half.smallest_subnormal)) & (sizes <= float(half.max))).all())


def integers_and_scale(a: Operand) -> tuple[Place, Place] | None:
    """Signed bytes and the scale of each, of which ``a`` is the product; None if it is another value."""
    node, index = narrow.stored_at(a.source, a.index)
    for x, y in (node.inputs, node.inputs[::-1]) if node.op is ops.MUL else ():
        cast, at = narrow.stored_at(x, index)
        if cast.op is ops.CAST and cast.inputs[0].dtype == i8:
            return narrow.stored_at(cast.inputs[0], at), narrow.stored_at(y, index)
    return None


def _split(found: Contraction, along: int, block: int) -> Contraction:
    """``found`` with blocks of ``block`` positions along one axis of K, and within them."""
    shape = (*found.shape[:along], found.shape[along] // block, block, *found.shape[along + 1 :])

    def moved(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(k + (k > along) for k in axes)

    k = tuple(sorted((*moved(found.k), along + 1)))
    split = replace(
        found, shape=shape, batch=moved(found.batch), m=moved(found.m), n=moved(found.n), k=k, prologue=None
    )
    return replace(split, b=_over(found, split, along, block, (found.b.source, found.b.index)))


def _over(found: Contraction, split: Contraction, along: int, block: int, place: Place) -> Operand:
    """A place over the axes of ``found`` as an operand over those of ``split``."""
    at: list[Int] = list(split.axes)
    at[along : along + 2] = [at[along] * block + at[along + 1]]
    return Operand(*place).over(ir.rename(found.shape, at))
