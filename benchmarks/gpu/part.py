"""One part, in a process of its own: ``python -m benchmarks.gpu.part JSON``. Each line that it prints is all
that it has found so far."""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.parts import PARTS


def command(name: str, machine: Machine, python: str = sys.executable) -> list[str]:
    """The command that runs a part."""
    return [python, "-m", "benchmarks.gpu.part", json.dumps({"part": name, "machine": asdict(machine)})]


def main(options: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    machine = Machine(**options["machine"])
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32 for everybody
    torch.backends.cudnn.allow_tf32 = False
    on_device = not machine.emulated and not machine.prepare
    # Libraries do not wait for a stream of the caller's, as they do for the default one.
    with torch.cuda.stream(torch.cuda.Stream()) if on_device else nullcontext():
        for found in PARTS[options["part"]].run(machine):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
