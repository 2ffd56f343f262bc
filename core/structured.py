"""Loops and branches over bodies of primitives: ``Scan``, ``While`` and ``Cond``, built and closed.

A body is written as a function of nodes, and may read any node around it. Nodes that it reads from outside become
further operands. So do nodes that depend on these alone, which are therefore computed once, before the loop. A built
body is thus closed, and equal bodies are equal nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from luminal.core import ir, ops, rounds, traverse
from luminal.core import symbolic as sym
from luminal.core.errors import DTypeError, RankError, ShapeError, UnsupportedError
from luminal.core.ir import Node
from luminal.core.movement import pad, reshape, slice_
from luminal.core.relations import unequal
from luminal.core.symbolic import Int, Var
from luminal.core.types import i64

MARK = "%"  # begins the names of parameters, once for each body that they are inside
_depth: ContextVar[int] = ContextVar("depth", default=0)


def scan(
    step: Callable[[Sequence[Node], Sequence[Node]], tuple[Sequence[Node], Sequence[Node]]],
    first: Sequence[Node],
    over: Sequence[Node],
) -> tuple[list[Node], list[Node]]:
    """Run ``step`` for each element along the first axis of ``over``, in order; ``first`` are the initial carries.

    ``step`` gets the carries and one element of each of ``over``, and returns the next carries and its outputs.
    Returns the last carries, and the outputs stacked along a new first axis. Raises ShapeError or DTypeError if a carry
    changes its shape or type, or the lengths differ.
    """
    if not all(x.rank for x in over):
        raise ShapeError("Scan: expected operands with an axis to run along, found one without axes")
    lengths = {x.shape[0] for x in over}
    if len(lengths) != 1:
        apart = [(over[0].shape[0], length) for length in lengths if length != over[0].shape[0]]
        raise ShapeError(f"Scan: expected operands of one length, found {sorted(map(str, lengths))}", apart)
    with _parameters() as parameter:
        carries = [parameter(f"carry {k}", x.shape, x) for k, x in enumerate(first)]
        slices = [parameter(f"slice {k}", x.shape[1:], x) for k, x in enumerate(over)]
        with ir.measuring_inside() as table:
            following, put_out = step(carries, slices)
        _check_carries("Scan", carries, following)
        _check_results("Scan", put_out, table)
        read = set(traverse.topological([*following, *put_out]))
        kept = [k for k, x in enumerate(slices) if x in read] or [0]  # what no step reads need not be stored
        over, slices = [over[k] for k in kept], [slices[k] for k in kept]
        operands, shared, (body,), measured = _closed([[*following, *put_out]], [table], [*carries, *slices], parameter)
    inputs = (*first, *over, *operands)
    results = [
        ir.structured(ops.SCAN, inputs, ops.Step(tuple(carries), tuple(slices), shared, body, number, measured))
        for number in range(len(body))
    ]
    last, stacked = results[: len(carries)], results[len(carries) :]
    (length,) = lengths
    if not sym.always(length - 1):  # over nothing, no carry would be written
        some = ir.binary(ops.LESS_THAN, ir.constant(0, i64), ir.dim(length))
        last = [ir.select(some, value, before) for value, before in zip(last, first, strict=True)]
    return last, stacked


def while_loop(
    condition: Callable[[Sequence[Node]], Node], step: Callable[[Sequence[Node]], Sequence[Node]], first: Sequence[Node]
) -> list[Node]:
    """The last carries of a loop that begins with ``first`` and runs ``step`` while ``condition`` (a bool scalar) holds
    for the carries. Raises ShapeError or DTypeError if a carry changes its shape or type."""
    return collect(lambda _, carries: condition(carries), lambda _, carries: (step(carries), []), first)[0]


def collect(
    condition: Callable[[Node, Sequence[Node]], Node],
    step: Callable[[Node, Sequence[Node]], tuple[Sequence[Node], Sequence[Node]]],
    first: Sequence[Node],
    room: Int | Callable[[], Int] = 0,
    name: str = "rounds",
) -> tuple[list[Node], list[Node]]:
    """A while loop with outputs. ``condition`` and ``step`` get the number of the round (int64, from 0), then the
    carries; ``step`` returns the next carries and its outputs.

    Returns the last carries, and the outputs stacked along a new first axis, whose length is the measured size
    ``name``. Memory is reserved for ``room`` rounds, or as many as it gives: a run that takes more fails. But where the
    number of rounds follows from the condition (see ``core.rounds``), the loop is a scan over them. Raises as
    ``while_loop`` does, and ShapeError if ``room`` has no upper bound.
    """
    zero = ir.constant(0, i64)
    with _parameters() as parameter:
        number = parameter("round", (), zero)
        carries = [parameter(f"carry {k}", x.shape, x) for k, x in enumerate(first)]
        with ir.measuring_inside() as asked:
            holds = condition(number, carries)
        with ir.measuring_inside() as table:
            following, put_out = step(number, carries)
        _check_results("While", put_out, table)
        _check_condition("While", holds)
        _check_carries("While", carries, following)
    if not asked and not table:
        trips = rounds.counted(holds, number, carries, first, following)
        if trips is not None:
            return _counted(trips, number, carries, first, following, put_out)
    kept = room() if callable(room) else room
    most = sym.upper(kept)
    if most is None:
        raise ShapeError(f"While: expected room for a known number of rounds, found {kept}")
    rows = [parameter(f"rows {k}", (kept, *x.shape), x) for k, x in enumerate(put_out)]
    filled = [ir.scatter(a, number, x, 0, None, ops.Failure.ROOM) for a, x in zip(rows, put_out, strict=True)]
    empty = [ir.expand(ir.constant(0, x.dtype), x.shape) for x in rows]
    before, after, start = [*carries, *rows], [*following, *filled], [*first, *empty]
    if number not in traverse.topological([holds, *after]):
        return _repeated(before, holds, after, start, parameter, (asked, table)), []
    before, after, start = [number, *before], [number + 1, *after], [zero, *start]
    count, *last = _repeated(before, holds, after, start, parameter, (asked, table))
    made = ir.measure(count, most, name) if rows else 0
    return last[: len(first)], [slice_(x, 0, 0, made) for x in last[len(first) :]]


def _counted(
    trips: Int, number: Node, carries: Sequence[Node], first: Sequence[Node], following: Sequence[Node],
    put_out: Sequence[Node],
) -> tuple[list[Node], list[Node]]:  # fmt: skip
    """The results of a loop of so many rounds, whose body is built. A carry that each round increases by the same
    number is computed from the number of the round, so that what depends on it alone depends on no other round."""
    steps = [
        rounds.progression(carry, start, after) if carry.dtype.is_integer and carry.size == 1 else None
        for carry, start, after in zip(carries, first, following, strict=True)
    ]

    def step(given: Sequence[Node], elements: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (at,) = elements
        by = {number: at}
        for carry, value, line in zip(carries, given, steps, strict=True):
            by[carry] = value
            if line is not None:
                start, by_round = line
                by[carry] = reshape(ir.cast(ir.dim(start) + at * by_round, carry.dtype), carry.shape)
        results = traverse.substitute([*following, *put_out], by)
        return results[: len(carries)], results[len(carries) :]

    return scan(step, first, [ir.iota(trips)])


def _repeated(
    carries: Sequence[Node], condition: Node, following: Sequence[Node], first: Sequence[Node], parameter: _Parameter,
    tables: Sequence[ir.Measured],
) -> list[Node]:  # fmt: skip
    """The results of a while loop whose bodies are built, over its ``carries``."""
    operands, shared, ((asked,), body), measured = _closed([[condition], following], tables, carries, parameter)
    inputs = (*first, *operands)
    return [
        ir.structured(ops.WHILE, inputs, ops.Repeat(tuple(carries), shared, asked, body, number, measured))
        for number in range(len(body))
    ]


def cond(
    condition: Node,
    then: Callable[[], Sequence[Node]],
    other: Callable[[], Sequence[Node]],
    name: str = "branch",
    before: Collection[Node] = (),
) -> list[Node]:
    """The results of ``then`` if ``condition`` (a bool scalar) holds, else those of ``other``; only one of them is
    computed, but for nodes that are there ``before`` and that they build again.

    If an axis differs in size between ``then`` and ``other``, memory is reserved for the larger, and the size is
    measured as ``name`` (numbered if there are several). Raises RankError if the branches' results differ in rank,
    ShapeError if such a size has no upper bound, DTypeError if they differ in type.
    """
    _check_condition("Cond", condition)
    with _parameters() as parameter:
        with ir.building() as built:
            with ir.measuring_inside() as inside_yes:
                yes = list(then())
            with ir.measuring_inside() as inside_no:
                no = list(other())
            built.difference_update(before)
            _check_branches(yes, no)
            rows = [tuple(zip(x.shape, y.shape, strict=True)) for x, y in zip(yes, no, strict=True)]
            unlike = list(dict.fromkeys((a, b) for row in rows for a, b in row if a != b))
            inside = {*inside_yes, *inside_no}
            rooms = {(a, b): _room(a, b, inside) for a, b in unlike}
            shapes = [[rooms.get(pair, pair[0]) for pair in row] for row in rows]
            told = [(a, b) for a, b in unlike if not inside.isdisjoint(sym.variables(a) | sym.variables(b))]
            bodies = [
                [*map(_in_room, results, shapes), *(ir.dim(pair[k]) for pair in told)]
                for k, results in enumerate((yes, no))
            ]
        tables = inside_yes, inside_no
        operands, parameters, (yes_body, no_body), measured = _closed(bodies, tables, [], parameter, built)
    joined = [
        ir.structured(ops.COND, (condition, *operands), ops.Branches(parameters, yes_body, no_body, number, measured))
        for number in range(len(yes_body))
    ]
    counts = dict(zip(told, joined[len(rows) :], strict=True))
    sizes: dict[tuple[Int, Int], Int] = {}
    for a, b in unlike:
        count = counts.get((a, b)) or ir.select(condition, ir.dim(a), ir.dim(b))
        least = min(sym.lower(a) or 0, sym.lower(b) or 0)
        sizes[a, b] = ir.measure(count, _most(rooms[a, b]), name, max(least, 0))
    return [
        _first(x, [sizes.get(pair, pair[0]) for pair in row]) for x, row in zip(joined[: len(rows)], rows, strict=True)
    ]


def _check_branches(yes: Sequence[Node], no: Sequence[Node]) -> None:
    if len(yes) != len(no):
        raise ShapeError(f"Cond: one branch has {len(yes)} results, the other {len(no)}")
    for number, (a, b) in enumerate(zip(yes, no, strict=True)):
        if a.rank != b.rank:
            raise RankError(
                f"Cond: expected result {number} to have as many axes in both branches, found shape {list(a.shape)} "
                f"where the condition holds, else {list(b.shape)}; reshape one of them, or fix when compiling what the "
                "condition depends on"
            )
        if a.dtype != b.dtype:
            raise DTypeError(f"Cond: result {number} is {a.dtype} or {b.dtype}")


def _room(a: Int, b: Int, inside: Collection[Var]) -> Int:
    """A size of at least ``a`` and ``b`` that is known before the branches run: sizes ``inside``, which the branches
    measure, are replaced by bounds. Raises ShapeError if there is no upper bound.
    """
    room = sym.maximum(*(size if sym.variables(size).isdisjoint(inside) else _most(size) for size in (a, b)))
    _most(room)
    return room


def _most(size: Int) -> int:
    most = sym.upper(size)
    if most is None:
        raise ShapeError(
            f"Cond: expected sizes with an upper bound where branches have results of other sizes, found {size}; "
            "declare bounds of what it depends on (dims), or give both branches one shape"
        )
    return most


def _in_room(x: Node, shape: Sequence[Int]) -> Node:
    """``x`` padded with zeros at the end of each axis, to ``shape``."""
    return pad(x, [0] * x.rank, [room - size for room, size in zip(shape, x.shape, strict=True)])


def _first(x: Node, shape: Sequence[Int]) -> Node:
    """The first elements of ``x`` along each axis, as many as ``shape`` says."""
    return ir.view(x, shape, ir.axes(tuple(shape)))


# ---- closing -------------------------------------------------------------------------------------------------------


_Parameter = Callable[[str, ir.Shape, Node], Node]


@contextmanager
def _parameters() -> Iterator[_Parameter]:
    """A maker of parameters, by their names, shapes and a node of their type. Those of a body inside a body are other
    nodes than those of the body around it."""
    depth = _depth.get()
    prefix = MARK * (depth + 1)
    token = _depth.set(depth + 1)
    try:
        yield lambda name, shape, like: ir.input_(f"{prefix}{name}", shape, like.dtype)
    finally:
        _depth.reset(token)


def _closed(
    bodies: Sequence[Sequence[Node]], tables: Sequence[ir.Measured], own: Sequence[Node], parameter: _Parameter,
    built: Collection[Node] = (),
) -> tuple[list[Node], tuple[Node, ...], list[tuple[Node, ...]], tuple[ops.Measured, ...]]:  # fmt: skip
    """What ``bodies`` read from outside, the parameters for it, the bodies over them and over their ``own``, and what
    they measure, of what is in their ``tables``."""
    used = [traverse.used_sizes(body, table) for body, table in zip(bodies, tables, strict=True)]
    roots = [root for body, sizes in zip(bodies, used, strict=True) for root in (*body, *sizes.values())]
    operands = outside(roots, own, built, {size for sizes in used for size in sizes})
    shared = [parameter(f"shared {k}", x.shape, x) for k, x in enumerate(operands)]
    closed = iter(traverse.substitute(roots, dict(zip(operands, shared, strict=True))))
    results: list[tuple[Node, ...]] = []
    measured: list[ops.Measured] = []
    for body, sizes in zip(bodies, used, strict=True):
        results.append(tuple(next(closed) for _ in body))
        measured.append(tuple((size, next(closed)) for size in sizes))
    return operands, tuple(shared), results, tuple(measured) if any(measured) else ()


def outside(
    roots: Sequence[Node], own: Sequence[Node], built: Collection[Node] = (), sizes: Collection[Var] = ()
) -> list[Node]:
    """The outermost nodes under ``roots`` that depend on inputs, but not on ``own``, on ``sizes`` measured inside or on
    nodes that a branch has ``built`` of inputs: a constant that it has built may be there already, read by what is
    outside. In place of a view, the node that it reads is taken: views cost nothing in a body."""
    order = traverse.topological(roots)
    varying: set[Node] = set()  # what depends on inputs
    for node in order:
        if node.op is ops.INPUT or not varying.isdisjoint(node.inputs):
            varying.add(node)
    inside, given = {*own, *varying.intersection(built)}, set[Node]()
    if sizes:
        inside.update(node for node in order if not traverse.symbols(node).isdisjoint(sizes))
    for node in order:
        if node not in inside and not inside.isdisjoint(node.inputs):
            inside.add(node)
        elif node not in inside and (node.op is ops.INPUT or not given.isdisjoint(node.inputs)):
            given.add(node)
    read = [operand for node in order if node in inside for operand in node.inputs]
    found: dict[Node, None] = {}
    for node in (*read, *roots):
        if node in given:
            while node.op is ops.VIEW:
                (node,) = node.inputs
            found[node] = None
    return list(found)


def _check_results(what: str, results: Sequence[Node], measured: ir.Measured) -> None:
    for node in results:
        if any(not sym.variables(size).isdisjoint(measured) for size in node.shape):
            raise UnsupportedError(
                f"{what}: a result has the shape [{', '.join(map(str, node.shape))}], which data decides in a body: "
                "outside of it no size is known that differs from one round to the next"
            )


def _check_carries(what: str, carries: Sequence[Node], following: Sequence[Node]) -> None:
    for before, after in zip(carries, following, strict=True):
        if before.shape != after.shape:
            raise ShapeError(
                f"{what}: a carry of shape {list(before.shape)} becomes {list(after.shape)}",
                unequal(before.shape, after.shape),
            )
        if before.dtype != after.dtype:
            raise DTypeError(f"{what}: a carry of {before.dtype} becomes {after.dtype}")


def _check_condition(what: str, condition: Node) -> None:
    if condition.shape or not condition.dtype.is_bool:
        raise ShapeError(f"{what}: expected a condition that is one bool, found {condition}")
