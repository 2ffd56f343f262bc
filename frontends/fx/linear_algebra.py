"""Factors of matrices, inverses and linear equations.

``info`` is the number of the first column where a factorisation fails, counted from 1, or 0. Functions that raise in
PyTorch where it is not 0 make the run fail.
"""

from __future__ import annotations

from luminal.core import symbolic as sym
from luminal.core.decompose import factorisation as factors
from luminal.core.decompose.compare import equal, not_equal
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.indexing import eye, tril, triu
from luminal.core.decompose.reduction import all_, max_
from luminal.core.derivative import alike, derivative
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, broadcast_shape, cast, expand, gather, iota
from luminal.core.movement import along, reshape, slice_, transpose, unsqueeze
from luminal.core.ops import Failure
from luminal.core.symbolic import Int
from luminal.core.types import i32, i64
from luminal.frontends.fx.registry import aten
from luminal.frontends.fx.sizes import assert_values


def _many(x: Node, axes: int = 2) -> Node:
    """``x`` with all axes before the last ``axes`` merged into one."""
    return reshape(x, [sym.product(x.shape[: x.rank - axes]), *x.shape[x.rank - axes :]])


def _like(x: Node, lead: tuple[Int, ...]) -> Node:
    """``x [count, ..]`` with its first axis split into the axes ``lead``."""
    return reshape(x, [*lead, *x.shape[1:]])


def _turned(x: Node) -> Node:
    return transpose(x, -2, -1)


def _checked(x: Node, info: Node) -> Node:
    """``x``; the run fails where an ``info`` is not 0, by a read at an index out of range."""
    if info.size == 0:
        return x
    place = cast(not_equal(max_(info), 0), i64)
    return gather(unsqueeze(x, [0]), place, 0, Failure.SINGULAR)


def _positions(order: Node, like: Node) -> Node:
    """The permutation matrices that undo the permutations of rows ``order [count, m]``."""
    count, m = order.shape
    shape = count, m, m
    return cast(equal(along(iota(m), 1, shape), expand(unsqueeze(order, [1]), shape)), like.dtype)


@aten("_linalg_check_errors")
def check_errors(info: Node, api_name: str, *, is_matrix: bool) -> None:
    """The check for failures in a traced function: it must be decided when compiling."""
    assert_values(all_(equal(info, 0)), f"{api_name}: a matrix has no such factors")


# ---- factors -----------------------------------------------------------------------------------------------------


@aten("linalg_lu_factor_ex")
def lu_factor(A: Node, *, pivot: bool = True, check_errors: bool = False) -> tuple[Node, Node, Node]:
    """The factors in one matrix, the rows that were exchanged, counted from 1, and ``info``."""
    _require_pivots(pivot)
    lead = A.shape[:-2]
    packed, places, _, info = factors.lu(_many(A))
    packed = _checked(packed, info) if check_errors else packed
    return _like(packed, lead), _like(cast(places + 1, i32), lead), _like(cast(info, i32), lead)


def _require_pivots(pivot: bool) -> None:
    if not pivot:
        raise UnsupportedError("a factorisation without exchanges of rows, which is not stable: leave out pivot=False")


@aten("linalg_lu")
def lu(A: Node, *, pivot: bool = True) -> tuple[Node, Node, Node]:
    _require_pivots(pivot)
    lead = A.shape[:-2]
    packed, _, order, _ = factors.lu(_many(A))
    lower, upper = _triangles(_like(packed, lead))
    return _like(_positions(order, A), lead), lower, upper


def _triangles(packed: Node) -> tuple[Node, Node]:
    """``L [.., m, k]`` and ``U [.., k, n]`` of the factors in one matrix."""
    m, n = packed.shape[-2:]
    k = sym.minimum(m, n)
    left, top = slice_(packed, -1, 0, k), slice_(packed, -2, 0, k)
    return tril(left, -1) + eye(m, k, dtype=packed.dtype), triu(top)


@aten("lu_unpack")
def lu_unpack(
    LU_data: Node, LU_pivots: Node, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Node | None, Node | None, Node | None]:
    lower, upper = _triangles(LU_data) if unpack_data else (None, None)
    if not unpack_pivots:
        return None, lower, upper
    order = factors.order_of(_places(LU_pivots), LU_data.shape[-2])
    return _like(_positions(order, LU_data), LU_data.shape[:-2]), lower, upper


def _places(pivots: Node) -> Node:
    """The rows ``[count, steps]`` that were exchanged, counted from 0."""
    return _many(cast(pivots, i64), 1) - 1


@aten("linalg_cholesky_ex")
def cholesky_factor(self: Node, *, upper: bool = False, check_errors: bool = False) -> tuple[Node, Node]:
    lead = self.shape[:-2]
    lower, info = factors.cholesky(_many(_turned(self) if upper else self))
    # The other half is not read, but a symmetric matrix has its gradient in both.
    lower = alike(lower, lambda: factors.cholesky(_many((self + _turned(self)) * 0.5))[0])
    lower = _like(_checked(lower, info) if check_errors else lower, lead)
    return _turned(lower) if upper else lower, _like(cast(info, i32), lead)


@aten("cholesky", "linalg_cholesky")
def cholesky(self: Node, upper: bool = False) -> Node:
    return cholesky_factor(self, upper=upper, check_errors=True)[0]


@aten("geqrf")
def geqrf(self: Node) -> tuple[Node, Node]:
    packed, scales = factors.householder(_many(self))
    return _like(packed, self.shape[:-2]), _like(scales, self.shape[:-2])


@aten("linalg_householder_product")
def householder_product(input: Node, tau: Node) -> Node:
    return _like(factors.reflections(_many(input), _many(tau, 1), input.shape[-1]), input.shape[:-2])


@aten("linalg_qr")
def qr(A: Node, mode: str = "reduced") -> tuple[Node | None, Node]:
    m, n = A.shape[-2:]
    packed, scales = factors.householder(_many(A))
    columns = m if mode == "complete" else sym.minimum(m, n)
    upper = _like(triu(slice_(packed, 1, 0, columns)), A.shape[:-2])
    if mode == "r":
        return None, upper
    return _like(factors.reflections(packed, scales, columns), A.shape[:-2]), upper


# ---- equations ---------------------------------------------------------------------------------------------------


def _matched(a: Node, b: Node) -> tuple[tuple[Int, ...], Node, Node]:
    """What leads before the last two axes, broadcast, and the matrices of both, as many of each."""
    lead = broadcast_shape(a.shape[:-2], b.shape[:-2])
    many_a, many_b = (_many(expand(x, (*lead, *x.shape[-2:]))) for x in (a, b))
    return lead, many_a, many_b


@aten("linalg_solve_triangular")
def solve_triangular(self: Node, B: Node, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Node:
    if not left:  # X A = B is A.T X.T = B.T
        turned = solve_triangular(_turned(self), _turned(B), upper=not upper, unitriangular=unitriangular)
        return _turned(turned)
    lead, a, b = _matched(self, B)
    return _like(factors.solve_triangular(a, b, upper, unitriangular), lead)


@aten("triangular_solve")
def triangular_solve(
    self: Node, A: Node, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Node, Node]:
    turned = _turned(A) if transpose else A
    return solve_triangular(turned, self, upper=upper != transpose, unitriangular=unitriangular), A


@aten("_linalg_solve_ex")
def solve_with_info(
    A: Node, B: Node, *, left: bool = True, check_errors: bool = False
) -> tuple[Node, None, None, Node]:
    """The solutions and ``info``; the factors are for gradients. ``B`` holds a vector for each matrix where it has one
    axis less than ``A`` and the sizes of all its axes."""
    lead = A.shape[:-2]
    packed, _, order, info = factors.lu(_many(_turned(A) if not left else A))
    packed = _checked(packed, info) if check_errors else packed
    is_vector = B.rank == 1 or (B.rank == A.rank - 1 and B.shape == A.shape[:-1])
    columns = unsqueeze(B, [B.rank]) if is_vector else B
    factored, orders = _like(packed, lead), _like(order, lead)
    found = _by_factors(factored, orders, columns, left=left or is_vector)
    return reshape(found, found.shape[:-1]) if is_vector else found, None, None, _like(cast(info, i32), lead)


def _by_factors(packed: Node, order: Node, B: Node, left: bool, transposed: bool = False) -> Node:
    """The solution by the factors of a matrix, or for ``X A = B`` by those of its transpose."""
    if not left:
        return _turned(_by_factors(packed, order, _turned(B), True, transposed))
    lead, a, b = _matched(packed, B)
    orders = _many(expand(order, (*lead, order.shape[-1])), 1)
    return _like(factors.lu_solve(a, orders, b, transposed), lead)


@aten("linalg_solve")
def solve(A: Node, B: Node, *, left: bool = True) -> Node:
    return solve_with_info(A, B, left=left, check_errors=True)[0]


@aten("linalg_lu_solve")
def lu_solve(LU: Node, pivots: Node, B: Node, *, left: bool = True, adjoint: bool = False) -> Node:
    order = _like(factors.order_of(_places(pivots), LU.shape[-2]), LU.shape[:-2])
    return _by_factors(LU, order, B, left, adjoint if left else not adjoint)


@aten("linalg_inv_ex")
def inverse_with_info(A: Node, *, check_errors: bool = False) -> tuple[Node, Node]:
    identity = expand(eye(A.shape[-2], A.shape[-1], dtype=A.dtype), A.shape)
    found, _, _, info = solve_with_info(A, identity, check_errors=check_errors)
    return found, info


@aten("linalg_inv", "inverse")
def inverse(A: Node) -> Node:
    return inverse_with_info(A, check_errors=True)[0]


def _of_solved(g: Node, y: Node, self: Node, input2: Node, upper: bool = False) -> list[Node | None]:
    solved = cholesky_solve(g, input2, upper)
    both = matmul(solved, _turned(y))
    both = both + _turned(both)
    return [solved, -(matmul(input2, both) if upper else matmul(both, input2))]


@aten("cholesky_solve")
@derivative(_of_solved)
def cholesky_solve(self: Node, input2: Node, upper: bool = False) -> Node:
    """``X`` with ``input2 input2.T X = self``, or with ``input2.T input2`` of an ``upper`` one."""
    lower = _turned(input2) if upper else input2
    half = solve_triangular(lower, self, upper=False)
    return solve_triangular(_turned(lower), half, upper=True)


def _of_inverse(g: Node, y: Node, self: Node, upper: bool = False) -> Node:
    both = matmul(matmul(y, g + _turned(g)), y)
    return -(matmul(self, both) if upper else matmul(both, self))


@aten("cholesky_inverse")
@derivative(_of_inverse)
def cholesky_inverse(self: Node, upper: bool = False) -> Node:
    lower = _turned(self) if upper else self
    identity = expand(eye(self.shape[-2], self.shape[-1], dtype=self.dtype), self.shape)
    half = solve_triangular(lower, identity, upper=False)
    return matmul(_turned(half), half)
