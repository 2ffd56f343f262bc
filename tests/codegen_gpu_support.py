"""Kernels for GPUs compiled unchanged as C++, and run block by block on the system's threads."""

import ctypes
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from luminal.codegen import render, toolchain
from luminal.codegen.dialect import Dialect
from luminal.codegen.emitter import KernelText, emit
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.program import Kernel
from luminal.core.schedule import nest as ir
from luminal.core.schedule import run_nest
from tests.codegen_support import WARNINGS, check_close, fenced
from tests.vector_support import NATIVE

FLAGS = (
    "-std=c++17", "-O1", "-ffp-contract=off", *WARNINGS, "-Wno-attributes", "-Wno-unknown-pragmas",
    "-Wno-unused-function", "-DLM_NAMESPACE=model_test", f"-I{render.INCLUDE}", f"-I{NATIVE / 'block'}", f"-I{NATIVE}",
)  # fmt: skip


def rendered(name: str, nest: ir.LoopNest, dialect: Dialect) -> KernelText:
    return emit(Kernel(name, nest), {dim.name: place for place, dim in enumerate(nest.dims)}, dialect)


class Emulated:
    """Kernels of one dialect in a library; ``texts`` by name."""

    def __init__(self, nests: Mapping[str, ir.LoopNest], dialect: Dialect, folder: Path) -> None:
        self.texts = {name: rendered(name, nest, dialect) for name, nest in nests.items()}
        self.numbers = {name: number for number, name in enumerate(self.texts)}
        self.names = {nest: name for name, nest in nests.items()}
        folder.mkdir(parents=True, exist_ok=True)
        parts = [render.kernel_text(text) for text in self.texts.values()]
        sources = {
            "kernels.cpp": "".join(parts),
            "table.cpp": render.emulated_kernels(list(self.texts.values())),
            "run.cpp": (NATIVE / "block" / "run.cpp").read_text(),
        }
        compiler = toolchain.find(targets.architecture())
        for source, text in sources.items():
            (folder / source).write_text(text)
            flags = [*FLAGS, "-fPIC", f"-DLM_EMULATE_{dialect.name.upper()}", "-c", source, "-o", f"{source}.o"]
            result = compiler.run(flags, folder)
            assert result.returncode == 0, result.stderr[:4000]
        objects = [f"{source}.o" for source in sources]
        result = compiler.link(["-shared", *objects, "-lm", "-pthread", "-o", "kernels.so"], folder)
        assert result.returncode == 0, result.stderr[:4000]
        self.library = ctypes.CDLL(str(folder / "kernels.so"))

    def run_nest(
        self, nest: ir.LoopNest, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int], tasks: range | None
    ) -> bool:
        """Runs a kernel as ``core.schedule.run_nest`` does: whether every checked index was in range."""
        assert tasks is None, "a grid runs all its blocks"
        return self.run(self.names[nest], arrays, dims) == 0

    def run(self, name: str, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int]) -> int:
        """Runs all blocks of a kernel on ``arrays``; returns the status."""
        text = self.texts[name]
        status = np.zeros(1, np.int32)
        sizes = np.array([dims[dim.name] for dim in text.kernel.nest.dims], np.int64)
        values = [arrays[array.name] for array in text.kernel.nest.arrays]
        values += [status] if text.signature.checked else []
        values += [sizes] if text.signature.reads_dims else []
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        blocks = int(sym.evaluate(text.tasks, dims))
        self.library.run_kernel(self.numbers[name], pointers, ctypes.c_uint32(blocks))
        return int(status[0])


def aligned(values: np.ndarray, side: str) -> np.ndarray:
    """A copy of ``values`` beside memory that cannot be touched, aligned as allocations on a GPU are."""
    if side == "start" or values.nbytes % 16 == 0:
        return fenced(values, side)
    padded = np.zeros(-(-values.nbytes // 16) * 16, np.uint8)
    whole = fenced(padded, side)[: values.nbytes].view(values.dtype)
    whole[:] = values
    return whole


def compare(
    emulated: Emulated, name: str, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int], ulps: float
) -> dict[str, np.ndarray]:
    """Runs a kernel and ``run_nest`` on the same arrays, and checks the results; nothing outside the arrays may be
    touched. Returns the kernel's arrays."""
    expected = {array: values.copy() for array, values in arrays.items()}
    in_range = run_nest.run(emulated.texts[name].kernel.nest, expected, dims)
    for side in ("end", "start"):
        found = {array: aligned(values.reshape(-1), side) for array, values in arrays.items()}
        status = emulated.run(name, found, dims)
        assert (status == 0) == in_range, f"status {status}"
        for array, values in found.items():
            check_close(array, values, expected[array], ulps)
    return found
