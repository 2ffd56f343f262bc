"""Recurrent layers: what they keep of the positions before, however many, has one size, as states of a library.

Each of several sequences (slots) has a row of each state. The last row is what nobody reads: results of slots that a
call leaves alone are written there. A sequence that begins has zeros, whatever its rows hold. As a row is that of the
last position alone, a sequence cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from luminal.core import ir
from luminal.core.decompose.activation import silu, softplus
from luminal.core.decompose.compare import equal
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.normalize import rms_norm
from luminal.core.decompose.recurrent import selective_scan
from luminal.core.ir import Node, State, select
from luminal.core.movement import concatenate, reshape, slice_, transpose, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import f32
from luminal.frontends.llm.cache import Call, Room, empty, first
from luminal.frontends.llm.config import HeadSpace, StateSpace

_LINEAR = 20.0  # steps above which softplus is the identity, as PyTorch has it


@dataclass(frozen=True)
class Recurrence:
    """The states of one layer: its inputs at the last positions ``[slots + 1, taps - 1, summed]``, and its state space
    ``[slots + 1, state, channels]``."""

    number: int
    form: StateSpace | HeadSpace
    room: Room

    @cached_property
    def states(self) -> tuple[State, ...]:
        rows = self.room.slots + 1
        return (
            empty(f"inputs_{self.number}", (rows, self.form.taps - 1, self.form.summed)),
            empty(f"space_{self.number}", (rows, self.form.state, self.form.channels)),
        )

    def get(self, call: Call) -> tuple[Node, ...]:
        """What the slots of a call hold: ``[batch, taps - 1, summed]`` and ``[batch, state, channels]``."""
        begins = unsqueeze(equal(slice_(call.at, 1, 0, 1), 0), [2])
        return tuple(select(begins, 0.0, _rows(state, call.first, call.batch)) for state in self.states)

    def put(self, call: Call, parts: Sequence[Node]) -> tuple[Node, ...]:
        """The states with such ``parts`` for the slots of a call."""
        row = select(call.active, call.slot(), self.room.slots)
        return tuple(ir.scatter(state.input, row, part, 0) for state, part in zip(self.states, parts, strict=True))

    def kept(self) -> list[Node]:
        """What the first slot of a call holds, of each state."""
        return [reshape(part, part.shape[1:]) for part in (_rows(s, first(self.room), 1) for s in self.states)]

    def given(self) -> list[Node]:
        """Inputs for what ``kept`` gives."""
        return [ir.input_(f"{state.name}_rows", state.input.shape[1:], f32) for state in self.states]

    def restored(self, given: Sequence[Node]) -> tuple[Node, ...]:
        """The states with what is ``given`` in the first slot of a call."""
        row = reshape(ir.dim(first(self.room)), [1])
        parts = zip(self.states, given, strict=True)
        return tuple(ir.scatter(state.input, row, unsqueeze(part, [0]), 0) for state, part in parts)


def _rows(state: State, start: Int, count: Int) -> Node:
    shape = (count, *state.input.shape[1:])
    slot, *others = ir.axes(shape)
    return ir.view(state.input, shape, [slot + start, *others])


Linear: TypeAlias = Callable[[str, Node], Node]
Tensor: TypeAlias = Callable[[str], Node]


def mixed(
    form: StateSpace | HeadSpace, x: Node, held: Sequence[Node], linear: Linear, tensor: Tensor, bias: Node | None,
    activation: Callable[[Node], Node],
) -> tuple[Node, tuple[Node, ...]]:  # fmt: skip
    """What a layer makes of ``x [batch, length, width]`` and of what is ``held`` of the positions before, and what is
    to be held then. ``linear`` multiplies with the matrix of a role, ``tensor`` is the tensor of one, ``bias`` that of
    the sums over positions."""
    history, state = held
    length = x.shape[1]
    whole = concatenate([history, linear("inner", x)], 1)
    summed = bias
    for tap in range(form.taps):
        weight = reshape(slice_(tensor("taps.weight"), 2, tap, 1), [form.summed])
        term = slice_(whole, 1, tap, length) * weight
        summed = term if summed is None else summed + term
    assert summed is not None
    inner, gate = activation(summed), linear("gate", x)
    if isinstance(form, StateSpace):
        y, last = _by_channels(form, inner, state, linear, tensor)
        y = y * silu(gate)
    else:
        y, last = _by_heads(form, x, inner, state, linear, tensor)
        groups = [*x.shape[:2], form.groups, form.channels // form.groups]
        normed = rms_norm(reshape(y * silu(gate), groups), -1, None, form.norm.eps)
        y = reshape(normed, y.shape) * tensor("inner_norm.weight")
    return linear("out", y), (slice_(whole, 1, length, form.taps - 1), last)


def _by_channels(form: StateSpace, x: Node, state: Node, linear: Linear, tensor: Tensor) -> tuple[Node, Node]:
    """Of sums ``x [batch, length, channels]``, what is read ``[batch, length, channels]``, and the last state."""
    chosen, parts, at = linear("selection", x), [], 0
    for size in (form.rank, form.state, form.state):
        part = slice_(chosen, 2, at, size)
        parts.append(part if form.norm is None else rms_norm(part, -1, None, form.norm.eps))
        at += size
    step, into, out = parts
    step = softplus(linear("step", step), threshold=_LINEAR)
    decay = -exp(transpose(tensor("decay.weight"), 0, 1))
    y, last = _scanned(x, step, decay, unsqueeze(into, [3]), unsqueeze(out, [3]), state)
    return y + x * tensor("skip.weight"), last


def _by_heads(
    form: HeadSpace, x: Node, inner: Node, state: Node, linear: Linear, tensor: Tensor
) -> tuple[Node, Node]:  # fmt: skip
    """The same of ``x [batch, length, width]``, which decides the steps, and sums ``inner [batch, length, summed]``. In
    the scan, channels are ``[groups, heads of a group, size]``."""
    outer, groups, per = [*x.shape[:2]], form.groups, form.heads // form.groups
    given = reshape(slice_(inner, 2, 0, form.channels), [*outer, groups, per, form.size])
    count = groups * form.state
    into, out = (
        transpose(reshape(slice_(inner, 2, form.channels + k * count, count), [*outer, groups, form.state, 1, 1]), 2, 3)
        for k in range(2)
    )
    step = softplus(linear("step", x) + tensor("delay.weight"), threshold=_LINEAR)
    decay = reshape(-exp(tensor("decay.weight")), [1, groups, per, 1])
    y, last = _scanned(
        given, reshape(step, [*outer, groups, per, 1]), decay, into, out,
        reshape(state, [state.shape[0], form.state, groups, per, form.size]),
    )  # fmt: skip
    y = y + given * reshape(tensor("skip.weight"), [groups, per, 1])
    return reshape(y, [*outer, form.channels]), reshape(last, state.shape)


def _scanned(x: Node, step: Node, decay: Node, into: Node, out: Node, state: Node) -> tuple[Node, Node]:
    """``selective_scan`` of what has its batch first."""
    x, step, into, out = (transpose(part, 0, 1) for part in (x, step, into, out))
    y, last = selective_scan(x, step, decay, into, out, state)
    return transpose(y, 0, 1), last
