"""Operators that choose elements by rank."""

from __future__ import annotations

from luminal.core.decompose import sorting
from luminal.core.symbolic import Int
from luminal.frontends.onnx.registry import Call, Result, exactly, operator

operator("TopK")(lambda call: _top_k(call, call.integer("k")))


@operator("TopK", since=10)
def _top_k_input(call: Call) -> Result:
    """The results are sorted also where the attribute allows any order."""
    call.ignore("sorted")
    counts = call.values(1)
    exactly(counts, 1, "number of elements")
    return _top_k(call, counts[0])


def _top_k(call: Call, count: Int) -> Result:
    return sorting.topk(call[0], count, call.axis(call[0].rank, -1), call.flag("largest", True))
