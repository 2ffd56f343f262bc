"""Pages of large models in a browser: ``python -m benchmarks.viewing --pictures docs/pictures``.

The page of BERT-base, compiled here, and that of a made-up graph of 5,000 operators are opened in headless Chromium.
Measured is the time from load to the first frame of the folded graph, and from there until every operator is laid out
and drawn; by the clock, and the processors' time of all of the browser's processes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import luminal
from benchmarks import tables, zoo
from benchmarks.machine import name as machine
from luminal.module import Module
from luminal.view.collect import collect
from luminal.view.page import page
from tests import browser

FRAME, UNFOLDED, BYTES = 3.0, 20.0, 10e6  # the goals: seconds, seconds, and the bytes of a page
LAYERS, WIDTH = 250, 20  # of the made-up graph
KERNELS = 2  # of each of its layers

HEADINGS = ("page", "operators", "kernels", "MB", "first frame", "CPU time", "unfolded after", "CPU time", "told of")
# Notes, with each change of the line of state, what it says.
OBSERVE = """(() => { window.before = document.getElementById("graph").toDataURL();
    const line = document.getElementById("state"); window.told = [];
    new MutationObserver(() => window.told.push(line.innerText)).observe(line,
        { childList: true, characterData: true, subtree: true }); })()"""
# The picture changes once, when all is laid out.
DRAWN = """document.getElementById("state").innerText === ""
    && document.getElementById("graph").toDataURL() !== window.before"""
TELLS = r"window.told.filter((text) => /\d+ of \d+/.test(text)).length"


def bert() -> dict[str, Any]:
    """BERT-base with drawn weights, for a batch of up to 32 and up to 256 tokens."""
    model = zoo.bert_base()
    compiled = luminal.compile(model.module, model.inputs, dims=model.dims, name="bert_base", threads=2)
    assert isinstance(compiled, Module)
    return collect(compiled, compiled.profile(*model.inputs, runs=5, threads=2, peak=False))


def made_up() -> dict[str, Any]:
    """5,000 operators in 250 layers, each of two kernels."""
    types = ("LayerNorm", "Linear", "Gelu", "Add", "MatMul", "Softmax", "Transpose", "Reshape")
    operators, edges, kernels, steps = [], [], [], []
    for layer in range(LAYERS):
        first = layer * WIDTH
        for at in range(WIDTH):
            kind, part = types[(at * 3 + layer) % len(types)], ("attention", "feed_forward")[at * KERNELS // WIDTH]
            operators.append(
                {
                    "name": f"{kind} 'layer_{layer}_{kind.lower()}_{at}' at model.py:{100 + at}", "type": kind,
                    "module": ["encoder", f"layer_{layer}", part], "location": f"model.py:{100 + at}",
                    "primitives": [f"%{at} = Mul(%{at - 1}, %w{at}): float32[batch, 128, 768]"],
                }
            )  # fmt: skip
            number = first + at
            edges += [
                (number - back, number) for back in (1, 4, WIDTH) if number >= back and (back == 1 or at % 5 == 0)
            ]
        for half in range(KERNELS):
            size = WIDTH // KERNELS
            own, number = list(range(first + half * size, first + (half + 1) * size)), layer * KERNELS + half
            seconds = 1e-4 * (1 + (number * 7) % 11)
            code = "\n".join(f"    acc{line} = fma(load(a, {line}), load(b, {line}), acc{line});" for line in range(40))
            kernels.append(
                {
                    "name": f"contraction{number}", "operators": own, "schedule": ["Vectorise(16)"],
                    "code": f"// contraction{number}, made for avx512\n{code}\n", "launches": 1, "seconds": seconds,
                }
            )  # fmt: skip
            steps.append({"kernels": [number], "operators": own, "seconds": seconds, "name": f"contraction{number}"})
    buffers = [
        {"name": f"b{n}", "text": f"b{n}: float32[32, 128, 768]", "offset": n % 3 << 20, "bytes": 1 << 20, "first": n,
         "last": min(n + 2, len(steps) - 1)}
        for n in range(len(steps))
    ]  # fmt: skip
    return {
        "name": "made_up", "about": ["a made-up graph, to measure the viewer"], "operators": operators,
        "edges": sorted(edges), "kernels": kernels, "steps": steps, "memory": {"bytes": 3 << 20, "buffers": buffers},
        "derivations": [], "notes": ["Times are made up."],
    }  # fmt: skip


MODELS: Mapping[str, tuple[str, str, Callable[[], dict[str, Any]]]] = {
    "bert": ("BERT-base", "view-bert", bert),
    "large": ("5,000 operators", "view", made_up),
}


def main(
    model: Annotated[str, typer.Option(help=f"{', '.join(MODELS)}; default: all")] = "",
    pictures: Annotated[Path | None, typer.Option(help="a folder for pictures: folded and unfolded")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="a folder for the pages")] = None,
) -> None:
    """Measure pages of large models in a browser."""
    if browser.program() is None:
        raise typer.BadParameter("expected Chromium on this machine; install Debian's package chromium")
    rows = []
    with tempfile.TemporaryDirectory(prefix="luminal-view-") as name:
        for chosen in tables.among(model, MODELS, "--model"):
            title, picture, values = MODELS[chosen]
            path = (output or Path(name)).absolute() / f"{chosen}.html"
            path.write_text(page(found := values()), encoding="utf-8")
            places = None if pictures is None else [pictures / f"{picture}-{how}.png" for how in ("folded", "unfolded")]
            rows.append(
                (title, len(found["operators"]), len(found["kernels"]), path.stat().st_size, opened(path, places))
            )
    cells = [
        (
            title,
            str(operators),
            str(kernels),
            f"{size / 1e6:.1f}",
            *(f"{seconds:.2f} s" for seconds in times),
            str(tells),
        )
        for title, operators, kernels, size, (times, tells) in rows
    ]
    print(machine())
    print("\n".join(tables.markdown(HEADINGS, cells, left=1)))
    print(f"goals: the first frame within {FRAME:g} s, unfolded within {UNFOLDED:g} s, {BYTES / 1e6:g} MB")
    within = all(s <= BYTES and t[0] <= FRAME and t[2] <= UNFOLDED and tells for _, _, _, s, (t, tells) in rows)
    raise typer.Exit(0 if within else 1)


def opened(path: Path, pictures: list[Path] | None) -> tuple[list[float], int]:
    """Seconds to the first frame and from it until all is drawn, each by the clock and of the processors; and how often
    the page told of its progress meanwhile. Raises AssertionError where the page reports errors."""
    with browser.browser() as tab:
        before = processors()
        started = time.perf_counter()
        tab.open(path.as_uri(), width=1366, height=768)
        times = [time.perf_counter() - started, processors() - before]
        if pictures:
            tab.picture(pictures[0])
        tab.value(OBSERVE)
        before = processors()
        started = time.perf_counter()
        tab.press("u")
        tab.until(DRAWN, 300)
        tab.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        times += [time.perf_counter() - started, processors() - before]
        if pictures:
            tab.picture(pictures[1])
        assert not tab.problems, tab.problems
        return times, int(tab.value(TELLS))


def processors() -> float:
    """The seconds of processors that this process' descendants took that are alive."""
    parents, used = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(folder.name)], used[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    own = {os.getpid()}
    for _ in range(8):  # generations
        own |= {child for child, parent in parents.items() if parent in own}
    return sum(used[child] for child in own - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    sys.exit(app())
