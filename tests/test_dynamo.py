"""``torch.compile`` with luminal as its backend: breaks of the graph, sizes that vary, weights that change, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from luminal import dynamo
from tests.fx_support import floats, integers


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


class Counting(nn.Module):
    """A model with a buffer that it updates, and a break of the graph where it looks at the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        self.calls.add_(1)
        h = torch.relu(self.first(x))
        if h.sum() > 0:
            h = h + 1
        return self.second(h) * self.calls, x.shape[0]


def test_the_backend_is_known_by_its_name() -> None:
    assert lookup_backend("luminal") is dynamo.luminal


def test_a_model_with_breaks_state_and_sizes_that_vary() -> None:
    torch.manual_seed(0)
    model = Counting().eval()
    compiled = torch.compile(model, backend="luminal")
    for call, rows in enumerate((3, 5, 7), 1):
        x = floats(rows, 4, seed=rows)
        found, count = compiled(x)
        assert count == rows and model.calls == call
        model.calls.sub_(1)
        torch.testing.assert_close(found, model(x)[0])


def test_options_are_those_of_compile() -> None:
    model, x = nn.Linear(256, 256).eval(), floats(2, 256)
    coarse = torch.compile(model, backend="luminal", options={"threads": 1, "weights": "int4"})
    with torch.no_grad():
        apart = (coarse(x) - model(x)).abs().max() / model(x).abs().max()
    assert 1e-3 < apart < 0.5


def test_weights_that_another_backend_has_frozen_are_weights() -> None:
    """Then they are no inputs of the graph. A buffer comes between them and the input."""
    model, x = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256)).eval(), floats(2, 256)
    coarse = torch.compile(model, backend="luminal", options={"weights": "int4"})
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        assert 1e-3 < (coarse(x) - model(x)).abs().max() / model(x).abs().max() < 0.5
        model[0].weight.mul_(2)
        torch.testing.assert_close(coarse(x), model(x))


@pytest.mark.parametrize("how", [{"options": {"target": "avx2"}}, {"mode": "max-autotune"}], ids=str)
def test_what_is_no_option_is_refused(how: dict[str, Any]) -> None:
    compiled = torch.compile(nn.Linear(4, 3).eval(), backend="luminal", **how)
    with torch.no_grad(), pytest.raises(Exception, match=r"expected options of precision, .*found (target|the mode)"):
        compiled(floats(2, 4))


def test_weights_that_change_are_seen() -> None:
    model = nn.Linear(4, 3).eval()
    compiled = torch.compile(model, backend="luminal")
    x = floats(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    model.weight.mul_(2)
    torch.testing.assert_close(compiled(x), model(x))


def test_arguments_that_are_written_into() -> None:
    """PyTorch copies what the graph leaves in them: sizes that vary, views, memory that arguments share."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x[:, 0] = y.sum()
        y.mul_(2)
        return x.t(), x.sum()

    compiled = torch.compile(function, backend="luminal")
    for rows in (3, 5, 7):
        given = (integers(-9, 9, 2, rows).float().t(), integers(-9, 9, 4).float()[::2])
        mine, theirs = ([x.clone() for x in given] for _ in range(2))
        found, expected = compiled(*mine), function(*theirs)
        assert all(map(torch.equal, [*found, *mine], [*expected, *theirs]))
        assert found[0].data_ptr() == mine[0].data_ptr()
    shared = torch.compile(lambda x, y: function(x, y)[1], backend="luminal")
    mine, theirs = torch.arange(8.0).view(4, 2), torch.arange(8.0).view(4, 2)
    assert torch.equal(shared(mine, mine[1:3, 0]), function(theirs, theirs[1:3, 0])[1])
    assert torch.equal(mine, theirs)
