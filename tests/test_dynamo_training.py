"""``torch.compile`` with luminal in ordinary training loops, beside eager PyTorch in float32 and float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from luminal import dynamo
from luminal.frontends.fx.viewed import without_views
from tests.fx_support import floats, integers

STEPS = 20
EPS = torch.finfo(torch.float32).eps
Objective = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The libraries that are compiled in a test."""
    made: list[Any] = []
    compile_ = dynamo.api.compile

    def noted(*arguments: Any, **options: Any) -> Any:
        made.append(compile_(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(dynamo.api, "compile", noted)
    return made


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.last(h.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x)[0][:, -1])


def cross_entropy(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), target)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))


def gradients(model: nn.Module, batch: Sequence[torch.Tensor], objective: Objective) -> tuple[float, torch.Tensor]:
    """The loss, and all gradients in one vector, in float64."""
    model.zero_grad()
    loss = objective(model, *batch)
    loss.backward()
    return loss.item(), torch.cat([p.grad.double().flatten() for p in model.parameters()])


def trained(model: nn.Module, batches: Sequence[Sequence[torch.Tensor]], objective: Objective) -> torch.Tensor:
    """The losses of a loop of PyTorch's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        losses.append(gradients(model, batches[step % len(batches)], objective)[0])
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def doubled(batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.double() if x.is_floating_point() else x for x in batch]


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "mlp": (mlp, (floats(8, 6),)),
    "convolutions": (Convolutions, (floats(8, 2, 9, 9),)),
    "recurrent": (Recurrent, (floats(8, 4, 3),)),
}


def orders(batch: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The batch with its rows in other orders, in which eager mode rounds otherwise: one run alone may be near float64
    by luck."""
    return [[x[order] for x in batch] for order in (torch.arange(8), torch.arange(7, -1, -1), torch.arange(8).roll(3))]


@pytest.mark.parametrize("name", CASES)
def test_training_is_as_accurate_as_eager_pytorch(name: str, compiled: list[Any]) -> None:
    """Losses of a loop that runs freely, and gradients of each step from the state of eager PyTorch's."""
    make, (x,) = CASES[name]
    eager = make()
    exact, mine = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    first = copy.deepcopy(eager.state_dict())
    batches = [(x, integers(0, 3, 8)), (x.roll(1, 0), integers(0, 3, 8, seed=1))]
    with torch._dynamo.config.patch(allow_rnn=True), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*PyTorch runs")
        fast = torch.compile(mine, backend="luminal")
        losses = trained(fast, batches, cross_entropy)
        reference = trained(exact, [doubled(batch) for batch in batches], cross_entropy)
        runs = [copy.deepcopy(eager), copy.deepcopy(eager), eager]
        others = zip(*map(orders, batches), strict=True)
        theirs = [trained(run, other, cross_entropy) for run, other in zip(runs, reversed(list(others)), strict=True)]
        rounding = EPS * reference.abs().max()
        assert (losses - reference).abs().max() <= 2 * max((x - reference).abs().max() for x in theirs) + rounding
        if dict(mine.named_buffers()):
            assert int(mine.norm.num_batches_tracked) == STEPS
            torch.testing.assert_close(dict(mine.named_buffers()), dict(eager.named_buffers()), rtol=1e-4, atol=1e-5)

        eager.load_state_dict(first)
        optimizer = torch.optim.SGD(eager.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            batch = batches[step % 2]
            for other in (mine, exact):
                other.load_state_dict(eager.state_dict())
            wanted = gradients(exact, doubled(batch), cross_entropy)[1]
            found = gradients(fast, batch, cross_entropy)[1]
            plain = max((gradients(eager, x, cross_entropy)[1] - wanted).norm() for x in reversed(orders(batch)))
            assert (found - wanted).norm() <= 2 * plain + EPS * wanted.norm()
            optimizer.step()
    assert len(compiled) == 2  # forward and backward, once in all


def test_nothing_is_compiled_again_in_a_hundred_steps(compiled: list[Any]) -> None:
    """With evaluation between: its parameters are constants until they change."""
    model = mlp()
    fast, x, target = torch.compile(model, backend="luminal"), floats(8, 6), integers(0, 3, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    counts = []
    for _ in range(100):
        optimizer.zero_grad()
        cross_entropy(fast, x, target).backward()
        optimizer.step()
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        counts.append(len(compiled))
    assert counts == [3] + [4] * 99


def test_several_losses_inputs_that_want_gradients_and_accumulation() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 5)
            self.first.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            h = torch.tanh(self.first(x))
            return self.second(h) + x, h.t(), y.exp().detach() + h.sum()

    model, plain = Two(), Two()
    plain.load_state_dict(model.state_dict())
    fast = torch.compile(model, backend="luminal", dynamic=True)
    for rows in (3, 6, 3):  # nothing is reset between
        mine, theirs = ([floats(rows, 5).requires_grad_(), floats(4).requires_grad_()] for _ in range(2))
        for run, given in ((fast, mine), (plain, theirs)):
            a, b, c = run(*given)
            a.square().mean().backward(retain_graph=True)
            (b.sum() + 2 * c.sum()).backward()
        torch.testing.assert_close(mine[0].grad, theirs[0].grad)
        assert mine[1].grad is None or not mine[1].grad.any()
    assert model.first.bias.grad is None
    wanted = {name: p.grad for name, p in plain.named_parameters()}
    torch.testing.assert_close({name: p.grad for name, p in model.named_parameters()}, wanted)


def test_batches_of_any_size_have_one_library(compiled: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))
    plain = copy.deepcopy(model)
    fast = torch.compile(model, backend="luminal", dynamic=True)
    for rows in (8, 5, 3, 11):
        batch = floats(rows, 6, seed=rows), integers(0, 3, rows)
        found, wanted = gradients(fast, batch, cross_entropy), gradients(plain, batch, cross_entropy)
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-5, atol=1e-6)
    assert len(compiled) == 2


def test_dropout_draws_anew_each_step() -> None:
    fast = torch.compile(nn.Dropout(0.25), backend="luminal")
    x = floats(64, 64).abs() + 0.1
    masks = []
    for _ in range(3):
        given = x.clone().requires_grad_()
        result = fast(given)
        result.sum().backward()
        torch.testing.assert_close(given.grad * x, result.detach())  # the same elements on the way back
        masks.append(given.grad != 0)
        assert 0.7 < masks[-1].float().mean() < 0.8
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])


def test_autocast_is_as_accurate_as_eager_pytorch() -> None:
    def objective(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x).float(), target)

    model = mlp()
    batch = floats(8, 6), integers(0, 3, 8)
    wanted = gradients(copy.deepcopy(model).double(), doubled(batch), cross_entropy)[1]
    plain = gradients(copy.deepcopy(model), batch, objective)[1]
    found = gradients(torch.compile(model, backend="luminal"), batch, objective)[1]
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    assert 0 < (found - wanted).norm() <= 2 * (plain - wanted).norm()


LIBRARY = torch.library.Library("luminal_training", "FRAGMENT")
LIBRARY.define("turned(Tensor x) -> Tensor")
LIBRARY.define("turned_back(Tensor x) -> Tensor")
LIBRARY.impl("turned", lambda x: x * 3, "CompositeExplicitAutograd")
LIBRARY.impl("turned_back", lambda x: x.mul(3), "CPU")  # a kernel for CPUs alone, as one in C++ is
torch.library.register_fake("luminal_training::turned", torch.empty_like, lib=LIBRARY)
torch.library.register_fake("luminal_training::turned_back", torch.empty_like, lib=LIBRARY)
torch.library.register_autograd(
    "luminal_training::turned", lambda _, y: torch.ops.luminal_training.turned_back(y), lib=LIBRARY
)


def test_an_operator_of_the_backward_graph_that_pytorch_runs() -> None:
    fast = torch.compile(lambda x: torch.ops.luminal_training.turned(x.sin()).cos().sum(), backend="luminal")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            x = floats(7).requires_grad_()
            fast(x).backward()
    said = [str(warning.message) for warning in caught if "with luminal" in str(warning.message)]
    back = [text for text in said if "turned_back" in text]
    assert len(back) == 1 and "backward.pytorch_0: luminal_training.turned_back.default" in back[0]
    other = floats(7).requires_grad_()
    (3 * other.sin()).cos().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_what_is_saved_is_what_the_partitioner_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and inputs are saved as they lie."""
    chosen: list[int] = []
    partition = dynamo.min_cut_rematerialization_partition

    def noted(*arguments: Any, **options: Any) -> Any:
        forward, backward = partition(*arguments, **options)
        chosen.append(len(forward.graph.output_node().args[0]))
        return forward, backward

    monkeypatch.setattr(dynamo, "min_cut_rematerialization_partition", noted)
    model = nn.Linear(6, 6)
    fast = torch.compile(lambda x: model(x).sin().tanh(), backend="luminal")
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    x = floats(4, 6).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fast(x)
    assert chosen == [1 + len(saved)]  # beside the result
    assert {x.data_ptr(), model.weight.data_ptr()} <= {tensor.data_ptr() for tensor in saved}


def test_results_that_need_no_kernel_are_left_to_pytorch() -> None:
    """Inputs, views and sizes; what is computed is computed once, and views of it lie in its memory."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[Any, ...]:
        y = x @ w
        return y, w.t(), y.t(), x, y, x.shape[0], y.view(-1)[1:], None

    x, w = floats(3, 4), floats(4, 5)
    graph = make_fx(function, tracing_mode="symbolic")(x, w)
    found = without_views(graph)
    assert found.computed is not None
    assert [str(leaf.target) for leaf in found.computed.graph.output_node().args[0]] == [
        "aten.mm.default", "aten.slice.Tensor",
    ]  # fmt: skip
    results = found.rest(*([x, w][k] for k in found.takes), *found.computed(x, w))
    assert results[3] is x and results[1].data_ptr() == w.data_ptr() and results[5] == 3 and results[7] is None
    assert results[0] is results[4] and results[2].data_ptr() == results[0].data_ptr()
    torch.testing.assert_close([r for r in results if r is not None], [r for r in function(x, w) if r is not None])
    assert without_views(make_fx(lambda x: (x.t(), x))(x)).computed is None
    assert len(without_views(graph, views=False).takes) == 1  # x itself; w is transposed by a kernel
