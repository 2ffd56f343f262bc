"""Scalar expressions as C++: every distinct one is computed once, in the outermost scope where it can be.

Inside a vector loop, a scalar that all lanes share stays a scalar and is broadcast where a vector needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from luminal.codegen import patterns
from luminal.codegen.dialect import Call, round_to
from luminal.codegen.frame import Frame, Value
from luminal.codegen.indices import Indices
from luminal.codegen.signature import Pointer
from luminal.codegen.threads import Threads
from luminal.core import ops
from luminal.core.errors import SpecError
from luminal.core.schedule.nest.ir import Access, Holds, Index, Literal, Scalar, Store, Temporary, load, postorder
from luminal.core.symbolic import Expr, Int
from luminal.core.types import DType, bool_


class Expressions:
    """Renders scalars into a frame. ``arrays`` are the arrays in scope, by name in the nest; ``read`` collects the
    names of arrays that are read. ``function`` recognises scalars that one function computes (see ``patterns``)."""

    def __init__(
        self,
        frame: Frame,
        indices: Indices,
        threads: Threads,
        arrays: Mapping[str, Pointer],
        function: patterns.Function = patterns.function,
    ) -> None:
        self.function = function
        self.frame = frame
        self.indices = indices
        self.threads = threads
        self.arrays = arrays
        self.read: set[str] = set()

    # ---- values ----------------------------------------------------------------------------------------------------

    def value(self, scalar: Scalar) -> Value:
        """The name or literal of ``scalar``; adds its computation to the frame where it is not there yet."""
        for part in postorder(scalar, self._arguments):
            if self._known(part) is None:
                self._compute(part)
        known = self._known(scalar)
        assert known is not None
        return known

    def vector(self, scalar: Scalar) -> str:
        """``scalar`` in every lane of the open group: a ``vec`` of its compute type."""
        value = self.value(scalar)
        return value.text if value.varying else self._broadcast(scalar, value)

    def broadcast(self, text: str) -> str:
        """A scalar's text in every lane."""
        group = self.frame.group
        assert group is not None
        return f"broadcast<{group.lanes}>({text})"

    def type(self, dtype: DType, varying: bool) -> str:
        """The C++ type of a value of ``dtype`` as it is computed."""
        element = self.frame.dialect.type(dtype.compute)
        return f"vec<{element}, {self.frame.group.lanes}>" if varying and self.frame.group else element

    def _known(self, scalar: Scalar) -> Value | None:
        if isinstance(scalar.leaf, Literal):
            return Value(self.frame.dialect.literal(scalar.leaf.bits, scalar.dtype))
        if isinstance(scalar.leaf, Temporary):
            return self.frame.temporary(scalar.leaf.name)
        found = self.frame.find(self.frame.key(scalar))
        if found is None or found.rounds is None:
            return found
        depth = self.frame.depth
        rounded = self._define(scalar.dtype, round_to(found.text, found.rounds), found.varying, depth)
        return self.frame.remember(self.frame.key(scalar), rounded, depth)

    def _broadcast(self, scalar: Scalar, value: Value) -> str:
        if isinstance(scalar.leaf, Literal):
            return self.broadcast(value.text)
        assert self.frame.group is not None
        key = ("broadcast", self.frame.key(scalar), self.frame.group.lanes)
        known = self.frame.find(key)
        if known is None:
            depth = self.frame.place_scalar(scalar)
            known = self.frame.remember(key, self._define(scalar.dtype, self.broadcast(value.text), True, depth), depth)
        return known.text

    def _define(self, dtype: DType, text: str, varying: bool, depth: int) -> Value:
        name = self.frame.names.fresh("v" if varying else "s")
        self.frame.line(f"const {self.type(dtype, varying)} {name} = {text};", depth)
        return Value(name, varying)

    def _compute(self, scalar: Scalar) -> None:
        leaf = scalar.leaf
        if scalar.op is ops.CAST and scalar.dtype == scalar.operands[0].dtype.compute:
            key = self.frame.key(scalar.operands[0])  # already held in its compute type: the cast is free
            if (known := self.frame.find(key)) is not None and known.rounds is None:
                self.frame.remember(self.frame.key(scalar), known, self.frame.find_depth(key))
                return
        bits = _bits(scalar)
        if bits is not None:
            text, varying = self._as_bits(bits.array, scalar.dtype)._load(bits, scalar.dtype)
        elif isinstance(leaf, Access):
            text, varying = self._load(leaf, scalar.dtype)
        elif isinstance(leaf, Index):
            text, varying = self._index(leaf.value)
        elif isinstance(leaf, Holds):
            text, varying = self._holds(leaf)
        else:
            text, varying = self._apply(scalar)
        depth = self.frame.place_scalar(scalar)
        self.frame.remember(self.frame.key(scalar), self._define(scalar.dtype, text, varying, depth), depth)

    def _as_bits(self, array: str, dtype: DType) -> Expressions:
        """A copy that reads ``array`` as integers of ``dtype``, the bits of its elements."""
        pointer = self.array(array)
        same = copy(self)
        same.arrays = {array: replace(pointer, name=f"bits_of({pointer.name})", dtype=dtype)}
        return same

    # ---- leaves ----------------------------------------------------------------------------------------------------

    def _index(self, value: Int) -> tuple[str, bool]:
        if self.indices.stride(value) == 0:
            return self.indices.text(value, self.frame.place(self.frame.resolve(value))), False
        at = self.indices.vector(value)
        return at if self.frame.integer == "int64_t" else f"convert<int64_t>({at})", True

    def _holds(self, leaf: Holds) -> tuple[str, bool]:
        uniform, varying = self.indices.split(leaf.valid)
        shared = self.indices.holds(uniform)
        if not varying:
            return shared or "true", False
        mask = self.indices.mask(varying, active=False)
        return (f"bit_and({self.broadcast(shared)}, {mask})" if uniform else mask), True

    def pointer(self, array: str, offset: Int) -> str:
        """The address of an element (the first lane's)."""
        name, text = self.array(array).name, self.place(array, offset)
        return name if text == "0" else f"{name} - {text[1:]}" if text.startswith("-") else f"{name} + {text}"

    def element(self, array: str, offset: Int) -> str:
        """The element at ``offset``, one scalar, in its compute type."""
        dtype = self.array(array).dtype
        if dtype.is_bool or dtype.compute != dtype:
            return f"load<1>({self.pointer(array, offset)})"
        return f"{self.array(array).name}[{self.place(array, offset)}]"

    def place(self, array: str, offset: Int) -> str:
        """The text of the offset of an element (the first lane's)."""
        pointer = self.array(array)
        if pointer.row:
            rows = pointer.extent // pointer.row
            return f"in_panels<{pointer.dtype.itemsize}, {rows}, {pointer.row}>({self.indices.text(offset)})"
        return self.indices.text(self.threads.part(offset, pointer.extent) if pointer.space == "registers" else offset)

    def together(self, array: str, offset: Int) -> bool:
        """Whether one access can read or write consecutive elements from ``offset`` on, one for each lane. On a GPU
        they have to be aligned."""
        if self.frame.dialect.block is None:
            return True
        pointer = self.array(array)
        return pointer.aligned and pointer.space in ("global", "shared") and self.indices.aligned(offset)

    def to_store(self, scalar: Scalar) -> Scalar:
        """The scalar to store for ``scalar``: a store rounds, so a cast that only the store needs is left out."""
        if scalar.op is ops.CAST and scalar.dtype.is_float and self._known(scalar) is None:
            (exact,) = scalar.operands
            if exact.dtype == scalar.dtype.compute:
                return exact
        return scalar

    def stored(self, store: Store, scalar: Scalar, value: Value) -> None:
        """Notes that ``store`` wrote ``value``, that of ``scalar``: reads reuse it until the next store."""
        element = load(store.array, store.offset, store.value.dtype)
        # A literal has no name. A value that all lanes share cannot stand for elements at an offset that varies.
        if value.varying == (self.indices.stride(store.offset) != 0) and not isinstance(scalar.leaf, Literal):
            rounds = element.dtype if scalar.dtype != element.dtype else None
            self.frame.remember(self.frame.key(element), replace(value, rounds=rounds), self.frame.depth)

    def array(self, name: str) -> Pointer:
        """The array of that name in the nest. Raises SpecError where it is not in scope."""
        if name not in self.arrays:
            raise SpecError(f"loop nest: array {name} is used out of its scope")
        return self.arrays[name]

    def linear(self, name: str) -> Pointer:
        """The array of that name, whose elements lie in memory by their offsets. Raises SpecError where it does not."""
        if self.array(name).row:
            raise SpecError(f"loop nest: the lanes of a vector lie apart in the panels of {name}")
        return self.array(name)

    def _load(self, leaf: Access, dtype: DType) -> tuple[str, bool]:
        self.read.add(leaf.array)
        uniform, masked = self.indices.split(leaf.valid)
        fill = self.frame.dialect.literal(leaf.fill, dtype) if leaf.valid else ""
        stride = self.indices.stride(leaf.offset)
        varying = stride != 0 or bool(masked)
        text = self._load_lanes(leaf, masked, stride, fill) if varying else self.element(leaf.array, leaf.offset)
        if uniform:
            otherwise = self.broadcast(fill) if varying else fill
            if varying and dtype == bool_:  # a mask has the width of its source: both branches need one type
                text = f"{self.type(dtype, varying)}({text})"
            text = f"{self.indices.holds(uniform)} ? {text} : {otherwise}"
        return text, varying

    def _load_lanes(self, leaf: Access, masked: list[Int], stride: int | Expr | None, fill: str) -> str:
        """A vector of elements; reads only lanes that are active and whose conditions hold."""
        group = self.frame.group
        assert group is not None
        lanes, offset = group.lanes, leaf.offset
        if stride == 1 and not masked and not group.count and not self.together(leaf.array, offset):
            return f"load_strided<{lanes}>({self.pointer(leaf.array, offset)}, 1)"
        if stride == 1 and not masked:
            pointer = self.pointer(leaf.array, offset)
            return f"load_partial<{lanes}>({pointer}, {group.count})" if group.count else f"load<{lanes}>({pointer})"
        mask = self.indices.mask(masked, active=True) if masked else self.indices.active() if group.count else ""
        otherwise = f", {fill}" if masked and any(leaf.fill) else ""
        if stride == 0:
            shared = f"any({mask}) ? {self.element(leaf.array, offset)} : {fill}"
            return f"select({mask}, {self.broadcast(shared)}, {self.broadcast(fill)})"
        if stride == 1:
            return f"load_masked<{lanes}>({self.pointer(leaf.array, offset)}, {mask}{otherwise})"
        if stride is not None and not mask:
            return f"load_strided<{lanes}>({self.pointer(leaf.array, offset)}, {self.indices.text(stride)})"
        array, at = self.linear(leaf.array).name, ""
        if isinstance(stride, int) and abs(stride) * lanes < 1 << 31:
            array, at = self.pointer(leaf.array, offset), f"multiples<{lanes}>({stride})"
        at = at or self.indices.positions(offset)
        return f"gather({array}, {at}, {mask}{otherwise})" if mask else f"gather({array}, {at})"

    def _arguments(self, scalar: Scalar) -> tuple[Scalar, ...]:
        """The scalars whose values the text of ``scalar`` uses."""
        if _bits(scalar) is not None:
            return ()
        known = self._function(scalar)
        return scalar.operands if known is None else known[1]

    def _function(self, scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
        """The function that computes ``scalar``, and its arguments; on a GPU, vectors of bytes are words."""
        group = self.frame.group
        words = None if group is None or self.frame.dialect.block is None else patterns.in_words(scalar, group.axis)
        return words or self.function(scalar)

    # ---- primitives ------------------------------------------------------------------------------------------------

    def _apply(self, scalar: Scalar) -> tuple[str, bool]:
        assert scalar.op is not None
        known = self._function(scalar)
        if known is not None:
            name, operands = known
            varying = any(self.value(operand).varying for operand in operands)
            texts = tuple(self.vector(operand) if varying else self.value(operand).text for operand in operands)
            return f"{name}({', '.join(texts)})", varying
        values = [self.value(operand) for operand in scalar.operands]
        varying = any(value.varying for value in values)
        shared = scalar.op is ops.SELECT and not values[0].varying
        texts = tuple(
            self.vector(operand) if varying and not (shared and number == 0) else value.text
            for number, (operand, value) in enumerate(zip(scalar.operands, values, strict=True))
        )
        if shared:
            return f"{texts[0]} ? {texts[1]} : {texts[2]}", varying
        types = tuple(operand.dtype for operand in scalar.operands)
        call = Call(texts, types, scalar.attr, scalar.dtype)
        return self.frame.dialect.table[scalar.op](call), varying


def _bits(scalar: Scalar) -> Access | None:
    """The access of which ``scalar`` is the bit pattern, where the element is a narrow float: memory holds the bits."""
    if scalar.op is not ops.BITCAST or scalar.dtype.compute != scalar.dtype:
        return None
    (element,) = scalar.operands
    narrow = element.dtype.is_float and element.dtype.bits in (8, 16)
    return element.leaf if narrow and isinstance(element.leaf, Access) else None
