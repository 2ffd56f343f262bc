"""Sequences and optional values.

A sequence of a length known at import folds away. A sequence whose length is known only in a run, or that is read at a
computed position, is one tensor whose rows are the sequence's tensors: these have one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from luminal.core import ir, limits, symval, types
from luminal.core import symbolic as sym
from luminal.core.decompose import indexing, selection
from luminal.core.decompose.compare import equal, less
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, constant, gather, iota, select
from luminal.core.movement import concatenate, permute, reshape, slice_, squeeze, unsqueeze
from luminal.core.symbolic import Int
from luminal.frontends.onnx.registry import Call, Maps, describe, undecided, wrap_axis


@dataclass(frozen=True)
class Tensors:
    """A sequence of a known number of tensors."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Stacked:
    """A sequence of tensors of one shape: the slices of ``rows`` along its first axis."""

    rows: Node


@dataclass(frozen=True)
class Growing:
    """The sequence ``key`` of a loop, seen from one of its rounds: ``rows`` are the rows that the round has appended,
    None for none. Earlier elements cannot be read."""

    key: object
    rows: Node | None = None


@dataclass(frozen=True)
class Nothing:
    """An optional value that holds nothing."""


class Read(Exception):
    """A round does something else with the sequence ``key`` than append to it."""

    def __init__(self, key: object) -> None:
        super().__init__("a round reads a sequence that grows")
        self.key = key


Held: TypeAlias = Node | Tensors | Stacked | Growing | Nothing | Maps | None
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
    if domain == "" and name == "Identity" and values and not isinstance(values[0], Node):
        return lambda call, values: values[0]
    if any(isinstance(value, Maps) for value in values):
        raise UnsupportedError("maps are supported as outputs of a model, not as inputs of an operator: compute on the "
                               "tensor that the maps are made of")  # fmt: skip
    if domain == "" and name in HANDLERS:
        return HANDLERS[name]
    if not any(isinstance(value, Tensors | Stacked | Growing | Nothing) for value in values):
        return None
    raise UnsupportedError("expected tensors, found a sequence or an optional value")


def is_sequence(value: Held) -> bool:
    return isinstance(value, Tensors | Stacked | Growing)


def items(value: Held) -> tuple[Node, ...] | None:
    """The tensors of a sequence of a known number of them; None where a run decides the number."""
    if isinstance(value, Tensors):
        return value.items
    rows = stacked(value).rows
    count = rows.shape[0]
    if not isinstance(count, int):
        return None
    limits.check_parts(count, "a sequence")
    return tuple(reshape(slice_(rows, 0, number, 1), rows.shape[1:]) for number in range(count))


def stacked(value: Held) -> Stacked:
    """A sequence as one tensor. Raises UnsupportedError where it is empty, or holds tensors of several shapes or types,
    and Read where it is not known what it holds."""
    if isinstance(value, Growing):
        raise Read(value.key)
    if isinstance(value, Stacked):
        return value
    if not isinstance(value, Tensors):
        raise ModelError(f"expected a sequence, found {described(value)}")
    if not _is_even(value):
        raise UnsupportedError(
            f"a run decides the length of a sequence: expected tensors of one shape, found {described(value)}; make "
            "them equally large, or give when compiling what decides (constants=, dims=)"
        )
    return Stacked(indexing.stack(value.items))


def _is_even(value: Tensors) -> bool:
    """Whether there is a tensor, and all have one shape and type."""
    return len({(item.dtype, item.shape) for item in value.items}) == 1


def extended(value: Held, rows: Node) -> Held:
    """A sequence with the slices of ``rows`` at its end."""
    if isinstance(value, Growing):
        return Growing(value.key, rows if value.rows is None else _joined(value.rows, rows))
    if isinstance(value, Tensors) and not value.items:
        return Stacked(rows)
    return Stacked(_joined(stacked(value).rows, rows))


def _joined(first: Node, second: Node) -> Node:
    if first.shape[1:] != second.shape[1:] or first.dtype != second.dtype:
        raise UnsupportedError(
            f"a run decides the length of a sequence: expected tensors of one shape, found {_element(first)} and "
            f"{_element(second)}; make them equally large, or give when compiling what decides (constants=, dims=)"
        )
    return concatenate([first, second], 0)


def _sequence(values: Sequence[Held], position: int) -> Tensors | Stacked | Growing:
    value = values[position] if position < len(values) else None
    if not isinstance(value, Tensors | Stacked | Growing):
        raise ModelError(f"input {position}: expected a sequence")
    return value


def _known(call: Call, position: int) -> int | None:
    """The one element of an integer input, where it is known."""
    found = symval.scalar(call[position])
    return found if isinstance(found, int) else None


def _rows(call: Call, value: Held, position: int) -> Node:
    """The tensors of a sequence along a first axis, which is read where an input says."""
    if isinstance(value, Tensors) and not _is_even(value):
        raise undecided(call[position], position)
    return stacked(value).rows


def _inside(place: int, count: int, last: int) -> int:
    """A position in a sequence, counted from the end where it is negative."""
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
    value, place = _sequence(values, 0), _known(call, 1)
    if isinstance(value, Tensors) and place is not None:
        return value.items[_inside(place, len(value.items), len(value.items) - 1)]
    return indexing.take(_rows(call, value, 1), reshape(call[1], []), 0)


@_handler("SequenceInsert")
def _insert(call: Call, values: Sequence[Held]) -> Held:
    value, x = _sequence(values, 0), call[1]
    at_end = call.get(2) is None
    place = None if at_end else _known(call, 2)
    if isinstance(value, Tensors) and (at_end or place is not None):
        count = len(value.items)
        before = count if place is None else _inside(place, count, count)
        return Tensors((*value.items[:before], x, *value.items[before:]))
    if at_end:
        return extended(value, unsqueeze(x, [0]))
    rows = _rows(call, value, 2)
    longer = _joined(rows, unsqueeze(x, [0]))
    end = longer.shape[0]
    number, at = iota(end), indexing.wrapped(reshape(call[2], []), rows.shape[0])
    behind = select(equal(number, at), ir.dim(rows.shape[0]), number - 1)
    return _picked(longer, at, end, select(number < at, number, behind))


@_handler("SequenceErase")
def _erase(call: Call, values: Sequence[Held]) -> Held:
    value = _sequence(values, 0)
    place = -1 if call.get(1) is None else _known(call, 1)
    if isinstance(value, Tensors) and place is not None:
        found = value.items
        place = _inside(place, len(found), len(found) - 1)
        return Tensors((*found[:place], *found[place + 1 :]))
    rows = _rows(call, value, 1)
    count = rows.shape[0]
    position = constant(-1, types.i64) if call.get(1) is None else reshape(call[1], [])
    number, at = iota(sym.maximum(count - 1, 0)), indexing.wrapped(position, count)
    return _picked(rows, at, count, select(number < at, number, number + 1))


def _picked(rows: Node, at: Node, end: Int, numbers: Node) -> Stacked:
    """The rows of these ``numbers``; a run fails where the position ``at`` is not in ``0 .. end - 1``."""
    inside = less(-1, at) & (at < ir.dim(end))
    return Stacked(gather(rows, select(inside, numbers, -1), 0))


@_handler("SequenceLength")
def _length(call: Call, values: Sequence[Held]) -> Held:
    value = _sequence(values, 0)
    return ir.dim(len(value.items) if isinstance(value, Tensors) else stacked(value).rows.shape[0])


@_handler("SplitToSequence")
def _split(call: Call, values: Sequence[Held]) -> Held:
    x = call[0]
    axis, keep = call.axis(x.rank, 0), call.flag("keepdims", True)
    extent = x.shape[axis]
    if call.get(1) is not None and call[1].rank == 1:
        if symval.value(call[1]) is None:
            return Tensors(tuple(selection.split(x, call[1], axis, f"{call.outputs[0]}_size")))
        return Tensors(tuple(indexing.split(x, call.values(1), axis)))
    each = 1 if call.get(1) is None else call.integer_at(1)
    if each < 1:
        raise ModelError(f"expected parts of one element or more, found {each}")
    if not isinstance(extent, int):
        if sym.mod(extent, each) != 0:
            raise UnsupportedError(
                f"expected a size that is a multiple of {each}, the size of a part, since tensors in a sequence whose "
                f"length only a run decides are equally large, found {extent}: fix it with {sym.fixing(extent)}"
            )
        first = [*x.shape[:axis], sym.floordiv(extent, each), each, *x.shape[axis + 1 :]]
        rows = permute(reshape(x, first), [axis, *(k for k in range(x.rank + 1) if k != axis)])
        return Stacked(rows if keep or call.get(1) is not None else squeeze(rows, [axis + 1]))
    limits.check_parts(-(-extent // each), "a sequence")
    sizes = [min(each, extent - start) for start in range(0, extent, each)]
    parts = indexing.split(x, sizes, axis)
    return Tensors(tuple(parts if keep or call.get(1) is not None else (squeeze(part, [axis]) for part in parts)))


@_handler("ConcatFromSequence")
def _concat(call: Call, values: Sequence[Held]) -> Held:
    value, axis, new = _sequence(values, 0), call.integer("axis"), call.flag("new_axis")
    if not isinstance(value, Tensors):
        rows = stacked(value).rows
        axis = wrap_axis(axis, rows.rank if new else rows.rank - 1)
        moved = permute(rows, [*range(1, axis + 1), 0, *range(axis + 1, rows.rank)])
        if new:
            return moved
        return reshape(
            moved, [*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :]]
        )
    parts = value.items
    if not parts:
        raise ModelError("a sequence of no tensors cannot be joined")
    if new:
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
    """``sequence(float32[2], float32[batch])``, ``sequence(n of float32[2])``."""
    if isinstance(value, Tensors):
        return f"sequence({', '.join(map(describe, value.items))})"
    if isinstance(value, Stacked):
        return f"sequence({value.rows.shape[0]} of {_element(value.rows)})"
    if isinstance(value, Growing):
        return "a sequence that grows"
    if isinstance(value, Maps):
        return f"sequence({value.values.shape[0]} of maps of {len(value.keys)} keys)"
    return "nothing" if isinstance(value, Nothing) else "-" if value is None else describe(value)


def _element(rows: Node) -> str:
    return f"{rows.dtype}[{', '.join(map(str, rows.shape[1:]))}]"
