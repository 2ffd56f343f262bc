"""Identities of functions: an expression that models or decompositions spell out, and a function equal to it over the
reals.

They are real rules: the right side rounds otherwise, so each row says how near it is to the real function, who may
apply it, and what must hold of the numbers in it. Left sides are built by the decompositions themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from luminal.core import ir, ops, traverse
from luminal.core.constants import uniform
from luminal.core.decompose.common import SHORT_DIGITS
from luminal.core.decompose.error_function import erf, times_normal, times_normal_short
from luminal.core.decompose.hyperbolic import one_plus_tanh_short, tanh
from luminal.core.ir import Node
from luminal.core.rewrite import rewrite
from luminal.core.rules.match import (
    Alone,
    Any_,
    Apply,
    C,
    Composed,
    Matcher,
    Number,
    Pattern,
    Product,
    Scaled,
    X,
    apply,
)
from luminal.core.rules.pattern import Real
from luminal.core.types import DType, f32, f64


@dataclass(frozen=True)
class Identity:
    """The pattern ``left`` over ``X`` equals ``right(X)`` in ``types``.

    ``where`` is the side condition: it gets the type, and as numbers all that ``left`` binds except ``X``. ``numbers``
    is an example of these."""

    equation: str
    left: Pattern
    right: Callable[[Node], Node]
    types: tuple[DType, ...]
    real: Real
    where: Callable[..., bool] = lambda dtype: True
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.equation

    def argument(self, node: Node, matcher: Matcher[Node]) -> Node | None:
        """The argument ``x`` if ``node`` matches ``left``, so that it equals ``right(x)``; else None."""
        if node.dtype in self.types:
            for found in matcher.match(self.left, node):
                x: Node = found.pop(X.name)
                if self.where(node.dtype, **{name: _number(value) for name, value in found.items()}):
                    return x
        return None


def _number(value: Node | float) -> float:
    found: Any = uniform(value) if isinstance(value, Node) else value
    return float(found)


# ---- functions as patterns -------------------------------------------------------------------------------------------


def of(function: Callable[[Node], Node], inner: Pattern = X) -> Composed:
    """The pattern of an elementwise ``function`` of what ``inner`` matches. It does not match where simplification
    merged the last primitive of the argument with the first one of the function."""
    return Composed(function, partial(_spelled, function), inner)


@cache
def _spelled(function: Callable[[Node], Node], dtype: DType) -> Pattern:
    """The pattern of ``function`` of ``X``, after simplification. The nodes built for it get no origins."""
    with ir.originating({}):
        x = ir.input_(X.name, (), dtype)
        (whole,) = rewrite([function(x)])
        made: dict[Node, Pattern] = {}
        for node in traverse.topological([whole]):
            number = uniform(node)
            if node is x:
                made[node] = Any_(X.name, dtype)
            elif number is not None:
                made[node] = Number(number.item(), node.dtype)
            else:
                made[node] = Apply(node.op, tuple(made[operand] for operand in node.inputs), node.attr)
    return made[whole]


# ---- the table -------------------------------------------------------------------------------------------------------

_ANY_READER = "schedule.numeric.spelled_out, where nobody else reads the sum or the function in it"
_SHORT_READER = "schedule.numeric.digits, where readers round to fewer digits and nobody else reads its operands"

IDENTITIES = (
    # The sum cancels where x is far below zero: the remaining digits there are rounding errors.
    Identity(
        "x * (k + s * erf(r * x)) * n = x * Phi(x), n * k = n * s = 1/2, r = 1/sqrt(2)",
        Product("n", (Alone(apply(ops.ADD, C, Alone(Scaled("s", Alone(of(erf, Scaled("r", X))))))), X)),
        times_normal,
        (f32, f64),
        Real(_ANY_READER),
        where=lambda dtype, n, c, s, r: n * c == 0.5 and c == s and abs(r * math.sqrt(2) - 1) <= dtype.eps,
        numbers={"n": 0.5, "c": 1.0, "s": 1.0, "r": math.sqrt(0.5)},
    ),
    Identity(
        "x * Phi(x) = max(x, 0) - |x| * Phi(-|x|), Phi(-|x|) as two to a polynomial",
        of(times_normal),
        times_normal_short,
        (f32,),
        Real(_SHORT_READER, SHORT_DIGITS, 2.0**-134),  # half of the least bfloat16 above zero
    ),
    Identity(
        "tanh(x) + 1 = 2 / (1 + exp(-2x))",
        apply(ops.ADD, of(tanh), 1),
        one_plus_tanh_short,
        (f32,),
        Real(_SHORT_READER, SHORT_DIGITS, 2.0**-126),  # subnormal results may be 0
    ),
)
