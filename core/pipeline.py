"""Graph to Program: the whole middle of the compiler, one line a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from luminal.core import assembly, ir, sizes
from luminal.core import symbolic as sym
from luminal.core.errors import ModelError
from luminal.core.ir import Graph, Origins
from luminal.core.program import Program
from luminal.core.program_spec import check as check_program
from luminal.core.rewrite import simplify
from luminal.core.schedule import arrangement, bodies, contraction
from luminal.core.schedule.nest import names_axis
from luminal.core.spec import check_graph
from luminal.core.target import Target

Watch = Callable[[str, Any], None]


def compile_graph(graph: Graph, target: Target, watch: Watch = lambda stage, value: None) -> Program:
    """The program that computes ``graph`` on ``target``.

    ``watch`` is called with the name and the value of each stage as it is reached. Raises LuminalError.
    """
    _check_names(graph)
    _check_sizes(graph)
    check_graph(graph)
    watch("graph", graph)
    graph = simplify(graph)
    check_graph(graph)
    watch("canonical", graph)
    graph, prepared = prepare(graph, target)
    check_graph(graph)
    watch("prepared", graph)
    arranged = arrangement.arrange(prepared.roots, prepared, target)
    watch("refused", arranged.refused)
    watch("fusion", arranged.fusion)
    watch("layouts", arranged.layouts)
    program = assembly.assemble(graph, prepared, arranged, target)
    check_program(program)
    watch("program", program)
    return program


def _check_names(graph: Graph) -> None:
    """Raises ModelError where names of the model would be mistaken for others."""
    for dim in graph.dims:
        if names_axis(dim.name):
            raise ModelError(
                f"the dimension {dim.name!r} is named like a loop of the generated code; give it another name"
            )
    both = sorted({n.attr.name for n in graph.inputs} & {name for name, _ in graph.outputs})
    if both:
        raise ModelError(f"{', '.join(both)} names an input and an output; give the output a name of its own")


def _check_sizes(graph: Graph) -> None:
    """Raises ModelError where a run would not know the size of a dimension."""
    extents = [extent for node in graph.inputs for extent in node.shape]
    known = {solution.symbol for solution in sizes.solve(extents)}
    used = {v for node in ir.topological(graph.results) for extent in node.shape for v in sym.variables(extent)}
    used.update(v for extent in extents for v in sym.variables(extent))
    for symbol in sorted(used - known, key=lambda v: v.name):
        places = [str(extent) for extent in extents if symbol in sym.variables(extent)]
        found = f"it occurs only in {', '.join(places)}" if places else "it occurs in none"
        raise ModelError(
            f"the size of the dimension {symbol.name!r} does not follow from the shapes of the inputs: {found}; "
            "expected an axis whose size is linear in it. Fix the size, or give the model an input with such an axis"
        )


def prepare(graph: Graph, target: Target) -> tuple[Graph, contraction.Prepared]:
    """Contractions in the form in which a tile operation reads them, and outputs that own their storage."""
    origins: Origins = dict(graph.origins)
    prepared = contraction.prepare(graph.results, target, origins)
    names = dict(graph.names)
    for packed, sources in prepared.packed.items():
        named = [graph.names[s] for s in sources if s in graph.names]
        if named:
            names.setdefault(packed, named[0])
    results = bodies.owned(prepared.roots)
    for node, before in zip(results, prepared.roots, strict=True):
        if node is not before:
            origins[node] = origins.get(before, ())
    outputs = tuple((name, node) for (name, _), node in zip(graph.outputs, results, strict=True))
    rebuilt = Graph(graph.name, graph.inputs, outputs, graph.dims, origins, names, graph.structure)
    return rebuilt, replace(prepared, roots=tuple(results))
