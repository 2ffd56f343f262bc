"""The primitives: one table row each. Every other table (numpy, symbolic values, C++) is keyed by these rows.

Twelve come from the original instruction set: ``Log2 Exp2 Sin Sqrt Recip``, ``Add Mul Mod LessThan``, ``SumReduce
MaxReduce`` and ``Contiguous``. They alone are not exact, so a second list completes them; ``why`` says for each member
what the twelve cannot express exactly, or only at a worse order of growth.

``total`` states the result where mathematics or the C language leaves it open; no primitive traps or is undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from luminal.core.errors import DTypeError
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, bool_, i64


class Kind(Enum):
    """How a primitive's result shape follows from its operands."""

    SOURCE = "source"  # no operands; the attribute states the shape
    ELEMENTWISE = "elementwise"  # equal operand shapes, the same result shape
    REDUCE = "reduce"  # drops the axes that the attribute names
    VIEW = "view"  # moves nothing; the attribute maps result indices to operand indices
    INDEXED = "indexed"  # reads or writes at positions that another operand holds
    STRUCTURED = "structured"  # bodies of primitives, run as often as data or sizes say
    ORDERED = "ordered"  # the elements of the last axis, or some of them, in another order
    HOST = "host"  # a function of the host, which no kernel can be
    EXCHANGE = "exchange"  # data moved between ranks, which no kernel can be
    FUNCTION = "function"  # a value and what it is a function of, while gradients are taken (core/derivative.py)


# ---- attributes: a frozen dataclass per primitive that has any ----------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """A constant applied inside the function, before its one rounding: ``Exp2`` gives ``2**(x*scale)``, ``Log2`` gives
    ``scale * log2(x)``. Of ``Exp2`` in float32, so many significant ``digits`` may be enough (None: all there are);
    whoever computes it may give more."""

    scale: float = 1.0
    digits: int | None = None


@dataclass(frozen=True)
class Quadrant:
    """``Sin`` of ``x + quadrant * pi/2``, the sum taken exactly; ``quadrant`` is 0..3."""

    quadrant: int = 0


@dataclass(frozen=True)
class To:
    """The result type of ``Cast`` and ``Bitcast``. Unless ``subnormals`` are kept, those that ``Cast`` would give
    may be zeros instead, and not for every reader alike."""

    dtype: DType
    subnormals: bool = True


@dataclass(frozen=True)
class Rounding:
    """``mode`` is ``even`` (nearest, ties to even), ``floor``, ``ceil`` or ``trunc``."""

    mode: str


@dataclass(frozen=True)
class Axes:
    """The axes that a reduction drops, ascending."""

    axes: tuple[int, ...]


class Failure(Enum):
    """The error that a run reports if an index lies outside its axis. An operator that must fail reads a position
    outside, with its own reason."""

    INDEX = "an index is out of range"
    SINGULAR = "a matrix is singular, or not positive definite"
    BRANCH = "a branch is taken that does not fit what follows it"
    ROOM = "a loop makes more rounds than there is room for, or a range more numbers"


@dataclass(frozen=True)
class Axis:
    """The axis of the data operand that a gather indexes."""

    axis: int
    failure: Failure = Failure.INDEX


@dataclass(frozen=True)
class Combine:
    """The axis of the old value that a scatter writes along; ``by`` (the row of Add, Mul or Max) combines the old
    element with the new one, None replaces it."""

    axis: int
    by: Op | None = None
    failure: Failure = Failure.INDEX


Measured: TypeAlias = "tuple[tuple[Var, Any], ...]"  # sizes that data decides, each with what says how large it is


class Structured:
    """Bodies of primitives over ``parameters``, inputs of their own, which stand for the last operands of the node.

    Bodies are closed: beside the parameters they read constants, positions and sizes only. The bodies have several
    results; a node is one of them, number ``result``. Sizes that a body measures are known in it alone: ``measured``
    holds them for each body, or nothing where there are none.
    """

    parameters: tuple[Any, ...]
    result: int
    measured: tuple[Measured, ...]
    groups: ClassVar[tuple[str, ...]]  # the fields that hold the parameters

    @property
    def computed(self) -> tuple[tuple[Any, ...], ...]:
        """The results of each body."""
        raise NotImplementedError

    def computing(self, *results: tuple[Any, ...]) -> Any:
        """This attribute with ``results`` for those of its bodies."""
        raise NotImplementedError

    def inside(self, number: int) -> dict[Var, Any]:
        """The sizes that body ``number`` measures, each with the node that gives it."""
        return dict(self.measured[number]) if self.measured else {}

    @property
    def sizes(self) -> tuple[Var, ...]:
        """The sizes that the bodies measure."""
        return tuple(size for body in self.measured for size, _ in body)

    @property
    def bodies(self) -> tuple[tuple[Any, ...], ...]:
        """All that each body computes: its results, and how large the sizes are that it measures."""
        return tuple((*results, *self.inside(k).values()) for k, results in enumerate(self.computed))

    def over(self, *bodies: tuple[Any, ...]) -> Any:
        """This attribute with other ``bodies``, each in the form of ``bodies``: results, then measured sizes."""
        ends = [len(results) for results in self.computed]
        same = self.computing(*(body[:end] for body, end in zip(bodies, ends, strict=True)))
        rows = zip(bodies, ends, self.measured, strict=True) if self.measured else ()
        measured = (tuple(zip(dict(sizes), body[end:], strict=True)) for body, end, sizes in rows)
        return replace(same, measured=tuple(measured))


@dataclass(frozen=True)
class Step(Structured):
    """The step of a scan, run once for each element along the first axis of the arrays that it scans.

    ``results`` are the next value of each carry, then the outputs. A ``result`` below the number of carries is the last
    value of a carry; outputs are stacked. The node's operands are the first values of the ``carries``, the arrays that
    ``slices`` are elements of, and the values ``shared`` by all steps.
    """

    carries: tuple[Any, ...]
    slices: tuple[Any, ...]
    shared: tuple[Any, ...]
    results: tuple[Any, ...]
    result: int
    measured: tuple[Measured, ...] = ()
    groups = ("carries", "slices", "shared")

    @property
    def parameters(self) -> tuple[Any, ...]:  # type: ignore[override]
        return (*self.carries, *self.slices, *self.shared)

    @property
    def computed(self) -> tuple[tuple[Any, ...], ...]:
        return (self.results,)

    def computing(self, *results: tuple[Any, ...]) -> Step:
        return replace(self, results=results[0])


@dataclass(frozen=True)
class Repeat(Structured):
    """The round of a while loop, run while ``condition`` on its ``carries`` holds; ``results`` are the next carries.
    The node's operands are the first values of the carries, and the values ``shared`` by all rounds."""

    carries: tuple[Any, ...]
    shared: tuple[Any, ...]
    condition: Any
    results: tuple[Any, ...]
    result: int
    measured: tuple[Measured, ...] = ()
    groups = ("carries", "shared")

    @property
    def parameters(self) -> tuple[Any, ...]:  # type: ignore[override]
        return (*self.carries, *self.shared)

    @property
    def computed(self) -> tuple[tuple[Any, ...], ...]:
        return ((self.condition,), self.results)

    def computing(self, *results: tuple[Any, ...]) -> Repeat:
        return replace(self, condition=results[0][0], results=results[1])


@dataclass(frozen=True)
class Branches(Structured):
    """The bodies of a branch: ``then`` is computed if the condition holds, else ``other``. The first operand of the
    node is the condition."""

    parameters: tuple[Any, ...]
    then: tuple[Any, ...]
    other: tuple[Any, ...]
    result: int
    measured: tuple[Measured, ...] = ()
    groups = ("parameters",)

    @property
    def computed(self) -> tuple[tuple[Any, ...], ...]:
        return (self.then, self.other)

    def computing(self, *results: tuple[Any, ...]) -> Branches:
        return replace(self, then=results[0], other=results[1])


@dataclass(frozen=True)
class Least:
    """How many elements of each row a sort keeps, the least ones."""

    count: Int


@dataclass(frozen=True)
class Called:
    """The function of ``core.host`` that a ``Host`` calls."""

    function: str


@dataclass(frozen=True)
class Group:
    """The ranks that exchange data, along the ``axis`` of a mesh: ``size`` of them, ``stride`` apart. A rank is number
    ``rank // stride % size`` of its group."""

    axis: str
    size: int
    stride: int = 1


EVERY = -1  # in the place of the number of a stage of a pipeline: all of them


@dataclass(frozen=True)
class Exchanged:
    """The kind of an ``Exchange`` (see ``core.exchange``) and the group; ``number`` is the root of a broadcast and the
    distance of a shift."""

    kind: str
    group: Group
    number: int = 0


@dataclass(frozen=True)
class Passed:
    """What one rank of ``group`` sends to its member ``peer``, or else receives from it; what is sent with a ``ticket``
    is received with the same, in the order in which it was sent."""

    group: Group
    peer: int
    sends: bool
    ticket: int


@dataclass(frozen=True)
class Extent:
    """The length of an ``Iota``, or the value of a ``Dim``."""

    value: Int


@dataclass(frozen=True)
class Name:
    """The name of an ``Input``; inputs of one graph are told apart by it."""

    name: str


@dataclass(frozen=True)
class View:
    """Result element ``i`` is the operand's element at ``index(i)`` where every ``valid(i) >= 0``, else ``fill``.

    Expressions are over the canonical axes of the result shape (``ir.axes``). ``fill`` is the bytes of one element.
    """

    index: tuple[Int, ...]
    valid: tuple[Int, ...] = ()
    fill: bytes = b""


# ---- type rules: operand types and attribute -> result type; DTypeError where they do not fit ----------------------


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise DTypeError(message)


def _same(*operands: DType) -> DType:
    _expect(len(set(operands)) == 1, f"operands must have one type, found {', '.join(map(str, operands))}")
    return operands[0]


def _float(*operands: DType) -> DType:
    result = _same(*operands)
    _expect(result.is_float, f"expected a float type, found {result}")
    return result


def _number(*operands: DType) -> DType:
    result = _ordered(*operands)
    _expect(not result.is_bool, "expected numbers, found bool")
    return result


def _ordered(*operands: DType) -> DType:
    result = _same(*operands)
    _expect(not result.is_text, "expected numbers, found text")
    return result


def _bits(*operands: DType) -> DType:
    result = _same(*operands)
    _expect(result.is_integer or result.is_bool, f"expected integers or bool, found {result}")
    return result


def _integers(*operands: DType) -> DType:
    result = _same(*operands)
    _expect(result.is_integer, f"expected integers, found {result}")
    return result


def _predicate(*operands: DType) -> DType:
    _same(*operands)
    return bool_


def _comparison(*operands: DType) -> DType:
    return _predicate(_ordered(*operands))


def _select(condition: DType, *branches: DType) -> DType:
    _expect(condition.is_bool, f"a condition must be bool, found {condition}")
    return _same(*branches)


def _gather(data: DType, index: DType) -> DType:
    _expect(index == i64, f"indices must be int64, found {index}")
    return data


def _scatter(old: DType, index: DType, new: DType) -> DType:
    _expect(index == i64, f"indices must be int64, found {index}")
    return _same(old, new)


def _moved(operand: DType) -> DType:
    _expect(not operand.is_text, "texts are not exchanged")
    return operand


@dataclass(frozen=True, eq=False)
class Op:
    """One primitive."""

    name: str
    kind: Kind
    arity: int | None  # None: any number
    result: Callable[..., DType] | None  # None: the attribute states the type
    total: str
    attr: type | None = None
    commutative: bool = False
    associative: bool = False  # exactly: over wrapping integers, bool, and for Max over floats
    why: str = ""

    def __repr__(self) -> str:
        return self.name


# ---- the table -----------------------------------------------------------------------------------------------------

INPUT = Op("Input", Kind.SOURCE, 0, None, "a value that the caller gives", Name, why="a model reads its inputs")
CONSTANT = Op("Constant", Kind.SOURCE, 0, None, "exact bits, NaN payloads kept", None, why="a model has weights")
IOTA = Op("Iota", Kind.SOURCE, 0, None, "int64 0 .. n-1", Extent, why="positions; a sum of ones would be quadratic")
DIM = Op("Dim", Kind.SOURCE, 0, None, "int64", Extent, why="a symbolic size as a number")

LOG2 = Op("Log2", Kind.ELEMENTWISE, 1, _float, "log2(0) = -inf; negative gives NaN", Scale)
EXP2 = Op("Exp2", Kind.ELEMENTWISE, 1, _float, "overflows to inf; underflows gradually to 0", Scale)
SIN = Op("Sin", Kind.ELEMENTWISE, 1, _float, "infinities give NaN; sin(-0) = -0", Quadrant)
SQRT = Op("Sqrt", Kind.ELEMENTWISE, 1, _float, "negative gives NaN; sqrt(-0) = -0; correctly rounded")
RECIP = Op("Recip", Kind.ELEMENTWISE, 1, _float, "1/0 = inf with the sign of the zero; correctly rounded")
CAST = Op(
    "Cast", Kind.ELEMENTWISE, 1, None,
    "float to integer truncates and saturates, NaN gives 0; to float rounds once, to nearest even, overflowing to inf "
    "(for types without it to the largest value, for those without zero upwards to the least; for those without NaN it "
    "gives 0); integer to integer wraps; to bool is x != 0", To,
    why="no arithmetic changes a type",
)  # fmt: skip
BITCAST = Op("Bitcast", Kind.ELEMENTWISE, 1, None, "bits unchanged; equal widths", To,
             why="exponents and signs of floats, without branches")  # fmt: skip
ROUND = Op("Round", Kind.ELEMENTWISE, 1, _float, "integers, infinities, NaN unchanged; the sign of zero is kept",
           Rounding, why="x - Mod(x, 1) is wrong for -0, for infinities and for ties")  # fmt: skip

ADD = Op("Add", Kind.ELEMENTWISE, 2, _number, "integers wrap", commutative=True, associative=True)
MUL = Op("Mul", Kind.ELEMENTWISE, 2, _number, "integers wrap; 0*inf = NaN", commutative=True, associative=True)
MOD = Op("Mod", Kind.ELEMENTWISE, 2, _number,
         "sign of the divisor; exact; integer x mod 0 = 0, float NaN; x mod inf = x or inf by sign")  # fmt: skip
LESS_THAN = Op("LessThan", Kind.ELEMENTWISE, 2, _comparison, "false where either operand is NaN; -0 is not less than 0")
DIV = Op("Div", Kind.ELEMENTWISE, 2, _number,
         "floats: correctly rounded, x/0 = inf or NaN; integers: truncates toward zero, x/0 = 0, INT_MIN/-1 = INT_MIN",
         why="x*Recip(y) rounds twice and is inf or NaN where x/y is finite; integers have no reciprocal")  # fmt: skip
EQUAL = Op("Equal", Kind.ELEMENTWISE, 2, _predicate, "false where either operand is NaN; -0 equals 0",
           commutative=True, why="two LessThan cannot tell equal from NaN")  # fmt: skip
MAX = Op("Max", Kind.ELEMENTWISE, 2, _ordered, "NaN where either operand is NaN; max(-0, 0) = 0; or for bool",
         commutative=True, associative=True, why="a Select on LessThan loses NaN")  # fmt: skip
AND = Op("And", Kind.ELEMENTWISE, 2, _bits, "bitwise", commutative=True, associative=True,
         why="bits of integers; a product of predicates")  # fmt: skip
OR = Op("Or", Kind.ELEMENTWISE, 2, _bits, "bitwise", commutative=True, associative=True, why="as And")
XOR = Op("Xor", Kind.ELEMENTWISE, 2, _bits, "bitwise", commutative=True, associative=True, why="as And; negation")
SHL = Op("ShiftLeft", Kind.ELEMENTWISE, 2, _integers, "0 where the amount is negative or not below the width",
         why="a multiplication by a power of two needs that power")  # fmt: skip
SHR = Op("ShiftRight", Kind.ELEMENTWISE, 2, _integers,
         "arithmetic for signed types; an amount that is negative or not below the width gives the sign fill (0 or -1)",
         why="a truncating division rounds the other way")  # fmt: skip
MULTIPLY_ADD = Op("MultiplyAdd", Kind.ELEMENTWISE, 3, _float,
                  "a*b + c rounded once, as IEEE 754 has it (16-bit types: to float32, then to the type)",
                  why="Mul and Add round twice; once would take arithmetic of twice the width")  # fmt: skip
SELECT = Op("Select", Kind.ELEMENTWISE, 3, _select, "takes one operand's bits; the other may be anything",
            why="a product with a mask turns inf into NaN")  # fmt: skip

SUM_REDUCE = Op("SumReduce", Kind.REDUCE, 1, _number,
                "starts from +0: an empty sum is 0, and so is a sum of -0; integers wrap", Axes)  # fmt: skip
MAX_REDUCE = Op("MaxReduce", Kind.REDUCE, 1, _ordered,
                "NaN where any element is NaN; of nothing: -inf, the lowest integer, or false", Axes)  # fmt: skip

VIEW = Op("View", Kind.VIEW, 1, _same, "an index outside its mask is never read", View,
          why="reshape, permute, expand, slice, flip, pad and windows, which move nothing")  # fmt: skip
CONTIGUOUS = Op("Contiguous", Kind.ELEMENTWISE, 1, _same, "the operand, stored row-major")

GATHER = Op("Gather", Kind.INDEXED, 2, _gather,
            "result shape: data's with the axis replaced by the shape of the indices; an index outside the axis makes "
            "the run fail with a status, reading nothing", Axis,
            why="a product with one-hot rows costs the whole table for each row")  # fmt: skip

SCATTER = Op("Scatter", Kind.INDEXED, 3, _scatter,
             "result shape: the old value's; the new elements, of the shape of a gather at the indices, are put in one "
             "after the other in row-major order of the indices; an index outside the axis makes the run fail with a "
             "status", Combine,
             why="a sum of one-hot products costs the whole result for each new element")  # fmt: skip

SCAN = Op("Scan", Kind.STRUCTURED, None, None,
          "from the first element to the last; of nothing: the first values of the carries", Step,
          why="a cumulative operator from reductions is quadratic, and a recurrence has no other form")  # fmt: skip

WHILE = Op("While", Kind.STRUCTURED, None, None,
           "the condition is asked before each round; a run in which it always holds does not end", Repeat,
           why="how often a scan goes round has to be known before")  # fmt: skip
COND = Op("Cond", Kind.STRUCTURED, None, None, "one branch runs, whatever the other would have done", Branches,
          why="a Select computes both sides, and one of them may cost much, or fail")  # fmt: skip
SORT = Op("Sort", Kind.ORDERED, 1, _integers,
          "along the last axis, ascending, the least of them; integers alone, of which equal ones are the same: where "
          "NaN, -0 and equal keys come is said by what the integers are made of", Least,
          why="comparisons of all pairs are quadratic, and no loop whose length is known sorts in n log n")  # fmt: skip
HOST = Op("Host", Kind.HOST, None, None,
          "what core/host.py says of each function; what a function refuses makes the run fail with a status", Called,
          why="texts have no fixed size: their parts are in no tensor")  # fmt: skip
EXCHANGE = Op("Exchange", Kind.EXCHANGE, 1, _moved,
              "what core/exchange.py says of each kind; bits are unchanged; a rank that does not answer within the "
              "limit makes the run of the others fail with a status", Exchanged,
              why="nothing else reads what another rank holds")  # fmt: skip

CALLED = (HOST, EXCHANGE)  # called between kernels, which they cannot be; their operands and results lie in memory

TABLE: dict[str, Op] = {value.name: value for value in list(globals().values()) if isinstance(value, Op)}

TWELVE = (LOG2, EXP2, SIN, SQRT, RECIP, ADD, MUL, MOD, LESS_THAN, SUM_REDUCE, MAX_REDUCE, CONTIGUOUS)


COSTLY = frozenset({EXP2, LOG2, SIN, DIV, RECIP, SQRT, MOD, GATHER})
