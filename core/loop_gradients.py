"""Gradients of loops and branches: a loop that runs backwards over what each round began with.

Each rule gets a node, the gradients of results by their numbers (those of all nodes that share the loop), which of the
node's operands need a gradient, and ``pull``: reverse accumulation (``core.gradient.pulled_back``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from luminal.core import ir, ops, rounds, structured, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node, constant, expand
from luminal.core.movement import flip
from luminal.core.ops import Op
from luminal.core.symbolic import Int
from luminal.core.types import i64

Pull: TypeAlias = Callable[[Sequence[Node], Sequence["Node | None"], Sequence[Node]], Sequence["Node | None"]]
Rule: TypeAlias = Callable[[Node, Mapping[int, Node], Sequence[bool], Pull], Sequence["Node | None"]]


class NoGradient(Exception):
    """Why a loop or branch has no gradient."""


def _zero(like: Node) -> Node:
    return expand(constant(0, like.dtype), like.shape)


def _or_zero(part: Node | None, like: Node) -> Node:
    return _zero(like) if part is None else part


def _closed(attr: ops.Structured) -> None:
    if attr.sizes:
        raise NoGradient("its body measures sizes that data decides")


def _scan(node: Node, by: Mapping[int, Node], wanted: Sequence[bool], pull: Pull) -> Sequence[Node | None]:
    """The carries that each step began with are stored, and a scan from the last step to the first carries their
    gradients and the sums of those of shared values."""
    step = node.attr
    _closed(step)
    count, elements = len(step.carries), len(step.slices)
    first, over, shared = node.inputs[:count], node.inputs[count : count + elements], node.inputs[count + elements :]
    floats = [k for k, x in enumerate(first) if x.dtype.is_float]
    over_wanted = [k for k in range(elements) if wanted[count + k]]
    shared_wanted = [k for k in range(len(shared)) if wanted[count + elements + k]]
    put_out = [k for k in range(count, len(step.results)) if k in by]

    def results(carries: Sequence[Node], slices: Sequence[Node]) -> list[Node]:
        values = (*carries, *slices, *shared)
        return traverse.substitute(step.results, dict(zip(step.parameters, values, strict=True)))

    def forwards(carries: Sequence[Node], slices: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        return results(carries, slices)[:count], list(carries)

    def backwards(carried: Sequence[Node], slices: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        after, total = carried[: len(floats)], carried[len(floats) :]
        began, read, out = slices[:count], slices[count : count + elements], slices[count + elements :]
        cotangents: list[Node | None] = [None] * len(step.results)
        for k, value in (*zip(floats, after, strict=True), *zip(put_out, out, strict=True)):
            cotangents[k] = value
        given = [
            *(began[k] for k in floats), *(read[k] for k in over_wanted), *(shared[k] for k in shared_wanted)
        ]  # fmt: skip
        found = [_or_zero(p, x) for p, x in zip(pull(results(began, read), cotangents, given), given, strict=True)]
        before, of_read, of_shared = (
            found[: len(floats)], found[len(floats) : len(floats) + len(over_wanted)],
            found[len(floats) + len(over_wanted) :],
        )  # fmt: skip
        return [*before, *(a + b for a, b in zip(total, of_shared, strict=True))], of_read

    stored = structured.scan(forwards, first, over)[1] if count else []
    reverse = [flip(x, [0]) for x in (*stored, *over, *(by[k] for k in put_out))]
    start = [*(_or_zero(by.get(k), first[k]) for k in floats), *(_zero(shared[k]) for k in shared_wanted)]
    last, of_over = structured.scan(backwards, start, reverse)
    parts: list[Node | None] = [None] * len(node.inputs)
    for k, part in zip(floats, last, strict=False):
        parts[k] = part
    for k, part in zip(over_wanted, of_over, strict=True):
        parts[count + k] = flip(part, [0])
    for k, part in zip(shared_wanted, last[len(floats) :], strict=True):
        parts[count + elements + k] = part
    return parts


def _cond(node: Node, by: Mapping[int, Node], wanted: Sequence[bool], pull: Pull) -> Sequence[Node | None]:
    """A branch on the same condition, whose bodies give the gradients through the branch that was taken."""
    branches = node.attr
    _closed(branches)
    condition, *given = node.inputs
    asked = [k for k in range(len(given)) if wanted[k + 1]]
    cotangents = [by.get(k) for k in range(len(branches.then))]

    def backwards(results: Sequence[Node]) -> Callable[[], Sequence[Node]]:
        def body() -> Sequence[Node]:
            values = traverse.substitute(results, dict(zip(branches.parameters, given, strict=True)))
            operands = [given[k] for k in asked]
            return [_or_zero(p, x) for p, x in zip(pull(values, cotangents, operands), operands, strict=True)]

        return body

    found = structured.cond(condition, backwards(branches.then), backwards(branches.other)) if asked else []
    parts: list[Node | None] = [None] * len(node.inputs)
    for k, part in zip(asked, found, strict=True):
        parts[k + 1] = part
    return parts


def _while(node: Node, by: Mapping[int, Node], wanted: Sequence[bool], pull: Pull) -> Sequence[Node | None]:
    """If the number of rounds is bounded, the loop is a scan over that many, of which those after the end do nothing;
    the gradient is that of the scan."""
    loop = node.attr
    _closed(loop)
    count = len(loop.carries)
    first, shared = node.inputs[:count], node.inputs[count:]
    bound = _bound(loop, first, shared)
    if bound is None:
        raise NoGradient("nothing bounds the number of its rounds; let its condition compare a counter with a number")

    def step(carries: Sequence[Node], _: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        values = dict(zip(loop.parameters, (*carries, *shared), strict=True))
        (holds,) = traverse.substitute([loop.condition], values)
        return structured.cond(holds, lambda: traverse.substitute(loop.results, values), lambda: list(carries)), []

    last, _ = structured.scan(step, first, [ir.iota(bound)])
    parts = pull(last, [by.get(k) for k in range(count)], node.inputs)
    # An operand that stands in two places has its whole gradient at the first.
    return [None if x in node.inputs[:k] else part for k, (x, part) in enumerate(zip(node.inputs, parts, strict=True))]


def _bound(loop: ops.Repeat, first: Sequence[Node], shared: Sequence[Node]) -> Int | None:
    """The least number of rounds that a part of the condition allows by itself."""
    number = ir.input_("luminal.round", (), i64)  # stands for it, and for nothing else
    values = dict(zip(loop.parameters[len(loop.carries) :], shared, strict=True))
    *following, holds = traverse.substitute([*loop.results, loop.condition], values)
    found: list[Int] = []
    for part in rounds.conjunction(holds):
        most = rounds.counted(part, number, loop.carries, first, following)
        if most is not None:
            found.append(most)
    if not found:
        return None
    least = found[0]
    for other in found[1:]:
        least = sym.minimum(least, other)
    return least


RULES: Mapping[Op, Rule] = {ops.SCAN: _scan, ops.COND: _cond, ops.WHILE: _while}
