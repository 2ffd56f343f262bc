"""``torch.compile`` of graphs that luminal cannot compile as a whole: PyTorch runs the rest, and a warning says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from luminal import dynamo
from luminal.core.errors import InputError, UnsupportedError
from tests.fx_support import floats

LIBRARY = torch.library.Library("luminal_partitions", "FRAGMENT")
LIBRARY.define("mirrored(Tensor x) -> Tensor")
LIBRARY.impl("mirrored", lambda x: x.flip(-1) * 3, "CPU")  # a kernel for CPUs alone, as one in C++ is
torch.library.register_fake("luminal_partitions::mirrored", torch.empty_like, lib=LIBRARY)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def compared(function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> list[str]:
    """The warnings of luminal's, after ``calls`` of the compiled function and the function gave the same."""
    compiled = torch.compile(function, backend="luminal", **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in calls:
            mine, theirs = (pytree.tree_map(torch.clone, call) for _ in range(2))
            found, expected = compiled(*mine), function(*theirs)
            torch.testing.assert_close((found, mine), (expected, theirs), rtol=1e-4, atol=1e-4)
    return [str(warning.message) for warning in caught if "with luminal" in str(warning.message)]


class Spectral(nn.Module):
    """Layers around singular values, which luminal does not compute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.first(x))
        values = torch.linalg.svdvals(h.T @ h)
        return self.second(h * values) + x, values.sum()


def test_an_operator_in_the_middle_is_a_partition_of_its_own() -> None:
    torch.manual_seed(0)
    model = Spectral().eval()
    (said,) = compared(model, (floats(4, 5),), (floats(4, 5, seed=2),))
    assert "PyTorch runs 1 operator of this graph in 1 partition" in said
    assert "cannot compile aten._linalg_svd.default; luminal compiles the rest in 2 partitions" in said
    assert "pytorch_0: aten._linalg_svd.default '_linalg_svd'(float32[6, 6]) at " in said
    assert "test_dynamo_partitions.py" in said and "it has no decomposition yet" in said


def test_sizes_that_vary_pass_between_partitions() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        values, vectors = torch.linalg.eigh(x @ x.T)
        count = torch.arange(x.shape[0]) + (vectors * values) @ vectors.T
        return torch.softmax(count, 0), torch.zeros(x.shape[0], y.shape[0]).sum() + values, x.shape[0] * 2

    calls = [(floats(rows, 7), floats(columns)) for rows, columns in ((3, 2), (4, 5), (6, 3))]
    assert len(compared(function, *calls, dynamic=True)) == 1


def test_weights_that_change_are_seen_in_a_partition() -> None:
    torch.manual_seed(0)
    model = Spectral().eval()
    compiled = torch.compile(model, backend="luminal")
    with pytest.warns(UserWarning, match="PyTorch runs 1 operator"):
        compiled(floats(4, 5))
    model.second.weight.mul_(2)
    torch.testing.assert_close(compiled(floats(4, 5)), model(floats(4, 5)), rtol=1e-4, atol=1e-4)


def test_an_operator_with_a_kernel_of_its_own_and_sizes_that_data_decides() -> None:
    def function(x: torch.Tensor) -> Any:
        found = torch.ops.luminal_partitions.mirrored(x.exp())
        rows = (found > 3).nonzero()
        return rows * 2, found.sum() + x[x > 0.5].sum(), torch.ops.luminal_partitions.mirrored(found) + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        said = compared(function, (floats(3, 4),), (floats(3, 4, seed=5),))
    assert len(said) == 1 and "luminal_partitions.mirrored.default (2 times)" in said[0]
    assert "PyTorch runs 2 operators" in said[0]


def test_arguments_that_are_written_into_and_results_that_share_memory() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        values = torch.linalg.svdvals(x)
        before = x * 2
        x.add_(values[0])
        y[1:].mul_(values[1])
        whole = torch.nn.functional.conv2d(before[None, None].expand(1, 3, -1, -1), torch.ones(4, 3, 2, 2))
        return before, x.t(), whole[:, :1], whole[:, 1:], y

    assert len(compared(function, (floats(4, 5), floats(4)))) == 1


def test_views_by_strides_read_memory_as_pytorch_lays_it_out() -> None:
    def function(x: torch.Tensor) -> Any:
        turned = (x @ x.T).t()
        return torch.as_strided(turned + 1, (2, 2), (1, 4)), torch.as_strided(turned[1:], (2, 2), (3, 1)), turned.t()

    assert "as_strided.default (2 times)" in compared(function, (floats(4, 5),))[0]


def test_memory_is_laid_out_as_the_views_of_results_expect() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = torch.nn.functional.conv2d(x, weight)
        return y[:, :1], y[:, 1:], y.relu()

    x, weight = (floats(*shape).to(memory_format=torch.channels_last) for shape in ((2, 3, 5, 5), (4, 3, 2, 2)))
    assert not compared(function, (x, weight))
    found = torch.compile(function, backend="luminal")(x, weight)[2]
    assert found.stride() == function(x, weight)[2].stride()


def test_complex_numbers_and_types_pass_between_partitions() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        values = torch.linalg.eigvals(x) * (2 - 1j)
        return (values * values.conj()).real.sum() + n, n / 2, torch.linalg.svdvals(x.double()) + n

    said = compared(function, (floats(4, 4), torch.arange(4)))
    assert len(said) == 1 and "torch.view_as_real" in said[0]


def test_a_branch_that_luminal_cannot_compile_is_pytorchs() -> None:
    def function(x: torch.Tensor) -> Any:
        chosen = torch.cond(x.sum() > 0, lambda x: x * torch.linalg.svdvals(x)[0], lambda x: x + 1.0, (x,))
        return torch.cond(chosen.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (chosen,))

    said = compared(function, (floats(4, 4),), (-floats(4, 4),))
    assert len(said) == 1 and "aten._linalg_svd.default" in said[0] and "in 2 partitions" in said[0]


def test_random_numbers_of_two_graphs_and_of_two_partitions_are_different() -> None:
    def function(x: torch.Tensor) -> Any:
        first = torch.rand(8)
        values = torch.linalg.svdvals(x + first)
        second = torch.rand(8) + 0 * values.sum()
        torch._dynamo.graph_break()
        return first, second, torch.rand(8)

    compiled = torch.compile(function, backend="luminal")
    with pytest.warns(UserWarning, match="PyTorch runs 1 operator"):
        draws = [*compiled(floats(8, 8)), *compiled(floats(8, 8))]
    assert len({tuple(draw.tolist()) for draw in draws}) == 6
    assert all(bool((draw >= 0).all() and (draw < 1).all()) for draw in draws)


def test_the_whole_graph_may_be_asked_for() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.linalg.svdvals(x)[0] + torch.ops.luminal_partitions.mirrored(x)

    compiled = torch.compile(function, backend="luminal", fullgraph=True)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="fullgraph=True") as raised:
            compiled(floats(3, 4))
        assert [place.op for place in raised.value.places] == [
            "aten._linalg_svd.default", "luminal_partitions.mirrored.default"
        ]  # fmt: skip
    assert torch.equal(torch.compile(torch.relu, backend="luminal", fullgraph=True)(floats(3)), floats(3).relu())


def test_a_graph_of_which_nothing_can_be_said_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(**_: Any) -> Any:
        raise NotImplementedError("no functional graph")

    monkeypatch.setattr(dynamo, "aot_autograd", failing)
    (said,) = compared(lambda x: x.exp() + 1, (floats(3),))
    assert "all 2 operators" in said and "NotImplementedError: no functional graph" in said


def test_options_that_make_no_sense_are_refused_at_once() -> None:
    for options in ({"threads": -1}, {"weights": "int3"}, {"seed": "a"}, {"precision": "fp12"}, {"search": "long"}):
        torch._dynamo.reset()
        compiled = torch.compile(torch.relu, backend="luminal", options=options)
        with pytest.raises(Exception, match="expected") as raised:
            compiled(floats(3))
        assert isinstance(raised.value.__cause__ or raised.value, InputError | torch._dynamo.exc.BackendCompilerFailed)
