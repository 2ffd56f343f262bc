"""Language models beside llama.cpp and other runtimes: ``python -m benchmarks.llm``."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import apart, language_peers, llama, tables
from benchmarks.language import PLACES, PROMPT, SHAPES, SLOTS, WORK, Speed
from benchmarks.progress import Work
from benchmarks.results import Results

GOAL_READ, GOAL_DECODE, GOAL_PREFILL = 0.85, 1.2, 1.5
ACTIVATIONS = ("float32", "q8")
Piece = tuple[str, str, str]  # a shape, a kind of weights, activations
HEADINGS = (
    "model", "weights", "activations", f"token at {PLACES[0]}", "of reading", f"token at {PLACES[1]}", "of reading",
    f"{SLOTS} tokens at {PLACES[0]}", f"prompt of {PROMPT}", "first token", "memory",
)  # fmt: skip
BESIDE = (
    "model",
    "weights",
    "activations",
    *(f"token at {place}" for place in PLACES),
    f"prompt of {PROMPT}",
    "logits apart",
)
OTHERS = (
    "model", "weights", "runtime", "activations", *(f"token at {place}" for place in PLACES),
    f"{SLOTS} tokens at {PLACES[0]}", f"prompt of {PROMPT}",
)  # fmt: skip
Times = Mapping[str, Sequence[float]]  # a median and a minimum of each of ``WORK``
ABOUT = (
    "`python -m benchmarks.llm --write docs/benchmarks-llm.md`: GGUF files of random weights in the shapes of known "
    "models, compiled by `luminal.llm.compile`, on {threads} threads. Times are medians. `token at n` is a step of one "
    "sequence after n tokens, from its token to its logits; `of reading` is the time in which the same threads, in the "
    "same run, read as many bytes as the weights and the cache have, as a part of the step's time. "
    f"`{SLOTS} tokens` is a step of {SLOTS} sequences at once. `prompt` is in tokens a second. `first token` is from "
    "opening the exported library, whose file is in the system's cache, to the first logits, in a fresh process; "
    "`memory` is the most that this process holds, the file's mapped pages included."
)
LLAMA = (
    "llama.cpp computes with the same file, taking turns; it rounds activations to 8 bits where weights have 8 or 4, "
    f"which luminal does in the rows of `q8`. `logits apart` is the length of the difference of both logits after the "
    f"prompt, by that of llama.cpp's. Its time over luminal's (goal: at least {GOAL_DECODE} for a token, "
    f"{GOAL_PREFILL} for a prompt):"
)
BY_THEMSELVES = (
    "Each in a process of its own, on random weights of the same shape. eager and inductor are transformers' modules "
    "with its static cache, without and with `torch.compile`; onnxruntime-genai runs what its builder makes of them "
    "(`fp32`, `int8`, `int4`), openvino-genai a GGUF file. These two choose how activations are rounded where weights "
    "have 8 or 4 bits; the column says how luminal computes. Their time over luminal's:"
)


def main(
    only: Annotated[str, typer.Option(help=f"{', '.join(SHAPES)}, with commas between; default: all")] = "",
    weights: Annotated[str, typer.Option(help=f"{', '.join(llama.KINDS)}, with commas between; default: all")] = "",
    activations: Annotated[str, typer.Option(help="float32, q8, with a comma between; default: both")] = "",
    beside: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(language_peers.PEERS)}, with commas between; none; default: all that are installed"
        ),
    ] = "",
    python: Annotated[
        str, typer.Option(help="the Python that has the runtimes beside, of the same version; default: this one")
    ] = sys.executable,
    layers: Annotated[int, typer.Option(min=0, help="layers of each model; 0: as many as it has")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="threads of each")] = 2,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each, or as many as last 40 seconds")] = 15,
    write: Annotated[
        Path | None, typer.Option(help="add the measurements to those beside this page: docs/benchmarks-llm.md")
    ] = None,
) -> None:
    """Time steps and prompts of language models, beside llama.cpp and other runtimes where these are installed."""
    names, kinds = tables.among(only, SHAPES, "--only"), tables.among(weights, llama.KINDS, "--weights")
    if llama.missing():
        print(f"without llama.cpp, whose package is missing: {llama.INSTALL}", file=sys.stderr)
    found, failed = Results(tables.measurements(write)), []
    rounded = tables.among(activations, ACTIVATIONS, "--activations")
    pieces = [piece for piece in itertools.product(names, kinds, rounded) if holds(*piece)]
    peers = [] if beside == "none" else installed(tables.among(beside, language_peers.PEERS, "--beside"), python)
    others = [
        (name, kind, peer)
        for name, kind in dict.fromkeys(piece[:2] for piece in pieces)
        for peer in peers
        if kind in language_peers.PEERS[peer].kinds
    ]
    work = Work([None] * (len(pieces) + len(others)))
    for piece in pieces:
        name, kind, width = piece
        work.begin(f"{SHAPES[name][0]}, {kind}, activations {width}")
        options = {"name": name, "kind": kind, "activations": width, "layers": layers, "threads": threads, "runs": runs}
        try:
            found.put("/".join(piece), apart.run("benchmarks.language", options))
        except subprocess.CalledProcessError as error:
            failed.append(f"{', '.join(piece)}: {error.returncode} from its process")
        work.end()
        if write is not None:
            write.write_text(page(found), encoding="utf-8")
    for name, kind, peer in others:
        work.begin(f"{SHAPES[name][0]}, {kind}, {peer}")
        options = {"peer": peer, "name": name, "kind": kind, "layers": layers, "threads": threads, "runs": runs}
        try:
            found.put(f"{name}/{kind}/{peer}", apart.run("benchmarks.language_peers", options, python))
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}, {kind}, {peer}: {error.returncode} from its process")
        work.end()
        if write is not None:
            write.write_text(page(found), encoding="utf-8")
    measured = {key: value for key, value in read(found).items() if key in pieces}
    console = Console(width=170)
    console.print(tables.terminal(HEADINGS, cells(measured), left=3))
    if beside_llama(measured):
        console.print(tables.terminal(BESIDE, beside_llama(measured), left=3))
    if rows := beside_others(measured, found):
        console.print(tables.terminal(OTHERS, rows, left=4))
    for line in failed:
        print(line, file=sys.stderr)
    if failed:
        raise typer.Exit(1)


# ---- output ----------------------------------------------------------------------------------------------------------


def holds(name: str, kind: str, activations: str) -> bool:
    """Whether the rows of all matrices are whole blocks of the kind, and llama.cpp rounds activations so, too."""
    columns = {size[1] for size in SHAPES[name][1].matrices().values()}
    whole = not any(count % llama.BLOCKS.get(kind, 1) for count in columns)
    return whole and (activations == ACTIVATIONS[0] or kind in llama.ROUNDED)


def read(found: Results) -> dict[Piece, Speed]:
    """What was measured, by shape, kind of weights and activations, in the order of these."""
    parts = {piece: found.get("/".join(piece)) for piece in itertools.product(SHAPES, llama.KINDS, ACTIVATIONS)}
    return {piece: Speed(**value) for piece, value in parts.items() if value is not None}


def reading(speed: Speed, what: str) -> float:
    """The time of reading what a step needs, as a part of the step's time."""
    return speed.needed[what] / speed.read / speed.luminal[what][0]


def cells(measured: Mapping[Piece, Speed]) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``."""
    near, far, batch, prompt = WORK
    rows: list[tuple[str, ...]] = []
    for (name, kind, activations), speed in measured.items():
        times = {what: median for what, (median, _) in speed.luminal.items()}
        rows.append((
            _title(name, speed), kind, activations, f"{1e3 * times[near]:.3g} ms", f"{reading(speed, near):.0%}",
            f"{1e3 * times[far]:.3g} ms", f"{reading(speed, far):.0%}", f"{1e3 * times[batch]:.3g} ms",
            f"{PROMPT / times[prompt]:.3g}/s", f"{1e3 * speed.first:.3g} ms", f"{speed.memory / 2**20:.0f} MiB",
        ))  # fmt: skip
    return rows


def installed(peers: Sequence[str], python: str) -> list[str]:
    """Those of ``peers`` that a Python has all packages of; what others lack is said."""
    lacks = apart.run("benchmarks.language_peers", {"missing": list(peers)}, python)
    for peer, packages in lacks.items():
        if packages:
            print(f"without {peer}: {python} lacks {', '.join(packages)}", file=sys.stderr)
    return [peer for peer in peers if not lacks[peer]]


def beside_others(measured: Mapping[Piece, Speed], found: Results) -> list[tuple[str, ...]]:
    """The cells of a table under ``OTHERS``."""
    rows: list[tuple[str, ...]] = []
    for (name, kind, activations), speed in measured.items():
        for peer in language_peers.PEERS:
            value = found.get(f"{name}/{kind}/{peer}")
            if value is not None and value["layers"] == speed.layers:
                times: Times = value["times"]
                ratios = (f"{times[w][0] / speed.luminal[w][0]:.2f}" if w in times else "" for w in WORK)
                rows.append((_title(name, speed), kind, value["version"], activations, *ratios))
    return rows


def beside_llama(measured: Mapping[Piece, Speed]) -> list[tuple[str, ...]]:
    """The cells of a table under ``BESIDE``."""
    near, far, _, prompt = WORK
    return [
        (
            _title(name, speed), *kinds,
            *(f"{speed.llama[w][0] / speed.luminal[w][0]:.2f}" for w in (near, far, prompt)),
            "" if speed.apart is None else f"{speed.apart:.1e}",
        )
        for (name, *kinds), speed in measured.items()
        if speed.llama
    ]  # fmt: skip


def _title(name: str, speed: Speed) -> str:
    title, shape = SHAPES[name]
    return title if speed.layers == shape.layers else f"{title}, {speed.layers} of {shape.layers} layers"


def page(found: Results) -> str:
    """The page."""
    measured = read(found)
    threads = " or ".join(sorted({str(speed.threads) for speed in measured.values()}))
    lines = ["# Language models", "", ABOUT.format(threads=threads), "", *found.machines, ""]
    lines += tables.markdown(HEADINGS, cells(measured), left=3)
    near = next(iter(WORK))
    slow = [piece for piece, speed in measured.items() if reading(speed, near) < GOAL_READ]
    short = [f"{SHAPES[name][0]} {kind} by {activations}" for name, kind, activations in slow]
    lines += ["", f"Goal: at least {GOAL_READ:.0%} of reading at {PLACES[0]}. Below it: {', '.join(short) or 'none'}."]
    if beside_llama(measured):
        versions = " and ".join(sorted({speed.version for speed in measured.values() if speed.version}))
        lines += [
            "",
            "## Beside llama.cpp",
            "",
            f"{versions}. {LLAMA}",
            "",
            *tables.markdown(BESIDE, beside_llama(measured), left=3),
        ]
    if rows := beside_others(measured, found):
        lines += ["", "## Beside other runtimes", "", BY_THEMSELVES, "", *tables.markdown(OTHERS, rows, left=4)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
