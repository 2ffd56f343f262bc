"""Reductions along one axis, of which some read others, in parts: each part is reduced alone, and what the parts give
is merged.

A softmax over many terms of few rows takes its maximum, then the sum of its weights, then what the weights are for: one
pass for each, since each reads the result before. In parts, a part needs its own maximum only; the difference from the
maximum of all acts on its sums by a factor (see ``nest.carried``, which derives it from the expressions). So threads
that rows alone would not keep busy share the terms of a row, and wait for each other once. The size of a part follows
from the model and the target, not from the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from luminal.core import ir, numerics, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import constant_bytes, is_computed
from luminal.core.errors import ScheduleError
from luminal.core.ir import Graph, Node, Origins
from luminal.core.matching import flatten
from luminal.core.ops import COSTLY, Kind
from luminal.core.origins import Approximation
from luminal.core.rewrite import readers, remade
from luminal.core.schedule.cost.tasks import few_tasks
from luminal.core.schedule.nest import carried
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.carried import Carried
from luminal.core.schedule.nest.rewrite import replace_leaves
from luminal.core.schedule.numeric.long_reductions import Cut, Readers
from luminal.core.sizes import largest, typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target

MOST_NESTED = 100  # values, each computed of the next, in the expression of a reduction
MOST_NODES = 1000  # of the expression of a reduction, which is read and written again as a whole


def in_parts(graph: Graph, target: Target) -> Graph:
    """``graph`` with reductions that read others along the same axis in parts, where rows are too few for all threads,
    or do not stay in the cache between two passes over them."""
    origins: Origins = dict(graph.origins)
    noted: list[Approximation] = []

    def inside(roots: tuple[Node, ...]) -> tuple[Node, ...]:
        became: dict[Node, Node] = {}
        plans = _plans(roots, target)

        def make(node: Node, operands: Sequence[Node]) -> Node:
            plan = plans.get(node)
            if plan is None:
                return traverse.rebuild(node, operands)
            noted.append(Approximation("reductions", plan.described, origins.get(node, ())))
            return _Parts(plan, became).whole()

        return remade(roots, origins, make, inside, became)

    roots = inside(graph.roots)
    if not noted:
        return graph
    return graph.computing(roots, origins=origins, approximations=(*graph.approximations, *noted))


# ---- which reductions, and what they read ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """A reduction in the form that parts have: its own, as the last of ``states``, after those that it reads, each
    computed from ``leaves``: elements of stored values, with index and mask over the axes of its operand. ``most`` are
    the terms of a part."""

    node: Node
    states: tuple[Carried, ...]
    leaves: Mapping[ln.Scalar, tuple[Node, tuple[Int, ...], tuple[Int, ...], bytes]]
    most: int

    @property
    def described(self) -> str:
        """The derivation, in words."""
        terms = math.prod(largest(self.node.inputs[0].shape[k]) for k in self.node.attr.axes)
        what = f"{self.node.op} of {terms} terms in parts of at most {self.most}"
        last, names = self.states[-1], {state.name: state for state in self.states}
        if last.shift is not None:
            return f"{what}, each about its own mean: over the reals, parts merge by their first two moments"
        if last.moves:
            of = ", ".join(str(names[move.state].op) for move in dict.fromkeys(last.moves))
            return f"{what}, each with its own {of}: over the reals, a part moves by an exponential of the difference"
        return f"{what}, each read by other reductions of the part"


@dataclass
class _Reader:
    """The operand of the reduction ``node`` as a scalar over the operand's axes. ``through`` says which values are
    computed again, and not read."""

    node: Node
    through: Callable[[Node], bool]
    leaves: dict[ln.Scalar, tuple[Node, tuple[Int, ...], tuple[Int, ...], bytes]] = field(default_factory=dict)
    states: dict[Node, ln.Reduction] = field(default_factory=dict)
    places: dict[Node, tuple[Int, ...]] = field(default_factory=dict)
    memo: dict[tuple[Node, tuple[Int, ...], tuple[Int, ...]], ln.Scalar] = field(default_factory=dict)
    depth: int = 0  # values that are being read, each for the one before

    def __post_init__(self) -> None:
        (operand,) = self.node.inputs
        self.axes = ir.axes(operand.shape)
        self.row = [v for k in self.node.attr.axes if (v := sym.as_var(self.axes[k])) is not None]
        self.along = frozenset(self.row)

    def all(self) -> list[ln.Reduction]:
        """The reductions along the same row that the node reads, and the node's own."""
        last = self._reduction(self.node, self.axes)
        return [*self.states.values(), last]

    def _reduction(self, node: Node, index: tuple[Int, ...]) -> ln.Reduction:
        loops = tuple(ln.Loop(v, v.hi + 1, "serial", ()) for v in self.row)
        value = self.value(node.inputs[0], index)
        return ln.Reduction(f"r{len(self.states)}", node.op, node.dtype, loops, (), value)

    def value(self, node: Node, index: tuple[Int, ...], valid: tuple[Int, ...] = ()) -> ln.Scalar:
        """``node`` at ``index``, read only where ``valid`` holds."""
        key = (node, index, valid)
        if key not in self.memo:
            if len(self.memo) > MOST_NODES or self.depth > MOST_NESTED:
                raise ScheduleError(f"an expression of more than {MOST_NODES} values, or {MOST_NESTED} in each other")
            self.depth += 1
            self.memo[key] = self._value(node, index, valid)
            self.depth -= 1
        return self.memo[key]

    def _value(self, node: Node, index: tuple[Int, ...], valid: tuple[Int, ...]) -> ln.Scalar:
        if node.op is ops.VIEW:
            by = ir.rename(node.shape, index)
            mask = tuple(m for v in node.attr.valid if not sym.always(m := sym.substitute(v, by)))
            inner = tuple(sym.substitute(e, by) for e in node.attr.index)
            base = self.value(node.inputs[0], inner, tuple(dict.fromkeys(valid + mask)))
            return ln.select(mask, base, ln.literal(node.attr.fill, node.dtype)) if mask else base
        if node.op is ops.CONSTANT and node.size == 1:
            return ln.literal(node.attr.array.tobytes(), node.dtype)
        if node.op.kind is Kind.REDUCE and self._is_along(node, index) and not valid:
            if node not in self.states:
                unreduced, row = iter(index), iter(self.row)
                shape, reduced = node.inputs[0].shape, node.attr.axes
                whole = tuple(
                    next(unreduced) if k not in reduced else 0 if size == 1 else sym.expr(next(row))
                    for k, size in enumerate(shape)
                )
                reduction = self._reduction(node, whole)
                self.states[node], self.places[node] = reduction, index
            return ln.temporary(self.states[node].name, node.dtype)
        if node.op.kind is Kind.ELEMENTWISE and node.op is not ops.CONTIGUOUS and self.through(node):
            operands = tuple(self.value(x, index, valid) for x in node.inputs)
            return ln.apply(node.op, operands, node.attr, node.dtype)
        name = f"x{len(self.leaves)}"
        for leaf, (source, *_) in self.leaves.items():
            if source is node and isinstance(leaf.leaf, ln.Access):
                name = leaf.leaf.array
        fill = bytes(node.dtype.itemsize)
        scalar = ln.load(name, flatten(list(index), list(node.shape)), node.dtype, valid, fill)
        self.leaves[scalar] = (node, index, valid, fill)
        return scalar

    def _is_along(self, node: Node, index: tuple[Int, ...]) -> bool:
        """Whether ``node`` at ``index`` is a reduction of the same row: of as many elements, whichever they are, at the
        one place that goes with the row."""
        shape = node.inputs[0].shape
        places = [e for e in index if e != 0]
        plain = all(sym.as_var(e) is not None for e in places) and len(set(places)) == len(places)
        extents = [shape[k] for k in node.attr.axes if shape[k] != 1]
        fixed = self.along.isdisjoint(v for e in index for v in sym.variables(e))
        same = self.places.get(node, index) == index
        return plain and fixed and same and extents == [v.hi + 1 for v in self.row]


@dataclass(frozen=True)
class _Group:
    """Reductions in parts of ``most`` terms, which are computed from the same values: those that are computed ``again``
    for each, and others, which are read."""

    most: int
    again: frozenset[Node]


def _plans(roots: tuple[Node, ...], target: Target) -> dict[Node, _Plan]:
    """The reductions to be computed in parts."""
    read_by = readers(roots)
    reductions = [n for n in traverse.topological(roots) if n.op.kind is Kind.REDUCE]
    found: dict[Node, _Plan] = {}
    groups: dict[Node, _Group] = {}
    for node in reversed(reductions):
        try:
            read = _read(node, groups, read_by, target)
            if read is None:
                continue
            reader, group = read
            states = carried.derive(reader.all(), reader.row)
        except ScheduleError:
            continue
        if any(state in groups and groups[state] is not group for state in reader.states):
            continue
        if any(state.moves for state in states) and not all(sym.lower(v.hi + 1) for v in reader.row):
            continue  # of no terms, a sum that moves by a factor would be NaN
        groups |= dict.fromkeys((node, *reader.states), group)
        found[node] = _Plan(node, states, reader.leaves, group.most)
    return found


def _read(node: Node, groups: Mapping[Node, _Group], read_by: Readers, target: Target) -> tuple[_Reader, _Group] | None:
    """What ``node`` reduces, and its group; None where it is not to be in parts."""
    if not node.dtype.is_float or node.dtype.compute != node.dtype:
        return None
    group = groups.get(node)
    if group is None:
        if not _may_pay(node, target):
            return None
        whole = _Reader(node, lambda x: True)
        whole.all()
        if not whole.states:
            return None
        group = next((groups[state] for state in whole.states if state in groups), None)
    if group is None:
        most = _terms_of_part(whole, target)
        if most is None:
            return None
        mine = {x for x, *_ in whole.memo} | {node}
        summed = _above(whole, (x for x in mine if x.op.kind is Kind.REDUCE))  # a kernel stores these
        again = {x for x in mine if x not in summed and _is_cheap(x, mine, read_by)}
        group = _Group(most, _above(whole, whole.states) | again)
    reader = _Reader(node, group.again.__contains__)
    if any(reduction.dtype != node.dtype for reduction in reader.all()):
        return None
    return reader, group


def _may_pay(node: Node, target: Target) -> bool:
    """Whether ``node`` has work enough for parts, and reads a reduction of few rows over as many terms. Products with
    weights are whole: their columns are tasks, and what they read of a row is little beside the weights."""
    factors = node.inputs[0].inputs if node.inputs[0].op is ops.MUL else ()
    if any(is_computed(x) and constant_bytes(x) > x.dtype.itemsize for x in factors):
        return False
    shape, sizes = node.inputs[0].shape, target.costs.sizes
    if math.prod(largest(size) for size in shape) < sizes.part * sizes.parts:
        return False
    extents = [shape[k] for k in node.attr.axes if shape[k] != 1]
    seen = dict.fromkeys(node.inputs)
    for x in (waiting := [*node.inputs]):
        if x.op.kind is Kind.REDUCE:
            over = [x.inputs[0].shape[k] for k in x.attr.axes if x.inputs[0].shape[k] != 1]
            if over == extents and typical(x.size) < _enough_rows(target):
                return bool(extents)
        elif (x.op is ops.VIEW or x.op.kind is Kind.ELEMENTWISE) and len(seen) < MOST_NODES:
            waiting += [y for y in x.inputs if y not in seen]
            seen |= dict.fromkeys(x.inputs)
    return False


def _enough_rows(target: Target) -> int:
    """Rows that keep all threads busy."""
    return few_tasks(target) if target.grid is None else target.grid.processors


def _above(reader: _Reader, first: Iterable[Node]) -> frozenset[Node]:
    """The values that a reduction computes from any of ``first``."""
    found = set(first)
    for x, *_ in reader.memo:  # operands first
        if x.op.kind is not Kind.REDUCE and not found.isdisjoint(x.inputs):
            found.add(x)
    return frozenset(found)


def _is_cheap(node: Node, mine: set[Node], read_by: Readers) -> bool:
    """Whether ``node`` may be computed once for each part that reads it, and need not be stored."""
    users = read_by[node]
    return len(users) == 1 or (users <= mine and node.op not in COSTLY)


def _terms_of_part(reader: _Reader, target: Target) -> int | None:
    """Terms of a part, at most, of a reduction whose rows should be in parts; None for others. The rows of its states
    may each have several columns of results."""
    node, sizes = reader.node, target.costs.sizes
    rows = max(typical(state.size) for state in reader.states)
    columns = max(1, typical(node.size) // rows)
    terms = math.prod(largest(v.hi + 1) for v in reader.row)
    if rows >= _enough_rows(target) or terms * columns < sizes.part * sizes.parts:
        return None
    return max(sizes.part // columns, 1)


# ---- the reductions of parts, and of all -----------------------------------------------------------------------------


@dataclass
class _Parts:
    """The nodes of a plan; ``became`` has what its leaves have become. ``at`` are axes: those of the operand, one of
    them cut in two. A value has an axis for each that it varies with, in their order."""

    plan: _Plan
    became: Mapping[Node, Node]

    def __post_init__(self) -> None:
        node = self.plan.node
        (operand,) = node.inputs
        self.dtype = node.dtype
        self.cut = Cut.of(operand.shape, node.attr.axes, self.plan.most)
        self.at = ir.axes(self.cut.shape)
        before = ir.axes(operand.shape)
        now = (*self.at[: self.cut.axis], self.cut.place, *self.at[self.cut.axis + 2 :])
        self.by = {v: e for a, e in zip(before, now, strict=True) if (v := sym.as_var(a)) is not None}
        self.within = [k + 1 for k in node.attr.axes if k >= self.cut.axis]  # reduced in each part
        self.over = [k for k in node.attr.axes if k <= self.cut.axis]  # reduced after them
        # Parts come before what a part has several of, so that its results lie together.
        rows = self._varying(v for state in self.plan.states[:-1] for x in state.inside for v in carried.variables(x))
        first = (rows if len(self.plan.states) > 1 else {*range(len(self.at))}).difference(self.within, self.over)
        self.rank = sorted(range(len(self.at)), key=lambda k: (k not in first, k != self.cut.axis, k))
        self.known: dict[ln.Scalar, tuple[Node, tuple[int, ...]]] = {}

    # ---- values ------------------------------------------------------------------------------------------------------

    def _varying(self, variables: Iterable[Var]) -> set[int]:
        """The axes of ``at`` that ``variables`` of the operand's axes are."""
        return self._positions(self.by[v] for v in variables if v in self.by)

    def _positions(self, expressions: Iterable[Int]) -> set[int]:
        found = {v for e in expressions for v in sym.variables(e)}
        return {k for k, a in enumerate(self.at) if sym.as_var(a) in found}

    def _used(self, expressions: Iterable[Int]) -> tuple[int, ...]:
        return self._ordered(self._positions(expressions))

    def _ordered(self, axes: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(set(axes), key=self.rank.index))

    def _shape(self, used: Sequence[int]) -> tuple[Int, ...]:
        return tuple(self.cut.shape[k] for k in used)

    def _own(self, used: Sequence[int]) -> dict[Var, Int]:
        """The axes ``used`` as those of a value that varies with them alone."""
        own = ir.axes(self._shape(used))
        return {v: own[k] for k, axis in enumerate(used) if (v := sym.as_var(self.at[axis])) is not None}

    def _spread(self, value: tuple[Node, tuple[int, ...]], used: tuple[int, ...]) -> Node:
        """A value with the axes ``used``, which its own are among."""
        node, mine = value
        own = ir.axes(self._shape(used))
        return ir.view(node, self._shape(used), [own[used.index(k)] for k in mine])

    def value(self, scalar: ln.Scalar) -> tuple[Node, tuple[int, ...]]:
        """``scalar`` as a node, and the axes that it varies with."""
        for one in ln.postorder(scalar, lambda s: () if s in self.known else s.operands):
            if one not in self.known:
                self.known[one] = self._made(one)
        return self.known[scalar]

    def _made(self, scalar: ln.Scalar) -> tuple[Node, tuple[int, ...]]:
        leaf = scalar.leaf
        if isinstance(leaf, ln.Literal):
            return ir.constant(np.frombuffer(leaf.bits, scalar.dtype.numpy).reshape(())), ()
        if isinstance(leaf, ln.Holds):
            return self._read(ir.constant(np.array(True)), (), leaf.valid, b"\0")
        if isinstance(leaf, ln.Access):
            node, index, valid, fill = self.plan.leaves[scalar]
            return self._read(self.became[node], index, valid, fill)
        assert scalar.op is not None
        operands = [self.known[x] for x in scalar.operands]
        used = self._ordered(k for _, mine in operands for k in mine)
        nodes = [self._spread(x, used) for x in operands]
        return ir.elementwise(scalar.op, *nodes, attr=scalar.attr), used

    def _read(
        self, node: Node, index: tuple[Int, ...], valid: tuple[Int, ...], fill: bytes
    ) -> tuple[Node, tuple[int, ...]]:
        """``node`` at ``index``, over the axes of the operand; beyond the end of the last part, ``fill``."""
        place = sym.variables(self.cut.place)
        index, valid = (tuple(sym.substitute(e, self.by) for e in part) for part in (index, valid))
        if any(place & sym.variables(e) for e in (*index, *valid)):
            valid = (*valid, self.cut.inside)
        valid = tuple(v for v in valid if not sym.always(v))
        used = self._used((*index, *valid))
        own = self._own(used)
        index, valid = (tuple(sym.substitute(e, own) for e in part) for part in (index, valid))
        return ir.view(node, self._shape(used), index, valid, fill if valid else b""), used

    # ---- reductions --------------------------------------------------------------------------------------------------

    def _reduced(self, op: ops.Op, value: ln.Scalar, axes: Sequence[int]) -> tuple[Node, tuple[int, ...]]:
        """The reduction of ``value`` over ``axes``; elements beyond the end do not count."""
        node, mine = self.value(value)
        used = self._ordered((*mine, *axes, *(self._used([self.cut.inside]) if axes is self.within else ())))
        node = self._spread((node, mine), used)
        if axes is self.within and not sym.always(self.cut.inside):
            inside = sym.substitute(self.cut.inside, self._own(used))
            nothing = numerics.of_nothing(op, self.dtype).tobytes()
            node = ir.view(node, node.shape, ir.axes(node.shape), (inside,), nothing)
        left = tuple(k for k in used if k not in axes)
        return ir.reduce(op, node, [used.index(k) for k in axes]), left

    def named(self, name: str, value: tuple[Node, tuple[int, ...]]) -> ln.Scalar:
        scalar = ln.temporary(name, self.dtype)
        self.known[scalar] = value
        return scalar

    def whole(self) -> Node:
        """The node's value, from those of its parts."""
        for state in self.plan.states:
            if state.shift is not None:
                total = self._shifted(state)
            elif state.op is ops.MAX_REDUCE:
                part = self._of_parts(state)
                total = self._reduced(state.op, part, self.over)
            else:
                total = self._moved(state)
            self.named(state.name, self.value(self._finished(state, self.named(f"{state.name}_all", total))))
        node, used = self.known[ln.temporary(self.plan.states[-1].name, self.dtype)]
        reduced, shape = self.plan.node.attr.axes, self.plan.node.shape
        axes = [k if k <= self.cut.axis else k + 1 for k in range(len(self.cut.before)) if k not in reduced]
        own = dict(zip(axes, ir.axes(shape), strict=True))
        return ir.view(node, shape, [own[k] for k in used])

    def _of_parts(self, state: Carried) -> ln.Scalar:
        """The reduction of each part, with the maxima of the part."""
        maxima = {ln.temporary(m.state, self.dtype): carried.finite(self._part(m.state)) for m in state.moves}
        value = replace_leaves(carried.product(state.inside), maxima)
        return self.named(f"{state.name}_part", self._reduced(state.op, value, self.within))

    def _part(self, name: str) -> ln.Scalar:
        return ln.temporary(f"{name}_part", self.dtype)

    def _moved(self, state: Carried) -> tuple[Node, tuple[int, ...]]:
        """The sum of all parts, moved to the maxima of all."""
        part = self._of_parts(state)
        if state.moves:
            moved = carried.factor(state.moves, self._part, lambda name: ln.temporary(name, self.dtype))
            part = carried.product([part, moved])
        return self._reduced(state.op, part, self.over)

    def _shifted(self, state: Carried) -> tuple[Node, tuple[int, ...]]:
        """The sum of squares of all parts, each taken about its own mean."""
        shift, op = state.shift, state.op
        assert shift is not None
        name, dtype = state.name, self.dtype

        def apply(op: ops.Op, *operands: ln.Scalar) -> ln.Scalar:
            return ln.apply(op, operands, None, dtype)

        total = self.named(f"{name}_sum", self._reduced(op, shift.varying, self.within))
        count = self.named(f"{name}_count", self._count())
        mean = apply(ops.DIV, total, count)
        rest = apply(ops.ADD, shift.varying, apply(ops.MUL, mean, carried.number(-1.0, dtype)))
        first = self.named(f"{name}_first", self._reduced(op, rest, self.within))
        second = self.named(f"{name}_part", self._reduced(op, apply(ops.MUL, rest, rest), self.within))
        apart = apply(ops.ADD, mean, shift.fixed)
        moved = apply(ops.ADD, apply(ops.ADD, first, first), apply(ops.MUL, count, apart))
        return self._reduced(op, apply(ops.ADD, second, apply(ops.MUL, apart, moved)), self.over)

    def _count(self) -> tuple[Node, tuple[int, ...]]:
        """The number of terms of each part."""
        terms = sym.product(self.cut.shape[k] for k in self.within)
        if isinstance(terms, int) and sym.always(self.cut.inside):
            return ir.constant(float(terms), self.dtype), ()
        return self._reduced(ops.SUM_REDUCE, carried.number(1.0, self.dtype), self.within)

    def _finished(self, state: Carried, value: ln.Scalar) -> ln.Scalar:
        """The result of ``state`` from the reduction of its ``inside``."""
        dtype = self.dtype
        for move in dict.fromkeys(state.moves):
            if move.guarded is None:  # all terms are exp(-inf - -inf) where the maximum is -inf
                empty = carried.is_empty(ln.temporary(move.state, dtype))
                value = ln.apply(ops.SELECT, (empty, carried.number(math.nan, dtype), value), None, dtype)
        value = carried.product([value, *state.outside])
        for condition in state.conditions:
            value = ln.apply(ops.SELECT, (condition, value, carried.number(0.0, dtype)), None, dtype)
        return value
