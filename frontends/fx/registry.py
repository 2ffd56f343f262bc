"""The operator table: from an ATen overload, or a Python function on sizes, to the function that builds it.

A handler takes the operator's own arguments under its schema's names, already converted: tensors are nodes, sizes are
``int`` or symbolic expressions, element types are ``DType``, lists are Python lists. A handler that declares the
keyword ``result`` is also given the element type of the operator's first result, as PyTorch computed it; one that
declares ``contiguous``, whether PyTorch stores its tensors in row-major order, each from the start of its memory; one
that declares ``random``, the draws of the model; one that declares ``within``, the least and the largest that the
number, or the size of the vector, which it gives can be, or None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Handler = TypeVar("Handler", bound=Callable[..., Any])
Row = TypeVar("Row")


@dataclass(frozen=True)
class Entry:
    """A table line; ``wants`` names the keywords that the importer gives beside the operator's own arguments."""

    handler: Callable[..., Any]
    wants: frozenset[str]


TABLE: dict[str, Entry] = {}
# The same for operators with a complex operand or result.
COMPLEX: dict[str, Entry] = {}


def enter(entries: dict[str, Entry], name: str, handler: Callable[..., Any]) -> None:
    """Enter one operator by its full name; a name can be entered once."""
    assert name not in entries, f"{name} is registered twice"
    wants = {"result", "contiguous", "random", "within"} & inspect.signature(handler).parameters.keys()
    entries[name] = Entry(handler, frozenset(wants))


def register(name: str, handler: Callable[..., Any]) -> None:
    """Enter one operator on real tensors."""
    enter(TABLE, name, handler)


def aten(*overloads: str, entries: dict[str, Entry] = TABLE) -> Callable[[Handler], Handler]:
    """Enter the decorated handler for ATen overloads: ``@aten("add.Tensor", "add.Scalar")``; ``relu`` is short for
    ``relu.default``."""

    def decorated(handler: Handler) -> Handler:
        for overload in overloads:
            enter(entries, aten_name(overload), handler)
        return handler

    return decorated


def table(
    rows: Mapping[str, Row], wrap: Callable[[Row], Callable[..., Any]], entries: dict[str, Entry] = TABLE
) -> None:
    """Enter a family of ATen overloads that differ only in what ``wrap`` turns into a handler."""
    for overloads, row in rows.items():
        aten(*overloads.split(), entries=entries)(wrap(row))


def direct(rows: Mapping[str, Callable[..., Any]]) -> None:
    """Enter decompositions that take what their operators do, in that order and with the same defaults."""
    table(rows, lambda decomposition: decomposition)


def aten_name(overload: str) -> str:
    """``relu`` -> ``aten.relu.default``; ``add.Tensor`` -> ``aten.add.Tensor``."""
    return f"aten.{overload}" if "." in overload else f"aten.{overload}.default"


def target_name(target: object) -> str:
    """The name under which the table knows the target of a node: an overload's own name, or a Python function's dotted
    one without the underscore of C modules (``operator.mul``)."""
    if inspect.isbuiltin(target) or inspect.isfunction(target):
        return f"{(target.__module__ or '').lstrip('_')}.{target.__name__}"
    return str(target)
