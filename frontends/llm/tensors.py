"""The tensors that a decoder needs, by role: their shapes, and where in a checkpoint they lie."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from luminal.core import ops, traverse
from luminal.core.errors import ModelError
from luminal.core.ir import Graph, Node
from luminal.core.movement import concatenate, slice_, transpose, unsqueeze
from luminal.core.origins import Approximation
from luminal.frontends.llm.blocks import Kind
from luminal.frontends.llm.checkpoint import Checkpoint, Weight, missing
from luminal.frontends.llm.config import Attention, Config, Experts, Feed, HeadSpace, Layer, Norm, StateSpace
from luminal.frontends.llm.files import rounded


@dataclass(frozen=True)
class Packed:
    """A tensor under ``stem`` that holds those of several roles of a layer, one after the other along its outputs; or
    of one, ``transposed``, with its inputs first."""

    stem: str
    roles: tuple[str, ...] = ()
    transposed: bool = False


Place: TypeAlias = str | Packed
# By role, the places where its tensor may lie. Names are without what all of a checkpoint begin with, and without
# ``.weight``; ``#`` is the number of a layer, ``*`` that of an expert.
Names: TypeAlias = Mapping[str, tuple[Place, ...]]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

# Matrices that are read a row at a time, decide what is computed or are small: they stay as they are.
_NOT_ROUNDED = re.compile(r"(^positions|router|taps|selection|step|decay)\.weight$")
# Tensors of checkpoints that hold nothing which was learned.
_DERIVED = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")


@dataclass(frozen=True)
class Source:
    """Where a tensor lies: under a name, or under those of the experts, whose tensors are stacked; ``transposed``; and
    then ``count`` rows from ``first``."""

    names: tuple[str, ...]
    stacked: bool = False
    transposed: bool = False
    rows: tuple[int, int] | None = None
    packed: int = 0  # the rows of all roles that the tensor holds
    kind: Kind | None = None  # of the blocks that it is rounded to

    def shape(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """The shape of the tensor; of all roles together, where they do not fill what they are packed into."""
        found = list(checkpoint.weight(self.names[0]).shape)
        if self.transposed and len(found) > 1:
            found[-2:] = found[:-3:-1]
        if self.rows is not None and found:
            axis, (_, count) = max(len(found) - 2, 0), self.rows
            found[axis] = count if found[axis] == self.packed else found[axis]
        return (len(self.names), *found) if self.stacked else tuple(found)

    def is_rounded(self, checkpoint: Checkpoint) -> bool:
        """Whether the tensor is not what the checkpoint has: blocks stay, and so do rows that do not fill blocks."""
        weights = map(checkpoint.weight, self.names)
        return any(self._rounded(weight) is not weight for weight in weights)

    def node(self, checkpoint: Checkpoint) -> Node:
        parts = [self._part(checkpoint.weight(name)) for name in self.names]
        return concatenate([unsqueeze(part, [0]) for part in parts], 0) if self.stacked else parts[0]

    def _part(self, weight: Weight) -> Node:
        whole = self._rounded(weight).node()
        if self.transposed and whole.rank > 1:
            whole = transpose(whole, -2, -1)
        return whole if self.rows is None else slice_(whole, max(whole.rank - 2, 0), *self.rows)

    def _rounded(self, weight: Weight) -> Weight:
        return weight if self.kind is None else rounded(weight, self.kind, -2 if self.transposed else -1)


class Tensors:
    """The tensors of a decoder by role, as nodes in float32; each is made once, when it is asked for."""

    def __init__(self, checkpoint: Checkpoint, sources: Mapping[str, Source]) -> None:
        self.names: dict[Node, str] = {}  # of what was asked for so far
        self._checkpoint = checkpoint
        self._sources = sources
        self._made: dict[Source, Node] = {}

    def __getitem__(self, role: str) -> Node:
        source = self._sources[role]
        if source not in self._made:
            self._made[source] = source.node(self._checkpoint)
        node = self._made[source]
        for number, constant in enumerate(_constants(node)):
            self.names.setdefault(constant, source.names[0] + (f".{number}" if number else ""))
        return node

    def get(self, role: str) -> Node | None:
        """The tensor of a role that a decoder can be without, if it is there."""
        return self[role] if role in self._sources else None

    def approximations(self, graph: Graph) -> tuple[Approximation, ...]:
        """What is rounded of that which ``graph`` computes with."""
        read = set(traverse.topological(graph.roots))
        return tuple(
            Approximation("weights", f"{source.names[0]} in {str(source.kind).lower()}", ())
            for source, node in self._made.items()
            if source.is_rounded(self._checkpoint) and not read.isdisjoint(_constants(node))
        )


def _constants(node: Node) -> list[Node]:
    """The constants that ``node`` is computed from, without single numbers."""
    return [x for x in traverse.topological([node]) if x.op is ops.CONSTANT and x.size != 1]


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that a decoder cannot be without. Matrices have their outputs first."""
    found: dict[str, tuple[int, ...]] = {
        "embedding.weight": (config.vocabulary, config.width),
        "head.weight": (config.vocabulary, config.width),
    }
    if config.learned_positions:
        found["positions.weight"] = (config.context, config.width)
    found |= _of_norm("norm", config.norm, config.width)
    for number, layer in enumerate(config.layers):
        found |= {f"layers.{number}.{role}": shape for role, shape in _of_layer(layer, config.width)}
    return found


def _of_norm(role: str, norm: Norm, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{role}.{part}": (size,) for part in (("weight", "bias") if norm.centred else ("weight",))}


def _of_layer(layer: Layer, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for role in ("norm", *(("norm_after",) if layer.norms_after else ())):
        yield from _of_norm(role, layer.norm, width).items()
    if isinstance(layer.mixer, Attention):
        yield from _of_attention(layer.mixer, width)
    else:
        yield from _of_state_space(layer.mixer, width).items()
    network = layer.network
    if network is None:
        return
    for role in ("network_norm", *(("network_norm_after",) if layer.norms_after else ())):
        yield from _of_norm(role, layer.norm, width).items()
    if isinstance(network, Feed):
        yield from _of_network("", network, width)
        return
    assert isinstance(network, Experts)
    yield "router.weight", (network.count, width)
    yield from ((role, (network.count, *shape)) for role, shape in _of_network("experts.", network.network, width))
    if network.shared is not None:
        yield from _of_network("shared.", network.shared, width)
        yield "shared_router.weight", (1, width)


def _of_attention(attention: Attention, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries, keys = (count * attention.head_size for count in (attention.heads, attention.kv_heads))
    yield from (("query.weight", (queries, width)), ("out.weight", (width, queries)))
    yield from ((f"{role}.weight", (keys, width)) for role in ("key", "value"))
    if attention.norm is not None:
        for role in ("query_norm", "key_norm"):
            yield from _of_norm(role, attention.norm, attention.head_size).items()


def _of_state_space(form: StateSpace | HeadSpace, width: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "inner.weight": (form.summed, width),
        "gate.weight": (form.channels, width),
        "taps.weight": (form.summed, 1, form.taps),
        "out.weight": (width, form.channels),
    }
    if isinstance(form, HeadSpace):
        by_head = {f"{role}.weight": (form.heads,) for role in ("delay", "decay", "skip")}
        return {**found, "step.weight": (form.heads, width), **by_head, "inner_norm.weight": (form.channels,)}
    return {
        **found,
        "selection.weight": (form.rank + 2 * form.state, form.channels),
        "step.weight": (form.channels, form.rank),
        "decay.weight": (form.channels, form.state),
        "skip.weight": (form.channels,),
    }


def _of_network(role: str, network: Feed, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for into in ("gate", "up") if network.gated else ("up",):
        yield f"{role}{into}.weight", (network.width, width)
    yield f"{role}down.weight", (width, network.width)


def find(checkpoint: Checkpoint, config: Config, names: Names, tied: bool, kind: Kind | None = None) -> Tensors:
    """The tensors that ``config`` needs, and biases where the checkpoint has them; ``tied``, the head is the embedding.
    The matrices of products are rounded to blocks of ``kind``, unless they are in blocks.

    Raises ModelError where one is missing or has another shape, and where the checkpoint has others, which would be
    left out."""
    known = set(checkpoint.names())
    prefix = _prefix(known, names)
    wanted = shapes(config)
    sources: dict[str, Source] = {}
    for role, shape in wanted.items():
        if role == "head.weight" and tied:
            continue
        source = _source(role, wanted, known, prefix, names, config)
        if source is None:
            place = names[_general(role)[0].rpartition(".")[0]][0]
            stem = place.stem if isinstance(place, Packed) else place
            raise missing(prefix + stem.replace("#", str(_general(role)[1])) + ".weight", known, "the checkpoint")
        found = source.shape(checkpoint)
        if found != shape:
            raise ModelError(f"the tensor {source.names[0]!r}: expected the shape {list(shape)}, found {list(found)}")
        sources[role] = source if len(shape) < 2 or _NOT_ROUNDED.search(role) else replace(source, kind=kind)
        bias = f"{role.removesuffix('.weight')}.bias"
        if bias not in wanted and (source := _source(bias, wanted, known, prefix, names, config)) is not None:
            sources[bias] = source
    if tied:
        sources["head.weight"] = sources["embedding.weight"]
    used = {name for source in sources.values() for name in source.names}
    others = sorted(
        name for name in known - used
        if name.startswith(prefix) and not _DERIVED.search(name) and not (tied and name.endswith("lm_head.weight"))
    )  # fmt: skip
    if others:
        raise ModelError(
            f"the checkpoint has tensors that nothing reads: {', '.join(others[:4])}; {len(others)} in all"
        )
    return Tensors(checkpoint, sources)


def _prefix(known: set[str], names: Names) -> str:
    """What the names of the tensors of a decoder begin with."""
    (embedding,) = names["embedding"]
    assert isinstance(embedding, str)
    suffix = f"{embedding}.weight"
    found = sorted(name for name in known if name == suffix or name.endswith(f".{suffix}"))
    if not found:
        raise missing(suffix, known, "the checkpoint")
    if len(found) > 1:
        raise ModelError(f"the checkpoint: expected one tensor {suffix!r}, found {', '.join(found)}")
    return found[0].removesuffix(suffix)


def _general(role: str) -> tuple[str, int]:
    """A role without the number of its layer, and that number."""
    found = re.match(r"layers\.(\d+)\.", role)
    return (role, 0) if found is None else (f"layers.#.{role[found.end() :]}", int(found[1]))


def _source(role: str, wanted: Shapes, known: set[str], prefix: str, names: Names, config: Config) -> Source | None:
    """Where the tensor of a role lies; None where the checkpoint does not have it."""
    general, layer = _general(role)
    general, _, kind = general.rpartition(".")
    for place in names.get(general, ()):
        packed = place if isinstance(place, Packed) else Packed(place)
        stem = packed.stem.replace("#", str(layer))
        rows, total = None, 0
        if packed.roles:
            sizes = [wanted[f"layers.{layer}.{other}.weight"][-2] for other in packed.roles]
            at = packed.roles.index(general.removeprefix("layers.#."))
            rows, total = (sum(sizes[:at]), sizes[at]), sum(sizes)
        for start in _starts(prefix) if general == "head" else (prefix,):
            for ending in (f".{kind}", *(("",) if kind == "weight" else ())):
                found = _numbered(f"{start}{stem}{ending}", layer, config)
                if known.issuperset(found):
                    return Source(found, "*" in stem, packed.transposed, rows, total)
    return None


def _starts(prefix: str) -> tuple[str, ...]:
    """What the head's name may begin with: it lies in the model that ``prefix`` names, or beside it."""
    return prefix, prefix.removesuffix("model."), ""


def _numbered(name: str, layer: int, config: Config) -> tuple[str, ...]:
    """The names of the tensors of all experts, or the one name."""
    if "*" not in name:
        return (name,)
    network = config.layers[layer].network
    assert isinstance(network, Experts)
    return tuple(name.replace("*", str(expert)) for expert in range(network.count))
