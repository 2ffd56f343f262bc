"""GPUs: whether this machine has one that code for a target can run on."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence

from luminal.core import config


def missing(dialect: str, features: Sequence[str]) -> str:
    """What this machine lacks to run code in ``dialect`` that needs ``features``; empty where it has all."""
    return _MISSING[dialect](features)


# Numbers of cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76


def _cuda(features: Sequence[str]) -> str:
    try:
        driver = ctypes.CDLL(config.CUDA_DRIVER.value or "libcuda.so.1")
    except OSError as error:
        return f"this machine has no CUDA driver ({error})"
    count, device, major, minor = (ctypes.c_int(0) for _ in range(4))
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "this machine has a CUDA driver, but no GPU that it can use"
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    oldest = min(int(feature.removeprefix("sm_")) for feature in features)
    if 10 * major.value + minor.value < oldest:
        return f"it is for GPUs of sm_{oldest} or later, and this machine's is sm_{major.value}{minor.value}"
    return ""


def _metal(features: Sequence[str]) -> str:
    found = platform.system()
    return "" if found == "Darwin" or config.METAL_RUNTIME.value else f"this machine has no Metal: it runs {found}"


_MISSING: dict[str, Callable[[Sequence[str]], str]] = {"cuda": _cuda, "metal": _metal}
