"""A language model's speed, in a process of its own: ``python -m benchmarks.language OPTIONS``, a line of JSON on
standard output.

The model is a GGUF file of random weights; llama.cpp reads the same file, where its package is installed.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import luminal.llm
from benchmarks import apart, llama
from luminal.core import target as targets
from luminal.display import Display
from luminal.llm import LanguageModel
from luminal.peak import STREAM, Probe
from luminal.timing import Timing, interleaved

SHAPES = {"tinyllama": ("TinyLlama-1.1B", llama.TINYLLAMA), "qwen": ("Qwen2.5-0.5B", llama.QWEN)}
CONTEXT, CHUNK, PROMPT, SLOTS = 4096, 512, 512, 8
PLACES = (32, 4000)  # tokens before the one that is timed
BITS = {"f32": 32.0, "bf16": 16.0, "q8_0": 8.5, "q4_0": 4.5, "q4_k": 4.5}  # of a weight, scales included
WORK = (*(f"decode at {place}" for place in PLACES), f"decode {SLOTS} at {PLACES[0]}", "prefill")


@dataclass(frozen=True)
class Speed:
    """A model's weights of one kind. ``luminal`` and ``llama`` are seconds of each of ``WORK``: medians and minimums.
    ``read`` are the bytes a second at which the machine's memory is read by as many threads, ``needed`` the bytes of a
    step at each of ``PLACES``. Of a fresh process: seconds until the first token after opening the library, and its
    largest resident memory, in bytes. ``build`` are seconds. ``apart`` is how far the logits of both lie apart after a
    prompt: the length of their difference by that of llama.cpp's."""

    layers: int
    threads: int
    luminal: dict[str, tuple[float, float]]
    llama: dict[str, tuple[float, float]]
    needed: dict[str, float]
    read: float
    first: float
    memory: int
    build: float
    version: str = ""
    apart: float | None = None


def measure(name: str, kind: str, activations: str, layers: int, threads: int, runs: int, display: Display) -> Speed:
    """Time a shape of ``SHAPES`` with weights of a kind and activations of products, each piece of work of both in
    turns."""
    shape = SHAPES[name][1]
    shape = replace(shape, layers=layers or shape.layers)
    with tempfile.TemporaryDirectory(prefix="luminal-benchmarks-") as folder:
        display.report("make the model", 0.0)
        path = llama.write(Path(folder, "model.gguf"), kind, shape, CONTEXT)
        display.report("make the model", 1.0)
        start = time.perf_counter()
        lm = luminal.llm.compile(
            path, context=CONTEXT, chunk=CHUNK, slots=SLOTS, threads=threads, name="model",
            precision="bf16" if kind == "bf16" and targets.detect().units else None, activations=activations,
            progress=display.report,
        )  # fmt: skip
        build = time.perf_counter() - start
        exported = lm.export(Path(folder, "model"), python_module=False)
        fresh = apart.run("benchmarks.language", {"fresh": str(exported), "threads": threads})
        probe = Probe(targets.detect(), threads)
        reading = probe.read(STREAM)
        ours, theirs, between = work(lm), {}, None
        if not llama.missing():
            model = llama.opened(path, CONTEXT, CHUNK, threads)
            theirs, between = peer(model), difference(lm, model)
        found: dict[str, dict[str, Timing]] = {}
        for what, prepare in ours.items():
            display.report(what, 0.0)
            contenders = {"luminal": prepare()}
            if what in theirs:
                contenders["llama.cpp"] = theirs[what]()
            found[what] = interleaved(contenders, runs, warmup=1, budget=40.0)
            display.report(what, 1.0)
        reading = max(reading, probe.read(STREAM))
        weights = sum(rows * columns for rows, columns in shape.matrices().values()) * BITS[kind] / 8
        return Speed(
            shape.layers, threads, _times(found, "luminal"), _times(found, "llama.cpp"),
            {f"decode at {place}": weights + shape.cache(place) for place in PLACES}, reading, fresh["first"],
            fresh["memory"], build, llama.version() if theirs else "", between,
        )  # fmt: skip


def _times(found: dict[str, dict[str, Timing]], who: str) -> dict[str, tuple[float, float]]:
    return {what: (times[who].median, times[who].best) for what, times in found.items() if who in times}


Prepared = Callable[[], Callable[[], object]]


def drawn(vocabulary: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(2).integers(0, vocabulary, count)]


def work(lm: LanguageModel) -> dict[str, Prepared]:
    """What makes ready each piece of ``WORK``, in their order; what that returns does it once, and can be repeated."""
    tokens = drawn(lm.vocabulary, CONTEXT)

    def decoding(slots: int, place: int) -> Callable[[], object]:
        lm.reset()
        for slot in range(slots):
            lm.prefill(slot, tokens[:place])

        def step() -> None:
            lm.decode(dict.fromkeys(range(slots), tokens[place]))
            for slot in range(slots):
                lm.rewind(slot, place)

        return step

    def prompt() -> Callable[[], object]:
        lm.reset()

        def read() -> None:
            lm.prefill(0, tokens[:PROMPT])
            lm.rewind(0, 0)

        return read

    made: list[Prepared] = [*(partial(decoding, 1, place) for place in PLACES)]
    made += [lambda: decoding(SLOTS, PLACES[0]), prompt]
    return dict(zip(WORK, made, strict=True))


def difference(lm: LanguageModel, model: Any) -> float:
    """How far logits lie apart after a prompt."""
    tokens = drawn(lm.vocabulary, PROMPT)
    lm.reset()
    lm.prefill(0, tokens)
    model.reset()
    model.eval(tokens)
    found, theirs = lm.logits(0).astype(np.float64), llama.logits(model).astype(np.float64)
    return float(np.linalg.norm(found - theirs) / np.linalg.norm(theirs))


def peer(model: Any) -> dict[str, Prepared]:
    """The same of llama.cpp, for one sequence."""
    tokens = drawn(model.n_vocab(), CONTEXT)

    def decoding(place: int) -> Callable[[], object]:
        model.reset()
        model.eval(tokens[:place])

        def step() -> None:
            model.n_tokens = place  # the cache forgets what came after
            model.eval(tokens[place : place + 1])

        return step

    def prompt() -> Callable[[], object]:
        def read() -> None:
            model.reset()
            model.eval(tokens[:PROMPT])

        return read

    found: dict[str, Prepared] = {f"decode at {place}": partial(decoding, place) for place in PLACES}
    return {**found, "prefill": prompt}


def fresh(folder: str, threads: int) -> dict[str, Any]:
    """Opens an exported model and computes one token."""
    start = time.perf_counter()
    lm = luminal.llm.load(folder, threads=threads)
    lm.prefill(0, [1])
    lm.logits(0)
    return {
        "first": time.perf_counter() - start, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }  # fmt: skip


def main() -> None:
    """Reads its options as JSON: it is called by ``benchmarks.llm``, and for a fresh process by itself."""
    warnings.simplefilter("ignore")  # the model has no tokenizer
    options = json.loads(sys.argv[1])
    if "fresh" in options:
        print(json.dumps(fresh(options["fresh"], options["threads"])))
        return
    with Display(Console(stderr=True)) as display:
        found = measure(**options, display=display)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
