"""Building: libraries that run, the cache, and what a user is told when the compiler is missing or refuses."""

import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from luminal.codegen import build, cache, render, toolchain, weights
from luminal.codegen.render import SourceBundle
from luminal.core import target as targets
from luminal.core.errors import BuildError
from luminal.runtime import loader
from tests.codegen_programs import COLUMNS, scaled_rows
from tests.codegen_support import HOST_TARGETS


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LUMINAL_CACHE", str(folder))
    return folder


def built(tmp_path: Path, bundle: SourceBundle) -> Path:
    program = scaled_rows()
    path = build.build(bundle, tmp_path / "out").library
    arrays = [program.constants[name] for name in bundle.plan.offsets]
    weights.write(path.with_name(f"{bundle.name}.weights"), bundle.source_hash, bundle.plan, arrays, bundle.content_id)
    return path


@pytest.mark.parametrize("target", HOST_TARGETS, ids=lambda target: target.name)
def test_a_library_runs(target: targets.Target, tmp_path: Path) -> None:
    path = built(tmp_path, render.render(scaled_rows(), target))
    assert path.name == "libscaled_rows.so"
    library = loader.load(path)
    weight = scaled_rows().constants["weight"]
    for rows in (1, 5, 32):
        x = np.random.default_rng(rows).standard_normal((rows, COLUMNS)).astype(np.float32)
        np.testing.assert_array_equal(library.run([x])[0], x * x * weight)
        np.testing.assert_array_equal(library.run([x], entry="weigh_only")[0], x * weight)
    assert library.metadata["target"]["name"] == target.name
    assert library.metadata["constants"][0]["name"] == "weight"
    assert library.metadata["source"] == "model.py"


def test_objects_and_libraries_are_kept(tmp_path: Path, own_cache: Path) -> None:
    bundle = render.render(scaled_rows(), HOST_TARGETS[0])
    seen: list[tuple[str, int, int]] = []
    first = build.build(bundle, progress=lambda *step: seen.append(step)).library
    assert [step[1:] for step in seen] == [(k, 5) for k in range(1, 6)]
    assert seen[-1][0] == first.name
    inodes = {path: path.stat().st_ino for path in own_cache.rglob("*") if path.suffix in (".o", ".so")}
    assert len(inodes) == 5
    seen.clear()
    assert build.build(bundle, progress=lambda *step: seen.append(step)).library == first
    assert seen == [(first.name, 5, 5)]
    assert {path: path.stat().st_ino for path in own_cache.rglob("*") if path.suffix in (".o", ".so")} == inodes


def test_a_change_compiles_what_it_touches(own_cache: Path) -> None:
    target = HOST_TARGETS[0]
    bundle = render.render(scaled_rows(), target)
    build.build(bundle)
    before = set(own_cache.rglob("*.o"))
    files = {**bundle.files, "kernels/square.cpp": bundle.files["kernels/square.cpp"] + "// changed\n"}
    other = SourceBundle(bundle.name, target, bundle.interface, files, bundle.kernels, bundle.plan, bundle.source_hash)
    build.build(other)
    assert len(set(own_cache.rglob("*.o")) - before) == 1


def test_another_compiler_makes_other_files(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the arguments that ``CXX`` gives it differ."""
    bundle = render.render(scaled_rows(), HOST_TARGETS[0])
    made: dict[str, set[Path]] = {}
    for command in ("g++", "g++ -fno-tree-vectorize", "g++"):
        monkeypatch.setenv("CXX", command)
        before = set(own_cache.rglob("*.o"))
        library = build.build(bundle).library
        made.setdefault(command, (set(own_cache.rglob("*.o")) - before) | {library})
    plain, slower = made.values()
    assert len(plain) == len(slower) == 5 and not plain & slower


def test_headers_that_are_compiled_once_change_no_object(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    made: list[Path] = []

    def watched(self: toolchain.Toolchain, header: str, flags: Sequence[str], folder: Path) -> bool:
        found = precompile(self, header, flags, folder)
        made.append(folder / f"{header}.gch")
        assert found and made[-1].exists() and "lanes.hpp" in (folder / header).read_text()
        return found

    precompile = toolchain.Toolchain.precompile
    monkeypatch.setattr(toolchain.Toolchain, "precompile", watched)
    bundle = render.render(scaled_rows(), HOST_TARGETS[0])
    objects: list[dict[str, bytes]] = []
    for number, least in enumerate((100, 2)):
        monkeypatch.setattr(build, "_SHARING", least)
        monkeypatch.setenv("LUMINAL_CACHE", str(own_cache / str(number)))
        assert len(made) == 0
        build.build(bundle)
        objects.append({path.name: path.read_bytes() for path in (own_cache / str(number)).rglob("*.o")})
    assert len(made) == 1 and len(objects[0]) == 4 and objects[0] == objects[1]


def test_what_is_the_same_for_every_model_is_compiled_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers of kernels, and the functions behind the interface. A damaged header is made anew."""
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setattr(build, "_SHARING", 1)
    first, second = (render.render(replace(scaled_rows(), name=name), HOST_TARGETS[0]) for name in ("first", "second"))
    build.build(first)
    before = set(own_cache.rglob("*.o"))
    (header,) = own_cache.rglob("*.gch")
    header.write_bytes(header.read_bytes()[:1000])
    build.build(second)
    assert len(before) == 4 and len(set(own_cache.rglob("*.o")) - before) == 3
    assert cache.whole(header) and header.stat().st_size > 1000


def test_a_header_that_another_process_precompiled_first_stays(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process is reading it: taken away for a moment only, it would be missing in the middle of a compile."""
    monkeypatch.setenv("CXX", "g++")
    bundle = render.render(scaled_rows(), HOST_TARGETS[0])
    precompile = toolchain.Toolchain.precompile
    kept: list[int] = []

    def slower(self: toolchain.Toolchain, header: str, flags: Sequence[str], folder: Path) -> bool:
        if not kept:
            kept.append(0)
            build.build(bundle)  # the other process
            (made,) = own_cache.rglob("*.gch")
            kept[0] = made.stat().st_ino
        return precompile(self, header, flags, folder)

    monkeypatch.setattr(toolchain.Toolchain, "precompile", slower)
    monkeypatch.setattr(build, "_SHARING", 1)
    build.build(bundle)
    assert [path.stat().st_ino for path in own_cache.rglob("*.gch")] == kept


def test_nothing_is_kept_without_the_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_NO_CACHE", "1")
    path = build.build(render.render(scaled_rows(), HOST_TARGETS[0])).library
    assert path.exists() and own_cache not in path.parents
    assert not own_cache.exists()


def test_processes_may_share_the_cache(tmp_path: Path, own_cache: Path) -> None:
    bundle = render.render(scaled_rows(), HOST_TARGETS[0])
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda k: build.build(bundle, tmp_path / str(k)).library, range(3)))
    assert len({path.read_bytes() for path in paths}) == 1
    assert not [path for path in own_cache.rglob(".*") if path.is_file()]


def test_a_rejected_kernel_is_named_with_its_operators() -> None:
    bundle = render.render(scaled_rows(), HOST_TARGETS[0])
    files = {**bundle.files, "kernels/weigh.cpp": "int broken = ;\n"}
    broken = SourceBundle(
        bundle.name, bundle.target, bundle.interface, files, bundle.kernels, bundle.plan, bundle.source_hash
    )
    with pytest.raises(BuildError, match=r"kernel weigh, made for Mul 'weigh' \(model.py:3\)") as caught:
        build.build(broken)
    assert "broken" in str(caught.value)


def test_zig_links_by_a_driver_that_compiles_nothing_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its C++ driver would compile a C++ library, and each of them the runtime of a sanitizer."""
    pytest.importorskip("ziglang")
    clang = (sys.executable, "-m", "ziglang")
    monkeypatch.setenv("CXX", shlex.join([*clang, "c++", "--target=aarch64-macos"]))
    found = toolchain.find()
    assert found.command == (*clang, "c++", "--target=aarch64-macos")
    assert found.linker == (*clang, "cc", "--target=aarch64-macos", "-O2")


def test_a_missing_compiler_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    with pytest.raises(BuildError, match="which does not exist: install"):
        toolchain.find()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(toolchain, "_NAMES", ("no-such-compiler",))
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match="found no C\\+\\+ compiler"):
        toolchain.find()


def test_a_compiler_that_does_not_start_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cxx"
    broken.write_text("#!/bin/sh\necho 'out of order' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BuildError, match="out of order"):
        toolchain.find()


def test_the_system_compiler_needs_no_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    path = build.build(render.render(scaled_rows(), HOST_TARGETS[0]), tmp_path / "out").library
    assert path.exists()
