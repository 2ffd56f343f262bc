"""Host code: the files of a library besides its kernels, by the device that runs these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from luminal.codegen.emitter import KernelText
from luminal.codegen.library import Describer
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target

INCLUDE = Path(__file__).parent.parent / "runtime" / "include"
EMULATOR = INCLUDE.parent / "emulator"

LIBRARY = "library.cpp"
PYTHON_MODULE = "python_module.cpp"
IMAGES = "images.cpp"  # puts the images of kernels for GPUs into the library

# Templates of every host.
PUBLIC = {
    "header.h.j2": "{name}.h",
    "wrapper.hpp.j2": "{name}.hpp",
    "exports.map.j2": "exports.map",
    "python_module.cpp.j2": PYTHON_MODULE,
}

More: TypeAlias = Callable[[Program, Target, Mapping[str, KernelText], Mapping[str, str]], Mapping[str, Any]]


@dataclass(frozen=True)
class Host:
    """The host code for one kind of device.

    ``device`` is its name in manifests, ``kernel`` the ending of a kernel's file. ``describer`` makes the tables that
    library.cpp iterates over. ``templates`` maps templates to the files that they make (``{name}`` is the model).
    ``check`` raises UnsupportedError for programs that the device cannot run. ``more(program, target, kernels,
    sources)`` gives this host's further values for the templates, from the kernels and their text by path.
    """

    device: str
    kernel: str
    describer: type[Describer]
    templates: Mapping[str, str]
    check: Callable[[Program], None] = lambda program: None
    more: More = lambda program, target, kernels, sources: {}


def namespace(name: str) -> str:
    """The inner namespace of the library ``name``; its ending occurs on no name in the runtime headers."""
    return f"{name}_model"


def image_path(source: str) -> str:
    """The path of the image of the kernel ``source`` while the library is built."""
    return str(PurePosixPath(source).with_suffix(".fatbin"))
