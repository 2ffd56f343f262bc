"""A module and its loss as one module to train, and the same module to evaluate."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from luminal.core.errors import InputError, ModelError
from luminal.frontends.fx.dtypes import to_numpy
from luminal.frontends.fx.export import Inputs, bind, input_names

Variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def with_loss(
    module: torch.nn.Module, loss: Callable[..., Any] | None, inputs: Inputs, targets: Sequence[Any], outputs: bool
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A module with the parameters of ``module``, under their names, whose forward takes the arguments of both and
    returns the loss, with ``outputs`` the pair of it and of what ``module`` returns; and example arguments by name.

    Raises ModelError where the arguments do not fit.
    """
    bound = bind(module, inputs)
    given: dict[str, Any] = {}
    by_position: list[str] = []
    by_name: list[str] = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            several = {f"{name}_{k}": x for k, x in enumerate(value)}
            by_position += several
        elif kind is inspect.Parameter.VAR_KEYWORD:
            several = dict(value)
            by_name += several
        else:
            several = {name: value}
            (by_name if kind is inspect.Parameter.KEYWORD_ONLY else by_position).append(name)
        given |= several
    if loss is None and targets:
        raise ModelError("training: there are targets, but no loss that takes them")
    wanted = dict(zip(_target_names(loss, len(targets), given), targets, strict=True))

    def called(*args: Any) -> Any:
        values = dict(zip((*given, *wanted), args, strict=True))
        result = module(*(values[n] for n in by_position), **{n: values[n] for n in by_name})
        number = _first(result) if loss is None else loss(result, *(values[n] for n in wanted))
        return (number, result) if outputs else number

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in (*given, *wanted)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    whole = copy.copy(module)
    whole._modules = dict(module._modules)
    whole._forward_hooks, whole._forward_pre_hooks = OrderedDict(), OrderedDict()  # they run where module does
    if isinstance(loss, torch.nn.Module):
        name = "loss"
        while hasattr(module, name):
            name += "_"
        whole._modules[name] = loss
    whole.forward = called
    return whole, {**given, **wanted}


def micro_batch(
    module: torch.nn.Module, given: Mapping[str, Any], count: int, asked: Mapping[str, int | None]
) -> tuple[dict[str, Any], list[str]]:
    """Of example arguments ``given`` by name, those of one of ``count`` micro-batches: the first rows of all that have
    as many as the first. With them, the names of inputs that have such rows. ``asked`` says of inputs by name whether
    they have (0) or not (None).

    Raises InputError where ``count`` does not divide them, or there are none.
    """
    names = input_names(module, given)
    unknown = sorted(asked.keys() - set(names))
    if unknown:
        raise InputError(
            f"shard: expected names of inputs, which are {', '.join(names)}, along 'pipeline', found "
            f"{', '.join(unknown)}; stages are chosen by cost"
        )
    values, described = pytree.tree_flatten([*given.values()])
    ranked = [x for name, x in zip(names, values, strict=True) if _has_axis(x) and asked.get(name, 0) == 0]
    if not ranked:
        raise InputError("micro_batches: expected an input with rows of a batch, found none")
    rows = ranked[0].shape[0]
    if rows % count:
        raise InputError(f"micro_batches: expected a number that divides the {rows} rows of a batch, found {count}")
    cut = [
        name for name, x in zip(names, values, strict=True)
        if asked.get(name, 0 if _has_axis(x) and x.shape[0] == rows else None) == 0
    ]  # fmt: skip
    parts = [x[: rows // count] if name in cut else x for name, x in zip(names, values, strict=True)]
    return dict(zip(given, pytree.tree_unflatten(parts, described), strict=True)), cut


def _has_axis(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim > 0


def _first(result: Any) -> Any:
    """The loss among the results of a module that computes it."""
    if isinstance(result, torch.Tensor):
        return result
    if getattr(result, "loss", None) is not None:
        return result.loss
    if isinstance(result, Mapping) and "loss" in result:
        return result["loss"]
    if isinstance(result, Sequence) and len(result):
        return result[0]
    raise ModelError(f"training: expected a module that returns its loss, found {type(result).__name__}; give a loss")


def _target_names(loss: Any, count: int, taken: Mapping[str, Any]) -> list[str]:
    """Names for what the loss takes after the output: its own, where it has them."""
    function = loss.forward if isinstance(loss, torch.nn.Module) else loss
    try:
        own = [p.name for p in list(inspect.signature(function).parameters.values())[1:] if p.kind not in Variadic]
    except (TypeError, ValueError):
        own = []
    found: list[str] = []
    for number in range(count):
        name = own[number] if number < len(own) else "target" if count == 1 else f"target_{number}"
        while name in taken or name in found:
            name += "_target"
        found.append(name)
    return found


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """``module`` in evaluation mode inside the block; then each part is again as it was."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def aliases(module: torch.nn.Module, names: Mapping[str, str]) -> dict[str, str]:
    """For parameters by their first names, what each of all their names is to be called."""
    every = dict(module.named_parameters(remove_duplicate=False))
    called = {id(every[key]): name for key, name in names.items()}
    return {key: called[id(tensor)] for key, tensor in every.items() if id(tensor) in called}


def value(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A parameter's numbers where they lie: a copy of all parameters would stay as long as the compiled step. What the
    step begins with is in its weights file, so the parameter may change once it is compiled."""
    return to_numpy(tensor)
