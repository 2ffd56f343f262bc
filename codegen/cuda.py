"""Libraries for NVIDIA's GPUs: host code for Linux, with the kernels inside, each compiled to an image.

An image holds machine code for the architectures of the target, and code that drivers translate for later ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from luminal.codegen import library
from luminal.codegen.emitter import KernelText
from luminal.codegen.host import IMAGES, LIBRARY, PUBLIC, Host, image_path
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target


def image_flags(target: Target) -> tuple[str, ...]:
    """Flags with which nvcc makes an image of a kernel for ``target``."""
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in map(compiled, target.features)]
    oldest = _number(min(target.features, key=_capability))
    return ("-fatbin", *target.flags, *codes, f"-gencode=arch=compute_{oldest},code=compute_{oldest}")


# The assembler's report on a kernel (-Xptxas -v).
_USES = re.compile(
    r"Compiling entry function '\w+' for '(?P<architecture>\w+)'.*?(?P<spilled>\d+) bytes spill stores"
    r".*?Used (?P<registers>\d+) registers(?:.*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


def resources(said: str) -> dict[str, dict[str, int]]:
    """A kernel's resources by architecture, from ``said``, the messages of nvcc: registers per thread, bytes that a
    thread spills to memory, bytes of shared memory per block."""
    kernels = re.split(r"(?=ptxas info\s*: Compiling)", said)
    found = filter(None, map(_USES.search, kernels))
    return {
        match["architecture"]: {name: int(match[name] or 0) for name in ("registers", "spilled", "shared")}
        for match in found
    }


def _more(
    program: Program, target: Target, kernels: Mapping[str, KernelText], sources: Mapping[str, str]
) -> Mapping[str, Any]:
    return {
        "capability": capability(target),
        "toolkit": toolkit(target),
        "images": [{"name": PurePosixPath(path).stem, "path": image_path(path)} for path in kernels],
        "image_flags": image_flags(target),
    }


# Architectures whose own instructions (PTX ISA, "Target ISA Notes" of wgmma) need code that runs on no other. What
# drivers translate for others has none of them: headers multiply by mma.sync there.
_SPECIFIC = {"sm_90": "90a"}


def compiled(architecture: str) -> str:
    """What machine code for an architecture is compiled for: ``90a`` of ``sm_90``."""
    return _SPECIFIC.get(architecture, _number(architecture))


# The first CUDA whose compiler knows an architecture, where that is later than the CUDA that libraries need to run.
_FIRST = {"sm_100": (12, 8)}
_DRIVER = (12, 0)


def toolkit(target: Target) -> str:
    """The oldest CUDA version whose compiler knows all architectures of ``target``, such as ``12.8``."""
    return ".".join(map(str, max(_FIRST.get(architecture, _DRIVER) for architecture in target.features)))


def _number(architecture: str) -> str:
    """The number of an architecture: ``80`` of ``sm_80``."""
    return architecture.removeprefix("sm_")


def capability(target: Target) -> int:
    """The least compute capability on which libraries for ``target`` run, in tenths: 90 is 9.0."""
    return min(map(_capability, target.features))


def _capability(architecture: str) -> int:
    return int(_number(architecture))


HOST = Host(
    "cuda",
    ".cu",
    library.LaunchDescriber,
    {
        "cuda/library.cpp.j2": LIBRARY,
        "cuda/images.cpp.j2": IMAGES,
        "cuda/CMakeLists.txt.j2": "CMakeLists.txt",
        **PUBLIC,
    },
    more=_more,
)
