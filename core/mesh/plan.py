"""The plan of a graph along one axis of a mesh: the mode of every node, chosen by cost, and what it moves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from luminal.core import ops, traverse
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.mesh import cost, rules
from luminal.core.mesh.choose import Problem
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.placement import WHOLE, Owned, Placement, Split
from luminal.core.mesh.rules import Mode
from luminal.core.ops import Kind


@dataclass(frozen=True)
class Plan:
    """How the ``size`` ranks along ``axis`` divide a graph. ``modes`` has each node's; ``wanted`` is how the results
    have to lie in the end."""

    axis: str
    size: int
    modes: Mapping[Node, Mode]
    wanted: tuple[Placement, ...]


def planned(
    graph: Graph, axis: str, size: int, given: Mapping[Node, Placement], wanted: Mapping[str, Placement],
    weights: Mapping[Node, Placement | None], link: Link, rates: Rates, free: Collection[str] = (),
) -> Plan:  # fmt: skip
    """The plan of ``graph`` that costs least. ``given`` are placements of nodes that are settled; outputs lie as
    ``wanted`` says by their names, those that are ``free`` as they are computed, others whole. ``weights`` are inputs
    that stand for constants, of which a rank keeps what it needs, each with how it has it anyway, if at all.

    Raises InputError where what was given cannot be.
    """
    # A state that is only written lies somewhere, too.
    order = traverse.topological([*graph.roots, *(state.input for state in graph.states)], graph.measured)
    settled = {node: WHOLE for node in graph.inputs if node not in weights} | dict(given)
    states = {state.input: node for state, node in graph.left}
    for state in graph.states:
        first = state.initial.attr.array.reshape(-1)
        # What differs at first is a parameter, which is read as a whole unless somebody says otherwise.
        if state.input not in given and bool((first == first[:1]).all()):
            del settled[state.input]
    found = rules.candidates(order, size, settled, weights)
    readers = traverse.users(graph.roots)
    kept = {**weights, **{state.input: None for state in graph.states}}  # a rank has to have room for it
    problem = Problem()
    modes: dict[Node, list[Mode]] = {}
    numbers: dict[Node, int] = {}
    for node in order:
        modes[node] = rules.modes(node, found[node], found, size)
        if not modes[node]:
            raise InputError(f"mesh: {node} cannot lie {found[node][0]} along {axis!r}: nothing computes it so")
        product = node.op is ops.MUL and all(r.op.kind is Kind.REDUCE for r in readers[node])
        numbers[node] = problem.add([_own(node, mode, product, size, rates, kept) for mode in modes[node]])
        for operand in dict.fromkeys(node.inputs):
            is_weight = operand in weights
            read = [mode.reading(node, operand) for mode in modes[node]]
            costs = [
                [sum(_moving(operand, a.result, p, size, link, rates, is_weight) for p in places) for places in read]
                for a in modes[operand]
            ]
            problem.join(numbers[operand], numbers[node], np.array(costs))
    outputs = [wanted.get(name, WHOLE) for name, _ in graph.returned]
    ends = [*zip(graph.results, outputs, strict=False), *((node, WHOLE) for node in graph.measured.values())]
    as_computed = [name in free for name, _ in graph.returned]
    for number, (node, placement) in enumerate(ends):
        if number < len(as_computed) and as_computed[number]:
            column = [[float("inf") if isinstance(mode.result, Owned) else 0.0] for mode in modes[node]]
        else:
            column = [[_moving(node, mode.result, placement, size, link, rates, False)] for mode in modes[node]]
        problem.join(numbers[node], problem.add([0.0]), np.array(column))
    for before, after in states.items():
        costs = [
            [cost.conversion(after, b.result, a.result, size, link, rates) for a in modes[before]] for b in modes[after]
        ]
        problem.join(numbers[after], numbers[before], np.array(costs))
    values = problem.solve()
    chosen = {node: modes[node][values[number]] for node, number in numbers.items()}
    given_so = zip(graph.returned, outputs, as_computed, strict=True)
    lie = [chosen[node].result if is_free else placement for (_, node), placement, is_free in given_so]
    left = [chosen[state.input].result for state in graph.states]
    return Plan(axis, size, chosen, (*lie, *left, *(WHOLE for _ in graph.measured)))


def _own(
    node: Node, mode: Mode, is_product: bool, size: int, rates: Rates, kept: Mapping[Node, Placement | None]
) -> float:  # fmt: skip
    parts = cost.shares(mode.result, size) if mode.shared else 1
    if node in kept:
        held = 0.0 if kept[node] == mode.result else rates.held
        return cost.bytes_of(node) * (1 + held) / parts / rates.memory
    return cost.work(node, is_product, parts, rates)


def _moving(
    node: Node, before: Placement, after: Placement, size: int, link: Link, rates: Rates, free: bool
) -> float:  # fmt: skip
    if not free:
        return cost.conversion(node, before, after, size, link, rates)
    return 0.0 if before == after or (before == WHOLE and isinstance(after, Split)) else float("inf")
