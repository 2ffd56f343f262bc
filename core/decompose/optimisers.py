"""Optimisers as data: for each, what it keeps of a parameter, and one step of it in primitives.

A rule gets the parameter, its gradient, what is kept by name, and the numbers of the step; it returns the new parameter
and what is kept from now on. All are computed in the parameter's own type or float32, whichever is wider, and rounded
once. Numbers that are alike for a whole group, such as corrections of bias, are computed in the type of its rate:
float64, unless the target has none. The forms are PyTorch's, so that a step from PyTorch's state ends where PyTorch's
would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from luminal.core import ops
from luminal.core.decompose import compare, reduction
from luminal.core.decompose.arithmetic import rsqrt, sqrt
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.exponential import expm1
from luminal.core.decompose.power import pow_
from luminal.core.ir import Node, cast, constant, expand, reduce, select, unary
from luminal.core.types import f64

Kept: TypeAlias = Mapping[str, Node]
Options: TypeAlias = Mapping[str, Any]
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Numbers:
    """What all parameters of a group share: the ``rate``, float64 or float32, and how many steps there were ``before``
    this one and with it, ``count``; both are None for an optimiser that does not count."""

    rate: Node
    before: Node | None = None
    count: Node | None = None

    def of_count(self, function: Callable[[Node], Node]) -> Node:
        """``function`` of the count, in the type of the rate."""
        assert self.count is not None
        return function(cast(self.count, self.rate.dtype))

    def remainder(self, base: float) -> Node:
        """1 - base**count. In float32 the difference has too few digits where the power is near 1."""
        if self.rate.dtype == f64:
            return self.of_count(lambda count: 1 - pow_(constant(base, f64), count))
        return self.of_count(lambda count: -expm1(count * (math.log(base) if base else -math.inf)))


@dataclass(frozen=True)
class Optimiser:
    """``kept`` has the shape of everything that is kept for a parameter of some shape, by PyTorch's names; ``rule`` is
    one step of it; ``counts`` says whether it counts steps. ``defaults`` are its options."""

    name: str
    defaults: Options
    kept: Callable[[Options, Shape], Mapping[str, Shape]]
    rule: Callable[[Node, Node, Kept, Options, Numbers], tuple[Node, dict[str, Node]]]
    counts: Callable[[Options], bool]


def once(x: Node) -> Node:
    """A number that is computed once for all that read it."""
    return unary(ops.CONTIGUOUS, x)


def _at(number: Node, like: Node) -> Node:
    """A number of a group, for the elements of ``like``, in their type."""
    return once(cast(number, like.dtype))


def moved(old: Node, new: Node, share: float | Node) -> Node:
    """``old`` on its way to ``new``, by that share of it."""
    return old + (new - old) * share


def _directed(parameter: Node, gradient: Node, options: Options) -> Node:
    """The gradient to descend along, with the decay of weights that is a part of it."""
    gradient = -gradient if options["maximize"] else gradient
    decay = options["weight_decay"]
    return gradient + parameter * decay if decay and not options.get("decoupled_weight_decay") else gradient


# ---- SGD: Robbins and Monro, 1951; Polyak, 1964; Nesterov, 1983 ------------------------------------------------------


def _sgd(x: Node, g: Node, kept: Kept, options: Options, numbers: Numbers) -> tuple[Node, dict[str, Node]]:
    g = _directed(x, g, options)
    momentum, left = options["momentum"], {}
    if momentum:
        share = 1 - options["dampening"]
        velocity = kept["momentum_buffer"] * momentum + (g if share == 1 else g * share)
        if numbers.before is not None:  # the first gradient counts whole
            velocity = select(once(compare.equal(numbers.before, 0)), g, velocity)
        left["momentum_buffer"] = velocity
        g = g + velocity * momentum if options["nesterov"] else velocity
    return x - g * _at(numbers.rate, x), left


# ---- Adam: Kingma and Ba, 2015; AdamW: Loshchilov and Hutter, 2019; AMSGrad: Reddi et al., 2018 ----------------------


def _adam_keeps(options: Options, shape: Shape) -> dict[str, Shape]:
    names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if options["amsgrad"] else [])]
    return dict.fromkeys(names, shape)


def _adam(x: Node, g: Node, kept: Kept, options: Options, numbers: Numbers) -> tuple[Node, dict[str, Node]]:
    first, second = options["betas"]
    decay = options["weight_decay"]
    g = _directed(x, g, options)
    if decay and options["decoupled_weight_decay"]:
        x = x * _at(1 - numbers.rate * decay, x)
    left = {
        "exp_avg": moved(kept["exp_avg"], g, 1 - first),
        "exp_avg_sq": kept["exp_avg_sq"] * second + g * g * (1 - second),
    }
    squares = left["exp_avg_sq"]
    if options["amsgrad"]:
        squares = left["max_exp_avg_sq"] = compare.maximum(kept["max_exp_avg_sq"], squares)
    pace, spread = numbers.rate / numbers.remainder(first), sqrt(numbers.remainder(second))
    return x - left["exp_avg"] / (sqrt(squares) / _at(spread, x) + options["eps"]) * _at(pace, x), left


# ---- RMSprop: Tieleman and Hinton, 2012; centred: Graves, 2013 -------------------------------------------------------


def _rmsprop_keeps(options: Options, shape: Shape) -> dict[str, Shape]:
    more = ["momentum_buffer"] if options["momentum"] else []
    return dict.fromkeys(["square_avg", *more, *(["grad_avg"] if options["centered"] else [])], shape)


def _rmsprop(x: Node, g: Node, kept: Kept, options: Options, numbers: Numbers) -> tuple[Node, dict[str, Node]]:
    g = _directed(x, g, options)
    alpha, momentum = options["alpha"], options["momentum"]
    left = {"square_avg": kept["square_avg"] * alpha + g * g * (1 - alpha)}
    spread = left["square_avg"]
    if options["centered"]:
        left["grad_avg"] = moved(kept["grad_avg"], g, 1 - alpha)
        spread = spread - left["grad_avg"] * left["grad_avg"]
    step = g / (sqrt(spread) + options["eps"])
    if momentum:
        step = left["momentum_buffer"] = kept["momentum_buffer"] * momentum + step
    return x - step * _at(numbers.rate, x), left


# ---- Adafactor: Shazeer and Stern, 2018 ------------------------------------------------------------------------------


def _adafactor_keeps(options: Options, shape: Shape) -> dict[str, Shape]:
    if len(shape) < 2:
        return {"variance": shape}
    return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}


def _adafactor(x: Node, g: Node, kept: Kept, options: Options, numbers: Numbers) -> tuple[Node, dict[str, Node]]:
    g = -g if options["maximize"] else g
    least, smallest = options["eps"]
    least = x.dtype.eps if least is None else least
    size = float(math.prod(n for n in x.shape if isinstance(n, int)))  # no parameter has a symbolic size
    share = _at(numbers.of_count(lambda count: pow_(count, options["beta2_decay"])), x)
    pace = numbers.of_count(lambda count: compare.minimum(numbers.rate, rsqrt(count)))
    scale = compare.at_least(cast(_length(x), numbers.rate.dtype) / size**0.5, smallest) * pace
    if options["weight_decay"]:
        x = x * _at(1 - numbers.rate * options["weight_decay"], x)
    if x.rank > 1:
        rows, columns = (reduction.mean(g * g, axis, keepdims=True) for axis in (-1, -2))
        left = {"row_var": moved(kept["row_var"], rows, share), "col_var": moved(kept["col_var"], columns, share)}
        total = reduction.mean(left["row_var"], -2, keepdims=True)
        estimate = matmul(left["row_var"], left["col_var"]) / compare.at_least(total, least)
    else:
        left = {"variance": moved(kept["variance"], g * g, share)}
        estimate = left["variance"]
    update = rsqrt(compare.at_least(estimate, least * least)) * g
    most = compare.at_least(cast(_length(update), numbers.rate.dtype) / (size**0.5 * options["d"]), 1.0)
    return x - update * _at(scale / most, x), left


def _length(x: Node) -> Node:
    """The Euclidean norm of all elements."""
    return sqrt(reduce(ops.SUM_REDUCE, x * x, range(x.rank)) if x.rank else x * x)


# ---- the table -------------------------------------------------------------------------------------------------------

_COMMON = {"lr": 1e-3, "weight_decay": 0.0, "maximize": False}
_ADAM = {**_COMMON, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}
_RMSPROP = {**_COMMON, "lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False}


def _sgd_keeps(options: Options, shape: Shape) -> dict[str, Shape]:
    return {"momentum_buffer": shape} if options["momentum"] else {}


OPTIMISERS: Mapping[str, Optimiser] = {
    made.name: made
    for made in (
        Optimiser(
            "SGD", {**_COMMON, "momentum": 0.0, "dampening": 0.0, "nesterov": False}, _sgd_keeps, _sgd,
            lambda options: bool(options["momentum"] and options["dampening"]),
        ),
        Optimiser("Adam", {**_ADAM, "decoupled_weight_decay": False}, _adam_keeps, _adam, lambda options: True),
        Optimiser(
            "AdamW", {**_ADAM, "weight_decay": 1e-2, "decoupled_weight_decay": True}, _adam_keeps, _adam,
            lambda options: True,
        ),
        Optimiser("RMSprop", _RMSPROP, _rmsprop_keeps, _rmsprop, lambda options: True),
        Optimiser(
            "Adafactor", {**_COMMON, "lr": 1e-2, "beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0},
            _adafactor_keeps, _adafactor, lambda options: True,
        ),
    )
}  # fmt: skip


# ---- clipping --------------------------------------------------------------------------------------------------------


def clipped_to_norm(gradients: list[Node], most: float) -> tuple[list[Node], Node]:
    """``gradients``, scaled down so that all numbers together have at most the norm ``most``; and the norm before."""
    return scaled(gradients, squares(gradients), most)


def squares(gradients: Sequence[Node]) -> Node:
    """The sum of the squares of all numbers."""
    parts = [reduce(ops.SUM_REDUCE, wide * wide, range(g.rank)) for g in gradients for wide in [_wide(g)]]
    total = parts[0]
    for other in parts[1:]:
        total = total + other
    return total


def scaled(gradients: Sequence[Node], total: Node, most: float) -> tuple[list[Node], Node]:
    """``gradients`` as ``clipped_to_norm`` gives them, where ``total`` is the sum of the squares of all."""
    norm = once(sqrt(total))
    share = once(compare.at_most(most / (norm + 1e-6), 1.0))
    return [cast(_wide(g) * cast(share, g.dtype.compute), g.dtype) for g in gradients], norm


def clipped_to_value(gradients: list[Node], most: float) -> list[Node]:
    """``gradients``, each number brought between ``-most`` and ``most``."""
    return [compare.clamp(g, -most, most) for g in gradients]


def _wide(x: Node) -> Node:
    return cast(x, x.dtype.compute)


def stepped(
    name: str, x: Node, gradient: Node, kept: Kept, options: Options, numbers: Numbers
) -> tuple[Node, dict[str, Node]]:
    """A parameter after a step of the optimiser of that name, and what is kept from then on: see ``Optimiser``."""
    wide = {key: _wide(value) for key, value in kept.items()}
    new, left = OPTIMISERS[name].rule(_wide(x), _wide(gradient), wide, options, numbers)
    results = {key: expand(cast(value, kept[key].dtype), kept[key].shape) for key, value in left.items()}
    return cast(new, x.dtype), results
