"""Models divided among the ranks of a mesh: the plan, the graphs of ranks in lock step, and programs."""

from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch

import luminal
from luminal import api, meshes
from luminal.core import derivative, exchange, interp, ir, ops, traverse
from luminal.core.differentiate import differentiated
from luminal.core.errors import InputError
from luminal.core.mesh import choose, divide, traffic
from luminal.core.mesh.choose import Problem
from luminal.core.mesh.cost import Link, Rates
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.fusion import order
from luminal.core.schedule.program import interpreter
from luminal.core.schedule.program.ir import Exchange, Wait
from luminal.core.target import ALL
from luminal.core.types import f32, f64, i64
from luminal.frontends.fx import export
from tests.compiled_support import exactly

GROUP = ops.Group("x", 2)
FREE = "10000GB/s,1ns"  # a link over which even models as small as these are divided


class Block(torch.nn.Module):
    """A transformer's block in the form of GPT-2: one matrix for three projections."""

    def __init__(self, width: int = 32, parts: int = 4) -> None:
        super().__init__()
        self.parts = parts
        self.before, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.joined = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.joined(self.before(x)).split(width, dim=2)
        q, k, v = (y.view(batch, length, self.parts, -1).transpose(1, 2) for y in (q, k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))


class Images(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1)
        self.last = torch.nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(x.mean((2, 3)))


class Experts(torch.nn.Module):
    """A mixture of experts: of each row, two of eight networks, whose matrices are looked up."""

    def __init__(self, count: int = 8, width: int = 16) -> None:
        super().__init__()
        self.router = torch.nn.Linear(width, count)
        self.up = torch.nn.Parameter(torch.randn(count, 4 * width, width) / 4)
        self.down = torch.nn.Parameter(torch.randn(count, width, 4 * width) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = torch.topk(torch.softmax(self.router(x), -1), 2)
        y = torch.relu(torch.einsum("rkoi,ri->rko", self.up[chosen], x))
        return torch.einsum("rkoi,rki,rk->ro", self.down[chosen], y, shares)


SHARDS = {  # what is asked for
    "images": {"second.weight": {"tensor": 0}},  # images so small cost less whole
    "experts": {"up": {"tensor": 0}, "down": {"tensor": 0}},
}


@cache
def model(kind: str) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    if kind == "images":
        return Images().eval(), torch.randn(2, 3, 8, 8)
    if kind == "experts":
        return Experts().eval(), torch.randn(6, 16)
    return torch.nn.Sequential(Block(), Block()).eval(), torch.randn(1, 6, 32)


def in_lockstep(graphs, inputs, mode="typed"):
    """The first output of each rank."""
    return exchange.lockstep(
        len(graphs), lambda rank, other: interp.run(graphs[rank], inputs[rank], mode, exchange=other).outputs[0]
    )


@pytest.mark.parametrize("mesh", [{"tensor": 2}, {"tensor": 4}, {"data": 2, "tensor": 2}])
@pytest.mark.parametrize("kind", ["block", "images"])
def test_ranks_compute_what_one_does(kind: str, mesh: dict[str, int]) -> None:
    module, x = model(kind)
    graph = api.read(module, (x,))
    name = graph.inputs[0].attr.name
    found = meshes.divided({"main": graph}, mesh, SHARDS.get(kind, "auto"), FREE)
    graphs = [rank["main"] for rank in found.ranks]
    ((expected, bound),) = exactly(graph, {name: x.numpy()}, f64.eps)
    for output in in_lockstep(graphs, [{name: x.numpy()}] * len(graphs), "float64"):
        np.testing.assert_allclose(output, expected, rtol=0, atol=bound)
    assert any(node.op is ops.EXCHANGE for node in traverse.topological(graphs[0].roots))


def test_the_plan_of_a_transformer_is_that_of_megatron() -> None:
    """Matrices before a nonlinearity are split by their outputs, those after it by their inputs, and each pair adds up
    partial results once (Shoeybi et al., 2019)."""
    module = torch.nn.Sequential(Block(768, 12), Block(768, 12)).eval()
    found = meshes.divided({"main": api.read(module, (torch.randn(1, 128, 768),))}, {"tensor": 2})
    cuts = {name: " ".join(split) for name, split in found.cuts["main"].items()}
    for layer in ("0", "1"):
        # The three projections stay split alike: a rank has half of each, 384 in turn of 2304.
        assert "axis 0 in parts of 384" in cuts[f"{layer}.joined.weight"], cuts
        assert "axis 0 in parts of 1536" in cuts[f"{layer}.up.weight"], cuts
        assert "axis 1 in parts of 384" in cuts[f"{layer}.out.weight"], cuts
        assert "axis 1 in parts of 1536" in cuts[f"{layer}.down.weight"], cuts
    sums = [m for m in found.plans["main"][0].modes.values() if str(m.result) == "partial sum"]
    assert len(sums) == 4


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_are_divided_by_their_number_where_it_is_asked_for(ranks: int) -> None:
    """A rank has its experts alone, looks up zeros in place of others, and partial outputs are added up."""
    module, x = model("experts")
    graph = api.read(module, (x,))
    name = graph.inputs[0].attr.name
    asked = {"main": graph}, {"tensor": ranks}, SHARDS["experts"], FREE
    found = meshes.divided(*asked)
    for weight in ("up", "down"):
        assert [cut.split(" in ")[0] for cut in found.cuts["main"][weight]] == ["axis 0"]
    (part,) = meshes.plans(*asked).values()
    assert sum(weight.of(1).attr.nbytes for weight in part.weights.values()) < 1.1 * 2 * 8 * 16 * 64 * 4 / ranks
    ((expected, bound),) = exactly(graph, {name: x.numpy()}, f64.eps)
    graphs = [rank["main"] for rank in found.ranks]
    outputs = in_lockstep(graphs, [{name: x.numpy()}] * ranks, "float64")
    for output in outputs:
        np.testing.assert_allclose(output, expected, rtol=0, atol=bound)
        np.testing.assert_array_equal(output, outputs[0])
    # What moves is activations, not matrices.
    assert traffic.sent(graphs[0])["tensor"].bytes < 6 * 2 * 16 * 64 * 4


def test_an_index_outside_a_divided_table_fails_on_all_ranks() -> None:
    table, index = ir.constant(np.arange(24, dtype=np.float32).reshape(6, 4)), ir.input_("i", (3,), i64)
    graph = ir.Graph("looked_up", (index,), (("y", ir.gather(table, index, 0)),), names={table: "table"})
    found = meshes.divided({"main": graph}, {"x": 2}, {"table": {"x": 0}}, FREE)
    assert any(str(mode.result) == "partial sum" for mode in found.plans["main"][0].modes.values())
    graphs = [rank["main"] for rank in found.ranks]
    given = np.array([5, 0, 3])
    for output in in_lockstep(graphs, [{"i": given}] * 2):
        np.testing.assert_array_equal(output, np.arange(24, dtype=np.float32).reshape(6, 4)[given])
    for outside in (6, -1):

        def failed(rank: int, other: exchange.Exchange, index: int = outside) -> bool:
            with pytest.raises(IndexError, match=f"index {index} is out of range"):
                interp.run(graphs[rank], {"i": np.array([0, index, 1])}, exchange=other)
            return True

        assert exchange.lockstep(2, failed) == [True, True]


def test_placements_that_are_asked_for_are_kept() -> None:
    module, x = model("images")
    graph = api.read(module, (x,))
    name, output = graph.inputs[0].attr.name, graph.outputs[0][0]
    found = meshes.divided({"main": graph}, {"data": 2}, {name: {"data": 0}, output: {"data": 0}})
    graphs = [rank["main"] for rank in found.ranks]
    assert graphs[0].inputs[0].shape == (1, 3, 8, 8)
    halves = [{name: half} for half in np.split(x.numpy(), 2)]
    ((expected, bound),) = exactly(graph, {name: x.numpy()})
    np.testing.assert_allclose(np.concatenate(in_lockstep(graphs, halves)), expected, rtol=0, atol=bound)
    assert traffic.sent(graphs[0]) == {"data": traffic.Traffic()}


def test_gradients_over_a_divided_batch_are_added_up() -> None:
    """Each rank has half of the batch; what they give is the gradient of the whole."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    x = torch.randn(8, 6)
    loss = lambda w, x: (torch.tanh(x @ w) ** 2).mean()  # noqa: E731
    w = module[0].weight.detach().T.contiguous()
    with derivative.recorded():
        graph = api.read(export.as_module(loss), (w, x))
    weight, batch = graph.given
    made = differentiated(graph, [weight], False, False)
    found = meshes.divided({"main": made}, {"data": 2}, {batch.attr.name: {"data": 0}})
    graphs = [rank["main"] for rank in found.ranks]
    inputs = [{weight.attr.name: w.numpy(), batch.attr.name: half} for half in np.split(x.numpy(), 2)]
    whole = {weight.attr.name: w.numpy(), batch.attr.name: x.numpy()}
    ((_, bound),) = exactly(made, whole)
    w = w.double().requires_grad_()
    loss(w, x.double()).backward()
    for output in in_lockstep(graphs, inputs):
        np.testing.assert_allclose(output, w.grad.numpy(), rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        ("gather", 0, [[[0, 1], [10, 11]], [[0, 1], [10, 11]]]),
        ("transpose", 0, [[0, 10], [1, 11]]),
        ("part", 0, [0, 11]),
        ("broadcast", 1, [[10, 11], [10, 11]]),
        ("shift", 1, [[0, 0], [0, 1]]),
        ("shift", -1, [[10, 11], [0, 0]]),
    ],
)
def test_kinds_of_exchange(kind: str, number: int, expected: list) -> None:
    given = ir.input_("x", (2,), f32)
    node = ir.exchange(kind, GROUP, given, number)
    arrays = [np.array([10 * rank, 10 * rank + 1], np.float32) for rank in range(2)]
    found = exchange.lockstep(2, lambda rank, other: interp.run([node], {"x": arrays[rank]}, exchange=other).outputs[0])
    for output, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(output, np.array(wanted, np.float32))


def test_an_exchange_begins_early_and_is_waited_for_late() -> None:
    """What does not depend on it runs meanwhile; the program computes what the graph does."""
    x = ir.input_("x", (2, 64), f32)
    given = ir.reduce(ops.SUM_REDUCE, x * x, [1])
    other = ir.gather(ir.unary(ops.SQRT, ir.reduce(ops.MAX_REDUCE, x, [0])), ir.constant(np.arange(8)), 0)
    moved = ir.exchange("transpose", GROUP, given)
    graph = ir.Graph("g", (x,), (("far", moved + 1), ("near", other)), mesh=(("x", 2),))
    program = compile_graph(graph, ALL["avx2"])
    kinds = [type(step).__name__ for step in program.entries[0].steps]
    begun, waited = kinds.index("Exchange"), kinds.index("Wait")
    assert waited > begun + 1, kinds
    inputs = [np.random.default_rng(rank).random((2, 64), np.float32) for rank in range(2)]
    found = exchange.lockstep(2, lambda rank, ex: interpreter.run(program, {"x": inputs[rank]}, {}, exchange=ex))
    sums = np.stack([(x.astype(np.float64) ** 2).sum(1) for x in inputs])
    for rank in range(2):
        # A sum of 64 squares, and one more rounding.
        np.testing.assert_allclose(found[rank]["far"], sums[:, rank] + 1, rtol=np.sqrt(64 + 2) * f32.eps / 2)
    assert isinstance(program.entries[0].steps[begun], Exchange) and isinstance(program.entries[0].steps[waited], Wait)


LOOP = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (3, 5)]


@pytest.mark.parametrize("pairs", [LOOP, list(combinations(range(6), 2))])
def test_the_cheapest_values_of_a_problem(pairs: list[tuple[int, int]]) -> None:
    """Against all assignments, of a graph of loops and of one in which each has all others as neighbours."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        costs = [rng.random(3) for _ in range(6)]
        edges = {pair: rng.random((3, 3)) for pair in pairs}
        problem = Problem()
        for each in costs:
            problem.add(each)
        for (a, b), matrix in edges.items():
            problem.join(a, b, matrix)

        def total(values, costs=costs, edges=edges):
            own = sum(c[v] for c, v in zip(costs, values, strict=True))
            return own + sum(m[values[a], values[b]] for (a, b), m in edges.items())

        assert total(problem.solve()) == pytest.approx(min(map(total, product(range(3), repeat=6))))


def test_a_problem_too_large_for_a_table_is_solved_nearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable with most neighbours is settled alone: here by a preference that is stronger than all others."""
    monkeypatch.setattr(choose, "_MOST", 8)
    problem = Problem()
    for number in range(6):
        problem.add([0.0, 100.0] if number == 3 else [0.5, 0.4])
    problem.add([1.0])
    for pair in combinations(range(7), 2):
        problem.join(*pair, np.array([[0.0, 1.0], [1.0, 0.0]])[:, : 1 if pair[1] == 6 else 2])
    assert problem.solve() == [0] * 7


def test_entries_lay_out_a_state_alike() -> None:
    """One that by itself leaves it whole reads it as an entry before has laid it. Each rank begins with its part."""
    held, table = ir.input_("held", (8, 4), f32), ir.constant(np.arange(32, dtype=np.float32).reshape(8, 4))
    first = np.random.default_rng(0).random((8, 4), np.float32)
    state = ir.State(held, "held.next", ir.constant(first))
    graph = ir.Graph("g", (held,), (("y", held + table), ("held.next", held)), states=(state,))

    def divided(shard, laid):
        return divide.divide(graph, {"x": 2}, shard, Link(), Rates(), laid)

    laid = divide.Laid()
    assert divided({}, divide.Laid()).of(0).inputs[0].shape == (8, 4)
    divided({"held": {"x": 0}}, laid)
    graphs = [divided({}, laid).of(rank) for rank in range(2)]
    for part, wanted in zip(graphs, np.split(first, 2), strict=True):
        np.testing.assert_array_equal(part.states[0].initial.attr.array, wanted)
    for output in in_lockstep(graphs, [{}, {}]):
        np.testing.assert_array_equal(output, first + table.attr.array)


def test_new_elements_go_into_parts_of_a_state() -> None:
    """Each rank has heads of its own, and writes at positions that all know."""
    old, new = ir.input_("old", (4, 6, 3), f32), ir.input_("new", (4, 2, 5, 3), f32)
    index = ir.constant(np.arange(10).reshape(2, 5) % 6)
    graph = ir.Graph("g", (old, new), (("y", ir.scatter(old, index, new, 1)),))
    rng = np.random.default_rng(0)
    given = {"old": rng.random((4, 6, 3), np.float32), "new": rng.random((4, 2, 5, 3), np.float32)}
    (wanted,) = interp.run(graph, given).outputs
    halves = {name: {"x": 0} for name in ("old", "new", "y")}
    found = meshes.divided({"main": graph}, {"x": 2}, halves, FREE)
    graphs = [rank["main"] for rank in found.ranks]
    parts = [{name: np.split(value, 2)[rank] for name, value in given.items()} for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate(in_lockstep(graphs, parts)), wanted)
    assert not any(node.op is ops.EXCHANGE for node in traverse.topological(graphs[0].roots))


@pytest.mark.parametrize(
    ("mesh", "shard", "message"),
    [
        ({}, "auto", "axes with their sizes"),
        ({"tensor": 1}, "auto", "ranks"),
        ({"tensor": "2"}, "auto", "axes with their sizes"),
        ({"tensor": 2}, {"nothing": None}, "nothing"),
        ({"tensor": 2}, {"last.weight": {"model": 0}}, "'model'"),
        ({"tensor": 4}, {"last.weight": {"tensor": 0}}, "cannot be split"),
    ],
)
def test_what_no_mesh_is(mesh, shard, message: str) -> None:
    module, x = model("images")
    with pytest.raises(InputError, match=message):
        luminal.compile(module, (x,), mesh=mesh, shard=shard)


def test_links_in_words() -> None:
    link = meshes.parse_link("25GB/s,10us")
    assert (link.bandwidth, link.latency) == (25e9, pytest.approx(1e-5))
    with pytest.raises(InputError, match="25GB/s"):
        meshes.parse_link("fast")


def test_exchanges_that_began_long_ago_are_waited_for_first() -> None:
    """As a step of training has them: sums of gradients, of which parts of parameters are made, which all gather."""
    count = order.LAG + 4
    sums, beside = range(count), 4 * count  # the latter depends on nothing
    updates, gathers, written = (range(count + k, 4 * count, 3) for k in range(3))
    ancestors = [0] * (4 * count + 1)
    for chain in zip(sums, updates, gathers, written, strict=True):
        for before, after in pairwise(chain):
            ancestors[after] = ancestors[before] | 1 << before
    found = order.overlapped(range(4 * count + 1), ancestors, {*sums, *gathers})
    assert sorted(found) == list(range(4 * count + 1))
    place = {number: at for at, number in enumerate(found)}
    assert found[: count + 1] == [*sums, beside]
    assert found[count + 1 : count + 3] == [updates[0], gathers[0]]
    for number in range(count):
        last = min(number + order.LAG - 1, count - 1)
        assert place[gathers[last]] < place[written[number]]
    # And no later than that, so that few gathered values are held at once.
    assert place[written[0]] < place[updates[-1]]
