"""The threads of a block: divided loops, stores by one thread for all, shared arrays, barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from luminal.codegen.dialect import BlockSyntax, Fold
from luminal.codegen.frame import Frame, Value, words
from luminal.codegen.indices import Indices
from luminal.codegen.signature import BoxMap, Pointer
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.grid import ALIGNMENT, COPYING, LINES, PANEL, WARP, more_registers
from luminal.core.schedule.grid.legality import shared_bytes
from luminal.core.schedule.nest.hand_over import HandOver
from luminal.core.schedule.nest.ir import Alloc, Barrier, Contract, CopyBox, Loop, LoopNest, Statement, Store
from luminal.core.schedule.nest.walk import arrays_touched, headers, inside, statements
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, u64

TURNS = 4  # of a thread's iterations that are written out


class Threads:
    """The threads of a block, in a dialect that has blocks; a CPU's task has one thread. ``shared`` collects the
    declarations of shared arrays, which go to the head of the kernel, ``shared_bytes`` how much they take, of which the
    host is asked for ``requested``."""

    def __init__(self, frame: Frame, indices: Indices, nest: LoopNest) -> None:
        self.frame = frame
        self.indices = indices
        self.nest = nest
        self.shared: list[str] = []
        self.shared_bytes = 0
        self.variable = Var("tid", 0, nest.threads - 1)
        self._number: Int = sym.expr(self.variable)
        self._loop: Loop | None = None  # the open loop that is divided among the threads
        self._axis: Var | None = None  # its axis, aliases resolved
        self._turn: Int | None = None  # what its axis is, in a loop over the turns of a thread
        self._held = _held(nest)
        self._scratch: dict[tuple[str, int], str] = {}
        self._reduced = 0  # reductions so far: each uses another array than that before it
        self._around = 0  # loops and conditions around
        self._unordered = False  # whether the last reduction was inside such, so that it may have run again, or not
        self._copies = _Copies("copy_commit();", "copy_wait<{left}>();")
        self._boxes = _Copies("", "")
        self._boxed = ""  # the variable that knows of copies of boxes
        self.maps: list[BoxMap] = []
        self._products = _Copies("", "")
        self._slots = _Slots(nest)
        self._exchanged = _exchanged(nest)
        fragments = [s.fragment for s in statements(nest.body) if isinstance(s, Contract)]
        self._lanes = any(f is not None and not f.panels for f in fragments)
        panels = {s.name for s in statements(nest.body) if isinstance(s, Alloc) and s.row}
        one_by_one = (s for part in nest.body for s in _apart(part, bool(frame.dialect.head.map)))
        self._shares = any(isinstance(s, Store) and s.array in panels for s in one_by_one)
        syntax = frame.dialect.block
        self._stages = _stages_of_boxes(nest) if frame.dialect.head.map else 0
        if nest.copiers and not self._stages:
            raise SpecError(f"{frame.dialect.language} has no boxes that some threads could copy for others")
        taken = shared_bytes(nest) + (PANEL * LINES if self._stages else 0)  # panels begin at whole multiples
        self._requests = syntax is not None and 0 < syntax.own < taken

    @property
    def requested(self) -> int:
        """The bytes of shared memory that the host is asked for."""
        return self.shared_bytes if self._requests else 0

    def begin(self) -> None:
        """Declares the thread's number, to which axes of loops with one iteration per thread become aliases."""
        syntax = self._syntax()
        if self.nest.threads == 1:
            return
        name = self.frame.declare(self.variable)
        self.frame.line(f"const {self.frame.integer} {name} = {syntax.thread};")
        for axis in _whole(self.nest):
            self.frame.alias(axis, self._number)
        if self._lanes:
            lane = self.frame.names.like("lane")
            self.frame.line(f"const {self.frame.integer} {lane} = {name} % {WARP};")
            self.indices.named(sym.mod(self._number, WARP), lane)
        stages = self._stages
        if self.nest.copiers:
            arrivals, slots = (self.frame.names.like(each) for each in ("arrivals", "slots"))
            self._share(arrivals, u64, 2 * stages, u64.itemsize)
            made = f"slots_begin<{stages}, {self.nest.threads // WARP}>({arrivals}, {name})"
            self.frame.line(f"Slots<{stages}> {slots} = {made};")
            self._slots.name = slots
        elif stages:
            arrivals, boxes = (self.frame.names.like(each) for each in ("arrivals", "boxes"))
            self._share(arrivals, u64, stages, u64.itemsize)
            self.frame.line(f"Boxes<{stages}> {boxes} = boxes_begin<{stages}>({arrivals}, {name});")
            self._boxed = boxes
            self._boxes = _Copies(f"boxes_commit({boxes}, {{number}});", f"boxes_wait<{{left}}>({boxes});")

    @property
    def number(self) -> str:
        """The text of the thread's number."""
        return self.indices.text(self._number)

    @property
    def lane(self) -> str:
        """The text of the thread's number in its warp."""
        return self.indices.text(sym.mod(self._number, WARP))

    def lane_of(self, count: int) -> str:
        """The text of the thread's number in its group of ``count`` threads."""
        return self.indices.text(sym.mod(self._number, count))

    @property
    def apart(self) -> bool:
        """Whether a loop that is divided among the threads is open."""
        return self._loop is not None

    @contextmanager
    def loop(self, loop: Loop, writes: frozenset[str]) -> Iterator[None]:
        """Opens the thread's own iterations of ``loop`` for the duration of the ``with``."""
        self._syntax()
        self._loop = loop
        self._axis = sym.as_var(self.frame.resolve(sym.expr(loop.axis)))
        with self._iterations(loop, writes):
            yield
        self._loop = self._axis = self._turn = None

    @contextmanager
    def _iterations(self, loop: Loop, writes: frozenset[str]) -> Iterator[None]:
        number = self.number if self.nest.threads > 1 else "0"
        if loop.extent == loop.lanes:
            with self.frame.unbraced(writes=writes):
                if self._axis == loop.axis:
                    self.frame.bind(loop.axis, Value(number))
                yield
            return
        extent = self.indices.text(loop.extent)
        if sym.always(loop.lanes - loop.extent):
            with self.frame.open(f"if ({number} < {extent}) {{", certain=False, writes=writes):
                self.frame.bind(loop.axis, Value(number))
                yield
            return
        name = self.frame.names.like(loop.axis.name)
        most = sym.upper(loop.extent)
        held = loop.axis in self._held and most is not None
        if held or (isinstance(loop.extent, int) and loop.lanes > 1 and loop.extent % loop.lanes == 0):
            # As many for each thread: the compiler may keep what several such loops read.
            assert most is not None
            turns = -(-most // loop.lanes)
            variable = Var(self.frame.names.like("turn"), 0, turns - 1)
            turn = variable.name
            unroll = self.frame.dialect.unroll.format(count=turns if held else min(turns, TURNS))
            head = f"{unroll}\nfor ({self.frame.integer} {turn} = 0; {turn} < {turns}; ++{turn}) {{"
            whole = sym.always(loop.extent - turns * loop.lanes)
            with self.frame.open(head, certain=True, writes=writes) as scope:
                self.frame.bind(loop.axis, Value(name))
                self.frame.bind(variable, Value(turn))
                self._turn = self._number + loop.lanes * sym.expr(variable)
                scope.names += [turn, name]
                if whole:
                    yield
                else:
                    with self.frame.open(f"if ({name} < {extent}) {{", certain=False, writes=writes):
                        yield
                if name in words(scope.lines):  # not for registers alone
                    scope.lines.insert(0, f"const {self.frame.integer} {name} = {number} + {loop.lanes}*{turn};")
            return
        step = f"{name} += {loop.lanes}" if loop.lanes > 1 else f"++{name}"
        head = f"for ({self.frame.integer} {name} = {number}; {name} < {extent}; {step}) {{"
        with self.frame.open(head, certain=sym.always(loop.extent - loop.lanes), writes=writes) as scope:
            self.frame.bind(loop.axis, Value(name))
            scope.names.append(name)
            yield

    # ---- together --------------------------------------------------------------------------------------------------

    def combined(self, fold: Fold, text: str, dtype: DType) -> str:
        """The text of the reduction of all threads' values, which every thread gets."""
        if self.nest.threads == 1:
            return text
        warp = self._syntax().warp
        if self.nest.threads == warp:
            return f"warp_{fold.lanes}({text})"
        element = self.frame.dialect.type(dtype.compute)
        if self._around or self._unordered:
            self.frame.line("barrier();")
        self._unordered = self._around > 0
        key = element, self._reduced % 2
        self._reduced += 1
        if key not in self._scratch:
            name = self._scratch[key] = self.frame.names.like("scratch")
            self._share(name, dtype.compute, self.nest.threads // warp)
        return f"block_{fold.lanes}<{self.nest.threads}>({text}, {self._scratch[key]}, {self.number})"

    def sort(self, first: str, extent: str) -> None:
        """Adds a sort of ``extent`` elements from the pointer ``first`` on, by all threads of the block."""
        number = self.number if self.nest.threads > 1 else "0"
        self.frame.line(f"block_sort<{self.nest.threads}>({first}, {extent}, {number});")

    def barrier(self, barrier: Barrier) -> None:
        """Adds a barrier, after waits for the products and the asynchronous copies that it does not leave under way."""
        for line in self._products.wait(barrier.products):
            self.frame.line(line)
        both = (self._copies, self._boxes)
        lines = [line for copies in both for line in copies.commit(self.number)]
        for line in (*lines, *(line for copies in both for line in copies.wait(barrier.left))):
            self.frame.line(line)
        if self._shares:  # what threads have written, groups of warps will read
            self.frame.line("share_with_groups();")
        self.frame.line("barrier_of_all_memory();" if barrier.all_memory else "barrier();")

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Opens what the threads do that only copy, of which one does it; they end with the ``with``. The others have
        their registers from then on."""
        threads, number = self.nest.threads, self.number
        more = more_registers(threads, self.nest.copiers)
        self._slots.fills = True
        with self.frame.open(f"if ({number} >= {threads}) {{", certain=False):
            if more:
                self.frame.line(f"fewer_registers<{COPYING}>();")
            with self.frame.open(f"if ({number} == {threads}) {{", certain=False):
                yield
            self.frame.line("return;")
        self._slots.fills = False
        if more:
            self.frame.line(f"more_registers<{more}>();")

    def hand_over(self, statement: HandOver) -> None:
        """Adds that a slot changes hands: to whom fills it that it is full, to the others a wait for that, or that it
        is given back."""
        slots = self._slots
        if slots.fills:
            self.frame.line(f"slot_filled<{statement.slot}>({slots.name});")
            slots.open = None
        elif statement.filled:
            self.frame.line(f"slot_wait_full<{statement.slot}>({slots.name});")
        else:
            for line in self._products.wait(statement.products):
                self.frame.line(line)
            self.frame.line(f"slot_give_back<{statement.slot}>({slots.name}, {self.number});")

    def copies(self) -> None:
        """Notes that an asynchronous copy has been started."""
        self._copies.started = True

    def copy_box(self, box: CopyBox, to: Pointer, source: Pointer, at: str) -> None:
        """Adds a copy of the box of ``source`` that begins ``at`` these coordinates."""
        about = (source.array, to.dtype.itemsize, box.sizes, box.strides, box.first, box.lines)
        found = next((m for m in self.maps if about == _about(m)), None)
        if found is None:
            found = BoxMap(self.frame.names.like(f"box_{source.name}"), *about)
            self.maps.append(found)
        shape = f"{box.lines}, {box.row * to.dtype.itemsize // PANEL}"
        if self._slots.fills:
            slot, slots = self._slots.of[box.array], self._slots.name
            if slot != self._slots.open:
                self.frame.line(f"slot_wait_empty<{slot}>({slots});")
                self._slots.open = slot
            self.frame.line(f"slot_copy<{slot}, {shape}>({slots}, {to.name}, {found.name}, {at});")
            return
        self.frame.line(f"copy_box<{shape}>({self._boxed}, {to.name}, {found.name}, {self.number}, {at});")
        self._boxes.started = True

    def multiplies(self, wait: str) -> None:
        """Notes that a product is under way. ``wait`` formats the line that waits until so many are ``left``."""
        if self._products.waiting not in ("", wait):
            raise SpecError("products of several tiles are under way in the background")
        self._products.waiting, self._products.started = wait, True

    @contextmanager
    def repeated(self, body: Sequence[Statement]) -> Iterator[None]:
        """Around a loop over ``body``, which may run no iteration: copies started in one iteration may be under way in
        the next, and copies under way before the loop may be so after it. Inside a divided loop no thread waits."""
        if self.apart:
            yield
            return
        barriers = [s for s in statements(body) if isinstance(s, Barrier)]
        products = any(s.products for s in statements(body) if isinstance(s, Barrier | HandOver))
        both = (self._copies, self._boxes, self._products)
        before = [replace(copies) for copies in both]
        boxes = bool(self.frame.dialect.head.map)
        self._copies.started |= _leaves_copies(body, boxes=False, as_boxes=boxes)
        self._boxes.started |= boxes and _leaves_copies(body, boxes=True, as_boxes=boxes)
        for copies in both:
            left = products if copies is self._products else any(b.left for b in barriers)
            copies.left |= copies.begun and left
        self._products.left |= self._products.started
        self._products.started = False
        self._around += 1
        yield
        self._around -= 1
        if self._products.started:
            raise SpecError("a product is under way at the end of a loop or condition: nothing waits for it there")
        for copies, earlier in zip(both, before, strict=True):
            copies.started, copies.left = copies.started or earlier.started, copies.left or earlier.left

    def moved(self, body: Sequence[Statement]) -> frozenset[str]:
        """The arrays that other threads may have changed after a barrier in ``body``: no read moves across it."""
        found = any(isinstance(s, Barrier) for s in statements(body))
        return self._exchanged if found else frozenset()

    def one(self, pointer: Pointer) -> str:
        """The condition that selects one thread to store into an array common to all; empty where none is needed."""
        alone = self._loop is not None or self.nest.threads == 1
        return "" if alone or pointer.space not in ("global", "shared") else f"{self.number} == 0"

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def declare(self, statement: Alloc, pointer: Pointer) -> None:
        """Declares an array."""
        if statement.space == "shared":
            self._share(pointer.name, pointer.dtype, statement.extent, PANEL * LINES if pointer.row else ALIGNMENT)
            return
        element = self.frame.dialect.type(pointer.dtype)
        parts = self.nest.threads if statement.space == "registers" else 1
        if statement.extent % parts:
            raise SpecError(f"array {statement.name}: {statement.extent} elements for {parts} threads")
        self.frame.line(f"{element} {pointer.name}[{statement.extent // parts}];")

    def _share(self, name: str, dtype: DType, extent: int, alignment: int = 0) -> None:
        """Declares an array that the threads share, at a multiple of ``alignment`` bytes where that is not 0."""
        whole = max(alignment, ALIGNMENT)
        first = -(-self.shared_bytes // whole) * whole
        self.shared_bytes = first + extent * dtype.itemsize
        of, aligned = self.frame.dialect.type(dtype), f"alignas({alignment}) " if alignment else ""
        form = self._syntax().requested if self._requests else self._syntax().shared
        self.shared.append(form.format(alignment=aligned, type=of, name=name, extent=extent, first=first))

    def part(self, offset: Int, extent: int) -> Int:
        """``offset``, in an array of ``extent`` elements in the registers of all threads, relative to the thread's own
        part. Raises SpecError where it is in another thread's part."""
        if self._loop is None or self._axis is None:
            raise SpecError("an array in registers is used outside the loops that are divided among threads")
        size = extent // self.nest.threads
        if self._turn is not None:
            offset = sym.substitute(offset, {self._loop.axis: self._turn})
        rest = self.frame.resolve(offset) - size * (sym.expr(self._axis) if self._turn is None else self._number)
        if self._axis in sym.variables(rest):
            raise SpecError(f"element {offset} of an array in registers is not in the part of thread {self._loop.axis}")
        return rest

    def _syntax(self) -> BlockSyntax:
        syntax = self.frame.dialect.block
        if syntax is None:
            raise SpecError(f"kernels in {self.frame.dialect.language} are run by one thread")
        return syntax


@dataclass
class _Copies:
    """Asynchronous copies of one kind, or products: whether some may be ``started`` that no barrier has come after, and
    some may be under way that barriers have ``left``; and how they are ended as a group, and waited for."""

    end: str
    waiting: str
    started: bool = False
    left: bool = False
    begun: bool = False  # at all

    def commit(self, number: str) -> list[str]:
        return [self.end.format(number=number)] if self.started else []

    def wait(self, left: int) -> list[str]:
        waits = self.started or self.left
        self.begun = self.begun or self.started
        self.started, self.left = False, waits and left > 0
        return [self.waiting.format(left=left)] if waits else []


class _Slots:
    """The slots that threads which only copy hand over: the ``name`` of the variable that knows of them, which of them
    each array is ``of``, whether the statements are those of the threads that fill (``fills``), and the slot whose
    boxes are being copied (``open``)."""

    def __init__(self, nest: LoopNest) -> None:
        self.name = ""
        self.fills = False
        self.open: int | None = None
        self.of: dict[str, int] = {}
        boxes: list[str] = []
        for statement in statements(nest.body):
            if isinstance(statement, CopyBox):
                boxes.append(statement.array)
            elif isinstance(statement, HandOver) and statement.filled:
                for array in boxes:
                    if self.of.setdefault(array, statement.slot) != statement.slot:
                        raise SpecError(f"array {array} is handed over in slots {self.of[array]} and {statement.slot}")
                boxes = []


def _about(found: BoxMap) -> tuple[object, ...]:
    return found.array, found.itemsize, found.sizes, found.strides, found.first, found.lines


def _stages_of_boxes(nest: LoopNest) -> int:
    """How many groups of copies of boxes may be under way at once."""
    stages: dict[str, set[str]] = {}
    for box in (s for s in statements(nest.body) if isinstance(s, CopyBox)):
        stages.setdefault(box.source, set()).add(box.array)
    return max(map(len, stages.values()), default=0)


def _leaves_copies(body: Sequence[Statement], *, boxes: bool, as_boxes: bool) -> bool:
    """Whether copies that ``body`` starts, ``boxes`` or others, may be under way at its end. ``as_boxes`` says that
    boxes are copied as such."""
    for statement in reversed(body):
        if isinstance(statement, Barrier):
            return False
        if any(_is_copy(s, boxes) for s in _apart(statement, as_boxes)):
            return True
    return False


def _is_copy(statement: Statement, boxes: bool) -> bool:
    return isinstance(statement, CopyBox) if boxes else isinstance(statement, Store) and statement.ahead


def _apart(statement: Statement, as_boxes: bool) -> list[Statement]:
    """``statement`` and those inside it, but not those of boxes that are copied as such."""
    inner = () if as_boxes and isinstance(statement, CopyBox) else inside(statement)
    return [statement, *(s for part in inner for s in _apart(part, as_boxes))]


def _exchanged(nest: LoopNest) -> frozenset[str]:
    """The arrays through which threads can exchange values."""
    shared = {s.name for s in statements(nest.body) if isinstance(s, Alloc) and s.space == "shared"}
    return frozenset(shared | {array.name for array in nest.arrays if array.written})


def _held(nest: LoopNest) -> set[Var]:
    """The axes of loops that threads divide and in which they use arrays in their registers."""
    every = statements(nest.body)
    registers = {s.name for s in every if isinstance(s, Alloc) and s.space == "registers"}
    used = (s for s in every if not registers.isdisjoint(set().union(*arrays_touched((s,)))))
    return {loop.axis for s in used for loop in headers(s) if loop.kind == "thread"}


def _whole(nest: LoopNest) -> list[Var]:
    """The axes all of whose loops have one iteration per thread."""
    loops = [loop for s in statements(nest.body) for loop in headers(s)]
    whole = {loop.axis: None for loop in loops if _is_whole(loop, nest)}
    others = {loop.axis for loop in loops if not _is_whole(loop, nest)}
    return [axis for axis in whole if axis not in others]


def _is_whole(loop: Loop, nest: LoopNest) -> bool:
    return loop.kind == "thread" and loop.extent == loop.lanes == nest.threads
