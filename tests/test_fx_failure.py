"""A module that PyTorch cannot export: one error in our words, and all that PyTorch says of it kept with its cause."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from luminal.core.errors import ModelError
from luminal.frontends.fx import importer
from luminal.frontends.fx.failure import exporting

MODEL = """\
import torch

class Branch(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Product(torch.nn.Module):
    def forward(self, x):
        return x @ x
"""
SCRIPT = """\
import json, torch, model
from luminal.core.errors import ModelError
from luminal.frontends.fx import importer
for module in (model.Branch(), model.Product()):
    try:
        importer.load(module, (torch.ones(2, 3),))
    except ModelError as error:
        print(json.dumps([str(error), "".join(error.__cause__.__notes__)]))
"""


def test_the_error_comes_alone(tmp_path: Path) -> None:
    """In a process of its own: pytest would have replaced standard error before PyTorch's log took hold of it."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == ""
    (branch, graph), (product, log) = map(json.loads, done.stdout.splitlines())
    assert branch.startswith("torch.export cannot export Branch at model.py:5: expected branches and sizes ")
    assert "found: Could not guard on data-dependent expression" in branch and "torch.where or torch.cond" in branch
    assert "TORCH" not in branch and branch.count("\n") == 1
    assert product.startswith("torch.export cannot export Product at model.py:9, in aten.mm.default: expected ")
    assert "found: a and b must have same reduction dim, but got [2, 3] X [2, 3]" in product
    assert "Call the module itself on these inputs" in product
    assert "def forward(self, arg0_1" in graph and "torch.ops.aten.sum.default" in graph
    assert "failed while attempting to run meta for aten.mm.default" in log and "Traceback" in log


def test_sizes_that_the_module_does_not_allow() -> None:
    with pytest.raises(ModelError, match=r"expected axes that may vary as dims declares, found: Constraints") as raised:
        importer.load(torch.nn.Linear(3, 4), (torch.ones(2, 3),), dims={"input": {1: "width"}, "width": (1, 9)})
    assert "width = 3" in str(raised.value) and "Declare the sizes" in str(raised.value)


def test_what_is_printed_beside_a_success_or_by_others_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    def other() -> None:
        print("by another thread", file=sys.stderr)

    with exporting("model"):
        print("by the exporter", file=sys.stderr)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert capsys.readouterr().err == "by another thread\n"
    assert capsys.readouterr().err == "by the exporter\n"
    with pytest.raises(ModelError, match="cannot export model") as raised, exporting("model"):
        print("by the exporter", file=sys.stderr)
        raise ValueError
    assert capsys.readouterr().err == "" and raised.value.__cause__ is not None
    assert "by the exporter" in "".join(raised.value.__cause__.__notes__)
