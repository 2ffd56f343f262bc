"""Kernels for GPUs: their text, that compilers take it, and what it computes when it runs as C++."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen import dialects, render
from luminal.codegen.dialect import Dialect
from luminal.codegen.dialect_cuda import CUDA
from luminal.codegen.dialect_device import two_parts
from luminal.codegen.dialect_metal import METAL
from luminal.codegen.emitter import emit
from luminal.core import interp, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, hyperbolic
from luminal.core.errors import SpecError, UnsupportedError
from luminal.core.ir import Graph
from luminal.core.ops import Kind
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.nest import ir
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.target import Target
from tests import device_support, metal_check
from tests.codegen_gpu_cases import CASES, FRAGMENTS, thread
from tests.codegen_gpu_support import Emulated, compare, rendered
from tests.codegen_support import array, axis, number, output, written
from tests.conftest import Golden
from tests.schedule_graphs import GRAPHS, Source
from tests.schedule_support import check_outputs, run_program

GPUS = (CUDA, METAL)


def has_doubles(nest: ir.LoopNest) -> bool:
    return "float64" in str(nest)


def cases(dialect: Dialect) -> dict[str, ir.LoopNest]:
    """The nests that a dialect can say."""
    found = {name: case.nest for name, case in CASES.items() if dialect is CUDA or not has_doubles(case.nest)}
    return found | {name: case.nest for name, case in FRAGMENTS.items() if name.startswith(dialect.name)}


# One of the graphs has a constant of float64, which Metal has not.
PROGRAMS = [
    (target, name)
    for target in (targets.GPUS["cuda:sm_90"], targets.GPUS["metal"])
    for name in GRAPHS
    if (target.dialect, name) != ("metal", "views_as_outputs")
]


@cache
def program(target: Target, name: str) -> Program:
    """A graph of tests/schedule_graphs.py as it is scheduled for ``target``."""
    return compile_graph(GRAPHS[name]().graph, target)


def kernels(dialect: Dialect) -> dict[str, ir.LoopNest]:
    """The kernels of all those graphs."""
    found = ((name, program(target, name)) for target, name in PROGRAMS if target.dialect == dialect.name)
    return {f"{name}_{kernel.name}": kernel.nest for name, made in found for kernel in made.kernels}


def source(dialect: Dialect) -> str:
    """The text of all kernels."""
    texts = (rendered(name, nest, dialect) for name, nest in (cases(dialect) | kernels(dialect)).items())
    return "".join(map(render.kernel_text, texts))


# ---- tables and refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", dialects.ALL.values(), ids=lambda d: d.name)
def test_every_dialect_has_a_row_for_every_primitive(dialect: Dialect) -> None:
    assert set(dialect.table) == {row for row in ops.TABLE.values() if row.kind is Kind.ELEMENTWISE}
    assert set(dialect.reductions) == {row for row in ops.TABLE.values() if row.kind is Kind.REDUCE}


def test_every_target_has_a_dialect() -> None:
    assert {t.dialect for t in (*targets.ALL.values(), *targets.GPUS.values())} == set(dialects.ALL)


@pytest.mark.parametrize("dtype", [types.f32, types.f16, types.f64], ids=str)
def test_constants_are_split_in_two_parts(dtype: types.DType) -> None:
    exact = 1.4426950408889634
    read = dtype.compute.numpy.type
    hi, lo = (read(part.removesuffix("f")) for part in two_parts(exact, dtype))
    assert hi == read(exact)
    assert abs(float(hi) + float(lo) - exact) <= abs(exact) * 2.0**-48


def test_metal_has_no_float64() -> None:
    doubles = [name for name, case in CASES.items() if has_doubles(case.nest)]
    assert len(doubles) > 4
    for name in doubles:
        with pytest.raises(UnsupportedError, match="float64: Metal has none"):
            rendered(name, CASES[name].nest, METAL)


def test_nests_that_break_the_rules_of_blocks_are_refused() -> None:
    i, at = axis("i", 64)
    store = ir.Store("out", at, number(1.0))

    def refusal(*body: ir.Statement, dialect: Dialect = CUDA) -> str:
        with pytest.raises(SpecError) as caught:
            emit(Kernel("k0", Scheduled(ir.LoopNest((output("out"),), (), body, threads=64))), {}, dialect)
        return str(caught.value)

    held = ir.Alloc("held", types.f32, 128, "registers")
    assert "not in the part of thread" in refusal(held, thread(i, 64, ir.Store("held", at, number(1.0))))
    assert "outside the loops" in refusal(held, ir.Store("held", 0, number(1.0)))
    assert "run by one thread" in refusal(thread(i, 64, store), dialect=dialects.ALL["cpp"])


# ---- text ----------------------------------------------------------------------------------------------------------

GOLDEN = ("wide_elements", "staged_rows", "rows_of_a_table", "product", "far_apart")


HALF = [(dialect, name) for dialect in GPUS for name in cases(dialect) if name.endswith("_float16")]


def kernel_text(dialect: Dialect, name: str) -> str:
    nest = (CASES | FRAGMENTS)[name].nest
    schedule = written("parallel row", "thread column by 64")
    kernel = Kernel(name, Scheduled(nest, schedule), ("Op 'layer/op' (model.py:7)",))
    return render.kernel_text(emit(kernel, {dim.name: place for place, dim in enumerate(nest.dims)}, dialect))


@pytest.mark.parametrize(
    ("dialect", "name"),
    [(d, n) for d in GPUS for n in cases(d) if n in (*GOLDEN, *FRAGMENTS) and (d, n) not in HALF],
    ids=str,
)
def test_golden_kernel(dialect: Dialect, name: str, golden: Golden) -> None:
    suffix = {"cuda": "cu", "metal": "metal"}[dialect.name]
    golden.check(f"{name}.{suffix}", kernel_text(dialect, name))


@pytest.mark.parametrize(("dialect", "name"), HALF, ids=str)
def test_fragments_of_one_width_have_the_same_text(dialect: Dialect, name: str) -> None:
    other = kernel_text(dialect, name.replace("float16", "bfloat16"))
    assert kernel_text(dialect, name).replace("float16", "bfloat16") == other


def test_golden_table_of_kernels(golden: Golden) -> None:
    texts = [rendered(name, CASES[name].nest, METAL) for name in ("staged_rows", "rows_of_a_table", "far_apart")]
    tensors = {t.kernel.name: [f"value {array.name!r}" for array in t.kernel.nest.arrays] for t in texts}
    golden.check("emulated.cpp", render.emulated_kernels(texts, tensors))


def test_nothing_is_read_before_the_barrier_that_it_waits_for() -> None:
    for dialect in GPUS:
        for name in ("turns", "seen_after_a_barrier"):
            lines = [line.strip() for line in rendered(name, CASES[name].nest, dialect).body]
            shared = "one[0]" if name == "turns" else "all_2["
            first = next(n for n, line in enumerate(lines) if line.startswith("const") and f"= {shared}" in line)
            assert any(line.startswith("for (") for line in lines[:first]) and "barrier();" in lines[:first]


def test_indices_take_64_bits_only_where_they_may_need_them() -> None:
    assert "int64_t row" in "\n".join(rendered("far_apart", CASES["far_apart"].nest, CUDA).body)
    assert "int64_t" not in "\n".join(rendered("staged_rows", CASES["staged_rows"].nest, CUDA).body)


def test_conditions_guard_statements_on_cpus() -> None:
    i, at = axis("i", 9)
    body = ir.Loop(i, 9, "unroll", (ir.If((-at + 6, at - 2), (ir.Store("out", at, ir.load("x", at - 2, types.f32)),)),))
    text = emit(Kernel("k0", Scheduled(ir.LoopNest((output("out"), array("x")), (), (body,)))), {}).body
    assert text[:3] == (
        "#pragma GCC unroll 9",
        "for (int64_t i = 0; i < 9; ++i) {",
        "    if (6 - i >= 0 && i - 2 >= 0) {",
    )


# ---- compilers -----------------------------------------------------------------------------------------------------


@device_support.needs_nvcc
@pytest.mark.parametrize("compute", ["sm_80", "sm_90a", "sm_100"])
def test_nvcc_takes_every_kernel(compute: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.cu"
    path.write_text(source(CUDA))
    said, _ = device_support.compile_cuda(path, compute, tmp_path)
    assert "warning" not in said and set(re.findall(r"(\d+) bytes spill stores", said)) == {"0"}


@device_support.needs_nvcc
def test_a_division_in_an_epilogue_spills_nothing(tmp_path: Path) -> None:
    """As the compiler's own does on the way to a function of its own."""
    source = Source()
    batch = sym.var("batch", 1, 8)
    sums = contraction.linear(source.input(batch, 3), source.weight(5, 3)) + source.input(batch, 5)
    graph = Graph("bounded", tuple(source.nodes), (("y", hyperbolic.tanh(sums)),), tuple(sym.variables(batch)))
    (kernel,) = compile_graph(graph, targets.GPUS["cuda:sm_100"]).kernels
    path = tmp_path / "kernel.cu"
    path.write_text(render.kernel_text(rendered(kernel.name, kernel.nest, CUDA)))
    said, _ = device_support.compile_cuda(path, "sm_100", tmp_path)
    assert "0 bytes stack frame, 0 bytes spill stores" in said


def test_clang_finds_the_metal_text_well_typed() -> None:
    assert metal_check.errors(source(METAL)) == []


def test_metal_kernels_bind_arrays_then_status_then_dims() -> None:
    for name, nest in (cases(METAL) | kernels(METAL)).items():
        text = rendered(name, nest, METAL)
        sign = text.signature
        passed = [f"device {pointer.type}" for pointer in sign.pointers]
        passed += ["device Status*"] * sign.checked + ["constant int64_t*"] * sign.reads_dims
        assert metal_check.binding_errors(render.kernel_text(text), name, passed) == []


# ---- results -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@cache
def compiled(dialect_name: str, folder: Path) -> Emulated:
    dialect = dialects.ALL[dialect_name]
    return Emulated(cases(dialect), dialect, folder / dialect_name)


@pytest.mark.parametrize(("dialect", "name"), [(d, n) for d in GPUS for n in cases(d)], ids=str)
def test_kernel(dialect: Dialect, name: str, folder: Path) -> None:
    case = (CASES | FRAGMENTS)[name]
    for arrays, dims in case.runs:
        results = compare(compiled(dialect.name, folder), name, arrays, dims, case.ulps)
        written = [array.name for array in case.nest.arrays if array.written]
        assert any(np.any(results[name] != 0) for name in written) or not any(results[name].size for name in written)


@cache
def compiled_kernels(dialect_name: str, folder: Path) -> Emulated:
    dialect = dialects.ALL[dialect_name]
    return Emulated(kernels(dialect), dialect, folder / f"{dialect_name}_programs")


@pytest.mark.parametrize(("target", "name"), PROGRAMS, ids=lambda x: x if isinstance(x, str) else x.dialect)
def test_program(target: Target, name: str, folder: Path) -> None:
    case = GRAPHS[name]()
    emulated = compiled_kernels(target.dialect, folder)
    found = run_program(program(target, name), case.inputs, run_kernel=emulated.run_nest)
    check_outputs(case.graph, interp.run(case.graph, case.inputs).outputs, found, case.depth)
