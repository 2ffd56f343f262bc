"""Several entries in one library: they share weights and kernels, and each is called by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import luminal
from luminal.core import interp, ir, types
from luminal.core import symbolic as sym
from luminal.core.decompose import activation, contraction
from luminal.core.errors import InputError, ModelError
from luminal.core.ir import Graph, Node
from luminal.module import Module

RANDOM = np.random.default_rng(3)
WEIGHT = ir.constant(RANDOM.standard_normal((256, 192)).astype(np.float32))
ROWS = sym.var("rows", 1, 40)


def layer(x: Node) -> Node:
    return activation.relu(contraction.linear(x, WEIGHT))


def graph(rows: sym.Int) -> Graph:
    """A layer of so many rows; inputs and outputs have the same names in every graph."""
    x = ir.input_("x", (rows, 192), types.f32)
    dims = tuple(sym.variables(rows))
    return Graph("layers", (x,), (("y", layer(x)),), dims)


@pytest.fixture(scope="module")
def module() -> Module:
    found = luminal.compile({"prefill": graph(ROWS), "decode": graph(1)}, name="layers")
    assert isinstance(found, Module)
    return found


@pytest.mark.parametrize(("entry", "rows"), [("prefill", 1), ("prefill", 33), ("decode", 1)])
def test_each_entry_is_called_by_its_name(module: Module, entry: str, rows: int) -> None:
    x = RANDOM.standard_normal((rows, 192)).astype(np.float32)
    part = module[entry]
    assert part.graph is not None
    (expected,) = interp.run(part.graph, {"x": x}).outputs
    for found in (part(x), part.run({"x": x})["y"], module.library.run([x], entry)[0]):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_weights_are_stored_once(module: Module) -> None:
    assert module.program is not None
    stored = [b for b in module.program.buffers if b.space == "constant"]
    assert [b.size for b in stored] == [256 * 192 * 4]
    assert (module.folder / "layers.weights").stat().st_size < 1.1 * 256 * 192 * 4


def test_a_module_with_entries_says_that_one_must_be_chosen(module: Module) -> None:
    assert module.entries == ["prefill", "decode"]
    assert repr(module) == "<luminal module 'layers' with the entries prefill, decode>"
    with pytest.raises(
        InputError, match=r"has the entries prefill, decode: take one of them, as in module\['prefill'\]"
    ):
        module(np.zeros((1, 192), np.float32))
    with pytest.raises(InputError, match="expected an entry of prefill, decode, found 'encode'"):
        module["encode"]


def test_an_exported_library_has_all_entries(module: Module, tmp_path: Path) -> None:
    loaded = luminal.load(module.export(tmp_path / "layers", python_module=False))
    x = RANDOM.standard_normal((1, 192)).astype(np.float32)
    np.testing.assert_array_equal(loaded["decode"](x), module["decode"](x))


def other(low: int, high: int) -> Graph:
    rows = sym.var("rows", low, high)
    x = ir.input_("x", (rows,), types.f32)
    return Graph("other", (x,), (("y", x * 2.0),), tuple(sym.variables(rows)))


@pytest.mark.parametrize(
    ("models", "inputs", "error", "message"),
    [
        ({}, None, InputError, "expected a model for each entry"),
        ({"a": graph(1)}, [np.zeros(3)], InputError, "expected a model for each entry"),
        ({"a": graph(1)}, {"b": [np.zeros(3)]}, InputError, "inputs: there is no entry 'b'; the entries are 'a'"),
        (
            {"a": graph(ROWS), "b": other(1, 8)}, None, ModelError,
            "the dimension 'rows' is 1..40 in 'a' and 1..8 in 'b'; give it the same bounds, or another name",
        ),
    ],
)  # fmt: skip
def test_faults_are_named(models: Any, inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        luminal.compile(models, inputs)


class Prefill(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class Decode(Prefill):
    def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + past.sum(1, keepdim=True)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def parts() -> tuple[dict[str, torch.nn.Module], dict[str, tuple[torch.Tensor, ...]]]:
    layer, x, past = torch.nn.Linear(256, 256), tensor(1, 9, 256), tensor(1, 9, 256)
    return {"prefill": Prefill(layer), "decode": Decode(layer)}, {"prefill": (x,), "decode": (x[:, :1], past)}


def tensor(*shape: int) -> torch.Tensor:
    return torch.from_numpy(RANDOM.standard_normal(shape).astype(np.float32))


DIMS = [
    {"n": (1, 64), "past": {1: "n"}},  # an input of one entry alone
    {"n": (1, 64), "decode": {"past": {1: "n"}}},
    {"decode": {"n": (1, 64), "past": {1: "n"}}, "prefill": {"m": (2, 32), "x": {1: "m"}}},
]


@pytest.mark.parametrize("dims", DIMS, ids=["for all", "bounds for all", "by entry"])
def test_dims_hold_for_the_entries_that_have_them(parts: Any, dims: Any) -> None:
    models, inputs = parts
    module = luminal.compile(models, inputs, dims=dims, name="parts")
    assert isinstance(module, Module)
    for rows in (3, 30):
        past = tensor(1, rows, 256)
        expected = models["decode"](inputs["decode"][0], past)
        torch.testing.assert_close(module["decode"](inputs["decode"][0], past), expected, rtol=1e-4, atol=1e-4)
    longer = torch.cat([inputs["prefill"][0]] * 2, 1)
    if "prefill" in dims:
        torch.testing.assert_close(module["prefill"](longer), models["prefill"](longer), rtol=1e-4, atol=1e-4)
    else:
        with pytest.raises(ValueError, match="expected"):
            module["prefill"](longer)


def test_constants_and_weights_of_one_entry(parts: Any) -> None:
    models, inputs = parts
    past = inputs["decode"][1]
    for constants in ({"decode": {"past": past.numpy()}}, {"past": past.numpy()}):
        module = luminal.compile(models, inputs, constants=constants, weights={"decode": "int4"}, name="parts")
        assert isinstance(module, Module)
        assert [module[entry].input_names for entry in module.entries] == [["x"], ["x"]]
        x = inputs["decode"][0]
        exact, rounded = (models[entry](*inputs[entry]) for entry in ("prefill", "decode"))
        torch.testing.assert_close(module["prefill"](inputs["prefill"][0]), exact, rtol=1e-4, atol=1e-4)
        apart = float((module["decode"](x, past) - rounded).detach().abs().max())
        assert 1e-3 < apart < 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"decoder": {"past": {1: "n"}}}}, "dims: there is no entry 'decoder'; the nearest .* 'decode'"),
        ({"dims": {"n": (1, 64), "Past": {1: "n"}}}, "no entry has 'Past', 'n'; the nearest .* 'past'"),
        ({"dims": {"decode": {"pasts": {1: "n"}}}}, "'decode' has no 'pasts'; the nearest .*'past'"),
        ({"dims": {"m": (1, 4), "past": {1: "n"}}}, "no entry has 'm'"),
        ({"constants": {"pst": np.zeros(3)}}, "constants: no entry has 'pst'; the nearest .* 'past'"),
        ({"weights": {"prefil": "int8"}}, "weights: there is no entry 'prefil'; the nearest to 'prefil' are 'prefill'"),
    ],
)  # fmt: skip
def test_unknown_names_are_errors_before_anything_is_exported(
    parts: Any, options: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.export, "export")
    with pytest.raises(InputError, match=message):
        luminal.compile(*parts, **options)


def test_an_error_names_its_entry(parts: Any) -> None:
    models, inputs = parts
    with pytest.raises(ModelError, match=r"entry 'decode': .* do not fit Decode\.forward"):
        luminal.compile(models, inputs | {"decode": inputs["prefill"]})


def test_onnx_entries_with_sizes_of_their_own() -> None:
    def model(size: str) -> onnx.ModelProto:
        x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size, 3]) for name in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    models = {"first": model("rows"), "second": model("lines")}
    module = luminal.compile(models, dims={"rows": (1, 4), "second": {"lines": (2, 8)}}, name="both")
    assert isinstance(module, Module)
    x = RANDOM.standard_normal((6, 3)).astype(np.float32)
    np.testing.assert_array_equal(module["second"].run({"x": x})["y"], np.maximum(x, 0))
    with pytest.raises(ValueError, match="rows"):
        module["first"].run({"x": x})
    with pytest.raises(InputError, match="no entry has 'lins'; the nearest to 'lins' are 'lines'"):
        luminal.compile(models, dims={"lins": (1, 4)})
