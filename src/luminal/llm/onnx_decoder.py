"""Decoders that are ONNX models: what their cache is among inputs and outputs becomes the state of a library.

Exporters write a step of a decoder as a model of tokens, a mask, positions, and for each layer the keys and values of
the positions before (``past_key_values.0.key``), which gives logits and the keys and values of all positions
(``present.0.key``): optimum with plain operators, where new rows are joined to the past ones, and onnxruntime-genai
with GroupQueryAttention, which puts them there. In both, the rows so far are those that the last call left. So the new
rows go into a state in place, and whatever reads all rows reads them there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Graph, Node, State, iota
from luminal.core.movement import concatenate, slice_, transpose, unsqueeze
from luminal.core.rewrite import remade
from luminal.core.symbolic import Int
from luminal.core.types import bool_, f32, i64, u8
from luminal.frontends.llm import graph as decoders
from luminal.frontends.llm.cache import Cache, Call, Room, first, last
from luminal.frontends.llm.checkpoint import Weight, missing
from luminal.frontends.llm.config import Attention, Config, Feed, Layer, Norm
from luminal.frontends.llm.files import json_file
from luminal.frontends.llm.onnx_files import CONFIG, GENAI
from luminal.frontends.llm.settings import Settings
from luminal.frontends.llm.tensors import Tensors
from luminal.frontends.onnx import importer
from luminal.frontends.onnx.reader import read

_TOKENS, _MASK, _PLACES, _LOGITS, _BRANCH = "input_ids", "attention_mask", "position_ids", "logits", "use_cache_branch"
_PAST = re.compile(r"past(?:_key_values)?[._](\d+)[._](key|value)s?$")
_PRESENT = re.compile(r"present(?:_key_values)?[._](\d+)[._](key|value)s?$")
_KINDS = ("key", "value")


@dataclass(frozen=True, eq=False)
class Model:
    """A decoder in an ONNX file, and what the folder says of it. Raises UnsupportedError where its inputs and outputs
    are not those of a decoder with a cache."""

    path: Path

    def __post_init__(self) -> None:
        known = {_TOKENS, _MASK, _PLACES, _BRANCH}
        strange = [name for name in self.declared if name not in known and not _PAST.match(name)]
        if _TOKENS not in self.declared or strange or not self.past or sorted(self.past) != sorted(self.present):
            raise UnsupportedError(
                f"{self.path}: expected a decoder with the inputs {_TOKENS}, {_MASK}, {_PLACES} and "
                "past_key_values.0.key, .., and the outputs logits and present.0.key, .., found the inputs "
                f"{', '.join(map(repr, self.declared))}; other models compile by luminal.compile"
            )
        if any(len(self.declared[name]) != 4 for name in self.past.values()):
            raise UnsupportedError(f"{self.path}: expected keys and values [batch, heads, positions, size]")

    # ---- what the folder says ----------------------------------------------------------------------------------------

    @cached_property
    def folder(self) -> Path:
        """Where the files lie that belong to the model: its own folder, or the one above."""
        here = self.path.parent
        return here.parent if here.name == "onnx" and not (here / CONFIG).is_file() else here

    @cached_property
    def config(self) -> Mapping[str, Any]:
        path = self.folder / CONFIG
        return json_file(path) if path.is_file() else {}

    @cached_property
    def _genai(self) -> Mapping[str, Any]:
        path = self.folder / GENAI
        return Settings(json_file(path), 0).mapping("model") if path.is_file() else {}

    @property
    def made_for(self) -> int | None:
        """The most positions that the model was made for, if that is known."""
        for given, names in ((self.config, ("max_position_embeddings", "n_positions")),
                             (self._genai, ("context_length",))):  # fmt: skip
            if any(given.get(name) is not None for name in names):
                return Settings(given, 0).count(*names)
        return None

    @property
    def ends(self) -> Any:
        """The tokens that end an answer, where onnxruntime-genai has written them."""
        return self._genai.get("eos_token_id")

    # ---- what the file says ------------------------------------------------------------------------------------------

    @cached_property
    def _proto(self) -> Any:
        return read(self.path)[0]

    @cached_property
    def declared(self) -> dict[str, list[int]]:
        """Inputs with their shapes, 0 for sizes that are open."""
        found = importer.declared(self._proto)
        return {value.name: [int(axis.dim_value) for axis in value.type.tensor_type.shape.dim] for value in found}

    @cached_property
    def past(self) -> dict[tuple[int, str], str]:
        """The inputs with keys and values, by layer and kind."""
        return _numbered(_PAST, list(self.declared))

    @cached_property
    def present(self) -> dict[tuple[int, str], str]:
        """The outputs with keys and values, by layer and kind."""
        return _numbered(_PRESENT, [value.name for value in self._proto.graph.output])

    def graph(self, context: int, length: Int) -> Graph:
        """A step of one sequence, of ``length`` tokens behind those of up to ``context`` in the cache."""
        count: int | str = length if isinstance(length, int) else str(length)
        whole = f"past + {count}"
        shapes: dict[str, list[int | str]] = {_TOKENS: [1, count], _MASK: [1, whole], _PLACES: [1, count]}
        shapes |= {name: [1, self.fixed(name, 1), "past", self.fixed(name, 3)] for name in self.past.values()}
        constants = {_BRANCH: np.array([True])} if _BRANCH in self.declared else None
        dims: dict[str, Any] = {"past": (0, context - 1)}
        if not isinstance(length, int):
            dims[str(length)] = (1, sym.upper(length))
        return importer.load(self.path, dims=dims, constants=constants, name="decoder", shapes=shapes)

    def fixed(self, name: str, axis: int) -> int:
        """The size of an input's axis. Raises UnsupportedError where it is open."""
        found = self.declared[name][axis]
        if found < 1:
            raise UnsupportedError(
                f"{self.path}: the input {name!r} leaves axis {axis} open: expected a fixed number of heads and of "
                "their features"
            )
        return found

    # ---- as a checkpoint, whose tensors the graph brings along -------------------------------------------------------

    def names(self) -> Sequence[str]:
        return ()

    def weight(self, name: str) -> Weight:
        raise missing(name, (), str(self.path))

    def entries(self, name: str, room: Room, parts: int) -> tuple[int, dict[str, Graph]]:
        """The size of the vocabulary, and the entries of a library. ``parts`` are those of ``sampling.sample``."""
        once = self.graph(room.context, 1)
        logits = dict(once.outputs).get(_LOGITS)
        if logits is None or logits.rank != 3 or not isinstance(logits.shape[2], int):
            found = "none" if logits is None else str(list(logits.shape))
            raise UnsupportedError(f"{self.path}: expected {_LOGITS} [batch, tokens, vocabulary], found {found}")
        made = Imported(name, self, logits.shape[2], room, parts)
        return logits.shape[2], decoders.entries(made, 1)


def _numbered(form: re.Pattern[str], names: Sequence[str]) -> dict[tuple[int, str], str]:
    found = [(match, name) for name in names if (match := form.match(name))]
    return dict(sorted(((int(match[1]), match[2]), name) for match, name in found))


class Imported(decoders.Decoder):
    """A decoder of which an ONNX model says what a step computes."""

    def __init__(self, name: str, model: Model, vocabulary: int, room: Room, parts: int) -> None:
        self.model = model
        layers = []
        for number in sorted({number for number, _ in model.past}):
            keys, values = (model.past.get((number, kind)) for kind in _KINDS)
            if keys is None or values is None or model.declared[keys] != model.declared[values]:
                raise UnsupportedError(f"{model.path}: expected keys and values of layer {number}, of one shape")
            heads, size = model.fixed(keys, 1), model.fixed(keys, 3)
            # The file itself says what else a layer computes.
            layers.append(Layer(Attention(heads, heads, size, 1.0), Feed(1, "relu"), Norm(0.0)))
        config = Config(vocabulary, 1, room.context, tuple(layers), Norm(0.0))
        super().__init__(name, config, Tensors(model, {}), room, parts)
        self._numbers = sorted({number for number, _ in model.past})

    def step(self, batch: Int, length: Int, drawn: bool = False) -> Graph:
        """``tokens int64[1, length]`` behind the ``past`` ones, whose number the shape of an input says; ``drawn`` as
        for others."""
        assert batch == 1
        room = self.room
        found = self.model.graph(room.context, length)
        inputs = {str(node.attr.name): node for node in found.inputs}
        past, count = inputs[next(iter(self.model.past.values()))].shape[2], inputs[_TOKENS].shape[1]
        tokens, start = ir.input_("tokens", (1, count), i64), ir.input_("positions", (1,), i64)
        places = unsqueeze(iota(count) + ir.dim(past), [0])
        call = Call(room, first(room), 1, count, places, ir.expand(ir.constant(True, bool_), (1,)))
        by = {inputs[_TOKENS]: ir.cast(tokens, inputs[_TOKENS].dtype)}
        if _MASK in inputs:
            by[inputs[_MASK]] = ir.expand(ir.constant(1, inputs[_MASK].dtype), inputs[_MASK].shape)
        if _PLACES in inputs:
            by[inputs[_PLACES]] = ir.cast(places, inputs[_PLACES].dtype)
        origins = dict(found.origins)
        scores, left, measured = self._with_states(found, inputs, by, call, past, origins)
        settings, results = self._drawn(ir.cast(scores, f32)) if drawn else ((), ())
        row = ir.cast(last(scores, 1), f32)
        left[self.logits] = ir.scatter(self.logits.input, call.slot(), row, 0)
        self.tensors.names.update(found.names)
        carriers = [ir.input_("past", (past,), u8)]
        made = self._graph((*carriers, tokens, start, *settings), results, left)
        sizes = tuple(dict.fromkeys((*made.dims, *found.dims)))
        kept = set(traverse.everything([*made.results]))
        return Graph(
            made.name, made.inputs, made.outputs, sizes, {n: o for n, o in origins.items() if n in kept}, made.names,
            states=made.states, measured=measured,
        )  # fmt: skip

    def _with_states(
        self, found: Graph, inputs: Mapping[str, Node], by: Mapping[Node, Node], call: Call, past: Int,
        origins: ir.Origins,
    ) -> tuple[Node, dict[State, Node], ir.Measured]:  # fmt: skip
        """The logits, what is left in the states, and the sizes that data decides, with the nodes ``by`` in the places
        of inputs."""
        outputs = dict(found.outputs)
        left: dict[State, Node] = {}
        given, held = dict(by), {}
        for (number, kind), name in self.model.past.items():
            cached, node = self.caches[self._numbers.index(number)], inputs[name]
            assert isinstance(cached, Cache)
            given[node] = ir.cast(self._rows(cached, kind, self._state(cached, kind).input, past), node.dtype)
            held[outputs[self.model.present[number, kind]]] = (cached, kind, node)

        def make(node: Node, operands: Sequence[Node]) -> Node:
            if node in given:
                return given[node]
            if node not in held:
                return traverse.rebuild(node, operands)
            cached, kind, before = held[node]
            new = _newest(node, operands, before, past, call.length)
            state = self._state(cached, kind)
            # Rows of keys and of values lie otherwise; the cache puts both.
            wide = ir.cast(new, f32)
            left[state] = cached.put(call, wide, wide, cached.row(call.at))[_KINDS.index(kind)]
            return ir.cast(self._rows(cached, kind, left[state], past + call.length), node.dtype)

        made = remade([outputs[_LOGITS], *found.measured.values(), *held], origins, make)
        return made[0], left, dict(zip(found.measured, made[1:], strict=False))

    def _state(self, cached: Cache, kind: str) -> State:
        return cached.states[_KINDS.index(kind)]

    def _rows(self, cached: Cache, kind: str, node: Node, count: Int) -> Node:
        """A view of the first rows of a state: ``[1, kv heads, count, head size]``."""
        keys, values = (node if kind == other else self._state(cached, other).input for other in _KINDS)
        seen = cached.get(first(self.room), 1, (keys, values))[_KINDS.index(kind)]
        return slice_(transpose(seen, 2, 3) if kind == "key" else seen, 2, 0, count)


def _newest(node: Node, operands: Sequence[Node], before: Node, past: Int, count: Int) -> Node:
    """The last ``count`` rows of all, ``[1, kv heads, past + count, head size]``, which ``node`` has, of its new
    ``operands``; without the rows ``before`` where it is known how they came together."""
    shape = (*before.shape[:2], count, before.shape[3])
    if node.op is ops.SELECT:
        new = slice_(node.inputs[2], 2, past, count)
        if concatenate([before, new], 2) is node:
            return slice_(operands[2], 2, past, count)
    if node.op is ops.SCATTER and node.attr.axis == 2 and node.attr.by is None and operands[2].shape == shape:
        return operands[2]
    whole = traverse.rebuild(node, operands)
    if whole.shape != (*before.shape[:2], past + count, before.shape[3]):
        raise UnsupportedError(
            f"a cache: expected an output {[*before.shape[:2], past + count, before.shape[3]]}, found "
            f"{list(whole.shape)}"
        )
    return slice_(whole, 2, past, count)
