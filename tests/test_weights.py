"""The writer of weights files; that the C++ side reads them is in test_runtime."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from luminal.codegen import weights

HASH = bytes(range(32))


def test_constants_are_aligned_and_in_order(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "scalar": np.array(1.5),
        "empty": np.zeros((0, 3), np.float32),
        "transposed": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "big-endian": np.arange(5, dtype=">i4"),
        "brain": np.arange(70).astype(ml_dtypes.bfloat16),
    }
    layout = weights.plan([(name, array.nbytes) for name, array in arrays.items()])
    assert all(offset % 64 == 0 for offset in layout.offsets.values())
    assert layout.payload_bytes % 64 == 0
    path = tmp_path / "model.weights"
    weights.write(path, HASH, layout, iter(arrays.values()))
    content = path.read_bytes()
    assert content[:8] == b"LUMINALW"
    assert content[16:48] == HASH
    assert len(content) == 4096 + layout.payload_bytes
    for name, array in arrays.items():
        start = 4096 + layout.offsets[name]
        little = array.astype(array.dtype.newbyteorder("<"))
        assert content[start : start + array.nbytes] == little.tobytes(), name
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.weights"]


def test_constants_are_held_one_at_a_time(tmp_path: Path) -> None:
    count, size = 16, 1 << 20

    def arrays() -> Iterator[NDArray[Any]]:
        for index in range(count):
            yield np.full(size, index, np.uint8)

    layout = weights.plan([(f"constant {index}", size) for index in range(count)])
    tracemalloc.start()
    weights.write(tmp_path / "model.weights", HASH, layout, arrays())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * size


def test_a_strided_constant_is_copied_in_chunks(tmp_path: Path) -> None:
    wide = np.arange(3 << 22, dtype=np.float32).reshape(-1, 1024)
    narrow = wide[:, ::2]
    assert narrow.nbytes > 4 * weights.CHUNK_BYTES
    layout = weights.plan([("narrow", narrow.nbytes)])
    path = tmp_path / "model.weights"
    tracemalloc.start()
    weights.write(path, HASH, layout, iter([narrow]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * weights.CHUNK_BYTES
    np.testing.assert_array_equal(np.fromfile(path, np.float32, offset=4096), narrow.ravel())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.weights"
    path.write_bytes(b"old")
    layout = weights.plan([("a", 4), ("b", 4)])
    word = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="constant 'b' is missing"):
        weights.write(path, HASH, layout, iter([word]))
    with pytest.raises(ValueError, match="constant 'b' has 8 bytes, but 4 were planned"):
        weights.write(path, HASH, layout, iter([word, np.zeros(2, np.int32)]))
    with pytest.raises(ValueError, match="more arrays than the 2 planned"):
        weights.write(path, HASH, layout, iter([word, word, word]))
    with pytest.raises(ValueError, match="the source hash has 3 bytes"):
        weights.write(path, b"abc", layout, iter([word, word]))
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_names_are_unique() -> None:
    with pytest.raises(ValueError, match="two constants are named 'a'"):
        weights.plan([("a", 4), ("a", 4)])
