"""Files that are damaged: what was exported is refused with a sentence, and what is in the cache is made anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

import luminal
from luminal import artifact
from luminal.cli import app
from luminal.codegen import weights
from luminal.core import config
from luminal.core.errors import ArtifactError, LuminalError
from luminal.module import Module
from luminal.runtime import loader

X = np.ones((2, 24), np.float32)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0x40
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def unreadable(path: Path) -> None:
    """A folder: that the permission is missing, an administrator does not notice."""
    path.unlink()
    path.mkdir()


Way = Callable[[Path], None]
WAYS: list[Way] = [flip, cut, empty, remove, unreadable]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LUMINAL_CACHE", str(folder))
        yield folder


def compiled(seed: int = 0) -> Module:
    torch.manual_seed(seed)
    module = luminal.compile(torch.nn.Linear(24, 40), (torch.ones(2, 24),), name="served")
    assert isinstance(module, Module)
    return module


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled().export(tmp_path_factory.mktemp("exported") / "served")


@pytest.fixture(scope="module")
def expected(exported: Path) -> NDArray[Any]:
    return np.asarray(luminal.load(exported)(X))


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exported, tmp_path / "copy")


# ---- what was exported -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["manifest.json", "served.weights", "libserved.so"])
def test_a_damaged_export_is_refused(copy: Path, name: str, way: Way) -> None:
    way(copy / name)
    if (way, name) == (flip, "manifest.json"):  # what any byte of it says may not matter to a run
        (copy / name).write_bytes(b"?" + (copy / name).read_bytes()[1:])
    with pytest.raises(LuminalError) as caught:
        luminal.load(copy)
    assert str(copy) in str(caught.value)
    result = CliRunner().invoke(app, ["run", str(copy)])
    assert result.exit_code == 2 and "Traceback" not in result.output


def test_a_flipped_byte_of_a_manifest_changes_no_result(copy: Path, expected: NDArray[Any]) -> None:
    content = (copy / "manifest.json").read_bytes()
    for place in range(0, len(content), 97):
        (copy / "manifest.json").write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            found = luminal.load(copy)(X)
        except LuminalError:
            continue
        np.testing.assert_array_equal(found, expected)


def test_a_flipped_byte_of_the_weights_is_refused_wherever_it_lies(copy: Path) -> None:
    path = copy / "served.weights"
    content = path.read_bytes()
    for place in [*range(0, 104, 3), 4095, *range(4096, len(content), 301), len(content) - 1]:
        if 72 <= place < 88:
            continue  # which weights these are: the next test
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        with pytest.raises(ArtifactError, match=r"served\.weights"):
            luminal.load(copy)


def test_other_weights_are_told(copy: Path, tmp_path: Path, expected: NDArray[Any]) -> None:
    """Those of the same build run, with a warning, and not in C unless they are asked for."""
    other = compiled(seed=1).export(tmp_path / "other", python_module=False)
    shutil.copy(other / "served.weights", copy)
    with pytest.warns(UserWarning, match="holds other weights than the model was compiled with"):
        found = luminal.load(copy)(X)
    np.testing.assert_array_equal(found, luminal.load(other)(X))
    assert not np.array_equal(found, expected)
    with pytest.raises(ArtifactError, match="holds other weights"):
        artifact.verify(copy)
    with pytest.raises(OSError, match="holds other weights than this library"):
        loader.load(copy / "libserved.so")


@pytest.mark.parametrize("way", WAYS)
def test_every_file_is_verified_by_the_command(copy: Path, way: Way) -> None:
    verify = ["verify", str(copy)]
    assert CliRunner().invoke(app, verify).exit_code == 0
    for name in ("served.h", "library.cpp", "served.weights", "manifest.json", "libserved.so"):
        kept = (copy / name).read_bytes()
        way(copy / name)
        result = CliRunner().invoke(app, verify)
        assert result.exit_code == 2 and "Traceback" not in result.output, name
        if (copy / name).is_dir():
            (copy / name).rmdir()
        (copy / name).write_bytes(kept)
    assert CliRunner().invoke(app, verify).exit_code == 0


def test_a_running_program_keeps_its_weights(copy: Path, expected: NDArray[Any]) -> None:
    module = luminal.load(copy)
    path = copy / "served.weights"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    np.testing.assert_array_equal(module(X), expected)
    empty(path)
    np.testing.assert_array_equal(module(X), expected)


def test_large_weights_are_verified_when_that_is_asked_for(copy: Path) -> None:
    luminal.load(copy, verify=True)
    flip(copy / "served.weights")
    with pytest.raises(ArtifactError, match="damaged"):
        luminal.load(copy, verify=True)


def test_the_checksum_notices_what_is_moved() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 63, 3 * 512 * 256 + 77).astype(np.uint64)
    found = weights.checksum(words)
    for first, second in [(0, 1), (5, 517), (0, 512 * 256), (3, len(words) - 1)]:
        other = words.copy()
        other[[first, second]] = other[[second, first]]
        assert weights.checksum(other) != found
    both = words.copy()
    both[[7, 9]] ^= np.uint64(1 << 63)
    assert weights.checksum(both) != found != weights.checksum(words[:-1])


def test_a_manifest_has_a_record_of_every_file(exported: Path) -> None:
    manifest = json.loads((exported / "manifest.json").read_text())
    files = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    others = {"manifest.json", "served.weights", artifact.module_file("served")}
    assert set(manifest["files"]) == files - others


# ---- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["manifest.json", "served.weights", "libserved.so", "served.hpp", "library.cpp"])
def test_a_damaged_model_of_the_cache_is_made_anew(name: str, way: Way, expected: NDArray[Any]) -> None:
    folder = compiled().folder
    way(folder / name)
    module = compiled()
    np.testing.assert_array_equal(module(X), expected)
    assert module.folder == folder and not artifact.problem(folder)
    again = (folder / "manifest.json").stat().st_ino
    assert compiled().folder == folder and (folder / "manifest.json").stat().st_ino == again


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pattern", ["objects/*/*.o", "objects/*/*.sum", "libraries/*/*.so"])
def test_damaged_files_of_the_cache_are_made_anew(
    own_cache: Path, pattern: str, way: Way, expected: NDArray[Any]
) -> None:
    folder = compiled().folder
    shutil.rmtree(folder)
    found = [path for path in own_cache.glob(pattern) if path.is_file()]
    assert found
    for path in found:
        way(path)
    if not pattern.startswith("libraries"):
        shutil.rmtree(own_cache / "libraries")
    np.testing.assert_array_equal(compiled()(X), expected)
    assert not artifact.problem(folder)


def test_files_in_the_place_of_folders_give_way(own_cache: Path, expected: NDArray[Any]) -> None:
    folder = compiled().folder
    for path in (folder, own_cache / "models", own_cache / "libraries"):
        shutil.rmtree(path)
        path.write_text("in the way")
        np.testing.assert_array_equal(compiled()(X), expected)


def test_damaged_records_of_tuning_are_set_aside(
    own_cache: Path, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for switch in (config.RECORDS, config.NO_RECORDS):
        monkeypatch.delenv(switch.variable, raising=False)
    (own_cache / "tuning.sqlite").write_text("no database " * 100)
    with pytest.warns(UserWarning, match="new records begin"):
        found = compiled()(X)
    np.testing.assert_array_equal(found, expected)
    assert not (own_cache / "tuning.sqlite").exists() and (own_cache / "tuning.sqlite.damaged").exists()
