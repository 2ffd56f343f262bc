"""Sums of integers that have a scale for each block on both sides: units for bytes sum the blocks, tiles scale them.

The integers may be computed from bits that lie apart, and moved by a number for each block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import gguf
import numpy as np
import pytest

import luminal
from luminal.core import interp, ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.ir import Graph, Node
from luminal.core.origins import Approximation
from luminal.core.pipeline import compile_graph
from luminal.core.rules import constant
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.numeric import activations
from luminal.core.schedule.transform.tensorise import Tensorise
from luminal.core.symbolic import Int
from luminal.frontends.llm import blocks
from luminal.module import Module
from tests.schedule_support import contracts, run_program, transforms

Array = np.ndarray
UNIT = 2.0**-24
MOST = 8  # rows of a run


@pytest.fixture(autouse=True)
def small_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of real models do, which are too large to be folded."""
    monkeypatch.setattr(constant, "SMALL", 0)


@dataclass(frozen=True)
class Case:
    """``depth`` terms for each of ``columns``; blocks of ``left`` terms of A and ``right`` of B have a scale."""

    depth: int
    left: int
    right: int
    columns: int = 37

    def weights(self) -> tuple[Array, Array]:
        """Signed bytes, the ends of their range among them, and scales in float16, one of them 0."""
        rng = np.random.default_rng(self.depth)
        whole = rng.integers(-128, 128, (self.columns, self.depth)).astype(np.int8)
        whole[:2] = [[-128], [127]]
        scale = rng.uniform(-2, 2, (self.columns, self.depth // self.right)).astype(np.float16)
        scale[3, 0] = 0
        return whole, scale

    def inputs(self, rows: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(rows)
        whole = rng.integers(-128, 128, (rows, self.depth)).astype(np.int8)
        whole[0] = -128
        return whole, rng.uniform(-3, 3, (rows, self.depth // self.left)).astype(np.float32)

    def node(self, whole: Node, scale: Node) -> Node:
        weights, scales = map(ir.constant, self.weights())
        return contraction.matmul(real(whole, scale), movement.transpose(real(weights, scales), 0, 1))

    def check(self, found: Array, whole: Array, scale: Array, in_blocks: bool) -> None:
        """A block's sum is exact, has two scales, and joins those before: at most three roundings of each, and one for
        each block that follows. Where terms are summed one by one, each is rounded so."""
        weights, scales = self.weights()
        a = whole.astype(np.float64) * np.repeat(scale.astype(np.float64), self.left, 1)
        b = weights.astype(np.float64) * np.repeat(scales.astype(np.float64), self.right, 1)
        roundings = 3 + self.depth // (self.block if in_blocks else 1)
        magnitudes = np.abs(a) @ np.abs(b).T
        assert found.shape == magnitudes.shape
        assert (np.abs(found - a @ b.T) <= roundings * UNIT * magnitudes).all()

    @property
    def block(self) -> int:
        """Terms that have the same scales."""
        return math.gcd(self.left, self.right)

    def is_summed_by(self, target: targets.Target) -> bool:
        """Whether a unit of ``target`` takes blocks in whole steps. One block is a sum as any other."""
        units = (unit for unit in target.units_of(types.u8, types.i8, types.i32) if unit.in_vectors)
        return any(self.block % unit.depth == 0 for unit in units) and self.depth > self.block


CASES = (
    Case(96, 32, 32), Case(32, 32, 32), Case(64, 16, 32), Case(36, 12, 12), Case(40, 8, 40), Case(64, 32, 16),
    Case(30, 10, 10), Case(18, 9, 9),
)  # fmt: skip


def sums_integers(tile: ln.Contract) -> bool:
    return tile.scales is not None and tile.unit is not None


def real(whole: Node, scale: Node) -> Node:
    """``[rows, K]``, of integers and a scale for each of a row's equal blocks."""
    rows, depth = whole.shape
    blocks = scale.shape[1]
    grouped = ir.cast(movement.reshape(whole, [rows, blocks, depth // blocks]), types.f32)
    wide = scale if scale.dtype == types.f32 else ir.cast(scale, types.f32)
    return movement.reshape(grouped * movement.reshape(wide, [rows, blocks, 1]), [rows, depth])


def graph(cases: tuple[Case, ...], rows: Int, dims: tuple[sym.Var, ...] = ()) -> Graph:
    inputs: list[Node] = []
    outputs: list[tuple[str, Node]] = []
    for number, case in enumerate(cases):
        whole = ir.input_(f"whole{number}", (rows, case.depth), types.i8)
        scale = ir.input_(f"scale{number}", (rows, case.depth // case.left), types.f32)
        inputs += [whole, scale]
        outputs.append((f"y{number}", case.node(whole, scale)))
    return Graph("scaled", tuple(inputs), tuple(outputs), dims)


def given(cases: tuple[Case, ...], rows: int) -> dict[str, Array]:
    parts = [(number, *case.inputs(rows)) for number, case in enumerate(cases)]
    return {name: x for n, whole, scale in parts for name, x in ((f"whole{n}", whole), (f"scale{n}", scale))}


@pytest.mark.parametrize("target", [targets.AVX512_VNNI, targets.AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rows", [1, MOST])
def test_the_nest_sums_blocks_as_integers(case: Case, rows: int, target: targets.Target) -> None:
    program = compile_graph(graph((case,), rows), target)
    (tile,) = contracts(program)
    assert sums_integers(tile) == case.is_summed_by(target)
    found = run_program(program, given((case,), rows))["y0"]
    case.check(found, *case.inputs(rows), in_blocks=sums_integers(tile))


@pytest.mark.parametrize("target", ["host", "avx2", "x86-64"])
def test_a_library_sums_them_within_the_bound(target: str) -> None:
    rows = sym.Var("rows", 1, MOST)
    module = luminal.compile(graph(CASES, sym.expr(rows), (rows,)), target=target, threads=2)
    assert isinstance(module, Module)
    for count in (1, 3, MOST):
        for case, found in zip(CASES, module(**given(CASES, count)), strict=True):
            case.check(found, *case.inputs(count), in_blocks=case.is_summed_by(targets.parse(target)))


@pytest.mark.parametrize("executed", ["nest", "library"])
def test_an_infinite_scale_of_a_model_s_own_gives_nan_as_the_sum_of_real_numbers(executed: str) -> None:
    """Terms of both signs times infinity have no sum, though that of the integers has one."""
    case = CASES[0]
    values = given((case,), 3)
    values["scale0"][1, 0] = np.inf
    made = graph((case,), 3)
    with np.errstate(invalid="ignore"):
        (wanted,) = interp.run(made, values).outputs
        if executed == "nest":
            found = run_program(compile_graph(made, targets.AVX2), values)["y0"]
        else:
            module = luminal.compile(made)
            assert isinstance(module, Module)
            found = module.run(values)["y0"]
    assert np.isnan(wanted[1]).all() and np.isfinite(wanted[[0, 2]]).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    assert np.isfinite(found[[0, 2]]).all()


def test_rows_that_are_not_finite_are_nan_as_in_the_sum_of_real_numbers() -> None:
    case = Case(64, 32, 32)
    x = ir.input_("x", (5, case.depth), types.f32)
    weights, scales = map(ir.constant, case.weights())
    made = Graph("odd", (x,), (("y", contraction.matmul(x, movement.transpose(real(weights, scales), 0, 1))),), ())
    made = activations.rounded(made, "q8")
    program = compile_graph(made, targets.AVX512_VNNI)
    assert all(map(sums_integers, contracts(program)))
    values = np.random.default_rng(0).standard_normal((5, case.depth)).astype(np.float32)
    values[1, 3], values[2, 40], values[3, 5], values[4] = np.inf, -np.inf, np.nan, 0
    (wanted,) = interp.run(made, {"x": values}).outputs
    found = run_program(program, {"x": values})["y"]
    assert np.isnan(wanted[1:4]).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(found[4], 0)


@pytest.mark.parametrize("scale", [np.inf, np.nan, 1e38, 1e-40])
def test_weights_with_scales_of_extreme_sizes_are_no_such_blocks(scale: float) -> None:
    """The sum of a block's integers times the scale may overflow, lose bits, or be 0 times infinity, where that of its
    terms does not."""
    weights, scales = Case(64, 32, 32).weights()
    scales = scales.astype(np.float32)
    scales[0, 0] = scale
    x = ir.input_("x", (2, 64), types.f32)
    product = contraction.matmul(x, movement.transpose(real(ir.constant(weights), ir.constant(scales)), 0, 1))
    made = activations.rounded(Graph("infinite", (x,), (("y", product),), ()), "q8")
    assert all(tile.scales is None for tile in contracts(compile_graph(made, targets.AVX512_VNNI)))


# ---- integers that are computed in bytes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """Weights of 512 terms for each of 37 columns, in blocks of a ``kind``: bits of every value, moderate scales."""

    kind: blocks.Kind

    def raw(self) -> Array:
        rng = np.random.default_rng(self.kind.number)
        layout = self.kind.layout
        found = rng.integers(0, 256, (37, 512 // self.kind.size, layout.itemsize), np.uint8).view(layout)[..., 0]
        for name in {"scale", "least"} & set(layout.names or ()):
            found[name] = rng.uniform(-2, 2, found.shape)
        return found

    def decoded(self, raw: Array) -> Array:
        """As the reference decodes them, in float32."""
        number = gguf.GGMLQuantizationType(self.kind.number)
        return gguf.quants.dequantize(raw.view(np.uint8).reshape(37, -1), number).astype(np.float64)

    def node(self, whole: Node, scale: Node) -> Node:
        weights = self.kind.real({name: ir.constant(self.kind.taken(self.raw(), name)) for name in self.kind.kept})
        return contraction.matmul(real(whole, scale), movement.transpose(weights, 0, 1))

    def check(self, found: Array, whole: Array, scale: Array) -> None:
        """Sums are of blocks of 16 terms at least, each of which is scaled on both sides (a scale is a product itself),
        and so is what moves it; the reference rounds a weight three times."""
        raw = self.raw()
        weights, moved = self.decoded(raw), np.zeros((37, 512))
        if "least" in (self.kind.layout.names or ()):
            raw["scale"] = 0
            moved = self.decoded(raw)
        a = whole.astype(np.float64) * np.repeat(scale.astype(np.float64), 32, 1)
        magnitudes = np.abs(a) @ (np.abs(weights - moved) + np.abs(moved)).T
        roundings = 2 * 512 // 16 + 4 + 3 + 3
        assert (np.abs(found - a @ weights.T) <= roundings * UNIT * magnitudes).all()


KINDS = tuple(map(Stored, blocks.ALL.values()))
A = Case(512, 32, 32)  # whose rows multiply them


def stored(kinds: tuple[Stored, ...], rows: Int, dims: tuple[sym.Var, ...] = ()) -> Graph:
    whole = ir.input_("whole", (rows, A.depth), types.i8)
    scale = ir.input_("scale", (rows, A.depth // A.left), types.f32)
    outputs = tuple((case.kind.name, case.node(whole, scale)) for case in kinds)
    return Graph("stored", (whole, scale), outputs, dims, approximations=(Approximation("activations", "q8", ()),))


def test_what_moves_blocks_stays_in_the_sum_where_no_rounding_was_asked_for() -> None:
    made = replace(stored((Stored(blocks.Q4_1),), 2), approximations=())
    assert [tile.scales for tile in contracts(compile_graph(made, targets.AVX512_VNNI))] == [None]


@pytest.mark.parametrize("target", [targets.AVX512_VNNI, targets.AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("case", KINDS, ids=lambda case: case.kind.name)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_nest_computes_integers_of_few_bits_in_bytes(case: Stored, rows: int, target: targets.Target) -> None:
    program = compile_graph(stored((case,), rows), target)
    scaled = [tile for tile in contracts(program) if sums_integers(tile)]
    assert len(scaled) == 1 and len(contracts(program)) == 1 + ("least" in (case.kind.layout.names or ()))
    assert (scaled[0].prologue is not None) == (case.kind.name != "Q8_0")
    whole, scale = A.inputs(rows)
    case.check(run_program(program, {"whole": whole, "scale": scale})[case.kind.name], whole, scale)


@pytest.mark.parametrize("target", ["host", "avx2", "x86-64"])
def test_a_library_computes_them_within_the_bound(target: str) -> None:
    rows = sym.Var("rows", 1, MOST)
    module = luminal.compile(stored(KINDS, sym.expr(rows), (rows,)), target=target, threads=2)
    assert isinstance(module, Module)
    for count in (1, 3, MOST):
        whole, scale = A.inputs(count)
        for case, found in zip(KINDS, module(whole=whole, scale=scale), strict=True):
            case.check(found, whole, scale)


@pytest.mark.parametrize("least", [np.inf, np.nan])
def test_what_moves_blocks_without_end_stays_in_the_sum(least: float) -> None:
    case = Stored(blocks.Q4_1)
    raw = case.raw()
    raw["least"][3, 0] = least
    parts = {name: ir.constant(case.kind.taken(raw, name)) for name in case.kind.kept}
    x = ir.input_("x", (2, 512), types.f32)
    made = Graph("endless", (x,), (("y", contraction.matmul(x, movement.transpose(case.kind.real(parts), 0, 1))),), ())
    made = activations.rounded(made, "q8")
    assert all(tile.scales is None for tile in contracts(compile_graph(made, targets.AVX512_VNNI)))


def test_what_is_no_block_is_refused() -> None:
    program = compile_graph(graph((CASES[0],), 3), targets.AVX512_VNNI)
    (tile,) = contracts(program)
    assert tile.scales is not None
    with pytest.raises(SpecError, match="only blocks are scaled, of rows those of a unit, in an empty tile"):
        replace(tile, accumulate=True)
    with pytest.raises(SpecError, match="only blocks are scaled"):
        replace(tile, unit=None, outer=1)
    kernel = next(kernel for kernel in program.kernels if transforms(kernel, Tensorise))
    (tensorise,), serial = transforms(kernel, Tensorise), kernel.scheduled.serial
    assert serial is not None
    with pytest.raises(ScheduleError, match="no unit of vectors takes blocks of 32 terms in whole steps"):
        replace(tensorise, depth=5)(serial)
