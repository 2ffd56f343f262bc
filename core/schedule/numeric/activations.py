"""Activations rounded where quantised weights multiply them: an option of the user.

It applies to the other operand of a contraction in float32 whose weights are narrow (constants, or rows looked up in
them, that take at most half the bytes of float32):

- ``bf16``: each number to bfloat16, ties to even;
- ``q8``: each block of 32 along K to 8-bit integers of -127 to 127, ``round(x / scale)``, with a scale of ``max |x| /
  127`` in float32. It is the scheme of llama.cpp's Q8_0, but for the type of the scale. Where one scale of the weights
  serves a whole row along K, as of ``int8``, so does that of activations: the sum is then one of integers
  (``integers``), which units for bytes compute. They also compute the sum of each block where weights are integers
  of at most 8 bits with a scale for a block (``contraction/blocks.py``). Rows that do not fill blocks stay.

Sums are in float32 otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import ir, ops, traverse
from luminal.core.constants import is_narrow
from luminal.core.costs import COSTS
from luminal.core.decompose.quantization import by_rows
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.movement import once, permute, reshape, varies
from luminal.core.origins import Approximation
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.contraction import operand
from luminal.core.schedule.contraction.roles import contraction_of
from luminal.core.schedule.numeric import integers
from luminal.core.types import bf16, f32

FLOAT32, ALL = "float32", ("float32", "bf16", "q8")
BLOCK = 32  # elements that have a scale together, those of a block of quantised weights


def parse(name: str | None) -> str | None:
    """The name, None for what rounds nothing. Raises InputError for names that are none of ``ALL``."""
    if name is not None and name not in ALL:
        raise InputError(f"unknown activations {name!r}: expected {', '.join(ALL)}")
    return None if name == FLOAT32 else name


def rounded(graph: Graph, to: str) -> Graph:
    """``graph`` with the activations that quantised weights multiply rounded; each product is noted in
    ``approximations``. Names and origins stay."""
    origins: ir.Origins = dict(graph.origins)
    noted: list[Approximation] = []

    def made(node: Node, operands: Sequence[Node]) -> Node:
        new = traverse.rebuild(node, operands) if operands else node
        product = None if graph.keeps(node) else _product(new, to)
        if product is None:
            return new
        noted.append(Approximation("activations", to, origins.get(node, ())))
        return traverse.rebuild(new, [product])

    roots = remade(graph.roots, origins, made)
    return graph.computing(roots, origins=origins, approximations=graph.approximations + tuple(noted))


def _product(node: Node, to: str) -> Node | None:
    """The product that ``node`` sums, with activations rounded; None if it has none that are to be."""
    found = contraction_of(node)
    if found is None or found.dtype != f32:
        return None
    product = node.inputs[0]
    weights = [_is_quantised(x) for x in product.inputs]
    if sum(weights) != 1:
        return None
    at = weights.index(False)
    axes = [k for k in found.k if product.shape[k] != 1]
    x = _narrowed(product.inputs[at]) if to == "bf16" else _whole(product, at, axes)
    return (
        None if x is None else traverse.rebuild(product, [x, product.inputs[1]] if at == 0 else [product.inputs[0], x])
    )


def _is_quantised(factor: Node) -> bool:
    """Whether a factor is weights that are stored in few bits, or rows of them that are looked up."""
    source = operand(factor).source
    while source.op in (ops.GATHER, ops.VIEW):
        source = source.inputs[0]
    return is_narrow(source, COSTS.memory.narrower)


def _narrowed(x: Node) -> Node:
    """``x`` rounded to bfloat16, before the view that repeats its elements. It is stored in float32: no unit multiplies
    it with weights of few bits, and so it is not widened again for each of them."""
    if x.op is ops.VIEW and not any(x.attr.fill):
        return traverse.rebuild(x, [_narrowed(x.inputs[0])])
    return ir.unary(ops.CONTIGUOUS, ir.cast(ir.cast(x, bf16), f32))


def _whole(product: Node, at: int, axes: Sequence[int]) -> Node | None:
    """A factor of the product rounded to integers and scales along its one axis of K; None if it has several, or of no
    whole number of blocks."""
    x, weights = product.inputs[at], product.inputs[1 - at]
    depth = product.shape[axes[0]] if len(axes) == 1 else None
    if not isinstance(depth, int):
        return None
    block = depth if integers.is_scaled_outside(weights, axes) else BLOCK
    if depth % block:
        return None
    order = [*(k for k in range(x.rank) if k != axes[0]), axes[0]]
    moved = permute(once(x, varies(x)), order)
    whole, scale = by_rows(reshape(moved, [*moved.shape[:-1], depth // block, block]))
    real = reshape(ir.cast(whole, f32) * integers.finite(scale), moved.shape)
    return ir.expand(permute(real, [order.index(k) for k in range(x.rank)]), x.shape)
