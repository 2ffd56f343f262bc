"""Functions that models spell out in simpler ones, known again.

Of ``x * (1 + erf(x / sqrt(2))) / 2`` the sum cancels where ``x`` is far below zero: the digits that are left there are
those of roundings. As one function, ``times_normal``, it is exact to the last places, and takes fewer operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from luminal.core import ir, ops
from luminal.core.decompose.error_function import erf, times_normal
from luminal.core.ir import Graph, Node
from luminal.core.rewrite import readers as read_by
from luminal.core.rewrite import remade, rewrite, simplify
from luminal.core.rules.pattern import uniform
from luminal.core.types import DType, f32, f64

FACTORS = 6  # that a product is looked through for, at most, and products inside each other


def known(graph: Graph) -> Graph:
    """``graph`` with ``times_normal`` wherever it is spelled out and nobody else reads the sum or function in it."""
    readers = {node: len(found) for node, found in read_by(graph.roots).items()}
    now: dict[Node, Node] = {}
    found: list[Node] = []

    def made(node: Node, operands: Sequence[Node]) -> Node:
        now.update(zip(node.inputs, operands, strict=True))
        x = _of_times_normal(node, readers)
        if x is None:
            return ir.rebuild(node, operands)
        found.append(node)
        return times_normal(now[x])

    origins: ir.Origins = dict(graph.origins)
    roots = remade(graph.roots, origins, made)
    return simplify(graph.computing(roots, origins=origins)) if found else graph


def _of_times_normal(node: Node, readers: Mapping[Node, int]) -> Node | None:
    """What ``node`` is ``times_normal`` of, spelled out as a product in any order; None where it is not."""
    if node.op is not ops.MUL or node.dtype not in (f32, f64):
        return None
    for factor in (factors := [node]):
        if factor.op is ops.MUL and len(factors) < FACTORS and (factor is node or readers[factor] == 1):
            factors += factor.inputs
    for total in factors:
        found = _of_normal(total, readers)
        if found is not None:
            x, k = found
            if _product(node, {total: (k, 0, 1), x: (1.0, 1, 0)}, FACTORS) == (0.5, 1, 1):
                return x
    return None


def _of_normal(total: Node, readers: Mapping[Node, int]) -> tuple[Node, float] | None:
    """``x`` and ``k``, where ``total`` is ``k + k * erf(x / sqrt(2))`` and nobody else reads a part of it."""
    if total.op is not ops.ADD or readers[total] != 1:
        return None
    for number, term in (total.inputs, total.inputs[::-1]):
        k, (scale, function) = uniform(number), _scaled(term)
        if k is None or float(k) != scale or readers[term] != 1 or readers[function] != 1:
            continue
        argument = operand(erf, function)
        if argument is not None:
            inner, x = _scaled(argument)
            return (x, scale) if abs(inner * math.sqrt(2) - 1) <= total.dtype.eps else None
    return None


def _scaled(node: Node) -> tuple[float, Node]:
    """A number and what ``node`` is times that number."""
    if node.op is ops.MUL:
        for one, other in (node.inputs, node.inputs[::-1]):
            if (number := uniform(other)) is not None:
                return float(number), one
    if node.op is ops.DIV and (number := uniform(node.inputs[1])):
        return 1 / float(number), node.inputs[0]
    return 1.0, node


def _product(node: Node, factors: Mapping[Node, tuple[float, int, int]], depth: int) -> tuple[float, int, int] | None:
    """What ``node``, a product of ``factors`` and numbers, is: the products of the first of what the factors are, and
    the sums of the others; None where it has another factor."""
    number = uniform(node)
    if number is not None:
        return float(number), 0, 0
    if node in factors:
        return factors[node]
    if node.op is not ops.MUL or depth == 0:
        return None
    parts = [_product(part, factors, depth - 1) for part in node.inputs]
    if parts[0] is None or parts[1] is None:
        return None
    (a, i, m), (b, j, n) = parts[0], parts[1]
    return a * b, i + j, m + n


def operand(function: Callable[[Node], Node], node: Node) -> Node | None:
    """The node of which ``node`` is ``function``, an elementwise one; None where it is not, or where simplification has
    made one of the last primitive of that node and the first of the function.

    ``rules.pattern.match`` walks trees; what a function is made of is shared, and would be a large tree.
    """
    place, whole = _pattern(function, node.dtype)
    found: Node | None = None
    waiting = [(whole, node)]
    seen: set[tuple[Node, Node]] = set()
    while waiting:
        pattern, part = waiting.pop()
        if (pattern, part) in seen:
            continue
        seen.add((pattern, part))
        number = uniform(pattern)
        if pattern is place:
            if found not in (None, part):
                return None
            found = part
        elif number is not None:
            other = uniform(part)
            if other is None or (other.dtype, other.tobytes()) != (number.dtype, number.tobytes()):
                return None
        elif (pattern.op, pattern.attr, pattern.dtype) != (part.op, part.attr, part.dtype):
            return None
        else:
            waiting += zip(_numbers_last(pattern), _numbers_last(part), strict=True)
    return found


def _numbers_last(node: Node) -> tuple[Node, ...]:
    """The operands of ``node``; where their order does not matter, a number after what it is combined with."""
    first_is_number = node.op.commutative and uniform(node.inputs[0]) is not None
    return node.inputs[::-1] if first_is_number else node.inputs


@cache
def _pattern(function: Callable[[Node], Node], dtype: DType) -> tuple[Node, Node]:
    """A number, and the simplified ``function`` of it."""
    place = ir.input_("x", (), dtype)
    (whole,) = rewrite([function(place)])
    return place, whole
