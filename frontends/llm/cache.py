"""The cache: what attention keeps of the positions before, as states of a library.

Each layer has rows for each of several sequences (its slots), head by head, so that the ranks of a mesh may have heads
of their own. A row has the key and the value of one position; a layer with a window uses its rows as a ring. Keys lie
with the rows innermost, as products of queries and keys read them, values with their features innermost. What is at
the end of a head holds what nobody reads: results of slots that a call leaves alone are written there. Rounded to 8
bits, a row of a head has a scale beside it, by which attention multiplies what products with the integers give.

Calls read the rows of a cache only as far as they are filled, in blocks: how many is a size of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.decompose.compare import less, less_equal
from luminal.core.decompose.quantization import by_rows
from luminal.core.ir import Node, State, iota, select
from luminal.core.movement import along, squeeze, transpose, unsqueeze
from luminal.core.origins import Approximation
from luminal.core.symbolic import Int
from luminal.core.types import DType, bool_, f32, i8, i64
from luminal.frontends.llm.config import Attention, Config

TYPES = {"float32": f32, "int8": i8}  # that keys and values are kept in
BLOCK = 64  # rows; a whole number of the columns that a tile of a product has


@dataclass(frozen=True)
class Room:
    """What a library has room for: sequences (``slots``) of ``context`` positions each, of which one call can append up
    to ``chunk`` to one; and ``adapters`` of up to ``rank``. Its ``cache`` is of that type, one of ``TYPES``. Layers
    without a window have ``spare`` rows more, which no call fills. One call can verify up to ``speculate`` drafts; with
    none, there is no such call."""

    context: int
    slots: int = 1
    chunk: int = 512
    adapters: int = 0
    rank: int = 0
    cache: str = "float32"
    spare: int = 0
    speculate: int = 0

    @property
    def approximations(self) -> tuple[Approximation, ...]:
        """What the cache rounds of what is computed."""
        rounded = Approximation("cache", "keys and values in int8, with a scale for each token and head", ())
        return () if TYPES[self.cache] == f32 else (rounded,)

    def rows(self, window: int | None) -> int:
        """The rows of a layer: a ring holds the window of the first position of a call, and the others of it."""
        needed = self.context + self.spare if window is None else min(self.context, window + self.chunk - 1)
        return -(-needed // BLOCK) * BLOCK

    def all_rows(self, config: Config) -> list[int]:
        """The different numbers of rows that the layers of a decoder have."""
        return sorted({self.rows(x.mixer.window) for x in config.layers if isinstance(x.mixer, Attention)})


@dataclass(frozen=True)
class Call:
    """The sizes and positions of one call: ``batch`` slots from ``first``, each with ``length`` tokens whose positions
    ``at`` has, ``int64[batch, length]``. Slots that are not ``active``, ``bool[batch]``, keep what they have."""

    room: Room
    first: Int
    batch: Int
    length: Int
    at: Node
    active: Node

    def slot(self) -> Node:
        """The number of each slot: ``int64[batch]``."""
        return iota(self.batch) + ir.dim(self.first)


def blocks(rows: int) -> Int:
    """The size that says how many blocks of layers with so many rows are read."""
    return sym.var(f"blocks_{rows}", 1, rows // BLOCK)


def first(room: Room) -> Int:
    """The size that says which is the first slot of a call."""
    return sym.var("first", 0, room.slots - 1)


def empty(name: str, shape: tuple[int, ...], dtype: DType = f32) -> State:
    """A state that is zeros at first, which each entry may give a new value."""
    return State(ir.input_(name, shape, dtype), f"{name}.next", ir.constant(np.zeros(shape, dtype.numpy)))


@dataclass(frozen=True)
class Cache:
    """The cache of one layer."""

    number: int
    attention: Attention
    room: Room

    @property
    def rows(self) -> int:
        return self.room.rows(self.attention.window)

    @property
    def _is_ring(self) -> bool:
        return self.rows < self.room.context

    @cached_property
    def states(self) -> tuple[State, ...]:
        """Keys and values; of integers also the scales of the keys' rows and of the values'."""
        heads, size, dtype = self.attention.kv_heads, self.attention.head_size, TYPES[self.room.cache]
        keys = empty(f"keys_{self.number}", (heads, self._places * size + BLOCK), dtype)
        values = empty(f"values_{self.number}", (heads, self._places + 1, size), dtype)
        if dtype == f32:
            return keys, values
        scales = heads, self._places + BLOCK
        return keys, values, *(empty(f"{of}_scales_{self.number}", scales) for of in ("key", "value"))

    @property
    def _places(self) -> int:
        """The rows of all slots."""
        return self.room.slots * self.rows

    def put(self, call: Call, keys: Node, values: Node, row: Node) -> tuple[Node, ...]:
        """The states with ``keys`` and ``values [batch, kv heads, length, head size]``, rounded if they are to be, in
        rows ``[batch, length]``."""
        parts: tuple[Node, ...] = (keys, values)
        if TYPES[self.room.cache] != f32:
            wholes, scales = zip(*map(by_rows, parts), strict=True)
            parts = (*wholes, *(squeeze(scale, [-1]) for scale in scales))
        return self.store(call, parts, row)

    def store(self, call: Call, parts: Sequence[Node], row: Node) -> tuple[Node, ...]:
        """The states with these ``parts`` of each in rows ``[batch, length]``: as for ``put``, scales ``[batch, kv
        heads, length]``."""
        size = self.attention.head_size
        shape = (call.batch, call.length, size)
        slot, active = unsqueeze(call.slot(), [1]), unsqueeze(call.active, [1])
        of_row = ir.expand(select(active, slot * self.rows + row, self._places), shape[:2])
        feature = along(iota(size), 2, (1, 1, size))
        of_key = (unsqueeze(slot, [2]) * size + feature) * self.rows + unsqueeze(row, [2])
        of_key = ir.expand(select(unsqueeze(active, [2]), of_key, self._places * size), shape)
        places = (of_key, *(of_row for _ in self.states[1:]))
        every = zip(self.states, places, parts, strict=True)
        return tuple(ir.scatter(state.input, place, transpose(part, 0, 1), 1) for state, place, part in every)

    def get(self, first: Int, batch: Int, held: Sequence[Node]) -> tuple[Node, ...]:
        """Views of the filled rows of what is ``held``: keys ``[batch, kv heads, head size, span]``, values
        ``[.., span, head size]``, scales ``[.., span]``."""
        heads, size, span = self.attention.kv_heads, self.attention.head_size, blocks(self.rows) * BLOCK
        keys, values, *scales = held
        of_keys, of_values = (batch, heads, size, span), (batch, heads, span, size)
        slot, head, feature, row = ir.axes(of_keys)
        seen = ir.view(keys, of_keys, [head, ((slot + first) * size + feature) * self.rows + row])
        slot, head, row, feature = ir.axes(of_values)
        views = [seen, ir.view(values, of_values, [head, (slot + first) * self.rows + row, feature])]
        slot, head, row = ir.axes(of_values[:3])
        place = (slot + first) * self.rows + row
        return (*views, *(ir.view(scale, of_values[:3], [head, place]) for scale in scales))

    def kept(self) -> list[Node]:
        """The filled rows of the first slot of a call, of each state."""
        return [squeeze(part, [0]) for part in self.get(first(self.room), 1, [state.input for state in self.states])]

    def given(self) -> list[Node]:
        """Inputs for what ``kept`` gives."""
        heads, size, span = self.attention.kv_heads, self.attention.head_size, blocks(self.rows) * BLOCK
        shapes = ((heads, size, span), (heads, span, size), (heads, span), (heads, span))
        return [
            ir.input_(f"{state.name}_rows", shape, state.input.dtype)
            for state, shape in zip(self.states, shapes, strict=False)
        ]

    def restored(self, given: Sequence[Node]) -> tuple[Node, ...]:
        """The states with what is ``given`` in the first slot of a call."""
        span = blocks(self.rows) * BLOCK
        row = unsqueeze(iota(span), [0])
        call = Call(self.room, first(self.room), 1, span, row, ir.expand(ir.constant(True, bool_), (1,)))
        keys, *others = (unsqueeze(part, [0]) for part in given)
        return self.store(call, (transpose(keys, 2, 3), *others), row)

    def row(self, at: Node) -> Node:
        """The rows of positions."""
        return ir.binary(ops.MOD, at, self.rows) if self._is_ring else at

    def visible(self, call: Call) -> Node:
        """Whether each position sees each row: ``bool[batch, 1, length, span]``."""
        span = blocks(self.rows) * BLOCK
        shape = (call.batch, 1, call.length, span)
        at, held = unsqueeze(call.at, [1, 3]), along(iota(span), 3, shape)
        window = self.attention.window
        if self._is_ring:  # the last round of the ring holds rows up to the newest, the round before it the others
            newest = unsqueeze(last(call.at, 1), [1, 2, 3])
            place = ir.binary(ops.MOD, newest, self.rows)
            held = held + (newest - place) - ir.cast(less(place, held), i64) * self.rows
        seen = less_equal(held, at)
        if window is not None and window < self.room.context:
            seen = seen & less(at - window, held)
        return ir.expand(seen & less(-1, held) if self._is_ring else seen, shape)


def last(x: Node, axis: int) -> Node:
    """The last element along an axis, which the result does not have."""
    shape = tuple(size for k, size in enumerate(x.shape) if k != axis)
    index = list(ir.axes(shape))
    index.insert(axis, x.shape[axis] - 1)
    return ir.view(x, shape, index)
