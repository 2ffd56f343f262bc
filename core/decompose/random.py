"""Random numbers by a counter: Philox 4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).

An element of a draw is a function of integers alone, so it is the same on every target and for any number of threads:

- the *key* is the seed, 64 bits;
- the *counter* is the element's position (row-major, 64 bits), the number of the draw in the model, and the number of
  the call (32 bits each, which wrap), in this order, low bits first.

In the body of a loop, each round has a key of its own: the first two words of the counter that is made of the number
of the round (64 bits), of the draw ``2**32 - 1``, which no model makes, and of the call 0, under the key around the
loop. So rounds draw different numbers, in loops inside loops too.

Seed and call number are a state of the model (``STATE``, int64[2]). Four words of 32 bits, ``w0 .. w3``, come from each
element's counter; distributions take from them what they say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.arithmetic import sqrt
from luminal.core.decompose.common import require_float
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.exponential import log
from luminal.core.decompose.sorting import argsort, searchsorted, topk
from luminal.core.decompose.trigonometric import cos
from luminal.core.errors import InputError, ShapeError, UnsupportedError
from luminal.core.ir import Node, Shape, State, binary, bitcast, cast, constant, expand, input_, iota, select
from luminal.core.movement import reshape, slice_
from luminal.core.symbolic import Int
from luminal.core.types import DType, f32, f64, i64, u32, u64

STATE = "luminal.random"  # the seed, and the number of calls so far

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # the golden ratio, and the square root of 3 less one
_ROUNDS = 10

Words = tuple[Node, Node, Node, Node]


def philox(counter: Words, key: tuple[Node, Node]) -> Words:
    """Philox 4x32-10 of uint32 nodes of one shape; the key may be scalars."""
    c0, c1, c2, c3 = counter
    for number in range(_ROUNDS):
        k0, k1 = (binary(ops.ADD, k, number * weyl % 2**32) for k, weyl in zip(key, _WEYL, strict=True))
        (high0, low0), (high1, low1) = _product(c0, _MULTIPLIERS[0]), _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _product(x: Node, factor: int) -> tuple[Node, Node]:
    """The high and the low 32 bits of a product of 32-bit words."""
    wide = cast(x, u64) * factor
    return cast(binary(ops.SHR, wide, 32), u32), x * factor


@dataclass
class Random:
    """The draws of one model, in the order in which it makes them: each has a number of its own.

    ``seed`` is an integer of 64 bits: see ``parse``.
    """

    seed: int = 0
    count: int = 0
    rounds: list[Node] = field(default_factory=list)  # the numbers of the rounds of the loops around

    @property
    def state(self) -> Node:
        """What the last call left: the seed, and the number of calls so far."""
        return input_(STATE, (2,), i64)

    def states(self) -> tuple[tuple[State, Node], ...]:
        """The state that the draws need, and what a call leaves of it; nothing where there are none."""
        if not self.count:
            return ()
        left = binary(ops.ADD, self.state, constant(np.array([0, 1])))
        return ((State(self.state, f"{STATE}.next", first(self.seed)), left),)

    @contextmanager
    def each(self, number: Node) -> Iterator[None]:
        """For the body of a loop: it draws anew in each round, whose ``number`` (one int64) it is given."""
        self.rounds.append(number)
        try:
            yield
        finally:
            self.rounds.pop()

    @contextmanager
    def undrawn(self, what: str) -> Iterator[None]:
        """Raises UnsupportedError where anything draws, since ``what`` is no place for it."""
        count = self.count
        yield
        if self.count > count:
            raise UnsupportedError(f"{what} draws random numbers: draw them all before it")

    def words(self, shape: Shape, seed: int | None = None) -> Words:
        """Four words for each element of the next draw; ``seed`` takes the place of the model's.

        Raises ShapeError where an element's position has more than 64 bits.
        """
        own, call = (reshape(slice_(self.state, 0, k, 1), ()) for k in (0, 1))
        wide = own if seed is None else constant(_signed(seed), i64)
        key = cast(wide, u32), _high(wide)
        for number in self.rounds:
            key = _key_of_round(number, key)
        size = sym.product(shape)
        position = iota(size)
        most = sym.upper(size)
        high = _high(position) if most is None or most > 2**32 else constant(0, u32)
        drawn = (cast(position, u32), high, constant(self.count, u32), cast(call, u32))
        self.count += 1
        counter = tuple(expand(x, (size,)) if not x.rank else x for x in drawn)
        assert len(counter) == 4
        words = philox(counter, key)
        w0, w1, w2, w3 = (reshape(w, shape) for w in words)
        return w0, w1, w2, w3


def first(seed: int) -> Node:
    """The state before the first call. Raises InputError as ``parse`` does."""
    return constant(np.array([_signed(parse(seed)), 0]))


def parse(seed: Any) -> int:
    """The seed that was asked for. Raises InputError for what is no integer of 64 bits, with a sign or without, as
    PyTorch takes them: -1 is 2**64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not -(2**63) <= seed < 2**64:
        raise InputError(f"seed: expected an integer of 64 bits, -2**63..2**64-1, found {seed!r}")
    return int(seed)


def _key_of_round(number: Node, key: tuple[Node, Node]) -> tuple[Node, Node]:
    return philox((cast(number, u32), _high(number), constant(-1, u32), constant(0, u32)), key)[:2]


def _signed(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63


def _high(x: Node) -> Node:
    """The high 32 bits of an int64."""
    return cast(binary(ops.SHR, bitcast(x, u64), 32), u32)


# ---- distributions ---------------------------------------------------------------------------------------------------


def _fraction(word: Node, bits: int, dtype: DType) -> Node:
    """The first ``bits`` of a word as a multiple of ``2**-bits`` in [0, 1), exactly."""
    return cast(binary(ops.SHR, word, 32 - bits), dtype) * 2.0**-bits


def uniform(words: Words, dtype: DType) -> Node:
    """[0, 1): multiples of ``2**-p``, where ``p`` is the precision of the type (24 bits for float32, from ``w0``; 53
    for float64, 27 from ``w0`` and 26 from ``w1``; 11 for float16, 8 for bfloat16)."""
    if dtype == f64:
        return (cast(binary(ops.SHR, words[0], 5), f64) * 2.0**26 + cast(binary(ops.SHR, words[1], 6), f64)) * 2.0**-53
    precision = 1 - round(math.log2(dtype.eps))
    return cast(_fraction(words[0], precision, dtype.compute), dtype)


def _positive(words: Words, dtype: DType) -> Node:
    """(0, 1]: 1 less ``uniform`` in float64; in float32 ``w0`` rounded, and a half, times ``2**-32``: small numbers
    have more digits so, and their logarithms a longer tail."""
    if dtype == f64:
        return 1 - uniform(words, f64)
    return cast(words[0], f32) * 2.0**-32 + 2.0**-33


def normal(words: Words, dtype: DType) -> Node:
    """The standard normal distribution by Box and Muller (1958): ``sqrt(-2 log u) * cos(2 pi v)``, ``u`` in (0, 1] from
    ``w0`` (float64: and ``w1``), ``v`` uniform from ``w2`` (and ``w3``); computed in float32, or in float64."""
    wide = dtype.compute
    radius = sqrt(log(_positive(words, wide)) * -2.0)
    turn = uniform((words[2], words[3], words[0], words[1]), wide)
    return cast(radius * cos(turn * (2 * math.pi)), dtype)


def exponential(words: Words, dtype: DType) -> Node:
    """The exponential distribution of rate 1: ``-log u``, ``u`` in (0, 1] as for ``normal``."""
    return cast(log(_positive(words, dtype.compute)) * -1.0, dtype)


def integers(words: Words, low: int, high: int, dtype: DType) -> Node:
    """``low .. high - 1``, each as likely as the next up to ``(high - low) / 2**32`` of it: ``low`` and the high word
    of ``w0 * (high - low)``; for more than ``2**32`` numbers, the remainder of ``w1:w0`` (and ``/ 2**64``).

    Raises ShapeError where there is no such number.
    """
    count = high - low
    if not 0 < count < 2**64:
        raise ShapeError(f"expected integers from a range that holds some, found {low} .. {high - 1}")
    if count <= 2**32:
        found = binary(ops.SHR, cast(words[0], u64) * count, 32)
    else:
        wide = cast(words[0], u64) | binary(ops.SHL, cast(words[1], u64), 32)
        found = binary(ops.MOD, wide, count)
    return cast(bitcast(found, i64) + low, dtype)


def bernoulli(words: Words, probability: Node) -> Node:
    """True with ``probability`` (a float, broadcast to the words' shape): where ``uniform`` is less. 0 never is, 1
    always."""
    require_float(probability, "bernoulli")
    wide = probability.dtype.compute
    return binary(ops.LESS_THAN, uniform(words, wide), cast(probability, wide))


def categories(words: Words, weights: Node) -> Node:
    """For ``weights`` [..., n] and words [..., samples]: the indices of samples with replacement, int64, each as likely
    as its weight is of the row's sum, searched for in the cumulated weights."""
    wide = weights.dtype.compute
    heights = cumsum(cast(weights, wide), weights.rank - 1)
    total = slice_(heights, weights.rank - 1, weights.shape[-1] - 1, 1)
    return searchsorted(heights, binary(ops.MUL, uniform(words, wide), total), right=True)


def distinct_categories(words: Words, weights: Node, count: Int) -> Node:
    """For ``weights`` [..., n] and words of that shape: the indices of ``count`` samples without replacement, int64,
    each as likely as its weight is of those that are left; those of weight 0 after all others.

    A race (Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006): indices in the order of
    ``exponential`` draws divided by the weights. Raises ShapeError where there are fewer indices.
    """
    wide = weights.dtype.compute
    weights = cast(weights, wide)
    arrival = select(binary(ops.LESS_THAN, 0, weights), exponential(words, wide) / weights, math.inf)
    return topk(arrival, count, largest=False)[1]


def permutation(words: Words) -> Node:
    """For words [n]: ``0 .. n - 1`` in random order, int64: the positions in the order of the numbers ``w1:w0``."""
    return argsort(cast(words[0], u64) | binary(ops.SHL, cast(words[1], u64), 32))


def dropout(words: Words, x: Node, ratio: Node | float) -> tuple[Node, Node]:
    """``x / (1 - ratio)`` where it is kept, else zero; and where it is kept: with probability ``1 - ratio``."""
    wide = x.dtype.compute
    ratio = ratio if isinstance(ratio, Node) else constant(ratio, wide)
    keep = binary(ops.LESS_THAN, uniform(words, wide), 1 - cast(ratio, wide))
    scaled = binary(ops.DIV, cast(x, wide), 1 - cast(ratio, wide))
    return cast(select(keep, scaled, 0.0), x.dtype), keep
