"""Encoders of text as graphs of primitives: BERT and those that are built like it, from a checkpoint.

An encoder is an embedding of words, places and kinds of text, and layers of attention and a feed-forward network, each
followed by a norm (Devlin et al., "BERT", 2019). What families call things is a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.attention import scaled_dot_product_attention
from luminal.core.decompose.compare import not_equal
from luminal.core.decompose.contraction import linear
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.indexing import embedding, take
from luminal.core.decompose.normalize import layer_norm
from luminal.core.errors import ModelError, UnsupportedError, nearest
from luminal.core.ir import Graph, Node, cast, input_, iota
from luminal.core.movement import reshape, transpose, unsqueeze
from luminal.core.types import i64
from luminal.frontends.llm.checkpoint import Checkpoint, missing
from luminal.frontends.llm.graph import ACTIVATIONS
from luminal.frontends.llm.settings import Settings

TOKENS, MASK, KINDS, RESULT = "input_ids", "attention_mask", "token_type_ids", "last_hidden_state"

# By role, the stem of a tensor's name: without what all names of a checkpoint begin with; ``#`` is a layer's number.
_BERT: Mapping[str, str] = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "query": "encoder.layer.#.attention.self.query",
    "key": "encoder.layer.#.attention.self.key",
    "value": "encoder.layer.#.attention.self.value",
    "out": "encoder.layer.#.attention.output.dense",
    "attention_norm": "encoder.layer.#.attention.output.LayerNorm",
    "up": "encoder.layer.#.intermediate.dense",
    "down": "encoder.layer.#.output.dense",
    "network_norm": "encoder.layer.#.output.LayerNorm",
}
_DISTILBERT: Mapping[str, str] = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
    "query": "transformer.layer.#.attention.q_lin",
    "key": "transformer.layer.#.attention.k_lin",
    "value": "transformer.layer.#.attention.v_lin",
    "out": "transformer.layer.#.attention.out_lin",
    "attention_norm": "transformer.layer.#.sa_layer_norm",
    "up": "transformer.layer.#.ffn.lin1",
    "down": "transformer.layer.#.ffn.lin2",
    "network_norm": "transformer.layer.#.output_layer_norm",
}


@dataclass(frozen=True)
class Family:
    """What sets a family apart. Where places ``follow_padding``, those of words are counted from the number of the
    padding word on, and padding has that number itself."""

    names: Mapping[str, str]
    follow_padding: bool = False


FAMILIES: Mapping[str, Family] = {
    "bert": Family(_BERT),
    "roberta": Family(_BERT, follow_padding=True),
    "xlm-roberta": Family(_BERT, follow_padding=True),
    "distilbert": Family(_DISTILBERT),
}
_ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
}  # fmt: skip
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "quantization_config": (None,),
}
_BESIDE = ("embeddings.position_ids", "embeddings.token_type_ids")  # no weights
_MOST_LAYERS = 1 << 14


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of an encoder that is known here."""
    return config.get("model_type") in FAMILIES


@dataclass(frozen=True)
class Encoder:
    """An encoder in a checkpoint. Raises UnsupportedError for what is not supported, ModelError for a config or tensors
    that do not make a model."""

    checkpoint: Checkpoint

    def __post_init__(self) -> None:
        kind = self.kind
        if kind not in FAMILIES:
            raise UnsupportedError(
                f"the model's type: expected one of {', '.join(FAMILIES)}, found {kind!r}{nearest(kind, FAMILIES)}"
            )
        for setting, allowed in _REFUSED.items():
            if self._settings.given.get(setting) not in allowed:
                found = self._settings.given[setting]
                raise UnsupportedError(f"the config's {setting!r}: expected {allowed[-1]!r}, found {found!r}")
        if self.width % self.heads:
            raise ModelError(f"expected a width that {self.heads} heads divide, found {self.width}")

    @property
    def kind(self) -> str:
        return str(self.checkpoint.config.get("model_type"))

    @property
    def _settings(self) -> Settings:
        return Settings(self.checkpoint.config, 0)

    @property
    def _family(self) -> Family:
        return FAMILIES[self.kind]

    @property
    def width(self) -> int:
        return self._settings.count("hidden_size", "dim")

    @property
    def heads(self) -> int:
        return self._settings.count("num_attention_heads", "n_heads")

    @property
    def _padding(self) -> int:
        """The number of the padding word, from which places are counted, if they are."""
        return self._settings.count("pad_token_id", default=1) if self._family.follow_padding else -1

    @property
    def made_for(self) -> int:
        """The most tokens of a text."""
        return self._settings.count("max_position_embeddings") - (self._padding + 1)

    def graph(self, name: str, batch: int, context: int) -> Graph:
        """The states of the last layer, ``last_hidden_state float32[batch, length, width]``, of up to ``batch`` texts
        of up to ``context`` tokens."""
        rows, length = sym.var("batch", 1, batch), sym.var("length", 1, context)
        tokens, mask = (input_(what, (rows, length), i64) for what in (TOKENS, MASK))
        given = [tokens, mask]
        tensors = _Tensors(self.checkpoint, self._family.names)
        x = embedding(tensors.matrix("words", self._settings.count("vocab_size"), self.width), tokens)
        places = tensors.matrix("places", self._settings.count("max_position_embeddings"), self.width)
        if self._family.follow_padding:
            words = cast(not_equal(tokens, self._padding), i64)
            x = x + embedding(places, cumsum(words, 1) * words + self._padding)
        else:
            x = x + take(places, iota(length))
        if "kinds" in self._family.names:
            kinds = input_(KINDS, (rows, length), i64)
            given.append(kinds)
            x = x + embedding(tensors.matrix("kinds", self._settings.count("type_vocab_size"), self.width), kinds)
        x = self._norm(tensors, "norm", x)
        seen = unsqueeze(not_equal(mask, 0), [1, 2])
        for number in range(self._settings.count("num_hidden_layers", "n_layers", most=_MOST_LAYERS)):
            x = self._layer(tensors, number, x, seen)
        tensors.check_all_are_read()
        names = {node: name for node, name in tensors.names.items() if node.op is ops.CONSTANT}
        sizes = tuple(size for extent in (rows, length) for size in sym.variables(extent))
        return Graph(name, tuple(given), ((RESULT, x),), sizes, names=names)

    def _layer(self, tensors: _Tensors, number: int, x: Node, seen: Node) -> Node:
        width, inner = self.width, self._settings.count("intermediate_size", "hidden_dim")
        activation = ACTIVATIONS[self._settings.one_of(_ACTIVATIONS, "hidden_act", "activation")]

        def dense(role: str, y: Node, outputs: int, inputs: int) -> Node:
            return linear(
                y, tensors.matrix(role, outputs, inputs, number), tensors.vector(role, "bias", outputs, number)
            )

        def by_head(role: str) -> Node:
            found = dense(role, x, width, width)
            return transpose(reshape(found, [*x.shape[:2], self.heads, width // self.heads]), 1, 2)

        result = scaled_dot_product_attention(by_head("query"), by_head("key"), by_head("value"), seen)
        joined = reshape(transpose(result, 1, 2), x.shape)
        x = self._norm(tensors, "attention_norm", x + dense("out", joined, width, width), number)
        added = dense("down", activation(dense("up", x, inner, width)), width, inner)
        return self._norm(tensors, "network_norm", x + added, number)

    def _norm(self, tensors: _Tensors, role: str, x: Node, number: int = 0) -> Node:
        weight, bias = (tensors.vector(role, part, self.width, number) for part in ("weight", "bias"))
        return layer_norm(x, -1, weight, bias, self._settings.real("layer_norm_eps", default=1e-12))


class _Tensors:
    """The tensors of a checkpoint by role; which were read is kept account of."""

    def __init__(self, checkpoint: Checkpoint, stems: Mapping[str, str]) -> None:
        self.names: dict[Node, str] = {}
        self._checkpoint, self._stems = checkpoint, stems
        known, suffix = checkpoint.names(), f"{stems['words']}.weight"
        found = sorted(name for name in known if name == suffix or name.endswith(f".{suffix}"))
        if len(found) != 1:
            raise missing(suffix, known, "the checkpoint") if not found else ModelError(
                f"the checkpoint: expected one tensor {suffix!r}, found {', '.join(found)}"
            )  # fmt: skip
        self._prefix = found[0].removesuffix(suffix)
        self._read: set[str] = set()

    def matrix(self, role: str, rows: int, columns: int, number: int = 0) -> Node:
        return self._tensor(role, "weight", (rows, columns), number)

    def vector(self, role: str, part: str, size: int, number: int = 0) -> Node:
        return self._tensor(role, part, (size,), number)

    def _tensor(self, role: str, part: str, shape: tuple[int, ...], number: int) -> Node:
        name = f"{self._prefix}{self._stems[role].replace('#', str(number))}.{part}"
        weight = self._checkpoint.weight(name)
        if weight.shape != shape:
            raise ModelError(f"the tensor {name!r}: expected the shape {list(shape)}, found {list(weight.shape)}")
        self._read.add(name)
        node = weight.node()
        self.names[node] = name
        return node

    def check_all_are_read(self) -> None:
        """Raises ModelError where the embeddings or layers, beside which a head may lie, have others."""
        parts = {stem.partition(".")[0] for stem in self._stems.values()}
        beside = {f"{self._prefix}{name}" for name in _BESIDE}
        others = sorted(
            name for name in set(self._checkpoint.names()) - self._read - beside
            if name.startswith(self._prefix) and name.removeprefix(self._prefix).partition(".")[0] in parts
        )  # fmt: skip
        if others:
            raise ModelError(
                f"the checkpoint has tensors that nothing reads: {', '.join(others[:4])}; {len(others)} in all"
            )
