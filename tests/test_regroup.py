"""Results of products that lanes regroup, so that each stores several neighbours at once: what moves where, what is
chosen, what is refused, and what emulators and compilers say of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen.dialect_cuda import CUDA
from luminal.core import interp, ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import activation, contraction
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.grid import MMA, SIMDGROUP, WGMMA, in_pairs, in_rows
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.cost import blocks
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.grid.thread_tiles import Square, Warps
from luminal.core.schedule.nest import interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.symbolic import Var
from luminal.core.target import Target
from luminal.machine_code.kernels import launches
from tests import device_support
from tests.codegen_gpu_support import Emulated, rendered
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, transforms

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]
SM_80, SM_90 = (targets.GPUS[f"cuda:{name}"] for name in ("sm_80", "sm_90"))
LANES, ELEMENTS = np.divmod(np.arange(256), 8)


def places(of: Any) -> tuple[Array, Array]:
    found = of(sym.var("lane", 0, 31), sym.var("e", 0, 7))
    row, column = (sym.evaluate(x, {"lane": LANES, "e": ELEMENTS}) for x in found)
    return row, column


# ---- the statement -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [in_pairs, in_rows])
def test_every_element_of_the_matrix_is_held_once(of: Any) -> None:
    assert len(set(zip(*map(np.ndarray.tolist, places(of)), strict=True))) == 256


def regrouping(apart: bool) -> ln.LoopNest:
    """Two warps regroup 16 elements a thread, in two goes, each warp through a place of its own or not."""
    thread, place = sym.var("t0", 0, 63), Var("e0", 0, 15)
    at = thread * 16 + sym.expr(place)

    def each(array: str, value: ln.Scalar) -> ln.Loop:
        inner = ln.Loop(place, 16, "unroll", (ln.Store(array, at, value),))
        return ln.Loop(Var("t0", 0, 63), 64, "thread", (inner,), 64)

    through = sym.floordiv(thread, 32) * 256 if apart else 0
    both = tuple(ln.Regroup("held", thread * 16 + first, types.f32, "through", through) for first in (0, 8))
    body = (
        ln.Alloc("held", types.f32, 1024, "registers"),
        ln.Alloc("through", types.f32, 512, "shared"),
        each("held", ln.load("x", at, types.f32)),
        ln.Loop(Var("t0", 0, 63), 64, "thread", both, 64),
        each("y", ln.load("held", at, types.f32)),
    )
    arrays = (ln.Array("x", types.f32, False), ln.Array("y", types.f32, True))
    return ln.LoopNest(arrays, (), body, threads=64)


def test_each_lane_has_neighbours_of_a_row_afterwards(tmp_path: Path) -> None:
    matrices = np.arange(1024, dtype=np.float32).reshape(4, 16, 16)  # of two warps, two each

    def dealt(of: Any) -> Array:
        row, column = places(of)
        lanes = matrices[:, row, column].reshape(2, 2, 32, 8)  # warp, go, lane, element
        return np.ascontiguousarray(lanes.transpose(0, 2, 1, 3)).reshape(-1)

    emulated = Emulated({"k": regrouping(True)}, CUDA, tmp_path)
    for run in (interpreter.run, emulated.run_nest):
        found = {"x": dealt(in_pairs), "y": np.zeros(1024, np.float32)}
        run(regrouping(True), found, {}, None)
        np.testing.assert_array_equal(found["y"], dealt(in_rows))


def test_warps_that_share_a_place_are_found(tmp_path: Path) -> None:
    emulated = Emulated({"k": regrouping(False)}, CUDA, tmp_path)
    with pytest.raises(AssertionError, match=r"race: .* of through"):
        emulated.run_nest(regrouping(False), {name: np.zeros(1024, np.float32) for name in "xy"}, {}, None)


def test_what_is_in_no_registers_is_refused() -> None:
    nest = regrouping(True)
    local = tuple(replace(s, space="shared") if isinstance(s, ln.Alloc) and s.name == "held" else s for s in nest.body)
    with pytest.raises(SpecError, match="regroup held: it is in no registers of threads"):
        rendered("k", replace(nest, body=local), CUDA)


# ---- what is chosen ------------------------------------------------------------------------------------------------


def tiled(target: Target, rows: int, columns: int) -> Target:
    """``target`` with blocks of one size."""
    assert target.grid is not None
    tile = next(t for t in target.grid.costs.tiles if (t.rows, t.columns) == (rows, columns))
    return replace(target, grid=replace(target.grid, costs=replace(target.grid.costs, tiles=(tile,))))


def layer(dtype: types.DType, rows: sym.Int, columns: int, turned: bool = False) -> tuple[ir.Graph, dict[str, Array]]:
    """A product with a bias for each column, a residual for each element, and an activation."""
    source = Source()
    x, w = source.input(rows, 72, dtype=dtype), source.input(72, columns, dtype=dtype)
    bias, residual = source.input(columns, dtype=dtype), source.input(rows, columns, dtype=dtype)
    y = activation.relu(contraction.matmul(x, w) + movement.along(bias, 1, (rows, columns))) + residual
    dims = tuple(sym.variables(rows))
    return ir.Graph(
        "layer", tuple(source.nodes), (("y", movement.permute(y, (1, 0)) if turned else y),), dims
    ), source.arrays


# Of each: the target, the tile, the type, rows and columns, and how many neighbours are stored at once (1: no lane
# regroups).
CASES = {
    "warps": (tiled(SM_80, 64, 64), types.bf16, 70, 136, 8),
    "float32": (tiled(SM_80, 32, 64), types.f32, 40, 72, 1),
    "fours": (tiled(SM_80, 32, 32), types.f16, 40, 76, 4),
    "odd": (tiled(SM_80, 32, 32), types.bf16, 40, 75, 1),
    "groups": (tiled(SM_90, 128, 128), types.bf16, 140, 136, 8),
    "one group": (tiled(SM_90, 64, 64), types.f16, 70, 68, 4),
}


@cache
def program(name: str) -> tuple[ir.Graph, dict[str, Array], Program]:
    target, dtype, rows, columns, _ = CASES[name]
    graph, arrays = layer(dtype, rows, columns)
    return graph, arrays, compile_graph(graph, target)


def kernel(name: str) -> Kernel:
    (found,) = program(name)[2].kernels
    return found


def widths(nest: ln.LoopNest) -> set[int]:
    """How many elements each store to memory has at once."""
    written = {array.name for array in nest.arrays if array.written}
    found: set[int] = set()

    def search(body: tuple[ln.Statement, ...], lanes: int) -> None:
        for statement in body:
            if isinstance(statement, ln.Store) and statement.array in written:
                found.add(lanes)
            wide = statement.lanes if isinstance(statement, ln.Loop) and statement.kind == "vector" else lanes
            search(tuple(walk.inside(statement)), wide)

    search(nest.body, 1)
    return found


@pytest.mark.parametrize("name", CASES)
def test_as_many_are_stored_at_once_as_are_aligned(name: str) -> None:
    *_, wanted = CASES[name]
    (stage,) = transforms(kernel(name), Stage)
    assert widths(kernel(name).nest) == {wanted} and stage.wide == (wanted > 1)


def test_results_that_lie_down_are_stored_one_by_one() -> None:
    graph, _ = layer(types.bf16, 72, 136, turned=True)
    found = [k for k in compile_graph(graph, tiled(SM_80, 64, 64)).kernels if transforms(k, Stage)]
    for each in found:
        (stage,) = transforms(each, Stage)
        assert stage.wide == (widths(each.nest) == {8})


def test_shared_memory_for_it_counts() -> None:
    """Where it leaves room for fewer blocks, elements are stored by themselves, but of products of few terms."""
    grid = SM_80.grid
    assert grid is not None
    tile = next(t for t in grid.costs.tiles if (t.rows, t.columns) == (64, 64))
    wide, narrow = (blocks.product_block(grid, tile, 128, 4, 64, 1, by) for by in (True, False))
    assert wide.shared - narrow.shared == 128 * 8 * 4
    few, many = (
        [blocks.storing_cycles(grid, tile, terms, by, 1, 512, 512) for by in (True, False)] for terms in (16, 4096)
    )
    assert few[0] < few[1] and many[0] < many[1] and few[1] - few[0] == 256 * (many[1] - many[0])


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (Square(4), "only the lanes of warps regroup"),
        (Warps(32, 32, SIMDGROUP[2]), "lanes do not hold pairs of 32 x 32 of simdgroup8x8"),
        (Warps(32, 8, MMA[1]), "lanes do not hold pairs of 32 x 8 of m16n8k16"),
    ],
)
def test_what_is_not_legal_says_why(parts: Square | Warps, reason: str) -> None:
    nest = kernel("warps").scheduled.serial
    (stage,) = transforms(kernel("warps"), Stage)
    assert nest is not None
    with pytest.raises(ScheduleError, match=reason):
        replace(stage, parts=parts)(nest)
    odd = kernel("odd").scheduled.serial
    assert odd is not None
    with pytest.raises(ScheduleError, match="results do not lie side by side along columns"):
        stage(odd)


@pytest.mark.parametrize("fragment", [*MMA, *WGMMA], ids=str)
def test_lanes_of_nvidias_fragments_hold_pairs(fragment: Any) -> None:
    """All elements of a tile are in exactly one lane's neighbours."""
    rows, columns = 2 * fragment.rows, 2 * fragment.columns
    parts = Warps(fragment.rows, columns, fragment)
    thread = sym.var("t0", 0, 2 * fragment.warp - 1)
    near = parts.regrouped(thread, rows, columns)
    sizes = (2 * fragment.warp, *near.extents)
    numbers = np.unravel_index(np.arange(np.prod(sizes)), sizes)
    by = dict(zip(("t0", *(f"e{k}" for k in range(len(near.extents)))), numbers, strict=True))
    row, column, number = (sym.evaluate(x, by) + 0 * numbers[0] for x in (near.row, near.column, near.number))
    found = {(r, c + k) for r, c in zip(row.tolist(), column.tolist(), strict=True) for k in range(8)}
    assert found == {(r, c) for r in range(rows) for c in range(columns)}
    assert sorted(set(number.tolist())) == list(range(0, rows * columns // (2 * fragment.warp), 8))


# ---- results -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("regroup")


@cache
def emulated(folder: Path) -> Emulated:
    return Emulated({f"k{number}": kernel(name).nest for number, name in enumerate(CASES)}, CUDA, folder)


@pytest.mark.parametrize(("name", "by"), [*((n, "emulator") for n in CASES), ("fours", "nest"), ("one group", "nest")])
def test_results_are_those_of_float64(name: str, by: str, folder: Path) -> None:
    graph, arrays, made = program(name)
    run = {"run_kernel": emulated(folder).run_nest} if by == "emulator" else {}
    found = run_program(made, arrays, **run)["y"].astype(np.float64)
    (exact,) = interp.run(graph, arrays, mode="float64").outputs
    dtype = CASES[name][1]
    # The product, the sum with the bias and that with the residual are rounded.
    assert np.abs(found - exact).max() <= (3 * dtype.eps + np.sqrt(72) * types.f32.eps) * np.abs(exact).max()


# ---- compilers -----------------------------------------------------------------------------------------------------


@device_support.needs_nvcc
@pytest.mark.parametrize("name", ["warps", "groups"])
def test_machine_code_stores_16_bytes_and_no_bank_serves_two(name: str) -> None:
    (found,) = launches(program(name)[2], CASES[name][0], ())
    accesses = found.middle().accesses
    assert {a.width for (_, space), a in accesses.items() if space == "global" and a.write} == {16}
    code = found.image.code.instructions
    through = [a for (place, space), a in accesses.items() if space == "shared" and code[place].name in ("STS", "LDS")]
    assert through and all(a.waves == a.ideal for a in through)
