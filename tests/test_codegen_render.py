"""Rendering: the text itself, its determinism, and the tables that it is made from."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen import cpp, dialect_cpp, render
from luminal.codegen.cpp import Names
from luminal.codegen.emitter import emit
from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.errors import SpecError, UnsupportedError
from luminal.core.ops import Kind
from luminal.core.schedule.nest import ir
from luminal.core.schedule.program.ir import Kernel
from luminal.core.schedule.transform.loops import Scheduled
from tests.codegen_cases import CASES
from tests.codegen_programs import scaled_rows
from tests.codegen_support import array, axis, number, output, written
from tests.conftest import Golden

ROOT = Path(__file__).resolve().parents[1]


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_the_dialect_has_a_row_for_every_primitive_of_a_nest() -> None:
    assert set(dialect_cpp.TABLE) == {row for row in ops.TABLE.values() if row.kind is Kind.ELEMENTWISE}
    assert set(dialect_cpp.REDUCTIONS) == {row for row in ops.TABLE.values() if row.kind is Kind.REDUCE}


@pytest.mark.parametrize("value", [0.1, -0.0, 1.0, 1e-45, 3.4028235e38, 1 / 3, 1e7, 123456789.0])
@pytest.mark.parametrize("dtype", [types.f32, types.f64, types.f16, types.bf16], ids=str)
def test_float_literals_read_back_exactly(value: float, dtype: types.DType) -> None:
    with np.errstate(over="ignore"):
        element = np.array(value, dtype.numpy)
    if not np.isfinite(element.astype(np.float64)):
        pytest.skip("not representable")
    text = cpp.literal(element.tobytes(), dtype)
    read = np.float64(text) if dtype == types.f64 else np.float32(text.removesuffix("f"))
    assert text.endswith("f") == (dtype != types.f64)
    assert read.tobytes() == element.astype(read.dtype).tobytes()


def test_literals_of_special_values() -> None:
    assert cpp.literal(np.float32("-inf").tobytes(), types.f32) == "-__builtin_inff()"
    assert cpp.literal(np.uint32(0x7FC00123).tobytes(), types.f32) == "bitcast<float>(uint32_t{0x7fc00123u})"
    assert cpp.literal(np.int64(-(2**63)).tobytes(), types.i64) == "INT64_MIN"
    assert cpp.literal(np.int32(-5).tobytes(), types.i32) == "-5"
    assert cpp.literal(np.uint8(255).tobytes(), types.u8) == "uint8_t{255u}"
    assert cpp.literal(np.bool_(True).tobytes(), types.bool_) == "true"


def test_types_without_code_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="complex64"):
        cpp.ctype(types.c64)


def test_literals_are_of_the_type_that_computes() -> None:
    assert cpp.literal(np.array(-8, types.i4.numpy).tobytes(), types.i4) == "int8_t{-8}"
    assert cpp.literal(np.array(3, types.u2.numpy).tobytes(), types.u2) == "uint8_t{3u}"
    assert cpp.literal(np.array(0.5, types.f4e2m1.numpy).tobytes(), types.f4e2m1) == "0.5f"


def test_names_are_identifiers_and_distinct() -> None:
    names = Names()
    assert [names.like(n) for n in ("x", "x", "load", "1st", "a.b")] == ["x", "x_2", "load_2", "n1st", "a_b"]
    assert names.fresh("x_") == "x_0"


def test_long_lines_are_broken_after_commas() -> None:
    line = "    f(" + ", ".join(f"argument{k}" for k in range(20)) + ");"
    parts = cpp.wrap(line).split("\n")
    assert all(len(part) <= 120 for part in parts)
    assert " ".join(part.strip() for part in parts) == line.strip()


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_nests_that_break_the_rules_are_refused() -> None:
    i, at = axis("i", 8)
    j, _ = axis("j", 8)
    store = ir.Store("out", at, number(1.0))

    def refusal(*body: ir.Statement) -> str:
        with pytest.raises(SpecError) as caught:
            emit(Kernel("k0", Scheduled(ir.LoopNest((output("out"),), (), body))), {})
        return str(caught.value)

    assert "variable i is used out of its scope" in refusal(store)
    assert "temporary t" in refusal(ir.Store("out", 0, ir.temporary("t", types.f32)))
    assert "array y" in refusal(ir.Store("out", 0, ir.load("y", 0, types.f32)))
    nested = ir.Loop(j, 8, "vector", (ir.Loop(i, 8, "vector", (store,), 8),), 8)
    assert "inside vector loop j" in refusal(nested)
    assert "parallel loop i inside" in refusal(ir.Alloc("a", types.f32, 1), ir.Loop(i, 8, "parallel", (store,)))


def test_a_tile_has_the_rows_of_its_own_scope() -> None:
    """The same axis was the number two in a scope that is closed; here it numbers the rows of three tiles."""
    i, row = axis("i", 3)
    k, step = axis("k", 4)
    contract = ir.Contract(
        "tile", types.f32, "a", types.f32, step, 4, "b", types.f32, step * 8, (ir.Loop(k, 4, "serial", ()),),
        row + 1, 3, 8, 8,
    )  # fmt: skip
    body = (
        ir.Alloc("tile", types.f32, 24),
        ir.If((sym.expr(sym.Var("n", 0, 9)),), (ir.Assign(i, 2), ir.Store("out", row, number(1.0)))),
        ir.Loop(i, 3, "serial", (contract, ir.Store("out", row, ir.load("tile", 8 * row, types.f32)))),
    )
    nest = ir.LoopNest((output("out"), array("a"), array("b")), (sym.Var("n", 0, 9),), body)
    text = render.kernel_text(emit(Kernel("k0", Scheduled(nest)), {"n": 0}))
    assert [count for count in range(5) if f"case {count}: " in text] == [1, 2, 3]
    assert "default: __builtin_trap();" in text


def test_runs_of_lanes_are_stored_as_such() -> None:
    texts = {
        name: render.kernel_text(emit(Kernel("k0", Scheduled(case.nest)), {}))
        for name, case in CASES.items()
        if "runs" in name
    }
    assert len(texts) == 4
    for name, text in texts.items():
        assert f"store_groups<{name[-1]}>(" in text


# ---- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["row_exponentials", "contraction", "contraction_in_blocks", "padding_by_lanes", "table_elements"]
)
def test_golden_kernel(name: str, golden: Golden) -> None:
    nest = CASES[name].nest
    kernel = Kernel(
        name, Scheduled(nest, written("parallel row", "vector column by 16")), ("Op 'layer/op' (model.py:7)",)
    )
    dims = {dim.name: place for place, dim in enumerate(nest.dims)}
    golden.check(f"{name}.cpp", render.kernel_text(emit(kernel, dims)))


def test_golden_library(golden: Golden) -> None:
    text = render.render(scaled_rows(), targets.AVX2).files["library.cpp"]
    golden.check(
        "library.cpp", text[: text.index("LM_DESCRIPTION constexpr char metadata")]
    )  # what follows holds a hash of it all


def test_values_leave_loops_that_they_do_not_depend_on() -> None:
    lines = render.kernel_text(emit(Kernel("k0", Scheduled(CASES["row_moments"].nest)), {})).splitlines()
    depth = {
        line.strip().split(" = ")[0].split()[-1]: len(line) - len(line.lstrip()) for line in lines if " = " in line
    }
    broadcasts = [line for line in lines if "= broadcast<16>(s" in line]
    assert broadcasts and all(len(line) - len(line.lstrip()) == 8 for line in broadcasts), depth


def test_sources_are_the_same_in_every_process_and_hold_no_path() -> None:
    files = render.render(scaled_rows(), targets.AVX512).files
    assert files == render.render(scaled_rows(), targets.AVX512).files
    for path, text in files.items():
        assert not Path(path).is_absolute()
        assert str(ROOT) not in text and str(Path.home()) not in text
    script = (
        "import hashlib, sys; sys.path.insert(0, '.')\n"
        "from luminal.codegen import render; from luminal.core import target\n"
        "from tests.codegen_programs import scaled_rows\n"
        "files = render.render(scaled_rows(), target.AVX512).files\n"
        "print(hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest())"
    )
    expected = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    for seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed, "PATH": ""}, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        assert result.stdout.strip() == expected


def test_the_source_hash_covers_kernels_and_packing() -> None:
    program = scaled_rows()
    other = scaled_rows()
    changed = Kernel("square", Scheduled(CASES["exponential"].nest))
    object.__setattr__(other, "kernels", (changed, other.kernels[1]))
    hashes = {render.render(p, targets.AVX2).source_hash for p in (program, other, scaled_rows("renamed"))}
    assert len(hashes) == 3
