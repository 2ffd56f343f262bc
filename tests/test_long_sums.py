"""How exact long sums are: no accumulator sums so many terms that its rounding shows."""

from __future__ import annotations

import numpy as np
import pytest

import luminal
from luminal.core import ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core.schedule.choose.scheduler import STEPS_OF_PART
from luminal.module import Module

UNIT = 2.0**-24
# What is summed, the axes, and the order in which the axes lie in memory.
CASES = {
    "along memory": ((3, 70001), (1,), (0, 1)),
    "columns": ((25089, 64), (0,), (0, 1)),
    "one vector of columns": ((25089, 16), (0,), (0, 1)),
    "channels of images": ((8, 48, 56, 57), (0, 2, 3), (0, 2, 3, 1)),
    "everything": ((300, 700), (0, 1), (0, 1)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
def test_a_long_sum_is_one_of_parts(case: str, symbolic: bool) -> None:
    """Of the same number again and again, whose roundings in large sums all go the same way: a sum of parts stays in
    the bound of its longest chain, which a sum of one accumulator leaves behind."""
    shape, axes, order = CASES[case]
    stored = [shape[k] for k in order]
    given: list[sym.Int] = list(stored)
    dims: tuple[sym.Var, ...] = ()
    if symbolic:
        dims = (sym.Var("n", 1, stored[0]),)
        given[0] = sym.expr(dims[0])
    x = ir.input_("x", given, types.f32)
    y = ir.reduce(ops.SUM_REDUCE, movement.permute(x, np.argsort(order).tolist()), axes)
    module = luminal.compile(ir.Graph("sum", (x,), (("y", y),), dims), threads=1)
    assert isinstance(module, Module)
    number = np.float32(1 + 0.4 * 2.0**-10)
    values = np.full(stored, number)
    exact = float(number) * np.prod([shape[k] for k in axes])
    terms = int(np.prod([shape[k] for k in axes]))
    chain = STEPS_OF_PART + terms // (STEPS_OF_PART // 4) + 32
    found = module.run({"x": values})["y"]
    assert np.abs(found / exact - 1).max() <= chain * UNIT
    one = np.cumsum(np.full(terms, number), dtype=np.float32)[-1]
    assert abs(one / exact - 1) > 2 * chain * UNIT
