"""How near training is to float64: ``python -m benchmarks.learning --write docs/training-accuracy.md``."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from benchmarks import apart, tables, zoo
from benchmarks.eager import EPS, LOSS, Difference, Run, differences, together
from benchmarks.progress import Work
from benchmarks.results import Results

ABOUT = """# How near training is to float64

`python -m benchmarks.learning --write docs/training-accuracy.md`. Weights and data are random, and nothing is dropped.

**Step by step**: at some steps of a run of PyTorch's eager mode, luminal's compiled step starts from PyTorch's state.
What it changes is compared with what a step in float64 makes of the same state: a cell is the distance of all tensors
together by that of eager mode (the farthest of four orders of the batch's rows; the rounding of the tensors themselves
is added), and `of one` the largest such number of a tensor. At most 2 is asked. After a step, the optimiser's moments
hold its gradients. `bf16` rounds what products read to bfloat16, beside `torch.autocast`.

Of one tensor, chance decides where a function has a kink, or a gradient is 0. Of millions of values some lie so near to
0 that their sign is not known in float32: whether a ReLU passes their gradient is another question in every order of
summation, eager mode's included, and each answer changes the gradients of a layer by a jump. Adam divides by the size
of a gradient: where that is 0, as of the bias of an attention's keys, it makes large steps of what rounding left.

**Running freely**: losses of a run from the same first state, without meeting again: the largest distance from the
losses of a run in float64, relative to the first loss. At most twice eager mode's, with one thread and with two, is
asked."""
HEADINGS = (
    "model", "optimiser", "type", "step", "loss", "parameters", "of one", "moments", "of one", "statistics", "of one"
)  # fmt: skip
FREE = ("model", "optimiser", "steps", "luminal", "eager, 1 thread", "eager, 2 threads", "luminal / eager")
GROUPS = PARAMETERS, MOMENTS, STATISTICS = "parameters", "moments", "statistics"
MOST = ", of one"
AT = (0, 1, 10, 100)
TYPES = ("float32", "bf16")
FREELY = "free"

Batch = tuple[torch.Tensor, ...]


class Case(NamedTuple):
    """``make`` gives a run, and ``small`` one for tests; ``free`` steps are taken without meeting."""

    title: str
    free: int
    make: Callable[[], Run]
    small: Callable[[], Run]


class Output(nn.Module):
    """A model of transformers that gives its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(x).logits
        return logits


class Recurrent(nn.Module):
    """An LSTM whose last state is classified."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(width, width, num_layers=2, batch_first=True), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layer(x)[0][:, -1])
        return found


def _floats(number: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(number))


def _whole(number: int, below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(1000 + number))


def _of_words(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, -2), target.flatten())


def mlp(width: int = 1024, batch: int = 256) -> Run:
    layers = [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    module = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return Run(module, F.cross_entropy, optimizer, lambda k: (_floats(k, batch, 784), _whole(k, 10, batch)))


def lstm(width: int = 128, length: int = 32, batch: int = 32) -> Run:
    module = Recurrent(width, 10)
    optimizer = torch.optim.RMSprop(module.parameters(), lr=1e-3)
    return Run(module, F.cross_entropy, optimizer, lambda k: (_floats(k, batch, length, width), _whole(k, 10, batch)))


def resnet(batch: int = 8, size: int = 224, **sizes: Any) -> Run:
    module = zoo.resnet50(batch=batch, size=size, **sizes).module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    return Run(module, F.cross_entropy, optimizer, lambda k: (_floats(k, batch, 3, size, size), _whole(k, 1000, batch)))


def gpt2(layers: int = 12, width: int = 768, batch: int = 4, length: int = 128, words: int = 50257) -> Run:
    without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    config = transformers.GPT2Config(
        vocab_size=words, n_positions=length, n_embd=width, n_layer=layers, n_head=max(width // 64, 1),
        bos_token_id=0, eos_token_id=0, **without,
    )  # fmt: skip
    module = Output(transformers.GPT2LMHeadModel(config))
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4)
    return Run(
        module, _of_words, optimizer, lambda k: (_whole(k, words, batch, length), _whole(-k - 1, words, batch, length)),
        clip=1.0,
    )  # fmt: skip


def bert(layers: int = 12, width: int = 768, batch: int = 4, length: int = 128, words: int = 30522) -> Run:
    config = transformers.BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(width // 64, 1),
        intermediate_size=4 * width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=4,
    )  # fmt: skip
    module = Output(transformers.BertForSequenceClassification(config))
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-5, weight_decay=0.01)
    return Run(module, F.cross_entropy, optimizer, lambda k: (_whole(k, words, batch, length), _whole(k, 4, batch)))


CASES = {
    "mlp": Case("MLP 784-1024-1024-10, batch 256", 200, mlp, partial(mlp, 16, 4)),
    "lstm": Case("LSTM, 2 layers of 128, 32 x 32", 200, lstm, partial(lstm, 8, 3, 4)),
    "resnet50": Case("ResNet-50, batch 8", 20, resnet, partial(resnet, 2, 32, depths=(1, 1, 1, 1))),
    "gpt2": Case("GPT-2 small, 4 x 128", 20, gpt2, partial(gpt2, 1, 16, 2, 4, 9)),
    "bert": Case("BERT-base, 4 x 128", 20, bert, partial(bert, 1, 16, 2, 4, 9)),
}


@dataclass(frozen=True)
class Free:
    """The largest distances of losses from those of float64, relative to the first loss."""

    steps: int
    luminal: float
    eager: list[float]

    @property
    def ratio(self) -> float:
        return self.luminal / (max(self.eager) + EPS)


def begun(case: Case, small: bool = False) -> Run:
    """A run, with the same first parameters each time."""
    torch.manual_seed(0)
    return case.small() if small else case.make()


def stepwise(name: str, kind: str, at: Sequence[int], small: bool = False) -> dict[str, dict[str, float]]:
    """For each step of ``at`` the ratio of the loss, and those of all parameters, moments and statistics together, with
    the largest of one tensor under the name of the group with ``MOST``."""
    run = begun(CASES[name], small)
    run.autocast = kind == "bf16"
    parameters = {name for name, _ in run.module.named_parameters()}
    buffers = {name for name, _ in run.module.named_buffers()}
    groups: dict[tuple[int, str], list[Difference]] = {}
    for difference in differences(run, run.compiled(), at):
        groups.setdefault((difference.step, _group(difference, parameters, buffers)), []).append(difference)
    found: dict[str, dict[str, float]] = {str(number): {} for number in at}
    for (step, group), several in groups.items():
        found[str(step)] |= {group: together(several), group + MOST: max(x.ratio for x in several)}
    return found


def _group(difference: Difference, parameters: set[str], buffers: set[str]) -> str:
    if difference.name == LOSS:
        return LOSS
    if difference.name in parameters:
        return PARAMETERS
    return STATISTICS if difference.name in buffers else MOMENTS


def free(name: str, steps: int, small: bool = False) -> Free:
    """Losses of runs that start alike, and never meet again."""
    run = begun(CASES[name], small)
    training = run.compiled()
    training.read_from(run.module, run.optimizer)
    rates = [group["lr"] for group in run.optimizer.param_groups]
    ours = [float(training(*run.batch(number), lr=rates)) for number in range(steps)]
    exact = list(_losses(run.copied(torch.float64), steps))
    before, eager = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            eager.append(_distance(list(_losses(run.copied(torch.float32), steps)), exact))
    finally:
        torch.set_num_threads(before)
    return Free(steps, _distance(ours, exact), eager)


def _losses(run: Run, steps: int) -> Iterator[float]:
    return (float(run.step(number)) for number in range(steps))


def _distance(losses: Sequence[float], exact: Sequence[float]) -> float:
    return max(abs(x - y) for x, y in zip(losses, exact, strict=True)) / abs(exact[0])


# ---- output ----------------------------------------------------------------------------------------------------------


def rows(found: Results) -> list[tuple[str, ...]]:
    """The cells of what is compared step by step."""
    lines = []
    for name, case in CASES.items():
        for kind in TYPES:
            for step, most in (found.get(f"{name}/{kind}") or {}).items():
                values = (most.get(group + part) for group in GROUPS for part in ("", MOST))
                lines.append((case.title, _optimiser(case), kind, step, _ratio(most.get(LOSS)), *map(_ratio, values)))
    return lines


def free_rows(found: Results) -> list[tuple[str, ...]]:
    """The cells of what runs freely."""
    lines = []
    for name, case in CASES.items():
        if (value := found.get(f"{name}/{FREELY}")) is not None:
            run = Free(**value)
            errors = (f"{error:.1e}" for error in (run.luminal, *run.eager))
            lines.append((case.title, _optimiser(case), str(run.steps), *errors, _ratio(run.ratio)))
    return lines


def _optimiser(case: Case) -> str:
    return type(begun(case, small=True).optimizer).__name__


def _ratio(value: float | None) -> str:
    return "" if value is None else "NaN" if math.isnan(value) else f"{value:.2f}"


def page(found: Results) -> str:
    """The page for ``docs/``."""
    lines = [ABOUT, "", *found.machines, ""]
    lines += ["## Step by step", "", *tables.markdown(HEADINGS, rows(found), left=3), ""]
    lines += ["## Running freely", "", *tables.markdown(FREE, free_rows(found), left=2)]
    return "\n".join(lines) + "\n"


def main(
    only: Annotated[str, typer.Option(help=f"{', '.join(CASES)}, with commas between; default: all")] = "",
    kinds: Annotated[str, typer.Option(help="float32, bf16, free, with commas between; default: all")] = "",
    at: Annotated[str, typer.Option(help="numbers of steps, with commas between")] = ",".join(map(str, AT)),
    write: Annotated[
        Path | None, typer.Option(help="add what is found to what is beside this page: docs/training-accuracy.md")
    ] = None,
) -> None:
    """Compare steps of training, and runs of many, with PyTorch's eager mode and with float64."""
    found = Results(tables.measurements(write))
    chosen = [
        (n, k) for n in tables.among(only, CASES, "--only") for k in tables.among(kinds, (*TYPES, FREELY), "--kinds")
    ]
    work = Work([None] * len(chosen))
    for name, kind in chosen:
        work.begin(f"{CASES[name].title}: {kind}")
        found.put(f"{name}/{kind}", apart.run("benchmarks.learning", {"name": name, "kind": kind, "at": steps(at)}))
        work.end()
        if write is not None:
            write.write_text(page(found), encoding="utf-8")
    console = Console(width=140)
    console.print(tables.terminal(HEADINGS, rows(found), left=3))
    console.print(tables.terminal(FREE, free_rows(found), left=2))


def steps(text: str) -> list[int]:
    """The numbers of a list with commas. Raises BadParameter for others."""
    if not all(part.isdigit() for part in text.split(",")):
        raise typer.BadParameter(f"expected numbers with commas between, found {text!r}", param_hint="--at")
    return list(map(int, text.split(",")))


def one(name: str, kind: str, at: Sequence[int]) -> Mapping[str, Any]:
    """What ``main`` asks of a process of its own."""
    return asdict(free(name, CASES[name].free)) if kind == FREELY else stepwise(name, kind, at)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        warnings.simplefilter("ignore")  # what PyTorch says of itself
        print(json.dumps(one(**json.loads(sys.argv[1]))))
    else:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(main)
        app()
