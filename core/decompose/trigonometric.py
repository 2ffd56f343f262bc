"""Trigonometric functions and their inverses. Angles are in radians."""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core.decompose.arithmetic import abs_, copysign, rsqrt
from luminal.core.decompose.coefficients import ASIN, ATAN
from luminal.core.decompose.common import horner, real_function
from luminal.core.decompose.compare import equal, less, maximum
from luminal.core.derivative import derivative
from luminal.core.ir import Node, lift, select, unary


def sin(x: Node) -> Node:
    """The sine."""
    return unary(ops.SIN, x)


def cos(x: Node) -> Node:
    """The cosine: the sine a quarter turn on, the turn added exactly."""
    return unary(ops.SIN, x, ops.Quadrant(1))


@derivative(lambda g, y, x: g * (1 + y * y))
@real_function
def tan(x: Node) -> Node:
    """The tangent."""
    return sin(x) / cos(x)


@derivative(lambda g, y, x: g / (x * x + 1))
@real_function
def atan(x: Node) -> Node:
    """The inverse tangent: a polynomial on ``[-1, 1]``, and ``±pi/2 - atan(1/x)`` beyond."""
    beyond = less(1, abs_(x))
    t = select(beyond, unary(ops.RECIP, x), x)
    near = t * horner(t * t, ATAN[x.dtype])
    quarter = select(less(x, 0), lift(-math.pi / 2, x), lift(math.pi / 2, x))
    return select(beyond, quarter - near, near)


def _of_atan2(g: Node, angle: Node, y: Node, x: Node) -> list[Node | None]:
    share = g * unary(ops.RECIP, x * x + y * y)
    return [share * x, -(share * y)]


@derivative(_of_atan2)
@real_function
def atan2(y: Node, x: Node) -> Node:
    """The angle of the point ``(x, y)`` in ``-pi .. pi``, signed zeros and infinities as in C."""
    rise, run = abs_(y), abs_(x)
    steep = less(run, rise)
    larger, smaller = select(steep, rise, run), select(steep, run, rise)
    both_infinite = equal(smaller, math.inf)
    ratio = select(both_infinite, 1, smaller / larger)
    ratio = select(equal(larger, 0), 0, ratio)
    # NaN in either operand: the quotient may have lost it.
    angle = ratio * horner(ratio * ratio, ATAN[x.dtype])
    angle = select(steep, math.pi / 2 - angle, angle)
    left = less(copysign(lift(1, x), x), 0)
    angle = copysign(select(left, math.pi - angle, angle), y)
    return select(equal(x, x) & equal(y, y), angle, maximum(x, y))


def _arc(x: Node) -> tuple[Node, Node, Node]:
    """``(half, r, angle)``: with ``m = |x|``, ``half`` is whether ``m <= 1/2``; ``angle`` is ``asin(m)`` there, else
    ``asin(sqrt((1 - m)/2))``, which is ``acos(m)/2``; both within 1 ULP or so."""
    magnitude = abs_(x)
    low = less(magnitude, 0.5)
    rest = (1 - magnitude) * 0.5
    z = select(low, magnitude * magnitude, rest)
    s = select(low, magnitude, unary(ops.SQRT, rest))
    return low, magnitude, s * horner(z, ASIN[x.dtype])


@derivative(lambda g, y, x: g * rsqrt(1 - x * x))
@real_function
def asin(x: Node) -> Node:
    """The inverse sine: NaN outside ``[-1, 1]``."""
    low, _, angle = _arc(x)
    result = select(low, angle, math.pi / 2 - angle * 2)
    return select(equal(x, 0), x, select(less(x, 0), -result, result))


@derivative(lambda g, y, x: -(g * rsqrt(1 - x * x)))
@real_function
def acos(x: Node) -> Node:
    """The inverse cosine: NaN outside ``[-1, 1]``."""
    low, _, angle = _arc(x)
    negative = less(x, 0)
    near = math.pi / 2 - select(negative, -angle, angle)
    far = select(negative, math.pi - angle * 2, angle * 2)
    return select(low, near, far)
