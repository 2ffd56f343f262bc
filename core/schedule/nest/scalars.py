"""The values of a loop nest: expressions of one iteration, over elements of arrays, indices and named values. They are
interned, so equal subexpressions are one object and an emitter computes each once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from luminal.core.ops import SELECT, Op
from luminal.core.printer import brief
from luminal.core.symbolic import Int
from luminal.core.types import DType, bool_, i64


@dataclass(frozen=True)
class Access:
    """An element of an array: ``offset`` is read where every ``valid >= 0``; elsewhere the value is ``fill`` (the bytes
    of one element), and nothing is read."""

    array: str
    offset: Int
    valid: tuple[Int, ...] = ()
    fill: bytes = b""


@dataclass(frozen=True)
class Literal:
    """The bytes of one element."""

    bits: bytes


@dataclass(frozen=True)
class Index:
    """An index expression as an int64 value."""

    value: Int


@dataclass(frozen=True)
class Holds:
    """True where every condition is at least zero."""

    valid: tuple[Int, ...]


@dataclass(frozen=True)
class Temporary:
    """The value of an earlier ``Define`` or ``Reduction`` of that name."""

    name: str


Leaf: TypeAlias = Access | Literal | Index | Holds | Temporary


class Scalar:
    """One value of one iteration: a leaf, or a primitive (``ops`` row, with its attribute) of other scalars."""

    __slots__ = ("__weakref__", "attr", "dtype", "leaf", "op", "operands")
    op: Op | None
    operands: tuple[Scalar, ...]
    attr: Any
    leaf: Leaf | None
    dtype: DType

    def __repr__(self) -> str:
        return text(self)


_interned: WeakValueDictionary[tuple[Any, ...], Scalar] = WeakValueDictionary()


def _intern(op: Op | None, operands: tuple[Scalar, ...], attr: Any, leaf: Leaf | None, dtype: DType) -> Scalar:
    key = (op, operands, attr, leaf, dtype)
    found = _interned.get(key)
    if found is None:
        found = Scalar()
        found.op, found.operands, found.attr, found.leaf, found.dtype = key
        _interned[key] = found
    return found


def apply(op: Op, operands: tuple[Scalar, ...], attr: Any, dtype: DType) -> Scalar:
    """The primitive ``op`` of scalars. A select whose mask has no conditions becomes its first alternative."""
    if op is SELECT and operands[0].leaf == Holds(()):
        return operands[1]
    return _intern(op, operands, attr, None, dtype)


def load(array: str, offset: Int, dtype: DType, valid: tuple[Int, ...] = (), fill: bytes = b"") -> Scalar:
    """The element of ``array`` at ``offset``: see ``Access``."""
    return _intern(None, (), None, Access(array, offset, valid, fill if valid else b""), dtype)


def literal(bits: bytes, dtype: DType) -> Scalar:
    """A constant."""
    return _intern(None, (), None, Literal(bits), dtype)


def index(value: Int) -> Scalar:
    """An index as a value."""
    return _intern(None, (), None, Index(value), i64)


def holds(valid: tuple[Int, ...]) -> Scalar:
    """Whether a mask holds, as a bool."""
    return _intern(None, (), None, Holds(valid), bool_)


def select(valid: tuple[Int, ...], inside: Scalar, outside: Scalar) -> Scalar:
    """``inside`` where every condition is at least zero, else ``outside``."""
    return apply(SELECT, (holds(valid), inside, outside), None, inside.dtype)


def temporary(name: str, dtype: DType) -> Scalar:
    """A reference to a named value."""
    return _intern(None, (), None, Temporary(name), dtype)


def text(value: Scalar) -> str:
    """``value`` on one line, for printing and for comparing nests."""
    leaf = value.leaf
    if isinstance(leaf, Access):
        if not leaf.valid:
            return f"{leaf.array}[{leaf.offset}]"
        mask = " and ".join(f"{v} >= 0" for v in leaf.valid)
        return f"({leaf.array}[{leaf.offset}] if {mask} else {_number(leaf.fill, value.dtype)})"
    if isinstance(leaf, Literal):
        return f"{_number(leaf.bits, value.dtype)}:{value.dtype}"
    if isinstance(leaf, Index):
        return f"({leaf.value})"
    if isinstance(leaf, Holds):
        return "(" + " and ".join(f"{v} >= 0" for v in leaf.valid) + ")"
    if isinstance(leaf, Temporary):
        return leaf.name
    attribute = f"[{brief(value.attr)}]" if value.attr is not None else ""
    return f"{value.op}{attribute}(" + ", ".join(text(o) for o in value.operands) + f"):{value.dtype}"


def _number(bits: bytes, dtype: DType) -> str:
    return str(np.frombuffer(bits, dtype.numpy)[0])


def postorder(
    root: Scalar, operands: Callable[[Scalar], tuple[Scalar, ...]] = lambda scalar: scalar.operands
) -> list[Scalar]:
    """The scalars that ``root`` depends on through ``operands``, itself included: each once, after its operands."""
    order: dict[Scalar, None] = {}
    stack: list[tuple[Scalar, bool]] = [(root, False)]
    while stack:
        value, done = stack.pop()
        if done:
            order[value] = None
        elif value not in order:
            stack.append((value, True))
            stack.extend((operand, False) for operand in reversed(operands(value)))
    return list(order)
