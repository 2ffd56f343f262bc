"""Kernels for GPUs compiled unchanged as C++ and run by the emulator of runtime/emulator."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from luminal.codegen import render, toolchain
from luminal.codegen.signature import BoxMap
from luminal.core import symbolic as sym
from luminal.core import target as targets

Array = np.ndarray[Any, Any]

EMULATOR = render.INCLUDE.parent / "emulator"
FLAGS = (
    "-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-Wno-attributes", "-Wno-unknown-pragmas",
    "-DLM_NAMESPACE=model_test", f"-I{render.INCLUDE}", f"-I{EMULATOR}",
)  # fmt: skip


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("threads", ctypes.c_uint32),
        ("parameters", ctypes.c_uint32),
        ("names", ctypes.c_void_p),
        ("requested", ctypes.c_uint32),
        ("maps", ctypes.c_uint32),
    )


def build(kernels: Mapping[str, str], table: str, dialect: str, folder: Path, warnings: Sequence[str] = ()) -> Path:
    """Kernels in the language ``dialect`` in a library with the emulator: ``kernels`` are their texts by file, and
    ``table`` the text that lists them."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = toolchain.find(targets.architecture())
    language = f"-DLM_EMULATE_{dialect.upper()}"
    parts = [(name, text, ("-fsanitize=thread", language, *warnings)) for name, text in kernels.items()]
    parts += [("table", table, (language, *warnings))]
    parts += [("emulator", (EMULATOR / "emulator.cpp").read_text(), ("-O2",))]
    for name, text, flags in parts:
        (folder / f"{name}.cpp").write_text(text)
        done = compiler.run([*FLAGS, *flags, "-c", f"{name}.cpp", "-o", f"{name}.o"], folder)
        assert done.returncode == 0, done.stderr[:4000]
    objects = [f"{name}.o" for name, _, _ in parts]
    done = compiler.run(["-shared", *objects, "-ldl", "-o", "image.so"], folder)
    assert done.returncode == 0, done.stderr[:4000]
    return folder / "image.so"


class Image:
    """The library that ``build`` makes, open."""

    def __init__(
        self, kernels: Mapping[str, str], table: str, dialect: str, folder: Path, warnings: Sequence[str] = ()
    ) -> None:
        self.library = ctypes.CDLL(str(build(kernels, table, dialect, folder, warnings)))
        self.library.lm_emulate.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
        self.library.lm_emulate_buffer.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self.library.lm_emulate_release.argtypes = (ctypes.c_void_p,)
        self.library.lm_emulate_faults.restype = ctypes.c_char_p
        first = ctypes.addressof(ctypes.c_char.in_dll(self.library, "lm_emulated_kernels"))
        table_ = ctypes.cast(first, ctypes.POINTER(_Kernel))
        self.kernels: dict[str, int] = {}
        while (name := table_[len(self.kernels)].name) is not None:
            self.kernels[name.decode()] = ctypes.addressof(table_[len(self.kernels)])

    def declare(self, memory: Array, written: bool) -> None:
        """``memory`` is a buffer of the device; ``written`` says that all of it holds values."""
        self.library.lm_emulate_buffer(memory.ctypes.data, memory.nbytes, int(written))

    def launch(self, name: str, blocks: int, arguments: Sequence[Array], maps: Sequence[Array] = ()) -> str:
        """Runs a kernel on buffers that were declared, and ``maps``; the faults that were found, one a line."""
        arguments = (*arguments, *maps)
        before = len(self.library.lm_emulate_faults())
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(*(array.ctypes.data for array in arguments))
        failed = self.library.lm_emulate(self.kernels[name], blocks, ctypes.addressof(pointers))
        faults: str = self.library.lm_emulate_faults()[before:].decode()
        assert bool(failed) == bool(faults)
        return faults

    def run(
        self, name: str, blocks: int, arrays: Sequence[Array], unwritten: Sequence[int] = (), maps: Sequence[Array] = ()
    ) -> str:
        """Runs a kernel on ``arrays``, of which those numbered ``unwritten`` hold no values yet, and ``maps``."""
        for number, array in enumerate(arrays):
            self.declare(array, number not in unwritten)
        try:
            return self.launch(name, blocks, arrays, maps)
        finally:
            for array in arrays:
                self.library.lm_emulate_release(array.ctypes.data)


def tensor_map(of: BoxMap, array: Array, dims: Mapping[str, int]) -> Array:
    """The description of ``array`` that the emulated driver makes (runtime/emulator/tensor_map.hpp)."""
    sizes, strides, (first,) = ([int(sym.evaluate(x, dims)) for x in xs] for xs in (of.sizes, of.strides, (of.first,)))
    rank, size = len(sizes), of.itemsize
    address = array.ctypes.data + first * size
    steps = [x * size for x in strides]
    fields = (address, rank, size, *sizes, *[0] * (5 - rank), *steps, *[0] * (5 - rank), 64, of.lines, 1, 1, 1)
    return np.frombuffer(struct.pack("<QII5Q4Q5II", *fields, 0x70616D62).ljust(128, b"\0"), np.uint8).copy()


def aligned(values: Array) -> Array:
    """A flat copy of ``values`` at an address that a device would give it."""
    memory = np.zeros(values.nbytes + 256, np.uint8)
    start = -memory.ctypes.data % 256
    result: Array = memory[start : start + values.nbytes].view(values.dtype)
    result[:] = values.reshape(-1)
    return result
