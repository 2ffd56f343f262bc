"""Products of few rows with constants on GPUs: a column's terms are read as they lie, in as few bits as they have."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen import dialects
from luminal.core import ir, movement, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph, compile_graphs
from luminal.core.rules import constant
from luminal.core.schedule.grid.lines import SumLines
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.grid.thread_tiles import Warps
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import accesses, perfect_loops, statements
from luminal.core.schedule.program.ir import Launch, Program
from luminal.core.symbolic import Int
from tests.codegen_gpu_support import Emulated, rendered
from tests.schedule_support import refusals, run_program, transformed, transforms
from tests.test_scaled_blocks import KINDS, UNIT, A, Stored, real, stored
from tests.vector_support import build as native
from tests.vector_support import pointer

Array = np.ndarray
CUDA, METAL = targets.GPUS["cuda:sm_80"], targets.GPUS["metal"]
TARGETS = pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.dialect)
ROWS = pytest.mark.parametrize("rows", [1, 3])


@pytest.fixture(autouse=True)
def small_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of real models do, which are too large to be folded."""
    monkeypatch.setattr(constant, "SMALL", 0)


def emulated(program: Program, target: targets.Target, folder: Path) -> Emulated:
    return Emulated({k.name: k.nest for k in program.kernels}, dialects.ALL[target.dialect], folder)


def bytes_read(program: Program) -> dict[str, int]:
    """How many bytes of each constant the kernel that sums columns reads, of one row. The parts of an iteration read
    the same element once: compilers merge such reads."""
    (kernel,) = transformed(program, SumLines)
    launches = (s for s in program.entries[0].region.steps if isinstance(s, Launch))
    launch = next(s for s in launches if program.kernels[s.kernel] is kernel)
    names = dict(zip((array.name for array in kernel.nest.arrays), launch.arguments, strict=True))
    loops, body = perfect_loops(kernel.nest.body)
    total = next(s for s in body if isinstance(s, ln.Reduction))
    read: dict[tuple[str, Int], int] = {}
    for part in (total, *(s for s in total.before if isinstance(s, ln.Reduction))):
        for access in accesses(part.value):
            moves = any(loop.axis in sym.variables(access.offset) for loop in part.loops)
            read[access.array, access.offset] = part.loops[0].extent if moves and part is not total else 1
    found: dict[str, int] = {}
    for (array, _), lanes in read.items():
        buffer = program.buffer(names[array])
        if buffer.space == "constant":
            times = math.prod(loop.extent for loop in (*loops, *total.loops))
            found[buffer.name] = found.get(buffer.name, 0) + times * lanes * buffer.dtype.itemsize
    return found


def of_floats(rows: int, cases: tuple[Stored, ...] = KINDS) -> Graph:
    x = ir.input_("x", (rows, A.depth), types.f32)
    outputs: list[tuple[str, Node]] = []
    for case in cases:
        weights = case.kind.real({name: ir.constant(case.kind.taken(case.raw(), name)) for name in case.kind.kept})
        outputs.append((case.kind.name, contraction.matmul(x, movement.transpose(weights, 0, 1))))
    return Graph("floats", (x,), tuple(outputs), ())


@pytest.mark.parametrize("precision", [None, "bf16"])
@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_90", "metal"])
def test_many_rows_multiply_what_is_computed_as_it_is_staged(name: str, precision: str | None, tmp_path: Path) -> None:
    """By fragments where operands are rounded; a single row of another entry reads the same constants."""
    target = targets.parse(name, precision)
    rows, cases = 40, tuple(case for case in KINDS if case.kind.name in ("Q8_0", "Q4_K", "Q6_K"))  # over a tile
    both = {"many": of_floats(rows, cases), "one": of_floats(1, cases)}
    held, alone = (
        sum(b.size for b in made.buffers if b.space == "constant")
        for made in (compile_graphs("floats", both, target), compile_graph(both["one"], target))
    )
    assert held == alone
    program = compile_graph(both["many"], target)
    assert not refusals(program)
    stages = [stage for kernel in program.kernels for stage in transforms(kernel, Stage)]
    has_fragments = target.fragment(types.f32, types.f32) is not None or precision is not None
    assert stages and all(isinstance(stage.parts, Warps) == has_fragments for stage in stages)
    x = np.random.default_rng(1).standard_normal((rows, A.depth)).astype(np.float32)
    results = run_program(program, {"x": x}, run_kernel=emulated(program, target, tmp_path).run_nest)
    for case in cases:
        wide, weights = x.astype(np.float64), case.decoded(case.raw())
        rounding = (A.depth + 3) * UNIT + (0 if precision is None else 2 * 2.0**-8)
        bound = rounding * np.abs(wide) @ magnitudes(case).T
        assert (np.abs(results[case.kind.name] - wide @ weights.T) <= bound).all()


def of_constants(rows: int) -> Graph:
    x, weights = ir.input_("x", (rows, A.depth), types.f32), whole_weights()
    product = contraction.matmul(x, movement.transpose(ir.constant(weights), 0, 1))
    return Graph("constants", (x,), (("y", product),), ())


def whole_weights() -> Array:
    return np.random.default_rng(3).standard_normal((37, A.depth)).astype(np.float32)


@pytest.mark.parametrize("precision", [None, "bf16"])
@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_90", "metal"])
def test_weights_of_many_bits_are_held_once_too(name: str, precision: str | None, tmp_path: Path) -> None:
    """In lines, which tiles stage from; of a graph that has both products."""
    target, rows = targets.parse(name, precision), 40
    many, one = of_constants(rows), of_constants(1)
    (x,) = one.inputs
    first = ir.view(many.inputs[0], (1, A.depth), (0, ir.axes((1, A.depth))[1]))
    both = Graph(
        "both", many.inputs, (*many.outputs, ("one", traverse.substitute([one.outputs[0][1]], {x: first})[0])), ()
    )
    program = compile_graph(both, target)
    assert not refusals(program)
    held = sum(b.size for b in program.buffers if b.space == "constant")
    assert held == 37 * A.depth * (4 if precision is None else 2)
    values = np.random.default_rng(1).standard_normal((rows, A.depth)).astype(np.float32)
    results = run_program(program, {"x": values}, run_kernel=emulated(program, target, tmp_path).run_nest)
    wide, weights = values.astype(np.float64), whole_weights().astype(np.float64)
    bound = (A.depth * UNIT + (0 if precision is None else 2 * 2.0**-8)) * np.abs(wide) @ np.abs(weights).T
    assert (np.abs(results["y"] - wide @ weights.T) <= bound).all()
    assert (np.abs(results["one"] - wide[:1] @ weights.T) <= bound[:1]).all()


def magnitudes(case: Stored) -> Array:
    """Of the terms of each weight."""
    raw = case.raw()
    weights, moved = case.decoded(raw), np.zeros((37, 512))
    if "least" in (case.kind.layout.names or ()):
        raw["scale"] = 0
        moved = case.decoded(raw)
    return np.abs(weights - moved) + np.abs(moved)


@TARGETS
@ROWS
def test_weights_of_few_bits_multiply_floats(rows: int, target: targets.Target, tmp_path: Path) -> None:
    program = compile_graph(of_floats(rows), target)
    ways = [transforms(kernel, SumLines) for kernel in transformed(program, SumLines)]
    assert len(ways) == len(KINDS) and all(way.width == 16 for (way,) in ways)  # bytes that a thread reads at once
    x = np.random.default_rng(1).standard_normal((rows, A.depth)).astype(np.float32)
    results = run_program(program, {"x": x}, run_kernel=emulated(program, target, tmp_path).run_nest)
    for case in KINDS:
        wide, weights = x.astype(np.float64), case.decoded(case.raw())
        bound = (A.depth + 3) * UNIT * np.abs(wide) @ magnitudes(case).T
        assert (np.abs(results[case.kind.name] - wide @ weights.T) <= bound).all()


@TARGETS
@ROWS
def test_weights_of_few_bits_multiply_bytes(rows: int, target: targets.Target, tmp_path: Path) -> None:
    program = compile_graph(stored(KINDS, rows), target)
    whole, scale = A.inputs(rows)
    given = {"whole": whole, "scale": scale}
    results = run_program(program, given, run_kernel=emulated(program, target, tmp_path).run_nest)
    for case in KINDS:
        case.check(results[case.kind.name], whole, scale)


@pytest.mark.parametrize("case", KINDS, ids=lambda case: case.kind.name)
def test_every_byte_of_numbers_is_read_once(case: Stored) -> None:
    """And no more are held than the checkpoint has."""
    program = compile_graph(of_floats(1, (case,)), CUDA)
    held = {b.name: math.prod(b.shape) * b.dtype.itemsize for b in program.buffers if b.space == "constant"}
    assert sum(held.values()) <= 37 * A.depth // case.kind.size * case.kind.layout.itemsize * 1.03
    read, largest = bytes_read(program), max(held, key=lambda name: held[name])
    assert read.keys() == held.keys()
    assert read[largest] == held[largest]


def test_products_of_bytes_are_summed_as_integers() -> None:
    """Those of weights that a number moves, too, where the user lets activations be rounded."""
    for case in KINDS:
        moved = "least" in (case.kind.layout.names or ())
        asked = stored((case,), 1)
        for graph, dtype in (
            (asked, types.i32),
            (replace(asked, approximations=()), types.f32 if moved else types.i32),
        ):
            (kernel,) = transformed(compile_graph(graph, CUDA), SumLines)
            parts = [s for s in statements(kernel.nest.body) if isinstance(s, ln.Reduction) and "part" in s.name]
            assert {part.dtype for part in parts} == {dtype}
            assert any("= dot(" in line for line in rendered(kernel.name, kernel.nest, dialects.ALL["cuda"]).body)


@pytest.mark.parametrize("least", [np.inf, np.nan])
def test_what_moves_blocks_without_end_is_not_summed_apart(least: float) -> None:
    """Zero times infinity would come of a block whose activations sum to zero."""
    case = next(case for case in KINDS if case.kind.name == "Q4_1")
    raw = case.raw()
    raw["least"][3, 0] = least
    whole, scale = stored((case,), 1).inputs
    weights = case.kind.real({name: ir.constant(case.kind.taken(raw, name)) for name in case.kind.kept})
    product = contraction.matmul(real(whole, scale), movement.transpose(weights, 0, 1))
    graph = replace(stored((case,), 1), outputs=(("y", product),))
    (kernel,) = transformed(compile_graph(graph, CUDA), SumLines)
    assert not any(s.dtype == types.i32 for s in statements(kernel.nest.body) if isinstance(s, ln.Reduction))


def test_bytes_are_computed_four_at_a_time_as_one_by_one(tmp_path: Path) -> None:
    """All pairs of bytes, and all bytes moved by every amount; no byte carries into the next."""
    library = native("device_bytes.cpp", targets.detect(), tmp_path, "-O1")
    every = np.arange(256, dtype=np.uint8)
    a, b = np.repeat(every, 256), np.tile(every, 256)
    for kind, x, y in (("unsigned", a, b), ("signed", a.view(np.int8), b.view(np.int8))):
        assert getattr(library, f"differing_{kind}")(pointer(x), pointer(y), x.size) == 0
    assert library.differing_shifted(pointer(every), every.size) == 0


@TARGETS
def test_numbers_that_begin_at_a_bit_of_a_thread_are_unpacked_in_words(target: targets.Target) -> None:
    """Upper bits of Q5_0 and Q6_K: threads beside each other take other bits of the same bytes."""
    for name in ("Q5_0", "Q6_K"):
        case = next(case for case in KINDS if case.kind.name == name)
        (kernel,) = transformed(compile_graph(stored((case,), 1), target), SumLines)
        body = "\n".join(rendered(kernel.name, kernel.nest, dialects.ALL[target.dialect]).body)
        assert "shifted_right(" in body and " shr(" not in body and "convert<uint2_t>" not in body
