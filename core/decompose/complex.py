"""Complex arithmetic on pairs: a last axis of extent 2 holds the real and the imaginary part, as in ``fourier``."""

from __future__ import annotations

from luminal.core.decompose.arithmetic import abs_
from luminal.core.decompose.common import widened
from luminal.core.decompose.compare import equal, less
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.power import hypot
from luminal.core.decompose.trigonometric import atan2, cos, sin
from luminal.core.ir import Node, broadcast, select
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
