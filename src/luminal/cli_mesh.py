"""Commands about models that several processes run: ``luminal plan | mpi-shim``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import filesize
from rich.table import Table

from luminal import api, llm, meshes, options, planning
from luminal.console import err, out, say
from luminal.core.errors import InputError
from luminal.display import Display
from luminal.llm import opening
from luminal.options import (
    Activations,
    Algebra,
    Constants,
    Dims,
    Link,
    Mesh,
    MicroBatches,
    Precision,
    Shard,
    Target,
    Threads,
)
from luminal.planning import Forecast, Memory, Outlook
from luminal.timing import text


def add(app: typer.Typer) -> None:
    """Gives ``app`` these commands."""
    app.command()(plan)
    app.command("mpi-shim")(mpi_shim)


def plan(
    model: Annotated[
        Path,
        typer.Argument(
            help="an .onnx file, or a .pt2 file that torch.export.save wrote; or a language model: a folder with "
            "config.json and safetensors, or a .gguf file"
        ),
    ],
    mesh: Mesh = None,
    shard: Shard = None,
    link: Link = None,
    micro_batches: MicroBatches = 1,
    node: Annotated[
        str | None,
        typer.Option(help="what a rank computes and moves, 500GFLOP/s,40GB/s; default: as this machine is measured"),
    ] = None,
    measured: Annotated[
        float | None, typer.Option(help="the seconds of a run on one rank, where they are known")
    ] = None,
    target: Target = "host",
    precision: Precision = None,
    algebra: Algebra = None,
    weights: Annotated[
        str | None, typer.Option(help=options.WEIGHTS + "; of a language model, also as its compilation names them")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="of a language model: tokens that there is room for")
    ] = None,
    activations: Activations = None,
    dim: Dims = None,
    constant: Constants = None,
    threads: Threads = 0,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object, in JSON")] = False,
) -> None:
    """Foretell what a run takes on the ranks of a mesh: time, memory and traffic of each. Nothing is run."""
    axes = options.mesh(mesh)
    if axes is None:
        raise InputError("--mesh: expected an axis of a mesh at least, such as --mesh tensor=2")
    asked: dict[str, Any] = {
        "mesh": axes, "shard": options.shard(shard), "link": link, "micro_batches": micro_batches, "node": node,
        "measured": measured,
    }  # fmt: skip
    chosen = options.choices(target, precision, algebra, weights, None, activations, dim, constant, threads)
    del chosen["winograd"]
    with Display(err) as display:
        if opening.is_checkpoint(model):
            for name, flag in (("dims", "dim"), ("constants", "constant"), ("algebra", "algebra")):
                if chosen.pop(name):
                    raise InputError(f"--{flag} is for .onnx and .pt2 files, found a language model, {str(model)!r}")
            found = llm.plan(model, context=context, **asked, **chosen, progress=display.report)
        elif context is not None:
            raise InputError(f"--context: expected a language model, found {str(model)!r}")
        else:
            found = api.plan(model, **asked, **chosen, progress=display.report)
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
        return
    out.print(_table(found))
    for line in (*_of_layers(found.plan), *planning.lines(found)):
        say(line)


def _of_layers(plan: Sequence[str]) -> list[str]:
    """The lines of a plan, of which those that differ in the numbers of their names alone, as of layers, are one."""
    alike: dict[tuple[str, str], list[str]] = {}
    for line in plan:
        names, found, rest = line.rpartition(": ")
        alike.setdefault((re.sub(r"(?<=[._])\d+(?=\.|$)", "*", names) if found else "", rest), []).append(line)
    return [
        lines[0] if len(lines) == 1 else f"{names}: {rest} ({len(lines)} of them)"
        for (names, rest), lines in alike.items()
    ]


def _as_json(found: Outlook) -> dict[str, Any]:
    return {
        **asdict(found),
        "ranks": found.ranks,
        "speedup": {entry: found.speedup(entry) for entry in found.alone},
        "bubble": {entry: each.bubble for entry, each in found.divided.items() if each.stages},
        "not_modelled": found.not_modelled,
    }


def _table(found: Outlook) -> Table:
    """A row for one rank alone and one for a rank of the mesh, for each entry."""
    made = Table()
    for heading in ("entry", "ranks", "a run", "computing", "waiting", "sent in a run", "weights", "arena", "speed"):
        made.add_column(heading, justify="left" if heading == "entry" else "right")
    for entry in found.alone:
        made.add_row(entry, "1", *_cells(found.alone[entry], found.memory_alone), "1")
        its = _cells(found.divided[entry], found.memory)
        made.add_row("", str(found.ranks), *its, f"{found.speedup(entry):.2f}")
    return made


def _cells(of: Forecast, memory: Memory) -> list[str]:
    traffic = [f"{filesize.decimal(t.bytes)} in {t.messages}" for t in of.traffic.values() if t.messages]
    return [
        text(of.seconds), text(of.computing), text(of.waiting), " + ".join(traffic) or "nothing",
        filesize.decimal(memory.weights), filesize.decimal(memory.arena + memory.states),
    ]  # fmt: skip


def mpi_shim(
    output: Annotated[Path, typer.Option("--output", "-o", help="the file to write")] = Path("luminal_mpi_shim.c"),
) -> None:
    """Write the C file that lets libraries of a mesh run over an MPI older than 5: its mpicc builds it."""
    meshes.write_shim(output)
    say(f"{output}; build it with: mpicc -shared -fPIC -O2 {output} -o {output.with_suffix('.so')}")
