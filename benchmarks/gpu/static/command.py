"""``python -m benchmarks.gpu static``: kernels read and counted, without a GPU."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine as host
from benchmarks.gpu.parts import PRECISIONS
from benchmarks.gpu.static import models, page, rows, tools
from benchmarks.progress import Work
from benchmarks.tables import among
from luminal import destination
from luminal.codegen import toolchain
from luminal.core.errors import BuildError


def counted(asked: list[rows.Work], targets: list[str], triton: str, folders: tuple[str, ...]) -> dict[str, Any]:
    """The rows of both compilers, of luminal alone where no Python with Triton is given."""
    work = Work([15.0] * (len(asked) * len(targets)) + [300.0] * bool(triton))
    found: list[rows.Row] = []
    for target in targets:
        for one in asked:
            work.begin(f"{one.what}, {target}")
            found.append(rows.ours(one, target, folders))
            work.end()
    version, failed = "", []
    if triton and asked:
        work.begin("Triton's kernels")
        architectures = [tools.number(target.split(":")[1]) for target in targets]
        version, others, failed = rows.theirs(asked, architectures, triton, folders)
        found += others
        work.end()
    return {"rows": found, "failed": failed, "triton": version}


def judged(asked: list[rows.Work], targets: list[str], folders: tuple[str, ...]) -> list[dict[str, Any]]:
    """The schedules among which luminal could choose for products, each with its limit."""
    pairs = [(one, target) for one in asked for target in targets]
    work, found = Work([60.0] * len(pairs)), []
    for one, target in pairs:
        work.begin(f"candidates of {one.what}, {target}")
        tried = [
            {"how": row["how"], "limits": row["cycles"], "issued": sum(row["per"].values()),
             "occupancy": min(kernel["occupancy"] for kernel in row["kernels"])}
            for row in rows.candidates(one, target, folders)
        ]  # fmt: skip
        found.append({"what": one.what, "target": target, "candidates": tried})
        work.end()
    return found


def looked_at(names: list[str], targets: list[str], precisions: list[str], folders: tuple[str, ...]) -> list[rows.Row]:
    """The kernels of models."""
    asked = [(name, target, precision) for name in names for target in targets for precision in precisions]
    work, found = Work([40.0] * len(asked)), []
    for name, target, precision in asked:
        work.begin(f"{name}, {target}, {precision}")
        kernels = models.looked_at(models.kernels_of(name, target, precision, False, folders))
        found.append({"model": name, "target": target, "precision": precision, "kernels": kernels})
        work.end()
    return found


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was found before, except for what was found again."""
    keys = {"rows": ("what", "architecture", "who"), "models": ("model", "target", "precision"),
            "candidates": ("what", "target")}  # fmt: skip
    found = dict(new)
    for name, key in keys.items():
        again = {tuple(one[k] for k in key) for one in new[name]}
        found[name] = [one for one in old.get(name, []) if tuple(one[k] for k in key) not in again] + new[name]
    found["failed"] = [*dict.fromkeys([*old.get("failed", []), *new["failed"]])]
    found["triton"] = new["triton"] or old.get("triton", "")
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
    precision: Annotated[str, typer.Option(help="of models, with commas between")] = "bf16,fp32",
    only: Annotated[str, typer.Option(help="kinds of work with commas between: product,norm; or none")] = "",
    candidates: Annotated[
        bool, typer.Option("--candidates", help="the schedules that luminal could choose for products, too")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="write the page here, its figures in the .json beside it")] = None,
) -> None:
    """Read luminal's kernels, and Triton's for the same, and count what they issue and move. Needs nvcc and nvdisasm,
    but no GPU."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    kinds = [] if only == "none" else among(only, list(dict.fromkeys(w.kind for w in rows.works(False))), "--only")
    names = among("" if models_ == "all" else models_, models.NAMES, "--models") if models_ else []
    goals, precisions = among(targets, rows.TARGETS, "--targets"), among(precision, PRECISIONS, "--precision")
    if write is not None:
        destination.file(write, "--write")
    figures = None if write is None else write.with_suffix(".json")
    try:
        folders = rows.folders_of(triton) if triton else ()
        found = counted([work for work in rows.works(False) if work.kind in kinds], goals, triton, folders)
        found["candidates"] = judged(
            [work for work in rows.works(False) if work.kind == "product"] if candidates else [], goals, folders
        )
        found["models"] = looked_at(names, goals, precisions, folders)
        found["about"] = about()
    except BuildError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    if figures is not None and figures.is_file():
        found = merged(json.loads(figures.read_text(encoding="utf-8")), found)
    text = page.text(found)
    print(text)
    if write is not None and figures is not None:
        figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        write.write_text(text, encoding="utf-8")
