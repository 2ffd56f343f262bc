"""Classical machine learning (domain ai.onnx.ml): features, thresholds, lookups of labels, decision trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from luminal.core import limits, texts
from luminal.core.decompose import indexing, math, ngrams, scattering, sorting, text
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant, expand, select
from luminal.core.movement import reshape, unsqueeze
from luminal.core.types import f32, from_numpy
from luminal.frontends.onnx.registry import Call, operator
from luminal.frontends.onnx.tensors import Array

DOMAIN = "ai.onnx.ml"


@operator("ArrayFeatureExtractor", domain=DOMAIN)
def _array_feature_extractor(call: Call) -> Node:
    """Positions along the last axis; a vector is one row."""
    x = call[0] if call[0].rank > 1 else unsqueeze(call[0], [0])
    return indexing.take(x, reshape(call[1], [call[1].size]), -1)


@operator("Binarizer", domain=DOMAIN)
def _binarizer(call: Call) -> Node:
    return cast(math.greater(call[0], call.number("threshold", 0.0)), call[0].dtype)


# ---- features of sequences -----------------------------------------------------------------------------------------


@operator("TfIdfVectorizer")
def _tf_idf_vectorizer(call: Call) -> Node:
    """How often n-grams of a pool occur in each row, whether they do, or both weighted."""
    words = call.texts("pool_strings")
    pool, starts, places = (call.integers(name) or [] for name in ("pool_int64s", "ngram_counts", "ngram_indexes"))
    if words is not None:
        pool = text.numbers_of(words).tolist()
    mode = call.choice("mode", "", ["TF", "IDF", "TFIDF"])
    weights = call.numbers("weights")
    low, high, skips = (call.integer(name) for name in ("min_gram_length", "max_gram_length", "max_skip_count"))
    if min(places, default=-1) < 0 or not 1 <= low <= high or skips < 0:
        raise ModelError("expected n-grams of at least one element, with their positions, and gaps of at least 0")
    limits.check_table(max(places), "positions of n-grams")
    grams: list[tuple[int, ...]] = []
    for length, (start, end) in enumerate(pairwise([*starts, len(pool)]), start=1):
        part = pool[start:end]
        if start > end or len(part) % length:
            raise ModelError(f"ngram_counts: {end - start} elements of the pool are no n-grams of {length}")
        grams += [tuple(part[k : k + length]) for k in range(0, len(part), length)]
    if len(grams) != len(places) or (weights is not None and len(weights) != len(places)):
        raise ModelError(f"expected a position and a weight for each of {len(grams)} n-grams, found {len(places)}")
    if call[0].dtype.is_text == (words is None):
        raise ModelError(f"a pool of {'integers' if words is None else 'texts'} does not fit {call[0].dtype}")
    given = call[0] if words is None else text.numbers(call[0])
    x = given if given.rank > 1 else reshape(given, [1, given.size])
    size = max(places) + 1
    found = ngrams.count(x, dict(zip(grams, places, strict=True)), size, range(low, high + 1), skips)
    result = cast(math.less(0, found) if mode == "IDF" else found, f32)
    if weights is not None and mode != "TF":
        result = result * constant(np.array(weights, np.float32)[:size])
    return result if call[0].rank > 1 else reshape(result, [size])


# ---- labels --------------------------------------------------------------------------------------------------------


def _listed(call: Call, kind: str) -> Array | None:
    tensor, words = call.tensor(f"{kind}_tensor"), call.texts(f"{kind}_strings")
    integers, numbers = call.integers(f"{kind}_int64s"), call.numbers(f"{kind}_floats")
    if tensor is not None:
        return tensor.reshape(-1)
    if words is not None:
        return texts.of(words, (len(words),))
    if integers is not None:
        return np.array(integers, np.int64)
    return None if numbers is None else np.array(numbers, np.float32)


@operator("LabelEncoder", domain=DOMAIN)
def _label_encoder(call: Call) -> Node:
    """The value beside the key that an element equals; from version 4 on, NaN equals NaN."""
    keys, values = _listed(call, "keys"), _listed(call, "values")
    if keys is None or values is None or len(keys) != len(values) or len(keys) == 0:
        raise ModelError("expected as many keys as values, and at least one")
    integer, number = call.integer("default_int64", -1), call.number("default_float", -0.0)
    word, given = call.text("default_string", "_Unused"), call.tensor("default_tensor")
    defaults = {"f": np.float32(number), "V": texts.of([word], ())}
    otherwise = given.reshape(-1)[0] if given is not None else defaults.get(values.dtype.kind, np.int64(integer))
    x = call[0]
    if x.dtype.numpy != keys.dtype:
        raise ModelError(f"expected keys of {x.dtype}, found {from_numpy(keys.dtype)}")
    if x.dtype.is_text:
        x, keys = text.numbers(x), keys.view(np.int64)
    # The first of equal keys counts.
    sorted_keys, first = np.unique(keys, return_index=True)
    place, hit = sorting.find(constant(sorted_keys), x)
    label = indexing.take(constant(values[first]), place)
    if call.opset >= 4 and x.dtype.is_float and np.isnan(keys).any():
        of_nan = values[int(np.isnan(keys).argmax())]
        label, hit = select(math.isnan(x), of_nan.item(), label), hit | math.isnan(x)
    return select(hit, label, constant(np.asarray(otherwise), label.dtype))


# ---- trees ---------------------------------------------------------------------------------------------------------

_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(7)
_COMPARISONS = {
    _LEQ: math.less_equal,
    _LT: math.less,
    _GTE: math.greater_equal,
    _GT: math.greater,
    _EQ: math.equal,
    _NEQ: math.not_equal,
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


@operator("TreeEnsemble", domain=DOMAIN)
def _tree_ensemble(call: Call) -> Node:
    """Each sample walks down all trees at once, one level a step; the leaves that it ends in are combined by target."""
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
    member = _members(call, trees.mode)
    place = expand(constant(trees.roots), [x.shape[0], len(trees.roots)])
    for _ in range(trees.depth):
        place = _step(x, place, trees, member)
    leaf = place - len(trees.feature)
    value = indexing.take(constant(weights.reshape(-1)), leaf)
    owner = indexing.take(constant(np.array(targets, np.int64)), leaf)
    how = call.integer("aggregate_function", _SUM)
    if how not in _COMBINED:
        raise ModelError(f"attribute 'aggregate_function': expected 0 to 3, found {how}")
    # The least and the largest of no leaves are the ends of the type.
    start = {_MIN: value.dtype.max, _MAX: value.dtype.min}.get(how, 0)
    none = indexing.full((x.shape[0], count), start, value.dtype)
    total = scattering.scatter_elements(none, owner, value, 1, _COMBINED[how])
    return total / len(trees.roots) if how == _AVERAGE else total


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
    """The longest way from a root to a leaf; ModelError where a way does not end."""
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


def _step(x: Node, place: Node, trees: _Trees, members: Sequence[tuple[int, Array]]) -> Node:
    count = len(trees.feature)
    at_node = math.less(place, count)
    node = select(at_node, place, 0)
    value = indexing.gather_elements(x, indexing.take(constant(trees.feature), node), 1)
    split, mode = indexing.take(constant(trees.split), node), indexing.take(constant(trees.mode), node)
    holds: Node | None = None
    for number in sorted({int(mode) for mode in trees.mode} - {_MEMBER}):
        one = math.equal(mode, number) & _COMPARISONS[number](value, split)
        holds = one if holds is None else holds | one
    for position, elements in members:
        one = math.equal(node, position) & sorting.isin(value, constant(elements))
        holds = one if holds is None else holds | one
    assert holds is not None
    holds = holds | (math.isnan(value) & indexing.take(constant(trees.missing), node))
    child = select(holds, indexing.take(constant(trees.then), node), indexing.take(constant(trees.otherwise), node))
    return select(at_node, child, place)
