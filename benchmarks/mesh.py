"""Models and steps of training on two ranks beside one. ``python -m benchmarks.mesh --write docs/mesh.md``

Every way of running has processes of its own, which stay open and take turns; the slowest rank's time counts.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

import luminal
from benchmarks import tables, training
from benchmarks.eager import Run
from benchmarks.progress import Work
from benchmarks.results import Results
from benchmarks.suite import CASES
from luminal import launch
from luminal.timing import text

ABOUT = """# Several ranks on one machine

`python -m benchmarks.mesh --write docs/mesh.md`: two ranks with a thread each beside one rank with two threads. All
ways of a row stay open and take turns; times are medians, of ranks the slowest one's. All in float32."""
SPEED = ("model", "one rank, one thread", "one rank, two threads", "two ranks", "of one with two threads", "foretold")
STEPS = ("step with AdamW", "one rank", "two ranks", "of one rank", "PyTorch, one", "PyTorch, two", "of one",
         "PyTorch, two / two ranks")  # fmt: skip
OVERLAP = ("step with AdamW", "in waits", "without overlap", "ratio", "a step", "a step without overlap")
EQUAL = ("step with AdamW", "losses", "two ranks off one", "four off one", "one off float64", "two off float64",
         "PyTorch off float64", "same bits again")  # fmt: skip
ALIKE, EXACT = 20, 5  # steps that are compared with one rank's, and with float64's
TURNS = 4  # of each way


class Team:
    """The processes of one way of running."""

    def __init__(self, what: Mapping[str, Any], ranks: int, environment: Mapping[str, str] | None = None) -> None:
        self._listener = Listener(family="AF_UNIX")
        self._processes: list[subprocess.Popen[bytes]] = []
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": path, **(environment or {})}
        command = [sys.executable, "-m", "benchmarks.mesh_rank", str(self._listener.address)]
        if "folder" not in what:
            for rank in range(ranks):
                own = [*command, json.dumps({**what, "rank": rank, "ranks": ranks})]
                self._processes.append(subprocess.Popen(own, env=environment))
        else:
            own = [*command, json.dumps({**what, "ranks": ranks})]
            if ranks > 1:
                found, more = launch.launcher()
                own, environment = [found, "-n", str(ranks), *own], {**more, **environment}
            self._processes.append(subprocess.Popen(own, env=environment))
        self._members: list[Connection] = [self._listener.accept() for _ in range(ranks)]

    def __enter__(self) -> Team:
        return self

    def turn(self, runs: int) -> tuple[float, float, float]:
        """The median seconds of a run, and those in which exchanges begin and are waited for, of the rank with most."""
        for member in self._members:
            member.send(runs)
        found = [[statistics.median(column) for column in zip(*member.recv(), strict=True)] for member in self._members]
        seconds, starts, waits = map(max, zip(*found, strict=True))
        return seconds, starts, waits

    def steps(self, count: int) -> list[float]:
        """The losses of so many steps from the beginning, which are the same bits on all ranks."""
        for member in self._members:
            member.send(-count)
        found, *others = [member.recv() for member in self._members]
        assert all(other == found for other in others)
        return list(found)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for member in self._members:
            member.send(0)
        for process in self._processes:
            process.wait()
        self._listener.close()


@dataclass(frozen=True)
class Way:
    """What the processes of a team are told, how many there are, and what is in their environment."""

    what: Mapping[str, Any]
    ranks: int
    environment: Mapping[str, str] | None = None


def taking_turns(ways: Mapping[str, Way], runs: int) -> dict[str, list[float]]:
    """The medians over turns of each way, of what a turn gives."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    with ExitStack() as open_:
        teams = {name: open_.enter_context(Team(way.what, way.ranks, way.environment)) for name, way in ways.items()}
        for _ in range(TURNS):
            for name, team in teams.items():
                found[name].append(team.turn(runs))
    return {name: list(map(statistics.median, zip(*turns, strict=True))) for name, turns in found.items()}


def model(name: str, runs: int, link: str, root: Path, small: bool = False) -> dict[str, Any]:
    """A run of a model for a whole batch, its layers divided."""
    made = CASES[name].build(1 if small else 2)
    alone = luminal.compile(made.module, made.inputs, name="alone")
    divided = luminal.compile(made.module, made.inputs, name="divided", mesh={"tensor": 2}, link=link)
    assert isinstance(alone, luminal.Module)
    np.savez(root / "inputs.npz", **{n: x.numpy() for n, x in zip(alone.input_names, made.inputs, strict=True)})
    ways = {}
    for ranks, module in ((1, alone), (2, divided)):
        module.export(root / str(ranks), python_module=False)
        for threads in (1, 2)[: 3 - ranks]:
            what = {"folder": str(root / str(ranks)), "inputs": str(root / "inputs.npz"), "entry": "main"}
            ways[f"{ranks}x{threads}"] = Way({**what, "threads": threads}, ranks)
    found = taking_turns(ways, runs)
    outlook = luminal.plan(made.module, made.inputs, mesh={"tensor": 2}, link=link, threads=1)
    foretold = outlook.divided["main"].seconds / outlook.alone["main"].seconds
    return {**{way: turn[0] for way, turn in found.items()}, "foretold": foretold}


def step(name: str, runs: int, link: str, root: Path, small: bool = False) -> dict[str, Any]:
    """A step of training, the rows of its batch divided, beside PyTorch's."""
    ways = {"one": exported(name, 1, link, root, small), "two": exported(name, 2, link, root, small)}
    ways["awaited"] = replace(ways["two"], environment={"LUMINAL_MPI_OVERLAP": "0"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for ranks, other in ((1, "torch one"), (2, "torch two")):
        ways[other] = Way({"case": name, "threads": 3 - ranks, "small": small}, ranks, meeting)
    found = taking_turns(ways, runs)
    return {
        **{way: turn[0] for way, turn in found.items()},
        "starts": found["two"][1], "waits": found["two"][2], "awaited starts": found["awaited"][1],
    }  # fmt: skip


def made(name: str, small: bool) -> Run:
    """A model that is trained, on one batch."""
    torch.manual_seed(0)
    module, inputs = training.CASES[name].small() if small else training.CASES[name].make()
    return Run(module, None, torch.optim.AdamW(module.train().parameters(), lr=1e-4), lambda number: inputs)


def exported(name: str, ranks: int, link: str, root: Path, small: bool) -> Way:
    """The library of a step on so many ranks, in a folder, and how it runs."""
    run = made(name, small)
    names = {"x": {"data": 0}, "target": {"data": 0}}
    options: dict[str, Any] = {} if ranks == 1 else {"mesh": {"data": ranks}, "shard": names, "link": link}
    found = run.compiled(name=f"step{ranks}", **options)
    found.export(root / str(ranks), python_module=False)
    given = {n: x.numpy() for n, x in zip(names, run.batch(0), strict=True)}
    np.savez(root / "inputs.npz", **given, lr=np.array([1e-4]))
    what = {"folder": str(root / str(ranks)), "inputs": str(root / "inputs.npz"), "entry": "train"}
    return Way({**what, "threads": 2 if ranks == 1 else 1}, ranks)


def equal(name: str, _: int, link: str, root: Path, small: bool = False) -> dict[str, Any]:
    """Losses of steps on two and four ranks beside one, and of the first ones how far they and PyTorch are off
    float64."""
    found = []
    ways = [exported(name, ranks, link, root, small) for ranks in (1, 2, 4)]
    for way in (*ways, ways[1]):
        with Team(way.what, way.ranks) as team:
            found.append(team.steps(ALIKE))
    losses = []
    for dtype in (torch.float64, torch.float32):
        eager = made(name, small).copied(dtype)
        losses.append([float(eager.step(number)) for number in range(EXACT)])
    one, two, four, again = map(np.array, found)
    exact, rounded = map(np.array, losses)
    return {
        "same bits": bool((two == again).all()), "first": float(one[0]), "last": float(one[-1]),
        **{
            key: float(np.max(np.abs(value - one) / np.abs(one)))
            for key, value in (("apart", two), ("four apart", four))
        },
        **{
            key: float(np.max(np.abs(value[:EXACT] - exact) / np.abs(exact)))
            for key, value in (("one", one), ("two", two), ("eager", rounded))
        },
    }  # fmt: skip


def equal_cells(title: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = (f"{row[key]:.1e}" if key in row else "-" for key in ("apart", "four apart", "one", "two", "eager"))
    return (title, f"{row['first']:.3f} to {row['last']:.3f}", *numbers, "yes" if row["same bits"] else "no")


def speed_cells(title: str, row: Mapping[str, float]) -> tuple[str, ...]:
    times = [row[way] for way in ("1x1", "1x2", "2x1")]
    foretold = f"{row['1x1'] / row['2x1']:.2f}x one thread, foretold {1 / row['foretold']:.2f}x"
    return (title, *map(text, times), f"{row['1x2'] / row['2x1']:.2f}x", foretold)


def step_cells(title: str, row: Mapping[str, float]) -> tuple[str, ...]:
    one, two, torch_one, torch_two = (row[way] for way in ("one", "two", "torch one", "torch two"))
    return (
        title, text(one), text(two), f"{one / two:.2f}x", text(torch_one), text(torch_two),
        f"{torch_one / torch_two:.2f}x", f"{torch_two / two:.2f}x",
    )  # fmt: skip


def overlap_cells(title: str, row: Mapping[str, float]) -> tuple[str, ...]:
    waits, awaited = row["waits"], row["awaited starts"] - row["starts"]
    return title, text(waits), text(awaited), f"{waits / awaited:.2f}", text(row["two"]), text(row["awaited"])


# Headings, the title of a case by its name, and the cells of its row.
Cells = Callable[[str, Mapping[str, float]], tuple[str, ...]]
TABLES: Mapping[str, tuple[str, Sequence[str], Cells]] = {
    "models": ("model", SPEED, speed_cells),
    "steps": ("step", STEPS, step_cells),
    "overlap": ("step", OVERLAP, overlap_cells),
    "equal": ("equal", EQUAL, equal_cells),
}
SAID = {
    "models": "## Layers divided\n\nA batch of two, whose layers two ranks divide (tensor parallel). `foretold` is "
    "what `luminal plan` says of two ranks beside one, each with a thread.",
    "steps": "## Steps of training\n\nRows of a batch divided (data parallel). PyTorch is `torch.compile` of module "
    "and optimiser; on two ranks, DistributedDataParallel over gloo of a module under it.",
    "overlap": "## Overlap\n\nThe time of such a step that a rank waits for exchanges, and the same with "
    "`LUMINAL_MPI_OVERLAP=0`, where it waits for each exchange as soon as it has begun it: what that adds.",
    "equal": f"## Results\n\nThe losses of {ALIKE} steps on one batch, the largest relative difference of any; those "
    f"of the first {EXACT} beside PyTorch's in float64. Ranks have the same losses to the bit, or the command fails; "
    "`again` is another start of two ranks. Four ranks share the processors: they are run for their results alone. A "
    "loss that falls to nothing, as ResNet-50's, shows every rounding: there PyTorch is as far off float64.",
}


def rows(found: Results, which: str) -> list[tuple[str, ...]]:
    kind, _, cells = TABLES[which]
    titles = {name: case.title for name, case in (CASES if kind == "model" else training.CASES).items()}
    return [cells(titles[name], row) for name, row in found.under(f"{kind}/").items()]


def page(found: Results) -> str:
    """The page for ``docs/``."""
    lines = [ABOUT, "", *found.machines, ""]
    for which, (_, headings, _) in TABLES.items():
        lines += [SAID[which], "", *tables.markdown(headings, rows(found, which), left=1), ""]
    return "\n".join(lines).rstrip() + "\n"


def main(
    only: Annotated[str, typer.Option(help="names of models, with commas between; none: -")] = "bert-base,gpt2",
    steps: Annotated[str, typer.Option(help="names of steps of training, with commas between; none: -")] = "gpt",
    alike: Annotated[str, typer.Option(help="names of steps whose losses are compared; none: -")] = "-",
    runs: Annotated[int, typer.Option(min=3, help="timed runs in each turn")] = 5,
    link: Annotated[str, typer.Option(help="what joins two processes of this machine")] = "5GB/s,20us",
    small: Annotated[bool, typer.Option(help="models of few elements, which say nothing of speed")] = False,
    write: Annotated[Path | None, typer.Option(help=tables.WRITE.replace("benchmarks.md", "mesh.md"))] = None,
) -> None:
    """Time models and steps of training on two ranks of this machine beside one."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    models = [] if only == "-" else tables.among(only, CASES, "--only")
    trained = [] if steps == "-" else tables.among(steps, training.CASES, "--steps")
    compared = [] if alike == "-" else tables.among(alike, training.CASES, "--alike")
    found = Results(tables.measurements(write))
    todo: list[tuple[str, str, Callable[..., dict[str, Any]]]] = [
        *(("model", name, model) for name in models),
        *(("step", name, step) for name in trained),
    ]
    todo += [("equal", name, equal) for name in compared]
    work = Work([60.0] * len(todo))
    for kind, name, measured in todo:
        work.begin(f"{kind} {name}")
        with tempfile.TemporaryDirectory(prefix="luminal-mesh-") as folder:
            found.put(f"{kind}/{name}", measured(name, runs, link, Path(folder), small))
        work.end()
        if write is not None:
            write.write_text(page(found), encoding="utf-8")
    for which, (_, headings, _) in TABLES.items():
        Console(width=150).print(tables.terminal(headings, rows(found, which), left=1))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
