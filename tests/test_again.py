"""What a backward pass reads: values that are computed again instead of stored, and operands in another order."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest

from luminal.core import interp, ir, movement, ops, traverse, types
from luminal.core import target as targets
from luminal.core.decompose import activation, hyperbolic
from luminal.core.decompose import contraction as decompose
from luminal.core.gradient import gradients
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.choose.arrangement import Arrangement
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.contraction.roles import contraction_of, exchanged
from luminal.core.schedule.fusion import again
from luminal.core.schedule.program.ir import Program
from luminal.core.schedule.transform.transpose import TransposeInRegisters
from luminal.core.target import Target
from tests.schedule_support import check_outputs, contracts, run_program, transformed, with_costs

ROWS, WIDE, HIDDEN = 12, 8, 16
TARGET = targets.AVX512


def given(name: str, *shape: int) -> Node:
    return ir.input_(name, shape, types.f32)


def graph(*roots: Node) -> Graph:
    inputs = tuple(node for node in traverse.topological(roots) if node.op is ops.INPUT)
    return Graph("g", inputs, tuple((f"y{k}", root) for k, root in enumerate(roots)), ())


def compiled(made: Graph, target: Target) -> tuple[Program, Arrangement]:
    reached: list[Arrangement] = []
    program = compile_graph(
        made, target, lambda _, value: reached.append(value) if isinstance(value, Arrangement) else None
    )
    return program, reached[0]


def checked(made: Graph, target: Target, depth: int) -> tuple[Program, Arrangement]:
    """``made``, compiled, after its nests were run."""
    random = np.random.default_rng(0)
    inputs = {n.attr.name: random.standard_normal([int(s) for s in n.shape], np.float32) for n in made.inputs}
    program, arranged = compiled(made, target)
    check_outputs(made, interp.run(made, inputs).outputs, run_program(program, inputs), depth)
    return program, arranged


def activated(name: str) -> Graph:
    """Gradients of two layers with an activation between them."""
    x, first, second = given("x", ROWS, WIDE), given("first", HIDDEN, WIDE), given("second", WIDE, HIDDEN)
    bias = given("bias", HIDDEN)
    hidden = decompose.linear(x, first, bias)
    if name == "gelu as spelled":
        inner = (hidden + hidden * hidden * hidden * 0.044715) * 0.7978846
        hidden = hidden * 0.5 * (hyperbolic.tanh(inner) + 1)
    else:
        hidden = hidden * activation.sigmoid(hidden)
    result = decompose.linear(hidden, second, None)
    return graph(result, *gradients(result, [first, second], result + result))


def large(arranged: Arrangement) -> set[Node]:
    """The values of a hidden layer that are stored."""
    return {n for n in arranged.fusion.stored if n.size == ROWS * HIDDEN and n.dtype == types.f32}


@pytest.mark.parametrize(("name", "fewer"), [("gelu as spelled", 3), ("swish", 1)])
def test_cheap_values_are_computed_again(name: str, fewer: int) -> None:
    made = activated(name)
    _, arranged = checked(made, TARGET, 4 * HIDDEN)
    _, before = compiled(made, with_costs(TARGET, kernels={"again": 0}))
    assert len(large(before)) - len(large(arranged)) >= fewer


def test_what_is_not_computed_again() -> None:
    """Costly functions, operands of products, values that are given out, that a larger one would repeat, or that change
    where they lie."""
    x, y, state = given("x", ROWS, WIDE), given("y", WIDE, WIDE), given("state", ROWS, WIDE)
    costly, loaded, out, few = ir.binary(ops.DIV, x, x + 1), x + 2, x + 3, given("few", WIDE) + 4
    changed = state + 5
    product = decompose.linear(loaded, y, None)
    spread = ir.expand(movement.unsqueeze(few, [0]), (ROWS, WIDE))
    again_ = x + 6
    late = (product + costly) * (product + out) * (product + spread) * (product + changed) * (product + again_)
    order = traverse.topological([late, out])
    found = again.computed_again(
        order, again.consumers(order), {n for n in order if n.op is ops.SUM_REDUCE}, {late, out}, {state}, 8, 16
    )
    assert again_ in found and found.isdisjoint({costly, loaded, out, few, changed, product})


def test_what_is_stored_is_the_least() -> None:
    """Of four values that are read later, one gives three; and a value takes the place of the one that it is of."""
    x, y = given("x", ROWS, WIDE), given("y", WIDE, WIDE)
    first = decompose.linear(x, y, None)
    root = ir.unary(ops.SQRT, first)
    several = [root * 2, root * root, 1 - root * root]
    second = decompose.linear(root + first, y, None)
    late = second * several[0] + second * several[1] + second * several[2]
    alone = decompose.linear(x + 1, y, None) + 1
    order = traverse.topological([late * (second + alone)])
    products = {n for n in order if n.op is ops.SUM_REDUCE}
    found = again.computed_again(order, again.consumers(order), products, {order[-1]}, (), 8, 16)
    assert found.issuperset(several) and found.isdisjoint({root, first, alone})
    assert not again.computed_again(order, again.consumers(order), products, {order[-1]}, (), 0, 16)


def test_what_reads_others_reads_few() -> None:
    """A value that would be computed of more others than suits a kernel is stored, and so is part of it."""
    weight = given("weight", WIDE, WIDE)
    single = [ir.cast(ir.input_(f"x{k}", (ROWS, WIDE), types.u8), types.f32) for k in range(6)]
    whole = functools.reduce(operator.add, single)
    late = decompose.linear(given("y", ROWS, WIDE), weight, None) * whole

    def found(sources: int) -> set[Node]:
        order = traverse.topological([late])
        products = {n for n in order if n.op is ops.SUM_REDUCE}
        return again.computed_again(order, again.consumers(order), products, {late}, (), 32, sources)

    assert whole in found(16) and whole not in found(4)


def test_numbers_join_no_layers() -> None:
    """Cuts are sought in each layer alone: a number that all read, as 1 or 0.5, is no way from one to another."""
    x, weight = given("x", ROWS, WIDE), given("weight", WIDE, WIDE)
    late = []
    for _ in range(3):
        x = decompose.linear(x, weight, None)
        late.append(x * 0.5 + 1)
    cheap = {node: 1 for root in late for node in (root, *root.inputs) if node.op.kind is ops.Kind.ELEMENTWISE}
    assert len(again._connected(late, cheap)) == 3


# ---- operands in another order ---------------------------------------------------------------------------------------


def weight_gradient(terms: int, rows: int, columns: int, updating: bool = False) -> Graph:
    """The gradient of a weight that is stored ``[rows, columns]``, as a product of columns by rows."""
    x, g = given("x", terms, rows), given("g", terms, columns)
    found = decompose.linear(movement.permute(g, (1, 0)), movement.permute(x, (1, 0)), None)
    found = movement.permute(found, (1, 0))
    return graph(given("weight", rows, columns) - found * found if updating else found)


@pytest.mark.parametrize("updating", [False, True])
@pytest.mark.parametrize("target", [targets.AVX2, targets.AVX512], ids=["avx2", "avx512"])
def test_results_along_rows_exchange_the_operands(target: Target, updating: bool) -> None:
    program, _ = checked(weight_gradient(64, 64, 64, updating), target, 64 * 64)
    (contract,) = contracts(program)
    assert contract.a == "x0"
    (launch,) = (s for s in program.entries[0].region.steps if getattr(s, "operations", 0))
    assert launch.arguments[0] == "x"


def found_in(made: Graph) -> Contraction:
    (found,) = filter(None, map(contraction_of, traverse.topological(made.roots)))
    return found


def test_operands_that_keep_their_places() -> None:
    """A constant is packed where it is compiled, and windows are rows. Few rows would leave most of a vector empty."""
    x = given("x", 9, 40)
    weight = ir.constant(np.ones((9, 32), np.float32))
    constant = decompose.linear(movement.permute(x, (1, 0)), movement.permute(weight, (1, 0)), None)
    assert exchanged(found_in(graph(constant))) is None
    image, filters = given("image", 1, 3, 8, 8), given("filters", 16, 3, 3, 3)
    windows = decompose.conv(image, filters, pads_begin=(0, 0), pads_end=(0, 0))
    assert exchanged(found_in(graph(windows))) is None
    few, _ = compiled(weight_gradient(64, 256, 2), TARGET)
    (launch,) = (s for s in few.entries[0].region.steps if getattr(s, "operations", 0))
    assert launch.arguments[0] == "g"


CROWDED = with_costs(targets.AVX2, memory={"l1_way": 256}, tiles={"of_panel": 1})


def test_terms_in_one_set_of_the_cache_are_copied_side_by_side() -> None:
    """Rows of A that lie a way of the cache apart: a kernel of its own turns them, and B is packed."""
    made = weight_gradient(150, 64, 96)
    program, _ = checked(made, CROWDED, 150)
    turned = [kernel.name for kernel in transformed(program, TransposeInRegisters)]
    plain, _ = compiled(made, targets.AVX2)
    assert turned and not transformed(plain, TransposeInRegisters)
    (contract,) = contracts(program)
    assert contract.a_row == 150 and next(iter(contracts(plain))).a_row == 1
