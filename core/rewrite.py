"""Simplification: the exact rules of ``core.rules`` applied to a fixpoint.

Nodes are visited operands first; each is rebuilt over its simplified operands, and a rule's result is simplified again
until no rule applies. Nodes that nothing reads afterwards are gone: a graph has only what its outputs reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain

from luminal.core import ir, lookups, traverse
from luminal.core.errors import SpecError
from luminal.core.ir import Graph, Node, Origins
from luminal.core.ops import Kind, Op
from luminal.core.origins import Origin
from luminal.core.rules import RULES
from luminal.core.rules.pattern import Rule

# Rules only ever shrink or decide; a chain of this many at one node can only be a cycle among them.
_CHAIN = 1000


@dataclass(frozen=True)
class Step:
    """One application of a rule: the node ``before``, over operands that are rewritten, and the one ``after``."""

    rule: Rule
    before: Node
    after: Node
    origins: tuple[Origin, ...]


@dataclass
class Replay:
    """The applications of rules, numbered from 1 in the order made. Only the first ``limit`` of them are made."""

    limit: int | None = None
    made: int = 0
    last: Step | None = None

    def admits(self, step: Step) -> bool:
        """Whether ``step`` is to be made; then it is counted."""
        if self.limit is not None and self.made >= self.limit:
            return False
        self.made, self.last = self.made + 1, step
        return True


_REPLAY: ContextVar[Replay | None] = ContextVar("_REPLAY", default=None)


@contextmanager
def replaying(limit: int | None = None) -> Iterator[Replay]:
    """Inside, rules are applied ``limit`` times in all, or as always; what is yielded has their number and the last."""
    replay = Replay(limit)
    token = _REPLAY.set(replay)
    try:
        yield replay
    finally:
        _REPLAY.reset(token)


def simplify(graph: Graph, rules: Sequence[Rule] = RULES) -> Graph:
    """``graph`` with every rule applied wherever it holds: the same values bit for bit, inputs and names kept, origins
    joined where nodes were replaced."""
    origins: Origins = {}
    roots = rewrite(graph.roots, rules, graph.origins, origins)
    found = lookups.folded(roots)
    if found:
        for node, table in found.items():
            origins[table] = ir.joined(origins.get(table, ()), origins.get(node, ()))
        before = dict(origins)
        roots = rewrite(traverse.substitute(roots, found), rules, before, origins)
    reached = set(traverse.everything(roots))
    gone = set(traverse.sizes_inside(graph.roots)).difference(traverse.sizes_inside(roots))
    return graph.computing(
        roots,
        dims=tuple(dim for dim in graph.dims if dim not in gone),
        origins={node: found for node, found in origins.items() if node in reached},
        names={node: name for node, name in graph.names.items() if node in reached},
    )


def rewrite(
    roots: Iterable[Node], rules: Sequence[Rule] = RULES, known: Origins | None = None, table: Origins | None = None
) -> list[Node]:
    """``roots`` rewritten. Origins of the nodes are read from ``known``; origins of the results are added to ``table``.

    Raises SpecError, naming the rule, where rules change a shape or type or never come to an end.
    """
    known, table = known or {}, {} if table is None else table
    by_op: dict[Op, list[Rule]] = {}
    done: dict[Node, Node] = {}
    following: dict[Node, Node] = {}  # the result of one step on each node, not yet simplified itself
    chain: dict[Node, int] = {}
    bodies: dict[tuple[tuple[Node, ...], ...], tuple[tuple[Node, ...], ...]] = {}  # simplified
    rule: Rule | None = None
    roots = list(roots)
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        pending = [operand for operand in reversed(node.inputs) if operand not in done]
        if pending:
            _check_progress(pending, following, rule)
            stack += pending
            continue
        if node in following:
            target = following[node]
            if target in done:
                done[node] = done[target]
            else:
                stack.append(target)
            continue
        origins = ir.joined(known.get(node, ()), table.get(node, ()))
        if node.op not in by_op:
            by_op[node.op] = [rule for rule in rules if not rule.ops or node.op in rule.ops]
        with ir.originating(table, *origins):
            target, rule = _step(node, [done[operand] for operand in node.inputs], by_op[node.op])
        replay = _REPLAY.get()
        if rule is not None and replay is not None and not replay.admits(Step(rule, node, target, origins)):
            target, rule = node, None
        if target is node and node.op.kind is Kind.STRUCTURED:
            if node.attr.bodies not in bodies:
                bodies[node.attr.bodies] = tuple(tuple(rewrite(b, rules, known, table)) for b in node.attr.bodies)
            target = ir.structured(node.op, node.inputs, node.attr.over(*bodies[node.attr.bodies]))
        _join(table, target, origins)
        if target is node:
            done[node] = node
            continue
        if target.shape != node.shape or target.dtype != node.dtype:
            raise SpecError(f"the rule {rule} made {target} of {node}: expected the same shape and type")
        chain[target] = chain.get(node, 0) + 1
        following[node] = target
        if target not in done:
            _check_progress([target] if chain[target] < _CHAIN else [node], following, rule)
    return [done[root] for root in roots]


def remade(
    roots: Iterable[Node],
    origins: Origins,
    make: Callable[[Node, Sequence[Node]], Node],
    inside: Callable[[tuple[Node, ...]], tuple[Node, ...]] | None = None,
    became: dict[Node, Node] | None = None,
) -> tuple[Node, ...]:
    """``roots`` with every node replaced by ``make(node, its replaced operands)``. Bodies of loops and branches are
    replaced by ``inside``, if given, else by ``make`` too. New nodes get the origins of the node that they replace, in
    ``origins``. Each node's replacement is added to ``became``."""
    found: dict[Node, Node] = {} if became is None else became
    inside = inside or (lambda body: remade(body, origins, make, became=became))
    bodies: dict[tuple[tuple[Node, ...], ...], list[tuple[Node, ...]]] = {}  # one loop has a node for each result
    for node in traverse.topological(roots):
        operands = [found[x] for x in node.inputs]
        with ir.originating(origins, *origins.get(node, ())):
            if node.op.kind is Kind.STRUCTURED:
                if node.attr.bodies not in bodies:
                    bodies[node.attr.bodies] = [*map(inside, node.attr.bodies)]
                found[node] = ir.structured(node.op, operands, node.attr.over(*bodies[node.attr.bodies]))
            else:
                found[node] = make(node, operands)
    return tuple(found[root] for root in roots)


def readers(roots: Iterable[Node]) -> dict[Node, set[Node | None]]:
    """The readers of each node that ``roots`` depend on; None stands for being a root, or a result of a body."""
    roots = tuple(roots)
    found: dict[Node, set[Node | None]] = {}
    nodes = traverse.everything(roots)
    bodies = (body for node in nodes if node.op.kind is Kind.STRUCTURED for body in node.attr.bodies)
    for root in chain(roots, *bodies):
        found.setdefault(root, set()).add(None)
    for node in nodes:
        for x in node.inputs:
            found.setdefault(x, set()).add(node)
    return found


def _check_progress(waiting: Iterable[Node], following: dict[Node, Node], rule: Rule | None) -> None:
    """Raises SpecError if a node to be visited has taken a step and is not done: then it depends on its own result."""
    for node in waiting:
        if node in following:
            raise SpecError(f"rules never come to an end at {node}; the last one applied was {rule}")


def _step(node: Node, operands: Sequence[Node], rules: Sequence[Rule]) -> tuple[Node, Rule | None]:
    """``node`` over its simplified operands, or by the first rule that applies; ``node`` itself where none does."""
    rebuilt = traverse.rebuild(node, operands)
    if rebuilt is not node:
        return rebuilt, None
    for rule in rules:
        result = rule.rewrite(node)
        if result is not None and result is not node:
            return result, rule
    return node, None


def _join(table: Origins, node: Node, origins: tuple[Origin, ...]) -> None:
    if node.op.kind is not Kind.SOURCE or node in table:
        present = table.get(node, ())
        joined = ir.joined(present, origins)
        if joined:
            table[node] = joined
