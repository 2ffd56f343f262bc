"""What tiles fetch before they need it: the next panel, rows further on, and what their results are computed with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import luminal
from luminal.core import ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.costs import COSTS
from luminal.core.decompose import contraction as decompose
from luminal.core.errors import ScheduleError
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.nest import interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import wrap
from luminal.core.schedule.nest.walk import perfect_loops
from luminal.core.schedule.transform import loops as transforms
from luminal.core.schedule.transform.fetch import FetchAhead, FetchResults, FetchRows
from luminal.core.schedule.transform.tensorise import Tensorise
from luminal.core.symbolic import Int
from luminal.core.target import Target
from tests.compiled_support import assert_computes
from tests.schedule_support import transformed
from tests.test_blocking import TILED, run_product, serial_product, tiles

F32 = types.f32


def test_fetching_changes_no_value() -> None:
    nest = serial_product(10, 24, 12)
    ahead = (*TILED, FetchAhead("j_1"), FetchRows())
    np.testing.assert_array_equal(run_product(transforms.apply(nest, ahead)), run_product(nest))


def test_all_of_the_next_panel_is_fetched() -> None:
    nest = transforms.apply(serial_product(10, 24, 12), (*TILED, FetchAhead("j_1")))
    (contract,) = (s for s in walk.statements(nest.body) if isinstance(s, ln.Contract))
    assert contract.b_ahead is not None
    points = [
        sym.evaluate(contract.b_ahead, {"j_1": 0, "i_1": i, "k_1": k_1, "k_0": k_0})
        for i in range(3) for k_1 in range(3) for k_0 in range(4)
    ]  # fmt: skip
    assert points[0] == 8 * 12 and points[-1] < 8 * 12 * 2 + 3 * 12
    assert max(b - a for a, b in pairwise(points)) <= 3


def test_a_single_tile_fetches_no_panel() -> None:
    """It reads a panel once: its steps are a stream, of which the next panel would be fetched too early."""
    schedule = (Tensorise("i", "j", 4, 8, 8), FetchAhead("j_1"))
    with pytest.raises(ScheduleError, match="a single tile of vectors"):
        transforms.apply(serial_product(4, 48, 40), schedule)
    nest = transforms.apply(serial_product(sym.var("rows", 1, 40), 48, 40), schedule)
    (contract,) = (s for s in walk.statements(nest.body) if isinstance(s, ln.Contract))
    assert contract.b_ahead is not None
    place = {"j_1": 2, "i_1": 0, "k": 7}
    one, two = (sym.evaluate(contract.b_ahead, {**place, "rows": rows}) for rows in (4, 8))
    assert one == (2 * 40 + 7) * 8 and two == (3 * 40) * 8 + 7 * 4


def test_a_line_of_each_row_of_a_later_tile_is_fetched() -> None:
    """Of rows of 48 elements: three lines of 16, for each row, and for those that follow in as many steps."""
    nest = transforms.apply(
        serial_product(40, 24, 48), (transforms.Split("k", 16), Tensorise("i", "j", 10, 8, 8), FetchRows())
    )
    (contract,) = (s for s in walk.statements(nest.body) if isinstance(s, ln.Contract))
    assert contract.a_ahead is not None
    places = [{"i_first": 10, "k_1": k_1, "k_0": k_0} for k_1 in range(3) for k_0 in range(16)]
    fetched = {sym.evaluate(contract.a_ahead, place) // 16 for place in places}
    first = 10 * (1 + COSTS.prefetch.tiles)
    assert fetched == {3 * row + line for row in range(first, first + 16) for line in range(3)}


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "fetched"),
    [
        (25088, 64, 256, True),  # 25 MB that few panels read
        (25088, 1024, 256, False),  # most tiles read what others of the same rows have read
        (196, 64, 256, False),  # the second-level cache has A still
        (28, 32, 16384, False),  # no tiles follow
        (1 << 18, 32, 8, False),  # too few steps to bring a line of each row
    ],
    ids=str,
)
def test_rows_are_fetched_where_they_stream(rows: int, columns: int, depth: int, fetched: bool) -> None:
    x, weight = ir.input_("x", (rows, depth), F32), ir.constant(np.zeros((columns, depth), np.float32))
    (contract,) = tiles(decompose.linear(x, weight, None), x)
    assert (contract.a_ahead is not None) == fetched


def test_rows_are_fetched_for_few_panels() -> None:
    x = ir.input_("x", (6272, 256), F32)
    found = {}
    for columns in range(256, 769, 64):
        weight = ir.constant(np.zeros((columns, 256), np.float32))
        (contract,) = tiles(decompose.linear(x, weight, None), x)
        found[-(-columns // contract.columns)] = contract.a_ahead is not None
    assert found == {panels: panels <= COSTS.tiles.few_panels for panels in found} and len(set(found.values())) == 2


@pytest.mark.parametrize(
    ("kernel", "stride", "fetched"),
    [
        ((1, 1), 1, True),
        ((1, 1), 2, False),  # what lies further on is another line's, which no tile reads
        ((3, 3), 1, False),
    ],
    ids=str,
)
def test_rows_are_fetched_where_they_follow_each_other(kernel: tuple[int, int], stride: int, fetched: bool) -> None:
    pixels = ir.input_("x", (8, 56, 56, 128), F32)
    weight = ir.constant(np.zeros((64, 128, *kernel), np.float32))
    found = tiles(decompose.conv(movement.permute(pixels, (0, 3, 1, 2)), weight, strides=(stride, stride)), pixels)
    assert [contract.a_ahead is not None for contract in found] == [fetched]


def test_rows_that_overlap_are_not_fetched() -> None:
    """Windows of one dimension: a tile reads each line several times."""
    samples = ir.input_("x", (1, 60000, 64), F32)
    for taps in (1, 3):
        weight = ir.constant(np.zeros((64, 64, taps), np.float32))
        (contract,) = tiles(decompose.conv(movement.permute(samples, (0, 2, 1)), weight), samples)
        assert (contract.a_ahead is not None) == (taps == 1)


# ---- what results are computed with ----------------------------------------------------------------------------------

ROWS, COLUMNS, DEPTH = 10, 24, 12


def with_addend(addend: Int, valid: tuple[Int, ...] = (), panel: int = 8) -> ln.LoopNest:
    """``serial_product``, to which the element ``addend`` of d is added; e receives it in float16."""
    nest = serial_product(ROWS, COLUMNS, DEPTH, panel)
    loops, (total, store) = perfect_loops(nest.body)
    assert isinstance(store, ln.Store)
    value = ln.apply(ops.ADD, (store.value, ln.load("d", addend, F32, valid, bytes(4))), None, F32)
    half = ln.Store("e", store.offset, ln.apply(ops.CAST, (value,), ops.To(types.f16), types.f16))
    body = wrap(loops, (total, replace(store, value=value), half))
    more = (ln.Array("d", F32, False), ln.Array("e", types.f16, True))
    return replace(nest, arrays=(*nest.arrays, *more), body=body)


NO_LINES = "no tile whose results are computed with rows of an array"
ROW, COLUMN = sym.axis("i", ROWS), sym.axis("j", COLUMNS)


def lines(body: tuple[ln.Statement, ...], at: dict[str, int]) -> Iterator[tuple[str, str, int]]:
    """What ``body`` does to cache lines, in order: ``fetch`` and ``use``, and an array's name and the line's number;
    and where a ``tile`` is summed."""
    sizes = {"c": 4, "d": 4, "e": 2}

    def line(what: str, array: str, offset: Int) -> tuple[str, str, int]:
        return what, array, sym.evaluate(offset, at) * sizes[array] // COSTS.prefetch.line

    for statement in body:
        if isinstance(statement, ln.Loop):
            for k in range(sym.evaluate(statement.extent, at)):
                yield from lines(statement.body, {**at, statement.axis.name: k})
        elif isinstance(statement, ln.Assign):
            at = {**at, statement.axis.name: sym.evaluate(statement.value, at)}
        elif isinstance(statement, ln.Contract):
            yield "tile", "", 0
        elif isinstance(statement, ln.Prefetch):
            yield line("fetch", statement.array, statement.offset)
        elif isinstance(statement, ln.Store):
            yield line("use", statement.array, statement.offset)
            yield from (line("use", x.array, x.offset) for x in walk.accesses(statement.value) if x.array == "d")


@pytest.mark.parametrize("panel", [8, 24])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_lines_that_results_need_are_fetched_before_their_tile(rows: int, panel: int) -> None:
    """Rows of 24 elements: every other one begins in the middle of a line of 16 floats."""
    tiled = transforms.Split("k", 4), Tensorise("i", "j", rows, panel, 8), FetchResults()
    nest = transforms.apply(with_addend(ROW * COLUMNS + COLUMN, panel=panel), tiled)
    fetched: set[tuple[str, int]] = set()
    used: set[tuple[str, int]] = set()
    tiles, before = 0, ""
    for what, array, number in (*lines(nest.body, {}), ("fetch", "", 0)):
        if what == "fetch" and before == "use":
            assert used == fetched and {name for name, _ in used} == {"c", "d", "e"}
            fetched, used = set(), set()
        if what == "tile":
            tiles += 1
        else:
            (fetched if what == "fetch" else used).add((array, number))
        before = what
    assert tiles == -(-ROWS // rows) * (COLUMNS // panel)


def test_fetching_results_changes_no_value() -> None:
    random = np.random.default_rng(3)
    given = {
        "a": random.integers(-9, 9, ROWS * DEPTH).astype(np.float32),
        "b": random.integers(-9, 9, DEPTH * COLUMNS).astype(np.float32),
        "d": random.integers(-9, 9, ROWS * COLUMNS).astype(np.float32),
    }
    found = []
    for schedule in ((), (*TILED, FetchResults()), (*TILED, transforms.Parallelise(1), FetchResults())):
        written = {"c": np.zeros(ROWS * COLUMNS, np.float32), "e": np.zeros(ROWS * COLUMNS, np.float16)}
        interpreter.run(transforms.apply(with_addend(ROW * COLUMNS + COLUMN), schedule), {**given, **written})
        found.append(written)
    for other in found[1:]:
        for name, array in other.items():
            np.testing.assert_array_equal(array, found[0][name])


@pytest.mark.parametrize(
    ("nest", "schedule", "reason"),
    [
        (serial_product(10, 24, 12), (*TILED, FetchAhead("l_1")), "no outer loop over 'l_1'"),
        (serial_product(10, 24, 12), (FetchAhead("i"),), "there is no tile"),
        (
            serial_product(10, 24, 12),
            (*TILED, transforms.Reorder(("i_1", "j_1")), FetchAhead("i_1")),
            "B moves with j_1 too",
        ),
        (serial_product(10, 24, 12), (FetchRows(),), "there is no tile"),
        (
            serial_product(10, 24, 12),
            (Tensorise("i", "j", 20, 8, 8), FetchRows()),
            "20 rows of a tile are not runs of a",
        ),
        (serial_product(10, 24, 12), (FetchResults(),), NO_LINES),
        (serial_product(10, 24, 12), (*TILED, FetchResults()), NO_LINES),
        (with_addend(COLUMN), (*TILED, FetchResults()), NO_LINES),  # the same in all rows
        (with_addend(COLUMN * ROWS + ROW), (*TILED, FetchResults()), NO_LINES),  # columns lie apart
        (with_addend(ROW * COLUMNS + COLUMN, (ROW - 1,)), (*TILED, FetchResults()), NO_LINES),  # masked
    ],
)
def test_an_illegal_fetch_says_why(nest: ln.LoopNest, schedule: transforms.Schedule, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        transforms.apply(nest, schedule)


def residual(rows: Int, columns: int, depth: int) -> ir.Graph:
    """A linear layer whose result is added to another value."""
    x, before = ir.input_("x", (rows, depth), F32), ir.input_("before", (rows, columns), F32)
    weight = ir.constant(np.random.default_rng(1).standard_normal((columns, depth)).astype(np.float32))
    dims = () if isinstance(rows, int) else tuple(sym.variables(rows))
    result = ir.elementwise(ops.ADD, decompose.linear(x, weight, None), before)
    return ir.Graph("residual", (x, before), (("y", result),), dims)


@pytest.mark.parametrize(
    ("rows", "fetches"),
    [
        (1500, True),  # 2.3 MB twice, in 1 MiB. Measured: a layer takes 0.85 to 0.95 of the time
        (64, False),  # 200 KB stay in the cache
        (sym.var("rows", 1, 1500), False),  # typically 38 rows
        (sym.var("rows", 700, 1500), True),
    ],
    ids=str,
)
def test_what_results_need_is_fetched_where_the_cache_has_lost_it(rows: Int, fetches: bool) -> None:
    program = compile_graph(residual(rows, 384, 384), targets.AVX512)
    assert bool(transformed(program, FetchResults)) == fetches


@pytest.mark.parametrize(
    ("rows", "columns", "low", "high", "target"),
    [
        (701, 392, 700, 1500, replace(targets.detect(), l2=1 << 20)),
        (1500, 392, 700, 1500, replace(targets.detect(), l2=1 << 20)),
        (2, 16416, 1, 3, targets.AVX2),  # in tiles of one row
    ],
    ids=["701", "1500", "one row"],
)
def test_generated_code_fetches_and_computes(rows: int, columns: int, low: int, high: int, target: Target) -> None:
    if not targets.supported(target):
        pytest.skip(targets.obstacle(target))
    graph = residual(sym.var("rows", low, high), columns, 64)
    random = np.random.default_rng(rows)
    widths = {"x": 64, "before": columns}
    given = {name: random.standard_normal((rows, width)).astype(np.float32) for name, width in widths.items()}
    module = luminal.compile(graph, target=target)
    texts = [path.read_text() for path in module.folder.glob("kernels/*.cpp")]
    assert any("FetchResults()" in text and "prefetch(x" in text.partition("static void")[2] for text in texts)
    assert_computes(graph, given, list(module.run(given).values()), 64)
