"""What a rank owns of a look-up in a divided table: the positions that fall into its part, of which it alone computes.

``index [P]`` says where each of ``P`` positions looks up. A rank keeps those that its part of the table has, in their
order, as one axis of as many elements as it finds; nothing is sent. What it has computed of them goes back to its
place between zeros, and the sum over all ranks is the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from luminal.core import ir
from luminal.core import symbolic as sym
from luminal.core.decompose import selection
from luminal.core.decompose.compare import equal
from luminal.core.ir import Node, Shape
from luminal.core.mesh import placement as where
from luminal.core.mesh import views
from luminal.core.mesh.placement import WHOLE, Lookup, Owned, Placement
from luminal.core.movement import reshape
from luminal.core.sizes import typical
from luminal.core.symbolic import Int


@dataclass(frozen=True)
class Own:
    """What a rank owns of a look-up: the ``order`` of its positions, row-major; and ``there`` in its part of the table
    each looks up."""

    order: Node
    there: Node

    @property
    def count(self) -> Int:
        return self.order.shape[0]


def places(lookup: Lookup, index: Node, size: int) -> tuple[Node, Node]:
    """The rank that has what each of ``index`` looks up, and where in its part; an index out of range fails here."""
    everywhere = np.arange(lookup.extent)
    owners = everywhere // lookup.inner % size
    there = everywhere // (size * lookup.inner) * lookup.inner + everywhere % lookup.inner
    owner, place = (ir.gather(ir.constant(x), index, 0, lookup.failure) for x in (owners, there))
    return owner, place


def own(lookup: Lookup, index: Node, me: Node, size: int) -> Own:
    """What the rank whose number is ``me``, of one element, owns."""
    owner, place = places(lookup, reshape(index, [index.size]), size)
    equal_share = -(-typical(index.size) // size)
    order = selection.places(equal(owner, ir.expand(me, owner.shape)), "owned", equal_share)
    return Own(order, ir.gather(place, order, 0))


def taken(x: Node, result: Owned, of: Own) -> Node:
    """What a rank owns of ``x``, which is whole."""
    return ir.gather(reshape(x, where.merged(x.shape, result.axes, result.lookup.index.size)), of.order, result.axis)


def given_back(x: Node, shape: Shape, operand: Owned, of: Own) -> Node:
    """``x``, which a rank owns of a value of ``shape``, between zeros."""
    flat = where.merged(shape, operand.axes, operand.lookup.index.size)
    zeros = ir.expand(ir.constant(0, x.dtype), flat)
    return reshape(ir.scatter(zeros, of.order, x, operand.axis), shape)


def viewed(node: Node, x: Node, operand: Placement, result: Owned, of: Own) -> Node:
    """What a rank owns of the view ``node``, of its part ``x`` of the operand."""
    axes = views.picked(node, operand, result)
    assert axes is not None, node
    shape = where.merged(node.shape, result.axes, of.count)
    here = ir.axes(shape)
    index = node.attr.index
    if operand == WHOLE and axes:
        extents = x.shape[axes.start : axes.stop]
        x = reshape(x, where.merged(x.shape, axes, sym.product(extents)))
        over = [*here]
        positions = result.lookup.index.shape
        over[result.axis : result.axis + 1] = ir.axes(positions)
        place = sym.substitute(where.flat(extents, index[axes.start : axes.stop]), ir.rename(node.shape, over))
        read = ir.view(ir.iota(sym.product(extents)), positions, [place])
        x = ir.gather(x, ir.gather(reshape(read, [read.size]), of.order, 0), axes.start)
    by = ir.rename(node.shape, [*here[: result.axis], *(0 for _ in result.axes), *here[result.axis + 1 :]])
    moved = [sym.substitute(e, by) for e in index]
    if axes:
        moved[axes.start : axes.stop] = [here[result.axis]]
    return ir.view(x, shape, moved, [sym.substitute(e, by) for e in node.attr.valid], node.attr.fill)
