"""What a rank's work, memory and messages cost, in seconds: rates of a node and of the link between nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from luminal.core import ops
from luminal.core.ir import Node
from luminal.core.mesh.placement import WHOLE, Owned, Partial, Placement, Split
from luminal.core.ops import Kind
from luminal.core.sizes import typical


@dataclass(frozen=True)
class Link:
    """How ranks are joined: bytes a second that a rank sends, and seconds that a message takes besides."""

    bandwidth: float = 10e9
    latency: float = 5e-6


@dataclass(frozen=True)
class Rates:
    """What one rank does in a second. ``held`` is the price of a byte of weights, in bytes that are read: a rank reads
    its weights in each run, and has to have room for them."""

    products: float = 1e11
    elements: float = 2e9
    memory: float = 2e10
    held: float = 4.0


def bytes_of(node: Node) -> int:
    """Bytes of a value, at typical sizes."""
    return max(typical(node.size), 0) * node.dtype.itemsize


def work(node: Node, is_product: bool, parts: float, rates: Rates) -> float:
    """Seconds that a rank takes for one of ``parts`` of ``node``; ``is_product``: it is summed as it is made."""
    if node.op.kind in (Kind.SOURCE, Kind.VIEW):
        return 0.0
    elements = typical(node.inputs[0].size if node.op.kind is Kind.REDUCE else node.size) / parts
    if is_product:
        return elements / rates.products
    if node.op is ops.SUM_REDUCE and node.inputs[0].op is ops.MUL:
        return typical(node.size) / parts / rates.elements
    return elements / rates.elements


def shares(placement: Placement, ranks: int) -> float:
    """In how many equal shares the work on a value that lies so is divided. Of positions of which each rank is equally
    likely to own one, as many count as the mean and a standard deviation."""
    if not isinstance(placement, Owned):
        return ranks
    count = max(typical(placement.lookup.index.size), 1)
    mean = count / ranks
    return count / (mean + math.sqrt(mean * (1 - 1 / ranks)))


def fused(node: Node, is_stored: bool, rates: Rates) -> float:
    """Seconds that one rank takes for ``node`` in a kernel with others: its arithmetic, and where ``is_stored`` what it
    takes to write it and to read it."""
    if node.op.kind is Kind.SOURCE:
        return 0.0
    changed = node.inputs[2] if node.op is ops.SCATTER else node  # in place
    elements = typical(node.inputs[0].size if node.op.kind is Kind.REDUCE else changed.size)
    if node.op is ops.SUM_REDUCE and node.inputs[0].op is ops.MUL:
        elements = 0  # summed as it is made
    return elements / rates.products + (2 * bytes_of(changed) / rates.memory if is_stored else 0.0)


def conversion(node: Node, before: Placement, after: Placement, ranks: int, link: Link, rates: Rates) -> float:
    """Seconds until a value that lies as ``before`` lies as ``after``; infinite where it cannot."""
    if before == after:
        return 0.0
    size = bytes_of(node)
    part, others = size / ranks, (ranks - 1) / ranks
    if isinstance(after, Owned):
        return conversion(node, before, WHOLE, ranks, link, rates) + size / shares(after, ranks) / rates.memory
    if isinstance(before, Owned):
        if node.dtype.is_bool:
            return float("inf")
        partial = Partial("sum")
        return size / rates.memory + conversion(node, partial, after, ranks, link, rates)
    if before == WHOLE:
        return part / rates.memory if isinstance(after, Split) else float("inf")
    if isinstance(after, Partial):
        return float("inf")
    if isinstance(before, Partial):
        scattered = link.latency + size * others / link.bandwidth + 2 * size / rates.memory
        if isinstance(after, Split):
            return scattered
        both = scattered + link.latency + size * others / link.bandwidth + size / rates.memory
        at_once = link.latency + size * (ranks - 1) / link.bandwidth + size * (ranks + 1) / rates.memory
        return min(both, at_once)
    if after == WHOLE:
        return link.latency + size * others / link.bandwidth + size / rates.memory
    return link.latency + part * others / link.bandwidth + 2 * part / rates.memory
