"""Training beside PyTorch: ``python -m benchmarks.training --write docs/benchmarks-training.md``."""

from __future__ import annotations

import copy
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
import transformers
import typer
from rich.console import Console
from torch import nn

import luminal
from benchmarks import apart, tables, zoo
from benchmarks.progress import Work
from benchmarks.results import Results
from luminal import profile
from luminal.core.errors import LuminalError
from luminal.timing import interleaved, text

Run = Callable[[], object]
ABOUT = """# Training

`python -m benchmarks.training --write docs/benchmarks-training.md`: forward and backward passes, and whole steps with
AdamW, in float32 on {threads} threads. All of a row take turns in one process; times are medians. `backend` is
`torch.compile(model, backend="luminal")`, `library` is `luminal.grad` with the value, or `luminal.compile_training`
for a whole step, `torch.compile` is PyTorch's own compiler, which compiles the optimiser as well. `/ torch.compile` is
its time by that of the faster of luminal's two, `memory` the largest resident memory of a process that does nothing
else; `compiled` is the seconds that luminal's backend took for its first step."""
HEADINGS = ("model", "step", "/ torch.compile", "/ eager", "backend", "library", "torch.compile", "eager", "memory",
            "eager's memory", "compiled")  # fmt: skip
OURS = ("backend", "library")
SHOWN = 8  # kernels of a model, of those that take the most time


class Case(NamedTuple):
    """``make`` gives a model that returns its loss, and an example of what it takes; ``small`` is one for tests."""

    title: str
    make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]
    small: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]


class Classifier(nn.Module):
    """The cross entropy of what a model says of each sample."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), target)


class NextToken(nn.Module):
    """The cross entropy of the token after each."""

    def __init__(self, config: transformers.PretrainedConfig) -> None:
        super().__init__()
        self.model = transformers.AutoModelForCausalLM.from_config(config)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(input_ids=x).logits.flatten(0, 1), target.flatten())


def mlp(width: int = 1024, batch: int = 256) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    return Classifier(nn.Sequential(*layers)), (torch.randn(batch, 784), torch.randint(0, 10, (batch,)))


def gpt(
    layers: int, width: int, batch: int, sequence: int, vocabulary: int
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=sequence, n_embd=width, n_layer=layers, n_head=width // 64,
        bos_token_id=0, eos_token_id=0, **without,
    )  # fmt: skip
    return decoder(config, batch, sequence)


def llama(
    layers: int, width: int, batch: int, sequence: int, vocabulary: int
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Three heads of queries for each of keys, as in small models of that family."""
    heads = width // 64
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, max_position_embeddings=sequence, hidden_size=width, intermediate_size=width * 8 // 3,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 3, use_cache=False,
    )  # fmt: skip
    return decoder(config, batch, sequence)


def decoder(
    config: transformers.PretrainedConfig, batch: int, sequence: int
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    tokens = torch.randint(0, config.vocab_size, (batch, sequence + 1))
    return NextToken(config), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def resnet(batch: int = 8, size: int = 224, **sizes: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model = zoo.resnet50(batch=batch, size=size, **sizes)
    return Classifier(model.module), (*model.inputs, torch.randint(0, 1000, (batch,)))


CASES = {
    "mlp": Case("MLP 784-1024-1024-10, batch 256", mlp, partial(mlp, 16, 4)),
    "gpt": Case("GPT, 6 layers of 384, 8 x 256", partial(gpt, 6, 384, 8, 256, 96), partial(gpt, 1, 64, 4, 4, 9)),
    "gpt2": Case("GPT-2 small, 4 x 128", partial(gpt, 12, 768, 4, 128, 50257), partial(gpt, 1, 64, 4, 4, 9)),
    "llama": Case(
        "Llama, 8 layers of 768, 4 x 128", partial(llama, 8, 768, 4, 128, 32000), partial(llama, 1, 192, 4, 4, 9)
    ),
    "resnet50": Case("ResNet-50, batch 8", resnet, partial(resnet, 4, 32, depths=(1, 1, 1, 1))),
}


def _gradients(model: nn.Module, fast: Callable[..., Any], inputs: Sequence[torch.Tensor], _: Any) -> Run:
    """Forward and backward passes."""

    def run() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        fast(*inputs).backward()

    return run


def _whole(model: nn.Module, fast: Callable[..., Any], inputs: Sequence[torch.Tensor], compiler: Any) -> Run:
    """A step with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    update = optimizer.step if compiler is None else torch.compile(optimizer.step)

    def run() -> None:
        optimizer.zero_grad()
        fast(*inputs).backward()
        update()

    return run


# What a step is, by name: it is handed the model, what runs it, its inputs, and whether the optimiser is compiled too.
STEPS: Mapping[str, Callable[..., Run]] = {"gradients": _gradients, "whole": _whole}


def _library(model: nn.Module, inputs: tuple[torch.Tensor, ...], step: str, threads: int) -> Run:
    if step == "gradients":
        found = luminal.grad(model, inputs, value=True, threads=threads)
        return lambda: found(*inputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    training = luminal.compile_training(model, None, optimizer, inputs, threads=threads)
    return lambda: training(*inputs)


def _compiled(backend: str, model: nn.Module, inputs: tuple[torch.Tensor, ...], step: str, threads: int) -> Run:
    options = {"options": {"threads": threads}} if backend == "luminal" else {}
    fast = torch.compile(model, backend=backend, **options)
    return STEPS[step](model, fast, inputs, backend if backend == "inductor" else None)


def _eager(model: nn.Module, inputs: tuple[torch.Tensor, ...], step: str, threads: int) -> Run:
    return STEPS[step](model, model, inputs, None)


CONTENDERS: Mapping[str, Callable[[nn.Module, tuple[torch.Tensor, ...], str, int], Run]] = {
    "backend": partial(_compiled, "luminal"),
    "library": _library,
    "torch.compile": partial(_compiled, "inductor"),
    "eager": _eager,
}


@dataclass(frozen=True)
class Row:
    """Medians in seconds by contender, of which those that ``failed`` are missing, with the reason; the ``memory`` that
    a process of each alone had at most, in bytes; the seconds of the first step of luminal's backend; and the kernels
    of ``luminal.grad`` that take the most time, each with its share, operations a second and source operators."""

    times: dict[str, float]
    failed: dict[str, str]
    memory: dict[str, int]
    compiled: float
    kernels: tuple[tuple[str, float, float, str], ...] = ()


def measure(name: str, step: str, threads: int, runs: int, contenders: Sequence[str], small: bool = False) -> Row:
    """Time contenders, taking turns; the memory is that of this process, and of use where there is one of them."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model, inputs = CASES[name].small() if small else CASES[name].make()
    model.train()
    runners: dict[str, Run] = {}
    failed: dict[str, str] = {}
    first: dict[str, float] = {}
    for key in contenders:
        start = time.perf_counter()
        try:
            run = CONTENDERS[key](copy.deepcopy(model), inputs, step, threads)
            run()
            runners[key] = run
        except LuminalError as error:
            failed[key] = str(error)
        first[key] = time.perf_counter() - start
    times = interleaved(runners, runs, lasting=1.0, budget=60.0)
    medians = {key: timing.median for key, timing in times.items()}
    memory = dict.fromkeys(contenders, _highest()) if len(contenders) == 1 else {}
    return Row(medians, failed, memory, first.get("backend", 0.0))


def kernels(name: str, threads: int, small: bool = False) -> list[tuple[str, float, float, str]]:
    """The kernels of forward and backward passes that take the most time."""
    torch.manual_seed(0)
    model, inputs = CASES[name].small() if small else CASES[name].make()
    found = luminal.grad(model.train(), inputs, value=True, threads=threads)
    values = [*inputs, *(p.detach() for p in model.parameters())]
    given = {key: x.numpy() for key, x in zip(found.module.input_names, values, strict=True)}
    timed = profile.profile(found.module, given, runs=5, threads=threads)
    total = sum(kernel.seconds for kernel in timed)
    return [(k.name, k.seconds / total, k.operations / k.seconds, "; ".join(k.origins)[:120]) for k in timed[:SHOWN]]


def _highest() -> int:
    """The largest resident memory that this process had, in bytes: ``VmHWM``."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def cells(rows: Mapping[tuple[str, str], Row]) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``."""
    found = []
    for (name, step), row in rows.items():
        ours = min((row.times[key] for key in OURS if key in row.times), default=math.nan)
        memory = min((row.memory[key] for key in OURS if key in row.memory), default=0)
        found.append((
            CASES[name].title, step,
            *(f"{row.times[key] / ours:.2f}" if key in row.times else "" for key in ("torch.compile", "eager")),
            *(text(row.times[key]) if key in row.times else "" for key in CONTENDERS),
            f"{memory / 2**20:.0f} MiB", f"{row.memory.get('eager', 0) / 2**20:.0f} MiB", f"{row.compiled:.0f} s",
        ))  # fmt: skip
    return found


def page(found: Results, threads: int) -> str:
    """The page for ``docs/``."""
    rows = {
        (name, step): Row(**value)
        for name in CASES
        for step in STEPS
        if (value := found.get(f"{name}/{step}")) is not None
    }
    lines = [ABOUT.format(threads=threads), "", *found.machines, ""]
    lines += [*tables.markdown(HEADINGS, cells(rows), left=2), ""]
    for step in STEPS:
        ratios = [float(cell[2]) for cell, key in zip(cells(rows), rows, strict=True) if key[1] == step and cell[2]]
        if ratios:
            lines += [f"Geometric mean of {step}: {statistics.geometric_mean(ratios):.2f}x torch.compile.", ""]
    lines += ["## Kernels", "", "Of forward and backward passes as one graph, those that take the most time.", ""]
    for name in CASES:
        listed = [row for (case, _), row in rows.items() if case == name and row.kernels]
        if listed:
            shown = [(k, f"{share:.0%}", f"{rate / 1e9:.0f}", what) for k, share, rate, what in listed[0].kernels]
            lines += [f"### {CASES[name].title}", ""]
            lines += [*tables.markdown(("kernel", "share", "GFLOP/s", "operators"), shown, left=1), ""]
    reasons = sorted(
        {f"- {CASES[n].title}, `{key}`: {why}" for (n, _), r in rows.items() for key, why in r.failed.items()}
    )
    lines += ["## What is missing", "", *reasons, ""] if reasons else []
    return "\n".join(lines).rstrip() + "\n"


def main(
    only: Annotated[str, typer.Option(help=f"{', '.join(CASES)}, with commas between; default: all")] = "",
    steps: Annotated[str, typer.Option(help=f"{', '.join(STEPS)}, with commas between; default: all")] = "",
    threads: Annotated[int, typer.Option(min=1, help="threads of a run")] = 2,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 11,
    write: Annotated[Path | None, typer.Option(help="the page to write: docs/benchmarks-training.md")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="keep what this machine has measured, and go on from there")
    ] = False,
) -> None:
    """Time forward and backward passes, and whole steps, beside PyTorch's."""
    if resume and write is None:
        raise typer.BadParameter("there is nothing to go on from without --write", param_hint="--resume")
    chosen = [(n, s) for n in tables.among(only, CASES, "--only") for s in tables.among(steps, STEPS, "--steps")]
    found, console = Results(tables.measurements(write)), Console(width=170)
    todo = [(n, s) for n, s in chosen if not (resume and found.get(f"{n}/{s}", here=True))]
    work = Work([None] * len(todo))
    for name, step in todo:
        work.begin(f"{CASES[name].title}: {step}")
        found.put(f"{name}/{step}", _apart({"name": name, "step": step, "threads": threads, "runs": runs}))
        work.end()
        if write is not None:
            write.write_text(page(found, threads), encoding="utf-8")
    rows = {(name, step): Row(**found.get(f"{name}/{step}")) for name, step in chosen}
    console.print(tables.terminal(HEADINGS, cells(rows), left=2))


def _apart(options: dict[str, Any]) -> dict[str, Any]:
    """A row: times of all in one process, memory of each in one of its own, kernels in another."""
    run = partial(apart.run, "benchmarks.training")
    row: dict[str, Any] = run({**options, "contenders": list(CONTENDERS)})
    for key in row["times"]:
        row["memory"].update(run({**options, "runs": 3, "contenders": [key]})["memory"])
    if "library" in row["times"] and options["step"] == "gradients":
        row["kernels"] = run({"name": options["name"], "threads": options["threads"]})
    return row


def one() -> None:
    """Measures one row: it is called by ``main`` alone, in a process of its own."""
    warnings.simplefilter("ignore")  # what PyTorch says of itself
    options = json.loads(sys.argv[1])
    print(json.dumps(asdict(measure(**options)) if "step" in options else kernels(**options)))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        one()
    else:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(main)
        app()
