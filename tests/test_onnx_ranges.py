"""Ranges whose length a run finds: within the bounds that are declared, as onnxruntime has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import luminal
from luminal.core.errors import InputError, ShapeError, UnsupportedError
from luminal.frontends.onnx import importer
from luminal.module import Module
from luminal.runtime.loader import LibraryError
from tests import onnx_models as models

Array = np.ndarray[Any, Any]


def ranging(start: str, limit: str, delta: str, kind: str = "int64") -> onnx.ModelProto:
    """``found`` is the sum of ``x`` as an integer."""
    number = {"int64": 7, "int32": 6}[kind]
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        test (float[n] x) => ({kind}[m] y, float[m] z) {{
          one = Constant <value: tensor = {kind} {{1}}> ()  two = Constant <value: tensor = {kind} {{2}}> ()
          down = Constant <value: tensor = {kind} {{-3}}> ()  ten = Constant <value: tensor = {kind} {{10}}> ()
          s = ReduceSum <keepdims: int = 0> (x)  found = Cast <to: int = {number}> (s)
          y = Range ({start}, {limit}, {delta})  f = Cast <to: int = 1> (y)  z = Exp (f)
        }}
    """)


CASES = {
    "up to it": (("one", "found", "one"), "int64"),
    "by twos, int32": (("one", "found", "two", "int32"), "int32"),
    "from it": (("found", "ten", "two"), "int64"),
    "down to it": (("ten", "found", "down"), "int64"),
    "down from it, int32": (("found", "one", "down", "int32"), "int32"),
}


@pytest.mark.parametrize("case", CASES)
def test_as_many_numbers_as_a_run_finds(case: str) -> None:
    proto = ranging(*CASES[case][0])
    graph = importer.load(proto, dims={"n": (1, 4), "y_count": (0, 12)})
    module = luminal.compile(graph)
    assert isinstance(module, Module)
    for numbers in ([3.0, 4.0], [0.0], [-1.0, 1.0, 1.0], [8.0, 1.0], [12.0]):
        given = {"x": np.array(numbers, np.float32)}
        expected = models.by_onnxruntime(proto, given)
        models.assert_close(models.run(graph, given), expected)
        models.assert_close(list(module.run(given).values()), expected)


@pytest.mark.parametrize("outside", [3.0, 9.0])
def test_a_run_outside_the_bounds_fails(outside: float) -> None:
    graph = importer.load(ranging("one", "found", "one"), dims={"y_count": (3, 7)})
    module = luminal.compile(graph)
    assert isinstance(module, Module)
    assert module.run({"x": np.array([4.0], np.float32)})["y"].tolist() == [1, 2, 3]
    given = {"x": np.array([outside], np.float32)}
    for run in (lambda: models.run(graph, given), lambda: module.run(given)):
        with pytest.raises((InputError, LibraryError), match="a range more numbers"):
            run()


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"Range 'y'.*state how many there can be, dims=\{'y_count': \(0, MOST\)\}"):
        importer.load(ranging("one", "found", "one"))
    with pytest.raises((InputError, UnsupportedError), match="Range 'y'"):
        importer.load(ranging("one", "ten", "found"), dims={"y_count": (0, 7)})
    zero = ranging("one", "found", "down")
    zero.graph.node[2].attribute[0].t.int64_data[:] = [0]
    with pytest.raises(ShapeError, match="step must not be 0"):
        importer.load(zero, dims={"y_count": (0, 7)})


def test_a_bound_that_sizes_give_need_not_be_declared() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        test (int64 k, float[n] x) => (int64[m] y) {
          zero = Constant <value: tensor = int64 {0}> ()  one = Constant <value: tensor = int64 {1}> ()
          s = Shape (x)  most = Squeeze (s)  end = Min (k, most)  y = Range (zero, end, one)
        }
    """)
    graph = importer.load(proto, dims={"n": (1, 6)})
    for count in (0, 3, 9):
        given = {"k": np.array(count), "x": np.zeros(4, np.float32)}
        models.assert_close(models.run(graph, given), models.by_onnxruntime(proto, given))
