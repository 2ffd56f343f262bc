"""A small program for GPUs with kernels written by hand, and the stand-in for the CUDA driver that it runs on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.codegen import build, cuda, emulation, render, signature, weights
from luminal.codegen.build import ImageCompiler
from luminal.codegen.cpp import Names
from luminal.codegen.dialect_cuda import CUDA
from luminal.codegen.emitter import KernelText
from luminal.codegen.render import SourceBundle
from luminal.core import target as targets
from luminal.core import types
from luminal.core.schedule.nest import ir
from luminal.core.schedule.program.ir import Buffer, Entry, Kernel, Launch, Program, Region, TensorSpec
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.symbolic import Var
from luminal.core.target import Target
from tests.abi_support import LM_CUDA, LM_FLOAT32, LM_INT64, Value, value_at
from tests.codegen_support import array, axis, of, output
from tests.runtime_example import NATIVE

KERNELS = NATIVE / "cuda"

TARGET = targets.GPUS["cuda:sm_80"]
NAME = "mirrored"
COLUMNS = 24
ROWS = Var("rows", 1, 64)


def program() -> Program:
    """``main``: row ``ids[r]`` of a table times row r of ``x``, rows mirrored, plus a bias. ``mirror_only``: the last
    two steps on ``x``. The number of rows is symbolic; an index may be out of range."""
    r, _ = axis("r", of(ROWS))
    tasks = (ir.Loop(r, of(ROWS), "parallel", ()),)
    rows = (of(ROWS), COLUMNS)
    ids = TensorSpec("ids", types.i64, (of(ROWS),))
    x, y = (TensorSpec(name, types.f32, rows) for name in ("x", "y"))
    lookup_arrays = (output("out"), array("ids", types.i64), array("x"), array("table"))
    lookup_nest = ir.LoopNest(lookup_arrays, (ROWS,), tasks, checked=True, threads=8)
    lookup = Kernel("lookup", Scheduled(lookup_nest), ("Gather 'rows' (model.py:3)",))
    mirror = Kernel(
        "mirror", Scheduled(ir.LoopNest((output("out"), array("x"), array("bias")), (ROWS,), tasks, threads=24))
    )
    generator = np.random.default_rng(5)
    constants = {
        "table": generator.standard_normal((16, COLUMNS), dtype=np.float32),
        "bias": generator.standard_normal(COLUMNS, dtype=np.float32),
    }

    def buffer(name: str, space: str, shape: tuple[Any, ...], dtype: types.DType = types.f32) -> Buffer:
        size = int(np.prod([64 if axis is shape[0] and space != "constant" else axis for axis in shape]))
        return Buffer(name, dtype, shape, tuple(range(len(shape))), space, 0, size * dtype.itemsize)

    origins = ("Gather 'rows' (model.py:3)",), ("Add 'mirrored' (model.py:4)",)
    return Program(
        NAME,
        (ROWS,),
        (lookup, mirror),
        (
            buffer("ids", "input", (of(ROWS),), types.i64), buffer("x", "input", rows), buffer("y", "output", rows),
            buffer("found", "arena", rows),
            buffer("table", "constant", (16, COLUMNS)), buffer("bias", "constant", (COLUMNS,)),
        ),
        (
            Entry(
                "main", (ids, x), (y,),
                Region((
                    Launch(0, ("found", "ids", "x", "table"), origins[0]),
                    Launch(1, ("y", "found", "bias"), origins[1]),
                )),
                64 * COLUMNS * 4,
            ),
            Entry("mirror_only", (x,), (y,), Region((Launch(1, ("y", "x", "bias"), origins[1]),)), 0),
        ),
        constants,
    )  # fmt: skip


PROGRAM = program()


def main(ids: NDArray[np.int64], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What ``main`` computes."""
    return mirror_only(PROGRAM.constants["table"][ids] * x)


def mirror_only(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x[::-1] + PROGRAM.constants["bias"]


def inputs(rows: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 16, rows), generator.standard_normal((rows, COLUMNS), dtype=np.float32)


# ---- building --------------------------------------------------------------------------------------------------------


def bundle(target: Target = TARGET) -> SourceBundle:
    signatures = [signature.of(kernel.name, kernel.nest, Names(), CUDA) for kernel in PROGRAM.kernels]
    texts = {
        f"kernels/{kernel.name}.cu": KernelText(kernel, sign, (), (), of(ROWS))
        for kernel, sign in zip(PROGRAM.kernels, signatures, strict=True)
    }
    sources = {path: (KERNELS / Path(path).name).read_text() for path in texts}
    return render.assemble(PROGRAM, target, cuda.HOST, texts, sources)


def build_library(folder: Path, images: ImageCompiler | None = None, made: SourceBundle | None = None) -> Path:
    """The library with its weights, by default emulated."""
    made = made or emulation.emulated(bundle())
    path = build.build(made, folder, images=images).library
    arrays = [PROGRAM.constants[name] for name in made.plan.offsets]
    weights.write(path.with_name(f"{NAME}.weights"), made.source_hash, made.plan, arrays, made.content_id)
    return path


# ---- the stand-in ----------------------------------------------------------------------------------------------------


# What only kernels ask for in which groups of warps multiply.
FOR_GROUPS = ("cuFuncSetAttribute", "cuTensorMapEncodeTiled")
# What only ranks of a mesh ask for.
FOR_RANKS = ("cuDeviceGetUuid", "cuStreamQuery", "cuEventQuery")


class FakeDriver:
    """The stand-in at ``path``: what it was asked to be, and what it saw."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.lm_cuda_faults.restype = ctypes.c_char_p
        for name in ("lm_cuda_get", "lm_cuda_calls", "lm_cuda_objects"):
            getattr(self.library, name).restype = ctypes.c_int64

    def faults(self) -> list[str]:
        """What the host program did wrong since the last call."""
        return self.library.lm_cuda_faults().decode().splitlines()

    def objects(self) -> int:
        """What is not given back."""
        return int(self.library.lm_cuda_objects())

    def calls(self, function: str) -> int:
        return int(self.library.lm_cuda_calls(function.encode()))

    @contextmanager
    def being(self, **settings: int) -> Iterator[None]:
        """Within the ``with``, a driver that differs (see ``State`` in cuda_state.hpp)."""
        before = {name: self.library.lm_cuda_get(name.encode()) for name in settings}
        for name, value in settings.items():
            assert self.library.lm_cuda_set(name.encode(), ctypes.c_int64(value)) == 0, name
        try:
            yield
        finally:
            for name, value in before.items():
                self.library.lm_cuda_set(name.encode(), ctypes.c_int64(value))

    @contextmanager
    def failing(self, function: str, call: int = 1, result: int = 999) -> Iterator[None]:
        """Within the ``with``, a call of ``function``, counted from 1, fails."""
        os.environ["LUMINAL_CUDA_FAIL"] = f"{function}:{call}:{result}"
        try:
            yield
        finally:
            del os.environ["LUMINAL_CUDA_FAIL"]
            # The stand-in looks at each call: the next one sees that nothing fails any more.
            self.library.cuDeviceGetCount(ctypes.byref(ctypes.c_int32()))


class Caller:
    """A program that uses the GPU beside the library: its memory and streams."""

    def __init__(self, fake: FakeDriver) -> None:
        self.cuda = fake.library
        self.context = ctypes.c_void_p()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0))
        self.check(self.cuda.cuCtxPushCurrent_v2(self.context))
        self.memory: list[int] = []
        self.streams: list[int] = []

    def check(self, result: int) -> None:
        assert result == 0, result

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
        self.memory.append(address.value)
        return address.value

    def upload(self, values: NDArray[Any]) -> int:
        address = self.allocate(values.nbytes)
        source = ctypes.c_void_p(values.ctypes.data)
        size = ctypes.c_size_t(values.nbytes)
        self.check(self.cuda.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(address), source, size, None))
        return address

    def floats(self, address: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """What lies on the GPU now, without waiting for anything."""
        count = int(np.prod(shape))
        return np.frombuffer(ctypes.string_at(address, count * 4), dtype=np.float32).reshape(shape)

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self.check(self.cuda.cuStreamCreate(ctypes.byref(stream), 1))
        assert stream.value is not None
        self.streams.append(stream.value)
        return stream.value

    def synchronize(self, stream: int) -> None:
        self.check(self.cuda.cuStreamSynchronize(ctypes.c_void_p(stream)))

    def close(self) -> None:
        for stream in self.streams:
            self.check(self.cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream)))
        for address in self.memory:
            self.check(self.cuda.cuMemFree_v2(ctypes.c_uint64(address)))
        self.check(self.cuda.cuCtxPopCurrent_v2(ctypes.byref(self.context)))
        self.check(self.cuda.cuDevicePrimaryCtxRelease_v2(0))


# ---- arrays of Python ------------------------------------------------------------------------------------------------

# DLPack's codes of types
_KINDS = {"i": 0, "u": 1, "f": 2}
_NAMED = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12, "float8_e5m2fnuz": 13,
          "float8_e8m0fnu": 14}  # fmt: skip


class Tensor(ctypes.Structure):
    """``DLTensor`` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


def capsule(tensor: Tensor) -> Any:
    """What ``__dlpack__`` returns of a tensor that outlives it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(tensor), b"dltensor", None)


class ArrayLibrary:
    """Arrays on the GPU by the array API standard, as far as luminal asks for it."""

    float32, int64 = np.dtype(np.float32), np.dtype(np.int64)

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.streams: list[int | None] = []  # that consumers of arrays asked for

    def asarray(self, values: NDArray[Any], offset: int = 0) -> Array:
        """``values``, ``offset`` bytes into memory of their own."""
        place = self.caller.upload(np.concatenate([np.zeros(offset, np.uint8), values.reshape(-1).view(np.uint8)]))
        return Array(self, place, offset, values.shape, values.dtype)

    def empty(self, shape: tuple[int, ...], *, dtype: np.dtype[Any], device: str) -> Array:
        assert device == "CUDA"
        return self.asarray(np.full(shape, -1, dtype))


class Array:
    """An array in the memory of the stand-in."""

    device = "CUDA"

    def __init__(
        self, library: ArrayLibrary, place: int, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.library, self.place, self.shape, self.dtype = library, place, shape, dtype
        self.number = 0
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        bits = 8 * dtype.itemsize
        code = _NAMED[dtype.name] if dtype.name in _NAMED else _KINDS[dtype.kind]
        self.tensor = Tensor(place, LM_CUDA, 0, len(shape), code, bits, 1, sizes, None, offset)

    def __array_namespace__(self) -> ArrayLibrary:
        return self.library

    def __dlpack_device__(self) -> tuple[int, int]:
        return LM_CUDA, self.number

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.library.streams.append(stream)
        self.tensor.device_id = self.number
        return capsule(self.tensor)

    def numpy(self) -> NDArray[Any]:
        """What lies there now."""
        assert self.tensor.byte_offset == 0
        return self.library.caller.floats(self.place, self.shape).copy()


# ---- the C interface -------------------------------------------------------------------------------------------------

_DTYPES = {np.dtype(np.int64): LM_INT64, np.dtype(np.float32): LM_FLOAT32}


class Options(ctypes.Structure):
    """``lm_options`` of abi.h."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("weights_path", ctypes.c_char_p), ("weights_provider", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("deallocate", ctypes.c_void_p), ("parallel_for", ctypes.c_void_p),
        ("user", ctypes.c_void_p), ("threads", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("on_step", ctypes.c_void_p),
    )  # fmt: skip


def on_host(values: NDArray[Any]) -> Value:
    return value_at(values.ctypes.data, _DTYPES[values.dtype], values.shape)


def on_device(address: int, shape: tuple[int, ...], dtype: type = np.float32, device_id: int = 0) -> Value:
    return value_at(address, _DTYPES[np.dtype(dtype)], shape, LM_CUDA, device_id)


class Abi:
    """An open library by its C interface."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.abi = ctypes.CDLL(str(path))
        self.library = ctypes.c_void_p()
        given = Options(size=ctypes.sizeof(Options), **options)
        self.opened = self.abi.mirrored_open(ctypes.byref(given), ctypes.byref(self.library))
        self.contexts: list[ctypes.c_void_p] = []

    def context(self) -> tuple[int, ctypes.c_void_p]:
        context = ctypes.c_void_p()
        status = self.abi.mirrored_context_create(self.library, ctypes.byref(context))
        self.contexts += [context] if status == 0 else []
        return status, context

    def run(
        self, context: ctypes.c_void_p, entry: int, given: Sequence[Value], out: Sequence[Value], stream: int = 0
    ) -> int:
        handle = ctypes.c_void_p(stream)
        return int(
            self.abi.mirrored_run(context, entry, (Value * len(given))(*given), (Value * len(out))(*out), handle)
        )

    def set_weights(self, image: bytes) -> int:
        """With a copy that is gone when the call returns."""
        memory = ctypes.create_string_buffer(len(image) + 64)
        start = -ctypes.addressof(memory) % 64
        memory[start : start + len(image)] = image
        place = ctypes.c_void_p(ctypes.addressof(memory) + start)
        status = self.abi.mirrored_set_weights(self.library, place, ctypes.c_size_t(len(image)))
        memory[start : start + len(image)] = bytes(len(image))
        return int(status)

    def error(self, context: ctypes.c_void_p | None = None) -> str:
        text = ctypes.create_string_buffer(2048)
        self.abi.mirrored_last_error(self.library, context, text, ctypes.c_size_t(2048))
        return text.value.decode()

    def close(self) -> None:
        for context in self.contexts:
            self.abi.mirrored_context_destroy(context)
        assert self.abi.mirrored_close(self.library) == 0
