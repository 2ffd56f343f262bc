"""What compiling a model takes of memory whose weights lie in a file beside it, however large that is.

``python -m tests.large_model --gigabytes 2.5`` makes one of that size (its file has holes, but the weights file that is
compiled from it takes as much of the disk), compiles it, compares a run with numpy and prints the growth of the largest
resident size; exit status 1 where that is more than ``allowed``. ``tests/test_memory.py`` does so for 0.3.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import luminal
from luminal import artifact
from luminal.core import target as targets
from luminal.core.pipeline import compile_graph
from luminal.progress import Stages

SIDE = 2048  # rows and columns of each weight
WEIGHT = 4 * SIDE * SIDE  # bytes
STORED = 1024  # numbers at the beginning of each weight; the others are holes of the file, so zeros
HOLDS = 5  # weights that may be in memory at once: one, how it lies packed, and copies on the way
BESIDE = 48 << 20  # bytes for all else: graph, kernels, sources


def allowed() -> int:
    """By how many bytes compiling may grow, whatever the size of the model."""
    return HOLDS * WEIGHT + BESIDE


def make(folder: Path, count: int) -> Path:
    """A model of a table, which is gathered from, and ``count - 1`` matrices, every second transposed; its path.

    Only the first row of each weight has numbers, so of each product only the first column goes on.
    """
    file = folder / "weights.bin"
    file.touch()
    os.truncate(file, count * WEIGHT)
    random = np.random.default_rng(0)
    names = ["table", *(f"weight{k}" for k in range(1, count))]
    with file.open("r+b") as stream:
        for k in range(count):
            numbers = (1 + random.normal(0, 0.1, STORED)) / STORED**0.5  # so that products stay near 1
            stream.seek(k * WEIGHT)
            stream.write(numbers.astype(np.float32).tobytes())
    nodes = [helper.make_node("Gather", ["table", "ids"], ["h0"])]
    nodes += [
        helper.make_node("Gemm", [f"h{k - 1}", name], [f"h{k}"], transB=k % 2) for k, name in enumerate(names) if k
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch"])],
        [onnx.ValueInfoProto(name=f"h{count - 1}")],
    )
    for k, name in enumerate(names):
        tensor = graph.initializer.add(
            name=name, data_type=onnx.TensorProto.FLOAT, dims=[SIDE, SIDE], data_location=onnx.TensorProto.EXTERNAL
        )
        for key, value in {"location": file.name, "offset": k * WEIGHT, "length": WEIGHT}.items():
            tensor.external_data.add(key=key, value=str(value))
    path = folder / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def expected(folder: Path, count: int, ids: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
    """The model's output, in float64 and from the rows that are not zero."""
    rows = np.memmap(folder / "weights.bin", np.float32, "r", shape=(count, SIDE, SIDE))[:, 0].astype(np.float64)
    h = np.where((ids == 0)[:, None], rows[0], 0)
    for k in range(1, count):
        if k % 2:
            h = np.pad(h @ rows[k][:, None], [(0, 0), (0, SIDE - 1)])
        else:
            h = h[:, :1] * rows[k]
    return h


@contextmanager
def growth(found: dict[str, int], what: str) -> Iterator[None]:
    """Notes by how many bytes the largest resident size of this process grows in the block."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    found[what] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10


def measure(folder: Path, count: int) -> dict[str, int]:
    """Growth in bytes: of compiling the model, without opening its library, and of ``luminal.compile``, which opens it.

    Raises AssertionError where the library does not give what it should.
    """
    os.environ["LUMINAL_CACHE"] = str(folder / "cache")
    target = targets.parse("host")
    path = make(folder, count)
    found: dict[str, int] = {}
    with growth(found, "compiling"):
        artifact.build(compile_graph(luminal.read(path), target), target, Stages(None))
    with growth(found, "opening"):
        model = luminal.compile(path, threads=1)
        ids = np.array([0, 7, 0])
        np.testing.assert_allclose(model(ids), expected(folder, count, ids), rtol=1e-5, atol=1e-6)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.large_model", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.5, help="of the weights")
    count = round(parser.parse_args().gigabytes * 1e9 / WEIGHT)
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name), count)
    weights = count * WEIGHT
    limits = {"compiling": allowed(), "opening": weights + allowed()}  # an open library maps its weights
    print(f"weights {weights / 1e6:.0f} MB; growth of the largest resident size in MB:")
    for what, limit in limits.items():
        print(f"{what} {found[what] / 1e6:.0f}, of {limit / 1e6:.0f} allowed")
    return 0 if all(found[what] <= limit for what, limit in limits.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
