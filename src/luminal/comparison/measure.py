"""How far two arrays are apart, and how far apart rounding alone may have moved them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core import ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.precision import FP32, Precision
from luminal.core.schedule.contraction.contracted import contractions
from luminal.core.schedule.numeric.rounding import holds_rounded, stored_rounded
from luminal.core.symbolic import Int
from luminal.core.texts import is_texts
from luminal.core.types import DType, f32, from_numpy

Array = NDArray[Any]

# The most error of any implementation, in roundings of its coarsest type: 1e-5 for float32.
LIMIT = 168
# The same for 16-bit types, whose few digits LIMIT roundings would use up: luminal computes in float32 between them.
COARSE_LIMIT = 16
# A model may amplify rounding: so many times the distance of the graph in its own types from float64 is allowed.
FACTOR = 4.0
# A difference of this part of what a value varies by is one that inputs should tell from an error.
_PART = 0.25


@dataclass(frozen=True)
class Distance:
    """How far ``found`` is from ``expected``, over the elements where both are finite.

    ``ulp`` is the largest number of representable values between two elements (of the coarser type; integers: their
    difference), ``absolute`` the largest difference, ``relative`` that by ``scale``, the largest magnitude of
    ``expected``; ``cosine`` is of the two arrays as vectors. ``misplaced`` counts the elements where only one is NaN,
    or where infinities differ.
    """

    ulp: float
    absolute: float
    relative: float
    cosine: float
    scale: float
    misplaced: int


def finite(value: float) -> float | str:
    """A number as JSON can hold it: infinities and NaN are texts."""
    return value if math.isfinite(value) else str(value)


NOWHERE = Distance(math.inf, math.inf, math.inf, 0.0, 0.0, 0)  # the distance of arrays that cannot be compared


def distance(found: Array, expected: Array) -> Distance:
    """The distance of two arrays, each of any number type; ``NOWHERE`` where their shapes differ. Texts are equal, or
    ``misplaced``."""
    if found.shape != expected.shape or is_texts(found) != is_texts(expected):
        return NOWHERE
    if is_texts(found):
        return Distance(0.0, 0.0, 0.0, 1.0, 0.0, int(np.count_nonzero(found != expected)))
    with np.errstate(all="ignore"):
        a, b, finite = _wide(found, expected)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        misplaced = int(np.count_nonzero(~finite & ~same))
        a, b = a[finite], b[finite]
        if not a.size:
            return Distance(0.0, 0.0, 0.0, 1.0, 0.0, misplaced)
        absolute, scale = float(np.max(np.abs(a - b))), float(np.max(np.abs(b)))
        norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
        cosine = float(np.real(np.vdot(b, a))) / norms if norms else float(not absolute)
        relative = absolute / scale if scale else (0.0 if not absolute else math.inf)
        ulp = _ulps(np.ravel(found)[finite], np.ravel(expected)[finite])
    return Distance(ulp, absolute, relative, cosine, scale, misplaced)


def indecision(found: Array, expected: Array, allowed: float) -> str:
    """Why ``found``, which is within ``allowed`` times the largest magnitude of ``expected``, might be wrong all the
    same; empty where it is right. Integers and texts are equal, and so right."""
    if is_texts(expected) or expected.dtype.kind in "biu" or not expected.size:
        return ""
    with np.errstate(all="ignore"):
        a, b, finite = _wide(found, expected)
        if not finite.any():
            return "no element is a finite number"
        a, b = a[finite], b[finite]
        scale = float(np.max(np.abs(b)))
        if b.size > 1 and (b == b[0]).all():
            return f"every element is {np.real_if_close(b[0]):g}"
        varies = float(np.max(np.abs(b - b.mean()))) if b.size > 1 else scale
        if allowed * scale >= varies and float(np.max(np.abs(a - b))) > varies * _PART:
            return f"it varies by {varies:.1e}, and differences up to {allowed * scale:.1e} are allowed"
    return ""


def beyond(found: Array, expected: Array, far: float) -> int:
    """The number of elements that are further apart than ``far`` times the largest magnitude of ``expected``, of two
    arrays of one shape; where only one is finite, none is. Texts are equal or apart."""
    if is_texts(expected) or (not far and expected.dtype.kind in "biu"):
        return int(np.count_nonzero(found != expected))  # also where float64 has too few digits
    with np.errstate(all="ignore"):
        a, b, finite = _wide(found, expected)
        scale = np.max(np.abs(b), where=finite, initial=0.0)
        return int(np.count_nonzero(np.abs(a - b)[finite] > far * scale))


def _wide(found: Array, expected: Array) -> tuple[Array, Array, Array]:
    """Both arrays as vectors in double precision, and a mask of where both are finite."""
    wide = np.complex128 if "c" in (found.dtype.kind, expected.dtype.kind) else np.float64
    a, b = np.ravel(found).astype(wide), np.ravel(expected).astype(wide)
    return a, b, np.isfinite(a) & np.isfinite(b)


def _ulps(a: Array, b: Array) -> float:
    """The largest number of steps from an element of ``a`` to that of ``b``, along the values of the coarser type."""
    if a.dtype.kind == "c" or b.dtype.kind == "c":
        part = np.dtype(f"f{max(a.dtype.itemsize, b.dtype.itemsize) // 2}")
        return max(_ulps(f(a).astype(part), f(b).astype(part)) for f in (np.real, np.imag))
    types = [from_numpy(x.dtype) for x in (a, b)]
    floats = [t for t in types if t.is_float]
    if not floats:
        # Python's integers: the difference of two unsigned ones may be negative.
        return float(max((abs(int(x) - int(y)) for x, y in zip(a[a != b], b[a != b], strict=True)), default=0))
    coarser = min(floats, key=lambda t: t.bits)
    return float(np.max(np.abs(_ordinal(a, coarser) - _ordinal(b, coarser)), initial=0))


def _ordinal(x: Array, dtype: DType) -> Array:
    """The place of each element among the values of ``dtype``, counted from zero; as float64 for 64-bit types, whose
    distances may exceed int64."""
    bits = np.ascontiguousarray(x.astype(dtype.numpy)).view(f"i{dtype.itemsize}").astype(np.int64)
    if dtype.min >= 0:
        return bits & ((1 << dtype.bits) - 1)
    above = 64 - dtype.bits
    bits = bits << above >> above
    magnitude = bits & ((1 << (dtype.bits - 1)) - 1)
    places = np.where(bits < 0, -magnitude, magnitude)
    return places.astype(np.float64) if dtype.itemsize == 8 else places


# ---- what rounding explains -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounding:
    """The largest errors that rounding explains, relative to the scale of a value: ``bound`` for the graph as it is,
    ``limit`` for any sensible implementation."""

    bound: float
    limit: float


def rounding(
    roots: Iterable[Node],
    dims: Mapping[str, int],
    precision: Precision = FP32,
    exact: Collection[Node] = frozenset(),
) -> dict[Node, Rounding]:
    """The rounding of every node that ``roots`` depend on, where contractions but those ``exact`` round operands to
    ``precision``.

    Roundings are independent, so their variances add along a path: an elementwise primitive in floating point adds
    ``u**2``, with ``u`` half the distance from 1 to the next value of its type, and a sum of K terms ``K * u**2`` (its
    error grows like ``sqrt(K) * u``: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2);
    movement adds nothing. Each product of a contraction adds the roundings of its two operands to ``precision``; a
    value stored in it adds one. The bound is the root of the largest variance of any path. It does not include the
    model's amplification of errors, which has to be measured.
    """
    roots = tuple(roots)
    found = contractions(roots) if precision.unit else {}
    stored = stored_rounded(roots, found, precision, exact)
    variance: dict[Node, float] = {}
    coarsest: dict[Node, float] = {}
    for node in traverse.topological(roots):
        unit, count = _unit(node.dtype), _roundings(node, dims)
        operand = precision.unit if precision.unit and holds_rounded(node, found, precision, exact) else 0.0
        kept = precision.unit if node in stored else 0.0
        own = count * (unit**2 + 2 * operand**2) + kept**2
        variance[node] = own + max((variance[o] for o in node.inputs), default=0.0)
        coarsest[node] = max([unit, operand, kept, *(coarsest[o] for o in node.inputs)])
    return {
        node: Rounding(min(math.sqrt(found), limit(coarsest[node])), limit(coarsest[node]))
        for node, found in variance.items()
    }


def limit(unit: float) -> float:
    """The largest error that roundings of ``unit`` explain, relative to the scale of a value."""
    return (LIMIT if unit <= f32.eps / 2 else COARSE_LIMIT) * unit


def _unit(dtype: DType) -> float:
    if dtype.kind == "c":
        return float(np.finfo(dtype.numpy).eps) / 2
    return dtype.eps / 2 if dtype.is_float else 0.0


_ROUNDS = 1 << 20  # assumed rounds of a loop that a condition ends: as many as `limit` has room for
_EXACT = (ops.VIEW, ops.CONTIGUOUS, ops.GATHER, ops.SELECT, ops.MAX, ops.MAX_REDUCE, ops.ROUND, ops.BITCAST, ops.MOD)


def _roundings(node: Node, dims: Mapping[str, int]) -> int:
    if node.op in _EXACT or not node.inputs:
        return 0
    if node.op.kind is ops.Kind.STRUCTURED:
        inside = [sum(_roundings(x, dims) for x in traverse.topological(body)) for body in node.attr.bodies]
        if node.op is ops.SCAN:
            return at_most(node.inputs[len(node.attr.carries)].shape[0], dims) * inside[0]
        return max(inside) * (_ROUNDS if node.op is ops.WHILE else 1)
    if node.op is ops.SUM_REDUCE:
        operand = node.inputs[0].shape
        return max(1, at_most(sym.product(operand[axis] for axis in node.attr.axes), dims))
    return 1


def at_most(value: Int, dims: Mapping[str, int]) -> int:
    """``value`` at ``dims``, and at the upper bounds of sizes that data decides, which may differ between rounds."""
    most = {size.name: sym.upper(sym.expr(size)) or 0 for size in sym.variables(value)}
    return int(sym.evaluate(value, {**most, **dims}))
