"""Libraries for GPUs that run on this machine: unchanged host code, and an emulated driver that runs the kernels.

Beside such a library lie ``emulated_driver.so``, which it opens in place of the driver, and ``emulated_kernels.so``,
the emulator and the kernels: their unchanged text, compiled as C++ with a call before every access to memory
(``-fsanitize=thread``, without its runtime).
"""

from __future__ import annotations

from dataclasses import replace

from luminal.codegen import cuda, headers, render, toolchain
from luminal.codegen import platform as platforms
from luminal.codegen.built import Product, Unit
from luminal.codegen.host import EMULATOR, INCLUDE
from luminal.codegen.render import SourceBundle
from luminal.core import target as targets
from luminal.core.errors import BuildError

KERNELS = "emulated_kernels.so"
DRIVER = "emulated_driver.so"

# The sources of the emulated driver, and of what else it stands in for, by the dialect of a target; and the
# architectures that it supports.
_DRIVERS = {"cuda": ("cuda_driver.cpp", "nccl.cpp"), "metal": ("metal_runtime.cpp",)}
_ARCHITECTURES = {"metal": ("x86_64",)}

# The host code looks for it beside the library.
DEFINES = (f'-DLM_EMULATED_DRIVER="{DRIVER}"',)
# Takes the place of the image of a kernel: names the library in which the emulated driver finds the kernel.
NAMED_IMAGE = f"emulated: {KERNELS}\0"

_FLAGS = ("-std=c++17", "-fPIC", f"-I{INCLUDE}", f"-I{EMULATOR}")
# Arithmetic as exact as on a GPU; attributes of its language are ignored. No access may be hoisted out of a loop, where
# it could read what the loop is about to write.
_KERNEL_FLAGS = (
    "-O1", "-fno-tree-loop-im", "-ffp-contract=off", "-fsanitize=thread", "-Wno-attributes", "-Wno-unknown-pragmas",
    "-x", "c++",
)  # fmt: skip


def emulated(bundle: SourceBundle) -> SourceBundle:
    """The same sources, for a library that runs on this machine."""
    target = replace(bundle.target, architecture=targets.architecture(), system="linux")
    return replace(bundle, target=target, platform=platforms.here(), emulated=True)


def products(bundle: SourceBundle) -> tuple[Product, Product]:
    """The libraries that emulation of ``bundle`` needs: the kernels, and the emulated driver.

    Raises BuildError where there is no compiler, or the emulated driver does not support this machine.
    """
    dialect = bundle.target.dialect
    if dialect not in _DRIVERS:
        raise BuildError(
            f"{bundle.target.name} is not emulated: install a driver for CPUs (Debian: apt-get install pocl-opencl-icd "
            f"ocl-icd-libopencl1), and compile without emulation"
        )
    machine = targets.architecture()
    if machine not in _ARCHITECTURES.get(dialect, (machine,)):
        raise BuildError(f"{bundle.target.name} is emulated on {', '.join(_ARCHITECTURES[dialect])}, not on {machine}")
    compiler = toolchain.find()
    emulates = f"-DLM_EMULATE_{dialect.upper()}"
    language = (emulates, f"-DLM_NAMESPACE={bundle.namespace}", headers.namespace(*_KERNEL_FLAGS, emulates))
    kernels = {
        path: Unit(bundle.files[path], (*_FLAGS, *_KERNEL_FLAGS, *language), text.kernel, (headers.DEVICE,))
        for path, text in bundle.kernels.items()
    }
    table = render.emulated_kernels(list(bundle.kernels.values()), bundle.tensors)
    kernels["kernels.cpp"] = Unit(table, (*_FLAGS, *language))
    kernels["emulator.cpp"] = _own("emulator.cpp", "-O2")
    device = [f"-DLM_EMULATED_CAPABILITY={cuda.capability(bundle.target)}"] if dialect == "cuda" else []
    driver = {name: _own(name, "-O1", "-fvisibility=hidden", *device) for name in _DRIVERS[dialect]}
    return (
        Product(KERNELS, compiler, kernels, ("-shared", "-ldl"), standard=True),
        Product(DRIVER, compiler, driver, ("-shared", "-Wl,-z,defs", "-pthread", "-ldl"), standard=True),
    )


def _own(source: str, *flags: str) -> Unit:
    return Unit((EMULATOR / source).read_text(), (*_FLAGS, *flags))
