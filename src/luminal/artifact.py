"""The artefact of a compiled model: a folder that stands on its own.

``libNAME.so``, ``NAME.h`` and ``NAME.hpp``, ``NAME.weights``, ``manifest.json``, the sources with a ``CMakeLists.txt``
and the headers that they include. Folders are kept in the cache under the hash of all that is in them. The manifest
records size and CRC-32 of every file, and its own; weights have a checksum of their own (``codegen/weights.py``).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sysconfig
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pybind11

from luminal.codegen import build as builder
from luminal.codegen import cache, emulation, headers, render, toolchain, weights
from luminal.codegen.built import Product, Unit
from luminal.codegen.host import EMULATOR, INCLUDE
from luminal.codegen.render import SourceBundle
from luminal.codegen.toolchain import Toolchain
from luminal.core import config
from luminal.core.data import Array, digest
from luminal.core.errors import ArtifactError, BuildError, LuminalError, ModelError
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.progress import Stages
from luminal.runtime.loader import MANIFEST, read_manifest
from luminal.version import VERSION

Opened = TypeVar("Opened")


def build(
    program: Program, target: Target, stages: Stages, emulate: bool = False, others: Sequence[Program] = ()
) -> Path:
    """The folder of ``program`` compiled for ``target``, built where the cache does not have it. In a mesh, ``others``
    are those of the ranks but the first, which differ in their constants alone: each has its own weights. In a pipeline
    they are those of the ranks beside the first, of one stage: a program has the constants of all stages.

    With ``emulate``, a library for a GPU becomes one for this machine, with what emulates the GPU beside it.

    Raises BuildError where no compiler is found, where it rejects a source, or where there can be no cache;
    UnsupportedError for what the target's device cannot run; ModelError where a constant changes meanwhile, or where
    the programs of two ranks differ.
    """
    programs = (program, *others)
    with stages("render"):
        bundle = render.render(program, target, about(), _identity(programs))
        if emulate:
            bundle = emulation.emulated(bundle)
        key = _key(bundle, programs)
    if config.NO_CACHE.value:
        return _build(bundle, programs, Path(tempfile.mkdtemp(prefix="luminal-")), stages)
    models = cache.part("models")
    folder = models / key
    if not problem(folder):
        return folder
    work = cache.work(models, f".{key}.")
    try:
        _build(bundle, programs, work, stages)
        return _kept(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _identity(programs: Sequence[Program]) -> bytes | None:
    """The content id of the weights of all ranks; None where there is one.

    Raises ModelError where their programs differ: values of constants decide what may be left out, say.
    """
    if len(programs) == 1:
        return None
    first, *others = (replace(program, constants={}, digests={}) for program in programs)
    for rank, other in enumerate(others, 1):
        if other != first:
            raise ModelError(
                f"mesh: rank {rank} of {first.name!r} would run another program than rank 0, because of values in its "
                "part of the weights, such as rows of zeros; expected one for all ranks. Leave these weights whole: "
                "shard={NAME: None}"
            )
    ids = b"".join(render.content_id(program) for program in programs)
    return hashlib.sha256(ids).digest()[: weights.ID_BYTES]


def opened(
    program: Program, target: Target, stages: Stages, emulate: bool, open_: Callable[[Path], Opened],
    others: Sequence[Program] = (),
) -> Opened:  # fmt: skip
    """What ``open_`` makes of the folder that ``build`` gives. A cached one that turns out to be damaged when it is
    opened, as weights do, is built anew."""
    folder = build(program, target, stages, emulate, others)
    try:
        return open_(folder)
    except ArtifactError:
        if config.NO_CACHE.value:
            raise
        cache.discard(folder)
        return open_(build(program, target, stages, emulate, others))


@lru_cache(maxsize=1)
def about() -> dict[str, Any]:
    """What a library says of where it comes from: the compiler, and the licences of what is in it besides the model."""
    text = (Path(__file__).parent / "LICENSE-MIT").read_text(encoding="utf-8")
    runtime = {"part": "the runtime of luminal", "licence": "MIT OR Apache-2.0", "text": text}
    return {"compiler": f"luminal {VERSION}", "licences": [runtime]}


def problem(folder: Path) -> str:
    """What is wrong with the artefact in ``folder``, in words; empty where nothing is. All files are verified but the
    weights, of which the size is: their bytes are verified when they are opened."""
    try:
        manifest = read_manifest(folder / MANIFEST)
        files = {name: cache.Record(*row) for name, row in manifest["files"].items()}
        expected = manifest.pop("crc32")
        if expected != _summed(manifest):
            return f"{MANIFEST} does not hold what was written"
        weights_file, size = manifest["weights"], manifest["weights_bytes"]
        found = (folder / weights_file).stat().st_size
        others = has_other_weights(folder, manifest)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        return f"{MANIFEST} or the weights cannot be read ({error})"
    if found != size:
        return f"{weights_file} has {found} of {size} bytes"
    if others:
        return f"{weights_file} holds other weights"
    return next((f"{name} {what}" for name, row in files.items() if (what := row.problem(folder / name))), "")


def has_other_weights(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether the weights in ``folder`` are others than those that the model was compiled with."""
    try:
        found = weights.identity(folder / manifest["weights"])
    except OSError:
        return False  # said when they are opened
    return manifest.get("content_id") not in (None, found.hex()) and len(found) == weights.ID_BYTES


def check_library(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raises ArtifactError where what is loaded as code from ``folder`` is not what was written."""
    for name, row in manifest.get("files", {}).items():
        if Path(name).suffix in (".so", ".dylib"):
            what = cache.Record(*row).problem(folder / name)
            if what:
                raise ArtifactError(f"the library {str(folder / name)!r} {what}: export the model again")


def verify(folder: Path) -> int:
    """Verifies every byte of the artefact in ``folder``; returns the number of files. Raises ArtifactError."""
    if not (folder / MANIFEST).is_file():
        raise ArtifactError(f"no exported model at {str(folder)!r}: expected a folder with {MANIFEST}")
    found = problem(folder)
    if not found:
        manifest = read_manifest(folder / MANIFEST)
        name = manifest["weights"]
        found = weights.problem(folder / name, bytes.fromhex(manifest["content_id"]))
        found = found and f"{name} {found}"
    if found:
        raise ArtifactError(f"the model in {str(folder)!r} is damaged: {found}; export it again")
    return len(manifest["files"]) + 2


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Turns what goes wrong while the artefact in ``folder`` is opened into ArtifactError."""
    try:
        yield
    except LuminalError:
        raise
    except OSError as error:
        raise ArtifactError(str(error)) from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{str(folder / MANIFEST)!r} is damaged ({type(error).__name__}: {error}): export the model again"
        ) from error


def _kept(work: Path, folder: Path) -> Path:
    """``work`` renamed to ``folder``, unless another process has finished the same model meanwhile. What is damaged
    there gives way; where it cannot, the model is put into a temporary folder."""
    for _ in range(2):
        try:
            work.rename(folder)
            return folder
        except OSError:
            if not problem(folder):
                return folder
            cache.discard(folder)
    return Path(shutil.move(work, tempfile.mkdtemp(prefix="luminal-")))


def _key(bundle: SourceBundle, programs: Sequence[Program]) -> str:
    """A hash of the compilers, the sources, the headers that these include, and the weights."""
    compilers = [toolchain.find(bundle.target.architecture, bundle.platform)]
    if bundle.image_sources and not bundle.emulated:
        compilers.append(toolchain.FOR_KERNELS[bundle.target.dialect]())
    key = hashlib.sha256(repr((bundle.target, [compiler.identity for compiler in compilers])).encode())
    for path, text in sorted(bundle.files.items()):
        key.update(f"{path}\0{text}\0".encode())
    folders = (INCLUDE / "luminal", *((EMULATOR,) if bundle.emulated else ()))
    for header in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        key.update(header.read_bytes())
    for program in programs:
        for name in program.constants:
            buffer = program.buffer(name)
            key.update(f"{name} {buffer.dtype} {buffer.shape} {buffer.order}".encode() + program.digests[name])
    return key.hexdigest()[:40]


def _build(bundle: SourceBundle, programs: Sequence[Program], folder: Path, stages: Stages) -> Path:
    program = programs[0]
    with stages("build"):
        built = builder.build(bundle, folder, lambda what, done, total: stages.advance("build", done / max(total, 1)))
    with stages("weights"):
        path = folder / f"{program.name}.weights"
        for rank in range(len(programs) if program.pipeline is None else program.ranks):
            content = weights.content_of(bundle.content_id, rank)
            layout, other = bundle.plan, rank
            if program.pipeline is not None:
                layout, other = bundle.plan.stages[program.pipeline.stage(rank)], program.pipeline.beside(rank)
            arrays = unchanged(programs[other], layout.offsets)
            weights.write(weights.shard(path, rank), bundle.source_hash, layout, arrays, content)
    for name, text in bundle.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for header in headers.needed(bundle.files.values()):
        file = folder / "include" / header
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(headers.text(header), encoding="utf-8")
    face = bundle.interface.metadata()
    manifest = {
        "name": program.name,
        "library": bundle.library,
        "weights": f"{program.name}.weights",
        **about(),
        "source_hash": bundle.source_hash.hex(),
        "content_id": bundle.content_id.hex(),
        "target": render.describe(bundle.target),
        "device": render.HOSTS[bundle.target.dialect].device,
        "emulated": bundle.emulated,
        **({"mesh": dict(program.mesh)} if program.mesh else {}),
        **program.metadata,
        **{key: face[key] for key in ("dims", "entries", "states")},
        "kernels": [
            {**kernel, **({"resources": found} if (found := built.resources.get(kernel["name"])) is not None else {})}
            for kernel in render.kernels_of(program)
        ],
    }
    made = (item for item in sorted(folder.rglob("*")) if item.is_file() and item != path)
    manifest["files"] = {item.relative_to(folder).as_posix(): list(cache.record(item)) for item in made}
    manifest["weights_bytes"] = path.stat().st_size
    manifest["crc32"] = _summed(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return folder


def _summed(manifest: Mapping[str, Any]) -> int:
    """The CRC-32 of what a manifest says."""
    return zlib.crc32(json.dumps(manifest).encode())


def unchanged(program: Program, names: Iterable[str] | None = None) -> Iterator[Array]:
    """The constants, or those that are named, one after the other.

    Raises ModelError for one that has changed since the program was compiled, because its file was written to.
    """
    for name in program.constants if names is None else names:
        array = program.constants[name]
        if digest(array.transpose(np.argsort(program.buffer(name).order))) != program.digests[name]:
            raise ModelError(
                f"the constant {name!r} changed while the model was compiled: compile it again, and leave the model's "
                "files as they are until that is done"
            )
        yield array
        del array  # before the next one is made


def module_file(name: str) -> str:
    """The file name of the Python module of the model ``name``, for this Python."""
    return f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"


def python_module(folder: Path, name: str) -> Path:
    """Compile the importable module ``NAME.*.so`` beside the library in ``folder``; needs numpy, not luminal, to run.

    Raises BuildError where the compiler is missing or rejects the source.
    """
    output = folder / module_file(name)
    if cache.whole(output):
        return output
    compiler = toolchain.find()
    includes = [sysconfig.get_path("include"), pybind11.get_include(), str((folder / "include").absolute())]
    flags = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", *(f"-I{path}" for path in includes))
    common = builder.make(_of_all_modules(folder / "include", flags, compiler))
    try:
        with cache.appearing(output) as work:  # others may look at this folder
            own = ("-DLM_RUNTIME_ELSEWHERE", "-I.", "-shared", "python_module.cpp", str(common.absolute()))
            done = compiler.run([*flags, *own, "-L.", f"-l{name}", "-Wl,-rpath,$ORIGIN", "-o", work.name], folder)
            if done.returncode != 0:
                raise BuildError(f"the Python module of {name} did not compile:\n{done.stdout}{done.stderr}")
    finally:
        if config.NO_CACHE.value:
            shutil.rmtree(common.parent)
    return output


def _of_all_modules(include: Path, flags: Sequence[str], compiler: Toolchain) -> Product:
    """What the Python modules of all models that were exported with the headers ``include`` have in common."""
    line = '#include "luminal/python_module.hpp"\n'
    found = filter(Path.is_file, map(include.joinpath, headers.needed([line])))  # the compiler says what is not there
    made_from = headers.hashed(path.read_text() for path in found)
    about = f"// For Python {sysconfig.get_python_version()}, by pybind11 {pybind11.__version__}, of {made_from}.\n"
    unit = Unit(about + line, (*flags, "-DLM_RUNTIME_HERE"))
    return Product("python_module.a", compiler, {"python.cpp": unit}, (), archive=True)
