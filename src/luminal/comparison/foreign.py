"""A library for CPUs of another architecture, run under qemu-user by a small C program."""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.codegen import toolchain
from luminal.comparison.references import Arrays
from luminal.core import interp
from luminal.core import symbolic as sym
from luminal.core.errors import InputError, ModelError, TargetError
from luminal.core.ir import Graph
from luminal.core.target import Target
from luminal.core.types import DType
from luminal.module import Module

SECONDS = 600  # for a run


def check(target: Target, graph: Graph) -> None:
    """Raises TargetError where this machine has no emulator or C library for ``target``, InputError for a model that
    the program cannot call: one with states, texts, or sizes that data decides."""
    if shutil.which(_emulator(target)) is None:
        raise TargetError(
            f"{target.name}: expected {_emulator(target)}, to run code for {target.architecture} here; "
            "install Debian's package qemu-user"
        )
    if not _root(target).exists():
        raise TargetError(
            f"{target.name}: expected a C library for {target.architecture} at {_root(target)}; "
            "install Debian's package libc6-arm64-cross, or that of the architecture"
        )
    texts = any(node.dtype.is_text for node in (*graph.given, *(n for _, n in graph.outputs)))
    if graph.states or graph.measured or texts:
        raise InputError(f"{target.name} under {_emulator(target)}: expected a model without states, texts and sizes "
                         "that data decides; compare it on such a machine")  # fmt: skip


class Foreign:
    """A model compiled for another architecture."""

    def __init__(self, module: Module, graph: Graph, target: Target) -> None:
        self.name = f"luminal for {target.name}, under {_emulator(target)}"
        self.graph, self.target = graph, target
        self._folder = tempfile.TemporaryDirectory(prefix="luminal-foreign-")
        self._library = module.interface.name
        module.export(Path(self._folder.name) / "library", python_module=False)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs by name. Raises ModelError with what the library says where it fails."""
        folder, graph = Path(self._folder.name), self.graph
        dims = interp.bind(graph.given, inputs, {})
        shapes = {name: [int(sym.evaluate(d, dims)) for d in node.shape] for name, node in graph.outputs}
        given = [np.ascontiguousarray(inputs[node.attr.name]) for node in graph.given]
        values: list[tuple[DType, Sequence[int]]] = [
            *((node.dtype, array.shape) for node, array in zip(graph.given, given, strict=True)),
            *((node.dtype, shapes[name]) for name, node in graph.outputs),
        ]
        (folder / "main.c").write_text("\n".join(_program(self._library, values, len(given))))
        (folder / "in").write_bytes(b"".join(array.tobytes() for array in given))
        library = folder / "library"
        found = toolchain.find(self.target.architecture)
        libname = library / f"lib{self._library}.so"
        command = [
            *found.linker, "-x", "c", "main.c", "-x", "none", str(libname), "-I", str(library),
            f"-Wl,-rpath,{library}", "-o", "main",
        ]  # fmt: skip
        built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if built.returncode:
            raise ModelError(f"{self.name}: the program that calls the library does not build: {built.stderr[-500:]}")
        ran = subprocess.run(
            [_emulator(self.target), "-L", str(_root(self.target)), "./main"],
            cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        if ran.returncode:
            raise ModelError(f"{self.name}: the run ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
        data, arrays, start = (folder / "out").read_bytes(), {}, 0
        for name, node in graph.outputs:
            count = int(np.prod(shapes[name], dtype=np.int64))
            array = np.frombuffer(data, node.dtype.numpy, count, start).reshape(shapes[name])
            arrays[name], start = array.copy(), start + array.nbytes
        return arrays

    def values(self, inputs: Mapping[str, NDArray[Any]], operators: Collection[str]) -> dict[str, list[NDArray[Any]]]:
        return {}


def _emulator(target: Target) -> str:
    return f"qemu-{target.architecture}"


def _root(target: Target) -> Path:
    return Path(f"/usr/{target.architecture}-linux-gnu")


def _program(name: str, values: Sequence[tuple[DType, Sequence[int]]], inputs: int) -> Iterator[str]:
    """A C program that reads the arrays of the inputs from the file ``in``, and writes those of the outputs to ``out``;
    ``values`` are the types and shapes of all."""
    sizes = ", ".join(str(dtype.itemsize * math.prod(shape)) for dtype, shape in values)
    yield f'#include "{name}.h"\n#include <stdio.h>\n#include <stdlib.h>\n'
    for k, (_, shape) in enumerate(values):
        yield f"static const int64_t shape{k}[] = {{{', '.join(map(str, shape)) or '0'}}};"
    yield f"static const size_t sizes[] = {{{sizes}}};"
    yield f"static lm_value values[{len(values)}];"
    yield "int main(void) {\n    lm_library* library;\n    lm_context* context = NULL;\n    char text[512];"
    yield '    FILE* in = fopen("in", "rb");\n    FILE* out = fopen("out", "wb");\n    if (!in || !out) return 101;'
    for k, (dtype, shape) in enumerate(values):
        named = f"LM_{dtype.name.upper().replace('_', '')}"
        data = f".data = calloc(sizes[{k}] + 64, 1), .dtype = {named}, .rank = {len(shape)}, .shape = shape{k}"
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
