"""Facts that a stage finds and a later one asks for: each yes-or-no of them is both somewhere, where it is asked.

A flag that is set on a value which nobody hands on is the same at its reader whatever the model, and results stay
right. Here many graphs are compiled while every read of a flag is watched.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch

from luminal.core import ir, schedule, types
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.numeric import quantise
from luminal.frontends.fx import importer
from tests import architectures
from tests.schedule_graphs import GRAPHS
from tests.test_scaled_blocks import KINDS, stored

PREFIX = f"{schedule.__name__}."
MODELS = ("bert", "resnet", "mixtral", "jamba")
MODELS_FOR = (("avx2", "fp32"), ("amx", "bf16"), ("cuda:sm_90", "bf16"))
GRAPHS_FOR = ("avx2", "amx", "cuda:sm_90", "metal")

# Readers that find the same every time in these graphs, and why that is right.
ALIKE = {
    (
        "nest.ir.Array.aligned",
        "concatenated",
    ): "boxes are merged on CPUs, where all is aligned",
    ("nest.ir.Array.aligned", "_box"): "boxes are copied of whole buffers in these models, which are aligned",
    ("nest.ir.Array.aligned", "_together"): "results of these models are whole buffers, which are aligned",
    ("grid.staged.StagedOperand.ahead", "staged"): "what groups of warps multiply is copied ahead in these models",
    ("nest.ir.Array.finite", "concatenated"): "boxes of an assembly are copies, which rely on nothing",
    ("nest.ir.Array.written", "concatenated"): "the boxes of one assembly write the same array",
    ("nest.ir.Contract.accumulate", "_blocked"): "legality: a schedule sums in blocks before it accumulates",
    ("nest.ir.Contract.accumulate", "_scaled"): "legality: a schedule scales sums of blocks before it accumulates",
    ("nest.ir.Contract.background", "__call__"): "legality: what is handed over is multiplied in the background",
    ("nest.ir.LoopNest.checked", "concatenated"): "boxes look nothing up",
    ("nest.ir.LoopNest.checked", "_tiling"): "contractions of these models look nothing up",
    ("program.ir.Kernel.fetches", "_check_fetch"): "spec: asked of launches with something to fetch",
    ("program.ir.Phase.linked", "_check_phases"): "spec: asked of phases with portions",
}


def flags() -> Iterator[tuple[type, str]]:
    """The boolean fields of all values of the scheduler."""
    for found in pkgutil.walk_packages(schedule.__path__, PREFIX):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == found.name:
                yield from ((value, field.name) for field in dataclasses.fields(value) if field.type == "bool")


def reader(depth: int) -> tuple[str, str] | None:
    """The module and function that reads a flag; None for the code of dataclasses themselves."""
    frame = sys._getframe(depth)
    while frame.f_code.co_name in ("<genexpr>", "<listcomp>", "<dictcomp>", "<lambda>") and frame.f_back is not None:
        frame = frame.f_back
    module = frame.f_globals["__name__"]
    own = module.startswith("luminal.") and not frame.f_code.co_filename.startswith("<")
    return (module, frame.f_code.co_name) if own else None


def watched(patch: pytest.MonkeyPatch) -> dict[tuple[str, str, str], set[bool]]:
    """What readers find from now on, by flag, module and function."""
    seen: dict[tuple[str, str, str], set[bool]] = defaultdict(set)

    def watch(owner: type, name: str) -> None:
        flag = f"{owner.__module__.removeprefix(PREFIX)}.{owner.__qualname__}.{name}"

        def get(self: object) -> bool:
            found = bool(vars(self)[name])
            if (by := reader(2)) is not None:
                seen[flag, *by].add(found)
            return found

        patch.setattr(owner, name, property(get, lambda self, value: vars(self).update({name: value})), raising=False)

    for owner, name in flags():
        watch(owner, name)
    return seen


def test_every_flag_is_both_at_each_of_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {architecture.name: architecture for architecture in architectures.TABLE}
    torch.manual_seed(0)
    linear = importer.load(torch.nn.Linear(512, 512).eval(), (torch.randn(64, 512),))
    graphs = [
        (importer.load(*architectures.build(by_name[name])), *setting) for name in MODELS for setting in MODELS_FOR
    ]
    graphs += [(make().graph, target, "fp32") for make in GRAPHS.values() for target in GRAPHS_FOR]
    graphs.append((quantise.quantised(linear, quantise.parse("int4")), "avx2", "fp32"))  # panels computed before
    row = importer.load(torch.nn.Linear(512, 512).eval(), (torch.randn(1, 512),))
    rounded = quantise.quantised(row, quantise.parse("int4"))
    graphs += [(rounded, target, "fp32") for target in ("avx2", "cuda:sm_80")]  # sums of blocks scaled
    # Groups of warps multiply, and copy for themselves: the last panel of weights is filled up.
    uneven = importer.load(torch.nn.Linear(1024, 1000).eval(), (torch.randn(2048, 1024),))
    graphs.append((uneven, "cuda:sm_90", "bf16"))
    a, b = ir.input_("a", (4096, 128), types.bf16), ir.input_("b", (128, 4096), types.bf16)
    large = ir.Graph("large", (a, b), (("y", contraction.matmul(a, b)),))
    graphs.append((large, "cuda:sm_90", "bf16"))  # warps that only copy hand over what they multiply
    moved = next(case for case in KINDS if "least" in (case.kind.layout.names or ()))
    graphs.append((stored((moved,), 1), "cuda:sm_80", "fp32"))  # sums of blocks that a number moves
    seen = watched(monkeypatch)
    for graph, target, precision in graphs:
        compile_graph(graph, targets.parse(target, precision, threads=2))
    alike = {(flag, function): found for (flag, _, function), found in seen.items() if len(found) == 1}
    unexpected = {key: found for key, found in alike.items() if key not in ALIKE}
    assert not unexpected, "\n".join(f"{key} {found}" for key, found in unexpected.items())
    assert alike.keys() == ALIKE.keys(), f"no longer alike: {ALIKE.keys() - alike.keys()}"
