"""Reductions, and operators that normalise along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luminal.core import movement
from luminal.core.decompose import cumulative, distance, indexing, math, normalize
from luminal.core.decompose import reduction as reduce
from luminal.core.decompose.common import normalized_axes
from luminal.core.derivative import alike, derivative, remembered
from luminal.core.ir import Node, cast, select
from luminal.core.types import DType
from luminal.frontends.fx.pointwise import sub
from luminal.frontends.fx.promotion import Scalar, promote
from luminal.frontends.fx.registry import aten, direct, table

Dim = int | Sequence[int] | None


def _axes(dim: Dim) -> Dim:
    """PyTorch's empty list, like None, means every axis."""
    return None if isinstance(dim, Sequence) and not dim else dim


# ---- reductions that give a value of the result's type -------------------------------------------


def _over_axes(function: Callable[..., Node]) -> Callable[..., Node]:
    """The operand takes the result's type first: integers sum as int64, and ``dtype`` is honoured before adding up."""

    def handler(
        self: Node, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None, result: DType
    ) -> Node:
        return function(cast(self, result), _axes(dim), keepdim)

    return handler


def _sum(x: Node, axes: Dim, keepdims: bool) -> Node:
    return cast(reduce.sum_(cast(x, x.dtype.compute), axes, keepdims), x.dtype)


def _prod(x: Node, axes: Dim, keepdims: bool) -> Node:
    return cast(reduce.prod(cast(x, x.dtype.compute), axes, keepdims), x.dtype)


def evenly(g: Node, y: Node, x: Node) -> Node:
    """A gradient shared by the elements that are ``y``, all NaN where it is NaN."""
    same = cast(math.equal(x, y) | (math.isnan(x) & math.isnan(y)), x.dtype)
    return g / reduce.sum_(same) * same


def _largest(function: Callable[..., Node]) -> Callable[..., Node]:
    """Elements that are equal share the gradient; where the largest is NaN, all have NaN."""

    def rule(g: Node, y: Node, x: Node, axes: Dim, keepdims: bool) -> Node:
        over = normalized_axes(x, axes)
        g, y = (part if keepdims else reduce.kept(part, over) for part in (g, y))
        same = cast(math.equal(x, y), x.dtype)
        return g / reduce.sum_(same, over, keepdims=True) * same

    return derivative(rule)(function)


table(
    {
        "sum sum.dim_IntList": _sum,
        "mean mean.dim": reduce.mean,
        "prod prod.dim_int": _prod,
        "amax": _largest(reduce.max_),
        "amin": _largest(reduce.min_),
        "logsumexp": reduce.logsumexp,
    },
    _over_axes,
)


direct(
    {
        "_is_any_true": reduce.any_,
        "_is_all_true": reduce.all_,
        "max": reduce.max_,
        "min": reduce.min_,
        "argmax": reduce.argmax,
        "argmin": reduce.argmin,
        "_pdist_forward": distance.pdist,
        "logcumsumexp _logcumsumexp": cumulative.logcumsumexp,
        "cummax": cumulative.cummax,
        "cummin": cumulative.cummin,
    }
)


@aten("any", "any.dim", "any.dims")
def any_(self: Node, dim: Dim = None, keepdim: bool = False, *, result: DType) -> Node:
    """An empty list, unlike None, reduces nothing here."""
    return cast(reduce.any_(self, dim, keepdim), result)


@aten("all", "all.dim", "all.dims")
def all_(self: Node, dim: Dim = None, keepdim: bool = False, *, result: DType) -> Node:
    return cast(reduce.all_(self, dim, keepdim), result)


def _picked(value: Node, x: Node, dim: int, at: Node, keepdim: bool) -> Node:
    """A value that stands at the position that is found with it, which alone has its gradient."""
    if x.rank == 0:
        return alike(value, lambda: x)
    place = at if keepdim else movement.unsqueeze(at, [dim])
    return alike(value, lambda: movement.reshape(indexing.gather_elements(x, place, dim), value.shape))


@aten("max.dim")
def max_dim(self: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    return _picked(reduce.max_(self, dim, keepdim), self, dim, at := reduce.argmax(self, dim, keepdim), keepdim), at


@aten("min.dim")
def min_dim(self: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    return _picked(reduce.min_(self, dim, keepdim), self, dim, at := reduce.argmin(self, dim, keepdim), keepdim), at


@aten("aminmax")
def aminmax(self: Node, *, dim: int | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    return reduce.min_(self, dim, keepdim), reduce.max_(self, dim, keepdim)


# ---- moments and norms ---------------------------------------------------------------------------


for _name, _moment in {"var": reduce.variance, "std": reduce.standard_deviation}.items():

    @aten(f"{_name}.correction")
    def _corrected(
        self: Node, dim: Dim = None, *, correction: Scalar | None = None, keepdim: bool = False,
        moment: Callable[..., Node] = _moment,
    ) -> Node:  # fmt: skip
        return moment(self, _axes(dim), keepdim, _correction(correction))

    @aten(f"{_name}.dim")
    def _along_axes(
        self: Node, dim: Dim = None, unbiased: bool = True, keepdim: bool = False,
        moment: Callable[..., Node] = _moment,
    ) -> Node:  # fmt: skip
        return moment(self, _axes(dim), keepdim, int(unbiased))

    @aten(_name)
    def _of_all(self: Node, unbiased: bool = True, moment: Callable[..., Node] = _moment) -> Node:
        return moment(self, None, False, int(unbiased))


@aten("var_mean.correction")
def var_mean(
    self: Node, dim: Dim = None, *, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[Node, Node]:
    over = _axes(dim)
    return reduce.variance(self, over, keepdim, _correction(correction)), reduce.mean(self, over, keepdim)


def _correction(correction: Scalar | None) -> float:
    """Degrees of freedom taken off the count; PyTorch's default is one."""
    if correction is None:
        return 1
    assert isinstance(correction, int | float)
    return correction


@aten("linalg_vector_norm")
def vector_norm(
    self: Node, ord: float = 2, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None, result: DType
) -> Node:
    return cast(normalize.lp_norm(cast(self, result.compute), _axes(dim), ord, keepdim), result)


@aten("_cdist_forward")
def cdist(x1: Node, x2: Node, p: float, compute_mode: int | None) -> Node:
    """PyTorch may take the square root of a difference of products instead, which is less exact."""
    return distance.cdist(x1, x2, p)


@aten("dist")
def dist(self: Node, other: Node, p: float = 2, *, result: DType) -> Node:
    return vector_norm(sub(self, other, result=result), p, result=result)


# ---- along an axis -------------------------------------------------------------------------------


@aten("softmax.int", "special_softmax", "_softmax")
def softmax(self: Node, dim: int, dtype: DType | bool | None = None, *, result: DType) -> Node:
    """``dtype``, or of the inner operator whether float16 becomes float32, is what ``result`` says."""
    return reduce.softmax(cast(self, result), dim) if self.rank else cast(self * 0 + 1, result)


@aten("_safe_softmax")
def safe_softmax(self: Node, dim: int, dtype: DType | None = None, *, result: DType) -> Node:
    """As softmax, but a row whose every element is -inf gives zeros."""
    empty = math.equal(reduce.max_(self, dim, keepdims=True), float("-inf"))
    value = select(empty, 0, softmax(self, dim, result=result))
    return remembered(value, lambda g, y, x: y * (g - reduce.sum_(g * y, dim, keepdims=True)), self)


@aten("log_softmax.int", "special_log_softmax", "_log_softmax")
def log_softmax(self: Node, dim: int, dtype: DType | bool | None = None, *, result: DType) -> Node:
    return reduce.log_softmax(cast(self, result), dim)


def _cumulative(function: Callable[[Node, int], Node]) -> Callable[..., Node]:
    def handler(self: Node, dim: int, *, dtype: DType | None = None, result: DType) -> Node:
        return function(cast(self, result), dim)

    return handler


table({"cumsum": cumulative.cumsum, "cumprod": cumulative.cumprod}, _cumulative)


@aten("diff")
def diff(self: Node, n: int = 1, dim: int = -1, prepend: Node | None = None, append: Node | None = None) -> Node:
    """Differences of neighbours, ``n`` times over; of bool, whether they differ."""
    x = movement.concatenate(promote([part for part in (prepend, self, append) if part is not None]), dim)
    for _ in range(n):
        if x.shape[dim] == 0:
            return x
        after = movement.slice_(x, dim, 1, x.shape[dim] - 1)
        before = movement.slice_(x, dim, 0, x.shape[dim] - 1)
        x = after ^ before if x.dtype.is_bool else after - before
    return x
