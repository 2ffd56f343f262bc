"""Programs become source text: every file of a library, deterministic, with no path of this machine in it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from luminal.codegen import checkpoints, cuda, dialects, interface, library, metal, opencl, weights
from luminal.codegen import platform as platforms
from luminal.codegen.cpp import comment, wrap
from luminal.codegen.emitter import KernelText, emit
from luminal.codegen.host import INCLUDE, LIBRARY, PUBLIC, PYTHON_MODULE, Host, namespace
from luminal.codegen.interface import Interface
from luminal.codegen.platform import LINUX, Platform
from luminal.codegen.weights import WeightsPlan
from luminal.core.ops import EVERY
from luminal.core.schedule.nest.walk import stack_bytes
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target

TEMPLATES = Path(__file__).parent / "templates"

# The template of a kernel, by dialect.
KERNELS = {
    "cpp": "cpp/kernel.cpp.j2", "cuda": "cuda/kernel.cu.j2", "metal": "metal/kernel.metal.j2",
    "opencl": "opencl/kernel.cl.j2",
}  # fmt: skip
# Flags of every file. Flags of the target are for kernels alone: host code must run on a machine that lacks an
# instruction set, to report that.
COMMON_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics")
LIBRARY_FLAGS = ("-std=c++17", "-O2", *COMMON_FLAGS)


@dataclass(frozen=True)
class SourceBundle:
    """The sources of one library. ``files`` maps relative paths to text; ``kernels`` are the rendered kernels, by the
    path of their file; ``plan`` lays out the weights file, whose header holds ``source_hash`` and
    ``content_id``; ``platform`` is the
    system that the library is for. ``emulated``: it runs on this machine, which emulates its GPU. ``tensors`` describes
    each kernel's arrays in terms of the model, by the kernel's name."""

    name: str
    target: Target
    interface: Interface
    files: Mapping[str, str]
    kernels: Mapping[str, KernelText]
    plan: WeightsPlan
    source_hash: bytes
    platform: Platform = LINUX
    emulated: bool = False
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    content_id: bytes = bytes(weights.ID_BYTES)

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
        return tuple(path for path in self.kernels if path.endswith((".cu", ".cl")))

    @property
    def namespace(self) -> str:
        """The namespace of everything in the library."""
        return namespace(self.name)


def compiled(path: str, target: Target, name: str) -> list[tuple[str, tuple[str, ...]]]:
    """How the kernel at ``path`` of the library ``name`` is compiled: under which names, with which flags."""
    if not target.levels:
        return [(path, (*target.flags, *COMMON_FLAGS, f"-DLM_NAMESPACE={namespace(name)}"))]
    return [
        (
            path.replace("kernels/", f"kernels/{level.name}/"),
            (
                *level.flags,
                *COMMON_FLAGS,
                f"-DLM_NAMESPACE={namespace(name)}_{level.name}",
                f'-DLM_LEVEL="{level.name}"',
            ),
        )
        for level in target.levels
    ]


def _groups(name: str, target: Target) -> list[dict[str, Any]]:
    """How kernels are compiled, for CMake: a library of objects for each level."""
    found = []
    for path, flags in compiled("kernels/", target, name):
        defined = [flag.removeprefix("-D").replace('"', '\\"') for flag in flags if flag.startswith("-D")]
        library = "_".join([name, *path.strip("/").split("/")])
        plain = [flag for flag in flags if not flag.startswith("-D")]
        found.append({"library": library, "flags": plain, "definitions": defined})
    return found


_CPU_FILES = {"library.cpp.j2": LIBRARY, "CMakeLists.txt.j2": "CMakeLists.txt", **PUBLIC}
CPU = Host("cpu", ".cpp", library.Describer, _CPU_FILES)

# By the dialect of a target.
HOSTS = {"cpp": CPU, "cuda": cuda.HOST, "metal": metal.HOST, "opencl": opencl.HOST}


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


def kernel_text(text: KernelText, symbol: str = "") -> str:
    """The translation unit of one kernel, in the dialect that it was emitted in. With ``symbol``, one of several levels
    of a library, which have symbols of their own that begin so."""
    return environment().get_template(KERNELS[text.signature.dialect.name]).render(text=text, symbol=symbol)


def emulated_kernels(texts: Sequence[KernelText], tensors: Mapping[str, Sequence[str]]) -> str:
    """The table ``lm_emulated_kernels`` through which an emulator calls ``texts``, kernels that run as grids.

    ``tensors`` describes each kernel's arrays in terms of the model, by the kernel's name.
    """
    kernels = [(text.signature, text.signature.described(tensors[text.signature.name])) for text in texts]
    return environment().get_template("emulated.cpp.j2").render(kernels=kernels)


def tensors(program: Program) -> Mapping[str, tuple[str, ...]]:
    """Descriptions of the arrays of each kernel of ``program``, by its name, such as ``input 'x'``. If several steps
    launch a kernel: those of the first two, and the number of the others."""
    found: dict[str, list[dict[str, None]]] = {k.name: [{} for _ in k.nest.arrays] for k in program.kernels}
    for step in (step for entry in program.entries for step in entry.launches):
        for names, name in zip(found[program.kernels[step.kernel].name], step.arguments, strict=True):
            names[f"{_SPACES[program.buffer(name).space]} {name!r}"] = None
    return {kernel: tuple(_some(list(names)) for names in arrays) for kernel, arrays in found.items()}


_SPACES = {
    "input": "input", "output": "output", "constant": "weight", "arena": "value", "part": "element", "state": "state",
    "share": "value",
}  # fmt: skip


def _some(names: Sequence[str]) -> str:
    return " or ".join(names[:2]) + (f" or {len(names) - 2} more" if len(names) > 2 else "")


def render(
    program: Program,
    target: Target,
    about: Mapping[str, Any] = MappingProxyType({}),
    identity: bytes | None = None,
) -> SourceBundle:
    """The sources of ``program`` for ``target``. ``about`` is what the library says of itself besides: which compiler
    wrote it, say. Weights do not depend on that. ``identity`` is the content id where not that of ``program`` alone.

    Raises UnsupportedError for element types that the target's language lacks, and for what its device cannot run.
    """
    host, dialect = HOSTS[target.dialect], dialects.ALL[target.dialect]
    host.check(program)
    dims = {dim.name: number for number, dim in enumerate(program.dims)}
    ahead = target.costs.prefetch
    kernels = {f"kernels/{kernel.name}{host.kernel}": emit(kernel, dims, dialect, ahead) for kernel in program.kernels}
    symbol = namespace(program.name) if target.levels else ""
    sources = {path: kernel_text(text, symbol) for path, text in kernels.items()}
    return assemble(program, target, host, kernels, sources, about, identity)


def assemble(
    program: Program,
    target: Target,
    host: Host,
    kernels: Mapping[str, KernelText],
    sources: Mapping[str, str],
    about: Mapping[str, Any] = MappingProxyType({}),
    identity: bytes | None = None,
) -> SourceBundle:
    """The ``sources`` of the kernels, by path, with the files of ``host`` around them. ``kernels`` are the kernels
    themselves."""
    face = library.interface_of(program)
    system = platforms.ALL[target.system]
    texts = list(kernels.values())
    target = target.using(feature for text in texts for unit in text.units for feature in unit.features)
    plan = _plan(program)
    context: dict[str, Any] = {
        "interface": face,
        "namespace": namespace(program.name),
        "kernels": texts,
        "library": host.describer(program, face, texts, plan).describe(),
        "target": target,
        "content_id": octets(bytes(weights.ID_BYTES)),
        "weights_bytes": plan.payload_bytes,
        "state_bytes": program.state_size,
        "portion_bytes": program.portion_size,
        "portions_at_once": program.portions_at_once,
        "stack_kib": _stack_kib(program),
        "ranks": program.ranks,
        "tickets": program.tickets,
        "pipeline": program.pipeline,
        "stage_bytes": [stage.payload_bytes for stage in plan.stages],
        "stage_states": program.state_sizes,
        "kernel_sources": list(kernels),
        "kernel_groups": _groups(program.name, target),
        "conditions": {
            level.name: " && ".join(f'cpu_supports("{feature}")' for feature in level.features)
            for level in target.levels
        },
        "library_flags": LIBRARY_FLAGS,
        "functions": interface.FUNCTIONS,
        "abi_header": (INCLUDE / "luminal" / "abi.h").read_text(),
        "checkpoint": checkpoints.context(face) if checkpoints.written(face, program) else None,
        **host.more(program, target, kernels, sources),
    }
    # The hash covers everything that decides what the library does with its weights.
    unhashed = _library(host, context, bytes(weights.HASH_BYTES), program, plan, target)
    digest = hashlib.sha256("\0".join([*sources, *sources.values(), unhashed]).encode()).digest()
    identity = content_id(program) if identity is None else identity
    context["content_id"] = octets(identity)
    files = {**sources, LIBRARY: _library(host, context, digest, program, plan, target, about)}
    for name, pattern in {**host.templates, **system.templates}.items():
        path = pattern.format(name=program.name)
        if path != LIBRARY:
            files[path] = environment().get_template(name).render(context)
    if context["checkpoint"]:
        path = checkpoints.FILE.format(name=program.name)
        files[path] = environment().get_template(checkpoints.TEMPLATE).render(context)
    return SourceBundle(
        program.name, target, face, MappingProxyType(files), MappingProxyType(dict(kernels)), plan, digest,
        system, tensors=MappingProxyType(tensors(program)), content_id=identity,
    )  # fmt: skip


def _plan(program: Program) -> WeightsPlan:
    """Where the constants of ``program`` lie in the file of its weights, or in those of its stages."""
    sizes = [(name, program.buffer(name).size) for name in program.constants]
    if program.pipeline is None:
        return weights.plan(sizes)
    pipeline = program.pipeline
    sizes.sort(key=lambda row: pipeline.homes[row[0]] != EVERY)  # what every stage has is at one place
    return weights.staged(
        [(name, size) for name, size in sizes if pipeline.has(pipeline.homes[name], stage)]
        for stage in range(pipeline.group.size)
    )


def content_id(program: Program) -> bytes:
    """Which constants ``program`` has; zeros where it has no digests of them."""
    if not program.digests:
        return bytes(weights.ID_BYTES)
    buffers = ((program.buffer(name), program.digests[name]) for name in program.constants)
    return weights.content_id((f"{b.name} {b.dtype} {b.shape} {b.order}", digest) for b, digest in buffers)


def octets(data: bytes) -> list[str]:
    """The bytes as numbers of C."""
    return [f"{byte:#04x}" for byte in data]


_FRAMES = 64  # KiB of stack for calls, without the arrays of kernels


def _stack_kib(program: Program) -> int:
    """The most KiB of its caller's stack that a run takes: the arrays of one kernel, and calls."""
    arrays = max((stack_bytes(kernel.nest) for kernel in program.kernels), default=0)
    return _FRAMES + -(-arrays // 1024)


def describe(target: Target) -> dict[str, Any]:
    """The description of ``target`` in manifests and libraries."""
    return {
        "name": target.name,
        "architecture": target.architecture,
        "features": list(target.features),
        "precision": target.precision.name,
    }


def kernels_of(program: Program) -> list[dict[str, Any]]:
    """What manifests and libraries say of the kernels of ``program``: origins, schedule, derivation, choices."""
    rows = []
    for kernel in program.kernels:
        row: dict[str, Any] = {"name": kernel.name, "origins": list(kernel.origins), "schedule": kernel.scheduled.lines}
        if kernel.scheduled.derived:
            row["derivation"] = list(kernel.scheduled.derived)
        if kernel.scheduled.asked:
            row["measured"] = {asked.question.name: str(asked.taken) for asked in kernel.scheduled.asked}
        rows.append(row)
    return rows


def _library(
    host: Host,
    context: Mapping[str, Any],
    source_hash: bytes,
    program: Program,
    plan: WeightsPlan,
    target: Target,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    metadata = context["interface"].metadata_json(
        **about,
        **program.metadata,
        source_hash=source_hash.hex(),
        target=describe(target),
        stack_kib=context["stack_kib"],
        constants=[
            {
                "name": name,
                "dtype": program.buffer(name).dtype.name,
                "shape": [axis if isinstance(axis, int) else str(axis) for axis in program.buffer(name).shape],
                "offset": offset,
                "bytes": plan.sizes[name],
                "finite": name in program.finite,
                **({"stage": program.pipeline.homes[name]} if program.pipeline else {}),
            }
            for name, offset in plan.offsets.items()
        ],
        kernels=kernels_of(program),
        steps=[{"kernels": runs.kernels, "origins": runs.origins} for runs in context["library"].runs],
    )
    lines = [interface.c_string(metadata[start : start + 100]) for start in range(0, len(metadata), 100)]
    # Behind the end of the text, for those who read it from the file: its checksum.
    lines.append(interface.c_string(f"\0{zlib.crc32(metadata.encode()):08x}"))
    (template,) = (name for name, path in host.templates.items() if path == LIBRARY)
    return environment().get_template(template).render(context, metadata=lines, source_hash=octets(source_hash))
