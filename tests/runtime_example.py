"""Builds the hand-written library of tests/native/runtime_example.cpp, with the files around it rendered."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

import luminal.codegen
import luminal.runtime
from luminal.codegen import interface, weights
from luminal.core import symbolic, types

NATIVE = Path(__file__).parent / "native"
INCLUDE = Path(luminal.runtime.__file__).parent / "include"
TEMPLATES = Path(luminal.codegen.__file__).parent / "templates"
SOURCES = (NATIVE / "runtime_example.cpp", NATIVE / "runtime_example_kernels.cpp")

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
LIBRARY_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti")
LIBRARY_FLAGS += ("-fno-threadsafe-statics",)
LINK_FLAGS = ("-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,--as-needed", "-Wl,-z,defs")
LINK_LIBRARIES = ("-pthread", "-ldl", "-lm")

SOURCE_HASH = bytes([0x1E, 0x5A, *range(30)])
LAYOUT = weights.plan([("embeddings.table", 512), ("score.bias", 64)])


@dataclass(frozen=True)
class Example:
    """A built library: ``libNAME.so`` in ``folder``, with its header, wrapper and weights beside it."""

    name: str
    folder: Path
    table: NDArray[np.float32]
    bias: NDArray[np.float32]

    @property
    def library(self) -> Path:
        return self.folder / f"lib{self.name}.so"

    @property
    def objects(self) -> tuple[Path, ...]:
        return tuple(self.folder / f"{self.name}_{source.stem}.o" for source in SOURCES)

    @property
    def weights(self) -> Path:
        return self.folder / f"{self.name}.weights"


def example_interface(name: str) -> interface.Interface:
    rows = symbolic.var("rows", 1, 64)
    tail = symbolic.var("tail", 0, 4)
    embed = interface.Entry(
        "embed",
        "embed",
        interface.tensors([("ids", types.i64, [rows]), ("scale", types.f32, [])]),
        interface.tensors([("embedding", types.f32, [rows, 8])]),
        0,
        0,
    )
    score = interface.Entry(
        "score",
        "score",
        interface.tensors([("x", types.f32, [rows, 8]), ("tail", types.f32, [tail])]),
        interface.tensors([("scores", types.f32, [rows, 16]), ("joined", types.f32, [8 * rows + tail])]),
        [0, 1],
        64 * 8 * 4,
    )
    negate = interface.Entry(
        "negate",
        "negate",
        interface.tensors(
            [("half", types.f16, [rows]), ("brain", types.bf16, [rows]), ("chosen", types.bool_, [rows])]
        ),
        interface.tensors([("minus_half", types.f16, [rows]), ("minus_brain", types.bf16, [rows])]),
        [0, 1],
        0,
    )
    return interface.Interface(name, interface.dims([("rows", 1, 64), ("tail", 0, 4)]), (embed, score, negate))


def render(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        line_statement_prefix="//%",
        autoescape=False,
    )
    environment.filters["comment"] = interface.comment
    environment.filters["c_string"] = interface.c_string
    return environment.get_template(f"cpp/{template}").render(**values)


def write_sources(folder: Path, name: str, missing_feature: str | None = None) -> None:
    """The rendered files of the example: header, wrapper, export map, and what runtime_example.cpp includes."""
    model = example_interface(name)
    folder.mkdir(parents=True, exist_ok=True)
    abi = (INCLUDE / "luminal" / "abi.h").read_text()
    header = render("header.h.j2", interface=model, abi_header=abi, stack_kib=64)
    (folder / f"{name}.h").write_text(header)
    (folder / f"{name}.hpp").write_text(render("wrapper.hpp.j2", interface=model))
    (folder / "exports.map").write_text(render("exports.map.j2", interface=model))
    (folder / "example_config.h").write_text(
        f'#include "{name}.h"\n'
        f"#define EXAMPLE_METADATA {interface.c_string(model.metadata_json())}\n"
        f"#define EXAMPLE_MISSING_FEATURE {interface.c_string(missing_feature) if missing_feature else 'nullptr'}\n"
    )


def write_weights(path: Path, table: NDArray[np.float32], bias: NDArray[np.float32]) -> None:
    weights.write(path, SOURCE_HASH, LAYOUT, iter([table, bias]))


def build(
    folder: Path, name: str, flags: Sequence[str] = (), seed: int = 0, missing_feature: str | None = None
) -> Example:
    write_sources(folder, name, missing_feature)
    generator = np.random.default_rng(seed)
    example = Example(
        name,
        folder,
        generator.standard_normal((16, 8), dtype=np.float32),
        generator.standard_normal(16, dtype=np.float32),
    )
    write_weights(example.weights, example.table, example.bias)
    common = [f"-I{INCLUDE}", f"-I{folder}", f"-DLM_NAMESPACE={name}"]
    for source, output in zip(SOURCES, example.objects, strict=True):
        run(["g++", *LIBRARY_FLAGS, *WARNINGS, *flags, *common, "-c", source, "-o", output])
    version_script = f"-Wl,--version-script={folder / 'exports.map'}"
    # A sanitizer's own symbols are found in the program, and need the C++ linker driver.
    links = [flag for flag in LINK_FLAGS if not (flags and flag == "-Wl,-z,defs")]
    run(["gcc", "-shared", *flags, *links, version_script, *example.objects, "-o", example.library, *LINK_LIBRARIES])
    return example


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a command; returns what it printed, and fails with it."""
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} returned {done.returncode}:\n{done.stdout}"
    return done.stdout
