"""Adjoints of views against the definition: the sum over the elements that read an element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from luminal.core import interp, ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core.decompose import pooling
from luminal.core.gradient import gradients
from luminal.core.movement import flip, pad, permute, reshape, slice_, windows

ROW, COLUMN = ir.axes((3, 4))
(K,) = ir.axes((8,))
(L,) = ir.axes((7,))


def shuffled(x: ir.Node) -> ir.Node:
    return reshape(permute(reshape(x, [2, 2, 3, 3]), [2, 0, 3, 1]), [6, 6])


VIEWS: dict[str, tuple[Callable[[ir.Node], ir.Node], tuple[int, ...]]] = {
    "moved": (lambda x: slice_(flip(permute(reshape(x, [2, 12]), [1, 0]), [0]), 0, 1, 6, 2), (4, 6)),
    "reshaped part": (lambda x: reshape(slice_(x, 1, 1, 4), [8, 2]), (4, 6)),
    "windows": (lambda x: windows(x, 1, 3, 2), (2, 9)),
    "dilated windows": (lambda x: windows(x, 1, 3, 1, 2), (2, 9)),
    "windows apart": (lambda x: windows(x, 1, 2, 3), (2, 9)),
    "windows twice": (lambda x: windows(windows(pad(x, [1, 1], [1, 1]), 0, 3, 2), 1, 2, 1), (5, 6)),
    "windows in a row": (lambda x: reshape(windows(x, 0, 3, 2), [12]), (9,)),
    "windows of shuffled": (lambda x: windows(shuffled(x), 1, 3, 2), (4, 9)),
    "shuffled": (shuffled, (4, 9)),
    "diagonal": (lambda x: ir.view(x, (4,), [ir.axes((4,))[0]] * 2), (4, 4)),
    "skewed": (lambda x: ir.view(x, (3, 4), [ROW + COLUMN, COLUMN]), (6, 4)),
    "backwards": (lambda x: ir.view(x, (3, 4), [COLUMN - ROW + 2]), (6,)),
    "quotient": (lambda x: ir.view(x, (3, 4), [sym.floordiv(ROW * 3 + COLUMN, 2)]), (6,)),
    "remainder": (lambda x: ir.view(x, (3, 4), [sym.mod(ROW * 3 + COLUMN, 5)]), (6,)),
    "ends repeated": (lambda x: ir.view(x, (8,), [sym.minimum(sym.maximum(K - 2, 0), 4)]), (5,)),
    "each repeated": (lambda x: ir.view(x, (8,), [sym.floordiv(K, 2)]), (4,)),
    "all repeated": (lambda x: ir.view(x, (7,), [sym.mod(L, 4)]), (4,)),
    "column": (lambda x: reshape(slice_(x, 1, 2, 1), [4]), (4, 6)),
    "parts": (lambda x: pooling._part(x, 1, 4, 0), (2, 7)),
    "padded": (lambda x: reshape(pad(reshape(x, [3, 8]), [1, 0], [0, 2]), [5, 8]), (4, 6)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_an_adjoint_adds_up_what_reads_an_element_without_a_scatter(name: str) -> None:
    view, shape = VIEWS[name]
    x = ir.input_("x", shape, types.f64)
    y = view(x)
    weights = ir.input_("weights", y.shape, types.f64)
    (adjoint,) = gradients(y, [x], weights)
    assert not any(node.op is ops.SCATTER for node in traverse.topological([adjoint]))
    numbers = np.arange(x.size, dtype=np.float64).reshape(shape) + 1
    (read,) = interp.evaluate([y], {"x": numbers})  # which element each reads, 0 where it reads none
    given = np.random.default_rng(0).standard_normal(read.shape)
    wanted = np.zeros(x.size + 1)
    np.add.at(wanted, read.astype(np.int64).reshape(-1), given.reshape(-1))
    (found,) = interp.evaluate([adjoint], {"x": numbers, "weights": given})
    np.testing.assert_allclose(found, wanted[1:].reshape(shape), atol=1e-12)


def test_windows_are_summed_over_their_taps_alone() -> None:
    """Of windows of 3, two apart, at most 2 taps reach an element, whatever the length is, even a symbol."""
    n = sym.var("n", 8, 100)
    x = ir.input_("x", (n,), types.f64)
    (adjoint,) = gradients(windows(x, 0, 3, 2), [x], None)
    sums = [node for node in traverse.topological([adjoint]) if node.op is ops.SUM_REDUCE]
    assert [node.inputs[0].shape for node in sums] == [(n, 2)]
    (found,) = interp.evaluate([adjoint], {"x": np.zeros(9)}, dims={"n": 9})
    np.testing.assert_array_equal(found, [1, 1, 2, 1, 2, 1, 2, 1, 1])
