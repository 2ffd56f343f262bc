"""The artefact of a compiled model: a folder that stands on its own.

``libNAME.so``, ``NAME.h`` and ``NAME.hpp``, ``NAME.weights``, ``manifest.json``, the sources with a ``CMakeLists.txt``
and the headers that they include. Folders are kept in the cache under the hash of all that is in them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pybind11

from luminal.codegen import build as builder
from luminal.codegen import emulation, headers, render, toolchain, weights
from luminal.codegen.host import EMULATOR, INCLUDE
from luminal.codegen.render import SourceBundle
from luminal.core import config
from luminal.core.data import Array, digest
from luminal.core.errors import BuildError, ModelError
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.progress import Stages
from luminal.runtime.loader import MANIFEST
from luminal.version import VERSION


def build(program: Program, target: Target, stages: Stages, emulate: bool = False) -> Path:
    """The folder of ``program`` compiled for ``target``, built where the cache does not have it.

    With ``emulate``, a library for a GPU becomes one for this machine, with what emulates the GPU beside it.

    Raises BuildError where no compiler is found, where it rejects a source, or where there can be no cache;
    UnsupportedError for what the target's device cannot run; ModelError where a constant changes meanwhile.
    """
    with stages("render"):
        bundle = render.render(program, target)
        if emulate:
            bundle = emulation.emulated(bundle)
        key = _key(bundle, program)
    if config.NO_CACHE.value:
        return _build(bundle, program, Path(tempfile.mkdtemp(prefix="luminal-")), stages)
    models = builder.cache_folder("models")
    folder = models / key
    if not (folder / MANIFEST).is_file():
        work = builder.cache_work(models, f".{key}.")
        try:
            _build(bundle, program, work, stages)
            _keep(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _keep(work: Path, folder: Path) -> None:
    """Renames ``work`` to ``folder``, unless another process has finished the same model meanwhile."""
    try:
        work.rename(folder)
    except OSError as error:
        if not (folder / MANIFEST).is_file():
            raise BuildError(f"cannot put the model into {folder} ({error.strerror}): remove it") from None


def _key(bundle: SourceBundle, program: Program) -> str:
    """A hash of the compilers, the sources, the headers that these include, and the weights."""
    compilers = [toolchain.find(bundle.target.architecture, bundle.platform)]
    compilers += [toolchain.find_nvcc()] if bundle.image_sources and not bundle.emulated else []
    key = hashlib.sha256(repr((bundle.target, [compiler.identity for compiler in compilers])).encode())
    for path, text in sorted(bundle.files.items()):
        key.update(f"{path}\0{text}\0".encode())
    folders = (INCLUDE / "luminal", *((EMULATOR,) if bundle.emulated else ()))
    for header in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        key.update(header.read_bytes())
    for name in program.constants:
        buffer = program.buffer(name)
        key.update(f"{name} {buffer.dtype} {buffer.shape} {buffer.order}".encode() + program.digests[name])
    return key.hexdigest()[:40]


def _build(bundle: SourceBundle, program: Program, folder: Path, stages: Stages) -> Path:
    with stages("build"):
        built = builder.build(bundle, folder, lambda what, done, total: stages.advance("build", done / max(total, 1)))
    with stages("weights"):
        path = folder / f"{program.name}.weights"
        weights.write(path, bundle.source_hash, bundle.plan, unchanged(program))
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
        "compiler": f"luminal {VERSION}",
        "source_hash": bundle.source_hash.hex(),
        "target": render.describe(bundle.target),
        "device": render.HOSTS[bundle.target.dialect].device,
        "emulated": bundle.emulated,
        **program.metadata,
        **{key: face[key] for key in ("dims", "entries", "states")},
        "kernels": [
            {
                "name": k.name,
                "origins": list(k.origins),
                "schedule": k.scheduled.lines,
                **(
                    {"measured": {a.question.name: str(a.taken) for a in asked}} if (asked := k.scheduled.asked) else {}
                ),
                **({"resources": built.resources[k.name]} if k.name in built.resources else {}),
            }
            for k in program.kernels
        ],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return folder


def unchanged(program: Program) -> Iterator[Array]:
    """The constants, one after the other.

    Raises ModelError for one that has changed since the program was compiled, because its file was written to.
    """
    for name in program.constants:
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
    if output.exists():
        return output
    compiler = toolchain.find()
    work = f"{output.name}.{os.getpid()}"  # renamed when it is whole: others may look at this folder
    includes = [sysconfig.get_path("include"), pybind11.get_include(), ".", "include"]
    done = compiler.run(
        [
            *("-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"),
            *(f"-I{path}" for path in includes),
            *("python_module.cpp", "-L.", f"-l{name}", "-Wl,-rpath,$ORIGIN", "-o", work),
        ],
        folder,
    )
    if done.returncode != 0:
        raise BuildError(f"the Python module of {name} did not compile:\n{done.stdout}{done.stderr}")
    (folder / work).rename(output)
    return output
