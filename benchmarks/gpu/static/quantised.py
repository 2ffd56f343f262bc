"""Products of decoding with quantised weights: a row of activations times each kind of blocks of a checkpoint."""

from __future__ import annotations

import numpy as np

from luminal.core import ir, movement, types
from luminal.core.decompose import contraction
from luminal.core.ir import Graph, Node
from luminal.core.origins import Approximation
from luminal.core.schedule.numeric.activations import BLOCK
from luminal.frontends.llm import blocks

WIDE, ROUNDED = "float32", "q8"
KINDS = tuple(f"{name} by {what}" for name in blocks.ALL for what in (WIDE, ROUNDED))


def graph(kind: str, sizes: tuple[int, ...]) -> Graph:
    """The product of that one of ``KINDS``, of so many rows, terms and columns. Activations in 8 bits are given as
    integers and scales: what rounds them is no part of the product."""
    name, _, what = kind.partition(" by ")
    rows, terms, columns = sizes
    if what == WIDE:
        x = ir.input_("x", (rows, terms), types.f32)
        return Graph("decode", (x,), (("y", _product(x, name, terms, columns)),), ())
    whole = ir.input_("whole", (rows, terms // BLOCK, BLOCK), types.i8)
    scale = ir.input_("scale", (rows, terms // BLOCK, 1), types.f32)
    x = movement.reshape(ir.cast(whole, types.f32) * scale, [rows, terms])
    rounded = Approximation("activations", what, ())
    outputs = (("y", _product(x, name, terms, columns)),)
    return Graph("decode", (whole, scale), outputs, (), approximations=(rounded,))


def _product(x: Node, name: str, terms: int, columns: int) -> Node:
    """``x`` times weights of drawn bits and moderate scales."""
    kind, rng = blocks.ALL[name], np.random.default_rng(0)
    count = terms // kind.size
    raw = rng.integers(0, 256, (columns, count, kind.layout.itemsize), np.uint8).view(kind.layout)[..., 0]
    for field in {"scale", "least"} & set(kind.layout.names or ()):
        raw[field] = rng.uniform(-2, 2, raw.shape)
    weights = kind.real({part: ir.constant(kind.taken(raw, part)) for part in kind.kept})
    return contraction.matmul(x, movement.transpose(weights, 0, 1))
