"""What is said of a compiled library, from its file alone."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import luminal
from luminal import binary, cli, inspection
from luminal.core import ir, ops, types
from luminal.core import symbolic as sym
from luminal.core.errors import ArtifactError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported model of y = relu(x) * scale, of one symbolic size."""
    rows = sym.var("rows", 1, 9)
    x = ir.input_("x", (rows, 4), types.f32)
    scale = ir.constant(np.arange(4, dtype=np.float32))
    y = ir.binary(ops.MUL, *ir.broadcast(x, scale))
    graph = ir.Graph("scaled", (x,), (("y", y),), dims=tuple(sym.variables(rows)), names={scale: "scale"})
    return luminal.compile(graph).export(tmp_path_factory.mktemp("inspected") / "build", python_module=False)


def test_the_library_alone_says_what_is_inside(folder: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copy(folder / "libscaled.so", tmp_path / "moved.so"))
    found = inspection.inspect(alone)
    manifest = json.loads((folder / "manifest.json").read_text())
    same = ("name", "dims", "entries", "states", "relations", "approximations", "target", "kernels", "compiler")
    assert {key: found[key] for key in same} == {key: manifest[key] for key in same}
    (constant,) = found["constants"]
    assert (constant["name"], constant["dtype"], constant["shape"]) == ("scale", "float32", [4])
    assert found["dims"] == [{"name": "rows", "lower": 1, "upper": 9}]
    assert found["library_bytes"] == alone.stat().st_size and found["built_by"]
    (licence,) = found["licences"]
    assert licence["text"] == (Path(__file__).parents[1] / "LICENSE-MIT").read_text()


def test_of_a_folder_its_files_too(folder: Path) -> None:
    found = inspection.inspect(folder)
    sizes = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    del sizes["manifest.json"]
    assert found["files"] == sizes


def test_a_stripped_library_says_the_same(folder: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copy(folder / "libscaled.so", tmp_path / "libscaled.so"))
    before = inspection.inspect(alone)
    subprocess.run(["strip", str(alone)], check=True)
    after = inspection.inspect(alone)
    assert after["library_bytes"] < before["library_bytes"]
    assert {**after, "library_bytes": 0, "built_by": 0} == {**before, "library_bytes": 0, "built_by": 0}


def test_damaged_libraries_give_a_sentence(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "libscaled.so").read_bytes()
    damaged = tmp_path / "libscaled.so"

    def refused(data: bytes) -> str:
        damaged.write_bytes(data)
        with pytest.raises(ArtifactError) as error:
            inspection.inspect(damaged)
        return str(error.value)

    for size in (0, 3, 20, 63, 64, 1000, len(whole) // 2, len(whole) - 1):
        message = refused(whole[:size])
        assert str(damaged) in message and ("cut" in message or "no shared library" in message)
    start = whole.index(b'{"abi_version"')
    for offset in (0, 10, 200, 1000):  # of the description, in which every byte counts
        changed = bytearray(whole)
        changed[start + offset] ^= 1
        assert "not what was written" in refused(bytes(changed))
    message = refused(b"#!/bin/sh\n" * 100)
    assert "is no shared library" in message and "name the exported folder" in message
    random = np.random.default_rng(0)
    for _ in range(300):  # headers and the table of sections: an answer or a sentence, no traceback
        changed = bytearray(whole)
        table = int.from_bytes(whole[40:48], "little")
        at = int(random.integers(64)) if random.random() < 0.5 else int(random.integers(table, len(whole)))
        changed[at] = int(random.integers(256))
        damaged.write_bytes(changed)
        try:
            inspection.inspect(damaged)
        except ArtifactError:
            continue


def hostile(sections: int, description: bytes = b"") -> bytes:
    """An ELF file of which each section claims all of its 8 MB; the first is called ``.luminal``."""
    names, size = b".luminal\0", 8 << 20
    start = 64 + 64 * sections
    rows = [struct.pack("<IIQQQQ16x8x", 0, 1, 0, 0, 64, size - 64) for _ in range(sections)]
    rows[-1] = struct.pack("<IIQQQQ16x8x", 0, 3, 0, 0, start, len(names))
    if description:
        rows[0] = struct.pack("<IIQQQQ16x8x", 0, 1, 0, 0, start + len(names), len(description))
    header = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q10xHHH", 64, 64, sections, sections - 1)
    return (header + b"".join(rows) + names + description).ljust(size, b"\0")


def test_what_a_file_claims_costs_no_memory(tmp_path: Path) -> None:
    made = tmp_path / "libhostile.so"
    made.write_bytes(hostile(20_000))
    tracemalloc.start()
    with pytest.raises(ArtifactError, match="damaged"):
        inspection.inspect(made)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20  # copies of all sections would be 160 GB
    tracemalloc.stop()


@pytest.mark.parametrize("text", [b"[" * 100_000, b"{}", b"[1]", b"\xff"], ids=["deep", "empty", "list", "bytes"])
def test_a_description_that_is_none_gives_a_sentence(text: bytes, tmp_path: Path) -> None:
    made = tmp_path / "libhostile.so"
    made.write_bytes(hostile(2, text + b"\0" + f"{zlib.crc32(text):08x}".encode()))
    with pytest.raises(ArtifactError, match=r"no JSON|another version"):
        inspection.inspect(made)


def test_other_libraries_and_folders_are_told_apart(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ArtifactError, match="no library of luminal"):
        inspection.inspect(next(Path(np.__file__).parent.rglob("*.so")))
    with pytest.raises(ArtifactError, match="expected a folder with"):
        inspection.inspect(tmp_path)
    with pytest.raises(ArtifactError, match="cannot read"):
        inspection.inspect(tmp_path / "none.so")
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "scaled.h").write_text("other")
    with pytest.raises(ArtifactError, match=r"scaled\.h"):
        inspection.inspect(copy)


def test_sections_of_a_library_of_macos(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    source = tmp_path / "a.c"
    source.write_text('__attribute__((used, section("__TEXT,__luminal"))) const char text[] = "found";')
    made = tmp_path / "liba.dylib"
    zig = [sys.executable, "-m", "ziglang", "cc", "-O2", "-target", "aarch64-macos"]
    subprocess.run([*zig, "-shared", str(source), "-o", str(made)], check=True)
    assert binary.sections(made, ["__luminal"])["__luminal"] == b"found\0"


def test_the_command(folder: Path) -> None:
    run = CliRunner().invoke
    shown = run(cli.app, ["inspect", str(folder), "--json"])
    assert shown.exit_code == 0 and json.loads(shown.stdout) == json.loads(json.dumps(inspection.inspect(folder)))
    for arguments, words in (
        ([], ("size rows: 1 to 9", "[rows, 4]", "scale", "16 bytes")),
        (["--schedules"], ("Vectorise",)),
        (["--licences"], ("MIT OR Apache-2.0", "Permission is hereby granted")),
    ):
        result = run(cli.app, ["inspect", str(folder / "libscaled.so"), *arguments])
        assert result.exit_code == 0 and all(word in result.output for word in words), result.output
    assert run(cli.app, ["inspect", str(folder / "nothing")]).exit_code == 2
