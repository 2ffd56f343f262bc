"""Compiles the sources in tests/native that put the vector headers behind a C interface, and compares floats."""

from pathlib import Path
from typing import Any

import numpy as np

from luminal.codegen import toolchain
from luminal.core.target import Target
from tests import emulation

NATIVE = Path(__file__).parent / "native"
INCLUDE = Path(__file__).parent.parent / "runtime" / "include"

EVERY_TARGET = emulation.each(*emulation.INSTRUCTION_SETS)


def build(source: str, target: Target, folder: Path, *flags: str) -> Any:
    """``tests/native/source`` as a library for ``target``, opened: its functions are called as those of a
    ``ctypes.CDLL``."""
    library = folder / f"{Path(source).stem}.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    compiler = toolchain.find(target.architecture)
    compile_ = [*target.flags, *warnings, *flags, f"-I{INCLUDE}", "-fPIC", "-c", str(NATIVE / source)]
    for result in (
        compiler.run([*compile_, "-o", "object.o"], folder),
        compiler.link([*flags, "-shared", "object.o", "-lm", "-o", str(library)], folder),
    ):
        assert result.returncode == 0, result.stderr[:4000]
    return emulation.open_library(library, target)


def pointer(array: np.ndarray[Any, Any], offset: int = 0) -> emulation.Pointer:
    """The address ``offset`` bytes into ``array``."""
    return emulation.Pointer(array, offset)


def ulps(got: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The distance of ``got`` from ``reference`` (of a wider type) in units of got's last place at the reference.

    Infinity counts as the power of two after the largest number, so that a reference just short of overflow may be
    rounded up. A NaN on one side only is infinitely far.
    """
    info = np.finfo(got.dtype)
    wide = reference.dtype.type
    with np.errstate(all="ignore"):
        beyond = np.ldexp(wide(1), info.maxexp)
        value, exact = (np.clip(x.astype(wide), -beyond, beyond) for x in (got, reference))
        exponent = np.maximum(np.frexp(exact)[1], info.minexp + 1)
        distance = np.abs(value - exact) / np.ldexp(wide(1), exponent - 1 - info.nmant)
        both_nan = np.isnan(got) & np.isnan(reference)
        one_nan = np.isnan(got) != np.isnan(reference)
    return np.where(both_nan, wide(0), np.where(one_nan, wide(np.inf), distance))


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal bit for bit, except that every NaN equals every other."""
    assert a.dtype == b.dtype
    bits = f"u{a.dtype.itemsize}"
    same = a.view(bits) == b.view(bits)
    if a.dtype.kind == "f":
        same |= np.isnan(a) & np.isnan(b)
    return bool(same.all())
