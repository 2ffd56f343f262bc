"""Loads a compiled library into Python: its description, and ``run`` on arrays.

Nothing of the compiler is needed here: a library describes itself through ``NAME_metadata_json``.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from luminal.runtime import _native
from luminal.runtime._native import LibraryError

__all__ = ["Library", "LibraryError", "describe", "load", "read_manifest"]

MANIFEST = "manifest.json"
_LONGEST_MANIFEST = 1 << 28  # bytes; one has some kilobytes for each kernel

# The types that numpy lacks and ml_dtypes adds, with their names there.
_EXTENSION_TYPES = {
    "bfloat16": "bfloat16",
    "int2": "int2",
    "int4": "int4",
    "uint2": "uint2",
    "uint4": "uint4",
    "float4e2m1": "float4_e2m1fn",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
}


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension with its bounds, both included."""

    name: str
    lower: int
    upper: int


@dataclass(frozen=True)
class TensorSpec:
    """An input or output. An axis is a number, the name of a dim, or the text of an expression of dims. The type of
    texts is that of Python's objects."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class EntrySpec:
    """One way to call the model. ``structure`` says how the outputs nest, as the compiler wrote it."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    structure: Any


class StepTime(NamedTuple):
    """The time of a step of a run, from its beginning to that of the next step."""

    step: int
    seconds: float


class Interface:
    """The interface of a library, from its own description."""

    def __init__(self, name: str, metadata: dict[str, Any]) -> None:
        self.name = name
        self.metadata = metadata
        self.dims = tuple(Dim(row["name"], row["lower"], row["upper"]) for row in metadata["dims"])
        self.entries = tuple(_entry(row) for row in metadata["entries"])
        self.states = tuple(_tensor(row) for row in metadata["states"])


class Library(Interface):
    """An open library. Threads may call :meth:`run` at once; the native code runs without the interpreter's lock.

    The runs of a library with ``states`` wait for each other: each finds the states as the last one left them.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        weights: Path | None = None,
        threads: int = 0,
        profile: bool = False,
        verify: bool = False,
        other_weights: bool = False,
        trace: Path | None = None,
    ) -> None:
        """Open the library ``name`` at ``path``; see :func:`load` for the rest and for the errors."""
        self.path = path
        self._profile = profile
        _check_whole(path)
        # A path with a slash is opened as it stands; a bare name would be looked up on the loader's path.
        self._native = _native.Library(
            str(path.absolute()),
            name,
            None if weights is None else str(weights.absolute()),
            threads,
            profile,
            verify,
            other_weights,
            None if trace is None else str(trace.absolute()),
        )
        super().__init__(name, json.loads(self._native.metadata_json()))
        self._entry_index = {entry.name: index for index, entry in enumerate(self.entries)}

    def __repr__(self) -> str:
        entries = ", ".join(entry.name for entry in self.entries)
        return f"<luminal library {self.name!r}: {entries}>"

    def run(self, inputs: Mapping[str, Any] | Sequence[Any], entry: str | int = 0) -> list[Any]:
        """Run an entry on arrays, by name or in order; returns new arrays in the order of the entry's outputs.

        Arrays that are not contiguous are copied first. Element types are not converted. Where an input lies on an
        NVIDIA GPU (``__dlpack_device__`` says so), it is used there, on PyTorch's current stream or else the default
        stream, and outputs are arrays of the same library, PyTorch or one of the array API standard, on that GPU.

        Raises ``ValueError`` where an input is missing, unknown, or does not fit in type, rank, size, bounds or device;
        ``IndexError`` where the model met an index out of range; ``LibraryError`` (a ``RuntimeError``) where the run
        failed otherwise, as at a singular matrix.
        """
        return self._native.run(*self._call(inputs, entry))

    def profile(
        self, inputs: Mapping[str, Any] | Sequence[Any], entry: str | int = 0
    ) -> tuple[list[Any], list[StepTime]]:
        """What :meth:`run` returns, and how long each step took, in the order in which they ran.

        Raises ``RuntimeError`` where the library was not opened for it, and what :meth:`run` raises.
        """
        if not self._profile:
            raise RuntimeError(f"{self.name!r} was not opened for this: load(..., profile=True)")
        outputs, marks = self._native.profile(*self._call(inputs, entry))
        times = [StepTime(step, (after - before) * 1e-9) for (step, before), (_, after) in itertools.pairwise(marks)]
        return outputs, times

    def reset(self) -> None:
        """Give all states the values that they had before the first run."""
        self._native.reset()

    def state(self) -> dict[str, Any]:
        """Copies of all states, by name."""
        return self._native.state()

    def set_state(self, name: str, array: Any) -> None:
        """Let the next run find ``array`` in a state.

        Raises ``ValueError`` where there is no state of that name, or another type or shape than the state's.
        """
        self._native.set_state(name, np.asarray(array))

    def _call(self, inputs: Mapping[str, Any] | Sequence[Any], entry: str | int) -> tuple[int, list[Any]]:
        """The number of the entry, and its inputs in order."""
        index = self._index(entry)
        ordered = list(_in_order(self.entries[index], inputs) if isinstance(inputs, Mapping) else inputs)
        for tensor, value in zip(self.entries[index].inputs, ordered, strict=False):
            if isinstance(value, np.ndarray) and not value.dtype.isnative:
                raise ValueError(
                    f'input "{tensor.name}" is in the byte order of other machines, {value.dtype.str}: '
                    'give array.astype(array.dtype.newbyteorder("="))'
                )
        return index, ordered

    def _index(self, entry: str | int) -> int:
        if isinstance(entry, str):
            if entry not in self._entry_index:
                raise ValueError(f"no entry is named {entry!r}; {self.name!r} has {', '.join(self._entry_index)}")
            return self._entry_index[entry]
        if not 0 <= entry < len(self.entries):
            raise ValueError(f"entry {entry} does not exist: {self.name!r} has {len(self.entries)}")
        return entry


def load(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    threads: int = 0,
    profile: bool = False,
    verify: bool = False,
    other_weights: bool = False,
    trace: str | os.PathLike[str] | None = None,
) -> Library:
    """Open a compiled library: a ``libNAME.so``, a ``manifest.json``, or the folder that holds one.

    ``name`` defaults to the one in the file's name or manifest, ``weights`` to the manifest's file or to
    ``NAME.weights`` beside the library, ``threads`` (0) to one for each CPU that the process may use. Weights that are
    named here, or any with ``other_weights``, may be others than those that the model was compiled with, for the same
    build. With ``profile``, the
    library notes when its steps begin: see :meth:`Library.profile`. With ``verify``, all bytes of the weights are
    verified, and not only up to 1 GB. A ``trace`` of all runs is written to that file when the library is closed: once
    nothing refers to it.

    Raises ``OSError`` if the library, its weights or its manifest cannot be read or do not belong together,
    ``ValueError`` for a bad option, ``LibraryError`` (a ``RuntimeError``) if this machine lacks an instruction set or a
    device that the library was compiled for.
    """
    location, others = Path(path), other_weights or weights is not None
    if location.is_dir():
        location = location / MANIFEST
    if location.suffix == ".json":
        manifest = read_manifest(location)
        name = name or manifest["name"]
        if weights is None and manifest.get("weights"):
            weights = location.parent / manifest["weights"]
        location = location.parent / manifest["library"]
    if not location.is_file():
        raise FileNotFoundError(f"there is no library at {str(location)!r}")
    _check_architecture(location)
    return Library(
        location,
        name or location.name.removeprefix("lib").split(".")[0],
        None if weights is None else Path(weights),
        threads,
        profile,
        verify,
        others,
        None if trace is None else Path(trace),
    )


def describe(folder: Path) -> Interface:
    """The interface of the library in ``folder``, from its manifest: this machine need not be able to run it."""
    manifest = read_manifest(folder / MANIFEST)
    return Interface(manifest["name"], manifest)


# The machine of an ELF file (e_machine, the two bytes at 18), for those that the compiler has targets for.
_ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}


# By the beginning of a library's file: what ``platform.system`` says where it loads, its system, and where to load it.
_SYSTEMS = {
    b"\xcf\xfa\xed\xfe": ("Darwin", "macOS", "on a Mac"),
    b"MZ": ("Windows", "Windows", "from a program for Windows"),
    b"\0asm": ("WebAssembly", "WebAssembly", "in a page or in Node, by its .mjs file"),
}


def _check_architecture(library: Path) -> None:
    with library.open("rb") as file:
        head = file.read(20)
    for magic, (system, made_for, place) in _SYSTEMS.items():
        if head.startswith(magic) and platform.system() != system:
            raise OSError(
                f"the library {str(library)!r} was compiled for {made_for}, and this machine runs {platform.system()}: "
                f"load it {place}, or compile the model for this machine"
            )
    found = _ELF_MACHINES.get(int.from_bytes(head[18:20], "little")) if head.startswith(b"\x7fELF") else None
    if found not in (None, platform.machine()):
        raise OSError(
            f"the library {str(library)!r} was compiled for {found}, and this machine is {platform.machine()}: load it "
            f"on such a machine, or compile the model for this one"
        )


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest: ``name``, ``library`` and ``weights`` (file names beside it, ``weights`` may be null), and more."""
    size = path.stat().st_size
    if size > _LONGEST_MANIFEST:
        raise OSError(f"the manifest {str(path)!r} has {size} bytes, and none that luminal writes is so long")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise OSError(f"the manifest {str(path)!r} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(key), str) for key in ("name", "library")):
        raise OSError(f'the manifest {str(path)!r} must be an object with "name" and "library"')
    return manifest


def _entry(row: Mapping[str, Any]) -> EntrySpec:
    return EntrySpec(
        row["name"],
        tuple(_tensor(tensor) for tensor in row["inputs"]),
        tuple(_tensor(tensor) for tensor in row["outputs"]),
        row.get("structure"),
    )


def _check_whole(path: Path) -> None:
    """Raises ``OSError`` where a 64-bit ELF library is truncated, before the end of the section table that its header
    names (System V ABI, "ELF Header"): the loader would map missing pages, and the first access end the process."""
    with path.open("rb") as file:
        header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
        return  # another format, or none: the loader says what it is
    (table,), (entry, count) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
    size, needed = path.stat().st_size, table + entry * count
    if size < needed:
        raise OSError(f'the library "{path}" is truncated: it has {size} of {needed} bytes; export the model again')


def _tensor(row: Mapping[str, Any]) -> TensorSpec:
    name = "object" if row["dtype"] == "text" else row["dtype"]
    dtype = np.dtype(getattr(ml_dtypes, _EXTENSION_TYPES[name]) if name in _EXTENSION_TYPES else name)
    return TensorSpec(row["name"], dtype, tuple(row["shape"]))


def _in_order(spec: EntrySpec, inputs: Mapping[str, Any]) -> list[Any]:
    names = [tensor.name for tensor in spec.inputs]
    unknown = [name for name in inputs if name not in names]
    missing = [name for name in names if name not in inputs]
    if unknown or missing:
        raise ValueError(
            f"entry {spec.name!r} takes {', '.join(names) or 'no inputs'}"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; unknown: {', '.join(unknown)}" if unknown else "")
        )
    return [inputs[name] for name in names]
