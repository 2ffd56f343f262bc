"""Statements of a loop nest as C++."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.codegen import across, patterns, products
from luminal.codegen.contraction import Contraction, TileFunction
from luminal.codegen.expressions import Expressions
from luminal.codegen.frame import Frame, Value
from luminal.codegen.indices import Indices
from luminal.codegen.loops import Loops
from luminal.codegen.reductions import Accumulation, SideBySide
from luminal.codegen.signature import Pointer
from luminal.codegen.threads import Threads
from luminal.core import ops
from luminal.core.costs import Prefetching
from luminal.core.errors import SpecError
from luminal.core.grid import COPIES
from luminal.core.ops import Failure
from luminal.core.schedule.nest.hand_over import HandOver
from luminal.core.schedule.nest.ir import (
    Access,
    Alloc,
    Assign,
    Barrier,
    Combine,
    Contract,
    CopyBox,
    Define,
    If,
    KeepLeast,
    Let,
    Loop,
    LoopNest,
    Prefetch,
    Reduction,
    Reductions,
    Regroup,
    Scalar,
    Sort,
    Statement,
    Store,
)
from luminal.core.schedule.nest.walk import arrays_written
from luminal.core.schedule.nest.walk import statements as nested
from luminal.core.symbolic import Expr, Int
from luminal.core.types import i32

MOVES = (2, 4, 8)  # bytes of an integer that a CPU moves at once

STATUSES = {
    Failure.INDEX: "LM_INDEX_OUT_OF_RANGE",
    Failure.SINGULAR: "LM_SINGULAR_MATRIX",
    Failure.ROOM: "LM_OUT_OF_ROOM",
    Failure.BRANCH: "LM_UNFIT_BRANCH",
}


class Statements:
    """Renders the statements of ``nest``, the kernel ``name``, into a frame. ``functions`` collects the tile functions
    that must precede the kernel; ``prefetch`` says how far ahead they prefetch; with ``fetches`` they also do so for
    later kernels. Arrays ``unread`` are left out: wherever one is read, its value is still in a named variable."""

    def __init__(
        self,
        name: str,
        frame: Frame,
        nest: LoopNest,
        arrays: dict[str, Pointer],
        unread: frozenset[str],
        prefetch: Prefetching,
        fetches: bool = False,
    ) -> None:
        self.name = name
        self.prefetch = prefetch
        self.fetches = fetches
        self.unread = unread
        self.frame = frame
        self.arrays = arrays
        self.indices = Indices(frame)
        self.threads = Threads(frame, self.indices, nest)
        tiles = frame.dialect.block is None and any(isinstance(s, Contract) for s in nested(nest.body))
        function = patterns.beside_tiles if tiles else patterns.function
        self.expressions = Expressions(frame, self.indices, self.threads, arrays, function)
        self.loops = Loops(frame, self.indices)
        self.functions: list[TileFunction] = []
        self.kept: dict[tuple[str, Int], tuple[str, str]] = {}  # array, offset: name and number of a row (see across)

    def body(self, statements: Sequence[Statement]) -> None:
        """Adds ``statements`` to the innermost open scope."""
        for statement in statements:
            if isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, Let):
                self._let(statement)
            elif isinstance(statement, Define):
                self._temporary(statement.name, self.expressions.value(statement.value))
            elif isinstance(statement, Reduction):
                self._reduction(statement)
            elif isinstance(statement, Reductions):
                for name, result in SideBySide(self.loops, self.expressions, statement).render().items():
                    self._temporary(name, result)
            elif isinstance(statement, Store):
                self._store(statement)
            elif isinstance(statement, Sort):
                self._sort(statement)
            elif isinstance(statement, KeepLeast):
                self._keep(statement)
            elif isinstance(statement, Combine):
                self._combine(statement)
            elif isinstance(statement, Regroup):
                self._regroup(statement)
            elif isinstance(statement, If):
                self._if(statement)
            elif isinstance(statement, Barrier):
                self.threads.barrier(statement)
            elif isinstance(statement, Alloc):
                self._alloc(statement)
            elif isinstance(statement, Assign):
                self._assign(statement)
            elif isinstance(statement, Prefetch):
                self.frame.line(f"prefetch({self.expressions.pointer(statement.array, statement.offset)});")
            elif isinstance(statement, CopyBox):
                self._copy_box(statement)
            elif isinstance(statement, HandOver):
                self.threads.hand_over(statement)
            elif isinstance(statement, Contract):
                self._contract(statement)
            else:
                raise SpecError(f"no text for {type(statement).__name__}")

    # ---- names -----------------------------------------------------------------------------------------------------

    def _temporary(self, name: str, value: Value) -> None:
        self.frame.scopes[-1].temporaries[name] = value

    def _alloc(self, statement: Alloc) -> None:
        name = self.frame.names.like(statement.name)
        pointer = Pointer(
            statement.name, name, statement.dtype, True, statement.space, statement.extent, row=statement.row
        )
        self.arrays[statement.name] = pointer
        if statement.name in self.unread:
            return
        if self.frame.dialect.block is None and statement.space == "local":
            self.frame.line(f"alignas(64) {self.frame.dialect.type(statement.dtype)} {name}[{statement.extent}];")
        else:
            self.threads.declare(statement, pointer)

    def _assign(self, statement: Assign) -> None:
        if self.indices.stride(statement.value) != 0:
            self.frame.alias(statement.axis, statement.value)
            return
        text = self.indices.expression(statement.value)
        name = self.frame.define(statement.axis, statement.value)
        self.frame.line(f"const {self.frame.integer} {name} = {text};")
        self.indices.named(statement.value, name)

    def _let(self, statement: Let) -> None:
        value = self.expressions.value(statement.value)
        if statement.failure is None:
            lanes = self.frame.group.lanes if self.frame.group is not None else 1
            integer = self.frame.integer
            name = self.frame.declare(statement.axis, varying=value.varying)
            if value.varying:
                text = value.text if integer == "int64_t" else f"convert<{integer}>({value.text})"
                self.frame.line(f"const vec<{integer}, {lanes}> {name} = {text};")
                source = statement.value.operands[0] if statement.value.op is ops.CAST else statement.value
                if source.dtype == i32:  # twice as many fit a register: what is read at them needs no wider ones
                    self.indices.narrow(statement.axis, self.expressions.vector(source))
            else:
                self.frame.line(f"const {integer} {name} = static_cast<{integer}>({value.text});")
            return
        raising = self.frame.dialect.raising.format(code=STATUSES[statement.failure])
        if not value.varying and self.frame.dialect.block is not None:
            self._let_on_grid(statement, value.text, raising)
            return
        if not value.varying:
            extent = self.indices.text(statement.extent)
            name = self.frame.declare(statement.axis)
            self.frame.line(f"int64_t {name} = {value.text};")
            self.frame.line(f"if ({name} < 0 || {name} >= {extent}) {{")
            self.frame.line(f"    {raising}")
            self.frame.line(f"    {name} = 0;")
            self.frame.line("}")
            return
        group = self.frame.group
        assert group is not None
        extent = self.indices.name(statement.extent)
        broadcast, inside = self.expressions.broadcast, self.frame.names.fresh("m")
        above = f"less({broadcast('int64_t{-1}')}, {value.text})"
        below = f"less({value.text}, {broadcast(f'int64_t{{{extent}}}')})"
        self.frame.line(f"const vec<bool, {group.lanes}> {inside} = bit_and({above}, {below});")
        expected = f"bit_or({inside}, bit_not({self.indices.active()}))" if group.count else inside
        self.frame.line(f"if (!all({expected})) {raising}")
        name = self.frame.declare(statement.axis, varying=True)
        chosen = f"select({inside}, {value.text}, {broadcast('int64_t{0}')})"
        if self.frame.integer != "int64_t":
            chosen = f"convert<int32_t>({chosen})"
        self.frame.line(f"const vec<{self.frame.integer}, {group.lanes}> {name} = {chosen};")

    def _let_on_grid(self, statement: Let, value: str, raising: str) -> None:
        """The value may be of a wider type than indices: it is checked before it is converted."""
        inside, name = self.frame.names.fresh("inside"), self.frame.declare(statement.axis)
        self.frame.line(f"const bool {inside} = 0 <= {value} && {value} < {self.indices.text(statement.extent)};")
        self.frame.line(f"if (!{inside}) {raising}")
        integer = self.frame.integer
        self.frame.line(f"const {integer} {name} = {inside} ? static_cast<{integer}>({value}) : 0;")

    # ---- loops -----------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        if loop.kind == "parallel":
            raise SpecError(f"parallel loop {loop.axis} inside another statement")
        writes = self._writes(loop.body)
        if loop.kind == "thread":
            with self.threads.loop(loop, writes):
                self.body(loop.body)
            return
        if loop.kind == "across" and self.frame.group is not None and self.frame.dialect.block is None:
            across.render(self.loops, self.expressions, loop, writes, self.body, self.kept)
            return
        if loop.kind in ("serial", "across", "ordered", "unroll"):
            end = self.indices.text(loop.extent)
            # Iterations between which threads wait gain nothing from being written out.
            waits = loop.kind == "serial" and any(isinstance(s, Barrier) for s in nested(loop.body))
            unroll = 1 if waits else None
            with self.loops.counted(loop, "0", end, 1, writes, unroll=unroll), self.threads.repeated(loop.body):
                self.body(loop.body)
            return
        for group in self.loops.groups(loop, writes):
            with self.frame.vector(group):
                self.body(loop.body)

    def _if(self, statement: If) -> None:
        uniform, varying = self.indices.split(statement.valid)
        if varying:
            raise SpecError(f"the condition {varying[0]} >= 0 differs between the lanes of a vector loop")
        head = f"if ({self.indices.holds(uniform)}) {{"
        writes = self._writes(statement.body)
        with self.frame.open(head, certain=False, writes=writes), self.threads.repeated(statement.body):
            self.body(statement.body)

    def _writes(self, body: Sequence[Statement]) -> frozenset[str]:
        """The arrays that may have changed from one iteration of ``body`` to the next."""
        return arrays_written(body) | self.threads.moved(body)

    # ---- reductions ------------------------------------------------------------------------------------------------

    def _reduction(self, statement: Reduction) -> None:
        result = Accumulation(self.loops, self.threads, self.expressions, self.body, statement).render()
        self._temporary(statement.name, result)

    # ---- stores ----------------------------------------------------------------------------------------------------

    def _store(self, statement: Store) -> None:
        if (statement.ahead and self._copy(statement)) or self._move(statement):
            return
        uniform, masked = self.indices.split(statement.valid)
        stride = self.indices.stride(statement.offset)
        stored = self.expressions.to_store(statement.value)
        value = self.expressions.value(stored)
        if statement.array in self.unread:
            text = ""
        elif self.frame.group is None:
            text = self._store_one(statement, value.text)
        else:
            text = self._store_lanes(statement, stride, masked, self._lanes(statement.value, stored))
        conditions = (self.threads.one(self.arrays[statement.array]), self.indices.holds(uniform))
        guard = " && ".join(filter(None, conditions))
        if text:
            self.frame.line(f"if ({guard}) {text}" if guard else text)
        self.frame.wrote(statement.array)
        if not statement.valid:
            self.expressions.stored(statement, stored, value)

    def _lanes(self, value: Scalar, stored: Scalar) -> str:
        """The text of the lanes to store for ``value``: those of ``stored``, ``value`` before the store rounds it."""
        text = self.expressions.vector(stored)
        rounds = stored is not value and self.frame.dialect.block is None
        return f"normal_or_zero({text})" if rounds and not value.attr.subnormals else text

    def _store_one(self, statement: Store, value: str) -> str:
        pointer = self.arrays[statement.array]
        if pointer.dtype.is_bool or pointer.dtype.compute != pointer.dtype:
            return f"store({self.expressions.pointer(statement.array, statement.offset)}, {value});"
        return f"{pointer.name}[{self.expressions.place(statement.array, statement.offset)}] = {value};"

    def _copy(self, store: Store) -> bool:
        """Renders a store that only copies as an asynchronous copy to shared memory, where possible; whether it did."""
        leaf, group, dialect = store.value.leaf, self.frame.group, self.frame.dialect
        if dialect.block is None or not isinstance(leaf, Access) or store.valid:
            return False
        lanes = 1 if group is None else group.lanes
        source, target, size = self.arrays[leaf.array], self.arrays[store.array], lanes * store.value.dtype.itemsize
        same = source.dtype == target.dtype == store.value.dtype and not any(leaf.fill)
        uniform, masked = self.indices.split(leaf.valid)
        ends = ((store.array, store.offset), (leaf.array, leaf.offset))
        if not same or masked or size not in COPIES or target.space != "shared":
            return False
        if group is not None:
            beside = all(self.indices.stride(at) == 1 and self.expressions.together(name, at) for name, at in ends)
            if not beside or group.count:
                return False
        arguments = [self.expressions.pointer(name, at) for name, at in ends]
        arguments += [self.indices.holds(uniform)] if uniform else []
        self.expressions.read.add(leaf.array)
        self.frame.line(f"copy_async<{size}>({', '.join(arguments)});")
        self.frame.wrote(store.array)
        self.threads.copies()
        return True

    def _copy_box(self, box: CopyBox) -> None:
        """Renders a copy of a box as one copy, where the dialect has such, else element by element."""
        if not self.frame.dialect.head.map:
            self.body(box.body)
            return
        to, source = self.arrays[box.array], self.arrays[box.source]
        self.expressions.read.add(box.source)
        texts = [self.indices.text(x) for x in box.origin]
        at = ", ".join(texts if self.frame.integer != "int64_t" else [f"static_cast<int>({text})" for text in texts])
        self.threads.copy_box(box, to, source, at)
        self.frame.wrote(box.array)

    def _move(self, store: Store) -> bool:
        """Renders a store that only copies a few elements as a move of one integer, where they fill one; whether it
        did. The pairs of a transposed operand are such elements."""
        leaf, group = store.value.leaf, self.frame.group
        if self.frame.dialect.block is not None or group is None or not isinstance(leaf, Access) or store.valid:
            return False
        dtype, names = store.value.dtype, {leaf.array, store.array}
        count = int(group.count) if group.count is not None and group.count.isdigit() else 0
        # A bool, or a type with fewer bits than its bytes, may have several patterns in memory for one value.
        whole = count * dtype.itemsize in MOVES and dtype.bits == 8 * dtype.itemsize and not dtype.is_bool
        same = {self.expressions.array(name).dtype for name in names} == {dtype}
        beside = all(self.indices.stride(at) == 1 for at in (leaf.offset, store.offset))
        uniform, masked = self.indices.split(leaf.valid)
        if not (whole and same and beside) or masked or any(leaf.fill):
            return False
        to = self.expressions.pointer(store.array, store.offset)
        source = self.expressions.pointer(leaf.array, leaf.offset)
        moved, cleared = f"move_elements<{count}>({to}, {source});", f"clear_elements<{count}>({to});"
        self.frame.line(f"if ({self.indices.holds(uniform)}) {moved} else {cleared}" if uniform else moved)
        self.expressions.read.add(leaf.array)
        self.frame.wrote(store.array)
        return True

    def _store_lanes(self, statement: Store, stride: int | Expr | None, masked: list[Int], value: str) -> str:
        group = self.frame.group
        assert group is not None
        name, offset = statement.array, statement.offset
        if (name, offset) in self.kept:
            rows, number = self.kept[name, offset]
            return f"{rows}.put({number}, {value});"
        if stride == 1 and not masked and not group.count and not self.expressions.together(name, offset):
            return f"store_strided({self.expressions.pointer(name, offset)}, 1, {value});"
        if stride == 1 and not masked:
            address = self.expressions.pointer(name, offset)
            return (
                f"store_partial({address}, {value}, {group.count});" if group.count else f"store({address}, {value});"
            )
        mask = self.indices.mask(masked, active=True) if masked else self.indices.active() if group.count else ""
        if stride == 1:
            return f"store_masked({self.expressions.pointer(name, offset)}, {value}, {mask});"
        if stride is not None and not mask:
            return f"store_strided({self.expressions.pointer(name, offset)}, {self.indices.text(stride)}, {value});"
        groups = self.indices.groups(offset) if not mask and self.frame.dialect.block is None else None
        if groups is not None:
            size, apart = groups
            return f"store_groups<{size}>({self.expressions.pointer(name, offset)}, {apart}, {value});"
        array, at = self.expressions.linear(name).name, ""
        if isinstance(stride, int) and abs(stride) * group.lanes < 1 << 31:
            array, at = self.expressions.pointer(name, offset), f"multiples<{group.lanes}>({stride})"
        at = at or self.indices.vector(offset)  # of lanes with the same offset, the last one wins
        return f"scatter({array}, {at}, {value}, {mask});" if mask else f"scatter({array}, {at}, {value});"

    # ---- order -----------------------------------------------------------------------------------------------------

    def _sort(self, statement: Sort) -> None:
        first, extent = self.expressions.pointer(statement.array, statement.offset), self.indices.text(statement.extent)
        self.expressions.read.add(statement.array)
        if self.frame.dialect.block is None:
            self.frame.line(f"sort_ascending({first}, {extent});")
        else:
            self.threads.sort(first, extent)
        self.frame.wrote(statement.array)

    def _keep(self, statement: KeepLeast) -> None:
        if self.frame.dialect.block is not None or self.frame.group is not None:
            raise SpecError(f"keep in {statement.array}: one thread keeps the least of its elements, one by one")
        first, extent = self.expressions.pointer(statement.array, statement.offset), self.indices.text(statement.extent)
        self.frame.line(f"keep_least({first}, {extent}, {self.expressions.value(statement.value).text});")
        self.frame.wrote(statement.array)

    def _combine(self, statement: Combine) -> None:
        if not self.threads.apart or self.expressions.array(statement.array).space != "registers":
            raise SpecError(f"combine {statement.array}: it is in no registers of threads")
        fold = self.frame.dialect.reductions[statement.op]
        pointer = self.expressions.pointer(statement.array, statement.offset)
        self.expressions.read.add(statement.array)
        self.frame.line(f"lanes_{fold.combine}<{statement.lanes}, {statement.count}>({pointer});")
        self.frame.wrote(statement.array)

    def _regroup(self, statement: Regroup) -> None:
        if not self.threads.apart or self.expressions.array(statement.array).space != "registers":
            raise SpecError(f"regroup {statement.array}: it is in no registers of threads")
        pointer = self.expressions.pointer(statement.array, statement.offset)
        through = self.expressions.pointer(statement.through, statement.place)
        self.expressions.read |= {statement.array, statement.through}
        self.frame.line(f"regroup({pointer}, {through}, {self.threads.lane});")
        self.frame.wrote(statement.array)

    # ---- tiles -----------------------------------------------------------------------------------------------------

    def _contract(self, statement: Contract) -> None:
        if self.frame.dialect.block is not None:
            self.expressions.read |= {statement.tile, statement.a, statement.b}
            products.render(self.loops, self.threads, self.expressions, statement)
            self.frame.wrote(statement.tile)
            return
        name = f"{self.name}_tile{len(self.functions)}"
        contraction = Contraction(self.frame, self.indices, self.arrays, self.prefetch, self.fetches)
        self.functions.append(contraction.render(statement, name))
        self.frame.wrote(statement.tile)
