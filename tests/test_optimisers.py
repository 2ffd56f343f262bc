"""One step of each optimiser in primitives, run by the interpreter, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from luminal import optim
from luminal.core import interp, ir
from luminal.core.decompose import optimisers
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.types import DType, f32, f64, i64

SHAPES = {"matrix": (3, 5), "vector": (4,), "number": (), "kernel": (2, 3, 2, 2)}

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "sgd-decay": ("SGD", {"weight_decay": 0.1, "maximize": True}),
    "momentum": ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "dampened": ("SGD", {"momentum": 0.9, "dampening": 0.3}),
    "adam": ("Adam", {}),
    "adam-decay": ("Adam", {"weight_decay": 0.1, "amsgrad": True, "betas": (0.8, 0.95), "eps": 1e-6}),
    "adam-decoupled": ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adamw": ("AdamW", {"weight_decay": 0.1, "maximize": True}),
    "amsgrad": ("AdamW", {"amsgrad": True}),
    "rmsprop": ("RMSprop", {"weight_decay": 0.1}),
    "rmsprop-centred": ("RMSprop", {"momentum": 0.9, "centered": True, "alpha": 0.9}),
    "adafactor": ("Adafactor", {"weight_decay": 0.1}),
    "adafactor-eps": ("Adafactor", {"eps": (1e-3, 1e-2), "d": 1.5, "beta2_decay": -0.6, "maximize": True}),
}


def graph(name: str, options: dict[str, Any], shape: tuple[int, ...], shared: DType = f64) -> Graph:
    x, g = ir.input_("x", shape, f64), ir.input_("g", shape, f64)
    rate, before = ir.input_("rate", (), shared), ir.input_("before", (), i64)
    rule = optimisers.OPTIMISERS[name]
    kept = {key: ir.input_(key, size, f64) for key, size in rule.kept(options, shape).items()}
    numbers = optimisers.Numbers(rate, before, before + 1)
    new, left = optimisers.stepped(name, x, g, kept, options, numbers)
    outputs = (("new", new), *((f"{key}.next", node) for key, node in left.items()))
    return Graph("step", (x, g, rate, before, *kept.values()), outputs)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("case", OPTIONS.values(), ids=list(OPTIONS))
def test_steps_are_those_of_pytorch(case: tuple[str, dict[str, Any]], shape: tuple[int, ...]) -> None:
    name, given = case
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    theirs = getattr(torch.optim, name)([x], lr=0.05, **given)
    (group,) = optim.of_torch(theirs, {id(x): "x"}).groups
    made = graph(name, dict(group.options), shape)
    values = {node.attr.name: np.zeros(node.shape, node.dtype.numpy) for node in made.inputs}
    values["x"] = x.detach().numpy().copy()
    for number in range(5):
        rate = theirs.param_groups[0]["lr"] = 0.05 / (number + 1)  # as a scheduler does
        x.grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        values |= {"g": x.grad.numpy(), "rate": np.array(rate), "before": np.array(number)}
        found = dict(zip([n for n, _ in made.outputs], interp.run(made, values).outputs, strict=True))
        theirs.step()
        np.testing.assert_allclose(found["new"], x.detach().numpy(), rtol=1e-12, atol=1e-14)
        for key in [node.attr.name for node in made.inputs[4:]]:
            values[key] = found[f"{key}.next"]
            np.testing.assert_allclose(values[key], theirs.state[x][key].numpy(), rtol=1e-12, atol=1e-14)
        values["x"] = found["new"]


@pytest.mark.parametrize("before", [0, 1, 50, 5_000, 1_000_000])
@pytest.mark.parametrize("case", OPTIONS.values(), ids=list(OPTIONS))
def test_rates_in_float32_change_a_step_by_their_roundings(case: tuple[str, dict[str, Any]], before: int) -> None:
    """As where a target has no float64: some 30 roundings of what is added to a parameter, two of the parameter."""
    name, given = case
    x = torch.zeros(7, requires_grad=True)
    (group,) = optim.of_torch(getattr(torch.optim, name)([x], lr=0.05, **given), {id(x): "x"}).groups
    steps = []
    for shared in (f64, f32):
        made = graph(name, dict(group.options), (7,), shared)
        rng = np.random.default_rng(before)
        values = {node.attr.name: rng.random(node.shape) + 0.5 for node in made.inputs}
        values |= {"rate": np.array(0.05, shared.numpy), "before": np.array(before)}
        values |= {key: values[key] / 4 for key in values if key == "grad_avg"}  # a mean is below the root of squares
        steps.append((values["x"], interp.run(made, values).outputs[0]))
    (first, exact), (_, found) = steps
    assert (np.abs(found - exact) <= 2.0**-24 * (32 * np.abs(exact - first) + 2 * np.abs(first))).all()


def test_what_pytorch_says_of_how_it_computes_is_ignored() -> None:
    x = torch.zeros(2, requires_grad=True)
    plain = optim.of_torch(torch.optim.AdamW([x], lr=0.1), {id(x): "x"})
    assert optim.of_torch(torch.optim.AdamW([x], lr=0.1, foreach=True), {id(x): "x"}) == plain
    assert optim.of_torch(torch.optim.AdamW([x], lr=torch.tensor(0.5)), {id(x): "x"}).rates == [0.5]
    assert plain == optim.AdamW([optim.Group(["x"])], lr=0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: optim.made("Adamw"), "found 'Adamw', did you mean 'AdamW'"),
        (lambda: optim.Adam(beta=(0.9, 0.99)), "Adam has no option 'beta'"),
        (lambda: optim.SGD(lr=-1.0), "expected lr of at least 0, found -1.0"),
        (lambda: optim.SGD(nesterov=True), "needs a momentum"),
        (lambda: optim.Adam(betas=(0.9, 1.0)), "expected betas"),
        (lambda: optim.SGD([optim.Group(), optim.Group()]), "only one group may be without names"),
        (lambda: optim.grouped(optim.SGD([optim.Group(["a", "a"])]), ["a"], ["a"]), "'a' is in groups 0 and 0"),
        (lambda: optim.grouped(optim.SGD([optim.Group(["wight"])]), ["weight"], ["weight"]), "no parameter 'wight'"),
    ],
)
def test_mistakes_are_named(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(").split(", did")[0]):
        make()


def test_optimisers_without_a_rule_are_refused() -> None:
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(InputError, match="found 'Rprop'"):
        optim.of_torch(torch.optim.Rprop([x]), {id(x): "x"})

    class Mine(torch.optim.SGD):
        pass

    with pytest.raises(InputError, match=r"Mine, whose rule luminal does not know"):
        optim.of_torch(Mine([x]), {id(x): "x"})
    with pytest.raises(InputError, match=r"shape \[2\] that is none of the module's"):
        optim.of_torch(torch.optim.SGD([x]), {})
