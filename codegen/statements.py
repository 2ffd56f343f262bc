"""Statements of a loop nest as C++."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.codegen.contraction import Contraction, TileFunction
from luminal.codegen.cpp import ctype
from luminal.codegen.expressions import Expressions
from luminal.codegen.frame import Frame, Value, written
from luminal.codegen.indices import Indices
from luminal.codegen.loops import Loops
from luminal.codegen.reductions import Accumulation, SideBySide
from luminal.codegen.signature import Pointer
from luminal.core.errors import SpecError
from luminal.core.schedule.nest import (
    Alloc,
    Assign,
    Contract,
    Define,
    Let,
    Loop,
    Reduction,
    Reductions,
    Statement,
    Store,
)
from luminal.core.symbolic import Expr, Int


class Statements:
    """Renders the statements of the kernel ``name`` into a frame. ``functions`` collects the tile functions that must
    precede the kernel."""

    def __init__(self, name: str, frame: Frame, arrays: dict[str, Pointer]) -> None:
        self.name = name
        self.frame = frame
        self.arrays = arrays
        self.indices = Indices(frame)
        self.expressions = Expressions(frame, self.indices, arrays)
        self.loops = Loops(frame, self.indices)
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
            elif isinstance(statement, Reductions):
                for name, result in SideBySide(self.loops, self.expressions, statement).render().items():
                    self._temporary(name, result)
            elif isinstance(statement, Store):
                self._store(statement)
            elif isinstance(statement, Alloc):
                self._alloc(statement)
            elif isinstance(statement, Assign):
                self._assign(statement)
            elif isinstance(statement, Contract):
                self._contract(statement)
            else:
                raise SpecError(f"no text for {type(statement).__name__}")

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
        name = self.frame.declare(statement.axis, varying=True)
        zero = broadcast("int64_t{0}")
        self.frame.line(f"const vec<int64_t, {group.lanes}> {name} = select({inside}, {value.text}, {zero});")

    # ---- loops -----------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        if loop.kind == "parallel":
            raise SpecError(f"parallel loop {loop.axis} inside another statement")
        writes = written(loop.body)
        if loop.kind == "serial":
            with self.loops.counted(loop, "0", self.indices.text(loop.extent), 1, writes):
                self.body(loop.body)
            return
        for group in self.loops.groups(loop, writes):
            with self.frame.vector(group):
                self.body(loop.body)

    # ---- reductions ------------------------------------------------------------------------------------------------

    def _reduction(self, statement: Reduction) -> None:
        result = Accumulation(self.loops, self.expressions, self.body, statement).render()
        self._temporary(statement.name, result)

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
