"""Loop nests written by hand, compiled into functions that run on numpy arrays."""

import ctypes
import itertools
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from luminal.codegen import render, toolchain
from luminal.codegen.emitter import KernelText
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core import types
from luminal.core.ops import Op
from luminal.core.schedule.nest import interpreter, ir
from luminal.core.schedule.program.ir import Kernel
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.symbolic import Expr, Int, Var, expr
from luminal.core.target import Target
from luminal.core.types import DType
from tests import emulation

HOST_TARGETS = [target for target in emulation.INSTRUCTION_SETS if targets.supported(target)]

# ---- building nests -------------------------------------------------------------------------------------------------


def of(variable: Var) -> Expr:
    """The variable as an expression."""
    return expr(variable)


def axis(name: str, extent: Int) -> tuple[Var, Expr]:
    """A loop variable over ``0 .. extent-1``, and the expression that it is."""
    variable = Var(name, 0, extent - 1)
    return variable, of(variable)


def number(value: object, dtype: DType = types.f32) -> ir.Scalar:
    """A literal."""
    return ir.literal(np.array(value, dtype.numpy).tobytes(), dtype)


def bits(value: object, dtype: DType = types.f32) -> bytes:
    """The bytes of one element."""
    return np.array(value, dtype.numpy).tobytes()


def op(row: Op, *operands: ir.Scalar, attr: object = None, dtype: DType | None = None) -> ir.Scalar:
    """A primitive; the type follows from the operands where it is not given."""
    if dtype is None:
        assert row.result is not None
        dtype = row.result(*(operand.dtype for operand in operands))
    return ir.apply(row, operands, attr, dtype)


def array(name: str, dtype: DType = types.f32) -> ir.Array:
    """An array that the kernel reads."""
    return ir.Array(name, dtype, False)


def output(name: str, dtype: DType = types.f32) -> ir.Array:
    """An array that the kernel writes."""
    return ir.Array(name, dtype, True)


# ---- compiling and calling ------------------------------------------------------------------------------------------

WRAPPER = """
extern "C" __attribute__((visibility("default")))
int32_t call_{name}(void* const* arrays, const int64_t* dims, int64_t begin, int64_t end) {{
    lm::Status raised;
    lm::Status* status = &raised;
    (void)arrays, (void)dims, (void)status;
    lm::{call};
    return raised.code();
}}
"""
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")


@dataclass(frozen=True)
class Case:
    """A nest, with arrays by name and sizes to run it on; ``more`` are further ``(arrays, sizes)``."""

    nest: ir.LoopNest
    arrays: Mapping[str, np.ndarray]
    dims: Mapping[str, int] = field(default_factory=dict)
    more: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, int]]] = ()
    ulps: float = 4.0

    @property
    def runs(self) -> list[tuple[Mapping[str, np.ndarray], Mapping[str, int]]]:
        return [(self.arrays, self.dims), *self.more]


@dataclass(frozen=True)
class Written:
    """A transform that is its text alone: for kernels that are written out."""

    line: str

    def __call__(self, nest: ir.LoopNest) -> ir.LoopNest:
        raise NotImplementedError(self.line)

    def __str__(self) -> str:
        return self.line


def written(*lines: str) -> tuple[Written, ...]:
    """A schedule of which only the text counts."""
    return tuple(map(Written, lines))


class Compiled:
    """A kernel as a function of flat arrays, which it writes in place."""

    def __init__(self, emitted: KernelText, library: Any) -> None:
        self.emitted = emitted
        self.nest = emitted.kernel.nest
        self.function = library[f"call_{emitted.kernel.name}"]

    def __call__(self, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None, split: int = 1) -> int:
        """Runs all tasks, in ``split`` calls; returns the status."""
        sizes = dict(dims or {})
        values = [arrays[array.name] for array in self.nest.arrays]
        pointers = emulation.pointers(values)
        numbers = (ctypes.c_int64 * max(1, len(self.nest.dims)))(*(sizes[dim.name] for dim in self.nest.dims))
        tasks = int(sym.evaluate(self.emitted.tasks, sizes))
        status = 0
        for begin, end in itertools.pairwise(tasks * part // split for part in range(split + 1)):
            if begin < end:
                status = max(status, self.function(pointers, numbers, ctypes.c_int64(begin), ctypes.c_int64(end)))
        return status


def compile_nests(nests: Mapping[str, ir.LoopNest], target: Target, folder: Path) -> dict[str, Compiled]:
    """All ``nests`` in one library, by name."""
    emitted, parts = {}, ['#include "luminal/status.hpp"\n']
    for name, nest in nests.items():
        dims = {dim.name: number for number, dim in enumerate(nest.dims)}
        kernel = Kernel(name, Scheduled(nest))
        emitted[name] = text = render.emit(kernel, dims)
        arguments = {"status": "status", "dims": "dims"}
        for place, pointer in enumerate(text.signature.pointers):
            element = pointer.type.removeprefix("const ")
            prefix = "lm::" if pointer.dtype.compute != pointer.dtype else ""
            arguments[pointer.array] = f"static_cast<{prefix}{element}>(arrays[{place}])"
        parts += [render.kernel_text(text), WRAPPER.format(name=name, call=text.signature.call(arguments))]
    source = folder / f"{target.name}.cpp"
    # Tile functions are static, and of one file each: here they need names of their own.
    source.write_text("".join(parts))
    flags = [*target.flags, *render.COMMON_FLAGS, *WARNINGS, "-DLM_NAMESPACE=test", f"-I{render.INCLUDE}"]
    library = source.with_suffix(".so")
    compiler = toolchain.find(target.architecture)
    for result in (
        compiler.run([*flags, "-c", source.name, "-o", "object.o"], folder),
        compiler.link(["-shared", "object.o", "-lm", "-o", library.name], folder),
    ):
        assert result.returncode == 0, result.stderr[:4000]
    loaded = emulation.open_library(library, target)
    return {name: Compiled(text, loaded) for name, text in emitted.items()}


# ---- comparing ------------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def fenced(values: np.ndarray, side: str) -> np.ndarray:
    """A copy of ``values`` that starts (``side`` is "start") or ends ("end") where memory does: an access beyond it is
    a segmentation fault."""
    pages = -(-max(values.nbytes, 1) // mmap.PAGESIZE)
    block = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
    whole = np.frombuffer(block, np.uint8)
    for fence in (0, pages + 1):
        address = whole.ctypes.data + fence * mmap.PAGESIZE
        assert _libc.mprotect(address, mmap.PAGESIZE, 0) == 0  # PROT_NONE
    first = mmap.PAGESIZE if side == "start" else (pages + 1) * mmap.PAGESIZE - values.nbytes
    inner = whole[first : first + values.nbytes].view(values.dtype)
    inner[:] = values
    return inner


def compare(
    compiled: Compiled, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int], ulps: float
) -> dict[str, np.ndarray]:
    """Runs the kernel and ``run_nest`` on the same arrays. Checks the results, that the division into tasks changes
    nothing, and (by crashing) that nothing outside the arrays is read or written. Returns the kernel's arrays."""
    expected = {name: values.copy() for name, values in arrays.items()}
    in_range = interpreter.run(compiled.nest, expected, dims)
    results = []
    for split, side in ((1, "end"), (3, "start")):
        found = {name: fenced(values.reshape(-1), side) for name, values in arrays.items()}
        status = compiled(found, dims, split)
        assert (status == 0) == in_range, f"status {status}"
        results.append(found)
    for name, values in results[0].items():
        assert values.tobytes() == results[1][name].tobytes(), f"{name} depends on the division into tasks"
        check_close(name, values, expected[name], ulps)
    return results[0]


def check_close(name: str, found: np.ndarray, expected: np.ndarray, ulps: float) -> None:
    """Exact for integers and bools; floats within ``ulps`` units in the last place of the larger of the value and 1."""
    dtype = types.from_numpy(found.dtype)
    if not dtype.is_float:
        np.testing.assert_array_equal(found, expected, err_msg=name)
        return
    eps = dtype.eps
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= ulps * eps * np.maximum(np.abs(b), 1.0)
    wrong = np.flatnonzero(~(same | close))
    assert not len(wrong), f"{name}: {len(wrong)} wrong, first at {wrong[0]}: {a[wrong[0]]!r}, expected {b[wrong[0]]!r}"
