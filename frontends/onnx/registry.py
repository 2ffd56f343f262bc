"""The operator table: for each ONNX operator, the functions that import it, by the first opset version they serve.

An importing function takes a ``Call`` (the operator's inputs, attributes and opset) and returns the node of its output,
or maps, or a tuple of nodes for several outputs, or None to leave a case to the function body that ONNX's schema
gives. The tables by theme in this folder register theirs with ``@operator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx

from luminal.core import interp, ops, symval
from luminal.core import symbolic as sym
from luminal.core.decompose.random import Random
from luminal.core.errors import InputError, LuminalError, ModelError, ShapeError, UnsupportedError
from luminal.core.facts import Range
from luminal.core.ir import Node
from luminal.core.movement import reshape
from luminal.core.structured import MARK
from luminal.core.symbolic import Int
from luminal.core.traverse import topological
from luminal.frontends.onnx.external import ExternalFiles
from luminal.frontends.onnx.tensors import Array, sparse_to_numpy, to_numpy

_FEW = 64  # numbers of an input that may decide shapes or branches

AttributeType = onnx.AttributeProto.AttributeType


@dataclass(frozen=True)
class Maps:
    """A sequence of maps, one for each row of ``values [N, keys]``: from each of the ``keys``, integers or texts, to
    the number in its column."""

    values: Node
    keys: tuple[int, ...] | tuple[str, ...]


Result: TypeAlias = Node | Maps | tuple[Node | None, ...]
Importer: TypeAlias = Callable[["Call"], Result | None]

_TABLE: dict[tuple[str, str], dict[int, Importer]] = {}


def operator(*names: str, since: int = 1, domain: str = "") -> Callable[[Importer], Importer]:
    """Register the decorated function for the operators ``names`` of ``domain``, from opset version ``since`` on."""

    def register(function: Importer) -> Importer:
        for name in names:
            versions = _TABLE.setdefault((domain, name), {})
            assert since not in versions, f"{domain}:{name} has two entries from version {since}"
            versions[since] = function
        return function

    return register


def of_pair(function: Callable[[Node, Node], Node]) -> Importer:
    """The importer of an elementwise operator that is ``function`` of its two inputs (see ``Call.pair``)."""
    return lambda call: function(*call.pair())


def of_first(function: Callable[..., Node], **attributes: float) -> Importer:
    """The importer of ``function`` of the first input and float attributes, in this order and with these defaults."""
    return lambda call: function(call[0], *(call.number(name, default) for name, default in attributes.items()))


def find(domain: str, name: str, opset: int) -> Importer | None:
    """The function that imports an operator in the given opset version of its domain, if there is one."""
    versions = _TABLE.get((domain, name), {})
    known = [version for version in versions if version <= opset]
    return versions[max(known)] if known else None


def names(domain: str = "") -> frozenset[str]:
    """The operators of ``domain`` that have an entry."""
    return frozenset(name for of, name in _TABLE if of == domain)


@dataclass
class Call:
    """One operator of a model, applied.

    ``inputs`` holds None for an optional input that is left out; ``outputs`` are the names of the values that the model
    takes, ``""`` for those that it does not. Attributes are read through the typed methods; one that no method reads
    is an error (``unread``), so that none is ignored by oversight. ``assumed`` holds the symbolic sizes whose
    bounds nobody declared, ``random`` the draws of the model; ``bounds`` gives what is declared for a size that data
    decides, by its name; ``named`` has the file's names of symbolic sizes. ``taken`` is the value of an ``If``'s
    condition in what is imported now, where that is one of two imports.
    """

    op: str
    opset: int
    inputs: tuple[Node | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, onnx.AttributeProto]
    files: ExternalFiles
    assumed: frozenset[sym.Var] = frozenset()
    random: Random = field(default_factory=Random)
    bounds: Callable[[str], Range | None] = lambda _: None
    named: Mapping[sym.Var, str] = field(default_factory=dict)
    taken: bool | None = None
    _read: set[str] = field(default_factory=set)

    # ---- inputs

    def __getitem__(self, position: int) -> Node:
        """The required input at ``position``; raises ModelError where the model leaves it out."""
        node = self.get(position)
        if node is None:
            raise ModelError(f"input {position} is required, but the model gives {len(self.inputs)} inputs")
        return node

    def get(self, position: int) -> Node | None:
        """The optional input at ``position``."""
        return self.inputs[position] if position < len(self.inputs) else None

    @property
    def operands(self) -> list[Node]:
        """Every input, for operators that take any number; at least one, and none may be left out."""
        return [self[position] for position in range(max(1, len(self.inputs)))]

    def pair(self) -> tuple[Node, Node]:
        """The two inputs of an elementwise operator. Before opset 7 axes that the second does not have follow its own,
        where the attribute ``axis`` says at which axis of the first they begin."""
        a, b = self[0], self[1]
        if self.opset >= 7:
            return a, b
        self.ignore("broadcast")
        if "axis" not in self.attributes or b.size == 1:
            self.ignore("axis")
            return a, b
        behind = a.rank - self.axis(a.rank) - b.rank
        if behind < 0:
            raise ModelError(f"attribute 'axis': {describe(b)} does not fit in {describe(a)} from there")
        return a, reshape(b, [*b.shape, *[1] * behind])

    def wants(self, position: int) -> bool:
        """Whether the model takes output ``position``."""
        return position < len(self.outputs) and self.outputs[position] != ""

    def array(self, position: int) -> Array:
        """The value of a required input that must be known when the model is compiled.

        Raises InputError where it depends on the inputs of a call.
        """
        value = interp.constant_value(self[position])
        if value is None:
            raise undecided(self[position], position)
        return value

    def values(self, position: int) -> list[Int]:
        """The elements of a required integer input, row-major: each a number, or an expression of symbolic sizes. Some
        operators take whole numbers as floats, too.

        Raises InputError where they depend on the data of a call, ModelError for a fraction.
        """
        value = symval.value(self[position])
        if value is None:
            raise undecided(self[position], position)
        return [_whole(element, position) for element in value.reshape(-1)]

    def integers_at(self, position: int) -> list[int]:
        """The elements of a required integer input that must be plain numbers; errors as for ``values``, and
        UnsupportedError where they depend on symbolic sizes."""
        return [_plain(value, position, self.named) for value in self.values(position)]

    def integer_at(self, position: int) -> int:
        """The one element of a required integer input; errors as for ``integers_at``."""
        elements = self.integers_at(position)
        if len(elements) != 1:
            raise ModelError(f"input {position}: expected one element, found {len(elements)}")
        return elements[0]

    # ---- attributes

    def _attribute(self, name: str, *kinds: int) -> onnx.AttributeProto | None:
        self._read.add(name)
        attribute = self.attributes.get(name)
        if attribute is not None and attribute.type not in kinds:
            expected = " or ".join(AttributeType.Name(kind) for kind in kinds)
            found = AttributeType.Name(attribute.type)
            raise ModelError(f"attribute {name!r}: expected {expected}, found {found}")
        return attribute

    def _required(self, name: str, attribute: onnx.AttributeProto | None) -> onnx.AttributeProto:
        if attribute is None:
            raise ModelError(f"attribute {name!r} is required, but the model does not give it")
        return attribute

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute; required where there is no ``default``."""
        attribute = self._attribute(name, onnx.AttributeProto.INT)
        if attribute is None and default is not None:
            return default
        return int(self._required(name, attribute).i)

    def flag(self, name: str, default: bool = False) -> bool:
        """An integer attribute that stands for a truth value."""
        return self.integer(name, int(default)) != 0

    def number(self, name: str, default: float | None = None) -> float:
        """A float attribute; required where there is no ``default``. Its value is a float32, given exactly, and so is a
        default: the format holds it in a float32 attribute too."""
        attribute = self._attribute(name, onnx.AttributeProto.FLOAT)
        if attribute is None and default is not None:
            return float(np.float32(default))
        return float(self._required(name, attribute).f)

    def text(self, name: str, default: str | None = None) -> str:
        """A string attribute; required where there is no ``default``."""
        attribute = self._attribute(name, onnx.AttributeProto.STRING)
        if attribute is None and default is not None:
            return default
        return str(self._required(name, attribute).s, "utf-8", "replace")

    def choice(self, name: str, default: str, known: Iterable[str]) -> str:
        """A string attribute that must be one of ``known``."""
        text, known = self.text(name, default), list(known)
        if text not in known:
            raise ModelError(f"attribute {name!r}: expected one of {', '.join(known)}, found {text!r}")
        return text

    def integers(self, name: str) -> list[int] | None:
        """A list of integers, or None where the model does not give it."""
        attribute = self._attribute(name, onnx.AttributeProto.INTS)
        return None if attribute is None else [int(value) for value in attribute.ints]

    def numbers(self, name: str) -> list[float] | None:
        """A list of floats, or None where the model does not give it."""
        attribute = self._attribute(name, onnx.AttributeProto.FLOATS)
        return None if attribute is None else [float(value) for value in attribute.floats]

    def texts(self, name: str) -> list[str] | None:
        """A list of strings, or None where the model does not give it."""
        attribute = self._attribute(name, onnx.AttributeProto.STRINGS)
        return None if attribute is None else [str(text, "utf-8", "replace") for text in attribute.strings]

    def tensor(self, name: str) -> Array | None:
        """A dense or sparse tensor as numpy, or None where the model does not give it."""
        attribute = self._attribute(name, onnx.AttributeProto.TENSOR, onnx.AttributeProto.SPARSE_TENSOR)
        if attribute is None:
            return None
        if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
            return sparse_to_numpy(attribute.sparse_tensor, self.files)
        return to_numpy(attribute.t, self.files)

    def graph(self, name: str) -> onnx.GraphProto:
        """A required graph."""
        return self._required(name, self._attribute(name, onnx.AttributeProto.GRAPH)).g

    def ignore(self, *names: str) -> None:
        """Marks attributes without influence on the result as read."""
        self._read.update(names)

    def unread(self) -> list[str]:
        """Attributes of the model that no method has read."""
        return sorted(set(self.attributes) - self._read)

    # ---- what several operators share

    def axes(self, rank: int, position: int = 1) -> list[int] | None:
        """The axes of a ``rank``-dimensional value, from the attribute ``axes`` or, in newer opsets, from an input:
        counted from 0, or None where the model gives none. Raises ModelError for an axis out of range."""
        given = self.integers("axes")
        if given is None and self.get(position) is not None:
            given = self.integers_at(position)
        return None if given is None else [wrap_axis(axis, rank) for axis in given]

    def axis(self, rank: int, default: int | None = None) -> int:
        """The attribute ``axis``, counted from 0; raises ModelError where it is out of range."""
        return self.axis_named("axis", rank, default)

    def axis_named(self, name: str, rank: int, default: int | None = None) -> int:
        """The axis that an attribute gives, counted from 0; raises ModelError where it is out of range."""
        return wrap_axis(self.integer(name, default), rank)


def wrap_axis(axis: int, rank: int) -> int:
    """``axis`` counted from 0; raises ModelError where a value of ``rank`` axes has none such."""
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is out of range for {rank} axes")
    return axis % rank


def describe(node: Node) -> str:
    """``float32[batch, 384]``."""
    return f"{node.dtype}[{', '.join(map(str, node.shape))}]"


def _whole(value: Int | float, position: int) -> Int:
    if not isinstance(value, float):
        return value
    if not value.is_integer():
        raise ModelError(f"input {position} must be a whole number, found {value}")
    return int(value)


def _plain(value: Int, position: int, named: Mapping[sym.Var, str]) -> int:
    if isinstance(value, int):
        return value
    names = sorted(named.get(size, size.name) for size in sym.variables(value))
    found = ", ".join(f"{name!r}: SIZE" for name in names)
    raise UnsupportedError(f"input {position} must be a fixed number, but it is {value}: fix it with dims={{{found}}}")


def counted(output: str) -> str:
    """The name of a size that a run finds: of a loop's rounds, after its first output that grows with them, and of a
    range."""
    return f"{output}_count"


def deciders(node: Node) -> tuple[str, ...]:
    """The inputs that ``node`` is computed from, where they may be given when a model is compiled: each is of a few
    numbers, as a rate or a shape is; none where one is data, or belongs to a loop."""
    sources = [n for n in topological([node]) if n.op is ops.INPUT]
    small = all(isinstance(n.size, int) and n.size <= _FEW and not n.attr.name.startswith(MARK) for n in sources)
    return tuple(n.attr.name for n in sources) if small else ()


def undecided(node: Node, position: int) -> LuminalError:
    """The error for an input at ``position`` that must be known when the model is compiled, and is not."""
    error = _undecided(node, position)
    error.deciding = deciders(node)
    return error


def _undecided(node: Node, position: int) -> LuminalError:
    sources = [n.attr.name for n in topological([node]) if n.op is ops.INPUT]
    if not sources:
        return ShapeError(
            f"input {position} decides axes or shapes, and must be known when compiling, but too much would have to be "
            "computed to know it: give it as a constant"
        )
    if any(name.startswith(MARK) for name in sources):
        return UnsupportedError(
            f"input {position} decides axes or shapes, but a loop computes it anew in each iteration: sizes that are "
            "known at run time only are not supported"
        )
    found = ", ".join(map(repr, sources))
    return InputError(
        f"input {position} decides axes or shapes, but it depends on the data of {found}: "
        f"give a value when compiling, constants={{{sources[0]!r}: array}} or --constant {sources[0]}=FILE.npy"
    )


def exactly(values: Sequence[Any], count: int, what: str) -> None:
    """Raises ModelError where ``values`` does not hold ``count`` elements."""
    if len(values) != count:
        raise ModelError(f"expected {count} {what}, found {len(values)}")


def scalar(value: Array, what: str) -> Any:
    """The one element of a constant; raises ModelError where it has another number of them."""
    if value.size != 1:
        raise ModelError(f"{what}: expected one element, found shape {list(np.shape(value))}")
    return value.reshape(-1)[0]
