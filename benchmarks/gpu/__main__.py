"""Measure on an NVIDIA GPU: ``python -m benchmarks.gpu --write docs/gpu.md``.

Parts of at most nine minutes run one after the other, the most telling first, each in a process of its own. What a part
finds lies in a JSON of its own in the folder ``--keep``; a run that is stopped is gone on with by the same command, and
the page is written anew after every part. ``--prepare`` compiles beforehand, without a GPU: the folder then brings the
machine code along.

``python -m benchmarks.gpu static`` reads and counts kernels, which needs no GPU at all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine as host
from benchmarks.gpu import page
from benchmarks.gpu.machine import Machine, card, own_target
from benchmarks.gpu.part import command
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.static import command as static
from benchmarks.progress import Work
from luminal import destination
from luminal.core import config
from luminal.core import target as targets

LONGEST = 540  # seconds of a part
LEAST = 30  # fewer are not worth beginning a part
CACHE = "cache"  # of compiled kernels, in the folder that is kept
STATIC = "static"  # the command that needs no GPU


def measure(name: str, machine: Machine, seconds: float) -> dict[str, Any]:
    """A part's rows, as far as it came in so many seconds; and why they are not all, where they are not."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(command(name, machine), stdout=out, stderr=log, start_new_session=True)
        try:
            status: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        out.seek(0), log.seek(0)
        lines, said = out.read().splitlines(), log.read()
    found: dict[str, Any] = {"rows": _last(lines), "seconds": time.perf_counter() - started}
    if status is None:
        found["stopped"] = f"after {seconds:.0f} s"
    elif status:
        found["failed"] = (said.strip().splitlines() or [f"exit code {status}"])[-1][:500]
    return found


def _last(lines: list[str]) -> list[Any]:
    """The last line that is whole."""
    for line in reversed(lines):
        try:
            rows: list[Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        return rows
    return []


def file_of(keep: Path, name: str) -> Path:
    return keep / f"{name.replace('/', '-')}.json"


def kept(keep: Path) -> dict[str, dict[str, Any]]:
    """What the parts have found, by name."""
    files = {name: file_of(keep, name) for name in PARTS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


def waiting(names: list[str], keep: Path, about: str) -> list[str]:
    """The parts that are still to run: those that never did on this card, then those that did not end well."""
    found = {name: part for name, part in kept(keep).items() if part["card"] == about}
    again = [name for name in names if name in found and ("failed" in found[name] or "stopped" in found[name])]
    return [name for name in names if name not in found] + again


def chosen(only: str) -> list[str]:
    """The parts whose names begin with one of those given; all, where none is."""
    prefixes = only.split(",") if only else [""]
    unknown = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in PARTS)]
    if unknown:
        known = ", ".join(dict.fromkeys(name.split("/")[0] for name in PARTS))
        raise typer.BadParameter(f"expected the beginnings of parts ({known}), found {', '.join(unknown)}")
    return [name for name in PARTS if name.startswith(tuple(prefixes))]


def _machine(target: str, emulate: bool, prepare: bool, runs: int) -> Machine:
    machine = Machine(target or own_target(), emulate, prepare, runs)
    obstacle = targets.obstacle(targets.parse(machine.target))
    if obstacle and not (emulate or prepare):
        raise typer.BadParameter(
            f"nothing can be measured here: {obstacle}; --prepare compiles, --emulate tries it out"
        )
    return machine


def main(
    only: Annotated[str, typer.Option(help="beginnings of parts, with commas between: copy,model/vit")] = "",
    target: Annotated[str, typer.Option(help="a target of NVIDIA's; default: this machine's GPU")] = "",
    keep: Annotated[Path, typer.Option(help="the folder of what parts find, and of compiled kernels")] = Path("gpu"),
    write: Annotated[Path | None, typer.Option(help="write the page here: docs/gpu.md")] = None,
    budget: Annotated[float, typer.Option(min=LEAST, help="seconds for all parts together")] = 24 * 3600.0,
    runs: Annotated[int, typer.Option(min=1, help="timed runs of each")] = 25,
    prepare: Annotated[bool, typer.Option("--prepare", help="compile alone, which needs no GPU")] = False,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="tiny sizes on an emulated GPU: to try this command")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="name the parts, and stop")] = False,
) -> None:
    """Check and time luminal on an NVIDIA GPU, beside PyTorch."""
    names = chosen(only)
    if listed:
        print("\n".join(f"{name}  (about {PARTS[name].seconds:.0f} s)" for name in names))
        return
    machine = _machine(target, emulate, prepare, runs)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no part is left running
    if write is not None:
        destination.file(write, "--write")
    keep.mkdir(parents=True, exist_ok=True)
    os.environ[config.CACHE.variable] = str((keep / CACHE).absolute())
    about, end = card(machine), time.monotonic() + budget
    left = names if prepare else waiting(names, keep, about)
    work, bad = Work([PARTS[name].seconds for name in left]), []
    for name in left:
        seconds = min(LONGEST, end - time.monotonic())
        if seconds < LEAST:
            print(f"the budget is spent; the same command goes on with {name}", file=sys.stderr)
            break
        work.begin(name)
        found = measure(name, machine, seconds)
        work.end()
        if "failed" in found or "stopped" in found:
            bad.append(f"{name}: {found.get('failed') or found['stopped']}")
        if prepare:
            continue
        written = file_of(keep, name)
        written.with_suffix(".part").write_text(
            json.dumps({"card": about, "day": host.today(), **found}), encoding="utf-8"
        )
        written.with_suffix(".part").replace(written)
        if write is not None:
            write.write_text(page.text(kept(keep)), encoding="utf-8")
    if not prepare:
        print(page.text(kept(keep)))
        bad += page.wrong({name: part for name, part in kept(keep).items() if name in names})
    for line in bad:
        print(line, file=sys.stderr)
    if bad:
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if sys.argv[1:2] == [STATIC]:
        app.command(name=f"{sys.argv[0]} {STATIC}")(static.main)
        app(sys.argv[2:])
    app.command(epilog=f"{STATIC}: read and count kernels without a GPU (python -m benchmarks.gpu {STATIC} --help).")(
        main
    )
    app()
