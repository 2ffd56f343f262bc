"""Tables for a terminal and for a page, and what the commands share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import typer
from rich import box
from rich.table import Table

from benchmarks.suite import COMPUTED
from luminal import destination
from luminal.core import target as targets
from luminal.core.errors import LuminalError


def markdown(columns: Sequence[str], cells: Sequence[Sequence[str]], left: int = 2) -> list[str]:
    """The lines of a table, whose first ``left`` columns begin at the left."""
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * left + "---:|" * (len(columns) - left),
        *("| " + " | ".join(row) + " |" for row in cells),
    ]


def terminal(columns: Sequence[str], cells: Sequence[Sequence[str]], left: int = 2) -> Table:
    """The same for a terminal."""
    table = Table(box=box.SIMPLE_HEAD)
    for number, heading in enumerate(columns):
        table.add_column(heading, justify="left" if number < left else "right", overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


# ---- options of the commands -----------------------------------------------------------------------------------------

WRITE = "add the measurements to those in the .json beside this page, and write it anew: docs/benchmarks.md"


def among(text: str, known: Collection[str], option: str) -> list[str]:
    """The names of a list with commas, in the order of those ``known``; all of these, where the list is empty. Raises
    BadParameter for others."""
    given = text.split(",") if text else list(known)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise typer.BadParameter(f"expected {', '.join(known)}, found {', '.join(unknown)}", param_hint=option)
    return [name for name in known if name in given]


def numbers(text: str, option: str) -> list[int]:
    """The numbers of a list with commas, each at least 1. Raises BadParameter for others."""
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        raise typer.BadParameter(f"expected numbers with commas between, found {text!r}", param_hint=option)
    return list(map(int, text.split(",")))


def precisions(text: str, known: Collection[str]) -> list[str]:
    """The values of ``--precision``. Raises BadParameter where luminal does not compute so on this machine."""
    found = among(text, known, "--precision")
    for precision in found:
        try:
            targets.parse("host", COMPUTED.get(precision, precision))
        except (LuminalError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--precision") from error
    return found


def measurements(page: Path | None) -> Path | None:
    """Where the measurements of a page lie: beside it. Raises InputError where the page cannot be written."""
    if page is None:
        return None
    destination.file(page, "--write")
    return page.with_suffix(".json")
