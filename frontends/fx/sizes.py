"""Arithmetic on sizes: Python's operators and math functions as ``torch.export`` records them, and shape guards."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from luminal.core import interp, symval
from luminal.core import symbolic as sym
from luminal.core.decompose import selection
from luminal.core.errors import ModelError, ShapeError, UnsupportedError
from luminal.core.ir import Node, cast, gather, iota
from luminal.core.movement import reshape
from luminal.core.symbolic import Expr, Int
from luminal.core.types import DType, i64
from luminal.frontends.fx.registry import aten, register

Number: TypeAlias = Int | float


@dataclass(frozen=True)
class Condition:
    """A comparison of sizes that their bounds do not decide; ``holds`` decides it for given sizes, by name. ``equal``
    are two sizes, where it is that they are equal."""

    text: str
    holds: Callable[[Mapping[str, int]], bool]
    variables: frozenset[sym.Var]
    equal: tuple[Int, Int] | None = None


Truth: TypeAlias = bool | Condition


def _evaluate(value: Number, sizes: Mapping[str, int]) -> Any:
    return sym.evaluate(value, sizes) if isinstance(value, Expr) else value


def _variables(value: Any) -> frozenset[sym.Var]:
    if isinstance(value, Condition):
        return value.variables
    return frozenset(sym.variables(value)) if isinstance(value, Expr) else frozenset()


def _comparison(symbol: str, compare: Callable[[Any, Any], bool]) -> Callable[[Number, Number], Truth]:
    """A comparison: decided where the bounds of ``a - b`` allow one answer only."""

    def handler(a: Number, b: Number) -> Truth:
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            return compare(a, b)
        if not isinstance(a, float) and not isinstance(b, float):
            low, high = sym.lower(a - b), sym.upper(a - b)
            if symbol in ("==", "!=") and ((low is not None and low > 0) or (high is not None and high < 0)):
                return symbol == "!="
            if low is not None and high is not None and (low == high or symbol not in ("==", "!=")):
                answers = {compare(low, 0), compare(high, 0)}
                if len(answers) == 1:
                    return answers.pop()
        return Condition(
            f"{a} {symbol} {b}",
            lambda sizes: compare(_evaluate(a, sizes), _evaluate(b, sizes)),
            _variables(a) | _variables(b),
            (a, b) if symbol == "==" and not isinstance(a, float) and not isinstance(b, float) else None,
        )

    return handler


for _symbol, _compare in {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}.items():
    register(f"operator.{_compare.__name__}", _comparison(_symbol, _compare))


def _connective(symbol: str, combine: Callable[[bool, bool], bool]) -> Callable[[Truth, Truth], Truth]:
    def handler(a: Truth, b: Truth) -> Truth:
        if isinstance(a, bool) and isinstance(b, bool):
            return combine(a, b)
        return Condition(
            f"({a} {symbol} {b})", lambda sizes: combine(_decide(a, sizes), _decide(b, sizes)),
            _variables(a) | _variables(b),
        )  # fmt: skip

    return handler


def _decide(truth: Truth, sizes: Mapping[str, int]) -> bool:
    return truth.holds(sizes) if isinstance(truth, Condition) else truth


register("operator.and_", _connective("and", operator.and_))
register("operator.or_", _connective("or", operator.or_))


def _negation(a: Truth) -> Truth:
    if isinstance(a, bool):
        return not a
    return Condition(f"not {a.text}", lambda sizes: not a.holds(sizes), a.variables)


register("operator.not_", _negation)
register("torch.sym_not", _negation)


# ---- arithmetic ----------------------------------------------------------------------------------


def _over_numbers(over_sizes: Callable[..., Int], plain: Callable[..., Any]) -> Callable[..., Number]:
    """A handler that applies ``plain`` to numbers, and ``over_sizes`` where an operand is an expression; floats must
    then be whole numbers."""

    def handler(*operands: Number) -> Number:
        if any(isinstance(operand, Expr) for operand in operands):
            return over_sizes(*map(_whole, operands))
        result: Number = plain(*operands)
        return result

    return handler


def _whole(value: Number) -> Int:
    if isinstance(value, float):
        if not value.is_integer():
            raise UnsupportedError(f"a size is computed with the fraction {value}")
        return int(value)
    return value


def _quotient(a: Int, b: Int) -> Int:
    """True division, where it gives a size."""
    if not isinstance(b, int) or b <= 0 or sym.mod(a, b) != 0:
        raise UnsupportedError(f"{a} / {b} is not a whole number for every size")
    return sym.floordiv(a, b)


def _floordiv(a: Int, b: Int) -> Int:
    if isinstance(b, int) and b < 0:
        a, b = a * -1, -b
    return sym.floordiv(a, b)


def _mod(a: Int, b: Int) -> Int:
    """The remainder, with the sign of the divisor."""
    return sym.mod(a * -1, -b) * -1 if isinstance(b, int) and b < 0 else sym.mod(a, b)


def _power(a: Int, b: Int) -> Int:
    if not isinstance(b, int) or b < 0:
        raise UnsupportedError(f"the size {a} ** {b}")
    return sym.product([a] * b)


def _no_size(*operands: Int) -> Int:
    raise UnsupportedError(f"a square root of the size {operands[0]}")


def _identity(a: Int) -> Int:
    return a


def _item_of(values: Any, key: int) -> Any:
    if values[key] is None:
        raise UnsupportedError(f"result {key} of this operator (positions, or statistics for training)")
    return values[key]


_ARITHMETIC: dict[str, tuple[Callable[..., Int], Callable[..., Any]]] = {
    "operator.add": (operator.add, operator.add),
    "operator.sub": (operator.sub, operator.sub),
    "operator.mul": (operator.mul, operator.mul),
    "operator.neg": (operator.neg, operator.neg),
    "operator.pos": (_identity, operator.pos),
    "operator.floordiv": (_floordiv, operator.floordiv),
    "operator.mod": (_mod, operator.mod),
    "operator.truediv": (_quotient, operator.truediv),
    "operator.pow": (_power, operator.pow),
    "torch._sym_sqrt": (_no_size, math.sqrt),
    "torch.sym_float": (_identity, float),
    "torch.sym_int": (_identity, int),
    "torch.sym_max": (sym.maximum, max),
    "torch.sym_min": (sym.minimum, min),
    "math.ceil": (_identity, math.ceil),
    "math.floor": (_identity, math.floor),
    "math.sqrt": (_no_size, math.sqrt),
    "math.trunc": (_identity, math.trunc),
    "builtins.round": (_identity, round),
}
for _name, (_over_sizes, _plain) in _ARITHMETIC.items():
    register(_name, _over_numbers(_over_sizes, _plain))

register("operator.getitem", _item_of)


def _if_then_else(condition: Truth, a: Number, b: Number) -> Number:
    if isinstance(condition, bool):
        return a if condition else b
    raise UnsupportedError(
        f"which of {a} and {b} a size is depends on {condition.text}; narrow dims so that it does not"
    )


register("torch.sym_ite", _if_then_else)


# ---- sizes of tensors, and values read off them --------------------------------------------------


@aten("sym_size.int")
def size(self: Node, dim: int) -> Int:
    return self.shape[dim]


@aten("sym_numel")
def numel(self: Node) -> Int:
    return self.size


@aten("sym_stride.int")
def stride(self: Node, dim: int, *, contiguous: bool) -> Int:
    if not contiguous:
        raise UnsupportedError("the stride of a view or of a tensor that is not contiguous")
    return sym.product(self.shape[dim % self.rank + 1 :])


@aten("sym_storage_offset")
def storage_offset(self: Node, *, contiguous: bool) -> Int:
    if not contiguous:
        raise UnsupportedError("the storage offset of a view or of a tensor that is not contiguous")
    return 0


def found(number: Node, within: tuple[int, int]) -> Int:
    """The value of ``number``, one integer, as a size; a run fails where it is not ``within`` these bounds."""
    low, high = within
    above = reshape(cast(number, i64), ()) - low
    return selection.measured(gather(iota(high - low + 1), above, 0), high - low, "number") + low


@aten("item", "_local_scalar_dense")
def item(self: Node, *, within: tuple[int, int] | None = None) -> Number:
    """The number if it is known when compiling, else a size that a run reads; it fails unless this is ``within``."""
    value: Number | None = symval.scalar(self)
    if value is None and (constant := interp.constant_value(self)) is not None:
        value = constant.item()
    if value is None and within is not None and self.dtype.is_integer:
        return found(self, within)
    if value is None:
        raise UnsupportedError(
            "a Python number is read off a tensor whose value is not known when compiling; if it is a size, bound it, "
            "torch._check(n >= 0) and torch._check(n <= MOST); if it comes from an input that decides shapes, fix that "
            "input with constants={...}"
        )
    return bool(value) if self.dtype.is_bool and isinstance(value, int) else value


# ---- guards --------------------------------------------------------------------------------------


@aten("_assert_scalar")
def assert_scalar(self: Truth, assert_msg: str = "") -> None:
    """A condition on sizes that the model requires. Where bounds do not decide it, it is tried on all combinations of
    sizes, or on a sample if these are many. Raises ModelError where the declared sizes violate it, ShapeError where it
    is that two sizes are equal."""
    if isinstance(self, Condition):
        for sizes in _samples(self.variables):
            if not self.holds(sizes):
                found = ", ".join(f"{name} = {value}" for name, value in sizes.items())
                message = f"the model requires {self.text}; the declared sizes allow {found}: narrow dims"
                error = ModelError(message) if self.equal is None else ShapeError(message, [self.equal])
                error.condition = self
                raise error
    elif self is False:
        raise ModelError(f"the model refuses the declared sizes: {assert_msg}")


_TRIALS = 1 << 14


def _samples(variables: frozenset[sym.Var]) -> Iterator[dict[str, int]]:
    """Combinations of sizes at which a condition is tried."""
    ordered = sorted(variables, key=str)
    ranges: list[Sequence[int]] = [range(v.lo, (sym.upper(v.hi) or v.lo) + 1) for v in ordered]
    combinations = math.prod(map(len, ranges))
    if combinations > _TRIALS:
        each = max(2, int(_TRIALS ** (1 / len(ranges))))
        ranges = [_spread(r, each) for r in ranges]
    for sizes in itertools.product(*ranges):
        yield dict(zip([v.name for v in ordered], sizes, strict=True))


def _spread(sizes: Sequence[int], count: int) -> Sequence[int]:
    """About ``count`` evenly spaced ``sizes`` at most, the first and the last included."""
    return sizes if len(sizes) <= count else [*sizes[:: -(-len(sizes) // (count - 1))], sizes[-1]]


_at_least, _at_most = _comparison(">=", operator.ge), _comparison("<=", operator.le)


@aten("sym_constrain_range")
def constrain_range(size: Number, *, min: int | None = None, max: int | None = None) -> None:
    """The range of a size that the model relies on."""
    if min is not None:
        assert_scalar(_at_least(size, min), f"{size} >= {min}")
    if max is not None:
        assert_scalar(_at_most(size, max), f"{size} <= {max}")


@aten("sym_constrain_range_for_size")
def constrain_range_for_size(size: Number, *, min: int | None = None, max: int | None = None) -> None:
    constrain_range(size, min=0 if min is None else min, max=max)


@aten("_assert_async", "_assert_async.msg", "_functional_assert_async.msg")
def assert_values(self: Node, assert_msg: str = "", dep_token: Node | None = None) -> Node | None:
    """An assertion on the data of a tensor. A run has no way to fail on it, so it must be decided when compiling."""
    holds: object = symval.scalar(self)
    if not isinstance(holds, int):
        holds = interp.constant_value(self)
    if holds is None:
        stated = f" ({assert_msg!r})" if assert_msg else ""
        raise UnsupportedError(
            f"it asserts on the data of a call{stated}, which a compiled model does not do: take it out of the model "
            "and check before the call, or fix the inputs that it looks at with constants={...}"
        )
    if not holds:
        raise ModelError(f"the model's own assertion fails: {assert_msg or 'it has no message'}")
    return dep_token


@aten("_assert_tensor_metadata")
def assert_metadata(
    a: Node, size: Sequence[Int] | None = None, stride: Sequence[Int] | None = None, dtype: DType | None = None
) -> None:
    """Does nothing: the exporter has checked element type, sizes and strides, and asserts what it assumes of sizes."""
