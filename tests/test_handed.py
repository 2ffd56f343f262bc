"""Products whose stages are filled by warps that only copy, in blocks that stay (wgmma, TMA): what is chosen, results
in emulation, and every missing wait or arrival found."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import build, emulation, render
from luminal.codegen.dialect_cuda import CUDA
from luminal.codegen.dialect_metal import METAL
from luminal.codegen.emitter import KernelText
from luminal.core import interp, ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import activation, contraction
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.grid import more_registers
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.divide import SynchroniseThreads
from luminal.core.schedule.grid.handed import Persist, SpecialiseWarps, rows_at_once
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.nest.hand_over import HandOver
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.schedule.transform.loops import Parallelise, apply
from luminal.core.target import Target
from luminal.machine_code.kernels import counted, launches
from luminal.runtime import loader
from tests import device_support
from tests.codegen_gpu_support import Emulated, rendered
from tests.codegen_support import WARNINGS
from tests.cuda_support import FakeDriver
from tests.gpu_emulation import Image, aligned, tensor_map
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, transforms

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]
SM_90 = targets.GPUS["cuda:sm_90"]


def staying(ahead: int, processors: int = 2) -> Target:
    """A GPU of few processors whose blocks stay for several small tiles, with copies so many steps ahead."""
    assert SM_90.grid is not None
    small = next(t for t in SM_90.grid.costs.tiles if (t.rows, t.columns, t.side) == (64, 64, 8))
    costs = replace(SM_90.grid.costs, tiles=(small,), handed_ahead=(ahead,), handed_time=0.1)
    return replace(SM_90, grid=replace(SM_90.grid, processors=processors, costs=costs))


def product(rows: int, terms: sym.Int, columns: int, batch: int = 0, b_along: bool = True) -> tuple[ir.Graph, Any]:
    """A product of bfloat16, of several matrices where there is a ``batch``. Any number of terms lies down."""
    source = Source()
    first = (batch,) * bool(batch)
    down = not isinstance(terms, int)
    a = source.input(*first, *((terms, rows) if down else (rows, terms)), dtype=types.bf16)
    a = movement.permute(a, (1, 0)) if down else a
    b = source.input(*first, *((columns, terms) if b_along else (terms, columns)), dtype=types.bf16)
    order = (*range(len(first)), len(first) + 1, len(first))
    y = contraction.matmul(a, movement.permute(b, order) if b_along else b)
    return ir.Graph("product", tuple(source.nodes), (("y", y),), dims=tuple(sym.variables(terms))), source.arrays


def heads(width: int) -> tuple[ir.Graph, Any]:
    """A product with an attention's results, which lie head by head."""
    source = Source()
    a = source.input(3, 130, width, dtype=types.bf16)
    left = movement.reshape(movement.permute(a, (1, 0, 2)), (130, 3 * width))
    y = contraction.matmul(left, source.input(3 * width, 136, dtype=types.bf16))
    return ir.Graph("product", tuple(source.nodes), (("y", y),)), source.arrays


def taken_apart(name: str) -> tuple[ir.Graph, Any]:
    """Products whose operands lie in parts: an axis has several digits in memory."""
    if name == "terms in parts":
        return heads(64)
    source = Source()
    a = source.input(130, 200, dtype=types.bf16)
    if name == "wider parts":
        b = movement.reshape(movement.permute(source.input(2, 200, 128, dtype=types.bf16), (1, 0, 2)), (200, 256))
    else:
        drawn = np.random.default_rng(7).standard_normal((200, 192))
        b = ir.constant(drawn.astype(types.bf16.numpy))
    return ir.Graph("product", tuple(source.nodes), (("y", contraction.matmul(a, b)),)), source.arrays


# What is copied of A and of B: where boxes of the last step but one begin, and sizes of the tensor that they are of.
APART = {
    "weights": (("(128, 64*a0_1)", (200, 130)), ("(0, 128, a1_1)", (64, 200, 3))),
    "wider parts": (("(128, 64*a0_1)", (200, 130)), ("(64*(a1_1 % 2), 128, (a1_1 // 2))", (128, 200, 2))),
    "terms in parts": (("(0, 64*a0_1, 1)", (64, 130, 3)), ("(64*a1_1, 64)", (136, 192))),
}

SEQ = sym.var("seq", 1, 1000)

# Of each: rows, terms, columns, batch, whether B's terms lie along lines, steps ahead, processors.
CASES = {
    "turns of all blocks": (128, 328, 136, 0, True, 3, 2),
    "the last turn of some": (130, 200, 136, 0, False, 2, 2),
    "a single step": (128, 64, 128, 0, True, 1, 2),
    "as many steps as slots": (64, 128, 256, 0, True, 1, 4),
    "a batch": (64, 136, 72, 3, False, 1, 4),
    "any number of steps": (128, SEQ, 72, 0, False, 2, 3),
}  # fmt: skip


EVERY = (*CASES, *APART)


@cache
def program(name: str) -> tuple[ir.Graph, dict[str, Array], Program]:
    if name in APART:
        graph, arrays = taken_apart(name)
        return graph, arrays, compile_graph(graph, staying(2))
    rows, terms, columns, batch, b_along, ahead, processors = CASES[name]
    graph, arrays = product(rows, terms, columns, batch, b_along)
    if not isinstance(terms, int):  # more than one round of the slots
        random = np.random.default_rng(3)
        drawn = (random.standard_normal(shape).astype(types.bf16.numpy) for shape in ((456, rows), (456, columns)))
        arrays = dict(zip(arrays, drawn, strict=True))
    return graph, arrays, compile_graph(graph, staying(ahead, processors))


def kernel(name: str) -> Kernel:
    (found,) = program(name)[2].kernels
    return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("handed")


# ---- what is chosen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "handed"),
    [((4096, 4096, 4096), True), ((512, 768, 3072), True), ((1024, 1024, 1024), True), ((1024, 64, 64), False)],
)
def test_warps_copy_for_others_where_groups_of_warps_multiply(sizes: tuple[int, int, int], handed: bool) -> None:
    (found,) = compile_graph(product(*sizes, b_along=False)[0], SM_90).kernels
    (stage,) = transforms(found, Stage)
    assert stage.handed == handed == bool(transforms(found, Persist)) == bool(found.nest.copiers)


def test_the_block_of_a_large_product() -> None:
    """As many blocks as processors; two groups of warps multiply, and one copies, whose registers they get."""
    nest = compile_graph(product(4096, 4096, 4096, b_along=False)[0], SM_90).kernels[0].nest
    assert SM_90.grid is not None
    assert nest.task_count == SM_90.grid.processors and (nest.threads, nest.copiers) == (256, 128)
    assert more_registers(256, 128) * 256 + 40 * 128 <= 65536 and more_registers(256, 128) == 232
    assert more_registers(128, 128) == 0


def test_blocks_of_few_threads_have_others_beside_them_where_there_are_more_tiles() -> None:
    """A tile of one group: with a tile for each processor at most, its warps copy for others; with more, several blocks
    on a processor hide each other's waits instead. There are no more blocks than tiles."""
    grid = SM_90.grid
    assert grid is not None
    costs = replace(grid.costs, tiles=tuple(t for t in grid.costs.tiles if (t.rows, t.columns) == (64, 128)))
    target = replace(SM_90, grid=replace(grid, costs=costs))
    few, many = (compile_graph(product(64, 256, n * 128)[0], target).kernels[0].nest for n in (7, 300))
    assert few.copiers and few.task_count == 7 and not many.copiers


def test_tiles_that_are_computed_at_once_lie_in_groups() -> None:
    """132 tiles of 128 x 256 read least where they are 16 rows of tiles."""
    assert rows_at_once(132, 128, 256, 32) == 16
    assert rows_at_once(132, 128, 256, 31) == 31 and rows_at_once(132, 128, 256, SEQ) == 1


@pytest.mark.parametrize("name", APART)
def test_what_lies_in_parts_is_copied_as_boxes_of_more_dimensions(name: str) -> None:
    boxes = [s for s in walk.statements(kernel(name).nest.body) if isinstance(s, ln.CopyBox)]
    *_, a, b, _, _ = boxes
    found = [("(" + ", ".join(map(str, box.origin)) + ")", box.sizes) for box in (a, b)]
    assert found == list(APART[name])


@pytest.mark.parametrize(("columns", "whole"), [(3072, True), (3000, False)])
def test_a_linear_layer_is_copied_by_warps_of_its_own(columns: int, whole: bool) -> None:
    """As a transformer has it, of 4,096 tokens; where the last panel is filled up, it is no box."""
    source = Source()
    x = source.input(4096, 768, dtype=types.bf16)
    weight = ir.constant(np.random.default_rng(5).standard_normal((columns, 768)).astype(types.bf16.numpy))
    y = activation.relu(contraction.matmul(x, movement.permute(weight, (1, 0))))
    (found,) = compile_graph(ir.Graph("linear", tuple(source.nodes), (("y", y),)), SM_90).kernels
    assert bool(found.nest.copiers) == whole


def test_no_barrier_is_between_those_that_copy_and_the_others() -> None:
    for name in EVERY:
        every = walk.statements(kernel(name).nest.body)
        assert not any(isinstance(s, ln.Barrier) for s in every)
        assert any(isinstance(s, HandOver) and s.filled for s in every), name


# ---- results -------------------------------------------------------------------------------------------------------


def close(found: Array, graph: ir.Graph, arrays: dict[str, Array]) -> bool:
    (exact,) = interp.run(graph, arrays, mode="float64").outputs
    terms = min(max(x.shape) for x in arrays.values())
    bound = (types.bf16.eps + np.sqrt(terms) * types.f32.eps) * np.abs(exact).max()
    return bool(np.abs(found.astype(np.float64) - exact).max() <= bound)


@pytest.mark.parametrize("name", ["a single step", "a batch", *APART])
def test_the_nest_is_the_product_of_float64(name: str) -> None:
    graph, arrays, made = program(name)
    assert close(run_program(made, arrays)["y"], graph, arrays)


PORTABLE = ("turns of all blocks",)  # that are compiled for other GPUs, too


@cache
def emulated(folder: Path, portable: bool) -> Emulated:
    nests = {f"k{number}": kernel(name).nest for number, name in enumerate(PORTABLE if portable else EVERY)}
    return Emulated(nests, CUDA, folder / f"{portable}", ("-DLM_WITHOUT_WGMMA=1",) * portable)


@pytest.mark.parametrize(("name", "portable"), [*((n, False) for n in EVERY), *((n, True) for n in PORTABLE)])
def test_emulated_products_are_those_of_float64(name: str, portable: bool, folder: Path) -> None:
    graph, arrays, made = program(name)
    assert close(run_program(made, arrays, run_kernel=emulated(folder, portable).run_nest)["y"], graph, arrays)


def test_a_library_starts_the_threads_that_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, arrays, made = program("a single step")
    built = build.build(emulation.emulated(render.render(made, staying(1))), tmp_path)
    driver = FakeDriver(built.library.with_name(emulation.DRIVER))
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", str(driver.path))
    (found,) = loader.load(built.library).run(list(arrays.values()))
    assert close(found, graph, arrays) and driver.faults() == []


# ---- what is missing -----------------------------------------------------------------------------------------------

# What is replaced by what in the text, and what the emulator says then.
WRONG = {
    "wait for a full slot": (r"slot_wait_full<\d>\(slots\);", "", r"unwritten read: .* of stage_\w+"),
    "wait for an empty slot": (r"slot_wait_empty<\d>\(slots\);", "", r"unwritten read: .* of stage_\w+"),
    "full": (r"slot_filled<\d>\(slots\);", "", r"missing arrival: .* do not come"),
    "empty": (r"slot_give_back<\d>\(slots, tid\);", "", r"missing arrival: .* do not come"),
    "wait for the product": (r"group_wait<1, \d+>\(tile\);", "", r"overwritten operand: .* of stage_\w+"),
    "another slot": (
        r"slot_give_back<0>\(slots, tid\);", "slot_give_back<1>(slots, tid);", r"missing arrival: .* do not come",
    ),
    "whole": ("$", "", "^$"),
}  # fmt: skip


@cache
def broken(folder: Path) -> tuple[Image, dict[str, KernelText]]:
    """A kernel for each row of ``WRONG``."""
    nest = kernel("turns of all blocks").nest
    texts = {f"k{n}": rendered(f"k{n}", nest, CUDA) for n in range(len(WRONG))}
    source = ""
    for text, (part, instead, _) in zip(texts.values(), WRONG.values(), strict=True):
        whole = render.kernel_text(text)
        changed = re.sub(part, instead, whole)
        assert changed != whole or part == "$"
        source += changed
    tensors = {name: [array.name for array in text.kernel.nest.arrays] for name, text in texts.items()}
    table = render.emulated_kernels(list(texts.values()), tensors)
    return Image({"kernels": source}, table, "cuda", folder / "broken", (*WARNINGS, "-Wno-unused-function")), texts


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_wait_or_arrival_is_found(name: str, folder: Path) -> None:
    image, texts = broken(folder)
    kernel_name = f"k{list(WRONG).index(name)}"
    nest, (graph, arrays, _) = texts[kernel_name].kernel.nest, program("turns of all blocks")
    values = [aligned(x) for x in arrays.values()]
    output = aligned(np.zeros(graph.outputs[0][1].shape, graph.outputs[0][1].dtype.numpy))
    named = {array.name: value for array, value in zip(nest.arrays, (*values, output), strict=True)}
    maps = [tensor_map(of, named[of.array], {}) for of in texts[kernel_name].signature.maps]
    found = image.run(kernel_name, int(sym.evaluate(nest.task_count, {})), [*values, output], [len(values)], maps)
    assert re.search(WRONG[name][2], found)


# ---- what is not legal ---------------------------------------------------------------------------------------------


def test_what_is_not_legal_says_why() -> None:
    found = kernel("turns of all blocks")
    serial = found.scheduled.serial
    assert serial is not None
    schedule = list(found.scheduled.schedule)
    (stage,), (persist,), (specialise,) = (transforms(found, kind) for kind in (Stage, Persist, SpecialiseWarps))
    before = schedule[: schedule.index(stage)]

    def refused(reason: str, *rest: Any) -> None:
        with pytest.raises(ScheduleError, match=reason):
            apply(serial, (*before, *rest))

    refused("stage: stages are handed over a step ahead, or more", replace(stage, ahead=0))
    refused("persist: groups of 3 do not fill the loop over 'a0_1'", stage, replace(persist, rows=3))
    refused("persist: the nest has no outer loops that are serial", stage, Parallelise(2), persist)
    refused("nothing is copied as boxes and handed over", specialise)
    ahead = replace(stage, handed=False)
    refused("take no part in what all threads do together", ahead, specialise)
    synchronised = SynchroniseThreads(specialise.threads, replace(SM_90.block, shared=1 << 20))
    refused("specialise warps: ", stage, persist, synchronised, specialise)
    refused("bytes of shared arrays", stage, replace(specialise, limits=replace(specialise.limits, shared=1024)))
    rows = compile_graph(product(128, 67, 128)[0], staying(3)).kernels[0]  # not aligned: no boxes
    assert not rows.nest.copiers
    assert not compile_graph(heads(96)[0], staying(3)).kernels[0].nest.copiers  # 64 terms are of two parts


def test_a_language_without_boxes_has_none_who_copy() -> None:
    with pytest.raises(SpecError, match="Metal has no boxes"):
        rendered("k", kernel("turns of all blocks").nest, METAL)


# ---- compilers -----------------------------------------------------------------------------------------------------


@device_support.needs_nvcc
@pytest.mark.parametrize("compute", ["sm_90a", "sm_100"])
def test_nvcc_takes_the_kernels_without_spills(compute: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.cu"
    large = compile_graph(product(4096, 4096, 4096, b_along=False)[0], SM_90).kernels[0].nest
    nests = {"k0": kernel("a batch").nest, "k1": large} if compute == "sm_90a" else {"k0": kernel("a batch").nest}
    path.write_text("".join(render.kernel_text(rendered(name, nest, CUDA)) for name, nest in nests.items()))
    said, _ = device_support.compile_cuda(path, compute, tmp_path)
    assert "warning" not in said and "serialized" not in said
    assert set(re.findall(r"(\d+) bytes spill stores", said)) == {"0"}


@device_support.needs_nvcc
def test_what_is_counted_knows_of_slots_that_are_filled_ahead() -> None:
    (found,) = launches(program("the last turn of some")[2], staying(2), ())
    assert counted(found)["in_flight"] == 2
