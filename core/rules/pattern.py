"""Rules as data: an equation, a pattern, its replacement, and examples on which a test compares both sides."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from luminal.core import ir
from luminal.core.constants import uniform
from luminal.core.ir import Node, Shape
from luminal.core.ops import Op
from luminal.core.rules.match import (
    Alone,
    Any_,
    Apply,
    Composed,
    Constant,
    Matcher,
    Number,
    Pattern,
    Product,
    Scaled,
    Shifted,
)  # fmt: skip
from luminal.core.types import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8, u32

FLOATS = (f32, f16, bf16, f64)
INTEGERS = (i32, i8, i64, u8, u32)
NUMBERS = FLOATS + INTEGERS
BOOL = (bool_,)
BITS = INTEGERS + BOOL


@dataclass(frozen=True)
class Real:
    """Where a rule that holds over the real numbers is applied, and its error.

    ``applied`` names the stage, and its condition. The right side has ``digits`` correct significant bits (None: all,
    within 4 ULP, like any function), up to an absolute error of ``lost``.
    """

    applied: str
    digits: int | None = None
    lost: float = 0.0


@dataclass(frozen=True)
class Rule:
    """``rewrite(node)`` gives the node that equals ``node``, or None where the rule does not apply.

    It is tried on nodes of the primitives ``ops`` (all others where that is empty). ``examples`` yields left sides over
    inputs of any names; on each the rule must apply. A rule is exact, to the bit and anywhere, or says how it is
    ``real``.
    """

    equation: str
    ops: tuple[Op, ...]
    rewrite: Callable[[Node], Node | None]
    examples: Callable[[], Iterable[Node]]
    real: Real | None = None

    def __repr__(self) -> str:
        return self.equation


# ---- numbers ---------------------------------------------------------------------------------------------------------


def filled(value: np.ndarray[Any, Any], shape: Shape) -> Node:
    """A constant of ``shape``, every element the one of ``value``."""
    return ir.expand(ir.constant(np.asarray(value).reshape(())), shape)


def filled_as(number: float, like: Node) -> Node:
    """A constant of the type and shape of ``like``, every element ``number`` (integers wrap)."""
    return ir.expand(ir.constant(number, like.dtype), like.shape)


# ---- rules of elementwise primitives ---------------------------------------------------------------------------------

NODES: Matcher[Node] = Matcher(lambda node: node.inputs, uniform)


def instance(pattern: Pattern, dtype: DType, numbers: Mapping[str, float], shape: Shape) -> Node:
    """A node that ``pattern`` matches, over inputs named like its variables; ``numbers`` has its constants by name."""

    def made(part: Pattern) -> Node:
        match part:
            case Any_():
                return ir.input_(part.name, shape, part.dtype or dtype)
            case Number():
                return ir.expand(ir.constant(part.value, part.dtype or dtype), shape)
            case Constant():
                return ir.expand(ir.constant(numbers[part.name], dtype), shape)
            case Apply():
                return ir.elementwise(part.op, *map(made, part.operands), attr=part.attr)
            case Composed():
                whole: Node = part.function(made(part.inner))
                return whole
            case Shifted():
                return made(part.inner) + numbers[part.name]
            case Scaled():
                return made(part.inner) * numbers[part.name]
            case Product():
                return reduce(operator.mul, map(made, part.factors)) * numbers[part.name]
            case Alone():
                return made(part.inner)

    return made(pattern)


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
