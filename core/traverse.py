"""Walks over graphs: what nodes depend on, who reads them, and the same graph over other operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Measured, Node
from luminal.core.ops import Kind
from luminal.core.symbolic import Int


def symbols(node: Node) -> set[sym.Var]:
    """The variables in the shape and the attribute of ``node``, and in its bodies."""
    inside = everything(_body_roots(node)) if node.op.kind is Kind.STRUCTURED else ()
    return {v for part in (node, *inside) for size in _sizes(part) for v in sym.variables(size)}


def _sizes(node: Node) -> tuple[Int, ...]:
    if node.op is ops.VIEW:
        return (*node.shape, *node.attr.index, *node.attr.valid)
    return (node.attr.value,) if node.op is ops.DIM else node.shape


def _body_roots(node: Node) -> list[Node]:
    return [root for body in node.attr.bodies for root in body]


def topological(
    roots: Iterable[Node], measured: Mapping[sym.Var, Node] | None = None, stops: Collection[Node] = ()
) -> list[Node]:
    """Every node that ``roots`` depend on, operands first, in a deterministic order. The nodes that give the
    ``measured`` sizes in a node come before it, too. Of ``stops``, what they depend on is left out."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if node in stops:
                continue
            sizes = [measured[v] for v in measured if v in symbols(node)] if measured else []
            stack.extend((operand, False) for operand in reversed((*sizes, *node.inputs)))
    return order


def sources(roots: Iterable[Node], through: Callable[[Node], bool]) -> list[Node]:
    """The first nodes on all paths back from ``roots`` for which ``through`` is false; each once, in a deterministic
    order."""
    found: dict[Node, bool] = {}
    stack = list(reversed(list(roots)))
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = through(node)
            stack += reversed(node.inputs) if found[node] else ()
    return [node for node, passed in found.items() if not passed]


def everything(roots: Iterable[Node]) -> list[Node]:
    """Every node that ``roots`` depend on, and every node of the bodies inside them."""
    found: dict[Node, None] = {}
    waiting = topological(roots)
    while waiting:
        new = [node for node in waiting if node not in found]
        found |= dict.fromkeys(new)
        waiting = topological(root for node in new if node.op.kind is Kind.STRUCTURED for root in _body_roots(node))
    return list(found)


def users(roots: Iterable[Node]) -> dict[Node, list[Node]]:
    """For each node that ``roots`` depend on, the nodes that read it directly."""
    found: dict[Node, list[Node]] = {}
    for node in topological(roots):
        found.setdefault(node, [])
        for operand in dict.fromkeys(node.inputs):
            found[operand].append(node)
    return found


def rebuild(node: Node, inputs: Sequence[Node]) -> Node:
    """``node`` over other operands of the same types and shapes."""
    if tuple(inputs) == node.inputs:
        return node
    if node.op is ops.VIEW:
        return ir.view(inputs[0], node.shape, node.attr.index, node.attr.valid, node.attr.fill)
    return ir.made(node.op, tuple(inputs), node.attr, node.shape, node.dtype)


def substitute(roots: Iterable[Node], by: Mapping[Node, Node]) -> list[Node]:
    """``roots`` with the nodes in ``by`` replaced by their values there, of the same types and shapes."""
    done = dict(by)
    roots = list(roots)
    stack = roots[::-1]
    while stack:
        node = stack[-1]
        pending = [operand for operand in reversed(node.inputs) if operand not in done] if node not in done else []
        stack += pending
        if not pending:
            stack.pop()
            if node not in done:
                done[node] = rebuild(node, [done[operand] for operand in node.inputs])
    return [done[root] for root in roots]


def sizes_inside(roots: Iterable[Node]) -> tuple[sym.Var, ...]:
    """The sizes measured in the bodies of all loops and branches that ``roots`` depend on."""
    steps = (node for node in everything(roots) if node.op.kind is Kind.STRUCTURED)
    return tuple(dict.fromkeys(size for node in steps for size in node.attr.sizes))


def used_sizes(results: Sequence[Node], table: Measured) -> Measured:
    """The sizes in ``table`` that occur in nodes that ``results`` depend on, the nodes of ``table`` included."""
    used: Measured = {}
    waiting = list(results)
    while waiting:
        for node in topological([waiting.pop()]):
            for size in symbols(node) & table.keys() - used.keys():
                used[size] = table[size]
                waiting.append(table[size])
    return {size: count for size, count in table.items() if size in used}
