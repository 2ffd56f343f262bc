"""The error function, its complement, and the normal distribution as GELU needs it."""

from __future__ import annotations

import math

from luminal.core.decompose.arithmetic import abs_
from luminal.core.decompose.coefficients import ERF, ERFCX, LOG2_ERFC, NEAR_NORMAL, NORMAL
from luminal.core.decompose.common import Quotients, horner, widened
from luminal.core.decompose.compare import less, maximum, minimum
from luminal.core.decompose.exponential import exp, exp2
from luminal.core.decompose.twofloat import square
from luminal.core.ir import Node, select
from luminal.core.types import f32, f64

# Where erf is 1 in the type; where erfc is 0; the same for the tail of the normal distribution.
_ERF_LIMIT = {f32: 3.95, f64: 5.95}
_ERFC_LIMIT = {f32: 10.7, f64: 27.6}
_NORMAL_LIMIT = {f32: 15.0, f64: 39.0}


@widened
def erf(x: Node) -> Node:
    """The error function: a polynomial on ``[-1, 1]``; beyond, one minus two to a polynomial."""
    near = x + x * horner(x * x, ERF[x.dtype])
    magnitude = abs_(x)
    tail = exp2(horner(minimum(magnitude, _ERF_LIMIT[x.dtype]), LOG2_ERFC[x.dtype]))
    far = 1 - tail
    return select(less(1, magnitude), select(less(x, 0), -far, far), near)


def _gaussian_tail(v: Node, rate: float, table: Quotients) -> tuple[Node, Node, Node]:
    """``(weight, P(v), denominator)``: the exponential ``exp(-rate*v*v)`` and the parts of ``P(v) / (v*P(v) + Q(v))``.

    ``rate`` is a power of two. The rounding of the square, which the exponential would magnify, is put right to first
    order in the denominator. The quotients were fitted with the constants that their users divide by.
    """
    total, rest = square(v)
    p, q = table[v.dtype]
    numerator, other = horner(v, p), horner(v, q)
    main = v * numerator
    return exp(total * -rate), numerator, main + (other + (main + other) * (rest * rate))


@widened
def erfc(x: Node) -> Node:
    """``1 - erf(x)``, accurate where it is small."""
    negative = less(x, 0)
    descending = maximum(select(negative, x, -x), -_ERFC_LIMIT[x.dtype])
    weight, numerator, denominator = _gaussian_tail(descending, 1.0, ERFCX)
    tail = weight * numerator / (denominator * -math.sqrt(math.pi))
    far = select(negative, 2 - tail, tail)
    near = 1 - (x + x * horner(x * x, ERF[x.dtype]))
    return select(less(-0.5, descending), near, far)


@widened
def times_normal(x: Node) -> Node:
    """``x`` times the cumulative distribution of the standard normal at ``x``: ``x * erfc(-x/sqrt(2)) / 2``.

    Beyond ``[-3/4, 3/4]`` it is ``b`` below zero and ``x + b`` above, ``b`` being its value at ``-|x|``. NaN at -inf,
    where PyTorch and onnxruntime multiply by zero.
    """
    negative = less(x, 0)
    v = maximum(select(negative, x, -x), -_NORMAL_LIMIT[x.dtype])
    weight, numerator, denominator = _gaussian_tail(v, 0.5, NORMAL)
    below = weight * (v * numerator) / (denominator * -math.sqrt(2 * math.pi))
    far = select(negative, x * 0, x) + below
    near = x * (x * horner(v * v, NEAR_NORMAL[x.dtype]) + 0.5)
    return select(less(-0.75, v), near, far)
