"""The specification of a Program: the properties on which code generation relies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.exchange import EXCHANGES
from luminal.core.host import FUNCTIONS
from luminal.core.ops import EVERY
from luminal.core.schedule.program.ir import (
    ALIGNMENT,
    GIVE,
    SPACES,
    TAKE,
    Branch,
    Buffer,
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
    Step,
    Transfer,
    Wait,
    inner,
    launches,
    measured,
    numbered,
    place_of,
)
from luminal.core.sizes import solve


def check(program: Program) -> None:
    """Raises SpecError where the program breaks a property on which code generation relies."""
    _expect(program.name.isidentifier() and program.name.isascii(), f"its name {program.name!r} is no C identifier")
    _distinct("dimension", [dim.name for dim in program.dims])
    _distinct("kernel", [kernel.name for kernel in program.kernels])
    _distinct("buffer", [buffer.name for buffer in program.buffers])
    _distinct("entry", [entry.name for entry in program.entries])
    dims = set(program.dims)
    for dim in program.dims:
        _expect(isinstance(dim.hi, int), f"dimension {dim.name} has no constant upper bound")
    for kernel in program.kernels:
        _expect(kernel.name.isidentifier(), f"kernel name {kernel.name!r} is no identifier")
        _distinct(f"array of kernel {kernel.name}", [array.name for array in kernel.nest.arrays])
        unknown = [dim.name for dim in kernel.nest.dims if dim not in dims]
        _expect(not unknown, f"kernel {kernel.name} reads unknown dimensions {unknown}")
    for buffer in program.buffers:
        _check_buffer(program, buffer)
    _check_states(program)
    for entry in program.entries:
        _check_entry(program, entry)
        _check_dims(program, entry)
        _check_order(program, entry)
        _check_phases(program, entry.name, entry.region)
    _check_pipeline(program)
    for name in sorted(program.finite):
        known = program.buffer(name).space == "constant" and bool(np.isfinite(program.constants[name]).all())
        _expect(known, f"buffer {name} is not known to be finite, but a kernel relies on it")


def _check_pipeline(program: Program) -> None:
    """The steps of a stage use no constants and states but those that its ranks have."""
    if program.pipeline is None:
        return
    pipeline = program.pipeline
    _expect(pipeline.homes.keys() == program.constants.keys(), "a constant is for no stage")
    _expect(pipeline.states.keys() == {state.buffer for state in program.states}, "a state is for no stage")
    for state in program.states:
        known = state.initial is None or pipeline.homes[state.initial] == pipeline.states[state.buffer]
        _expect(known, f"state {state.buffer}: its first value is for another stage")
    homes = {**pipeline.homes, **pipeline.states}
    for entry in program.entries:
        for step in entry.steps:
            for stage, region in enumerate(step.regions) if isinstance(step, Stages) else ():
                used = {name for each in numbered(region) for name in _used(each)}
                used |= {each.fetch.buffer for each in launches(region) if each.fetch is not None}
                places = {place_of(program, name).name for name in used}
                others = sorted(name for name in places & homes.keys() if not pipeline.has(homes[name], stage))
                _expect(not others, f"entry {entry.name}, stage {stage}: it reads {', '.join(others)} of others")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(f"program: {message}")


def _distinct(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    _expect(not twice, f"{what} names must be distinct, found {', '.join(twice)} more than once")


def _check_buffer(program: Program, buffer: Buffer) -> None:
    where = f"buffer {buffer.name}"
    _expect(buffer.space in SPACES, f"{where}: unknown space {buffer.space!r}")
    _expect(sorted(buffer.order) == list(range(len(buffer.shape))), f"{where}: order {buffer.order} is no permutation")
    elements = sym.upper(sym.product(buffer.shape))
    _expect(elements is not None, f"{where}: no upper bound for its shape {list(buffer.shape)}")
    if buffer.space in ("arena", "state"):
        _expect(buffer.offset % ALIGNMENT == 0, f"{where}: offset {buffer.offset} is not aligned to {ALIGNMENT} bytes")
    if buffer.space == "constant":
        _expect(buffer.name in program.constants, f"{where} has no value")
        value = program.constants[buffer.name]
        _expect(value.dtype == buffer.dtype.numpy, f"{where}: expected {buffer.dtype}, its value is {value.dtype}")
        _expect(value.nbytes <= buffer.size, f"{where}: {value.nbytes} bytes of value, {buffer.size} of space")


def _check_states(program: Program) -> None:
    """Each state has a buffer, and each buffer of states a state; both have fixed sizes, and initial values have their
    size."""
    buffers = [program.buffer(state.buffer) for state in program.states]
    _distinct("state", [buffer.name for buffer in buffers])
    _expect({b.name for b in program.buffers if b.space == "state"} == {b.name for b in buffers}, "states have buffers")
    for state, buffer in zip(program.states, buffers, strict=True):
        where = f"state {state.buffer}"
        _expect(all(isinstance(size, int) for size in buffer.shape), f"{where}: its size is not fixed")
        _expect(buffer.order == tuple(range(len(buffer.shape))), f"{where}: its order is {buffer.order}")
        if state.initial is not None:
            first = program.buffer(state.initial)
            _expect(first.space == "constant", f"{where}: {first.name} is no constant")
            _expect((first.dtype, first.shape, first.order) == (buffer.dtype, buffer.shape, buffer.order), where)
    for a, b in combinations(buffers, 2):
        _expect(not _overlap(a, b) or _apart(program, a.name, b.name), f"state {a.name} overlaps another")


def _apart(program: Program, a: str, b: str) -> bool:
    """Whether no rank has both states."""
    homes = {} if program.pipeline is None else program.pipeline.states
    return EVERY not in (found := {homes.get(a, EVERY), homes.get(b, EVERY)}) and len(found) == 2


def _check_dims(program: Program, entry: Entry) -> None:
    """The size of every dimension that the entry uses follows from the shapes of its inputs."""
    known = {solution.symbol for solution in solve([extent for t in entry.inputs for extent in t.shape])}
    known |= set(measured(entry.region))
    used = {v for t in (*entry.inputs, *entry.outputs) for extent in t.shape for v in sym.variables(extent)}
    used.update(dim for step in entry.launches for dim in program.kernels[step.kernel].nest.dims)
    missing = sorted(dim.name for dim in used - known)
    _expect(not missing, f"entry {entry.name}: the inputs do not say how large {', '.join(missing)} is")


def _check_order(program: Program, entry: Entry) -> None:
    """Every output is written, and nothing in the arena is read before a step has written it."""
    written = _written(program, entry, entry.region, frozenset())
    missing = [t.name for t in entry.outputs if t.buffer not in written]
    _expect(not missing, f"entry {entry.name}: nothing writes {', '.join(missing)}")


def _written(program: Program, entry: Entry, region: Region, before: frozenset[str]) -> frozenset[str]:
    """The buffers that hold a value after a region, where those in ``before`` do before it."""
    written = before

    def read(name: str) -> None:
        place = place_of(program, name)
        known = place.space not in ("arena", "share") or name in written or place.name in written
        _expect(known, f"entry {entry.name}: {name} is read before anything is written to it")

    pending: dict[int, Exchange | Transfer] = {}
    for step in region.steps:
        touched = {name for x in pending.values() for name in x.arguments} if pending else set()
        if not isinstance(step, Exchange | Wait):
            results = {name for x in pending.values() for name in _results(x)} & {*_used(step)}
            _expect(not results, f"entry {entry.name}: {', '.join(results)} is used before its exchange has ended")
        match step:
            case Launch():
                arrays = program.kernels[step.kernel].nest.arrays
                _check_fetch(program, entry, step)
                for name, array in zip(step.arguments, arrays, strict=True):
                    if not array.written:
                        read(name)
                names = {name for name, array in zip(step.arguments, arrays, strict=True) if array.written}
                _expect(not names & touched, f"entry {entry.name}: what is being exchanged is written to")
                written |= names | {place_of(program, name).name for name in names}
            case HostCall():
                _check_call(program, entry, step)
                *operands, result = step.arguments
                for name in operands:
                    read(name)
                written |= {result}
            case Exchange():
                _check_exchange(program, entry, step)
                read(step.operand)
                _expect(step.ticket not in pending, f"entry {entry.name}: ticket {step.ticket} is taken")
                pending[step.ticket] = step
            case Transfer():
                _check_transfer(program, entry, step)
                if step.attr.sends:
                    read(step.buffer)
                _expect(step.ticket not in pending, f"entry {entry.name}: ticket {step.ticket} is taken")
                pending[step.ticket] = step
            case Wait():
                begun = pending.pop(step.ticket, None)
                known = begun is not None and begun.arguments == step.arguments
                _expect(known, f"entry {entry.name}: no exchange has begun that is waited for by {step.ticket}")
                names = set(_results(begun)) if begun is not None else set()
                written |= names | {place_of(program, name).name for name in names}
            case Loop():
                for first, _ in step.carried:
                    read(first)
                asked = _written(program, entry, step.test, written)
                _expect(
                    step.rounds is not None or step.flag in asked, f"entry {entry.name}: nothing writes {step.flag}"
                )
                after = _written(program, entry, step.body, asked)
                missing = [second for _, second in step.carried if second not in after]
                _expect(not missing, f"entry {entry.name}: no round writes {', '.join(missing)}")
                written |= {whole for name in after for whole in _wholes(program, name)}
            case Measure():
                read(step.count)
            case Stages():
                _expect(step.group.size == len(step.regions), f"entry {entry.name}: stages without a rank")
                every = [_written(program, entry, region, written) for region in step.regions]
                written |= frozenset.intersection(*every)
            case Branch():
                read(step.flag)
                written |= _written(program, entry, step.then, written) & _written(program, entry, step.other, written)
    _expect(not pending, f"entry {entry.name}: nothing waits for the exchanges {', '.join(map(str, pending))}")
    return written


def _results(step: Exchange | Transfer) -> tuple[str, ...]:
    """The buffers that have new values once an exchange or transfer has been waited for."""
    if isinstance(step, Exchange):
        return (step.result,)
    return () if step.attr.sends else (step.buffer,)


def _check_transfer(program: Program, entry: Entry, step: Transfer) -> None:
    """A buffer is passed as it lies in memory, to or from another member of a group of the mesh."""
    where, buffer = f"entry {entry.name}, {step.called}", program.buffer(step.buffer)
    _expect(buffer.order == tuple(range(len(buffer.shape))), f"{where}: {buffer.name} has order {buffer.order}")
    group = step.attr.group
    _expect((group.axis, group.size) in program.mesh, f"{where}: no axis {group}")
    _expect(0 <= step.attr.peer < group.size, f"{where}: no such member of {group}")


def _check_exchange(program: Program, entry: Entry, step: Exchange) -> None:
    """Operand and result are row-major, of one type, of the shapes that the kind of exchange says, in a mesh."""
    where = f"entry {entry.name}, {step.attr.kind} of {step.operand}"
    operand, result = map(program.buffer, step.arguments)
    for buffer in (operand, result):
        _expect(buffer.order == tuple(range(len(buffer.shape))), f"{where}: {buffer.name} has order {buffer.order}")
    expected = EXCHANGES[step.attr.kind].shape(operand.shape, step.attr.group.size)
    same = (result.dtype, result.shape) == (operand.dtype, expected)
    _expect(same, f"{where}: {list(operand.shape)} to {result.dtype}{list(result.shape)}")
    _expect((step.attr.group.axis, step.attr.group.size) in program.mesh, f"{where}: no axis {step.attr.group}")
    _expect(0 <= step.ticket < program.tickets, f"{where}: ticket {step.ticket} of {program.tickets}")


def _check_call(program: Program, entry: Entry, step: HostCall) -> None:
    """A function of the host has its operand and result types, row-major; only TAKE and GIVE access texts of the
    caller."""
    where = f"entry {entry.name}, {step.function}"
    buffers = [program.buffer(name) for name in step.arguments]
    *operands, result = [buffer.dtype for buffer in buffers]
    if step.function in (TAKE, GIVE):
        kinds = [(place_of(program, name).space, program.buffer(name).dtype.is_text) for name in step.arguments]
        outside = ("input", True) if step.function == TAKE else ("output", True)
        _expect(outside in kinds and len(kinds) == 2 and kinds[0][1] and kinds[1][1], f"{where}: of {kinds}")
        return
    function = FUNCTIONS.get(step.function)
    _expect(function is not None, f"{where}: there is no such function")
    assert function is not None
    _expect((tuple(operands), result) == (function.operands, function.result), f"{where}: of {operands} to {result}")
    for buffer in buffers:
        _expect(buffer.order == tuple(range(len(buffer.shape))), f"{where}: {buffer.name} has order {buffer.order}")
        caller = buffer.space in ("input", "output") and buffer.dtype.is_text
        _expect(not caller, f"{where}: {buffer.name} holds texts, not their numbers")


def _check_entry(program: Program, entry: Entry) -> None:
    tensors = {
        tensor.buffer: (space, tensor) for space in ("input", "output") for tensor in getattr(entry, space + "s")
    }
    _distinct(f"tensor of entry {entry.name}", [t.name for t in (*entry.inputs, *entry.outputs)])
    for number, step in enumerate(entry.launches):
        where = f"entry {entry.name}, launch {number}"
        _expect(0 <= step.kernel < len(program.kernels), f"{where}: kernel {step.kernel} does not exist")
        kernel = program.kernels[step.kernel]
        arrays = kernel.nest.arrays
        _expect(
            len(arrays) == len(step.arguments),
            f"{where}: {kernel.name} takes {len(arrays)} arrays, found {len(step.arguments)}",
        )
        for name, array in zip(step.arguments, arrays, strict=True):
            _expect(name in program.named, f"{where}: buffer {name} does not exist")
            buffer = program.buffer(name)
            _expect(buffer.dtype == array.dtype, f"{where}: {array} is given {name} of type {buffer.dtype}")
            if buffer.space in ("input", "output"):
                _expect(
                    name in tensors and tensors[name][0] == buffer.space,
                    f"{where}: {name} is no {buffer.space} of the entry",
                )
            if buffer.space == "arena":
                _expect(buffer.offset + buffer.size <= entry.arena_size, f"{where}: {name} ends behind the arena")
            if array.written:
                place = place_of(program, name)
                _expect(
                    place.space in ("output", "arena", "state", "share"),
                    f"{where}: {name} is written, but lies in {place.space}",
                )
        buffers = [place_of(program, name) for name in step.arguments]
        for i, array in enumerate(arrays):
            # Kernels take restrict pointers, so that loads need not wait for stores.
            shared = [b.name for j, b in enumerate(buffers) if array.written and j != i and _overlap(buffers[i], b)]
            _expect(not shared, f"{where}: {buffers[i].name}, which the step writes, overlaps {', '.join(shared)}")


def _wholes(program: Program, name: str) -> Iterator[str]:
    """The buffers that ``name`` is a part of, from the inside outwards."""
    buffer = program.buffer(name)
    while buffer.space == "part":
        buffer = program.buffer(buffer.whole)
        yield buffer.name


def _check_fetch(program: Program, entry: Entry, step: Launch) -> None:
    """A launch fetches from within a constant, and only if its kernel can fetch."""
    if step.fetch is not None:
        where, place = f"entry {entry.name}: {step.fetch.buffer} is fetched", place_of(program, step.fetch.buffer)
        _expect(place.space == "constant", f"{where}, but lies in {place.space}")
        _expect(0 <= step.fetch.first < place.size, f"{where} from byte {step.fetch.first} of {place.size}")
        _expect(program.kernels[step.kernel].fetches, f"{where} by a kernel that fetches nothing")


def _check_phases(program: Program, entry: str, region: Region) -> None:
    """Phases follow each other, divide the tasks of their steps, and buffers of their steps do not overlap in the
    arena. A buffer in space ``share`` is used only in the phase that has portions of it."""
    free = 0
    portions = {(p.buffer, k) for phase in region.phases for p in phase.portions for k in _steps_of(phase)}
    for number, step in enumerate(region.steps):
        for nested in inner(step):
            _check_phases(program, entry, nested)
        for name in (place_of(program, name).name for name in _used(step)):
            if program.buffer(name).space == "share":
                _expect(
                    (name, number) in portions,
                    f"entry {entry}, step {number}: {name} is used outside a phase with portions of it",
                )
    for phase in region.phases:
        where = f"entry {entry}, steps {phase.first} to {phase.last}"
        _expect(free <= phase.first < phase.last < len(region.steps), f"{where}: no phase can be there")
        free = phase.last + 1
        steps = [step for step in region.steps[phase.first : free] if isinstance(step, Launch)]
        _expect(len(steps) == free - phase.first, f"{where}: only launches can be in a phase")
        nests = [program.kernels[step.kernel].nest for step in steps]
        _expect(sum(nest.checked for nest in nests) <= 1, f"{where}: more than one can raise a status")
        for nest, tasks in zip(nests, phase.tasks, strict=True):
            count = nest.task_count
            _expect(phase.shares * tasks == count, f"{where}: {count} tasks are not {phase.shares} shares of {tasks}")
        for portion in phase.portions:
            name = portion.buffer
            _expect(program.buffer(name).space == "share", f"{where}: {name} is somewhere as a whole")
            _expect(portion.length > 0, f"{where}: portions of {name} have {portion.length} elements")
            _expect(phase.linked, f"{where}: portions of {name}, but no share goes through all steps at once")
        _check_portions(program, where, phase, steps)
        buffers = {place_of(program, name) for step in steps for name in step.arguments}
        shared = sorted(a.name for a in buffers for b in buffers if a is not b and _overlap(a, b))
        _expect(not shared, f"{where}: {', '.join(shared)} overlap")


def _steps_of(phase: Phase) -> range:
    return range(phase.first, phase.last + 1)


def _check_portions(program: Program, where: str, phase: Phase, steps: Sequence[Launch]) -> None:
    """Portions that a share needs at once do not overlap."""
    lives: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(steps):
        for name in (place_of(program, name).name for name in step.arguments):
            lives[name] = (lives.get(name, (number, number))[0], number)
    for p in phase.portions:
        _expect(p.offset >= 0 and p.offset % ALIGNMENT == 0, f"{where}: a portion of {p.buffer} is not aligned")
    ends = {p.buffer: p.offset + program.bytes_of(p) for p in phase.portions}
    for a, b in combinations(phase.portions, 2):
        (first_a, last_a), (first_b, last_b) = (lives.get(p.buffer, (0, -1)) for p in (a, b))
        at_once = first_a <= last_b and first_b <= last_a
        apart = ends[a.buffer] <= b.offset or ends[b.buffer] <= a.offset
        _expect(apart or not at_once, f"{where}: the portions of {a.buffer} and {b.buffer} overlap")


def _used(step: Step) -> tuple[str, ...]:
    """The buffers that a step itself uses, without those of regions inside it."""
    match step:
        case Launch() | HostCall() | Exchange() | Transfer() | Wait():
            return step.arguments
        case Stages():
            return ()
        case Loop():
            return (*chain(*step.carried), *([step.flag] if step.flag else []))
        case Branch():
            return (step.flag,)
        case Measure():
            return (step.count,)


def _overlap(a: Buffer, b: Buffer) -> bool:
    if a.space != b.space or a.space not in ("arena", "state"):
        return a is b
    return a.offset < b.offset + b.size and b.offset < a.offset + a.size
