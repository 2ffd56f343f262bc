"""Sequences and optional values, which fold away: how many tensors there are is known when a model is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from luminal.core import limits, types
from luminal.core.decompose import indexing
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, constant
from luminal.core.movement import concatenate, squeeze
from luminal.frontends.onnx.registry import Call, describe, wrap_axis


@dataclass(frozen=True)
class Tensors:
    """A sequence."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Nothing:
    """An optional value that holds nothing."""


Held: TypeAlias = Node | Tensors | Nothing | None
# Attributes and tensor inputs are read from the call; the values hold its sequences, too.
Handler: TypeAlias = Callable[[Call, Sequence[Held]], Held]

HANDLERS: dict[str, Handler] = {}


def _handler(*names: str) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, function))
        return function

    return register


def handler(domain: str, name: str, values: Sequence[Held]) -> Handler | None:
    """What imports an operator on sequences or optional values.

    Raises UnsupportedError where another operator is given one.
    """
    if domain == "" and name in HANDLERS:
        return HANDLERS[name]
    if not any(isinstance(value, Tensors | Nothing) for value in values):
        return None
    if domain == "" and name == "Identity":
        return lambda call, values: values[0]
    raise UnsupportedError("expected tensors, found a sequence or an optional value")


def items(values: Sequence[Held], position: int) -> tuple[Node, ...]:
    """The tensors of the sequence at ``position``."""
    value = values[position] if position < len(values) else None
    if not isinstance(value, Tensors):
        raise ModelError(f"input {position}: expected a sequence")
    return value.items


def _place(call: Call, position: int, count: int, last: int) -> int:
    """A position in a sequence, counted from the end where it is negative."""
    place = call.integer_at(position)
    if not -count <= place <= last:
        raise ModelError(f"position {place} is outside a sequence of {count} tensors")
    return place + count if place < 0 else place


# ---- sequences -----------------------------------------------------------------------------------------------------


@_handler("SequenceEmpty")
def _empty(call: Call, values: Sequence[Held]) -> Held:
    call.ignore("dtype")
    return Tensors(())


@_handler("SequenceConstruct")
def _construct(call: Call, values: Sequence[Held]) -> Held:
    return Tensors(tuple(call.operands))


@_handler("SequenceAt")
def _at(call: Call, values: Sequence[Held]) -> Held:
    found = items(values, 0)
    return found[_place(call, 1, len(found), len(found) - 1)]


@_handler("SequenceInsert")
def _insert(call: Call, values: Sequence[Held]) -> Held:
    found = items(values, 0)
    place = len(found) if call.get(2) is None else _place(call, 2, len(found), len(found))
    return Tensors((*found[:place], call[1], *found[place:]))


@_handler("SequenceErase")
def _erase(call: Call, values: Sequence[Held]) -> Held:
    found = items(values, 0)
    place = len(found) - 1 if call.get(1) is None else _place(call, 1, len(found), len(found) - 1)
    return Tensors((*found[:place], *found[place + 1 :]))


@_handler("SequenceLength")
def _length(call: Call, values: Sequence[Held]) -> Held:
    return constant(len(items(values, 0)), types.i64)


@_handler("SplitToSequence")
def _split(call: Call, values: Sequence[Held]) -> Held:
    x = call[0]
    axis, keep = call.axis(x.rank, 0), call.flag("keepdims", True)
    extent = x.shape[axis]
    if call.get(1) is not None and call[1].rank == 1:
        return Tensors(tuple(indexing.split(x, call.values(1), axis)))
    each = 1 if call.get(1) is None else call.integer_at(1)
    if not isinstance(extent, int) or each < 1:
        raise UnsupportedError(f"a split of {extent} elements into parts of {each}: fix the size with dims=")
    limits.check_parts(-(-extent // each), "a sequence")
    sizes = [min(each, extent - start) for start in range(0, extent, each)]
    parts = indexing.split(x, sizes, axis)
    return Tensors(tuple(parts if keep or call.get(1) is not None else (squeeze(part, [axis]) for part in parts)))


@_handler("ConcatFromSequence")
def _concat(call: Call, values: Sequence[Held]) -> Held:
    parts, axis = items(values, 0), call.integer("axis")
    if not parts:
        raise ModelError("a sequence of no tensors cannot be joined")
    if call.flag("new_axis"):
        return indexing.stack(parts, wrap_axis(axis, parts[0].rank + 1))
    return concatenate(parts, wrap_axis(axis, parts[0].rank))


# ---- optional values -----------------------------------------------------------------------------------------------


@_handler("Optional")
def _optional(call: Call, values: Sequence[Held]) -> Held:
    call.ignore("type")
    return values[0] if values and values[0] is not None else Nothing()


@_handler("OptionalHasElement")
def _has_element(call: Call, values: Sequence[Held]) -> Held:
    held = bool(values) and values[0] is not None and not isinstance(values[0], Nothing)
    return constant(np.array(held))


@_handler("OptionalGetElement")
def _get_element(call: Call, values: Sequence[Held]) -> Held:
    if not values or values[0] is None or isinstance(values[0], Nothing):
        raise ModelError("the optional value holds nothing")
    return values[0]


def described(value: Held) -> str:
    """``sequence(float32[2], float32[batch])``."""
    if isinstance(value, Tensors):
        return f"sequence({', '.join(map(describe, value.items))})"
    return "nothing" if isinstance(value, Nothing) else "-" if value is None else describe(value)
