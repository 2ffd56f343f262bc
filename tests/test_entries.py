"""Several entries in one library: they share weights and kernels, and each is called by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
        ({"a": graph(1)}, {"b": [np.zeros(3)]}, InputError, "inputs are given for b; the entries are a"),
        (
            {"a": graph(ROWS), "b": other(1, 8)}, None, ModelError,
            "the dimension 'rows' is 1..40 in 'a' and 1..8 in 'b'; give it the same bounds, or another name",
        ),
    ],
)  # fmt: skip
def test_faults_are_named(models: Any, inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        luminal.compile(models, inputs)
