"""Classical machine learning (domain ai.onnx.ml): features, thresholds, lookups of labels and categories."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from luminal.core import limits, texts
from luminal.core.decompose import indexing, math, ngrams, normalize, reduction, sorting, text
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant, iota, select
from luminal.core.movement import concatenate, pad, reshape, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import f32, from_numpy, i64
from luminal.frontends.onnx import scores
from luminal.frontends.onnx.registry import Call, Maps, operator
from luminal.frontends.onnx.scores import DOMAIN
from luminal.frontends.onnx.tensors import Array


@operator("ArrayFeatureExtractor", domain=DOMAIN)
def _array_feature_extractor(call: Call) -> Node:
    """Positions along the last axis; a vector is one row."""
    x = call[0] if call[0].rank > 1 else unsqueeze(call[0], [0])
    return indexing.take(x, reshape(call[1], [call[1].size]), -1)


@operator("Binarizer", domain=DOMAIN)
def _binarizer(call: Call) -> Node:
    return cast(math.greater(call[0], call.number("threshold", 0.0)), call[0].dtype)


# ---- features in columns -------------------------------------------------------------------------------------------


def _by_column(values: Sequence[float] | Sequence[int], x: Node, what: str) -> Node:
    """Numbers for the columns of ``x [.., F]``, or one for all."""
    if len(values) != 1 and (x.rank == 0 or len(values) != x.shape[-1]):
        raise ModelError(f"attribute {what!r}: expected 1 number, or one for each column of {list(x.shape)}")
    return constant(np.array(values), x.dtype)


@operator("Scaler", domain=DOMAIN)
def _scaler(call: Call) -> Node:
    x = cast(call[0], f32)
    offset, scale = _by_column(call.numbers("offset") or [0.0], x, "offset"), call.numbers("scale") or [1.0]
    return (x - offset) * _by_column(scale, x, "scale")


@operator("Normalizer", domain=DOMAIN)
def _normalizer(call: Call) -> Node:
    """Rows divided by their largest element, L1 norm or L2 norm; unchanged where that is 0."""
    x = cast(call[0], f32)
    norm = call.choice("norm", "MAX", ["MAX", "L1", "L2"])
    if norm == "MAX":  # NaN is none, as in onnxruntime
        by = reduction.max_(select(math.isnan(x), f32.min, x), -1, keepdims=True)
    else:
        by = normalize.lp_norm(x, -1, 1 if norm == "L1" else 2, keepdims=True)
    return select(math.equal(by, 0), x, x / by)


@operator("Imputer", domain=DOMAIN)
def _imputer(call: Call) -> Node:
    """Elements that equal one value, which may be NaN, are replaced."""
    x = call[0]
    kind, read = ("float", call.numbers) if x.dtype.is_float else ("int64", call.integers)
    new = read(f"imputed_value_{kind}s")
    if not new:
        raise ModelError(f"expected imputed_value_{kind}s for {x.dtype}")
    other = "int64" if kind == "float" else "float"  # exporters write both
    call.ignore(f"imputed_value_{other}s", f"replaced_value_{other}")
    old = call.number("replaced_value_float", 0.0) if x.dtype.is_float else call.integer("replaced_value_int64", 0)
    is_old = math.isnan(x) if old != old else math.equal(x, constant(old, x.dtype))
    return select(is_old, _by_column(new, x, f"imputed_value_{kind}s"), x)


@operator("FeatureVectorizer", domain=DOMAIN)
def _feature_vectorizer(call: Call) -> Node:
    """Features side by side, each cut or filled up with zeros to the number of columns that is stated for it."""
    parts = [scores.features(x) for x in call.operands]
    sizes: Sequence[Int] = call.integers("inputdimensions") or [x.shape[1] for x in parts]
    if len(sizes) != len(parts):
        raise ModelError(f"attribute 'inputdimensions': expected {len(parts)} numbers, found {len(sizes)}")
    fitted = [pad(x, [0, 0], [0, size - x.shape[1]]) for x, size in zip(parts, sizes, strict=True)]
    return concatenate(fitted, 1)


# ---- features of sequences -----------------------------------------------------------------------------------------


@operator("TfIdfVectorizer")
def _tf_idf_vectorizer(call: Call) -> Node:
    """Counts of a pool's n-grams in each row (TF), their presence, weighted (IDF), or weighted counts (TFIDF)."""
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
    place, hit = _found(x, keys)
    label = indexing.take(constant(values), place)
    if call.opset >= 4 and x.dtype.is_float and np.isnan(keys).any():
        of_nan = values[int(np.isnan(keys).argmax())]
        label, hit = select(math.isnan(x), of_nan.item(), label), hit | math.isnan(x)
    return select(hit, label, constant(np.asarray(otherwise), label.dtype))


_SPARSE = 16  # integers for each key, at most, in a table of all


def _found(x: Node, keys: Array) -> tuple[Node, Node]:
    """The position in ``keys`` of each element of ``x``, the first of equal ones, and whether there is one."""
    if x.dtype.is_text:
        x, keys = text.numbers(x), keys.view(np.int64)
    sorted_keys, first = np.unique(keys, return_index=True)
    span = int(sorted_keys[-1]) - int(sorted_keys[0]) + 1 if keys.dtype.kind in "iu" else 0
    if 0 < span <= _SPARSE * len(keys):  # read in a table of all integers from the first key to the last
        table, holds = np.zeros(span + 1, np.int64), np.zeros(span + 1, np.bool_)
        table[sorted_keys - sorted_keys[0]], holds[sorted_keys - sorted_keys[0]] = first, True
        apart = cast(x, i64) - int(sorted_keys[0])
        place = select(math.less(-1, apart) & math.less(apart, span), apart, span)
        return indexing.take(constant(table), place), indexing.take(constant(holds), place)
    place, hit = sorting.find(constant(sorted_keys), x)
    return indexing.take(constant(first.astype(np.int64)), place), hit


@operator("CategoryMapper", domain=DOMAIN)
def _category_mapper(call: Call) -> Node:
    """Maps the texts of categories to their numbers, or numbers to texts."""
    words, numbers = call.texts("cats_strings") or [], call.integers("cats_int64s") or []
    if not words or len(words) != len(numbers):
        raise ModelError(f"expected as many texts as numbers of categories, found {len(words)} and {len(numbers)}")
    word, number = call.text("default_string", "_Unused"), call.integer("default_int64", -1)
    tables = texts.of(words, (len(words),)), np.array(numbers, np.int64)
    keys, values = tables if call[0].dtype.is_text else tables[::-1]
    place, hit = _found(call[0], keys)
    label = indexing.take(constant(values), place)
    return select(hit, label, text.literal(word) if label.dtype.is_text else constant(number, i64))


@operator("OneHotEncoder", domain=DOMAIN)
def _one_hot_encoder(call: Call) -> Node:
    """1 at the category of each element along a new last axis, 0 at the others. An element of no category gives zeros,
    or makes the run fail. Numbers are truncated to integers."""
    x, words, numbers = call[0], call.texts("cats_strings"), call.integers("cats_int64s")
    given = words if x.dtype.is_text else numbers
    if not given:
        raise ModelError(f"expected categories for {x.dtype}")
    count = len(given)
    if len(set(given)) != count:
        raise ModelError("expected categories that differ")
    call.ignore("cats_strings", "cats_int64s")
    keys = texts.of(words, (count,)) if words and x.dtype.is_text else np.array(numbers, np.int64)
    place, hit = _found(x if x.dtype.is_text else cast(x, i64), keys)
    if not call.flag("zeros", True):
        place = indexing.take(iota(count), select(hit, place, count))
    ones = math.equal(unsqueeze(place, [place.rank]), iota(count)) & unsqueeze(hit, [hit.rank])
    return cast(ones, f32)


# ---- maps ----------------------------------------------------------------------------------------------------------


@operator("ZipMap", domain=DOMAIN)
def _zip_map(call: Call) -> Maps:
    """One map for each row, from the labels of the columns to the numbers in them."""
    x, numbers, words = scores.rows(call[0]), call.integers("classlabels_int64s"), call.texts("classlabels_strings")
    if bool(numbers) == bool(words):
        raise ModelError("expected the keys of the maps in one of classlabels_int64s and classlabels_strings")
    keys: tuple[int, ...] | tuple[str, ...] = tuple(words) if words else tuple(numbers or ())
    if len(set(keys)) != len(keys):
        raise ModelError("expected keys of maps that differ")
    if x.shape[1] != len(keys):
        raise ModelError(f"expected a column for each of {len(keys)} keys of maps, found {list(x.shape)}")
    return Maps(x, keys)


@operator("CastMap", "DictVectorizer", domain=DOMAIN)
def _maps(call: Call) -> Node:
    raise UnsupportedError("maps as inputs are not supported: give the model the tensor that this operator makes of "
                           "them, with a column for each key")  # fmt: skip
