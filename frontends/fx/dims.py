"""Symbolic dimensions: what the user declares, what PyTorch calls them, and the bounds that hold.

``dims`` holds two kinds of entries. Under a dimension's name stands its range, ``(lo, hi)`` inclusive, with a step
after them where only every so many sizes from ``lo`` on may come (``(32, 640, 32)``), or one size.
Under an input's name stands what its axes are called: ``("batch", "seq")``, with None for a fixed axis, or
``{1: "seq"}``. Instead of a name there may be a ``torch.export.Dim``, which brings its own range::

    dims={"batch": (1, 32), "seq": (1, 256), "input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim

from luminal.core import symbolic as sym
from luminal.core.errors import ModelError
from luminal.core.facts import DEFAULT, Facts, Range, Sizes
from luminal.core.symbolic import Int


@dataclass(frozen=True)
class Dims:
    """``ranges`` by dimension name; ``axes`` by input name, then axis: the dimension's name."""

    ranges: Mapping[str, Range] = field(default_factory=dict)
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def range(self, name: str) -> Range:
        """The declared range of a dimension, or the default one."""
        return self.ranges.get(name, DEFAULT)


def parse(dims: Mapping[str, Any] | None) -> Dims:
    """Read the user's ``dims``; raises ModelError where an entry has none of the forms above."""
    if not isinstance(dims, Mapping | None):
        raise ModelError(f"dims: expected a mapping, as {{'x': {{0: 'n'}}, 'n': (1, 64)}}, found {dims!r}")
    ranges: dict[str, Range] = {}
    axes: dict[str, dict[int, str]] = {}
    for key, value in (dims or {}).items():
        bounds = _range(value)
        if bounds is not None:
            low, high, step = bounds
            if not 0 <= low <= high or step < 1:
                raise ModelError(f"dims[{key!r}]: expected 0 <= lo <= hi, and a step of 1 or more, found {value}")
            ranges[key] = Range(low, high, step, low % step)
            continue
        axes[key] = {}
        for axis, entry in _axes(key, value):
            if entry is None:
                continue
            name = entry if isinstance(entry, str) else entry.__name__
            if not name.isidentifier():
                raise ModelError(f"dims[{key!r}]: a dimension's name must be an identifier, found {name!r}")
            if not isinstance(entry, str):
                ranges.setdefault(name, _range_of_dim(entry))
            axes[key][axis] = name
    return Dims(ranges, axes)


def _range(value: Any) -> tuple[int, int, int] | None:
    """The bounds and the step that ``value`` gives, if it gives a range."""
    if isinstance(value, int):
        return value, value, 1
    if isinstance(value, Sequence) and len(value) in (2, 3) and all(isinstance(v, int) for v in value):
        return (*value, 1)[:3]
    return None


def _axes(key: str, value: Any) -> list[tuple[int, Any]]:
    pairs = None
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        pairs = list(enumerate(value))
    if pairs is None or not all(isinstance(a, int) and (d is None or isinstance(d, str | Dim)) for a, d in pairs):
        raise ModelError(
            f"dims[{key!r}]: expected a range (lo, hi) or (lo, hi, step), a size, or the names of an input's axes, "
            f"found {value!r}"
        )
    return pairs


def _range_of_dim(dim: Any) -> Range:
    high = getattr(dim, "max", None)
    return Range(getattr(dim, "min", None) or 1, high if isinstance(high, int) and high < 2**31 else DEFAULT.high)


class Symbols:
    """The symbols of one program as ``sizes``, within the ``ranges`` that PyTorch has for them, under the ``facts``
    that are known of them."""

    def __init__(self, ranges: Mapping[Any, Any], dims: Dims, facts: Facts) -> None:
        self.sizes = Sizes({}, facts)
        self._declared = dims
        self._constraints = {str(symbol): bounds for symbol, bounds in ranges.items()}
        self._names: dict[str, str] = {}

    def name(self, input_name: str, shape: Sequence[Any]) -> None:
        """Give the symbols in an input's shape the names that the user declared for its axes."""
        for axis, name in self._declared.axes.get(input_name, {}).items():
            if not -len(shape) <= axis < len(shape):
                raise ModelError(f"dims[{input_name!r}]: axis {axis} is out of range for rank {len(shape)}")
            size = shape[axis]
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                known = self._names.setdefault(str(size.node.expr), name)
                if known != name:
                    raise ModelError(
                        f"dims[{input_name!r}]: the model needs axis {axis} ({name!r}) to equal {known!r}; "
                        "give both the same name"
                    )
            elif isinstance(size, int):
                given = self._declared.range(name)
                if given != Range(size, size):
                    raise ModelError(
                        f"dims[{input_name!r}]: the program was exported with axis {axis} fixed to {size}; "
                        f"export it with a dynamic dimension to get {name!r} in {given}"
                    )

    def bounds(self, size: Any) -> tuple[int, int] | None:
        """The least and the largest that a number read off a tensor can be, where the model states both
        (``torch._check``) and they are those of a size."""
        found = self._constraints.get(str(size.node.expr)) if isinstance(size, torch.SymInt) else None
        if found is None or not 0 <= found.lower <= found.upper < 1 << 31:
            return None
        return int(found.lower), int(found.upper)

    def convert(self, size: Any) -> Int:
        """A size as PyTorch states it (an int or a SymInt) as an int or expression."""
        return int(size) if isinstance(size, int) else self.expression(size.node.expr)

    def shape(self, sizes: Sequence[Any]) -> tuple[Int, ...]:
        """``convert`` over a shape."""
        return tuple(map(self.convert, sizes))

    def _variable(self, symbol: str) -> Int:
        # All, as the size of one may be known by that of another.
        for known in (symbol, *self._constraints):
            name = self._names.get(known, known)
            if name not in self.sizes.declared:
                self.sizes.declared[name] = self._range(known, name)
        return self.sizes.size(self._names.get(symbol, symbol))

    def _range(self, symbol: str, name: str) -> Range:
        """The sizes that are possible by what PyTorch states and the user declares."""
        bounds = self._constraints.get(symbol)
        low = max(_finite(bounds.lower, 0), 0) if bounds is not None else 0
        high = _finite(bounds.upper, None) if bounds is not None else None
        if name in self._declared.ranges:
            wanted = self._declared.ranges[name]
            if wanted.first < low or (high is not None and wanted.high > high):
                raise ModelError(
                    f"dims[{name!r}]: {wanted} is asked for, but the program was exported for "
                    f"{low}..{'any size' if high is None else high}; export it for the wider range, or narrow this one"
                )
            return wanted
        return Range(low, max(low, DEFAULT.high) if high is None else high)

    def expression(self, expr: Any) -> Int:
        """A sympy expression of sizes; the node types are told apart by name, so that sympy need not be imported."""
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            return self._variable(str(expr))
        operands: list[Int] = [self.expression(a) for a in expr.args]
        kind = expr.func.__name__
        if kind == "Add":
            return sum(operands[1:], start=operands[0])
        if kind == "Mul":
            return sym.product(operands)
        if kind == "Pow" and isinstance(operands[1], int):
            return sym.product([operands[0]] * operands[1])
        combine = _FUNCTIONS.get(kind)
        if combine is None or len(operands) != 2:
            raise ModelError(f"a dimension of the program is {expr}, which is not an integer expression of its inputs")
        return combine(*operands)


_FUNCTIONS: dict[str, Callable[[Int, Int], Int]] = {
    "FloorDiv": sym.floordiv,
    "CleanDiv": sym.floordiv,
    "Mod": sym.mod,
    "PythonMod": sym.mod,
    "Max": sym.maximum,
    "Min": sym.minimum,
}


def _finite(bound: Any, otherwise: Any) -> Any:
    """A bound of a ValueRanges as an int; PyTorch's infinities are ``otherwise``."""
    return int(bound) if getattr(bound, "is_Integer", isinstance(bound, int)) else otherwise
