"""Random numbers: PyTorch's distributions, from luminal's generator (``core.decompose.random``) in place of PyTorch's.

Each operator is a draw of its own, and each call draws anew. A handler takes ``random``, the draws of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from luminal.core.decompose import random as draws
from luminal.core.decompose.arithmetic import floor
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.random import Random, Words
from luminal.core.decompose.trigonometric import tan
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, Operand, cast, constant, expand
from luminal.core.symbolic import Int
from luminal.core.types import DType, bool_, f32
from luminal.frontends.fx.registry import aten

Distribution = Callable[[Words, DType], Node]


def _sized(draw: Distribution) -> Callable[..., Node]:
    def handler(size: list[Int], *, dtype: DType | None = None, result: DType, random: Random) -> Node:
        return draw(random.words(tuple(size)), result)

    return handler


def _like(draw: Distribution) -> Callable[..., Node]:
    def handler(self: Node, *, dtype: DType | None = None, random: Random) -> Node:
        return draw(random.words(self.shape), dtype or self.dtype)

    return handler


for _name, _draw in (("rand", draws.uniform), ("randn", draws.normal)):
    aten(_name, f"{_name}.generator")(_sized(_draw))
    aten(f"{_name}_like", f"{_name}_like.generator")(_like(_draw))


# ---- integers --------------------------------------------------------------------------------------------------------


INT64 = 4  # by PyTorch's numbers of types: the default of ``dtype``


@aten("randint", "randint.generator")
def randint(high: Int, size: list[Int], *, dtype: object = INT64, result: DType, random: Random) -> Node:
    return _integers(0, high, tuple(size), result, random)


@aten("randint.low", "randint.low_generator")
def randint_between(
    low: Int, high: Int, size: list[Int], *, dtype: object = INT64, result: DType, random: Random
) -> Node:
    return _integers(low, high, tuple(size), result, random)


@aten("randint_like", "randint_like.generator")
def randint_like(self: Node, high: Int, *, dtype: DType | None = None, random: Random) -> Node:
    return _integers(0, high, self.shape, dtype or self.dtype, random)


@aten("randint_like.low_dtype", "randint_like.low_generator_dtype")
def randint_like_between(self: Node, low: Int, high: Int, *, dtype: DType | None = None, random: Random) -> Node:
    return _integers(low, high, self.shape, dtype or self.dtype, random)


@aten("random", "random.to", "random.from")
def random_(self: Node, *bounds: int | None, random: Random) -> Node:
    """From 0, or the first of two bounds, to the last, excluded: by default, the most that the type counts to."""
    low = bounds[0] if len(bounds) == 2 and bounds[0] is not None else 0
    high = bounds[-1] if bounds else None
    most = 2.0 / self.dtype.eps if self.dtype.is_float else self.dtype.max
    return _integers(low, int(most) + 1 if high is None else high, self.shape, self.dtype, random)


def _integers(low: Int, high: Int, shape: tuple[Int, ...], dtype: DType, random: Random) -> Node:
    if not isinstance(low, int) or not isinstance(high, int):
        raise UnsupportedError("random integers between bounds that depend on sizes: state the bounds")
    return draws.integers(random.words(shape), low, high, dtype)


# ---- distributions with parameters -----------------------------------------------------------------------------------


@aten("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal(mean: Operand, std: Operand = 1.0, *, result: DType, random: Random) -> Node:
    shape = next(x.shape for x in (mean, std) if isinstance(x, Node))
    if isinstance(mean, Node) and isinstance(std, Node):
        shape = (mean + std).shape
    return _scaled(draws.normal, shape, std, mean, result, random)


@aten("normal.float_float")
def normal_of_size(
    mean: float, std: float, size: list[Int], *, dtype: DType | None = None, result: DType, random: Random
) -> Node:
    return _scaled(draws.normal, tuple(size), std, mean, result, random)


@aten("normal_functional")
def normal_like(self: Node, mean: float = 0.0, std: float = 1.0, *, random: Random) -> Node:
    return _scaled(draws.normal, self.shape, std, mean, self.dtype, random)


@aten("uniform")
def uniform(self: Node, low: float = 0.0, high: float = 1.0, *, random: Random) -> Node:
    return _scaled(draws.uniform, self.shape, high - low, low, self.dtype, random)


@aten("exponential")
def exponential(self: Node, lambd: float = 1.0, *, random: Random) -> Node:
    return _scaled(draws.exponential, self.shape, 1 / lambd, 0.0, self.dtype, random)


@aten("log_normal")
def log_normal(self: Node, mean: float = 1.0, std: float = 2.0, *, random: Random) -> Node:
    wide = _scaled(draws.normal, self.shape, std, mean, self.dtype.compute, random)
    return cast(exp(wide), self.dtype)


@aten("cauchy")
def cauchy(self: Node, median: float = 0.0, sigma: float = 1.0, *, random: Random) -> Node:
    """``median + sigma * tan(pi * (u - 1/2))``."""
    wide = self.dtype.compute
    turned = tan((draws.uniform(random.words(self.shape), wide) - 0.5) * math.pi)
    return cast(turned * sigma + median, self.dtype)


@aten("geometric")
def geometric(self: Node, p: float, *, random: Random) -> Node:
    """Trials up to the first success: 1 more than whole parts of an exponential draw of rate ``-log(1 - p)``."""
    rate = -math.log1p(-p) if p < 1 else math.inf
    drawn = draws.exponential(random.words(self.shape), self.dtype.compute if self.dtype.is_float else f32)
    return cast(floor(drawn * (1 / rate)) + 1, self.dtype)


def _scaled(
    draw: Distribution, shape: tuple[Int, ...], scale: Operand, shift: Operand, dtype: DType, random: Random
) -> Node:
    """``draw * scale + shift``, computed in float32 where the type has fewer bits."""
    wide = dtype.compute
    scale, shift = (cast(x, wide) if isinstance(x, Node) else x for x in (scale, shift))
    return cast(draw(random.words(shape), wide) * scale + shift, dtype)


# ---- choices ---------------------------------------------------------------------------------------------------------


@aten("bernoulli")
def bernoulli(self: Node, *, random: Random) -> Node:
    return _bernoulli(self, self, random)


@aten("bernoulli.p", "bernoulli.Tensor")
def bernoulli_of(self: Node, p: Operand, *, random: Random) -> Node:
    return _bernoulli(self, p, random)


def _bernoulli(like: Node, p: Operand, random: Random) -> Node:
    probability = p if isinstance(p, Node) else constant(p, like.dtype.compute if like.dtype.is_float else f32)
    return cast(draws.bernoulli(random.words(like.shape), probability), like.dtype)


@aten("multinomial")
def multinomial(self: Node, num_samples: Int, replacement: bool = False, *, random: Random) -> Node:
    if not replacement and num_samples != 1:
        return draws.distinct_categories(random.words(self.shape), self, num_samples)
    return draws.categories(random.words((*self.shape[:-1], num_samples)), self)


@aten("randperm", "randperm.generator")
def randperm(n: Int, *, dtype: object = INT64, result: DType, random: Random) -> Node:
    return cast(draws.permutation(random.words((n,))), result)


@aten("native_dropout")
def native_dropout(input: Node, p: float, train: bool | None, *, random: Random) -> tuple[Node, Node]:
    """The values after dropout, and the mask of those kept."""
    if train is False or p == 0:
        return input, expand(constant(True, bool_), input.shape)
    return draws.dropout(random.words(input.shape), input, p)


@aten("dropout")
def dropout(input: Node, p: float = 0.5, train: bool = False, *, random: Random) -> Node:
    return native_dropout(input, p, train, random=random)[0]


@aten("feature_dropout")
def feature_dropout(input: Node, p: float, train: bool, *, random: Random) -> Node:
    """Drops whole channels."""
    if not train or p == 0:
        return input
    words = random.words((*input.shape[:2], *[1] * (input.rank - 2)))
    return draws.dropout(words, input, p)[0]
