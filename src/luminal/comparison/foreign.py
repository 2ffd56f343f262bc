"""A library for another machine, run here by a small program: under qemu-user, wine or Node, or with musl's loader."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.codegen import platform as platforms
from luminal.codegen import toolchain
from luminal.comparison.references import Arrays
from luminal.core import interp
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.errors import InputError, ModelError, TargetError
from luminal.core.ir import Graph
from luminal.core.target import Target
from luminal.core.types import DType
from luminal.module import Module

SECONDS = 600  # for a run
_CALLER = "call-it"  # the name of the program; no model's, which are identifiers


@dataclass(frozen=True)
class Runner:
    """What runs programs for another machine here, and the words with which a command line for one begins. The name is
    empty where the machine and its C library do."""

    name: str
    command: tuple[str, ...]


def needed(target: Target) -> bool:
    """Whether code for ``target`` runs here by a ``runner`` if at all: it is for another system or architecture."""
    return target.grid is None and bool(targets.obstacle(replace(target, features=(), units=())))


def runner(target: Target, alone: bool = False) -> Runner:
    """What runs programs for ``target`` here; with ``alone``, programs that open no library. Raises TargetError where
    there is no such."""
    if target.system not in _RUNNERS:
        raise TargetError(
            f"{target.name}: expected a machine that runs programs for {platforms.ALL[target.system].name}, which "
            "nothing here does; load the exported folder on such a machine"
        )
    return _RUNNERS[target.system](target, alone)


def _linux(target: Target, alone: bool) -> Runner:
    if target.architecture == targets.architecture():
        _check_instructions(target)
        return Runner("", ())
    root = Path(f"/usr/{target.architecture}-linux-gnu")
    advice = f"install Debian's package libc6-{DEBIAN.get(target.architecture, target.architecture)}-cross"
    _expect(target, root, f"a C library for {target.architecture}", advice)
    found = _qemu(target)
    return replace(found, command=(*found.command, "-L", str(root)))


def _musl(target: Target, alone: bool) -> Runner:
    if not alone:
        loader = Path(f"/lib/ld-musl-{target.architecture}.so.1")
        _expect(target, loader, "musl's loader", "install Debian's package musl")
    if target.architecture != targets.architecture():
        return _qemu(target)
    _check_instructions(target)
    return Runner("" if alone else "musl's loader", ())


def _windows(target: Target, alone: bool) -> Runner:
    _check_instructions(target)
    return Runner("wine", (_program_of(target, "wine", "Debian's package wine64"),))


def _wasi(target: Target, alone: bool) -> Runner:
    return Runner("Node", (_program_of(target, "node", "Node 18 or later (Debian: nodejs)"),))


DEBIAN = {"aarch64": "arm64", "x86_64": "amd64"}  # its names of architectures, where they are others
# What qemu is told to emulate, where it would leave out instructions that the target has.
PROCESSORS = {"riscv64": ("-cpu", "rv64,v=true,vext_spec=v1.0")}

# By the system of a target.
_RUNNERS: Mapping[str, Callable[[Target, bool], Runner]] = {
    "linux": _linux,
    "musl": _musl,
    "windows": _windows,
    "wasi": _wasi,
}


def _qemu(target: Target) -> Runner:
    name = f"qemu-{target.architecture}"
    path = _program_of(target, name, "Debian's package qemu-user")
    return Runner(name, (path, *PROCESSORS.get(target.architecture, ())))


def _program_of(target: Target, name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise TargetError(f"{target.name}: expected {name}, to run its code here; install {package}")
    return found


def _expect(target: Target, path: Path, what: str, advice: str) -> None:
    if not path.exists():
        raise TargetError(f"{target.name}: expected {what} at {path}; {advice}")


def _check_instructions(target: Target) -> None:
    """Raises TargetError where this machine's processor, which runs the code itself, lacks instructions."""
    reason = targets.obstacle(replace(target, system="linux"))
    if reason:
        raise TargetError(f"{target.name}: {reason}; load the exported folder on such a machine")


def check(target: Target, graph: Graph) -> None:
    """Raises TargetError where nothing here runs code for ``target``, InputError for a model that the program cannot
    call: one with states, texts, or sizes that data decides."""
    found = runner(target)
    texts = any(node.dtype.is_text for node in (*graph.given, *(n for _, n in graph.outputs)))
    if graph.states or graph.measured or texts:
        raise InputError(f"{target.name} under {found.name}: expected a model without states, texts and sizes "
                         "that data decides; compare it on such a machine")  # fmt: skip


@dataclass(frozen=True)
class _Value:
    """An input or an output of a run."""

    name: str
    dtype: DType
    shape: Sequence[int]

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class Foreign:
    """A model compiled for another architecture or system."""

    def __init__(self, module: Module, graph: Graph, target: Target, form: str = "library") -> None:
        """``form`` is that of the export which is called (``luminal.emitted.FORMS``)."""
        self.graph, self.target, self.form = graph, target, form
        self._folder = tempfile.TemporaryDirectory(prefix="luminal-foreign-")
        self._library = module.interface.name
        self.folder = module.export(self._folder.name, python_module=False, emit=form)

    @property
    def name(self) -> str:
        by = self._runner.name
        return f"luminal for {self.target.name}{f', under {by}' if by else ''}"

    @property
    def _runner(self) -> Runner:
        return runner(self.target, alone=self.form == "static")

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs by name. Raises ModelError with what the library says where it fails."""
        given, results = self._values(inputs)
        program = self.program(inputs)
        arrays = [np.ascontiguousarray(inputs[value.name]) for value in given]
        (self.folder / "in").write_bytes(b"".join(array.tobytes() for array in arrays))
        ran = subprocess.run(
            [*self._runner.command, f"./{program.name}"],
            cwd=self.folder, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS,
        )  # fmt: skip
        if ran.returncode:
            raise ModelError(f"{self.name}: the run ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
        data, found, start = (self.folder / "out").read_bytes(), {}, 0
        for value in results:
            array = np.frombuffer(data, value.dtype.numpy, math.prod(value.shape), start).reshape(value.shape)
            found[value.name], start = array.copy(), start + value.bytes
        return found

    def program(self, inputs: Mapping[str, NDArray[Any]]) -> Path:
        """The program that runs the model on inputs of these sizes, from the file ``in`` to the file ``out``: linked
        with the library, or, for WebAssembly, a script. Raises ModelError with what the linker says."""
        given, results = self._values(inputs)
        if self.target.system == "wasi":
            script = self.folder / f"{_CALLER}.mjs"
            script.write_text("\n".join(_script(self._library, given, results)))
            return script
        (self.folder / f"{_CALLER}.c").write_text("\n".join(_program(self._library, given, results)))
        platform = platforms.ALL[self.target.system]
        program = self.folder / (f"{_CALLER}.exe" if self.target.system == "windows" else _CALLER)
        linked = [platform.library_file(self._library), *_RPATH.get(self.target.system, ())]
        if self.form == "static":
            linked = [platform.archive.format(name=self._library), *_STATIC.get(self.target.system, ())]
        arguments = ["-O2", "-x", "c", f"{_CALLER}.c", "-x", "none", *linked, "-I.", "-o", program.name]
        built = toolchain.find(self.target.architecture, platform).link(arguments, self.folder)
        if built.returncode:
            said = built.stderr.strip()[-500:]
            raise ModelError(f"luminal for {self.target.name}: a program with the library does not link: {said}")
        return program

    def values(self, inputs: Mapping[str, NDArray[Any]], operators: Collection[str]) -> dict[str, list[NDArray[Any]]]:
        return {}

    def _values(self, inputs: Mapping[str, NDArray[Any]]) -> tuple[list[_Value], list[_Value]]:
        dims = interp.bind(self.graph.given, inputs, {})
        given = [_Value(node.attr.name, node.dtype, inputs[node.attr.name].shape) for node in self.graph.given]
        sizes = ((name, n, [int(sym.evaluate(d, dims)) for d in n.shape]) for name, n in self.graph.outputs)
        return given, [_Value(name, node.dtype, shape) for name, node, shape in sizes]


# Where a program finds the library, and what a static library needs besides, by system. Windows looks beside programs.
_RPATH = {"linux": ("-Wl,-rpath,$ORIGIN",), "musl": ("-Wl,-rpath,$ORIGIN",), "macos": ("-Wl,-rpath,@loader_path",)}
_STATIC = {
    "linux": ("-pthread", "-ldl", "-lm"),
    "musl": ("-pthread", "-ldl", "-lm", "-static"),
    "windows": ("-lapi-ms-win-core-synch-l1-2-0",),
}


def _script(name: str, given: Sequence[_Value], results: Sequence[_Value]) -> Iterator[str]:
    """The same as ``_program``, for Node and a module of WebAssembly."""
    described = [{"name": value.name, "dtype": _type(value), "shape": list(value.shape)} for value in given]
    yield f'import {{ TYPES, load }} from "./{name}.mjs";\nimport {{ readFileSync, writeFileSync }} from "node:fs";'
    yield f"const given = {json.dumps(described)};\nconst results = {json.dumps([value.name for value in results])};"
    yield "const bytes = new Uint8Array(readFileSync('in')).buffer, inputs = {};\nlet start = 0;"
    yield "for (const { name, dtype, shape } of given) {\n  const [, Elements] = TYPES[dtype];"
    yield "  const end = start + Elements.BYTES_PER_ELEMENT * shape.reduce((product, size) => product * size, 1);"
    yield "  inputs[name] = { data: new Elements(bytes.slice(start, end)), shape };\n  start = end;\n}"
    yield "const found = (await load()).run(inputs);"
    yield "const raw = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength);"
    yield "writeFileSync('out', Buffer.concat(results.map((name) => raw(found[name]))));\n"


def _type(value: _Value) -> str:
    """The name of an element type in the interface in C, in lower case."""
    return value.dtype.name.replace("_", "")


def _program(name: str, given: Sequence[_Value], results: Sequence[_Value]) -> Iterator[str]:
    """A C program that reads the arrays of the inputs from the file ``in``, and writes those of the outputs to
    ``out``."""
    values, inputs = [*given, *results], len(given)
    sizes = ", ".join(str(value.bytes) for value in values)
    yield f'#include "{name}.h"\n#include <stdio.h>\n#include <stdlib.h>\n'
    for k, value in enumerate(values):
        yield f"static const int64_t shape{k}[] = {{{', '.join(map(str, value.shape)) or '0'}}};"
    yield f"static const size_t sizes[] = {{{sizes}}};"
    yield f"static lm_value values[{len(values)}];"
    yield "int main(void) {\n    lm_library* library;\n    lm_context* context = NULL;\n    char text[512];"
    yield '    FILE* in = fopen("in", "rb");\n    FILE* out = fopen("out", "wb");\n    if (!in || !out) return 101;'
    for k, value in enumerate(values):
        named, rank = f"LM_{_type(value).upper()}", len(value.shape)
        data = f".data = calloc(sizes[{k}] + 64, 1), .dtype = {named}, .rank = {rank}, .shape = shape{k}"
        yield f"    values[{k}] = (lm_value){{{data}}};"
        if k < inputs:
            yield f"    if (fread(values[{k}].data, 1, sizes[{k}], in) != sizes[{k}]) return 102;"
    yield f"    int status = {name}_open(NULL, &library);"
    yield f"    if (!status) status = {name}_context_create(library, &context);"
    yield (
        f"    if (!status) status = {name}_run(context, {name.upper()}_ENTRY_MAIN, values, values + {inputs}, NULL);"
    )
    yield f"    if (status) {{\n        {name}_last_error(library, context, text, sizeof text);"
    yield '        fprintf(stderr, "%s\\n", text);\n        return status;\n    }'
    yield f"    for (int k = {inputs}; k < {len(values)}; ++k) fwrite(values[k].data, 1, sizes[k], out);"
    yield "    return fclose(out);\n}\n"
