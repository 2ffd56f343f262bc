"""The page on the accuracy of training, at small sizes."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import typer

from benchmarks import learning
from benchmarks.results import Results


def test_a_step_and_a_run_are_compared_and_written() -> None:
    found = Results()
    found.put("mlp/float32", learning.stepwise("mlp", "float32", (0, 1), small=True))
    found.put("mlp/free", asdict(learning.free("mlp", 3, small=True)))
    (first, second), (run,) = learning.rows(found), learning.free_rows(found)
    assert first[:4] == ("MLP 784-1024-1024-10, batch 256", "SGD", "float32", "0") and second[3] == "1"
    assert all(0 <= float(cell) <= 2 for row in (first, second) for cell in row[4:9]) and first[9:] == ("", "")
    assert run[2] == "3" and float(run[3]) > 0
    assert " and ".join(first[4:9]) in " and ".join(learning.page(found).split(" | "))


@pytest.mark.parametrize("name", learning.CASES)
def test_runs_begin_alike(name: str) -> None:
    one, other = (learning.begun(learning.CASES[name], small=True) for _ in range(2))
    assert float(one.step(0)) == float(other.step(0)) and float(one.step(1)) == float(other.step(1))


def test_what_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with another rate than PyTorch's is far off."""
    wrong = learning.mlp(16, 4)
    training = wrong.compiled()
    wrong.optimizer.param_groups[0]["momentum"] = 0.8
    assert max(found.ratio for found in learning.differences(wrong, training, (0, 1))) > 100


def test_numbers_of_steps() -> None:
    assert learning.steps("0,10") == [0, 10]
    with pytest.raises(typer.BadParameter, match="expected numbers with commas between"):
        learning.steps("1,x")
