"""Commands about exported models and about the machine: ``luminal inspect | verify | doctor | targets``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from luminal import artifact, doctor, inspection, machines
from luminal.console import out, say


def add(app: typer.Typer) -> None:
    """Gives ``app`` these commands."""
    for command in (inspect, verify, doctor_, targets_):
        app.command(command.__name__.rstrip("_").replace("_", "-"))(command)


def inspect(
    path: Annotated[Path, typer.Argument(help="an exported model: its folder, or its library alone")],
    schedules: Annotated[bool, typer.Option("--schedules", help="show the transforms of each kernel")] = False,
    licences: Annotated[bool, typer.Option("--licences", help="show the texts of the licences alone")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object, in JSON")] = False,
) -> None:
    """Say what is inside a compiled model, from its file alone: nothing in it is executed."""
    found = inspection.inspect(path)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif licences:
        for row in found["licences"]:
            say(f"{row['part']}: {row['licence']}\n\n{row['text']}")
    else:
        for line in inspection.lines(found):
            say(line)
        for table in inspection.tables(found, schedules):
            out.print(table)


def doctor_(
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object, in JSON")] = False,
) -> None:
    """Say what luminal finds on this machine, what is missing, and which command brings it."""
    found = doctor.findings()
    if as_json:
        typer.echo(json.dumps(doctor.as_json(found), indent=2))
    else:
        out.print(doctor.table(found))
    raise typer.Exit(0 if doctor.healthy(found) else 1)


def verify(folder: Annotated[Path, typer.Argument(help="an exported model")]) -> None:
    """Verify every byte of an exported model: library, weights, manifest, headers and sources."""
    say(f"{artifact.verify(folder)} files of {folder} are as they were written")


def targets_(among: Annotated[str, typer.Argument(metavar="[WORD]", help="in the names of targets")] = "") -> None:
    """List the machines that models are compiled for, and what this one runs."""
    for line in machines.lines(among):
        out.print(line, highlight=False, markup=False, soft_wrap=True)
