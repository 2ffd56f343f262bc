"""A decoder's step beside llama.cpp's: one token more, in the shape of TinyLlama-1.1B, with random weights.

``python -m benchmarks.decoding OPTIONS`` times one kind of weights, and prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import luminal
from benchmarks import llama, tables, zoo
from benchmarks.goals import Verdict, at_least
from benchmarks.measure import needed_bytes
from benchmarks.results import Results
from luminal.core import config
from luminal.core import target as targets
from luminal.display import Display
from luminal.module import Module
from luminal.peak import Probe
from luminal.timing import interleaved, text

PAST = 256  # tokens that came before
GOAL = 73 / 60  # how many times luminal's time llama.cpp takes, of ``GRADED``
GRADED = "q8_0"
TITLES = {
    "q8_0": "8-bit integers, a scale for each 32",
    "q4_0": "4-bit integers, a scale for each 32",
    "bf16": "bfloat16",
    "f32": "float32",
}
BITS = {"q8_0": 8, "q4_0": 4}
PREFIX = "decoding/"


@dataclass(frozen=True)
class Step:
    """Seconds of a step, medians and minimums, of luminal and of llama.cpp; the ``bytes`` that luminal reads and writes
    at least, and the bytes a second of ``reading`` as many; luminal's largest ``error`` from PyTorch with the same
    weights, relative to the largest logit; and the ``version`` of llama.cpp's package."""

    layers: int
    luminal: float
    luminal_best: float
    llama: float
    llama_best: float
    bytes: int
    reading: float
    error: float
    version: str


def measure(kind: str, layers: int, threads: int, runs: int, display: Display) -> Step:
    """Time both with weights of a kind, taking turns."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="luminal-benchmarks-") as folder:
        os.environ[config.CACHE.variable] = folder
        display.report("make the model", 0.0)
        model = zoo.tinyllama_step(layers, batch=1, past=PAST)
        if kind in BITS:
            zoo.quantise(model.module, BITS[kind])
        display.report("make the model", 1.0)
        module = luminal.compile(
            model.module,
            model.inputs,
            precision="bf16" if kind == "bf16" else "fp32",
            name="decoder",
            threads=threads,
            progress=display.report,
        )
        assert isinstance(module, Module)
        with torch.no_grad():
            expected = model.module(*model.inputs)[0].numpy()
        arrays = [np.ascontiguousarray(value.numpy()) for value in model.inputs]
        found = module.library.run(arrays)[0]
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        del model, expected, found
        assert module.program is not None
        needed = needed_bytes(module.program)
        probe = Probe(targets.detect(), threads)
        reading = probe.read(needed)
        display.report(f"make llama.cpp's model of {kind}", 0.0)
        path = llama.write(Path(folder, "model.gguf"), kind, replace(llama.TINYLLAMA, layers=layers))
        display.report(f"make llama.cpp's model of {kind}", 1.0)
        contenders = {"luminal": lambda: module.library.run(arrays), "llama.cpp": llama.open_step(path, PAST, threads)}
        times = interleaved(contenders, runs, watch=lambda done, total: display.report("time", done / total))
        ours, theirs = times["luminal"], times["llama.cpp"]
        reading = max(reading, probe.read(needed))
        return Step(layers, ours.median, ours.best, theirs.median, theirs.best, needed, reading, error, llama.version())


# ---- output ----------------------------------------------------------------------------------------------------------

HEADINGS = ("weights", "llama.cpp / luminal", "luminal", "llama.cpp", "size", "of reading", "error")
ABOUT = (
    f"`python -m benchmarks.decode`: one token after {PAST} others, its logits and the cache of keys and values; batch "
    "1. Weights are random and of the same kind on both sides, luminal's computed from integers and scales where they "
    "are read; activations are float32, in llama.cpp as it chooses. Milliseconds, medians and in parentheses minimums. "
    "`size` is what luminal reads and writes at least, `of reading` the time in which the machine reads as many bytes, "
    "as a part of luminal's time; `error` luminal's distance from PyTorch with the same weights, relative to the "
    "largest logit. "
    f"llama.cpp comes with `{llama.INSTALL}`; built by GCC 12 for a processor with AMX it dies where it reads a prompt "
    f"(one token after the other works): `{llama.WITHOUT_AMX}` avoids it."
)


def parts(found: Results) -> dict[tuple[str, int], Step]:
    """What was measured, by kind of weights and threads."""
    read = {}
    for name, value in found.under(PREFIX).items():
        kind, threads = name.split("/")
        read[kind, int(threads)] = Step(**value)
    return dict(sorted(read.items(), key=lambda item: (-item[0][1], list(TITLES).index(item[0][0]))))


def verdicts(found: Results) -> list[Verdict]:
    """Whether the goal is reached."""
    step = parts(found).get((GRADED, 2))
    what = f"TinyLlama-1.1B, a token more, {TITLES[GRADED]}: llama.cpp's time / luminal's"
    if step is None or step.layers < zoo.LAYERS:
        return [at_least(what, GOAL, None)]
    return [at_least(what, GOAL, step.llama / step.luminal, f"{text(step.luminal)}, {text(step.llama)}")]


def cells(steps: dict[str, Step]) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``, by kind of weights."""
    return [
        (
            TITLES[kind],
            f"{step.llama / step.luminal:.2f}",
            f"{1e3 * step.luminal:.3g} ({1e3 * step.luminal_best:.3g})",
            f"{1e3 * step.llama:.3g} ({1e3 * step.llama_best:.3g})",
            f"{step.bytes / 2**30:.2f} GiB",
            f"{step.bytes / step.reading / step.luminal:.0%}",
            f"{step.error:.1e}",
        )
        for kind, step in steps.items()
    ]


def section(found: Results) -> list[str]:
    """The section of the page."""
    measured = parts(found)
    lines = ["## Decoding", "", ABOUT, ""] if measured else []
    for threads in sorted({threads for _, threads in measured}, reverse=True):
        steps = {kind: step for (kind, n), step in measured.items() if n == threads}
        layers = sorted({step.layers for step in steps.values()})
        count = " and ".join(map(str, layers))
        versions = " and ".join(sorted({step.version for step in steps.values()}))
        lines += [f"{threads} thread{'s' if threads > 1 else ''}, {count} of {zoo.LAYERS} layers, {versions}:", ""]
        lines += [*tables.markdown(HEADINGS, cells(steps), left=1), ""]
    return lines


def main() -> None:
    """Reads its options as JSON: it is called by ``benchmarks.decode`` alone."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    with Display(Console(stderr=True)) as display:
        step = measure(**json.loads(sys.argv[1]), display=display)
    print(json.dumps(asdict(step)))


if __name__ == "__main__":
    main()
