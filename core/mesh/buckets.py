"""Small exchanges joined to larger ones: what depends on none of the others moves as one message.

Gradients of a step of training are many and small. Joined in the order in which they are computed, they are sent as
soon as a bucket is full, while others are still computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import ir, ops, traverse
from luminal.core.ir import Graph, Node
from luminal.core.movement import concatenate, reshape, slice_
from luminal.core.ops import Group
from luminal.core.symbolic import Int

FULL = 1 << 20  # bytes that a rank has in one exchange, from which on nothing is added
MOST = 32  # exchanges that are joined to one

_JOINED = ("gather", "transpose")  # kinds of which a rank has one part, or one for each rank along the first axis


def joined(graph: Graph) -> Graph:
    """``graph`` with exchanges of fixed sizes joined, where they have the same kind, group and type of elements."""
    buckets = [bucket for bucket in _buckets(graph) if len(bucket) > 1]
    if not buckets:
        return graph
    bucket_of = {node: bucket for bucket in buckets for node in bucket}
    origins = dict(graph.origins)
    made: dict[Node, Node] = {}
    # A bucket is made with its first exchange, so what the others are given has to be made before.
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(graph.roots)]
    while stack:
        node, is_ready = stack.pop()
        if node in made:
            continue
        members = bucket_of.get(node, [node])
        if not is_ready:
            stack.append((node, True))
            stack += [(operand, False) for member in members for operand in member.inputs if operand not in made]
            continue
        with ir.originating(origins, *(o for member in members for o in origins.get(member, ()))):
            if len(members) > 1:
                made |= zip(members, _moved(members, [made[member.inputs[0]] for member in members]), strict=True)
            else:
                made[node] = traverse.rebuild(node, [made[x] for x in node.inputs])
    names = {made.get(node, node): name for node, name in graph.names.items()}
    return graph.computing([made[root] for root in graph.roots], origins=origins, names=names)


def _buckets(graph: Graph) -> list[list[Node]]:
    """Exchanges that may be joined, in the order in which they are computed."""
    found: list[list[Node]] = []
    bytes_: list[int] = []
    needs: list[int] = []  # of each bucket, a bit for each that has to be there before
    filled: dict[tuple[str, Group, str], int] = {}  # the bucket to which an exchange of this kind may be added
    after: dict[Node, int] = {}  # of each node, a bit for each bucket that it depends on

    def reaches(bits: int, number: int) -> bool:
        """Whether one of the buckets ``bits`` has to wait for bucket ``number``."""
        seen = 0
        while bits & ~seen:
            lowest = bits & ~seen & -(bits & ~seen)
            seen |= lowest
            bits |= needs[lowest.bit_length() - 1]
        return bool(seen >> number & 1)

    for node in traverse.topological(graph.roots):
        bits = 0
        for operand in node.inputs:
            bits |= after[operand]
        if node.op is ops.EXCHANGE and node.attr.kind in _JOINED and isinstance(node.inputs[0].size, int):
            size = node.inputs[0].size * node.dtype.itemsize
            key = node.attr.kind, node.attr.group, node.dtype.name
            number = filled.get(key, -1)
            room = number >= 0 and bytes_[number] + size <= FULL and len(found[number]) < MOST
            if not room or reaches(bits, number):
                number = filled[key] = len(found)
                found.append([])
                bytes_.append(0)
                needs.append(0)
            found[number].append(node)
            bytes_[number] += size
            needs[number] |= bits
            bits |= 1 << number
        after[node] = bits
    return found


def _moved(members: Sequence[Node], given: Sequence[Node]) -> list[Node]:
    """What the exchanges ``members`` give of the operands ``given``, by one exchange."""
    attr = members[0].attr
    by_rank = attr.kind == "transpose"  # the first axis is that of the ranks
    ranks = [attr.group.size] if by_rank else []
    flat = [reshape(x, [*ranks, x.size // attr.group.size if by_rank else x.size]) for x in given]
    whole = ir.exchange(attr.kind, attr.group, concatenate(flat, -1))
    found: list[Node] = []
    start: Int = 0
    for member, part in zip(members, flat, strict=True):
        length = part.shape[-1]
        found.append(reshape(slice_(whole, 1, start, length), member.shape))
        start += length
    return found
