"""Ensembles of decision trees (domain ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from luminal.core.decompose import indexing, math, scattering, sorting
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant, expand, select
from luminal.core.movement import reshape, slice_
from luminal.core.types import f32, f64
from luminal.frontends.onnx import scores
from luminal.frontends.onnx.registry import Call, operator
from luminal.frontends.onnx.scores import DOMAIN
from luminal.frontends.onnx.tensors import Array

_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(7)
# How a sample's value compares with a split; where the node asks for membership, whether it is in the set.
_LESS, _EQUAL, _GREATER, _NAN, _WITHIN = range(5)
_HOLDS = {_LESS: (_LEQ, _LT, _NEQ), _EQUAL: (_LEQ, _GTE, _EQ), _GREATER: (_GTE, _GT, _NEQ), _NAN: (_NEQ,),
          _WITHIN: (_MEMBER,)}  # fmt: skip
_TESTS = {
    (_LESS,): math.less,
    (_EQUAL,): math.equal,
    (_GREATER,): math.greater,
    (_LESS, _EQUAL): math.less_equal,
    (_EQUAL, _GREATER): math.greater_equal,
    (_LESS, _GREATER): lambda value, split: math.less(value, split) | math.greater(value, split),
    (_LESS, _EQUAL, _GREATER): lambda value, split: math.logical_not(math.isnan(value)),
}
_AVERAGE, _SUM, _MIN, _MAX = range(4)
_COMBINED = {_AVERAGE: "add", _SUM: "add", _MIN: "min", _MAX: "max"}


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
    depth: int


@dataclass(frozen=True)
class _Walk:
    """The tables that a walk down the trees reads: for each node and leaf a feature, a split, and the next place in each
    of a few columns. ``column`` says which of them is for which outcome of a comparison."""

    feature: Array
    split: Array
    next: Array
    column: tuple[int, ...]


def _walk(trees: _Trees, leaves: int) -> _Walk:
    """Leaves lead to themselves. Outcomes that lead the same way at all nodes share a column."""
    holds = np.stack([np.isin(trees.mode, modes) for modes in _HOLDS.values()])
    holds[_NAN] |= trees.missing
    split, strange = trees.split, np.isnan(trees.split)  # no value compares with NaN
    holds[: _NAN, strange] = trees.mode[strange] == _NEQ
    places = np.where(holds, trees.then, trees.otherwise)
    count = len(split)
    own = np.broadcast_to(np.arange(count, count + leaves), (len(holds), leaves))
    member = trees.mode == _MEMBER
    places[_WITHIN] = np.where(member, places[_WITHIN], places[_LESS])
    columns, column = np.unique(np.concatenate([places, own], 1), axis=0, return_inverse=True)
    none = np.zeros(leaves, np.int32)
    return _Walk(
        np.concatenate([trees.feature.astype(np.int32), none]),
        np.concatenate([np.where(strange, 0, split), none.astype(split.dtype)]),
        np.ascontiguousarray(columns.T.astype(np.int32)),
        tuple(int(number) for number in column.reshape(-1)),
    )


def _leaves(x: Node, trees: _Trees, leaves: int, members: Sequence[tuple[int, Array]]) -> Node:
    """The leaf of each tree that each sample ``x [N, F]`` ends in, ``[N, trees]``: it walks down all trees at once, one
    level a step."""
    walk = _walk(trees, leaves)
    place = expand(constant(trees.roots.astype(np.int32)), [x.shape[0], len(trees.roots)])
    for _ in range(trees.depth):
        place = _step(x, place, walk, members)
    return place - len(trees.feature)


def _step(x: Node, place: Node, walk: _Walk, members: Sequence[tuple[int, Array]]) -> Node:
    value = indexing.gather_elements(x, indexing.take(constant(walk.feature), place), 1)
    split = indexing.take(constant(walk.split), place)
    column = constant(walk.column[_NAN], place.dtype)
    for number in sorted({*walk.column[:_NAN]} - {walk.column[_NAN]}):
        outcomes = tuple(outcome for outcome in (_LESS, _EQUAL, _GREATER) if walk.column[outcome] == number)
        column = select(_TESTS[outcomes](value, split), constant(number, place.dtype), column)
    for position, elements in members:
        within = math.equal(place, position) & sorting.isin(value, constant(elements))
        column = select(within, constant(walk.column[_WITHIN], place.dtype), column)
    table = constant(walk.next)
    return indexing.take(reshape(table, [table.size]), place * walk.next.shape[1] + column)


def _combined(owner: Node, value: Node, count: int, how: int, trees: int) -> Node:
    """The values of leaves, ``[N, leaves]``, that belong to each of ``count`` targets. The least and the largest of no
    leaves are the ends of the type."""
    start = {_MIN: value.dtype.max, _MAX: value.dtype.min}.get(how, 0)
    none = indexing.full((value.shape[0], count), start, value.dtype)
    total = scattering.scatter_elements(none, owner, value, 1, _COMBINED[how])
    return total / trees if how == _AVERAGE else total


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
    leaf = _leaves(x, trees, weights.size, _members(call, trees.mode))
    value = indexing.take(constant(weights.reshape(-1)), leaf)
    owner = indexing.take(constant(np.array(targets, np.int64)), leaf)
    how = call.integer("aggregate_function", _SUM)
    if how not in _COMBINED:
        raise ModelError(f"attribute 'aggregate_function': expected 0 to 3, found {how}")
    return _combined(owner, value, count, how, len(trees.roots))


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
    depth = _depth(then, otherwise, roots, count)
    tracked = np.zeros(count, np.bool_) if missing is None else np.array(missing, np.bool_)
    return _Trees(feature, splits.reshape(-1), modes.reshape(-1), tracked, then, otherwise, roots, depth)


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
    trees = _Trees(feature[chosen], splits[chosen], codes, np.array(tracked, bool)[chosen], then, otherwise,
                   np.array(roots, np.int64), _depth(then, otherwise, np.array(roots), len(inner)))  # fmt: skip
    return trees, _Votes(np.array(voters, np.int64), np.array(names[2], np.int64), weights, len(leaves))


def _totals(call: Call, kind: str, count: int, how: int = _SUM) -> Node:
    """The combined votes for each sample, ``[N, count]``, in float64 where the trees' numbers or the features are; 0
    for targets without votes."""
    trees, votes = _read_votes(call, kind, count)
    x = scores.rows(call[0])
    dtype = f64 if f64.numpy in (x.dtype.numpy, trees.split.dtype) else f32
    trees = replace(trees, split=trees.split.astype(dtype.numpy))
    leaf = _leaves(cast(x, dtype), trees, votes.leaves, [])
    none = {_MIN: dtype.max, _MAX: dtype.min}.get(how, 0.0)
    targets, weights = replace(votes, weight=votes.weight.astype(dtype.numpy)).rows(none)
    shape = [x.shape[0], len(trees.roots) * targets.shape[1]]
    owner, value = (reshape(indexing.take(constant(table), leaf), shape) for table in (targets, weights))
    total = _combined(owner, value, count, how, len(trees.roots))
    return select(math.equal(total, none), 0, total) if how in (_MIN, _MAX) else total


@operator("TreeEnsembleRegressor", domain=DOMAIN)
def _tree_ensemble_regressor(call: Call) -> Node:
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
