"""Programs become source text: every file of a library, deterministic, with no path of this machine in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeAlias

import jinja2

from luminal.codegen import interface, library, weights
from luminal.codegen.cpp import comment, wrap
from luminal.codegen.emitter import KernelText, emit
from luminal.codegen.interface import Interface
from luminal.codegen.library import LibraryText
from luminal.codegen.platform import LINUX, Platform
from luminal.codegen.weights import WeightsPlan
from luminal.core.program import Kernel, Program
from luminal.core.target import Target

TEMPLATES = Path(__file__).parent / "templates"
INCLUDE = Path(__file__).parent.parent / "runtime" / "include"

# The template of a kernel, by dialect.
KERNELS = {"cpp": "cpp/kernel.cpp.j2", "cuda": "cuda/kernel.cu.j2", "metal": "metal/kernel.metal.j2"}
LIBRARY = "library.cpp"
PYTHON_MODULE = "python_module.cpp"
IMAGES = "images.cpp"  # puts the images of kernels for GPUs into the library
# Flags of every file; those of the target are for the kernels alone, because the library has to be able to say that a
# machine lacks an instruction set.
COMMON_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics")
LIBRARY_FLAGS = ("-std=c++17", "-O2", *COMMON_FLAGS)


@dataclass(frozen=True)
class SourceBundle:
    """The sources of one library. ``files`` maps relative paths to text; ``kernels`` are those files among them that
    hold a kernel each, with the kernel; ``plan`` lays out the weights file, whose header holds ``source_hash``;
    ``platform`` is the system that the library is for."""

    name: str
    target: Target
    interface: Interface
    files: Mapping[str, str]
    kernels: Mapping[str, Kernel]
    plan: WeightsPlan
    source_hash: bytes
    platform: Platform = LINUX

    @property
    def library(self) -> str:
        """The file name of the library."""
        return self.platform.library_file(self.name)

    @property
    def units(self) -> tuple[str, ...]:
        """The files that are compiled."""
        return tuple(path for path in self.files if path.endswith(".cpp") and path != PYTHON_MODULE)

    @property
    def image_sources(self) -> tuple[str, ...]:
        """The kernels that are compiled for GPUs, each to an image that ``IMAGES`` puts into the library."""
        return tuple(path for path in self.kernels if path.endswith(".cu"))

    @property
    def namespace(self) -> str:
        """The namespace of everything in the library."""
        return namespace(self.name)

    @property
    def kernel_flags(self) -> tuple[str, ...]:
        """Compiler flags of the kernels."""
        return (*self.target.flags, *COMMON_FLAGS)


Describe: TypeAlias = Callable[[Program, Interface, Sequence[KernelText], WeightsPlan], LibraryText]


@dataclass(frozen=True)
class Host:
    """The host code around kernels: the system that it is for, what its library.cpp iterates over, and its templates,
    with the files that they make (``{name}`` is the model)."""

    platform: Platform
    describe: Describe
    templates: Mapping[str, str]


CPU = Host(
    LINUX,
    library.describe,
    {
        "library.cpp.j2": LIBRARY,
        "header.h.j2": "{name}.h",
        "wrapper.hpp.j2": "{name}.hpp",
        "exports.map.j2": "exports.map",
        "CMakeLists.txt.j2": "CMakeLists.txt",
        "python_module.cpp.j2": PYTHON_MODULE,
    },
)


def image_path(source: str) -> str:
    """Where the image of the kernel ``source`` lies while the library is built."""
    return str(PurePosixPath(source).with_suffix(".fatbin"))


def namespace(name: str) -> str:
    """The inner namespace of the library ``name``; no name in the runtime headers ends like it."""
    return f"{name}_model"


@cache
def environment() -> jinja2.Environment:
    """The templates: strict about undefined names, with line statements after ``//%``."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATES / "cpp", TEMPLATES]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        line_statement_prefix="//%",
    )
    made.filters["comment"] = comment
    made.filters["wrap"] = wrap
    made.filters["c_string"] = interface.c_string
    return made


def kernel_text(text: KernelText) -> str:
    """The translation unit of one kernel, in the dialect that it was emitted in."""
    return environment().get_template(KERNELS[text.signature.dialect.name]).render(text=text)


def emulated_kernels(texts: Sequence[KernelText]) -> str:
    """The table of ``texts``, kernels that run as grids, by which an emulator calls them: ``lm_emulated_kernels``."""
    signatures = [text.signature for text in texts]
    return environment().get_template("emulated.cpp.j2").render(signatures=signatures)


def render(program: Program, target: Target) -> SourceBundle:
    """The sources of ``program`` for ``target``.

    Raises UnsupportedError for element types that have no C++ code, DTypeError for those that cannot cross the C ABI.
    """
    dims = {dim.name: number for number, dim in enumerate(program.dims)}
    kernels = {f"kernels/{kernel.name}.cpp": emit(kernel, dims) for kernel in program.kernels}
    files = {path: kernel_text(text) for path, text in kernels.items()}
    return assemble(program, target, CPU, kernels, files)


def assemble(
    program: Program,
    target: Target,
    host: Host,
    kernels: Mapping[str, KernelText],
    sources: Mapping[str, str],
    **more: Any,
) -> SourceBundle:
    """The ``sources`` of the kernels, by path, with the files of ``host`` around them. ``kernels`` are the kernels
    themselves, ``more`` is what the templates of this host know besides."""
    face = library.interface_of(program)
    texts = list(kernels.values())
    plan = weights.plan([(name, value.nbytes) for name, value in program.constants.items()])
    context: dict[str, Any] = {
        "interface": face,
        "namespace": namespace(program.name),
        "kernels": texts,
        "library": host.describe(program, face, texts, plan),
        "target": target,
        "weights_bytes": plan.payload_bytes,
        "kernel_sources": list(kernels),
        "kernel_flags": [*target.flags, *COMMON_FLAGS],
        "library_flags": LIBRARY_FLAGS,
        "abi_header": (INCLUDE / "luminal" / "abi.h").read_text(),
        **more,
    }
    # The hash stands for everything that decides what the library does with its weights.
    unhashed = _library(host, context, bytes(weights.HASH_BYTES), program, plan, target)
    digest = hashlib.sha256("\0".join([*sources, *sources.values(), unhashed]).encode()).digest()
    files = {**sources, LIBRARY: _library(host, context, digest, program, plan, target)}
    for name, pattern in host.templates.items():
        path = pattern.format(name=program.name)
        if path != LIBRARY:
            files[path] = environment().get_template(name).render(context)
    origins = {path: text.kernel for path, text in kernels.items()}
    return SourceBundle(
        program.name, target, face, MappingProxyType(files), MappingProxyType(origins), plan, digest, host.platform
    )  # fmt: skip


def describe(target: Target) -> dict[str, Any]:
    """What manifests and libraries say of the machine that they are for."""
    return {"name": target.name, "architecture": target.architecture, "features": list(target.features)}


def _library(
    host: Host, context: Mapping[str, Any], source_hash: bytes, program: Program, plan: WeightsPlan, target: Target
) -> str:
    metadata = context["interface"].metadata_json(
        **program.metadata,
        source_hash=source_hash.hex(),
        target=describe(target),
        constants=[
            {
                "name": name,
                "dtype": program.buffer(name).dtype.name,
                "shape": [axis if isinstance(axis, int) else str(axis) for axis in program.buffer(name).shape],
                "offset": offset,
                "bytes": plan.sizes[name],
            }
            for name, offset in plan.offsets.items()
        ],
        kernels=[{"name": kernel.name, "origins": list(kernel.origins)} for kernel in program.kernels],
    )
    lines = [interface.c_string(metadata[start : start + 100]) for start in range(0, len(metadata), 100)]
    octets = [f"{byte:#04x}" for byte in source_hash]
    (template,) = (name for name, path in host.templates.items() if path == LIBRARY)
    return environment().get_template(template).render(context, metadata=lines, source_hash=octets)
