"""Forms that the algebra found, from a manifest to a library: replayed to the same bytes, or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import luminal
from luminal.core.algebra import stage
from luminal.core.errors import InputError

SHAPE = (2, 96, 16)


class Mixed(torch.nn.Module):
    """Attention without an exponential, and two layers of one input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16, bias=False)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mixed = torch.relu((q @ k.transpose(1, 2)) @ v)  # so that there are two regions
        return self.first(mixed) + self.second(mixed)


def inputs() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(SHAPE, generator=torch.Generator().manual_seed(k)) for k in range(3))


def sources(folder: Path) -> dict[str, bytes]:
    found = [*folder.rglob("*.cpp"), *folder.rglob("*.hpp"), *folder.glob("*.weights")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if path.name != "python_module.cpp"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    luminal.compile(Mixed(), inputs(), name="mixed").export(folder, python_module=False)
    return folder


def test_a_manifest_replays_to_the_same_bytes(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*arguments: Any) -> Any:
        raise AssertionError("a search")

    noted = json.loads((library / "manifest.json").read_text())["approximations"]
    assert [made["option"] for made in noted] == ["algebra"] * 2
    monkeypatch.setattr(stage, "cheapest_form", search)
    for number, place in enumerate((library, library / "manifest.json")):
        again = luminal.compile(Mixed(), inputs(), name="mixed", algebra=str(place))
        again.export(tmp_path / str(number), python_module=False)
        assert again.manifest["approximations"] == noted
        assert sources(tmp_path / str(number)) == sources(library)


def test_a_manifest_of_another_model_changes_nothing(library: Path) -> None:
    q, k, v = inputs()
    module = luminal.compile(Mixed(), (q[:1], k[:1], v[:1]), algebra=str(library))
    assert module.explain() == ""
    torch.testing.assert_close(module(q[:1], k[:1], v[:1]), Mixed()(q[:1], k[:1], v[:1]), rtol=0, atol=1e-4)


LIBRARY = {"name": "x", "library": "y"}


@pytest.mark.parametrize("text", [None, "{", json.dumps(LIBRARY), json.dumps({**LIBRARY, "approximations": 3})])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "manifest.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match="algebra: expected exact, bounded, or the manifest"):
        luminal.compile(Mixed(), inputs(), algebra=str(path))


def test_a_form_that_is_damaged_is_refused(library: Path, tmp_path: Path) -> None:
    manifest = json.loads((library / "manifest.json").read_text())
    manifest["approximations"][0]["form"] = "(f0 * f9)"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"'\(f0 \* f9\)' is no form of the region"):
        luminal.compile(Mixed(), inputs(), algebra=str(tmp_path))


PROGRAM = """
import hashlib
from luminal.codegen import render
from luminal.core import target
from luminal.core.pipeline import compile_graph
from luminal.frontends.fx import importer
from tests.test_derivation import Mixed, inputs
chosen = target.parse("avx2", threads=2)
files = render.render(compile_graph(importer.load(Mixed(), inputs()), chosen), chosen).files
print(hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest())
"""


def test_the_forms_do_not_depend_on_hashes_of_python() -> None:
    found = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1
