"""Functions that carry their derivative: while gradients are to be taken, a node remembers what it is a function of.

An accurate form of a function is no form to differentiate: an approximation's polynomial has the derivative of its
error, too, and the bits of a number have none. So a decomposition states its derivative beside it. Inside a
``recorded`` block each call of such a decomposition gives a node ``Function``, whose operands are the value and the
operands of the call. Reverse accumulation (``core.gradient``) goes from it to the operands of the call by the rule that
it carries, and never looks at how the value is computed. Rules are written with decompositions, so derivatives have
derivatives. When gradients are taken, ``stripped`` puts the values in the place of these nodes; no pass sees one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeAlias

from luminal.core import ir, ops, traverse
from luminal.core.ir import Graph, Node
from luminal.core.ops import Kind, Op

P = ParamSpec("P")
# Of the gradient of the result, the result, and the arguments of the call: the gradient of the operand, or of each.
Rule: TypeAlias = Callable[..., "Node | Sequence[Node | None] | None"]

FUNCTION = Op("Function", Kind.FUNCTION, None, None, "its first operand, whatever the others are")

_recording: ContextVar[bool] = ContextVar("recording", default=False)


@dataclass(frozen=True)
class Call:
    """How a function was called: a place for each operand in ``arguments``, which hold everything else."""

    rule: Rule
    arguments: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Place:
    """The place of operand number ``number`` among the arguments."""

    number: int


@contextmanager
def recorded(on: bool = True) -> Iterator[None]:
    """Functions that are called inside the block remember their derivatives, or with ``on`` False do not."""
    token = _recording.set(on)
    try:
        yield
    finally:
        _recording.reset(token)


def recording() -> bool:
    """Whether functions remember their derivatives."""
    return _recording.get()


def derivative(rule: Rule) -> Callable[[Callable[P, Node]], Callable[P, Node]]:
    """A decorator: the ``rule`` for gradients of a function of nodes and plain values.

    The rule gets the gradient of the result, the result, and the arguments of the call. It returns the gradient of the
    one operand, or a sequence of one for each operand in the order of the arguments, None where there is none. A
    gradient may have the shape of the result where an operand was broadcast to it. For a function that is computed in
    a wider type, the rule is given operands of that type.
    """

    def decorator(function: Callable[P, Node]) -> Callable[P, Node]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Node:
            if not _recording.get():
                return function(*args, **kwargs)
            with recorded(False):
                value = function(*args, **kwargs)
            return remembered(value, rule, *args, **kwargs)

        return wrapper

    return decorator


def remembered(value: Node, rule: Rule, *arguments: Any, **named: Any) -> Node:
    """``value``, which is what a function gives for the arguments, with its derivative: see ``derivative``."""
    if not _recording.get() or not value.dtype.is_float:
        return value
    operands: list[Node] = []
    placed = tuple(_placed(a, operands) for a in arguments)
    placed_named = tuple((name, _placed(a, operands)) for name, a in named.items())
    if all(operand.op is ops.CONSTANT for operand in operands):
        return value
    attr = Call(rule, placed, placed_named)
    return ir.made(FUNCTION, (value, *operands), attr, value.shape, value.dtype)


def alike(value: Node, other: Callable[[], Node]) -> Node:
    """``value`` with the gradient of ``other()``, which is the same number in a form that says what it depends on."""
    if not _recording.get() or not value.dtype.is_float:
        return value
    return remembered(value, lambda g, y, x: g, other())


def detached(x: Node) -> Node:
    """``x``, through which no gradient passes."""
    return remembered(x, lambda g, y, x: None, x)


def of_nodes(*gradients: tuple[Any, Node | None]) -> list[Node | None]:
    """Of pairs of an argument and its gradient, the gradients of those that are nodes."""
    return [part for argument, part in gradients if isinstance(argument, Node)]


def _placed(argument: Any, operands: list[Node]) -> Any:
    if isinstance(argument, Node):
        operands.append(argument)
        return _Place(len(operands) - 1)
    if isinstance(argument, list | tuple | range):
        return tuple(_placed(a, operands) for a in argument)
    return argument


def parts(node: Node, g: Node) -> Sequence[Node | None]:
    """The gradients that the rule of a ``Function`` gives for the operands of its call, from the gradient ``g`` of its
    result; in their types and shapes."""
    operands = node.inputs[1:]
    wide = [_wide(x) for x in operands]

    def filled(argument: Any) -> Any:
        if isinstance(argument, _Place):
            return wide[argument.number]
        return tuple(map(filled, argument)) if isinstance(argument, tuple) else argument

    call = node.attr
    arguments = [filled(a) for a in call.arguments]
    found = call.rule(_wide(g), _wide(node), *arguments, **{name: filled(a) for name, a in call.named})
    listed = [found] if found is None or isinstance(found, Node) else list(found)
    assert len(listed) == len(operands), (len(listed), operands)
    return [None if p is None else ir.cast(summed(p, x.shape), x.dtype) for p, x in zip(listed, operands, strict=True)]


def _wide(x: Node) -> Node:
    return ir.cast(x, x.dtype.compute) if x.dtype.is_float else x


def summed(x: Node, shape: ir.Shape) -> Node:
    """The gradient ``x`` of what an operand of ``shape`` was broadcast to, as the gradient of that operand."""
    if x.shape == shape:
        return x
    lead = x.rank - len(shape)
    if lead < 0:  # a gradient that is alike for all elements
        return ir.expand(x, shape)
    over = [*range(lead), *(lead + k for k, size in enumerate(shape) if size == 1 != x.shape[lead + k])]
    total = ir.reduce(ops.SUM_REDUCE, x, over)
    kept = iter(ir.axes(tuple(shape)))
    index = [next(kept) if k >= lead else None for k in range(x.rank)]
    total = ir.view(total, shape, [axis for k, axis in enumerate(index) if k not in over and axis is not None])
    return total


# ---- away with them ------------------------------------------------------------------------------------------------


def stripped(roots: Sequence[Node], done: dict[Node, Node] | None = None) -> list[Node]:
    """``roots`` with the values of functions in their place, in the bodies of loops and branches, too. In ``done`` is
    afterwards what each node has become."""
    return _stripped(roots, {} if done is None else done)


def _stripped(roots: Sequence[Node], done: dict[Node, Node]) -> list[Node]:
    for node in traverse.topological(roots):
        if node in done:
            continue
        if node.op is FUNCTION:
            done[node] = done[node.inputs[0]]
            continue
        made = traverse.rebuild(node, [done[operand] for operand in node.inputs])
        if made.op.kind is Kind.STRUCTURED:
            bodies = [tuple(_stripped(body, done)) for body in made.attr.bodies]
            if bodies != [tuple(body) for body in made.attr.bodies]:
                made = ir.made(made.op, made.inputs, made.attr.over(*bodies), made.shape, made.dtype)
        done[node] = made
    return [done[root] for root in roots]


def plain(graph: Graph) -> Graph:
    """``graph`` without nodes that remember functions, its tables of origins and names included."""
    done: dict[Node, Node] = {}
    roots = _stripped(graph.roots, done)
    origins: ir.Origins = {}
    for node, found in graph.origins.items():
        kept = done.get(node, node)
        origins[kept] = ir.joined(origins.get(kept, ()), found)
    names: Mapping[Node, str] = {done.get(node, node): name for node, name in graph.names.items()}
    return replace(graph.computing(roots), origins=origins, names=names)
