"""Kernels as they are launched: what their blocks issue, move and take, and the least cycles that these ask for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.codegen.emitter import KernelText
from luminal.core import symbolic as sym
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.machine_code import tools
from luminal.machine_code.follow import Found, Launch, follow
from luminal.machine_code.tools import Image

Row = dict[str, Any]

# ---- a processor -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Processor:
    """A streaming multiprocessor: CUDA C++ Programming Guide, "Compute Capabilities"; ``tensor`` are multiply-adds of
    bfloat16 a cycle, from the peaks in NVIDIA's papers on A100 and H100, which have ``count`` of them with ``clock``
    cycles a second; ``level2`` bytes a cycle from its cache."""

    shared: int
    tensor: int
    count: int
    clock: float
    registers: int = 64 << 10
    warps: int = 64
    blocks: int = 32
    schedulers: int = 4
    banks: int = 128
    level2: int = 64

    def occupancy(self, threads: int, registers: int, shared: int) -> float:
        """The share of its places for warps that blocks fill, by registers, shared memory and threads."""
        warps = -(-threads // 32)
        by_registers = self.registers // (-(-registers // 8) * 8 * 32) // warps
        by_shared = self.shared // (-(-shared // 128) * 128 + 1024)
        return min(by_registers, by_shared, self.warps // warps, self.blocks) * warps / self.warps


PROCESSORS = {80: Processor(164 << 10, 1024, 108, 1.41e9), 90: Processor(228 << 10, 2048, 132, 1.83e9)}


# ---- one kernel ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """A kernel's machine code and how it is launched."""

    image: Image
    architecture: int
    threads: int
    grid: tuple[int, int, int]
    arguments: Sequence[Any]
    origins: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    def middle(self) -> Found:
        """What the block in the middle does, which is no edge, and of a triangle the mean."""
        block = self.grid[0] // 2, self.grid[1] // 2, self.grid[2] // 2
        return follow(self.image.code, self.architecture, Launch(block, self.grid, self.threads, self.arguments))


def counted(kernel: Kernel) -> Row:
    """What all blocks of a kernel do, were each like the one in the middle; and what a block takes."""
    found = kernel.middle()
    loop = found.loop()
    everything = range(len(found.issued))
    widths: dict[str, dict[str, int]] = {}
    for (place, space), access in found.accesses.items():
        if space == "global" and place in (loop or everything):
            how = "written" if access.write else "read"
            known = widths.setdefault(how, {})
            known[str(access.width)] = known.get(str(access.width), 0) + access.bytes
    spaces: dict[str, Counter[str]] = {space: Counter() for space in ("global", "shared")}
    for (_, space), access in found.accesses.items():
        if space in spaces:
            spaces[space] += Counter({"bytes": access.bytes, "sectors": access.sectors, "least": access.least,
                                      "waves": access.waves, "ideal": access.ideal})  # fmt: skip
    moved = {space: {name: kernel.blocks * count for name, count in counts.items()} for space, counts in spaces.items()}
    ways = max((a.ways for (_, space), a in found.accesses.items() if space == "shared"), default=0)
    processor = PROCESSORS[kernel.architecture]
    return {
        "name": kernel.image.code.name, "blocks": kernel.blocks, "threads": kernel.threads,
        "issued": {c: kernel.blocks * n for c, n in sorted(found.total().items())},
        "loop": {c: kernel.blocks * n for c, n in sorted(found.total(loop).items())} if loop else {},
        "moved": moved, "widths": widths, "ways": ways, "operands": kernel.blocks * found.operands,
        "multiplied": kernel.blocks * found.multiplied, "at_once": kernel.blocks * found.at_once,
        "in_flight": found.in_flight,
        "registers": kernel.image.registers, "spilled": kernel.image.spilled, "shared": kernel.image.shared,
        "occupancy": processor.occupancy(kernel.threads, kernel.image.registers, kernel.image.shared),
    }  # fmt: skip


def cycles(kernel: Row, architecture: int) -> dict[str, float]:
    """The least cycles that all processors together need for a kernel, by what would be the only limit."""
    processor = PROCESSORS[architecture]
    moved = kernel["moved"]
    return {
        "issue": sum(kernel["issued"].values()) / processor.schedulers,
        "tensor": kernel["at_once"] / processor.tensor,
        "shared": moved["shared"].get("waves", 0) + kernel["operands"] / processor.banks,
        "global": 32 * moved["global"].get("sectors", 0) / processor.level2,
    }


# Warps of a processor that hide all waits, where each group of copies under way counts as those warps again: estimated.
HIDING = 16


def seconds(kernel: Row, architecture: int) -> float:
    """What a kernel is judged by where nothing runs: the time of the processor with the most blocks. Of what bounds it,
    the most overlaps the rest, as far as warps at once and copies in flight hide waits. An estimate by which kernels
    for the same work are compared; of how long one takes it says little."""
    processor = PROCESSORS[architecture]
    limits = [count / kernel["blocks"] for count in cycles(kernel, architecture).values()]
    warps = kernel["occupancy"] * processor.warps
    hidden = min(1.0, warps * (1 + kernel["in_flight"]) / HIDING)
    block = max(limits) + (1 - hidden) * (sum(limits) - max(limits))
    return float(math.ceil(kernel["blocks"] / processor.count) * block / processor.clock)


# ---- of a program ----------------------------------------------------------------------------------------------------


def launched(text: KernelText, image: Image, target: Target, at: Mapping[str, int]) -> Kernel:
    """A kernel as it is launched at these sizes of all dimensions of its program, in their order. Integers in memory
    are zeros, as indices that are in range."""
    sign = text.signature
    memory: list[Any] = [np.zeros(64, np.uint8) if pointer.dtype.is_integer else None for pointer in sign.pointers]
    memory += [None] * sign.checked
    memory += [np.array([*at.values()], np.int64)] * sign.reads_dims
    blocks = int(sym.evaluate(text.tasks, at))
    return Kernel(image, tools.number(tools.newest(target)), sign.threads, (blocks, 1, 1), memory, text.kernel.origins)


def launches(made: Program, target: Target, folders: tuple[str, ...] = ()) -> list[Kernel]:
    """The kernels that a program of fixed sizes launches, in their order, each once."""
    texts = tools.texts(made, target)
    code = tools.images(texts, target, folders)
    names = dict.fromkeys(made.kernels[step.kernel].name for entry in made.entries for step in entry.launches)
    return [launched(texts[name], code[name], target, {}) for name in names]
