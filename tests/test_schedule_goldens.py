"""Which schedule each structure gets on each kind of target: one golden file a structure.

What must hold whatever the schedule is tested with the transforms; these files show what a change of the scheduler
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from luminal.core import ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import activation, attention, contraction, normalize, pooling, reduction
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.numeric import quantise
from luminal.core.target import Target
from tests.conftest import Golden
from tests.schedule_graphs import BATCH, GRAPHS, SEQ, Source
from tests.schedule_support import schedule_text

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

GPUS = tuple(targets.GPUS[name] for name in ("cuda:sm_90", "metal"))
CPUS = (targets.X86_64, targets.AVX2, targets.AVX512, targets.AARCH64)
UNITS = (targets.parse("avx512-bf16", "bf16"), targets.parse("amx", "bf16"))
# Where operands of deep sums do not stay in the cache.
SMALL_CACHE = replace(targets.AVX512, name="avx512 with 256 KiB", l2=256 << 10, threads=2)

STRUCTURES: dict[str, tuple[Callable[[], Graph], tuple[Target, ...]]] = {}


def structure(*on: Target) -> Callable[[Callable[[Source], Node]], Callable[[Source], Node]]:
    """Put the graph that a function makes into the table, with the targets whose schedules are compared."""

    def put(build: Callable[[Source], Node]) -> Callable[[Source], Node]:
        def made() -> Graph:
            source = Source()
            output = build(source)
            dims = tuple(sorted({v for n in source.nodes for d in n.shape for v in sym.variables(d)}, key=str))
            return Graph(build.__name__, tuple(source.nodes), (("y", output),), dims)

        STRUCTURES[build.__name__] = made, on
        return build

    return put


@structure(*CPUS, *UNITS, *GPUS)
def product_with_epilogue(s: Source) -> Node:
    x = s.input(128, 256)
    return activation.relu(contraction.linear(x, s.weight(384, 256), s.weight(384)))


@structure(*CPUS)
def rows_beyond_the_cache(s: Source) -> Node:
    return reduction.logsumexp(s.input(16, 1 << 20), [-1])


@structure(targets.AVX512, SMALL_CACHE)
def product_of_deep_sums(s: Source) -> Node:
    return contraction.linear(s.input(128, 3072), s.weight(768, 3072))


@structure(targets.AVX2, targets.AVX512, *UNITS)
def product_of_few_rows(s: Source) -> Node:
    return contraction.linear(s.input(SEQ, 768), s.weight(1000, 768))


@structure(targets.AVX512, targets.GPUS["cuda:sm_90"])
def product_of_flattened_sizes(s: Source) -> Node:
    flat = movement.reshape(movement.permute(s.input(BATCH, 3, 64, 8), (0, 2, 1, 3)), (BATCH * 64, 24))
    return activation.relu(movement.reshape(contraction.linear(flat, s.weight(40, 24)), (BATCH, 64, 40)))


@structure(targets.AVX512)
def product_that_lies_along_its_rows(s: Source) -> Node:
    return movement.permute(contraction.linear(s.input(256, 64), s.weight(64, 64)), (1, 0))


@structure(targets.AVX512)
def product_added_to_what_the_cache_has_lost(s: Source) -> Node:
    return contraction.linear(s.input(1500, 384), s.weight(384, 384)) + s.input(1500, 384)


@structure(*CPUS, *UNITS, *GPUS)
def convolution(s: Source) -> Node:
    x, weight = s.input(8, 64, 14, 14), s.weight(128, 64, 3, 3)
    return activation.relu(contraction.conv(x, weight, s.weight(128), [1, 1], [1, 1], [1, 1]))


@structure(targets.AVX512, *UNITS)
def convolution_of_few_channels(s: Source) -> Node:
    return contraction.conv(s.input(1, 3, 32, 32), s.weight(32, 3, 7, 7), None, [2, 2], [3, 3], [3, 3])


@structure(*CPUS, *GPUS)
def windows_of_one_channel(s: Source) -> Node:
    x = contraction.conv(s.input(BATCH, 8, 28, 28), s.weight(32, 8, 1, 1))
    y = contraction.conv(x, s.weight(32, 1, 3, 3), s.weight(32), [1, 1], [1, 1], [1, 1], groups=32)
    return contraction.conv(y, s.weight(8, 32, 1, 1))


@structure(*CPUS, *GPUS)
def maxima_of_windows(s: Source) -> Node:
    x = activation.relu(contraction.conv(s.input(1, 8, 28, 28), s.weight(32, 8, 1, 1)))
    return contraction.conv(pooling.max_pool(x, [3, 3], [2, 2], [1, 1], [1, 1]), s.weight(8, 32, 1, 1))


@structure(*CPUS, *UNITS, *GPUS)
def attention_of_one_pass(s: Source) -> Node:
    q, k, v = (s.input(2, 4, 256, 64) for _ in range(3))
    return attention.scaled_dot_product_attention(q, k, v, is_causal=True)


@structure(*CPUS, *GPUS)
def rows_normalised(s: Source) -> Node:
    return normalize.layer_norm(s.input(64, 768) + s.input(64, 768), [-1], s.weight(768), s.weight(768))


@structure(targets.AVX512, *GPUS)
def sums_of_columns(s: Source) -> Node:
    return reduction.sum_(s.input(64, 1024), 0)


@structure(*CPUS, *GPUS)
def transposed_copy(s: Source) -> Node:
    return movement.permute(s.input(370, 400), (1, 0)) * 2.0


@structure(targets.AVX2, targets.AVX512)
def channels_interleaved(s: Source) -> Node:
    return movement.permute(s.input(2, 3, 24, 40) * 2.0, (0, 2, 3, 1))


def product_of_narrow_weights() -> Graph:
    """Weights of four bits, which tiles read as they lie or out of panels that are computed once."""
    x = ir.input_("x", (61, 512), types.f32)
    weight = ir.constant(np.random.default_rng(3).standard_normal((512, 512)).astype(np.float32))
    scheme = quantise.parse("int4")
    assert scheme is not None
    return quantise.quantised(Graph("g", (x,), (("y", contraction.linear(x, weight)),)), scheme)


STRUCTURES["product_of_narrow_weights"] = product_of_narrow_weights, (targets.AVX2, targets.AVX512, *GPUS)

# Graphs of tests/schedule_graphs.py whose structures are none of these.
for name in (
    "elementwise_and_broadcast", "whole_reductions", "lookups", "rows_put_into_a_table", "running_sums_and_maxima",
    "a_recurrence", "sorted_rows", "least_of_rows", "both_operands_computed", "half_precision", "integers",
):  # fmt: skip
    STRUCTURES[name] = lambda name=name: GRAPHS[name]().graph, (targets.AVX512, targets.GPUS["cuda:sm_90"])


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_schedule_of(name: str, golden: Golden) -> None:
    build, on = STRUCTURES[name]
    graph, named = build(), {}
    for target in on:
        named.setdefault(schedule_text(compile_graph(graph, target)), []).append(target.name)
    golden.check(f"schedules/{name}.txt", "\n".join(f"{', '.join(names)}:\n{text}" for text, names in named.items()))
