"""``python -m benchmarks.gpu static``: kernels read and counted, without a GPU."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine as host
from benchmarks.gpu.parts import PRECISIONS
from benchmarks.gpu.static import models, page, quantised, rows
from benchmarks.progress import Work
from benchmarks.tables import among
from luminal import destination
from luminal.codegen import toolchain
from luminal.core.errors import BuildError
from luminal.machine_code import tools

Found = dict[str, Any]

# By what a row is told from others, in each of the lists that are found.
KEYS = {
    "rows": ("what", "architecture", "who"), "models": ("model", "target", "precision"),
    "candidates": ("what", "target"),
}  # fmt: skip
NOTHING: Found = {"rows": [], "models": [], "candidates": [], "failed": [], "triton": "", "about": ""}


def counted(asked: list[rows.Work], targets: list[str], triton: str, folders: tuple[str, ...]) -> Iterator[Found]:
    """The rows of both compilers, of luminal alone where no Python with Triton is given."""
    pairs = [(one, target) for target in targets for one in asked]
    theirs = [one for one in asked if triton and one.kind not in quantised.KINDS]
    work = Work([15.0] * len(pairs) + [60.0] * len(theirs))
    for one, target in pairs:
        work.begin(f"{one.what}, {target}")
        yield {"rows": [rows.ours(one, target, folders)]}
        work.end()
    architectures = [tools.number(target.split(":")[1]) for target in targets]
    for one in theirs:
        work.begin(f"{one.what}, by Triton")
        version, found, failed = rows.theirs(one, architectures, triton, folders)
        yield {"rows": found, "failed": failed, "triton": version}
        work.end()


def judged(asked: list[rows.Work], targets: list[str], folders: tuple[str, ...]) -> Iterator[Found]:
    """The schedules among which luminal could choose for products, each with its limits."""
    pairs = [(one, target) for one in asked for target in targets]
    work = Work([60.0] * len(pairs))
    for one, target in pairs:
        work.begin(f"candidates of {one.what}, {target}")
        tried = [
            {"how": row["how"], "limits": row["cycles"], "issued": sum(row["per"].values()),
             "occupancy": min(kernel["occupancy"] for kernel in row["kernels"])}
            for row in rows.candidates(one, target, folders)
        ]  # fmt: skip
        yield {"candidates": [{"what": one.what, "target": target, "candidates": tried}]}
        work.end()


def looked_at(names: list[str], targets: list[str], precisions: list[str], folders: tuple[str, ...]) -> Iterator[Found]:
    """The kernels of models."""
    asked = [(name, target, precision) for name in names for target in targets for precision in precisions]
    work = Work([40.0] * len(asked))
    for name, target, precision in asked:
        work.begin(f"{name}, {target}, {precision}")
        kernels = models.looked_at(models.kernels_of(name, target, precision, False, folders))
        yield {"models": [{"model": name, "target": target, "precision": precision, "kernels": kernels}]}
        work.end()


def merged(old: Found, new: Found) -> Found:
    """What was found before, except for what was found again."""
    found = {**old, **new}
    for name, key in KEYS.items():
        again = {tuple(one[k] for k in key) for one in new.get(name, [])}
        kept = [one for one in old.get(name, []) if tuple(one[k] for k in key) not in again]
        found[name] = [*kept, *new.get(name, [])]
    found["failed"] = [*dict.fromkeys([*old["failed"], *new.get("failed", [])])]
    return found


def about() -> str:
    """With what, and when."""
    said = toolchain.find_nvcc().version.strip().splitlines()
    release = next((line for line in said if "release" in line), said[-1])
    return f"{release}; {host.today()}."


def main(
    triton: Annotated[str, typer.Option(help="a Python that has Triton; without one, luminal's kernels alone")] = "",
    targets: Annotated[str, typer.Option(help="targets with commas between")] = ",".join(rows.TARGETS),
    models_: Annotated[str, typer.Option("--models", help="models whose kernels are looked at, or all")] = "",
    precision: Annotated[str, typer.Option(help="of models, with commas between")] = ",".join(PRECISIONS),
    only: Annotated[str, typer.Option(help="kinds of work with commas between: product,norm; or none")] = "",
    candidates: Annotated[
        bool, typer.Option("--candidates", help="the schedules that luminal could choose for products, too")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="write the page here, its figures in the .json beside it")] = None,
) -> None:
    """Read luminal's kernels, and Triton's for the same, and count what they issue and move. Needs nvcc and nvdisasm,
    but no GPU."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    works = rows.works(False)
    kinds = [] if only == "none" else among(only, list(dict.fromkeys(work.kind for work in works)), "--only")
    names = among("" if models_ == "all" else models_, models.NAMES, "--models") if models_ else []
    goals, precisions = among(targets, rows.TARGETS, "--targets"), among(precision, PRECISIONS, "--precision")
    products = [work for work in works if work.kind == "product"] if candidates else []
    if write is not None:
        destination.file(write, "--write")
    figures = None if write is None else write.with_suffix(".json")
    found = json.loads(figures.read_text(encoding="utf-8")) if figures is not None and figures.is_file() else NOTHING
    try:
        folders = rows.folders_of(triton) if triton else ()
        found = {**found, "about": about()}
        for part in (
            counted([work for work in works if work.kind in kinds], goals, triton, folders),
            judged(products, goals, folders),
            looked_at(names, goals, precisions, folders),
        ):
            for new in part:
                found = merged(found, new)
                if write is not None and figures is not None:  # at once: a run that is stopped leaves what it had
                    destination.written((json.dumps(found, indent=1) + "\n").encode(), figures)
                    destination.written(page.text(found).encode(), write)
    except BuildError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    print(page.text(found))
