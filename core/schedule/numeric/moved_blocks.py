"""Weights of which a number moves each block, as ``scale * integer + least``, multiplied by integers with a scale for
each block: the sum of the integers' products is computed apart from what the numbers add.

In ``sum over b of s[m,b] (sum over k in block b of a[m,k] (t[b,n] w[k,n] + l[b,n]))``, the products of ``w`` become
sums of blocks that a unit for bytes computes (``contraction/blocks.py``); those of ``l`` are a product with one term
for a block, ``sum over b of (s[m,b] sum over k in block b of a[m,k]) l[b,n]``, whose sums of ``a`` are exact. An error
is within its bound for ``|a| (|t w| + |l|)``, where that of the sum as it is written is for ``|a| |t w + l|``: so it is
done where the user lets activations be rounded (``activations``), which changes more.

On a GPU, fragments of bytes sum the blocks of many rows. The kernel that sums few rows column by column takes both sums
of what it reads (``grid/lines.py``): the contraction stays one, and says that they may be taken ``apart``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from luminal.core import interp, ir, ops, traverse
from luminal.core.constants import is_constant
from luminal.core.ir import Node
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.blocks import Blocks, by_fragments, in_blocks, same_scales
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.contraction.contraction import Contraction, Operand
from luminal.core.schedule.contraction.lines import has_few_rows
from luminal.core.schedule.contraction.narrow import narrow_weights, same_for, stored_at
from luminal.core.schedule.contraction.prologue import Place, Prologue
from luminal.core.symbolic import Int
from luminal.core.target import Target
from luminal.core.types import f32, i32


def apart(whole: Contracted, target: Target) -> Contracted:
    """The graph with such products computed in two sums, where ``target`` sums blocks of integers; of few rows on a
    GPU, marked as such."""
    if not any(noted.option == "activations" for noted in whole.graph.approximations):
        return whole
    contractions, origins = whole.contractions, dict(whole.graph.origins)
    carried: dict[Node, Contraction] = {}

    def region(roots: tuple[Node, ...]) -> tuple[Node, ...]:
        became: dict[Node, Node] = {}

        def made(node: Node, operands: Sequence[Node]) -> Node:
            if node not in contractions:
                return traverse.rebuild(node, operands)
            found = contractions[node].moved(became.__getitem__)
            if target.grid is not None and has_few_rows(found, target.grid):
                new = traverse.rebuild(node, operands)
                carried[new] = replace(found, apart=any(_parts(found, target)))
                return new
            two = None if whole.graph.keeps(node) else _in_two(found, target)
            if two is None:
                new = traverse.rebuild(node, operands)
                carried[new] = found
                return new
            first, second = (part.node() for part in two)
            carried.update(zip((first, second), two, strict=True))
            return first + second

        return remade(roots, origins, made, region, became)

    roots = region(whole.graph.roots)
    if roots == whole.graph.roots and carried == whole.contractions:
        return whole
    return Contracted(whole.graph.computing(roots, origins=origins), carried)


def _in_two(found: Contraction, target: Target) -> tuple[Contraction, Contraction] | None:
    """The contraction of the integers, and that of what moves their blocks; None where there is none."""
    for scaled, prologue, blocks, least in _parts(found, target):
        grid = target.grid
        sums = in_blocks(scaled, prologue, target) if grid is None else by_fragments(scaled, prologue, grid)
        if sums is not None:
            return scaled, _of_blocks(found, blocks.along, blocks.terms, blocks.whole, blocks.scale, least)
    return None


def _parts(found: Contraction, target: Target) -> Iterator[tuple[Contraction, Prologue, Blocks, Place]]:
    """The contraction of integers that a number moves, with its prologue and its blocks, and that number, which is
    finite and the same for a block."""
    if found.b.valid or not is_constant(found.b.source):
        return
    for moved, least in _moved(*stored_at(found.b.source, found.b.index)):
        scaled = replace(found, b=Operand(*moved), prologue=None)
        prologue = narrow_weights(scaled, target.costs.memory)
        blocks = None if prologue is None else same_scales(scaled, prologue)
        if prologue is None or blocks is None:
            continue
        along = [(found.axes[blocks.along], int(str(found.shape[blocks.along])))]
        terms = math.gcd(*(same_for(index, along) for _, index in (least, blocks.scale)))
        if terms > 1 and _is_finite(least[0]):
            yield scaled, prologue, blocks._replace(terms=terms), least


def _moved(node: Node, index: tuple[Int, ...]) -> list[tuple[Place, Place]]:
    """Two terms of which a value of B is the sum, in both orders."""
    if node.op is not ops.ADD:
        return []
    x, y = (stored_at(term, index) for term in node.inputs)
    return [(x, y), (y, x)]


def _is_finite(least: Node) -> bool:
    """Whether all that is added is a number: its product with a sum of ``a`` is then that of all terms."""
    if not is_constant(least):
        return False
    (values,) = interp.evaluate([least])
    return bool(np.isfinite(values).all())


def _of_blocks(found: Contraction, along: int, block: int, whole: Place, scale: Place, least: Place) -> Contraction:
    """The sum over blocks of the products of what ``whole`` sums to in a block, times its ``scale``, with ``least``."""
    shape = (*found.shape[:along], found.shape[along] // block, *found.shape[along + 1 :])
    rows = tuple(1 if k in found.n else extent for k, extent in enumerate(shape))
    *at, within = ir.axes((*rows, block))

    def over(place: Place, axes: Sequence[Int], first: Int) -> Operand:
        old = [first + axis * block if k == along else axis for k, axis in enumerate(axes)]
        return Operand(*place).over(ir.rename(found.shape, old))

    terms = ir.cast(over(whole, at, within).read((*rows, block)), i32)
    sums = ir.cast(ir.reduce(ops.SUM_REDUCE, terms, [len(rows)]), f32) * over(scale, at, 0).read(rows)
    a = Operand(sums, tuple(0 if k in found.n else axis for k, axis in enumerate(ir.axes(shape))))
    return replace(found, shape=shape, a=a, b=over(least, ir.axes(shape), 0), prologue=None)
