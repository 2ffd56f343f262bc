"""Libraries for NVIDIA's GPUs: host code for Linux, with the kernels inside, each compiled to an image.

An image holds machine code for the architectures of the target, and code that drivers translate for later ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from luminal.codegen import library, render
from luminal.codegen.emitter import KernelText
from luminal.codegen.platform import LINUX
from luminal.codegen.render import IMAGES, LIBRARY, PYTHON_MODULE, Host, SourceBundle
from luminal.core.program import Program
from luminal.core.target import Target

HOST = Host(
    LINUX,
    library.describe_launches,
    {
        "cuda/library.cpp.j2": LIBRARY,
        "cuda/images.cpp.j2": IMAGES,
        "cuda/CMakeLists.txt.j2": "CMakeLists.txt",
        "header.h.j2": "{name}.h",
        "wrapper.hpp.j2": "{name}.hpp",
        "exports.map.j2": "exports.map",
        "python_module.cpp.j2": PYTHON_MODULE,
    },
)


def bundle(
    program: Program,
    target: Target,
    kernels: Sequence[KernelText],
    sources: Mapping[str, str],
    threads: Mapping[str, int],
) -> SourceBundle:
    """The sources of ``program``, whose ``kernels`` are rendered as ``sources``: paths such as ``kernels/row2.cu``, in
    the same order, with the text. ``threads`` are those of a block of each kernel, by its name."""
    texts = dict(zip(sources, kernels, strict=True))
    return render.assemble(
        program,
        target,
        HOST,
        texts,
        sources,
        threads=threads,
        capability=min(map(_capability, target.features)),
        images=[{"name": PurePosixPath(path).stem, "path": render.image_path(path)} for path in sources],
        image_flags=image_flags(target),
    )


def image_flags(target: Target) -> tuple[str, ...]:
    """Flags with which nvcc makes an image of a kernel for ``target``."""
    codes = [f"-gencode=arch=compute_{_number(a)},code=sm_{_number(a)}" for a in target.features]
    oldest = _number(min(target.features, key=_capability))
    return ("-fatbin", *target.flags, *codes, f"-gencode=arch=compute_{oldest},code=compute_{oldest}")


def _number(architecture: str) -> str:
    """``sm_80`` is architecture 80."""
    return architecture.removeprefix("sm_")


def _capability(architecture: str) -> int:
    return int(_number(architecture))
