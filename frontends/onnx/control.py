"""Control flow: ``If``, ``Loop``, ``Scan`` and ``SequenceMap``, whose attributes are graphs.

What is known when a model is imported folds away: the condition of an ``If``, the number of tensors in a sequence. The
rest becomes the primitives ``Cond``, ``Scan`` and ``While``. A loop of a few iterations is spelled out where its body
does not have the same shapes each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx

from luminal.core import interp, limits, symval, types
from luminal.core import symbolic as sym
from luminal.core.decompose.compare import logical_not, maximum
from luminal.core.decompose.indexing import stack
from luminal.core.errors import (
    DTypeError,
    InputError,
    LuminalError,
    ModelError,
    RankError,
    ShapeError,
    Unsupported,
    UnsupportedError,
)
from luminal.core.ir import Node, cast, constant, gather, iota, select
from luminal.core.movement import flip, permute, reshape, unsqueeze
from luminal.core.ops import Failure
from luminal.core.structured import collect, cond, scan
from luminal.core.symbolic import Int
from luminal.frontends.onnx import held, sequences
from luminal.frontends.onnx.registry import Call, counted, deciders, exactly, undecided, wrap_axis
from luminal.frontends.onnx.sequences import Growing, Held, Read, Stacked, Tensors, is_sequence

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
    """Where the condition is known, only the branch taken is imported: exporters write such conditions on sizes. Else
    both branches return the same number of tensors, with the same types; if ranks differ, what follows is imported for
    each of them."""
    branches = call.graph("then_branch"), call.graph("else_branch")
    condition = call[0]
    if not condition.dtype.is_bool:
        raise DTypeError(f"expected a condition that is one bool, found {condition.dtype}")
    taken = known(condition) if call.taken is None else int(call.taken)
    if isinstance(taken, int):
        return run(branches[0] if taken else branches[1], [])
    try:
        try:
            return _joined(call, branches, run)
        except _Unlike:
            return _joined(call, branches, run, stacking=True)
    except RankError as error:
        error.deciding = deciders(condition)
        if call.random.count:  # what follows would draw other numbers when it is imported again
            raise
        raise Fork(condition, f"{next(name for name in call.outputs if name)}_size", error) from error
    except LuminalError as error:  # the branch that is taken may be one that can be compiled
        error.deciding = error.deciding or deciders(condition)
        raise


@dataclass
class Fork(Exception):
    """What follows an ``If`` has to be imported for each of its branches, whose results differ in rank; ``error`` says
    so. ``name`` is that of sizes that they decide, ``number`` that of the ``If`` within its graph."""

    condition: Node
    name: str
    error: LuminalError
    number: int = 0


class _Unfit(Exception):
    """What follows does not fit one of the branches: the first, or else the second, as the argument says."""


def forked(fork: Fork, follow: Callable[[bool], list[Held]], before: Collection[Node]) -> list[Held]:
    """The results of ``follow``, what follows for each value of a condition; ``before`` are nodes that are there
    without. Where one branch cannot be followed, a run that takes it fails."""
    found: list[list[Held]] = []

    def results(taken: bool) -> list[Node]:
        try:
            found.append(follow(taken))
        except (ShapeError, DTypeError) as error:
            raise _Unfit(taken) from error
        if [*map(held.kind, found[0])] != [*map(held.kind, found[-1])]:
            raise fork.error
        return held.tensors(found[-1])

    condition = _scalar(fork.condition)
    try:
        joined = cond(condition, lambda: results(True), lambda: results(False), fork.name, before)
    except _Unfit as unfit:
        (first,) = unfit.args
        values = follow(not first)
        place = cast(condition if first else logical_not(condition), types.i64)  # outside where it is taken
        joined = [gather(unsqueeze(x, [0]), place, 0, Failure.BRANCH) for x in held.tensors(values)]
        return held.arranged(values, joined)
    except RankError as error:
        raise fork.error from error
    # What is the same in both needs no branch.
    both = zip(joined, *map(held.tensors, found), strict=True)
    return held.arranged(found[0], [a if a is b else result for result, a, b in both])


class _Unlike(Exception):
    """The branches return sequences of different lengths, or of lengths that data decides."""


def _joined(call: Call, branches: Sequence[onnx.GraphProto], run: Run, *, stacking: bool = False) -> Sequence[Held]:
    found: list[list[Held]] = []

    def results(branch: onnx.GraphProto) -> list[Node]:
        values = run(branch, [])
        found.append([sequences.stacked(value) if stacking and is_sequence(value) else value for value in values])
        if [*map(held.kind, found[0])] != [*map(held.kind, found[-1])]:
            could = [*map(is_sequence, found[0])] == [*map(is_sequence, found[-1])]
            raise _Unlike if could and not stacking else undecided(call[0], 0)
        return held.tensors(found[-1])

    joined = cond(
        _scalar(call[0]),
        lambda: results(branches[0]),
        lambda: results(branches[1]),
        f"{next(name for name in call.outputs if name)}_size",
    )
    return held.arranged(found[0], joined)


# ---- Loop ----------------------------------------------------------------------------------------------------------


class _Asks(Exception):
    """The body of a loop decides whether there is another iteration."""


def loop(call: Call, values: Sequence[Held], run: Run) -> Sequence[Held]:
    """A scan over the iteration numbers where their count is known, else a while loop.

    As in runtimes, the body's condition is evaluated even where the initial condition is left out.
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
    longer: Sequence[int] = ()
    try:
        while True:
            try:
                return _as_loop(_Body(call, body, first, run, longer), limit, start)
            except _Grow as grow:
                longer = grow.sequences  # more than before, so this comes to an end
    except (LuminalError, Unfinished) as error:
        if isinstance(error, Unfinished) and limit is None and trips is not None and any(map(is_sequence, first)):
            raise undecided(trips, 0) from error  # for a known number, each iteration is spelled out
        if not isinstance(limit, int) or not 0 < limit <= SPELLED_OUT or start is None:
            raise
    return _spelled_out(body, limit, first, run)


def _as_loop(body: _Body, limit: Int | None, start: Int | None) -> list[Held]:
    try:
        if limit is not None and start is not None and not _endless(limit):
            try:
                return _counted(body, sym.maximum(limit, 0))
            except _Asks:
                pass
        return _asking(body, limit)
    except Read as read:
        if read.key not in body.growing.values():  # it is a sequence of a loop around this one
            raise
        raise UnsupportedError(
            "a round reads the sequence that the loop makes longer, or adds to it under a condition or not at its end: "
            "expected a sequence to which each round adds as many tensors of one shape; give the number of rounds when "
            f"compiling, {SPELLED_OUT} at most, or carry a tensor instead"
        ) from read


def _endless(limit: Int) -> bool:
    """Whether ``limit`` is the largest integer, or so large as to mean no limit: exporters of while loops say so."""
    return isinstance(limit, int) and limit > limits.BYTES // types.i64.itemsize


def _each(call: Call, number: Node, run: Run) -> Run:
    """``run`` for the body of a loop, in the round of that ``number``."""

    def in_round(body: onnx.GraphProto, inputs: Sequence[Held]) -> list[Held]:
        with call.random.each(number):
            return run(body, inputs)

    return in_round


class _Grow(Exception):
    """The carried sequences with the numbers ``sequences`` become longer in a round."""

    def __init__(self, sequences: Sequence[int]) -> None:
        super().__init__("a sequence becomes longer")
        self.sequences = sequences


class _Body:
    """The body of a loop over ``first`` as a function of tensors.

    A round outputs the elements that it appends to the sequences ``longer``, after the outputs of the model's body; the
    body cannot read their other elements. ``gained`` are those sequences to which the last round appended.
    """

    def __init__(
        self, call: Call, graph: onnx.GraphProto, first: Sequence[Held], run: Run, longer: Sequence[int] = ()
    ) -> None:
        self.call, self.graph, self.first, self.run = call, graph, first, run
        around = [k for k, value in enumerate(first) if isinstance(value, Growing)]
        self.growing: dict[int, object] = {k: object() for k in (*longer, *around)}
        self.carried = [value for k, value in enumerate(first) if k not in self.growing]
        self.gained: list[int] = []

    def round(self, number: Node, carried: Sequence[Node]) -> tuple[Node, list[Node], list[Node]]:
        """The condition for another round, the next carried tensors, and the outputs of the round."""
        others = iter(held.arranged(self.carried, carried))
        given = [Growing(self.growing[k]) if k in self.growing else next(others) for k in range(len(self.first))]
        keep, *results = _each(self.call, number, self.run)(self.graph, [number, _TRUE, *given])
        following, put_out = results[: len(given)], held.tensors(results[len(given) :])
        self.gained = []
        for k, key in self.growing.items():
            after = following[k]
            if not isinstance(after, Growing) or after.key is not key:
                raise Read(key)
            if after.rows is not None:
                self.gained.append(k)
                put_out.append(after.rows)
        return held.tensor(keep), self._next(following), put_out

    def _next(self, following: Sequence[Held]) -> list[Node]:
        """The tensors carried to the next round, arranged like the initial ones."""
        longer: list[int] = []
        for k, (before, after) in enumerate(zip(self.first, following, strict=True)):
            if k in self.growing or _alike(before, after):
                continue
            if not is_sequence(before) or not is_sequence(after):
                kinds = f"{sequences.described(before)} becomes {sequences.described(after)}"
                raise ShapeError(f"a carried value {kinds} in an iteration")
            longer.append(k)
        if longer:
            raise _Grow([*longer, *self.growing])
        return held.tensors([value for k, value in enumerate(following) if k not in self.growing])

    def results(self, last: Sequence[Node], put_out: Sequence[Node | None]) -> list[Held]:
        """The results of the loop, from the final carried tensors and the outputs of its rounds."""
        others = iter(held.arranged(self.carried, last))
        own = len(put_out) - len(self.gained)
        gained = dict(zip(self.gained, put_out[own:], strict=True))
        carried: list[Held] = []
        for k, value in enumerate(self.first):
            rows = gained.get(k)
            if rows is not None:
                flat = reshape(rows, [rows.shape[0] * rows.shape[1], *rows.shape[2:]])
                carried.append(sequences.extended(value, flat))
            else:
                carried.append(value if k in self.growing else next(others))
        return [*carried, *put_out[:own]]


def _alike(before: Held, after: Held) -> bool:
    """Whether a round may replace the carried value ``before`` by ``after``."""
    if isinstance(before, Stacked) and isinstance(after, Stacked):
        return before.rows.shape[0] == after.rows.shape[0]
    return held.kind(before) == held.kind(after)


def _counted(body: _Body, trips: Int) -> list[Held]:
    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        keep, following, put_out = body.round(element[0], carried)
        if known(keep) != 1:
            raise _Asks
        return following, put_out

    return body.results(*scan(step, held.tensors(body.carried), [iota(trips)]))


def counts(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """All names that numbers of rounds of loops, and of the elements of ranges, among ``nodes`` may get."""
    those = [node for node in nodes if node.op_type in ("Loop", "Range")]
    return {counted(output) for node in those for output in (*node.output, "rounds")}


def _asking(body: _Body, limit: Int | None) -> list[Held]:
    call, count = body.call, len(body.first)
    trips, keep = call.get(0), call.get(1)
    put_out = len(body.graph.output) - 1 - count
    wanted = [k for k in range(put_out) if call.wants(count + k)]
    named = [*(count + k for k in wanted), *body.growing]
    name = counted(next((call.outputs[k] for k in named if call.wants(k)), "rounds"))

    def holds(number: Node, carried: Sequence[Node]) -> Node:
        return carried[0] if trips is None else carried[0] & (number < _scalar(trips))

    def step(number: Node, carried: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        again, following, rows = body.round(number, carried[1:])
        return [_scalar(again), *following], [*(rows[k] for k in wanted), *rows[put_out:]]

    start = [_TRUE if keep is None else _scalar(keep), *held.tensors(body.carried)]

    def room() -> Int:
        return _room(call, limit, name) if named else 0

    try:
        (_, *last), stacked = collect(holds, step, start, room, name)
    except (LuminalError, Unfinished):
        room()  # a number of rounds that is missing is said first: with it, the body may be another
        raise
    rows: dict[int, Node] = dict(zip(wanted, stacked, strict=False))
    return body.results(last, [*(rows.get(k) for k in range(put_out)), *stacked[len(wanted) :]])


def _room(call: Call, limit: Int | None, name: str) -> Int:
    """For how many iterations there is room in outputs along an axis that is called ``name``."""
    trips, declared = call.get(0), call.bounds(name)
    if declared is not None:
        return declared.high
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
        rows.append(held.tensors(results[len(first) :]))
        following = known(held.tensor(keep))
        if not isinstance(following, int):
            raise UnsupportedError(
                "the shapes of what the body gives change from one iteration to the next, and it decides itself "
                "whether there is another: sizes that are known at run time only are not supported"
            )
        if not following:
            break
    return [*carried, *(stack(column) for column in zip(*rows, strict=True))]


# ---- Scan ----------------------------------------------------------------------------------------------------------


def scan_(call: Call, values: Sequence[Held], run: Run) -> Sequence[Held]:
    """From opset 9 on, a scan may run along any axis of an operand, and join its outputs along any axis of a result."""
    body, count = call.graph("body"), call.integer("num_scan_inputs")
    operands = held.tensors(values)
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
    """In opset 8 the first axis is a batch, and the scan runs along the second as far as ``sequence_lens`` says; after
    that, states stay as they are and outputs are zeros."""
    body, count = call.graph("body"), call.integer("num_scan_inputs")
    lengths, *operands = values
    given = held.tensors(operands)
    states = len(given) - count
    _check_scan(body, states, count)
    backwards = _listed(call, "directions", count)
    if lengths is not None:
        given.append(cast(held.tensor(lengths), types.i64))

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
        results = held.tensors(_each(call, number, run)(body, [*carried, *parts]))
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
    if any(is_sequence(value) and sequences.items(value) is None for value in values):
        return _mapped(call, body, values, run)
    rows: list[list[Node]] = []
    for position in range(len(_items(values[0]))):
        given: list[Held] = []
        for k, value in enumerate(values):
            parts = (value,) * (position + 1) if isinstance(value, Node) else _items(value)
            if position >= len(parts):
                raise ModelError(f"sequence {k} has fewer tensors than the first")
            given.append(parts[position])
        rows.append([held.tensor(result) for result in run(body, given)])
    return [Tensors(tuple(row[k] for row in rows)) for k in range(len(body.output))]


def _items(value: Held) -> tuple[Node, ...]:
    return sequences.items(value) or ()


def _mapped(call: Call, body: onnx.GraphProto, values: Sequence[Held], run: Run) -> list[Held]:
    """The results where a run decides how many tensors there are: a scan over them."""

    def one(_: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        *parts, number = element
        left = iter(parts)
        given = [next(left) if is_sequence(value) else value for value in values]
        return (), [held.tensor(result) for result in _each(call, number, run)(body, given)]

    over = [sequences.stacked(value).rows for value in values if is_sequence(value)]
    return [Stacked(rows) for rows in scan(one, [], [*over, iota(over[0].shape[0])])[1]]


HANDLERS: dict[str, Handler] = {"If": if_, "Loop": loop, "Scan": scan_, "SequenceMap": sequence_map}


def handler(domain: str, name: str, opset: int) -> Handler | None:
    """What imports an operator that runs graphs."""
    if domain:
        return None
    return batched_scan if name == "Scan" and opset < 9 else HANDLERS.get(name)


_TRUE = constant(True, types.bool_)


def _scalar(node: Node) -> Node:
    """The one element of ``node``; raises ShapeError where there are more."""
    return reshape(node, [])
