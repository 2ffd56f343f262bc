"""Small graphs that hold every structure the scheduler treats apart, at extents that leave tails everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.core import ir, movement, ops, structured, types
from luminal.core import symbolic as sym
from luminal.core.decompose import (
    activation,
    attention,
    compare,
    contraction,
    cumulative,
    hyperbolic,
    indexing,
    normalize,
    pooling,
    reduction,
    scattering,
    selection,
    sorting,
)
from luminal.core.ir import Graph, Node

Array = np.ndarray[Any, Any]
BATCH, SEQ = sym.var("batch", 1, 4), sym.var("seq", 1, 9)
SIZES = {"batch": 2, "seq": 5}
GRAPHS: dict[str, Callable[[], Case]] = {}


@dataclass(frozen=True)
class Case:
    """A graph and inputs for it; ``depth`` is the longest chain of additions into one value."""

    graph: Graph
    inputs: dict[str, Array]
    depth: int


def case(build: Callable[[Source], tuple[Node, ...]]) -> Callable[[Source], tuple[Node, ...]]:
    """Put the graph that ``build`` makes into the table."""

    def made() -> Case:
        source = Source()
        measured: ir.Measured = {}
        with ir.measuring(measured):
            outputs = build(source)
        dims = tuple(sorted({v for n in source.nodes for d in n.shape for v in sym.variables(d)}, key=str))
        names = tuple((f"y{k}", node) for k, node in enumerate(outputs))
        graph = Graph(build.__name__, tuple(source.nodes), names, (*dims, *measured), measured=measured)
        return Case(graph, source.arrays, 256)

    GRAPHS[build.__name__] = made
    return build


class Source:
    """Inputs with values, and constants, from one seeded generator."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.nodes: list[Node] = []
        self.arrays: dict[str, Array] = {}

    def input(self, *shape: sym.Int, dtype: types.DType = types.f32, below: int = 0) -> Node:
        name = f"x{len(self.nodes)}"
        sizes = [int(sym.evaluate(d, SIZES)) for d in shape]
        if below:
            value = self.random.integers(0, below, sizes)
        else:
            value = self.random.standard_normal(sizes)
        self.arrays[name] = np.asarray(value).astype(dtype.numpy)
        self.nodes.append(ir.input_(name, shape, dtype))
        return self.nodes[-1]

    def weight(self, *shape: int, dtype: types.DType = types.f32) -> Node:
        return ir.constant(self.random.standard_normal(shape).astype(dtype.numpy))


@case
def elementwise_and_broadcast(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, SEQ, 3)
    return (activation.gelu(x + s.weight(3)) * s.input(BATCH, 1, 1),)


@case
def one_dimension(s: Source) -> tuple[Node, ...]:
    return (s.input(5000) * 2.0,)


@case
def scalars(s: Source) -> tuple[Node, ...]:
    x = s.input()
    return (x + 1.0, reduction.sum_(s.input(7)), ir.dim(3))


@case
def a_count_beside_what_it_measures(s: Source) -> tuple[Node, ...]:
    """One number that says how large a dimension is, and is multiplied by what that dimension gives."""
    count = ir.cast(ir.unary(ops.SIN, s.input()) * 2.0 + 5.0, types.i64)
    size = ir.measure(count, 9)
    return (count * (ir.cast(ir.unary(ops.SIN, s.input()) * 9.0, types.i64) * ir.dim(size)),)


@case
def linear_with_epilogue(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, SEQ, 8)
    y = activation.relu(contraction.linear(x, s.weight(37, 8), s.weight(37)))
    return (y, y + s.input(BATCH, SEQ, 37))


@case
def interleaved(s: Source) -> tuple[Node, ...]:
    """Outputs of windows that are two apart, two of each, put between each other."""
    x = reduction.softmax(s.input(4, 8, 33), -1)
    even, odd, after = (movement.slice_(x, 1, first, 3, 2) for first in (0, 1, 2))
    parts = [movement.reshape(part, [4, 3, 1, 33]) for part in (even + odd, odd + after * 2.0)]
    both = ir.unary(ops.CONTIGUOUS, movement.reshape(movement.concatenate(parts, 2), [4, 6, 33]))
    return (contraction.linear(both, s.weight(8, 33)),)


@case
def two_wholes_of_a_part(s: Source) -> tuple[Node, ...]:
    """Values that are put together with others twice."""
    one, two, three = (activation.relu(contraction.linear(s.input(5, 8), s.weight(12, 8))) for _ in range(3))
    wholes = (movement.concatenate([one, two], 1), movement.concatenate([one, three], 1))
    return tuple(contraction.linear(whole, s.weight(9, 24)) for whole in wholes)


@case
def sorted_between_others(s: Source) -> tuple[Node, ...]:
    """Rows that are sorted where they lie side by side, and then put where they do not."""
    rows, x = ir.sort(s.input(3, 4, 6, dtype=types.i32, below=99)), s.input(4, 6, dtype=types.i32, below=99)
    between = movement.reshape(movement.concatenate([movement.unsqueeze(v, [2]) for v in (ir.sort(x), x)], 2), (4, 12))
    turned = movement.reshape(movement.permute(rows, (0, 2, 1)), (3, 24))
    most = ir.reduce(ops.MAX_REDUCE, movement.windows(movement.pad(x, [0, 1], [0, 1]), 1, 3), [2])
    changed = scattering.put(ir.sort(movement.transpose(most, 0, 1)), s.input(2, dtype=types.i64, below=6),
                             s.input(2, 4, dtype=types.i32, below=9))  # fmt: skip
    copies = [ir.unary(ops.CONTIGUOUS, v) for v in (between, turned, movement.transpose(changed, 0, 1))]
    return tuple(movement.flip(copy, [0]) for copy in copies)


@case
def changed_beside_its_parts(s: Source) -> tuple[Node, ...]:
    """Parts of a value that is changed, which are read as they were before and after it."""
    one, two = (contraction.linear(s.input(6, 8), s.weight(16, 8)) for _ in range(2))
    places, new = s.input(3, dtype=types.i64, below=6), s.input(3, 32)
    changed = scattering.put(ir.unary(ops.CONTIGUOUS, movement.concatenate([one, two], 1)), places, new)
    after = contraction.linear(movement.slice_(changed, 1, 0, 16) + one, s.weight(5, 16))
    x = s.input(4, 6, dtype=types.i32, below=99)
    most = ir.reduce(ops.MAX_REDUCE, movement.windows(movement.pad(x, [0, 1], [0, 1]), 1, 3), [2])
    rows = ir.sort(ir.unary(ops.CONTIGUOUS, movement.concatenate([most, x], 1)))
    back = movement.flip(rows, [1])
    beside = movement.slice_(back, 1, 0, 6) + movement.flip(most, [0])
    return (after, contraction.linear(activation.relu(one), s.weight(5, 16)), back, beside)


@case
def matrix_vector(s: Source) -> tuple[Node, ...]:
    return (contraction.linear(s.input(8), s.weight(70, 8)), contraction.matmul(s.weight(70, 8), s.input(8)))


@case
def both_operands_computed(s: Source) -> tuple[Node, ...]:
    return (contraction.matmul(s.input(BATCH, 3, 6), s.input(BATCH, 6, SEQ)),)


@case
def chained_contractions(s: Source) -> tuple[Node, ...]:
    x = contraction.linear(s.input(SEQ, 6), s.weight(10, 6))
    return (contraction.linear(movement.reshape(movement.reshape(x, (SEQ, 2, 5)), (SEQ, 10)), s.weight(4, 10)),)


@case
def attention_block(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, SEQ, 8)
    q, k, v = (contraction.linear(x, s.weight(8, 8), s.weight(8)) for _ in range(3))
    heads = [movement.permute(movement.reshape(t, (BATCH, SEQ, 2, 4)), (0, 2, 1, 3)) for t in (q, k, v)]
    mixed = attention.scaled_dot_product_attention(*heads, mask=s.input(BATCH, 1, 1, SEQ))
    joined = movement.reshape(movement.permute(mixed, (0, 2, 1, 3)), (BATCH, SEQ, 8))
    return (normalize.layer_norm(contraction.linear(joined, s.weight(8, 8)) + x, [-1], s.weight(8), s.weight(8)),)


def halves_exchanged(x: Node) -> Node:
    """``[a, b] -> [-b, a]`` along the last axis, as in rotary position embedding (Su et al., 2021)."""
    half = x.shape[-1] // 2
    return movement.concatenate([-movement.slice_(x, -1, half, half), movement.slice_(x, -1, 0, half)], -1)


@case
def grouped_queries_and_rotation(s: Source) -> tuple[Node, ...]:
    q, k, v = s.input(BATCH, 4, SEQ, 6), s.input(BATCH, 2, SEQ, 6), s.input(BATCH, 2, SEQ, 6)
    cos, sin = s.input(SEQ, 6), s.input(SEQ, 6)
    q, k = (t * cos + halves_exchanged(t) * sin for t in (q, k))
    return (attention.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),)


@case
def softmax_and_norms(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, SEQ, 21)
    return (reduction.softmax(x, -1), normalize.rms_norm(x, [-1], s.weight(21)), reduction.softmax(x, 1))


@case
def whole_reductions(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, SEQ, 5)
    return (reduction.mean(x, [0, 1, 2]), reduction.max_(x, [0]), reduction.sum_(x, [1], keepdims=True))


@case
def convolution_chain(s: Source) -> tuple[Node, ...]:
    x = s.input(1, 3, 9, 11)
    y = contraction.conv(x, s.weight(5, 3, 3, 3), s.weight(5), [2, 1], [1, 2], [0, 1])
    y = activation.relu(normalize.batch_norm(y, s.weight(5), s.weight(5), s.weight(5), abs_of(s.weight(5)), 1e-5))
    z = contraction.conv(y, s.weight(5, 5, 3, 3), None, [1, 1], [1, 1], [1, 1])
    return (pooling.max_pool(z + y, [3, 3], [2, 2], [1, 1], [1, 1]), reduction.mean(z, [2, 3], True))


@case
def windows_of_single_channels(s: Source) -> tuple[Node, ...]:
    x = contraction.conv(s.input(BATCH, 4, 7, 18), s.weight(20, 4, 1, 1), s.weight(20))
    y = contraction.conv(x, s.weight(20, 1, 3, 5), s.weight(20), [1, 1], [1, 2], [1, 2], groups=20)
    y = activation.relu(y) + x
    z = contraction.conv(y, s.weight(20, 1, 3, 3), None, [2, 2], [2, 2], [2, 2], [2, 2], groups=20)
    mean = pooling.avg_pool(z, [3, 3], [1, 1], [1, 1], [1, 1], count_include_pad=False)
    most = pooling.max_pool(y, [3, 2], [2, 1], [1, 0], [1, 1])
    return tuple(contraction.conv(v, s.weight(3, 20, 1, 1)) for v in (mean, most))


@case
def windows_of_other_types(s: Source) -> tuple[Node, ...]:
    """Channels last, as stored: maxima of integers, of numbers and of truth, sums that round to 16 bits once."""

    def last(node: Node) -> Node:
        return movement.permute(node, [0, 3, 1, 2])

    whole, half = s.input(BATCH, 6, 9, 20, dtype=types.i32, below=99), s.input(2, 6, 9, 20, dtype=types.bf16)
    most = pooling.max_pool(last(whole), [3, 3], [2, 1], [1, 1], [1, 1])
    flags = movement.windows(last(whole) < 50, 3, 3)
    total = contraction.conv(
        last(half), s.weight(20, 1, 3, 3, dtype=types.bf16), None, [1, 1], [1, 1], [1, 1], None, 20
    )
    some = ir.reduce(ops.MAX_REDUCE, flags, [4])
    return (*(movement.permute(x, [0, 2, 3, 1]) for x in (most, some, total, pooling.max_pool(last(half), [2, 2]))),)


def abs_of(node: Node) -> Node:
    return ir.constant(np.abs(node.attr.array))


@case
def grouped_and_depthwise_convolution(s: Source) -> tuple[Node, ...]:
    x = s.input(2, 4, 6, 5)
    grouped = contraction.conv(x, s.weight(6, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], [1, 1], 2)
    return (grouped, contraction.conv(x, s.weight(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], [2, 1], 4))


@case
def lookups(s: Source) -> tuple[Node, ...]:
    ids = s.input(BATCH, SEQ, dtype=types.i64, below=11)
    table = indexing.embedding(s.weight(11, 6), ids) + indexing.embedding(s.weight(9, 6), indexing.arange(0, SEQ))
    return (normalize.layer_norm(table, [-1], s.weight(6), s.weight(6)), ir.gather(s.input(4, 11), ids, 1))


@case
def rows_put_into_a_table(s: Source) -> tuple[Node, ...]:
    """Rows at repeated positions: of a value that nothing else reads, over what was put there, of inputs, of zeros."""
    x, rows = s.input(BATCH, 7, 21), s.input(BATCH, SEQ, 21)
    ids = s.input(SEQ, dtype=types.i64, below=7)
    once = scattering.put(activation.relu(x), ids, rows, 1)
    twice = scattering.put(once, s.input(2, 2, dtype=types.i64, below=7), s.input(BATCH, 2, 2, 21), 1, "add")
    shared = activation.sigmoid(x)
    counts = scattering.put(indexing.full((7, 300), 0.0, types.f32), ids, s.input(SEQ, 300), 0, "add")
    return (twice, scattering.put(x, ids, rows, 1, "max"), shared, scattering.put(shared, ids, rows * 2.0, 1), counts)


@case
def rows_put_into_parts_of_a_buffer(s: Source) -> tuple[Node, ...]:
    """Over what is put together from parts, and as a part; read by rows, as panels, and through a permutation."""
    x, y, ids = s.input(4, 6), s.input(3, 6), s.input(2, dtype=types.i64, below=4)
    joined = movement.concatenate([activation.relu(x), activation.sigmoid(y)], 0)
    part = scattering.put(activation.relu(x) * 2.0, ids, s.input(2, 6), 0, "add")
    columns = scattering.put(movement.permute(x, (1, 0)), ids, s.input(2, 4))
    return (
        scattering.put(joined, ids, s.input(2, 6)),
        movement.concatenate([part, y * 3.0], 0),
        movement.concatenate([cumulative.cumsum(x * 1.5, 0), y * 4.0], 0),
        contraction.matmul(s.input(5, 4), scattering.put(activation.relu(x) + 1.0, ids, s.input(2, 6))),
        contraction.linear(cumulative.cumsum(activation.relu(x), 1), s.weight(9, 6)),
        movement.permute(columns, (1, 0)),
    )


@case
def elements_put_in_their_places(s: Source) -> tuple[Node, ...]:
    x, ids = s.input(5, 6, dtype=types.i32, below=90), s.input(3, 6, dtype=types.i64, below=5)
    new = s.input(3, 6, dtype=types.i32, below=90)
    half = scattering.scatter_nd(s.input(SEQ, 3, 2, dtype=types.bf16), s.input(4, 2, dtype=types.i64, below=1),
                               s.input(4, 2, dtype=types.bf16), "mul")  # fmt: skip
    last = scattering.scatter_elements(s.input(SEQ, 4), s.input(SEQ, 9, dtype=types.i64, below=4), s.input(SEQ, 9), 1)
    put = scattering.index_put(x, [None, indexing.arange(0, 2)], s.input(5, 2, dtype=types.i32, below=9), "add")
    return (
        scattering.scatter_elements(x, ids, new, 0, "min"),
        half,
        last,
        put,
        scattering.scatter_elements(x, ids, new, 0),
    )


@case
def running_sums_and_maxima(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, SEQ, 21)
    most, place = cumulative.cummax(x, 1)
    total = cumulative.cumsum(activation.relu(s.input(37)), 0, exclusive=True)
    half = cumulative.cumsum(s.input(3, SEQ, dtype=types.f16), -1, reverse=True)
    return (cumulative.cumsum(x, 1), cumulative.cumprod(x, 2), most, place, total, half)


@case
def a_recurrence(s: Source) -> tuple[Node, ...]:
    """Two carries that follow each other, from a computed value and from an input; one is read at the end."""
    x, gate, first = s.input(SEQ, BATCH, 9), s.input(SEQ, BATCH, 9), s.input(BATCH, 9)

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (a, b), (value, decay) = carried, element
        after = a * activation.sigmoid(decay) + value
        return (after, b * 0.5 + a), (after * b,)

    (_, last), (y,) = structured.scan(step, (activation.relu(first), first), (x, gate))
    nothing, _ = structured.scan(step, (first, first * 2.0), (s.input(0, BATCH, 9), s.input(0, BATCH, 9)))
    single, _ = structured.scan(step, (first, first), (s.input(1, BATCH, 9), s.input(1, BATCH, 9)))
    return (last, activation.relu(y), *nothing, *single)


@case
def a_recurrence_of_products(s: Source) -> tuple[Node, ...]:
    """A loop of kernels: a product with what no step changes, a normalisation, and a value put out of a size that is
    no multiple of a vector; and the loop backwards, whose last value is an output by itself."""
    x, state, matrix = s.input(SEQ, BATCH, 3), s.input(BATCH, 5), s.input(5, 5)
    weight = s.weight(5, 3)

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (h, same), (value,) = carried, element
        inner = contraction.matmul(h, matrix * 0.5) + contraction.linear(value, weight)
        after = hyperbolic.tanh(normalize.layer_norm(inner, [-1]))
        return (after, same), (reduction.sum_(after * same, [1]), after)

    (last, same), (sums, states) = structured.scan(step, (state, state), (x,))
    (final, _), _ = structured.scan(step, (last, state), (movement.flip(x, [0]),))
    return (sums, activation.relu(states), last + 1.0, same, final)


@case
def loops_in_loops(s: Source) -> tuple[Node, ...]:
    """Rows one after the other, each halved until it is small; how often is put out too."""

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (total,), (row,) = carried, element
        small, count = structured.while_loop(
            lambda c: ir.binary(ops.LESS_THAN, ir.constant(1.0, types.f32), reduction.sum_(c[0] * c[0])),
            lambda c: (c[0] * 0.5 + total * 0.0, c[1] + 1),
            (row, ir.constant(0, types.i64)),
        )
        return (total + small,), (count, small)

    x = s.input(SEQ, 6)
    (total,), (count, small) = structured.scan(step, (s.input(6),), (x * 9.0,))
    return (total, count, small)


@case
def branches(s: Source) -> tuple[Node, ...]:
    """Of two branches, one reads a table with a position that the other could not read with."""
    x, position, table = s.input(BATCH, 6), s.input(below=4, dtype=types.i64), s.input(4, 6)

    def looked_up() -> tuple[Node, Node]:
        return ir.gather(table, position, 0) + x, x

    def other() -> tuple[Node, Node]:
        return contraction.matmul(x, s.weight(6, 6)), x * 2.0

    inside = ir.binary(ops.LESS_THAN, position, 4)
    outside = ir.binary(ops.LESS_THAN, ir.constant(3, types.i64), position)
    a, b = structured.cond(inside, looked_up, other)
    c, d = structured.cond(outside, looked_up, lambda: structured.cond(inside, other, looked_up))
    return (a, b + 1.0, c, d)


@case
def sizes_that_data_decides(s: Source) -> tuple[Node, ...]:
    """How many there are of what is kept goes into a product, a normalisation, another selection and the results."""
    x, weight = s.input(BATCH, SEQ, 6), s.weight(4, 6)
    rows = movement.reshape(x, (BATCH * SEQ, 6))
    kept = selection.compress(rows, compare.less(reduction.sum_(rows, [1]), 1.0), 0, "kept")
    scores = contraction.matmul(kept, movement.transpose(kept, 0, 1))
    positive = selection.masked_select(scores, compare.less(0.0, scores), "positive")
    count = ir.dim(positive.shape[0]) + ir.dim(kept.shape[0])
    mean = reduction.mean(contraction.linear(kept, weight), [0])
    return (reduction.softmax(scores, -1), positive * 2.0, selection.nonzero(x), count, mean, x + 1.0)


@case
def sorted_rows(s: Source) -> tuple[Node, ...]:
    """Rows sorted where they were computed, where an input was copied to, and along another axis; of any length."""
    x, ids = s.input(BATCH, SEQ, 70), s.input(3, 41, dtype=types.i64, below=9)
    values, places = sorting.sort(activation.relu(x), -1)
    columns, _ = sorting.sort(x, 1, descending=True)
    one, _ = sorting.median(s.input(37))
    long, none = s.input(3300, dtype=types.i64, below=999), s.input(0, 4, dtype=types.i32)
    return (values, places, columns, ir.sort(ids), sorting.argsort(ids), one, ir.sort(long), ir.sort(none))


@case
def least_of_rows(s: Source) -> tuple[Node, ...]:
    """The first few of rows that fit in the memory of a block, of one that is longer, and of a length that varies."""
    x, long = s.input(BATCH, SEQ, 70), s.input(4000)
    values, places = sorting.topk(activation.sigmoid(x), 5)
    two, _ = sorting.topk(s.input(SEQ, 8, dtype=types.bf16), 2, largest=False)
    some, where = sorting.topk(long, 300)
    varied, _ = sorting.topk(s.input(3, BATCH), BATCH, largest=False)
    first = ir.sort(s.input(2, BATCH, 9, dtype=types.i32, below=99), BATCH)
    return (values, places, two, some, where, varied, first, ir.sort(s.input(SEQ, 3, dtype=types.i64, below=9), 1))


@case
def found_in_order(s: Source) -> tuple[Node, ...]:
    """Binary searches in one row, and in a row for each; which elements are among others; the most frequent of rows."""
    x, row = s.input(BATCH, SEQ, 11), s.input(BATCH, SEQ, 4)
    counts = sorting.searchsorted(sorting.sort(x)[0], row, right=True)
    places = sorting.searchsorted(sorting.sort(s.input(SEQ))[0], row)
    ids = s.input(6, 5, dtype=types.i64, below=4)
    return (counts, places, sorting.isin(ids, s.input(3, dtype=types.i64, below=9)), *sorting.mode(ids))


@case
def joined_parts(s: Source) -> tuple[Node, ...]:
    a, b = s.input(BATCH, 3), s.input(BATCH, SEQ)
    joined = movement.concatenate([a, b, a], 1)
    return (joined, movement.flip(joined, [1]), movement.pad(b, (1, 2), (0, 1), 3.0))


@case
def computed_parts_of_one_buffer(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, SEQ, 6)
    first, second = contraction.linear(x, s.weight(5, 6)), activation.relu(x)
    joined = movement.concatenate([first, second, s.weight(1, 1, 3) + ir.expand(s.input(1), (BATCH, SEQ, 3))], 2)
    grown = movement.concatenate([joined, contraction.linear(joined, s.weight(2, 14))], 2)
    return (
        normalize.layer_norm(grown, [-1]),
        contraction.linear(movement.pad(joined, (0, 1, 0), (0, 0, 2)), s.weight(3, 16)),
    )


@case
def one_value_in_several_parts(s: Source) -> tuple[Node, ...]:
    a = activation.relu(s.input(BATCH, 5))
    return (
        movement.concatenate([a, s.input(BATCH, 2), a], 1),
        movement.concatenate([activation.sigmoid(a), movement.flip(activation.sigmoid(a), [1])], 1),
        movement.concatenate([a, movement.slice_(a, 1, 1, 3)], 1),
    )


@case
def a_row_that_is_permuted(s: Source) -> tuple[Node, ...]:
    a = activation.sigmoid(s.input(4, 3, 5))
    b = activation.relu(movement.permute(a, (0, 2, 1)))
    return (a, b, reduction.sum_(b, [1, 2]), reduction.softmax(movement.reshape(b, (4, 15)), -1))


@case
def single_columns_and_rows(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, SEQ, 8)
    return (
        contraction.linear(x, s.weight(1, 8)),
        contraction.matmul(s.input(5, 8), s.input(8, 1)),
        contraction.matmul(s.input(1, 8), s.input(8, 6)),
    )


@case
def turned_copies(s: Source) -> tuple[Node, ...]:
    x, y = s.input(3, 37, 70), s.input(BATCH, 37, SEQ, 20)
    small = s.input(21, 40, dtype=types.i8, below=100)
    scaled = movement.permute(x, (0, 2, 1)) * 2.0
    beside = movement.permute(x, (2, 1, 0)) + s.input(70, 37, 3)
    return (
        scaled,
        beside,
        movement.permute(y, (3, 0, 2, 1)) + 1.0,
        ir.cast(movement.permute(small, (1, 0)), types.f32),
        movement.permute(ir.cast(x, types.bf16), (0, 2, 1)),
        movement.permute(x < 0.0, (0, 2, 1)),
    )


@case
def padded_columns(s: Source) -> tuple[Node, ...]:
    """What is turned ends before the block does, along either axis."""
    x = movement.permute(s.input(37, 21), (1, 0))
    return (movement.pad(x, (0, 0), (11, 11)) * 2.0, movement.pad(x, (3, 5), (0, 0)) * 2.0)


@case
def results_along_rows(s: Source) -> tuple[Node, ...]:
    image = s.input(BATCH, 5, 9, 8)
    wide = contraction.conv(image, s.weight(24, 5, 3, 3), s.weight(24), pads_begin=(1, 1), pads_end=(1, 1))
    rows = contraction.linear(s.input(BATCH, SEQ, 20), s.weight(35, 20), s.weight(35))
    return (
        activation.relu(wide) + s.input(BATCH, 24, 9, 8),
        movement.permute(rows, (2, 0, 1)) * s.input(35, 1, 1),
        movement.permute(contraction.linear(s.input(17, 20), s.weight(16, 20)), (1, 0)),
    )


@case
def products_that_are_read_twice(s: Source) -> tuple[Node, ...]:
    x, y = s.input(5, 6), s.input(6, 32)
    product = movement.unsqueeze(x, [2]) * movement.unsqueeze(y, [0])
    swapped = movement.unsqueeze(y, [0]) * movement.unsqueeze(x, [2])
    sums = [ir.reduce(ops.SUM_REDUCE, p, [1]) for p in (product, swapped)]
    return (product, *sums, ir.reduce(ops.SUM_REDUCE, product, [2]), contraction.matmul(x, movement.permute(x, (1, 0))))


@case
def contractions_of_positions(s: Source) -> tuple[Node, ...]:
    table = movement.reshape(ir.cast(ir.iota(24), types.f32), (4, 6))
    return (contraction.matmul(table, s.input(6, 5)), contraction.matmul(s.input(3, 4), table))


@case
def contractions_over_nothing(s: Source) -> tuple[Node, ...]:
    return (contraction.matmul(s.input(3, 0), s.input(0, 4)), contraction.matmul(s.input(0, 0), s.input(0, 0)))


@case
def views_as_outputs(s: Source) -> tuple[Node, ...]:
    x = s.input(BATCH, 6)
    y = x * 2.0
    return (movement.permute(y, (1, 0)), y, x, movement.reshape(y, (BATCH, 2, 3)), ir.constant(np.arange(3.0)))


@case
def same_output_twice(s: Source) -> tuple[Node, ...]:
    y = s.input(4) + 1.0
    return (y, y)


@case
def integers(s: Source) -> tuple[Node, ...]:
    a, b = s.input(BATCH, 7, dtype=types.i64, below=50), s.input(BATCH, 7, dtype=types.i64, below=5)
    quotient = ir.binary(ops.DIV, a, b)
    return (quotient, ir.binary(ops.MOD, a, b), contraction.matmul(a, movement.permute(b, (1, 0))), a < b)


@case
def half_precision(s: Source) -> tuple[Node, ...]:
    x = s.input(SEQ, 8, dtype=types.f16)
    y = contraction.linear(x, s.weight(9, 8, dtype=types.f16))
    return (y, reduction.softmax(y, -1), ir.cast(y, types.bf16))
