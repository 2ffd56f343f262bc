"""Operators of higher order, whose arguments are graphs: given to their handlers as functions of values."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import torch

from luminal.core import interp, structured
from luminal.core.decompose import cumulative
from luminal.core.decompose.random import Random
from luminal.core.derivative import detached
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, iota
from luminal.core.movement import reshape
from luminal.frontends.fx.registry import register

Function: TypeAlias = Callable[..., Any]

# Private to PyTorch. A function has its name where an import would look for it.
_SCANS = "torch._higher_order_ops.associative_scan"


def cond(pred: Any, true_fn: Function, false_fn: Function, operands: Sequence[Any] = ()) -> Sequence[Any]:
    """Only one branch is imported where the condition is known."""
    taken = interp.constant_value(pred) if isinstance(pred, Node) else pred
    if isinstance(pred, Node) and taken is None:
        branches = (lambda: _tensors(true_fn(*operands))), (lambda: _tensors(false_fn(*operands)))
        return structured.cond(reshape(pred, []), *branches)
    if taken not in (True, False):
        raise UnsupportedError(f"a branch on {pred}, whether it holds depends on sizes: compute it as a tensor")
    return _tensors(true_fn(*operands) if taken else false_fn(*operands))


def while_loop(
    cond_fn: Function, body_fn: Function, carried_inputs: Sequence[Any], additional_inputs: Sequence[Any] = (), *,
    random: Random,
) -> Sequence[Node]:  # fmt: skip
    def holds(number: Node, carried: Sequence[Node]) -> Node:
        with random.undrawn("the condition of a loop"):
            return reshape(_tensors(cond_fn(*carried, *additional_inputs))[0], [])

    def step(number: Node, carried: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        with random.each(number):
            return _tensors(body_fn(*carried, *additional_inputs)), []

    return structured.collect(holds, step, _tensors(carried_inputs))[0]


def scan(
    combine_fn: Function, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any] = (), *,
    random: Random,
) -> Sequence[Node]:  # fmt: skip
    over = _tensors(xs)

    def step(carried: Sequence[Node], elements: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        *element, number = elements
        with random.each(number):
            results = _tensors(combine_fn(*carried, *element, *additional_inputs))
        return results[: len(init)], results[len(init) :]

    last, stacked = structured.scan(step, _tensors(init), [*over, iota(over[0].shape[0])])
    return [*last, *stacked]


def wrap_with_set_grad_enabled(enabled: bool, function: Function, *operands: Any) -> Any:
    """A part of the model that was traced under ``torch.no_grad()``, or in it again with gradients."""
    results = function(*operands)
    if enabled:
        return results
    return [detached(x) if isinstance(x, Node) else x for x in results] if isinstance(results, list) else results


def map_(f: Function, xs: Sequence[Any], pos_args: Sequence[Any] = (), *, random: Random) -> Sequence[Node]:
    return scan(f, [], xs, pos_args, random=random)


def associative_scan(
    combine_fn: Function, xs: Sequence[Any], additional_inputs: Sequence[Any] = (), *, random: Random
) -> Sequence[Node]:
    with random.undrawn("a function that is taken to be associative"):
        return cumulative.associative(
            lambda before, after: _tensors(combine_fn(*before, *after, *additional_inputs)), _tensors(xs)
        )


@contextmanager
def any_number() -> Iterator[None]:
    """Around the export of a module, inside ``exporting``, which admits one thread at a time. PyTorch unrolls a generic
    associative scan, which fixes the number of elements; here the scan stays an operator where that may vary. Does
    nothing where PyTorch lacks this function."""
    scans: Any = sys.modules.get(_SCANS)
    spelled_out = getattr(scans, "generic_associative_scan", None)
    if spelled_out is None or not hasattr(scans, "associative_scan_op"):
        yield
        return

    def kept(operator: Any, leaves: Sequence[Any], dim: int = 0, additional_inputs: Sequence[Any] = ()) -> Any:
        if dim or isinstance(leaves[0].shape[0], int):
            return spelled_out(operator, leaves, dim, additional_inputs)
        return scans.associative_scan_op(_of_one(operator), tuple(leaves), tuple(additional_inputs))

    with patch.object(scans, "generic_associative_scan", kept):
        yield


def _of_one(operator: Any) -> Function:
    """The function that combines two elements, from ``operator``, its ``torch.vmap``, which combines many at once."""
    given = operator.keywords if isinstance(operator, partial) else {}
    batched = given.get("combine_fn")
    one = inspect.getclosurevars(batched).nonlocals.get("func") if inspect.isfunction(batched) else None
    if one is None:
        raise UnsupportedError(
            f"an associative scan over any number of elements as PyTorch {torch.__version__} has it: export it for a "
            "fixed number, or write a loop with torch._higher_order_ops.scan"
        )
    return partial(operator.func, **{**given, "combine_fn": one})


def _tensors(values: Any) -> list[Node]:
    found = list(values) if isinstance(values, list | tuple) else [values]
    for value in found:
        if not isinstance(value, Node):
            raise UnsupportedError(f"a branch or loop gives or carries {value}, which is no tensor: put it in one")
    return found


register("cond", cond)
register("wrap_with_set_grad_enabled", wrap_with_set_grad_enabled)
register("while_loop", while_loop)
register("scan", scan)
register("map_impl", map_)
register("associative_scan", associative_scan)
