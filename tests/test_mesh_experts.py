"""Mixtures of experts: each computes what is routed to it, and of the ranks of a mesh that divide them by their number,
each that of its own alone."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import luminal
from luminal import meshes
from luminal.core import exchange, interp, ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.decompose import experts
from luminal.core.decompose.activation import silu
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.indexing import take
from luminal.core.errors import InputError
from luminal.core.mesh import traffic
from luminal.core.movement import transpose
from luminal.core.types import f32, f64, i64
from tests import mpi_support
from tests.compiled_support import exactly
from tests.test_mesh import FREE

COUNT, WIDTH, INNER, ROWS = 8, 16, 24, 3
RANK = Path(__file__).with_name("rank_of_mesh.py")
BY_NUMBER = {name: {"tensor": 0} for name in ("into", "out")}
ROUTES = {  # of three rows, two of eight experts: to ranks alike, and to the first quarter of the experts alone
    "alike": np.array([[0, 4], [5, 2], [3, 7]]),
    "uneven": np.array([[0, 1], [1, 4], [0, 6]]),
    "first": np.array([[0, 1], [1, 0], [0, 1]]),
}


@cache
def weights() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = (COUNT, INNER, WIDTH), (COUNT, WIDTH, INNER)
    return tuple(rng.standard_normal(shape).astype(np.float32) / 4 for shape in shapes)


def mixture(rows: int = ROWS, k: int = 2) -> ir.Graph:
    """A mixture as front ends decompose it, of ``k`` experts that are given for each row."""
    x, shares = (ir.input_(name, (rows, n), f32) for name, n in (("x", WIDTH), ("shares", k)))
    chosen = ir.input_("chosen", (rows, k), i64)
    into, out = map(ir.constant, weights())

    def each(given: ir.Node, which: ir.Node | None) -> ir.Node:
        first, second = (transpose(w if which is None else take(w, which), 1, 2) for w in (into, out))
        return matmul(silu(matmul(given, first)), second)

    measured: ir.Measured = {}
    with ir.measuring(measured):
        y = experts.mixture(x, chosen, shares, each, COUNT)
    return ir.Graph(
        "mixture", (x, chosen, shares), (("y", y),), tuple(measured), names={into: "into", out: "out"},
        measured=measured,
    )  # fmt: skip


def given(chosen: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x, shares = (rng.standard_normal((len(chosen), n)).astype(np.float32) for n in (WIDTH, chosen.shape[1]))
    return {"x": x, "chosen": chosen, "shares": shares}


def in_lockstep(graphs: list[ir.Graph], inputs: dict[str, np.ndarray], mode: str) -> list[interp.Result]:
    return exchange.lockstep(len(graphs), lambda rank, other: interp.run(graphs[rank], inputs, mode, exchange=other))


def products(graph: ir.Graph, sizes: dict[str, int]) -> int:
    """Multiply-adds of all contractions."""
    sums = [n for n in traverse.topological(graph.roots) if n.op is ops.SUM_REDUCE and n.inputs[0].op is ops.MUL]
    return sum(int(sym.evaluate(node.inputs[0].size, sizes)) for node in sums if node.inputs[0].rank > 3)


@pytest.mark.parametrize(("ranks", "routes"), [*product((2, 4), ROUTES)])
def test_ranks_compute_what_is_routed_to_their_experts(ranks: int, routes: str) -> None:
    """All ranks together multiply as much as one alone, each for its own experts, a rank that has none of them
    nothing. Outputs are within the bound of those of one rank, and the same bits on each."""
    whole, inputs = mixture(), given(ROUTES[routes])
    graphs = [rank["main"] for rank in meshes.divided({"main": whole}, {"tensor": ranks}, BY_NUMBER).ranks]
    (own,) = graphs[0].measured
    owners = inputs["chosen"] // (COUNT // ranks)
    own_rows = [int((owners == rank).sum()) for rank in range(ranks)]
    found = exchange.lockstep(
        ranks, lambda rank, ex: interp.run(graphs[rank], inputs, keep=graphs[rank].measured.values(), exchange=ex)
    )
    for rank, result in enumerate(found):
        (count,) = result.kept.values()
        assert int(count) == own_rows[rank]
    work = [products(graph, {own.name: rows}) for graph, rows in zip(graphs, own_rows, strict=True)]
    assert sum(work) == products(whole, {}) == ROWS * 2 * 2 * WIDTH * INNER
    assert [w == 0 for w in work] == [rows == 0 for rows in own_rows]
    ((wanted, bound),) = exactly(whole, inputs, f64.eps)
    for result in in_lockstep(graphs, inputs, "float64"):
        np.testing.assert_allclose(result.outputs[0], wanted, rtol=0, atol=bound)
    for result in found[1:]:
        np.testing.assert_array_equal(result.outputs[0], found[0].outputs[0])
    assert traffic.sent(graphs[0])["tensor"].messages == ranks - 1  # the outputs, once


MANY = {  # of twelve rows, two of eight experts: of all alike, and all rows of the same two
    "alike": np.stack([np.arange(12) % COUNT, (np.arange(12) + 3) % COUNT], 1),
    "same": np.tile([6, 1], (12, 1)),
}


@pytest.mark.parametrize(("ranks", "routes"), [*product((1, 2, 4), MANY)])
def test_of_many_rows_an_expert_computes_those_that_chose_it(ranks: int, routes: str) -> None:
    """As many as chose the expert of most rows; of them a rank has its experts' alone."""
    whole, inputs = mixture(12), given(MANY[routes])
    graphs = [whole]
    if ranks > 1:
        graphs = [rank["main"] for rank in meshes.divided({"main": whole}, {"tensor": ranks}, BY_NUMBER, FREE).ranks]
    (routed,) = graphs[0].measured
    found = exchange.lockstep(
        ranks, lambda rank, ex: interp.run(graphs[rank], inputs, keep=graphs[rank].measured.values(), exchange=ex)
    )
    most = int(np.bincount(inputs["chosen"].reshape(-1)).max())
    assert [int(*result.kept.values()) for result in found] == [most] * ranks
    for graph in graphs:
        assert products(graph, {routed.name: most}) == COUNT // ranks * most * 2 * WIDTH * INNER
    wanted = np.zeros((12, WIDTH))
    into, out = (w.astype(np.float64) for w in weights())
    for row, place in product(range(12), range(2)):
        expert = inputs["chosen"][row, place]
        y = into[expert] @ inputs["x"][row].astype(np.float64)
        wanted[row] += inputs["shares"][row, place] * (out[expert] @ (y / (1 + np.exp(-y))))
    ((_, bound),) = exactly(whole, inputs, f64.eps)
    for result in in_lockstep(graphs, inputs, "float64"):
        np.testing.assert_allclose(result.outputs[0], wanted, rtol=0, atol=bound)
    for result in found[1:]:
        np.testing.assert_array_equal(result.outputs[0], found[0].outputs[0])


@pytest.mark.parametrize("target", ["host", "cuda:sm_90"])
def test_libraries_compute_the_rows_of_each_expert(target: str) -> None:
    made = luminal.compile(mixture(12), target=target, emulate=target != "host")
    for chosen in MANY.values():
        inputs = given(chosen)
        ((wanted, bound),) = exactly(mixture(12), inputs)
        np.testing.assert_allclose(made(**inputs), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("chosen", [np.array([[6]]), np.array([[1]]), np.array([[6], [1], [7]])])
def test_one_expert_of_each_row(chosen: np.ndarray) -> None:
    """Where the rows are those of the look-up, and where there is one."""
    whole, inputs = mixture(len(chosen), 1), given(chosen)
    graphs = [rank["main"] for rank in meshes.divided({"main": whole}, {"tensor": 2}, BY_NUMBER).ranks]
    assert graphs[0].measured
    ((wanted, bound),) = exactly(whole, inputs, f64.eps)
    for result in in_lockstep(graphs, inputs, "float64"):
        np.testing.assert_allclose(result.outputs[0], wanted, rtol=0, atol=bound)


def test_rows_are_divided_along_one_axis_and_experts_along_the_other() -> None:
    whole, inputs = mixture(4), given(np.array([[0, 4], [5, 2], [0, 1], [6, 7]]))
    shard = {**BY_NUMBER, **{name: {"data": 0} for name in (*inputs, "y")}}
    graphs = [rank["main"] for rank in meshes.divided({"main": whole}, {"data": 2, "tensor": 2}, shard).ranks]
    assert graphs[0].measured
    parts = [{name: value[2 * half : 2 * half + 2] for name, value in inputs.items()} for half in (0, 0, 1, 1)]
    ((wanted, bound),) = exactly(whole, inputs, f64.eps)
    found = exchange.lockstep(4, lambda rank, ex: interp.run(graphs[rank], parts[rank], "float64", exchange=ex))
    for rank, result in enumerate(found):
        rows = slice(2 * (rank // 2), 2 * (rank // 2) + 2)
        np.testing.assert_allclose(result.outputs[0], wanted[rows], rtol=0, atol=bound)


def test_an_expert_that_is_not_there_fails_on_all_ranks() -> None:
    graphs = [rank["main"] for rank in meshes.divided({"main": mixture()}, {"tensor": 2}, BY_NUMBER).ranks]
    inputs = given(np.array([[0, 1], [1, COUNT], [0, 1]]))

    def failed(rank: int, other: exchange.Exchange) -> bool:
        with pytest.raises(IndexError, match=f"index {COUNT} is out of range"):
            interp.run(graphs[rank], inputs, exchange=other)
        return True

    assert exchange.lockstep(2, failed) == [True, True]


def test_experts_are_divided_inside_unless_that_cannot_be() -> None:
    """Of experts whose widths ranks do not divide, each rank has a part all the same, by number."""
    inside = meshes.divided({"main": mixture()}, {"tensor": 2}, link=FREE)
    assert not inside.ranks[0]["main"].measured
    assert "axis 1 in parts of 12 along tensor" in inside.cuts["main"]["into"]
    x = ir.input_("x", (ROWS, 15), f32)
    chosen = ir.input_("chosen", (ROWS,), i64)
    table = ir.constant(np.ones((COUNT, 15, 1001), np.float32))
    y = matmul(ir.view(x, (ROWS, 1, 15), [ir.axes((ROWS, 1, 15))[0], *ir.axes((ROWS, 1, 15))[2:]]), take(table, chosen))
    odd = ir.Graph("odd", (x, chosen), (("y", y),), names={table: "table"})
    found = meshes.divided({"main": odd}, {"tensor": 2})
    assert found.cuts["main"]["table"] == ("axis 0 in parts of 4 along tensor",)
    assert found.ranks[0]["main"].measured


class Routed(torch.nn.Module):
    """A mixture of experts that is told which."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = (torch.nn.Parameter(torch.from_numpy(w)) for w in weights())

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.silu(torch.einsum("rkoi,ri->rko", self.into[chosen], x))
        return torch.einsum("rkoi,rki,rk->ro", self.out[chosen], y, shares)


def arguments(routes: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(value) for value in given(ROUTES[routes]).values())


@mpi_support.needed
@pytest.mark.parametrize("ranks", [2, 4])
def test_libraries_of_ranks_that_own_all_or_none(ranks: int, tmp_path: Path) -> None:
    """Ranks give the same bits in each run, within the bound of what PyTorch gives in float64."""
    module = Routed().eval()
    made = luminal.compile(
        module, arguments("alike"), name="routed", mesh={"tensor": ranks}, shard=BY_NUMBER, link=FREE
    )
    folder = made.export(tmp_path / "library", python_module=False)
    for routes, chosen in ROUTES.items():
        inputs = given(chosen)
        np.savez(tmp_path / f"{routes}.npz", **inputs)
        output = tmp_path / routes
        done = mpi_support.mpirun(ranks, RANK, folder, tmp_path / f"{routes}.npz", output, 2, "none")
        assert done.returncode == 0, done.stderr
        found = [np.load(f"{output}.{rank}.{run}.npy") for rank in range(ranks) for run in range(2)]
        ((wanted, bound),) = exactly(mixture(), inputs)
        np.testing.assert_allclose(found[0], wanted, rtol=0, atol=bound)
        for each in found[1:]:
            np.testing.assert_array_equal(each.view(np.uint32), found[0].view(np.uint32))


def test_the_plan_counts_what_a_rank_owns() -> None:
    """Half of the time where two ranks share the work, of matrices that dwarf everything else."""
    rng = np.random.default_rng(0)
    x, chosen = ir.input_("x", (8, 1, 256), f32), ir.input_("chosen", (8,), i64)
    table = ir.constant(rng.standard_normal((8, 256, 1024)).astype(np.float32))
    graph = ir.Graph("looked_up", (x, chosen), (("y", matmul(x, take(table, chosen))),), names={table: "table"})
    found = luminal.plan(
        graph, mesh={"tensor": 2}, shard={"table": {"tensor": 0}}, link=FREE, node="100GFLOP/s,10GB/s", target="avx2"
    )
    assert 1.9 < found.alone["main"].computing / found.divided["main"].computing < 2.1


def stacked(rows: int) -> ir.Graph:
    """Two mixtures, one after the other."""
    x, shares = (ir.input_(name, (rows, n), f32) for name, n in (("x", WIDTH), ("shares", 2)))
    chosen = ir.input_("chosen", (rows, 2), i64)
    names: dict[ir.Node, str] = {}

    def layer(x: ir.Node, number: int) -> ir.Node:
        into, out = (ir.constant(w * (1 + number)) for w in weights())
        names.update({into: f"into.{number}", out: f"out.{number}"})

        def each(given: ir.Node, which: ir.Node | None) -> ir.Node:
            first, second = (transpose(w if which is None else take(w, which), 1, 2) for w in (into, out))
            return matmul(silu(matmul(given, first)), second)

        return experts.mixture(x, chosen, shares, each, COUNT)

    measured: ir.Measured = {}
    with ir.measuring(measured):
        y = layer(layer(x, 0), 1)
    return ir.Graph("stacked", (x, chosen, shares), (("y", y),), tuple(measured), names=names, measured=measured)


@mpi_support.needed
@pytest.mark.parametrize(("rows", "mesh"), [(12, {"pipeline": 2}), (3, {"pipeline": 2, "tensor": 2})])
def test_mixtures_in_stages(rows: int, mesh: dict[str, int], tmp_path: Path) -> None:
    """Sizes that data decides stay inside of a stage: those of experts of many rows, and those that ranks own."""
    graph, ranks = stacked(rows), int(np.prod(list(mesh.values())))
    shard = {f"{name}.{n}": {"tensor": 0} for name in BY_NUMBER for n in (0, 1)} if "tensor" in mesh else "auto"
    made = luminal.compile(graph, name="stacked", mesh=mesh, shard=shard, link=FREE)
    folder = made.export(tmp_path / "library", python_module=False)
    inputs = given(np.random.default_rng(2).integers(0, COUNT, (rows, 2)))
    np.savez(tmp_path / "inputs.npz", **inputs)
    done = mpi_support.mpirun(ranks, RANK, folder, tmp_path / "inputs.npz", tmp_path / "y", 2, "none")
    assert done.returncode == 0, done.stderr
    ((wanted, bound),) = exactly(graph, inputs)
    for rank in range(ranks):
        for run in range(2):
            np.testing.assert_allclose(np.load(tmp_path / f"y.{rank}.{run}.npy"), wanted, rtol=0, atol=bound)


def test_rows_that_are_counted_together_are_in_no_micro_batches() -> None:
    with pytest.raises(InputError, match="rows of the batch that do not depend on each other or on their number"):
        luminal.compile(stacked(12), mesh={"pipeline": 2}, micro_batches=2)
