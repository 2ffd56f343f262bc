"""The GPUs, CPUs and matrix units that this machine lets code run on, as the system reports them."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from luminal.core import config


def cpus() -> int:
    """How many CPUs this process may keep busy, as the runtime counts them (``luminal/cpus.hpp``): the number in its
    cpuset, or less if control groups grant less of their time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cpus(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return count if quota is None else min(count, quota)


def quota_cpus(membership: Path, root: Path) -> int | None:
    """The CPU time that control groups of either version grant, in CPUs, rounded up: the least quota of the groups that
    ``membership`` names in the tree of files at ``root``, and of those around them; None where there is none."""
    quotas = [quota for folder in _groups("cpu", membership, root) if (quota := _quota(folder)) is not None]
    return min((-(-quota // period) for quota, period in quotas), default=None)


def _quota(group: Path) -> tuple[int, int] | None:
    """The microseconds that a group grants, and of how many."""
    files = [("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    for parts in (" ".join(text(group / name) for name in names).split() for names in files):
        if len(parts) == 2 and all(part.isdigit() and int(part) for part in parts):
            return int(parts[0]), int(parts[1])
    return None


def _groups(controller: str, membership: Path, root: Path) -> Iterator[Path]:
    """The folders of a controller's groups that a process is in, and of those around them. Lines of ``membership`` are
    ``number:controllers:path``, without controllers in version 2; version 1 has a tree for each controller."""
    for line in text(membership).splitlines():
        if line.count(":") < 2:
            continue
        _, names, path = line.split(":", 2)
        if not names or controller in names.split(","):
            top = root / controller if names else root
            group = top / path.lstrip("/")
            yield from [group, *group.parents][: len(group.parts) - len(top.parts) + 1]


def text(path: Path) -> str:
    """The text of the file at ``path``; empty if it does not exist or cannot be read."""
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""


def may_use_tiles() -> bool:
    """Whether Linux lets this process use the matrix registers of an x86-64 CPU, which it does where it is asked, but
    for sandboxes and threads whose signal stacks are too small for them."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def missing(dialect: str, features: Sequence[str]) -> str:
    """What this machine lacks to run code in ``dialect`` that needs ``features``; empty where it has all."""
    return _MISSING[dialect](features)


# Numbers of cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, CUDA_ERROR_NO_DEVICE.
_MAJOR, _MINOR = 75, 76
_NO_DEVICE = 100


def _cuda(features: Sequence[str]) -> str:
    """Libraries run on the first GPU, so that it is the one which must suffice."""
    try:
        driver = ctypes.CDLL(config.CUDA_DRIVER.value or "libcuda.so.1")
    except OSError as error:
        return f"this machine has no CUDA driver ({error})"
    try:
        found = _capabilities(driver)
    except _DriverError as error:
        return f"this machine has a CUDA driver that fails: {error}"
    if not found:
        return "this machine has a CUDA driver, but no GPU that it can use"
    oldest = min(int(feature.removeprefix("sm_")) for feature in features)
    if found[0] >= oldest:
        return ""
    expected = f"it is for GPUs of sm_{oldest} or later, and"
    others = [f"GPU {number}" for number, capability in enumerate(found) if capability >= oldest]
    if others:
        return (
            f"{expected} GPU 0 of this machine, which is the one that is used, is sm_{found[0]}: set "
            f"CUDA_VISIBLE_DEVICES so that {' or '.join(others)} comes first"
        )
    has = "this machine's is" if len(found) == 1 else "those of this machine are"
    return f"{expected} {has} {', '.join(f'sm_{capability}' for capability in found)}"


class _DriverError(Exception):
    """A call of the CUDA driver that failed."""


def _capabilities(driver: ctypes.CDLL) -> list[int]:
    """The compute capability of each GPU that the driver can use: 90 is 9.0. Raises _DriverError where it fails."""

    def call(function: str, *arguments: object) -> int:
        if not hasattr(driver, function):
            raise _DriverError(f"it has no {function}")
        result = int(getattr(driver, function)(*arguments))
        if result not in (0, _NO_DEVICE):
            raise _DriverError(f"{function} gives error {result}")
        return result

    def attribute(number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int(0)
        call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    if call("cuInit", 0) == _NO_DEVICE:
        return []
    count, device = ctypes.c_int(0), ctypes.c_int(0)
    call("cuDeviceGetCount", ctypes.byref(count))
    found: list[int] = []
    for number in range(count.value):
        call("cuDeviceGet", ctypes.byref(device), number)
        found.append(10 * attribute(_MAJOR, device) + attribute(_MINOR, device))
    return found


def name(dialect: str) -> str:
    """What the driver calls the GPU that libraries in ``dialect`` run on; empty where it does not say."""
    if dialect != "cuda":
        return ""
    try:
        driver = ctypes.CDLL(config.CUDA_DRIVER.value or "libcuda.so.1")
    except OSError:
        return ""
    text, found = ctypes.create_string_buffer(256), ctypes.c_int(0)
    if not hasattr(driver, "cuDeviceGetName") or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(found), 0):
        return ""
    return "" if driver.cuDeviceGetName(text, len(text), found) else text.value.decode(errors="replace")


def _metal(features: Sequence[str]) -> str:
    if config.METAL_RUNTIME.value:
        return ""
    system, machine = platform.system(), platform.machine()
    if system != "Darwin":
        return f"this machine has no Metal: it runs {system}"
    return "" if machine == "arm64" else f"it is for Macs with Apple's processors, and this one's is {machine}"


def _opencl(features: Sequence[str]) -> str:
    advice = "install a driver and Debian's ocl-icd-libopencl1; pocl-opencl-icd is a driver for CPUs"
    try:
        loader = ctypes.CDLL(config.OPENCL_DRIVER.value or "libOpenCL.so.1")
    except OSError as error:
        return f"this machine has no OpenCL ({error}): {advice}"
    platforms, found = (ctypes.c_void_p * 16)(), ctypes.c_uint32(0)
    if loader.clGetPlatformIDs(16, platforms, ctypes.byref(found)) == 0:
        for platform_ in platforms[: found.value]:
            count = ctypes.c_uint32(0)
            everything = ctypes.c_uint64(0xFFFFFFFF)
            loader.clGetDeviceIDs(ctypes.c_void_p(platform_), everything, 0, None, ctypes.byref(count))
            if count.value:
                return ""
    return f"this machine has an OpenCL loader, but no device: {advice}"


_MISSING: dict[str, Callable[[Sequence[str]], str]] = {"cuda": _cuda, "metal": _metal, "opencl": _opencl}
