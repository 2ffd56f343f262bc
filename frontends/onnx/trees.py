"""Ensembles of decision trees (domain ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.decompose import contraction, indexing, math, reduction, scattering, sorting
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant, expand, gather, select
from luminal.core.movement import concatenate, pad, reshape, slice_
from luminal.core.types import f32, f64, from_numpy, i64
from luminal.frontends.onnx import scores
from luminal.frontends.onnx.registry import Call, operator
from luminal.frontends.onnx.scores import DOMAIN
from luminal.frontends.onnx.tensors import Array

_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(7)
# How a sample's value compares with a split; where the node asks for membership, whether it is in the set.
_LESS, _EQUAL, _GREATER, _NAN, _WITHIN = range(5)
_HOLDS = {_LESS: (_LEQ, _LT, _NEQ), _EQUAL: (_LEQ, _GTE, _EQ), _GREATER: (_GTE, _GT, _NEQ), _NAN: (_NEQ,),
          _WITHIN: (_MEMBER,)}  # fmt: skip
_TESTS: dict[tuple[int, ...], Callable[[Node, Node], Node]] = {
    (_LESS,): math.less,
    (_EQUAL,): math.equal,
    (_GREATER,): math.greater,
    (_LESS, _EQUAL): math.less_equal,
    (_EQUAL, _GREATER): math.greater_equal,
    (_LESS, _GREATER): lambda value, split: math.less(value, split) | math.greater(value, split),
    (_LESS, _EQUAL, _GREATER): lambda value, split: math.logical_not(math.isnan(value)),
}
_AVERAGE, _SUM, _MIN, _MAX = range(4)


@dataclass(frozen=True)
class _Trees:
    """All trees in arrays: rows before ``leaves`` are nodes, the others leaves, which lead to themselves."""

    feature: Array
    split: Array
    mode: Array
    missing: Array
    then: Array
    otherwise: Array
    roots: Array

    def reached(self) -> Iterator[Array]:
        """The leaves of each tree, in order."""
        count = len(self.feature)
        for root in self.roots:
            level, ends = np.array([root]), []
            while level.size:
                ends.append(level[level >= count] - count)
                level = level[level < count]
                level = np.unique(np.concatenate([self.then[level], self.otherwise[level]]))
            yield np.unique(np.concatenate(ends))

    def voted(self, votes: _Votes) -> Array | None:
        """The target that each tree votes for; None where one votes for several, or for none."""
        lowest, highest = np.full(votes.leaves, votes.target.max(initial=0) + 1), np.full(votes.leaves, -1)
        np.minimum.at(lowest, votes.leaf, votes.target)
        np.maximum.at(highest, votes.leaf, votes.target)
        ends = list(self.reached())
        least, most = (np.array([f(of[own]) for own in ends]) for f, of in ((np.min, lowest), (np.max, highest)))
        return most if (least == most).all() else None


@dataclass(frozen=True)
class _Votes:
    """The votes of the leaves of all trees: which leaf, for what, and how much."""

    leaf: Array
    target: Array
    weight: Array
    leaves: int

    def rows(self, fill: float) -> tuple[Array, Array]:
        """Targets and weights in a row for each leaf, in order, filled up with ``fill`` for target 0."""
        counts = np.bincount(self.leaf, minlength=self.leaves)
        order = np.argsort(self.leaf, kind="stable")
        column = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        target = np.zeros((self.leaves, counts.max(initial=0)), np.int64)
        weight = np.full(target.shape, fill, self.weight.dtype)
        target[self.leaf[order], column] = self.target[order]
        weight[self.leaf[order], column] = self.weight[order]
        return target, weight


@dataclass(frozen=True)
class _Walk:
    """The tables that a walk down the trees reads: for each place a feature, a split, and the next place in each of a
    few columns. ``column`` says which of them is for which outcome of a comparison. Places are first the ``leaves``,
    then the nodes."""

    feature: Array
    split: Array
    next: Array
    column: tuple[int, ...]
    leaves: int


def _walk(trees: _Trees, leaves: int) -> _Walk:
    """Leaves lead to themselves. Outcomes that lead the same way at all nodes share a column."""
    holds = np.stack([np.isin(trees.mode, modes) for modes in _HOLDS.values()])
    holds[_NAN] |= trees.missing
    split, strange = trees.split, np.isnan(trees.split)  # no value compares with NaN
    holds[:_NAN, strange] = trees.mode[strange] == _NEQ
    places = _placed(np.where(holds, trees.then, trees.otherwise), trees, leaves)
    own = np.broadcast_to(np.arange(leaves), (len(holds), leaves))
    member = trees.mode == _MEMBER
    places[_WITHIN] = np.where(member, places[_WITHIN], places[_LESS])
    columns, column = np.unique(np.concatenate([own, places], 1), axis=0, return_inverse=True)
    none = np.zeros(leaves, np.int32)
    return _Walk(
        np.concatenate([none, trees.feature.astype(np.int32)]),
        np.concatenate([none.astype(split.dtype), np.where(strange, 0, split)]),
        np.ascontiguousarray(columns.T.astype(np.int32)),
        tuple(int(number) for number in column.reshape(-1)),
        leaves,
    )


def _placed(number: Array, trees: _Trees, leaves: int) -> Array:
    """The places of nodes and leaves, which are numbered in this order."""
    count = len(trees.feature)
    return np.where(number < count, number + leaves, number - count)


_GROUPS = 3  # at most, of trees that are walked down together: each is written out for the depth of its deepest
_TOGETHER = 32  # trees that make vectors full on any machine
_ENDS = 32  # of groups, at most, that are tried
_WORTH = 0.9  # of the steps that are left, for one more group


def _leaves(x: Node, trees: _Trees, leaves: int, members: Sequence[tuple[int, Array]]) -> tuple[Node, Array]:
    """The leaf that each sample ``x [N, F]`` ends in, of each tree: ``[N, trees]``, and which tree each column is of.

    Trees of about the same depth are walked down at once, one level a step.
    """
    walk = _walk(trees, leaves)
    depths = np.array([_depth(trees.then, trees.otherwise, trees.roots[k : k + 1], len(trees.feature))
                       for k in range(len(trees.roots))], np.int64)  # fmt: skip
    order = np.argsort(depths, kind="stable")
    ends: list[Node] = []
    roots = _placed(trees.roots, trees, leaves).astype(np.int32)
    for group in _groups(depths[order]):
        place = expand(constant(roots[order[group]]), [x.shape[0], group.stop - group.start])
        for _ in range(int(depths[order[group]].max(initial=0))):
            place = _step(x, place, walk, members)
        ends.append(place)
    return concatenate(ends, 1), order


def _groups(depths: Array) -> list[slice]:
    """Ascending ``depths`` in a few ranges, so that few trees are walked down further than they are deep. But for the
    first, they are of whole vectors."""
    count = len(depths)
    wide = _TOGETHER * (1 + count // (_TOGETHER * _ENDS))
    ends = range(count % wide or wide, count, wide)
    best = [count]
    for groups in range(2, _GROUPS + 1):
        chosen = [[*inner, count] for inner in combinations(ends, groups - 1)]
        least = min(chosen, key=lambda ends: _steps(depths, ends), default=best)
        if _steps(depths, least) < _steps(depths, best) * _WORTH:
            best = least
    return [slice(start, end) for start, end in pairwise([0, *best])]


def _steps(depths: Array, ends: Sequence[int]) -> int:
    """How many steps of vectors the groups that end at ``ends`` take."""
    return sum(-(-(end - start) // _TOGETHER) * int(depths[end - 1]) for start, end in pairwise([0, *ends]))


def _step(x: Node, place: Node, walk: _Walk, members: Sequence[tuple[int, Array]]) -> Node:
    value = indexing.gather_elements(x, indexing.take(constant(walk.feature), place), 1)
    split = indexing.take(constant(walk.split), place)
    column = constant(walk.column[_NAN], place.dtype)
    for number in sorted({*walk.column[:_NAN]} - {walk.column[_NAN]}):
        outcomes = tuple(outcome for outcome in (_LESS, _EQUAL, _GREATER) if walk.column[outcome] == number)
        column = select(_TESTS[outcomes](value, split), constant(number, place.dtype), column)
    for position, elements in members:
        within = math.equal(place, walk.leaves + position) & sorting.isin(value, constant(elements))
        column = select(within, constant(walk.column[_WITHIN], place.dtype), column)
    table = constant(walk.next)
    return indexing.take(reshape(table, [table.size]), place * walk.next.shape[1] + column)


_FEW = 32  # targets, at most, for which a product adds the votes of trees that vote for one each
_DENSE = 4  # elements of a table of votes for all targets, for each vote that there is


def _combined(leaf: Node, order: Array, votes: _Votes, trees: _Trees, count: int, how: int) -> Node:
    """The votes of leaves ``[N, trees]``, combined for each of ``count`` targets: ``[N, count]``. The least and the
    largest of no votes are the ends of the type."""
    if how in (_SUM, _AVERAGE):
        total = _summed(leaf, order, votes, trees, count)
        return total / len(trees.roots) if how == _AVERAGE else total
    none = from_numpy(votes.weight.dtype).max if how == _MIN else from_numpy(votes.weight.dtype).min
    return _scattered(leaf, votes, count, none, "min" if how == _MIN else "max")


def _summed(leaf: Node, order: Array, votes: _Votes, trees: _Trees, count: int) -> Node:
    voted_for = {*votes.target.tolist()}
    if count > 1 and len(voted_for) == 1:  # the others get nothing
        (target,) = voted_for
        alone = replace(votes, target=np.zeros_like(votes.target))
        return pad(_summed(leaf, order, alone, trees, 1), [0, target], [0, count - 1 - target])
    if count == 1 or count * votes.leaves <= _DENSE * len(votes.leaf):
        table = np.zeros((votes.leaves, count), votes.weight.dtype)
        np.add.at(table, (votes.leaf, votes.target), votes.weight)
        if count == 1:
            return reduction.sum_(indexing.take(constant(table.reshape(-1)), leaf), 1, keepdims=True)
        return reduction.sum_(indexing.take(constant(table), leaf), 1)
    voted = trees.voted(votes)
    if voted is None or count > _FEW or not np.isfinite(votes.weight).all():
        return _scattered(leaf, votes, count, 0, "add")
    # Each tree votes for one target: a product with zeros and ones adds what is for each.
    values = np.zeros(votes.leaves, votes.weight.dtype)
    np.add.at(values, votes.leaf, votes.weight)
    chosen = np.eye(count, dtype=values.dtype)[:, voted[order]]
    return contraction.linear(indexing.take(constant(values), leaf), constant(np.ascontiguousarray(chosen)))


def _scattered(leaf: Node, votes: _Votes, count: int, none: float, how: str) -> Node:
    targets, weights = votes.rows(none)
    shape = [leaf.shape[0], sym.product([leaf.shape[1], targets.shape[1]])]
    owner, value = (reshape(indexing.take(constant(table), leaf), shape) for table in (targets, weights))
    start = indexing.full((leaf.shape[0], count), none, value.dtype)
    return scattering.scatter_elements(start, owner, value, 1, how)


@operator("TreeEnsemble", domain=DOMAIN)
def _tree_ensemble(call: Call) -> Node:
    """The leaves that a sample ends in are combined by target."""
    x = call[0]
    splits, weights = call.tensor("nodes_splits"), call.tensor("leaf_weights")
    targets, count = call.integers("leaf_targetids"), call.integer("n_targets")
    if splits is None or weights is None or targets is None:
        raise ModelError("the attributes nodes_splits, leaf_weights and leaf_targetids are required")
    if call.integer("post_transform", 0):
        raise UnsupportedError("transforms of the result (post_transform) are not supported")
    if not all(0 <= target < count for target in targets):
        raise ModelError(f"attribute 'leaf_targetids': expected targets of 0 to {count - 1}")
    call.ignore("nodes_hitrates")
    trees = _read(call, splits)
    how = call.integer("aggregate_function", _SUM)
    if how not in _FUNCTIONS.values():
        raise ModelError(f"attribute 'aggregate_function': expected 0 to 3, found {how}")
    leaf, order = _leaves(x, trees, weights.size, _members(call, trees.mode))
    if len(targets) != weights.size:
        raise ModelError(f"expected a target for each of {weights.size} leaves, found {len(targets)}")
    votes = _Votes(np.arange(weights.size), np.array(targets, np.int64), weights.reshape(-1), weights.size)
    return _combined(leaf, order, votes, trees, count, how)


def _integers(call: Call, name: str) -> Array:
    values = call.integers(name)
    if values is None:
        raise ModelError(f"the attribute {name!r} is required")
    return np.array(values, np.int64)


def _read(call: Call, splits: Array) -> _Trees:
    modes = call.tensor("nodes_modes")
    if modes is None:
        raise ModelError("the attribute 'nodes_modes' is required")
    feature, missing = _integers(call, "nodes_featureids"), call.integers("nodes_missing_value_tracks_true")
    count = len(feature)
    sides = [_integers(call, f"nodes_{side}{what}") for side in ("true", "false") for what in ("nodeids", "leafs")]
    lengths = {len(splits), len(modes), *map(len, sides), count if missing is None else len(missing)}
    if lengths != {count}:
        raise ModelError("the attributes of the nodes have different lengths")
    then, otherwise = sides[0] + count * sides[1], sides[2] + count * sides[3]
    roots = _integers(call, "tree_roots")
    _depth(then, otherwise, roots, count)
    tracked = np.zeros(count, np.bool_) if missing is None else np.array(missing, np.bool_)
    return _Trees(feature, splits.reshape(-1), modes.reshape(-1), tracked, then, otherwise, roots)


def _depth(then: Array, otherwise: Array, roots: Array, count: int) -> int:
    """The length of the longest path from a root to a leaf; raises ModelError for a cycle."""
    level, depth = {int(root) for root in roots if root < count}, 0
    while level:
        depth += 1
        if depth > count:
            raise ModelError("the nodes of a tree form a circle")
        level = {int(child) for node in level for child in (then[node], otherwise[node]) if child < count}
    return depth


def _members(call: Call, modes: Array) -> list[tuple[int, Array]]:
    """The nodes that ask for membership, with their sets, which NaN ends."""
    values = call.tensor("membership_values")
    nodes = [int(node) for node in np.nonzero(modes == _MEMBER)[0]]
    if not nodes:
        return []
    if values is None or int(np.isnan(values).sum()) != len(nodes):
        raise ModelError("expected a set of 'membership_values', ended by NaN, for each node that asks for one")
    ends = [-1, *(int(end) for end in np.nonzero(np.isnan(values))[0])]
    sets = [values[start + 1 : end] for start, end in pairwise(ends)]
    return list(zip(nodes, sets, strict=True))


# ---- trees with votes at their leaves, as versions 1 and 3 state them --------------------------------------------

_MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
_FUNCTIONS = {"AVERAGE": _AVERAGE, "SUM": _SUM, "MIN": _MIN, "MAX": _MAX}


def _floats(call: Call, name: str) -> Array:
    """An attribute of floats, or of doubles in a tensor."""
    given = call.tensor(f"{name}_as_tensor")
    return np.array(call.numbers(name) or [], np.float32) if given is None else given.reshape(-1)


def _read_votes(call: Call, kind: str, count: int) -> tuple[_Trees, _Votes]:
    """The trees, and the votes for ``count`` targets or classes that the attributes of a ``kind`` list."""
    keys = list(zip(_integers(call, "nodes_treeids"), _integers(call, "nodes_nodeids"), strict=True))
    modes = call.texts("nodes_modes") or []
    names = [_integers(call, f"{kind}_{name}").tolist() for name in ("treeids", "nodeids", "ids")]
    weights = _floats(call, f"{kind}_weights")
    call.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")
    splits, feature = _floats(call, "nodes_values"), _integers(call, "nodes_featureids")
    sides = [_integers(call, f"nodes_{side}nodeids").tolist() for side in ("true", "false")]
    tracked = call.integers("nodes_missing_value_tracks_true") or [0] * len(keys)
    if {len(modes), len(splits), len(feature), *map(len, sides), len(tracked)} != {len(keys)}:
        raise ModelError("the attributes of the nodes have different lengths")
    if {len(weights), *map(len, names)} != {len(weights)}:
        raise ModelError(f"the attributes of a {kind} have different lengths")
    unknown = sorted({*modes} - {"LEAF", *_MODES})
    if unknown:
        raise ModelError(f"attribute 'nodes_modes': expected {', '.join(_MODES)} or LEAF, found {unknown[0]}")
    inner = [k for k, mode in enumerate(modes) if mode != "LEAF"]
    leaves = [k for k, mode in enumerate(modes) if mode == "LEAF"]
    place = {keys[k]: number for number, k in enumerate([*inner, *leaves])}
    if len(place) != len(keys):
        raise ModelError("two nodes of a tree have the same number")
    try:
        then, otherwise = (np.array([place[keys[k][0], side[k]] for k in inner], np.int64) for side in sides)
        voters = [place[tree, node] - len(inner) for tree, node in zip(names[0], names[1], strict=True)]
    except KeyError as error:
        raise ModelError("the attributes of the trees name a node {1} of tree {0} that there is not".format(
            *error.args[0])) from None  # fmt: skip
    if min(voters, default=0) < 0 or not all(0 <= target < count for target in names[2]):
        raise ModelError(f"expected votes at leaves, for one of 0 to {count - 1}")
    children = {*then.tolist(), *otherwise.tolist()}
    roots = [number for number in place.values() if number not in children]
    if len(roots) != len({tree for tree, _ in keys}):
        raise ModelError("expected one root for each tree")
    chosen = np.array(inner, np.int64)
    codes = np.array([_MODES.index(modes[k]) for k in inner], np.int64)
    _depth(then, otherwise, np.array(roots), len(inner))
    trees = _Trees(feature[chosen], splits[chosen], codes, np.array(tracked, bool)[chosen], then, otherwise,
                   np.array(roots, np.int64))  # fmt: skip
    return trees, _Votes(np.array(voters, np.int64), np.array(names[2], np.int64), weights, len(leaves))


def _totals(call: Call, kind: str, count: int, how: int = _SUM) -> Node:
    """The combined votes for each sample, ``[N, count]``, in float64 where the trees' numbers or the features are; 0
    for targets without votes."""
    trees, votes = _read_votes(call, kind, count)
    x = scores.rows(call[0])
    dtype = f64 if f64.numpy in (x.dtype.numpy, trees.split.dtype) else f32
    trees = replace(trees, split=trees.split.astype(dtype.numpy))
    leaf, order = _leaves(cast(x, dtype), trees, votes.leaves, [])
    votes = replace(votes, weight=votes.weight.astype(dtype.numpy))
    total = _combined(leaf, order, votes, trees, count, how)
    none = {_MIN: dtype.max, _MAX: dtype.min}.get(how, 0.0)
    return select(math.equal(total, none), 0, total) if how in (_MIN, _MAX) else total


def _apart(call: Call) -> tuple[Node, ...]:
    """The results of an ensemble in which each tree is for a target, and an output, of its own."""
    trees, votes = _read_votes(call, "target", len(call.outputs))
    x = scores.rows(call[0])
    dtype = f64 if f64.numpy in (x.dtype.numpy, trees.split.dtype) else f32
    trees = replace(trees, split=trees.split.astype(dtype.numpy))
    leaf, order = _leaves(cast(x, dtype), trees, votes.leaves, [])
    spans = [(int(ends.min()), int(ends.max()) + 1) for ends in trees.reached()]
    longest = max(end - start for start, end in spans)  # tables of one length: what reads them is the same
    values = np.zeros(votes.leaves + longest, dtype.numpy)
    np.add.at(values, votes.leaf, votes.weight.astype(dtype.numpy))
    column = {int(tree): number for number, tree in enumerate(order)}
    found: list[Node] = []
    for tree, (start, _) in enumerate(spans):
        place = cast(slice_(leaf, 1, column[tree], 1), i64) - start
        found.append(cast(gather(constant(values[start : start + longest]), place, 0), f32))
    return tuple(found)


@operator("TreeEnsembleRegressor", domain=DOMAIN)
def _tree_ensemble_regressor(call: Call) -> Node | tuple[Node, ...]:
    if len(call.outputs) > 1:  # see ``siblings``
        call.ignore("n_targets")
        return _apart(call)
    count = call.integer("n_targets")
    total = _totals(call, "target", count, _FUNCTIONS[call.choice("aggregate_function", "SUM", _FUNCTIONS)])
    base = _floats(call, "base_values")
    if base.size not in (0, count):
        raise ModelError(f"attribute 'base_values': expected {count} numbers, found {base.size}")
    total = total + constant(base, total.dtype) if base.size else total
    return scores.targets(cast(total, f32), scores.transform(call))


@operator("TreeEnsembleClassifier", domain=DOMAIN)
def _tree_ensemble_classifier(call: Call) -> tuple[Node, Node]:
    """The class with the most votes. Of two classes one may have all votes, for or against the second: they count from
    1/2 on where none is negative, else from 0 on."""
    (classes, count), how = scores.labels(call, "classlabels_int64s"), scores.transform(call)
    voted, base = {*(call.integers("class_ids") or [])}, _floats(call, "base_values")
    total = _totals(call, "class", count)
    one = count == 2 and len(voted) == 1
    if base.size not in ((0, 1) if voted == {0} and one else (0,) if count == 2 else (0, count)):
        raise UnsupportedError(f"{base.size} base_values for votes on {len(voted)} of {count} classes")
    if base.size:
        total = total + constant(base, total.dtype)
    total = cast(total, f32)
    if not one:
        return scores.top(total, how, classes)
    (voted_for,) = voted
    positive = bool((_floats(call, "class_weights") >= 0).all())
    label, both = scores.binary(
        reshape(slice_(total, 1, voted_for, 1), [total.shape[0]]), how, classes, 0.5 if positive else 0.0, positive
    )
    return label, both if voted_for == 0 else scores.transformed(total, how)
