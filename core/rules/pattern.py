"""Rules as data: an equation, what it matches, what replaces it, and examples on which a test compares both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.core import ir, ops
from luminal.core.ir import Node, Shape
from luminal.core.ops import Op
from luminal.core.rules.match import Any_, Apply, Constant, Matcher, Number, Pattern
from luminal.core.types import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8, u32

FLOATS = (f32, f16, bf16, f64)
INTEGERS = (i32, i8, i64, u8, u32)
NUMBERS = FLOATS + INTEGERS
BOOL = (bool_,)
BITS = INTEGERS + BOOL


@dataclass(frozen=True)
class Rule:
    """``rewrite(node)`` gives the node that equals ``node``, or None where the rule does not apply.

    It is tried on nodes of the primitives ``ops`` (all others where that is empty). ``examples`` yields left sides over
    inputs of any names; on each the rule must apply.
    """

    equation: str
    ops: tuple[Op, ...]
    rewrite: Callable[[Node], Node | None]
    examples: Callable[[], Iterable[Node]]

    def __repr__(self) -> str:
        return self.equation


# ---- numbers ---------------------------------------------------------------------------------------------------------


def uniform(node: Node) -> np.ndarray[Any, Any] | None:
    """The one number that all elements of ``node`` are (a 0-d array), where that follows from a constant of size 1."""
    if node.op is ops.CONSTANT and node.attr.array.size == 1:
        return np.asarray(node.attr.array.reshape(()))
    if node.op is ops.VIEW:
        inner = uniform(node.inputs[0])
        if inner is not None and (not node.attr.valid or inner.tobytes() == node.attr.fill):
            return inner
    return None


def filled(value: np.ndarray[Any, Any], shape: Shape) -> Node:
    """A constant of ``shape``, every element the one of ``value``."""
    return ir.expand(ir.constant(np.asarray(value).reshape(())), shape)


def filled_as(number: float, like: Node) -> Node:
    """A constant of the type and shape of ``like``, every element ``number`` (integers wrap)."""
    return ir.expand(ir.constant(number, like.dtype), like.shape)


# ---- rules of elementwise primitives ---------------------------------------------------------------------------------

NODES: Matcher[Node] = Matcher(lambda node: node.inputs, uniform)


def instance(pattern: Pattern, dtype: DType, constants: Mapping[str, float], shape: Shape) -> Node:
    """A node that ``pattern`` matches, over inputs named as its variables."""
    if isinstance(pattern, Apply):
        operands = [instance(o, dtype, constants, shape) for o in pattern.operands]
        return ir.elementwise(pattern.op, *operands, attr=pattern.attr)
    if isinstance(pattern, Any_):
        return ir.input_(pattern.name, shape, pattern.dtype or dtype)
    if isinstance(pattern, Number):
        return ir.expand(ir.constant(pattern.value, pattern.dtype or dtype), shape)
    assert isinstance(pattern, Constant), f"no example of {pattern}"
    return ir.expand(ir.constant(constants[pattern.name], dtype), shape)


EXAMPLE_SHAPE = (64,)


def rule(
    equation: str,
    left: Apply,
    right: Callable[..., Node | None],
    types: tuple[DType, ...],
    constants: Iterable[Mapping[str, float]] = ({},),
) -> Rule:
    """A rule of elementwise primitives. ``right`` gets the nodes that the names of ``left`` are bound to; a result of
    None means that a side condition failed. ``types`` are the operand types for which the equation holds: their kinds
    are checked when the rule is tried. ``constants`` gives examples of the numbers that ``Constant`` matches.
    """
    kinds = {dtype.kind for dtype in types}

    def rewrite(node: Node) -> Node | None:
        if node.inputs[-1].dtype.kind not in kinds:  # the last: a Select's first operand is its condition
            return None
        for bound in NODES.match(left, node):
            result = right(**bound)
            if result is not None:
                return result
        return None

    def examples() -> Iterator[Node]:
        for dtype in types:
            for numbers in constants:
                yield instance(left, dtype, numbers, EXAMPLE_SHAPE)

    return Rule(equation, (left.op,), rewrite, examples)
