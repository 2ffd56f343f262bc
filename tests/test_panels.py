"""Which right operands that are no constants are copied into panels."""

from __future__ import annotations

import pytest

from luminal.core import ir
from luminal.core.decompose.contraction import matmul
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graphs
from luminal.core.target import parse
from luminal.core.types import f32


def kernels(*shapes: tuple[int, ...]) -> list[str]:
    """The kinds of the kernels of a product of two inputs."""
    a, b = (ir.input_(name, shape, f32) for name, shape in zip("ab", shapes, strict=True))
    graph = Graph("product", (a, b), (("y", matmul(a, b)),))
    program = compile_graphs("product", {"main": graph}, parse("avx512"))
    return [kernel.name.rstrip("0123456789") for kernel in program.kernels]


@pytest.mark.parametrize("depth", [256, 1024])
def test_rows_of_one_cache_set_are_copied_into_panels(depth: int) -> None:
    """Rows of 4096 bytes fall into the same sets: from panels, the product takes half as long."""
    assert kernels((256, depth), (depth, 1024)) == ["map", "contraction"]


def test_other_operands_are_read_where_they_lie() -> None:
    assert kernels((256, 1024), (1024, 1008)) == ["contraction"]  # rows of other sets
    assert kernels((8, 1024), (1024, 1024)) == ["contraction"]  # too few rows share a panel
    assert kernels((4, 256, 1024), (4, 1024, 1024)) == ["contraction"]  # each sample has its own
