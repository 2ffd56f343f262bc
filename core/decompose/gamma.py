"""The logarithm of the gamma function and its derivative.

Between 3/4 and 3 each is a factor with its zeros times a polynomial in ``t = (x - c)/(x + c)``, which sends the
singularities at 0 and at infinity to -1 and 1. From there to 8 the recurrence leads down, in one logarithm or one
quotient; beyond 8 Stirling's series holds; below, the recurrence or the reflection leads up. Above zero results are
within 4 units in the last place. Below, where the terms of the reflection may cancel, they are within 4 units of the
larger term, or of 1.
"""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core.decompose.arithmetic import abs_, copysign, floor, round_
from luminal.core.decompose.coefficients import DIGAMMA, DIGAMMA_TAIL, LGAMMA, LGAMMA_TAIL
from luminal.core.decompose.common import horner, real_function
from luminal.core.decompose.compare import equal, less, maximum
from luminal.core.decompose.exponential import log
from luminal.core.decompose.trigonometric import cos, sin
from luminal.core.derivative import derivative
from luminal.core.ir import Node, select, unary
from luminal.core.types import f32, f64

_FAR = 8  # from here on Stirling's series
_STIRLING = math.log(2 * math.pi) / 2 - 0.5
# The zero of digamma, in two parts.
_ZERO = {f32: (1.4616321325302124, 1.2438149938918909e-08), f64: (1.4616321449683622, 9.549995429965697e-17)}


def _steps(x: Node) -> Node:
    """How often 1 is taken from ``x < 8`` to come below 3."""
    return maximum(floor(x) - 2, 0)


def _of_lgamma(g: Node, y: Node, x: Node) -> Node:
    return g * digamma(x)


@derivative(_of_lgamma)
@real_function
def lgamma(x: Node) -> Node:
    """The logarithm of the magnitude of the gamma function: infinite at 0, at the integers below, and at infinities."""
    low, below = less(x, 0.75), less(x, 0)
    value = _lgamma(select(low, 1 + abs_(x), x))
    # gamma(x) = gamma(1 + x) / x, and gamma(-y) = -pi / (sin(pi*y) * gamma(1 + y)).
    nearest = round_(x)
    sine = abs_(sin((x - nearest) * math.pi)) * (1 / math.pi)
    rest = log(select(below, sine, abs_(x)))
    value = select(low, select(below, -value, value) - rest, value)
    return select(below & equal(x, nearest), math.inf, value)


def _lgamma(x: Node) -> Node:
    """The same for ``x >= 3/4``."""
    far, steps = less(_FAR, x), _steps(x)
    product = select(less(0, steps), x - 1, 1)
    for k in range(2, _FAR - 1):
        product = select(less(k - 1, steps), product * (x - k), product)
    y = x - steps
    near = (y - 1) * (y - 2) * horner((y - 1.5) / (y + 1.5), LGAMMA[x.dtype])
    logarithm = log(select(far, x, product))
    inverse = unary(ops.RECIP, x)
    tail = _STIRLING + horner(inverse * inverse, LGAMMA_TAIL[x.dtype]) * inverse
    return select(far, (x - 0.5) * (logarithm - 1) + tail, near + logarithm)


def _of_digamma(g: Node, y: Node, x: Node) -> Node:
    return g * trigamma(x)


@derivative(_of_digamma)
@real_function
def digamma(x: Node) -> Node:
    """The derivative of ``lgamma``: NaN at the integers below 0, and at 0 the infinity with the sign that 0 has not."""
    low, below = less(x, 1), less(x, 0)
    value = _digamma(select(low, 1 + abs_(x), x))
    # digamma(x) = digamma(1 + x) - 1/x, and digamma(-y) = digamma(1 + y) + pi / tan(pi*y).
    nearest = round_(x)
    rest = select(below, _cotangent(x - nearest) * math.pi, unary(ops.RECIP, x))
    value = select(low, value - rest, value)
    return select(below & equal(x, nearest), math.nan, value)


@real_function
def trigamma(x: Node) -> Node:
    """The derivative of ``digamma``, infinite at 0 and the integers below: reflected to at least 1/2, led up to at
    least ``_FAR`` by the recurrence, and Stirling's series from there."""
    low = less(x, 0.5)
    y = select(low, 1 - x, x)
    total = unary(ops.RECIP, y * y)
    for k in range(1, _FAR):
        total = total + unary(ops.RECIP, (y + k) * (y + k))
    inverse = unary(ops.RECIP, y + _FAR)
    square = inverse * inverse
    tail = inverse + square * 0.5 + inverse * square * horner(square, _TRIGAMMA_TAIL)
    value = total + tail
    sine = sin((x - round_(x)) * math.pi)
    return select(low, math.pi**2 / (sine * sine) - value, value)


# Bernoulli's numbers from the second on, of which Stirling's series for the second derivative is made.
_TRIGAMMA_TAIL = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _cotangent(x: Node) -> Node:
    """``1 / tan(pi*x)`` for ``|x| <= 1/2``, accurate at the ends, where it is 0."""
    size = abs_(x)
    steep = less(size, 0.25)
    angle = select(steep, size, 0.5 - size) * math.pi
    over, under = sin(angle), cos(angle)
    return copysign(select(steep, under / over, over / under), x)


def _digamma(x: Node) -> Node:
    """The same for ``x >= 1``."""
    far, steps = less(_FAR, x), _steps(x)
    # The sum of 1/(x - k) as one quotient.
    more = less(0, steps)
    top, bottom = select(more, x * 0 + 1, 0), select(more, x - 1, 1)
    for k in range(2, _FAR - 1):
        more = less(k - 1, steps)
        top, bottom = (select(more, a, b) for a, b in ((top * (x - k) + bottom, top), (bottom * (x - k), bottom)))
    y = x - steps
    first, rest = _ZERO[x.dtype]
    near = ((y - first) - rest) * horner((y - 1.75) / (y + 1.75), DIGAMMA[x.dtype]) + top / bottom
    inverse = unary(ops.RECIP, x)
    tail = (0.5 + inverse * horner(inverse * inverse, DIGAMMA_TAIL[x.dtype])) * inverse
    return select(far, log(x) - tail, near)
