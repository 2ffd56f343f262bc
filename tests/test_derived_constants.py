"""Constants that the algebra derives: of weights that are replaced, that are state, and that are stored in few bits."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal.core import constants, interp, ir, movement, ops, traverse
from luminal.core import target as targets
from luminal.core.algebra import stage
from luminal.core.decompose.contraction import linear, matmul
from luminal.core.ir import Graph, Node, State
from luminal.core.rewrite import simplify
from luminal.core.types import f32, i8
from luminal.module import Module
from tests.abi_support import LM_FLOAT32, Value, value_at

AVX2 = targets.parse("avx2", None, 2)
X = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))


def layers(seed: int) -> nn.Sequential:
    """Two linear layers, of which the algebra makes one."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)).eval()


def compiled(model: nn.Module) -> Module:
    module = luminal.compile(model, (X,), name="layers", algebra="bounded")
    assert isinstance(module, Module)
    return module


def expected(model: nn.Module) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return np.asarray(model.double()(X.double()).numpy())


def test_set_weights_takes_constants_that_are_derived_from_the_new_weights() -> None:
    module, other = compiled(layers(0)), compiled(layers(1))
    assert "constant(" in module.explain()
    native = ctypes.CDLL(str(module.library.path))
    library, context = ctypes.c_void_p(), ctypes.c_void_p()
    assert native.layers_open(None, ctypes.byref(library)) == 0
    image = np.fromfile(other.folder / "layers.weights", np.uint8)
    place = np.zeros(image.size + 64, np.uint8)  # of which the part from a multiple of 64 bytes on is used
    start = -place.ctypes.data % 64
    place[start : start + image.size] = image
    address = ctypes.c_void_p(place.ctypes.data + start)
    assert native.layers_set_weights(library, address, ctypes.c_size_t(image.size)) == 0
    assert native.layers_context_create(library, ctypes.byref(context)) == 0
    x, y = X.numpy(), np.zeros((32, 16), np.float32)
    values = [(Value * 1)(value_at(a.ctypes.data, LM_FLOAT32, a.shape)) for a in (x, y)]
    assert native.layers_run(context, 0, *values, None) == 0
    native.layers_context_destroy(context)
    assert native.layers_close(library) == 0
    np.testing.assert_allclose(y, expected(layers(1)), rtol=0, atol=1e-5)


def with_weights(module: Module, other: Module, folder: Path) -> Module:
    module.export(folder, python_module=False)
    (folder / "layers.weights").write_bytes((other.folder / "layers.weights").read_bytes())
    with pytest.warns(UserWarning, match="other weights"):
        return luminal.load(folder)


def test_a_library_with_other_weights_computes_what_these_say(tmp_path: Path) -> None:
    found = with_weights(compiled(layers(0)), compiled(layers(1)), tmp_path)
    np.testing.assert_allclose(found(X.numpy()), expected(layers(1)), rtol=0, atol=1e-5)


def test_a_derived_constant_has_no_name_of_a_weight() -> None:
    """So nobody puts a weight in the place of a product."""
    names = {row["name"] for row in compiled(layers(0)).library.metadata["constants"]}
    assert not names & dict(layers(0).named_parameters()).keys()


def test_weights_that_the_law_treats_otherwise_belong_to_another_build(tmp_path: Path) -> None:
    """A layer that takes the mean away cancels: it is computed as spelled, by other kernels."""
    centring = layers(0)
    with torch.no_grad():
        centring[0].weight.copy_(torch.cat([torch.eye(16) - 1 / 16] * 4))
    module, other = compiled(layers(0)), compiled(centring)
    assert module.explain() != other.explain()
    module.export(tmp_path, python_module=False)
    (tmp_path / "layers.weights").write_bytes((other.folder / "layers.weights").read_bytes())
    with pytest.raises(OSError, match="belongs to another build"):
        luminal.load(tmp_path)


# ---- state -----------------------------------------------------------------------------------------------------------


def trained() -> Graph:
    """Two layers, of which the first has weights that are state, and grow by a half in each run."""
    rng = np.random.default_rng(0)
    x, before = ir.input_("x", (32, 16), f32), ir.input_("before", (64, 16), f32)
    first = ir.constant(rng.standard_normal((64, 16)).astype(np.float32))
    second = ir.constant(rng.standard_normal((16, 64)).astype(np.float32))
    outputs = (("y", linear(linear(x, before), second)), ("after", before * 1.5))
    return Graph("trained", (x, before), outputs, states=(State(before, "after", first),))


def test_weights_that_are_state_are_no_constants() -> None:
    graph = trained()
    found = stage.improved(simplify(graph), AVX2)
    assert found.approximations and all("constant(" not in made.what for made in found.approximations)
    module = luminal.compile(graph, algebra="bounded")
    assert isinstance(module, Module)
    x = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    state = graph.states[0].initial.attr.array
    for _ in range(3):
        (wanted,) = interp.run([graph.results[0]], {"x": x, "before": state}, mode="float64").outputs
        np.testing.assert_allclose(module(x), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
        state = state * np.float32(1.5)


# ---- weights in blocks of four bits ----------------------------------------------------------------------------------

BLOCK = 32


def decoded(rng: np.random.Generator, rows: int, columns: int) -> Node:
    """``scale * (q - 8)`` with a scale for each block of a row."""
    shape = (rows, columns // BLOCK, BLOCK)
    q = ir.constant(rng.integers(0, 16, shape).astype(np.int8))
    scale = ir.constant(rng.uniform(0.01, 0.1, shape[:2]).astype(np.float32))
    i = ir.axes(shape)
    whole = ir.cast(ir.binary(ops.ADD, q, ir.expand(ir.constant(-8, i8), shape)), f32) * ir.view(scale, shape, i[:2])
    return movement.reshape(whole, (rows, columns))


@pytest.mark.parametrize("rows", [1, 8, 64, 512])
@pytest.mark.parametrize("rank", [4, 64])
def test_an_update_of_packed_weights_leaves_them_packed(rows: int, rank: int) -> None:
    """LoRA over blocks of four bits, not merged: no form holds, or computes, the weights in full."""
    rng = np.random.default_rng(0)
    x = ir.input_("x", (rows, 256), f32)
    down, up = (ir.constant(rng.standard_normal(s).astype(np.float32) / 16) for s in ((rank, 256), (128, rank)))
    packed = decoded(rng, 128, 256)
    graph = Graph("g", (x,), (("y", linear(x, packed) + linear(linear(x, down), up) * 0.5),))
    found = stage.improved(simplify(graph), AVX2)
    held = [n for n in traverse.topological(found.roots) if n.op is ops.CONSTANT and n.dtype.is_float]
    assert all(int(n.size) < 128 * 256 for n in held)
    sums = [n for n in traverse.topological(found.roots) if n.op is ops.ADD and n.dtype.is_float and n.shape[-1] == 256]
    assert not sums
    inputs = {"x": rng.standard_normal((rows, 256)).astype(np.float32)}
    (wanted,) = interp.run(graph, inputs, mode="float64").outputs
    (result,) = interp.run(found, inputs).outputs
    assert np.abs(result - wanted).max() < 1e-6 * np.abs(wanted).max()


def test_packed_weights_are_multiplied_out_into_no_more_bytes() -> None:
    """``(x W) V`` as ``x (W V)``: the product of the constants, in full, is smaller than the packed weights."""
    rng = np.random.default_rng(0)
    x = ir.input_("x", (512, 128), f32)
    y = matmul(matmul(x, decoded(rng, 128, 256)), ir.constant(rng.standard_normal((256, 32)).astype(np.float32)))
    graph = simplify(Graph("g", (x,), (("y", y),)))
    found = stage.improved(graph, AVX2)
    assert found.approximations
    before, after = (sum(map(constants.constant_bytes, g.roots)) for g in (graph, found))
    assert after < before
