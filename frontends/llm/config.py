"""What a decoder computes, as data: no family of models is named here.

A decoder is an embedding, layers, a norm and a head. A layer adds attention or a recurrence, and then a feed-forward
network, to what runs through it; each reads a norm of that, and may be followed by another. The tensors have names by
their roles, which ``graph.py`` asks for: where in a checkpoint they lie is known to ``families.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class Norm:
    """A norm over the features: of root mean squares, or a layer norm where it is ``centred``. Weights have ``offset``
    added to them."""

    eps: float
    centred: bool = False
    offset: float = 0.0


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: the angle by which each pair of features is turned per position, and a factor on the result.
    A pair is two neighbours where ``interleaved``, else an element of the first half and one of the second. Features
    beyond the pairs stay as they are."""

    frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True)
class Attention:
    """Attention of ``heads`` queries, which share ``kv_heads`` keys and values, each of ``head_size`` features.

    A position sees itself and what is before it, with a ``window`` only the last so many. Scores are multiplied by
    ``scale`` and, with a ``cap``, become ``cap * tanh(scores / cap)``. Where there is a ``norm``, it is that of each
    query and each key.
    """

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    rotary: Rotary | None = None
    cap: float = 0.0
    norm: Norm | None = None


@dataclass(frozen=True)
class StateSpace:
    """A selective state space (Gu and Dao, 2023) of ``channels`` features, each of which keeps ``state`` numbers.

    What goes into it are sums over the last ``taps`` positions. Of these a matrix makes ``rank`` numbers, from which
    the steps of all channels come, and ``state`` numbers each by which the state is written and read; where there is a
    ``norm``, it is that of each of the three, without weights.
    """

    channels: int
    state: int
    taps: int
    rank: int
    activation: Activation
    norm: Norm | None = None

    @property
    def summed(self) -> int:
        """The features of which there are sums over positions."""
        return self.channels


@dataclass(frozen=True)
class HeadSpace:
    """A selective state space of ``heads`` of ``size`` channels each, which share a step and a decay (Dao and Gu,
    2024).

    Sums over the last ``taps`` positions give what goes into it, and for each of ``groups`` of heads the ``state``
    numbers by which it is written and read. The result is gated, and then normed in its groups by ``norm``.
    """

    heads: int
    size: int
    groups: int
    state: int
    taps: int
    activation: Activation
    norm: Norm

    @property
    def channels(self) -> int:
        return self.heads * self.size

    @property
    def summed(self) -> int:
        """The features of which there are sums over positions."""
        return self.channels + 2 * self.groups * self.state


@dataclass(frozen=True)
class Feed:
    """A feed-forward network of ``width`` hidden features: ``down(activation(up(x)))``, where ``gated``
    ``down(activation(gate(x)) * up(x))``."""

    width: int
    activation: Activation
    gated: bool = True


@dataclass(frozen=True)
class Experts:
    """Of ``count`` feed-forward networks, a router chooses ``chosen`` for each position, and their results are summed
    by its softmax of all scores; ``normalised``, the shares of the chosen are divided by their sum. What a network
    ``shared`` by all positions gives, if there is one, is added, times a sigmoid of its own."""

    count: int
    chosen: int
    network: Feed
    normalised: bool
    shared: Feed | None = None


@dataclass(frozen=True)
class Layer:
    """One layer: a mixer of positions, and a network of its own for each unless that is missing; its norms are all of
    one kind. With ``norms_after``, what these give is normed too, before it is added."""

    mixer: Attention | StateSpace | HeadSpace
    network: Feed | Experts | None
    norm: Norm
    norms_after: bool = False


@dataclass(frozen=True)
class Config:
    """A decoder of ``width`` features. ``context`` is the most positions that it was made for. Logits with a ``cap``
    become ``cap * tanh(logits / cap)``."""

    vocabulary: int
    width: int
    context: int
    layers: tuple[Layer, ...]
    norm: Norm
    embedding_factor: float = 1.0
    learned_positions: bool = False
    cap: float = 0.0

    @property
    def recurrent(self) -> bool:
        """Whether layers keep something of which only the last position's value is known."""
        return not all(isinstance(layer.mixer, Attention) for layer in self.layers)
