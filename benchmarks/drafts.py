"""What drafts gain (speculative decoding): ``python -m benchmarks.drafts``.

Weights are random, so what a model would say is no text that anybody writes. Each model computes all that it computes
otherwise, but what it chooses is the next token of a real text: a file of this package, and a page of the guide, as
byte-pair tokens. ``lookup`` then finds in them what it would find; a draft model is right as often as it is told to be.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import luminal.llm
from benchmarks import llama, tables
from benchmarks.language import SHAPES
from luminal.display import Display
from luminal.llm import LanguageModel
from luminal.llm.drafts import LOOKUP, Counts
from luminal.llm.engine import Engine
from luminal.llm.generate import Generator, Options
from luminal.llm.tokens import Tokenizer
from luminal.timing import shuffled

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {"code": "src/luminal/subject.py", "edited": "src/luminal/subject.py", "prose": "docs/guide/precision.md"}
PIECES = 8000  # tokens of the tokenizer
DRAFTS = (2, 4, 8)
MODEL = "a model"
SMALL = llama.Shape(
    "qwen2", 0, 256, 1024, 4, 4, 2, tied=True, biases=True
)  # the model that drafts; 24 times fewer bytes
HEADINGS = ("text", "drafts from", "most in a step", "accepted", "tokens a step", "tokens/s", "beside none")


@dataclass(frozen=True)
class Row:
    """Answers of a text, of which the drafts are ``source``'s (None: there are none), up to ``most`` in a step."""

    text: str
    source: str | None
    most: int
    counts: Counts
    tokens: int
    seconds: tuple[float, ...]


def main(
    only: Annotated[str, typer.Option(help=f"one of {', '.join(SHAPES)}")] = "qwen",
    weights: Annotated[str, typer.Option(help=f"one of {', '.join(llama.KINDS)}")] = "q8_0",
    activations: Annotated[
        str, typer.Option(help="float32, bf16 or q8: what weights of few bits multiply")
    ] = "float32",
    layers: Annotated[int, typer.Option(min=0, help="layers of the model; 0: as many as it has")] = 0,
    prompt: Annotated[int, typer.Option(min=1, help="tokens of the text before the answer")] = 600,
    tokens: Annotated[int, typer.Option(min=2, help="tokens of the answer")] = 96,
    right: Annotated[float, typer.Option(min=0, max=1, help="how often the model that drafts is right")] = 0.7,
    threads: Annotated[int, typer.Option(min=1, help="threads of each")] = 2,
    runs: Annotated[int, typer.Option(min=1, help="timed runs of each")] = 5,
) -> None:
    """Tokens a second with drafts from the text and from a small model, beside none, taking turns."""
    found = measure(SHAPES[only][1], weights, activations, layers, prompt, tokens, right, threads, runs)
    Console(width=120).print(tables.terminal(HEADINGS, cells(found), left=2))
    what = f"{SHAPES[only][0]}, {weights}, activations {activations}"
    print(f"{what}; a model that drafts is right {right:.0%} of the time.")


class Told:
    """An engine that computes what ``engine`` does, and chooses what it is told."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.speculate = engine, 0
        self._text: list[int] = []

    def tell(self, text: Sequence[int], speculate: int = 0, right: float = 1.0) -> None:
        """From now on the token at each position is that of ``text``, but for once in a while where ``right`` is below
        1, and up to ``speculate`` drafts are verified in a step."""
        wrong = np.random.default_rng(3).random(len(text)) >= right
        many = self._engine.vocabulary
        self._text = [(token + 1) % many if off else token for token, off in zip(text, wrong, strict=True)]
        self.speculate = speculate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def sample(self, settings: Mapping[int, Any]) -> dict[int, int]:
        self._engine.sample(settings)
        return {slot: self._text[self._engine.length(slot)] for slot in settings}

    def verify(self, slot: int, tokens: Sequence[int], samplers: Sequence[Any]) -> tuple[list[int], Any]:
        before = self._engine.length(slot)
        _, logits = self._engine.verify(slot, tokens, samplers)
        return self._text[before + 1 : before + 1 + len(tokens)], logits


def texts(tokenizer: Any, prompt: int, tokens: int) -> dict[str, list[int]]:
    """So many tokens of each text. An edited one is what was there with one name changed, after the original."""
    found = {}
    for name, path in TEXTS.items():
        content = (ROOT / path).read_text(encoding="utf-8")
        whole: list[int] = tokenizer.encode(content).ids
        if name == "edited":
            # The answer begins where the text is given again.
            first = whole[: prompt - 1]
            again = tokenizer.encode(tokenizer.decode(first).replace("model", "network")).ids
            whole = [*first, tokenizer.token_to_id("<end>"), *again]
        found[name] = whole[: prompt + tokens + max(DRAFTS) + 2]
    return found


def trained() -> Any:
    """A tokenizer of bytes and pairs, of the sources of this package and its guide."""
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = Made(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    files = [*sorted((ROOT / "src/luminal").glob("*.py")), *sorted((ROOT / "docs/guide").glob("*.md"))]
    others = [str(path) for path in files if str(path.relative_to(ROOT)) not in TEXTS.values()]
    made.train(others, trainers.BpeTrainer(vocab_size=PIECES, special_tokens=["<end>"], show_progress=False))
    return made


def measure(
    shape: llama.Shape, kind: str, activations: str, layers: int, prompt: int, tokens: int, right: float, threads: int,
    runs: int,
) -> list[Row]:  # fmt: skip
    """All rows, of models that are compiled for it."""
    shape = replace(shape, layers=layers or shape.layers)
    with tempfile.TemporaryDirectory(prefix="luminal-benchmarks-") as folder, Display(Console(stderr=True)) as display:

        def compiled(name: str, of: llama.Shape, slots: int, speculate: int) -> LanguageModel:
            path = llama.write(Path(folder, f"{name}.gguf"), kind, of)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the file has no tokenizer
                return luminal.llm.compile(
                    path, context=prompt + tokens + 2 * max(DRAFTS), slots=slots, threads=threads, name=name,
                    speculate=speculate, activations=activations, progress=display.report,
                )  # fmt: skip

        model = Told(compiled("model", shape, len(TEXTS), max(DRAFTS)))
        small = Told(compiled("small", replace(SMALL, vocabulary=shape.vocabulary), 1, 0))
        return timed(model, small, prompt, tokens, right, runs, lambda done: display.report("generate", done))


def timed(
    model: Told, small: Told, prompt: int, tokens: int, right: float, runs: int, watch: Callable[[float], None]
) -> list[Row]:
    """All rows, in turns."""
    tokenizer = trained()
    given = texts(tokenizer, prompt, tokens)
    kinds: list[tuple[str | None, int]] = [(None, 0), *itertools.product((LOOKUP, MODEL), DRAFTS)]
    generator = Generator(model, Tokenizer(tokenizer))  # its slots keep the prompts
    counts: dict[tuple[str, str | None, int], Counts] = {}
    order = [(text, *kind) for text in TEXTS for kind in kinds]
    seconds: dict[tuple[str, str | None, int], list[float]] = {key: [] for key in order}
    for number in range(runs + 1):
        order = shuffled(order, number)
        for at, key in enumerate(order):
            text, source, most = key
            model.tell(given[text], most)
            small.tell(given[text], right=right)
            draft = small if source == MODEL else source
            counts[key], spent = answer(generator, given[text][:prompt], tokens, draft)
            seconds[key] += [spent] if number else []  # the first run warms up
            watch((number + (at + 1) / len(order)) / (runs + 1))
    return [Row(*key, counts[key], tokens, tuple(spent)) for key, spent in seconds.items()]


def answer(
    generator: Generator, prompt: Sequence[int], tokens: int, draft: Engine | str | None
) -> tuple[Counts, float]:
    """The drafts of an answer, and its seconds after the first token."""
    pieces = generator.stream(prompt, Options(max_tokens=tokens, endless=True, draft=draft))
    next(pieces)
    start = time.perf_counter()
    *_, last = pieces
    return last.drafts or Counts(), time.perf_counter() - start


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``. What is beside none are the medians of runs of the same round."""
    plain = {row.text: row for row in rows if row.source is None}
    found: list[tuple[str, ...]] = []
    for row in rows:
        rate = (row.tokens - 1) / statistics.median(row.seconds)
        gain = statistics.median(a / b for a, b in zip(plain[row.text].seconds, row.seconds, strict=True))
        steps = row.tokens - 1 - row.counts.accepted
        part = f"{row.counts.accepted} of {row.counts.proposed}" if row.source else ""
        found.append((
            row.text, row.source or "none", str(row.most or ""), part, f"{(row.tokens - 1) / max(steps, 1):.2f}",
            f"{rate:.1f}", f"{gain:.2f}",
        ))  # fmt: skip
    return found


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
