"""One process of ``benchmarks.mesh``: a rank of a library, or one of PyTorch's, which runs when it is told to.

Arguments: the socket that tells it how many runs to make, and what it runs, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Steps: TypeAlias = Callable[[int], list[float]]  # the first result of so many runs, from the initial states on
Run: TypeAlias = Callable[[], tuple[float, float]]  # seconds of it that exchanges with others began in, and waited


def main(address: str, what: str) -> None:
    options = json.loads(what)
    run, steps = library(**options) if "folder" in options else (parallel(**options), None)
    with Client(address) as parent:
        while runs := parent.recv():
            if runs < 0:
                assert steps is not None
                parent.send(steps(-runs))
                continue
            found = []
            run()
            for _ in range(runs):
                started = time.perf_counter()
                spent = run()
                found.append((time.perf_counter() - started, *spent))
            parent.send(found)


def library(folder: str, inputs: str, entry: str, threads: int, ranks: int) -> tuple[Run, Steps]:
    """Of one that is divided by rows, each rank takes its part of ``inputs``."""
    from luminal import launch
    from luminal.runtime import loader

    rank = launch.rank() or 0
    opened = loader.load(Path(folder), threads=threads, profile=True)
    spec = next(each for each in opened.entries if each.name == entry)
    given = {}
    for tensor in spec.inputs:
        value = np.load(inputs)[tensor.name]
        whole = value.ndim == 0 or value.shape[0] == tensor.shape[0]
        given[tensor.name] = value if whole else np.ascontiguousarray(np.split(value, ranks)[rank])
    rows = opened.metadata["steps"]
    starts, waits = ({n for n, row in enumerate(rows) if row["kernels"] and row["kernels"][0].startswith(word)}
                     for word in ("start ", "wait for "))  # fmt: skip

    def run() -> tuple[float, float]:
        _, times = opened.profile(given, entry)
        starting, waiting = (sum(time.seconds for time in times if time.step in those) for those in (starts, waits))
        return starting, waiting

    def steps(count: int) -> list[float]:
        opened.reset()
        return [float(opened.run(given, entry)[0]) for _ in range(count)]

    return run, steps


def parallel(case: str, threads: int, rank: int, ranks: int, small: bool) -> Run:
    """A step with AdamW of PyTorch's compiler; of several ranks, under its DistributedDataParallel over gloo, each with
    its rows of the batch. The rendezvous is in the environment."""
    import torch
    import torch.distributed as dist

    from benchmarks import training

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, inputs = training.CASES[case].small() if small else training.CASES[case].make()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    update = torch.compile(optimizer.step)
    fast: Any = torch.compile(model)
    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        fast = torch.nn.parallel.DistributedDataParallel(fast)
        inputs = tuple(x.chunk(ranks)[rank].contiguous() for x in inputs)

    def run() -> tuple[float, float]:
        optimizer.zero_grad()
        fast(*inputs).backward()
        update()
        return 0.0, 0.0

    run()
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
