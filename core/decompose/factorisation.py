"""Factors of matrices, determinants, and equations solved by them: loops over columns, as LAPACK's unblocked routines.

Matrices are ``[count, m, n]``. Each step of a loop computes a column or a row from the matrix around it, so that ``n``
columns cost ``n`` steps over the elements of a matrix. Nothing fails on a singular matrix; each function says what it
gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import symbolic as sym
from luminal.core.decompose.arithmetic import abs_, sign, sqrt
from luminal.core.decompose.common import require_float, widened
from luminal.core.decompose.compare import equal, less
from luminal.core.decompose.exponential import log
from luminal.core.decompose.indexing import eye, full, gather_elements, gather_nd
from luminal.core.decompose.reduction import argmax, prod, sum_
from luminal.core.decompose.sorting import argsort
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, constant, dim, expand, gather, iota, select
from luminal.core.movement import along, flip, permute, reshape, transpose, unsqueeze
from luminal.core.structured import scan
from luminal.core.symbolic import Int
from luminal.core.types import i64

Nodes = Sequence[Node]


def _rows(x: Node, order: Node) -> Node:
    """The rows of each matrix in the ``order [count, m]`` of its own."""
    return gather_nd(x, unsqueeze(order, [2]), 1)


def _exchanged(shape: Sequence[Int], a: Node, b: Node) -> Node:
    """Positions along the last axis of ``shape [count, m]``, those at ``a`` and ``b [count]`` exchanged."""
    places = along(iota(shape[1]), 1, shape)
    a, b = (along(x, 0, shape) for x in (a, b))
    return select(equal(places, a), b, select(equal(places, b), a, places))


def lu(x: Node) -> tuple[Node, Node, Node, Node]:
    """Of ``x`` with its rows in another order, a unit lower triangle below the diagonal, an upper one from it on.

    Then, all int64: of each of the ``min(m, n)`` steps, the row that its own was exchanged with, ``[count, steps]``;
    the order of rows, ``[count, m]``; and the first step, counted from 1, whose pivot is 0, or 0, ``[count]``. The
    pivot is the largest element that is left in a column.
    """
    count, m, n = x.shape
    rows, columns = along(iota(m), 1, (count, m)), reshape(iota(n), [1, 1, n])

    def step(carried: Nodes, element: Nodes) -> tuple[Nodes, Nodes]:
        (rest, order, singular), (k,) = carried, element
        place = argmax(select(less(rows, k), -1, abs_(gather(rest, k, 2))), 1)
        source = _exchanged((count, m), expand(k, (count,)), place)
        rest, order = _rows(rest, source), gather_elements(order, source, 1)
        column, top = gather(rest, k, 2), gather(rest, k, 1)
        pivot = gather(column, k, 1)
        is_zero = equal(pivot, 0)
        factors = unsqueeze(column / unsqueeze(select(is_zero, 1, pivot), [1]), [2])
        below = select(less(k, columns), rest - factors * unsqueeze(top, [1]), rest)
        below = select(equal(columns, k), factors, below)
        rest = select(unsqueeze(less(k, rows), [2]), below, rest)
        return (rest, order, select(is_zero & equal(singular, 0), k + 1, singular)), (place,)

    first = x, rows, full((count,), 0, i64)
    (packed, order, singular), (places,) = scan(step, first, (iota(sym.minimum(m, n)),))
    return packed, permute(places, [1, 0]), order, singular


def _pivots(x: Node) -> tuple[Node, Node]:
    """Of the matrices ``[.., n, n]`` the diagonals of their upper triangles, ``[count, n]``, and 1 or -1, ``[count]``,
    by the parity of the exchanges of rows: the product of all is the determinant."""
    require_float(x, "det")
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"det: expected square matrices, found {list(x.shape)}")
    size = x.shape[-1]
    count = sym.product(x.shape[:-2])
    if size == 0:
        return full((count, 0), 1, x.dtype), full((count,), 1, x.dtype)
    packed, places, _, _ = lu(reshape(x, [count, size, size]))
    diagonal = gather(reshape(packed, [count, size * size]), iota(size) * dim(size + 1), 1)
    return diagonal, prod(select(equal(places, iota(size)), constant(1, x.dtype), -1), 1)


@widened
def det(x: Node) -> Node:
    """The determinant of each matrix ``[.., n, n]`` (ONNX Det). Raises ShapeError where the matrices are not square."""
    pivots, parity = _pivots(x)
    return reshape(prod(pivots, 1) * parity, x.shape[:-2])


def slogdet(x: Node) -> tuple[Node, Node]:
    """The sign of the determinant of each matrix ``[.., n, n]`` and the logarithm of its magnitude, which overflows
    nowhere; 0 and -inf of a singular one (torch.linalg.slogdet). Raises as ``det`` does."""
    pivots, parity = _pivots(x)
    lead = x.shape[:-2]
    return reshape(prod(sign(pivots), 1) * parity, lead), reshape(sum_(log(abs_(pivots)), 1), lead)


def order_of(places: Node, m: Int) -> Node:
    """The order ``[count, m]`` of rows after the exchanges that ``lu`` states, ``[count, steps]``."""
    count, steps = places.shape

    def step(carried: Nodes, element: Nodes) -> tuple[Nodes, Nodes]:
        (order,), (k, place) = carried, element
        return (gather_elements(order, _exchanged((count, m), expand(k, (count,)), place), 1),), ()

    first = along(iota(m), 1, (count, m))
    return scan(step, (first,), (iota(steps), permute(places, [1, 0])))[0][0]


def solve_triangular(a: Node, b: Node, upper: bool, unit: bool = False) -> Node:
    """``x`` with ``a x = b [count, n, r]``. What lies beyond the triangle of ``a [count, n, n]`` is not read, nor is
    the diagonal of a ``unit`` one; a 0 on it divides."""
    if upper:  # from the last row on
        return flip(solve_triangular(flip(a, [1, 2]), flip(b, [1]), False, unit), [1])
    size = a.shape[1]
    places = iota(size)

    def step(carried: Nodes, element: Nodes) -> tuple[Nodes, Nodes]:
        (found,), (k,) = carried, element
        row = gather(a, k, 1)
        known = select(less(places, k), row, 0)
        value = gather(b, k, 1) - sum_(unsqueeze(known, [2]) * found, 1)
        if not unit:
            value = value / unsqueeze(gather(row, k, 1), [1])
        here = reshape(equal(places, k), [1, size, 1])
        return (select(here, unsqueeze(value, [1]), found),), ()

    return scan(step, (full(b.shape, 0, b.dtype),), (places,))[0][0]


def lu_solve(packed: Node, order: Node, b: Node, transposed: bool = False) -> Node:
    """``x`` with ``a x = b [count, n, r]``, or with ``a.T``, by the factors and the order that ``lu`` gives."""
    if not transposed:
        return solve_triangular(packed, solve_triangular(packed, _rows(b, order), False, True), True)
    turned = transpose(packed, 1, 2)
    return _rows(solve_triangular(turned, solve_triangular(turned, b, False), True, True), argsort(order, 1))


def cholesky(x: Node) -> tuple[Node, Node]:
    """The lower triangles whose products with their transposes are ``x [count, n, n]``, of which the upper parts are
    not read; and the first column, counted from 1, where ``x`` is not positive definite, or 0, int64 ``[count]``: from
    there on the triangle means nothing."""
    count, n = x.shape[:2]
    places = along(iota(n), 1, (count, n))
    columns = reshape(iota(n), [1, 1, n])

    def step(carried: Nodes, element: Nodes) -> tuple[Nodes, Nodes]:
        (found, wrong), (k,) = carried, element
        row = gather(found, k, 1)
        left = gather(x, k, 2) - sum_(found * unsqueeze(row, [1]), 2)
        square = gather(left, k, 1)
        is_positive = less(0, square)
        root = unsqueeze(sqrt(square), [1])
        column = select(less(k, places), left / root, select(equal(places, k), root, 0))
        found = select(equal(columns, k), unsqueeze(column, [2]), found)
        return (found, select(is_positive | less(0, wrong), wrong, k + 1)), ()

    triangle, wrong = scan(step, (full(x.shape, 0, x.dtype), full((count,), 0, i64)), (iota(n),))[0]
    return triangle, wrong


def householder(x: Node) -> tuple[Node, Node]:
    """``x = Q R``: from the diagonal on R, below it the reflections ``1 - f v v.T`` whose product is Q, without the 1
    that each ``v`` begins with; and the factors ``f [count, min(m, n)]`` (LAPACK's geqrf)."""
    count, m, n = x.shape
    rows, columns = along(iota(m), 1, (count, m)), reshape(iota(n), [1, 1, n])

    def step(carried: Nodes, element: Nodes) -> tuple[Nodes, Nodes]:
        (rest,), (k,) = carried, element
        column = gather(rest, k, 2)
        head = unsqueeze(gather(column, k, 1), [1])
        tail = select(less(k, rows), column, 0)
        length = sum_(tail * tail, 1, keepdims=True)
        is_done = equal(length, 0)
        norm = sqrt(head * head + length)
        new = select(is_done, head, select(less(head, 0), norm, norm * -1))
        factor = select(is_done, 0, (new - head) / select(is_done, 1, new))
        direction = select(equal(rows, k), 1, tail / select(is_done, 1, head - new))
        column = select(less(rows, k), column, select(equal(rows, k), new, direction))
        reflected = _reflected(rest, direction, factor)
        rest = select(less(k, columns), reflected, select(equal(columns, k), unsqueeze(column, [2]), rest))
        return (rest,), (reshape(factor, [count]),)

    (packed,), (factors,) = scan(step, (x,), (iota(sym.minimum(m, n)),))
    return packed, permute(factors, [1, 0])


def _reflected(x: Node, direction: Node, factor: Node) -> Node:
    """``x - factor * v (v.T x)`` for ``v = direction [count, m]`` and ``factor [count, 1]``."""
    along_rows = unsqueeze(direction, [2])
    product = sum_(along_rows * x, 1, keepdims=True)
    return x - unsqueeze(factor, [2]) * along_rows * product


def reflections(packed: Node, factors: Node, columns: Int) -> Node:
    """The first ``columns`` of the product of the reflections that ``householder`` states (LAPACK's orgqr)."""
    count, m = packed.shape[:2]
    rows = along(iota(m), 1, (count, m))
    steps = factors.shape[1]

    def step(carried: Nodes, element: Nodes) -> tuple[Nodes, Nodes]:
        (product,), (k, factor) = carried, element
        direction = select(less(k, rows), gather(packed, k, 2), cast(equal(rows, k), packed.dtype))
        return (_reflected(product, direction, unsqueeze(factor, [1])),), ()

    first = expand(eye(m, columns, dtype=packed.dtype), (count, m, columns))
    backwards = flip(iota(steps), [0]), flip(permute(factors, [1, 0]), [0])
    return scan(step, (first,), backwards)[0][0]
