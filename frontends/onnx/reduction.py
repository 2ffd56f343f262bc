"""Reductions, running sums, and operators on rows: argmax, softmax, hardmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luminal.core import symbolic as sym
from luminal.core import types
from luminal.core.decompose import cumulative, math, reduction
from luminal.core.ir import Node, cast, constant, iota, select
from luminal.core.movement import along, reshape
from luminal.frontends.onnx.registry import Call, operator, wrap_axis

Axes = Sequence[int] | None


def _float(function: Callable[[Node, Axes, bool], Node]) -> Callable[[Node, Axes, bool], Node]:
    """``function`` of real numbers; integers go through float64 and are truncated."""

    def applied(x: Node, axes: Axes, keepdims: bool) -> Node:
        if x.dtype.is_float:
            return function(x, axes, keepdims)
        return cast(function(cast(x, types.f64), axes, keepdims), x.dtype)

    return applied


for _name, _function in {
    "ReduceSum": reduction.sum_,
    "ReduceMean": _float(reduction.mean),
    "ReduceMax": reduction.max_,
    "ReduceMin": reduction.min_,
    "ReduceProd": reduction.prod,
    "ReduceL1": reduction.l1_norm,
    "ReduceL2": _float(reduction.l2_norm),
    "ReduceSumSquare": reduction.sum_square,
    "ReduceLogSum": _float(reduction.log_sum),
    "ReduceLogSumExp": _float(reduction.logsumexp),
}.items():

    @operator(_name)
    def _reduce(call: Call, function: Callable[[Node, Axes, bool], Node] = _function) -> Node:
        axes, keepdims = call.axes(call[0].rank), call.flag("keepdims", True)
        if call.flag("noop_with_empty_axes") and not axes:
            return function(call[0], (), keepdims)
        return function(call[0], axes or None, keepdims)


for _name, _argument in {"ArgMax": reduction.argmax, "ArgMin": reduction.argmin}.items():

    @operator(_name)
    def _arg(call: Call, function: Callable[..., Node] = _argument) -> Node:
        axis, keepdims = call.axis(call[0].rank, 0), call.flag("keepdims", True)
        return function(call[0], axis, keepdims, select_last=call.flag("select_last_index"))


@operator("CumSum")
def _cumulative_sum(call: Call) -> Node:
    """The first sum is the first element, so it may be -0; of no elements, it is 0."""
    exclusive = call.flag("exclusive")
    return cumulative.cumsum(call[0], _along(call), exclusive, call.flag("reverse"), 0 if exclusive else -0.0)


@operator("CumProd")
def _cumulative_product(call: Call) -> Node:
    return cumulative.cumprod(call[0], _along(call), call.flag("exclusive"), call.flag("reverse"))


def _along(call: Call) -> int:
    return wrap_axis(call.integer_at(1), call[0].rank)


# ---- rows ----------------------------------------------------------------------------------------------------------


def _hardmax(x: Node, axis: int) -> Node:
    position = along(iota(x.shape[axis]), axis, x.shape)
    return select(math.equal(position, reduction.argmax(x, axis, True)), constant(1, x.dtype), 0)


for _name, _rows in {"Softmax": reduction.softmax, "LogSoftmax": reduction.log_softmax, "Hardmax": _hardmax}.items():

    @operator(_name)
    def _matrix_rows(call: Call, function: Callable[[Node, int], Node] = _rows) -> Node:
        """Before opset 13 the value is a matrix: the axes before ``axis`` are its rows, the others its columns."""
        x = call[0]
        axis = call.axis(x.rank, 1)
        matrix = reshape(x, [*x.shape[:axis], sym.product(x.shape[axis:])])
        return reshape(function(matrix, axis), x.shape)

    @operator(_name, since=13)
    def _axis_rows(call: Call, function: Callable[[Node, int], Node] = _rows) -> Node:
        return function(call[0], call.axis(call[0].rank, -1))
