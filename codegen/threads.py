"""The threads of a block: divided loops, stores by one thread for all, shared arrays, barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from luminal.codegen.dialect import BlockSyntax, Fold
from luminal.codegen.frame import Frame, Value
from luminal.codegen.indices import Indices
from luminal.codegen.signature import Pointer
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.grid import ALIGNMENT, WARP
from luminal.core.schedule.nest.ir import Alloc, Barrier, Contract, Loop, LoopNest, Statement, Store
from luminal.core.schedule.nest.walk import headers, statements
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


class Threads:
    """The threads of a block, in a dialect that has blocks; a CPU's task has one thread. ``shared`` collects the
    declarations of shared arrays, which go to the head of the kernel, ``shared_bytes`` how much they take."""

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
        self._scratch: dict[str, str] = {}
        self._copying = False  # asynchronous copies may be under way, which no barrier has waited for
        self._exchanged = _exchanged(nest)

    def begin(self) -> None:
        """Declares the thread's number, to which axes of loops with one iteration per thread become aliases."""
        syntax = self._syntax()
        if self.nest.threads == 1:
            return
        name = self.frame.declare(self.variable)
        self.frame.line(f"const {self.frame.integer} {name} = {syntax.thread};")
        for axis in _whole(self.nest):
            self.frame.alias(axis, self._number)
        if any(isinstance(s, Contract) and s.fragment is not None for s in statements(self.nest.body)):
            lane = self.frame.names.like("lane")
            self.frame.line(f"const {self.frame.integer} {lane} = {name} % {WARP};")
            self.indices.named(sym.mod(self._number, WARP), lane)

    @property
    def number(self) -> str:
        """The text of the thread's number."""
        return self.indices.text(self._number)

    @property
    def lane(self) -> str:
        """The text of the thread's number in its warp."""
        return self.indices.text(sym.mod(self._number, WARP))

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
        self._loop = self._axis = None

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
        if element not in self._scratch:
            name = self._scratch[element] = self.frame.names.like("scratch")
            self._share(name, dtype.compute, self.nest.threads // warp)
        return f"block_{fold.lanes}<{self.nest.threads}>({text}, {self._scratch[element]}, {self.number})"

    def sort(self, first: str, extent: str) -> None:
        """Adds a sort of ``extent`` elements from the pointer ``first`` on, by all threads of the block."""
        number = self.number if self.nest.threads > 1 else "0"
        self.frame.line(f"block_sort<{self.nest.threads}>({first}, {extent}, {number});")

    def barrier(self, all_memory: bool) -> None:
        """Adds a barrier, after a wait for the asynchronous copies that are under way."""
        if self._copying:
            self.frame.line("copy_commit();")
            self.frame.line("copy_wait<0>();")
            self._copying = False
        self.frame.line("barrier_of_all_memory();" if all_memory else "barrier();")

    def copies(self) -> None:
        """Notes that an asynchronous copy has been started."""
        self._copying = True

    @contextmanager
    def repeated(self, body: Sequence[Statement]) -> Iterator[None]:
        """Around a loop over ``body``, which may run no iteration: copies started in one iteration may be under way in
        the next, and copies under way before the loop may be so after it."""
        before = self._copying
        self._copying = before or _leaves_copies(body)
        yield
        self._copying = self._copying or before

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
            self._share(pointer.name, pointer.dtype, statement.extent, f"alignas({ALIGNMENT}) ")
            return
        element = self.frame.dialect.type(pointer.dtype)
        parts = self.nest.threads if statement.space == "registers" else 1
        if statement.extent % parts:
            raise SpecError(f"array {statement.name}: {statement.extent} elements for {parts} threads")
        self.frame.line(f"{element} {pointer.name}[{statement.extent // parts}];")

    def _share(self, name: str, dtype: DType, extent: int, alignment: str = "") -> None:
        """Declares an array that the threads share."""
        first = -(-self.shared_bytes // ALIGNMENT) * ALIGNMENT
        self.shared_bytes = first + extent * dtype.itemsize
        of = self.frame.dialect.type(dtype)
        form = self._syntax().shared
        self.shared.append(form.format(alignment=alignment, type=of, name=name, extent=extent, first=first))

    def part(self, offset: Int, extent: int) -> Int:
        """``offset``, in an array of ``extent`` elements in the registers of all threads, relative to the thread's own
        part. Raises SpecError where it is in another thread's part."""
        if self._loop is None or self._axis is None:
            raise SpecError("an array in registers is used outside the loops that are divided among threads")
        size = extent // self.nest.threads
        rest = self.frame.resolve(offset) - size * sym.expr(self._axis)
        if self._axis in sym.variables(rest):
            raise SpecError(f"element {offset} of an array in registers is not in the part of thread {self._loop.axis}")
        return rest

    def _syntax(self) -> BlockSyntax:
        syntax = self.frame.dialect.block
        if syntax is None:
            raise SpecError(f"kernels in {self.frame.dialect.language} are run by one thread")
        return syntax


def _leaves_copies(body: Sequence[Statement]) -> bool:
    """Whether copies that ``body`` starts may be under way at its end."""
    for statement in reversed(body):
        if isinstance(statement, Barrier):
            return False
        if any(isinstance(s, Store) and s.ahead for s in statements((statement,))):
            return True
    return False


def _exchanged(nest: LoopNest) -> frozenset[str]:
    """The arrays through which threads can exchange values."""
    shared = {s.name for s in statements(nest.body) if isinstance(s, Alloc) and s.space == "shared"}
    return frozenset(shared | {array.name for array in nest.arrays if array.written})


def _whole(nest: LoopNest) -> list[Var]:
    """The axes all of whose loops have one iteration per thread."""
    loops = [loop for s in statements(nest.body) for loop in headers(s)]
    whole = {loop.axis: None for loop in loops if _is_whole(loop, nest)}
    others = {loop.axis for loop in loops if not _is_whole(loop, nest)}
    return [axis for axis in whole if axis not in others]


def _is_whole(loop: Loop, nest: LoopNest) -> bool:
    return loop.kind == "thread" and loop.extent == loop.lanes == nest.threads
