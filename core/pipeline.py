"""Graph to Program: the whole middle of the compiler, one line a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from luminal.core import config, ops, printer, renaming, sizes, traverse
from luminal.core import symbolic as sym
from luminal.core.algebra import stage as algebra
from luminal.core.errors import ModelError, SpecError, UnsupportedError
from luminal.core.ir import Graph, Origins, State
from luminal.core.rewrite import simplify
from luminal.core.rules import RULES, quotient
from luminal.core.schedule.choose import arrangement
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.nest.ir import names_axis
from luminal.core.schedule.numeric import (
    bit_maxima,
    digits,
    integers,
    long_reductions,
    looked_up,
    moved_blocks,
    online,
    rounding,
    spelled_out,
    strips,
)
from luminal.core.schedule.prepare import graph as preparation
from luminal.core.schedule.prepare import loops, tied
from luminal.core.schedule.prepare.graph import Prepared
from luminal.core.schedule.program import assembly, tables
from luminal.core.schedule.program.ir import Program
from luminal.core.schedule.program.spec import check as check_program
from luminal.core.sizes import typical
from luminal.core.spec import check_graph
from luminal.core.symbolic import Var
from luminal.core.target import BOUNDED, Target
from luminal.core.types import i8, i32, u8

Watch = Callable[[str, Any], None]
T = TypeVar("T", Graph, Contracted)


ALGEBRA = "algebra"
ROUNDING = "rounding of operands"

# The passes from Graph to Graph, in order, and what each does. `watch` is told these names.
PASSES = {
    "integer contractions": "contractions of 8-bit integers take the form that the target's instructions compute",
    "simplification": "nodes are replaced by simpler ones of the same value, and constants are folded",
    "known functions": "functions that the model spells out in simpler ones are computed as one",
    "strips": "products that share large values compute them again, in strips of rows",
    ALGEBRA: "sums of products are computed in the order that costs least",
    "look-ups": "functions of which only few elements are looked up are computed of these",
    "online reductions": "reductions that read others are computed in parts, whose results are merged",
    "blocks that a number moves": "the products of integers are summed apart from those of what moves their blocks",
    ROUNDING: "operands of contractions are rounded to the precision that was chosen",
    "fewer digits": "functions that are rounded afterwards are computed to fewer digits",
    "maxima of bits": "maxima of overlapping windows are taken of the bits of their floats",
    "long reductions": "long reductions are computed in parts, and what the parts give is reduced again",
    "preparation for kernels": "operands of contractions are padded and packed as kernels read them",
}


def compile_graph(graph: Graph, target: Target, watch: Watch = lambda stage, value: None) -> Program:
    """The program that computes ``graph`` on ``target``; ``watch`` and errors as for ``compile_graphs``."""
    return compile_graphs(graph.name, {"main": graph}, target, watch)


def compile_graphs(
    name: str,
    graphs: Mapping[str, Graph],
    target: Target,
    watch: Watch = lambda stage, value: None,
    memory: int | str | None = None,
    known: algebra.Forms | None = None,
) -> Program:
    """The program ``name`` with an entry for each of ``graphs``; they share constants and kernels. ``memory`` bounds
    what the values of each take (see ``schedule.program.assembly``). ``known`` are forms of sums, found for programs
    that are alike, such as those of other ranks; those of this one are added.

    This is the whole lowering, a line for each pass. ``watch`` is called with the name of each and with what it hands
    on: for each entry a graph, as given and after each of ``PASSES`` that applies, and the clusters of its kernels; in
    the end the program. What comes in and what the last pass makes is always held to its spec (``core.spec``), and with
    ``LUMINAL_CHECK=1`` what every pass makes.

    Raises ModelError where states of one name, which are one state, differ in type, shape or first value, or dimensions
    of one name in their bounds; and other LuminalErrors for what cannot be compiled.
    """
    graphs = _told_apart(graphs)
    _check_dims(graphs)
    _check_states(graphs)
    multiplies_bytes = bool(target.units_of(u8, i8, i32))
    stored = target.precision.stored
    # CPUs that multiply nothing narrower than float32 would widen each operand as often as they multiply it.
    wide = target.grid is None and all(unit.left != stored for unit in target.units)
    between = config.CHECK.value

    def passed(by: str, made: T, check: bool = between) -> T:
        """The graph that the pass of that name made, with its contractions once they are found."""
        graph = made if isinstance(made, Graph) else made.graph
        try:
            if check:
                check_graph(graph)
        except SpecError as error:
            raise SpecError(f"after {by}: {error}") from error
        watch(by, graph)
        return made

    known = {} if known is None else known
    wholes: list[Contracted] = []
    for graph in graphs.values():
        _check_names(graph)
        _check_sizes(graph)
        _check_texts(graph, target)
        check_graph(graph)
        watch("graph", graph)
        if multiplies_bytes:
            graph = passed("integer contractions", integers.integral(graph))
        graph = rewritten(graph, target, passed, known)
        graph = passed("look-ups", looked_up.of_few(graph))
        if target.algebra == BOUNDED:
            graph = passed("online reductions", online.in_parts(graph, target))
        whole = Contracted.of(graph)  # from here on, passes carry the contractions that are found here
        if (multiplies_bytes or target.grid is not None) and target.algebra == BOUNDED:
            whole = passed("blocks that a number moves", moved_blocks.apart(whole, target))
        if stored is not None:
            whole = passed(ROUNDING, rounding.rounded(whole, target.precision, wide, target.costs.memory))
            whole = passed("fewer digits", digits.eased(whole))
        whole = passed("maxima of bits", bit_maxima.of_bits(whole))
        wholes.append(passed("long reductions", long_reductions.in_parts(whole, target)))
    sources: list[tables.Source] = []
    for entry, (graph, prepared) in zip(graphs, prepare(wholes, target), strict=True):
        passed("preparation for kernels", graph, check=True)
        states = {state.input: node for state, node in graph.left}
        arranged = arrangement.arrange(prepared.roots, prepared, target, measured=graph.measured, replacing=states)
        watch("arrangement", arranged)
        sources.append(tables.Source(entry, graph, prepared, arranged))
    program = assembly.assemble(name, sources, target, memory)
    check_program(program)
    watch("program", program)
    return program


def rewritten(
    graph: Graph,
    target: Target,
    passed: Callable[[str, Graph], Graph] = lambda by, made: made,
    known: algebra.Forms | None = None,
) -> Graph:
    """``graph`` after the passes that choose what is computed, and not how; each is ``passed``. ``known`` as above.

    Convolutions by minimal filtering are made of such a graph, where they are asked for. They are left as they are: a
    sum of products says nothing of the error budget that they were chosen by.
    """
    graph = passed("simplification", simplify(graph, (*RULES, *quotient.RULES) if target.fused else RULES))
    graph = passed("known functions", spelled_out.known(graph))
    if target.algebra == BOUNDED:
        graph = passed("strips", strips.in_strips(graph, target))  # of the products that gradients have in common
    if target.algebra == BOUNDED and not any(x.option == "winograd" for x in graph.approximations):
        graph = passed(ALGEBRA, algebra.improved(graph, target, known))
    return graph


def _told_apart(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """``graphs`` with different names for all measured sizes, which users do not name."""
    result: dict[str, Graph] = {}
    for entry, graph in graphs.items():
        result[entry] = renaming.apart(graph, [dim for other in result.values() for dim in other.dims])
    return result


def _check_dims(graphs: Mapping[str, Graph]) -> None:
    """Raises ModelError where entries mean different dimensions by one name."""
    known: dict[str, tuple[str, Var]] = {}
    for entry, graph in graphs.items():
        for dim in graph.dims:
            other, first = known.setdefault(dim.name, (entry, dim))
            if first != dim:
                raise ModelError(
                    f"the dimension {dim.name!r} is {first.lo}..{first.hi} in {other!r} and {dim.lo}..{dim.hi} in "
                    f"{entry!r}; give it the same bounds, or another name"
                )


def _check_states(graphs: Mapping[str, Graph]) -> None:
    """Raises ModelError where entries mean different states by one name."""
    known: dict[str, tuple[str, State]] = {}
    for entry, graph in graphs.items():
        for state in graph.states:
            other, first = known.setdefault(state.name, (entry, state))
            if (state.input, state.initial) != (first.input, first.initial):
                kinds = (f"{s.input.dtype}{printer.shape(s.input.shape)}" for s in (first, state))
                how = " and ".join(kinds) if state.input != first.input else "not the same at first"
                raise ModelError(f"the state {state.name!r} is {how} in {other!r} and {entry!r}; give it another name")


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
    """Raises ModelError if the size of a dimension follows neither from the inputs' shapes nor from a measurement."""
    extents = [extent for node in graph.inputs for extent in node.shape]
    known = {solution.symbol for solution in sizes.solve(extents)} | set(graph.measured)
    used = {v for node in traverse.topological(graph.roots) for extent in node.shape for v in sym.variables(extent)}
    used.update(v for extent in extents for v in sym.variables(extent))
    for symbol in sorted(used - known, key=lambda v: v.name):
        places = [str(extent) for extent in extents if symbol in sym.variables(extent)]
        found = f"it occurs only in {', '.join(places)}" if places else "it occurs in none"
        raise ModelError(
            f"the size of the dimension {symbol.name!r} does not follow from the shapes of the inputs: {found}; "
            "expected an axis whose size is linear in it. Fix the size, or give the model an input with such an axis"
        )


def _check_texts(graph: Graph, target: Target) -> None:
    """Raises UnsupportedError where texts would have to be on a GPU."""
    found = next((node for node in traverse.everything(graph.roots) if node.dtype.is_text or node.op is ops.HOST), None)
    if found is not None and target.grid is not None:
        where = "; ".join(map(str, graph.origins.get(found, ()))) or str(found)
        raise UnsupportedError(f"{where}: texts are not supported on GPUs; compile the model, or this part, for a CPU")


def prepare(wholes: Sequence[Contracted], target: Target) -> Iterator[tuple[Graph, Prepared]]:
    """The graph of each entry with contractions in the form that tiles read, and with outputs that own their storage.
    Entries share packed constants: they are packed as it suits the product of most rows, or else the entry that
    multiplies most."""
    packings = preparation.agreed([whole.contractions for whole in wholes], target)
    origins: list[Origins] = [dict(whole.graph.origins) for whole in wholes]
    made: dict[int, Prepared] = {}
    for number in sorted(range(len(wholes)), key=lambda k: -_products(wholes[k])):
        whole = wholes[number]
        made[number] = preparation.prepare(whole.graph.roots, whole.contractions, target, origins[number], packings)
    every = [made[number] for number in range(len(wholes))]
    every = tied.shared(every, origins, target.costs.memory.apart)
    for whole, prepared, table in zip(wholes, every, origins, strict=True):
        yield owned(whole.graph, prepared, table)


def _products(whole: Contracted) -> int:
    """How many products a run computes, at typical sizes."""
    return sum(typical(sym.product(found.shape)) for found in whole.contractions.values())


def owned(graph: Graph, prepared: Prepared, origins: Origins) -> tuple[Graph, Prepared]:
    """``graph`` as it is ``prepared``, with the names of packed constants, and with outputs that own their storage."""
    names = dict(graph.names)
    for packed, sources in prepared.packed.items():
        named = [graph.names[s] for s in sources if s in graph.names]
        if named:
            names.setdefault(packed, named[0])
    unchanged = (*(None for _ in graph.returned), *(state.input for state in graph.states))
    results = loops.owned(prepared.roots, unchanged)
    for node, before in zip(results, prepared.roots, strict=True):
        if node is not before:
            origins[node] = origins.get(before, ())
    return graph.computing(results, origins=origins, names=names), replace(prepared, roots=tuple(results))
