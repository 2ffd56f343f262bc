"""Where a mismatch comes from: the first source operator that diverges, and the stage that made it diverge."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from luminal import api
from luminal.comparison import bisection, kernels, reproducer, stages, survival
from luminal.comparison.measure import Distance, distance
from luminal.comparison.oracle import Oracle
from luminal.comparison.references import Reference
from luminal.comparison.report import Change, Finding
from luminal.comparison.ties import live
from luminal.core import interp, ir, ops, traverse
from luminal.core import target as targets
from luminal.core.errors import InputError, LuminalError
from luminal.core.ir import Graph, Node
from luminal.core.origins import Origin
from luminal.core.pipeline import PASSES
from luminal.core.target import Target
from luminal.module import Module

Arrays = Mapping[str, NDArray[Any]]

ALONE = 32  # operators that are compiled side by side
PROBES = 16  # values checked in one step of the search


def locate(
    graph: Graph,
    reference: Reference,
    inputs: Arrays,
    outputs: Collection[int],
    target: Target,
    tolerance: float | None,
    save: str | Path | None,
) -> Finding:
    """The origin of a mismatch of ``outputs`` (by position) on ``inputs``.

    If the interpreter differs from the reference, the front end misreads an operator: the two are compared operator by
    operator. Otherwise each operator is compiled by itself and compared with the interpreter on the same operands; each
    stage of the first wrong operator is checked. If no operator is wrong by itself, intermediate values become further
    outputs of the graph. If ``tolerance`` is smaller than rounding explains, the finding says so.
    """
    inputs = {state.name: state.initial.attr.array for state in graph.states} | dict(inputs)
    graph = replace(graph, states=())
    wrong = replace(graph, outputs=tuple(graph.outputs[k] for k in outputs))
    oracle = Oracle(wrong, inputs, tolerance, target.precision)
    expected = reference.run(inputs)
    rounded = None if tolerance is None else _rounding(wrong, inputs, expected, target)
    if rounded is not None:
        finding, part = rounded
    elif any(oracle.refutes_reference(node, expected[name]) for name, node in wrong.outputs):
        finding, part = _front_end(oracle, reference, wrong, expected)
    else:
        finding, part = _compiler(oracle, wrong, target)
    folder = Path(save) if save is not None else Path(tempfile.mkdtemp(prefix="luminal-diff-"))
    reproducer.write(folder, part.graph, part.inputs, part.found, finding)
    return replace(finding, folder=folder)


@dataclass(frozen=True)
class _Part:
    """The part of a model that shows a mismatch, its inputs, and the wrong outputs."""

    graph: Graph
    inputs: Arrays
    found: Sequence[NDArray[Any]]


# ---- the search ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operator:
    """A source operator and its nodes, operands first; other operators read the last one."""

    origin: Origin
    nodes: tuple[Node, ...]

    @property
    def result(self) -> Node:
        return self.nodes[-1]


def _operators(graph: Graph) -> list[_Operator]:
    """The source operators that depend on the inputs, in the order of their results."""
    members: dict[Origin, list[Node]] = {}
    position: dict[Node, int] = {}
    for node in live(graph):
        position[node] = len(position)
        if node.op is not ops.INPUT:
            for origin in graph.origins.get(node, ()):
                members.setdefault(origin, []).append(node)
    found = [_Operator(origin, tuple(nodes)) for origin, nodes in members.items()]
    return sorted(found, key=lambda operator: position[operator.result])


def first_failure(needs: Sequence[int], fails: Callable[[Sequence[int]], Sequence[bool]]) -> int | None:
    """The first failing item, from a few calls of ``fails`` on ``PROBES`` items each; None where none of those fails.

    Items are numbered in topological order; bit ``k`` of ``needs[n]`` says that ``n`` depends on (or is) ``k``. All
    dependencies of an item that does not fail are assumed to be right.
    """
    candidates = list(range(len(needs)))
    while candidates:
        step = -(-len(candidates) // PROBES)
        probes = [*candidates[step - 1 : -1 : step], candidates[-1]]
        failed: list[int] = []
        right = 0
        for probe, bad in zip(probes, fails(probes), strict=True):
            if bad:
                failed.append(probe)
            else:
                right |= needs[probe]
        if not failed:
            return None
        first = failed[0]
        if step == 1:
            return first
        candidates = [c for c in candidates if c == first or (c < first and (needs[first] & ~right) >> c & 1)]
    return None


def _needs(graph: Graph, operators: Sequence[_Operator]) -> list[int]:
    """The argument ``needs`` of ``first_failure``: for each operator, those that its result depends on, as bits."""
    numbers = {operator.result: number for number, operator in enumerate(operators)}
    masks: dict[Node, int] = {}
    for node in live(graph):
        mask = 1 << numbers[node] if node in numbers else 0
        for operand in node.inputs:
            mask |= masks.get(operand, 0)
        masks[node] = mask
    return [masks[operator.result] for operator in operators]


def _front_end(oracle: Oracle, reference: Reference, graph: Graph, expected: Arrays) -> tuple[Finding, _Part]:
    """The first operator that the interpreter and the reference compute differently."""
    operators = _operators(graph)
    apart: dict[int, tuple[Distance, Node]] = {}

    def fails(probes: Sequence[int]) -> list[bool]:
        values = reference.values(oracle.inputs, {operators[p].origin.name for p in probes})
        oracle.forget()
        oracle.compute({n for p in probes for n in operators[p].nodes if operators[p].origin.name in values})
        for p in probes:
            for value in values.get(operators[p].origin.name, ()):
                found = _divergence(oracle, operators[p], value)
                if found is not None:
                    apart[p] = found
        return [p in apart for p in probes]

    first = first_failure(_needs(graph, operators), fails)
    stage = "the front end or a decomposition"
    if first is None:
        name, node = graph.outputs[0]
        explanation = f"every operator that {reference.name} can show agrees, only the output {name!r} does not"
        finding = Finding(None, stage, distance(expected[name], oracle.exact(node)), explanation)
        return finding, _Part(graph, oracle.inputs, [expected[n] for n, _ in graph.outputs])
    far, node = apart[first]
    finding = Finding(operators[first].origin, stage, far, f"{reference.name} computes this operator otherwise")
    operator = replace(operators[first], nodes=_until(operators[first], node))
    return finding, _Part(*_cut(oracle, [operator]), [oracle.typed(node)])


def _divergence(oracle: Oracle, operator: _Operator, value: NDArray[Any]) -> tuple[Distance, Node] | None:
    """The last of the operator's nodes of ``value``'s shape and type, after its distance; None where one agrees."""
    same = [n for n in operator.nodes if (t := oracle.typed(n)).shape == value.shape and t.dtype == value.dtype]
    if not same or not all(oracle.refutes_reference(node, value) for node in same):
        return None
    return distance(value, oracle.exact(same[-1])), same[-1]


def _until(operator: _Operator, node: Node) -> tuple[Node, ...]:
    return operator.nodes[: operator.nodes.index(node) + 1]


def _rounding(graph: Graph, inputs: Arrays, expected: Arrays, target: Target) -> tuple[Finding, _Part] | None:
    """The finding that rounding explains the distance of library and reference from float64; None if it does not."""
    oracle = Oracle(graph, inputs, precision=target.precision)
    found = _compiled(graph, target, inputs)
    for (name, node), value in zip(graph.outputs, found, strict=True):
        if oracle.refutes(node, value) or oracle.refutes_reference(node, expected[name]):
            return None
    explanation = "no mistake: without a tolerance, the library and the reference agree within what rounding explains"
    far = distance(found[0], oracle.exact(graph.results[0]))
    return Finding(None, "rounding", far, explanation), _Part(graph, inputs, found)


def _compiler(oracle: Oracle, graph: Graph, target: Target) -> tuple[Finding, _Part]:
    """The first operator on which library and interpreter differ: where a pass over the whole graph or a kernel of it
    is wrong; compiled alone; or else within the model."""
    operators = _operators(graph)
    found = _by_pass(oracle, graph, operators, target) or _by_kernel(oracle, graph, operators, target)
    if found is not None:
        return found
    for start in range(0, len(operators), ALONE):
        group = operators[start : start + ALONE]
        part, inputs = _cut(oracle, group)
        local = Oracle(part, inputs, oracle.tolerance, oracle.precision)
        values = _compiled(part, target, inputs)
        wrong = [k for k, node in enumerate(part.results) if local.refutes(node, values[k])]
        if wrong:
            return _operator_alone(oracle, group[wrong[0]], target)
    return _among_others(oracle, graph, operators, target)


def _by_pass(
    oracle: Oracle, graph: Graph, operators: Sequence[_Operator], target: Target
) -> tuple[Finding, _Part] | None:
    """The pass over ``graph`` that changes its outputs, the rule by which it does so, and the operator; None where no
    pass does, or no operator is known."""

    def differs(outputs: Sequence[NDArray[Any]]) -> bool:
        return any(map(oracle.refutes, graph.results, outputs))

    try:
        found = bisection.changed(graph, oracle.inputs, target, differs)
        if found is None:
            return None
        stage, explanation = stages.by_pass(
            {"graph": found.before, found.stage: found.after}, oracle.inputs, target, differs
        ) or (found.stage, PASSES[found.stage])
        operator = _changed_operator(oracle, operators, found, target)
        outputs = interp.run(found.after, oracle.inputs).outputs
    except (InputError, IndexError):  # a graph that cannot be run: compiled operators say more
        return None
    if operator is None:
        return None
    change = None
    if found.step is not None:
        values = bisection.values(found.after, oracle.inputs, found.step) or ("", "")
        change = Change("rule", str(found.step.rule), found.number, found.count, *values)
    value, node = next(pair for pair in zip(outputs, graph.results, strict=True) if oracle.refutes(*pair[::-1]))
    finding = Finding(operator.origin, stage, distance(value, oracle.exact(node)), explanation, change=change)
    alone = _alone(oracle, [operator], target, found.stage)
    return finding, _Part(graph, oracle.inputs, outputs) if alone is None else alone[1]


def _alone(
    oracle: Oracle, operators: Sequence[_Operator], target: Target, stage: str
) -> tuple[_Operator, _Part] | None:
    """The first of ``operators`` that the passes up to ``stage`` change when it is a graph by itself."""
    part, inputs = _cut(oracle, operators)
    local = Oracle(part, inputs, oracle.tolerance, oracle.precision)
    try:
        made = bisection.graphs(part, target, stage)
        outputs = interp.run(made[stage][0], inputs).outputs
    except (KeyError, LuminalError, IndexError):  # the pass does not apply, or needs more than the part
        return None
    for number, (node, value) in enumerate(zip(part.results, outputs, strict=True)):
        if local.refutes(node, value):
            return operators[number], _Part(replace(part, outputs=(part.outputs[number],)), inputs, [value])
    return None


def _changed_operator(
    oracle: Oracle, operators: Sequence[_Operator], found: bisection.Changed, target: Target
) -> _Operator | None:
    """The operator that a pass changes: that of the node to which a rule was applied, or one that it changes alone, or
    else the first whose value is right before the pass, and of whose nodes none has it afterwards."""
    of_rule = found.step.origins if found.step is not None else ()
    named = [operator for origin in of_rule for operator in operators if operator.origin == origin]
    if named:
        return named[0]
    alone = _alone(oracle, operators, target, found.stage)
    if alone is not None:
        return alone[0]
    before, after = (_by_origin(made) for made in (found.before, found.after))
    known = [o for o in operators if _like(o, before) and _like(o, after)]

    def fails(probes: Sequence[int]) -> list[bool]:
        nodes = [known[p].result for p in probes]
        oracle.forget()
        oracle.compute(nodes)
        return [not wrong(found.before, before, known[p]) and wrong(found.after, after, known[p]) for p in probes]

    def wrong(made: Graph, table: Mapping[Origin, list[Node]], operator: _Operator) -> bool:
        same = _like(operator, table)
        kept = interp.run(made, oracle.inputs, keep=same).kept
        return all(oracle.refutes(operator.result, kept[node]) for node in same)

    first = first_failure(_needs(oracle.graph, known), fails)
    return None if first is None else known[first]


def _by_origin(graph: Graph) -> dict[Origin, list[Node]]:
    found: dict[Origin, list[Node]] = {}
    for node in traverse.topological(graph.results):
        for origin in graph.origins.get(node, ()):
            found.setdefault(origin, []).append(node)
    return found


def _like(operator: _Operator, table: Mapping[Origin, list[Node]]) -> list[Node]:
    """The nodes of an operator that may hold its result."""
    result = operator.result
    return [n for n in table.get(operator.origin, ()) if n.shape == result.shape and n.dtype == result.dtype]


def _by_kernel(
    oracle: Oracle, graph: Graph, operators: Sequence[_Operator], target: Target
) -> tuple[Finding, _Part] | None:
    """The kernel that computes something else than its serial nest, the transform by which it does so, and the
    operator; None where each kernel is right by itself."""
    if targets.obstacle(target):
        return None
    program = stages.reached(graph, target)["program"]
    found = kernels.culprit(program, target, interp.bind(graph.inputs, oracle.inputs, {}))
    if found is None:
        return None
    named = set(found.launch.origins)
    members = [operator for operator in operators if str(operator.origin) in named]
    if not members:
        return None
    part, inputs = _cut(oracle, members)
    local = Oracle(part, inputs, oracle.tolerance, oracle.precision)
    values = _compiled(part, target, inputs)
    wrong = [k for k, node in enumerate(part.results) if local.refutes(node, values[k])]
    operator = members[wrong[0] if wrong else -1]
    where = f"the kernel {found.kernel.name}, of {'; '.join(found.launch.origins)},"
    if found.transform is None:
        stage, how = "code generation", f"{where} is right as a loop nest in Python, and not as it is compiled"
    else:
        stage, how = "scheduling", f"{where} computes something else than its serial nest"
    change = Change("kernel" if found.transform is None else "transform", found.transform or found.kernel.name,
                    found.number, found.of, found.before, found.after)  # fmt: skip
    if wrong:
        value, node = values[wrong[0]], part.results[wrong[0]]
        alone = replace(part, outputs=(part.outputs[wrong[0]],))
        shown = _Part(alone, {n.attr.name: inputs[n.attr.name] for n in alone.inputs}, [value])
        return Finding(operator.origin, stage, distance(value, local.exact(node)), how, change=change), shown
    everything = _compiled(graph, target, oracle.inputs)
    pairs = list(zip(graph.results, everything, strict=True))
    node, value = next((pair for pair in pairs if oracle.refutes(*pair)), pairs[0])
    far = distance(value, oracle.exact(node))
    return Finding(operator.origin, stage, far, how, change=change), _Part(graph, oracle.inputs, everything)


def _operator_alone(oracle: Oracle, operator: _Operator, target: Target) -> tuple[Finding, _Part]:
    part, inputs = _cut(oracle, [operator])
    local = Oracle(part, inputs, oracle.tolerance, oracle.precision)
    node = part.results[0]
    found = _compiled(part, target, inputs)
    stage, explanation = stages.introduced(part, inputs, target, lambda outputs: local.refutes(node, outputs[0]))
    return Finding(operator.origin, stage, distance(found[0], local.exact(node)), explanation), _Part(
        part, inputs, found
    )


def _among_others(
    oracle: Oracle, graph: Graph, operators: Sequence[_Operator], target: Target
) -> tuple[Finding, _Part]:
    """Where each operator agrees alone: the first whose value is wrong when the model outputs it as well."""
    apart: dict[int, tuple[Distance, NDArray[Any]]] = {}

    def fails(probes: Sequence[int]) -> list[bool]:
        nodes = [operators[p].result for p in probes]
        oracle.forget()
        oracle.compute(nodes)
        for p, node, value in zip(
            probes, nodes, _compiled(_with_outputs(graph, nodes), target, oracle.inputs), strict=True
        ):
            if oracle.refutes(node, value):
                apart[p] = distance(value, oracle.exact(node)), value
        return [p in apart for p in probes]

    first = first_failure(_needs(graph, operators), fails)
    if first is not None:
        origin, node, (far, value) = operators[first].origin, operators[first].result, apart[first]
        part = _Part(_with_outputs(graph, [node]), oracle.inputs, [value])
        explanation = "the operator agrees by itself: the mistake is in how it shares kernels with others"
    else:
        found = _compiled(graph, target, oracle.inputs)
        pairs = list(zip(graph.results, found, strict=True))
        wrong = next((pair for pair in pairs if oracle.refutes(*pair)), None)
        node, value = wrong or pairs[0]
        origin, far, part = None, distance(value, oracle.exact(node)), _Part(graph, oracle.inputs, found)
        if wrong is None:
            explanation = "the library agrees with the interpreter on the graph that was compiled"
            return Finding(None, stages.CHOSEN, far, explanation), part
        explanation = "every operator agrees once its value is stored: the mistake is in how operators share kernels"
    by_pass = stages.by_pass(
        stages.reached(part.graph, target),
        oracle.inputs,
        target,
        lambda outputs: any(map(oracle.refutes, part.graph.results, outputs)),
    )
    stage, explanation = by_pass or ("fusion", explanation)
    return Finding(origin, stage, far, explanation), part


def _with_outputs(graph: Graph, nodes: Sequence[Node]) -> Graph:
    outputs = tuple((f"value_{k}", node) for k, node in enumerate(nodes))
    return replace(graph, outputs=outputs, structure={})


def _compiled(graph: Graph, target: Target, inputs: Arrays) -> list[NDArray[Any]]:
    module = api.compile(graph, target=target, emulate=targets.needs_emulation(target))
    assert isinstance(module, Module)
    given = {name: inputs[name] for name in module.input_names}
    fault, found = survival.run(module, given)
    if fault:
        return [survival.opposite(value) for value in interp.run(graph, inputs).outputs]
    found = module.run(given) if found is None else found
    return [found[name] for name in module.output_names]


def _cut(oracle: Oracle, operators: Sequence[_Operator]) -> tuple[Graph, Arrays]:
    """A graph of independent ``operators``, where inputs replace the results of other operators, and the values of its
    inputs. The model's inputs stay, since its dimensions take their sizes from them."""
    graph = oracle.graph
    varying = live(graph)
    inputs: dict[Node, Node] = {node: node for node in graph.inputs}
    origins: ir.Origins = {}
    outputs: list[tuple[str, Node]] = []
    for number, operator in enumerate(operators):
        built: dict[Node, Node] = {}
        for node in operator.nodes:
            for operand in node.inputs:
                if operand in built:
                    continue
                if operand in varying and operand not in inputs:
                    name = f"operand_{len(inputs)}"
                    inputs[operand] = ir.input_(name, operand.shape, operand.dtype)
                built[operand] = inputs.get(operand, operand)
            built[node] = traverse.rebuild(node, [built[operand] for operand in node.inputs])
            origins[built[node]] = (*origins.get(built[node], ()), operator.origin)
        outputs.append((f"value_{number}", built[operator.result]))
    part = Graph(f"{graph.name}_part", tuple(inputs.values()), tuple(outputs), graph.dims, origins, exact=graph.exact)
    kept = interp.run(graph, oracle.inputs, keep=inputs).kept
    return part, {new.attr.name: kept[old] for old, new in inputs.items()}
