"""Weights that take the place of the compiled ones: constants that kernels rely on to be finite are."""

from __future__ import annotations

import ctypes
import json
import mmap
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal.codegen import weights
from luminal.codegen.weights import PAYLOAD_OFFSET
from luminal.core import interp, types
from luminal.module import Module

BAD_WEIGHTS = 5
X = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))


def model() -> nn.Sequential:
    """Of the convolution of single channels, the terms that the padding makes zero are left out."""
    torch.manual_seed(1)
    layers = nn.Conv2d(4, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 4, 1)
    return nn.Sequential(*layers).eval()


def compiled(source: nn.Module, dtype: torch.dtype = torch.float32) -> Module:
    module = luminal.compile(source.to(dtype), (X.to(dtype),), name="filters")
    assert isinstance(module, Module)
    return module


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=str)
def module(request: pytest.FixtureRequest) -> Module:
    return compiled(model(), request.param)


def constant(module: Module, name: str) -> dict[str, Any]:
    (found,) = (row for row in module.library.metadata["constants"] if row["name"] == name)
    return dict(found)


def edited(module: Module, folder: Path, name: str, value: float) -> Path:
    """A copy of the artefact, with ``value`` in the middle of a constant."""
    shutil.copytree(module.folder, folder)
    place = constant(module, name)
    path = folder / "filters.weights"
    content = bytearray(path.read_bytes())
    start, end = (PAYLOAD_OFFSET + place["offset"] + at for at in (0, place["bytes"]))
    array = np.frombuffer(content[start:end], types.ALL[place["dtype"]].numpy).copy()
    array[array.size // 2] = value
    content[start:end] = array.tobytes()
    path.write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    source, identity = (bytes.fromhex(manifest[key]) for key in ("source_hash", "content_id"))
    summed = weights.checksum(np.frombuffer(content[PAYLOAD_OFFSET:], np.uint64))
    header = weights.header(source, identity, len(content) - PAYLOAD_OFFSET, summed)
    path.write_bytes(header + content[PAYLOAD_OFFSET:])
    return folder


def test_the_metadata_names_the_constants_that_must_be_finite(module: Module) -> None:
    names = {row["name"] for row in module.library.metadata["constants"] if row["finite"]}
    assert names == {"1.weight"}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_filter_that_is_not_finite_is_refused(module: Module, tmp_path: Path, value: float) -> None:
    folder = edited(module, tmp_path / "edited", "1.weight", value)
    with pytest.raises(OSError, match=r'infinity or NaN in the constant "1\.weight", element 72, .* compile the model'):
        luminal.load(folder)
    luminal.load(edited(module, tmp_path / "large", "1.weight", np.finfo(np.float32).max))


def test_other_constants_may_hold_anything(module: Module, tmp_path: Path) -> None:
    x = np.zeros((1, 4, 8, 8), module.library.entries[0].inputs[0].dtype)
    found = luminal.load(edited(module, tmp_path / "edited", "1.bias", np.nan))(x)
    assert np.isnan(found).all()


def test_weights_that_are_refused_leave_the_old_ones(tmp_path: Path) -> None:
    module = compiled(model())
    folder = edited(module, tmp_path / "edited", "1.weight", np.nan)
    native = ctypes.CDLL(str(module.folder / "libfilters.so"))
    handle = ctypes.c_void_p()
    assert native.filters_open(None, ctypes.byref(handle)) == 0
    with (folder / "filters.weights").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as image:
        data = (ctypes.c_char * len(image)).from_buffer(image)
        assert native.filters_set_weights(handle, data, ctypes.c_size_t(len(image))) == BAD_WEIGHTS
        text = ctypes.create_string_buffer(300)
        native.filters_last_error(handle, None, text, ctypes.c_size_t(300))
        assert b'infinity or NaN in the constant "1.weight"' in text.value
        del data
    assert native.filters_close(handle) == 0


def test_a_model_compiled_with_such_a_filter_is_another_build(tmp_path: Path) -> None:
    """Its kernels keep the masks, and zeros of the padding times infinity are NaN."""
    source = model()
    module = compiled(source)
    with torch.no_grad():
        source[1].weight[0, 0, 0, 0] = torch.inf
    infinite = compiled(source)
    assert not any(row["finite"] for row in infinite.library.metadata["constants"])
    assert infinite.graph is not None
    (expected,) = interp.run(infinite.graph, {"input": X.numpy()}).outputs
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_allclose(infinite(X.numpy()), expected, rtol=1e-4, atol=1e-5)
    shutil.copytree(module.folder, tmp_path / "mixed")
    shutil.copy(infinite.folder / "filters.weights", tmp_path / "mixed")
    with pytest.raises(OSError, match="belongs to another build"):
        luminal.load(tmp_path / "mixed")
