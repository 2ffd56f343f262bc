"""Which values are computed again where a later kernel reads them, instead of stored.

A backward pass reads values of the forward pass: of an activation its argument, a square of that, a hyperbolic tangent
and one minus the square of this. Elementwise functions that cost little need not be stored for it, where others give
them: the least bytes are a minimal cut, between what must be computed (products, reductions, costly functions) and what
later kernels read. Values that are stored anyway, as operands of products are, only have to be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import COSTLY, Kind
from luminal.core.sizes import typical

WRITTEN, READ = 2, 1  # times that the bytes of a value move, if it is stored for what reads it, or is anyway

Users = Mapping[Node, Sequence[Node]]
Edges = dict[int, dict[int, float]]  # what may flow from a place to others; places are numbers


def computed_again(
    order: Sequence[Node],
    users: Users,
    products: Collection[Node],
    kept: Collection[Node],
    changing: Collection[Node],
    most: int,
    sources: int,
) -> set[Node]:
    """Nodes to compute wherever they are read, at most ``most`` operations one after the other, and of so few others
    that what reads them reads at most ``sources`` values. ``order`` has operands first; ``users`` are those of each
    node through views, ``products`` sums that tiles compute, ``kept`` is what has a place of its own, and ``changing``
    what another value takes the place of."""
    level = _levels(order, products)
    factors = {n for n in order if n.op is ops.MUL and users[n] and all(u in products for u in users[n])}
    single = [n for n in order if n.op.kind is Kind.ELEMENTWISE and n not in factors]
    late = [n for n in single if _is_read_later(n, users, level)]
    if not late:
        return set()
    stored = {n for n in order if n.op.kind is Kind.SOURCE or n in kept or _is_loaded(n, users, products, factors)}
    changing = set(changing)
    cheap: dict[Node, int] = {}  # and how many operations lead to each from a value that is not cheap
    of: dict[Node, set[Node]] = {}  # the values that are not cheap from which each is computed
    for node in single:
        of[node] = _computed_of(node, cheap, of, sources)
        if node in stored or not _is_cheap(node, users) or not changing.isdisjoint(_operands(node)):
            continue
        length = 1 + max((cheap.get(x, 0) for x in _operands(node)), default=0)
        if length <= most and not _replaces(node, users, cheap, stored):
            cheap[node] = length
    stored.update(n for n in late if n not in cheap)
    found: set[Node] = set()
    for part in _connected([n for n in late if n in cheap], cheap):
        found |= _computed(part, [n for n in late if n in part], cheap, stored)
    return found


def consumers(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each node, the nodes other than views that read it, directly or through views."""
    direct: dict[Node, list[Node]] = {n: [] for n in order}
    for node in reversed(order):
        for x in dict.fromkeys(node.inputs):
            direct[x].extend(direct[node] if node.op is ops.VIEW else [node])
    return {n: list(dict.fromkeys(found)) for n, found in direct.items()}


def _operands(node: Node) -> Iterator[Node]:
    """The operands of a node, seen through views."""
    for x in node.inputs:
        while x.op is ops.VIEW:
            (x,) = x.inputs
        yield x


def _levels(order: Sequence[Node], products: Collection[Node]) -> dict[Node, int]:
    """How many kernels, at least, come one after the other up to each node: of two nodes of a level, one may be in a
    kernel with the other."""
    level: dict[Node, int] = {}
    for node in order:
        joins = node.op is ops.VIEW or node.op.kind in (Kind.ELEMENTWISE, Kind.REDUCE, Kind.SOURCE)
        before = max((level[x] for x in node.inputs), default=0)
        level[node] = before + (node in products or not joins)
    return level


def _is_read_later(node: Node, users: Users, level: Mapping[Node, int]) -> bool:
    """Whether a kernel of as many elements, or rows of them, reads ``node`` later."""
    for user in users[node]:
        size = user.inputs[0].size if user.op.kind is Kind.REDUCE else user.size
        runs = user.op.kind in (Kind.ELEMENTWISE, Kind.REDUCE) and user.op is not ops.CONTIGUOUS
        if runs and level[user] > level[node] and size == node.size:
            return True
    return False


def _is_loaded(node: Node, users: Users, products: Collection[Node], factors: Collection[Node]) -> bool:
    """Whether ``node`` lies in memory for what reads it: tiles, look-ups, loops; and reductions, of a product."""
    for user in users[node]:
        if user in factors or (user.op is ops.CAST and _is_loaded(user, users, products, factors)):
            return True
        if user.op.kind not in (Kind.ELEMENTWISE, Kind.REDUCE) or (user.op.kind is Kind.REDUCE and node in products):
            return True
    return False


def _is_cheap(node: Node, users: Users) -> bool:
    """Whether ``node`` is one operation, and none of a larger value repeats it."""
    if node.op.kind is not Kind.ELEMENTWISE or node.op in COSTLY or node.op is ops.CONTIGUOUS:
        return False
    return all(sym.always(node.size - u.size) for u in users[node] if u.op.kind is Kind.ELEMENTWISE)


def _replaces(node: Node, users: Users, cheap: Collection[Node], stored: Collection[Node]) -> bool:
    """Whether storing ``node`` takes no more than an operand that only it reads, and that must be stored otherwise."""
    return any(
        x not in cheap and x not in stored and set(users[x]) == {node} and _bytes(x) >= _bytes(node)
        for x in _operands(node)
    )


def _bytes(node: Node) -> int:
    return typical(node.size) * node.dtype.itemsize


def _connected(late: Sequence[Node], cheap: Collection[Node]) -> list[set[Node]]:
    """What the nodes ``late`` can be computed from, those in ``cheap`` and their operands, in sets that share none."""
    whole: dict[Node, set[Node]] = {}
    for start in late:
        part, waiting = {start}, [start]
        joined = [part]
        for node in waiting:
            for x in _operands(node) if node in cheap else ():
                if _is_free(x):
                    continue  # else numbers would join all layers
                if x in whole:
                    joined.append(whole[x])
                elif x not in part:
                    part.add(x)
                    waiting.append(x)
        if start in whole:
            joined.append(whole[start])
        largest = max(joined, key=len)
        for other in joined:
            if other is not largest:
                largest |= other
        whole |= dict.fromkeys(largest, largest)
    return list({id(part): part for part in whole.values()}.values())


def _computed_of(node: Node, cheap: dict[Node, int], of: Mapping[Node, set[Node]], most: int) -> set[Node]:
    """The values that are not cheap from which ``node`` is computed. Where they are more than ``most``, the operands
    that bring in the largest numbers leave ``cheap``."""
    while True:
        found: set[Node] = set()
        for x in _operands(node):
            found |= of[x] if x in cheap else set() if _is_free(x) else {x}
        among = [x for x in _operands(node) if x in cheap and len(of[x]) > 1]
        if len(found) <= most or not among:
            return found
        del cheap[max(among, key=lambda x: len(of[x]))]


def _is_free(node: Node) -> bool:
    """Whether reading ``node`` moves nothing: a number, or positions."""
    return node.op.kind is Kind.SOURCE and (node.size == 1 or node.op in (ops.IOTA, ops.DIM))


def _computed(
    part: Collection[Node], late: Sequence[Node], cheap: Collection[Node], stored: Collection[Node]
) -> set[Node]:
    """Those of ``part`` behind the minimal cut that lies nearest to the nodes ``late``, which are read."""
    place = {node: 2 + 2 * k for k, node in enumerate(part)}  # where it arrives; one more is where it is read
    edges: Edges = {at: {} for at in range(2 + 2 * len(place))}
    endless = float("inf")

    def add(first: int, second: int, most: float) -> None:
        edges[first][second] = most
        edges[second].setdefault(first, 0)

    for node, at in place.items():
        add(at, at + 1, _bytes(node) * (READ if node in stored else WRITTEN))
        if node in cheap:
            for x in _operands(node):
                if not _is_free(x):
                    add(place[x] + 1, at, endless)
        else:
            add(0, at, endless)
    for node in late:
        add(place[node] + 1, 1, endless)
    _fill(edges)
    behind, waiting = {1}, [1]
    for to in waiting:
        for at in edges[to]:
            if edges[at][to] > 0 and at not in behind:
                behind.add(at)
                waiting.append(at)
    return {node for node, at in place.items() if node in cheap and at in behind}


def _fill(edges: Edges) -> None:
    """Let as much as possible flow from place 0 to place 1, along shortest ways, and leave in ``edges`` what still may
    (Edmonds and Karp, 1972)."""
    while True:
        came: dict[int, int] = {0: 0}
        waiting = deque([0])
        while waiting and 1 not in came:
            at = waiting.popleft()
            for to, most in edges[at].items():
                if most > 0 and to not in came:
                    came[to] = at
                    waiting.append(to)
        if 1 not in came:
            return
        way = [1]
        while way[-1] != 0:
            way.append(came[way[-1]])
        steps = list(zip(way[1:], way, strict=False))
        most = min(edges[at][to] for at, to in steps)
        for at, to in steps:
            edges[at][to] -= most
            edges[to][at] += most
