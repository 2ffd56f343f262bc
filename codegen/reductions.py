"""Reductions as C++."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from string import ascii_lowercase
from typing import TypeAlias

from luminal.codegen.dialect import round_to
from luminal.codegen.expressions import Expressions
from luminal.codegen.frame import Frame, Group, Value
from luminal.codegen.loops import Loops
from luminal.codegen.threads import Threads
from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.schedule.nest.ir import Loop, Reduction, Reductions, Scalar, Statement
from luminal.core.schedule.nest.walk import arrays_written
from luminal.core.types import f32, i32

Body: TypeAlias = Callable[[Sequence[Statement]], None]


class Accumulation:
    """One reduction: a fixed number of accumulators, combined in a fixed order. ``body`` renders the statements that
    run before each value.

    With several accumulators, the innermost loop runs as many steps at a time, each with its own; one lambda computes
    the values of all steps. In parts, they are declared for each part, and one variable has the total. Lanes beyond the
    end of a vector loop contribute the identity. Threads that divide an innermost loop each reduce their part, and
    combine their results.
    """

    def __init__(
        self, loops: Loops, threads: Threads, expressions: Expressions, body: Body, reduction: Reduction
    ) -> None:
        self.loops = loops
        self.threads = threads
        self.expressions = expressions
        self.body = body
        self.frame = loops.frame
        self.indices = loops.indices
        self.reduction = reduction
        self.fold = self.frame.dialect.reductions[reduction.op]
        self.inner = reduction.loops[-1]
        self.products = self._products()
        self.step = self.inner.lanes if self.inner.kind == "vector" and not self.products else 1
        self.writes = arrays_written(reduction.before)
        self.depth = self.frame.depth
        self.position = len(self.frame.scopes[-1].lines)
        self.names: list[str] = []
        self.total = ""
        self.varying = False

    def render(self) -> Value:
        """The result, in the innermost open scope."""
        kinds = [loop.kind for loop in self.reduction.loops]
        if kinds[-2:] == ["thread", "vector"]:
            kinds.pop()
        if "parallel" in kinds or not {"serial", "unroll"}.issuperset(kinds[:-1]):
            raise SpecError(f"reduction {self.reduction.name}: only the innermost loop may be a vector or thread loop")
        count = self.reduction.accumulators
        if count > 1 and "thread" in kinds:
            raise SpecError(f"reduction {self.reduction.name}: each thread has one accumulator")
        name = self.frame.names.fresh("sum" if self.fold.combine == "add" else "most")
        letters = ascii_lowercase[:count]
        self.names = [self.frame.names.like(name + letter) for letter in letters] if count > 1 else [name]
        self.total = name if count > 1 and self.reduction.part else self.names[0]
        self._outer(self.reduction.loops[:-1])
        self._declare()
        return self._result()

    def _outer(self, loops: tuple[Loop, ...]) -> None:
        if not loops:
            self._inner()
            return
        with self._counted(loops[0]):
            self._outer(loops[1:])

    def _counted(self, loop: Loop) -> AbstractContextManager[object]:
        """The iterations of a loop, or those that fall to the thread."""
        if loop.kind == "thread":
            return self.threads.loop(loop, self.writes)
        return self.loops.counted(loop, "0", self.indices.text(loop.extent), 1, self.writes)

    def _inner(self) -> None:
        if len(self.names) > 1:
            start = self.loops.full(self.inner.extent, self.step * len(self.names))
            lambda_name = self._lambda()
            if self.reduction.part:
                self._in_parts(start, lambda_name)
            else:
                self._steps("0", start, lambda_name)
            if start == self.indices.text(self.inner.extent):
                return
            full = self.loops.full(self.inner.extent, self.step)
            if full != start:
                with self.loops.counted(self.inner, start, full, self.step, frozenset()) as axis:
                    self.frame.line(f"{self.total} = {self.fold.combine}({self.total}, {lambda_name}({axis}));")
            if self.step > 1:
                with self.loops.partial(self.inner, full, self.writes) as group:
                    if group is not None:
                        self._accumulate(group)
            return
        if self.inner.kind == "vector":
            for group in self.loops.groups(self.inner, self.writes):
                self._accumulate(group)
            return
        with self._counted(self.inner):
            self._accumulate(None)

    def _steps(self, start: str, end: str, value: str) -> None:
        """Adds the loop in which each accumulator takes every so-and-so-many-th value of the function ``value``."""
        with self.loops.counted(self.inner, start, end, self.step * len(self.names), frozenset()) as axis:
            for number, name in enumerate(self.names):
                at = f"{axis} + {number * self.step}" if number else axis
                self.frame.line(f"{name} = {self.fold.combine}({name}, {value}({at}));")

    def _in_parts(self, end: str, value: str) -> None:
        """Adds ``_steps`` part by part, each of which joins the total."""
        with in_parts(self.frame, self.inner, end, self.reduction.part * self.step) as (first, last):
            self.frame.line(self._declaration(self.names))
            self._steps(first, last, value)
            self.frame.line(f"{self.total} = {self.fold.combine}({self.total}, {self._joined()});")

    def _lambda(self) -> str:
        """A function of the axis that gives the value of a full group of lanes."""
        name = self.frame.names.fresh("term")
        axis = self.frame.names.like(self.inner.axis.name)
        head = f"const auto {name} = [&](int64_t {axis}) LM_LAMBDA {{"
        certain = sym.always(self.inner.extent - 1)
        with self.frame.open(head, certain=certain, writes=self.writes, tail="};") as scope:
            self.frame.bind(self.inner.axis, Value(axis))
            scope.names.append(axis)
            vector = self.inner.kind == "vector"
            with self.frame.vector(Group(self.inner.axis, self.step)) if vector else nullcontext():
                self.frame.line(f"return {self._value()};")
        return name

    def _products(self) -> list[tuple[Scalar, Scalar]]:
        """The factors of a thread's own part of a sum, one vector of products or several, for ``dot``: two floats, or
        two bytes whose products are summed in int32. Empty of other reductions."""
        value, loop = self.reduction.value, self.inner
        whole = len(self.reduction.loops) == 1 and loop.kind == "vector" and loop.extent == loop.lanes
        if not (whole and self.threads.apart and self.reduction.op is ops.SUM_REDUCE):
            return []
        terms = _terms(value)
        if value.dtype not in (f32, i32) or any(term.op is not ops.MUL for term in terms):
            return []
        factors = [(term.operands[0], term.operands[1]) for term in terms]
        if value.dtype == f32:
            return factors
        bytes_ = [(_byte(x), _byte(y)) for x, y in factors]
        return [(x, y) for x, y in bytes_ if x is not None and y is not None] if all(map(all, bytes_)) else []

    def _multiply(self, group: Group) -> None:
        with self.frame.vector(group):
            for x, y in self.products:
                factors = f"{self.expressions.vector(x)}, {self.expressions.vector(y)}"
                self.frame.line(f"{self.total} = dot({factors}, {self.total});")

    def _accumulate(self, group: Group | None) -> None:
        if self.products and group is not None:
            self._multiply(group)
            return
        with self.frame.vector(group) if group else nullcontext():
            value = self._value()
            if group is not None and group.count:
                identity = self.expressions.broadcast(self._identity())
                value = f"select({self.indices.active()}, {value}, {identity})"
            self.frame.line(f"{self.total} = {self.fold.combine}({self.total}, {value});")

    def _value(self) -> str:
        self.body(self.reduction.before)
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
        return self.frame.dialect.type(self.reduction.dtype.compute), lanes

    def _identity(self) -> str:
        return self.frame.dialect.identity(self.reduction.op, self.reduction.dtype)

    def _declare(self) -> None:
        names = [self.total] if self.total not in self.names else self.names
        self.frame.scopes[self.depth].lines.insert(self.position, self._declaration(names))

    def _declaration(self, names: Sequence[str]) -> str:
        element, lanes = self._type()
        identity = self._identity()
        start = f"broadcast<{lanes}>({identity})" if lanes > 1 else identity
        type_ = f"vec<{element}, {lanes}>" if lanes > 1 else element
        return f"{type_} {', '.join(f'{name} = {start}' for name in names)};"

    def _joined(self) -> str:
        """What all accumulators have together."""
        texts = list(self.names)
        while len(texts) > 1:
            texts = [f"{self.fold.combine}({a}, {b})" for a, b in zip(texts[::2], texts[1::2], strict=True)]
        return texts[0]

    def _result(self) -> Value:
        joined = self._joined() if self.total in self.names else self.total
        text = f"{self.fold.lanes}({joined})" if self.step > 1 else joined
        if any(loop.kind == "thread" for loop in self.reduction.loops):
            text = self.threads.combined(self.fold, text, self.reduction.dtype)
        text = round_to(text, self.reduction.dtype) if self.fold.combine == "add" else text
        if text == self.total:
            return Value(text, self.varying)
        name = self.frame.names.fresh("v" if self.varying else "s")
        self.frame.line(f"const {self.expressions.type(self.reduction.dtype, self.varying)} {name} = {text};")
        return Value(name, self.varying)


def _terms(value: Scalar) -> list[Scalar]:
    """The terms of a sum, in order."""
    return [x for operand in value.operands for x in _terms(operand)] if value.op is ops.ADD else [value]


def _byte(value: Scalar) -> Scalar | None:
    """The integer of at most 8 bits that ``value`` is; None where it is another."""
    whole = value.operands[0] if value.op is ops.CAST else value
    return whole if whole.dtype.is_integer and whole.dtype.bits <= 8 else None


@contextmanager
def in_parts(frame: Frame, loop: Loop, end: str, size: int) -> Iterator[tuple[str, str]]:
    """Opens a loop over parts of so many iterations of ``loop`` up to ``end``; gives the names of a part's first
    iteration and of that after its last."""
    integer = frame.integer
    first = frame.names.like(f"{loop.axis.name}_first")
    with frame.open(f"for ({integer} {first} = 0; {first} < {end}; {first} += {size}) {{", certain=False):
        last = frame.names.like(f"{loop.axis.name}_last")
        frame.line(f"const {integer} {last} = minimum({first} + {size}, {end});")
        yield first, last


class SideBySide:
    """Reductions over the same loops, with an accumulator each, or one for each block, which are combined in order. A
    float product is added by a fused multiply-add."""

    def __init__(self, loops: Loops, expressions: Expressions, reductions: Reductions) -> None:
        self.loops = loops
        self.expressions = expressions
        self.frame = loops.frame
        self.indices = loops.indices
        self.reductions = reductions
        self.fold = self.frame.dialect.reductions[reductions.op]
        prefix = "sum" if self.fold.combine == "add" else "most"
        self.sums = {name: self.frame.names.fresh(prefix) for name in reductions.names}

    def render(self) -> dict[str, Value]:
        """The results by name, in the innermost open scope."""
        dtype, loops, blocks = self.reductions.dtype, self.reductions.loops, self.reductions.blocks
        self._declare(self.sums)
        if blocks:
            self._over(loops[:blocks], lambda: self._block(loops[blocks:]))
        else:
            self._rest(loops, self.sums)
        if self.fold.combine == "add" and dtype.compute != dtype:
            for name in self.sums.values():
                self.frame.line(f"{name} = {round_to(name, dtype)};")
        return {name: Value(text, self.frame.group is not None) for name, text in self.sums.items()}

    def _declare(self, sums: Mapping[str, str]) -> None:
        dtype, group = self.reductions.dtype, self.frame.group
        element = self.frame.dialect.type(dtype.compute)
        identity = self.frame.dialect.identity(self.reductions.op, dtype)
        start = self.expressions.broadcast(identity) if group is not None else identity
        type_ = f"vec<{element}, {group.lanes}>" if group is not None else element
        self.frame.line(f"{type_} " + ", ".join(f"{name} = {start}" for name in sums.values()) + ";")

    def _over(self, loops: tuple[Loop, ...], body: Callable[[], None]) -> None:
        if not loops:
            body()
            return
        with self.loops.counted(loops[0], "0", self.indices.text(loops[0].extent), 1, frozenset()):
            self._over(loops[1:], body)

    def _block(self, loops: tuple[Loop, ...]) -> None:
        """Adds one block, over ``loops``, whose results join those of the blocks before."""
        parts = self._begun()
        self._rest(loops, parts)
        self._join(parts, self.sums)

    def _rest(self, loops: tuple[Loop, ...], sums: Mapping[str, str]) -> None:
        """Adds ``loops``, in which terms join ``sums``; part by part of the innermost where there are parts."""
        if self.reductions.part:
            self._over(loops[:-1], lambda: self._parts(loops[-1], sums))
        else:
            self._over(loops, lambda: self._terms(sums))

    def _parts(self, loop: Loop, sums: Mapping[str, str]) -> None:
        with in_parts(self.frame, loop, self.indices.text(loop.extent), self.reductions.part) as (first, last):
            parts = self._begun()
            with self.loops.counted(loop, first, last, 1, frozenset()):
                self._terms(parts)
            self._join(parts, sums)

    def _begun(self) -> dict[str, str]:
        parts = {name: self.frame.names.fresh("part") for name in self.reductions.names}
        self._declare(parts)
        return parts

    def _join(self, parts: Mapping[str, str], sums: Mapping[str, str]) -> None:
        for name, part in parts.items():
            self.frame.line(f"{sums[name]} = {self.fold.combine}({sums[name]}, {part});")

    def _terms(self, sums: Mapping[str, str]) -> None:
        for name, term in self.reductions.terms:
            self.frame.line(f"{sums[name]} = {self._joined(sums[name], term)};")

    def _joined(self, total: str, term: Scalar) -> str:
        exact = term.dtype.is_float and term.dtype.compute == term.dtype == self.reductions.dtype
        if self.fold.combine == "add" and term.op is ops.MUL and exact:
            return f"fma({', '.join(map(self._text, term.operands))}, {total})"
        return f"{self.fold.combine}({total}, {self._text(term)})"

    def _text(self, value: Scalar) -> str:
        return self.expressions.value(value).text if self.frame.group is None else self.expressions.vector(value)
