"""Libraries for Apple's GPUs: host code for macOS, with the kernels inside as text of Metal's shading language.

Metal compiles the text when a library is opened, and reads no files then: the text contains the headers it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from luminal.codegen import headers, lacking, library
from luminal.codegen.emitter import KernelText
from luminal.codegen.host import LIBRARY, PUBLIC, Host, namespace
from luminal.core.errors import SpecError, UnsupportedError
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target

_DEFAULT = "luminal/own_namespace.hpp"  # gives the headers a namespace where, as it never is here, none is defined


check = lacking.lacking("Metal", "Apple's GPUs")


def shader_text(sources: Iterable[str], inside: str) -> str:
    """One text of all ``sources``, in the namespace ``inside``, with every runtime header once, where it is first
    included.

    Raises SpecError for a header that is included under a condition: its one copy might be skipped.
    """
    return "\n".join([f"#define LM_NAMESPACE {inside}", "#define LM_RUNTIME LM_NAMESPACE", *_lines(sources), ""])


def _lines(sources: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()

    def inlined(text: str) -> Iterator[str]:
        depth = 0
        for line in text.splitlines():
            depth += line.startswith("#if") - line.startswith("#endif")
            header = headers.included(line)
            if header == _DEFAULT:
                continue
            if header and depth:
                raise SpecError(f"{header} is included under a condition, so its place in a shader text is unknown")
            if header is None:
                if line != "#pragma once":
                    yield line
            elif header not in seen:
                seen.add(header)
                yield from inlined(headers.text(header))

    for source in sources:
        yield from inlined(source)


def _check_arguments(kernel: KernelText, most: int | None) -> None:
    count = kernel.signature.parameters
    if most is not None and count > most:
        raise UnsupportedError(
            f"{lacking.made_for(kernel.kernel)} needs {count} buffers at once, of which Metal takes {most}"
        )


def _more(
    program: Program, target: Target, kernels: Mapping[str, KernelText], sources: Mapping[str, str]
) -> Mapping[str, Any]:
    assert target.grid is not None
    for kernel in kernels.values():
        _check_arguments(kernel, target.grid.buffers)
    return {"shaders": shader_text(sources.values(), namespace(program.name))}


HOST = Host(
    "metal",
    ".metal",
    library.LaunchDescriber,
    {
        "metal/library.cpp.j2": LIBRARY,
        "metal/shaders.cpp.j2": "shaders.cpp",
        "metal/CMakeLists.txt.j2": "CMakeLists.txt",
        **PUBLIC,
    },
    check,
    _more,
)
