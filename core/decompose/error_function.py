"""The error function, its complement, and the normal distribution as GELU needs it."""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core.decompose.coefficients import ERF, ERFCX, LOG2_ERFC, NORMAL
from luminal.core.decompose.common import Quotients, horner, widened
from luminal.core.decompose.compare import less, maximum, minimum
from luminal.core.decompose.exponential import LOG2_E, exp2
from luminal.core.decompose.twofloat import product
from luminal.core.ir import Node, multiply_add, select, unary
from luminal.core.types import f32, f64

# Where erf is 1 in the type; where erfc is 0; the same for the tail of the normal distribution.
_ERF_LIMIT = {f32: 3.95, f64: 5.95}
_ERFC_LIMIT = {f32: 10.7, f64: 27.6}
_NORMAL_LIMIT = {f32: 15.0, f64: 39.0}


@widened
def erf(x: Node) -> Node:
    """The error function: a polynomial on ``[-1, 1]``; beyond, one minus two to a polynomial."""
    near = multiply_add(x, horner(x * x, ERF[x.dtype]), x)
    negative = less(x, 0)
    magnitude = select(negative, -x, x)
    far = 1 - exp2(horner(minimum(magnitude, _ERF_LIMIT[x.dtype]), LOG2_ERFC[x.dtype]))
    return select(less(1, magnitude), select(negative, -far, far), near)


def _gaussian_tail(v: Node, rate: float, table: Quotients, constant: float) -> tuple[Node, Node, Node, Node]:
    """``(weight, P(v), v*P(v), denominator)``: the exponential ``exp(-rate*v*v)`` and the parts of the quotient
    ``P(v) / (constant*v*P(v) + Q(v))``.

    ``rate`` is a power of two. The rounding of the square, which the exponential would magnify, is put right to first
    order in the denominator, beside the smaller of its terms.
    """
    total, rest = product(v, v)
    weight = unary(ops.EXP2, total, ops.Scale(-rate * LOG2_E))
    p, q = table[v.dtype]
    numerator, other = horner(v, p), horner(v, q)
    main = v * numerator
    other = multiply_add(multiply_add(main, constant, other), rest * rate, other)
    return weight, numerator, main, multiply_add(main, constant, other)


@widened
def erfc(x: Node) -> Node:
    """``1 - erf(x)``, accurate where it is small."""
    negative = less(x, 0)
    descending = maximum(select(negative, x, -x), -_ERFC_LIMIT[x.dtype])
    weight, numerator, _, denominator = _gaussian_tail(descending, 1.0, ERFCX, -math.sqrt(math.pi))
    tail = weight * numerator / denominator
    return select(negative, 2 - tail, tail)


@widened
def times_normal(x: Node) -> Node:
    """``x`` times the cumulative distribution of the standard normal at ``x``: ``x * erfc(-x/sqrt(2)) / 2``.

    It is ``b`` below zero and ``x + b`` above, ``b`` being its value at ``-|x|``. NaN at -inf, where PyTorch and
    onnxruntime multiply by zero.
    """
    positive = less(0, x)
    v = maximum(select(positive, -x, x), -_NORMAL_LIMIT[x.dtype])
    weight, _, numerator, denominator = _gaussian_tail(v, 0.5, NORMAL, -math.sqrt(2 * math.pi))
    below = weight * numerator / denominator
    return select(positive, x, x * 0) + below
