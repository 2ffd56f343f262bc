"""Graph to Program: the whole middle of the compiler, one line a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from luminal.core import ir, ops, sizes
from luminal.core import symbolic as sym
from luminal.core.errors import ModelError, ScheduleError, SpecError
from luminal.core.ir import Graph, Node, Origins
from luminal.core.program import Buffer, Entry, Kernel, Launch, Phase, Program, TensorSpec
from luminal.core.program import check as check_program
from luminal.core.rewrite import simplify
from luminal.core.schedule import chain, choose, choose_grid, contraction, cost, fuse, layout, lower, phases, plan
from luminal.core.schedule.fuse import Fusion
from luminal.core.schedule.layout import Layouts
from luminal.core.schedule.nest import LoopNest, names_axis
from luminal.core.schedule.scheduler import Chosen
from luminal.core.spec import check_graph
from luminal.core.symbolic import Int
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
    fusion, layouts, refused = arrange(fuse.fuse(prepared.roots, prepared.tiles), prepared.roots, target)
    watch("refused", refused)
    watch("fusion", fusion)
    watch("layouts", layouts)
    program = _Assembly(graph, prepared, fusion, layouts, target).program()
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


def arrange(fusion: Fusion, roots: tuple[Node, ...], target: Target) -> tuple[Fusion, Layouts, dict[int, str]]:
    """Chains made one cluster each where they can run in one pass, and the layouts of what is stored then; for the last
    cluster of each chain that cannot, by number, why it stays apart."""
    refused: dict[int, str] = {}
    while True:
        linked = chain.link(fusion, frozenset(refused))
        layouts = layout.assign(linked, roots)
        chains = [c for c in linked.clusters if c.chain is not None]
        reasons = {c.number: reason for c in chains if (reason := _refusal(c, linked, layouts, target))}
        if not reasons:
            return linked, layouts, refused
        refused |= reasons


def _refusal(cluster: fuse.Cluster, fusion: Fusion, layouts: Layouts, target: Target) -> str:
    """Why a chain cannot run in one pass; empty where it can."""
    try:
        _schedule(cluster, lower.lower(cluster, fusion, layouts, target).nest, target)
    except ScheduleError as refusal:
        return str(refusal)
    return ""


def _schedule(cluster: fuse.Cluster, nest: LoopNest, target: Target) -> Chosen:
    if target.grid is None:
        return choose.choose(cluster, nest, target)
    return choose_grid.choose(cluster, nest, target)


def prepare(graph: Graph, target: Target) -> tuple[Graph, contraction.Prepared]:
    """Contractions in the form in which a tile operation reads them, and outputs that own their storage."""
    origins: Origins = dict(graph.origins)
    prepared = contraction.prepare(graph.results, target, origins)
    names = dict(graph.names)
    for packed, sources in prepared.packed.items():
        named = [graph.names[s] for s in sources if s in graph.names]
        if named:
            names.setdefault(packed, named[0])
    results: list[Node] = []
    for node in prepared.roots:
        if node.op.kind is ops.Kind.SOURCE or node.op is ops.VIEW or node in results:
            with ir.originating(origins, *origins.get(node, ())):
                node = _copy(node, results)
        results.append(node)
    outputs = tuple((name, node) for (name, _), node in zip(graph.outputs, results, strict=True))
    rebuilt = Graph(graph.name, graph.inputs, outputs, graph.dims, origins, names, graph.structure)
    return rebuilt, replace(prepared, roots=tuple(results))


def _copy(node: Node, taken: list[Node]) -> Node:
    """A node of its own for an output: copies of one value are told apart by how often it is copied."""
    node = ir.unary(ops.CONTIGUOUS, node)
    while node in taken:
        node = ir.unary(ops.CONTIGUOUS, node)
    return node


@dataclass
class _Assembly:
    """Kernels, buffers and steps, put together from clusters."""

    graph: Graph
    prepared: contraction.Prepared
    fusion: Fusion
    layouts: Layouts
    target: Target
    kernels: dict[LoopNest, Kernel] = field(default_factory=dict)
    steps: list[Launch] = field(default_factory=list)
    arguments: list[tuple[Node, ...]] = field(default_factory=list)
    names: dict[Node, str] = field(default_factory=dict)

    def program(self) -> Program:
        inputs = tuple(TensorSpec(n.attr.name, n.dtype, n.shape) for n in self.graph.inputs)
        outputs = tuple(TensorSpec(name, n.dtype, n.shape) for name, n in self.graph.outputs)
        self.names |= {n: n.attr.name for n in self.graph.inputs}
        self.names |= {n: name for name, n in self.graph.outputs}
        for cluster in self.fusion.clusters:
            self._launch(cluster)
        nests = list(self.kernels)
        steps = [
            phases.Step(nests[step.kernel], arguments)
            for step, arguments in zip(self.steps, self.arguments, strict=True)
        ]
        # Threads of a CPU go through several steps without waiting; a grid is one step.
        together = phases.phases(steps) if self.target.grid is None else ()
        offsets, arena = plan.place(self._spans(together))
        buffers = tuple(self._buffer(node, offsets) for node in self.names if self._used(node))
        constants = [n for n in self.names if n.op is ops.CONSTANT]
        entry = Entry("main", inputs, outputs, tuple(self.steps), arena, self.graph.structure, together)
        return Program(
            self.graph.name, self.graph.dims, tuple(self.kernels.values()), buffers, (entry,),
            {self.names[n]: n.attr.array.transpose(self.layouts.order(n)) for n in constants},
            {self.names[n]: n.attr.digest for n in constants},
        )  # fmt: skip

    def _launch(self, cluster: fuse.Cluster) -> None:
        origins = self._origins(cluster.index)
        operations = _operations(cluster)
        for arguments, chosen in self._nests(cluster):
            nest = chosen.nest
            if nest not in self.kernels:
                _check_axes(nest)
                self.kernels[nest] = Kernel(f"{cluster.kind}{len(self.kernels)}", nest, origins, chosen.text)
            number = list(self.kernels).index(nest)
            grain = cost.grain(nest)
            for node in arguments:
                self._name(node)
            self.steps.append(Launch(number, tuple(self.names[n] for n in arguments), origins, grain, operations))
            self.arguments.append(arguments)

    def _nests(self, cluster: fuse.Cluster) -> list[tuple[tuple[Node, ...], Chosen]]:
        """The scheduled nests of a cluster with their arguments; small boxes of one assembly share a kernel."""
        result: list[tuple[tuple[Node, ...], Chosen]] = []
        for lowered in self._lowered(cluster):
            chosen = _schedule(cluster, lowered.nest, self.target)
            if result and result[-1][0] == lowered.arguments and not (chosen.nest.tasks or result[-1][1].nest.tasks):
                before = result.pop()[1]
                dims = tuple(sorted({*before.nest.dims, *chosen.nest.dims}, key=lambda v: v.name))
                joined = replace(before.nest, dims=dims, body=before.nest.body + chosen.nest.body)
                chosen = Chosen(before.schedule + chosen.schedule, joined)
            result.append((lowered.arguments, chosen))
        return result

    def _lowered(self, cluster: fuse.Cluster) -> Iterator[lower.Lowered]:
        """The nests of a cluster: one, or for an assembly one for each box that is not written elsewhere, and last the
        scatter that writes over them."""
        parts = self.layouts.assemblies.parts
        whole = next((n for n in cluster.index if n in parts), None)
        if whole is not None:
            for part in parts[whole]:
                yield lower.lower_part(whole, part, self.fusion, self.layouts, self.target)
        if whole is None or cluster.kind == "scatter":
            yield lower.lower(cluster, self.fusion, self.layouts, self.target)

    def _name(self, node: Node) -> None:
        if node in self.names:
            return
        wanted = self.graph.names.get(node, "")
        if not wanted:
            kind = "constant" if node.op is ops.CONSTANT else "t"
            wanted = f"{kind}{sum(n.op is node.op or kind == 't' for n in self.names)}"
        taken = set(self.names.values())
        name, number = wanted, 1
        while name in taken:
            name, number = f"{wanted}.{number}", number + 1
        self.names[node] = name

    def _origins(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(o) for n in nodes for o in self.graph.origins.get(n, ())))

    def _used(self, node: Node) -> bool:
        return any(node in arguments for arguments in self.arguments)

    def _spans(self, together: tuple[Phase, ...]) -> list[plan.Span]:
        """The lives of values in the arena. The steps of a phase may run at once, so what one uses lives in all."""
        inside = {step: phase for phase in together for step in range(phase.first, phase.last + 1)}
        lives: dict[Node, list[int]] = {}
        for number, arguments in enumerate(self.arguments):
            for node in arguments:
                if node.op.kind is not ops.Kind.SOURCE and node not in self.graph.results:
                    phase = inside.get(number)
                    lives.setdefault(node, []).extend((phase.first, phase.last) if phase else (number,))
        return [plan.Span(self.names[n], _bytes(n), min(at), max(at)) for n, at in lives.items()]

    def _buffer(self, node: Node, offsets: Any) -> Buffer:
        name = self.names[node]
        space = (
            "input" if node.op is ops.INPUT
            else "constant" if node.op is ops.CONSTANT
            else "output" if node in self.graph.results
            else "arena"
        )  # fmt: skip
        origins = tuple(map(str, self.graph.origins.get(node, ())))
        order = self.layouts.order(node)
        return Buffer(name, node.dtype, node.shape, order, space, offsets.get(name, 0), _bytes(node), origins)


def _check_axes(nest: LoopNest) -> None:
    """Raises SpecError where an axis has a name that a dimension may have."""
    wrong = sorted(axis.name for axis in lower.bound(nest.body) if not names_axis(axis.name))
    if wrong:
        raise SpecError(f"axes of a nest are called {', '.join(wrong)}, which are no names of axes: see names_axis")


def _operations(cluster: fuse.Cluster) -> Int:
    """Floating-point operations of the sums of products in a cluster: a product and an addition for each term."""
    terms: Int = 0
    for node in cluster.index:
        if node.op is ops.SUM_REDUCE and node.dtype.is_float and node.inputs[0].op is ops.MUL:
            terms = terms + node.inputs[0].size
    return terms * 2


def _bytes(node: Node) -> int:
    """The size of a value at the bounds of its dimensions."""
    elements = sym.upper(node.size)
    assert elements is not None, node
    return max(elements, 0) * node.dtype.itemsize
