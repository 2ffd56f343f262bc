"""Profiles: what is counted of kernels, and the measuring of the peak they are compared with."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal import peak, profile
from luminal.core import ir, ops, types
from luminal.core import target as targets
from luminal.core.matrix import AMX_BF16, AMX_INT8, DOT_BF16, DOT_INT8, MADD_INT8, MatrixUnit
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.cost import traffic
from luminal.core.schedule.nest.text import nest_text
from luminal.module import Module
from luminal.peak import Peak
from tests import tiles

VOCABULARY, WIDTH, CLASSES = 5000, 64, 50


class Lookup(nn.Module):
    """Rows of a table, a contraction, and a softmax of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(torch.sin(self.table(ids))), -1)


def test_operations_and_bytes_of_kernels() -> None:
    rows, dims = 12, {"ids": ("rows",), "rows": (1, 32)}
    module = luminal.compile(Lookup().eval(), (torch.arange(rows),), dims=dims, name="lookup", threads=1)
    assert isinstance(module, Module)
    for count in (rows, 5):
        kernels = profile.profile(module, {"ids": np.arange(count)}, runs=3, threads=1)
        assert [k.seconds for k in kernels] == sorted((k.seconds for k in kernels), reverse=True)
        assert all(k.launches == 1 and k.seconds > 0 for k in kernels)
        by_origin = {origin.partition(" ")[0]: kernel for kernel in kernels for origin in kernel.origins}
        look_up, product = by_origin["aten.embedding.default"], by_origin["aten.linear.default"]
        softmax = by_origin["aten.softmax.int"]
        # Only the rows that are looked up count of a table, and a contraction's padding counts as memory alone.
        assert look_up.bytes == count * 8 + 2 * count * WIDTH * 4 and look_up.operations == 0
        assert product.operations == 2 * count * WIDTH * CLASSES
        padded = -(-CLASSES // 16) * 16
        least = 4 * (count * WIDTH + WIDTH * CLASSES + CLASSES + count * CLASSES)
        assert least <= product.bytes <= least + 4 * WIDTH * (2 * padded - CLASSES)
        assert softmax.bytes == 2 * count * CLASSES * 4


def test_what_is_reduced_side_by_side_is_counted() -> None:
    x = ir.input_("x", (48, 64), types.f32)
    graph = ir.Graph("columns", (x,), (("y", ir.reduce(ops.SUM_REDUCE, x, [0])),))
    (kernel,) = compile_graph(graph, targets.AVX512).kernels
    assert "side by side" in nest_text(kernel.nest)
    assert traffic.elements_touched(kernel.nest, {}) == {"x0": 48 * 64, "x1": 64}


@pytest.mark.parametrize(("rows", "width", "busy"), [(1, 96, 1), (1, 512, 2), (512, 256, 2)])
def test_threads_of_kernels(rows: int, width: int, busy: int) -> None:
    """As many as there is work for: that of a single row is to read the matrix."""
    module = luminal.compile(nn.Linear(width, width).eval(), (torch.zeros(rows, width),), threads=1)
    assert isinstance(module, Module)
    inputs = {module.input_names[0]: np.zeros((rows, width), np.float32)}
    (product,) = (k for k in profile.profile(module, inputs, runs=3, threads=2) if k.operations)
    assert product.threads == busy and product.unit == "FMA"


def test_ceilings_of_kernels() -> None:
    kernel = profile.KernelTime("k", 3, 1e-3, 10**9, 10**6, "bf16", 2, ("MatMul 'a'",))
    assert kernel.ceiling(Peak(1e13, 2e10)) == (pytest.approx(0.1), "bf16")  # without tiles as float32
    assert kernel.ceiling(Peak(1e12, 1e10, bf16=4e12)) == (pytest.approx(0.25), "bf16")
    assert kernel.ceiling(Peak(1e12, 2e9, bf16=4e12)) == (pytest.approx(0.5), "stream")
    cells = dict(zip(profile.HEADINGS, profile.cells(kernel, 2e-3, Peak(1e12, 1e10, bf16=4e12)), strict=True))
    assert cells["of peak"] == "25% bf16" and cells["share"] == "50.0%" and cells["threads"] == "2"
    assert cells["of stream"] == "10%" and cells["of ceiling"] == "25% bf16" and cells["GFLOP/s"] == "1e+03"


def test_the_probe_computes_and_reads_everything() -> None:
    target = targets.detect()
    library = peak._compile(target)
    lanes = target.register_bytes // 4
    operations = ctypes.c_int64.in_dll(library, "lm_round_operations").value
    # x -> x/2 + 1 has one fixed point, which every lane of every chain reaches.
    assert library.lm_multiply_add(200, 0.5, 1) == operations
    numbers = np.zeros(10 * operations + lanes, np.float32)
    data = numbers[-numbers.ctypes.data % target.register_bytes // 4 :][: 5 * operations]
    data[:] = np.arange(data.size) % 8
    assert library.lm_read(data.ctypes.data, data.size // lanes, 3) == 3 * data.sum()


@pytest.mark.parametrize("unit", [AMX_BF16, AMX_INT8, DOT_BF16, DOT_INT8, MADD_INT8], ids=lambda unit: unit.name)
def test_the_probe_multiplies_on_units(unit: MatrixUnit) -> None:
    """Every element of a sum of products of ones counts the terms."""
    target = next(target for target in targets.ALL.values() if unit in target.units)
    if tiles.missing(target):
        pytest.skip(tiles.missing(target))
    library = peak._compile(tiles.runnable(target))
    sums = 12 if unit.in_vectors else 4  # of the products of a round
    count = ctypes.c_int64.in_dll(library, "lm_products").value
    assert peak.products_of(library, unit)(5) == 5 * count // sums * unit.depth


def test_a_unit_that_the_machine_lacks_is_not_measured() -> None:
    """A library for a target with matrix units runs without them where its model needs none; so does the probe, in a
    process that has asked for nothing."""
    if targets.architecture() != "x86_64":
        pytest.skip("the matrix units are those of x86-64")
    lines = (
        "from luminal.core import target, types",
        "from luminal.peak import Probe",
        "print(Probe(target.parse('amx'), 1, 1 << 20).products(types.bf16, runs=1))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    dots = "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    assert (float(done.stdout) > 0) == (dots or targets.supported(targets.AVX512_AMX))


def test_peak_of_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "STREAM", 1 << 22)
    probe = peak.Probe(targets.detect(), threads=2)
    found = probe.measure(runs=2)
    assert found.operations > 0 and found.bytes > 0 and probe.read(1, runs=2) > 0
    assert found | Peak(0.0, np.inf) == Peak(found.operations, np.inf, found.bf16, found.int8)
    assert Path(peak.SOURCE).is_file()


def test_a_unit_that_a_machine_lacks_computes_in_float32() -> None:
    with_tiles = Peak(4e11, 2e10, bf16=6e12)
    assert [with_tiles.computing(unit) for unit in ("FMA", "bf16", "int8")] == [4e11, 6e12, 4e11]
