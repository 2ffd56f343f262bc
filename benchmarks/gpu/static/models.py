"""The kernels of whole models: what they spill, how wide they read and write, and where banks collide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import zoo
from benchmarks.gpu import subjects
from benchmarks.suite import CASES
from benchmarks.zoo.model import Model
from luminal import api
from luminal.core import derivative
from luminal.core import target as targets
from luminal.core.differentiate import differentiated
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.machine_code.follow import Found
from luminal.machine_code.kernels import Kernel, launches

WIDE = 16  # bytes that a thread can read or write at once
WAYS = 2  # words that one bank may have to serve at once
STEP = "training step"
# At the sizes that models are timed at, with few layers, which have all their kernels.
REAL: dict[str, Callable[[], Model]] = {
    "minilm": lambda: subjects.minilm(1, 1, 128),
    "bert-base": lambda: zoo.bert_base(1, 1, 128),
    "gpt2": lambda: zoo.gpt2(1, 1, 256),
    "vit": lambda: zoo.vit(1, 1),
    "resnet50": lambda: zoo.resnet50((2, 2, 2, 2), 1),
    "mobilenet": lambda: zoo.mobilenet(False, 1),
    "convnext": lambda: zoo.convnext((2, 2, 2, 2), 1),
    "whisper": lambda: zoo.whisper_encoder(1, 1),
    "tinyllama": lambda: CASES["tinyllama"].build(1),
    "tinyllama-step": lambda: CASES["tinyllama-step"].build(1),
}
NAMES = (*REAL, STEP)


@dataclass(frozen=True)
class Place:
    """An access of an inner loop that is not ``WIDE``, or one that collides: the instruction, whether it writes, bytes
    of a thread, sectors over the fewest that could hold what a warp touches, the most words of a bank at once."""

    opcode: str
    space: str
    write: bool
    width: int
    sectors: float
    ways: int


def places(found: Found, wide: int = WIDE) -> Iterator[Place]:
    """Narrow accesses of the inner loop to global memory, and all in shared memory that collide beyond ``WAYS``."""
    loop = found.loop() or range(len(found.issued))
    for (place, space), access in sorted(found.accesses.items()):
        narrow = space == "global" and access.width < wide and place in loop
        if not narrow and not (space == "shared" and access.ways > WAYS):
            continue
        sectors = round(access.sectors / access.least, 2) if access.least else 0.0
        yield Place(found.code.instructions[place].opcode, space, access.write, access.width, sectors, access.ways)


def graph_of(name: str, precision: str, tiny: bool) -> Graph:
    """A model, a decoder or its step; or the loss of a tiny decoder with the gradients of its parameters."""
    if name == STEP:
        made = subjects.converted(subjects.step(True), precision)
        names = [key for key, tensor in made.module.named_parameters() if tensor.requires_grad]
        with derivative.recorded():
            _, load, exported = api.front_end(made.module)
            graph = load.load(exported, made.inputs, parameters=names)
        by = [node for node in graph.given if graph.names.get(node) in names]
        return differentiated(graph, by, True, False)
    made = subjects.converted((subjects.TINY if tiny else REAL)[name](), precision)
    return api.read(made.module, made.inputs)


def kernels_of(name: str, target: str, precision: str, tiny: bool, folders: tuple[str, ...] = ()) -> list[Kernel]:
    """The kernels of a model, compiled."""
    goal = targets.parse(target)
    return launches(compile_graph(graph_of(name, precision, tiny), goal), goal, folders)


def looked_at(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """What was found of each kernel, as JSON holds it."""
    rows = []
    for kernel in kernels:
        found = kernel.middle()
        rows.append({
            "name": kernel.image.code.name, "origins": kernel.origins, "registers": kernel.image.registers,
            "spilled": kernel.image.spilled,
            "ways": max((a.ways for (_, space), a in found.accesses.items() if space == "shared"), default=0),
            "issued": sum(found.issued), "diverged": found.diverged,
            "places": [{**asdict(place), "count": count} for place, count in Counter(places(found)).items()],
        })  # fmt: skip
    return rows
