"""Other forms of an exported model than its folder: a static library, sources alone, a wheel."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from luminal import destination
from luminal.codegen import build as builder
from luminal.codegen import platform as platforms
from luminal.codegen.host import LIBRARY, namespace
from luminal.codegen.render import COMMON_FLAGS
from luminal.core import target as targets
from luminal.core.errors import InputError
from luminal.core.target import Target
from luminal.runtime import loader, packaged

FORMS = ("library", "static", "source", "wheel")
_UNCHANGING = (1980, 1, 1, 0, 0, 0)  # the time of files in a wheel, so that equal models give equal wheels


def check(form: str) -> str:
    """``form``, if there is such. Raises InputError."""
    if form not in FORMS:
        raise InputError(f"emit: expected one of {', '.join(FORMS)}, found {form!r}")
    return form


def emit(form: str, folder: Path, name: str) -> None:
    """Adds a form to the export of the model ``name`` in ``folder``, or, for sources, takes the library away.

    Raises InputError for what the model's target has no such form of.
    """
    if form == "library":
        return
    manifest = loader.read_manifest(folder / loader.MANIFEST)
    about = manifest["target"]
    target = targets.parse(about["name"]).using(about["features"])
    if manifest["device"] != "cpu" or manifest["emulated"]:
        raise InputError(f"emit: {form!r} is for models that run on a CPU, found one for {about['name']}")
    _MAKERS[form](folder, name, target, manifest)


def _static(folder: Path, name: str, target: Target, manifest: Mapping[str, Any]) -> None:
    paths = [folder / LIBRARY, *sorted((folder / "kernels").glob("*.cpp"))]
    files = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    made = builder.make(builder.archive(name, target, files))
    destination.replaced(made, folder / made.name)


def _source(folder: Path, name: str, target: Target, manifest: Mapping[str, Any]) -> None:
    """One file that includes all others, for those who have a compiler but no build system."""
    platform = platforms.ALL[target.system]
    kernels = sorted(path.relative_to(folder).as_posix() for path in (folder / "kernels").glob("*.cpp"))
    flags = " ".join(flag for flag in (*target.flags, *COMMON_FLAGS))
    links = " ".join(flag for flag in platform.links(name) if "strip" not in flag)
    text = [
        f"// All of the library of {name!r} in one file. GNU's C++ compiler or clang builds it:",
        "//",
        f"//     c++ {flags} -Iinclude {name}.cpp {links} -o {manifest['library']}",
        "//",
        "// CMakeLists.txt builds the same from several files at once.",
        f"#define LM_NAMESPACE {namespace(name)}",
        *(f'#include "{path}"' for path in (LIBRARY, *kernels)),
    ]
    if not target.levels:  # else the same file would be compiled with several sets of flags
        destination.written("".join(line + "\n" for line in text).encode(), folder / f"{name}.cpp")
    (folder / manifest["library"]).unlink()


def _wheel(folder: Path, name: str, target: Target, manifest: Mapping[str, Any]) -> None:
    tag = f"py3-none-{_platform_tag(folder / manifest['library'], target)}"
    version = f"1.0+{manifest['content_id'][:12]}"
    about = f"{name}-{version}.dist-info"
    extensions = any(
        tensor["dtype"] not in packaged.PLAIN
        for entry in manifest["entries"]
        for tensor in (*entry["inputs"], *entry["outputs"])
    )
    requires = ["numpy", *(["ml_dtypes"] if extensions else [])]
    metadata = [
        "Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}",
        f"Summary: A model compiled by {manifest['compiler']}", "Requires-Python: >=3.9",
        *(f"Requires-Dist: {requirement}" for requirement in requires),
    ]  # fmt: skip
    files = {
        f"{name}/__init__.py": Path(packaged.__file__).read_bytes(),
        **{f"{name}/{file}": (folder / file).read_bytes()
           for file in (loader.MANIFEST, manifest["library"], manifest["weights"])},
        f"{about}/METADATA": _lines(metadata),
        f"{about}/WHEEL": _lines(["Wheel-Version: 1.0", "Generator: luminal", "Root-Is-Purelib: false", f"Tag: {tag}"]),
        **{f"{about}/licenses/{number}.txt": licence["text"].encode()
           for number, licence in enumerate(manifest["licences"])},
    }  # fmt: skip
    record = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{about}/RECORD"] = _lines([*record, f"{about}/RECORD,,"])
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _UNCHANGING)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content)


_MAKERS: Mapping[str, Callable[[Path, str, Target, Mapping[str, Any]], None]] = {
    "library": lambda folder, name, target, manifest: None,
    "static": _static,
    "source": _source,
    "wheel": _wheel,
}


def _platform_tag(library: Path, target: Target) -> str:
    """The name of the oldest system that the library runs on, as wheels have it (PEP 600 and 656)."""
    machine = target.architecture
    if target.system == "linux":
        found = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())]
        return f"manylinux_2_{max([17, *found])}_{machine}"
    tags = {
        "musl": f"musllinux_1_2_{machine}",
        "windows": "win_amd64",
        "macos": f"macosx_14_0_{'arm64' if machine == 'aarch64' else machine}",
    }
    if target.system not in tags:
        raise InputError(f"emit: no Python runs libraries for {target.name}, so that there is no wheel for it")
    return tags[target.system]


def _lines(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
