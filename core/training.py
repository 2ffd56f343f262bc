"""A graph that computes a loss, and the graph of a whole step of training: forward, backward, clipping, optimiser.

What a step changes is state: parameters, what the optimiser keeps of them, counts of steps, and whatever state the
graph has of its own. Learning rates are inputs. So one call is one step, and other entries of the library read the same
parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from luminal.core import derivative, ir, ops, traverse
from luminal.core.decompose import optimisers
from luminal.core.decompose.optimisers import OPTIMISERS, Numbers
from luminal.core.errors import InputError
from luminal.core.gradient import pulled_back
from luminal.core.ir import Graph, Node, State, constant
from luminal.core.movement import reshape, slice_
from luminal.core.types import DType, f64

LOSS, RATES, NORM = "loss", "lr", "gradient_norm"
COUNT, GATHERED = "optimizer.step", "gradients"  # names of states


@dataclass(frozen=True)
class Parameter:
    """A trained parameter: its ``input`` of the graph, whose name is the state's, the value that it begins with, and
    the number of its group."""

    input: Node
    initial: Node
    group: int

    @property
    def name(self) -> str:
        return str(self.input.attr.name)

    def kept(self, what: str) -> str:
        """The name of the state that holds what an optimiser keeps of it."""
        return f"{self.name}.{what}"


@dataclass(frozen=True)
class Plan:
    """How a step is made of gradients. ``groups`` has for each group of parameters the optimiser's name and options;
    ``clip_norm`` and ``clip_value`` bound the gradients; ``accumulate`` calls give the gradients of one step."""

    groups: Sequence[tuple[str, Mapping[str, Any]]]
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    told: bool = False  # whether the norm of all gradients is an output
    shared: DType = f64  # the type of the rates, and of all that is computed once for a group


@dataclass
class _Left:
    """States with their new values, in order."""

    states: list[tuple[State, Node]] = field(default_factory=list)

    def add(self, name: str, initial: Node, new: Callable[[Node], Node]) -> None:
        before = ir.input_(name, initial.shape, initial.dtype)
        self.states.append((State(before, f"{name}.next", initial), new(before)))


def count_name(group: int, groups: int) -> str:
    """The state that counts the steps of a group."""
    return COUNT if groups == 1 else f"{COUNT}.{group}"


def gradients(graph: Graph, parameters: Sequence[Parameter], share: float = 1.0) -> tuple[Graph, list[Node | None]]:
    """The gradient of the first output of ``graph``, times ``share``, with respect to each of ``parameters``: None
    where the loss does not depend on it. The graph that is returned has the origins of the new nodes.

    Raises InputError where that output is not one float, and UnsupportedError as ``core.gradient`` does.
    """
    loss = checked_loss(graph)
    origins = dict(graph.origins)
    with derivative.recorded():
        seed = ir.expand(constant(share, loss.dtype), loss.shape)
        found = pulled_back([loss], [seed], [p.input for p in parameters], origins)
    return replace(graph, origins=origins), found


def checked_loss(graph: Graph) -> Node:
    """The first output of ``graph``. Raises InputError where it is not one float."""
    name, loss = graph.returned[0]
    if not loss.dtype.is_float or loss.size != 1:
        raise InputError(
            f"training: expected a loss that is one float, found {name}: {loss.dtype}{list(loss.shape)}; take the mean "
            "or the sum of it"
        )
    return loss


@dataclass(frozen=True)
class Step:
    """The entries of a step, and what the optimiser keeps of each parameter that it changes, by the parameter's name.
    ``train`` is one step; where gradients of several calls are added up, ``accumulate`` is for all but the last."""

    entries: Mapping[str, Graph]
    kept: Mapping[str, Sequence[str]]


def step(graph: Graph, parameters: Sequence[Parameter], plan: Plan) -> Step:
    """A step that descends along the gradient of the first output of ``graph``; others come with it.

    Inputs of the graph that are in ``parameters`` become states. Those that the loss does not depend on stay as they
    are. Raises InputError where it depends on none, and as ``gradients`` does.
    """
    graph, found = gradients(graph, parameters, 1 / plan.accumulate)
    trained = [(p, g) for p, g in zip(parameters, found, strict=True) if g is not None]
    if not trained:
        raise InputError("training: the loss depends on none of the parameters that the optimiser has")
    unused = [p for p, g in zip(parameters, found, strict=True) if g is None]
    entries: dict[str, Graph] = {}
    names, parts = [p for p, _ in trained], [g for _, g in trained]
    if plan.accumulate > 1:
        left = _Left()
        for parameter, part in trained:
            left.add(*_gathered(parameter), partial(operator.add, part))
        same = [(State(p.input, f"{p.name}.next", p.initial), p.input) for p in parameters]
        entries["accumulate"] = _entry(graph, parameters, (), (), [*same, *left.states])
        parts = [ir.input_(*_typed(p)) + g for p, g in trained]
    rates = ir.input_(RATES, (len(plan.groups),), plan.shared)
    told: list[tuple[str, Node]] = []
    if plan.clip_value is not None:
        parts = optimisers.clipped_to_value(parts, plan.clip_value)
    if plan.clip_norm is not None:
        parts, norm = optimisers.clipped_to_norm(parts, plan.clip_norm)
        told = [(NORM, norm)] if plan.told else []
    states = updated(names, parts, plan, rates)
    states += [(State(p.input, f"{p.name}.next", p.initial), p.input) for p in unused]
    if plan.accumulate > 1:
        zeros = _Left()
        for parameter in names:
            zeros.add(*_gathered(parameter), lambda before: ir.expand(constant(0, before.dtype), before.shape))
        states += zeros.states
    return Step(
        {"train": _entry(graph, parameters, (rates,), told, states), **entries},
        {p.name: tuple(keeps(p, plan)) for p in names},
    )


def keeps(parameter: Parameter, plan: Plan) -> Mapping[str, tuple[int, ...]]:
    """The shape of everything that the optimiser keeps of a parameter."""
    name, options = plan.groups[parameter.group]
    return OPTIMISERS[name].kept(options, tuple(n for n in parameter.input.shape if isinstance(n, int)))


def _gathered(parameter: Parameter) -> tuple[str, Node]:
    name, shape, dtype = _typed(parameter)
    return name, constant(np.zeros(shape, dtype.numpy))


def _typed(parameter: Parameter) -> tuple[str, Any, Any]:
    return parameter.kept(GATHERED), parameter.input.shape, parameter.input.dtype


def updated(
    parameters: Sequence[Parameter], gradients: Sequence[Node], plan: Plan, rates: Node
) -> list[tuple[State, Node]]:
    """The states of parameters and of what optimisers keep of them, with their new values."""
    left = _Left()
    numbers: list[Numbers] = []
    for number, (name, options) in enumerate(plan.groups):
        rate = reshape(slice_(rates, 0, number, 1), ())
        if OPTIMISERS[name].counts(options):
            left.add(count_name(number, len(plan.groups)), constant(np.zeros((), np.int64)), lambda before: before + 1)
            state, after = left.states[-1]
            numbers.append(Numbers(rate, state.input, after))
        else:
            numbers.append(Numbers(rate))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        name, options = plan.groups[parameter.group]
        x = parameter.input
        shapes = keeps(parameter, plan)
        kept = {what: ir.input_(parameter.kept(what), shape, x.dtype) for what, shape in shapes.items()}
        new, after_ = optimisers.stepped(name, x, gradient, kept, options, numbers[parameter.group])
        left.states.append((State(x, f"{parameter.name}.next", parameter.initial), new))
        for what, shape in shapes.items():
            zeros = constant(np.zeros(shape, x.dtype.numpy))
            left.states.append((State(kept[what], f"{parameter.kept(what)}.next", zeros), after_[what]))
    return left.states


def _entry(
    graph: Graph, parameters: Sequence[Parameter], more: Sequence[Node], told: Sequence[tuple[str, Node]],
    states: Sequence[tuple[State, Node]],
) -> Graph:  # fmt: skip
    """``graph`` with inputs and outputs added, parameters that are inputs no more, and ``states`` beside its own."""
    own = {p.input for p in parameters}
    given = [node for node in graph.given if node not in own]
    every = [*graph.left, *states]
    inputs = (*given, *more, *(state.input for state, _ in every))
    outputs = (*graph.returned, *told, *((state.output, node) for state, node in every))
    made = replace(graph, inputs=inputs, outputs=outputs, states=tuple(state for state, _ in every))
    made = derivative.plain(made)
    used = set(traverse.everything(made.roots))
    return replace(
        made,
        origins={node: found for node, found in made.origins.items() if node in used},
        names={node: name for node, name in made.names.items() if node in used and node.op is ops.CONSTANT},
    )


def reading(graph: Graph, parameters: Sequence[Parameter]) -> Graph:
    """``graph`` with inputs that are in ``parameters`` as states that it leaves as they are."""
    present = [p for p in parameters if p.input in graph.inputs]
    states = [(State(p.input, f"{p.name}.next", p.initial), p.input) for p in present]
    return _entry(graph, parameters, (), (), states)
