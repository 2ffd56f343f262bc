"""Nested inputs and outputs, described in JSON so that a caller without PyTorch can rebuild them.

A description is one of::

    {"leaf": k}                                         the k-th input or output tensor of the graph
    {"leaf": k, "complex": True}                        the same, which holds complex numbers as pairs [.., 2]
    {"leaf": k, "left": j}                              an input that is written into: it is left the j-th output
    {"size": k}                                         the k-th output, a 0-dimensional int64, as a Python int
    {"value": v}                                        a constant: None, a bool, a number or a string
    {"fixed": name}                                     an input whose value was given when compiling
    {"list": [...]}  {"tuple": [...]}
    {"dict": [...], "keys": [...]}
    {"object": [...], "keys": [...], "type": "module:name"}     a named tuple, a dataclass, a transformers ModelOutput
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils._pytree import TreeSpec

from luminal.core.errors import ModelError

Description = dict[str, Any]

# What the nodes of a torch.fx graph hold instead.
_OF_GRAPHS = {immutable_list: list, immutable_dict: dict}


def describe(spec: TreeSpec, leaves: Iterator[Description]) -> Description:
    """The description of a tree whose leaves, from left to right, are described by ``leaves``."""
    if spec.is_leaf():
        return next(leaves)
    children = [describe(child, leaves) for child in spec.children()]
    container = _OF_GRAPHS.get(spec.type, spec.type)
    if container in (list, tuple):
        return {container.__name__: children}
    if container in (dict, OrderedDict):
        return {"dict": children, "keys": list(spec.context)}
    kind, keys = _fields(spec)
    if len(keys) != len(children) or not all(isinstance(key, str) for key in keys):
        raise ModelError(
            "inputs and outputs may be nested in lists, tuples, dictionaries with string keys, named tuples and "
            f"dataclasses; found {kind.__module__}.{kind.__qualname__}"
        )
    return {"object": children, "keys": keys, "type": f"{kind.__module__}:{kind.__qualname__}"}


def _fields(spec: TreeSpec) -> tuple[type, list[Any]]:
    """The class of a node that is no list, tuple or dictionary, and the names of its children."""
    context = spec.context
    if isinstance(context, type) and hasattr(context, "_fields"):  # a named tuple
        return context, list(context._fields)
    if not isinstance(spec.type, type):
        return type(spec.type), []
    if issubclass(spec.type, tuple):  # what PyTorch itself returns from operators with several results
        return spec.type, list(getattr(spec.type, "__match_args__", ()))
    if isinstance(context, list | tuple) and len(context) == 2 and isinstance(context[0], list):
        return spec.type, context[0]  # a dataclass: the fields that hold something, and those that are None
    return spec.type, list(context) if isinstance(context, list | tuple) else []


def positional(signature: inspect.Signature, compiled: list[str]) -> list[str]:
    """What a call may give by position, in order: the parameters of ``forward``, and after them what ``compiled``, the
    names of the arguments that were exported by position, has of ``*args``."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]
    return names + compiled[len(names) :]


def defaults(signature: inspect.Signature) -> dict[str, Description]:
    """The defaults of parameters, by name, as far as they are constants."""
    found = {name: _constant(parameter.default) for name, parameter in signature.parameters.items()}
    return {name: description for name, description in found.items() if description is not None}


def _constant(value: Any) -> Description | None:
    """The description of a constant; None where JSON does not hold it."""
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if type(value) not in (list, tuple):
        return None
    items = [item for item in map(_constant, value) if item is not None]
    return {type(value).__name__: items} if len(items) == len(value) else None


def paths(description: Description) -> Iterator[tuple[tuple[str, ...], Description]]:
    """The leaves of a description with the keys and positions that lead to them, from left to right."""
    children = next((description[kind] for kind in ("list", "tuple", "dict", "object") if kind in description), None)
    if children is None:
        yield (), description
        return
    for key, child in zip(description.get("keys", map(str, range(len(children)))), children, strict=True):
        yield from (((key, *rest), leaf) for rest, leaf in paths(child))


def output_names(description: Description, count: int) -> list[str]:
    """The path to each output (``last_hidden_state``, ``output_0``); a lone tensor is ``output``."""
    tensors = [path for path, leaf in paths(description) if "leaf" in leaf or "size" in leaf]
    assert len(tensors) == count
    names = ["_".join(path) or "output" for path in tensors]
    return [f"output_{name}" if name[0].isdigit() else name for name in names]
