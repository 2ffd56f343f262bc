"""Tensors that ``forward`` reaches through plain objects: buffers and states, against PyTorch call by call."""

import copy
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import luminal
from luminal.core import interp
from luminal.core.errors import ModelError
from luminal.core.ir import Graph
from luminal.frontends.fx import importer

X = torch.tensor([1.0, 2.0, 3.0])


class Cell:
    """A plain object."""

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self.tensor = torch.zeros(3) if tensor is None else tensor

    def add(self, x: torch.Tensor) -> torch.Tensor:
        return self.tensor.add_(x)


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self) -> None:
        self.tensor = torch.zeros(3)


@dataclass(frozen=True)
class Frozen:
    tensor: torch.Tensor


class Holder(torch.nn.Module):
    """``step(self, x)`` over whatever ``build`` gives the module."""

    def __init__(self, build: Callable[["Holder"], None], step: Callable[["Holder", torch.Tensor], Any]) -> None:
        super().__init__()
        build(self)
        self.step = step

    def forward(self, x: torch.Tensor) -> Any:
        return self.step(self, x)


def calls(graph: Graph, inputs: list[tuple[torch.Tensor, ...]]) -> list[np.ndarray]:
    """The first output of each call in turn."""
    state = {s.name: interp.constant_value(s.initial) for s in graph.states}
    given = [node for node in graph.inputs if node not in {s.input for s in graph.states}]
    found = []
    for call in inputs:
        values = {node.attr.name: x.numpy() for node, x in zip(given, call, strict=True)}
        results = dict(zip([n for n, _ in graph.outputs], interp.run(graph, values | state).outputs, strict=True))
        state = {s.name: results[s.output] for s in graph.states}
        found.append(next(iter(results.values())))
    return found


def agrees(module: torch.nn.Module, *, names: set[str]) -> None:
    """Import, and compare three calls; the states have ``names``, and the module holds afterwards what it held."""
    eager, before = copy.deepcopy(module), copy.deepcopy(module)
    graph = importer.load(module, (X,))
    assert {state.name for state in graph.states} == names
    inputs = [(X * k,) for k in (1, 0, 2)]
    for found, call in zip(calls(graph, inputs), inputs, strict=True):
        assert np.array_equal(found, eager(*call).numpy())
    inputs = [(X * k,) for k in (3, 1)]
    assert all(torch.equal(module(*call), before(*call)) for call in inputs)


def a_buffer(module: Holder) -> None:
    module.cell = Cell()
    module.register_buffer("kept", module.cell.tensor)


def nested(module: Holder) -> None:
    cell = Cell()
    module.held = {"cells": (1, [None, cell])}
    module.register_buffer("kept", cell.tensor)


def slotted(module: Holder) -> None:
    module.cell = Slotted()
    module.register_buffer("kept", module.cell.tensor)


def frozen(module: Holder) -> None:
    module.cell = Frozen(torch.zeros(3))
    module.register_buffer("kept", module.cell.tensor)


def a_list(module: Holder) -> None:
    module.register_buffer("kept", torch.zeros(3))
    module.held = [module.kept]


def views(module: Holder) -> None:
    module.register_buffer("kept", torch.zeros(3, 3))
    module.rows = [module.kept[k] for k in range(3)]
    module.column = Cell(module.kept[:, 1])


def method(module: Holder) -> None:
    cell = Cell()
    module.add = cell.add
    module.register_buffer("kept", cell.tensor)


def bound(module: Holder) -> None:
    cell = Cell()
    module.add = functools.partial(Cell.add, cell)
    module.register_buffer("kept", cell.tensor)


def of_a_child(module: Holder) -> None:
    module.child = torch.nn.Module()
    module.child.register_buffer("kept", torch.zeros(3))
    module.cell = Cell(module.child.kept)


def replace(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.cell.tensor = module.cell.tensor * 2 + x
    return module.cell.tensor - 1


def both_ways(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.cell.tensor.add_(x)
    module.kept.mul_(2)
    return module.cell.tensor + module.kept


def through_views(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.rows[1].add_(x)
    module.column.tensor.mul_(2)
    return module.kept.sum(0) + module.rows[1]


def add_to_cell(module: Any, x: torch.Tensor) -> torch.Tensor:
    return module.cell.tensor.add_(x) * 2


REACHED: dict[str, tuple[Callable[[Any], None], Callable[[Any, torch.Tensor], torch.Tensor], str]] = {
    "attribute": (a_buffer, add_to_cell, "kept"),
    "nested": (nested, lambda m, x: m.held["cells"][1][1].add(x) * 2, "kept"),
    "slots": (slotted, add_to_cell, "kept"),
    "frozen": (frozen, add_to_cell, "kept"),
    "list": (a_list, lambda m, x: m.held[0].add_(x) * 2, "kept"),
    "bound method": (method, lambda m, x: m.add(x) * 2, "kept"),
    "partial": (bound, lambda m, x: m.add(x) * 2, "kept"),
    "child": (of_a_child, add_to_cell, "child.kept"),
    "replaced": (a_buffer, replace, "kept"),
    "both": (a_buffer, both_ways, "kept"),
    "views": (views, through_views, "kept"),
    "only left": (a_buffer, lambda m, x: (m.cell.add(x), x + m.kept)[1], "kept"),
}


@pytest.mark.parametrize("case", REACHED)
def test_a_buffer_that_a_plain_object_holds_is_a_state(case: str) -> None:
    build, step, name = REACHED[case]
    agrees(Holder(build, step), names={name})


def unregistered(module: Any) -> None:
    module.cell = Cell()
    module.inner = {"of it": [Cell()]}
    module.bare = torch.zeros(3)


UNREGISTERED: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], set[str]]] = {
    "attribute": (add_to_cell, {"cell_tensor"}),
    "nested": (lambda m, x: m.inner["of it"][0].add(x) * 2, {"inner_of_it_0_tensor"}),
    "of the module": (lambda m, x: m.bare.add_(x) * 2, {"bare"}),
    "replaced": (replace, {"cell_tensor"}),
    "read": (lambda m, x: m.cell.tensor + x, set()),
}


@pytest.mark.parametrize("case", UNREGISTERED)
def test_what_forward_writes_is_a_state_without_being_registered(case: str) -> None:
    step, names = UNREGISTERED[case]
    module = Holder(unregistered, step)
    if names == {"bare"}:  # the name of an attribute is taken
        names = {"bare_"}
    agrees(module, names=names)
    assert not dict(module.named_buffers())


def test_what_forward_only_leaves_in_a_plain_object_is_no_state_of_a_model_alone() -> None:
    def leave(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.cell.tensor = x * 2
        return x + 1

    agrees(Holder(unregistered, leave), names=set())


def test_what_one_entry_leaves_in_a_plain_object_is_the_state_of_another() -> None:
    """The entries hold one object, under one name."""
    cell = Cell()

    def build(module: Any) -> None:
        module.cell = cell

    def leave(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.cell.tensor = x * 2
        return x + 1

    entries = {"leave": Holder(build, leave), "read": Holder(build, lambda m, x: m.cell.tensor + x)}
    compiled = luminal.compile(entries, {"leave": (X,), "read": (X,)})
    compiled["leave"](X)
    assert np.array_equal(compiled["read"](X), X.numpy() * 3)


def test_a_number_that_forward_takes_out_of_a_plain_tensor_is_a_constant() -> None:
    def build(module: Any) -> None:
        module.cell = Cell(torch.tensor(2.5))

    agrees(Holder(build, lambda m, x: x * m.cell.tensor.item()), names=set())


def test_what_changes_its_size_is_refused() -> None:
    def grow(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.cell.tensor = torch.cat([module.cell.tensor, x])
        return module.cell.tensor

    module = Holder(a_buffer, grow)
    with pytest.raises(ModelError, match=re.escape("cell_tensor: expected a state of one type and size")):
        importer.load(module, (X,))
    assert module.cell.tensor is module.kept


def test_memory_under_another_type_is_refused() -> None:
    def build(module: Any) -> None:
        module.register_buffer("kept", torch.zeros(3))
        module.cell = Cell(module.kept.view(torch.int32))

    with pytest.raises(ModelError, match="expected a view of the buffer 'kept'"):
        importer.load(Holder(build, lambda m, x: m.cell.tensor.add_(1) + x), (X,))


def test_the_static_cache_of_transformers_is_a_state() -> None:
    transformers = pytest.importorskip("transformers")
    executorch = pytest.importorskip("transformers.integrations.executorch")

    def wrapped() -> torch.nn.Module:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).eval()
        model.generation_config = transformers.GenerationConfig(
            use_cache=True, cache_implementation="static", cache_config={"batch_size": 1, "max_cache_len": 8}
        )
        return executorch.TorchExportableModuleWithStaticCache(model)

    module, eager = wrapped(), wrapped()
    inputs = [{"input_ids": torch.tensor([[t]]), "cache_position": torch.tensor([k])} for k, t in enumerate((5, 7, 11))]
    compiled = luminal.compile(module, inputs[0])
    assert {"key_cache_0", "value_cache_1"} <= set(compiled.state)
    for call in inputs:
        with torch.no_grad():
            assert torch.allclose(compiled(**call), eager(**call), rtol=1e-5, atol=1e-6)
