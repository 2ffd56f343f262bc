"""Control flow: ``If``, ``Loop``, ``Scan`` and ``SequenceMap``, whose attributes are graphs.

What is known when a model is imported folds away: the condition of an ``If``, the number of tensors in a sequence. The
rest becomes the primitives ``Cond``, ``Scan`` and ``While``. A loop of a few iterations is spelled out where its body
does not have the same shapes each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx

from luminal.core import interp, limits, symval, types
from luminal.core import symbolic as sym
from luminal.core.decompose.compare import maximum
from luminal.core.decompose.indexing import stack
from luminal.core.errors import (
    DTypeError,
    InputError,
    LuminalError,
    ModelError,
    ShapeError,
    Unsupported,
    UnsupportedError,
)
from luminal.core.ir import Node, cast, constant, gather, iota, select
from luminal.core.movement import flip, permute, reshape
from luminal.core.structured import collect, cond, scan
from luminal.core.symbolic import Int
from luminal.frontends.onnx import sequences
from luminal.frontends.onnx.registry import Call, exactly, undecided, wrap_axis
from luminal.frontends.onnx.sequences import Held, Nothing, Tensors

SPELLED_OUT = 64  # iterations of a loop whose body is repeated where it cannot be a loop

# The results of a graph on the values of its inputs. Raises Unfinished.
Run: TypeAlias = Callable[[onnx.GraphProto, Sequence[Held]], list[Held]]
Handler: TypeAlias = Callable[[Call, Sequence[Held], Run], Sequence[Held]]


class Unfinished(Exception):
    """A graph holds ``places`` that cannot be compiled, or reads values that could not."""

    def __init__(self, places: Sequence[Unsupported]) -> None:
        super().__init__(f"{len(places)} unsupported places")
        self.places = places


def known(node: Node) -> Int | None:
    """The value of a single integer or bool, as far as it is decided when the model is imported."""
    found = symval.scalar(node)
    if found is None and (value := interp.constant_value(node)) is not None and value.size == 1:
        return int(value.reshape(-1)[0])
    return found


# ---- If ------------------------------------------------------------------------------------------------------------


def if_(call: Call, values: Sequence[Held], run: Run) -> Sequence[Held]:
    """Only the branch that is taken is imported where the condition is known: exporters write such for sizes that they
    had not resolved. Else both give as many tensors, of the same types and numbers of axes."""
    branches = call.graph("then_branch"), call.graph("else_branch")
    condition = call[0]
    if not condition.dtype.is_bool:
        raise DTypeError(f"expected a condition that is one bool, found {condition.dtype}")
    taken = known(condition)
    if isinstance(taken, int):
        return run(branches[0] if taken else branches[1], [])
    found: list[list[Held]] = []

    def results(branch: onnx.GraphProto) -> list[Node]:
        found.append(run(branch, []))
        if list(map(_kind, found[0])) != list(map(_kind, found[-1])):
            raise undecided(condition, 0)
        return _tensors(found[-1])

    name = f"{next(name for name in call.outputs if name)}_size"
    joined = cond(_scalar(condition), lambda: results(branches[0]), lambda: results(branches[1]), name)
    return _arranged(found[0], joined)


# ---- Loop ----------------------------------------------------------------------------------------------------------


class _Asks(Exception):
    """The body of a loop decides whether there is another iteration."""


def loop(call: Call, values: Sequence[Held], run: Run) -> Sequence[Held]:
    """A scan over the numbers of the iterations where there are a known number of them, else a while loop.

    As runtimes have it, the condition that the body gives is asked even where the first one is left out.
    """
    body, first = call.graph("body"), values[2:]
    if len(body.output) <= len(first):
        raise ModelError(
            f"the body gives {len(body.output)} values, expected at least {1 + len(first)}: a condition, and for each "
            "carried value the next"
        )
    trips, keep = call.get(0), call.get(1)
    limit = None if trips is None else known(trips)
    start = 1 if keep is None else known(keep)
    if start == 0:
        limit = 0
    if limit is None and trips is not None and not all(isinstance(value, Node) for value in first):
        raise undecided(trips, 0)  # of sequences, each iteration is spelled out
    try:
        if limit is not None and start is not None and not _endless(limit):
            try:
                return _counted(call, body, sym.maximum(limit, 0), first, run)
            except _Asks:
                pass
        return _asking(call, limit, body, first, run)
    except (LuminalError, Unfinished):
        if not isinstance(limit, int) or not 0 < limit <= SPELLED_OUT or start is None:
            raise
    return _spelled_out(body, limit, first, run)


def _endless(limit: Int) -> bool:
    """Whether ``limit`` is the largest integer, or so large as to mean no limit: exporters of while loops say so."""
    return isinstance(limit, int) and limit > limits.BYTES // types.i64.itemsize


def _each(call: Call, number: Node, run: Run) -> Run:
    """``run`` for the body of a loop, in the round of that ``number``."""

    def in_round(body: onnx.GraphProto, inputs: Sequence[Held]) -> list[Held]:
        with call.random.each(number):
            return run(body, inputs)

    return in_round


def _counted(call: Call, body: onnx.GraphProto, trips: Int, first: Sequence[Held], run: Run) -> list[Held]:
    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        results = _each(call, element[0], run)(body, [element[0], _TRUE, *_arranged(first, carried)])
        if known(_tensor(results[0])) != 1:
            raise _Asks
        return _next(first, results), _tensors(results[1 + len(first) :])

    last, stacked = scan(step, _tensors(first), [iota(trips)])
    return [*_arranged(first, last), *stacked]


def _asking(call: Call, limit: Int | None, body: onnx.GraphProto, first: Sequence[Held], run: Run) -> list[Held]:
    trips, keep = call.get(0), call.get(1)
    put_out = len(body.output) - 1 - len(first)
    wanted = [k for k in range(put_out) if call.wants(len(first) + k)]
    name = f"{call.outputs[len(first) + wanted[0]]}_count" if wanted else ""

    def holds(number: Node, carried: Sequence[Node]) -> Node:
        return carried[0] if trips is None else carried[0] & (number < _scalar(trips))

    def step(number: Node, carried: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        results = _each(call, number, run)(body, [number, _TRUE, *_arranged(first, carried[1:])])
        following = [_scalar(_tensor(results[0])), *_next(first, results)]
        return following, [_tensor(results[1 + len(first) + k]) for k in wanted]

    start = [_TRUE if keep is None else _scalar(keep), *_tensors(first)]
    room = _room(call, limit, name) if wanted else 0
    (_, *last), stacked = collect(holds, step, start, room, name)
    rows: dict[int, Node] = dict(zip(wanted, stacked, strict=True))
    return [*_arranged(first, last), *(rows.get(k) for k in range(put_out))]


def _room(call: Call, limit: Int | None, name: str) -> Int:
    """For how many iterations there is room in outputs along an axis that is called ``name``."""
    trips, declared = call.get(0), call.most(name)
    if declared is not None:
        return declared
    if limit is None and trips is not None:
        limit = symval.most(trips)
    if limit is None or (isinstance(limit, int) and limit > limits.TABLE):
        raise InputError(
            "the number of iterations decides the size of an output, and the data of a call decides that number: "
            f"state how many there can be, dims={{{name!r}: (0, MOST)}}"
        )
    return sym.maximum(limit, 0)


def _spelled_out(body: onnx.GraphProto, trips: int, first: Sequence[Held], run: Run) -> list[Held]:
    carried = list(first)
    rows: list[list[Node]] = []
    for number in range(trips):
        keep, *results = run(body, [constant(number, types.i64), _TRUE, *carried])
        carried = results[: len(first)]
        rows.append(_tensors(results[len(first) :]))
        following = known(_tensor(keep))
        if not isinstance(following, int):
            raise UnsupportedError(
                "the shapes of what the body gives change from one iteration to the next, and it decides itself "
                "whether there is another: sizes that are known at run time only are not supported"
            )
        if not following:
            break
    return [*carried, *(stack(column) for column in zip(*rows, strict=True))]


def _next(first: Sequence[Held], results: Sequence[Held]) -> list[Node]:
    """What the body carries on, laid out as ``first`` is."""
    following = results[1 : 1 + len(first)]
    for before, after in zip(first, following, strict=True):
        if _kind(before) != _kind(after):
            raise ShapeError(
                f"a carried value {sequences.described(before)} becomes {sequences.described(after)} in an iteration"
            )
    return _tensors(following)


# ---- Scan ----------------------------------------------------------------------------------------------------------


def scan_(call: Call, values: Sequence[Held], run: Run) -> Sequence[Held]:
    """From opset 9 on any axis of an operand may be the one that is run along, and of a result the one that is put
    together."""
    body, count = call.graph("body"), call.integer("num_scan_inputs")
    operands = _tensors(values)
    states = len(operands) - count
    _check_scan(body, states, count)
    backwards = _listed(call, "scan_input_directions", count)
    axes = _listed(call, "scan_input_axes", count)
    put_out = len(body.output) - states
    over = [
        _ahead(x, wrap_axis(axis, x.rank), backward == 1)
        for x, axis, backward in zip(operands[states:], axes, backwards, strict=True)
    ]
    step = _scan_step(call, body, states, run)
    last, stacked = scan(step, operands[:states], [*over, iota(over[0].shape[0])])
    backwards = _listed(call, "scan_output_directions", put_out)
    axes = _listed(call, "scan_output_axes", put_out)
    return [
        *last,
        *(
            _back(x, wrap_axis(axis, x.rank), backward == 1)
            for x, axis, backward in zip(stacked, axes, backwards, strict=True)
        ),
    ]


def batched_scan(call: Call, values: Sequence[Held], run: Run) -> Sequence[Held]:
    """In opset 8 the first axis is a batch, the second is run along, and ``sequence_lens`` says how far: behind it the
    states stay, and zeros are put out."""
    body, count = call.graph("body"), call.integer("num_scan_inputs")
    lengths, *operands = values
    given = _tensors(operands)
    states = len(given) - count
    _check_scan(body, states, count)
    backwards = _listed(call, "directions", count)
    if lengths is not None:
        given.append(cast(_tensor(lengths), types.i64))

    if not all(x.rank for x in given) or any(x.rank < 2 for x in given[states : states + count]):
        raise ShapeError("expected values with a batch, and an axis to run along, found one without axes")

    def one(_: Sequence[Node], row: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        over, length, number = list(row[states : states + count]), row[-2], row[-1]
        inner = _scan_step(call, body, states, _each(call, number, run))
        places = iota(over[0].shape[0])
        for k, backward in enumerate(backwards):
            if backward and lengths is None:
                over[k] = flip(over[k], [0])
            elif backward:  # from the end of this sequence
                over[k] = gather(over[k], maximum(length - 1 - places, 0), 0)

        def step(carried: Sequence[Node], elements: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
            *_, place = elements
            following, put_out = inner(carried, elements)
            if lengths is None:
                return following, put_out
            inside = place < length
            kept = [select(inside, after, before) for before, after in zip(carried, following, strict=True)]
            return kept, [select(inside, x, 0) for x in put_out]

        last, stacked = scan(step, row[:states], [*over, places])
        return (), (*last, *stacked)

    return scan(one, [], [*given, iota(given[0].shape[0])])[1]


def _scan_step(
    call: Call, body: onnx.GraphProto, states: int, run: Run
) -> Callable[[Sequence[Node], Sequence[Node]], tuple[list[Node], list[Node]]]:
    """The elements end with the number of the step."""

    def step(carried: Sequence[Node], elements: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        *parts, number = elements
        results = _tensors(_each(call, number, run)(body, [*carried, *parts]))
        return results[:states], results[states:]

    return step


def _check_scan(body: onnx.GraphProto, states: int, count: int) -> None:
    if count < 1 or states < 0:
        raise ModelError(f"expected one scan input or more, found {count} after {states} states")
    if len(body.output) < states:
        raise ModelError(f"the body gives {len(body.output)} values, expected at least its {states} states")


def _listed(call: Call, name: str, count: int) -> list[int]:
    given = call.integers(name)
    if given is None:
        return [0] * count
    exactly(given, count, f"numbers in {name!r}")
    return given


def _ahead(x: Node, axis: int, backward: bool) -> Node:
    """``x`` with ``axis`` first, ``backward`` along it."""
    moved = permute(x, [axis, *(k for k in range(x.rank) if k != axis)])
    return flip(moved, [0]) if backward else moved


def _back(x: Node, axis: int, backward: bool) -> Node:
    """The inverse of ``_ahead``."""
    turned = flip(x, [0]) if backward else x
    rest = list(range(1, x.rank))
    return permute(turned, [*rest[:axis], 0, *rest[axis:]])


# ---- SequenceMap ---------------------------------------------------------------------------------------------------


def sequence_map(call: Call, values: Sequence[Held], run: Run) -> Sequence[Held]:
    """The graph on each element of the first sequence, and of the others, or a tensor for all."""
    body = call.graph("body")
    rows: list[list[Node]] = []
    for position in range(len(sequences.items(values, 0))):
        given: list[Held] = []
        for k, value in enumerate(values):
            parts = (value,) * (position + 1) if isinstance(value, Node) else sequences.items(values, k)
            if position >= len(parts):
                raise ModelError(f"sequence {k} has fewer tensors than the first")
            given.append(parts[position])
        rows.append([_tensor(result) for result in run(body, given)])
    return [Tensors(tuple(row[k] for row in rows)) for k in range(len(body.output))]


HANDLERS: dict[str, Handler] = {"If": if_, "Loop": loop, "Scan": scan_, "SequenceMap": sequence_map}


def handler(domain: str, name: str, opset: int) -> Handler | None:
    """What imports an operator that runs graphs."""
    if domain:
        return None
    return batched_scan if name == "Scan" and opset < 9 else HANDLERS.get(name)


# ---- sequences and optional values as tensors ----------------------------------------------------------------------


_TRUE = constant(True, types.bool_)


def _kind(value: Held) -> object:
    """What does not change in a loop, and is the same in both branches: whether it is a tensor, or how many."""
    return len(value.items) if isinstance(value, Tensors) else type(value)


def _tensors(values: Sequence[Held]) -> list[Node]:
    """All tensors of ``values``, in order."""
    found: list[Node] = []
    for value in values:
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, Tensors):
            found += value.items
        elif not isinstance(value, Nothing):
            raise ModelError("a value that a graph takes or gives is left out")
    return found


def _arranged(like: Sequence[Held], tensors: Sequence[Node]) -> list[Held]:
    """``tensors`` as values that are laid out as ``like``."""
    left = iter(tensors)
    return [
        next(left) if isinstance(value, Node)
        else Tensors(tuple(next(left) for _ in value.items)) if isinstance(value, Tensors)
        else value
        for value in like
    ]  # fmt: skip


def _tensor(value: Held) -> Node:
    if not isinstance(value, Node):
        raise ModelError(f"expected a tensor, found {sequences.described(value)}")
    return value


def _scalar(node: Node) -> Node:
    """The one element of ``node``, which may have axes of one element; raises ShapeError where there are more."""
    return reshape(node, [])
