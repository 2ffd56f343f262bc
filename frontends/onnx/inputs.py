"""Graph inputs: declared types and shapes -> input nodes with bounded symbolic sizes, or constants."""

from __future__ import annotations

import ast
import difflib
import numbers
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx

from luminal.core import ir, relations, texts
from luminal.core import symbolic as sym
from luminal.core.errors import InputError, ModelError, UnsupportedError
from luminal.core.ir import Node
from luminal.core.symbolic import Int
from luminal.core.types import DType
from luminal.frontends.onnx.sequences import Nothing, Tensors
from luminal.frontends.onnx.tensors import element_type

Bounds: TypeAlias = Mapping[str, "tuple[int, int] | tuple[int, int, int] | int"]
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


class ImpliedRelation(Exception):
    """The model itself needs a ``relation`` between sizes: they do not fit the operator ``where`` without. Caught as
    ``ImpliedBound`` is."""

    def __init__(self, relation: relations.Relation, where: str) -> None:
        super().__init__(f"{relation} ({where})")
        self.relation = relation
        self.where = where


class Range(NamedTuple):
    """Sizes from ``low`` to ``high``, both included: those that are ``rest`` more than a multiple of ``step``."""

    low: int
    high: int
    step: int = 1
    rest: int = 0


@dataclass
class Facts:
    """What a model says of its symbolic sizes, by their names: the bounds that hold ``within`` those that are declared,
    a step with the remainder, and the ``values`` of sizes in terms of other symbols, with these symbols' names.
    ``stated`` are relations for the user, each with the operator that needs it."""

    within: dict[str, tuple[int, int]] = field(default_factory=dict)
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    values: dict[str, tuple[Int, Mapping[sym.Var, str]]] = field(default_factory=dict)
    stated: list[str] = field(default_factory=list)


class Inputs:
    """The nodes of a graph's inputs, in order, under the user's ``dims`` and ``constants``.

    ``nodes`` maps every input's name to its node, ``named`` the symbols of sizes, in the order of their appearance, to
    the names in the model, and ``held`` sequences and optional values that hold nothing to what they are, given as
    constants. ``facts`` are what the model is known to say of its sizes; ``counted`` are names of sizes that data may
    decide, which dims may bound.
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
        self._facts = facts or Facts()
        self.named: dict[sym.Var, str] = {}
        self._declared = {name: _range(name, given) for name, given in (dims or {}).items()}
        self._sizes: dict[str, Int] = {}
        self.nodes: dict[str, Node] = {}
        constants = dict(constants or {})
        _reject_unknown("constants", constants, [value.name for value in declared], "inputs")
        self.held = {value.name: _held(value, constants) for value in declared if _is_held(value, constants)}
        known = {value.name: _signature(value, self._declared) for value in declared if value.name not in self.held}
        names = [size for _, shape in known.values() for size in shape if isinstance(size, str)]
        names += [part for name in names for part in _parts(name)]
        _reject_unknown("dims", self._declared, dict.fromkeys(names), "symbolic sizes", counted)
        constants = {name: value for name, value in constants.items() if name not in self.held}
        # Constants first: their shapes fix sizes that other inputs share.
        fixed = {name: self._constant(name, value, *known[name]) for name, value in constants.items()}
        for name, (dtype, shape) in known.items():
            self.nodes[name] = fixed[name] if name in fixed else ir.input_(name, self._shape(name, shape), dtype)

    def most(self, name: str) -> int | None:
        """The upper bound that the user declares for a size that data decides."""
        return self._declared[name].high if name in self._declared else None

    @property
    def assumed(self) -> frozenset[sym.Var]:
        """The symbols for which the user declares nothing."""
        return frozenset(symbol for symbol, name in self.named.items() if name not in self._declared)

    def learn(self, found: ImpliedBound | ImpliedRelation) -> None:
        """Add to the facts, for another import, what this one ``found``."""
        if isinstance(found, ImpliedBound):
            name = self.named[found.size]
            most = sym.substitute(self._sizes[name], {found.size: found.upper})
            assert isinstance(most, int)
            self._narrow(name, self._range(name).low, most)
            return
        name = self.named[found.relation.symbol]
        size, given, facts = self._sizes[name], self._range(name), self._facts
        if isinstance(found.relation, relations.Stepped):
            step, rest = given.step * found.relation.step, given.step * found.relation.rest + given.rest
            facts.steps[name] = step, rest
            facts.stated.append(f"{relations.Stepped(sym.Var(name, 0, 0), step, rest)} ({found.where})")
            return
        value = sym.substitute(size, {found.relation.symbol: found.relation.value})
        facts.values[name] = value, {symbol: self.named[symbol] for symbol in sym.variables(value)}
        facts.stated.append(f"{name} = {self.text(value)} ({found.where})")
        symbol = sym.as_var(value)
        if symbol is not None:
            self._narrow(self.named[symbol], given.low, given.high)

    def bounds(self, sizes: Iterable[Int]) -> str:
        """The bounds of the symbols in ``sizes``, in words."""
        symbols = {symbol for size in sizes for symbol in sym.variables(size)}
        return ", ".join(f"{symbol} in {symbol.lo}..{symbol.hi}" for symbol in self.named if symbol in symbols)

    def _narrow(self, name: str, low: int, high: int) -> None:
        known = self._facts.within.get(name, (low, high))
        self._facts.within[name] = max(known[0], low), min(known[1], high)

    def text(self, size: Int) -> str:
        """``size`` with the model's own names."""
        by: dict[sym.Var, Int] = {}
        for symbol, name in self.named.items():
            if sym.as_var(self._sizes[name]) is not None:
                by[symbol] = sym.expr(sym.Var(name, symbol.lo, symbol.hi))
        return str(sym.substitute(size, by))

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
                given = self._declared.get(declared, Range(size, size))
                known = self._sizes.get(declared)
                expected = f"{declared}, in {given.low}..{given.high}" if known is None else f"{declared} = {known}"
                fits = given.low <= size <= given.high and size % given.step == given.rest
                fits = fits and self._sizes.setdefault(declared, size) == size
            else:
                expected, fits = str(declared), declared == size
            if not fits:
                raise InputError(f"constants: axis {axis} of {name!r}: expected {expected}, found {size}")
        return ir.constant(array)

    def _shape(self, name: str, shape: Sequence[Declared]) -> list[Int]:
        return [size if isinstance(size, int) else self._size(size) for size in shape]

    def _size(self, name: str) -> Int:
        """The size that a declared dimension name stands for: a symbol, or an expression over symbols."""
        if name not in self._sizes:
            expression = self._expression(name) if name not in self._declared else None
            if expression is not None:
                return expression
            if name in self._facts.values:
                value, names = self._facts.values[name]
                self._sizes[name] = sym.substitute(value, {symbol: self._size(n) for symbol, n in names.items()})
            else:
                self._sizes[name] = self._symbol(name)
        return self._sizes[name]

    def _symbol(self, name: str) -> Int:
        """A new symbol, as far as the size may vary, with the step that is declared or implied."""
        identifier = _identifier(name)
        while any(identifier == symbol.name for symbol in self.named):
            identifier += "_"
        given = self._range(name)
        size = relations.stepped(identifier, given.low, given.high, given.step, given.rest)
        if size is None:
            raise InputError(
                f"dims: {name!r} would be {relations.multiple(given.step, given.rest)}, and none is in "
                f"{given.low}..{given.high}"
            )
        self.named |= dict.fromkeys(sym.variables(size), name)
        return size

    def _range(self, name: str) -> Range:
        """The sizes that ``name`` may have by what is declared and known."""
        low, high, step, rest = self._declared.get(name) or Range(*DEFAULT_BOUNDS)
        within = self._facts.within.get(name, (low, high))
        step, rest = self._facts.steps.get(name, (step, rest))
        return Range(max(low, within[0]), min(high, within[1]), step, rest)

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


def _identifier(name: str) -> str:
    """``name`` as an identifier; ``i0, i1, ..`` are the names of axes."""
    text = re.sub(r"\W", "_", name)
    return text if text.isidentifier() and not re.fullmatch(r"i\d+", text) else f"dim_{text}"


def _reject_unknown(
    argument: str, given: Collection[str], known: Collection[str], what: str, others: Collection[str] = ()
) -> None:
    """Raises InputError where ``given`` has a name that is neither ``known`` nor among ``others``, which are not
    listed."""
    unknown = sorted(set(given) - set(known) - set(others))
    if unknown:
        near = difflib.get_close_matches(unknown[0], [*known, *others], n=3, cutoff=0.5)
        listed = sorted(known)
        more = f", and {len(listed) - 20} more" if len(listed) > 20 else ""
        raise InputError(
            f"{argument}: the model has no {', '.join(map(repr, unknown))}"
            + (f"; the nearest to {unknown[0]!r} are {', '.join(map(repr, near))}" if near else "")
            + f"; its {what} are {', '.join(map(repr, listed[:20])) or 'all fixed'}{more}"
        )
