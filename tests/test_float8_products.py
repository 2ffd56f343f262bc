"""Products of floats of 8 bits on GPUs: by fragments of 16 bits, which hold all their values, with sums in float32."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import dialects, render
from luminal.codegen.dialect_cuda import CUDA
from luminal.core import interp, ir, movement, types
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.core.types import DType
from tests import device_support
from tests.codegen_gpu_support import Emulated, rendered
from tests.schedule_support import run_program

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]
ROWS, TERMS, COLUMNS = 40, 72, 24
SM_80, SM_90, METAL = (targets.GPUS[name] for name in ("cuda:sm_80", "cuda:sm_90", "metal"))
E4, E5 = types.f8e4m3fn, types.f8e5m2


def in_tiles(target: Target, rows: int, columns: int, side: int) -> Target:
    assert target.grid is not None
    tile = next(t for t in target.grid.costs.tiles if (t.rows, t.columns, t.side) == (rows, columns, side))
    return replace(target, grid=replace(target.grid, costs=replace(target.grid.costs, tiles=(tile,))))


# Of each: the types of both operands, the target, the fragment and its type.
CASES = {
    "e4m3 on sm_80": (E4, E4, SM_80, "m16n8k16", types.f16),
    "e5m2 by e4m3 on sm_80": (E5, E4, SM_80, "m16n8k16", types.f16),
    "e4m3 by groups of sm_90": (E4, E4, in_tiles(SM_90, 64, 64, 8), "m64n64k16", types.f16),
    "e5m2 by groups of sm_90": (E5, E5, in_tiles(SM_90, 64, 64, 8), "m64n64k16", types.f16),
    "bfloat16 by e4m3 on sm_80": (types.bf16, E4, SM_80, "m16n8k16", types.bf16),
    "e5m2 on Metal": (E5, E5, METAL, "simdgroup8x8", types.f16),
}  # fmt: skip


def drawn(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Every kind of number of ``dtype``; those that are not finite in one row alone."""
    random = np.random.default_rng(seed)
    if dtype.bits > 8:
        return random.standard_normal(shape).astype(dtype.numpy)
    every = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    finite = every[np.isfinite(every.astype(np.float32))]
    values = random.choice(finite, shape)
    others = every[~np.isfinite(every.astype(np.float32))]
    values[3, : len(others)] = others
    return values


@cache
def program(name: str) -> tuple[ir.Graph, dict[str, Array], Program]:
    first, second, target, *_ = CASES[name]
    a, b = ir.input_("a", (ROWS, TERMS), first), ir.input_("b", (COLUMNS, TERMS), second)
    wide = [ir.cast(x, types.f32) for x in (a, b)]
    graph = ir.Graph("product", (a, b), (("y", contraction.matmul(wide[0], movement.permute(wide[1], (1, 0)))),))
    arrays = {"a": drawn(first, (ROWS, TERMS), 1), "b": drawn(second, (COLUMNS, TERMS), 2)}
    return graph, arrays, compile_graph(graph, target)


def check(name: str, found: Array) -> None:
    """Products are exact, and so is what is converted: only sums in float32 round."""
    graph, arrays, _ = program(name)
    (exact,) = interp.run(graph, arrays, mode="float64").outputs
    with np.errstate(invalid="ignore"):
        magnitudes = np.abs(arrays["a"].astype(np.float64)) @ np.abs(arrays["b"].astype(np.float64)).T
    assert np.array_equal(np.isnan(found), np.isnan(exact)) and np.isnan(exact).any()
    known = np.isfinite(exact)
    assert known.sum() > known.size // 2 and np.array_equal(found[~known], exact[~known], equal_nan=True)
    error = np.abs(found.astype(np.float64) - exact)[known]
    assert (error <= np.sqrt(TERMS) * types.f32.eps * magnitudes[known]).all()


@pytest.mark.parametrize("name", CASES)
def test_the_nest_multiplies_exactly(name: str) -> None:
    _, arrays, made = program(name)
    (kernel,) = made.kernels
    (contract,) = {s.fragment for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Contract)}
    (stage,) = (s for s in kernel.scheduled.schedule if isinstance(s, Stage))
    _, _, _, fragment, dtype = CASES[name]
    assert contract is not None and (contract.name, contract.dtype, stage.operands) == (fragment, dtype, dtype)
    check(name, run_program(made, arrays)["y"])


@cache
def emulated(dialect: str, folder: Path) -> Emulated:
    nests = {
        f"k{n}": program(name)[2].kernels[0].nest for n, name in enumerate(CASES) if CASES[name][2].dialect == dialect
    }
    return Emulated(nests, dialects.ALL[dialect], folder / dialect)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("float8")


@pytest.mark.parametrize("name", CASES)
def test_emulated_kernels_multiply_exactly(name: str, folder: Path) -> None:
    _, arrays, made = program(name)
    check(name, run_program(made, arrays, run_kernel=emulated(CASES[name][2].dialect, folder).run_nest)["y"])


def test_a_type_that_does_not_hold_the_values_is_not_taken() -> None:
    """Powers of two from 2**-127 on are none of float16; numbers of 8 bits that are integers have other products."""
    assert SM_80.grid is not None
    assert SM_80.grid.multiplied(types.f8e8m0, types.f8e8m0) == types.bf16
    assert SM_80.grid.multiplied(E5, types.f8e8m0) == types.bf16
    for a, b in ((types.f16, types.f16), (E4, types.f32), (types.i8, types.i8), (types.f16, types.f8e8m0)):
        assert SM_80.grid.multiplied(a, b) is None


@device_support.needs_nvcc
def test_a_gpu_that_converts_them_does_so_by_one_instruction(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(render.kernel_text(rendered("k", program("e4m3 by groups of sm_90")[2].kernels[0].nest, CUDA)))
    for compute, found in (("sm_80", False), ("sm_90a", True)):
        command = [str(device_support.NVCC), *device_support.FLAGS, f"-arch={compute}", "-ptx", "-o", "-", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert ("cvt.rn.f16x2.e4m3x2" in text) == found
