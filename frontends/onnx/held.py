"""What graphs of control flow take and give, as tensors: sequences, maps and optional values among them."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core.errors import ModelError
from luminal.core.ir import Node
from luminal.frontends.onnx import sequences
from luminal.frontends.onnx.registry import Maps
from luminal.frontends.onnx.sequences import Growing, Held, Nothing, Stacked, Tensors


def kind(value: Held) -> object:
    """The kind of a value, the same in all rounds and in both branches: a tensor, or a sequence of so many tensors."""
    if isinstance(value, Growing):
        return value.key, value.rows is None
    if isinstance(value, Maps):
        return Maps, value.keys
    return len(value.items) if isinstance(value, Tensors) else type(value)


def tensors(values: Sequence[Held]) -> list[Node]:
    """All tensors of ``values``, in order."""
    found: list[Node] = []
    for value in values:
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, Tensors):
            found += value.items
        elif isinstance(value, Stacked):
            found.append(value.rows)
        elif isinstance(value, Maps):
            found.append(value.values)
        elif isinstance(value, Growing):
            found += () if value.rows is None else (value.rows,)
        elif not isinstance(value, Nothing):
            raise ModelError("a value that a graph takes or gives is left out")
    return found


def arranged(like: Sequence[Held], nodes: Sequence[Node]) -> list[Held]:
    """``nodes`` grouped into values of the same kinds as ``like``."""
    left = iter(nodes)
    found: list[Held] = []
    for value in like:
        if isinstance(value, Node):
            found.append(next(left))
        elif isinstance(value, Tensors):
            found.append(Tensors(tuple(next(left) for _ in value.items)))
        elif isinstance(value, Stacked):
            found.append(Stacked(next(left)))
        elif isinstance(value, Maps):
            found.append(Maps(next(left), value.keys))
        elif isinstance(value, Growing) and value.rows is not None:
            found.append(Growing(value.key, next(left)))
        else:
            found.append(value)
    return found


def tensor(value: Held) -> Node:
    """``value``, which has to be one."""
    if not isinstance(value, Node):
        raise ModelError(f"expected a tensor, found {sequences.described(value)}")
    return value
