"""Weights rounded to integers with scales, when compiling: an option of the user.

It applies to a matrix of at least ``LEAST_ELEMENTS`` finite floats that a contraction reads with one axis along N and
the other along K: a constant, or an expression of constants that are not narrow themselves. With ``w`` a row along K
(or a group in a row) in float32:

- ``int8``: ``scale = max |w| / 127``, ``q = round(w / scale)``;
- ``int4``: ``extreme`` is the number of the largest magnitude in a group of 32 along K, the first of equals,
  ``scale = bfloat16(extreme / -8)``, ``q = min(max(round(w / scale), -8), 7)``. The scheme of llama.cpp's Q4_0, but for
  the type of the scale. ``int4-64`` and ``int4-128`` have larger groups.

``round`` rounds halves to even. If all of ``w`` is zero, so is ``q``. The contraction then multiplies with
``float32(q) * float32(scale)``, and sums in float32 as before. Look-ups in a matrix that is rounded, such as a table
of words that the last contraction multiplies with, read these numbers too, so that the matrix is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from luminal.core import interp, ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core.constants import is_computed, is_constant, is_narrow
from luminal.core.costs import COSTS
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.movement import reshape, transpose
from luminal.core.origins import Approximation
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.contraction import Operand, operand
from luminal.core.schedule.contraction.roles import contraction_of
from luminal.core.types import DType

LEAST_ELEMENTS = 1 << 16  # smaller matrices are not rounded: they are read fast, and their errors count as much

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Scheme:
    """Integers of type ``dtype`` with a scale for each ``group`` along K, or for each row along K if ``group`` is 0."""

    name: str
    dtype: DType
    group: int
    scale: DType

    def __repr__(self) -> str:
        return self.name

    def quantised(self, weights: Array) -> tuple[Array, Array]:
        """The integers for ``weights`` ``[.., group]``, and their scales ``[.., 1]``."""
        wide = weights.astype(np.float32)
        if self.group:
            at = np.abs(wide).argmax(-1, keepdims=True)
            scales = np.take_along_axis(wide, at, -1) / np.float32(self.dtype.min)
        else:
            scales = np.abs(wide).max(-1, keepdims=True) / np.float32(self.dtype.max)
        scales = scales.astype(self.scale.numpy)
        divisor = scales.astype(np.float32)
        whole = np.rint(wide / np.where(divisor == 0, np.float32(np.inf), divisor))
        low = self.dtype.min if self.group else -self.dtype.max
        return np.clip(whole, low, self.dtype.max).astype(np.int8).astype(self.dtype.numpy), scales


ALL = {
    scheme.name: scheme
    for scheme in (
        Scheme("int8", types.i8, 0, types.f32),
        Scheme("int4", types.i4, 32, types.bf16),
        Scheme("int4-64", types.i4, 64, types.bf16),
        Scheme("int4-128", types.i4, 128, types.bf16),
    )
}


def parse(name: str | None) -> Scheme | None:
    """The scheme of that name. Raises InputError for other names."""
    if name is not None and name not in ALL:
        raise InputError(f"unknown weights {name!r}: expected {', '.join(ALL)}")
    return None if name is None else ALL[name]


def quantised(graph: Graph, scheme: Scheme) -> Graph:
    """``graph`` with the weights of its contractions, and what is looked up in them, rounded by ``scheme``, but for
    those of operators that it keeps ``exact``; each reader is noted in ``approximations``. Names and origins stay."""
    (result,) = together([graph], scheme)
    return result


def together(graphs: Sequence[Graph], scheme: Scheme) -> list[Graph]:
    """The ``graphs`` of one library, each ``quantised``: what one of them looks up in is rounded if a contraction of
    any of them reads it, so that they share it."""
    known: Rounded = {}
    rewriters = [_Rewriter(scheme, dict(graph.names), dict(graph.origins), known, graph.keeps) for graph in graphs]
    both = list(zip(graphs, rewriters, strict=True))
    every = [remade(graph.roots, rewriter.origins, rewriter.made) for graph, rewriter in both]
    return [
        rewriter.result(graph, remade(roots, rewriter.origins, rewriter.looking_up))
        for (graph, rewriter), roots in zip(both, every, strict=True)
    ]


@dataclass(frozen=True)
class _Matrix:
    """A rounded matrix: ``integers`` and ``scales``, which are held until the library is written, since packing asks
    for them often and quantising takes long, and the ``real`` matrix computed from them."""

    integers: Node
    scales: Node
    real: Node


Rounded: TypeAlias = dict[tuple[Node, int], _Matrix | None]  # by the matrix and its axis along K; None: it stays


class _Rewriter:
    def __init__(
        self, scheme: Scheme, names: dict[Node, str], origins: ir.Origins, known: Rounded, keeps: Callable[[Node], bool]
    ) -> None:
        self.scheme = scheme
        self.names = names
        self.origins = origins
        self.known = known
        self.keeps = keeps
        self.approximations: list[Approximation] = []

    def result(self, graph: Graph, roots: Sequence[Node]) -> Graph:
        """``graph`` computing ``roots``."""
        made = graph.approximations + tuple(self.approximations)
        return graph.computing(roots, names=self.names, origins=self.origins, approximations=made)

    def made(self, node: Node, operands: Sequence[Node]) -> Node:
        """``node`` over ``operands``, with its weight rounded if it is a contraction with such a weight."""
        new = traverse.rebuild(node, operands) if operands else node
        rounded = None if self.keeps(node) else self._contraction(new)
        if rounded is not None:
            self._note(node)
        return rounded or new

    def looking_up(self, node: Node, operands: Sequence[Node]) -> Node:
        """``node`` over ``operands``; a look-up in constants reads those of them rounded that contractions do."""
        if node.op is ops.GATHER and is_computed(node.inputs[0]):
            known = {source: matrix for (source, _), matrix in reversed(self.known.items()) if matrix is not None}
            tables = [x for x in traverse.topological(node.inputs[:1]) if x in known]
            if tables:
                self._note(node)
                by = {x: ir.cast(self._named(x, known[x]), x.dtype) for x in tables}
                operands = (*traverse.substitute(node.inputs[:1], by), operands[1])
        return traverse.rebuild(node, operands)

    def _note(self, node: Node) -> None:
        self.approximations.append(Approximation("weights", str(self.scheme), self.origins.get(node, ())))

    def _contraction(self, node: Node) -> Node | None:
        """``node`` with its weight rounded; None if it is no contraction with such a weight."""
        found = contraction_of(node)
        if found is None or node.dtype != types.f32 or found.b.valid:
            return None
        product = node.inputs[0]
        along = {v for k in found.k if (v := sym.as_var(found.axes[k])) is not None}
        depth = _depth_axis(found.b, along)
        weight = None if depth is None else self._weight(found.b.source, depth)
        if weight is None:
            return None
        real = ir.view(weight, product.shape, found.b.index)
        factors = [real if operand(x) == found.b else x for x in product.inputs]
        return traverse.rebuild(node, [traverse.rebuild(product, factors)])

    def _weight(self, source: Node, depth: int) -> Node | None:
        if (source, depth) not in self.known:
            self.known[source, depth] = self._rounded(source, depth)
        matrix = self.known[source, depth]
        return None if matrix is None else self._named(source, matrix)

    def _named(self, source: Node, matrix: _Matrix) -> Node:
        """The real ``matrix``; what it is computed from is named like ``source``."""
        if source in self.names:
            name = self.names[source]
            self.names[matrix.integers], self.names[matrix.scales] = name, f"{name}.scale"
        return matrix.real

    def _rounded(self, source: Node, depth: int) -> _Matrix | None:
        """The matrix ``source`` rounded; ``depth`` is its axis along K."""
        columns, length = source.shape[1 - depth], source.shape[depth]
        if not (is_constant(source) and source.dtype.is_float and isinstance(columns, int) and isinstance(length, int)):
            return None
        group = self.scheme.group or length
        if columns * length < LEAST_ELEMENTS or length % group or not interp.affordable(source):
            return None
        if is_narrow(source, COSTS.memory.narrower):
            return None
        constant = interp.folded(source)
        if not constant.attr.is_finite:
            return None
        matrix = constant.attr.array if depth == 1 else constant.attr.array.T
        rounded = self.scheme.quantised(matrix.reshape(columns, length // group, group))
        integers, scales = map(ir.constant, rounded)
        whole = reshape(ir.cast(integers, types.f32) * ir.cast(scales, types.f32), [columns, length])
        return _Matrix(integers, scales, whole if depth == 1 else transpose(whole, 0, 1))


def _depth_axis(b: Operand, along: set[sym.Var]) -> int | None:
    """The axis of B's source along K, if it is a matrix with the other axis not along K; else None."""
    if b.source.rank != 2:
        return None
    used = [sym.variables(e) for e in b.index]
    depth = [k for k in range(2) if used[k] and used[k] <= along]
    other = [k for k in range(2) if used[k] and not used[k] & along]
    return depth[0] if len(depth) == len(other) == 1 else None
