"""Activation functions.

Each handles NaN and infinities as PyTorch does, and is accurate where its result is small, where PyTorch's own formula
often is not.
"""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core.decompose.arithmetic import abs_
from luminal.core.decompose.coefficients import LOG1P
from luminal.core.decompose.common import horner, real_function, widened
from luminal.core.decompose.compare import at_least, clamp, descending, equal, less, less_equal, minimum
from luminal.core.decompose.error_function import normal_slope, times_normal
from luminal.core.decompose.exponential import LOG2_E, exp, expm1
from luminal.core.derivative import derivative, of_nodes
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, Operand, multiply_add, select, unary
from luminal.core.movement import concatenate, slice_
from luminal.core.symbolic import floordiv


@derivative(lambda g, y, x: select(less_equal(y, 0), 0, g))
def relu(x: Node) -> Node:
    """``x`` where it is positive, else 0; NaN and -0 stay."""
    return at_least(x, 0)


@derivative(lambda g, y, x: _within(g, x, 0, 6))
def relu6(x: Node) -> Node:
    """``min(relu(x), 6)``."""
    return minimum(relu(x), 6)


def leaky_relu(x: Node, slope: float = 0.01) -> Node:
    """``x`` where it is positive, else ``x * slope``."""
    return prelu(x, slope)


def _of_prelu(g: Node, y: Node, x: Node, slope: Operand) -> list[Node | None]:
    above = less(0, x)
    return of_nodes((x, select(above, g, g * slope)), (slope, select(above, 0, x * g)))


@derivative(_of_prelu)
@widened
def prelu(x: Node, slope: Operand) -> Node:
    """``x`` where it is positive, else ``x * slope``; the slope broadcasts."""
    return select(less(0, x), x, x * slope)


def _within(g: Node, x: Node, lo: Operand, hi: Operand) -> Node:
    """``g`` where ``x`` lies between the ends, which have a slope of 0 themselves (PyTorch)."""
    return select(less_equal(x, lo) | less_equal(hi, x), 0, g)


def _of_hardtanh(g: Node, y: Node, x: Node, lo: Operand = -1, hi: Operand = 1) -> list[Node | None]:
    return of_nodes((x, _within(g, x, lo, hi)), (lo, None), (hi, None))


@derivative(_of_hardtanh)
def hardtanh(x: Node, lo: Operand = -1, hi: Operand = 1) -> Node:
    """``x`` limited to ``lo .. hi``."""
    return clamp(x, lo, hi)


def _unit_exponential(x: Node, rate: float = 1.0) -> tuple[Node, Node]:
    """``(x < 0, exp(-rate*|x|))``: the exponential that never overflows. The rate is part of its scale, so that no
    rounding of the product is magnified."""
    return less(x, -x), unary(ops.EXP2, descending(x), ops.Scale(LOG2_E * rate))


@derivative(lambda g, y, x: g * (1 - y) * y)
@real_function
def sigmoid(x: Node) -> Node:
    """``1 / (1 + exp(-x))``, accurate on both sides."""
    negative, u = _unit_exponential(x)
    return select(negative, u, 1) / (u + 1)


def _of_swish(g: Node, y: Node, x: Node, alpha: float = 1.0) -> Node:
    share = sigmoid(x if alpha == 1 else x * alpha)
    return g * share * (1 + (x if alpha == 1 else x * alpha) * (1 - share))


@derivative(_of_swish)
@real_function
def swish(x: Node, alpha: float = 1.0) -> Node:
    """``x * sigmoid(alpha * x)`` (Ramachandran et al., 2017)."""
    return _gated(x, x, alpha) if alpha >= 0 else _gated(x, -x, -alpha)


def silu(x: Node) -> Node:
    """``x * sigmoid(x)``."""
    return swish(x)


def quick_gelu(x: Node, alpha: float = 1.702) -> Node:
    """``x * sigmoid(alpha * x)``, which is near ``gelu`` for the default (Hendrycks and Gimpel, 2016)."""
    return swish(x, alpha)


def _gated(x: Node, argument: Node, rate: float = 1.0) -> Node:
    """``x * sigmoid(rate * argument)`` with one division, for a rate that is not negative."""
    negative, u = _unit_exponential(argument, rate)
    return x * select(negative, u, 1) / (u + 1)


def _of_gelu(g: Node, y: Node, x: Node, approximate: str = "none") -> Node:
    if approximate == "none":
        return g * normal_slope(x)
    doubled = 2 * math.sqrt(2 / math.pi)
    share = sigmoid(x * multiply_add(x * x, doubled * 0.044715, doubled))
    return g * share * (1 + x * (1 - share) * multiply_add(x * x, 3 * doubled * 0.044715, doubled))


@derivative(_of_gelu)
@real_function
def gelu(x: Node, approximate: str = "none") -> Node:
    """``x`` times the normal distribution at ``x`` (Hendrycks and Gimpel, 2016).

    ``approximate="tanh"`` is ``x/2 * (1 + tanh(u))`` with ``u = sqrt(2/pi) * (x + 0.044715*x**3)``, computed as
    ``x * sigmoid(2*u)``. Its relative error is that of ``2*u`` times its magnitude, a few ULP for every unit of
    ``|2*u|`` where ``x`` is negative; PyTorch's formula has no digits left there.
    """
    if approximate == "none":
        return times_normal(x)
    if approximate != "tanh":
        raise UnsupportedError(f"gelu: expected approximate of 'none' or 'tanh', found {approximate!r}")
    doubled = 2 * math.sqrt(2 / math.pi)
    return _gated(x, x * multiply_add(x * x, doubled * 0.044715, doubled))


@derivative(lambda g, y, x: g * sigmoid(-x))
@real_function
def log_sigmoid(x: Node) -> Node:
    """``log(sigmoid(x))``, which is ``-softplus(-x)``."""
    negative, u = _unit_exponential(x)
    return multiply_add(-u, horner(u, LOG1P[x.dtype]), select(negative, x, 0))


def _of_softplus(g: Node, y: Node, x: Node, beta: float = 1.0, threshold: float | None = None) -> Node:
    scaled = x if beta == 1 else x * beta
    slope = g * sigmoid(scaled)
    return slope if threshold is None else select(less(threshold, scaled), g, slope)


@derivative(_of_softplus)
@real_function
def softplus(x: Node, beta: float = 1.0, threshold: float | None = None) -> Node:
    """``log(1 + exp(beta*x)) / beta``.

    Where there is a ``threshold`` and ``beta*x`` is above it, the result is ``x`` itself (PyTorch).
    """
    if beta < 0:
        return -softplus(-x, -beta, threshold)
    negative, u = _unit_exponential(x, beta)
    logarithm = u * horner(u, LOG1P[x.dtype])
    result = select(negative, 0, x) + (logarithm if beta == 1 else logarithm / beta)
    return result if threshold is None else select(less(threshold, x if beta == 1 else x * beta), x, result)


def _of_mish(g: Node, y: Node, x: Node) -> Node:
    u = exp(minimum(x, 40.0))
    n = u * (u + 2)
    share = n / (n + 2)
    return g * (share + minimum(x, 40.0) * sigmoid(x) * (4 * (n + 1) / (n + 2) / (n + 2)))


@derivative(_of_mish)
@real_function
def mish(x: Node) -> Node:
    """``x * tanh(softplus(x))`` (Misra, 2019), which is ``x * n/(n + 2)`` with ``n = exp(x) * (exp(x) + 2)``."""
    u = exp(minimum(x, 40.0))  # the ratio is 1 from there on, also in float64
    n = u * (u + 2)
    return x * (n / (n + 2))


@derivative(lambda g, y, x: select(less_equal(x, -3), 0, select(less(x, 3), g * (x / 3 + 0.5), g)))
@widened
def hardswish(x: Node) -> Node:
    """``x * clamp(x + 3, 0, 6) / 6`` without overflow."""
    return x * (clamp(x + 3, 0, 6) * (1 / 6))


def _of_hardsigmoid(g: Node, y: Node, x: Node, alpha: float = 1 / 6, beta: float = 0.5) -> Node:
    if alpha == 1 / 6 and beta == 0.5:
        return select(less(-3, x) & less(x, 3), g / 6, 0)
    line = x * alpha + beta
    return select(less(0, line) & less(line, 1), g * alpha, 0)


@derivative(_of_hardsigmoid)
@widened
def hardsigmoid(x: Node, alpha: float = 1 / 6, beta: float = 0.5) -> Node:
    """``clamp(alpha*x + beta, 0, 1)``."""
    if alpha == 1 / 6 and beta == 0.5:
        return clamp(x + 3, 0, 6) / 6  # exact near the zero, where alpha*x + beta cancels
    return clamp(x * alpha + beta, 0, 1)


def _of_elu(g: Node, y: Node, x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    grown = exp(x if input_scale == 1 else x * input_scale)
    return g * select(less_equal(x, 0), grown * (alpha * scale * input_scale), scale)


@derivative(_of_elu)
@real_function
def elu(x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    """``scale * x`` where ``x`` is positive, else ``scale * alpha * (exp(input_scale * x) - 1)``."""
    grown = expm1(x if input_scale == 1 else x * input_scale)
    grown = grown if alpha * scale == 1 else grown * (alpha * scale)
    return select(less(0, x), x if scale == 1 else x * scale, grown)


def selu(x: Node, alpha: float = 1.6732632423543772, scale: float = 1.0507009873554805) -> Node:
    """The self-normalising ELU (Klambauer et al., 2017)."""
    return elu(x, alpha, scale)


@derivative(lambda g, y, x, alpha=1.0: g * select(less_equal(x, 0), exp(x / alpha), 1))
@real_function
def celu(x: Node, alpha: float = 1.0) -> Node:
    """``x`` where it is positive, else ``alpha * (exp(x/alpha) - 1)``."""
    grown = expm1(x if alpha == 1 else x / alpha)
    return select(less(0, x), x, grown if alpha == 1 else grown * alpha)


@widened
def softsign(x: Node) -> Node:
    """``x / (1 + |x|)``; NaN at infinity, as in PyTorch."""
    return x / (abs_(x) + 1)


def threshold(x: Node, limit: float, value: float) -> Node:
    """``x`` where it is above ``limit`` or NaN, else ``value``."""
    return select(less_equal(x, limit), value, x)


def _of_softshrink(g: Node, y: Node, x: Node, lambd: float = 0.5) -> Node:
    return select(less_equal(-lambd, x) & less_equal(x, lambd), 0, g)


@derivative(_of_softshrink)
@widened
def softshrink(x: Node, lambd: float = 0.5) -> Node:
    """``x`` moved towards zero by ``lambd``, and 0 within ``lambd`` of it; NaN stays."""
    inside = select(less(x, -lambd), x + lambd, x * 0)
    return select(less(lambd, x), x - lambd, inside)


def hardshrink(x: Node, lambd: float = 0.5) -> Node:
    """``x`` with everything within ``lambd`` of zero set to 0; NaN stays."""
    return select(equal(clamp(x, -lambd, lambd), x), 0, x)


def _of_glu(g: Node, y: Node, x: Node, axis: int = -1) -> Node:
    half = floordiv(x.shape[axis], 2)
    first, share = slice_(x, axis, 0, half), sigmoid(slice_(x, axis, half, half))
    return concatenate([g * share, g * first * share * (1 - share)], axis)


@derivative(_of_glu)
@widened
def glu(x: Node, axis: int = -1) -> Node:
    """The first half of ``axis`` times the sigmoid of the second."""
    half = floordiv(x.shape[axis], 2)
    return _gated(slice_(x, axis, 0, half), slice_(x, axis, half, half))
