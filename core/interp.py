"""The oracle: a graph evaluated in numpy.

Two modes. ``typed`` computes every node in its own type, as ``core.numerics`` says. ``float64`` also keeps every float
value in double precision, while whatever is discontinuous (comparisons, rounding, casts to integers, bits, positions of
gathers) is decided by the typed values: its results differ from the typed ones by rounding alone.

Values are lazily strided arrays, intermediates are dropped after their last use, and a sum over a product is a matrix
product in pieces of bounded memory (``core.strided``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from luminal.core import derivative, host, ir, limits, numerics, ops, sizes, strided, texts, traverse
from luminal.core import symbolic as sym
from luminal.core.errors import InputError, ShapeError
from luminal.core.exchange import Exchange, alone
from luminal.core.ir import Graph, Node
from luminal.core.numerics import Array
from luminal.core.ops import Kind
from luminal.core.symbolic import Int
from luminal.core.texts import is_texts
from luminal.core.types import f64, from_numpy

MODES = ("typed", "float64")


@dataclass(frozen=True)
class Result:
    """The values that a run computed, in its mode: ``outputs`` in the order of the roots, and those of kept nodes."""

    outputs: list[Array]
    kept: dict[Node, Array] = field(default_factory=dict)


def run(
    graph: Graph | Sequence[Node],
    inputs: Mapping[str, Array],
    mode: str = "typed",
    keep: Iterable[Node] | None = None,
    dims: Mapping[str, int] | None = None,
    exchange: Exchange = alone,
) -> Result:
    """Evaluate a graph, or nodes, on arrays by input name.

    ``keep`` names nodes whose values are also wanted; ``dims`` gives sizes to symbols that no input's shape does;
    ``exchange`` is how a rank of a mesh exchanges data with the others (``core.exchange.lockstep``).
    Texts are given and returned as texts. States have their initial values where ``inputs`` gives them no others.
    Raises InputError where an input is missing or does not fit, or a function of the host refuses what it is given,
    IndexError where a gather reads outside its axis.
    """
    if isinstance(graph, Graph):
        inputs = {s.name: s.initial.attr.array for s in graph.states} | dict(inputs)
    inputs = {name: texts.encode(x) if is_texts(x) else x for name, x in inputs.items()}
    if mode not in MODES:
        raise ValueError(f"expected a mode of {', '.join(MODES)}, found {mode!r}")
    roots = list(graph.results) if isinstance(graph, Graph) else list(graph)
    origins = graph.origins if isinstance(graph, Graph) else {}
    kept = list(dict.fromkeys(keep or ()))
    measured = graph.measured if isinstance(graph, Graph) else {}
    roots += measured.values()
    order = _order([*roots, *kept], measured)
    declared = graph.inputs if isinstance(graph, Graph) else ()
    parameters = dict.fromkeys([*declared, *(n for n in order if n.op is ops.INPUT)])
    env = bind(parameters, inputs, dims or {})
    evaluation = _Evaluation(inputs, env, mode == "float64", origins, exchange)
    remaining = _uses(order)
    for root in (*roots, *kept):
        remaining[root] = remaining.get(root, 0) + 1
    for node in order:
        evaluation.compute(node)
        env |= {size.name: int(evaluation.values[node].typed) for size in measured if measured[size] is node}
        for operand in _operands(node):
            remaining[operand] -= 1
            if not remaining[operand]:
                del evaluation.values[operand]
    return Result(
        [evaluation.result(node) for node in roots[: len(roots) - len(measured)]],
        {node: evaluation.result(node) for node in kept},
    )


def evaluate(
    nodes: Sequence[Node],
    inputs: Mapping[str, Array] | None = None,
    dims: Mapping[str, int] | None = None,
    mode: str = "typed",
) -> list[Array]:
    """The values of ``nodes``: ``run`` for small graphs."""
    return run(nodes, inputs or {}, mode, dims=dims).outputs


def constant_value(node: Node) -> Array | None:
    """The value of ``node`` if it depends on no input, symbolic size or while loop, else None.

    Raises ShapeError where it is too large to be computed when compiling.
    """
    (node,) = derivative.stripped([node]) if derivative.recording() else [node]
    if node.op is ops.CONSTANT:
        array: Array = node.attr.array
        return array
    if any(part.op in (ops.INPUT, ops.EXCHANGE) for part in traverse.topological([node])) or has_symbols(node):
        return None
    if _may_not_end(node):
        return None
    if not affordable(node):
        raise ShapeError(
            f"{list(node.shape)} elements must be known when compiling, and computing them would take values of more "
            f"than {limits.TABLE} elements, which no constant holds"
        )
    try:
        return evaluate([node])[0]
    except IndexError as error:
        raise ShapeError(f"a value that must be known when compiling reads outside another: {error}") from error


def folded(node: Node) -> Node:
    """``node``, which must depend on constants alone, as a constant. If it only moves or maps large constants, it is
    computed again for each read rather than held, so that weights need not be in memory twice.
    """

    (node,) = derivative.stripped([node]) if derivative.recording() else [node]

    def value() -> Array:
        found = evaluate([node])[0]
        return texts.encode(found) if node.dtype.is_text else found

    order = traverse.topological([node])
    if any(part.op.kind not in _LINEAR for part in order):
        return ir.constant(value())
    return ir.lazy_constant(value, 1 + max((part.attr.depth for part in order if part.op is ops.CONSTANT), default=0))


_LINEAR = (Kind.SOURCE, Kind.VIEW, Kind.ELEMENTWISE)  # computing these costs no more than reading the operands


def has_symbols(node: Node) -> bool:
    """Whether symbolic sizes occur in the nodes that ``node`` depends on, in bodies too."""
    return any(
        part.op is ops.DIM or any(not isinstance(extent, int) for extent in part.shape)
        for part in traverse.everything([node])
    )


def affordable(node: Node) -> bool:
    """Whether a constant expression may be computed when compiling: nothing on the way is larger than ``limits`` say,
    and than the constants that it is made from, and it is known to come to an end."""
    if _may_not_end(node):
        return False
    order = _order([node])
    table = max(limits.TABLE, sum(math.prod(part.attr.shape) for part in order if part.op is ops.CONSTANT))
    return all(_work(part) <= (limits.PRODUCTS if _factors(part) else table) for part in [*order[:-1], node])


def _may_not_end(node: Node) -> bool:
    """Whether ``node`` depends on a while loop, whose number of rounds only a run can tell."""
    return any(part.op is ops.WHILE for part in traverse.everything([node]))


_ROUND = 1 << 10  # elements that could be made while one node of a body is looked at in one round


def _work(node: Node) -> int:
    """Elements that are read or made, of known sizes, in all rounds of a loop; views are of others' memory."""
    if node.op is ops.VIEW or node.op is ops.CONSTANT:
        return 0
    if node.op.kind is Kind.STRUCTURED:
        rounds = node.inputs[len(node.attr.carries)].shape[0] if node.op is ops.SCAN else 1
        assert isinstance(rounds, int)
        return rounds * max(
            sum(_ROUND + _work(part) for part in traverse.topological(body)) for body in node.attr.bodies
        )
    size = node.inputs[0].size if node.op.kind is Kind.REDUCE else node.size
    assert isinstance(size, int)
    return size


# ---- sizes ---------------------------------------------------------------------------------------------------------


def bind(parameters: Iterable[Node], inputs: Mapping[str, Array], dims: Mapping[str, int]) -> dict[str, int]:
    """The sizes of the dimension symbols, from the shapes of the inputs and from ``dims``.

    A symbol is solved as ``core.sizes`` says; every axis and bound is checked. Raises InputError.
    """
    env = dict(dims)
    axes: list[tuple[str, Int, int]] = []
    symbols: set[sym.Var] = set()
    for node in parameters:
        name = node.attr.name
        if name not in inputs:
            raise InputError(f"input {name!r} is missing; given were {', '.join(map(repr, inputs)) or 'none'}")
        array = inputs[name]
        known = array.dtype == node.dtype.numpy or (node.dtype.is_text and is_texts(array))
        if not known or array.ndim != node.rank:
            raise InputError(
                f"input {name!r}: expected {node.dtype} of rank {node.rank} {list(node.shape)}, "
                f"found {array.dtype} of shape {list(array.shape)}"
            )
        pairs = zip(node.shape, array.shape, strict=True)
        axes += [(f"axis {k} of input {name!r}", extent, size) for k, (extent, size) in enumerate(pairs)]
        symbols |= {v for extent in node.shape for v in sym.variables(extent)}
    for solution in sizes.solve([extent for _, extent, _ in axes], [v for v in symbols if v.name in env]):
        env[solution.symbol.name] = int(sym.evaluate(solution.value(axes[solution.axis][2]), env))
    for where, extent, size in axes:
        unknown = [v.name for v in sym.variables(extent) if v.name not in env]
        if unknown:
            raise InputError(f"{where}: the size of {', '.join(unknown)} does not follow from {extent} = {size}")
        expected = sym.evaluate(extent, env)
        if expected != size:
            wanted = extent if isinstance(extent, int) else f"{extent} = {expected}"
            raise InputError(f"{where}: expected {wanted}, found {size}")
    for symbol in sorted(symbols, key=lambda v: v.name):
        low, high = symbol.lo, sym.evaluate(symbol.hi, env)
        if not low <= env[symbol.name] <= high:
            raise InputError(f"{symbol.name} = {env[symbol.name]} is outside its bounds {low} .. {high}")
    return env


# ---- order ---------------------------------------------------------------------------------------------------------


def _factors(node: Node) -> tuple[Node, tuple[Node, ...]] | None:
    """The product that a sum sums, and the casts between them, outermost first; the product is not computed apart."""
    if node.op is not ops.SUM_REDUCE:
        return None
    casts: list[Node] = []
    operand = node.inputs[0]
    while operand.op is ops.CAST:
        casts.append(operand)
        operand = operand.inputs[0]
    return (operand, tuple(casts)) if operand.op is ops.MUL else None


def _operands(node: Node) -> tuple[Node, ...]:
    product = _factors(node)
    return product[0].inputs if product else node.inputs


def _order(roots: Sequence[Node], measured: Mapping[sym.Var, Node] | None = None) -> list[Node]:
    """The nodes to compute, operands first, and measured sizes before the nodes that they occur in."""

    def before(node: Node) -> Iterator[Node]:
        if measured:
            yield from (measured[size] for size in measured if size in traverse.symbols(node))
        yield from _operands(node)

    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, before(root)) for root in reversed(roots)]
    while stack:
        node, operands = stack[-1]
        if node in seen:
            stack.pop()
            continue
        following = next((o for o in operands if o not in seen), None)
        if following is None:
            seen.add(node)
            order.append(node)
            stack.pop()
        else:
            stack.append((following, before(following)))
    return order


def _uses(order: Sequence[Node]) -> dict[Node, int]:
    count: dict[Node, int] = {}
    for node in order:
        for operand in _operands(node):
            count[operand] = count.get(operand, 0) + 1
    return count


# ---- evaluation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Value:
    """A node's value in its own type, and in float64 mode the unrounded value beside it: the same array where nothing
    was ever rounded, else float64."""

    typed: Array
    wide: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.typed, self.wide))


def _wide(x: Array) -> Array:
    return x.astype(np.float64, copy=False) if from_numpy(x.dtype).is_float else x


class _Evaluation:
    """The values of the nodes that are still needed."""

    def __init__(
        self, inputs: Mapping[str, Array], env: Mapping[str, int], double: bool, origins: ir.Origins, exchange: Exchange
    ) -> None:
        self.inputs, self.env, self.double, self.origins, self.exchange = inputs, env, double, origins, exchange
        self.values: dict[Node, _Value] = {}
        self.structured: dict[Any, list[_Value]] = {}  # results, by operands and bodies

    def result(self, node: Node) -> Array:
        """A copy of the value of ``node`` in the mode of the run; texts as such."""
        value = self.values[node]
        if node.dtype.is_text:
            return texts.decode(value.typed)
        return np.array(_wide(value.wide) if self.double else value.typed, order="C")

    def compute(self, node: Node) -> None:
        operands = [self.values[operand] for operand in _operands(node)]
        product = _factors(node)
        if product:
            value = self._sum_of_product(node, *product, *operands)
        elif node.op.kind is Kind.SOURCE:
            value = self._exact(self._source(node))
        elif node.op is ops.VIEW:
            value = self._moved(partial(self._view, node), operands[0])
        elif node.op is ops.GATHER:
            index = self._checked(node, operands[1].typed)
            value = self._moved(partial(_take, index, node.attr.axis), operands[0])
        elif node.op.kind is Kind.STRUCTURED:
            value = self._structured(node, operands)
        elif node.op is ops.SCATTER:
            value = self._scatter(node, *operands)
        elif node.op is ops.SORT:
            count = self.size(node.attr.count)
            value = self._exact(np.sort(operands[0].typed, axis=-1)[..., :count])
        elif node.op is ops.HOST:
            shape = tuple(map(self.size, node.shape))
            value = self._exact(host.call(node.attr.function, [operand.typed for operand in operands], shape))
        elif node.op is ops.EXCHANGE:
            value = self._exchanged(node, operands[0])
        elif node.op is ops.CONTIGUOUS:
            value = operands[0]
        else:
            value = self._computed(node, operands)
        self.values[node] = value

    def _exchanged(self, node: Node, operand: _Value) -> _Value:
        typed = self.exchange(node.attr, operand.typed)
        if not self.double or not node.dtype.is_float:
            return self._exact(typed)
        return _Value(typed, self.exchange(node.attr, _wide(operand.wide)))

    # Sources and movement.

    @staticmethod
    def _exact(array: Array) -> _Value:
        return _Value(array, array)

    @staticmethod
    def _moved(function: Any, operand: _Value) -> _Value:
        typed = function(operand.typed)
        return _Value(typed, typed if operand.wide is operand.typed else function(operand.wide))

    def size(self, extent: Int) -> int:
        unknown = sorted(v.name for v in sym.variables(extent) if v.name not in self.env)
        if unknown:
            raise InputError(f"the size of {', '.join(unknown)} follows from no input; give it in dims")
        return int(sym.evaluate(extent, self.env))

    def _source(self, node: Node) -> Array:
        if node.op is ops.INPUT:
            return self.inputs[node.attr.name]
        if node.op is ops.CONSTANT:
            array: Array = node.attr.array
            return array
        extent = self.size(node.attr.value)
        return np.arange(extent) if node.op is ops.IOTA else np.array(extent, np.int64)

    def _view(self, node: Node, x: Array) -> Array:
        shape = tuple(map(self.size, node.shape))
        over = ir.axes(shape)
        by: dict[sym.Var, Int] = {}
        for expression in (*node.attr.index, *node.attr.valid):
            by |= {v: self.env[v.name] for v in sym.variables(expression) if v.name in self.env}
        by |= ir.rename(node.shape, over)
        concrete = ops.View(
            tuple(sym.substitute(e, by) for e in node.attr.index),
            tuple(sym.substitute(e, by) for e in node.attr.valid),
            numerics.convert(np.frombuffer(node.attr.fill, node.dtype.numpy), from_numpy(x.dtype)).tobytes(),
        )
        return strided.read(x, concrete, shape, over)

    def _checked(self, node: Node, index: Array) -> Array:
        extent = self.values[node.inputs[0]].typed.shape[node.attr.axis]
        outside = (index < 0) | (index >= extent)
        if np.any(outside):
            where = "; ".join(map(str, self.origins.get(node, ()))) or "no origin"
            if node.attr.failure is not ops.Failure.INDEX:
                raise InputError(f"{node} ({where}): {node.attr.failure.value}")
            raise IndexError(
                f"{node} ({where}): index {index[outside].flat[0]} is out of range for axis {node.attr.axis} "
                f"of extent {extent}"
            )
        return index

    # Loops and branches.

    def _structured(self, node: Node, operands: list[_Value]) -> _Value:
        """All results of a node with bodies are computed together, and kept for the others."""
        key = node.inputs, replace(node.attr, result=0)
        if key not in self.structured:
            run: Any = {ops.SCAN: self._scan, ops.WHILE: self._while, ops.COND: self._branch}[node.op]
            self.structured[key] = run(node.attr, operands)
        number: int = node.attr.result
        return self.structured[key][number]

    def _body(self, attr: ops.Structured, number: int, given: Mapping[Node, _Value]) -> list[_Value]:
        results, measured = attr.computed[number], attr.inside(number)
        env = dict(self.env)
        inner = _Evaluation({}, env, self.double, self.origins, self.exchange)
        inner.values = dict(given)
        for node in _order([*results, *measured.values()], measured):
            if node not in inner.values:
                inner.compute(node)
            env |= {size.name: int(inner.values[node].typed) for size in measured if measured[size] is node}
        return [inner.values[node] for node in results]

    def _scan(self, step: ops.Step, operands: list[_Value]) -> list[_Value]:
        count, until = len(step.carries), len(step.carries) + len(step.slices)
        carried, over = operands[:count], operands[count:until]
        shared = dict(zip(step.shared, operands[until:], strict=True))
        put_out: list[list[_Value]] = []
        for place in range(len(over[0].typed)):
            slices = [_Value(x.typed[place], x.wide[place]) for x in over]
            results = self._body(
                step, 0, shared | dict(zip((*step.carries, *step.slices), (*carried, *slices), strict=True))
            )
            carried = results[:count]
            put_out.append(results[count:])
        stacked = [
            _Value(*(self._stacked([getattr(row[k], kind) for row in put_out], result) for kind in ("typed", "wide")))
            for k, result in enumerate(step.results[count:])
        ]
        return [*carried, *stacked]

    def _while(self, repeat: ops.Repeat, operands: list[_Value]) -> list[_Value]:
        count = len(repeat.carries)
        carried, shared = operands[:count], dict(zip(repeat.shared, operands[count:], strict=True))
        while True:
            given = shared | dict(zip(repeat.carries, carried, strict=True))
            if not self._body(repeat, 0, given)[0].typed[()]:
                return carried
            carried = self._body(repeat, 1, given)

    def _branch(self, branches: ops.Branches, operands: list[_Value]) -> list[_Value]:
        taken = 0 if operands[0].typed[()] else 1
        return self._body(branches, taken, dict(zip(branches.parameters, operands[1:], strict=True)))

    def _stacked(self, parts: list[Array], result: Node) -> Array:
        empty = np.empty((0, *map(self.size, result.shape)), result.dtype.numpy)
        return np.stack(parts) if parts else empty

    def _scatter(self, node: Node, old: _Value, index: _Value, new: _Value) -> _Value:
        put = partial(_put, self._checked(node, index.typed), node.attr)
        typed = put(old.typed, new.typed)
        if not self.double or not node.dtype.is_float:
            return self._exact(typed)
        return _Value(typed, put(_wide(old.wide), _wide(new.wide)))

    # Arithmetic.

    def _computed(self, node: Node, operands: Sequence[_Value]) -> _Value:
        meaning = partial(numerics.apply, node.op, node.attr)
        call = partial(strided.broadcast_apply, meaning) if node.op.kind is Kind.ELEMENTWISE else meaning
        typed = call(*(o.typed for o in operands))
        if not self.double or not node.dtype.is_float:
            return self._exact(typed)
        if node.op is ops.CAST:
            source = operands[0].wide
            is_float = node.inputs[0].dtype.is_float
            return _Value(typed, source if is_float else numerics.convert(source, f64))
        if node.op in (ops.ROUND, ops.BITCAST):
            return self._exact(typed)
        if node.op is ops.SELECT:
            condition, then, other = operands
            if then.wide is then.typed and other.wide is other.typed:
                return self._exact(typed)
            return _Value(typed, call(condition.typed, _wide(then.wide), _wide(other.wide)))
        wide = [_wide(o.wide) for o in operands]
        if node.op is ops.MOD:
            return _Value(typed, strided.broadcast_apply(_nearest_remainder, *wide, _wide(typed)))
        return _Value(typed, call(*wide))

    def _sum_of_product(self, node: Node, product: Node, casts: Sequence[Node], a: _Value, b: _Value) -> _Value:
        axes, dtype = node.attr.axes, node.dtype
        direct = not casts and dtype.compute == dtype and dtype.kind != "c" and dtype.bits >= 8

        def summed(x: Array, y: Array) -> Array:
            value = numerics.apply(ops.MUL, None, x, y)
            for cast in reversed(casts):
                value = numerics.apply(ops.CAST, cast.attr, value)
            return numerics.apply(ops.SUM_REDUCE, node.attr, value)

        def contracted(x: Array, y: Array, accumulator: Any) -> Array:
            if not strided.is_contraction(x, y):
                return numerics.apply(ops.SUM_REDUCE, node.attr, x.astype(accumulator) * y.astype(accumulator))
            return strided.contract(x, y, axes, accumulator)

        with np.errstate(all="ignore"):
            if direct:
                typed = contracted(a.typed, b.typed, dtype.numpy)
            else:
                typed = strided.in_pieces(summed, a.typed, b.typed, axes, dtype.numpy)
            if not self.double or not dtype.is_float:
                return self._exact(typed)
            if not all(n.dtype.is_float for n in (product, *casts)):  # decided by integers on the way
                return _Value(typed, _wide(typed))
            return _Value(typed, contracted(a.wide, b.wide, np.dtype(np.float64)))


def _take(index: Array, axis: int, data: Array) -> Array:
    """``data`` at ``index`` along ``axis``, taken once along the axes on which ``index`` repeats."""
    once = index[tuple(slice(0, 1) if r else slice(None) for r in strided.repeated(index))]
    shape = data.shape[:axis] + index.shape + data.shape[axis + 1 :]
    return np.broadcast_to(np.take(data, once, axis), shape)


def _put(index: Array, how: ops.Combine, old: Array, new: Array) -> Array:
    """``old`` with ``new`` written at ``index``, one position after the other."""
    result = np.array(old)
    places = np.moveaxis(result, how.axis, 0)
    elements = np.moveaxis(new, range(how.axis, how.axis + index.ndim), range(index.ndim))
    for number in np.ndindex(index.shape):
        place, element = index[number], elements[number]
        places[place] = element if how.by is None else numerics.apply(how.by, None, places[place], element)
    return result


def _nearest_remainder(x: Array, y: Array, typed: Array) -> Array:
    """The remainder of ``x`` by ``y`` nearest to the typed one, so that both belong to the same integer quotient."""
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)  # exact, however large the quotient is
        nearest = rest + np.rint((typed - rest) / y) * y
        nearest = np.where(nearest == 0, np.copysign(0.0, y), nearest)
        return np.where(np.isfinite(nearest), nearest, typed)
