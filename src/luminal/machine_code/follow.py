"""Following a block of threads through its machine code, and counting what it issues and moves.

Threads that stand at the same instruction go on together, those that stand first in the code before the others, so that
branches meet again; a barrier holds threads until the others are there. Values that lie in memory are given for some
arguments, and are otherwise ones, as products of matrices are: the counts are those of ordinary numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from luminal.machine_code.memory import Access
from luminal.machine_code.operands import (
    M32,
    WARP,
    ZERO,
    Array,
    Lanes,
    Mask,
    Step,
    UnknownInstruction,
    in_bank,
    into,
    is_predicate,
    predicate,
    register,
    word,
)
from luminal.machine_code.sass import Code, Instruction
from luminal.machine_code.semantics import ONES, every, step_of

FIRST_ARGUMENT = {80: 0x160, 86: 0x160, 89: 0x160, 90: 0x210}  # in the bank of constants, by architecture
BLOCK_SIZE, GRID_SIZE, STACK = 0x0, 0xC, 0x28  # there too
BUFFER = 36  # bits of an address that lie within one argument's memory
SHARED_BYTES = 1 << 18
BOX = 128  # bytes of a line of a box, which is copied at once
LONGEST = 20_000_000  # instructions of a block that are followed before giving up

# Multiply-adds of one instruction of a warp: PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions".
_SHAPES = {
    "884": 8 * 8 * 4, "1684": 16 * 8 * 4, "1688": 16 * 8 * 8, "16816": 16 * 8 * 16, "16832": 16 * 8 * 32,
    "8816": 8 * 8 * 16,
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A block of a launch: its place, of how many, its threads; the arguments, of which an array is memory that holds
    it, and None memory of ones."""

    block: tuple[int, int, int]
    blocks: tuple[int, int, int]
    threads: int
    arguments: Sequence[int | Array | None]


@dataclass
class Found:
    """What a block did. ``issued`` and ``accesses`` are by the place of an instruction in the code; ``taken`` counts
    branches back, by their place and where they lead, ``diverged`` how often a warp's threads parted; ``multiplied``
    are multiply-adds of tensor cores, ``at_once`` the same where two of bytes count as one, which take as long,
    ``operands`` the bytes that tensor cores read from shared memory themselves;
    ``in_flight`` the most groups of copies that were on their way while matrices were multiplied."""

    code: Code
    threads: int
    issued: list[int]
    accesses: dict[tuple[int, str], Access] = field(default_factory=dict)
    taken: Counter[tuple[int, int]] = field(default_factory=Counter)
    multiplied: int = 0
    at_once: int = 0
    operands: int = 0
    in_flight: int = 0
    diverged: int = 0

    def total(self, places: range | None = None) -> Counter[str]:
        """Instructions of warps by class, of the whole block or of some of its code."""
        counts: Counter[str] = Counter()
        for place in places or range(len(self.issued)):
            counts[self.code.instructions[place].kind] += self.issued[place]
        return counts

    def loop(self) -> range | None:
        """The inner loop: the shortest stretch of code that a branch back closes and that has at least half of all
        products of matrices, or of all that was issued where there are none."""
        kinds = [i.kind == "tensor" for i in self.code.instructions]
        weights = [n * (kinds[k] or not self.multiplied) for k, n in enumerate(self.issued)]
        loops = [range(to, at + 1) for at, to in self.taken]
        large = [stretch for stretch in loops if 2 * sum(weights[k] for k in stretch) >= sum(weights)]
        return min(large, key=len, default=None)


Watch = Callable[[Instruction, str, bool, Array, Array, int], None]


def constants(architecture: int, launch: Launch) -> dict[int, int]:
    """The words of the bank of constants."""
    found = {BLOCK_SIZE: launch.threads, 4: 1, 8: 1, STACK: 0}
    found |= {GRID_SIZE + 4 * axis: count for axis, count in enumerate(launch.blocks)}
    place = FIRST_ARGUMENT[architecture]
    for number, argument in enumerate(launch.arguments):
        if isinstance(argument, int):
            found[place] = argument & M32
            place += 4
            continue
        place = -(-place // 8) * 8
        address = number + 1 << BUFFER
        found |= {place: address & M32, place + 4: address >> 32}
        place += 8
    return found


def argument_of(address: Any) -> tuple[Any, Any]:
    """The number of the argument whose memory an address lies in, and the byte there."""
    return (address >> BUFFER) - 1, address & (1 << BUFFER) - 1


_ADDRESS = re.compile(r"^(?:desc\[UR\d+\])?\[([^\]]*)\]$")


def _address(text: str) -> Callable[[Lanes], Any]:
    """The addresses that an operand in brackets gives."""
    found = _ADDRESS.match(text)
    if found is None:
        raise UnknownInstruction(text)
    parts = [part for part in found[1].replace("+-", "+m").split("+") if part]
    readers = [_part(part.replace("m0x", "-0x")) for part in parts]
    return lambda s: sum(f(s) for f in readers) + np.zeros(s.threads, np.int64)


def _part(text: str) -> Callable[[Lanes], Any]:
    if text.endswith(".64"):
        of_warp, number = register(text)
        if number == ZERO:
            return lambda s: 0
        return lambda s: (s.u if of_warp else s.r)[number] | (s.u if of_warp else s.r)[number + 1] << 32
    if text.startswith(("0x", "-0x")):
        value = int(text, 16)
        return lambda s: value
    scale = re.fullmatch(r"(U?R(?:\d+|Z))\.X(\d+)", text)
    read = word(scale[1] if scale else re.sub(r"\.(U32|S32|64)$", "", text))
    return (lambda s: read(s) * int(scale[2])) if scale else read


def width_of(instruction: Instruction) -> int:
    """The bytes that a thread reads or writes."""
    widths = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
    return next((widths[m] for m in reversed(instruction.modifiers) if m in widths), 4)


class Block:
    """A block of threads on its way through ``code``. ``watch`` is told of every access: instruction, space, whether it
    writes, addresses, threads that take part, width."""

    def __init__(self, code: Code, architecture: int, launch: Launch, watch: Watch | None = None) -> None:
        self.code, self.launch, self.watch = code, launch, watch
        literals = {in_bank(2, place): word for place, word in code.literals.items()}
        self.lanes = Lanes(launch.threads, launch.block, constants(architecture, launch) | literals)
        self.shared = np.zeros(SHARED_BYTES, np.uint8)
        self.contents = {n: np.ascontiguousarray(a).view(np.uint8).reshape(-1)
                         for n, a in enumerate(launch.arguments) if isinstance(a, np.ndarray)}  # fmt: skip
        self.found = Found(code, launch.threads, [0] * len(code.instructions))
        self.copying, self.groups = 0, [0]  # copies since the last commit; those of each group on its way
        self.slots: set[int] = set()  # the barriers of memory that boxes arrive at
        self.copiers: set[int] = set()  # warps that copy boxes
        self.multipliers: set[int] = set()  # and those that multiply
        self.steps = [self._step(place, i) for place, i in enumerate(code.instructions)]
        self.guards = [predicate(i.guard) for i in code.instructions]

    # ---- what the instructions of memory do --------------------------------------------------------------------------

    def _access(self, place: int, space: str, width: int, write: bool, addresses: Array, mask: Mask) -> None:
        active = every(mask, self.lanes.threads)
        known = self.found.accesses.setdefault((place, space), Access(space, width, write))
        known.add(addresses, active)
        if self.watch is not None:
            self.watch(self.code.instructions[place], space, write, addresses, active, width)

    def _step(self, place: int, i: Instruction) -> Step:
        if i.guard == "!PT" or i.name in ("BRA", "EXIT", "CALL", "RET", "BAR"):
            return lambda s, mask: None
        if i.name in ("LDG", "LDS", "LDSM", "LDL", "ATOMG", "ATOMS", "ATOM"):
            return self._load(place, i)
        if i.name in ("STG", "STS", "STSM", "STL", "RED"):
            return self._store(place, i)
        if i.name == "LDGSTS":
            return self._copy(place, i)
        if i.name in ("LDGDEPBAR", "DEPBAR"):
            return self._wait(i)
        step = step_of(i)
        if i.name == "SYNCS":
            return self._arrival(place, i, step)
        return self._multiply(i, step) if i.kind == "tensor" else step

    def _multiply(self, i: Instruction, step: Step) -> Step:
        gang = next((m for m in i.modifiers if "x" in m), "")
        if gang:
            rows, columns, depth = map(int, gang.split("x"))
            size = 1 if i.name == "QGMMA" or i.name == "IGMMA" else 2
            amount = rows * columns * depth // 4
            staged = sum(o.startswith("gdesc") for o in i.operands)
            read = size * (rows * depth * (staged > 1 or i.operands[1].startswith("gdesc")) + columns * depth) // 4
        else:
            amount, read = _SHAPES[i.modifiers[0]], 0
        at_once = amount // 2 if i.name in ("IMMA", "QMMA", "IGMMA", "QGMMA") else amount

        def multiply(s: Lanes, mask: Mask) -> None:
            active = every(mask, s.threads).reshape(-1, WARP).any(1)
            warps = int(active.sum())
            self.multipliers.update(np.flatnonzero(active))
            self.found.multiplied += amount * warps
            self.found.at_once += at_once * warps
            self.found.operands += read * warps
            on_their_way = sum(copies > 0 for copies in self.groups) + (self.copying > 0)
            self.found.in_flight = max(self.found.in_flight, on_their_way)
            step(s, mask)

        return multiply

    def _wait(self, i: Instruction) -> Step:
        left = int(i.operands[1], 16) if i.name == "DEPBAR" and len(i.operands) > 1 else None

        def commit(s: Lanes, mask: Mask) -> None:
            self.groups, self.copying = [*self.groups, self.copying], 0

        def wait(s: Lanes, mask: Mask) -> None:
            self.groups = self.groups[-left:] if left else []

        if i.name == "LDGDEPBAR":
            return commit
        return wait if left is not None else lambda s, mask: None

    def _arrival(self, place: int, i: Instruction, step: Step) -> Step:
        """A barrier of memory: bytes of boxes that it will wait for, which are copied meanwhile; the end of a group of
        them; a wait for the oldest group."""
        expects = "A0TR" in i.modifiers
        awaited = word(i.operands[-1]) if expects else None
        at = _address(next(o for o in i.operands if "[" in o))

        def arrive(s: Lanes, mask: Mask) -> None:
            if awaited is not None:
                active = every(mask, s.threads)
                copied = int(np.broadcast_to(np.asarray(awaited(s)), (s.threads,))[active].sum())
                for space in ("global", "shared"):
                    known = self.found.accesses.setdefault((place, space), Access(space, BOX, space == "shared"))
                    known.add_whole(copied)
                self.copying += 1
                self.slots.update(np.broadcast_to(np.asarray(at(s)), (s.threads,))[active].tolist())
                self.copiers.update(np.flatnonzero(active.reshape(-1, WARP).any(1)))
            elif "ARRIVE" in i.modifiers and self.copying:
                self.groups, self.copying = [*self.groups, self.copying], 0
            elif "PHASECHK" in i.modifiers:
                self.groups = [copies for copies in self.groups if copies][1:]
            step(s, mask)

        return arrive

    def _load(self, place: int, i: Instruction) -> Step:
        to = next(o for o in i.operands if not is_predicate(o))
        where = next(o for o in i.operands if "[" in o)
        address, (of_warp, number) = _address(where), register(to)
        space = {"LDG": "global", "ATOMG": "global", "ATOM": "global", "LDL": "local"}.get(i.name, "shared")
        matrices = int(i.modifiers[-1]) if i.name == "LDSM" and i.modifiers[-1].isdigit() else 1
        width = 16 if i.name == "LDSM" else width_of(i)
        words = matrices if i.name == "LDSM" else max(1, width // 4)
        writers = [into(f"{'U' * of_warp}R{number + k}") for k in range(words if number != ZERO else 0)]
        sign = {"S8": 0x80, "S16": 0x8000}.get(next((m for m in i.modifiers if m in ("S8", "S16")), ""), 0)

        def load(s: Lanes, mask: Mask) -> None:
            at = address(s)
            if i.name == "LDSM":  # a thread for each row of the matrices
                rows = every(mask, s.threads) & (s.thread % WARP < 8 * matrices)
                self._access(place, space, width, False, at, rows)
                values = [ONES] * words
            else:
                self._access(place, space, width, False, at, mask)
                values = self._values(space, at, width, every(mask, s.threads))
            for write, value in zip(writers, values, strict=False):
                write(s, mask, (value ^ sign) - sign if sign else value)

        return load

    def _values(self, space: str, at: Array, width: int, active: Array) -> list[Any]:
        """The words that lie there."""
        count, size = max(1, width // 4), min(width, 4)
        if space == "shared":
            memory, offsets = self.shared, np.where(active, at, 0)
        elif space == "global" and self.contents:
            numbers = {argument_of(int(a))[0] for a in at[active]}
            number = next(iter(numbers), -1)
            if len(numbers) != 1 or number not in self.contents:
                return [ONES & (1 << 8 * size) - 1] * count
            memory, offsets = self.contents[number], np.where(active, at & (1 << BUFFER) - 1, 0)
        else:
            return [ONES & (1 << 8 * size) - 1] * count
        offsets = np.clip(offsets, 0, len(memory) - width)
        values = []
        for part in range(count):
            value = np.zeros(len(at), np.int64)
            for byte in range(size):
                value |= memory[offsets + 4 * part + byte].astype(np.int64) << 8 * byte
            values.append(value)
        return values

    def _store(self, place: int, i: Instruction) -> Step:
        where = next(o for o in i.operands if "[" in o)
        address, (of_warp, number) = _address(where), register(i.operands[-1])
        space = {"STG": "global", "RED": "global", "STL": "local"}.get(i.name, "shared")
        matrices = int(i.modifiers[-1]) if i.name == "STSM" and i.modifiers[-1].isdigit() else 1
        width = 16 if i.name == "STSM" else width_of(i)
        readers = [word(f"{'U' * of_warp}R{number + k}" if number != ZERO else "RZ") for k in range(max(1, width // 4))]

        def store(s: Lanes, mask: Mask) -> None:
            at = address(s)
            active = every(mask, s.threads)
            if i.name == "STSM":
                active = active & (s.thread % WARP < 8 * matrices)
            self._access(place, space, width, True, at, active)
            if space == "shared" and i.name == "STS":
                for part, read in enumerate(readers):
                    value = np.broadcast_to(np.asarray(read(s)), (s.threads,))[active]
                    for byte in range(min(width, 4)):
                        self.shared[at[active] + 4 * part + byte] = value >> 8 * byte & 255

        return store

    def _copy(self, place: int, i: Instruction) -> Step:
        """From global into shared memory; where the predicate at the end is false, zeros."""
        to, source = (_address(o) for o in i.operands[:2])
        given = predicate(i.operands[2]) if len(i.operands) > 2 else None
        width = width_of(i)

        def copy(s: Lanes, mask: Mask) -> None:
            active = every(mask, s.threads)
            read = active if given is None else active & given(s)
            self._access(place, "shared", width, True, to(s), active)
            if read.any():
                self._access(place, "global", width, False, source(s), read)
                self.copying += 1

        return copy

    # ---- the way through the code ------------------------------------------------------------------------------------

    def run(self) -> Found:
        """Follows the block to its end.

        Raises UnknownInstruction where it comes to one whose effect is not described, ValueError where it does not end.
        """
        threads = self.launch.threads
        ready: dict[int, Array] = {0: np.ones(threads, bool)}
        waiting: dict[int, list[tuple[int, Array]]] = {}  # by barrier
        arrived: Counter[int] = Counter()
        alive, followed = threads, 0
        while ready or waiting:
            if not ready:
                for barrier in [b for b in waiting if self._complete(waiting[b], arrived[b], alive)] or list(waiting):
                    for place, group in waiting.pop(barrier):
                        _join(ready, place, group)
                    arrived[barrier] = 0
            place = min(ready)
            group = ready.pop(place)
            following = min(ready, default=len(self.steps))
            mask = None if group.all() else group
            warps = int(group.reshape(-1, WARP).any(1).sum())
            while True:
                instruction = self.code.instructions[place]
                self.found.issued[place] += warps
                followed += 1
                if followed > LONGEST:
                    raise ValueError(f"{self.code.name} does not end in {LONGEST} instructions")
                taking = group if instruction.guard == "PT" else group & self.guards[place](self.lanes)
                if instruction.name in ("BRA", "EXIT", "CALL", "RET", "BAR"):
                    alive -= self._branch(place, instruction, group, taking, ready, waiting, arrived)
                    break
                if instruction.guard == "PT":
                    self.steps[place](self.lanes, mask)
                elif taking.any():
                    self.steps[place](self.lanes, None if taking.all() else taking)
                place += 1
                if place >= following:
                    _join(ready, place, group)
                    break
        if self.copiers.isdisjoint(self.multipliers):  # these are ahead by all slots but the one that is read
            self.found.in_flight = max(self.found.in_flight, len(self.slots) - 1)
        return self.found

    def _complete(self, groups: list[tuple[int, Array]], arrived: int, alive: int) -> bool:
        return sum(int(group.sum()) for _, group in groups) + arrived >= alive

    def _branch(
        self, place: int, i: Instruction, group: Array, taking: Array, ready: dict[int, Array],
        waiting: dict[int, list[tuple[int, Array]]], arrived: Counter[int],
    ) -> int:  # fmt: skip
        """Sends threads on; how many have ended."""
        left = group & ~taking
        if i.name == "BRA" and {"DIV", "CONV"} & set(i.modifiers):
            left, taking = group, group & False
        elif i.name == "BRA":
            for extra in (o for o in i.operands if is_predicate(o)):
                taking = taking & predicate(extra)(self.lanes)
            left = group & ~taking
        if left.any():
            parting = left.reshape(-1, WARP).any(1) & taking.reshape(-1, WARP).any(1)
            self.found.diverged += int(parting.sum()) * (i.name == "BRA")
            _join(ready, place + 1, left)
        if not taking.any():
            return 0
        if i.name == "EXIT":
            return int(taking.sum())
        if i.name == "BAR":
            barrier = int(i.operands[0], 16) if i.operands and i.operands[0].startswith("0x") else 0
            if "ARV" in i.modifiers:
                arrived[barrier] += int(taking.sum())
                _join(ready, place + 1, taking)
                return 0
            waiting.setdefault(barrier, []).append((place + 1, taking))
            return 0
        if i.name == "RET":
            _, number = register(i.operands[0])
            for address in np.unique(self.lanes.r[number][taking]):
                _join(ready, self.code.position(int(address)), taking & (self.lanes.r[number] == address))
            return 0
        if i.label not in self.code.labels:
            raise UnknownInstruction(str(i))
        to = self.code.labels[i.label]
        if to <= place and i.name == "BRA":
            self.found.taken[place, to] += 1
        _join(ready, to, taking)
        return 0


def _join(ready: dict[int, Array], place: int, group: Array) -> None:
    ready[place] = ready[place] | group if place in ready else group


def follow(code: Code, architecture: int, launch: Launch, watch: Watch | None = None) -> Found:
    """What a block of a kernel does."""
    with np.errstate(all="ignore"):
        return Block(code, architecture, launch, watch).run()


def arguments(count: int, known: Mapping[int, Array | int]) -> list[Array | int | None]:
    """So many arguments of a kernel, of which some are known."""
    return [known.get(number) for number in range(count)]
