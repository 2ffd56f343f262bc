"""Products of groups of warps (wgmma): how operands lie, what is chosen, results in emulation, and every missing fence
or wait found."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import build, emulation, render
from luminal.codegen.dialect_cuda import CUDA
from luminal.codegen.emitter import KernelText
from luminal.core import interp, ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.errors import ScheduleError
from luminal.core.grid import PANEL, WGMMA, BlockTile, Fragment, in_panels
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.grid.thread_tiles import Warps
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.target import Target
from luminal.runtime import loader
from tests import device_support
from tests.codegen_gpu_support import Emulated, rendered
from tests.codegen_support import WARNINGS
from tests.cuda_support import FOR_GROUPS, FakeDriver
from tests.gpu_emulation import Image, aligned, tensor_map
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, transforms
from tests.vector_support import build as native
from tests.vector_support import pointer

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]
SM_80, SM_90 = (targets.GPUS[f"cuda:{name}"] for name in ("sm_80", "sm_90"))
TILES = {(t.rows, t.columns): t for t in SM_90.grid.costs.tiles if t.rows >= 64 <= t.columns}  # type: ignore[union-attr]


def in_tiles(tile: BlockTile, target: Target = SM_90) -> Target:
    """``target`` with blocks of one size, which copy what they multiply themselves."""
    assert target.grid is not None
    costs = replace(target.grid.costs, tiles=(tile,), handed_time=2.0)
    return replace(target, grid=replace(target.grid, costs=costs))


def product(dtype: types.DType, sizes: tuple[Any, ...], a_down: bool, b_down: bool) -> tuple[ir.Graph, Any]:
    """A product of (rows, terms) and (terms, columns); the terms of A, or of B, lie down or along in memory."""
    rows, terms, columns = sizes
    source = Source()
    a = source.input(*((terms, rows) if a_down else (rows, terms)), dtype=dtype)
    b = source.input(*((terms, columns) if b_down else (columns, terms)), dtype=dtype)
    left = movement.permute(a, (1, 0)) if a_down else a
    right = b if b_down else movement.permute(b, (1, 0))
    return ir.Graph("product", tuple(source.nodes), (("y", contraction.matmul(left, right)),)), source.arrays


# Of each: the type, rows, terms and columns, whether terms lie down, the tile, and the fragment that is to be taken.
CASES = {
    "both along": (types.bf16, (70, 456, 136), False, False, TILES[128, 128], "m64n128k16"),
    "both down": (types.bf16, (136, 150, 136), True, True, TILES[128, 128], "m64n128k16"),
    "copied": (types.bf16, (70, 460, 136), False, False, TILES[128, 128], "m64n128k16"),
    "wide": (types.bf16, (72, 136, 264), False, True, TILES[128, 256], "m64n256k16"),
    "as a model has it": (types.f16, (100, 72, 136), False, True, TILES[64, 128], "m64n128k16"),
    "turned around": (types.f16, (72, 72, 72), True, False, TILES[128, 64], "m64n64k16"),
    "small": (types.bf16, (40, 136, 48), False, True, TILES[64, 64], "m64n64k16"),
    "not aligned": (types.bf16, (70, 67, 33), False, True, TILES[64, 64], "m64n64k16"),
}


@cache
def program(name: str) -> tuple[ir.Graph, dict[str, Array], Program]:
    dtype, sizes, a_down, b_down, tile, _ = CASES[name]
    graph, arrays = product(dtype, sizes, a_down, b_down)
    return graph, arrays, compile_graph(graph, in_tiles(tile))


def kernel(name: str) -> Kernel:
    (found,) = program(name)[2].kernels
    return found


def contracts(found: Kernel) -> list[ln.Contract]:
    return [s for s in walk.statements(found.nest.body) if isinstance(s, ln.Contract)]


# ---- where elements lie, and who holds them ------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "row"), [(64, 64), (128, 64), (64, 128), (16, 192)])
def test_panels_hold_every_element_once_in_whole_parts_that_share_no_bank(rows: int, row: int) -> None:
    itemsize = 2
    places = np.array([in_panels(offset, itemsize, rows, row) for offset in range(rows * row)]).reshape(rows, row)
    assert sorted(places.reshape(-1)) == list(range(rows * row))
    parts = places.reshape(rows, row // 8, 8)
    assert (parts == parts[..., :1] + np.arange(8)).all() and (parts[..., 0] % 8 == 0).all()
    banks = parts[..., 0] * itemsize % PANEL  # eight lines at a time fill all banks, along and down
    assert all(len(set(lines)) == 8 for lines in banks.reshape(rows // 8, 8, -1).transpose(0, 2, 1).reshape(-1, 8))
    assert all(len(set(line)) == 8 for line in banks.reshape(-1, 8))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups")


@cache
def headers(folder: Path) -> Any:
    return native("device_panels.cpp", targets.detect(), folder, "-O1")


def test_the_headers_place_elements_as_the_description_says(folder: Path) -> None:
    for rows, row in ((64, 64), (16, 192)):
        found = np.zeros(rows * row, np.int32)
        getattr(headers(folder), f"places_{rows}_{row}")(pointer(found))
        assert found.tolist() == [in_panels(offset, 2, rows, row) for offset in range(rows * row)]


@pytest.mark.parametrize("fragment", WGMMA, ids=str)
def test_the_header_says_which_lane_holds_what(fragment: Fragment, folder: Path) -> None:
    count = fragment.warp * fragment.elements
    rows, columns = np.zeros(count, np.int32), np.zeros(count, np.int32)
    getattr(headers(folder), f"held_{fragment.columns}")(pointer(rows), pointer(columns))
    by = [
        {fragment.lane.name: lane, fragment.element.name: element}
        for lane in range(fragment.warp)
        for element in range(fragment.elements)
    ]
    assert rows.tolist() == [sym.evaluate(fragment.row, v) for v in by]
    assert columns.tolist() == [sym.evaluate(fragment.column, v) for v in by]
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == fragment.rows * fragment.columns


# ---- what is chosen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_products_of_half_types_are_those_of_groups(name: str) -> None:
    dtype, _, _, _, tile, wanted = CASES[name]
    (stage,) = transforms(kernel(name), Stage)
    assert isinstance(stage.parts, Warps) and stage.depth * dtype.itemsize == PANEL
    for contract in contracts(kernel(name)):
        assert contract.fragment is not None and contract.fragment.name == wanted
    stages = [s for s in walk.statements(kernel(name).nest.body) if isinstance(s, ln.Alloc) and "stage" in s.name]
    assert stages and all(s.row for s in stages)
    assert kernel(name).nest.threads == tile.rows // 64 * 128


@pytest.mark.parametrize(("size", "tile"), [(4096, (128, 256)), (1408, (128, 128)), (40, (32, 32))])
def test_the_widest_tile_is_for_products_that_fill_all_processors(size: int, tile: tuple[int, int]) -> None:
    (found,) = compile_graph(product(types.bf16, (size, 64, size), False, True)[0], SM_90).kernels
    (stage,) = transforms(found, Stage)
    assert (stage.rows, stage.columns) == tile


def test_other_products_and_other_targets_have_none() -> None:
    for target, dtype in ((SM_80, types.bf16), (targets.GPUS["cuda:sm_100"], types.bf16), (SM_90, types.f32)):
        (found,) = compile_graph(product(dtype, (150, 136, 136), False, False)[0], target).kernels
        assert not any(c.fragment is not None and c.fragment.panels for c in contracts(found))


def test_a_stage_that_fills_no_panels_is_refused() -> None:
    nest = kernel("both along").scheduled.serial
    (stage,) = transforms(kernel("both along"), Stage)
    assert nest is not None
    with pytest.raises(ScheduleError, match="rows of 32 bfloat16 do not fill panels"):
        replace(stage, depth=32)(nest)


# ---- results -------------------------------------------------------------------------------------------------------


PORTABLE = ("turned around", "small")  # that are compiled for other GPUs, too


@cache
def emulated(folder: Path, portable: bool) -> Emulated:
    nests = {f"k{number}": kernel(name).nest for number, name in enumerate(PORTABLE if portable else CASES)}
    return Emulated(nests, CUDA, folder / f"{portable}", ("-DLM_WITHOUT_WGMMA=1",) * portable)


@pytest.mark.parametrize(("name", "portable"), [*((n, False) for n in CASES), *((n, True) for n in PORTABLE)])
def test_emulated_products_are_those_of_float64(name: str, portable: bool, folder: Path) -> None:
    graph, arrays, made = program(name)
    found = run_program(made, arrays, run_kernel=emulated(folder, portable).run_nest)["y"].astype(np.float64)
    (exact,) = interp.run(graph, arrays, mode="float64").outputs
    dtype, (_, terms, _) = CASES[name][:2]
    assert np.abs(found - exact).max() <= (dtype.eps + np.sqrt(terms) * types.f32.eps) * np.abs(exact).max()


AHEAD = (0, 1, 3)  # 2 is the default


@cache
def copied_ahead(folder: Path) -> tuple[dict[tuple[str, int], tuple[ir.Graph, dict[str, Array], Program]], Emulated]:
    """Products whose number of terms is known, or not, with copies that begin so many steps before."""
    terms = sym.var("seq", 1, 1000)
    found = {}
    for ahead in AHEAD:
        target = in_tiles(TILES[64, 64])
        grid = target.grid
        assert grid is not None
        target = replace(target, grid=replace(grid, costs=replace(grid.costs, grouped_ahead=(ahead,))))
        for name, count in (("known", 328), ("unknown", terms)):
            graph, arrays = product(types.bf16, (40, count, 48), False, True)
            graph = replace(graph, dims=tuple(sym.variables(terms)) if name == "unknown" else ())
            found[name, ahead] = graph, arrays, compile_graph(graph, target)
    nests = {f"{name}{ahead}": made.kernels[0].nest for (name, ahead), (_, _, made) in found.items()}
    return found, Emulated(nests, CUDA, folder / "ahead")


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("name", ["known", "unknown"])
def test_copies_may_begin_any_number_of_steps_before(name: str, ahead: int, folder: Path) -> None:
    found, emulator = copied_ahead(folder)
    graph, arrays, made = found[name, ahead]
    (stage,) = transforms(made.kernels[0], Stage)
    assert stage.ahead == ahead
    if name == "unknown":
        random = np.random.default_rng(3)
        shapes = ((40, 300), (300, 48))
        drawn = (random.standard_normal(shape).astype(types.bf16.numpy) for shape in shapes)
        arrays = dict(zip(arrays, drawn, strict=True))
    result = run_program(made, arrays, run_kernel=emulator.run_nest)["y"].astype(np.float64)
    (exact,) = interp.run(graph, arrays, mode="float64").outputs
    assert np.abs(result - exact).max() <= (types.bf16.eps + 20 * types.f32.eps) * np.abs(exact).max()


def test_no_barrier_is_put_between_the_steps_but_theirs() -> None:
    """One for each step, and for each stage that is filled before the first."""
    barriers = [s for s in walk.statements(kernel("both along").nest.body) if isinstance(s, ln.Barrier)]
    wanted = [(1, 0)] * 2 + [(0, 1)] * 3 + [(0, 1), (0, 0)]  # two early, a loop of three twice, two last
    assert [(b.left, b.products) for b in barriers] == wanted
    assert not any(b.all_memory for b in barriers)


def test_the_nest_is_the_product_of_float64() -> None:
    graph, arrays, made = program("small")
    assert any(isinstance(s, ln.CopyBox) for s in walk.statements(kernel("small").nest.body))
    found = run_program(made, arrays)["y"].astype(np.float64)
    (exact,) = interp.run(graph, arrays, mode="float64").outputs
    assert np.abs(found - exact).max() <= (types.bf16.eps + np.sqrt(136) * types.f32.eps) * np.abs(exact).max()


# ---- what is missing -----------------------------------------------------------------------------------------------

# Of which case what is replaced by what in the text, and what the emulator says then.
WRONG = {
    "share": (
        "copied",
        r"share_with_groups\(\);",
        "",
        r"unshared write: .* of stage_\w+, which a product reads, and has",
    ),
    "arrival": ("copied", r"copy_wait<\d>\(\);", "", r"unwritten read: .* of stage_\w+"),
    "barrier": ("copied", r"barrier\(\);", "", r"race: .* of stage_\w+"),
    "box": ("both along", r"boxes_wait<\d>\(boxes\);", "", r"unwritten read: .* of stage_\w+"),
    "phase": ("both along", r"(boxes_wait)<\d>", r"\1<2>", r"unwritten read: .* of stage_\w+"),
    "expected": (
        "both along",
        r"boxes_commit\(boxes, tid\)",
        "boxes_commit(boxes, 1)",
        "missing arrival: .* do not come",
    ),
    "fence": ("both along", r"group_begin\(\);", "", r"unfenced product: .* its sums were used, and no fence follows"),
    "commit": (
        "both along",
        r"group_commit\(\);",
        "",
        r"overwritten operand: .* of stage_\w+, which a product under way",
    ),
    "wait": ("both along", r"group_wait<.*;", "", r"unfinished product: .* its sums are used before it was waited for"),
    "whole": ("both along", "$", "", "^$"),
    "whole of copies": ("copied", "$", "", "^$"),
}


@cache
def broken(folder: Path) -> tuple[Image, dict[str, KernelText]]:
    """A kernel for each row of ``WRONG``."""
    texts = {f"k{n}": rendered(f"k{n}", kernel(row[0]).nest, CUDA) for n, row in enumerate(WRONG.values())}
    source = ""
    for text, (_, part, instead, _) in zip(texts.values(), WRONG.values(), strict=True):
        whole = render.kernel_text(text)
        changed = re.sub(part, instead, whole)
        assert changed != whole or part == "$"
        source += changed
    tensors = {name: [array.name for array in text.kernel.nest.arrays] for name, text in texts.items()}
    table = render.emulated_kernels(list(texts.values()), tensors)
    flags = (*WARNINGS, "-Wno-unused-function")
    return Image({"kernels": source}, table, "cuda", folder / "broken", flags), texts


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_fence_wait_or_barrier_is_found(name: str, folder: Path) -> None:
    image, texts = broken(folder)
    kernel_name = f"k{list(WRONG).index(name)}"
    case, *_, fault = WRONG[name]
    nest, (graph, arrays, _) = texts[kernel_name].kernel.nest, program(case)
    values = [aligned(x) for x in arrays.values()]
    output = aligned(np.zeros(graph.outputs[0][1].shape, graph.outputs[0][1].dtype.numpy))
    written = [number for number, array in enumerate(nest.arrays) if array.written]
    assert written == [len(values)]
    named = {array.name: value for array, value in zip(nest.arrays, (*values, output), strict=True)}
    maps = [tensor_map(of, named[of.array], {}) for of in texts[kernel_name].signature.maps]
    assert bool(maps) == (case == "both along")
    found = image.run(kernel_name, int(sym.evaluate(nest.task_count, {})), [*values, output], written, maps)
    assert re.search(fault, found)


# ---- compilers and hosts -------------------------------------------------------------------------------------------


@device_support.needs_nvcc
@pytest.mark.parametrize("compute", ["sm_90a", "sm_100"])
def test_nvcc_takes_the_kernels_without_spills(compute: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.cu"
    names = CASES if compute == "sm_90a" else ("wide", "small")
    texts = (render.kernel_text(rendered(f"k{n}", kernel(name).nest, CUDA)) for n, name in enumerate(names))
    path.write_text("".join(texts))
    said, _ = device_support.compile_cuda(path, compute, tmp_path)
    assert "warning" not in said and "serialized" not in said
    assert set(re.findall(r"(\d+) bytes spill stores", said)) == {"0"}
    command = [str(device_support.NVCC), *device_support.FLAGS, f"-arch={compute}", "-ptx", "-o", "-", str(path)]
    ptx = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ("wgmma.mma_async" in ptx) == (compute == "sm_90a") and ("mma.sync" in ptx) != (compute == "sm_90a")


def test_a_library_asks_for_the_memory_of_its_blocks_or_says_that_there_is_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, arrays, made = program("as a model has it")
    bundle = emulation.emulated(render.render(made, in_tiles(TILES[64, 128])))
    built = build.build(bundle, tmp_path)
    assert any("LM_REQUESTED(float16, stage_a, 4096, 1024);" in text for text in bundle.files.values())
    driver = FakeDriver(built.library.with_name(emulation.DRIVER))
    monkeypatch.setenv("LUMINAL_CUDA_DRIVER", str(driver.path))
    library = loader.load(built.library)
    (found,) = library.run(list(arrays.values()))
    (exact,) = interp.run(graph, arrays, mode="float64").outputs
    assert np.abs(found.astype(np.float64) - exact).max() <= 2 * types.f16.eps * np.abs(exact).max()
    assert driver.faults() == []
    for function in FOR_GROUPS:
        with driver.failing(function), pytest.raises(Exception, match=f"cannot .*: {function} says an error"):
            loader.load(built.library).run(list(arrays.values()))
    with driver.being(requested=48 << 10), pytest.raises(Exception, match="shared memory") as caught:
        loader.load(built.library).run(list(arrays.values()))
    assert "needs 54272 bytes of shared memory for each block, and GPU 0 has 49152: " in str(caught.value)
