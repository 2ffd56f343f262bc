"""Sums along lines: the threads of a block divide the terms of a column, which lie side by side in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_statements, substitute_scalar
from luminal.core.schedule.nest.walk import accesses
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, f32, i8, i32


@dataclass(frozen=True)
class SumLines:
    """::

    s = sum over k of f(k)    =>    s = sum over k_1 in t, t + threads, .. of:              (t: each of the threads)
                                        part = sum over k_0 < width of the f of as many ``digits``
                                        part

    All loops of the reduction ``name`` become one. A thread takes ``width * digits`` neighbours at once: digit d of
    element k_0 is term d * width + k_0 of them, as numbers lie that share a byte.

    With ``scaled``, factors that the terms of a part have in common multiply the part instead, and digits that have
    others are another part; a part of products of bytes is summed in int32. ``apart``, a sum of several products times
    the other factors are as many terms: of bytes and what moves them, the second are sums of bytes alone. Legal where
    every array is read ``width`` neighbours at once, aligned, or one element for all of them.
    """

    name: str
    width: int
    digits: int
    threads: int
    scaled: bool = False
    apart: bool = False

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        body, count = replace_statements(nest.body, self._divided)
        if count != 1:
            raise ScheduleError(f"sum lines: the nest has {count} reductions {self.name!r}")
        return replace(nest, body=body)

    def _divided(self, statement: ln.Statement) -> list[ln.Statement] | None:
        if not isinstance(statement, ln.Reduction) or statement.name != self.name:
            return None
        extents = [loop.extent for loop in statement.loops]
        if statement.op is not ops.SUM_REDUCE or statement.before or not all(isinstance(x, int) for x in extents):
            raise ScheduleError(f"sum lines: {self.name} is no sum of values over loops of known lengths")
        count, together = math.prod(int(str(x)) for x in extents), self.width * self.digits
        if count % together:
            raise ScheduleError(f"sum lines: {count} terms are no whole number of {together}")
        step, within = sym.axis("k_1", count // together), sym.axis("k_0", self.width)
        values = [self._term(statement, step * together + d * self.width + within) for d in range(self.digits)]
        variable = sym.as_var(within)
        for access in (x for value in values for x in accesses(value)):
            if access.valid or (variable is not None and not _beside(access.offset, variable, self.width)):
                raise ScheduleError(f"sum lines: {self.width} elements of {access.array} do not lie side by side")
        if self.digits > 1 and not self._share(values, within):
            raise ScheduleError(f"sum lines: no {self.digits} digits share what is read")
        parts: list[ln.Statement] = []
        total: list[ln.Scalar] = []
        for scales, terms in self._apart(values, variable):
            value = reduce(_sum, terms)
            if variable is not None:
                dtype, name = value.dtype, f"{self.name}_part{len(parts)}"
                parts.append(ln.Reduction(name, statement.op, dtype, (_vector(variable, self.width),), (), value))
                value = ln.temporary(name, dtype)
            if value.dtype != statement.dtype:
                value = ln.apply(ops.CAST, (value,), ops.To(statement.dtype), statement.dtype)
            total.append(reduce(_product, scales, value))
        axis = sym.as_var(step) or Var("k_1", 0, 0)
        loop = ln.Loop(axis, count // together, "thread", (), self.threads)
        return [replace(statement, loops=(loop,), before=tuple(parts), value=reduce(_sum, total))]

    @staticmethod
    def _term(statement: ln.Reduction, number: Int) -> ln.Scalar:
        """The term of that number, counted over all loops."""
        by: dict[Var, Int] = {}
        for loop in reversed(statement.loops):
            by[loop.axis] = number if loop is statement.loops[0] else sym.mod(number, loop.extent)
            number = sym.floordiv(number, loop.extent)
        return substitute_scalar(statement.value, by, {})

    @staticmethod
    def _share(values: Sequence[ln.Scalar], within: Int) -> bool:
        """Whether all ``values`` read the same elements of an array, among others."""
        variable = sym.as_var(within)
        read = [{(x.array, x.offset) for x in accesses(value)} for value in values]
        shared = set.intersection(*read)
        return any(variable is None or variable in sym.variables(offset) for _, offset in shared)

    def _apart(self, values: Sequence[ln.Scalar], within: Var | None) -> list[tuple[list[ln.Scalar], list[ln.Scalar]]]:
        """The ``values`` in groups of the same scales, which do not move ``within`` a part: these, and what is left of
        each value; of two bytes, their product in int32."""
        if not self.scaled or within is None:
            return [([], list(values))]
        groups: dict[tuple[ln.Scalar, ...], list[list[ln.Scalar]]] = {}
        for factors in (x for value in values for x in self._multiplied_out(value, within)):
            scales = tuple(x for x in factors if not _moves(x, within))
            groups.setdefault(scales, []).append([x for x in factors if x not in scales])
        if not all(left for several in groups.values() for left in several):
            return [([], list(values))]
        return [(list(scales), _products(several)) for scales, several in groups.items()]

    def _multiplied_out(self, value: ln.Scalar, within: Var) -> list[list[ln.Scalar]]:
        """The factors of ``value``; ``apart``, of each term that it has where a sum that ``within`` moves is multiplied
        by its other factors."""
        factors = _factors(value)
        sums = [x for x in factors if x.op is ops.ADD and _moves(x, within)] if self.apart else []
        if len(sums) != 1:
            return [factors]
        others = [x for x in factors if x is not sums[0]]
        return [[*others, *_factors(term)] for term in sums[0].operands]


def _products(several: Sequence[Sequence[ln.Scalar]]) -> list[ln.Scalar]:
    whole = [_in_bytes(factors) for factors in several]
    exact = [x for x in whole if x is not None]
    return exact if len(exact) == len(several) else [reduce(_product, factors) for factors in several]


def _vector(axis: Var, width: int) -> ln.Loop:
    return ln.Loop(axis, width, "vector", (), width)


def _beside(offset: Int, axis: Var, width: int) -> bool:
    linear = sym.coefficient(offset, axis)
    if linear is None or linear[0] not in (0, 1):
        return False
    return linear[0] == 0 or sym.mod(linear[1], width) == 0


def _sum(x: ln.Scalar, y: ln.Scalar) -> ln.Scalar:
    return ln.apply(ops.ADD, (x, y), None, x.dtype)


def _product(x: ln.Scalar, y: ln.Scalar) -> ln.Scalar:
    return ln.apply(ops.MUL, (x, y), None, x.dtype)


def _factors(value: ln.Scalar) -> list[ln.Scalar]:
    return [x for operand in value.operands for x in _factors(operand)] if value.op is ops.MUL else [value]


def _moves(value: ln.Scalar, axis: Var) -> bool:
    """Whether ``value`` varies along ``axis``."""
    indices = (s.leaf.value for s in ln.postorder(value) if isinstance(s.leaf, ln.Index))
    return any(axis in sym.variables(e) for e in (*(x.offset for x in accesses(value)), *indices))


def _in_bytes(factors: Sequence[ln.Scalar]) -> ln.Scalar | None:
    """The product of one or two integers of at most 8 bits, in int32; None of other ``factors``."""
    wholes = [x.operands[0] for x in factors if x.op is ops.CAST and x.dtype == f32]
    if len(wholes) != len(factors) or len(factors) not in (1, 2) or not all(is_byte(x.dtype) for x in wholes):
        return None
    if len(wholes) == 1:
        wholes.append(ln.literal(b"\1", i8))
    return _product(*(ln.apply(ops.CAST, (x,), ops.To(i32), i32) for x in wholes))


def is_byte(dtype: DType) -> bool:
    """Whether values of ``dtype`` are integers of at most 8 bits."""
    return dtype.is_integer and dtype.bits <= 8
