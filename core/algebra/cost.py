"""What a form costs: cycles of one core for its multiply-adds, and for the bytes of values that are stored between.

One measure for the form that a model spells and for any other. What is constant costs nothing to compute; its bytes
count, for they are read in every run. Elementwise work is done where its largest operand is computed or read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.target import Target
from luminal.core.types import DType


@dataclass(frozen=True)
class Price:
    """Cycles of a multiply-add of a contraction, of an operation of another kind, and of a byte read or written."""

    product: float
    operation: float
    byte: float

    @classmethod
    def of(cls, target: Target, dtype: DType) -> Price:
        """On ``target``, in ``dtype``."""
        lanes = max(1, target.register_bytes // dtype.itemsize)
        per_cycle = target.costs.arithmetic.per_cycle
        stream = target.costs.memory.stream
        return cls(1 / (lanes * per_cycle), 1 / lanes, stream)

    def sum(self, domain: float, result: float, operands: Iterable[float], itemsize: int, shares: bool) -> float:
        """A sum over products of ``operands``, or over one: elements over which it is computed, of the result and of
        each operand. It ``shares`` if elements of each operand are multiplied with several of the other."""
        rate = self.product if shares else self.operation
        return rate * domain + self.byte * itemsize * (result + sum(operands))

    def map(self, domain: float, operands: Iterable[float], itemsize: int) -> float:
        """An elementwise operation on ``domain`` elements: stored only if no operand has as many."""
        stored = 0.0 if domain <= max(operands, default=0.0) else 2 * domain * itemsize * self.byte
        return self.operation * domain + stored

    def moved(self, elements: float, itemsize: int) -> float:
        """Elements that are gathered: read, and written."""
        return 2 * elements * itemsize * self.byte


def elements(node: Node) -> float:
    """The number of elements of a node, at typical sizes."""
    found = 1.0
    for extent in node.shape:
        found *= typical(extent)
    return found


def read(node: Node) -> float:
    """The number of elements that are read of ``node``, or of what it views."""
    if node.op is not ops.VIEW:
        return elements(node)
    axes = {v for e in node.attr.index for v in sym.variables(e)}
    over = [node.shape[k] for k, e in enumerate(ir.axes(node.shape)) if sym.as_var(e) in axes]
    return min(elements(node.inputs[0]), math.prod(map(typical, over)))


def of_spelled(nodes: Collection[Node], price: Price) -> float:
    """What ``nodes``, a region as it stands in a graph, cost. Sums along the rows of one tensor are one pass over it:
    they are computed in one kernel, which reads a row once."""
    inside = dict.fromkeys(nodes)
    total = 0.0
    fused: set[Node] = set()
    passed: set[tuple[Node, tuple[Int, ...]]] = set()
    for node in inside:
        if node.op is not ops.SUM_REDUCE:
            continue
        product = node.inputs[0]
        factors = product.inputs if product.op is ops.MUL and product in inside else (product,)
        fused.update([product] if len(factors) == 2 else [])
        sizes = [read(x) for x in factors]
        shares = len(factors) == 2 and all(size < elements(product) for size in sizes)
        if not shares:
            sources = [(x.inputs[0] if x.op is ops.VIEW else x, product.shape) for x in factors]
            sizes = [
                0.0 if source in passed else size for source, size in dict(zip(sources, sizes, strict=True)).items()
            ]
            passed.update(sources)
        total += price.sum(elements(product), elements(node), sizes, node.dtype.itemsize, shares)
    for node in inside:
        if node in fused:
            continue
        if node.op is ops.GATHER:
            total += price.moved(elements(node), node.dtype.itemsize)
        elif node.op.kind is Kind.ELEMENTWISE:
            total += price.map(elements(node), map(read, node.inputs), node.dtype.itemsize)
    return total
