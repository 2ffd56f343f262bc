"""PyTorch's operators of higher order: branches, loops, scans and maps, whose graphs become bodies."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.fx.experimental.proxy_tensor import make_fx

import luminal
from luminal.core import interp, ops, traverse
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Graph
from luminal.frontends.fx import importer
from tests import onnx_models as models

X = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))


class Layer(torch.nn.Module):
    """A function of a linear layer, whose weights bodies read from around them, and of the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self.linear, *inputs)


def branch(f: Any, x: Any, p: Any) -> Any:
    return torch.cond(p.any(), lambda x: f(x).relu(), lambda x: x * 2, (x,))


def repeated(f: Any, x: Any, n: Any) -> Any:
    return while_loop(
        lambda i, x: i < n, lambda i, x: (i + 1, f(x).tanh() + x), (torch.zeros((), dtype=torch.int64), x)
    )


def rows(f: Any, x: Any) -> Any:
    """As many rounds as there are rows, by a counter."""
    return while_loop(
        lambda i, y: i < x.shape[0], lambda i, y: (i + 1, f(y).tanh() * (i + 1)),
        (torch.zeros((), dtype=torch.int64), x[0] * 1),
    )  # fmt: skip


def branch_in_loop(f: Any, x: Any, n: Any) -> Any:
    def body(i: Any, x: Any) -> Any:
        return i + 1, torch.cond((i % 2 == 0).reshape(()), lambda x: f(x), lambda x: x - 1, (x,))

    return while_loop(lambda i, x: i < n, body, (torch.zeros((), dtype=torch.int64), x))


def recurrence(f: Any, x: Any, h: Any) -> Any:
    return scan(lambda h, x: ((f(h) + x).tanh().clone(), h * 2), h, x, dim=0)


def backwards(f: Any, x: Any, h: Any) -> Any:
    return scan(lambda h, x: ((h + x).clone(), h * x), h, x, dim=1, reverse=True)


def other_sizes(f: Any, x: Any, p: Any) -> Any:
    y = torch.cond(p, lambda x: f(x)[:2], lambda x: torch.cat([x, x + 1]), (x,))
    return y, y @ y.T, y.mean(0), torch.cat([y, x])


MODELS: dict[str, tuple[Any, list[tuple[torch.Tensor, ...]], ops.Op | None]] = {
    "branch": (branch, [(X[0], torch.tensor([False, value])) for value in (True, False)], ops.COND),
    "loop": (repeated, [(X[0], torch.tensor(n)) for n in (0, 1, 4)], ops.WHILE),
    "loop that a counter ends": (rows, [(X[0],)], ops.SCAN),
    "branch in a loop": (branch_in_loop, [(X[0], torch.tensor(n)) for n in (1, 4)], ops.WHILE),
    "scan": (recurrence, [(X, X[0])], ops.SCAN),
    "scan backwards": (backwards, [(X, X[:, 0].contiguous())], ops.SCAN),
    "map": (lambda f, x, y: map_(lambda a, y: f(a) @ y, x, y), [(X, X[0].T.contiguous())], ops.SCAN),
    "sizes inside a map": (lambda f, x: map_(lambda a: f(a[a[:, 0] > 0]).sum(0), x), [(X,), (-X,)], ops.SCAN),
    "sizes inside a branch": (
        lambda f, x: torch.cond(x.sum() > 0, lambda x: x[x > 0].sum(), lambda x: f(x[x < -1].mean() + x).mean(), (x,)),
        [(X + 1,), (X - 1,)], ops.COND,
    ),
    "branches of other sizes": (
        other_sizes, [(X[:, 0], torch.tensor(value)) for value in (True, False)], ops.COND,
    ),
    "branches of other sizes, one by data": (
        lambda f, x: torch.cond(x.sum() > 0, lambda x: x[x[:, 0] > 0], lambda x: f(x), (x,)).sum(0),
        [(X[0],), (-X[0],)], ops.COND,
    ),
    "associative scan": (
        lambda f, x: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic"), [(X,)], None,
    ),
}  # fmt: skip


def eager(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    with torch.no_grad():
        return [value.numpy() for value in torch.utils._pytree.tree_leaves(model(*inputs))]


def interpreted(graph: Graph, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    given = {node.attr.name: value.numpy() for node, value in zip(graph.inputs, inputs, strict=True)}
    return interp.run(graph, given).outputs


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_eager(name: str) -> None:
    function, calls, op = MODELS[name]
    model = Layer(function)
    graph = importer.load(model, calls[0])
    assert op is None or op in {node.op for node in traverse.topological(graph.results)}
    for inputs in calls:
        models.assert_close(interpreted(graph, inputs), eager(model, inputs), 1e-5)


@pytest.mark.parametrize("name", ["branch", "branches of other sizes", "branch in a loop", "scan"])
def test_compiled(name: str) -> None:
    function, calls, _ = MODELS[name]
    model = Layer(function)
    module = luminal.compile(model, calls[0], target="host")
    for inputs in calls:
        found = [value.numpy() for value in torch.utils._pytree.tree_leaves(module(*inputs))]
        models.assert_close(found, eager(model, inputs), 1e-5)


def test_branches_of_other_sizes_where_one_is_symbolic() -> None:
    model = Layer(other_sizes)
    graph = importer.load(model, (X[:, 0], torch.tensor(True)), dims={"inputs_0": {0: "n"}, "n": (2, 9)})
    assert [(size.lo, size.hi) for size in graph.measured] == [(2, 18)]
    for n in (2, 5):
        for value in (True, False):
            inputs = X[:n, 0], torch.tensor(value)
            models.assert_close(interpreted(graph, inputs), eager(model, inputs), 1e-5)


def decayed(a: Any, b: Any) -> Any:
    """The recurrence ``h = h * decay + x`` as a combination of pairs."""
    return a[0] * b[0], a[1] * b[0] + b[1]


def test_associative_scans_of_any_number_of_elements() -> None:
    def combined(f: Any, x: Any) -> Any:
        return associative_scan(decayed, (x, f(x)), 0, reverse=True, combine_mode="generic")

    model = Layer(combined)
    graph = importer.load(model, (X,), dims={"inputs_0": {0: "n"}, "n": (1, 9)})
    assert ops.SCAN in {node.op for node in traverse.topological(graph.results)}
    for n in (1, 2, 5):
        models.assert_close(interpreted(graph, (X[:n],)), eager(model, (X[:n],)), 1e-5)


@pytest.mark.parametrize("missing", ["generic_associative_scan", "associative_scan_op"])
def test_without_pytorchs_private_names_other_models_are_exported(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delattr(sys.modules[associative_scan.__module__], missing)
    importer.load(torch.nn.ReLU(), (X,))


def test_an_associative_scan_that_pytorch_writes_in_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "vmap", lambda function, **_: partial(function))
    model = Layer(lambda f, x: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic"))
    with pytest.raises(UnsupportedError, match="an associative scan over any number of elements as PyTorch"):
        importer.load(model, (X,), dims={"inputs_0": {0: "n"}, "n": (1, 9)})


def test_associative_scans_of_elementwise_functions() -> None:
    """PyTorch runs these on a GPU alone, but a traced graph of one is imported as any other."""
    traced = make_fx(lambda x, y: associative_scan_op(lambda *parts: decayed(parts[:2], parts[2:]), (x, y), ()))
    inputs = X[:, 0], X[:, 1] + 1
    graph = importer.load(traced(*inputs))
    pairs = [(inputs[0][0], inputs[1][0])]
    for pair in zip(inputs[0][1:], inputs[1][1:], strict=True):
        pairs.append(decayed(pairs[-1], pair))
    expected = [torch.stack(rows).numpy() for rows in zip(*pairs, strict=True)]
    models.assert_close(interpreted(graph, inputs), expected, 1e-6)
    module = luminal.compile(graph, target="host")
    given = {node.attr.name: value.numpy() for node, value in zip(graph.inputs, inputs, strict=True)}
    models.assert_close(list(module.run(given).values()), expected, 1e-6)


def test_a_known_condition_leaves_one_branch() -> None:
    graph = importer.load(Layer(branch), MODELS["branch"][1][0], constants={"inputs_1": np.array([False, False])})
    assert ops.COND not in {node.op for node in traverse.topological(graph.results)}


def test_what_a_body_cannot_compute_is_listed() -> None:
    def unsupported(f: Any, x: Any, p: Any) -> Any:
        return torch.cond(p, lambda x: torch.special.bessel_j0(x), lambda x: x * 2, (x,))

    with pytest.raises(UnsupportedError) as caught:
        importer.load(Layer(unsupported), (X, torch.tensor(True)))
    assert [place.op for place in caught.value.places] == ["aten.special_bessel_j0.default"]


def drawing(f: Any, x: Any, p: Any) -> Any:
    return torch.cond(p.any(), lambda x: x + torch.rand(3), lambda x: x * 2, (x,))


def drawing_to_combine(f: Any, x: Any) -> Any:
    return associative_scan(lambda a, b: a * b + torch.rand(3), x, 0, combine_mode="generic")


def test_branches_may_draw_random_numbers_and_associative_functions_may_not() -> None:
    graph = importer.load(Layer(drawing), (X[0], torch.tensor([True])))
    assert [state.name for state in graph.states] == ["luminal.random"]
    with pytest.raises(UnsupportedError, match="a function that is taken to be associative draws random numbers"):
        importer.load(Layer(drawing_to_combine), (X,), dims={"inputs_0": {0: "n"}, "n": (1, 9)})
