"""Kernels for GPUs, generated from nests and run by the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from luminal.codegen import render
from luminal.codegen.dialect import Dialect
from luminal.codegen.emitter import KernelText, emit
from luminal.core import symbolic as sym
from luminal.core.schedule.nest import interpreter, ir, walk
from luminal.core.schedule.program.ir import Kernel
from luminal.core.schedule.transform.loops import Scheduled
from tests.codegen_support import WARNINGS, check_close
from tests.gpu_emulation import Image, aligned, tensor_map

Array = np.ndarray[Any, Any]


def rendered(name: str, nest: ir.LoopNest, dialect: Dialect) -> KernelText:
    return emit(Kernel(name, Scheduled(nest)), {dim.name: place for place, dim in enumerate(nest.dims)}, dialect)


def read_by(nest: ir.LoopNest) -> set[str]:
    """The arrays that a nest reads: those of which it writes a part may hold other parts."""
    values = [
        s.value for s in walk.statements(nest.body) if isinstance(s, ir.Store | ir.Define | ir.Let | ir.Reduction)
    ]
    ordered = {s.array for s in walk.statements(nest.body) if isinstance(s, ir.Sort)}
    return ordered | {access.array for value in values for access in walk.accesses(value)}


class Emulated:
    """Kernels of one dialect in a library, compiled with ``flags``; ``texts`` by name."""

    def __init__(
        self, nests: Mapping[str, ir.LoopNest], dialect: Dialect, folder: Path, flags: Sequence[str] = ()
    ) -> None:
        self.texts = {name: rendered(name, nest, dialect) for name, nest in nests.items()}
        self.names = {nest: name for name, nest in nests.items()}
        kernels = {"kernels": "".join(render.kernel_text(text) for text in self.texts.values())}
        tensors = {name: [array.name for array in nest.arrays] for name, nest in nests.items()}
        table = render.emulated_kernels(list(self.texts.values()), tensors)
        self.image = Image(kernels, table, dialect.name, folder, (*WARNINGS, "-Wno-unused-function", *flags))

    def run_nest(
        self, nest: ir.LoopNest, arrays: Mapping[str, Array], dims: Mapping[str, int], tasks: range | None
    ) -> bool:
        """Runs a kernel as ``core.schedule.nest.interpreter`` does: whether every checked index was in range."""
        assert tasks is None, "a grid runs all its blocks"
        return self.run(self.names[nest], arrays, dims) == 0

    def run(self, name: str, arrays: Mapping[str, Array], dims: Mapping[str, int]) -> int:
        """Runs all blocks of a kernel on ``arrays``; returns the status. What the kernel writes holds no values before
        it does; no access may be a fault."""
        text = self.texts[name]
        nest, signature = text.kernel.nest, text.signature
        values = [aligned(arrays[array.name]) for array in nest.arrays]
        written = [number for number, array in enumerate(nest.arrays) if array.written]
        unwritten = [number for number in written if nest.arrays[number].name not in read_by(nest)]
        status = aligned(np.zeros(1, np.int32))
        sizes = aligned(np.array([dims[dim.name] for dim in nest.dims], np.int64))
        more = ([status] if signature.checked else []) + ([sizes] if signature.reads_dims else [])
        named = {array.name: value for array, value in zip(nest.arrays, values, strict=True)}
        maps = [tensor_map(of, named[of.array], dims) for of in signature.maps]
        faults = self.image.run(name, int(sym.evaluate(text.tasks, dims)), [*values, *more], unwritten, maps)
        assert faults == "", faults
        for number in written:
            arrays[nest.arrays[number].name][:] = values[number]
        return int(status[0])


def compare(
    emulated: Emulated, name: str, arrays: Mapping[str, Array], dims: Mapping[str, int], ulps: float
) -> dict[str, Array]:
    """Runs a kernel and ``run_nest`` on the same arrays, and checks the results. Returns the kernel's arrays."""
    expected = {array: values.copy() for array, values in arrays.items()}
    in_range = interpreter.run(emulated.texts[name].kernel.nest, expected, dims)
    found = {array: values.reshape(-1).copy() for array, values in arrays.items()}
    status = emulated.run(name, found, dims)
    assert (status == 0) == in_range, f"status {status}"
    for array, values in found.items():
        check_close(array, values, expected[array], ulps)
    return found
