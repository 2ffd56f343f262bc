"""Chains of contractions whose rows stay in registers, where groups of warps multiply from shared memory: what is
chosen, its results in the emulator and in the interpreter, and every wait that is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import dialects, render
from luminal.core import interp, ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, reduction
from luminal.core.errors import SpecError
from luminal.core.ir import Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.held import StreamHeld
from luminal.core.schedule.nest import interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_statements
from luminal.core.schedule.program import ir as program
from luminal.core.types import DType
from tests import device_support
from tests.codegen_gpu_support import Emulated, rendered
from tests.codegen_support import WARNINGS
from tests.gpu_emulation import Image, aligned, tensor_map
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, transforms
from tests.stream_support import Built, added, attention, causal_alone, plain

Array = np.ndarray[Any, Any]
Change = Callable[[Node, Node], Node]
CUDA = targets.GPUS["cuda:sm_90"]
SCALE, HEADS, GROUPS = 0.125, 2, 4
SEQ = sym.var("seq", 1, 300)


def build(
    change: Change, queries: sym.Int, keys: sym.Int, dtype: DType = types.bf16, width: int = 64, depth: int = 64,
    shared: int = 1,
) -> Built:  # fmt: skip
    """``shared`` heads of queries for each of keys."""
    source = Source()
    heads = HEADS * shared
    shapes = (heads, queries, depth), (HEADS, keys, depth), (HEADS, keys, width)
    q, k, v = (source.input(*shape, dtype=dtype) for shape in shapes)
    if shared > 1:
        k, v = (movement.reshape(ir.expand(movement.unsqueeze(x, [1]), (HEADS, shared, *x.shape[1:])),
                                 (heads, *x.shape[1:])) for x in (k, v))  # fmt: skip
    return attention(source, q, k, v, SCALE, change)


def compiled(graph: ir.Graph, tile: tuple[int, int] | None = None) -> program.Program:
    """The program, in which groups of warps multiply a chain, in tiles of these rows and columns: none of the
    processors of a device with one is idle."""
    grid = CUDA.grid
    assert grid is not None
    costs = replace(grid.costs, held_tiles=(), grouped_tiles=grid.costs.grouped_tiles if tile is None else (tile,))
    made = compile_graph(graph, replace(CUDA, grid=replace(grid, processors=1, costs=costs)))
    (kernel,) = made.kernels
    (held,) = transforms(kernel, StreamHeld)
    assert held.first.fragment.panels and held.last.fragment.panels
    assert tile in (None, (held.rows, held.block))
    return made


def agrees(found: Array, arrays: dict[str, Array], expected: Array, dtype: DType) -> None:
    """Weights and results are rounded once, scores, whose error is that of weights, up to twice: by eps / 2."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    q, k = (np.abs(arrays[name].astype(np.float64)).reshape(-1, 64).sum(-1).max() for name in ("x0", "x1"))
    scores = min(q, k) * SCALE
    scale = np.abs(np.nan_to_num(expected)).max()
    assert np.abs(np.nan_to_num(found - expected)).max() <= (1 + 3 * scores) * dtype.eps * scale


CASES = {
    "plain": (plain, types.bf16, {}),
    "causal": (causal_alone, types.bf16, {"width": 128}),
    "added": (added, types.f16, {}),
    "shared": (plain, types.f16, {"shared": GROUPS, "depth": 128}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_generated_kernels_agree_with_float64_at_any_size(case: str, tmp_path: Path) -> None:
    change, dtype, more = CASES[case]
    made = compiled(build(change, SEQ, SEQ, dtype, **more)[0])
    (kernel,) = made.kernels
    emulated = Emulated({kernel.name: kernel.nest}, dialects.ALL["cuda"], tmp_path)
    for size in (1, 64, 267):
        graph, arrays = build(change, size, size, dtype, **more)
        arrays["x3"][arrays["x3"] > 0.5] = -np.inf
        arrays["x3"][:1] = 0
        (expected,) = interp.run(graph, arrays, mode="float64").outputs
        found = run_program(made, arrays, run_kernel=emulated.run_nest)["y"].astype(np.float64)
        agrees(found, arrays, expected, dtype)


def test_heads_that_share_keys_are_read_where_they_lie() -> None:
    """No box reads the keys of several heads: threads copy them, and share what they have written with products."""
    change, dtype, more = CASES["shared"]
    (kernel,) = compiled(build(change, 256, 256, dtype, **more)[0]).kernels
    boxes = {s.array for s in walk.statements(kernel.nest.body) if isinstance(s, ln.CopyBox)}
    assert boxes == {"stage_a"}


def test_boxes_of_keys_in_panels_begin_at_the_digits_of_a_block() -> None:
    """Keys of which two runs are one row of scores: each box lies in one, at the block's place in it."""
    source = Source()
    shapes = (1, 64, 64), (1, 128, 2, 64), (1, 256, 64)
    q, k, v = (source.input(*shape, dtype=types.bf16) for shape in shapes)
    k = movement.reshape(movement.transpose(k, 1, 2), shapes[2])
    scores = contraction.matmul(q, movement.transpose(k, -2, -1)) * SCALE
    y = contraction.matmul(reduction.softmax(scores, -1), v)
    graph = ir.Graph("rows", tuple(source.nodes), (("y", y),))
    made = compiled(graph, (64, 64))
    (kernel,) = made.kernels
    boxes = [s for s in walk.statements(kernel.nest.body) if isinstance(s, ln.CopyBox) and s.array == "stage_b"]
    assert [len(box.sizes) for box in boxes] == [3, 3]  # terms, lines of a run, runs
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    agrees(run_program(made, source.arrays)["y"].astype(np.float64), source.arrays, expected, types.bf16)
    rendered(kernel.name, kernel.nest, dialects.ALL["cuda"])


def test_the_interpreter_agrees_with_float64_and_misses_every_barrier() -> None:
    """In tiles that rows and columns do not fill, one of them in the last block."""
    graph, arrays = build(causal_alone, 20, 70)
    made = compiled(graph, (64, 64))
    (expected,) = interp.run(graph, arrays, mode="float64").outputs
    agrees(run_program(made, arrays)["y"].astype(np.float64), arrays, expected, types.bf16)
    (kernel,) = made.kernels
    barriers = [s for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Barrier)]
    assert len(barriers) == 2
    for barrier in barriers:
        body, count = replace_statements(kernel.nest.body, lambda s, it=barrier: () if s is it else None)
        assert count == 1

        def run(nest: ln.LoopNest, *about: Any, body: walk.Body = body) -> bool:
            return interpreter.run(replace(nest, body=body), *about)

        with pytest.raises(SpecError, match="with no barrier"):
            run_program(made, arrays, run_kernel=run)


# ---- what is missing -----------------------------------------------------------------------------------------------

# What is replaced in the text, and what the emulator says then.
WRONG = {
    "box": (r"boxes_wait<0>\(boxes\);", r"unwritten read: .* of stage_\w"),
    "barrier": (r"(?<!_)barrier\(\);", r"(race|overwritten operand): .* of stage_\w"),
    "fence": (r"group_begin\(\);", r"unfenced product: .* its sums were used, and no fence follows"),
    "wait for the first": (r"group_wait<0, \d+>\(tile\);", r"unfinished product: .* before it was waited for"),
    "wait for the last": (r"group_wait<0, \d+>\(sum\d\);", r"unfinished product: .* before it was waited for"),
    "nothing": ("$", "^$"),
}


def test_a_missing_fence_wait_or_barrier_is_found(tmp_path: Path) -> None:
    graph, arrays = build(plain, 70, 200)
    (kernel,) = compiled(graph, (64, 64)).kernels
    texts = {f"k{n}": rendered(f"k{n}", kernel.nest, dialects.ALL["cuda"]) for n in range(len(WRONG))}
    source = ""
    for text, (part, _) in zip(texts.values(), WRONG.values(), strict=True):
        whole = render.kernel_text(text)
        changed = re.sub(part, "", whole)
        assert changed != whole or part == "$"
        source += changed
    tensors = {name: [array.name for array in kernel.nest.arrays] for name in texts}
    table = render.emulated_kernels(list(texts.values()), tensors)
    image = Image({"kernels": source}, table, "cuda", tmp_path, (*WARNINGS, "-Wno-unused-function"))
    values = [aligned(arrays[name]) for name in ("x0", "x1", "x2")]
    output = aligned(np.zeros(graph.outputs[0][1].shape, types.bf16.numpy))
    named = {array.name: value for array, value in zip(kernel.nest.arrays, (*values, output), strict=True)}
    for name, text, (_, fault) in zip(texts, texts.values(), WRONG.values(), strict=True):
        maps = [tensor_map(of, named[of.array], {}) for of in text.signature.maps]
        assert len(maps) == 3
        tasks = int(sym.evaluate(text.tasks, {}))
        assert re.search(fault, image.run(name, tasks, [*values, output], [3], maps)), name


@device_support.needs_nvcc
@pytest.mark.parametrize("compute", ["sm_90a", "sm_100"])
def test_nvcc_takes_the_kernels_without_spills(compute: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.cu"
    made = (compiled(build(change, 256, 256, dtype, **more)[0]) for change, dtype, more in CASES.values())
    nests = {f"k{n}": x.kernels[0].nest for n, x in enumerate(made)}
    path.write_text("".join(render.kernel_text(rendered(*x, dialects.ALL["cuda"])) for x in nests.items()))
    said, _ = device_support.compile_cuda(path, compute, tmp_path)
    assert "warning" not in said and "serialized" not in said
    assert set(re.findall(r"(\d+) bytes spill stores", said)) == {"0"}
