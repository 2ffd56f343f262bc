"""The parts of a run, the most telling first. Each is a generator of what it has found so far, as JSON holds it, so
that a part that is stopped leaves what it had."""

from __future__ import annotations

import copy
import importlib.util
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import luminal
from benchmarks import errors
from benchmarks.gpu import subjects
from benchmarks.gpu.machine import Call, Machine
from benchmarks.zoo.model import Model
from luminal.comparison.measure import distance
from luminal.comparison.oracle import Oracle
from luminal.core.errors import LuminalError
from luminal.tensors import to_numpy

OURS, EAGER, TUNED, FUSED, FLASH = "luminal", "eager", "max-autotune", "fused attention", "flash_attn"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PRECISIONS = ("bf16", "fp32")

Found = dict[str, Any]
Maker = Callable[[], Call]


@dataclass(frozen=True)
class Part:
    """``run(machine)`` yields rows found so far; ``seconds`` is what it is expected to take on a GPU, compiling
    included."""

    run: Callable[[Machine], Iterator[list[Found]]]
    seconds: float


def _outputs(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _eager(machine: Machine, model: Model, wrap: Callable[[Any], Any] = lambda module: module) -> Call:
    module = wrap(machine.place(copy.deepcopy(model.module)))
    inputs = [machine.place(x) for x in model.inputs]

    def call() -> list[torch.Tensor]:
        with torch.no_grad():
            return _outputs(module(*inputs))

    return call


def _autotuned(module: Any) -> Any:
    return torch.compile(module, mode="max-autotune", dynamic=False)


def peers(machine: Machine, model: Model) -> dict[str, Maker]:
    """PyTorch as it is, and as its compiler makes it after trying kernels, which only a GPU is worth."""
    found: dict[str, Maker] = {EAGER: lambda: _eager(machine, model)}
    if not machine.emulated:
        found[TUNED] = lambda: _eager(machine, model, _autotuned)
    return found


def _exact(machine: Machine, model: Model) -> list[torch.Tensor]:
    """The values in float64."""
    inputs = tuple(x.double() if x.is_floating_point() else x for x in model.inputs)
    return list(_eager(machine, Model(copy.deepcopy(model.module).double(), inputs, {}))())


def _error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    arrays = ([x.detach().cpu().double().numpy() for x in values] for values in (found, exact))
    return errors.worst(errors.relative(a, b) for a, b in zip(*arrays, strict=True))


def compared(
    machine: Machine, about: Mapping[str, Any], makers: Mapping[str, Maker], exact: Callable[[], list[torch.Tensor]]
) -> Iterator[Found]:
    """A row of times and errors, which grows by a contender at a time: what fails is named, and the others go on."""
    row: Found = {**about, "times": {}, "errors": {}, "failed": {}}
    ready: dict[str, Call] = {}
    expected: list[torch.Tensor] | None = None
    for name, make in makers.items():
        try:
            call = make()
            if machine.prepare:
                return
            found = call()
        except (RuntimeError, ValueError, LuminalError, ImportError, AssertionError) as error:
            row["failed"][name] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            continue
        expected = exact() if expected is None else expected
        row["errors"][name] = _error(found, expected)
        ready[name] = call
        row["times"] = machine.seconds(ready)
        yield row


def ours(machine: Machine, model: Model) -> dict[str, Maker]:
    return {OURS: lambda: machine.call(machine.compile(model.module, model.inputs), model.inputs)}


def _grown(rows: Iterator[Iterator[Found]]) -> Iterator[list[Found]]:
    """All rows so far, each time that the last one grows."""
    done: list[Found] = []
    for growing in rows:
        place = len(done)
        for row in growing:
            done[place:] = [row]
            yield done


def _drawn(shape: Sequence[int], precision: str, number: int = 0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(number))
    return made.to(torch.bfloat16 if precision == "bf16" else torch.float32)


def copying(machine: Machine) -> Iterator[list[Found]]:
    """What memory bounds, beside a copy of as many bytes."""

    def rows() -> Iterator[Iterator[Found]]:
        for precision in PRECISIONS:
            x = _drawn(subjects.ROWS[machine.emulated], precision)
            for module in (subjects.Affine(), subjects.Softmax(), subjects.Norm()):
                model = Model(module, (x,), {})
                source = x if machine.prepare else machine.place(x)
                makers: dict[str, Maker] = {**ours(machine, model), "copy": partial(_copying, source)}
                about = {"what": type(module).__name__.lower(), "precision": precision, "bytes": 2 * x.nbytes}
                yield compared(machine, about, {**makers, **peers(machine, model)}, partial(_exact, machine, model))

    for found in _grown(rows()):
        for row in found:
            row["errors"].pop("copy", None)
        yield found


def products(precision: str) -> Callable[[Machine], Iterator[list[Found]]]:
    """Matrix products; PyTorch's are cuBLAS's."""

    def rows(machine: Machine) -> Iterator[Iterator[Found]]:
        for m, k, n in subjects.PRODUCTS[machine.emulated]:
            model = Model(subjects.Product(), (_drawn((m, k), precision), _drawn((k, n), precision, 1)), {})
            about = {"what": f"{m} x {k} x {n}", "precision": precision, "operations": 2 * m * k * n}
            makers = {**ours(machine, model), **peers(machine, model)}
            yield compared(machine, about, makers, partial(_exact, machine, model))

    return lambda machine: _grown(rows(machine))


def _fused(machine: Machine, model: Model, causal: bool) -> Call:
    inputs = [machine.place(x) for x in model.inputs]
    return lambda: [nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)]


def _flash(machine: Machine, model: Model, causal: bool) -> Call:
    from flash_attn import flash_attn_func

    inputs = [machine.place(x.transpose(1, 2).contiguous()) for x in model.inputs]  # [batch, sequence, heads, width]
    return lambda: [flash_attn_func(*inputs, causal=causal).transpose(1, 2)]


def attention(machine: Machine) -> Iterator[list[Found]]:
    """Plain code of attention, beside the same as PyTorch has it, its own kernel, and FlashAttention's package."""

    def rows() -> Iterator[Iterator[Found]]:
        shape = subjects.ATTENTION[machine.emulated]
        for causal in (False, True):
            model = Model(subjects.Attention(causal), tuple(_drawn(shape, "bf16", i) for i in range(3)), {})
            batch, heads, length, width = shape
            about = {
                "what": "causal attention" if causal else "attention", "precision": "bf16",
                "operations": 4 * batch * heads * length * length * width // (2 if causal else 1),
            }  # fmt: skip
            makers: dict[str, Maker] = {
                **ours(machine, model),
                FUSED: partial(_fused, machine, model, causal),
                **({FLASH: partial(_flash, machine, model, causal)} if _has_flash() else {}),
                **peers(machine, model),
            }
            yield compared(machine, about, makers, partial(_exact, machine, model))

    return _grown(rows())


def _copying(source: torch.Tensor) -> Call:
    return lambda: [source.clone()]


def _compiled(machine: Machine, model: Model, target: Any) -> Call:
    return machine.call(machine.compile(model.module, model.inputs, target), model.inputs)


def _has_flash() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


def whole(name: str, precision: str) -> Callable[[Machine], Iterator[list[Found]]]:
    """A model at its real size."""

    def rows(machine: Machine) -> Iterator[Iterator[Found]]:
        model = subjects.converted(subjects.model(name, machine.emulated), precision)
        about = {"what": name, "precision": precision, "bytes": sum(p.nbytes for p in model.module.parameters())}
        makers = {**ours(machine, model), **peers(machine, model)}
        yield compared(machine, about, makers, lambda: _exact(machine, model))

    return lambda machine: _grown(rows(machine))


def training(precision: str) -> Callable[[Machine], Iterator[list[Found]]]:
    """The loss and the gradients of all parameters."""

    def rows(machine: Machine) -> Iterator[Iterator[Found]]:
        model = subjects.converted(subjects.step(machine.emulated), precision)
        names = [name for name, tensor in model.module.named_parameters() if tensor.requires_grad]
        parameters = [dict(model.module.named_parameters())[name] for name in names]

        def compiled() -> Call:
            step = luminal.grad(
                model.module, model.inputs, wrt=names, value=True, target=machine.target, emulate=machine.emulated
            )
            given = dict(zip(step.module.input_names, [*model.inputs, *parameters], strict=True))
            return machine.call(step.module, list(given.values()))

        def backward(model: Model, wrap: Callable[[Any], Any] = lambda module: module) -> Call:
            module = machine.place(copy.deepcopy(model.module))
            inputs, run = [machine.place(x) for x in model.inputs], wrap(module)
            own = dict(module.named_parameters())

            def call() -> list[torch.Tensor]:
                loss = run(*inputs)
                return [loss.detach(), *torch.autograd.grad(loss, [own[name] for name in names])]

            return call

        makers: dict[str, Maker] = {OURS: compiled, EAGER: lambda: backward(model)}
        if not machine.emulated:
            makers[TUNED] = lambda: backward(model, _autotuned)
        exact = model._replace(module=copy.deepcopy(model.module).double())
        about = {"what": "training step", "precision": precision}
        yield compared(machine, about, makers, lambda: list(backward(exact)()))

    return lambda machine: _grown(rows(machine))


def check(name: str) -> Callable[[Machine], Iterator[list[Found]]]:
    """A tiny model against the interpreter, with the bound that its roundings explain."""

    def run(machine: Machine) -> Iterator[list[Found]]:
        done: list[Found] = []
        for precision in ("fp32", "bf16"):
            model = subjects.converted(subjects.TINY[name](), precision)
            module = machine.compile(model.module, model.inputs)
            if machine.prepare:
                continue
            graph = module.graph
            assert graph is not None
            inputs = dict(zip(module.input_names, [to_numpy(x, "input") for x in model.inputs], strict=True))
            oracle = Oracle(graph, inputs)
            found = [np.asarray(to_numpy(x.cpu(), "output")) for x in machine.call(module, model.inputs)()]
            refuted = [key for (key, node), x in zip(graph.outputs, found, strict=True) if oracle.refutes(node, x)]
            pairs = zip(graph.outputs, found, strict=True)
            error = errors.worst(
                math.nan if (d := distance(x, oracle.exact(node))).misplaced else d.relative for (_, node), x in pairs
            )
            done.append({"what": name, "precision": precision, "error": error, "wrong": refuted})
            yield done

    return run


def sanitizer(tool: str, python: str = sys.executable) -> Callable[[Machine], Iterator[list[Found]]]:
    """NVIDIA's checker on a tiny model, in a process of its own."""

    def run(machine: Machine) -> Iterator[list[Found]]:
        from benchmarks.gpu.part import command

        program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
        if machine.prepare:
            return
        if program is None:
            yield [{"what": tool, "missing": "compute-sanitizer is not installed"}]
            return
        checked = command("check/minilm", machine, python)
        done = subprocess.run(
            [program, "--tool", tool, "--target-processes", "all", *checked],
            capture_output=True,
            text=True,
            check=False,
        )
        said = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", done.stdout + done.stderr)
        counts = [int(a or b) for a, b in said]
        row: Found = {"what": tool, "faults": int(np.sum(counts)) if counts else None, "status": done.returncode}
        if not counts or any(counts) or done.returncode:
            row["said"] = (done.stdout + done.stderr)[-2000:]
        yield [row]

    return run


def tune(name: str) -> Callable[[Machine], Iterator[list[Found]]]:
    """The same in each of several schedules, taking turns: which is the fastest here."""

    def rows(machine: Machine) -> Iterator[Iterator[Found]]:
        if name == "products":
            shapes = subjects.PRODUCTS[machine.emulated]
            models = {
                f"{m} x {k} x {n}": Model(subjects.Product(), (_drawn((m, k), "bf16"), _drawn((k, n), "bf16", 1)), {})
                for m, k, n in shapes
            }
        else:
            models = {name: subjects.converted(subjects.model(name, machine.emulated), "bf16")}
        for what, model in models.items():
            makers: dict[str, Maker] = {
                key: partial(_compiled, machine, model, target) for key, target in machine.variants().items()
            }
            about = {"what": what, "precision": "bf16"}
            yield compared(machine, about, makers, partial(_exact, machine, model))

    return lambda machine: _grown(rows(machine))


DECODED = "tinyllama-step"
PARTS: dict[str, Part] = {
    "copy": Part(copying, 90),
    "products/bf16": Part(products("bf16"), 120),
    "attention": Part(attention, 120),
    **{f"check/{name}": Part(check(name), 30) for name in subjects.TINY},
    **{f"model/{name}/bf16": Part(whole(name, "bf16"), 150) for name in subjects.MODELS},
    "decode/bf16": Part(whole(DECODED, "bf16"), 200),
    "train/bf16": Part(training("bf16"), 200),
    **{f"sanitizer/{tool}": Part(sanitizer(tool), 90) for tool in TOOLS},
    "products/fp32": Part(products("fp32"), 120),
    **{f"model/{name}/fp32": Part(whole(name, "fp32"), 150) for name in subjects.MODELS},
    "decode/fp32": Part(whole(DECODED, "fp32"), 200),
    "train/fp32": Part(training("fp32"), 200),
    "tune/products": Part(tune("products"), 300),
    **{f"tune/{name}": Part(tune(name), 400) for name in subjects.MODELS},
}
