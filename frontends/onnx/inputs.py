"""Graph inputs: declared types and shapes -> input nodes with bounded symbolic sizes, or constants."""

from __future__ import annotations

import ast
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from luminal.core import ir, texts
from luminal.core import symbolic as sym
from luminal.core.errors import InputError, ModelError, UnsupportedError
from luminal.core.ir import Node
from luminal.core.symbolic import Int
from luminal.core.types import DType
from luminal.frontends.onnx.sequences import Nothing, Tensors
from luminal.frontends.onnx.tensors import element_type

Bounds: TypeAlias = Mapping[str, "tuple[int, int] | int"]
Declared: TypeAlias = "int | str"

_LONGEST = 200  # characters of a size that is read as an expression; longer ones nest too deep to be read
DEFAULT_BOUNDS = (1, 1024)  # of a symbolic size that the user gives none for; memory is planned at the upper bound


class ImpliedBound(Exception):
    """The model itself bounds a size for which the user declares nothing: it takes so many elements of a smaller value.

    Caught where a model is loaded, which then starts again under that bound.
    """

    def __init__(self, size: sym.Var, upper: int) -> None:
        super().__init__(f"{size} is at most {upper}")
        self.size = size
        self.upper = upper


class Inputs:
    """The nodes of a graph's inputs, in order, under the user's ``dims`` and ``constants``.

    ``nodes`` maps every input's name to its node, ``dims`` lists the symbolic sizes in the order of their appearance,
    ``held`` maps sequences and optional values that hold nothing to what they are, given as constants, and
    ``assumed`` maps those without declared bounds to their names in the model; ``uppers`` holds upper bounds for them
    by these names.
    """

    def __init__(
        self,
        declared: Sequence[onnx.ValueInfoProto],
        dims: Bounds | None,
        constants: Mapping[str, Any] | None,
        uppers: Mapping[str, int] | None = None,
    ) -> None:
        if not isinstance(dims, Mapping | None):
            raise InputError(f"dims: expected a mapping of names to ranges, as {{'n': (1, 64)}}, found {dims!r}")
        self._uppers = uppers or {}
        self.assumed: dict[sym.Var, str] = {}
        self._bounds = {name: _bounds(name, given) for name, given in (dims or {}).items()}
        self._symbols: dict[str, Int] = {}
        self._decided: list[str] = []  # names of sizes that data decides
        self.nodes: dict[str, Node] = {}
        constants = dict(constants or {})
        _reject_unknown("constants", constants, {value.name: value for value in declared}, "inputs")
        self.held = {value.name: _held(value, constants) for value in declared if _is_held(value, constants)}
        known = {value.name: _signature(value) for value in declared if value.name not in self.held}
        constants = {name: value for name, value in constants.items() if name not in self.held}
        # Constants first: their shapes fix sizes that other inputs share.
        fixed = {name: self._constant(name, value, *known[name]) for name, value in constants.items()}
        for name, (dtype, shape) in known.items():
            self.nodes[name] = fixed[name] if name in fixed else ir.input_(name, self._shape(name, shape), dtype)

    def most(self, name: str) -> int | None:
        """The upper bound that the user declares for a size that data decides."""
        self._decided.append(name)
        return self._bounds[name][1] if name in self._bounds else None

    def check_dims(self) -> None:
        """Raises InputError where the user declares a size that the model does not have."""
        _reject_unknown("dims", self._bounds, dict.fromkeys([*self._symbols, *self._decided]), "symbolic sizes")

    @property
    def dims(self) -> tuple[sym.Var, ...]:
        """The symbolic sizes that remain, in the order of their first appearance."""
        return tuple(v for size in self._symbols.values() if (v := sym.as_var(size)) is not None)

    def _constant(self, name: str, value: Any, dtype: DType, shape: Sequence[Declared]) -> Node:
        array = np.asarray(value)
        if dtype.is_text and texts.is_texts(array):
            array = texts.encode(array)
        if array.dtype != dtype.numpy:
            raise InputError(f"constants: {name!r} must be {dtype}, found {array.dtype}")
        if array.ndim != len(shape):
            raise InputError(f"constants: {name!r} must have {len(shape)} axes, found shape {list(array.shape)}")
        for axis, (declared, size) in enumerate(zip(shape, array.shape, strict=True)):
            if isinstance(declared, str):
                low, high = self._bounds.get(declared, (size, size))
                known = self._symbols.get(declared)
                expected = f"{declared}, in {low}..{high}" if known is None else f"{declared} = {known}"
                fits = low <= size <= high and self._symbols.setdefault(declared, size) == size
            else:
                expected, fits = str(declared), declared == size
            if not fits:
                raise InputError(f"constants: axis {axis} of {name!r}: expected {expected}, found {size}")
        return ir.constant(array)

    def _shape(self, name: str, shape: Sequence[Declared]) -> list[Int]:
        return [size if isinstance(size, int) else self._size(size) for size in shape]

    def _size(self, name: str) -> Int:
        """The size that a declared dimension name stands for: a symbol, or an expression over symbols."""
        if name not in self._symbols:
            expression = self._expression(name) if name not in self._bounds else None
            if expression is not None:
                return expression
            identifier = _identifier(name)
            while identifier in {v.name for v in self.dims}:
                identifier += "_"
            low, high = self._bounds.get(name) or (DEFAULT_BOUNDS[0], self._uppers.get(name, DEFAULT_BOUNDS[1]))
            size = self._symbols[name] = sym.var(identifier, low, high)
            symbol = sym.as_var(size)
            if symbol is not None and name not in self._bounds:
                self.assumed[symbol] = name
        return self._symbols[name]

    def _expression(self, text: str) -> Int | None:
        """Exporters also write sizes such as ``past + 1``: read as an expression where it is one of several terms."""
        if len(text) > _LONGEST:
            return None
        try:
            tree = ast.parse(text, mode="eval").body
        except SyntaxError:
            return None
        return self._evaluate(tree) if isinstance(tree, ast.BinOp) else None

    def _evaluate(self, tree: ast.expr) -> Int | None:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return tree.value
        if isinstance(tree, ast.Name):
            return self._size(tree.id)
        if isinstance(tree, ast.BinOp):
            a, b = self._evaluate(tree.left), self._evaluate(tree.right)
            if a is not None and b is not None:
                if isinstance(tree.op, ast.Add):
                    return a + b
                if isinstance(tree.op, ast.Sub):
                    return a - b
                if isinstance(tree.op, ast.Mult):
                    return a * b
                if isinstance(tree.op, ast.FloorDiv) and sym.always(b - 1):
                    return sym.floordiv(a, b)
        return None


def _is_held(value: onnx.ValueInfoProto, constants: Mapping[str, Any]) -> bool:
    """Whether an input is a sequence, or an optional value that is said to hold nothing."""
    if value.type.WhichOneof("value") == "optional_type" and value.name in constants and constants[value.name] is None:
        return True
    return bool(_without_option(value).HasField("sequence_type"))


def _without_option(value: onnx.ValueInfoProto) -> onnx.TypeProto:
    optional = value.type.WhichOneof("value") == "optional_type"
    return value.type.optional_type.elem_type if optional else value.type


def _held(value: onnx.ValueInfoProto, constants: Mapping[str, Any]) -> Tensors | Nothing:
    """The value of a sequence or an optional input, which decides shapes; its type is checked."""
    if value.name not in constants:
        raise InputError(
            f"input {value.name!r} is a sequence, whose number of tensors decides shapes: give it when compiling, "
            f"constants={{{value.name!r}: [array, ...]}}"
        )
    given = constants[value.name]
    if given is None:
        return Nothing()
    element = _without_option(value).sequence_type.elem_type.tensor_type.elem_type
    dtype = element_type(element, f"input {value.name!r}")
    arrays = [np.asarray(array) for array in given]
    if any(array.dtype != dtype.numpy for array in arrays):
        raise InputError(f"constants: {value.name!r} must be tensors of {dtype}")
    return Tensors(tuple(ir.constant(array) for array in arrays))


def _signature(value: onnx.ValueInfoProto) -> tuple[DType, list[Declared]]:
    """Type and declared shape; an unnamed unknown size is called ``input_axis``."""
    declared = _without_option(value)
    if declared.WhichOneof("value") != "tensor_type":
        kind = declared.WhichOneof("value") or "nothing"
        raise UnsupportedError(f"input {value.name!r} is declared as {kind}: only tensors and sequences are supported")
    tensor = declared.tensor_type
    dtype = element_type(tensor.elem_type, f"input {value.name!r}")
    if not tensor.HasField("shape"):
        raise ModelError(
            f"input {value.name!r} declares no shape, so its rank is unknown: export the model with shapes, or set "
            "them with onnx.tools.update_model_dims"
        )
    shape: list[Declared] = []
    for axis, size in enumerate(tensor.shape.dim):
        if size.HasField("dim_value") and size.dim_value >= 0:
            shape.append(int(size.dim_value))
        else:
            shape.append(size.dim_param or f"{value.name}_{axis}")
    return dtype, shape


def _bounds(name: str, given: Any) -> tuple[int, int]:
    pair = (given, given) if isinstance(given, numbers.Integral) else given
    if not (
        isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(bound, numbers.Integral) for bound in pair)
    ):
        axes = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple | list) else ()
        named = any(isinstance(axis, str) for axis in axes)  # as for a PyTorch model
        advice = "; sizes have the names that the model itself gives them" if named else ""
        raise InputError(f"dims[{name!r}]: expected a range (lo, hi) or a size, found {given!r}{advice}")
    low, high = map(int, pair)
    if not 0 <= low <= high:
        raise InputError(f"dims: expected 0 <= lower <= upper for {name!r}, found {given}")
    return low, high


def _identifier(name: str) -> str:
    """``name`` as an identifier; ``i0, i1, ..`` are the names of axes."""
    text = re.sub(r"\W", "_", name)
    return text if text.isidentifier() and not re.fullmatch(r"i\d+", text) else f"dim_{text}"


def _reject_unknown(argument: str, given: Mapping[str, object], known: Mapping[str, object], what: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InputError(
            f"{argument}: the model has no {', '.join(map(repr, unknown))}; its {what} are {sorted(known)}"
        )
