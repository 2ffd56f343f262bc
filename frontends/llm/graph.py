"""Decoders as graphs of primitives: the entries of a library for a language model.

============= ================================================================================================
``decode``    appends a token to each of several slots that lie side by side
``prefill``   appends tokens to one slot
``verify``    appends a token and drafts of what follows to one slot, and says what follows each, if there is room
``logits``    what the last token of a slot left
``sample``    a token of each slot, chosen by what the last one left
``draw``      the same where there are no settings of single tokens (penalties, bias): it reads no rows of these
``likeliest`` the same where no setting changes anything: it reads logits alone, and no condition
``read``      what the cache holds of a slot, and its logits
``write``     the same into a slot
``adapt``     an adapter's matrices into a place of those that there is room for, if any
============= ================================================================================================

The caller knows the length of each sequence. It says by the shapes of inputs, of which nothing else is read, which slot
is the first of a call (``slot``, as long as its number) and how many blocks of the cache are read (``span_ROWS``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.decompose import activation, experts, normalize
from luminal.core.decompose.attention import scaled_dot_product_attention
from luminal.core.decompose.compare import less, maximum
from luminal.core.decompose.contraction import linear, matmul
from luminal.core.decompose.hyperbolic import tanh
from luminal.core.decompose.indexing import embedding, take
from luminal.core.decompose.rotary import rotated
from luminal.core.ir import Graph, Node, State, iota, select
from luminal.core.movement import reshape, squeeze, transpose, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import f32, i64, u8
from luminal.frontends.llm import sampling
from luminal.frontends.llm.adapters import Adapters, Chosen
from luminal.frontends.llm.cache import Cache, Call, Room, blocks, empty, first, last
from luminal.frontends.llm.config import Activation, Attention, Config, Experts, Feed, Norm, Rotary
from luminal.frontends.llm.recurrence import Recurrence, mixed
from luminal.frontends.llm.tensors import Tensors

ACTIVATIONS = {
    "silu": activation.silu,
    "gelu": activation.gelu,
    "gelu_tanh": lambda x: activation.gelu(x, "tanh"),
    "relu": activation.relu,
}


def graphs(name: str, config: Config, tensors: Tensors, room: Room, parts: int = sampling.HALVES) -> dict[str, Graph]:
    """The entries of a library for a decoder, each by its name. ``parts`` are those of ``sampling.sample``."""
    return entries(Decoder(name, config, tensors, room, parts), sym.var("batch", 1, room.slots))


def entries(decoder: Decoder, batch: Int) -> dict[str, Graph]:
    """The entries of a library for a decoder, of which a step is of ``batch`` slots."""
    return {
        "decode": decoder.step(batch, 1),
        "prefill": decoder.step(1, sym.var("length", 1, decoder.room.chunk)),
        **({"verify": decoder.step(1, verified(decoder.room), drawn=True)} if decoder.room.speculate else {}),
        "logits": decoder.kept(),
        "sample": decoder.sample(),
        "draw": decoder.sample(rows=False),
        "likeliest": decoder.likeliest(),
        "read": decoder.read(),
        "write": decoder.write(),
        **({"adapt": decoder.adapt()} if decoder.room.adapters else {}),
    }


def verified(room: Room) -> Int:
    """The size that says how many tokens are verified: one and its drafts."""
    return sym.var("verified", 1, room.speculate + 1)


class Decoder:
    """A decoder and the states that it keeps."""

    def __init__(self, name: str, config: Config, tensors: Tensors, room: Room, parts: int = sampling.HALVES) -> None:
        self.name, self.config, self.tensors, self.room, self.parts = name, config, tensors, room, parts
        self.caches: list[Cache | Recurrence] = [
            Cache(number, mixer, room) if isinstance(mixer, Attention) else Recurrence(number, mixer, room)
            for number, mixer in enumerate(layer.mixer for layer in config.layers)
        ]
        self.states = [state for cached in self.caches for state in cached.states]
        self.adapters = Adapters(config, room)
        self.logits = empty("logits", (room.slots + 1, config.vocabulary))
        self._turns: dict[Rotary, tuple[Node, Node]] = {}

    # ---- entries -----------------------------------------------------------------------------------------------------

    def step(self, batch: Int, length: Int, drawn: bool = False) -> Graph:
        """``length`` tokens for each of ``batch`` slots. ``tokens`` are ``int64[batch, length]``, ``positions
        int64[batch]`` those of the first of them; a slot with a negative one is left alone. Where there is room for
        adapters, ``adapters int64[batch]`` and ``strengths float32[batch]`` choose them. Where they are ``drawn``, the
        results are what follows each token of the one slot, by settings that are inputs (``_drawn``)."""
        tokens, start = ir.input_("tokens", (batch, length), i64), ir.input_("positions", (batch,), i64)
        at = unsqueeze(maximum(start, 0), [1]) + iota(length)
        call = Call(self.room, first(self.room), batch, length, at, less(-1, start))
        chosen = Chosen.given(batch) if self.room.adapters else None
        x = embedding(self.tensors["embedding.weight"], tokens)
        x = x if self.config.embedding_factor == 1 else x * self.config.embedding_factor
        if self.config.learned_positions:
            x = x + embedding(self.tensors["positions.weight"], at)
        left: dict[State, Node] = {}
        measured: ir.Measured = {}
        with ir.measuring(measured):
            for number in range(len(self.config.layers)):
                x = self._layer(number, x, call, chosen, left)
        scores = self._linear("head", self._norm("norm", x if drawn else last(x, 1), self.config.norm))
        if self.config.cap:
            scores = tanh(scores / self.config.cap) * self.config.cap
        settings, results = self._drawn(scores) if drawn else ((), ())
        row = select(call.active, call.slot(), self.room.slots)
        left[self.logits] = ir.scatter(self.logits.input, row, last(scores, 1) if drawn else scores, 0)
        left |= {state: state.input for state in self.adapters.all()}
        choices = () if chosen is None else (chosen.number, chosen.strength)
        made = self._graph((tokens, start, *choices, *settings), results, left)
        return replace(made, dims=(*made.dims, *measured), measured=measured, approximations=self.room.approximations)

    def _drawn(self, scores: Node) -> tuple[tuple[Node, ...], tuple[tuple[str, Node], ...]]:
        """Of the logits ``[1, length, vocabulary]`` of a slot's tokens, the settings of a draw after each, and the
        results: ``token int64[length]``, what they choose, and ``scores float32[length, vocabulary]``."""
        rows = squeeze(scores, [0])
        settings = sampling.inputs(rows.shape[0], self.config.vocabulary)
        return settings.nodes, (("token", sampling.sample(rows, settings, self.parts)), ("scores", rows))

    def kept(self) -> Graph:
        """The logits of one slot: ``float32[vocabulary]``."""
        return self._graph((), (("logits_row", self._kept()),), {self.logits: self.logits.input})

    def sample(self, rows: bool = True) -> Graph:
        """The next token of each slot: ``int64[slots]``, of the settings that are its inputs; without ``rows``, none of
        these are of single tokens."""
        settings = sampling.inputs(self.room.slots, self.config.vocabulary, rows)
        return self._chosen(settings.nodes, sampling.sample(self._last_logits(), settings, self.parts))

    def likeliest(self) -> Graph:
        """The likeliest token of each slot: ``int64[slots]``."""
        return self._chosen((), sampling.likeliest(self._last_logits()))

    def _last_logits(self) -> Node:
        """The logits of each slot."""
        shape = (self.room.slots, self.config.vocabulary)
        return ir.view(self.logits.input, shape, ir.axes(shape))

    def _chosen(self, settings: tuple[Node, ...], token: Node) -> Graph:
        results = (("token", token), (self.logits.output, self.logits.input))
        return Graph(self.name, (*settings, self.logits.input), results, states=(self.logits,))

    def read(self) -> Graph:
        """The filled rows of one slot: of each layer ``keys [kv heads, head size, span]`` and ``values [kv heads, span,
        head size]``, their scales ``[kv heads, span]`` if they have any, or what a recurrence keeps; and its logits."""
        outputs: list[tuple[str, Node]] = []
        for cached in self.caches:
            outputs += [(f"{s.name}_rows", part) for s, part in zip(cached.states, cached.kept(), strict=True)]
        outputs.append(("logits_row", self._kept()))
        return self._graph((), outputs, {state: state.input for state in (*self.states, self.logits)})

    def write(self) -> Graph:
        """What ``read`` gives into one slot."""
        given: list[Node] = []
        left: dict[State, Node] = {}
        for cached in self.caches:
            rows = cached.given()
            given += rows
            left |= zip(cached.states, cached.restored(rows), strict=True)
        scores = ir.input_("logits_row", (self.config.vocabulary,), f32)
        slot = reshape(ir.dim(first(self.room)), [1])
        left[self.logits] = ir.scatter(self.logits.input, slot, unsqueeze(scores, [0]), 0)
        return self._graph((*given, scores), (), left)

    def adapt(self) -> Graph:
        """The matrices of an adapter into the place ``number int64[1]``."""
        number, given = ir.input_("number", (1,), i64), self.adapters.given()
        left = {state: ir.scatter(state.input, number, unsqueeze(node, [0]), 0) for state, node in given.items()}
        nodes = (number, *given.values(), *(state.input for state in left))
        return Graph(self.name, nodes, tuple((state.output, node) for state, node in left.items()), states=tuple(left))

    def _kept(self) -> Node:
        shape = (self.config.vocabulary,)
        return ir.view(self.logits.input, shape, [first(self.room), *ir.axes(shape)])

    def _graph(self, given: Sequence[Node], outputs: Sequence[tuple[str, Node]], left: Mapping[State, Node]) -> Graph:
        """An entry with the inputs ``given``, and those by whose shapes sizes are said."""
        rows = self.room.all_rows(self.config) if len(left) > 1 else []
        said = [("slot", first(self.room)), *((f"span_{count}", blocks(count)) for count in rows)]
        carriers = [ir.input_(name, (size,), u8) for name, size in said if not isinstance(size, int)]
        nodes = (*carriers, *given, *(state.input for state in left))
        results = (*outputs, *((state.output, node) for state, node in left.items()))
        sizes = {v: None for node in (*nodes, *left.values()) for size in node.shape for v in sym.variables(size)}
        names = {node: name for node, name in self.tensors.names.items() if node.op is ops.CONSTANT}
        return Graph(self.name, nodes, results, tuple(sizes), names=names, states=tuple(left))

    # ---- layers ------------------------------------------------------------------------------------------------------

    def _layer(self, number: int, x: Node, call: Call, chosen: Chosen | None, left: dict[State, Node]) -> Node:
        """``x [batch, length, width]`` after one layer; ``left`` gets what it leaves in its cache."""
        layer, name = self.config.layers[number], f"layers.{number}."

        def after(role: str, added: Node) -> Node:
            return self._norm(f"{name}{role}_after", added, layer.norm) if layer.norms_after else added

        seen = self._norm(f"{name}norm", x, layer.norm)
        mix = self._attention if isinstance(layer.mixer, Attention) else self._state_space
        x = x + after("norm", mix(number, seen, call, chosen, left))
        if layer.network is None:
            return x
        seen = self._norm(f"{name}network_norm", x, layer.norm)
        return x + after("network_norm", self._network(name, seen, layer.network, chosen))

    def _attention(self, number: int, x: Node, call: Call, chosen: Chosen | None, left: dict[State, Node]) -> Node:
        cached, name = self.caches[number], f"layers.{number}."
        assert isinstance(cached, Cache)
        attention = cached.attention
        query = self._heads(f"{name}query", x, attention.heads, attention, call, chosen)
        key = self._heads(f"{name}key", x, attention.kv_heads, attention, call, chosen)
        value = self._split(f"{name}value", x, attention.kv_heads, attention, chosen)
        stored = cached.put(call, key, value, cached.row(call.at))
        left |= zip(cached.states, stored, strict=True)
        keys, values, *scales = cached.get(call.first, call.batch, [ir.cast(part, f32) for part in stored])
        of_keys, of_values = scales or (None, None)
        seen = scaled_dot_product_attention(
            query, transpose(keys, -2, -1), values, cached.visible(call),
            scale=attention.scale, enable_gqa=True, softcap=attention.cap, k_scales=of_keys, v_scales=of_values,
        )  # fmt: skip
        joined = reshape(transpose(seen, 1, 2), [call.batch, call.length, attention.heads * attention.head_size])
        return self._linear(f"{name}out", joined, chosen)

    def _state_space(self, number: int, x: Node, call: Call, chosen: Chosen | None, left: dict[State, Node]) -> Node:
        held, name = self.caches[number], f"layers.{number}."
        assert isinstance(held, Recurrence)
        result, parts = mixed(
            held.form, x, held.get(call), lambda role, given: self._linear(name + role, given, chosen),
            lambda role: self.tensors[name + role], self.tensors.get(f"{name}taps.bias"),
            ACTIVATIONS[held.form.activation],
        )  # fmt: skip
        left |= zip(held.states, held.put(call, parts), strict=True)
        return result

    def _heads(self, role: str, x: Node, heads: int, attention: Attention, call: Call, chosen: Chosen | None) -> Node:
        """Queries or keys ``[batch, heads, length, head size]``, normed and turned by their positions."""
        found = self._split(role, x, heads, attention, chosen)
        if attention.norm is not None:
            found = self._norm(f"{role}_norm", found, attention.norm)
        if attention.rotary is None:
            return found
        cos, sin = (unsqueeze(take(table, call.at), [1]) for table in self._angles(attention.rotary))
        return rotated(found, cos, sin, attention.rotary.interleaved)

    def _angles(self, rotary: Rotary) -> tuple[Node, Node]:
        if rotary not in self._turns:
            self._turns[rotary] = angles(rotary, self.room.context)
        return self._turns[rotary]

    def _split(self, role: str, x: Node, heads: int, attention: Attention, chosen: Chosen | None) -> Node:
        found = self._linear(role, x, chosen)
        return transpose(reshape(found, [*x.shape[:2], heads, attention.head_size]), 1, 2)

    def _network(self, name: str, x: Node, network: Feed | Experts, adapters: Chosen | None) -> Node:
        if isinstance(network, Feed):
            return self._feed(name, x, network, adapters)
        rows = reshape(x, [x.shape[0] * x.shape[1], self.config.width])
        chosen, shares = experts.routes(self._linear(f"{name}router", rows), network.chosen, network.normalised)

        def each(given: Node, which: Node | None) -> Node:
            """Of rows ``[experts, rows, width]``; ``which`` are the numbers of the experts, if not all."""
            weights = [
                self.tensors[f"{name}experts.{role}.weight"]
                for role in (("gate", "up", "down") if network.network.gated else ("up", "down"))
            ]
            matrices = [transpose(w if which is None else take(w, which), 1, 2) for w in weights]
            *into, down = matrices
            inner = gated(network.network.activation, [matmul(given, matrix) for matrix in into])
            return matmul(inner, down)

        found = reshape(experts.mixture(rows, chosen, shares, each, network.count), x.shape)
        if network.shared is not None:
            share = activation.sigmoid(self._linear(f"{name}shared_router", x))
            found = found + share * self._feed(f"{name}shared.", x, network.shared, adapters)
        return found

    def _feed(self, name: str, x: Node, network: Feed, chosen: Chosen | None) -> Node:
        roles = ("gate", "up") if network.gated else ("up",)
        inner = gated(network.activation, [self._linear(name + role, x, chosen) for role in roles])
        return self._linear(f"{name}down", inner, chosen)

    def _linear(self, role: str, x: Node, chosen: Chosen | None = None) -> Node:
        found = linear(x, self.tensors[f"{role}.weight"], self.tensors.get(f"{role}.bias"))
        added = self.adapters.added(role, x, chosen)
        return found if added is None else found + added

    def _norm(self, role: str, x: Node, norm: Norm) -> Node:
        """A norm over the last axis."""
        weight = self.tensors[f"{role}.weight"]
        weight = weight if norm.offset == 0 else weight + norm.offset
        if norm.centred:
            return normalize.layer_norm(x, -1, weight, self.tensors[f"{role}.bias"], norm.eps)
        return normalize.rms_norm(x, -1, weight, norm.eps)


def gated(which: Activation, parts: Sequence[Node]) -> Node:
    """The activation of the first part, times the second if there is one."""
    head, *rest = parts
    result = ACTIVATIONS[which](head)
    return result * rest[0] if rest else result


def angles(rotary: Rotary, context: int) -> tuple[Node, Node]:
    """Cosines and sines ``[context, pairs]`` of all positions, computed in float64 and rounded once."""
    turns = np.arange(context, dtype=np.float64)[:, None] * np.array(rotary.frequencies)
    cos, sin = (ir.constant((f(turns) * rotary.factor).astype(np.float32)) for f in (np.cos, np.sin))
    return cos, sin
