"""What stages print for one small model, and what targets and packages are made of, written into the pages beside this
script: ``python docs/tour.py``.

The pages hold the text that explains; between ``<!-- tour: NAME -->`` and ``<!-- end -->`` stands what this script
produces. The stages are cut down from the golden files of ``tests/test_stages.py``, so update those first. ``--check``
changes nothing and fails where a page is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import getdoc
from pathlib import Path

from luminal.core import schedule

PAGES = [Path(__file__).with_name(name) for name in ("architecture.md", "adding-a-target.md")]
ROOT = PAGES[0].parent.parent
BLOCK = re.compile(r"(<!-- tour: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


# ---- cutting down ----------------------------------------------------------------------------------------------------


def lines(text: str, *patterns: str) -> str:
    """The lines of ``text`` in which one of ``patterns`` is found; dots where others between them are left out."""
    result: list[str] = []
    dots = ""
    for line in text.splitlines():
        if any(re.search(pattern, line) for pattern in patterns):
            result += [dots, line] if result and dots else [line]
            dots = ""
        else:
            dots = dots or " " * (len(line) - len(line.lstrip())) + "..."
    return "\n".join(result)


def narrow(text: str, width: int = 116) -> str:
    """``text`` with what stands beyond the page's edge left out."""
    return "\n".join(line if len(line) <= width else f"{line[: width - 4]} ..." for line in text.splitlines())


def between(text: str, first: str, last: str) -> str:
    """``text`` from the line that holds ``first`` to the one before ``last``."""
    return text[text.index(first) : text.index(last)].rstrip()


# ---- excerpts --------------------------------------------------------------------------------------------------------


def stage(name: str) -> str:
    """The small model at a stage, whole."""
    (file,) = (ROOT / "tests" / "golden" / "stages").glob(f"*_{name}.*")
    return file.read_text(encoding="utf-8")


def packages() -> Iterator[str]:
    """A table of the scheduler's packages in their order, with what each may touch."""
    (order,) = re.findall(r"^ *(\w+(?: < \w+)+)$", getdoc(schedule) or "", re.MULTILINE)
    yield "| package | what it is, and what it may touch |"
    yield "|---|---|"
    for name in order.split(" < "):
        described = (getdoc(import_module(f"{schedule.__name__}.{name}")) or "").partition("\n\n")[0]
        yield f"| `{name}` | {' '.join(described.split())} |"


# The files that are one target's alone, by what they are for: Metal's, CUDA's, OpenCL's.
FILES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "the language: a dialect": (
        ["codegen/dialect_metal.py"],
        ["codegen/dialect_cuda.py"],
        ["codegen/dialect_opencl.py"],
    ),
    "template of a kernel": tuple([f"codegen/templates/{name}/kernel*"] for name in ("metal", "cuda", "opencl")),
    "matrix fragments": (
        ["runtime/include/luminal/device/fragment_simdgroup.hpp"],
        ["runtime/include/luminal/device/fragment_mma.hpp"],
        [],
    ),
    "host code: what is generated": tuple(
        [f"codegen/{name}.py", f"codegen/templates/{name}/[!k]*"] for name in ("metal", "cuda", "opencl")
    ),
    "host code: headers": tuple([f"runtime/include/luminal/{name}/*"] for name in ("metal", "cuda", "opencl")),
    "stand-in for the driver": (
        ["runtime/emulator/metal_runtime.cpp"],
        ["runtime/emulator/cuda_driver.cpp", "runtime/emulator/cuda_state.hpp"],
        [],
    ),
}
# What all stand on and CPUs do not need.
SHARED = {
    "schedules of blocks of threads": [
        "core/grid.py",
        "core/schedule/choose/grid.py",
        "core/schedule/grid/*.py",
    ],
    "code generation": [
        "codegen/dialect_device.py",
        "codegen/threads.py",
        "codegen/products.py",
        "codegen/emulation.py",
    ],
    "functions of kernels": ["runtime/include/luminal/device/[!f]*", "runtime/include/luminal/device/f[!r]*"],
    "emulator": [f"runtime/emulator/{name}" for name in ("emulator.*", "accesses.hpp", "fiber.hpp", "device.hpp")],
}


def length(patterns: list[str]) -> int:
    """The lines of the files that match ``patterns``."""
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    assert found or not patterns, patterns
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in found)


def lengths() -> Iterator[str]:
    """A table of the lines that each target took, and of those that all share."""
    yield "| | Metal | CUDA | OpenCL |"
    yield "|---|---:|---:|---:|"
    rows = {what: [length(patterns) for patterns in each] for what, each in FILES.items()}
    for what, counts in rows.items():
        yield f"| {what} | {' | '.join(map(str, counts))} |"
    sums = [sum(column) for column in zip(*rows.values(), strict=True)]
    yield f"| **in all** | {' | '.join(f'**{count}**' for count in sums)} |"
    for what, patterns in SHARED.items():
        yield f"| shared: {what} | {length(patterns)} | | |"


def excerpts() -> Iterator[tuple[str, str, str]]:
    """The name of each excerpt, the language of its text, and the text."""
    yield "lengths", "markdown", "\n".join(lengths())
    yield "packages", "markdown", "\n".join(packages())
    yield "graph", "text", lines(stage("graph"), "dim ", "Input", "Constant W", "'hidden'")
    yield "prepared", "text", lines(stage("prepared"), "%[23]: ", "'identity'")
    yield "fusion", "text", lines(stage("fusion"), r"^\w", r"\[rows, 20\]", "MaxReduce", "stored")
    nest = between(stage("nests"), "nest(", "row1:")
    yield "nest", "text", narrow(lines(nest, "^nest", "parallel", "tile", r"x\d\[", "vector"))
    yield "program", "text", lines(stage("program"), "buffer W", "buffer t4", "^  entry", "#")
    kernel = between(stage("kernels"), "// contraction0", "void contraction0(")
    yield "kernel", "cpp", lines(kernel, "made for", "order=", "Tensorise", "Parallelise", r"sum\.|sum;")


def fenced(language: str, text: str) -> str:
    """``text`` as it stands on a page: a table, or a block of code."""
    return f"{text}\n" if language == "markdown" else f"```{language}\n{text.rstrip()}\n```\n"


def main() -> int:
    found = {name: fenced(language, text) for name, language, text in excerpts()}
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    wanted = {match["name"] for page in pages.values() for match in BLOCK.finditer(page)}
    unknown = sorted(wanted ^ set(found))
    if unknown:
        print(f"the pages and this script do not hold the same excerpts: {', '.join(unknown)}", file=sys.stderr)
        return 2
    new = {path: BLOCK.sub(lambda m: f"{m[1]}{found[m['name']]}{m[3]}", page) for path, page in pages.items()}
    if "--check" in sys.argv[1:]:
        old = [path.name for path in PAGES if new[path] != pages[path]]
        print(f"out of date: {', '.join(old)}: run python docs/tour.py" if old else "up to date")
        return int(bool(old))
    for path, page in new.items():
        path.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
