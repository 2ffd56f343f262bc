"""``luminal doctor``: what is found on a machine, what is missing, and what brings it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import shellingham
from typer.testing import CliRunner

from luminal import cli, doctor
from luminal.codegen import toolchain
from luminal.core import target as targets
from luminal.core.errors import BuildError

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def small_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "cache"))


def by_subject() -> dict[str, doctor.Finding]:
    return {finding.subject: finding for finding in doctor.findings()}


def test_this_machine_is_healthy(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "object").write_bytes(b"x" * 3000)
    found = by_subject()
    assert doctor.healthy([*found.values()])
    assert toolchain.find().command[0] in found["C++ compiler"].found
    assert targets.detect().name in found["target host"].found
    assert "1 files, 3.0 kB" in found["cache"].found and str(tmp_path) in found["cache"].found
    assert found["LUMINAL_CACHE"].found == str(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["object"]


def test_counting_a_large_cache_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    for name in "abc":
        (tmp_path / "cache" / name).write_bytes(b"x")
    monkeypatch.setattr(doctor, "_PATIENCE", -1.0)
    assert "more than 1 files, 1 byte" in by_subject()["cache"].found


def test_the_command_says_it_in_a_table_and_in_json() -> None:
    shown = CliRunner().invoke(cli.app, ["doctor", "--json"])
    said = json.loads(shown.stdout)
    assert shown.exit_code == 0 and said["healthy"]
    assert {row["subject"] for row in said["findings"]} == set(by_subject())
    table = CliRunner().invoke(cli.app, ["doctor"])
    assert table.exit_code == 0 and "C++ compiler" in table.stdout


def test_faults_decide_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> toolchain.Toolchain:
        raise BuildError("found no C++ compiler")

    monkeypatch.setattr(toolchain, "find", none)
    monkeypatch.setattr(doctor, "_version", lambda package: None if package in ("torch", "cmake") else "1")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "file"))
    found = by_subject()
    assert (found["C++ compiler"].state, found["C++ compiler"].advice) == ("fault", "pip install 'luminal[clang]'")
    assert (found["extra torch"].state, found["extra torch"].advice) == ("missing", "pip install 'luminal[torch]'")
    assert (found["packages"].state, found["packages"].advice) == ("fault", "pip install cmake")
    assert found["cache"].state == "fault" and "LUMINAL_CACHE" in found["cache"].advice
    shown = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert shown.exit_code == 1 and not json.loads(shown.stdout)["healthy"]


def test_extras_and_needed_packages_are_those_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    for extra, (packages, _) in doctor._EXTRAS.items():
        named = " ".join(extras[extra])
        assert all(package in named for package in packages), extra
    assert {text.partition(">")[0] for text in PROJECT["dependencies"]} == set(doctor._NEEDED)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shellingham, "detect_shell", lambda: (shell, f"/bin/{shell}"))  # whatever runs the tests
    script = CliRunner().invoke(cli.app, ["--show-completion"], prog_name="luminal")
    assert script.exit_code == 0 and "luminal" in script.stdout and "_LUMINAL_COMPLETE" in script.stdout


def test_what_bash_is_told() -> None:
    env = {"_LUMINAL_COMPLETE": "complete_bash", "COMP_WORDS": "luminal ins", "COMP_CWORD": "1"}
    told = CliRunner().invoke(cli.app, [], prog_name="luminal", env=env)
    assert told.stdout.split() == ["inspect"]
