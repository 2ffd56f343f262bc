"""Fusion, layouts, schedules and the memory plan: every loop nest against the interpreter of graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from luminal.core import interp, ir, movement, ops, structured, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.costs import COSTS
from luminal.core.decompose import activation, contraction, reduction, scattering
from luminal.core.errors import ScheduleError
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.choose import cpu
from luminal.core.schedule.contraction.contracted import contractions
from luminal.core.schedule.contraction.contraction import Tile
from luminal.core.schedule.fusion import fuse, layout
from luminal.core.schedule.fusion.cluster import Cluster, Fusion
from luminal.core.schedule.grid import divide, sort_rows
from luminal.core.schedule.lower import clusters as lower
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import operands, walk
from luminal.core.schedule.nest.rewrite import wrap
from luminal.core.schedule.nest.text import nest_text
from luminal.core.schedule.nest.walk import perfect_loops
from luminal.core.schedule.prepare.graph import prepare
from luminal.core.schedule.program import arena
from luminal.core.schedule.program.ir import ALIGNMENT, Loop
from luminal.core.schedule.transform import loops as transforms
from luminal.core.schedule.transform.accumulate import Accumulate
from luminal.core.schedule.transform.tensorise import Tensorise
from tests.schedule_graphs import BATCH, GRAPHS, SEQ, Source
from tests.schedule_support import check_outputs, refusals, run_program, transformed

pytestmark = pytest.mark.usefixtures("sums_as_spelled")


@pytest.mark.parametrize(
    "target", [targets.X86_64, targets.AVX512, targets.GPUS["cuda:sm_90"], targets.GPUS["metal"]], ids=lambda t: t.name
)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_nest_computes_what_the_graph_says(name: str, target: targets.Target) -> None:
    case = GRAPHS[name]()
    expected = interp.run(case.graph, case.inputs).outputs
    found = run_program(compile_graph(case.graph, target), case.inputs)
    check_outputs(case.graph, expected, found, case.depth)


def clusters(source: Source, *outputs: ir.Node) -> tuple[Fusion, layout.Layouts]:
    prepared = prepare(outputs, contractions(outputs), targets.AVX512, {})
    fusion = fuse.fuse(prepared.roots, prepared.contractions)
    return fusion, layout.assign_layouts(fusion)


def kinds(fusion: Fusion) -> list[str]:
    return sorted(cluster.kind for cluster in fusion.clusters)


def test_softmax_is_one_kernel_and_costly_rows_are_kept() -> None:
    source = Source()
    fusion, arranged = clusters(source, reduction.softmax(source.input(4, 33), -1))
    assert kinds(fusion) == ["row"]
    nest = lower.lower(fusion.clusters[0], arranged, targets.X86_64).nest
    assert sum(type(s).__name__ == "Alloc" for s in walk.statements(nest.body)) == 1


@pytest.mark.parametrize(
    ("build", "along"),
    [
        (lambda x, b: reduction.softmax(x, 0), "vector a1"),  # loops of stores inside the vectors
        (lambda x, b: reduction.sum_(x, 1) + b, "vector a1"),  # one read of b for each row counts for little
        (lambda x, b: reduction.sum_(x, 0), "side by side"),
        (lambda x, b: reduction.sum_(x, 0) + reduction.max_(x, 0), "side by side"),
    ],
)
def test_vectors_go_along_memory_whatever_is_reduced(build: Callable[..., ir.Node], along: str) -> None:
    source = Source()
    result = build(source.input(48, 64), source.input(48))
    (kernel,) = compile_graph(ir.Graph("g", tuple(source.nodes), (("y", result),)), targets.AVX512).kernels
    assert along in nest_text(kernel.nest)
    assert_as_the_interpreter(source, result)


@pytest.mark.parametrize(("shape", "tasks"), [((9, 4096), 32), ((2, 9, 999), 8), ((64, 9, 100), 64)])
def test_columns_are_divided_where_there_are_few_tasks(shape: tuple[int, ...], tasks: int) -> None:
    x = ir.input_("x", shape, types.f32)
    graph = ir.Graph("g", (x,), (("y", reduction.sum_(x, len(shape) - 2)),))
    (kernel,) = compile_graph(graph, targets.AVX512).kernels
    assert math.prod(sym.upper(loop.extent) or 0 for loop in kernel.nest.tasks) == tasks


@pytest.mark.parametrize(("threads", "tasks"), [(2, 64), (16, 64), (64, 64 * 32)])
def test_many_threads_have_several_tasks_each(threads: int, tasks: int) -> None:
    source = Source()
    result = reduction.softmax(source.input(64, 32, 300) + source.input(64, 1, 300), 2)
    graph = ir.Graph("rows", tuple(source.nodes), (("y", result),))
    (kernel,) = compile_graph(graph, replace(targets.AVX512, threads=threads)).kernels
    assert kernel.nest.task_count == tasks


@pytest.mark.parametrize(("channels", "vectors"), [(3, True), (4, True), (5, False)])
def test_stores_into_shared_cache_lines_do_not_keep_vectors_away(channels: int, vectors: bool) -> None:
    x = ir.input_("x", (channels, 777), types.f32)
    graph = ir.Graph("turned", (x,), (("y", movement.transpose(x, 0, 1) * 2.0),))
    assert bool(transformed(compile_graph(graph, targets.AVX512), transforms.Vectorise)) is vectors


def test_a_choice_by_no_condition_is_what_it_chooses() -> None:
    one, other = ln.load("x", 0, types.f32), ln.load("y", 0, types.f32)
    assert ln.select((), one, other) is one
    assert ln.select((sym.var("i", 0, 3),), one, other) is not one


def test_what_reads_the_same_input_is_one_kernel() -> None:
    source = Source()
    x = source.input(4, 33)
    fusion, _ = clusters(source, ir.select(x < 0, x * -2.0, x + 1.0))
    assert kinds(fusion) == ["map"]


def costly(x: ir.Node) -> ir.Node:
    return ir.unary(ops.SIN, x)


def triangle(x: ir.Node) -> ir.Node:
    """``x`` below its diagonal, sevens above."""
    row, column = ir.axes(x.shape)
    return ir.view(x, x.shape, (row, column), (row - column,), np.float32(7).tobytes())


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b, c: [costly(a) * costly(b) + costly(c)], ["map"]),
        (lambda a, b, c: [costly(a), costly(a) * costly(b)], ["map"]),
        (lambda a, b, c: [costly(a) * costly(b), costly(a) + costly(b)], ["map"]),
        (lambda a, b, c: [reduction.softmax(costly(a) * costly(b), -1)], ["row"]),
        (lambda a, b, c: [reduction.softmax(a, -1) * costly(b)], ["row"]),
        (lambda a, b, c: [costly(b) * reduction.softmax(a, -1)], ["row"]),
        (lambda a, b, c: [triangle(costly(a)) * costly(b)], ["map"]),
        (lambda a, b, c: [costly(b) * triangle(costly(a))], ["map"]),
        (lambda a, b, c: [costly(a), triangle(costly(a)) * 2.0], ["map"]),
        # Another kernel reads the sine, or reads it elsewhere, or there are more columns than it has.
        (lambda a, b, c: [costly(a) * costly(b), reduction.softmax(costly(a), 0)], ["map", "row"]),
        (lambda a, b, c: [movement.flip(costly(a), [1]) * costly(b)], ["map", "map"]),
        (lambda a, b, c: [costly(movement.slice_(a, 1, 0, 1)) * costly(b)], ["map", "map"]),
    ],
)
def test_operands_over_one_domain_are_computed_by_their_reader_s_kernel(
    build: Callable[..., list[ir.Node]], expected: list[str]
) -> None:
    source = Source()
    outputs = build(*(source.input(6, 33) for _ in range(3)))
    fusion, _ = clusters(source, *outputs)
    assert kinds(fusion) == expected
    assert_as_the_interpreter(source, *outputs)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b: [reduction.sum_(a, 1), reduction.sum_(a * a, 1), reduction.min_(a, 1)], ["row"]),
        (lambda a, b: [reduction.sum_(a, 1), reduction.sum_(a * b, 1)], ["row"]),
        (lambda a, b: [reduction.softmax(a, -1), reduction.sum_(triangle(a), 1)], ["row"]),
        (lambda a, b: [reduction.sum_(costly(a), 1), reduction.max_(costly(a), 1)], ["row"]),
        (lambda a, b: [reduction.sum_(a, 1), a + 1.0], ["row"]),
        (lambda a, b: [reduction.sum_(a, 0), a + b], ["row"]),
        # Other rows, or another value, or one that needs what the first gives.
        (lambda a, b: [reduction.sum_(a, 1), reduction.sum_(a, 0)], ["row", "row"]),
        (lambda a, b: [reduction.sum_(a, 1), reduction.sum_(b, 1)], ["row", "row"]),
        (lambda a, b: [reduction.sum_(a * reduction.sum_(reduction.sum_(a, 1), 0), 1)], ["row", "row", "row"]),
    ],
)
def test_reductions_of_the_rows_of_one_value_are_one_kernel(
    build: Callable[..., list[ir.Node]], expected: list[str]
) -> None:
    source = Source()
    outputs = build(source.input(16, 33), source.input(16, 33))
    fusion, _ = clusters(source, *outputs)
    assert kinds(fusion) == expected
    assert_as_the_interpreter(source, *outputs)


@pytest.mark.parametrize("axes", [[0, 1], [1]])
def test_elements_do_not_join_so_few_rows_that_threads_would_wait(axes: list[int]) -> None:
    source = Source()
    x = source.input(4, 3000)
    assert kinds(clusters(source, reduction.sum_(x, axes), costly(x))[0]) == ["map", "row"]


def test_what_many_steps_share_is_not_walked_through_once_for_each_way_to_it() -> None:
    """Of positions, where nothing is stored, and of an input: there are 2**40 ways."""
    source = Source()
    places, x = ir.iota(sym.var("n", 1, 99)), source.input(33, dtype=types.i64)
    for step in range(40):
        places = ir.select(places < step, places + 1, places * 2)
        x = ir.binary(ops.XOR, x, x * (step + 2))
    count = ir.input_("count", (sym.var("n", 1, 99),), types.i64)
    graph = ir.Graph("g", (count, *source.nodes), (("y", places + count), ("z", x)), (sym.Var("n", 1, 99),))
    assert len(compile_graph(graph, targets.AVX512).kernels) == 2


def test_long_expressions_do_not_become_one_longer_still() -> None:
    """Where two kernels together would hold more operations inside each other than one may."""
    source = Source()
    sides = [source.input(6, 33), source.input(6, 33)]
    for _ in range(fuse.MOST_NESTED // 2 + 10):
        sides = [costly(side) for side in sides]
    assert kinds(clusters(source, sides[0] * sides[1])[0]) == ["map", "map"]


@pytest.mark.parametrize("operand", [costly, activation.relu, lambda x: x], ids=["costly", "cheap", "as it is"])
def test_a_kernel_of_many_operands_reads_no_more_arrays_than_are_fetched_ahead(
    operand: Callable[[ir.Node], ir.Node],
) -> None:
    source = Source()
    total, *others = (operand(source.input(33)) for _ in range(3 * COSTS.kernels.sources - 2))
    for other in others:
        total = total + other
    graph = ir.Graph("many", tuple(source.nodes), (("y", total),))
    launches = list(compile_graph(graph, targets.AVX512).entries[0].launches)
    assert len(launches) == 3 and all(len(launch.arguments) <= COSTS.kernels.sources + 1 for launch in launches)
    assert_as_the_interpreter(source, total)


def test_a_row_keeps_what_costly_values_are_computed_for() -> None:
    """The sum of two that are looked up, not each of them; but nothing past what is stored."""
    source = Source()
    tables = [source.weight(9, 33) for _ in range(2)]
    looked_up = [ir.gather(table, source.input(4, dtype=types.i64, below=9), 0) for table in tables]
    total = looked_up[0] + looked_up[1]
    mean = reduction.mean(total, [-1], keepdims=True)
    centred = total - ir.expand(mean, (4, 33))
    outputs = [centred * ir.expand(reduction.mean(centred * centred, [-1], keepdims=True), (4, 33))]
    for stored, names in (([], ["row0"]), (looked_up[:1], ["row0", "row1"])):
        fusion, arranged = clusters(source, *outputs, *stored)
        (cluster,) = fusion.clusters
        body = lower.lower(cluster, arranged, targets.AVX512).nest.body
        assert [s.name for s in walk.statements(body) if isinstance(s, ln.Alloc)] == names
        assert_as_the_interpreter(source, *outputs, *stored)


def test_a_row_keeps_costly_values_in_as_few_bytes_as_they_have() -> None:
    source = Source()
    looked_up = ir.gather(source.weight(9, 33, dtype=types.f16), source.input(4, dtype=types.i64, below=9), 0)
    total = ir.cast(looked_up, types.f32)
    fusion, arranged = clusters(source, reduction.softmax(total, -1), total)
    body = lower.lower(fusion.clusters[0], arranged, targets.AVX512).nest.body
    assert types.f16 in [s.dtype for s in walk.statements(body) if isinstance(s, ln.Alloc)]


def test_neighbours_of_what_was_computed_are_read_by_one_kernel() -> None:
    """Each of two outputs of windows that are two apart; in the end they lie between each other."""
    case = GRAPHS["interleaved"]()
    prepared = prepare(case.graph.roots, contractions(case.graph.roots), targets.AVX512, {})
    fusion = fuse.fuse(prepared.roots, prepared.contractions)
    arranged = layout.assign_layouts(fusion)
    (writing,) = (c for c in fusion.clusters if c.kind == "map" and any(n.op is ops.ADD for n in c.index))
    parts = [n for n in writing.index if n in fusion.stored]
    assert len(parts) == 2 and [arranged.assemblies.owner(n).shape for n in parts] == [(4, 6, 33)] * 2
    first, second = (arranged.offset(n, writing.index[n]) for n in parts)
    assert second - first == 33


def test_parts_of_two_wholes_are_written_where_they_lie_in_one() -> None:
    case = GRAPHS["two_wholes_of_a_part"]()
    prepared = prepare(case.graph.roots, contractions(case.graph.roots), targets.AVX512, {})
    placed = layout.assign_layouts(fuse.fuse(prepared.roots, prepared.contractions)).assemblies.placed
    assert len({placement.whole for placement in placed.values()}) == 2


def test_memory_holds_the_narrow_value_of_which_others_are_made() -> None:
    """Bytes, and numbers made of them that two kernels read: one sums along rows, one along columns."""
    source = Source()
    byte = ir.cast(source.input(40, 50) * 9.0, types.i8)
    number = (ir.cast(byte, types.f32) - 3.0) * 0.5
    outputs = (("rows", reduction.sum_(number, (1,))), ("columns", reduction.sum_(number, (0,))), ("bytes", byte))
    graph = ir.Graph("narrow", tuple(source.nodes), outputs)
    program = compile_graph(graph, targets.AVX512)
    assert len(program.kernels) > 1 and not any(b.dtype == types.f32 for b in program.buffers if b.space == "arena")
    expected = interp.run(graph, source.arrays)
    for (name, found), wanted in zip(run_program(program, source.arrays).items(), expected.outputs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-4, err_msg=name)


def test_a_product_of_numbers_that_are_made_of_bytes_is_tiled() -> None:
    """A tile operation converts what it loads, but computes nothing of it."""
    source = Source()
    byte = source.input(40, 64, dtype=types.u8, below=100)
    number = ir.cast(ir.cast(byte, types.i32) - 3, types.f32)
    graph = ir.Graph("tiled", tuple(source.nodes), (("y", contraction.matmul(number, source.weight(64, 50))),))
    program = compile_graph(graph, targets.AVX512)
    tiles = [s for k in program.kernels for s in walk.statements(k.nest.body) if isinstance(s, ln.Contract)]
    assert len(tiles) == 1
    np.testing.assert_allclose(
        run_program(program, source.arrays)["y"], interp.run(graph, source.arrays).outputs[0], rtol=0, atol=1e-2
    )


def test_identical_layers_share_one_kernel() -> None:
    source = Source()
    x = source.input(4, 8)
    for _ in range(5):
        x = activation.gelu(contraction.linear(x, source.weight(8, 8), source.weight(8)))
    program = compile_graph(ir.Graph("layers", tuple(source.nodes), (("y", x),)), targets.AVX512)
    assert len(program.kernels) == 1 and len(program.entries[0].steps) == 5


def test_channels_are_innermost_between_convolutions() -> None:
    source = Source()
    x = contraction.conv(source.input(1, 3, 8, 8), source.weight(4, 3, 3, 3))
    fusion, arranged = clusters(source, contraction.conv(x, source.weight(4, 4, 1, 1)))
    inner = next(n for n in fusion.stored if n.size == 4 * 6 * 6 and n.op is not ops.CONTIGUOUS)
    assert [inner.shape[axis] for axis in arranged.order(inner) if inner.shape[axis] != 1] == [6, 6, 4]


def test_what_products_read_in_every_row_lies_along_their_columns() -> None:
    source = Source()
    queries, keys = source.input(6, 3, 5), source.input(7, 3, 5)
    sums = reduction.sum_(keys * 2.0, [2])  # of each position and head
    scores = contraction.matmul(movement.permute(queries, (1, 0, 2)), movement.permute(keys, (1, 2, 0)))
    fusion, arranged = clusters(source, scores + movement.reshape(movement.permute(sums, (1, 0)), (3, 1, 7)))
    (summed,) = (n for n in fusion.stored if n.shape == (7, 3) or n.shape == (7, 3, 1))
    assert [summed.shape[axis] for axis in arranged.order(summed) if summed.shape[axis] != 1] == [3, 7]


def test_what_products_read_once_or_as_operands_stays_as_it_is() -> None:
    for padding in (0, 4):
        once = Source()
        x = reduction.softmax(once.input(60, 48), 1)
        read = movement.pad(movement.permute(x, (1, 0)), (0, 0), (0, padding))
        fusion, arranged = clusters(once, contraction.matmul(once.input(48, 20), once.input(20, 60 + padding)) + read)
        (stored,) = (n for n in fusion.stored if n.shape == (60, 48))
        assert arranged.order(stored) == (0, 1)
    operand = Source()
    x = reduction.softmax(operand.input(64, 48), 1)
    scores = contraction.matmul(operand.input(5, 48, 20), operand.input(5, 20, 64))
    added = scores + movement.unsqueeze(movement.permute(x, (1, 0)), [0])
    fusion, arranged = clusters(operand, added, contraction.matmul(x, operand.weight(48, 32)))
    (stored,) = (n for n in fusion.stored if n.shape == (64, 48))
    assert arranged.order(stored) == (0, 1)


def test_of_several_axes_of_columns_the_fastest_counts() -> None:
    source = Source()
    sums = reduction.sum_(source.input(7, 3, 5) * 2.0, [2])
    columns = movement.reshape(source.input(4, 21), (4, 3, 7))
    product = movement.unsqueeze(source.input(12, 4), [2, 3]) * movement.unsqueeze(columns, [0])
    total = ir.reduce(ops.SUM_REDUCE, product, [1])
    fusion, arranged = clusters(source, total + movement.reshape(movement.permute(sums, (1, 0)), (1, 1, 3, 7)))
    (summed,) = (n for n in fusion.stored if n.size == 21 and n.op is ops.SUM_REDUCE)
    assert [summed.shape[axis] for axis in arranged.order(summed) if summed.shape[axis] != 1] == [3, 7]


def test_weights_are_packed_at_compile_time() -> None:
    source = Source()
    weight = source.weight(40, 8)
    graph = ir.Graph(
        "packed", (source.input(4, 8),), (("y", contraction.linear(source.nodes[0], weight)),), names={weight: "w"}
    )
    program = compile_graph(graph, targets.AVX512)
    (name,) = program.constants
    assert name == "w"
    panels = program.constants[name]
    columns = panels.shape[-1]
    assert panels.shape == (-(-40 // columns), 8, columns)
    assert not panels.reshape(-1, 8, columns).transpose(0, 2, 1).reshape(-1, 8)[40:].any()


# ---- transforms: legal ones change nothing, illegal ones say why ---------------------------------------------------


def lowered_cluster(name: str, number: int = 0) -> tuple[Cluster, lower.Lowered]:
    case = GRAPHS[name]()
    prepared = prepare(case.graph.results, contractions(case.graph.results), targets.X86_64, {})
    fusion = fuse.fuse(prepared.roots, prepared.contractions)
    arranged = layout.assign_layouts(fusion)
    return fusion.clusters[number], lower.lower(fusion.clusters[number], arranged, targets.X86_64)


def serial_nest(name: str, number: int = 0) -> ln.LoopNest:
    return lowered_cluster(name, number)[1].nest


def test_a_schedule_replays_to_the_same_nest() -> None:
    cluster, lowered = lowered_cluster("softmax_and_norms")
    chosen = cpu.schedule_cluster(cluster, lowered, targets.X86_64)
    assert transforms.apply(lowered.nest, chosen.schedule) == chosen.nest
    assert hash(chosen.schedule) == hash(tuple(chosen.schedule))


@pytest.mark.parametrize("target", [targets.AVX512, targets.GPUS["cuda:sm_90"]], ids=lambda target: target.dialect)
def test_a_program_replays(target: targets.Target) -> None:
    """Every kernel is what its schedule makes of its serial nest, those of several boxes too."""
    kernels = [kernel for make in GRAPHS.values() for kernel in compile_graph(make().graph, target).kernels]
    assert [kernel.name for kernel in kernels if kernel.scheduled.replayed() != kernel.nest] == []
    assert target.grid is not None or any(kernel.scheduled.before is not None for kernel in kernels)


def test_products_in_half_precision_are_not_tiled() -> None:
    """Each product rounds to its type before it is added: a tile of float32 sums would not."""
    x = ir.input_("x", (2, 4), types.f16)
    y = ir.constant(np.array([[300, 300, 1, 1], [300, -300, 1, 1]], np.float16).T)
    product = movement.unsqueeze(x, [2]) * movement.unsqueeze(y, [0])
    graph = ir.Graph("half", (x,), (("y", ir.reduce(ops.SUM_REDUCE, product, [1])),))
    inputs = {"x": np.array([[300, 300, 1, 2], [300, 1, 1, 1]], np.float16)}
    found = run_program(compile_graph(graph, targets.X86_64), inputs)["y"]
    np.testing.assert_array_equal(found, interp.run(graph, inputs).outputs[0])
    assert np.isinf(found).any() and np.isnan(found).any()


TILED = ("linear_with_epilogue", "both_operands_computed", "attention_block", "convolution_chain")


@pytest.mark.parametrize("name", TILED)
def test_contractions_are_tiled(name: str) -> None:
    program = compile_graph(GRAPHS[name]().graph, targets.AVX512)
    assert not refusals(program)


def test_a_contraction_that_is_not_tiled_says_why() -> None:
    cluster, lowered = lowered_cluster("linear_with_epilogue")
    assert cluster.contraction is not None
    other = replace(cluster.contraction, tile=Tile(4, 3, 7))
    wrong = cpu.schedule_nest(lowered, other, targets.X86_64)
    assert "side by side" in wrong.refusal and wrong.text.startswith("not tiled: ")


def summed(value: ln.Scalar, op: ops.Op = ops.SUM_REDUCE) -> ln.Reduction:
    loop = ln.Loop(sym.Var("k0", 0, 7), 8, "serial", ())
    return ln.Reduction("s", op, types.f32, (loop,), (), value)


def test_one_function_says_what_a_product_is_that_is_summed() -> None:
    a, masked = ln.load("a", 3, types.f32), ln.load("b", 5, types.f16, (sym.var("k0", -1, 6),), bytes(2))
    wide = ln.apply(ops.CAST, (masked,), None, types.f32)
    product = ln.apply(ops.MUL, (a, wide), None, types.f32)
    assert operands.product_of(summed(product)) == (a.leaf, masked.leaf)
    negated = ln.apply(ops.MUL, (a, ln.apply(ops.SIN, (a,), ops.Quadrant(0), types.f32)), None, types.f32)
    with_store = replace(summed(product), before=(ln.Store("c", 0, a),))
    for wrong in (summed(a), summed(negated), summed(product, ops.MAX_REDUCE), with_store):
        with pytest.raises(ScheduleError, match=r"what is reduced is not|not over a product of two"):
            operands.product_of(wrong)


@pytest.mark.parametrize(
    ("dtype", "loop", "count"),
    [
        (types.f32, ("serial", 8, 1), 4),
        (types.f32, ("serial", 7, 1), 1),
        (types.f32, ("vector", 128, 16), 4),
        (types.f32, ("vector", 127, 16), 1),
        (types.i32, ("vector", 128, 16), 4),
        (types.i32, ("serial", 128, 1), 1),
        (types.f32, ("serial", sym.var("n", 1, 8), 1), 4),
        (types.f32, ("serial", sym.var("n", 1, 7), 1), 1),
    ],
)
def test_long_reductions_get_several_accumulators(
    dtype: types.DType, loop: tuple[str, sym.Int, int], count: int
) -> None:
    kind, extent, lanes = loop
    k = sym.Var("k0", 0, extent - 1)
    total = ln.Reduction("s", ops.SUM_REDUCE, dtype, (ln.Loop(k, extent, kind, (), lanes),), (), ln.literal(b"", dtype))
    nest = ln.LoopNest((), (), (total,))
    assert Accumulate(4).divides(nest) is (count == 4)
    assert Accumulate(4)(nest).body == (replace(total, accumulators=count),)
    with pytest.raises(ScheduleError, match="3 is no power of two"):
        Accumulate(3)(nest)


def test_threads_have_one_accumulator_each() -> None:
    loop = ln.Loop(sym.Var("k0", 0, 63), 64, "thread", (), 32)
    nest = ln.LoopNest((), (), (replace(summed(ln.literal(bytes(4), types.f32)), loops=(loop,)),))
    with pytest.raises(ScheduleError, match="threads divide the loop over 'k0'"):
        Accumulate(4)(nest)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (transforms.Split("nowhere", 4), "no loop over 'nowhere'"),
        (transforms.Split("a0", 0), "parts of 0 iterations"),
        (lambda nest: transforms.Split("a0", 7)(transforms.Parallelise(1)(nest)), "the loop over 'a0' is parallel"),
        (transforms.Merge("a2", "a0"), "not directly inside"),
        (transforms.Reorder(("a0", "a1")), "expected an order of"),
        (transforms.Parallelise(7), "perfectly nested"),
        (lambda nest: transforms.Vectorise("a0", 4)(transforms.Vectorise("a2", 4)(nest)), "vector loop lies inside"),
        (Tensorise("a0", "a1", 4, 8, 4), "not a sum over a product"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_an_illegal_transform_says_why(transform: transforms.Transform, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        transform(serial_nest("elementwise_and_broadcast"))


@pytest.mark.parametrize("transform", [transforms.Merge("a", "b"), transforms.Split("a", 2)], ids=str)
def test_loops_under_a_condition_and_of_several_reductions_are_found(transform: transforms.Transform) -> None:
    a, b, c = (sym.Var(name, 0, extent - 1) for name, extent in (("a", 4), ("b", 5), ("c", 2)))
    at = sym.expr(a) * 5 + sym.expr(b)
    loops = (ln.Loop(a, 4, "serial", ()), ln.Loop(b, 5, "serial", ()))
    value = ln.load("x", at, types.f32)
    several = ln.Reductions(("s", "t"), ops.SUM_REDUCE, types.f32, loops, (("s", value), ("t", value)))
    stored = wrap(list(loops), (ln.Store("y", at, value),))
    body = (ln.Loop(c, 2, "serial", (ln.If((sym.expr(c) - 1,), (*stored, several)),)),)
    arrays = (ln.Array("x", types.f32, False), ln.Array("y", types.f32, True))
    made = transform(ln.LoopNest(arrays, (), body))
    used = {v for s in walk.statements(made.body) for e in walk.expressions(s) for v in sym.variables(e)}
    assert used <= walk.variables_bound(made.body) and not used & {a}


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (transforms.Reorder(("a2", "a1", "a0", "a3")), "iterations that must stay in order"),
        (transforms.Merge("a0", "a1"), "one must stay in order"),
        (transforms.Vectorise("a1", 4), "must stay in order"),
        (divide.DivideAmongThreads("a2", 32), "must stay in order"),
        (transforms.Parallelise(2), "ordered or not rectangular"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_a_scatter_puts_in_stays_in_order(transform: transforms.Transform, reason: str) -> None:
    """``a1`` and ``a2`` number the positions."""
    nest = serial_nest("rows_put_into_a_table", -1)
    assert [loop.kind for loop in perfect_loops(nest.body)[0]] == ["serial", "ordered", "ordered", "serial"]
    with pytest.raises(ScheduleError, match=reason):
        transform(nest)


def test_an_old_value_that_nothing_else_reads_is_written_in_place() -> None:
    source = Source()
    rows, ids = source.input(3, 40), source.input(3, dtype=types.i64)

    def copies(old: ir.Node, *others: ir.Node) -> int:
        outputs = tuple((f"y{k}", y) for k, y in enumerate((scattering.put(old, ids, rows), *others)))
        program = compile_graph(ir.Graph("put", (*source.nodes, *given), outputs), targets.X86_64)
        return len(program.entries[0].steps) - 2  # of the positions, and the scatter

    given = (ir.input_("old", (9, 40), types.f32),)
    assert copies(given[0] * 2.0) == 1
    assert copies(scattering.put(given[0] * 2.0, ids, rows * 1.5)) == 3
    assert copies(given[0] * 2.0, given[0] * 2.0) == 2
    assert copies(given[0]) == 1


def test_rows_are_sorted_where_they_were_computed() -> None:
    """A step computes what is sorted, and one sorts it; of the least few no step makes a copy either."""
    x = ir.input_("x", (9, 40), types.i32)
    kernels = {
        "whole": (ir.sort(x * 2), ["map0", "sort1"]),
        "copied": (ir.sort(x), ["sort0", "sort1"]),
        "least": (ir.sort(x, 3), ["sort0"]),
    }
    for name, (node, expected) in kernels.items():
        program = compile_graph(ir.Graph(name, (x,), (("y", node),)), targets.X86_64)
        assert [program.kernels[step.kernel].name for step in program.entries[0].steps] == expected


def test_threads_hold_more_than_the_least_of_a_row() -> None:
    x = ir.input_("x", (9, 40), types.i32)
    program = compile_graph(ir.Graph("least", (x,), (("y", ir.sort(x, 8)),)), targets.X86_64)
    (kernel,) = program.kernels
    with pytest.raises(ScheduleError, match="8 elements are kept, 8 can be held"):
        sort_rows.SortTogether(32, 8)(kernel.nest)
    with pytest.raises(ScheduleError, match="does not end in a sort"):
        sort_rows.SortTogether(32, 8)(serial_nest("elementwise_and_broadcast"))


def test_a_body_that_is_not_elementwise_becomes_steps() -> None:
    source = Source()
    over, first = source.input(5, 3), source.input(3)
    bodies = {
        "a reduction": lambda c, x: ([c[0] + ir.reduce(ops.SUM_REDUCE, x[0], [0])], []),
        "a view of a carry": lambda c, x: ([movement.flip(c[0], [0]) + x[0]], []),
        "another shape": lambda c, x: (c, [movement.unsqueeze(x[0], [0])]),
        "elements": lambda c, x: ([c[0] + x[0]], []),
    }
    for name, step in bodies.items():
        last, put_out = structured.scan(step, [first], [over])
        graph = ir.Graph("scan", tuple(source.nodes), (("y", (put_out or last)[0]),))
        program = compile_graph(graph, targets.X86_64)
        assert any(isinstance(step, Loop) for step in program.entries[0].steps) == (name != "elements"), name
        (expected,) = interp.run(graph, source.arrays).outputs
        np.testing.assert_allclose(run_program(program, source.arrays)["y"], expected, rtol=1e-6, err_msg=name)


def test_a_reduction_is_reordered_only_by_its_own_loops() -> None:
    with pytest.raises(ScheduleError, match="no order of the serial loops"):
        transforms.ReorderReduction("r0", ("a9",))(serial_nest("whole_reductions"))


# ---- the memory plan --------------------------------------------------------------------------------------------


def test_values_that_live_at_once_never_overlap() -> None:
    random = np.random.default_rng(3)
    spans = []
    for number in range(200):
        first = int(random.integers(0, 100))
        last = first + int(random.integers(0, 10))
        spans.append(arena.Span(str(number), int(random.integers(0, 5000)), first, last))
    offsets, total = arena.place_spans(spans)
    for a in spans:
        assert offsets[a.name] % ALIGNMENT == 0 and offsets[a.name] + a.size <= total
        for b in spans:
            if a is not b and a.first <= b.last and b.first <= a.last and a.size and b.size:
                assert offsets[a.name] >= offsets[b.name] + b.size or offsets[b.name] >= offsets[a.name] + a.size
    assert total < sum(s.size for s in spans) / 2


def test_an_index_out_of_range_stops_the_run() -> None:
    source = Source()
    ids = source.input(3, dtype=types.i64, below=4)
    graph = ir.Graph("look", (ids,), (("y", ir.gather(source.weight(4, 2), ids, 0)),))
    program = compile_graph(graph, targets.X86_64)
    with pytest.raises(IndexError):
        run_program(program, {"x0": np.array([0, 4, 1])})


def test_a_reduction_over_nothing_is_its_identity() -> None:
    graph = ir.Graph(
        "empty", (x := ir.input_("x", (2, 0), types.f32),),
        (("sum", ir.reduce(ops.SUM_REDUCE, x, [1])), ("max", ir.reduce(ops.MAX_REDUCE, x, [1]))),
    )  # fmt: skip
    found = run_program(compile_graph(graph, targets.X86_64), {"x": np.zeros((2, 0), np.float32)})
    np.testing.assert_array_equal(found["sum"], [0, 0])
    np.testing.assert_array_equal(found["max"], [-np.inf, -np.inf])


def test_what_flattens_symbolic_sizes_is_tiled_and_fused_all_the_same() -> None:
    """Products of ``[batch * length, features]``, as exporters write them, with attention-like axes and an epilogue."""
    source = Source()
    heads = source.input(BATCH, 3, SEQ, 8)
    flat = movement.reshape(movement.permute(heads, (0, 2, 1, 3)), (BATCH * SEQ, 24))
    y = movement.reshape(contraction.linear(flat, source.weight(40, 24)), (BATCH, SEQ, 40))
    graph = ir.Graph("flat", tuple(source.nodes), (("y", activation.relu(y)),), (sym.as_var(BATCH), sym.as_var(SEQ)))
    program = compile_graph(graph, targets.AVX512)
    assert len(program.kernels) == 1 and not refusals(program)
    (expected,) = interp.run(graph, source.arrays).outputs
    np.testing.assert_allclose(run_program(program, source.arrays)["y"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("first", ["convolution", "turned"])
def test_a_carry_whose_last_value_nothing_reads_lies_as_the_others_do(first: str) -> None:
    """Its first value comes from where channels are last, or from a transposed product; each round is an output."""
    source = Source()
    if first == "convolution":
        begin = contraction.conv(source.input(1, 4, 6, 6), source.weight(8, 4, 3, 3), None, None, (1, 1), (1, 1))
    else:
        begin = movement.reshape(ir.binary(ops.MAX, movement.transpose(source.input(36, 8), 0, 1), 0.0), (1, 8, 6, 6))
    rounds, weight = source.input(5, 1, 8, 6, 6), source.weight(8, 8, 3, 3)

    def body(carries: list[ir.Node], x: list[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
        found = contraction.conv(carries[0], weight, None, None, (1, 1), (1, 1)) * 0.05 + x[0]
        return [found], [found]

    _, (each,) = structured.scan(body, [begin], [rounds])
    assert_as_the_interpreter(source, each)


@pytest.mark.parametrize("later", [False, True], ids=["the same loop", "a later one"])
def test_what_loops_write_over_is_nobody_else_s(later: bool) -> None:
    """A view that is the first value of a carry, and that a loop reads a row at a time."""
    source = Source()
    view = movement.transpose(source.input(6, 6) * 2.0, 0, 1)

    def body(carries: list[ir.Node], x: list[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
        found = carries[0] * 0.5 + ir.expand(movement.unsqueeze(x[0], [0]), (6, 6))
        return [found], [found]

    (last,), (each,) = structured.scan(body, [view], [source.input(6, 6) if later else view])
    if later:
        (last,), (each,) = structured.scan(body, [last], [view])
    assert_as_the_interpreter(source, last, each)


def assert_as_the_interpreter(source: Source, *outputs: ir.Node) -> None:
    graph = ir.Graph("steps", tuple(source.nodes), tuple((f"y{k}", node) for k, node in enumerate(outputs)))
    found = run_program(compile_graph(graph, targets.AVX512), source.arrays)
    for (name, value), expected in zip(found.items(), interp.run(graph, source.arrays).outputs, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize(("rows", "several"), [(16, False), (256, True)])
def test_what_moves_many_bytes_is_worth_a_thread_more(rows: int, several: bool) -> None:
    """A multiplication each is little work, but 256 KiB take a core a while to write."""
    x = ir.input_("x", (rows, 256), types.f32)
    program = compile_graph(ir.Graph("doubled", (x,), (("y", x * 2.0),)), targets.AVX512)
    (launch,) = program.entries[0].launches
    tasks = math.prod(sym.upper(loop.extent) or 0 for loop in program.kernels[launch.kernel].nest.tasks)
    assert (tasks // launch.grain > 1) == several
