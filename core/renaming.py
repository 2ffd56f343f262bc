"""Renaming of dimensions, so that no two graphs of a program use one name for different sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Graph, Node
from luminal.core.ops import Kind
from luminal.core.symbolic import Int, Var


def apart(graph: Graph, taken: Iterable[Var]) -> Graph:
    """``graph`` with new names for its measured sizes, in bodies too, whose names are those of sizes in ``taken``."""
    others = {dim.name for dim in taken}
    names = {*others, *(dim.name for dim in graph.dims)}
    by: dict[Var, Int] = {}
    for size in (*graph.measured, *traverse.sizes_inside(graph.roots)):
        if size.name in others:
            name = next(new for k in range(2, len(names) + 3) if (new := f"{size.name}_{k}") not in names)
            names.add(name)
            by[size] = sym.expr(replace(size, name=name))
    return _renamed(graph, by) if by else graph


def _renamed(graph: Graph, by: Mapping[Var, Int]) -> Graph:
    done: dict[Node, Node] = {}
    roots = rebuilt(graph.roots, by, done)
    new = {size: sym.as_var(by[size]) or size if size in by else size for size in graph.dims}
    return graph.computing(
        roots,
        dims=tuple(new.values()),
        measured={new[size]: node for size, node in zip(graph.measured, roots[len(graph.outputs) :], strict=True)},
        origins={done.get(node, node): found for node, found in graph.origins.items()},
        names={done.get(node, node): name for node, name in graph.names.items()},
    )


def rebuilt(roots: Sequence[Node], by: Mapping[Var, Int], done: dict[Node, Node]) -> list[Node]:
    """``roots`` with the variables in ``by`` replaced by others of the same bounds; adds replacements to ``done``."""
    for node in traverse.topological(roots):
        if node not in done:
            shape = tuple(sym.substitute(size, by) for size in node.shape)
            inputs = tuple(done[operand] for operand in node.inputs)
            done[node] = ir.made(node.op, inputs, _attribute(node, shape, by, done), shape, node.dtype)
    return [done[root] for root in roots]


def _attribute(node: Node, shape: ir.Shape, by: Mapping[Var, Int], done: dict[Node, Node]) -> Any:
    attr = node.attr
    if isinstance(attr, ops.View):
        axes = {**by, **ir.rename(node.shape, ir.axes(shape))}
        index, valid = (tuple(sym.substitute(e, axes) for e in part) for part in (attr.index, attr.valid))
        return replace(attr, index=index, valid=valid)
    if isinstance(attr, ops.Extent):
        return replace(attr, value=sym.substitute(attr.value, by))
    if isinstance(attr, ops.Least):
        return replace(attr, count=sym.substitute(attr.count, by))
    if node.op.kind is not Kind.STRUCTURED:
        return attr
    bodies = [tuple(rebuilt(body, by, done)) for body in attr.bodies]
    groups = {name: tuple(rebuilt(getattr(attr, name), by, done)) for name in attr.groups}
    measured = tuple(
        tuple((sym.as_var(sym.substitute(sym.expr(size), by)) or size, count) for size, count in body)
        for body in attr.over(*bodies).measured
    )
    return replace(attr.over(*bodies), **groups, measured=measured)
