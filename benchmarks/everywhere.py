"""Libraries for every CPU and system from this machine: ``python -m benchmarks.everywhere --write docs/machines.md``.

MiniLM with its real weights and a small convolutional network are compiled for each target. What can run here, by
itself, under qemu or wine, in Node or with another C library, is called from C (in Node from JavaScript), and compared
with PyTorch in float64; of what cannot, a C program is linked with the library. Other forms of an export, a static
library, sources and a wheel, are called too.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

import luminal
from benchmarks import tables, zoo
from benchmarks.progress import Work
from benchmarks.results import Results
from luminal.codegen import platform as platforms
from luminal.codegen import toolchain
from luminal.comparison import inputs as drawing
from luminal.comparison.foreign import Foreign, runner
from luminal.comparison.measure import distance
from luminal.core import target as targets
from luminal.core.errors import BuildError, LuminalError, ModelError, TargetError
from luminal.core.ir import Graph
from luminal.core.target import Target
from luminal.module import Module

TOLERANCE = 1e-5  # of an output's scale: 168 roundings of float32, as luminal.diff allows any implementation
CPUS = {**targets.ALL, **targets.ABROAD}
HOST = "host"
# Other forms than a shared library, each for the targets that run most often or need a loader the least.
FORMS = (("static", HOST), ("source", HOST), ("wheel", HOST), ("static", "x86-64-musl"), ("static", "aarch64-musl"))
HEADINGS = ("target", "form", "what was done", "model", "library", "weights", "largest error")
ABOUT = (
    "`python -m benchmarks.everywhere --write docs/machines.md`, on one Linux machine with the extra `clang`: "
    "all-MiniLM-L6-v2 with its real weights (a batch of up to 32, up to 256 tokens) and a small network of "
    "convolutions (a batch of up to 8 pictures) are compiled for each target and exported. Of what can run here, a "
    "program calls the "
    "library on a batch of 3 (MiniLM: of 37 tokens). `largest error` is the largest distance from PyTorch in float64, "
    f"of all outputs, by the output's largest magnitude; {TOLERANCE:g} is allowed. Of the others, a C program is "
    "linked with the library, which says that its symbols are there, but not what it computes."
)


class Subject:
    """A model, inputs of it, and what PyTorch computes in float64."""

    def __init__(self, model: zoo.Model, name: str) -> None:
        self.graph: Graph = luminal.read(model.module, model.inputs, dims=model.dims, name=name)
        self.inputs = drawing.draw(self.graph, drawing.sizes(self.graph))
        wide = [torch.from_numpy(x.astype(np.float64) if x.dtype.kind == "f" else x) for x in self.inputs.values()]
        with torch.no_grad():
            found = model.module.double()(*wide)
        self.expected = [x.numpy() for x in (found if isinstance(found, tuple) else (found,))]

    def error(self, found: list[NDArray[Any]]) -> float:
        """How far outputs are from the expected ones, by their scales; infinite where NaN or infinities are."""
        apart = [distance(x.astype(np.float64), y) for x, y in zip(found, self.expected, strict=True)]
        return max(float("inf") if d.misplaced else d.relative for d in apart)


def pictures() -> zoo.Model:
    """A small convolutional network: two convolutions, pooling, a mean over pixels, and classes; drawn weights."""
    layers = (
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.Hardswish(),
    )
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10), nn.Softmax(-1)).eval()
    random = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in module.parameters():
            spread = parameter[0].numel() ** -0.5
            parameter.copy_(torch.from_numpy(random.normal(0, spread, tuple(parameter.shape))))
    return zoo.Model(module, (torch.ones(2, 3, 32, 32),), {"batch": (1, 8), "input": {0: "batch"}})


SUBJECTS: Mapping[str, tuple[str, Callable[[], zoo.Model]]] = {
    "minilm": ("MiniLM", zoo.minilm),
    "pictures": ("small CNN", pictures),
}


@functools.cache
def subject(name: str) -> Subject:
    return Subject(SUBJECTS[name][1](), name)


def main(
    only: Annotated[str, typer.Option(help="targets, with commas between; default: all of CPUs")] = "",
    model: Annotated[str, typer.Option(help="minilm or pictures; default: both")] = "",
    again: Annotated[bool, typer.Option("--again", help="measure again what was measured before")] = False,
    write: Annotated[Path | None, typer.Option(help=tables.WRITE.replace("benchmarks.md", "machines.md"))] = None,
) -> None:
    """Compile two models for every CPU and system, and run them where they can be run."""
    names = tables.among(only, [*CPUS, HOST], "--only")
    models = tables.among(model, SUBJECTS, "--model")
    pairs = [*(("library", target) for target in names if target != HOST), *(f for f in FORMS if f[1] in names)]
    found = Results(tables.measurements(write))
    todo = [(form, target, name) for name in models for form, target in pairs]
    todo = [item for item in todo if again or found.get(_key(*item)) is None]
    work = Work([None] * len(todo))
    for form, target, name in todo:
        work.begin(f"{SUBJECTS[name][0]}: {form} for {target}")
        found.put(_key(form, target, name), measured(subject(name), form, targets.parse(target)))
        work.end()
        if write is not None:
            write.write_text(page(found), encoding="utf-8")
    Console(width=150).print(tables.terminal(HEADINGS, list(cells(found)), left=4))
    if any(not row["ok"] for row in found.under("").values()):
        raise typer.Exit(1)


def _key(form: str, target: str, name: str) -> str:
    return f"{name} {form} {target}"


def measured(of: Subject, form: str, target: Target) -> dict[str, Any]:
    """What was done with the model's library for ``target``, and what came out, as a value that JSON holds."""
    try:
        made = luminal.compile(of.graph, target=target)
        assert isinstance(made, Module)
        done, sizes, found = (_imported if form == "wheel" else _called)(of, made, form, target)
    except LuminalError as error:
        return {"ok": False, "done": f"failed: {str(error).splitlines()[0][:200]}", "error": None}
    error_ = None if found is None else of.error(found)
    return {"ok": error_ is None or error_ <= TOLERANCE, "done": done, "error": error_, **sizes}


Done = tuple[str, dict[str, int], list[NDArray[Any]] | None]  # what, bytes of the files, and the outputs


def _called(of: Subject, made: Module, form: str, target: Target) -> Done:
    """The export called by a program, or only linked with one where nothing here runs it."""
    caller = Foreign(made, of.graph, target, form)
    if form == "source":
        build(caller.folder / f"{made.interface.name}.cpp", target)
    platform = platforms.ALL[target.system]
    library = platform.archive.format(name=made.interface.name) if form == "static" else made.manifest["library"]
    sizes = _sizes(caller.folder, library, made)
    try:
        by = runner(target, alone=form == "static").name
    except TargetError:
        caller.program(of.inputs)
        return "a C program is linked with it", sizes, None
    results = caller.run(of.inputs)
    return f"run under {by}" if by else "run", sizes, [results[name] for name, _ in of.graph.outputs]


def build(source: Path, target: Target) -> None:
    """Builds exported sources by the command that they name. Raises BuildError with what the compiler says."""
    (command,) = re.findall(r"^//     c\+\+ (.*)$", source.read_text(), re.MULTILINE)
    done = toolchain.find(target.architecture, platforms.ALL[target.system]).run(command.split(), source.parent)
    if done.returncode:
        raise BuildError(f"the sources do not build: {done.stderr.strip()[-500:]}")


CALLER = """
import sys
import numpy as np
model = __import__(sys.argv[1]).Model(threads=2)
np.savez("out.npz", **model.run(dict(np.load("in.npz"))))
assert not any(name.startswith(("luminal", "torch")) for name in sys.modules)
"""


def _imported(of: Subject, made: Module, form: str, target: Target) -> Done:
    """The export as a wheel, installed by itself and imported in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="luminal-wheel-") as name:
        folder = Path(name)
        (wheel,) = made.export(folder / "made", emit=form, python_module=False).glob("*.whl")
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target")
        np.savez(folder / "in.npz", **of.inputs)  # type: ignore[arg-type]
        for command in ([*pip, str(folder / "site"), str(wheel)], [sys.executable, "-c", CALLER, made.interface.name]):
            environment = {"PYTHONPATH": str(folder / "site")}
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ModelError(f"the wheel: {done.stderr.strip()[-500:]}")
        with np.load(folder / "out.npz") as found:
            outputs = [found[name] for name, _ in of.graph.outputs]
        return "imported by Python", _sizes(folder / "made", made.manifest["library"], made), outputs


def _sizes(folder: Path, library: str, made: Module) -> dict[str, int]:
    files = {"library": library, "weights": made.manifest["weights"]}
    return {what: (folder / file).stat().st_size for what, file in files.items()}


# ---- output ----------------------------------------------------------------------------------------------------------


def cells(found: Results) -> Iterator[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``."""
    order = [*(("library", target) for target in CPUS), *FORMS]
    for form, target in order:
        for name, (title, _) in SUBJECTS.items():
            row = found.get(_key(form, target, name))
            if row is None:
                continue
            error = "" if row["error"] is None else f"{row['error']:.1e}"
            sizes = (
                (f"{row['library'] / 1e3:.0f} KB", f"{row['weights'] / 1e6:.1f} MB") if "library" in row else ("", "")
            )
            yield f"`{target}`", form, row["done"], title, *sizes, error


def wrapped(text: str) -> list[str]:
    """The lines of a paragraph, or of a point of a list, for a page."""
    return textwrap.wrap(text, 120, subsequent_indent="  " if text.startswith("- ") else "", break_on_hyphens=False)


def page(found: Results) -> str:
    """The page for ``docs/``."""
    rows = found.under("").values()
    ran = [row["error"] for row in rows if row["error"] is not None]
    linked = sum(row["error"] is None and row["ok"] for row in rows)
    lines = [
        "# Every machine from one", "", *wrapped(ABOUT), "",
        *(line for name in found.machines for line in wrapped(f"- {name}")), "",
        f"{len(ran)} libraries were run, {sum(error <= TOLERANCE for error in ran)} of them within the tolerance, "
        f"{linked} linked, {sum(not row['ok'] for row in rows)} failed.",
        "", *tables.markdown(HEADINGS, list(cells(found)), left=4), "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
