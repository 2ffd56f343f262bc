"""Builds the stand-in for Metal, and the hand-written library of tests/native/metal_example.cpp around it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import luminal.runtime
from luminal.codegen import interface, weights
from luminal.codegen.platform import MACOS
from luminal.codegen.render import SourceBundle
from luminal.core import symbolic, types
from luminal.core.target import AARCH64
from tests import gpu_emulation
from tests.runtime_example import INCLUDE, LIBRARY_FLAGS, LINK_FLAGS, LINK_LIBRARIES, NATIVE, SOURCE_HASH, WARNINGS, run

EMULATOR = Path(luminal.runtime.__file__).parent / "emulator"
NAME = "metal_example"
NAMESPACE = "-DLM_NAMESPACE=model_metal_example"
SHADERS = (NATIVE / "metal_example.metal").read_text()
LAYOUT = weights.plan([("table", 16 * 32 * 4), ("bias", 32 * 4)])


class FakeMetal:
    """The stand-in at ``path``: what it was asked to be, and what it saw."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.lm_metal_faults.restype = ctypes.c_char_p
        self._library.lm_metal_objects.restype = self._library.lm_metal_get.restype = ctypes.c_int64

    def faults(self) -> list[str]:
        """What the host program did wrong since the last call."""
        return self._library.lm_metal_faults().decode().splitlines()

    def objects(self) -> int:
        """Objects that are not released."""
        return int(self._library.lm_metal_objects())

    def default_device(self) -> int:
        """A device that the caller owns, as ``id<MTLDevice>``."""
        create = self._library.MTLCreateSystemDefaultDevice
        create.restype = ctypes.c_void_p
        return int(create())

    def send(self, receiver: int, selector: str, *arguments: int) -> int:
        """A message whose arguments are integers or pointers, to a method that returns one."""
        register, send = self._library.sel_registerName, self._library.objc_msgSend
        register.restype = send.restype = ctypes.c_void_p
        words = [ctypes.c_void_p(word) for word in (receiver, register(selector.encode()), *arguments)]
        return int(send(*words) or 0)

    @contextmanager
    def being(self, **settings: int) -> Iterator[None]:
        """Within the ``with``, a Metal that differs (see ``State`` in metal_runtime.cpp)."""
        before = {name: self._library.lm_metal_get(name.encode()) for name in settings}
        for name, value in settings.items():
            assert self._library.lm_metal_set(name.encode(), ctypes.c_int64(value)) == 0, name
        try:
            yield
        finally:
            for name, value in before.items():
                self._library.lm_metal_set(name.encode(), ctypes.c_int64(value))


@dataclass(frozen=True)
class MetalExample:
    """A built library, its weights beside it."""

    library: Path
    table: NDArray[np.float32]
    bias: NDArray[np.float32]

    def expected(self, ids: NDArray[np.int64], scale: NDArray[np.float32]) -> NDArray[np.float32]:
        last = np.arange(len(ids), dtype=np.float32)[::-1, None]
        return (self.table[ids] * scale + self.bias + last).astype(np.float32)


def build_fake(folder: Path) -> Path:
    """The stand-in for the Objective-C runtime and Metal."""
    output = folder / "libmetal_runtime.so"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS, "-Wl,-z,defs"]
    run(["g++", *flags, EMULATOR / "metal_runtime.cpp", "-o", output, "-ldl"])
    return output


def build_image(folder: Path) -> Path:
    """The kernels of the example for the emulator."""
    return gpu_emulation.build({"kernels": SHADERS}, (NATIVE / "metal_example_image.cpp").read_text(), "metal", folder)


def example_interface() -> interface.Interface:
    rows = symbolic.var("rows", 0, 64)
    entry = interface.Entry(
        "forward",
        "forward",
        interface.tensors([("ids", types.i64, [rows]), ("scale", types.f32, [])]),
        interface.tensors([("scaled", types.f32, [rows, 32])]),
        0,
        64 + 64 * 32 * 4,
    )
    return interface.Interface(NAME, interface.dims([("rows", 0, 64)]), (entry,))


def example_source(shaders: str = SHADERS, threads: int = 32) -> str:
    """metal_example.cpp, with what the test chooses in place of the header that it includes."""
    config = (
        f"#define EXAMPLE_METADATA {interface.c_string(example_interface().metadata_json())}\n"
        f"#define EXAMPLE_SHADERS {interface.c_string(shaders)}\n"
        f"#define EXAMPLE_THREADS {threads}\n"
    )
    return (NATIVE / "metal_example.cpp").read_text().replace('#include "metal_example_config.h"\n', config)


def example_bundle() -> SourceBundle:
    """The library for macOS, ready to be built."""
    files = {"library.cpp": example_source()}
    return SourceBundle(
        NAME, AARCH64, example_interface(), files, {}, LAYOUT, SOURCE_HASH, platform=MACOS
    )  # fmt: skip


def build_example(folder: Path, shaders: str = SHADERS, threads: int = 32) -> MetalExample:
    """The library, compiled for this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"lib{NAME}.so"
    (folder / "library.cpp").write_text(example_source(shaders, threads))
    compiled = ["-c", folder / "library.cpp", "-o", folder / "library.o"]
    run(["g++", *LIBRARY_FLAGS, *WARNINGS, f"-I{INCLUDE}", NAMESPACE, *compiled])
    run(["gcc", "-shared", *LINK_FLAGS, folder / "library.o", "-o", library, *LINK_LIBRARIES])
    generator = np.random.default_rng(7)
    table = generator.standard_normal((16, 32), dtype=np.float32)
    bias = generator.standard_normal(32, dtype=np.float32)
    weights.write(folder / f"{NAME}.weights", SOURCE_HASH, LAYOUT, iter([table, bias]))
    return MetalExample(library, table, bias)
