"""How often known sequences of numbers occur, with gaps (ONNX TfIdfVectorizer)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.decompose import scattering, sorting
from luminal.core.decompose.indexing import full, take
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, constant, select
from luminal.core.movement import pad, slice_
from luminal.core.types import i64


def count(x: Node, grams: Mapping[tuple[int, ...], int], size: int, sizes: Sequence[int], skips: int) -> Node:
    """For rows ``x [batch, n]`` of integers, how often each of ``grams`` occurs, as ``[batch, size]`` int64.

    A gram counts at the position that it maps to, where its length is one of ``sizes``. Between its neighbours there
    are 0 to ``skips`` other elements, the same number everywhere; single ones count once. An element costs a binary
    search for each element of a gram, however many grams there are. Raises ShapeError where n has no upper bound.
    """
    batch, length = x.shape
    x = cast(x, i64)
    prefixes = sorted({gram[:k] for gram in grams for k in range(1, len(gram) + 1)}, key=lambda p: (len(p), p))
    number = {prefix: k for k, prefix in enumerate(prefixes, start=1)}  # 0: none
    words = np.unique([word for gram in grams for word in gram]).astype(np.int64)
    # A prefix and a word make one number; the table says which prefix they make together.
    keys = {number.get(p[:-1], 0) * len(words) + int(np.searchsorted(words, p[-1])): number[p] for p in prefixes}
    ordered = sorted(keys)
    table, longer = (constant(np.array(values, np.int64)) for values in (ordered, [keys[key] for key in ordered]))
    goes_to = np.full(len(prefixes) + 1, size)  # one more position, for what is not counted
    for gram, position in grams.items():
        if len(gram) in sizes:
            goes_to[number[gram]] = position
    place, known = sorting.find(constant(words), x)

    most = sym.upper(length)
    if most is None:
        raise ShapeError(f"n-grams: expected rows that have an upper bound, found {length} elements")
    total = full((batch, size + 1), 0, i64)
    for skip in range(min(skips + 1, most) if max(sizes) > 1 else 1):
        found = full((batch, length), 0, i64)
        alive = known
        for start in range(0, min(most, max(sizes) * (skip + 1)), skip + 1):
            # What lies beyond the end is no word.
            here, is_word = (slice_(pad(x, [0, 0], [0, start]), 1, start, length) for x in (place, known))
            at, exists = sorting.find(table, found * len(words) + here)
            alive = alive & is_word & exists
            found = select(alive, take(longer, at), 0)
            if start or not skip:
                ones = full(found.shape, 1, i64)
                total = scattering.scatter_elements(total, take(constant(goes_to), found), ones, 1, "add")
    return slice_(total, 1, 0, size)
