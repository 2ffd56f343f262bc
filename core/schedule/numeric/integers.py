"""Contractions of 8-bit integers, in the one form that dot products of bytes compute.

Models write such a contraction in several ways: as int32 sums of integers around their zero points, or as float32 sums
of dequantised numbers. In both, a factor is *affine* in 8-bit integers, ``(whole + offset) * scale``, and the sum is
rewritten as one of unsigned times signed bytes, in int32:

    sum (a + o) (b + p)        =  sum a b  +  p sum a  +  o (sum b + K p)
    sum (a + o) s (b + p) t    =  float32(sum (a + o) (b + p)) * s * t

where ``o``, ``p``, ``s`` and ``t`` are constant along K. A signed ``a`` becomes unsigned, and an unsigned ``b`` signed,
by a change of offset. If ``p`` is then 0, ``sum a`` is not computed. Sums of constants fold. Where a view puts zeros
around ``a + o``, a border of ``-o`` around ``a`` is written to memory.

The first equation holds for int32 exactly, wrapping included. The second one holds for real numbers, and so it moves
roundings. It is used only where the sums of integers are proven to stay within int32. Then they are exact, and the
result has three roundings (the conversion and two products) for any number of terms: it is within ``3 u |result|`` of
the real number, with ``u = 2**-24``. ``K`` terms that are computed and summed in float32 may be off by ``(K + 2) u``
times the sum of their magnitudes. So such a model is computed exactly in integers and then scaled, as tools that
calibrate such models assume and other runtimes do. Where rows or columns share nothing (each channel of a depthwise
convolution has its own operands), no unit computes the sum; it is then computed on the same integers in float32, which
is exact too if it stays below 2**24. Constant scales are in a range in which no product overflows or underflows unless
the result does. One of the two scales may be known at run time only; if it is not finite, results are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from luminal.core import interp, ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.ir import Graph, Node
from luminal.core.movement import once, squeeze, varies
from luminal.core.rewrite import simplify
from luminal.core.rules.pattern import Real, Rule
from luminal.core.schedule.contraction.contraction import operand
from luminal.core.schedule.contraction.panels import without_mask
from luminal.core.schedule.contraction.roles import contraction_of
from luminal.core.types import DType, f32, i8, i32, u8

EXACT = 2**24  # float32 holds all integers up to this magnitude
LEAST_SCALE, MOST_SCALE = 2.0**-60, 2.0**40  # of constant scales: their products with int32 sums are normal numbers


@dataclass(frozen=True)
class Affine:
    """``(whole + offset) * scale``, all of one shape: ``whole`` has 8-bit integers, ``offset`` is int32 (None: 0),
    ``scale`` float32 (None: 1)."""

    whole: Node
    offset: Node | None = None
    scale: Node | None = None

    def after(self, step: Node, parameter: Node | None) -> Affine | None:
        """The result of the primitive ``step`` on this value and a ``parameter`` that varies along fewer axes; None if
        it is not affine, or rounds."""
        if step.op is ops.VIEW:
            return self._viewed(step)
        if step.op is ops.CAST:
            return self if _is_exact(self) else None
        assert parameter is not None
        if step.op is ops.MUL:
            if self.scale is None:
                return replace(self, scale=parameter)
            known = is_constant(self.scale) and is_constant(parameter)
            return replace(self, scale=_once(lambda x, y: x * y, self.scale, parameter)) if known else None
        if step.dtype == f32:
            whole = _whole_number(parameter) if self.scale is None else None
            if whole is None:
                return None
            parameter = whole
        moved = self._moved(parameter)
        return moved if step.dtype == i32 or _is_exact(moved) else None

    def _moved(self, offset: Node) -> Affine:
        return replace(self, offset=offset if self.offset is None else _once(lambda x, y: x + y, self.offset, offset))

    def _viewed(self, step: Node) -> Affine | None:
        """This value under the view ``step``. A mask must fill with 0: ``-offset`` in ``whole``, and one number. Else
        None."""
        attr, fill = step.attr, b""
        if attr.valid:
            number = 0 if self.offset is None else _number(self.offset)
            low, high = int(self.whole.dtype.min), int(self.whole.dtype.max)
            if any(attr.fill) or number is None or not low <= -number <= high:
                return None
            fill = np.array(-number, self.whole.dtype.numpy).tobytes()
        masked = {v for e in attr.valid for v in sym.variables(e)}
        seen: dict[str, Node | None] = {}
        for name, parameter in (("offset", self.offset), ("scale", self.scale)):
            new = None if parameter is None else ir.view(parameter, step.shape, attr.index)
            if new is not None and masked & _variables(new):
                return None
            seen[name] = new
        return Affine(ir.view(self.whole, step.shape, attr.index, attr.valid, fill), **seen)

    def signed(self, wanted: DType) -> Affine:
        """The same value with ``whole`` of type ``wanted``, int8 or uint8."""
        if self.whole.dtype == wanted:
            return self
        moved = self._moved(ir.expand(ir.constant(128 if wanted == i8 else -128, i32), self.whole.shape))
        return replace(moved, whole=_flipped(self.whole))


def is_scaled_outside(factor: Node, axes: Sequence[int]) -> bool:
    """Whether ``factor`` is 8-bit integers, moved and scaled by what is the same along ``axes``."""
    found = _affine(factor)
    return found is not None and not any(_varies_along(p, tuple(axes)) for p in (found.offset, found.scale))


def _integral(node: Node) -> Node | None:
    """The sum ``node`` as a contraction of unsigned times signed bytes, which may be ``node``; None if impossible."""
    product, axes = node.inputs[0], node.attr.axes
    if product.op is not ops.MUL or node.dtype not in (i32, f32):
        return None
    factors = [factor for x in product.inputs if (factor := _affine(x)) is not None]
    if len(factors) < 2 or any(_varies_along(p, axes) for x in factors for p in (x.offset, x.scale)):
        return None
    if node.dtype == f32 and not (_fits(factors, product, axes) and _are_scales(factors)):
        return None
    plain = [_widened(_blank(x.whole)) for x in factors]
    found = contraction_of(ir.reduce(ops.SUM_REDUCE, ir.elementwise(ops.MUL, *plain), axes))
    if found is None:
        return _scaled_later(product, factors, axes) if node.dtype == f32 else None
    is_left = [operand(x) == found.a for x in plain]
    changed = [x.signed(u8 if left else i8) for x, left in zip(factors, is_left, strict=True)]
    changed = [replace(x, offset=None if x.offset is None or _number(x.offset) == 0 else x.offset) for x in changed]
    unmasked = [_unmasked(x.whole, product) for x in changed]
    wholes = [x for x in unmasked if x is not None]
    if len(wholes) < 2:
        return None
    total = ir.reduce(ops.SUM_REDUCE, ir.elementwise(ops.MUL, *map(_widened, wholes)), axes)
    depth = ir.cast(ir.dim(sym.product(product.shape[k] for k in axes)), i32)
    first, second = (None if x.offset is None else _kept(x.offset, axes) for x in changed)
    if second is not None:
        total = total + second * _sum(wholes[0], axes)
    if first is not None:
        beside = _sum(wholes[1], axes)
        total = total + first * (beside if second is None else beside + depth * second)
    return total if node.dtype == i32 else _scaled(ir.cast(total, f32), factors, axes)


def _scaled_later(product: Node, factors: list[Affine], axes: tuple[int, ...]) -> Node | None:
    """A sum that no unit computes, on unscaled integers in float32 and then scaled; None if that is not exact."""
    if all(x.scale is None for x in factors) or not _fits(factors, product, axes, EXACT):
        return None
    total = ir.reduce(ops.SUM_REDUCE, ir.elementwise(ops.MUL, *map(_unscaled, product.inputs)), axes)
    return _scaled(total, factors, axes)


def _unscaled(node: Node) -> Node:
    """The affine ``node``, unscaled."""
    before = None if node.op is ops.CAST and _is_byte(node.inputs[0].dtype) else _step(node)
    if before is None:
        return node
    x, parameter = before
    if node.op is ops.MUL:
        return _unscaled(x)
    return traverse.rebuild(node, [_unscaled(x), *([] if parameter is None else [parameter])])


# ---- reading factors -------------------------------------------------------------------------------------------------


def _affine(node: Node) -> Affine | None:
    """``node`` (int32 or float32) as affine in 8-bit integers, or None."""
    steps: list[tuple[Node, Node | None]] = []
    while not (node.op is ops.CAST and _is_byte(node.inputs[0].dtype)):
        before = _step(node)
        if before is None:
            return None
        steps.append((node, before[1]))
        node = before[0]
    if node.dtype not in (i32, f32):
        return None
    result: Affine | None = Affine(_byte(node.inputs[0]))
    for step, parameter in reversed(steps):
        result = None if result is None else result.after(step, parameter)
    return result


def _step(node: Node) -> tuple[Node, Node | None] | None:
    """The operand of which ``node`` is an affine function, and the parameter if there is one; None for others."""
    if node.op is ops.VIEW or (node.op is ops.CAST and (node.inputs[0].dtype, node.dtype) == (i32, f32)):
        return node.inputs[0], None
    if (node.op is ops.ADD and node.dtype in (i32, f32)) or (node.op is ops.MUL and node.dtype == f32):
        for x, parameter in (node.inputs, node.inputs[::-1]):
            axes = [{k for k, v in enumerate(varies(side)) if v} for side in (x, parameter)]
            if axes[1] < axes[0]:
                return x, parameter
    return None


def _is_byte(dtype: DType) -> bool:
    return dtype.is_integer and dtype.bits <= 8


def _byte(node: Node) -> Node:
    """``node`` as int8 or uint8: integers of fewer than 8 bits are converted."""
    byte = ir.cast(node, u8 if node.dtype.kind == "u" else i8)
    return node if byte is node else ir.unary(ops.CONTIGUOUS, byte)


# ---- parameters ------------------------------------------------------------------------------------------------------


def _variables(node: Node) -> set[sym.Var]:
    return {v for a, found in zip(ir.axes(node.shape), varies(node), strict=True) if found for v in sym.variables(a)}


def _varies_along(parameter: Node | None, axes: tuple[int, ...]) -> bool:
    return parameter is not None and any(varies(parameter)[k] for k in axes)


def _once(function: Callable[..., Node], *parameters: Node) -> Node:
    """An elementwise ``function`` of parameters, computed once for elements that repeat."""
    keep = [any(column) for column in zip(*map(varies, parameters), strict=True)]
    return ir.expand(function(*(once(x, keep) for x in parameters)), parameters[0].shape)


def _kept(parameter: Node, axes: tuple[int, ...]) -> Node:
    """A parameter without the ``axes`` of a sum, with extent 1 along axes where it repeats."""
    return squeeze(once(parameter, varies(parameter)), axes)


def _values(parameter: Node) -> np.ndarray[Any, Any] | None:
    """The elements of a constant parameter, with extent 1 along axes where it repeats; None if not constant."""
    if not is_constant(parameter):
        return None
    (found,) = interp.evaluate([once(parameter, varies(parameter))])
    return found


def _number(parameter: Node) -> int | None:
    """The one integer that all elements of a constant are equal to, or None."""
    found = _values(parameter)
    return None if found is None or not found.size or (found != found.flat[0]).any() else int(found.flat[0])


def _whole_number(parameter: Node) -> Node | None:
    """A constant float32 parameter as int32; None unless all elements are integers of magnitude up to ``EXACT``."""
    found = _values(parameter)
    if found is None or not (np.abs(found) <= EXACT).all() or (found != np.rint(found)).any():
        return None
    return _once(lambda x: ir.cast(x, i32), parameter)


def _bounds(node: Node) -> tuple[int, int] | None:
    """Lower and upper bounds of an int32 parameter, or None if unknown."""
    found = _values(node)
    if found is not None:
        return int(found.min(initial=0)), int(found.max(initial=0))
    if node.op is ops.VIEW and not node.attr.valid:
        return _bounds(node.inputs[0])
    if node.op is ops.CAST and node.inputs[0].dtype.is_integer and node.inputs[0].dtype.bits < 32:
        return int(node.inputs[0].dtype.min), int(node.inputs[0].dtype.max)
    if node.op is ops.MUL:
        for x, y in (node.inputs, node.inputs[::-1]):
            factor, inner = _number(y), _bounds(x)
            if factor is not None and inner is not None and abs(factor) <= 1:
                low, high = sorted(factor * end for end in inner)
                return low, high
    return None


def _reach(x: Affine) -> int | None:
    """A bound of the magnitude of ``whole + offset``, or None if unknown."""
    bounds = (0, 0) if x.offset is None else _bounds(x.offset)
    if bounds is None:
        return None
    return max(-int(x.whole.dtype.min) - bounds[0], int(x.whole.dtype.max) + bounds[1])


def _is_exact(x: Affine) -> bool:
    reach = _reach(x)
    return reach is not None and reach <= EXACT


def _fits(factors: list[Affine], product: Node, axes: tuple[int, ...], limit: int = 2**31) -> bool:
    """Whether every sum of products is proven to be below ``limit`` in magnitude, and to have a term."""
    depth = sym.product(product.shape[k] for k in axes)
    most, reaches = sym.upper(depth), [_reach(x) for x in factors]
    if most is None or None in reaches or not sym.always(depth - 1):
        return False
    return most * int(str(reaches[0])) * int(str(reaches[1])) < limit


def _are_scales(factors: list[Affine]) -> bool:
    """Whether at most one scale is not constant, and the constant ones are in range or 0."""
    found = [_values(x.scale) for x in factors if x.scale is not None]
    known = [np.abs(values) for values in found if values is not None]
    in_range = (((x >= LEAST_SCALE) & (x <= MOST_SCALE) | (x == 0)).all() for x in known)
    return len(found) - len(known) <= 1 and all(in_range)


def _scaled(total: Node, factors: list[Affine], axes: tuple[int, ...]) -> Node:
    """``total`` times the scales, constant ones first. Two constants are multiplied before if one is a number."""
    scales = [x.scale for x in factors if x.scale is not None]
    kept = [_kept(x, axes) for x in sorted(scales, key=lambda x: not is_constant(x))]
    first, *more = (x if is_constant(x) else finite(x) for x in kept) if kept else (None,)
    for x in more:
        assert first is not None
        if is_constant(x) and 1 in (first.size, x.size):
            first = first * x
        else:
            total, first = total * first, x
    return total if first is None else total * first


def finite(scale: Node) -> Node:
    """A scale known at run time only, NaN if it is infinite. With an infinite scale, a float sum with terms of both
    signs or a zero is NaN, but a sum of integers times infinity would be infinite."""
    return ir.multiply_add(scale, 0.0, scale)


# ---- integers --------------------------------------------------------------------------------------------------------


def _flipped(whole: Node) -> Node:
    """int8 as uint8 with 128 added, or uint8 as int8 with 128 subtracted."""
    if whole.op is ops.VIEW:
        attr = whole.attr
        fill = bytes(byte ^ 0x80 for byte in attr.fill)
        return ir.view(_flipped(whole.inputs[0]), whole.shape, attr.index, attr.valid, fill)
    return ir.bitcast(ir.binary(ops.XOR, whole, 128), i8 if whole.dtype == u8 else u8)


def _blank(whole: Node) -> Node:
    """A view with its fill replaced by zero."""
    if whole.op is not ops.VIEW:
        return whole
    return ir.view(whole.inputs[0], whole.shape, whole.attr.index, whole.attr.valid, bytes(1))


def _widened(whole: Node) -> Node:
    """Integers as int32, with the conversion inside the view that repeats them."""
    if whole.op is not ops.VIEW:
        return ir.cast(whole, i32)
    attr = whole.attr
    return ir.view(ir.cast(whole.inputs[0], i32), whole.shape, attr.index, attr.valid, bytes(4) if attr.valid else b"")


def _unmasked(whole: Node, product: Node) -> Node | None:
    """The view with fills of zero alone: a border of other numbers is copied to memory. None if that is impossible."""
    if whole.op is not ops.VIEW or not any(whole.attr.fill):
        return whole
    padded = without_mask(operand(whole), product.shape)
    return None if padded is None else padded.read(product.shape)


def _sum(whole: Node, axes: tuple[int, ...]) -> Node:
    """The sum along ``axes``, with extent 1 along other axes where the integers repeat."""
    return ir.reduce(ops.SUM_REDUCE, ir.cast(once(whole, varies(whole)), i32), axes)


def _examples() -> Iterator[Node]:
    a, b = ir.input_("a", (5, 1, 7), u8), ir.input_("b", (3, 7), i8)
    left, right = (ir.expand(ir.cast(x, i32), (5, 3, 7)) for x in (a, b))
    zero = ir.expand(ir.cast(ir.input_("z", (5, 1, 1), u8), i32) * -1, (5, 1, 7))
    yield ir.reduce(ops.SUM_REDUCE, (left + ir.expand(zero, (5, 3, 7))) * right, [2])
    yield ir.reduce(ops.SUM_REDUCE, (ir.expand(ir.cast(a, i32) + zero, (5, 3, 7))) * (right + 3), [2])


RULE = Rule(
    "sum (a + o) s (b + p) t = s t sum (a + o) (b + p)",
    (ops.SUM_REDUCE,),
    _integral,
    _examples,
    Real("schedule.numeric.integers, where sums of integers are known to stay within int32"),
)


def integral(graph: Graph) -> Graph:
    """``graph`` with its contractions of integers as unsigned times signed bytes, for targets with a unit for these."""
    return simplify(graph, (RULE,))
