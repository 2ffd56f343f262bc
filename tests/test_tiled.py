"""Contractions are computed in tiles, however their operands lie: axes that divide each other, strides, windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from luminal.core import interp, ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction as decompose
from luminal.core.pipeline import compile_graph
from luminal.core.precision import BF16
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.numeric.rounding import rounded
from luminal.core.schedule.transform.tensorise import Tensorise
from luminal.core.target import Target
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, schedule_text, transformed

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]
Build = Callable[[Source], ir.Node]

UNITS = [targets.parse(name, "bf16") for name in ("avx512-bf16", "amx")]
TARGETS = [targets.X86_64, targets.AVX512, targets.parse("avx2", "bf16"), *UNITS]


def name_of(target: Target) -> str:
    return f"{target.name} {target.precision.name}"


def assert_tiled(build: Build, target: Target, terms: int) -> None:
    """A kernel for the contraction that ``build`` makes is in tiles, and computes sums of so many ``terms`` as the
    interpreter does, of operands that are rounded where the target's precision says so."""
    source = Source()
    y = build(source)
    dims = tuple({v for n in source.nodes for size in n.shape for v in sym.variables(size)})
    graph = ir.Graph("contraction", tuple(source.nodes), (("y", y),), dims)
    program = compile_graph(graph, target)
    assert len(transformed(program, Tensorise)) == 1, schedule_text(program)
    oracle = rounded(Contracted.of(graph), BF16).graph if target.precision == BF16 else graph
    (expected,) = interp.run(oracle, source.arrays).outputs
    found: Array = run_program(program, source.arrays)["y"]
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert np.abs(found - expected).max(initial=0.0) <= 4 * np.sqrt(terms) * types.f32.eps * scale


@pytest.mark.parametrize("target", TARGETS, ids=name_of)
@pytest.mark.parametrize("border", [0, 1])
@pytest.mark.parametrize("kernel", [(1,), (3,), (1, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_of_any_stride(stride: int, kernel: tuple[int, ...], border: int, target: Target) -> None:
    """With weights of run time, the image may be the operand in panels: its lines divide these."""

    def build(s: Source) -> ir.Node:
        sizes = [(windows - 1) * stride + width - 2 * border for windows, width in zip((4, 4), kernel, strict=False)]
        x, weight = s.input(3, 8, *map(max, sizes, [1] * len(sizes))), s.input(12, 8, *kernel)
        around = [border] * len(kernel)
        return decompose.conv(x, weight, None, [stride] * len(kernel), around, around)

    assert_tiled(build, target, 8 * 9)


def lines_in_panels(s: Source) -> ir.Node:
    return decompose.einsum("mk,knqr->mnqr", s.input(9, 12), s.input(12, 3, 7, 4))


def lines_of_any_length_in_panels(s: Source) -> ir.Node:
    n = sym.var("seq", 1, 64)
    return decompose.einsum("mk,knqr->mnqr", s.input(9, 12), s.input(12, n, n, 4))


def windows_of_groups(s: Source) -> ir.Node:
    """Whose stride is their length: with a border, the image has no panels."""
    return decompose.conv(s.input(2, 8, 11, 11), s.input(48, 4, 3, 3), None, (3, 3), (1, 1), (1, 1), groups=2)


@pytest.mark.parametrize("target", TARGETS, ids=name_of)
@pytest.mark.parametrize("build", [lines_in_panels, lines_of_any_length_in_panels, windows_of_groups])
def test_columns_that_several_axes_number(build: Build, target: Target) -> None:
    assert_tiled(build, target, 48)


def every_third_term(s: Source) -> ir.Node:
    x = movement.slice_(s.input(20, 70), 1, 2, 22, 3)
    return decompose.matmul(x, s.input(22, 24))


def every_third_channel(s: Source) -> ir.Node:
    """Of a value with a border, which is one copy with them."""
    x = movement.slice_(s.input(2, 30, 6, 6), 1, 1, 8, 3)
    return decompose.conv(x, s.input(12, 8, 2, 1), None, pads_begin=(1, 1), pads_end=(1, 1))


def digits_of_one_axis(s: Source) -> ir.Node:
    x = movement.reshape(s.input(320), (8, 10, 4))
    return decompose.einsum("kmb,bkn->bmn", x, s.input(4, 8, 18))


def far_taps(s: Source) -> ir.Node:
    """Taps of a window two apart, which nothing lies inside of but channels of groups."""
    return decompose.conv(s.input(2, 16, 9, 17), s.input(24, 4, 1, 3), None, (3, 3), dilations=(2, 2), groups=4)


def far_windows(s: Source) -> ir.Node:
    return decompose.conv(s.input(2, 8, 15, 15), s.input(24, 4, 3, 3), None, (2, 2), (1, 1), (1, 1), groups=2)


@pytest.mark.parametrize("target", UNITS, ids=name_of)
@pytest.mark.parametrize("build", [every_third_term, every_third_channel, digits_of_one_axis, far_taps, far_windows])
def test_terms_that_do_not_lie_side_by_side_are_copied(build: Build, target: Target) -> None:
    assert_tiled(build, target, 72)


def image_in_rows_of_tokens(s: Source) -> ir.Node:
    x = movement.reshape(movement.permute(s.input(2, 30, 8), [0, 2, 1]), (2, 8, 5, 6))
    return decompose.conv(x, s.input(20, 8, 3, 3), None, (1, 1), (1, 1), (1, 1))


def every_other_row(s: Source) -> ir.Node:
    x = movement.slice_(s.input(2, 8, 13, 6), 2, 1, 6, 2)
    return decompose.conv(x, s.weight(20, 8, 3, 3), None, (2, 2), (1, 1), (1, 1))


def flat_channels(s: Source) -> ir.Node:
    x = movement.reshape(s.input(2 * 8 * 20), (2, 8, 20))
    return decompose.conv(x, s.input(20, 4, 3), None, (1,), (2,), (2,), (2,), groups=2)


@pytest.mark.parametrize("target", TARGETS, ids=name_of)
@pytest.mark.parametrize("build", [image_in_rows_of_tokens, every_other_row, flat_channels])
def test_a_border_around_positions_is_copied(build: Build, target: Target) -> None:
    assert_tiled(build, target, 72)
