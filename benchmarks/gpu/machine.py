"""The GPU that is measured, or its emulation: how values get there, how calls are timed, what it is called."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import luminal
from benchmarks import machine as host
from luminal.codegen import toolchain
from luminal.core import target as targets
from luminal.core.errors import BuildError
from luminal.core.target import Target
from luminal.module import Module
from luminal.tensors import is_torch, to_numpy, to_torch
from luminal.timing import shuffled

Call = Callable[[], Sequence[torch.Tensor]]

FLUSHED = 256 << 20  # bytes written before each timed call: more than any of these GPUs caches
WARMUP = 3
TARGET = "cuda:sm_90"  # where no GPU says otherwise


@dataclass(frozen=True)
class Machine:
    """What is measured: a target, on a GPU or ``emulated``, by so many ``runs``. To ``prepare`` is to compile alone."""

    target: str
    emulated: bool = False
    prepare: bool = False
    runs: int = 25

    def compile(self, module: Any, inputs: Sequence[Any], target: Target | None = None, **options: Any) -> Module:
        """The library of a module; ``target`` is a variant of the machine's own."""
        chosen = self.target if target is None else target
        made = luminal.compile(module, tuple(inputs), target=chosen, emulate=self.emulated, **options)
        assert isinstance(made, Module)
        return made

    def call(self, module: Module, inputs: Sequence[Any]) -> Call:
        """A run of a library on values that lie on the device already."""
        arrays = [to_numpy(x, "input") if self.emulated else x.detach().cuda() for x in inputs]
        return lambda: [x if is_torch(x) else to_torch(x) for x in module.library.run(arrays, module.entry.name)]

    def place(self, value: Any) -> Any:
        """A tensor or module where PyTorch computes."""
        return value if self.emulated else value.cuda()

    def variants(self) -> dict[str, Target | None]:
        """Descriptions by which other schedules are chosen, the machine's own first."""
        own = targets.parse(self.target)
        assert own.grid is not None
        found: dict[str, Target | None] = {"default": None}
        for tile in own.grid.costs.tiles:
            for depth in (own.grid.costs.depth // 2, own.grid.costs.depth, 2 * own.grid.costs.depth):
                costs = replace(own.grid.costs, tiles=(tile,), depth=depth)
                found[f"{tile.rows} x {tile.columns}, {depth} bytes"] = replace(
                    own, grid=replace(own.grid, costs=costs)
                )
        return found

    def seconds(self, calls: Mapping[str, Call]) -> dict[str, float]:
        """The median time of each call. They take turns, each with cold caches on a GPU: the time there is that from
        the event before to the event after it."""
        clock = _by_processor if self.emulated else _by_events
        order = list(calls)
        for _ in range(1 if self.emulated else WARMUP):
            for name in order:
                calls[name]()
        found: dict[str, list[Callable[[], float]]] = {name: [] for name in order}
        for number in range(self.runs):
            order = shuffled(order, number)
            for name in order:
                found[name].append(clock(calls[name]))
        return {name: statistics.median(take() for take in found[name]) for name in calls}


def _by_processor(call: Call) -> Callable[[], float]:
    start = time.perf_counter()
    call()
    taken = time.perf_counter() - start
    return lambda: taken


_flushed: list[torch.Tensor] = []


def _by_events(call: Call) -> Callable[[], float]:
    if not _flushed:
        _flushed.append(torch.empty(FLUSHED, dtype=torch.uint8, device="cuda"))
    _flushed[0].zero_()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()

    def taken() -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return taken


def own_target() -> str:
    """The target for this machine's first GPU: the best of those that it runs."""
    fit = [name for name in targets.GPUS if name.startswith("cuda") and targets.supported(targets.GPUS[name])]
    return fit[-1] if fit else TARGET


def card(machine: Machine) -> str:
    """The GPU with its memory, clocks and driver, and what compiled for it; or that it is emulated, and where."""
    if machine.emulated:
        return f"{machine.target}, emulated on a CPU: times say nothing. {host.name()}"
    try:
        nvcc = toolchain.find_nvcc().version.strip().splitlines()[-1]
    except BuildError:
        nvcc = "no nvcc"
    return f"{_asked() or 'no GPU'}; {nvcc}; PyTorch {torch.__version__}"


def _asked() -> str:
    """What nvidia-smi says of the first GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    fields = "name,memory.total,clocks.max.sm,clocks.max.memory,driver_version"
    done = subprocess.run([tool, f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"], capture_output=True,
                          text=True, check=False)  # fmt: skip
    return ", ".join(part.strip() for part in done.stdout.strip().split(",")) if done.returncode == 0 else ""
