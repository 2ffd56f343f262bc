"""Recurrent layers: scans along time, whose products with the input are one contraction before the loop.

A function here is one direction of one layer, over sequences ``[time, batch, features]``; front ends put directions and
layers together. Floats of fewer than 32 bits are computed in float32, the states included, and results rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias

from luminal.core.decompose.activation import sigmoid
from luminal.core.decompose.compare import clamp, less
from luminal.core.decompose.contraction import linear
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.hyperbolic import tanh
from luminal.core.decompose.indexing import reversed_sequences
from luminal.core.decompose.quantization import dynamic_product
from luminal.core.decompose.reduction import max_, sum_
from luminal.core.ir import Node, cast, iota, select
from luminal.core.movement import flip, permute, slice_, squeeze, transpose, unsqueeze
from luminal.core.structured import scan
from luminal.core.symbolic import floordiv
from luminal.core.types import DType, i64

Activation: TypeAlias = Callable[[Node], Node]


@dataclass(frozen=True)
class Weights:
    """Of the gates that ``order`` names by a letter each, one after the other along the first axis: ``input``
    ``[gates * hidden, features]`` and ``state`` ``[gates * hidden, width]``, each with a bias
    ``[gates * hidden]`` or none. ``h`` is the new state of a GRU, ``g`` what an LSTM adds to its cell."""

    order: str
    input: Node
    state: Node
    input_bias: Node | None = None
    state_bias: Node | None = None

    # Whether it matters which states of other sequences stand beside one: all then begin in the same step.
    together: ClassVar[bool] = False

    def from_input(self, x: Node) -> Node:
        """What all gates are given by the input."""
        return linear(x, self.input, self.input_bias)

    def from_state(self, state: Node) -> Node:
        """What all gates are given by the state."""
        return linear(state, self.state, self.state_bias)

    def counting(self, x: Node, inside: Node) -> Node:
        """An operand of a product, of which only what is ``inside`` counts; what the rest gives, nobody reads."""
        return x

    def of(self, x: Node, gate: str) -> Node:
        """The part of the last axis of ``x`` that belongs to ``gate``."""
        return self._part(x, gate, x.rank - 1)

    def state_of(self, gate: str) -> tuple[Node, Node | None]:
        """The weights of the state for ``gate``, and its bias."""
        bias = self.state_bias
        return self._part(self.state, gate, 0), None if bias is None else self._part(bias, gate, 0)

    def to(self, dtype: DType) -> Weights:
        """The same in another type."""
        biases = (None if bias is None else cast(bias, dtype) for bias in (self.input_bias, self.state_bias))
        return Weights(self.order, cast(self.input, dtype), cast(self.state, dtype), *biases)

    def _part(self, x: Node, gate: str, axis: int) -> Node:
        size = floordiv(x.shape[axis], len(self.order))
        return slice_(x, axis, size * self.order.index(gate), size)


@dataclass(frozen=True)
class QuantizedWeights(Weights):
    """Integers, with scales and zero points: one for all, or one for each row ``[gates * hidden]``. The operand of each
    product is quantised, too, by the range of the whole of it: of all time steps, or of the states of all sequences."""

    together: ClassVar[bool] = True

    input_scale: Node = field(kw_only=True)
    input_zero: Node = field(kw_only=True)
    state_scale: Node = field(kw_only=True)
    state_zero: Node = field(kw_only=True)

    def from_input(self, x: Node) -> Node:
        product = dynamic_product(x, transpose(self.input, 0, 1), self.input_scale, self.input_zero)
        return _biased(product, self.input_bias)

    def from_state(self, state: Node) -> Node:
        product = dynamic_product(state, transpose(self.state, 0, 1), self.state_scale, self.state_zero)
        return _biased(product, self.state_bias)

    def counting(self, x: Node, inside: Node) -> Node:
        return select(inside, x, 0)

    def to(self, dtype: DType) -> Weights:
        return self


def _biased(x: Node, bias: Node | None) -> Node:
    return x if bias is None else x + bias


@dataclass(frozen=True)
class Course:
    """How a layer runs along time: ``reverse`` from the end to the beginning; with ``lengths`` ``[batch]``, behind the
    end of a sequence its states stay and zeros are put out. ``clip`` limits what the gates' activations are given, but
    not what goes out of an LSTM's cell (as in onnxruntime)."""

    reverse: bool = False
    lengths: Node | None = None
    clip: float | None = None


def rnn(
    x: Node, weights: Weights, first: Node, course: Course, activation: Activation = tanh
) -> tuple[Node, Node]:  # fmt: skip
    """``h' = f(W x + b + R h + d)``. Returns all states ``[time, batch, hidden]`` and the last."""

    def cell(states: Sequence[Node], given: Node, weights: Weights) -> list[Node]:
        return [_clipped(activation, course)(given + weights.from_state(states[0]))]

    y, last = _run(cell, x, weights, [first], course)
    return y, last


def lstm(
    x: Node,
    weights: Weights,
    first: tuple[Node, Node],
    course: Course,
    activations: Sequence[Activation] = (sigmoid, tanh, tanh),
    peepholes: Mapping[str, Node] | None = None,
    projection: Node | None = None,
    coupled: bool = False,
) -> tuple[Node, Node, Node]:
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), its gates ``i``, ``f``, ``o``, and ``g``::

        c' = f * c + i * g        h' = o * tanh(c')

    ``first`` is ``(h, c)``. ``peepholes`` let gates see the cell, each by a vector ``[hidden]``; ``projection``
    ``[width, hidden]`` is applied to every new state (Sak et al., 2014); ``coupled`` takes ``1 - i`` for ``f``. Returns
    all states ``[time, batch, width]``, the last state, and the last cell.
    """
    gate, candidate = (_clipped(activation, course) for activation in activations[:2])
    compute = x.dtype.compute
    seen = {name: cast(vector, compute) for name, vector in (peepholes or {}).items()}

    def cell(states: Sequence[Node], given: Node, weights: Weights) -> list[Node]:
        h, c = states
        total = given + weights.from_state(h)

        def opened(name: str, memory: Node) -> Node:
            part = weights.of(total, name)
            return gate(part + memory * seen[name] if name in seen else part)

        i = opened("i", c)
        f = 1 - i if coupled else opened("f", c)
        following = f * c + i * candidate(weights.of(total, "g"))
        state = opened("o", following) * activations[2](following)
        return [state if projection is None else linear(state, cast(projection, compute)), following]

    y, h, c = _run(cell, x, weights, first, course)
    return y, h, c


def gru(
    x: Node,
    weights: Weights,
    first: Node,
    course: Course,
    activations: Sequence[Activation] = (sigmoid, tanh),
    reset_after: bool = True,
) -> tuple[Node, Node]:
    """Gated recurrent unit (Cho et al., 2014), its gates ``r`` and ``z``: ``h' = (1 - z) * n + z * h``, where ``n``
    sees ``r * h``, or, ``reset_after``, ``r`` times the product with ``h`` and its bias. Returns all states ``[time,
    batch, hidden]`` and the last."""
    gate, candidate = (_clipped(activation, course) for activation in activations)

    def cell(states: Sequence[Node], given: Node, weights: Weights) -> list[Node]:
        (h,) = states
        r, z = (gate(weights.of(given, name) + linear(h, *weights.state_of(name))) for name in "rz")
        matrix, bias = weights.state_of("h")
        seen = r * linear(h, matrix, bias) if reset_after else linear(r * h, matrix, bias)
        return [(1 - z) * candidate(weights.of(given, "h") + seen) + z * h]

    y, last = _run(cell, x, weights, [first], course)
    return y, last


def selective_scan(x: Node, step: Node, decay: Node, into: Node, out: Node, first: Node) -> tuple[Node, Node]:
    """A selective state space (Gu and Dao, 2023), along time. Its state ``h [batch, state, *channels]`` is ``first`` at
    the beginning::

        h' = exp(step * decay) * h + step * x * into        y = sum of h' * out over the state

    ``x`` is ``[time, batch, *channels]``. The others may be 1 along axes on which they do not depend: ``step`` is
    ``[time, batch, *channels]``, ``decay [state, *channels]``, and ``into`` and ``out`` are ``[time, batch, state,
    *channels]``. All are of one float type of 32 bits or more. Returns all ``y [time, batch, *channels]``, and the last
    state.
    """

    def move(states: Sequence[Node], elements: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        given, amount, written, read = elements
        kept = exp(unsqueeze(amount, [1]) * decay) * states[0]
        state = kept + unsqueeze(amount * given, [1]) * written
        return [state], [sum_(state * read, 1)]

    over = (x, step, into, out)
    if x.shape[0] == 1:
        (state,), (y,) = move([first], [squeeze(part, [0]) for part in over])
        return unsqueeze(y, [0]), state
    (state,), (y,) = scan(move, [first], over)
    return y, state


def _clipped(activation: Activation, course: Course) -> Activation:
    limit = course.clip
    return activation if limit is None else lambda x: activation(clamp(x, -limit, limit))


def _backwards(x: Node, lengths: Node) -> Node:
    """Each sequence of ``x [time, batch, ..]`` by itself, as far as it goes."""
    order = [1, 0, *range(2, x.rank)]
    return permute(reversed_sequences(permute(x, order), lengths), order)


def _run(
    cell: Callable[[Sequence[Node], Node, Weights], list[Node]],
    x: Node,
    weights: Weights,
    first: Sequence[Node],
    course: Course,
) -> list[Node]:
    """What ``cell`` makes of the states and of the input's product with its weights, along time: all first states, and
    each last state."""
    dtype, lengths = x.dtype, None if course.lengths is None else cast(course.lengths, i64)
    if lengths is not None and course.reverse and weights.together:
        y, *last = _run(cell, _backwards(x, lengths), weights, first, replace(course, reverse=False))
        return [_backwards(y, lengths), *last]
    weights, x = weights.to(dtype.compute), cast(x, dtype.compute)
    places = iota(x.shape[0])
    if lengths is not None:
        x = weights.counting(x, unsqueeze(less(places, max_(lengths)), [1, 2]))
    given = weights.from_input(x)
    over = [given] if lengths is None else [given, places]

    def step(states: Sequence[Node], elements: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        if lengths is None:
            following = cell(states, elements[0], weights)
            return following, following[:1]
        inside = unsqueeze(less(elements[1], lengths), [1])
        # The state behind the end of a sequence counts once more, before zeros take its place.
        counts = unsqueeze(less(elements[1], lengths + 1), [1])
        following = cell([weights.counting(states[0], counts), *states[1:]], elements[0], weights)
        kept = [select(inside, after, before) for before, after in zip(states, following, strict=True)]
        return kept, [select(inside, following[0], 0)]

    over = [flip(part, [0]) for part in over] if course.reverse else over
    last, (y,) = scan(step, [cast(state, dtype.compute) for state in first], over)
    return [cast(result, dtype) for result in (flip(y, [0]) if course.reverse else y, *last)]
