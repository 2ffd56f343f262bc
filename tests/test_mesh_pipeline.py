"""Pipelines: where a graph is cut, micro-batches, what each rank runs, forecasts, and what is refused."""

import copy
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import luminal
from luminal import api, cli, meshes, pipelines, planning
from luminal.core import exchange, interp, ir, ops, traverse
from luminal.core.decompose import contraction
from luminal.core.errors import InputError, SpecError
from luminal.core.mesh import stages
from luminal.core.mesh.traffic import Traffic
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.program import interpreter, spec
from luminal.core.schedule.program.ir import Program, Stages, Transfer, Wait, numbered, together
from luminal.core.target import AVX2
from luminal.core.types import f32
from tests.compiled_support import exactly
from tests.schedule_support import with_costs
from tests.test_mesh import FREE, model

NODE = "100GFLOP/s,20GB/s"
PAIR = {"pipeline": 2}


class Layers(torch.nn.Module):
    """Layers of which a late one reads what the first has made, a matrix that two of them share, an input and an output
    without rows of the batch, and an output of an early layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(width, width) / 4)
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, 3 * width)
        self.third = torch.nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.relu(torch.relu(self.first(x)) @ self.matrix)
        b = torch.tanh(self.second(a) * 2)
        c = torch.relu(self.third(b)) @ self.matrix
        return c + a, a > 0.5, scale.exp() * 2


@cache
def subject(kind: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    if kind == "layers":
        return Layers().eval(), (torch.randn(12, 16), torch.randn(16))
    if kind == "single":  # of which a second stage has no weights
        return torch.nn.Sequential(torch.nn.Linear(16, 16, False), torch.nn.Softmax(-1)).eval(), (torch.randn(12, 16),)
    module, x = model(kind)
    return module, (torch.randn(4, *x.shape[1:]),)


def exact(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[tuple[np.ndarray, float]]:
    """What PyTorch gives in float64, each output with how far any order of its sums may be off in float32."""
    graph = api.read(module, inputs)
    bounds = exactly(graph, {n.attr.name: x.numpy() for n, x in zip(graph.given, inputs, strict=True)})
    with torch.no_grad():
        outputs = copy.deepcopy(module).double()(*(x.double() for x in inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [(y.numpy(), bound) for y, (_, bound) in zip(outputs, bounds, strict=False)]


def check(found: np.ndarray, wanted: tuple[np.ndarray, float]) -> None:
    np.testing.assert_allclose(found, wanted[0], rtol=0, atol=wanted[1] if found.dtype != bool else 0)


def staged(
    kind: str, mesh: dict[str, int], micro_batches: int, shard: meshes.Shard = "auto", link: str | None = FREE
) -> tuple[pipelines.Pipelined, dict[str, np.ndarray], list[tuple[np.ndarray, float]]]:
    """The stages, the inputs by name, and what PyTorch makes of them (``exact``)."""
    module, inputs = subject(kind)
    graph = api.read(module, inputs)
    found = pipelines.staged({"main": graph}, mesh, shard, link, micro_batches)
    given = {n.attr.name: x.numpy() for n, x in zip(graph.given, inputs, strict=True)}
    return found, given, exact(module, inputs)


def programs(found: pipelines.Pipelined) -> list[Program]:
    return [found.joined(compile_graphs("staged", found.graphs(rank), AVX2), AVX2) for rank in found.ranks]


def in_lockstep(found: pipelines.Pipelined, inputs: list[dict[str, np.ndarray]], seed=None) -> list[list[np.ndarray]]:
    """The outputs of each rank; ``inputs`` are those of each."""
    made = programs(found)
    pipeline = made[0].pipeline
    assert pipeline is not None

    def work(rank: int, other: exchange.Exchange) -> list[np.ndarray]:
        program = made[pipeline.beside(rank)]
        return list(interpreter.run(program, inputs[rank], {}, seed=seed, exchange=other).values())

    return exchange.lockstep(made[0].ranks, work)


# ---- where a graph is cut --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_cuts_are_the_best(count: int) -> None:
    """Against all ways to cut: all work, what crosses, and the slowest stage for each micro-batch but one. Of those
    that cost the same, the stages are as even as can be."""
    rng = np.random.default_rng(count)
    for trial in range(60):
        size, batches = int(rng.integers(count, 10)), int(rng.integers(1, 9))
        work = rng.random(size).tolist()
        drawn = rng.random(size - 1) if trial % 2 else np.ones(size - 1)
        across = [0.0, *(drawn * rng.choice([0.1, 1, 5])), 0.0]

        def cost(cuts, work=work, across=across, batches=batches) -> float:
            bounds = [0, *cuts, len(work)]
            slowest = max(max(sum(work[a:b]), across[b]) for a, b in pairwise(bounds))
            return sum(across[k] for k in cuts) + max(batches - 1, 1) * slowest

        found = stages.cheapest(work, across, count, batches)
        assert len(found) == count - 1 and sorted({*found}) == found
        ways = list(combinations(range(1, size), count - 1))
        best = min(map(cost, ways))
        assert cost(found) == pytest.approx(best), (trial, found)

        def slowest(cuts, work=work) -> float:
            return max(sum(work[a:b]) for a, b in pairwise([0, *cuts, len(work)]))

        assert slowest(found) == pytest.approx(min(slowest(w) for w in ways if cost(w) <= best * (1 + 1e-9)))


def test_a_transformer_is_cut_between_blocks() -> None:
    """Where one value crosses, and the stages have equal work."""
    found, _, _ = staged("block", {"pipeline": 2}, 4, link=None)
    staged_ = found.staged["main"]
    assert [(c.source, c.targets, c.bytes) for c in staged_.crossings] == [(0, (1,), 6 * 32 * 4)]
    assert staged_.seconds[0] == pytest.approx(staged_.seconds[1], rel=0.01)
    for number, stage in enumerate(staged_.stages):
        graph = stage.of(0)
        matrices = {name for node, name in graph.names.items() if node.rank == 2}
        assert len(matrices) == 4 and {name[0] for name in matrices} == {str(number)}


@pytest.mark.parametrize(("kind", "count", "batches"), [("block", 3, 4), ("images", 2, 2), ("layers", 4, 3)])
def test_stages_give_what_the_whole_does(kind: str, count: int, batches: int) -> None:
    """One after the other, for one micro-batch after the other, in numpy."""
    found, inputs, wanted = staged(kind, {"pipeline": count}, batches)
    rows = found.rows["main"]
    parts = []
    for batch in range(batches):
        known = {n: np.split(x, batches)[batch] if n in rows else x for n, x in inputs.items()}
        for stage in found.staged["main"].stages:
            graph = stage.of(0)
            outputs = interp.run(graph, {n.attr.name: known[n.attr.name] for n in graph.inputs}).outputs
            known |= dict(zip([name for name, _ in graph.outputs], outputs, strict=True))
        parts.append(known)
    for (name, _), expected in zip(found.whole["main"].graph.returned, wanted, strict=True):
        made = np.concatenate([known[name] for known in parts]) if name in rows else parts[0][name]
        check(made, expected)


def test_a_value_goes_to_each_stage_that_reads_it_and_constants_lie_where_they_are_read() -> None:
    found, _, _ = staged("layers", {"pipeline": 3}, 3)
    crossings = found.staged["main"].crossings
    assert any(len(crossing.targets) == 2 for crossing in crossings), crossings
    (program,) = programs(found)
    assert program.pipeline is not None
    homes = {stage: {n for n, k in program.pipeline.homes.items() if k == stage} for stage in range(3)}
    matrices = [name for name in program.constants if name.startswith("matrix")]
    assert len({program.pipeline.homes[name] for name in matrices}) == len(matrices) == 2
    assert set().union(*homes.values()) == set(program.constants)
    wrong = {name: (home + 1) % 3 for name, home in program.pipeline.homes.items()}
    object.__setattr__(program, "pipeline", type(program.pipeline)(program.pipeline.group, wrong))
    with pytest.raises(SpecError, match="of others"):
        spec.check(program)


# ---- what each rank runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "batches"), [(2, 1), (3, 3), (4, 4), (2, 6)])
def test_ranks_compute_what_one_does(count: int, batches: int) -> None:
    found, inputs, wanted = staged("layers", {"pipeline": count}, batches)
    for outputs in in_lockstep(found, [inputs] * count, seed=0):
        for output, expected in zip(outputs, wanted, strict=True):
            check(output, expected)


def test_phases_have_portions_in_each_micro_batch() -> None:
    """Narrow products in a row, of which a thread keeps what its share has between them."""
    random = np.random.default_rng(0)
    x = y = ir.input_("x", (192, 16), f32)
    for number in range(8):
        y = contraction.matmul(y, ir.constant((random.standard_normal((16, 16)) / 8).astype(np.float32)))
        y = ir.elementwise(ops.SIN, y) if number % 2 else y
    graph = ir.Graph("narrow", (x,), (("y", y),))
    given = {"x": random.standard_normal((192, 16)).astype(np.float32)}
    (expected,) = exactly(graph, given)
    found = pipelines.staged({"main": graph}, PAIR, "auto", FREE, 2)
    target = with_costs(AVX2, threads={"written": 1, "shares": 1, "shares_each": 0})
    program = found.joined(compile_graphs("narrow", found.graphs(0), target), target)
    held = [p.buffer for _, phase in together(program.entries[0].region) for p in phase.portions]
    assert len(held) > len({*held}) > 0
    outputs = exchange.lockstep(
        2, lambda _, other: interpreter.run(program, given, {}, seed=0, exchange=other)["y"]
    )  # fmt: skip
    for output in outputs:
        check(output, expected)


@pytest.mark.parametrize("mesh", [{"pipeline": 2, "tensor": 2}, {"tensor": 2, "pipeline": 2}])
def test_stages_are_divided_along_other_axes(mesh: dict[str, int]) -> None:
    found, inputs, wanted = staged("images", mesh, 2, {"second.weight": {"tensor": 0}})
    assert any("along tensor" in line for line in found.explained())
    for outputs in in_lockstep(found, [inputs] * 4):
        check(outputs[0], wanted[0])


def test_the_rows_of_a_rank_are_divided_once_more() -> None:
    """Data parallel beside a pipeline: a rank is given its rows, and computes them in micro-batches."""
    halves = {name: {"data": 0} for name in ("x", "output.0", "output.1")}
    names = dict(zip(halves, ("x", *[n for n, _ in api.read(*subject("layers")).returned]), strict=False))
    halves = {names[name]: axes for name, axes in halves.items()}
    found, inputs, wanted = staged("layers", {"data": 2, "pipeline": 2}, 3, halves, None)
    given = [{n: np.split(x, 2)[rank // 2] if n in halves else x for n, x in inputs.items()} for rank in range(4)]
    for rank, outputs in enumerate(in_lockstep(found, given)):
        for number, (output, (expected, bound)) in enumerate(zip(outputs, wanted, strict=True)):
            check(output, (np.split(expected, 2)[rank // 2] if number < 2 else expected, bound))


def test_entries_are_cut_one_by_one() -> None:
    """Two entries that share weights, which may lie in other stages; sizes may be symbolic without micro-batches."""
    module, inputs = subject("layers")
    half = torch.nn.Sequential(module.third, torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(4, 48)
    dims = {"input": {0: "rows"}, "rows": (1, 8)}
    graphs = {"all": api.read(module, inputs), "end": api.read(half, (x,), dims=dims)}
    found = pipelines.staged(graphs, PAIR, "auto", None, 1)
    (program,) = programs(found)
    assert [entry.name for entry in program.entries] == ["all", "end"]
    whole, end = exact(module, inputs)[0], exact(half, (x,))[0]
    names = [tensor.name for tensor in program.entries[0].inputs]
    given = {"all": dict(zip(names, (y.numpy() for y in inputs), strict=True)), "end": {"input": x.numpy()}}
    for entry, expected in zip(program.entries, (whole, end), strict=True):
        dims_ = {"rows": 4} if entry.name == "end" else {"rows": 8}

        def work(_: int, other: exchange.Exchange, entry=entry, dims_=dims_) -> np.ndarray:
            return next(iter(interpreter.run(program, given[entry.name], dims_, entry, exchange=other).values()))

        for output in exchange.lockstep(2, work):
            check(output, expected)


def test_sending_ends_behind_the_next_micro_batch() -> None:
    """It is waited for before its memory is used again, two micro-batches later; receiving begins as early."""
    found, _, _ = staged("block", {"pipeline": 2}, 4, link=None)
    (program,) = programs(found)
    (step,) = program.entries[0].steps
    assert isinstance(step, Stages)
    words = []
    for region in step.regions:
        kinds = {t.ticket: t.attr.sends for t in numbered(region) if isinstance(t, Transfer)}
        passing = {ticket for ticket in kinds if ticket < 2 * stages_of(found)}
        told = []
        for each in region.steps:
            if isinstance(each, Transfer) and each.ticket in passing:
                told.append("send" if each.attr.sends else "receive")
            elif isinstance(each, Wait) and each.ticket in passing:
                told.append("sent" if kinds[each.ticket] else "received")
            elif not isinstance(each, Transfer | Wait) and (not told or told[-1] != "compute"):
                told.append("compute")
        words.append(" ".join(told))
    assert words == [
        "compute send compute send sent compute send sent compute send sent sent",
        "receive receive received compute receive received compute receive received compute received compute",
    ]


def stages_of(found: pipelines.Pipelined) -> int:
    return len(found.staged["main"].crossings)


# ---- what is said of it ----------------------------------------------------------------------------------------------


def test_the_stages_are_explained_and_foretold() -> None:
    """The bubble of P stages of equal work and N micro-batches is (P - 1) / (N + P - 1) of the time."""
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    module = torch.nn.Sequential(*layers).eval()
    for batches in (1, 4):
        found = luminal.plan(
            module, (torch.randn(64, 256),), mesh={"pipeline": 2}, micro_batches=batches, link=FREE, node=NODE,
            threads=1,
        )  # fmt: skip
        foretold = found.divided["main"]
        assert len(foretold.stages) == 2 and foretold.bubble == pytest.approx(1 / (batches + 1), rel=0.02)
        size = 64 * 256 * 4
        assert [stage.traffic for stage in foretold.stages] == [{"pipeline": Traffic(batches, size)}] * 2
        assert found.memory.weights == pytest.approx(found.memory_alone.weights / 2)
        assert f"pipeline: a rank of stage 0 sends {batches} messages, {size} bytes, in a run of {batches}" in " ".join(
            found.plan
        )
        assert any("the pipeline's bubble" in line for line in planning.lines(found))
        seen = luminal.plan(
            module, (torch.randn(64, 256),), mesh={"pipeline": 2}, micro_batches=batches, link=FREE, node=NODE,
            threads=1, measured=1.0,
        )  # fmt: skip
        assert seen.alone["main"].seconds == pytest.approx(1.0)
        assert seen.divided["main"].bubble == pytest.approx(1 / (batches + 1), rel=0.02)


def test_what_a_slow_link_costs_is_waited_for() -> None:
    module, inputs = subject("block")
    free, slow = (
        luminal.plan(module, inputs, mesh={"pipeline": 2}, micro_batches=4, link=link, node=NODE, threads=1)
        for link in (FREE, "1MB/s,1ms")
    )
    fast, late = free.divided["main"], slow.divided["main"]
    assert late.seconds > fast.seconds
    # Its own sending of the last outputs is what the last stage ends with.
    assert late.seconds >= 4 * (1e-3 + 6 * 32 * 4 / 1e6)
    assert free.speedup("main") > slow.speedup("main")


def test_what_is_sent_is_what_the_steps_send() -> None:
    for kind, mesh, batches in (("layers", {"pipeline": 3}, 3), ("images", {"pipeline": 2, "tensor": 2}, 2)):
        shard = {"second.weight": {"tensor": 0}} if kind == "images" else "auto"
        found, _, _ = staged(kind, mesh, batches, shard)
        program, *_ = programs(found)
        node, link = planning.parse_node(NODE), meshes.parse_link(None)
        forecast = planning.forecasts(program, AVX2, 1, node, link)["main"]
        for number, stage in enumerate(forecast.stages):
            assert stage.traffic == found.sent("main", number)


def test_the_command_takes_micro_batches(tmp_path) -> None:
    module, inputs = subject("images")
    path = tmp_path / "images.pt2"
    torch.export.save(torch.export.export(module, inputs), path)
    arguments = ["plan", path, "--mesh", "pipeline=2", "--micro-batches", "2", "--link", FREE, "--node", NODE]
    done = CliRunner().invoke(cli.app, list(map(str, arguments)))
    assert done.exit_code == 0 and "in a run of 2 micro-batches" in done.output and "bubble" in done.output


# ---- what is refused -------------------------------------------------------------------------------------------------


class Mixing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() - x.sin().amax(0)).exp()


class Narrow(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :6].exp() + x[:, 6:12].sin()


class Beside(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2).relu().exp(), x[:1].exp() * 2


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.exp() * self.calls


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Layers(), {"micro_batches": 5}, "expected a number that divides the 12 rows of 'x', found 5"),
        (Layers(), {"micro_batches": 2, "dims": {"rows": (2, 12)}}, "fix the size"),
        (Layers(), {"micro_batches": 0}, "expected a number of 1 or more, found 0"),
        (Layers(), {"micro_batches": 2, "mesh": {"data": 2}}, "expected a mesh with stages"),
        (Layers(), {"mesh": {"pipeline": 400}}, "expected at most"),
        (Layers(), {"micro_batches": 2, "shard": {"x": {"pipeline": 1}}}, "expected axis 0 of 'x'"),
        (Layers(), {"shard": {"matrix": {"pipeline": 0}}}, "expected names of inputs and outputs"),
        (Narrow(), {"micro_batches": 12, "target": "cuda:sm_90", "emulate": True}, "multiple of 16 bytes of 'output'"),
        (
            Narrow(),
            {"micro_batches": 2, "target": "cuda:sm_90", "emulate": True, "dims": {"x": {1: "n"}, "n": (13, 64)}},
            "multiple of 16 bytes of 'x' in each for cuda:sm_90, found 24.n",
        ),
        (Beside(), {"micro_batches": 2}, "parts of rows .'output_1'. to depend on none of the rows"),
        (Layers(), {"memory": 1000}, "expected no bound where a mesh has stages"),
        (Mixing(), {"micro_batches": 2}, "amax.*sub.*expected rows of the batch that do not depend on each other"),
        (Counting(), {"micro_batches": 2}, "expected a model without states, found .calls.: a run leaves in them what"),
    ],
)
def test_what_no_pipeline_can_be(module: torch.nn.Module, options: dict, message: str) -> None:
    inputs = (torch.randn(12, 16), torch.randn(16)) if isinstance(module, Layers) else (torch.randn(12, 16),)
    asked = {"mesh": PAIR, **options}
    if isinstance(module, Layers) and "dims" in asked:
        asked["dims"] = {"x": {0: "rows"}, "rows": (2, 12)}
    with pytest.raises(InputError, match=message):
        luminal.compile(module.eval(), inputs, name="refused", **asked)


def test_stages_are_of_models_that_are_compiled() -> None:
    with pytest.raises(InputError, match=r"stages, along 'pipeline', are for models that luminal\.compile"):
        meshes.divided({"main": api.read(*subject("block"))}, PAIR)


def test_sums_over_other_micro_batches_are_found() -> None:
    """What is the same for all rows may be used by each."""

    class Centred(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x - y.mean(0)).exp() * 2

    inputs = torch.randn(12, 16), torch.randn(12, 16)
    graph = {"main": api.read(Centred(), inputs)}
    with pytest.raises(InputError, match="expected rows of the batch"):
        pipelines.staged(graph, PAIR, "auto", None, 3)
    found = pipelines.staged(graph, PAIR, {"y": {"pipeline": None}}, None, 3)
    assert found.rows["main"] == {"x", graph["main"].returned[0][0]}
    exchanged = [n for n in traverse.topological(found.whole["main"].graph.roots) if n.op is ops.EXCHANGE]
    assert not exchanged
