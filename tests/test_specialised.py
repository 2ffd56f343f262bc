"""ONNX models of which inputs of a few numbers decide shapes or branches: compiled at a call, for each value."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from typer.testing import CliRunner

import luminal
from luminal import cli
from luminal.core.errors import InputError, ModelError, ShapeError, UnsupportedError
from luminal.specialised import PerValue
from tests import onnx_models as models
from tests.onnx_models import floats

Array = np.ndarray[Any, Any]


def parsed(text: str) -> onnx.ModelProto:
    """``text`` is a graph in ONNX's own notation."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


# Two networks behind one input, which give other ranks.
RATES = """
    test (float[b, l] x, int64 rate) => (float[c, d] y) {
      k = Constant <value: tensor = int64 {16}> ()  high = Equal (rate, k)
      y = If (high) <
        then_branch: graph = yes () => (float[p, q, r] a)
          { s = Constant <value: tensor = int64[1] {1}> ()  t = Unsqueeze (x, s)  a = Exp (t) },
        else_branch: graph = no () => (float[p, q] a) { a = Neg (x) }
      >
    }
"""


def specialised(proto: onnx.ModelProto, **options: Any) -> PerValue:
    module = luminal.compile(proto, **options)
    assert isinstance(module, PerValue)
    return module


def test_an_input_that_decides_a_branch() -> None:
    proto = parsed(RATES)
    module = specialised(proto, name="rates")
    assert repr(module) == "<luminal rates, compiled when it is called; 0 so far>"
    for rows, length, rate in ((2, 8, 16), (2, 3, 8), (5, 12, 16), (4, 3, 8)):
        given = {"x": floats(rows, length), "rate": np.array(rate)}
        (expected,) = models.by_onnxruntime(proto, given)
        for y in (module(given["x"], given["rate"]), module(given["x"], rate=rate), module.run(given)["y"]):
            models.assert_close([y], [expected])
        found = module(torch.from_numpy(given["x"]), torch.tensor(rate))
        assert isinstance(found, torch.Tensor)
        models.assert_close([found.numpy()], [expected])
    assert len(module.modules) == 2  # a library for each rate, of whichever sizes
    np.testing.assert_array_equal(module(floats(1, 3), np.array(7)), -floats(1, 3))
    assert len(module.modules) == 3  # another value may mean another branch


@pytest.mark.parametrize("declared", [{}, {"b": (1, 9)}])
def test_sizes_of_the_call_where_the_branch_needs_one(declared: dict[str, Any]) -> None:
    # Whether a branch gives two axes or three depends on its length, so it is compiled for one.
    proto = parsed("""
        test (float[b, l] x, int64 rate) => (float[c, d] y) {
          k = Constant <value: tensor = int64 {16}> ()  high = Equal (rate, k)
          y = If (high) <
            then_branch: graph = yes () => (float[p, q] a)
              { n = Shape <start: int = 1> (x)  two = Constant <value: tensor = int64[1] {2}> ()  even = Equal (n, two)
                a = If (even) <
                  then_branch: graph = short () => (float[s, t] e) { e = Exp (x) },
                  else_branch: graph = long () => (float[s, t, u] e)
                    { shape = Constant <value: tensor = int64[3] {0, 3, -1}> ()  e = Reshape (x, shape) }
                > },
            else_branch: graph = no () => (float[p, q] a) { a = Neg (x) }
          >
        }
    """)
    module = specialised(proto, dims=declared, name="lengths")
    for rows, length, rate in ((2, 2, 16), (3, 6, 16), (2, 5, 8), (3, 4, 8), (4, 6, 16)):
        given = {"x": floats(rows, length), "rate": np.array(rate)}
        models.assert_close([module(*given.values())], models.by_onnxruntime(proto, given))
    assert len(module.modules) == (3 if declared else 4)


def test_an_input_that_is_a_shape() -> None:
    proto = parsed("test (float[n, 4] x, int64[2] shape) => (float[a, b] y) { y = Reshape (x, shape) }")
    module = specialised(proto, dims={"n": (1, 6)})
    for rows, shape in ((3, [2, 6]), (3, [6, 2]), (6, [8, 3]), (3, [2, 6])):
        np.testing.assert_array_equal(module(floats(rows, 4), np.array(shape)), floats(rows, 4).reshape(shape))
    assert len(module.modules) == 3
    with pytest.raises(InputError, match="missing shape"):
        module(floats(3, 4))
    with pytest.raises(ShapeError, match=r"Reshape 'y'.*cannot reshape \[n, 4\]"):
        module(floats(3, 4), np.array([5, 5]))


def test_calls_go_on_with_the_state_of_the_last() -> None:
    proto = parsed("""
        test (int64[1] rows) => (float[a] y) {
          zeros = ConstantOfShape (rows)  y = RandomUniformLike (zeros)
        }
    """)
    module = specialised(proto, seed=3)
    drawn = [module(np.array([count])) for count in (4, 5, 4, 5)]
    assert [y.shape for y in drawn] == [(4,), (5,), (4,), (5,)] and len(module.modules) == 2
    assert len({float(y[0]) for y in drawn}) == 4


def test_what_is_no_parameter_is_refused_at_once() -> None:
    data = parsed("test (float[n, 4] x, int64[m] shape) => (float[a, b] y) { y = Reshape (x, shape) }")
    with pytest.raises(InputError, match="depends on the data of 'shape'"):  # as many numbers as there may be
        luminal.compile(data)
    other = parsed("test (int64[2] s, float[2, 3] x) => (float[a, b] y) { z = Reshape (x, s)  y = MatMul (x, x) }")
    with pytest.raises(InputError, match="MatMul"):  # at fault whatever the shape is
        luminal.compile(other)
    unknown = parsed("""
        test (bool c, float[4] x) => (float[4] y) {
          y = If (c) <then_branch: graph = yes () => (float[4] a) { a = com.example.Mystery (x) },
                      else_branch: graph = no () => (float[4] a) { a = Neg (x) }>
        }
    """)
    unknown.opset_import.add(domain="com.example", version=1)
    with pytest.raises(UnsupportedError, match="Mystery"):
        luminal.compile(unknown)


def test_one_library_needs_the_value(tmp_path: Path) -> None:
    module = specialised(parsed(RATES))
    with pytest.raises(ShapeError, match=r"If 'y'.*as many axes in both branches"):
        module.export(tmp_path / "build")
    with pytest.raises(ShapeError, match=r"constants=\{'rate': array\} or --constant rate=FILE\.npy"):
        module.export(tmp_path / "build")
    onnx.save(parsed(RATES), tmp_path / "rates.onnx")
    done = CliRunner().invoke(cli.app, ["compile", str(tmp_path / "rates.onnx"), "-o", str(tmp_path / "build")])
    assert isinstance(done.exception, ShapeError) or "as many axes" in done.output
    with pytest.raises(ModelError, match="no file"):
        luminal.compile(str(tmp_path / "absent.onnx"))
