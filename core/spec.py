"""The specification of a Graph. The compiler checks its input and the result of its last pass; in tests, and with
``LUMINAL_CHECK=1``, the result of every pass.

1. Inputs have different names, are ``Input`` nodes, and every ``Input`` that an output depends on is among them.
2. Outputs have different names.
3. Building a node again from its operands and attribute gives the node itself: so its type and shape follow the rule
   in ``core.ops``, it is interned, and a view of a view has been composed.
4. All symbols are declared in ``dims``, with their bounds; axes in a view are those of its shape. A measured size is
   given by one int64, in bodies too.
5. A view without a mask reads inside its operand: no affine index is known to leave it.
6. The fill of a mask is one element.
7. Bodies are closed, have parameters as inputs, and follow all of this; parameters have their operands' type and shape.
8. The last inputs and outputs are those of the states, in order; a state has one type and one fixed shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from luminal.core import ir, ops, printer, traverse
from luminal.core import symbolic as sym
from luminal.core.errors import LuminalError, SpecError
from luminal.core.ir import Graph, Node
from luminal.core.ops import Kind
from luminal.core.symbolic import Int
from luminal.core.types import i64

_AROUND = 10  # nodes printed with a failure


def check_graph(graph: Graph) -> None:
    """Raises SpecError at the first node that breaks an invariant, printing the nodes around it and its origin."""
    order = traverse.topological([*graph.inputs, *graph.roots])
    for node in graph.inputs:
        if node.op is not ops.INPUT:
            raise _failure(graph, order, node, "expected an Input among the graph's inputs")
    for what, names in (
        ("inputs", [n.attr.name for n in graph.inputs]),
        ("outputs", [name for name, _ in graph.outputs]),
    ):
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise SpecError(f"graph {graph.name}: {what} repeat: {', '.join(repeated)}")
    _check_states(graph)
    declared = set(graph.inputs)
    symbols = set(graph.dims)
    for dim, node in graph.measured.items():
        if node.shape or node.dtype != i64 or dim not in symbols:
            raise _failure(graph, order, node, f"expected one int64 that says how large the declared symbol {dim} is")
    for node in order:
        for problem in _problems(node, declared, symbols):
            raise _failure(graph, order, node, problem)


def _check_states(graph: Graph) -> None:
    inputs, outputs = graph.inputs[len(graph.given) :], graph.outputs[len(graph.returned) :]
    for state, node, (name, result) in zip(graph.states, inputs, outputs, strict=True):
        kinds = {(x.dtype, x.shape) for x in (node, result, state.initial)}
        known = state.initial.op is ops.CONSTANT and state.input is node and state.output == name
        if not known or len(kinds) > 1:
            raise SpecError(f"graph {graph.name}: {node} and {result} are not one state, at first {state.initial}")


def _problems(node: Node, declared: set[Node], symbols: set[sym.Var]) -> Iterator[str]:
    if node.op.name not in ops.TABLE or ops.TABLE[node.op.name] is not node.op:
        yield f"{node.op} is no primitive"
    if node.op is ops.INPUT and node not in declared:
        yield "not among the graph's inputs"
    if node.op.arity is not None and len(node.inputs) != node.op.arity:
        yield f"expected {node.op.arity} operands, found {len(node.inputs)}"
    unknown = _variables(node.shape) - symbols
    if unknown:
        yield f"symbols that the graph does not declare: {_named(unknown)}"
    if node.op is ops.VIEW:
        yield from _view_problems(node, symbols)
    if node.op.kind is Kind.STRUCTURED:
        yield from _body_problems(node, symbols)
    try:
        again = _build(node)
    except LuminalError as error:
        yield str(error)
        return
    if again is not node:
        yield f"building it again gives {again}: it is not interned, not typed by its rule, or a view to be composed"


def _build(node: Node) -> Node:
    """``node`` made anew from its parts."""
    op, attr = node.op, node.attr
    if op is ops.INPUT:
        return ir.input_(attr.name, node.shape, node.dtype)
    if op is ops.CONSTANT:  # hashing gigabytes of weights again would tell nothing about the graph
        return node if (attr.shape, attr.dtype) == (node.shape, node.dtype) else ir.constant(attr.array)
    if op is ops.IOTA:
        return ir.iota(attr.value)
    if op is ops.DIM:
        return ir.dim(attr.value)
    if op is ops.VIEW:
        return ir.view(node.inputs[0], node.shape, attr.index, attr.valid, attr.fill)
    if op is ops.GATHER:
        return ir.gather(node.inputs[0], node.inputs[1], attr.axis, attr.failure)
    if op.kind is Kind.STRUCTURED:
        return ir.structured(op, node.inputs, attr)
    if op is ops.SCATTER:
        return ir.scatter(node.inputs[0], node.inputs[1], node.inputs[2], attr.axis, attr.by, attr.failure)
    if op is ops.HOST:
        return ir.host(attr.function, node.inputs, node.shape)
    if op is ops.EXCHANGE:
        return ir.exchange(attr.kind, attr.group, node.inputs[0], attr.number)
    if op is ops.SORT:
        return ir.sort(node.inputs[0], attr.count)
    if op.kind is Kind.REDUCE:
        return ir.reduce(op, node.inputs[0], attr.axes)
    if op is ops.BITCAST:
        return ir.bitcast(node.inputs[0], attr.dtype)
    return ir.elementwise(op, *node.inputs, attr=attr)


def _body_problems(node: Node, symbols: set[sym.Var]) -> Iterator[str]:
    parameters = node.attr.parameters
    for parameter, operand in zip(parameters, node.inputs[len(node.inputs) - len(parameters) :], strict=True):
        element = operand.shape[1:] if node.op is ops.SCAN and parameter in node.attr.slices else operand.shape
        if (parameter.shape, parameter.dtype) != (element, operand.dtype):
            yield f"{parameter} stands for {operand}"
    for size, count in (pair for body in node.attr.measured for pair in body):
        if count.shape or count.dtype != i64 or size not in symbols:
            yield f"expected one int64 that says how large the declared symbol {size} is, found {count}"
    for inner in traverse.topological([root for body in node.attr.bodies for root in body]):
        for problem in _problems(inner, set(parameters), symbols):
            yield f"in a body, {inner}: {problem}"


def _view_problems(node: Node, symbols: set[sym.Var]) -> Iterator[str]:
    (operand,) = node.inputs
    attr = node.attr
    if len(attr.index) != operand.rank:
        yield f"expected an index of rank {operand.rank}, found {len(attr.index)}"
        return
    unknown = _variables((*attr.index, *attr.valid)) - _variables(ir.axes(node.shape)) - symbols
    if unknown:
        yield f"variables that are no axes of {printer.shape(node.shape)}: {_named(unknown)}"
    if attr.valid and len(attr.fill) != node.dtype.itemsize:
        yield f"expected a fill of {node.dtype.itemsize} bytes, found {len(attr.fill)}"
    if attr.valid or 0 in node.shape:
        return
    for axis, (position, extent) in enumerate(zip(attr.index, operand.shape, strict=True)):
        room = extent - 1 - position
        if (_is_affine(position) and not sym.always(position)) or (_is_affine(room) and not sym.always(room)):
            yield f"index {position} leaves axis {axis} of extent {extent}"


def _is_affine(value: Int) -> bool:
    """Whether the proven bounds of ``value`` are attained: linear in variables whose ends are numbers."""
    terms = value.terms if isinstance(value, sym.Expr) else ()
    return all(
        len(monomial) <= 1 and all(isinstance(a, sym.Var) and isinstance(a.hi, int) for a in monomial)
        for monomial, _ in terms
    )


def _variables(values: Iterable[Int]) -> set[sym.Var]:
    return {v for value in values for v in sym.variables(value)}


def _named(variables: Iterable[sym.Var]) -> str:
    return ", ".join(sorted(f"{v.name} in {v.lo} .. {v.hi}" for v in variables))


def _failure(graph: Graph, order: list[Node], node: Node, problem: str) -> SpecError:
    position = order.index(node)
    listing = printer.lines(order, graph.names, graph.origins)
    first = max(0, position - _AROUND + 3)
    around = [
        f"{'>' if k == position else ' '}{line[1:]}"
        for k, line in enumerate(listing[first : first + _AROUND], start=first)
    ]
    origin = "; ".join(map(str, graph.origins.get(node, ()))) or "unknown"
    return SpecError(
        f"graph {graph.name}: %{position}, from {origin}: {problem}\n" + "\n".join(around)
    )  # fmt: skip
