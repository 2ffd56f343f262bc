"""Graphs as text: one line a node, numbered, deterministic, for people and for golden files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from luminal.core import ops, texts, traverse
from luminal.core.ir import Graph, Node, Origins, Shape
from luminal.core.ops import Kind
from luminal.core.origins import Origin
from luminal.core.types import from_numpy

_FEW = 8  # most elements of a constant that is written out
_ORIGINS = 3  # most source operators that are named for one node


def brief(value: Any) -> str:
    """A dataclass as its fields that differ from their defaults; those without ``repr`` are left out."""
    shown = (f for f in fields(value) if f.repr and getattr(value, f.name) != f.default)
    return f"{type(value).__name__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in shown)})"


def text(graph: Graph) -> str:
    """``graph`` in single assignment form: dimension symbols, a line for each node, the outputs.

    A view is written as the operand's index for each index of the result, with its mask:
    ``View %3 [i0, i1] -> [i0, i1 - 1] where i1 - 1 >= 0 else 0.0``. A comment names the source operators.
    """
    order = traverse.topological([*graph.inputs, *graph.roots], graph.measured)
    header = [f"graph {graph.name}"]
    numbers = {node: k for k, node in enumerate(order)}
    sizes = {d: f" = %{numbers[node]}" for d, node in graph.measured.items()}
    header += [f"  dim {d.name} in {d.lo} .. {d.hi}{sizes.get(d, '')}" for d in graph.dims]
    outputs = [f"  output {name} = %{numbers[node]}" for name, node in graph.outputs]
    return "\n".join([*header, *lines(order, graph.names, graph.origins), *outputs]) + "\n"


def lines(order: Sequence[Node], names: Mapping[Node, str] | None = None, origins: Origins | None = None) -> list[str]:
    """A line for each node of ``order``, in which operands come first."""
    numbers = {node: k for k, node in enumerate(order)}
    result = []
    for node in order:
        line = f"  %{numbers[node]}: {node.dtype}{shape(node.shape)} = {_expression(node, numbers, names or {})}"
        result.append(line + _comment((origins or {}).get(node, ())))
    return result


def _comment(origins: Sequence[Origin]) -> str:
    """The first few origins: a constant such as 1 has hundreds."""
    named = [str(origin) for origin in origins[:_ORIGINS]]
    if len(origins) > _ORIGINS:
        named.append(f"and {len(origins) - _ORIGINS} more")
    return "  # " + "; ".join(named) if named else ""


def shape(sizes: Shape) -> str:
    """``[B, 12, 2*S]``"""
    return "[" + ", ".join(map(str, sizes)) + "]"


def _expression(node: Node, numbers: Mapping[Node, int], names: Mapping[Node, str]) -> str:
    operands = "".join(f" %{numbers[operand]}" for operand in node.inputs)
    if node.op is ops.INPUT:
        return f"Input {node.attr.name}"
    if node.op is ops.CONSTANT:
        return f"Constant {_constant(node, names)}"
    if node.op.kind is Kind.SOURCE:
        return f"{node.op} {node.attr.value}"
    if node.op is ops.VIEW:
        return f"View{operands} {_view(node)}"
    if node.op.kind is Kind.STRUCTURED:
        *_, body = node.attr.bodies
        put_out = node.op is ops.SCAN and node.attr.result >= len(node.attr.carries)
        kind = "what is put out" if put_out else "a branch's" if node.op is ops.COND else "last value of a carry"
        return f"{node.op}{operands}: {kind}, by {_nested(body[node.attr.result])}"
    return f"{node.op}{_attribute(node.attr)}{operands}"


def _nested(node: Node, depth: int = 3) -> str:
    """A node of a body as one expression, operations more than ``depth`` inside it left out."""
    if not depth and node.inputs:
        return "..."
    if not node.inputs:
        return _expression(node, {}, {}).removeprefix("Input ").removeprefix("Constant ")
    if node.op is ops.VIEW and not node.inputs[0].inputs:
        return _nested(node.inputs[0], depth)
    operands = ", ".join(_nested(operand, depth - 1) for operand in node.inputs)
    return f"{node.op}{_attribute(node.attr)}({operands})"


def _attribute(attr: Any) -> str:
    if attr is None:
        return ""
    named = [(f, getattr(attr, f.name)) for f in fields(attr)]
    values = [f"{f.name}={v}" if isinstance(v, bool) else v for f, v in named if v is not True or f.default is not True]
    values = [v for v in values if v not in (None, ops.Failure.INDEX)]  # defaults are not printed
    return "[" + ", ".join(", ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in values) + "]"


def _constant(node: Node, names: Mapping[Node, str]) -> str:
    name = f"{names[node]} " if node in names else ""
    if math.prod(node.attr.shape) <= _FEW:
        return name + _numbers(node.attr.array)
    return f"{name}#{node.attr.digest.hex()[:8]}"


def _numbers(array: np.ndarray[Any, Any]) -> str:
    if array.ndim:
        return "[" + ", ".join(_numbers(part) for part in array) + "]"
    dtype = from_numpy(array.dtype)
    if dtype.is_float:
        return repr(float(array))
    if dtype.is_text:
        return repr(texts.strings(array)[0])
    return str(array[()])


def _view(node: Node) -> str:
    positions = ", ".join(f"i{k}" for k in range(node.rank))
    result = f"[{positions}] -> {shape(node.attr.index)}"
    if node.attr.valid:
        mask = " and ".join(f"{condition} >= 0" for condition in node.attr.valid)
        result += f" where {mask} else {_fill(node)}"
    return result


def _fill(node: Node) -> str:
    """The fill as a number, or as raw bytes if it is not one element: malformed nodes are printed too."""
    fill: bytes = node.attr.fill
    if len(fill) != node.dtype.itemsize:
        return f"0x{fill.hex()}"
    return _numbers(np.frombuffer(fill, node.dtype.numpy).reshape(()))
