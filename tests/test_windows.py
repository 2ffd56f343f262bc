"""Loops cut where masks change, neighbours side by side, constants in the order of their readers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from luminal import artifact
from luminal.core import interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import activation, contraction, pooling
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.nest import interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.text import nest_text
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.schedule.transform.loops import Split, Transform, Vectorise
from luminal.core.schedule.transform.split_regions import ClipReduction, SplitRegion
from luminal.core.schedule.transform.unroll_jam import UnrollAndJam
from tests.codegen_support import axis, bits, op
from tests.emulation import INSTRUCTION_SETS
from tests.schedule_graphs import BATCH, Source
from tests.schedule_support import is_masked, run_program, transformed, transforms

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

F32 = types.f32
SIZE, CHANNELS, TAPS = 9, 3, 3


def windows(fill: float = 0.0, finite: bool = True, reduce: ops.Op = ops.SUM_REDUCE) -> ln.LoopNest:
    """``out[i, c] = reduce over k of x[i + k - 1, c] * w[k]``, with ``fill`` outside x."""
    i, place = axis("i", SIZE)
    c, channel = axis("c", CHANNELS)
    k, tap = axis("k", TAPS)
    at = place + tap - 1
    x = ln.load("x", at * CHANNELS + channel, F32, (at, -at + SIZE - 1), bits(fill))
    value = op(ops.MUL, x, ln.load("w", tap, F32)) if reduce is ops.SUM_REDUCE else x
    total = ln.Reduction("r", reduce, F32, (ln.Loop(k, TAPS, "serial", ()),), (), value)
    store = ln.Store("out", place * CHANNELS + channel, ln.temporary("r", F32))
    loops = ln.Loop(i, SIZE, "serial", (ln.Loop(c, CHANNELS, "serial", (total, store)),))
    arrays = (ln.Array("out", F32, True), ln.Array("x", F32, False), ln.Array("w", F32, False, finite))
    return ln.LoopNest(arrays, (), (loops,))


def computed(nest: ln.LoopNest) -> np.ndarray:
    random = np.random.default_rng(5)
    arrays = {
        "out": np.full(SIZE * CHANNELS, np.nan, np.float32),
        "x": random.integers(-9, 9, SIZE * CHANNELS).astype(np.float32),
        "w": random.integers(-9, 9, TAPS).astype(np.float32),
    }
    assert interpreter.run(nest, arrays)
    return arrays["out"]


SCHEDULES: dict[str, tuple[Transform, ...]] = {
    "clip": (ClipReduction("k"),),
    "regions": (SplitRegion("i", (1, 8)),),
    "regions of one iteration": (SplitRegion("i", (1, 2, 3)),),
    "jam": (SplitRegion("c", (2,)), UnrollAndJam("c")),
    "unroll and jam": (UnrollAndJam("c", "k"),),
    "tiles": (Split("i", 4), SplitRegion("i_1", (1, 2)), UnrollAndJam("c", "k")),
}


@pytest.mark.parametrize("reduce", [ops.SUM_REDUCE, ops.MAX_REDUCE], ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_transform_changes_no_value(name: str, reduce: ops.Op) -> None:
    plain = windows(0.0 if reduce is ops.SUM_REDUCE else -np.inf, reduce=reduce)
    nest = plain
    for transform in SCHEDULES[name]:
        nest = transform(nest)
    assert nest != plain
    np.testing.assert_array_equal(computed(nest), computed(plain))


def test_a_clipped_reduction_has_no_mask() -> None:
    nest = ClipReduction("k")(windows())
    assert not is_masked(nest)
    text = nest_text(nest)
    assert "max(" in text and "min(" in text


def test_a_reduction_that_is_clipped_to_one_term_keeps_its_loop() -> None:
    """All but the middle tap lie outside: x has one element."""
    k, tap = axis("k", TAPS)
    value = ln.load("x", tap - 1, F32, (tap - 1, -tap + 1), bits(0.0))
    total = ln.Reduction("r", ops.SUM_REDUCE, F32, (ln.Loop(k, TAPS, "serial", ()),), (), value)
    body = (total, ln.Store("out", 0, ln.temporary("r", F32)))
    nest = ClipReduction("k")(ln.LoopNest((ln.Array("out", F32, True), ln.Array("x", F32, False)), (), body))
    clipped = nest.body[0]
    assert isinstance(clipped, ln.Reduction) and [loop.extent for loop in clipped.loops] == [1]
    arrays = {"out": np.zeros(1, np.float32), "x": np.full(1, 7, np.float32)}
    interpreter.run(nest, arrays)
    assert arrays["out"][0] == 7


def test_the_inner_region_has_no_mask() -> None:
    lines = nest_text(SplitRegion("i", (1, 8))(windows())).splitlines()
    inner = lines.index("  serial i < 7:")
    assert " if " in "\n".join(lines[:inner]) and " if " not in "\n".join(lines[inner : inner + 5])


def test_terms_outside_a_border_are_left_out() -> None:
    """The first output has no left neighbour: of its three terms two are left."""
    nest = UnrollAndJam("c", "k")(SplitRegion("i", (1, 8))(windows()))
    first = nest.body[0]
    assert isinstance(first, ln.Reductions)
    assert first.names == ("r_0", "r_1", "r_2") and len(first.terms) == 2 * CHANNELS


@pytest.mark.parametrize(
    ("nest", "transform", "reason"),
    [
        (windows, ClipReduction("c"), "no reduction runs over 'c'"),
        (lambda: windows(1.0), ClipReduction("k"), "leaves terms that change nothing"),
        (lambda: windows(finite=False), ClipReduction("k"), "leaves terms that change nothing"),
        (lambda: windows(0.0, reduce=ops.MAX_REDUCE), ClipReduction("k"), "leaves terms that change nothing"),
        (lambda: ClipReduction("k")(windows()), Vectorise("i", 4), "how far a loop or a reduction runs depends on 'i'"),
        (windows, SplitRegion("k", (1,)), "no loop over 'k'"),
        (windows, SplitRegion("i", (3, 3)), "do not cut"),
        (windows, SplitRegion("i", (9,)), "do not cut"),
        (windows, UnrollAndJam("k"), "no loop over 'k'"),
        (windows, UnrollAndJam("i"), "a loop lies inside"),
        (windows, UnrollAndJam("c", "i"), "has k < 3 innermost"),
        (lambda: Split("c", 2)(windows()), UnrollAndJam("c_0"), "of extent min"),
    ],
)
def test_an_illegal_transform_says_why(nest: Callable[[], ln.LoopNest], transform: Transform, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        transform(nest())


def test_vectors_run_equally_far_in_every_lane() -> None:
    """Without the loop over channels, how far the clipped reduction runs depends on the vectors' axis."""
    nest = windows()
    (outer,) = nest.body
    assert isinstance(outer, ln.Loop) and isinstance(outer.body[0], ln.Loop)
    flat = ln.LoopNest(nest.arrays, (), (ln.Loop(outer.axis, SIZE, "serial", outer.body[0].body),))
    with pytest.raises(ScheduleError, match="depends on 'i'"):
        Vectorise("i", 4)(ClipReduction("k")(flat))


def test_an_array_said_to_be_finite_is() -> None:
    arrays = {"out": np.zeros(27, np.float32), "x": np.zeros(27, np.float32), "w": np.full(3, np.inf, np.float32)}
    with pytest.raises(SpecError, match="finite"):
        interpreter.run(windows(), arrays)


# ---- whole kernels ---------------------------------------------------------------------------------------------------


def program(source: Source, *outputs: Node, names: dict[Node, str] | None = None, target: str = "avx512") -> Program:
    dims = tuple({v for n in source.nodes for d in n.shape for v in sym.variables(d)})
    named = tuple((f"y{k}", node) for k, node in enumerate(outputs))
    return compile_graph(Graph("g", tuple(source.nodes), named, dims, names=names or {}), targets.ALL[target])


def kernel(found: Program, kind: str) -> Kernel:
    """The only kernel of a kind."""
    (only,) = (k for k in found.kernels if k.name.startswith(kind))
    return only


@pytest.mark.parametrize("target", [target.name for target in INSTRUCTION_SETS])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_a_sum_over_windows_of_one_channel_reads_nothing_twice(target: str, stride: int, dilation: int) -> None:
    s = Source()
    x = contraction.conv(s.input(BATCH, 8, 28, 28), s.weight(32, 8, 1, 1))
    pads = [dilation] * 2
    weight, bias = s.weight(32, 1, 3, 3), s.weight(32)
    y = contraction.conv(x, weight, bias, [stride] * 2, pads, pads, [dilation] * 2, groups=32)
    z = contraction.conv(y, s.weight(8, 32, 1, 1))
    found = program(s, z, names={weight: "filter"}, target=target)
    row = kernel(found, "row")
    assert not is_masked(row.nest) and transforms(row, UnrollAndJam)
    assert any(isinstance(statement, ln.Reductions) for statement in walk.statements(row.nest.body))
    assert found.constants["filter"].shape == (1, 3, 3, 32)
    np.testing.assert_array_equal(found.constants["filter"], weight.attr.array.transpose(1, 2, 3, 0))
    assert len(list(artifact.unchanged(found))) == len(found.constants)


@pytest.mark.parametrize("target", [target.name for target in INSTRUCTION_SETS])
@pytest.mark.parametrize(("size", "taps"), [(30, 31), (30, 61), (100, 31), (33, 9), (2, 3), (17, 17), (9, 1)])
def test_windows_of_every_length(size: int, taps: int, target: str) -> None:
    """Wider than the input, wider than several tiles of the border, and with a last tile that is not full."""
    s = Source()
    x = contraction.conv(s.input(1, 4, size), s.weight(16, 4, 1))
    y = contraction.conv(x, s.weight(16, 1, taps), None, [1], [taps // 2], [taps // 2], groups=16)
    y = contraction.conv(y, s.weight(3, 16, 1))
    found = run_program(program(s, y, target=target), s.arrays)["y0"]
    expected = interp.run(Graph("g", tuple(s.nodes), (("y0", y),), ()), s.arrays).outputs[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_the_tiles_of_an_absurd_length_are_not_tried_one_by_one() -> None:
    s = Source()
    x = ir.input_("x", (1, 4, 2**40), types.f32)
    y = contraction.conv(contraction.conv(x, s.weight(16, 4, 1)), s.weight(16, 1, 3), None, [1], [1], [1], groups=16)
    y = contraction.conv(y, s.weight(3, 16, 1))
    found = compile_graph(Graph("long", (x,), (("y", y),)), targets.ALL["avx2"])
    assert transformed(found, SplitRegion)


def test_a_maximum_over_windows_has_no_mask_and_shares_its_reads() -> None:
    s = Source()
    x = contraction.conv(s.input(1, 8, 28, 28), s.weight(32, 8, 1, 1))
    y = contraction.conv(pooling.max_pool(x, [3, 3], [2, 2], [1, 1], [1, 1]), s.weight(8, 32, 1, 1))
    row = kernel(program(s, y), "row")
    assert not is_masked(row.nest) and transforms(row, UnrollAndJam)


def test_sizes_that_are_not_known_bound_the_loops() -> None:
    s = Source()
    high, wide = sym.var("batch", 1, 40), sym.var("seq", 3, 40)
    x = contraction.conv(s.input(1, 8, high, wide), s.weight(32, 8, 1, 1))
    y = contraction.conv(x, s.weight(32, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], groups=32)
    row = kernel(program(s, contraction.conv(y, s.weight(8, 32, 1, 1))), "row")
    assert not is_masked(row.nest) and len(transforms(row, ClipReduction)) == 2


def test_a_weight_that_is_not_finite_keeps_its_mask() -> None:
    """Zero times infinity is NaN at the border, too."""
    s = Source()
    weight = s.weight(16, 1, 3, 3)
    values = weight.attr.array.copy()
    values[0, 0, 0, 0] = np.inf
    x = contraction.conv(s.input(1, 8, 8, 8), s.weight(16, 8, 1, 1))
    y = contraction.conv(x, ir.constant(values), None, [1, 1], [1, 1], [1, 1], groups=16)
    assert is_masked(kernel(program(s, contraction.conv(y, s.weight(8, 16, 1, 1))), "row").nest)


def test_a_loop_that_one_of_two_reductions_needs_whole_is_not_clipped() -> None:
    """Padding with -inf changes no maximum, but adds a term to the sum of what the maximum is subtracted from."""
    s = Source()
    x = movement.pad(s.input(3, 4, 20), [0, 2, 0], [0, 1, 0], -np.inf)
    most = ir.reduce(ops.MAX_REDUCE, x, [1, 2])
    total = ir.reduce(
        ops.SUM_REDUCE, activation.sigmoid(x - ir.expand(movement.unsqueeze(most, [1, 2]), x.shape)), [1, 2]
    )
    found = program(s, total)
    assert not transforms(kernel(found, "row"), ClipReduction)
    expected = interp.run(Graph("g", tuple(s.nodes), (("y0", total),), ()), s.arrays).outputs[0]
    np.testing.assert_allclose(run_program(found, s.arrays)["y0"], expected, rtol=1e-5)


# ---- the order of constants ------------------------------------------------------------------------------------------


def test_a_constant_is_stored_as_its_largest_reader_writes() -> None:
    s = Source()
    table = s.weight(4, 6)
    small = s.input(4, 6) * table
    large = s.input(BATCH, 50, 6, 4) * ir.view(
        table, (BATCH, 50, 6, 4), [ir.axes((BATCH, 50, 6, 4))[k] for k in (3, 2)]
    )
    found = program(s, small, large, names={table: "table"})
    np.testing.assert_array_equal(found.constants["table"], table.attr.array.T)
    (buffer,) = (b for b in found.buffers if b.name == "table")
    assert buffer.order == (1, 0) and buffer.shape == (4, 6)


def test_a_constant_that_all_read_along_memory_stays() -> None:
    s = Source()
    table = s.weight(4, 6)
    found = program(s, s.input(BATCH, 4, 6) * table, names={table: "table"})
    np.testing.assert_array_equal(found.constants["table"], table.attr.array)


def test_what_is_cut_at_zero_is_stored_before_a_mean_not_what_it_is_chosen_from() -> None:
    """A mask and what it chooses from would be two values where one is enough."""
    s = Source()
    x = activation.relu(contraction.conv(s.input(1, 32, 7, 7), s.weight(64, 32, 1, 1)))
    y = ir.reduce(ops.SUM_REDUCE, x, [2, 3])
    found = program(s, y)
    assert types.bool_ not in {buffer.dtype for buffer in found.buffers}
    expected = interp.run(Graph("g", tuple(s.nodes), (("y0", y),), ()), s.arrays).outputs[0]
    np.testing.assert_allclose(run_program(found, s.arrays)["y0"], expected, rtol=1e-5)


def test_what_is_stored_anyway_is_read_in_parts() -> None:
    """A product of two outputs would be a third value in memory."""
    s = Source()
    x = contraction.conv(s.input(1, 32, 7, 7), s.weight(64, 32, 1, 1))
    a, b = activation.relu(x), x * 3.0
    found = program(s, a, b, ir.reduce(ops.SUM_REDUCE, a * b, [2, 3]))
    whole = [buffer for buffer in found.buffers if buffer.space != "constant" and buffer.shape == a.shape]
    assert len(whole) == 2
