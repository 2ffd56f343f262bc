"""The meaning of a program: its steps run in numpy, with buffers where the memory plan has put them; buffers with
portions have memory of their own.

Kernels are run by ``nest.interpreter``, or by any other function that runs one. This is the reference for generated
code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from luminal.core import exchange as exchanges
from luminal.core import host
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.numerics import Array
from luminal.core.ops import Exchanged, Group
from luminal.core.schedule.nest import interpreter
from luminal.core.schedule.program.ir import (
    GIVE,
    TAKE,
    Branch,
    Entry,
    Exchange,
    HostCall,
    Launch,
    Loop,
    Measure,
    Phase,
    Program,
    Region,
    Stages,
    State,
    Transfer,
    Wait,
)
from luminal.core.symbolic import Int

RunKernel = Callable[..., bool]
FRESH = 0xFF  # each byte of unwritten memory: NaN in every float type, so that reading it shows


def run(
    program: Program,
    inputs: Mapping[str, Array],
    dims: Mapping[str, int],
    entry: Entry | None = None,
    seed: int | None = None,
    run_kernel: RunKernel = interpreter.run,
    exchange: exchanges.Exchange = exchanges.alone,
    states: dict[str, Array] | None = None,
) -> dict[str, Array]:
    """The outputs of an entry, by default the first, by name; ``dims`` are the sizes of the dimensions. States have
    their initial values, or those in ``states``, by name, which gets what the run leaves.

    With a ``seed``, each share of a phase runs through all its steps before the next begins, in a random order: as far
    apart as threads can drift. ``exchange`` is how a rank of a mesh exchanges data with the others
    (``core.exchange.lockstep``). Raises SpecError where a kernel accesses elements outside its arrays or, with a
    ``seed``, writes outside the portions of its share (reads there find ``FRESH``); IndexError where an index read at
    run time is out of range, InputError where a function of the host refuses its operands.
    """
    entry = entry or program.entries[0]
    arena = _fresh(entry.arena_size)
    memory: dict[str, Array] = {name: np.ravel(value) for name, value in program.constants.items()}
    memory |= {tensor.buffer: np.ravel(inputs[tensor.name]) for tensor in entry.inputs}
    states = {} if states is None else states
    memory |= {held.buffer: states.get(held.buffer, _initial(program, held)) for held in program.states}
    sizes = {dim.name: int(sym.evaluate(dim.hi, {})) for dim in program.measured} | dict(dims)
    state = _Run(program, sizes, arena, memory, seed, run_kernel, exchange)
    for tensor in entry.outputs:
        count = state.size(sym.product(tensor.shape))
        memory[tensor.buffer] = _fresh(count * tensor.dtype.itemsize).view(tensor.dtype.numpy)
    state.region(entry.region)
    states |= {held.buffer: memory[held.buffer] for held in program.states}
    return {
        t.name: memory[t.buffer][: state.size(sym.product(t.shape))].reshape([state.size(d) for d in t.shape])
        for t in entry.outputs
    }


def _fresh(size: int) -> Array:
    return np.full(size, FRESH, np.uint8)


def _initial(program: Program, state: State) -> Array:
    buffer = program.buffer(state.buffer)
    if state.initial is None:
        return np.zeros(buffer.size // buffer.dtype.itemsize, buffer.dtype.numpy)
    return program.constants[state.initial].flatten()


@dataclass
class _Run:
    program: Program
    sizes: dict[str, int]
    arena: Array
    memory: dict[str, Array]  # of buffers outside the arena
    seed: int | None
    run_kernel: RunKernel
    exchange: exchanges.Exchange
    # What exchanges that are waited for give, by ticket; transfers, of which each rank has its own, when it is asked.
    pending: dict[int, Array | Transfer] = field(default_factory=dict)

    def size(self, value: Int) -> int:
        return int(sym.evaluate(value, self.sizes))

    def array(self, name: str) -> Array:
        """The elements of a buffer."""
        buffer = self.program.buffer(name)
        count = self.size(sym.product(buffer.shape))
        if buffer.counter is not None:
            place = buffer.counter if isinstance(buffer.counter, int) else self.sizes[buffer.counter.name]
            return self.array(buffer.whole)[place * count : (place + 1) * count]
        if buffer.space == "share" and name not in self.memory:
            self.memory[name] = _fresh(count * buffer.dtype.itemsize).view(buffer.dtype.numpy)
        if name in self.memory:
            return self.memory[name]
        return self.arena[buffer.offset : buffer.offset + count * buffer.dtype.itemsize].view(buffer.dtype.numpy)

    def region(self, region: Region) -> None:
        phases = {phase.first: phase for phase in region.phases}
        number = 0
        while number < len(region.steps):
            phase, step = phases.get(number), region.steps[number]
            if phase is not None:
                self._forget(phase)
            match step:
                case Launch() if phase is not None and self.seed is not None:
                    self._phase(phase, region.steps[number : phase.last + 1])
                    number = phase.last
                case Launch():
                    self._launch(step, None)
                case HostCall():
                    self._call(step)
                case Exchange():
                    self._start(step)
                case Transfer():
                    self._transfer(step)
                case Wait():
                    self._wait(step)
                case Stages():
                    self.region(step.regions[self.place(step.group)])
                case Loop():
                    self._loop(step)
                case Measure():
                    self.sizes[step.dim.name] = int(self.array(step.count)[0])
                case Branch():
                    self.region(step.then if self.array(step.flag)[0] else step.other)
            number += 1

    def _launch(self, step: Launch, tasks: range | None) -> None:
        kernel = self.program.kernels[step.kernel]
        arrays = {a.name: self.array(name) for a, name in zip(kernel.nest.arrays, step.arguments, strict=True)}
        if not self.run_kernel(kernel.nest, arrays, self.sizes, tasks):
            raise IndexError(f"{kernel.name}: an index is out of range")

    def _call(self, step: HostCall) -> None:
        *operands, result = (self.array(name) for name in step.arguments)
        if step.function in (TAKE, GIVE):
            result[...] = operands[0][: result.size]
            return
        shape = [self.size(extent) for extent in self.program.buffer(step.arguments[-1]).shape]
        result[...] = host.call(step.function, operands, shape).reshape(-1)

    def _start(self, step: Exchange) -> None:
        """Exchanges at once; the result is unwritten until it is waited for."""
        operand, result = map(self.program.buffer, step.arguments)
        shape = [self.size(extent) for extent in operand.shape]
        self.pending[step.ticket] = self.exchange(step.attr, self.array(operand.name).reshape(shape)).reshape(-1)
        self.array(result.name).view(np.uint8)[...] = FRESH

    def _transfer(self, step: Transfer) -> None:
        """Sends at once; what is received is unwritten until it is waited for."""
        array = self.array(step.buffer)
        if step.attr.sends:
            self.exchange(step.attr, array)
        else:
            array.view(np.uint8)[...] = FRESH
        self.pending[step.ticket] = step

    def _wait(self, step: Wait) -> None:
        begun = self.pending.pop(step.ticket)
        result = self.array(step.arguments[-1])
        if not isinstance(begun, Transfer):
            result[...] = begun
        elif not begun.attr.sends:
            result[...] = self.exchange(begun.attr, result)

    def place(self, group: Group) -> int:
        """This rank's place among those of a group, which all have to ask for it."""
        return int(self.exchange(Exchanged("part", group), np.arange(group.size)))

    def _phase(self, phase: Phase, steps: tuple[Any, ...]) -> None:
        for share in np.random.default_rng(self.seed).permutation(self.size(phase.shares)).tolist():
            self._forget(phase)
            for step, tasks in zip(steps, phase.tasks, strict=True):
                self._launch(step, range(share * tasks, (share + 1) * tasks))
            for portion in phase.portions:
                first = portion.first + share * portion.length
                self._check_portion(portion.buffer, max(first, 0), first + portion.length)

    def _forget(self, phase: Phase) -> None:
        """Discards the contents of the buffers that the phase has portions of."""
        for portion in phase.portions:
            self.memory.pop(portion.buffer, None)

    def _check_portion(self, name: str, first: int, end: int) -> None:
        """Raises SpecError where anything but the elements from ``first`` to ``end`` has been written."""
        size = self.program.buffer(name).dtype.itemsize
        held = self.array(name).view(np.uint8)
        if not all((part == FRESH).all() for part in (held[: first * size], held[end * size :])):
            raise SpecError(f"{name} is written outside a portion, elements {first} to {end}")

    def _loop(self, step: Loop) -> None:
        number = 0
        while step.rounds is None or number < self.size(step.rounds):
            self.sizes[step.counter.name] = number
            self.region(step.test)
            if step.flag and not self.array(step.flag)[0]:
                break
            self.region(step.body)
            for first, second in step.carried:
                a, b = self.array(first), self.array(second)
                a[...], b[...] = b.copy(), a.copy()
            number += 1
