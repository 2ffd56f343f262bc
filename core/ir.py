"""The graph of primitives: immutable, interned nodes; origins beside them.

Two nodes are equal exactly when they are the same object: building a node that exists returns it. Shapes and types are
checked when a node is built. Movement of data is one primitive, ``View``, and views of views are composed as they are
built, so a chain of reshapes and slices is always one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias, Union
from weakref import WeakValueDictionary

import numpy as np

from luminal.core import limits, ops, texts
from luminal.core import symbolic as sym
from luminal.core.data import Data
from luminal.core.errors import DTypeError, ShapeError, UnsupportedError
from luminal.core.exchange import EXCHANGES
from luminal.core.host import FUNCTIONS
from luminal.core.ops import Kind, Op
from luminal.core.origins import Approximation, Origin
from luminal.core.relations import unequal
from luminal.core.symbolic import Int
from luminal.core.types import DType, i64

Shape: TypeAlias = tuple[Int, ...]
Operand: TypeAlias = Union["Node", int, float, bool]


class Node:
    """One primitive applied to operands. Build it with the functions of this module, never directly.

    ``shape`` is in elements and may be symbolic; ``attr`` is the attribute dataclass of ``op``, or None.
    """

    __slots__ = ("__weakref__", "attr", "dtype", "inputs", "op", "shape")
    op: Op
    inputs: tuple[Node, ...]
    attr: Any
    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Int:
        """Number of elements."""
        return sym.product(self.shape)

    def __repr__(self) -> str:
        return f"{self.op}{list(self.shape)}:{self.dtype}"

    def __add__(self, other: Operand) -> Node:
        return binary(ops.ADD, self, other)

    def __radd__(self, other: Operand) -> Node:
        return binary(ops.ADD, other, self)

    def __mul__(self, other: Operand) -> Node:
        return binary(ops.MUL, self, other)

    def __rmul__(self, other: Operand) -> Node:
        return binary(ops.MUL, other, self)

    def __neg__(self) -> Node:
        return binary(ops.MUL, self, -1)

    def __sub__(self, other: Operand) -> Node:
        return self + (-lift(other, self))

    def __rsub__(self, other: Operand) -> Node:
        return lift(other, self) + (-self)

    def __truediv__(self, other: Operand) -> Node:
        return binary(ops.DIV, self, other)

    def __rtruediv__(self, other: Operand) -> Node:
        return binary(ops.DIV, other, self)

    def __lt__(self, other: Operand) -> Node:
        return binary(ops.LESS_THAN, self, other)

    def __gt__(self, other: Operand) -> Node:
        return binary(ops.LESS_THAN, other, self)

    def __and__(self, other: Operand) -> Node:
        return binary(ops.AND, self, other)

    def __or__(self, other: Operand) -> Node:
        return binary(ops.OR, self, other)

    def __xor__(self, other: Operand) -> Node:
        return binary(ops.XOR, self, other)


_interned: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


def _intern(op: Op, inputs: tuple[Node, ...], attr: Any, shape: Shape, dtype: DType) -> Node:
    key = (op, inputs, attr, shape, dtype)
    node = _interned.get(key)
    if node is None:
        limits.check_extents(shape, dtype.itemsize, op)
        node = Node()
        node.op, node.inputs, node.attr, node.shape, node.dtype = key
        _interned[key] = node
    _record(node)
    return node


# ---- origins: where in the source model a node came from; never part of equality -----------------------------------


_ORIGINS = 100  # of one node
Origins: TypeAlias = dict[Node, tuple[Origin, ...]]
_recorder: ContextVar[tuple[Origins, tuple[Origin, ...]] | None] = ContextVar("recorder", default=None)


_built: ContextVar[set[Node] | None] = ContextVar("built", default=None)


def _record(node: Node) -> None:
    built = _built.get()
    if built is not None:
        built.add(node)
    active = _recorder.get()
    if active is not None:
        table, origins = active
        known = table.get(node, ())
        if not known or node.op.kind is not Kind.SOURCE:  # thousands may read a source: its first origin is enough
            table[node] = joined(known, origins)


def joined(known: tuple[Origin, ...], more: tuple[Origin, ...]) -> tuple[Origin, ...]:
    """``known`` and the origins in ``more`` that are not among them, up to a limit for nodes that very many share."""
    return known if len(known) >= _ORIGINS else known + tuple(o for o in more if o not in known)


@contextmanager
def originating(table: Origins, *origins: Origin) -> Iterator[None]:
    """Every node built inside the block gets ``origins`` (joined with those it has) in ``table``."""
    token = _recorder.set((table, origins))
    try:
        yield
    finally:
        _recorder.reset(token)


@contextmanager
def building() -> Iterator[set[Node]]:
    """A set to which every node that is built inside the block is added."""
    around = _built.get()
    built: set[Node] = set()
    token = _built.set(built)
    try:
        yield built
    finally:
        _built.reset(token)
        if around is not None:
            around |= built


# ---- sizes that data decides ---------------------------------------------------------------------------------------


Measured: TypeAlias = dict[sym.Var, "Node"]
# The tables around, from the outermost, and the names that are taken.
_measuring: ContextVar[tuple[tuple[Measured, ...], set[str]] | None] = ContextVar("measuring", default=None)


@contextmanager
def measuring(table: Measured, taken: Iterable[str] = ()) -> Iterator[None]:
    """Adds the sizes that ``measure`` makes inside the block to ``table``; none gets a name that is ``taken``."""
    token = _measuring.set(((table,), {*taken, *(size.name for size in table)}))
    try:
        yield
    finally:
        _measuring.reset(token)


@contextmanager
def measuring_inside() -> Iterator[Measured]:
    """A new table for the sizes that ``measure`` makes inside the block, which is the body of a loop or branch."""
    table: Measured = {}
    around = _measuring.get()
    token = _measuring.set(None if around is None else ((*around[0], table), around[1]))
    try:
        yield table
    finally:
        _measuring.reset(token)


def measure(count: Node, upper: int, name: str = "found", lower: int = 0, usual: int | None = None) -> Int:
    """A dimension called ``name`` (numbered if taken) whose size is the value of ``count``, one int64 in
    ``lower .. upper``, often the ``usual`` one; an int if ``count`` is a constant.

    Raises UnsupportedError outside of a ``measuring`` block.
    """
    around = _measuring.get()
    if around is None:
        raise UnsupportedError("a size that data decides is not supported here")
    tables, taken = around
    if count.op is ops.CONSTANT:
        return int(count.attr.array)
    for table in tables:  # what is measured around a body is known in it
        for known, node in table.items():
            if node is count and (known.lo, known.hi, known.usual) == (lower, upper, usual):
                return sym.expr(known)
    wanted, number = name, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    size = sym.Var(name, lower, upper, usual=usual)
    tables[-1][size] = count
    return sym.expr(size)


# ---- sources -------------------------------------------------------------------------------------------------------


def input_(name: str, shape: Sequence[Int], dtype: DType) -> Node:
    """An input of the graph."""
    return _intern(ops.INPUT, (), ops.Name(name), tuple(shape), dtype)


def constant(value: Any, dtype: DType | None = None) -> Node:
    """A constant from a numpy array, of texts too, or a Python number (``dtype`` is required for a number)."""
    if isinstance(value, np.ndarray) and texts.is_texts(value):
        value = texts.encode(value)
    if not isinstance(value, np.ndarray):
        assert dtype is not None, "the type of a Python number must be given"
        value = np.array(_wrap(value, dtype), dtype.numpy)
    elif dtype is not None and value.dtype != dtype.numpy:
        value = value.astype(dtype.numpy)
    return _held(Data(value))


def lazy_constant(make: Callable[[], np.ndarray[Any, Any]], depth: int = 0) -> Node:
    """A constant whose value ``make`` returns; called again when it is read and no longer in memory (see ``Data``)."""
    return _held(Data(make=make, depth=depth))


def _held(data: Data) -> Node:
    node = _intern(ops.CONSTANT, (), data, data.shape, data.dtype)
    node.attr.renew(data)
    return node


def _wrap(value: float, dtype: DType) -> float:
    """Integers wrap into the range of ``dtype`` (-1 as an unsigned number is its largest)."""
    if dtype.is_integer and not dtype.min <= value <= dtype.max:
        return (int(value) - int(dtype.min)) % (1 << dtype.bits) + int(dtype.min)
    return value


def iota(extent: Int) -> Node:
    """``[0, 1, .. extent-1]`` as int64."""
    return _intern(ops.IOTA, (), ops.Extent(extent), (extent,), i64)


def dim(value: Int) -> Node:
    """A size as an int64 scalar: a constant where it is known, else the primitive ``Dim``."""
    return constant(value, i64) if isinstance(value, int) else _intern(ops.DIM, (), ops.Extent(value), (), i64)


def lift(value: Operand, like: Node) -> Node:
    """``value`` as a node; a Python number becomes a constant of the type of ``like``."""
    return value if isinstance(value, Node) else constant(value, like.dtype)


# ---- elementwise, reductions, gather, scatter, scan, sort ----------------------------------------------------------

MOST_LEAST = 1024  # most elements that a partial sort keeps while it reads a row; for more, the whole row is sorted


def elementwise(op: Op, *operands: Node, attr: Any = None) -> Node:
    """``op`` of operands that already have one shape.

    Raises ShapeError or DTypeError where they do not fit.
    """
    assert op.kind is Kind.ELEMENTWISE and len(operands) == op.arity, (op, len(operands))
    shape = operands[0].shape
    if any(o.shape != shape for o in operands):
        found = ", ".join(str(list(o.shape)) for o in operands)
        apart = [pair for o in operands[1:] for pair in unequal(shape, o.shape)]
        raise ShapeError(f"{op}: expected operands of one shape, found {found}", apart)
    if op.attr is not None and attr is None:
        attr = op.attr()
    dtype = op.result(*(o.dtype for o in operands)) if op.result else attr.dtype
    return _intern(op, operands, attr, shape, dtype)


def unary(op: Op, x: Node, attr: Any = None) -> Node:
    """A unary primitive."""
    return elementwise(op, x, attr=attr)


def binary(op: Op, a: Operand, b: Operand) -> Node:
    """A binary primitive of operands broadcast as numpy does; one of them may be a Python number."""
    like = a if isinstance(a, Node) else b
    assert isinstance(like, Node)
    x, y = broadcast(lift(a, like), lift(b, like))
    return elementwise(op, x, y)


def select(condition: Node, a: Operand, b: Operand) -> Node:
    """``a`` where ``condition`` holds, else ``b``; broadcast."""
    like = a if isinstance(a, Node) else b
    assert isinstance(like, Node)
    return elementwise(ops.SELECT, *broadcast(condition, lift(a, like), lift(b, like)))


def multiply_add(a: Node, b: Operand, c: Operand) -> Node:
    """``a*b + c`` rounded once; broadcast, and ``b`` and ``c`` may be Python numbers."""
    return elementwise(ops.MULTIPLY_ADD, *broadcast(a, lift(b, a), lift(c, a)))


def cast(x: Node, dtype: DType, subnormals: bool = True) -> Node:
    """``x`` converted to ``dtype`` with one rounding; ``x`` itself if it has that type. Without ``subnormals``,
    subnormal results may be zeros.

    Raises DTypeError for texts, which ``core.decompose.text`` converts.
    """
    if x.dtype != dtype and (x.dtype.is_text or dtype.is_text):
        raise DTypeError(f"Cast: expected numbers, found {x.dtype} to {dtype}")
    return x if x.dtype == dtype else elementwise(ops.CAST, x, attr=ops.To(dtype, subnormals))


def bitcast(x: Node, dtype: DType) -> Node:
    """The bits of ``x`` read as ``dtype``, which must be as wide."""
    if x.dtype.bits != dtype.bits:
        raise ShapeError(f"Bitcast: expected a type of {x.dtype.bits} bits, found {dtype}")
    return x if x.dtype == dtype else elementwise(ops.BITCAST, x, attr=ops.To(dtype))


def reduce(op: Op, x: Node, axes: Iterable[int]) -> Node:
    """``SumReduce`` or ``MaxReduce`` over ``axes``, which the result does not have."""
    assert op.kind is Kind.REDUCE and op.result is not None
    dropped = tuple(sorted({_axis(a, x) for a in axes}))
    if not dropped:
        return x
    shape = tuple(d for k, d in enumerate(x.shape) if k not in dropped)
    return _intern(op, (x,), ops.Axes(dropped), shape, op.result(x.dtype))


def gather(data: Node, index: Node, axis: int, failure: ops.Failure = ops.Failure.INDEX) -> Node:
    """``data`` at positions ``index`` (int64, any shape) along ``axis``; one out of range makes a run fail, as
    ``failure`` says.

    Result shape: ``data.shape[:axis] + index.shape + data.shape[axis+1:]``.
    """
    assert ops.GATHER.result is not None
    axis = _axis(axis, data)
    shape = data.shape[:axis] + index.shape + data.shape[axis + 1 :]
    dtype = ops.GATHER.result(data.dtype, index.dtype)
    return _intern(ops.GATHER, (data, index), ops.Axis(axis, failure), shape, dtype)


def scatter(
    old: Node, index: Node, new: Node, axis: int, by: Op | None = None, failure: ops.Failure = ops.Failure.INDEX
) -> Node:
    """``old`` with ``new`` put in at positions ``index`` (int64, any shape) along ``axis``: a gather's inverse.

    ``new`` has the shape of such a gather, ``old.shape[:axis] + index.shape + old.shape[axis+1:]``. Where positions
    repeat, elements go in one after the other, in row-major order of ``index``; ``by`` combines each with what is there
    (None: replaces it). A position out of range makes a run fail, as ``failure`` says. Raises ShapeError or DTypeError
    where operands do not fit.
    """
    assert ops.SCATTER.result is not None
    axis = _axis(axis, old)
    expected = old.shape[:axis] + index.shape + old.shape[axis + 1 :]
    if new.shape != expected:
        raise ShapeError(
            f"Scatter: expected new elements {list(expected)}, found {list(new.shape)}", unequal(new.shape, expected)
        )
    dtype = ops.SCATTER.result(old.dtype, index.dtype, new.dtype)
    if by is not None:
        assert by.result is not None
        by.result(dtype, dtype)
    return _intern(ops.SCATTER, (old, index, new), ops.Combine(axis, by, failure), old.shape, dtype)


def made(op: Op, inputs: tuple[Node, ...], attr: Any, shape: Shape, dtype: DType) -> Node:
    """A node of parts that are not checked: they must fit, as the parts of an existing node do after renaming."""
    return _intern(op, inputs, attr, shape, dtype)


def structured(op: Op, inputs: Sequence[Node], attr: ops.Structured) -> Node:
    """One result of a node with bodies: see ``core.structured``, which checks them."""
    result = attr.computed[-1][attr.result]
    shape = result.shape
    if isinstance(attr, ops.Step) and attr.result >= len(attr.carries):
        shape = (inputs[len(attr.carries)].shape[0], *shape)
    return _intern(op, tuple(inputs), attr, shape, result.dtype)


def host(function: str, operands: Sequence[Node], shape: Shape) -> Node:
    """The result, of ``shape``, of the function of that name in ``core.host`` on ``operands``.

    Raises DTypeError if the operands are not of the types that it takes.
    """
    found = FUNCTIONS[function]
    found.check(function, [operand.dtype for operand in operands])
    return _intern(ops.HOST, tuple(operands), ops.Called(function), shape, found.result)


def exchange(kind: str, group: ops.Group, x: Node, number: int = 0) -> Node:
    """``x`` exchanged in a group of ranks, as ``core.exchange`` says of that ``kind``.

    Raises ShapeError where the shape of ``x`` does not fit, DTypeError for texts.
    """
    assert ops.EXCHANGE.result is not None
    shape = EXCHANGES[kind].shape(x.shape, group.size)
    return _intern(ops.EXCHANGE, (x,), ops.Exchanged(kind, group, number), shape, ops.EXCHANGE.result(x.dtype))


def sort(x: Node, count: Int | None = None) -> Node:
    """Integers ``x`` in ascending order along the last axis; with ``count``, the first so many of each row.

    Raises ShapeError where ``x`` has no axis or a row may have fewer elements, DTypeError where it holds no integers.
    """
    assert ops.SORT.result is not None
    if x.rank == 0:
        raise ShapeError("Sort: expected an axis to sort along, found a scalar")
    dtype, length = ops.SORT.result(x.dtype), x.shape[-1]
    count = length if count is None else count
    beyond = sym.either(count - length, "min")  # the smaller of the length and a number is never more than the length
    if not sym.always(count) or not any(sym.always(excess * -1) for excess in beyond):
        raise ShapeError(f"Sort: cannot take the least {count} of {length} elements")
    shape = (*x.shape[:-1], count)
    if length == 1 or count == 0:
        return view(x, shape, axes(shape))
    most = sym.upper(count)
    if count != length and (most is None or most > MOST_LEAST):
        return view(sort(x), shape, axes(shape))
    return _intern(ops.SORT, (x,), ops.Least(count), shape, dtype)


def _axis(axis: int, x: Node) -> int:
    if not -x.rank <= axis < max(x.rank, 1):
        raise ShapeError(f"axis {axis} is out of range for shape {list(x.shape)}")
    return axis % max(x.rank, 1)


# ---- views ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 14)
def axes(shape: Shape) -> tuple[Int, ...]:
    """The canonical index variables ``i0, i1, ..`` of a shape (the constant 0 for an axis of extent 1)."""
    return tuple(sym.axis(f"i{k}", extent) for k, extent in enumerate(shape))


def rename(shape: Shape, index: Sequence[Int]) -> dict[sym.Var, Int]:
    """The substitution that puts ``index`` for the canonical axes of ``shape``."""
    return {v: e for a, e in zip(axes(shape), index, strict=True) if (v := sym.as_var(a)) is not None}


def view(x: Node, shape: Sequence[Int], index: Sequence[Int], valid: Sequence[Int] = (), fill: bytes = b"") -> Node:
    """A view of ``x``: see ``ops.View``. Composed with ``x`` where ``x`` is a view; ``x`` itself where it is identity.

    ``index`` and ``valid`` are over ``axes(shape)``; ``fill`` is required where a mask remains.
    """
    shape, index = tuple(shape), tuple(index)
    mask = tuple(dict.fromkeys(v for v in valid if not sym.always(v)))
    inner = x.attr if x.op is ops.VIEW else None
    if inner is not None and (not inner.valid or not mask or inner.fill == fill):
        by = rename(x.shape, index)
        deeper = [sym.substitute(e, by) for e in inner.valid]
        return view(
            x.inputs[0], shape, [sym.substitute(e, by) for e in inner.index], [*mask, *deeper], inner.fill or fill
        )
    if not mask and shape == x.shape and index == axes(shape):
        return x
    return _intern(ops.VIEW, (x,), ops.View(index, mask, fill if mask else b""), shape, x.dtype)


def broadcast_shape(*shapes: Shape) -> Shape:
    """The numpy broadcast of shapes; raises ShapeError where they do not agree."""
    rank = max(map(len, shapes))
    result: list[Int] = []
    for column in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        sizes = {d for d in column if d != 1}
        if len(sizes) > 1:
            apart = [(a, b) for a in column for b in column if a != 1 != b != a]
            raise ShapeError("shapes do not broadcast: " + ", ".join(str(list(s)) for s in shapes), apart[:1])
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def expand(x: Node, shape: Sequence[Int]) -> Node:
    """``x`` broadcast to ``shape`` as numpy does."""
    shape = tuple(shape)
    if broadcast_shape(x.shape, shape) != shape:
        apart = [pair for pair in unequal(x.shape[-len(shape) :], shape[len(shape) - x.rank :]) if pair[0] != 1]
        raise ShapeError(f"cannot expand {list(x.shape)} to {list(shape)}", apart)
    offset = len(shape) - x.rank
    index = [0 if d == 1 else axes(shape)[offset + k] for k, d in enumerate(x.shape)]
    return view(x, shape, index)


def broadcast(*operands: Node) -> tuple[Node, ...]:
    """Operands expanded to their common shape."""
    shape = broadcast_shape(*(o.shape for o in operands))
    return tuple(expand(o, shape) for o in operands)


# ---- graphs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """A value that a model keeps from one call to the next: ``input`` has the value that the last call left (before the
    first call the constant ``initial``), ``output`` names the output with the new value."""

    input: Node
    output: str
    initial: Node

    @property
    def name(self) -> str:
        return str(self.input.attr.name)


@dataclass(frozen=True)
class Graph:
    """A model as primitives: named outputs over named inputs.

    ``inputs`` holds every input in the caller's order, used or not. ``dims`` has all symbols, ``measured`` those whose
    size data decides, each with the node that gives it. ``names`` gives constants their original names.
    ``structure`` is the front end's description of nested inputs and outputs (JSON), passed through to the loader.
    The inputs and outputs of ``states`` come after those of the caller, who does not see them. ``approximations`` are
    those that have been made of the model, ``relations`` what it needs of the sizes of its inputs, in words. What the
    source operators ``exact`` multiply is rounded by no option. Of a graph that one rank of a ``mesh`` runs, that has
    the axes with their sizes; ranks are numbered in row-major order.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    dims: tuple[sym.Var, ...] = ()
    origins: Origins = field(default_factory=dict)
    names: Mapping[Node, str] = field(default_factory=dict)
    structure: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[sym.Var, Node] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    approximations: tuple[Approximation, ...] = ()
    relations: tuple[str, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    exact: frozenset[Origin] = frozenset()

    @property
    def given(self) -> tuple[Node, ...]:
        """The inputs that a caller gives."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def returned(self) -> tuple[tuple[str, Node], ...]:
        """The outputs that a caller gets."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    @property
    def left(self) -> tuple[tuple[State, Node], ...]:
        """The states, each with the node of its new value."""
        return tuple(zip(self.states, self.results[len(self.returned) :], strict=True))

    @property
    def results(self) -> tuple[Node, ...]:
        return tuple(node for _, node in self.outputs)

    @property
    def roots(self) -> tuple[Node, ...]:
        """All nodes that must be computed: the outputs, then the measured sizes."""
        return (*self.results, *self.measured.values())

    def keeps(self, node: Node) -> bool:
        """Whether ``node`` is of an operator whose operands stay as they are."""
        return not self.exact.isdisjoint(self.origins.get(node, ()))

    def computing(self, roots: Sequence[Node], **changes: Any) -> Graph:
        """This graph with its roots replaced by ``roots``, in the same order, and other fields as in ``changes``."""
        count = len(self.outputs)
        outputs = tuple((name, node) for (name, _), node in zip(self.outputs, roots[:count], strict=True))
        measured = dict(zip(self.measured, roots[count:], strict=True))
        return replace(self, **{"outputs": outputs, "measured": measured, **changes})
