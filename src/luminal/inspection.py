"""What is inside a compiled library, from its file alone: no code of it is executed, no framework is needed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import filesize
from rich.markup import escape
from rich.table import Table

from luminal import artifact, binary, recomputed
from luminal.core.errors import ArtifactError
from luminal.runtime.loader import MANIFEST, read_manifest

_SECTIONS = (".luminal", "__luminal")  # of ELF and of Mach-O, see runtime/include/luminal/model.hpp
_DIGITS = 8  # of the checksum


def inspect(path: str | Path) -> dict[str, Any]:
    """What the library at ``path`` says of itself, a file or an exported folder: ``entries``, ``dims``, ``relations``,
    ``states``, ``constants`` (the weights, as kernels read them), ``kernels``, ``target``, ``compiler``,
    ``approximations``, ``licences``, and ``built_by``, the compiler of its C++. Of a folder, ``files`` too, in bytes,
    and all but the weights' bytes are verified.

    Raises ArtifactError where there is none, or where it is damaged.
    """
    path = Path(path)
    if not path.is_dir():
        return _described(path)
    if not (path / MANIFEST).is_file():
        raise ArtifactError(f"no exported model at {str(path)!r}: expected a folder with {MANIFEST}, or a library")
    damaged = artifact.problem(path)
    if damaged:
        raise ArtifactError(f"the model in {str(path)!r} is damaged: {damaged}; export it again")
    manifest = read_manifest(path / MANIFEST)
    files = {name: row[0] for name, row in manifest["files"].items()}
    return {
        **_described(path / manifest["library"]),
        "kernels": manifest["kernels"],  # with what the compilers of GPUs said of them
        "emulated": manifest["emulated"],
        "content_id": manifest["content_id"],
        "files": {**files, manifest["weights"]: manifest["weights_bytes"]},
    }


def _described(library: Path) -> dict[str, Any]:
    found = binary.sections(library, (*_SECTIONS, ".comment"))
    section = next((found[name] for name in _SECTIONS if name in found), None)
    if section is None:
        raise ArtifactError(f"{str(library)!r} is no library of luminal, or one of an earlier version: it has no "
                            f"section {_SECTIONS[0]}")  # fmt: skip
    text, _, rest = section.partition(b"\0")
    if rest[:_DIGITS] != f"{zlib.crc32(text):0{_DIGITS}x}".encode():
        raise ArtifactError(f"the library {str(library)!r} is damaged: its description is not what was written")
    described = _description(text, library)
    makers = dict.fromkeys(part.decode(errors="replace") for part in found.get(".comment", b"").split(b"\0") if part)
    return {**described, "library": library.name, "library_bytes": library.stat().st_size, "built_by": list(makers)}


_KEYS = frozenset(
    ("compiler", "constants", "dims", "entries", "kernels", "licences", "name", "states", "steps", "target")
)


def _description(text: bytes, library: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the library {str(library)!r} is damaged: its description is no JSON: {error}") from error
    if not isinstance(found, dict) or not found.keys() >= _KEYS:
        raise ArtifactError(f"the library {str(library)!r} is of another version of luminal: expected a description "
                            f"with {', '.join(sorted(_KEYS))}")  # fmt: skip
    return found


def _shape(axes: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, axes))}]"


def _size(count: int) -> str:
    return str(filesize.decimal(count))


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What is said once of a library, a line each."""
    target = found["target"]
    features = ", ".join(target["features"])
    emulated = ", emulated on a CPU" if found.get("emulated") else ""
    yield f"{found['library']}: the model {found['name']!r}, {_size(found['library_bytes'])}"
    makers = ", ".join(found["built_by"]) or "a compiler that left no name"
    yield f"compiled by {found['compiler']}; its C++ by {makers}"
    yield f"for {target['name']}{emulated}: {target['architecture']} with {features or 'nothing besides'}"
    yield f"contractions of float32: {target['precision']}"
    for dim in found["dims"]:
        how = ", decided by the data of a run" if dim.get("measured") else ""
        yield f"size {dim['name']}: {dim['lower']} to {dim['upper']}{how}"
    yield from (f"needs that {relation}" for relation in found.get("relations", ()))
    weights = sum(row["bytes"] for row in found["constants"])
    yield f"weights: {len(found['constants'])} arrays, {_size(weights)}, in the order in which kernels read them"
    for made in found.get("approximations", ()):
        yield f"{made['option']}: {'; '.join(made['origins'])}: {made['what']}"
    yield from recomputed.lines(found)
    yield from (f"licence of {row['part']}: {row['licence']}" for row in found["licences"])


def tables(found: Mapping[str, Any], schedules: bool = False) -> Iterator[Table]:
    """What there are several of, as tables; with ``schedules``, the transforms of each kernel too."""
    for entry in found["entries"]:
        title = f"entry {entry['name']}, {_size(entry['arena_bytes'])} of memory for values"
        rows = [("input", row) for row in entry["inputs"]] + [("output", row) for row in entry["outputs"]]
        yield _table(title, ("", "name", "type", "shape"), [(what, *_tensor(row)) for what, row in rows])
    if found["states"]:
        yield _table("states", ("name", "type", "shape"), [_tensor(row) for row in found["states"]])
    if found["constants"]:
        rows_of = [(*_tensor(row), _size(row["bytes"])) for row in found["constants"]]
        yield _table("weights", ("name", "type", "shape", "size"), rows_of, right=("size",))
    headings = ("kernel", "made for", *(("schedule",) if schedules else ()))
    kernels = [
        (row["name"], "\n".join(row["origins"]), *(("\n".join(row["schedule"]),) if schedules else ()))
        for row in found["kernels"]
    ]
    yield _table("kernels", headings, kernels)
    if "files" in found:
        sizes = [(name, _size(size)) for name, size in found["files"].items()]
        yield _table("files", ("name", "size"), sizes, right=("size",))


def _tensor(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["name"], row["dtype"], _shape(row["shape"])


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
