"""What the documents show is what the code prints."""

import re
import subprocess
import sys
from pathlib import Path

import onnx

from luminal.core import ops
from luminal.frontends.fx.tables import TABLE
from luminal.frontends.onnx import control, operators, registry, sequences  # noqa: F401 - operators fills the registry

ROOT = Path(__file__).resolve().parent.parent


def test_the_excerpts_of_the_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "tour.py", "--check"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_counts_the_primitives() -> None:
    assert re.findall(r"into (\S+) primitives", (ROOT / "README.md").read_text()) == [str(len(ops.TABLE))]


def test_the_readme_counts_operators() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.findall(r"(\d+) of onnxruntime's own, (\d+) overloads of ATen", text) == [
        (str(len(registry.names("com.microsoft"))), str(len(TABLE)))
    ]


def test_all_of_onnx_but_one_operator_is_known() -> None:
    assert "All of ONNX's but `ImageDecoder`" in (ROOT / "README.md").read_text()
    known = registry.names() | set(control.HANDLERS) | set(sequences.HANDLERS)
    schemas = [schema for schema in onnx.defs.get_all_schemas() if schema.domain == ""]
    left = {s.name for s in schemas if not (s.has_function or s.has_context_dependent_function)} - known
    assert left == {"ImageDecoder"}
