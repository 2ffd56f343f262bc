"""PyTorch's operators whose results are as large as data decides, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import luminal
from luminal.core import interp
from luminal.module import Module


class Function(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def neighbours(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    rows = x[torch.nonzero(x[:, 0] > 0).squeeze(1)]
    return torch.softmax(rows @ rows.t(), -1), rows.shape[0]


def assigned(x: torch.Tensor) -> torch.Tensor:
    rows = x[x.sum(1) > 0]
    return torch.cat([rows.mean(0, keepdim=True), torch.arange(rows.shape[0])[:, None] + rows])


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": torch.nonzero,
    "where": torch.where,
    "masked": lambda x: (x[x > 0] * 2, torch.masked_select(x, x < 0), x[x[:, 1] > 0]),
    "mask beside an index": lambda x: x[:, torch.tensor([True, False, True])][torch.tensor([-1, 0])],
    "neighbours": neighbours,
    "assigned": assigned,
    "unique": lambda x: torch.unique(x.round(), return_inverse=True, return_counts=True),
    "unique alone": lambda x: torch.unique(x.round()),
    "unique rows alone": lambda x: torch.unique(x.round(), dim=0),
    "unique neighbours": lambda x: torch.unique_consecutive(x.round(), return_inverse=True, return_counts=True),
    "unique rows in turn": lambda x: torch.unique_consecutive(x.sign(), return_inverse=True, dim=0),
    "so many": lambda x: (torch.nonzero_static(x > 0, size=4), torch.nonzero_static(x < 0, size=40, fill_value=-7)),
    "unique rows": lambda x: torch.unique(x.round(), dim=0, return_counts=True),
}


def inputs(seed: int, rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))


def flat(result: Any) -> list[torch.Tensor]:
    parts = list(result) if isinstance(result, tuple | list) else [result]
    return [torch.as_tensor(part) for part in parts]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(name: str) -> None:
    model = Function(FUNCTIONS[name])
    graph = luminal.read(model, (inputs(0),), dims={"rows": (1, 9), "x": ("rows", None)})
    for seed, rows in ((0, 6), (1, 1), (2, 9)):
        x = inputs(seed, rows)
        if name == "assigned" and not (x.sum(1) > 0).any():
            continue
        found = interp.run(graph, {"x": x.numpy()}).outputs
        for value, wanted in zip(found, flat(model(x)), strict=True):
            torch.testing.assert_close(torch.from_numpy(value), wanted)


def test_compiled() -> None:
    models = {name.replace(" ", "_"): Function(function) for name, function in FUNCTIONS.items()}
    module = luminal.compile(models, {name: (inputs(0),) for name in models}, name="selected")
    assert isinstance(module, Module)
    for name, model in models.items():
        for seed in (3, 4):
            x = inputs(seed)
            for value, wanted in zip(flat(module[name](x)), flat(model(x)), strict=True):
                torch.testing.assert_close(value, wanted)


def test_what_is_too_small_for_tasks_is_compiled() -> None:
    """The zeros and what is put over them are one kernel, which checks where."""
    models = {"pairs": Function(lambda x: torch.combinations(x, 1)), "turns": Function(torch.unique_consecutive)}
    module = luminal.compile(models, {name: (torch.ones(1),) for name in models}, name="few")
    assert isinstance(module, Module)
    for name, model in models.items():
        for value, wanted in zip(flat(module[name](torch.ones(1))), flat(model(torch.ones(1))), strict=True):
            torch.testing.assert_close(value, wanted)
