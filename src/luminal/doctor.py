"""What luminal finds on this machine: compilers, CPU, caches, packages; and which command brings what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich import filesize
from rich.table import Table

from luminal.codegen import cache, toolchain
from luminal.core import config, device
from luminal.core import target as targets
from luminal.core.errors import BuildError, LuminalError
from luminal.tuning.records import Records
from luminal.version import VERSION
from luminal.view import page

State = Literal["ok", "missing", "fault"]

# The packages that an extra brings, by what they are for; pyproject.toml has the same extras.
_EXTRAS = {
    "torch": (("torch",), "PyTorch models"),
    "diff": (("onnxruntime",), "comparing ONNX models with onnxruntime"),
    "clang": (("ziglang",), "a C++ compiler from the package index, other machines as targets"),
    "llm": (("tokenizers",), "text of language models"),
    "grammar": (("llguidance",), "answers that fit a schema or a grammar"),
    "serve": (("starlette", "uvicorn", "prometheus-client"), "luminal serve"),
    "ray": (("ray",), "tuning on other machines"),
}
_NEEDED = ("numpy", "onnx", "ml_dtypes", "jinja2", "pybind11", "cmake", "ninja", "rich", "typer")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. ``missing`` is what one can do without; a ``fault`` keeps luminal from compiling.
    ``advice`` is what to do, a command where there is one."""

    subject: str
    state: State
    found: str
    advice: str = ""


def findings() -> list[Finding]:
    """All that is looked for, in the order in which it is read."""
    return [
        Finding("luminal", "ok", f"{VERSION} in {Path(__file__).parent}"),
        Finding("Python", "ok", f"{platform.python_version()} in {sys.prefix}"),
        Finding("system", "ok", f"{platform.system()} {platform.release()}, {targets.architecture()}"),
        *_packages(),
        _binding(),
        *_compilers(),
        *_processor(),
        *_caches(),
        _viewer(),
        *_switches(),
    ]


def healthy(found: Sequence[Finding]) -> bool:
    """Whether models can be compiled and run here."""
    return not any(finding.state == "fault" for finding in found)


def as_json(found: Sequence[Finding]) -> dict[str, Any]:
    return {"healthy": healthy(found), "findings": [asdict(finding) for finding in found]}


def table(found: Sequence[Finding]) -> Table:
    """The findings in rows; what is missing has its advice below."""
    made = Table("", "what", "found, and what brings what is missing", show_lines=True)
    marks = {"ok": "[green]✓[/]", "missing": "[yellow]-[/]", "fault": "[bold red]✗[/]"}
    for finding in found:
        text = "\n".join(filter(None, (finding.found, finding.advice)))
        made.add_row(marks[finding.state], finding.subject, text.replace("[", r"\["))
    return made


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    versions = {package: _version(package) for package in _NEEDED}
    missing = [package for package, version in versions.items() if version is None]
    said = ", ".join(f"{package} {version}" for package, version in versions.items() if version is not None)
    if missing:
        yield Finding("packages", "fault", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield Finding("packages", "ok", said)
    for extra, (packages, purpose) in _EXTRAS.items():
        versions = {package: _version(package) for package in packages}
        if None in versions.values():
            yield Finding(f"extra {extra}", "missing", f"for {purpose}", f"pip install 'luminal[{extra}]'")
        else:
            said = ", ".join(f"{package} {version}" for package, version in versions.items())
            yield Finding(f"extra {extra}", "ok", said)


def _binding() -> Finding:
    """The compiled module that opens libraries."""
    try:
        from luminal.runtime import _native
    except ImportError as error:
        return Finding("loader", "fault", str(error), "pip install --force-reinstall --no-deps luminal")
    return Finding("loader", "ok", str(_native.__file__))


def _compilers() -> Iterator[Finding]:
    try:
        found = toolchain.find()
        yield Finding("C++ compiler", "ok", f"{' '.join(found.command)}: {_first_line(found.version)}")
    except BuildError as error:
        advice = "pip install 'luminal[clang]'" if not config.CXX.value else "unset CXX, or set it to a compiler"
        yield Finding("C++ compiler", "fault", str(error), advice)
    try:
        found = toolchain.find_nvcc()
        yield Finding("CUDA compiler", "ok", f"{found.command[0]}: {_first_line(found.version.splitlines()[-1])}")
    except BuildError:
        yield Finding("CUDA compiler", "missing", "for NVIDIA's GPUs", "pip install nvidia-cuda-nvcc")


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip()


def _processor() -> Iterator[Finding]:
    host = targets.detect()
    sizes = ", ".join(f"L{level} {size >> 10} KiB" for level, size in sorted(targets.cache_sizes().items()))
    cpus = f"{device.cpus()} CPUs for this process"
    yield Finding("CPU", "ok", f"{targets.processor()}; {cpus}; caches: {sizes or 'unknown'}")
    yield Finding("target host", "ok", f"{host.name}: {', '.join(host.features)}")
    others = [target for target in targets.ALL.values() if target.architecture == host.architecture]
    obstacles = {target.name: targets.obstacle(target) for target in others}
    lacks = [f"{name}: {why}" for name, why in obstacles.items() if why]
    if lacks:
        yield Finding("other targets", "ok", "\n".join(lacks))
    gpus = {target.name: device.missing(target.dialect, target.features) for target in targets.GPUS.values()}
    usable = [name for name, obstacle in gpus.items() if not obstacle]
    if usable:
        yield Finding("GPU", "ok", f"runs code for {', '.join(usable)}")
    else:
        advice = "emulate=True, --emulate: libraries that emulate a GPU on this machine"
        yield Finding("GPU", "missing", gpus["cuda:sm_80"], advice)


def _caches() -> Iterator[Finding]:
    if config.NO_CACHE.value:
        yield Finding("cache", "ok", "none: LUMINAL_NO_CACHE is set")
    else:
        folder = config.CACHE.value
        said = f"{folder}: {_size(folder)}"
        if _writable(folder):
            yield Finding("cache", "ok", f"{said}; rm -r {folder} frees it")
        else:
            yield Finding("cache", "fault", f"{said}; it cannot be written", "set LUMINAL_CACHE to another folder")
    try:
        records = Records()
        size = records.path.stat().st_size if records.path.is_file() else 0
        yield Finding("tuning", "ok", f"{records.path}: {filesize.decimal(size)} of records")
    except LuminalError as error:
        yield Finding("tuning", "fault", str(error), "set LUMINAL_RECORDS to another file")


def _size(folder: Path) -> str:
    """How many files there are in a folder, and their size, as far as they are counted in ``_PATIENCE`` seconds."""
    count = size = 0
    ends = time.monotonic() + _PATIENCE
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # other processes remove files meanwhile
                size += os.stat(os.path.join(where, name)).st_size
                count += 1
            if time.monotonic() > ends:
                return f"more than {count} files, {filesize.decimal(size)}"
    return f"{count} files, {filesize.decimal(size)}"


_PATIENCE = 2.0


def _writable(folder: Path) -> bool:
    try:
        with cache.appearing(folder / ".doctor", recorded=False):
            pass
        (folder / ".doctor").unlink(missing_ok=True)
    except (OSError, LuminalError):
        return False
    return True


def _viewer() -> Finding:
    try:
        page.built()
    except LuminalError:
        return Finding("viewer", "missing", "for luminal view; wheels have it", "make viewer")
    return Finding("viewer", "ok", "the page of luminal view is built")


def _switches() -> Iterator[Finding]:
    """Environment variables that are set."""
    for variable, switch in config.TABLE.items():
        if os.environ.get(variable):
            try:
                yield Finding(variable, "ok", str(switch.value))
            except LuminalError as error:
                yield Finding(variable, "fault", str(error), f"unset {variable}")
