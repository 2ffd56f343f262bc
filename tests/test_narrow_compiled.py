"""Types of fewer than 16 bits in compiled libraries and in kernels for GPUs, against the interpreter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import luminal
from luminal.codegen import dialects
from luminal.core import interp, ir, numerics, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import conversion
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.types import DType
from luminal.module import Module
from tests.codegen_gpu_support import Emulated
from tests.schedule_support import run_program
from tests.test_narrow import FLOATS, NARROW, is_nan

Array = np.ndarray[Any, Any]

WIDE = (types.f32, types.f64, types.f16, types.bf16)
SIGNED_FLOATS = [dtype for dtype in FLOATS if dtype != types.f8e8m0]
EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def every(dtype: DType) -> Array:
    """Every value, over and over up to 256."""
    return (np.arange(256) & ((1 << dtype.bits) - 1)).astype(np.uint8).view(dtype.numpy)


def values(dtype: DType) -> tuple[dict[str, Node], dict[str, Array]]:
    """Results that read, compute with and write elements of ``dtype``, and what they are computed of."""
    x, y = (ir.input_(f"{name}_{dtype}", [256], dtype) for name in "xy")
    arrays = {f"x_{dtype}": every(dtype), f"y_{dtype}": np.roll(every(dtype)[::-1], 11)}
    weight = np.random.default_rng(3).permutation(every(dtype))
    (at,), (row, column) = ir.axes((260,)), ir.axes((15, 17))
    found = {
        "held": ir.binary(ops.MAX, x, ir.constant(weight)),
        "sum": ir.binary(ops.ADD, x, y),
        "product": ir.binary(ops.MUL, x, y),
        "less": ir.binary(ops.LESS_THAN, x, y),
        "turned": ir.view(x, (260,), (259 - at,), (at - 4,), bytes([1])),
        "largest": ir.reduce(ops.MAX_REDUCE, ir.view(x, (15, 17), (17 * row + column,)), (1,)),
        **{f"as_{wide}": ir.cast(x, wide) for wide in (*WIDE, types.i32, types.bool_)},
    }
    return {f"{name}_{dtype}": node for name, node in found.items()}, arrays


def conversions(of: DType) -> dict[str, Node]:
    """``Cast`` to every narrow type, and both ways of the front ends where numbers are too large."""
    x = ir.input_(f"x_{of}", [1 << 16], of)
    found = {f"{of}_to_{dtype}": ir.cast(x, dtype) for dtype in NARROW}
    for dtype in SIGNED_FLOATS[:-1]:
        found[f"{of}_saturating_{dtype}"] = conversion.saturating(x, dtype)
        found[f"{of}_overflowing_{dtype}"] = conversion.overflowing(x, dtype)
    for mode in ("up", "down", "nearest"):
        found[f"{of}_{mode}"] = conversion.to_power_of_two(x, mode, saturate=mode != "nearest")
    return found


def graph_of(results: dict[str, Node], name: str = "narrow") -> Graph:
    inputs = dict.fromkeys(node for node in traverse.topological(results.values()) if node.op is ops.INPUT)
    return Graph(name, tuple(inputs), tuple(results.items()))


def everything() -> tuple[Graph, dict[str, Array]]:
    results = conversions(types.f16) | conversions(types.f32)
    # Between float16's numbers, so that every edge is met from both sides.
    with np.errstate(invalid="ignore"):  # a NaN that signals
        beside = np.nextafter(EVERY_HALF.astype(np.float32), np.float32(np.inf))
    inputs = {"x_float16": EVERY_HALF, "x_float32": beside}
    for dtype in NARROW:
        more, arrays = values(dtype)
        results |= more
        inputs |= arrays
    return graph_of(results), inputs


def compare(found: dict[str, Array], graph: Graph, inputs: dict[str, Array]) -> None:
    """Equal bits, but that any NaN is as good as another."""
    for (name, node), wanted in zip(graph.outputs, interp.run(graph, inputs).outputs, strict=True):
        array = found[name]
        assert array.dtype == wanted.dtype == node.dtype.numpy and array.shape == wanted.shape, name
        same = array.view(np.uint8).reshape(array.size, -1) == wanted.view(np.uint8).reshape(array.size, -1)
        wrong = np.flatnonzero(~same.all(1) & ~(is_nan(array) & is_nan(wanted)))
        assert not wrong.size, (name, [(i, array[i], wanted[i]) for i in wrong[:5]])


@pytest.fixture(scope="module")
def compiled() -> tuple[Module, Graph, dict[str, Array]]:
    graph, inputs = everything()
    module = luminal.compile(graph, threads=2)
    assert isinstance(module, Module)
    return module, graph, inputs


def test_a_library_computes_what_the_interpreter_does(compiled: tuple[Module, Graph, dict[str, Array]]) -> None:
    module, graph, inputs = compiled
    compare(module.run(inputs), graph, inputs)


def test_wrong_types_are_refused_by_name(compiled: tuple[Module, Graph, dict[str, Array]]) -> None:
    module, _, inputs = compiled
    for given, name in ((np.uint8, "uint8"), (types.u4.numpy, "uint4"), (types.f8e5m2.numpy, "float8e5m2")):
        wrong = {**inputs, "x_int4": np.zeros(256, given)}
        with pytest.raises(ValueError, match=rf'"x_int4" has element type {name}, expected int4'):
            module.run(wrong)


@pytest.mark.parametrize("target", ["cuda:sm_80", "metal"])
def test_kernels_for_gpus_do_too(target: str, tmp_path: Path) -> None:
    """A type of every kind."""
    results, inputs = {}, {}
    for dtype in (types.f8e4m3fn, types.f8e5m2fnuz, types.f8e8m0, types.f4e2m1, types.i4, types.u2):
        more, arrays = values(dtype)
        results |= {name: node for name, node in more.items() if "float64" not in name}
        inputs |= arrays
    results |= {name: node for name, node in conversions(types.f16).items() if "overflowing" not in name}
    inputs["x_float16"] = EVERY_HALF
    graph = graph_of(results)
    program = compile_graph(graph, targets.GPUS[target])
    emulated = Emulated({k.name: k.nest for k in program.kernels}, dialects.ALL[targets.GPUS[target].dialect], tmp_path)
    compare(run_program(program, inputs, run_kernel=emulated.run_nest), graph, inputs)


def test_products_of_narrow_operands_are_summed_in_float32() -> None:
    """Rows of 8 bits with weights of 8, which tiles read as they are, and with weights of 4 that have a power of two
    for every block of 16."""
    a = ir.cast(ir.input_("a", (5, 48), types.f8e4m3fn), types.f32)
    eights = ir.cast(ir.constant(_drawn((48, 20), types.f8e5m2, 1)), types.f32)
    fours = ir.cast(ir.constant(_drawn((48, 20), types.i4, 2)), types.f32)
    k, j = ir.axes((48, 20))
    scales = ir.view(ir.constant(_drawn((3, 20), types.f8e8m0, 3)), (48, 20), (sym.floordiv(k, 16), j))
    scaled = ir.binary(ops.MUL, fours, ir.cast(scales, types.f32))
    graph = graph_of({"eights": _product(a, eights), "fours": _product(a, scaled)}, "narrow_products")
    inputs = {"a": _drawn((5, 48), types.f8e4m3fn, 4)}
    module = luminal.compile(graph)
    assert isinstance(module, Module)
    exact = interp.run(graph, inputs, "float64").outputs
    for found, wanted in zip(module.run(inputs).values(), exact, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


def _product(a: Node, b: Node) -> Node:
    shape = (a.shape[0], b.shape[1], b.shape[0])
    i, j, k = ir.axes(shape)
    terms = ir.binary(ops.MUL, ir.view(a, shape, (i, k)), ir.view(b, shape, (k, j)))
    return ir.reduce(ops.SUM_REDUCE, terms, (2,))


def _drawn(shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    drawn = np.random.default_rng(seed).normal(size=shape)
    return numerics.convert(np.asarray(2.0 ** np.round(drawn) if not dtype.has_zero else 3 * drawn), dtype)
