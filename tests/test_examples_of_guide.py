"""Every example in Python of README.md and of the guide, run as it stands, page by page.

Examples of a page share their names, as its reader's do; those of the guide begin with its model (guide/README.md).
What a ``print`` is said to print, in a comment behind it, is compared; ``...`` stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    "calibration_reader": "it needs a reader of a user's own data; tests/test_integers.py quantises so",
    "pip install classifier-1.0": "it needs the wheel that it speaks of; tests/test_emitted.py installs one",
    '"forward.onnx"': "it needs a model of a user's own; tests/test_training_onnx.py runs the same call",
    "luminal.tune(": "it measures for two minutes; tests/test_tuning.py runs the same calls",
}


def examples(page: Path) -> list[str]:
    return FENCE.findall(page.read_text())


PAGES = [page for page in (ROOT / "README.md", *sorted(GUIDE.glob("*.md"))) if examples(page)]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the guide's model defines, in a folder with its ONNX file, as all pages find it."""
    import torch

    torch.manual_seed(0)
    shared: dict[str, Any] = {"__name__": "__guide__"}
    exec(examples(GUIDE / "README.md")[0], shared)
    folder = tmp_path_factory.mktemp("guide")
    with contextlib.chdir(folder):
        (made,) = [text for text in examples(GUIDE / "compiling.md") if "torch.onnx.export(" in text]
        exec(made, shared.copy())
        yield shared


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    own = names.copy() if page.parent == GUIDE else {"__name__": "__readme__"}
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setitem(sys.modules, "classifier", sys)  # what is there now comes back
    del sys.modules["classifier"]
    try:
        for text in examples(page):
            if not any(words in text for words in LEFT_OUT):
                run(page, text, own)
    finally:
        sys.modules.pop("classifier", None)


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
