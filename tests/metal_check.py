"""Checks the text of Metal kernels without Metal: types and address spaces by clang, the bindings of parameters by
reading them.

clang takes the text as C++14, which the shading language is based on, with tests/metal_sdk/metal_stdlib in place of the
standard library: ``device``, ``constant`` and ``threadgroup`` are address spaces there, between which no pointer
converts, and ``thread`` is the one without a number.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.runtime_example import INCLUDE

SDK = Path(__file__).parent / "metal_sdk"
LANGUAGE = "310"  # version 3.1, as the host asks for
MOST_BUFFERS = 31

_FLAGS = (
    "-fsyntax-only", "-x", "c++", "-std=c++14", "-nostdinc", "-nostdinc++", "-isystem", str(SDK), f"-I{INCLUDE}",
    f"-D__METAL_VERSION__={LANGUAGE}", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-attributes",  # [[buffer(0)]]
    "-Wno-c++17-extensions",  # `if constexpr`, which Metal's compiler takes too
    "-Wno-unused-function", "-Wno-unused-const-variable",
    "-Wno-unused-parameter",  # a kernel takes the numbers of its block and thread whether it needs them or not
)  # fmt: skip

# Arrays of a threadgroup are declared inside kernels, where clang takes references to such only.
_SHARED_ARRAY = re.compile(r"^(\s*)(?:alignas\(\d+\) )?threadgroup ([\w ]+\w) (\w+)\[(.+)\];", re.MULTILINE)
_PARAMETER = re.compile(r"(?P<type>.+?)\s*\b(?P<name>\w+)\s*\[\[(?P<binding>[\w ()]+)\]\]")


def errors(text: str) -> list[str]:
    """What clang rejects in ``text``, that of a kernel or of a library: ``file:line: message``, one for each error."""
    clang = [sys.executable, "-m", "ziglang", "clang"]
    namespace = [] if "#define LM_NAMESPACE" in text else ["-DLM_NAMESPACE=checked_model"]
    source = _SHARED_ARRAY.sub(r"\1threadgroup \2 (&\3)[\4] = shared_array<\2[\4]>();", text)
    with tempfile.TemporaryDirectory() as folder:  # zig leaves an empty object file where it runs
        done = subprocess.run(
            [*clang, *_FLAGS, *namespace, "-"], input=source, cwd=folder, capture_output=True, text=True, check=False
        )
    found = re.findall(r"^(\S+:\d+):\d+: (?:fatal )?error: (.*)$", done.stderr, re.MULTILINE)
    assert bool(found) == (done.returncode != 0), done.stderr
    return [f"{place.replace(f'{INCLUDE}/', '')}: {message}" for place, message in found]


@dataclass(frozen=True)
class Parameter:
    """``type name [[binding]]``."""

    type: str
    name: str
    binding: str


def parameters(text: str, kernel: str) -> list[Parameter]:
    """The parameters of ``kernel``."""
    head = re.search(rf"\bkernel void {kernel}\(", text)
    assert head, f"no kernel {kernel} in the text"
    depth, end = 1, head.end()
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    found = []
    for part in re.split(r",\s*", text[head.end() : end - 1]):
        match = _PARAMETER.fullmatch(" ".join(part.split()))
        assert match, f"a parameter of {kernel} is not bound: {part}"
        found.append(Parameter(match["type"].replace(" *", "*"), match["name"], match["binding"]))
    return found


def binding_errors(text: str, kernel: str, passed: Sequence[str]) -> list[str]:
    """What is wrong with the parameters of ``kernel``, for which the host passes buffers of the types ``passed``, in
    order: ``device const float*``."""
    wrong = []
    buffers = [p for p in parameters(text, kernel) if p.binding.startswith("buffer(")]
    numbers = [p.binding for p in buffers]
    if numbers != [f"buffer({number})" for number in range(len(buffers))]:
        wrong.append(f"{kernel} binds {', '.join(numbers)}: not 0, 1, ... in order")
    if len(buffers) > MOST_BUFFERS:
        wrong.append(f"{kernel} has {len(buffers)} buffers, {MOST_BUFFERS} at most can be bound")
    if len(buffers) != len(passed):
        wrong.append(f"{kernel} has {len(buffers)} buffers, the host passes {len(passed)}")
    wrong += [
        f"{kernel}: {parameter.name} is {parameter.type}, the host passes {given}"
        for parameter, given in zip(buffers, passed, strict=False)
        if parameter.type != given
    ]
    indices = [(p.type, p.binding) for p in parameters(text, kernel) if p not in buffers]
    if indices != [("uint", "threadgroup_position_in_grid"), ("uint", "thread_index_in_threadgroup")]:
        wrong.append(f"{kernel} does not take the numbers of its block and thread last: {indices}")
    return wrong
