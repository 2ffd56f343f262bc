"""What the arguments of a call are taken for: as PyTorch takes them, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal.core.errors import InputError

pytestmark = pytest.mark.usefixtures("passing_cache")


class Optional(nn.Module):
    """Every kind of parameter that may be left out."""

    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None = None,
        types: torch.Tensor | None = None,
        scale: float = 2.0,
        *,
        shift: int = 1,
    ) -> torch.Tensor:
        y = ids * scale + shift
        if mask is not None:
            y = y * mask
        return y if types is None else y + types


IDS, TYPES = torch.full((2, 3), 2.0), torch.full((2, 3), 10.0)


def test_positions_are_those_of_the_signature() -> None:
    """An argument that the model was compiled without keeps its place; its default alone may stand there."""
    model = Optional()
    module = luminal.compile(model, {"ids": IDS, "types": TYPES}, name="optional")
    for args, kwargs in (
        ((IDS,), {"types": TYPES}), ((IDS, None, TYPES), {}), ((IDS, None, TYPES, 2.0), {"shift": 1}),
        ((), {"types": TYPES, "ids": IDS, "scale": 2.0, "mask": None}),
    ):  # fmt: skip
        assert torch.equal(module(*args, **kwargs), model(*args, **kwargs))
    for wrong, named, message in (
        ((IDS, TYPES), {}, "mask was None when the model was compiled, found Tensor"),
        ((IDS, TYPES), {"types": TYPES}, "mask was None"),
        ((IDS, None, TYPES, 2), {}, "scale was 2.0 when the model was compiled, found 2"),
        ((IDS, None, TYPES, None), {}, "scale was 2.0 when the model was compiled, found None"),
        ((IDS, None, TYPES, 2.0, 1), {}, "at most 4 arguments by position"),
        ((IDS, None, TYPES), {"types": TYPES}, "types given by position and by name"),
        ((IDS, None), {}, "the argument types is missing"),
        ((IDS, None, TYPES), {"shape": 1}, "unknown arguments shape"),
    ):
        with pytest.raises(InputError, match=message):
            module(*wrong, **named)


def test_a_number_that_is_no_default_has_to_be_given() -> None:
    model = Optional()
    module = luminal.compile(model, {"ids": IDS, "types": TYPES, "scale": 3.0}, name="scaled")
    assert torch.equal(module(IDS, None, TYPES, 3.0), model(IDS, None, TYPES, 3.0))
    assert torch.equal(module(IDS, types=TYPES, scale=3.0), model(IDS, types=TYPES, scale=3.0))
    for scale in ((), (2.0,)):
        with pytest.raises(InputError, match="scale"):
            module(IDS, None, TYPES, *scale)


def test_the_first_call_does_not_decide_what_later_arguments_mean() -> None:
    model = Optional()
    module = luminal.compile(model, name="lazily")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((IDS,), {"types": TYPES}), ((IDS, TYPES), {}), ((IDS,), {"scale": 3.0}), ((IDS,), {}),
        ((IDS, None, TYPES), {}), ((IDS, None, None, 3.0), {}), ((IDS,), {"mask": TYPES}), ((IDS, None), {"shift": 1}),
    ]  # fmt: skip
    for args, kwargs in calls:
        assert torch.equal(module(*args, **kwargs), model(*args, **kwargs))
    assert len(module.modules) == 4  # the last four are known


class Parts(nn.Module):
    """The sum of what there is."""

    def forward(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack(list(parts.values())).sum(0)


def test_keys_that_a_model_was_not_compiled_with() -> None:
    module = luminal.compile(Parts(), ({"ids": IDS, "types": TYPES},), name="parts")
    assert torch.equal(module({"ids": IDS, "types": TYPES}), IDS + TYPES)
    with pytest.raises(InputError, match="parts: unknown keys mask; expected ids, types"):
        module({"ids": IDS, "types": TYPES, "mask": IDS})


class Several(nn.Module):
    """Any number of arguments by position, and by name."""

    def forward(self, a: torch.Tensor, *others: torch.Tensor, factors: tuple[int, int] = (1, 2), **named: Any) -> Any:
        y = a * factors[1]
        for other in others:
            y = y + other
        return y - named["less"] if "less" in named else y


def test_arguments_of_any_number() -> None:
    model = Several()
    module = luminal.compile(model, name="several")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((IDS,), {"factors": (1, 5)}), ((IDS, TYPES), {"less": IDS}), ((IDS, TYPES, TYPES), {}), ((IDS, TYPES), {}),
        ((IDS, TYPES), {"factors": (1, 2)}),
    ]  # fmt: skip
    for args, kwargs in calls:
        assert torch.equal(module(*args, **kwargs), model(*args, **kwargs))
    assert len(module.modules) == 4
    with pytest.raises(InputError, match="multiple values for argument 'a'"):
        module(IDS, a=IDS)


def test_positions_of_a_program_are_those_it_was_exported_with() -> None:
    """Its module would say what stands between; PyTorch refuses the call too."""
    program = torch.export.export(Optional(), (IDS,), {"types": TYPES})
    module = luminal.compile(program, name="exported")
    assert torch.equal(module(IDS, types=TYPES), Optional()(IDS, types=TYPES))
    with pytest.raises(InputError, match="at most 1 arguments by position"):
        module(IDS, TYPES)


def test_what_is_laid_out_otherwise_is_refused_by_name() -> None:
    module = luminal.compile(nn.Linear(3, 2), (IDS,), name="linear")
    assert isinstance(module, luminal.Module)
    with pytest.raises(InputError, match=r"input: expected .* found one of the layout sparse_coo: .*to_dense"):
        module(IDS.to_sparse())
    swapped = IDS.numpy().astype(">f4")
    for call in (lambda: module(swapped), lambda: module.run({"input": swapped})):
        with pytest.raises(ValueError, match=r'input "input" is in the byte order of other machines, >f4: .*newbyte'):
            call()
    assert np.array_equal(module(swapped.astype(swapped.dtype.newbyteorder("="))), module(IDS.numpy()))


def test_results_with_names_are_those_of_pytorch() -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.sort(x, dim=-1), x.max(-1)

    x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    ordered, largest = luminal.compile(Named(), (x,), name="named")(x)
    assert type(ordered) is torch.return_types.sort and ordered.indices.tolist() == [[1, 2, 0], [0, 2, 1]]
    assert type(largest) is torch.return_types.max and largest.values.tolist() == [3.0, 5.0]
