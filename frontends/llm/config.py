"""What a decoder computes, as data: no family of models is named here.

A decoder is an embedding, layers, a norm and a head. A layer adds attention, and then a feed-forward network, to what
runs through it; each reads a norm of that, and may be followed by another. The tensors have names by their roles, which
``graph.py`` asks for: where in a checkpoint they lie is known to ``families.py``.
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
    A pair is two neighbours where ``interleaved``, else an element of the first half and one of the second."""

    frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True)
class Attention:
    """Attention of ``heads`` queries, which share ``kv_heads`` keys and values, each of ``head_size`` features.

    A position sees itself and what is before it, with a ``window`` only the last so many. Scores are multiplied by
    ``scale`` and, with a ``cap``, become ``cap * tanh(scores / cap)``. Where there is a ``norm``, it is that of each
    query and key, over a head's features, or all heads' where ``norm_whole``.
    """

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    rotary: Rotary | None = None
    cap: float = 0.0
    norm: Norm | None = None
    norm_whole: bool = False


@dataclass(frozen=True)
class Feed:
    """A feed-forward network of ``width`` hidden features: ``down(activation(up(x)))``, where ``gated``
    ``down(activation(gate(x)) * up(x))``."""

    width: int
    activation: Activation
    gated: bool = True


@dataclass(frozen=True)
class Experts:
    """Of ``count`` feed-forward networks, a router chooses ``chosen`` for each position, and sums their results by its
    softmax of all scores; ``normalised``, the shares of the chosen are divided by their sum. A network ``shared`` by
    all positions, if any, is added; where ``shared_gated``, times a sigmoid."""

    count: int
    chosen: int
    network: Feed
    normalised: bool
    shared: Feed | None = None
    shared_gated: bool = False


@dataclass(frozen=True)
class Layer:
    """One layer. ``norms_after`` are those of what attention and network give, before it is added; ``parallel``, the
    network reads what attention read."""

    attention: Attention
    network: Feed | Experts
    norm: Norm
    norms_before: bool = True
    norms_after: bool = False
    residual: float = 1.0  # a factor on what is added


@dataclass(frozen=True)
class Config:
    """A decoder of ``width`` features. ``context`` is the most positions that it was made for."""

    vocabulary: int
    width: int
    context: int
    layers: tuple[Layer, ...]
    norm: Norm
    embedding_factor: float = 1.0
    learned_positions: bool = False
    logits_cap: float = 0.0
    logits_factor: float = 1.0
