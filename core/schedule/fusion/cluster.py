"""Clusters: the nodes that one kernel computes, and what they read.

A cluster iterates over a *domain* of axes. Every node in it has an *index*: its own axes as expressions of the
domain's, so views between members cost nothing. Kinds differ only in what the domain's axes are for:

- ``map``: every element is computed for itself;
- ``row``: some axes are the row, which reductions run along (softmax, norms, pooling); the others are outer;
- ``contraction``: the domain is the result of a contraction, whose consumers are its epilogue;
- ``scatter``: the domain is a scatter's new elements; their position, the axis ``at``, is read at run time;
- ``scan``: the domain is what a scan runs over, its first axis in order; all its results, and its carries, are members;
- ``sort``: the domain is the operand, sorted along its last axis; positions in the result are known at the end;
- ``steps``: a loop or branch, which becomes steps of the program, no kernel (see ``prepare.loops``);
- ``host``: a call of a function of the host, no kernel;
- ``exchange``: data moved between ranks, no kernel;
- ``measure``: no kernel: after it the size of a dimension is known.

Another, ``chain``, is made of two or three of these afterwards (see ``chain``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.schedule.contraction.contraction import Contraction, Tile
from luminal.core.symbolic import Int, Var


@dataclass(frozen=True)
class Chain:
    """The parts of a chain: the ``first`` contraction with its epilogue, where there is one (``contraction``, and
    ``tile``, which computes it); ``middle``, a row cluster, which computes or reads ``row`` at the index ``at`` and
    reduces it; and ``last``, a contraction that sums the middle's result over the axis ``along``, and is the
    cluster's."""

    first: tuple[Node, ...]
    row: Node
    at: tuple[Int, ...]
    middle: tuple[Node, ...]
    last: tuple[Node, ...]
    along: Var
    contraction: Contraction | None

    @property
    def tile(self) -> Tile | None:
        """The tile of the first contraction."""
        return None if self.contraction is None else self.contraction.tile


@dataclass
class Cluster:
    """Nodes that one kernel computes, over a common domain. Grows while fusion runs."""

    number: int
    kind: str
    extents: tuple[Int, ...]
    row: frozenset[Var] = frozenset()
    index: dict[Node, tuple[Int, ...]] = field(default_factory=dict)
    operand_index: dict[Node, tuple[Int, ...]] = field(default_factory=dict)  # of operands of reductions along the row
    contraction: Contraction | None = None  # the only one, or the last of a chain
    chain: Chain | None = None
    measures: tuple[Var, Node] | None = None

    @property
    def is_kernel(self) -> bool:
        return self.kind not in ("steps", "host", "exchange", "measure")

    @property
    def copies(self) -> bool:
        """Whether it computes nothing: it stores values in another place, order or type."""
        return bool(self.index) and all(node.op in (ops.CONTIGUOUS, ops.CAST) for node in self.index)

    @property
    def tile(self) -> Tile | None:
        """The tile of its only contraction, or of the last of a chain."""
        return None if self.contraction is None else self.contraction.tile

    @property
    def axes(self) -> tuple[Int, ...]:
        """The domain's axes ``a0, a1, ..``."""
        return domain_axes(self.extents)

    @property
    def contractions(self) -> tuple[Contraction, ...]:
        """The sums that tile operations compute, in order; the last gives the domain."""
        both = (None if self.chain is None else self.chain.contraction, self.contraction)
        return tuple(found for found in both if found is not None)

    @property
    def outer(self) -> tuple[Int, ...]:
        """The axes that are not the row."""
        return tuple(a for a in self.axes if sym.as_var(a) not in self.row)


def domain_axes(extents: tuple[Int, ...]) -> tuple[Int, ...]:
    """The axes of a domain (the constant 0 for extent 1)."""
    return tuple(sym.axis(f"a{k}", extent) for k, extent in enumerate(extents))


@dataclass(frozen=True)
class Fusion:
    """The clusters in an order in which they can run, and the nodes that each must store."""

    clusters: tuple[Cluster, ...]
    stored: Mapping[Node, Cluster]
    inline: frozenset[Node]
    roots: tuple[Node, ...]
    own_storage: frozenset[Node] = frozenset()  # in buffers of their own, row-major


@dataclass(frozen=True)
class Read:
    """A read of ``source`` at ``index``, where every condition of ``valid`` is at least zero."""

    source: Node
    index: tuple[Int, ...]
    valid: tuple[Int, ...]


def is_literal(node: Node) -> bool:
    """Whether a constant is a single number, written into the code instead of stored."""
    return node.op is ops.CONSTANT and node.size == 1


def resolve(
    node: Node,
    index: tuple[Int, ...],
    valid: tuple[Int, ...],
    inline: set[Node] | frozenset[Node],
    home: Mapping[Node, object],
) -> Iterator[Read]:
    """The reads of stored values that ``node`` at ``index`` depends on, through views and inline values, each once."""
    waiting = [(node, index, valid)]
    seen: set[tuple[Node, tuple[Int, ...], tuple[Int, ...]]] = set()
    while waiting:
        node, index, valid = read = waiting.pop()
        if read in seen:
            continue
        seen.add(read)
        if node.op is ops.VIEW:
            by = ir.rename(node.shape, index)
            inner = tuple(sym.substitute(e, by) for e in node.attr.index)
            mask = tuple(m for v in node.attr.valid if not sym.always(m := sym.substitute(v, by)))
            waiting.append((node.inputs[0], inner, tuple(dict.fromkeys(valid + mask))))
        elif node in home or node.op is ops.INPUT or (node.op is ops.CONSTANT and not is_literal(node)):
            yield Read(node, index, valid)
        elif node.op.kind is Kind.ELEMENTWISE:
            waiting += [(x, index, valid) for x in reversed(node.inputs)]


def scatter_index(node: Node, new: tuple[Int, ...]) -> tuple[Int, ...]:
    """The element of a scatter's result that its new element ``new`` becomes; ``at`` is the position read at run
    time."""
    old, positions, _ = node.inputs
    axis = node.attr.axis
    at: Int = sym.var("at", 0, old.shape[axis] - 1)
    return (*new[:axis], at, *new[axis + positions.rank :])


def sort_index(node: Node, element: tuple[Int, ...]) -> tuple[Int, ...]:
    """The element of a sort's result that the operand's ``element`` becomes; ``at`` is the place found by sorting."""
    at: Int = sym.var("at", 0, node.shape[-1] - 1)
    return (*element[:-1], at)
