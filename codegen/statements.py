"""Statements of a loop nest as C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from luminal.codegen import dialect_cpp
from luminal.codegen.contraction import Contraction, TileFunction
from luminal.codegen.cpp import ctype
from luminal.codegen.expressions import Expressions
from luminal.codegen.frame import Frame, Group, Value, written
from luminal.codegen.indices import Indices
from luminal.codegen.signature import Pointer
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.schedule.nest import (
    Alloc,
    Assign,
    Contract,
    Define,
    Let,
    Loop,
    Reduction,
    Scalar,
    Statement,
    Store,
)
from luminal.core.symbolic import Expr, Int

# Independent partial results of a long reduction: an addition takes four cycles, and two can start in each.
CHAINS = 4


class Statements:
    """Renders the statements of the kernel ``name`` into a frame. ``functions`` collects the tile functions that must
    precede the kernel."""

    def __init__(self, name: str, frame: Frame, arrays: dict[str, Pointer]) -> None:
        self.name = name
        self.frame = frame
        self.arrays = arrays
        self.indices = Indices(frame)
        self.expressions = Expressions(frame, self.indices, arrays)
        self.functions: list[TileFunction] = []

    def body(self, statements: Sequence[Statement]) -> None:
        """``statements``, in the innermost open scope."""
        for statement in statements:
            if isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, Let):
                self._let(statement)
            elif isinstance(statement, Define):
                self._temporary(statement.name, self.expressions.value(statement.value))
            elif isinstance(statement, Reduction):
                self._reduction(statement)
            elif isinstance(statement, Store):
                self._store(statement)
            elif isinstance(statement, Alloc):
                self._alloc(statement)
            elif isinstance(statement, Assign):
                self._assign(statement)
            else:
                self._contract(statement)

    # ---- names -----------------------------------------------------------------------------------------------------

    def _temporary(self, name: str, value: Value) -> None:
        self.frame.scopes[-1].temporaries[name] = value

    def _alloc(self, statement: Alloc) -> None:
        name = self.frame.names.like(statement.name)
        self.frame.line(f"alignas(64) {ctype(statement.dtype)} {name}[{statement.extent}];")
        self.arrays[statement.name] = Pointer(statement.name, name, statement.dtype, True)

    def _assign(self, statement: Assign) -> None:
        if self.indices.stride(statement.value) != 0:
            self.frame.alias(statement.axis, statement.value)
            return
        text = self.indices.expression(statement.value)
        self.frame.definitions[statement.axis] = statement.value
        name = self.frame.declare(statement.axis)
        self.frame.line(f"const int64_t {name} = {text};")
        self.indices.named(statement.value, name)

    def _let(self, statement: Let) -> None:
        value = self.expressions.value(statement.value)
        if not value.varying:
            extent = self.indices.text(statement.extent)
            name = self.frame.declare(statement.axis)
            self.frame.line(f"int64_t {name} = {value.text};")
            self.frame.line(f"if ({name} < 0 || {name} >= {extent}) {{")
            self.frame.line("    status->raise(LM_INDEX_OUT_OF_RANGE);")
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
        self.frame.line(f"if (!all({expected})) status->raise(LM_INDEX_OUT_OF_RANGE);")
        name = self.frame.declare(statement.axis)
        self.frame.scopes[-1].variables[statement.axis] = Value(name, True)
        zero = broadcast("int64_t{0}")
        self.frame.line(f"const vec<int64_t, {group.lanes}> {name} = select({inside}, {value.text}, {zero});")

    # ---- loops -----------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        if loop.kind == "parallel":
            raise SpecError(f"parallel loop {loop.axis} inside another statement")
        writes = written(loop.body)
        if loop.kind == "serial":
            with self._counted(loop, "0", self.indices.text(loop.extent), 1, writes):
                self.body(loop.body)
            return
        for group in self._groups(loop, writes):
            with self.frame.vector(group):
                self.body(loop.body)

    @contextmanager
    def _counted(self, loop: Loop, start: str, end: str, step: int, writes: frozenset[str]) -> Iterator[str]:
        """The loop ``for (axis = start; axis < end; axis += step)``; gives the name of the axis."""
        name = self.frame.names.like(loop.axis.name)
        advance = f"++{name}" if step == 1 else f"{name} += {step}"
        head = f"for (int64_t {name} = {start}; {name} < {end}; {advance}) {{"
        with self.frame.open(head, certain=sym.always(loop.extent - 1), writes=writes) as scope:
            scope.variables[loop.axis] = Value(name)
            scope.names.append(name)
            yield name

    def _groups(self, loop: Loop, writes: frozenset[str], start: str = "0") -> Iterator[Group]:
        """Opens the loop over full groups of lanes from ``start`` on, then the block for the partial group at the end,
        where there may be one; yields in each."""
        lanes, full = loop.lanes, self._full(loop.extent, loop.lanes)
        if full != "0" and full != start:
            with self._counted(loop, start, full, lanes, writes):
                yield Group(loop.axis, lanes)
        with self._partial(loop, full, writes) as group:
            if group is not None:
                yield group

    def _full(self, extent: Int, step: int) -> str:
        """``extent`` rounded down to a multiple of ``step``, by name or as a number."""
        if isinstance(extent, int):
            return str(extent // step * step)
        if sym.mod(extent, step) == 0:
            return self.indices.text(extent)
        return self.indices.rounded(extent, step)

    @contextmanager
    def _partial(self, loop: Loop, full: str, writes: frozenset[str]) -> Iterator[Group | None]:
        rest = sym.mod(loop.extent, loop.lanes)
        if rest == 0:
            yield None
            return
        head = "{" if isinstance(rest, int) else f"if ({full} < {self.indices.text(loop.extent)}) {{"
        end = self.indices.text(loop.extent)
        with self.frame.open(head, certain=sym.always(loop.extent - 1), writes=writes):
            name = self.frame.declare(loop.axis)
            self.frame.line(f"const int64_t {name} = {full};")
            count = str(rest)
            if not isinstance(rest, int):
                count = self.frame.names.fresh("count")
                self.frame.line(f"const int64_t {count} = {end} - {name};")
            yield Group(loop.axis, loop.lanes, count)

    # ---- reductions ------------------------------------------------------------------------------------------------

    def _reduction(self, statement: Reduction) -> None:
        Accumulation(self, statement).render()

    # ---- stores ----------------------------------------------------------------------------------------------------

    def _store(self, statement: Store) -> None:
        uniform, masked = self.indices.split(statement.valid)
        stride = self.indices.stride(statement.offset)
        value = self.expressions.value(statement.value)
        if self.frame.group is None:
            text = self._store_one(statement, value.text)
        else:
            text = self._store_lanes(statement, stride, masked, self.expressions.vector(statement.value))
        guard = f"if ({self.indices.holds(uniform)}) " if uniform else ""
        self.frame.line(guard + text)
        self.frame.wrote(statement.array)
        if not statement.valid:
            self.expressions.stored(statement, value)

    def _store_one(self, statement: Store, value: str) -> str:
        pointer = self.arrays[statement.array]
        if pointer.dtype.is_bool or pointer.dtype.compute != pointer.dtype:
            return f"store({self.expressions.pointer(statement.array, statement.offset)}, {value});"
        return f"{pointer.name}[{self.indices.text(statement.offset)}] = {value};"

    def _store_lanes(self, statement: Store, stride: int | Expr | None, masked: list[Int], value: str) -> str:
        group = self.frame.group
        assert group is not None
        name, offset = statement.array, statement.offset
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
        array, at = self.arrays[name].name, ""
        if isinstance(stride, int) and abs(stride) * group.lanes < 1 << 31:
            array, at = self.expressions.pointer(name, offset), f"multiples<{group.lanes}>({stride})"
        at = at or self.indices.vector(offset)  # the last lane stays where lanes meet
        return f"scatter({array}, {at}, {value}, {mask});" if mask else f"scatter({array}, {at}, {value});"

    # ---- tiles -----------------------------------------------------------------------------------------------------

    def _contract(self, statement: Contract) -> None:
        name = f"{self.name}_tile{len(self.functions)}"
        self.functions.append(Contraction(self.frame, self.indices, self.arrays).render(statement, name))
        self.frame.wrote(statement.tile)


class Accumulation:
    """One reduction: partial results in a fixed number of accumulators, combined in a fixed order.

    A long innermost loop is run several steps at a time, each step with an accumulator of its own; the steps' values
    then come from one lambda. Lanes beyond the end of a vector loop take part as the identity.
    """

    def __init__(self, statements: Statements, reduction: Reduction) -> None:
        self.statements = statements
        self.frame = statements.frame
        self.indices = statements.indices
        self.expressions = statements.expressions
        self.reduction = reduction
        self.fold = dialect_cpp.REDUCTIONS[reduction.op]
        self.inner = reduction.loops[-1]
        self.step = self.inner.lanes if self.inner.kind == "vector" else 1
        self.writes = written(reduction.before)
        self.depth = self.frame.depth
        self.position = len(self.frame.scopes[-1].lines)
        self.names: list[str] = []
        self.varying = False

    def render(self) -> None:
        """Leaves the result as a temporary of the innermost open scope."""
        if any(loop.kind != "serial" for loop in self.reduction.loops[:-1]) or self.inner.kind == "parallel":
            raise SpecError(f"reduction {self.reduction.name}: only the innermost loop may be a vector loop")
        groups = sym.floordiv(self.inner.extent, self.step)
        long = (sym.upper(groups) or 2 * CHAINS) >= 2 * CHAINS
        name = self.frame.names.fresh("sum" if self.fold.combine == "add" else "most")
        self.names = [self.frame.names.like(name + letter) for letter in "abcd"[:CHAINS]] if long else [name]
        self._outer(self.reduction.loops[:-1])
        self._declare()
        self.statements._temporary(self.reduction.name, self._result())

    def _outer(self, loops: tuple[Loop, ...]) -> None:
        if not loops:
            self._inner()
            return
        with self.statements._counted(loops[0], "0", self.indices.text(loops[0].extent), 1, self.writes):
            self._outer(loops[1:])

    def _inner(self) -> None:
        start = "0"
        if len(self.names) > 1:
            start = self.statements._full(self.inner.extent, self.step * len(self.names))
            lambda_name = self._lambda()
            with self.statements._counted(self.inner, "0", start, self.step * len(self.names), frozenset()) as axis:
                for number, name in enumerate(self.names):
                    at = f"{axis} + {number * self.step}" if number else axis
                    self.frame.line(f"{name} = {self.fold.combine}({name}, {lambda_name}({at}));")
            if start == self.indices.text(self.inner.extent):
                return
            full = self.statements._full(self.inner.extent, self.step)
            if full != start:
                with self.statements._counted(self.inner, start, full, self.step, frozenset()) as axis:
                    self.frame.line(f"{self.names[0]} = {self.fold.combine}({self.names[0]}, {lambda_name}({axis}));")
            if self.step > 1:
                with self.statements._partial(self.inner, full, self.writes) as group:
                    if group is not None:
                        self._accumulate(group)
            return
        if self.inner.kind == "vector":
            for group in self.statements._groups(self.inner, self.writes):
                self._accumulate(group)
            return
        with self.statements._counted(self.inner, start, self.indices.text(self.inner.extent), 1, self.writes):
            self._accumulate(None)

    def _lambda(self) -> str:
        """A function of the axis that gives the value of a full group of lanes."""
        name = self.frame.names.fresh("term")
        axis = self.frame.names.like(self.inner.axis.name)
        head = f"const auto {name} = [&](int64_t {axis}) LM_LAMBDA {{"
        certain = sym.always(self.inner.extent - 1)
        with self.frame.open(head, certain=certain, writes=self.writes, tail="};") as scope:
            scope.variables[self.inner.axis] = Value(axis)
            scope.names.append(axis)
            vector = self.inner.kind == "vector"
            with self.frame.vector(Group(self.inner.axis, self.step)) if vector else nullcontext():
                self.frame.line(f"return {self._value()};")
        return name

    def _accumulate(self, group: Group | None) -> None:
        with self.frame.vector(group) if group else nullcontext():
            value = self._value()
            if group is not None and group.count:
                identity = self.expressions.broadcast(self.fold.identity(self.reduction.dtype))
                value = f"select({self.indices.active()}, {value}, {identity})"
            self.frame.line(f"{self.names[0]} = {self.fold.combine}({self.names[0]}, {value});")

    def _value(self) -> str:
        self.statements.body(self.reduction.before)
        scalar: Scalar = self.reduction.value
        if self.inner.kind == "vector":
            return self.expressions.vector(scalar)
        value = self.expressions.value(scalar)
        self.varying = self.varying or value.varying
        return value.text

    def _type(self) -> tuple[str, int]:
        """Element type and lanes of the accumulators."""
        lanes = self.step
        if self.varying and self.frame.group is not None:
            lanes = self.frame.group.lanes
        return ctype(self.reduction.dtype.compute), lanes

    def _declare(self) -> None:
        element, lanes = self._type()
        identity = self.fold.identity(self.reduction.dtype)
        start = f"broadcast<{lanes}>({identity})" if lanes > 1 else identity
        type_ = f"vec<{element}, {lanes}>" if lanes > 1 else element
        declared = ", ".join(f"{name} = {start}" for name in self.names)
        self.frame.scopes[self.depth].lines.insert(self.position, f"{type_} {declared};")

    def _result(self) -> Value:
        texts = list(self.names)
        while len(texts) > 1:
            texts = [f"{self.fold.combine}({a}, {b})" for a, b in zip(texts[::2], texts[1::2], strict=True)]
        text = f"{self.fold.lanes}({texts[0]})" if self.step > 1 else texts[0]
        text = dialect_cpp.round_to(text, self.reduction.dtype) if self.fold.combine == "add" else text
        if text == self.names[0]:
            return Value(text, self.varying)
        name = self.frame.names.fresh("v" if self.varying else "s")
        self.frame.line(f"const {self.expressions.type(self.reduction.dtype, self.varying)} {name} = {text};")
        return Value(name, self.varying)
