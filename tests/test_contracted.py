"""Contractions are found once, and what passes carry is what one would find in the graphs that they make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from luminal.core import interp, ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.ir import Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.contraction import roles as finding
from luminal.core.schedule.contraction.contracted import Contracted, Make
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.numeric import bit_maxima, digits, long_reductions, rounding
from tests.schedule_graphs import GRAPHS

TARGETS = [("avx512", "fp32"), ("avx512-bf16", "bf16"), ("amx", "bf16"), ("avx2", "bf16"), ("cuda:sm_80", "fp16")]
PASSES = [(rounding, "rounded"), (digits, "eased"), (bit_maxima, "of_bits"), (long_reductions, "in_parts")]


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_carried_is_what_a_pass_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is lost on the way, and each has the value of its node and the roles that its operands say."""

    def checked(done: Any) -> Any:
        def made(whole: Contracted, *args: Any) -> Contracted:
            found: Contracted = done(whole, *args)
            assert distinct(found) == distinct(whole)
            assert all(roles(contraction) == stated(contraction) for contraction in found.contractions.values())
            here = [node for node in traverse.topological(found.graph.roots) if node in found.contractions]
            pairs = [x for node in here for x in (node, found.contractions[node].node())]
            outputs = tuple((f"value{k}", x) for k, x in enumerate(pairs))
            values = interp.run(replace(found.graph, outputs=outputs, states=()), case.inputs).outputs
            for expected, value in zip(values[::2], values[1::2], strict=True):
                np.testing.assert_array_equal(value, expected)
            return found

        return made

    case = GRAPHS[name]()
    for module, function in PASSES:
        monkeypatch.setattr(module, function, checked(getattr(module, function)))
    for target, precision in TARGETS:
        compile_graph(case.graph, targets.parse(target, precision))


def distinct(whole: Contracted) -> int:
    return len({contraction.node() for contraction in whole.contractions.values()})


def stated(found: Contraction) -> dict[str, set[int]]:
    named = {"batch": found.batch, "m": found.m, "n": found.n, "k": found.k}
    return {role: {k for k in axes if found.shape[k] != 1} for role, axes in named.items()}


def roles(found: Contraction) -> dict[str, set[int]]:
    """The axes of each role: summed, or by the operands that they index."""
    assigned: dict[str, set[int]] = {"batch": set(), "m": set(), "n": set(), "k": set()}
    for k, axis in enumerate(found.axes):
        if (variable := sym.as_var(axis)) is not None:
            in_a, in_b = (variable in x.variables for x in (found.a, found.b))
            assert in_a or in_b
            role = "k" if k in found.k else "batch" if in_a and in_b else "m" if in_a else "n"
            assigned[role].add(k)
    return assigned


@pytest.mark.parametrize("name", ["linear_with_epilogue", "attention_block"])
@pytest.mark.parametrize(("target", "precision"), TARGETS)
def test_roles_are_assigned_once(name: str, target: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the whole lowering, whoever asks."""
    assigned: list[Contraction] = []

    def counted(*args: Any) -> Contraction | None:
        found = of_roles(*args)
        assigned.extend([] if found is None else [found])
        return found

    of_roles = finding._assigned
    monkeypatch.setattr(finding, "_assigned", counted)
    compile_graph(GRAPHS[name]().graph, targets.parse(target, precision))
    assert len(assigned) == {"linear_with_epilogue": 1, "attention_block": 6}[name]


def test_what_replaces_a_contraction_by_something_else_is_looked_at_anew() -> None:
    """A square root, then another contraction: none inherits what the sum was."""
    graph = GRAPHS["linear_with_epilogue"]().graph
    whole = Contracted.of(graph)
    ((node, before),) = whole.contractions.items()
    total = ir.elementwise(ops.SQRT, node)
    assert not whole.remade(lambda roots, became: replacing(node, total)).contractions
    turned = replace(before, a=before.b, b=before.a, m=before.n, n=before.m).node()
    ((new, after),) = whole.remade(lambda roots, became: replacing(node, turned)).contractions.items()
    assert new is turned and roles(after) == stated(after)


def replacing(node: Node, other: Node) -> Make:
    return lambda x, operands: other if x is node else traverse.rebuild(x, operands)
