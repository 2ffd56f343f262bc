"""Commands for language models and for serving: ``luminal generate | chat | serve``."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from luminal import arguments, launch, options
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
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="tokens of the answer; default: as the context has room for")
]
Temperature = Annotated[float, typer.Option(help="0: always the likeliest token; 1: as the model says")]
TopK = Annotated[int, typer.Option(help="draw from so many likeliest tokens; 0: from all")]
TopP = Annotated[float, typer.Option(help="draw from the fewest tokens of this probability in all")]
MinP = Annotated[float, typer.Option(help="draw from tokens of at least this part of the largest probability")]
Penalty = Annotated[float, typer.Option(help="divides logits of tokens that were there; 1: none")]
Seed = Annotated[int | None, typer.Option(help="of the draws; default: others each time")]
Stop = Annotated[list[str] | None, typer.Option(help="a text before which an answer ends; may be repeated")]
System = Annotated[str | None, typer.Option(help="what the model is told before the chat")]
Context = Annotated[int | None, typer.Option(min=1, help="of a checkpoint: tokens that there is room for")]
Weights = Annotated[str | None, typer.Option(help="of a checkpoint: what weights are rounded to")]
Cache = Annotated[str | None, typer.Option(help=f"of a checkpoint: the type of the cache: {', '.join(cache_.TYPES)}")]
Activations = Annotated[
    str | None, typer.Option(help="of a checkpoint: " + options.ACTIVATIONS, callback=options.activations)
]
Threads = Annotated[int, typer.Option(min=0, max=arguments.MAX_THREADS, help="threads of a run; 0: one for each CPU")]
Adapter = Annotated[Path | None, typer.Option(help="a folder with an adapter (LoRA), as PEFT writes it")]
Draft = Annotated[
    str | None,
    typer.Option(help="where drafts of the answer come from: lookup, the text so far; or a smaller language model"),
]
Speculate = Annotated[
    int | None,
    typer.Option(min=1, help=f"of a checkpoint: drafts that one step verifies at most; default with --draft: {DRAFTS}"),
]
Target = Annotated[str, typer.Option(help="of a checkpoint: " + options.TARGETS, callback=options.target)]


def add(app: typer.Typer) -> None:
    """Gives ``app`` these commands."""
    for command in (generate, chat, serve):
        app.command()(command)


def _opened(
    model: Path, compiling: Mapping[str, Any], threads: int, slots: int | None = None, adapters: Sequence[Path] = ()
) -> LanguageModel:
    """The model at a path; ``compiling`` are options of how a checkpoint is compiled, by their names."""
    with Display(err) as display:
        return opening.language_model(
            model, **compiling, slots=slots, threads=threads, adapters=adapters, progress=display.report
        )


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="what the answer follows; - reads it from standard input")],
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    system: System = None,
    raw: Annotated[bool, typer.Option("--raw", help="the prompt as it is, without the model's chat template")] = False,
    json_schema: Annotated[
        Path | None, typer.Option(help="a file with a JSON schema that the answer has to fit")
    ] = None,
    context: Context = None,
    weights: Weights = None,
    cache: Cache = None,
    activations: Activations = None,
    target: Target = "host",
    threads: Threads = 0,
    adapter: Adapter = None,
    draft: Draft = None,
    speculate: Speculate = None,
    mesh: options.Mesh = None,
) -> None:
    """Generate text with a language model; it is written as it comes."""
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed=seed)
    constraint = None if json_schema is None else Constraint.of(_read(json_schema, "--json-schema"))
    compiling = _compiling(context, weights, cache, activations, target)
    compiling["mesh"] = axes = options.mesh(mesh)
    ranks = opening.ranks(model, axes)
    if ranks > 1 and launch.rank() is not None and prompt == "-":
        raise InputError(
            "-: mpirun gives standard input to the first rank alone; luminal generate starts mpirun itself"
        )
    if ranks > 1 and draft is not None:
        raise InputError("--draft: drafts are for a model on one rank: leave out --draft or --mesh")
    given = sys.stdin.read() if prompt == "-" else prompt
    if ranks > 1 and launch.rank() is None:
        threads = threads or max(1, device.cpus() // ranks)
        told = {
            "--max-tokens": max_tokens, "--temperature": temperature, "--top-k": top_k, "--top-p": top_p,
            "--min-p": min_p, "--repetition-penalty": repetition_penalty, "--seed": seed, "--system": system,
            "--json-schema": json_schema, "--adapter": adapter, "--threads": threads,
        }  # fmt: skip
        flags = [*(["--raw"] if raw else []), *(f"--stop={text_}" for text_ in stop or ())]
        flags += [f"{option}={value}" for option, value in told.items() if value is not None]
        raise typer.Exit(_on_ranks(ranks, model, compiling, threads, adapter, [*flags, "--"], given))
    lm = _adapted(model, compiling, threads, adapter, _speculated(model, draft, speculate))
    asked = Options(
        max_tokens, sampling, tuple(stop or ()), constraint=constraint, adapter=_number(adapter),
        draft=_drafting(draft, compiling, threads),
    )  # fmt: skip
    if raw and system is not None:
        raise InputError("--system: a prompt as it is has no place for it: leave out --raw")
    if not raw and system is not None and not lm.tokenizer.template:
        raise InputError("--system: the model has no chat template")
    chat_ = not raw and bool(lm.tokenizer.template)
    _written(lm.generator, [*_told(system), {"role": "user", "content": given}] if chat_ else given, asked)


def chat(
    model: Model,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    system: System = None,
    context: Context = None,
    weights: Weights = None,
    cache: Cache = None,
    activations: Activations = None,
    target: Target = "host",
    threads: Threads = 0,
    adapter: Adapter = None,
    draft: Draft = None,
    speculate: Speculate = None,
) -> None:
    """Chat with a language model: a line each way. An empty line begins a new chat, the end of input ends."""
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed=seed)
    _check_alone(model)
    compiling = _compiling(context, weights, cache, activations, target)
    lm = _adapted(model, compiling, threads, adapter, _speculated(model, draft, speculate))
    draft_ = _drafting(draft, compiling, threads)
    asked = Options(max_tokens, sampling, tuple(stop or ()), adapter=_number(adapter), draft=draft_)
    messages = _told(system)
    for line in _lines():
        if not line.strip():
            messages = _told(system)
            err.print("a new chat", style="dim", highlight=False)
            continue
        messages.append({"role": "user", "content": line})
        try:
            answer = _written(lm.generator, messages, asked)
        except InputError as error:  # a chat that is too long, say: another may begin
            messages.pop()
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            continue
        messages.append({"role": "assistant", "content": answer})


def _number(adapter: Path | None) -> int | None:
    return None if adapter is None else 0


def _compiling(
    context: int | None, weights: str | None, cache: str | None, activations: str | None, target: str
) -> dict[str, Any]:
    return {"context": context, "weights": weights, "cache": cache, "activations": activations, "target": target}


def _speculated(model: Path, draft: str | None, speculate: int | None) -> int | None:
    """How many drafts a step of the model is to verify; None where it is compiled, and says so itself."""
    return DRAFTS if draft is not None and speculate is None and not opening.is_compiled(model) else speculate


def _drafting(draft: str | None, compiling: Mapping[str, Any], threads: int) -> LanguageModel | str | None:
    """What drafts: another model is compiled as the first is, if it is not compiled yet."""
    if draft is None or draft == LOOKUP:
        return draft
    return _opened(Path(draft), {} if opening.is_compiled(Path(draft)) else compiling, threads)


def _adapted(
    model: Path, compiling: Mapping[str, Any], threads: int, adapter: Path | None, speculate: int | None
) -> LanguageModel:
    """The model, with the adapter in its first place if there is one."""
    options = {**compiling, "speculate": speculate}
    lm = _opened(model, options, threads, adapters=() if adapter is None else (adapter,))
    if adapter is not None:
        lm.load_adapter(0, adapter)
    return lm


def _on_ranks(
    ranks: int, model: Path, compiling: Mapping[str, Any], threads: int, adapter: Path | None, flags: Sequence[str],
    prompt: str,
) -> int:  # fmt: skip
    """Generates on so many ranks of this machine, which ``mpirun`` starts; its exit code. A checkpoint is compiled
    before, once for all of them."""
    with tempfile.TemporaryDirectory(prefix="luminal-") as folder:
        if compiling["mesh"] is not None:
            lm = _opened(model, compiling, threads, adapters=() if adapter is None else (adapter,))
            model = lm.export(Path(folder) / "model", python_module=False)
        return launch.start(ranks, [sys.executable, "-m", "luminal", "generate", *flags, str(model), prompt])


def _check_alone(model: Path) -> None:
    """Raises InputError for a folder that several processes have to open."""
    ranks = opening.ranks(model, None)
    if ranks > 1:
        raise InputError(f"{str(model)!r} is compiled for a mesh of {ranks} processes: luminal generate runs it")


def _told(system: str | None) -> list[dict[str, str]]:
    return [] if system is None else [{"role": "system", "content": system}]


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
    context: Context = None,
    weights: Weights = None,
    cache: Cache = None,
    activations: Activations = None,
    target: Target = "host",
    threads: Threads = 0,
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
                    path, context=context, weights=weights, threads=threads, target=target, progress=display.report
                )
                for path in encoders
            }
        app = serving.plain_models(model, name, threads, limits, made)
    else:
        _check_alone(model[0])
        compiling = _compiling(context, weights, cache, activations, target)
        lm = _opened(model[0], compiling, threads, slots, list(adapters.values()))
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
