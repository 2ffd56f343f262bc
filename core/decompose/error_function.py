"""The error function, its complement, and the normal distribution that GELU weighs with."""

from __future__ import annotations

from luminal.core.decompose.coefficients import ERF, ERFCX, NORMAL
from luminal.core.decompose.common import quotient, widened
from luminal.core.decompose.compare import less, maximum, saturating
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.twofloat import square
from luminal.core.ir import Node, select
from luminal.core.types import f32, f64

# Where erf is 1 in the type; where erfc is 0; the same for the tail of the normal distribution.
_ERF_LIMIT = {f32: 3.93, f64: 5.94}
_ERFC_LIMIT = {f32: 10.7, f64: 27.6}
_NORMAL_LIMIT = {f32: 15.0, f64: 39.0}


def _gaussian(x: Node, rate: float) -> Node:
    """``exp(-rate * x*x)`` for a rate that is a power of two. The rounding of the square, which the exponential would
    magnify, is put right to first order."""
    total, rest = square(x)
    weight = exp(total * -rate)
    return weight + weight * (rest * -rate)


@widened
def erf(x: Node) -> Node:
    """The error function."""
    return saturating(x, _ERF_LIMIT[x.dtype], ERF)


@widened
def erfc(x: Node) -> Node:
    """``1 - erf(x)``, accurate where it is small."""
    negative = less(x, 0)
    descending = maximum(select(negative, x, -x), -_ERFC_LIMIT[x.dtype])
    numerator, denominator = quotient(descending, ERFCX)
    tail = _gaussian(descending, 1.0) * numerator / denominator
    return select(negative, 2 - tail, tail)


@widened
def normal_distribution(x: Node) -> Node:
    """The cumulative distribution of the standard normal, ``erfc(-x/sqrt(2)) / 2``, accurate where it is small."""
    negative = less(x, 0)
    descending = maximum(select(negative, x, -x), -_NORMAL_LIMIT[x.dtype])
    numerator, denominator = quotient(descending, NORMAL)
    tail = _gaussian(descending, 0.5) * numerator / denominator
    return select(negative, tail, 1 - tail)
