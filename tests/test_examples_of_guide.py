"""Every example in Python of README.md and of the guide, run as it stands, page by page.

Examples of a page share their names, as its reader's do; those of the guide begin with its model (guide/README.md).
What a ``print`` is said to print, in a comment behind it, is compared; ``...`` stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import luminal

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A comment that shows a value, not one that explains.
SHOWN = re.compile(r"^print\(.*\)  # (<.*|\[.*|\{.*|tensor\(.*|torch\.Size.*|aten.*|algebra: .*|\d+)(?::.*)?$")

# Examples that are not run, by what is in them, and why.
LEFT_OUT = {
    "luminal.compile(torch_module": "the first lines of README.md name no model; the next example is the same with one",
    'luminal.llm.compile("path/to/model"': "it needs a language model; tests/test_llm.py runs the same calls",
    'luminal.llm.compile("path/to/mixtral"': "it needs a mixture of experts; tests/test_llm_mesh.py has one",
    "calibration_reader": "it needs a reader of a user's own data; tests/test_integers.py quantises so",
    "pip install classifier-1.0": "it needs the wheel that it speaks of; tests/test_emitted.py installs one",
    '"forward.onnx"': "it needs a model of a user's own; tests/test_training_onnx.py runs the same call",
    "luminal.tune(": "it measures for two minutes; tests/test_tuning.py runs the same calls",
}


def examples(page: Path) -> list[str]:
    return FENCE.findall(page.read_text())


PAGES = [page for page in (ROOT / "README.md", *sorted(GUIDE.glob("*.md"))) if examples(page)]


def test_examples_run(tmp_path: Path) -> None:
    """In a process of their own: where a module ``classifier`` was imported, as other tests do, the system's loader
    takes its libclassifier.so for that of any other module of this name."""
    command = [sys.executable, "-m", "tests.test_examples_of_guide", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not json.loads(done.stdout.splitlines()[-1])


def run_all(folder: Path) -> dict[str, str]:
    """What goes wrong, by page. Pages of the guide find what its model defines, in a folder with its ONNX file."""
    torch.manual_seed(0)
    shared: dict[str, Any] = {"__name__": "__guide__"}
    exec(examples(GUIDE / "README.md")[0], shared)
    wrong = {}
    with contextlib.chdir(folder):
        (made,) = [text for text in examples(GUIDE / "compiling.md") if "torch.onnx.export(" in text]
        exec(made, shared.copy())
        for page in PAGES:
            own = shared.copy() if page.parent == GUIDE else {"__name__": "__readme__"}
            path = sys.path.copy()
            try:
                for text in examples(page):
                    if not any(words in text for words in LEFT_OUT):
                        run(page, text, own)
            except Exception:  # noqa: BLE001 - the other pages are run as well
                wrong[page.name] = traceback.format_exc()
            sys.path[:] = path
    return wrong


def run(page: Path, text: str, names: dict[str, Any]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, str(page), "exec"), names)
    shown = [match[1] for line in text.splitlines() if (match := SHOWN.match(line))]
    for value in shown:
        pattern = ".*".join(re.escape(part) for part in value.split("..."))
        assert re.search(pattern, printed.getvalue(), re.DOTALL), f"{page.name}: {value!r} in {printed.getvalue()!r}"


def test_what_is_left_out_is_there() -> None:
    every = [text for page in PAGES for text in examples(page)]
    assert all(any(words in text for text in every) for words in LEFT_OUT)
    assert len(every) >= 35
    assert sum(bool(SHOWN.match(line)) for text in every for line in text.splitlines()) >= 12


def test_a_wrong_example_is_found() -> None:
    with pytest.raises(AssertionError, match="3"):
        run(GUIDE / "README.md", "print(1 + 1)  # 3", {})
    with pytest.raises(luminal.LuminalError):
        run(GUIDE / "README.md", 'import luminal\nluminal.load("no folder")', {})


if __name__ == "__main__":
    print(json.dumps(run_all(Path(sys.argv[1]))))
