"""Graph inputs: declared types and shapes -> input nodes with bounded symbolic sizes, or constants."""

from __future__ import annotations

import ast
import numbers
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from luminal.core import ir, texts
from luminal.core import symbolic as sym
from luminal.core.errors import InputError, ModelError, UnsupportedError, nearest
from luminal.core.facts import Facts, Range, Sizes
from luminal.core.ir import Node
from luminal.core.symbolic import Int
from luminal.core.types import DType
from luminal.frontends.onnx.sequences import Nothing, Tensors
from luminal.frontends.onnx.tensors import element_type

Bounds: TypeAlias = Mapping[str, "tuple[int, int] | tuple[int, int, int] | int"]
Declared: TypeAlias = "int | str"
Shapes: TypeAlias = Mapping[str, Sequence[Declared]]

_LONGEST = 200  # characters of a size that is read as an expression; longer ones nest too deep to be read


class Inputs:
    """The nodes of a graph's inputs, in order, under the user's ``dims`` and ``constants``.

    ``nodes`` maps every input's name to its node, and ``held`` sequences and optional values that hold nothing to what
    they are, given as constants. ``sizes`` are those that the model leaves open, under the ``facts`` that are known of
    them; ``counted`` are names of sizes that data may decide, which dims may bound.
    """

    def __init__(
        self,
        declared: Sequence[onnx.ValueInfoProto],
        dims: Bounds | None,
        constants: Mapping[str, Any] | None,
        facts: Facts | None = None,
        counted: Collection[str] = (),
    ) -> None:
        if not isinstance(dims, Mapping | None):
            raise InputError(f"dims: expected a mapping of names to ranges, as {{'n': (1, 64)}}, found {dims!r}")
        bounds = {name: _range(name, given) for name, given in (dims or {}).items()}
        self.sizes = Sizes(bounds, facts or Facts())
        self.nodes: dict[str, Node] = {}
        constants = dict(constants or {})
        _reject_unknown("constants", constants, [value.name for value in declared], "inputs")
        self.held = {value.name: _held(value, constants) for value in declared if _is_held(value, constants)}
        known = {value.name: _signature(value, bounds) for value in declared if value.name not in self.held}
        _reject_unknown("dims", bounds, _sizes(known.values()), "symbolic sizes", counted)
        constants = {name: value for name, value in constants.items() if name not in self.held}
        # Constants first: their shapes fix sizes that other inputs share.
        fixed = {name: self._constant(name, value, *known[name]) for name, value in constants.items()}
        for name, (dtype, shape) in known.items():
            self.nodes[name] = fixed[name] if name in fixed else ir.input_(name, self._shape(name, shape), dtype)

    def bounds(self, name: str) -> Range | None:
        """What the user declares for a size that data decides."""
        return self.sizes.declared.get(name)

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
                expected, fits = self.sizes.expected(declared), self.sizes.fix(declared, size)
            else:
                expected, fits = str(declared), declared == size
            if not fits:
                raise InputError(f"constants: axis {axis} of {name!r}: expected {expected}, found {size}")
        return ir.constant(array)

    def _shape(self, name: str, shape: Sequence[Declared]) -> list[Int]:
        return [size if isinstance(size, int) else self._size(size) for size in shape]

    def _size(self, name: str) -> Int:
        """The size that a declared dimension name stands for: a symbol, or an expression over symbols."""
        if name not in self.sizes and name not in self.sizes.declared:
            expression = self._expression(name)
            if expression is not None:
                return expression
        return self.sizes.size(name)

    def _expression(self, text: str) -> Int | None:
        """Exporters also write sizes such as ``past + 1``: read as an expression where it is one of several terms."""
        tree = _formula(text)
        return None if tree is None else self._evaluate(tree)

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


def reshaped(value: onnx.ValueInfoProto, shape: Sequence[Declared] | None) -> onnx.ValueInfoProto:
    """The tensor ``value`` declared with another shape, if one is given."""
    if shape is None:
        return value
    return onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, list(shape))


def names(declared: Sequence[onnx.ValueInfoProto], dims: Collection[str]) -> tuple[list[str], list[str]]:
    """The names of the inputs, and those of the sizes that ``dims`` may bound."""
    known = [_signature(value, dims) for value in declared if _without_option(value).HasField("tensor_type")]
    return [value.name for value in declared], list(_sizes(known))


def sizes(
    declared: Sequence[onnx.ValueInfoProto], dims: Collection[str], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """The sizes with names of their own, not in ``dims``, that inputs of these ``shapes`` have. A size that two inputs
    give otherwise is that of the first."""
    found: dict[str, int] = {}
    for value in declared:
        if not _without_option(value).HasField("tensor_type"):
            continue
        for name, size in zip(_signature(value, dims)[1], shapes.get(value.name, ()), strict=False):
            if isinstance(name, str) and name not in dims and _formula(name) is None:
                found.setdefault(name, size)
    return found


def _sizes(signatures: Iterable[tuple[DType, list[Declared]]]) -> dict[str, None]:
    """The names of sizes, and those in formulas of sizes."""
    names = [size for _, shape in signatures for size in shape if isinstance(size, str)]
    return dict.fromkeys([*names, *(part for name in names for part in _parts(name))])


def _formula(text: str) -> ast.BinOp | None:
    """The name of a size as a formula, if it is one."""
    if len(text) > _LONGEST:
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    return tree if isinstance(tree, ast.BinOp) else None


def _parts(text: str) -> list[str]:
    """The names in a size that is a formula."""
    tree = _formula(text)
    return [] if tree is None else [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


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


def _signature(value: onnx.ValueInfoProto, named: Collection[str]) -> tuple[DType, list[Declared]]:
    """Type and declared shape. An unknown size without a name, or with one that says no more, such as ``?``, is called
    ``input_axis``, unless it is among those that are ``named``."""
    declared = _without_option(value)
    if declared.WhichOneof("value") != "tensor_type":
        kind = declared.WhichOneof("value") or "nothing"
        raise UnsupportedError(
            f"input {value.name!r} is declared as {kind}: only tensors and sequences of tensors are supported; give "
            "the numbers of maps as a tensor with a column for each key, in the order of the vocabulary"
            if kind == "map_type"
            else f"input {value.name!r} is declared as {kind}: only tensors and sequences are supported"
        )
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
        elif size.dim_param in named or not _is_placeholder(size.dim_param):
            shape.append(size.dim_param)
        else:
            shape.append(f"{value.name}_{axis}")
    return dtype, shape


def _is_placeholder(name: str) -> bool:
    """Whether the name of a size only says that it is unknown: ``?``, ``-1``, ``None``."""
    return name.lower() in ("-1", "none", "unknown", "dynamic", "any") or not re.search(r"\w", name)


def _range(name: str, given: Any) -> Range:
    """What the user declares for a size: ``(low, high)``, ``(low, high, step)`` from ``low`` on, or one size."""
    numbers_ = (given, given) if isinstance(given, numbers.Integral) else given
    if not (
        isinstance(numbers_, Sequence)
        and len(numbers_) in (2, 3)
        and all(isinstance(number, numbers.Integral) for number in numbers_)
    ):
        axes = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple | list) else ()
        named = any(isinstance(axis, str) for axis in axes)  # as for a PyTorch model
        advice = "; sizes have the names that the model itself gives them" if named else ""
        raise InputError(
            f"dims[{name!r}]: expected a range (low, high), (low, high, step) or a size, found {given!r}{advice}"
        )
    low, high, step = (*map(int, numbers_), 1)[:3]
    if not 0 <= low <= high or step < 1:
        raise InputError(f"dims: expected 0 <= lower <= upper, and a step of 1 or more, for {name!r}, found {given}")
    return Range(low, high, step, low % step)


def _reject_unknown(
    argument: str, given: Collection[str], known: Collection[str], what: str, others: Collection[str] = ()
) -> None:
    """Raises InputError where ``given`` has a name that is neither ``known`` nor among ``others``, which are not
    listed."""
    unknown = sorted(set(given) - set(known) - set(others))
    if unknown:
        listed = sorted(known)
        more = f", and {len(listed) - 20} more" if len(listed) > 20 else ""
        raise InputError(
            f"{argument}: the model has no {', '.join(map(repr, unknown))}"
            + nearest(unknown[0], [*known, *others])
            + f"; its {what} are {', '.join(map(repr, listed[:20])) or 'all fixed'}{more}"
        )
