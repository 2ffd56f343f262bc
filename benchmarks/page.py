"""The page of benchmarks, written anew from the measurements beside it: ``python -m benchmarks.page``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks import report
from benchmarks.results import Results


def main(page: Annotated[Path, typer.Argument(help="the page; its measurements are in the .json beside it")]) -> None:
    """Write the page and its charts."""
    measurements = page.with_suffix(".json")
    if page == measurements:
        told = f"expected the page, found its measurements: pass {str(page.with_suffix('.md'))!r}"
        raise typer.BadParameter(told, param_hint="PAGE")
    if not measurements.is_file():
        raise typer.BadParameter(f"there are no measurements at {str(measurements)!r}", param_hint="PAGE")
    report.write(Results(measurements), page)


if __name__ == "__main__":
    typer.run(main)
