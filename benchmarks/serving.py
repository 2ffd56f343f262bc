"""A served language model under load: ``python -m benchmarks.serving``.

As many clients as the model has slots read their answers as streams, over loopback, from ``luminal serve`` in a process
of its own. Beside it stands the library alone with the same prompts and as many tokens: what serving costs is what the
first has less. Both take turns.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

import luminal.llm
from benchmarks import llama, tables
from benchmarks.language import SHAPES, drawn
from luminal.display import Display
from luminal.llm import LanguageModel
from luminal.llm.sampling import Sampler, Sampling

GOAL = 0.9
PROMPT = 32  # tokens of a client's prompt
HEADINGS = ("model", "weights", "streams", "served", "library", "served / library")
LISTENING = re.compile(r"listening at (\S+)")


def main(
    only: Annotated[str, typer.Option(help=f"{', '.join(SHAPES)}, with commas between; default: qwen")] = "qwen",
    weights: Annotated[str, typer.Option(help=f"one of {', '.join(llama.KINDS)}")] = "q8_0",
    layers: Annotated[int, typer.Option(min=0, help="layers of each model; 0: as many as it has")] = 0,
    streams: Annotated[int, typer.Option(min=1, help="clients, and slots of the library")] = 8,
    tokens: Annotated[int, typer.Option(min=2, help="tokens of each answer")] = 96,
    threads: Annotated[int, typer.Option(min=1, help="threads of the library")] = 2,
    runs: Annotated[int, typer.Option(min=1, help="runs of each")] = 5,
) -> None:
    """Tokens a second of a server's clients, beside those of the library alone."""
    rows = []
    for name in tables.among(only, SHAPES, "--only"):
        served, alone = measure(name, weights, layers, streams, tokens, threads, runs)
        ratio = statistics.median(a / b for a, b in zip(served, alone, strict=True))
        rows.append((
            SHAPES[name][0], weights, str(streams), f"{statistics.median(served):.1f}/s",
            f"{statistics.median(alone):.1f}/s", f"{ratio:.0%}",
        ))  # fmt: skip
    Console(width=120).print(tables.terminal(HEADINGS, rows))
    print(f"Goal: at least {GOAL:.0%}.")


def measure(
    name: str, kind: str, layers: int, streams: int, tokens: int, threads: int, runs: int
) -> tuple[list[float], list[float]]:
    """Tokens a second, served and alone, of each run."""
    shape = SHAPES[name][1]
    shape = replace(shape, layers=layers or shape.layers)
    prompts = [drawn(shape.vocabulary, PROMPT + number)[number:] for number in range(streams)]
    with tempfile.TemporaryDirectory(prefix="luminal-benchmarks-") as folder, Display(Console(stderr=True)) as display:
        path = llama.write(Path(folder, "model.gguf"), kind, shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the file has no tokenizer
            lm = luminal.llm.compile(
                path, context=512, slots=streams, threads=threads, name="model", progress=display.report
            )
            exported = lm.export(Path(folder, "model"), python_module=False)
        write_tokenizer(exported, shape.vocabulary)
        with serving(exported, threads) as url:
            served: list[float] = []
            alone: list[float] = []
            contenders = (
                (served, lambda: ask(url, prompts, tokens)), (alone, lambda: compute(lm, prompts, tokens)),
            )  # fmt: skip
            for number in range(runs + 1):
                for rates, run in contenders:
                    rate = timed(run, streams * tokens)
                    if number:  # the first run warms up
                        rates.append(rate)
                display.report("serve", (number + 1) / (runs + 1))
    return served, alone


def timed(run: Callable[[], None], tokens: int) -> float:
    start = time.perf_counter()
    run()
    return tokens / (time.perf_counter() - start)


def compute(lm: LanguageModel, prompts: list[list[int]], tokens: int) -> None:
    """The library alone: each prompt, then a step for all of them at once, by the likeliest token."""
    for slot, prompt in enumerate(prompts):
        lm.rewind(slot, 0)
        lm.prefill(slot, prompt)
    likeliest = {slot: Sampler(Sampling(), lm.vocabulary) for slot in range(len(prompts))}
    for _ in range(tokens - 1):
        lm.decode(lm.sample(likeliest))
    lm.sample(likeliest)


def ask(url: str, prompts: list[list[int]], tokens: int) -> None:
    """Clients that read a stream each, at the same time."""

    def read(prompt: list[int]) -> int:
        asked = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=600) as answer:
            answer.raise_for_status()
            lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
        return int(json.loads(lines[-1].removeprefix("data: "))["usage"]["completion_tokens"])

    with ThreadPoolExecutor(len(prompts)) as clients:
        counts = list(clients.map(read, prompts))
    if counts != [tokens] * len(prompts):
        raise RuntimeError(f"expected {tokens} tokens for each client, found {counts}")


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A tokenizer of numbers: the shapes have vocabularies, but no texts."""
    words = {f"{number} ": number for number in range(vocabulary)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "0 "}
    fixed = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    text: dict[str, Any] = {"version": "1.0", **dict.fromkeys(fixed), "added_tokens": [], "model": model}
    Path(folder, "tokenizer.json").write_text(json.dumps(text), encoding="utf-8")


@contextmanager
def serving(folder: Path, threads: int) -> Iterator[str]:
    """The address of a server of its own process."""
    command = [sys.executable, "-m", "luminal", "serve", str(folder), "--port", "0", "--threads", str(threads)]
    server = subprocess.Popen([*command, "--name", "model"], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        heard = []
        for line in server.stderr:
            heard.append(line)
            if found := LISTENING.search(line):
                yield found[1]
                break
        else:
            raise RuntimeError(f"the server did not start: {''.join(heard)}")
    finally:
        server.terminate()
        server.communicate(timeout=60)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
