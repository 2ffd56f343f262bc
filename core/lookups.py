"""Functions of a look-up in a table that is known become a look-up in a table of the function's values.

``f(C[i], D[i], 2) = T[i]`` with ``T = f(C, D, 2)``, wherever no more look-ups are left than there were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from luminal.core import interp, ir, ops, traverse
from luminal.core.constants import uniform
from luminal.core.errors import InputError
from luminal.core.ir import Node
from luminal.core.ops import Kind

_LONGEST = 1 << 16  # elements of a table
Key: TypeAlias = "tuple[Node, int]"  # the positions that are looked up, and the length of the tables


def folded(roots: Sequence[Node]) -> dict[Node, Node]:
    """What takes the place of nodes; empty where nothing is to be changed."""
    nodes = traverse.topological(roots)
    keys: dict[Node, Key | None] = {}
    members: dict[Key, list[Node]] = defaultdict(list)
    for node in nodes:
        keys[node] = key = _key(node, keys)
        if key is not None:
            members[key].append(node)
    read: dict[Key, set[Node]] = defaultdict(set)  # by what is no function of these look-ups
    for node in nodes:
        for operand in node.inputs:
            key = keys[operand]
            if key is not None and keys[node] != key:
                read[key].add(operand)
    for root in roots:
        if (key := keys[root]) is not None:
            read[key].add(root)
    found: dict[Node, Node] = {}
    for key, own in members.items():
        first = [node for node in own if _is_lookup(node) and node.inputs[1] is key[0]]
        if len(read[key]) <= len(first) and not read[key] <= {*first}:
            found.update(_tables(key, own, read[key]))
    return found


def _is_lookup(node: Node) -> bool:
    return (
        node.op is ops.GATHER
        and node.inputs[0].op is ops.CONSTANT
        and node.inputs[0].rank == 1
        and 0 < node.inputs[0].attr.array.size <= _LONGEST
    )


def _key(node: Node, keys: dict[Node, Key | None]) -> Key | None:
    """The look-ups that ``node`` is a function of, beside numbers; None where there are others, or none."""
    if _is_lookup(node):
        table, positions = node.inputs
        inner = keys[positions]
        return (positions, table.attr.array.size) if inner is None else inner
    if node.op.kind is not Kind.ELEMENTWISE or node.dtype.is_text:
        return None
    found = {keys[operand] for operand in node.inputs if uniform(operand) is None}
    return found.pop() if len(found) == 1 else None


def _tables(key: Key, members: Sequence[Node], wanted: set[Node]) -> dict[Node, Node]:
    """Look-ups in place of the ``wanted``; none where a value cannot be computed."""
    positions, length = key
    values: dict[Node, Node] = {}
    try:
        for node in members:
            if node.op is ops.GATHER:
                table, at = node.inputs
                values[node] = table if at is positions else _value(ir.gather(table, values[at], 0))
            else:
                operands = [values[x] if x in values else _number(x, length) for x in node.inputs]
                values[node] = _value(ir.made(node.op, tuple(operands), node.attr, (length,), node.dtype))
    except (IndexError, InputError):
        return {}
    return {node: ir.gather(values[node], positions, 0) for node in wanted}


def _number(node: Node, length: int) -> Node:
    value = uniform(node)
    assert value is not None
    return ir.expand(ir.constant(value), (length,))


def _value(node: Node) -> Node:
    return node if node.op is ops.CONSTANT else interp.folded(node)
