"""Loops and branches made ready for kernels.

A scan whose body is elementwise is one kernel. Any other loop or branch becomes steps of the program: its bodies have
kernels of their own, and its operands and results lie in memory, row-major.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from luminal.core import ir, ops, traverse
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.structured import MARK, outside


def is_steps(node: Node) -> bool:
    """Whether ``node`` is a loop or branch that becomes steps of the program, with kernels of its own for each body."""
    return node.op.kind is Kind.STRUCTURED and not (node.op is ops.SCAN and _is_elementwise(node))


def _is_elementwise(node: Node) -> bool:
    """Whether each element of a scan's next carries depends on no other elements of the carries than that one."""
    step: ops.Step = node.attr
    if step.measured:
        return False
    extents = node.inputs[len(step.carries)].shape[1:]
    carried = set(step.carries)
    for inner in traverse.topological(step.results):
        if inner.op.kind not in (Kind.ELEMENTWISE, Kind.SOURCE, Kind.VIEW):
            return False
        if not carried.isdisjoint(inner.inputs):
            if inner.op is ops.VIEW:
                return False
            carried.add(inner)
    return all(result.shape == extents for result in step.results)


def kept(roots: Iterable[Node]) -> frozenset[Node]:
    """The nodes that must have a row-major buffer of their own: ``roots``, and the operands and results of steps
    (``is_steps``), of host functions and of exchanges."""
    roots = list(roots)
    found = set(roots)
    for node in traverse.topological(roots):
        if is_steps(node) or node.op in ops.CALLED:
            found |= {node, *node.inputs}
    return frozenset(found)


def owned(roots: Sequence[Node], unchanged: Sequence[Node | None] = ()) -> list[Node]:
    """``roots``, each as a value with its own storage: a root that shares another's storage is copied. A root that is
    the carry at the same position of ``unchanged`` stays as it is."""
    results: list[Node] = []
    for number, node in enumerate(roots):
        if number < len(unchanged) and node is unchanged[number]:
            results.append(node)
            continue
        shared = node.op is ops.VIEW or node in results or _is_carried(node)
        # What other ranks write stays in the arena, whatever becomes of the caller's memory after a failure.
        if node.op.kind is Kind.SOURCE or node.op is ops.EXCHANGE or shared:
            node = copy(node, results)
        results.append(node)
    return results


def copies(roots: Iterable[Node]) -> set[Node]:
    """The copies that ``owned`` may make of ``roots``."""
    found: set[Node] = set()
    for node in roots:
        found.add(copy(node, found))
    return found


def copy(node: Node, taken: Iterable[Node]) -> Node:
    """A copy of ``node`` that is not in ``taken``. Nodes are interned: a second copy is a copy of the first."""
    taken = set(taken)
    node = ir.unary(ops.CONTIGUOUS, node)
    while node in taken:
        node = ir.unary(ops.CONTIGUOUS, node)
    return node


def _is_carried(node: Node) -> bool:
    """Whether ``node`` is a carry that a loop returns: it lies in one of the loop's two buffers."""
    return is_steps(node) and isinstance(node.attr, ops.Step | ops.Repeat) and node.attr.result < len(node.attr.carries)


def in_memory(node: Node, taken: set[Node], carried: set[Node]) -> Node:
    """``node`` with every operand in memory; its carries are copies that nothing else uses. ``taken`` has all nodes
    that exist, ``carried`` those that a loop overwrites; new nodes are added to both."""
    inputs = list(node.inputs)
    carries = 0 if node.op in (ops.COND, *ops.CALLED) else len(node.attr.carries)
    for number, operand in enumerate(inputs):
        formula = operand.op in (ops.VIEW, ops.IOTA, ops.DIM) or (operand.op is ops.CONSTANT and operand.size == 1)
        if number < carries:
            inputs[number] = copy(operand, taken)
            carried.add(inputs[number])
        elif formula:
            inputs[number] = copy(operand, carried)
        taken.add(inputs[number])
    return ir.made(node.op, tuple(inputs), node.attr, node.shape, node.dtype)


def hoisted(node: Node, contractions: Mapping[Node, Contraction]) -> tuple[Node, dict[Node, Contraction]]:
    """The loop ``node`` with loop-invariant values computed before it and handed in as operands; and the contractions
    of the nodes that were rebuilt. A branch is returned unchanged."""
    attr = node.attr
    if node.op is ops.COND:  # a value that one branch needs is computed only if that branch runs
        return node, {}
    own = (*attr.carries, *attr.slices) if node.op is ops.SCAN else attr.carries
    first = len(node.inputs) - len(attr.shared)
    operands = dict(zip(attr.shared, node.inputs[first:], strict=True))
    roots = [root for body in attr.bodies for root in body]
    found = outside(roots, own, sizes=attr.sizes)
    name = own[0].attr.name
    prefix = name[: len(name) - len(name.lstrip(MARK))]
    shared = tuple(ir.input_(f"{prefix}shared {k}", x.shape, x.dtype) for k, x in enumerate(found))
    by = dict(zip(found, shared, strict=True))
    known = [n for n in traverse.topological(roots) if n in contractions]
    read = [x.source for n in known for x in (contractions[n].a, contractions[n].b)]
    closed = traverse.substitute([*roots, *known, *read], by)
    outer = traverse.substitute([*found, *known, *read], operands)
    results = iter(closed[: len(roots)])
    bodies = [tuple(next(results) for _ in body) for body in attr.bodies]
    moved: dict[Node, Contraction] = {}
    for new in (closed[len(roots) :], outer[len(found) :]):
        now = dict(zip(read, new[len(known) :], strict=True))
        moved |= {to: contractions[n].moved(now.__getitem__) for n, to in zip(known, new, strict=False)}
    inputs = (*node.inputs[:first], *outer[: len(found)])
    return ir.structured(node.op, inputs, replace(attr.over(*bodies), shared=shared)), moved
