"""The next token of each sequence, drawn from its logits: penalties, bias, temperature, top-k, top-p, min-p, the draw.

The order is that of transformers (llama.cpp's differs in that temperature comes last, so that its top-p and min-p see
the distribution at temperature 1):

1. *Penalties.* Of a token that was prompted or generated, a logit is divided by ``repetition`` if it is above 0, else
   multiplied by it (Keskar et al., CTRL, 2019). Then ``frequency`` times how often the token was generated is
   subtracted, and ``presence`` if it was at all, as OpenAI's interface says.
2. *Bias*, added: a number for each token, -inf for one that may not come (a grammar fills it).
3. *Temperature* 0 takes the largest logit. Else distances from the largest are divided by it.
4. *Top-k* keeps the k largest; 0 keeps all.
5. *Top-p* keeps the fewest of these, from the largest on, whose part of their sum is at least p.
6. *Min-p* keeps those of at least p times the largest probability.

Equal logits are in the order of their tokens, so what is kept is always a prefix of one order: exactly k tokens, where
transformers keeps all that equal the k-th. NaN counts as -inf. Several infinite logits share the probability. Where no
token may come, the result is -1.

No row is sorted. A prefix is told by the least rank in it (``sorting.rank``, the bits of a float as an ordered integer)
and by how many of that rank belong to it; bisection over ranks finds it in at most 33 passes over the row, and in none
if nobody asks for it. On a GPU, whose processors read the row side by side, a pass divides ranks into ``AT_ONCE``
parts, and there are four. These are written out and made whoever asks: nothing is decided on the way, so that a token
is one launch of a graph. A weight is ``exp`` of the distance as a multiple of ``2**-40``. Sums of these integers have
no rounding, so the same seed and step draw the same token on every target and any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from luminal.core import ops
from luminal.core.decompose import random
from luminal.core.decompose.compare import equal, isnan, less, less_equal, logical_not, maximum, minimum
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.reduction import all_, any_, argmax, max_, min_, sum_
from luminal.core.decompose.sorting import rank
from luminal.core.errors import ShapeError
from luminal.core.ir import Graph, Node, binary, bitcast, cast, constant, dim, expand, gather, input_, iota, select
from luminal.core.movement import pad, reshape, unsqueeze
from luminal.core.structured import cond, while_loop
from luminal.core.symbolic import Int
from luminal.core.types import DType, bool_, f32, i32, i64, u32, u64

_POINT = 40  # bits of a weight after the point: a token of less than 2**-40 of the likeliest never comes
_MOST = 1 << 20  # tokens whose weights are certain to have a sum of 62 bits
_INFINITY = 0x7F800000  # the rank of an infinite logit; of a negative one, it is its complement
_BLOCK = 512  # tokens of a block: the draw looks for the block, then for the token in it
HALVES, AT_ONCE = 2, 256  # parts into which a pass over a row divides ranks


@dataclass(frozen=True)
class Settings:
    """What ``sample`` reads for each slot: ``[slots]``, and of each token ``[slots, vocabulary]``, or None of these: as
    zeros, without reading any."""

    temperature: Node  # float32, at least 0
    top_k: Node  # int64; 0: all
    top_p: Node  # float32; 1: all
    min_p: Node  # float32; 0: all
    repetition: Node  # float32, above 0; 1: no penalty
    frequency: Node  # float32
    presence: Node  # float32
    seed: Node  # int64
    step: Node  # int64: the number of the token in its sequence
    bias: Node | None = None  # float32 [slots, vocabulary]
    counts: Node | None = None  # int32 [slots, vocabulary]: how often each was generated
    prompted: Node | None = None  # bool [slots, vocabulary]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All that there are, in order."""
        found = (getattr(self, field.name) for field in fields(self))
        return tuple(node for node in found if node is not None)


TYPES: dict[str, DType] = {
    "temperature": f32, "top_k": i64, "top_p": f32, "min_p": f32, "repetition": f32, "frequency": f32, "presence": f32,
    "seed": i64, "step": i64, "bias": f32, "counts": i32, "prompted": bool_,
}  # fmt: skip
ROWS = ("bias", "counts", "prompted")  # those that have a number for each token


def inputs(slots: Int, vocabulary: int, rows: bool = True) -> Settings:
    """Settings that are inputs of the graph, named as the fields; without ``rows``, those of no token."""
    assert [field.name for field in fields(Settings)] == list(TYPES)
    shape = {name: (slots, vocabulary) if name in ROWS else (slots,) for name in TYPES}
    given = {name: dtype for name, dtype in TYPES.items() if rows or name not in ROWS}
    return Settings(**{name: input_(name, shape[name], dtype) for name, dtype in given.items()})


def sample(logits: Node, settings: Settings, parts: int = HALVES) -> Node:
    """The next token of each slot, int64 ``[slots]``, for ``logits [slots, vocabulary]`` of any float type; -1 where
    none may come. A pass over a row divides ranks into ``parts``, ``HALVES`` or ``AT_ONCE``, with the same results.
    Raises ShapeError for a vocabulary that has no number, or one of more than 2**20 tokens."""
    vocabulary = logits.shape[-1]
    if not isinstance(vocabulary, int) or vocabulary > _MOST:
        raise ShapeError(f"sample: expected at most 2**20 tokens, found logits of shape {list(logits.shape)}")
    x = _biased(cast(logits, f32), settings)
    largest = max_(x, 1, keepdims=True)
    chosen = argmax(x, 1)
    greedy = equal(settings.temperature, 0.0)

    def drawn() -> list[Node]:
        return [select(greedy, chosen, _drawn(rank(x), _weights(x, largest, settings), settings, parts))]

    (token,) = cond(all_(greedy), lambda: [chosen], drawn) if parts == HALVES else drawn()
    return select(equal(reshape(largest, token.shape), -math.inf), -1, token)


def likeliest(logits: Node) -> Node:
    """What ``sample`` gives by settings that change nothing: the token of the largest logit of each slot, int64
    ``[slots]``; -1 where none may come."""
    x = cast(logits, f32)
    x = select(isnan(x), -math.inf, x)
    return select(equal(max_(x, 1), -math.inf), -1, argmax(x, 1))


def _column(setting: Node) -> Node:
    return reshape(setting, [setting.shape[0], 1])


def _biased(x: Node, settings: Settings) -> Node:
    """The logits with penalties and bias; NaN is -inf."""
    if settings.counts is None or settings.prompted is None or settings.bias is None:
        x = x + 0.0  # -0 is 0 then, as with a bias of 0
        return select(isnan(x), -math.inf, x)
    count = cast(settings.counts, f32)
    repetition = _column(settings.repetition)
    penalised = select(less(x, 0.0), x * repetition, x / repetition)
    x = select(settings.prompted | less(0, settings.counts), penalised, x)
    x = x - count * _column(settings.frequency) - minimum(count, 1.0) * _column(settings.presence)
    x = x + settings.bias
    return select(isnan(x), -math.inf, x)


def _weights(x: Node, largest: Node, settings: Settings) -> Node:
    """``exp`` of the distance from the largest over the temperature, in 0 .. 1, float32."""
    temperature = _column(settings.temperature)
    distance = (x - largest) / select(equal(temperature, 0.0), 1.0, temperature)
    weight = select(equal(x, largest), 1.0, exp(distance))  # a distance of infinities, or over 0, is NaN
    return select(equal(x, -math.inf), 0.0, weight)


def _drawn(ranks: Node, weight: Node, settings: Settings, parts: int) -> Node:
    """A token of each slot, int64, of those that are kept, as likely as its weight is of theirs."""
    fixed = cast(weight * 2.0**_POINT, i64)
    # The k largest: those of a rank above `least`, and the first `ties` of that rank.
    few = less(0, settings.top_k) & less(settings.top_k, dim(ranks.shape[1]))
    least = _least(few, settings.top_k, ranks, parts, lambda above: sum_(above, 2))
    ties = settings.top_k - sum_(_above(ranks, least), 1)
    ranked = _sum_of(_above(ranks, least), fixed) + ties * _each(ranks, least, fixed)
    total = select(few, ranked, sum_(fixed, 1))
    # Of these the fewest whose weights have a sum of at least `wanted`, which reach no further than they do.
    part = cast(minimum(maximum(settings.top_p, 0.0), 1.0) * 2.0**32, u64)
    wanted = maximum(_part_of(total, part), 1)
    nucleus = less(settings.top_p, 1.0)
    lower = _least(nucleus, wanted, ranks, parts, lambda above: sum_(select(above, unsqueeze(fixed, [1]), 0), 2))
    each = maximum(_each(ranks, lower, fixed), 1)
    needed = (wanted - _sum_of(_above(ranks, lower), fixed) + each - 1) / each
    least, ties = select(nucleus, lower, least), select(nucleus, needed, ties)
    # And of these those of at least `min_p` of the largest, whose weight is 1.
    likely = less_equal(_column(settings.min_p), weight)
    open_ = logical_not(few | nucleus)
    above = likely & (_column(open_) | _above(ranks, least))
    equals = likely & _column(logical_not(open_)) & _equal(ranks, least)
    # A place in the sum of what is kept: in a token above `least`, or in one of the ties, which weigh the same.
    certain = _sum_of(above, fixed)
    each = max_(select(equals, fixed, 0), 1)
    place = _draw(certain + ties * each, settings)
    within = less(place, certain)
    number = (place - certain) / maximum(each, 1)
    counted = select(_column(within), select(above, fixed, 0), cast(equals, i64))
    return _found(counted, select(within, place, number))


def _above(ranks: Node, least: Node) -> Node:
    return less(cast(_column(least), i32), ranks)


def _equal(ranks: Node, least: Node) -> Node:
    return equal(cast(_column(least), i32), ranks)


def _sum_of(where: Node, weights: Node) -> Node:
    return sum_(select(where, weights, 0), 1)


def _each(ranks: Node, least: Node, weights: Node) -> Node:
    """The weight of the elements of rank ``least``; 0 where there are none."""
    return max_(select(_equal(ranks, least), weights, 0), 1)


def _least(asked: Node, limit: Node, ranks: Node, parts: int, measure: Callable[[Node], Node]) -> Node:
    """The least rank for which the ``measure`` of the elements above it is below ``limit``, int64 ``[slots]``, where it
    is ``asked`` for. It falls as the rank rises: of the bounds between the ``parts`` of a range, the last for which it
    is not below and the first for which it is are the next range. ``measure`` takes such of ``[slots, bounds,
    vocabulary]``, and gives ``[slots, bounds]``."""
    slots = limit.shape[0]

    def more(carried: Sequence[Node]) -> Node:
        low, high = carried
        return any_(less(1, high - low))

    def step(carried: Sequence[Node]) -> Sequence[Node]:
        low, high = carried
        bounds = _column(low) + _column(high - low) * (iota(parts - 1) + 1) / parts
        above = less(cast(reshape(bounds, [slots, parts - 1, 1]), i32), unsqueeze(ranks, [1]))
        below = less(measure(above), _column(limit))
        return max_(select(below, _column(low), bounds), 1), min_(select(below, bounds, _column(high)), 1)

    highest = expand(constant(_INFINITY, i64), limit.shape)
    ends: Sequence[Node] = [select(asked, -_INFINITY - 2, highest), highest]
    if parts == HALVES:
        return while_loop(more, step, ends)[1]
    width = 2 * _INFINITY + 2
    while width > 1:
        ends, width = step(ends), -(-width // parts)
    return ends[1]


def _halves(x: Node) -> tuple[Node, Node]:
    """The high and the low 32 bits of an int64 that is not negative, as uint64."""
    wide = bitcast(x, u64)
    return binary(ops.SHR, wide, 32), wide & 0xFFFFFFFF


def _part_of(total: Node, part: Node) -> Node:
    """``total * part / 2**32``, rounded up, for a part of at most ``2**32``."""
    high, low = _halves(total)
    return bitcast(high * part + binary(ops.SHR, low * part + 0xFFFFFFFF, 32), i64)


def _draw(total: Node, settings: Settings) -> Node:
    """An integer of 0 .. total - 1 (0 for a total of 0), by 64 random bits: each is as likely as the next, up to
    ``2 / total`` of it."""
    zero = expand(constant(0, u32), total.shape)
    seed_high, seed_low = (cast(half, u32) for half in _halves(settings.seed))
    step_high, step_low = (cast(half, u32) for half in _halves(settings.step))
    first, second, *_ = random.philox((step_low, step_high, zero, zero), (seed_low, seed_high))
    high, low = _halves(total)
    first, second = cast(first, u64), cast(second, u64)
    return bitcast(high * first + binary(ops.SHR, low * first, 32) + binary(ops.SHR, high * second, 32), i64)


def _found(weights: Node, place: Node) -> Node:
    """The first token of each slot at which the running sum of ``weights`` is above ``place``."""
    slots, vocabulary = weights.shape
    assert isinstance(vocabulary, int)
    blocks = -(-vocabulary // _BLOCK)
    padded = reshape(pad(weights, [0, 0], [0, blocks * _BLOCK - vocabulary]), [slots, blocks, _BLOCK])
    heights = cumsum(sum_(padded, 2), 1)
    passed = less_equal(heights, _column(place))
    block = minimum(sum_(passed, 1), blocks - 1)
    before = max_(select(passed, heights, 0), 1)
    row = gather(reshape(padded, [slots * blocks, _BLOCK]), iota(slots) * blocks + block, 0)
    inside = less_equal(cumsum(row, 1), _column(place - before))
    return minimum(block * _BLOCK + sum_(inside, 1), vocabulary - 1)


def graph(slots: int, vocabulary: int, parts: int = HALVES, rows: bool = True) -> Graph:
    """``sample`` as a model of its own: of the input ``logits`` and the settings, the output ``token``."""
    logits, settings = input_("logits", (slots, vocabulary), f32), inputs(slots, vocabulary, rows)
    return Graph("sample", (logits, *settings.nodes), (("token", sample(logits, settings, parts)),))
