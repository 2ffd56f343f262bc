"""Random inputs for a comparison, from ranges that suit how the model uses them.

Each input of a graph is followed to its consumers: positions of a gather lie within the axis, masks are zeros and ones,
operands of a logarithm or a square root are positive, all others are normally distributed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core import ops, symval, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Graph, Node
from luminal.core.symbolic import Int
from luminal.core.types import DType

# Sizes of successive symbolic dimensions: odd, and no neighbours of a power of two, so that every tile has a tail.
SIZES = (3, 37, 21, 11, 7, 5)
WORDS = ("", "a", "Zwei", "three words, one", "été", "4.5", "日本")
# A factor at least so large turns a mask into large negative scores, which switch elements off.
SWITCH = 1e3

_MOVES = (ops.VIEW, ops.CONTIGUOUS, ops.CAST)


@dataclass(frozen=True)
class Domain:
    """The values that an input may take.

    ``kind`` is ``index`` (0 .. ``extent``-1), ``mask`` (0 or 1, the first of every row 1), ``positive``, ``integer``
    (small, of either sign where the type has one), ``text`` (a few words) or ``normal``.
    """

    kind: str
    extent: Int = 0

    def __str__(self) -> str:
        return f"{self.kind} below {self.extent}" if self.kind == "index" else self.kind


def sizes(graph: Graph, smallest: bool = False) -> dict[str, int]:
    """A size for each symbolic dimension: the ``smallest`` within its bounds, or one that leaves tails."""
    chosen: dict[str, int] = {}
    for position, dim in enumerate(graph.dims):
        upper = sym.upper(dim.hi)
        assert upper is not None, dim
        wanted = dim.lo if smallest else SIZES[position % len(SIZES)]
        chosen[dim.name] = max(dim.lo, min(wanted, upper))
    return chosen


def draw(graph: Graph, dims: Mapping[str, int], seed: int = 0) -> dict[str, NDArray[Any]]:
    """An array for each input of ``graph`` at the sizes ``dims``, the same for the same ``seed``."""
    found = domains(graph)
    random = np.random.default_rng(seed)
    return {
        node.attr.name: _array(found[node], node.dtype, [int(sym.evaluate(d, dims)) for d in node.shape], dims, random)
        for node in graph.given
    }


def _array(
    domain: Domain, dtype: DType, shape: list[int], dims: Mapping[str, int], random: np.random.Generator
) -> NDArray[Any]:
    if domain.kind == "index":
        return random.integers(0, max(1, int(sym.evaluate(domain.extent, dims))), shape).astype(dtype.numpy)
    if domain.kind == "mask":
        attended = random.random(shape) < 0.75
        attended[..., :1] = True
        return attended.astype(dtype.numpy)
    if domain.kind == "integer":
        return random.integers(max(int(dtype.min), -100), min(int(dtype.max), 100) + 1, shape).astype(dtype.numpy)
    if domain.kind == "text":
        return np.asarray(random.choice(np.array(WORDS, object), shape))
    values = random.standard_normal(shape)
    if dtype.kind == "c":
        return (values + 1j * random.standard_normal(shape)).astype(dtype.numpy)
    return (np.abs(values) + 0.5 if domain.kind == "positive" else values).astype(dtype.numpy)


# ---- what an input is used for ---------------------------------------------------------------------------------------


def domains(graph: Graph) -> dict[Node, Domain]:
    """The domain of every input of ``graph``."""
    order = traverse.topological(graph.results)
    extents: dict[Node, list[Int]] = {}
    users: dict[Node, list[Node]] = {}
    for node in order:
        for operand in dict.fromkeys(node.inputs):
            users.setdefault(operand, []).append(node)
        if node.op.kind is ops.Kind.INDEXED:
            data, index = node.inputs[:2]
            for source, extent in _positions(index, data.shape[node.attr.axis]):
                extents.setdefault(source, []).append(extent)
    return {node: _domain(node, extents.get(node, []), users) for node in graph.inputs}


def _domain(node: Node, extents: list[Int], users: Mapping[Node, list[Node]]) -> Domain:
    if extents:
        extent = extents[0]
        for other in extents[1:]:
            extent = sym.minimum(extent, other)
        return Domain("index", extent)
    if node.dtype.is_bool or _is_mask(node, users):
        return Domain("mask")
    if node.dtype.is_integer:
        return Domain("integer")
    if node.dtype.is_text:
        return Domain("text")
    return Domain("positive" if _is_positive(node, users) else "normal")


def _positions(index: Node, extent: Int) -> Iterator[tuple[Node, Int]]:
    """The inputs that ``index`` is computed from, each with the extent that keeps ``index`` below ``extent``."""
    if index.op is ops.INPUT:
        yield index, extent
    elif index.op in _MOVES and not index.inputs[0].dtype.is_float:
        yield from _positions(index.inputs[0], extent)
    elif index.op is ops.SELECT:
        for branch in index.inputs[1:]:
            yield from _positions(branch, extent)
    elif index.op is ops.MUL:
        factor = _factor(index)
        for operand in index.inputs:
            yield from _positions(operand, extent if factor is None else sym.floordiv(extent, factor))
    elif index.op is ops.ADD:
        # In row * length + column, the column lies below the length.
        lengths = [_factor(operand) for operand in index.inputs]
        length = next((found for found in lengths if found is not None), extent)
        for operand, own in zip(index.inputs, lengths, strict=True):
            yield from _positions(operand, length if own is None else extent)


def _factor(node: Node) -> Int | None:
    """The positive number that ``node`` multiplies its other operand by; None where it is no such product."""
    if node.op is not ops.MUL:
        return None
    factors = (symval.formula(operand) for operand in node.inputs)
    return next((f for f in factors if isinstance(f, int | sym.Expr) and sym.always(f - 1)), None)


def _constant(node: Node) -> float | None:
    """The number that all elements of a node are, if it is known, else None."""
    found = symval.formula(node)
    return float(found) if isinstance(found, int | float) else None


def _is_mask(node: Node, users: Mapping[Node, list[Node]]) -> bool:
    """Whether ``node`` is used as a truth value, or multiplied by a large factor to mask scores."""
    pending, seen = [node], {node}
    while pending:
        value = pending.pop()
        for user in users.get(value, ()):
            if user.dtype.is_bool and (user.op is ops.CAST or _compares(user)):
                return True
            factors = [c for o in user.inputs if (c := _constant(o)) is not None]
            if user.op is ops.MUL and any(abs(c) >= SWITCH for c in factors):
                return True
            follows = user.op in _MOVES or (user.op is ops.GATHER and user.inputs[0] is value)
            if (follows or (user.op in (ops.ADD, ops.MUL) and factors)) and user not in seen:
                seen.add(user)
                pending.append(user)
    return False


def _compares(node: Node) -> bool:
    """Whether an integer is compared with 0 or 1, the two values of a mask."""
    operands = node.inputs
    return (
        node.op in (ops.EQUAL, ops.LESS_THAN)
        and operands[0].dtype.is_integer
        and any(_constant(o) in (0.0, 1.0) for o in operands)
    )


def _is_positive(node: Node, users: Mapping[Node, list[Node]]) -> bool:
    """Whether ``node``, or a positive multiple of it, is read by a logarithm or a square root."""
    pending, seen = [node], {node}
    while pending:
        value = pending.pop()
        for user in users.get(value, ()):
            if user.op in (ops.LOG2, ops.SQRT):
                return True
            scaled = user.op is ops.MUL and any((_constant(o) or 0) > 0 for o in user.inputs)
            if (user.op in _MOVES or scaled) and user.dtype.is_float and user not in seen:
                seen.add(user)
                pending.append(user)
    return False
