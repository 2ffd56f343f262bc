"""Complex arithmetic on pairs: a last axis of extent 2 holds the real and the imaginary part, as in ``fourier``."""

from __future__ import annotations

import string
from collections.abc import Callable

from luminal.core import symbolic as sym
from luminal.core.decompose import contraction
from luminal.core.decompose.arithmetic import abs_, copysign, sqrt
from luminal.core.decompose.common import widened
from luminal.core.decompose.compare import clamp, equal, less, less_equal
from luminal.core.decompose.exponential import exp, log
from luminal.core.decompose.hyperbolic import cosh, sinh
from luminal.core.decompose.power import hypot, pow_
from luminal.core.decompose.trigonometric import atan2, cos, sin
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, broadcast, lift, select
from luminal.core.movement import concatenate, slice_, squeeze, unsqueeze


def pairs(real: Node, imaginary: Node) -> Node:
    """The numbers of these parts, which broadcast: ``[..]`` and ``[..]`` to ``[.., 2]``."""
    real, imaginary = broadcast(real, imaginary)
    return concatenate([unsqueeze(part, [real.rank]) for part in (real, imaginary)], -1)


def parts(z: Node) -> tuple[Node, Node]:
    """The real and the imaginary parts."""
    real, imaginary = (squeeze(slice_(z, -1, k, 1), [-1]) for k in range(2))
    return real, imaginary


def conjugate(z: Node) -> Node:
    """The numbers mirrored at the real axis."""
    real, imaginary = parts(z)
    return pairs(real, -imaginary)


@widened
def product(a: Node, b: Node) -> Node:
    """``a * b`` by the products of the parts."""
    (x, y), (u, v) = parts(a), parts(b)
    return pairs(x * u - y * v, x * v + y * u)


@widened
def quotient(a: Node, b: Node) -> Node:
    """``a / b``, the divisor's larger part divided out first, so that its square cannot overflow (Smith, 1962)."""
    (x, y), (u, v) = parts(a), parts(b)
    swapped = less(abs_(u), abs_(v))
    large, small = select(swapped, v, u), select(swapped, u, v)
    ratio = small / large
    ratio = select(equal(small, 0) & equal(large, 0), 0, ratio)
    scale = large + small * ratio
    real = select(swapped, x * ratio + y, x + y * ratio)
    imaginary = select(swapped, y * ratio - x, y - x * ratio)
    return pairs(real / scale, imaginary / scale)


@widened
def magnitude(z: Node) -> Node:
    """``|z|`` without overflow on the way; infinite where either part is."""
    return hypot(*parts(z))


@widened
def angle(z: Node) -> Node:
    """The angle of each number with the positive real axis, in -pi .. pi."""
    real, imaginary = parts(z)
    return atan2(imaginary, real)


@widened
def polar(length: Node, angle: Node) -> Node:
    """The numbers of these magnitudes and angles."""
    return pairs(length * cos(angle), length * sin(angle))


@widened
def exponential(z: Node) -> Node:
    """``exp(z)``."""
    real, imaginary = parts(z)
    return polar(exp(real), imaginary)


# ---- contractions ------------------------------------------------------------------------------------------------


def matrices(z: Node) -> Node:
    """``[.., 2]`` to ``[.., 2, 2]``: of each number, the matrix by which a row (real, imaginary) is multiplied with
    it."""
    real, imaginary = parts(z)
    return pairs_along(pairs(real, imaginary), pairs(-imaginary, real), z.rank - 1)


def pairs_along(first: Node, second: Node, axis: int) -> Node:
    """Both, one after the other along a new axis."""
    return concatenate([unsqueeze(x, [axis]) for x in (first, second)], axis)


def einsum(equation: str, *operands: Node) -> Node:
    """Einstein summation of complex operands: one of real ones, in which the first is a row of two and each further one
    a matrix of 2 x 2, so that every product is one contraction."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow:
        names = left.replace(",", "").replace("...", "")
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(names) if names.count(c) == 1))
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(f"einsum {equation!r}: {len(terms)} terms for {len(operands)} operands")
    free = [c for c in string.ascii_letters if c not in equation]
    terms = [terms[0] + free[0], *(term + a + b for term, a, b in zip(terms[1:], free, free[1:], strict=False))]
    first, *rest = operands
    whole = f"{','.join(terms)}->{right}{free[len(operands) - 1]}"
    return contraction.einsum(whole, first, *map(matrices, rest))


def matmul(a: Node, b: Node) -> Node:
    """The matrix product, by the rules of ``contraction.matmul`` on the axes before the parts."""
    left, right = "...mk" if a.rank > 2 else "k", "...kn" if b.rank > 2 else "k"
    rows, columns = "m" if a.rank > 2 else "", "n" if b.rank > 2 else ""
    return einsum(f"{left},{right}->{'...' if rows or columns else ''}{rows}{columns}", a, b)


def bilinear(function: Callable[[Node, Node], Node], a: Node, b: Node) -> Node:
    """What is linear in both operands, from its results on their parts."""
    (x, y), (u, v) = parts(a), parts(b)
    return pairs(function(x, u) - function(y, v), function(x, v) + function(y, u))


def blocks(z: Node) -> Node:
    """Matrices ``[.., m, n, 2]`` as real ones ``[.., 2 m, 2 n]``, whose products and inverses are those of ``z``."""
    real, imaginary = parts(z)
    upper = concatenate([real, -imaginary], -1)
    return concatenate([upper, concatenate([imaginary, real], -1)], -2)


def columns(z: Node) -> Node:
    """Matrices ``[.., m, n, 2]`` as the real ones ``[.., 2 m, n]`` that ``blocks`` are multiplied with."""
    return concatenate(list(parts(z)), -2)


def of_columns(x: Node) -> Node:
    """The matrices of which these are the ``columns``."""
    half = sym.floordiv(x.shape[-2], 2)
    return pairs(slice_(x, -2, 0, half), slice_(x, -2, half, half))


# ---- functions ---------------------------------------------------------------------------------------------------


def times_i(z: Node) -> Node:
    """``i z``."""
    real, imaginary = parts(z)
    return pairs(-imaginary, real)


@widened
def logarithm(z: Node) -> Node:
    """The logarithm with an imaginary part in -pi .. pi."""
    return pairs(log(magnitude(z)), angle(z))


@widened
def root(z: Node) -> Node:
    """The square root with a real part that is not negative, by one of the larger part, which does not cancel."""
    real, imaginary = parts(z)
    large = sqrt(abs_(real) / 2 + magnitude(z) / 2)
    small = select(equal(large, 0), 0, abs_(imaginary) / (large * 2))
    right = less_equal(0, real)
    return pairs(select(right, large, small), copysign(select(right, small, large), imaginary))


@widened
def power(z: Node, exponent: Node) -> Node:
    """``z ** exponent``, by magnitude and angle; a power of zero is zero, or one where the exponent is zero too."""
    length, turn = magnitude(z), angle(z)
    real, imaginary = parts(exponent)
    shrink = select(equal(imaginary, 0), 1, exp(-imaginary * turn))
    turned = select(equal(imaginary, 0), 0, imaginary * log(length))
    found = polar(pow_(length, real) * shrink, real * turn + turned)
    of_zero = unsqueeze(equal(length, 0), [length.rank])
    return select(of_zero, pairs(pow_(length, real), lift(0, length)), found)


@widened
def sine(z: Node) -> Node:
    """``sin(z)``."""
    x, y = parts(z)
    return pairs(sin(x) * cosh(y), cos(x) * sinh(y))


@widened
def cosine(z: Node) -> Node:
    """``cos(z)``."""
    x, y = parts(z)
    return pairs(cos(x) * cosh(y), -(sin(x) * sinh(y)))


@widened
def hyperbolic_sine(z: Node) -> Node:
    """``sinh(z)``."""
    x, y = parts(z)
    return pairs(sinh(x) * cos(y), cosh(x) * sin(y))


@widened
def hyperbolic_cosine(z: Node) -> Node:
    """``cosh(z)``."""
    x, y = parts(z)
    return pairs(cosh(x) * cos(y), sinh(x) * sin(y))


@widened
def hyperbolic_tangent(z: Node) -> Node:
    """``tanh(z)`` (Kahan, 1987, without products that overflow: the real part is within half a unit of 1 where ``x`` is
    beyond 20)."""
    x, y = parts(z)
    near = clamp(x, -20.0, 20.0)
    s, c, sine_y, cosine_y = sinh(near), cosh(near), sin(y), cos(y)
    scale = s * s + cosine_y * cosine_y
    return pairs(s * c / scale, sine_y * cosine_y / scale)


@widened
def direction(z: Node) -> Node:
    """``z / |z|``, and zero for zero."""
    length = unsqueeze(magnitude(z), [z.rank - 1])
    return select(equal(length, 0), 0, z / length)
