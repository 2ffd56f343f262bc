"""What the documents show is what the code prints."""

import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer

import luminal
import luminal.llm
from luminal.cli import app
from luminal.core import config, ops
from luminal.frontends.fx.tables import TABLE
from luminal.frontends.onnx import control, operators, registry, sequences  # noqa: F401 - operators fills the registry

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "guide"
COUNTING = (ROOT / "README.md", GUIDE / "limits.md")  # the pages that count operators


def test_the_excerpts_of_the_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "tour.py", "--check"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_counts_the_primitives() -> None:
    assert re.findall(r"into (\S+) primitives", (ROOT / "README.md").read_text()) == [str(len(ops.TABLE))]


@pytest.mark.parametrize("page", COUNTING, ids=lambda page: page.name)
def test_the_readme_and_the_guide_count_operators(page: Path) -> None:
    assert re.findall(r"(\d+) of onnxruntime's own, (\d+) overloads of ATen", page.read_text()) == [
        (str(len(registry.names("com.microsoft"))), str(len(TABLE)))
    ]


def test_all_of_onnx_but_one_operator_is_known() -> None:
    assert all("All of ONNX's but `ImageDecoder`" in page.read_text() for page in COUNTING)
    known = registry.names() | set(control.HANDLERS) | set(sequences.HANDLERS)
    schemas = [schema for schema in onnx.defs.get_all_schemas() if schema.domain == ""]
    left = {s.name for s in schemas if not (s.has_function or s.has_context_dependent_function)} - known
    assert left == {"ImageDecoder"}


@pytest.mark.parametrize(
    ("page", "function"),
    [
        ("compiling", luminal.compile),
        ("checking", luminal.diff),
        ("tuning", luminal.tune),
        ("training", luminal.grad),
        ("training", luminal.compile_training),
        ("language-models", luminal.llm.compile),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_guide_names_every_option_of_a_function(page: str, function: Callable[..., Any]) -> None:
    text = (GUIDE / f"{page}.md").read_text()
    options = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert options and [name for name in options if f"`{name}`" not in text] == []


def test_the_site_has_every_page_of_the_guide_and_the_reference() -> None:
    pages = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert [page for page in pages if not (ROOT / "docs" / page).is_file()] == []
    folders = ("guide", "reference")
    there = {
        path.relative_to(ROOT / "docs").as_posix() for name in folders for path in (ROOT / "docs" / name).glob("*.md")
    }
    assert there - set(pages) == set()


def test_the_reference_has_every_public_name() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
    named = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    shown = [pkgutil.resolve_name(name) for name in named]  # raises where there is none
    public = {name: getattr(luminal, name) for name in luminal.__all__}
    inside = [getattr(module, name) for module in shown if inspect.ismodule(module) for name in dir(module)]
    left = [name for name, value in public.items() if not any(value is known for known in (*shown, *inside))]
    assert left == [] and all(value.__doc__ for value in shown)


def test_the_guide_names_every_variable() -> None:
    text = (GUIDE / "installing.md").read_text()
    assert [variable for variable in config.TABLE if f"| `{variable}` |" not in text] == []


def test_the_guide_names_every_command_and_its_options() -> None:
    text = (GUIDE / "command-line.md").read_text()
    command: Any = typer.main.get_command(app)
    params = [param for part in (command, *command.commands.values()) for param in part.params]
    options = [option for param in params for option in param.opts if option.startswith("-")]
    assert len(options) > 20 and [option for option in options if not re.search(rf"`{option}\b", text)] == []
    assert [name for name in command.commands if f"`luminal {name} " not in text] == []
