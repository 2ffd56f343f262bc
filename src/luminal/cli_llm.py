"""Commands for language models and for serving: ``luminal generate | chat | serve``."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from luminal import launch, options
from luminal.console import err
from luminal.core import device
from luminal.core.errors import InputError
from luminal.display import Display
from luminal.frontends.llm import cache as cache_
from luminal.llm import opening
from luminal.llm.drafts import LOOKUP
from luminal.llm.generate import Generator, Options, Piece
from luminal.llm.grammar import Constraint
from luminal.llm.model import LanguageModel
from luminal.llm.sampling import Sampling
from luminal.timing import text

DRAFTS = 5  # that one step verifies, unless the user says

Model = Annotated[
    Path, typer.Argument(help="a language model: an exported folder, or a checkpoint, which is compiled first")
]
Adapter = Annotated[Path | None, typer.Option(help="a folder with an adapter (LoRA), as PEFT writes it")]
Draft = Annotated[
    str | None,
    typer.Option(help="where drafts of the answer come from: lookup, the text so far; or a smaller language model"),
]


@dataclass(frozen=True)
class Asked:
    """What answers are asked for."""

    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="tokens of the answer; default: as the context has room for")
    ] = None
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token; 1: as the model says")] = 0.0
    top_k: Annotated[int, typer.Option(help="draw from so many likeliest tokens; 0: from all")] = 0
    top_p: Annotated[float, typer.Option(help="draw from the fewest tokens of this probability in all")] = 1.0
    min_p: Annotated[float, typer.Option(help="draw from tokens of at least this part of the largest probability")] = (
        0.0
    )
    repetition_penalty: Annotated[float, typer.Option(help="divides logits of tokens that were there; 1: none")] = 1.0
    seed: Annotated[int | None, typer.Option(help="of the draws; default: others each time")] = None
    stop: Annotated[list[str] | None, typer.Option(help="a text before which an answer ends; may be repeated")] = None
    system: Annotated[str | None, typer.Option(help="what the model is told before the chat")] = None
    adapter: Adapter = None
    draft: Draft = None
    speculate: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"of a checkpoint: drafts that one step verifies at most; default with --draft: {DRAFTS}"
        ),
    ] = None

    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty, seed=self.seed)

    def options(self, draft: LanguageModel | str | None, constraint: Constraint | None = None) -> Options:
        return Options(
            self.max_tokens, self.sampling(), tuple(self.stop or ()), constraint=constraint,
            adapter=None if self.adapter is None else 0, draft=draft,
        )  # fmt: skip

    def told(self) -> list[dict[str, str]]:
        """What a chat begins with."""
        return [] if self.system is None else [{"role": "system", "content": self.system}]


@dataclass(frozen=True)
class Opened:
    """How a model is opened, or compiled before."""

    context: Annotated[int | None, typer.Option(min=1, help="of a checkpoint: tokens that there is room for")] = None
    weights: Annotated[str | None, typer.Option(help="of a checkpoint: what weights are rounded to")] = None
    cache: Annotated[
        str | None, typer.Option(help=f"of a checkpoint: the type of the cache: {', '.join(cache_.TYPES)}")
    ] = None
    activations: Annotated[
        str | None, typer.Option(help="of a checkpoint: " + options.ACTIVATIONS, callback=options.activations)
    ] = None
    target: Annotated[str, typer.Option(help="of a checkpoint: " + options.TARGETS, callback=options.target)] = "host"
    threads: options.Threads = 0


def add(app: typer.Typer) -> None:
    """Gives ``app`` these commands."""
    for command in (generate, chat, serve):
        app.command()(options.grouped(command))


def _compiled(
    model: Path, how: Opened, slots: int | None = None, adapters: Sequence[Path] = (), **more: Any
) -> LanguageModel:
    """The model at a path; ``more`` are options of how a checkpoint is compiled, by their names."""
    with Display(err) as display:
        return opening.language_model(
            model, **asdict(how), **more, slots=slots, adapters=adapters, progress=display.report
        )


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="what the answer follows; - reads it from standard input")],
    asked: Asked,
    how: Opened,
    raw: Annotated[bool, typer.Option("--raw", help="the prompt as it is, without the model's chat template")] = False,
    json_schema: Annotated[
        Path | None, typer.Option(help="a file with a JSON schema that the answer has to fit")
    ] = None,
    mesh: options.Mesh = None,
) -> None:
    """Generate text with a language model; it is written as it comes."""
    asked.sampling()
    constraint = None if json_schema is None else Constraint.of(_read(json_schema, "--json-schema"))
    axes = options.mesh(mesh)
    ranks = opening.ranks(model, axes)
    if ranks > 1 and launch.rank() is not None and prompt == "-":
        raise InputError(
            "-: mpirun gives standard input to the first rank alone; luminal generate starts mpirun itself"
        )
    if ranks > 1 and asked.draft is not None:
        raise InputError("--draft: drafts are for a model on one rank: leave out --draft or --mesh")
    given = sys.stdin.read() if prompt == "-" else prompt
    if ranks > 1 and launch.rank() is None:
        how = replace(how, threads=how.threads or max(1, device.cpus() // ranks))
        raise typer.Exit(_on_ranks(ranks, model, asked, how, axes, raw, json_schema, given))
    lm = _adapted(model, asked, how, mesh=axes)
    wanted = asked.options(_drafting(asked.draft, how), constraint)
    if raw and asked.system is not None:
        raise InputError("--system: a prompt as it is has no place for it: leave out --raw")
    if not raw and asked.system is not None and not lm.tokenizer.template:
        raise InputError("--system: the model has no chat template")
    chat_ = not raw and bool(lm.tokenizer.template)
    _written(lm.generator, [*asked.told(), {"role": "user", "content": given}] if chat_ else given, wanted)


def chat(model: Model, asked: Asked, how: Opened) -> None:
    """Chat with a language model: a line each way. An empty line begins a new chat, the end of input ends."""
    asked.sampling()
    _check_alone(model)
    lm = _adapted(model, asked, how)
    wanted = asked.options(_drafting(asked.draft, how))
    messages = asked.told()
    for line in _lines():
        if not line.strip():
            messages = asked.told()
            err.print("a new chat", style="dim", highlight=False)
            continue
        messages.append({"role": "user", "content": line})
        try:
            answer = _written(lm.generator, messages, wanted)
        except InputError as error:  # a chat that is too long, say: another may begin
            messages.pop()
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            continue
        messages.append({"role": "assistant", "content": answer})


def _drafting(draft: str | None, how: Opened) -> LanguageModel | str | None:
    """What drafts: another model is compiled as the first is, if it is not compiled yet."""
    if draft is None or draft == LOOKUP:
        return draft
    return _compiled(Path(draft), Opened(threads=how.threads) if opening.is_compiled(Path(draft)) else how)


def _adapted(model: Path, asked: Asked, how: Opened, **more: Any) -> LanguageModel:
    """The model, with the adapter in its first place if there is one. A compiled model says itself how many drafts a
    step verifies."""
    adapter, speculate = asked.adapter, asked.speculate
    if asked.draft is not None and speculate is None and not opening.is_compiled(model):
        speculate = DRAFTS
    lm = _compiled(model, how, adapters=() if adapter is None else (adapter,), speculate=speculate, **more)
    if adapter is not None:
        lm.load_adapter(0, adapter)
    return lm


def _on_ranks(
    ranks: int, model: Path, asked: Asked, how: Opened, mesh: dict[str, int] | None, raw: bool,
    json_schema: Path | None, prompt: str,
) -> int:  # fmt: skip
    """Generates on so many ranks of this machine, which ``mpirun`` starts; its exit code. A checkpoint is compiled
    before, once for all of them."""
    given = {**asdict(replace(asked, draft=None, speculate=None)), "json_schema": json_schema, "threads": how.threads}
    texts = given.pop("stop") or ()
    flags = [*(["--raw"] if raw else []), *(f"--stop={text_}" for text_ in texts)]
    flags += [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    with tempfile.TemporaryDirectory(prefix="luminal-") as folder:
        if mesh is not None:
            lm = _compiled(model, how, adapters=() if asked.adapter is None else (asked.adapter,), mesh=mesh)
            model = lm.export(Path(folder) / "model", python_module=False)
        return launch.start(ranks, [sys.executable, "-m", "luminal", "generate", *flags, "--", str(model), prompt])


def _check_alone(model: Path) -> None:
    """Raises InputError for a folder that several processes have to open."""
    ranks = opening.ranks(model, None)
    if ranks > 1:
        raise InputError(f"{str(model)!r} is compiled for a mesh of {ranks} processes: luminal generate runs it")


def _lines() -> Iterator[str]:
    """Lines of standard input, asked for on a terminal."""
    while True:
        if sys.stdin.isatty():
            err.print("> ", end="", style="bold")
        line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{option}: cannot read {str(path)!r}: {error}") from error


def _written(generator: Generator, prompt: str | Sequence[Any], asked: Options) -> str:
    """An answer, written as it comes; its speed goes to standard error. Of several ranks, the first one writes."""
    writes = not launch.rank()
    pieces: list[Piece] = []
    times = [time.perf_counter()]
    tokens = generator.tokens(prompt)
    for piece in generator.stream(tokens, asked):
        pieces.append(piece)
        times.append(time.perf_counter())
        if writes:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    answer = "".join(piece.text for piece in pieces)
    if not writes:
        return answer
    sys.stdout.write("\n")
    sys.stdout.flush()
    first, rest = times[1] - times[0], times[-1] - times[1]
    speed = f", then {(len(pieces) - 1) / rest:.1f} tokens/s" if len(pieces) > 1 and rest > 0 else ""
    end = "" if pieces[-1].finish == "stop" else ", the most there may be"
    drafts = pieces[-1].drafts
    right = "" if drafts is None else f"; {drafts.accepted} of {drafts.proposed} drafts accepted"
    line = f"prompt of {len(tokens)} tokens in {text(first)}{speed}; answer of {len(pieces)} tokens{end}{right}"
    err.print(line, style="dim", highlight=False, soft_wrap=True)
    return answer


def serve(
    model: Annotated[
        list[Path],
        typer.Argument(help="a language model, as for generate; or encoders of text and exported folders of others"),
    ],
    how: Opened,
    host: Annotated[str, typer.Option(help="the address to listen at; 0.0.0.0: all of this machine's")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="the port; 0: any that is free")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="what clients call the model; default: the name of its folder")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="of a checkpoint: answers that are made at once")] = None,
    max_waiting: Annotated[int, typer.Option(min=0, help="requests that may wait for a slot")] = 64,
    max_prompt: Annotated[
        int | None, typer.Option(min=1, help="tokens of a prompt; default: what there is room for")
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="bytes of a request")] = 8 << 20,
    max_seconds: Annotated[float, typer.Option(min=0.001, help="time of a request")] = 600.0,
    adapter: Annotated[
        list[str] | None, typer.Option(help="NAME=FOLDER: an adapter (LoRA), a model of its own; may be repeated")
    ] = None,
) -> None:
    """Serve models over HTTP: a language model or embeddings as OpenAI's interface has them, others by the Open
    Inference Protocol."""
    from luminal.llm import serving

    encoders = [path for path in model if opening.is_encoder(path)]
    plain = [path for path in model if opening.is_plain(path)]
    if len(model) > 1 and len(encoders) + len(plain) < len(model):
        raise InputError("serve: expected one language model, or encoders and exported folders alone, found both")
    limits = serving.Limits(body=max_body, prompt=max_prompt, waiting=max_waiting, seconds=max_seconds)
    adapters = _named(adapter or [])
    if plain or encoders:
        if adapters or slots is not None:
            raise InputError(f"--{'adapter' if adapters else 'slots'}: expected a language model, found another")
        if name is not None and len(model) > 1:
            raise InputError(f"--name: expected one model, found {len(model)}")
        with Display(err) as display:
            made = {
                path: opening.encoder(
                    path,
                    context=how.context,
                    weights=how.weights,
                    threads=how.threads,
                    target=how.target,
                    progress=display.report,
                )
                for path in encoders
            }
        app = serving.plain_models(model, name, how.threads, limits, made)
    else:
        _check_alone(model[0])
        lm = _compiled(model[0], how, slots, list(adapters.values()))
        app = serving.application(lm, name or opening.name_of(model[0]), limits, adapters)
    serving.run(app, host, port, lambda where: err.print(f"listening at {where}", highlight=False))


def _named(given: Sequence[str]) -> dict[str, Path]:
    """Folders by their names, of texts NAME=FOLDER."""
    found = {}
    for text_ in given:
        name, between, folder = text_.partition("=")
        if not (name and between and folder) or name in found:
            raise InputError(f"--adapter: expected NAME=FOLDER, each name once, found {text_!r}")
        found[name] = Path(folder)
    return found
