"""Sums up to a position: ``y[t] = sum over s <= t of m[t, s] x[s]``, as of causal attention without an exponential.

A triangular matrix of constants is read in blocks. Those on the diagonal stay as they are; one below it is the product
``u[t] w[T, S] z[s]`` of a column, a number and a row, if the matrix is a mask, or decays by a factor from each position
to the next. So what lies before a block is summed up once for the block, and no longer once for each position: two
terms take the place of one, and ``w`` is a triangular matrix again, of as many rows as there are blocks.

The magnitude of a term is that of the matrix' element, which ``u w z`` is but for roundings: the bound does not grow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core import constants, interp, ir, limits, movement, traverse
from luminal.core import symbolic as sym
from luminal.core.algebra.distances import by_distance, of_array, spread
from luminal.core.algebra.terms import Axis, Factor, Region, Term, numbered, plain
from luminal.core.ops import Kind

BLOCKS = (16, 32, 64, 128, 256)  # lengths of blocks that are tried, where the matrix consists of such
WORK = 1 << 26  # operations on elements, at most, by which a matrix is computed to look at it
LEAST = 64  # rows of a matrix in which it is worth looking for blocks
_ROUNDINGS = 8  # of an element, and of the column, number and row whose product it is


def in_blocks(region: Region) -> Iterator[Region]:
    """``region`` with a triangular factor of a term in blocks, for each length that these may have."""
    for number, term in enumerate(region.terms):
        for matrix in _matrices(region, term):
            others = [other for k, other in enumerate(region.terms) if k != number]
            for length in BLOCKS:
                parted = _Parted.of(matrix, length) if matrix.array.shape[-1] % length == 0 else None
                if parted is None or matrix.array.shape[-1] == length:
                    continue
                rows = _Split(matrix.rows, length)
                terms = [parted.diagonal(term, rows), parted.below(term, rows), *map(rows.term, others)]
                if None not in terms:
                    result = tuple(sym.substitute(e, {matrix.rows: rows.position}) for e in region.result)
                    yield replace(region, terms=numbered(terms), result=result)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Split:
    """An axis as positions in blocks of a ``length``."""

    axis: Axis
    length: int

    @property
    def outer(self) -> Axis:
        assert isinstance(self.axis.hi, int)
        return Axis(f"{self.axis.name}a", 0, (self.axis.hi + 1) // self.length - 1, self.axis.summed)

    @property
    def inner(self) -> Axis:
        return Axis(f"{self.axis.name}b", 0, self.length - 1, self.axis.summed)

    @property
    def position(self) -> sym.Int:
        return sym.expr(self.outer) * self.length + sym.expr(self.inner)

    def factor(self, factor: Factor, outer: Axis | None = None) -> Factor | None:
        """``factor`` over block and position in it, or over ``outer`` for the block; None if it reads windows."""
        if self.axis not in factor.axes:
            return factor
        if factor.node is None or any(self.axis in c.axes and c.axis != self.axis for c in factor.coordinates):
            return None
        shape: list[sym.Int] = []
        coordinates = []
        for c in factor.coordinates:
            parts = [plain(outer or self.outer), plain(self.inner)] if c.axis == self.axis else [c]
            coordinates += parts
            shape += [part.extent for part in parts]
        return replace(factor, node=movement.reshape(factor.node, shape), coordinates=tuple(coordinates))

    def term(self, term: Term) -> Term | None:
        factors = [self.factor(f) for f in term.factors]
        return None if None in factors else Term(tuple(factors))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Matrix:
    """The product of all ``factors`` that have a result's axis, ``rows``, and a summed one, ``columns``: a triangular
    ``array`` over their ``others`` and these two, which may depend on these by their distance alone."""

    factors: tuple[Factor, ...]
    others: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    array: NDArray[np.float64]
    by_distance: bool


def _matrices(region: Region, term: Term) -> Iterator[_Matrix]:
    """The triangular matrices of what is known when compiling, one for each pair of axes."""
    axes = sorted(term.axes, key=str)
    for rows, columns in itertools.product(axes, axes):
        if rows.summed or not columns.summed or rows.hi != columns.hi:
            continue
        if not isinstance(rows.hi, int) or not LEAST <= rows.hi + 1 <= math.isqrt(limits.TABLE):
            continue
        factors = tuple(f for f in term.factors if rows in f.axes and columns in f.axes)
        if not factors or not all(map(_is_decided, factors)):
            continue
        others = tuple(sorted({a for f in factors for a in f.axes} - {rows, columns}, key=str))
        matrix = _known(factors, others, rows, columns)
        if matrix is not None and _is_triangular(matrix):
            yield matrix


def _is_decided(factor: Factor) -> bool:
    """Whether a factor is known when compiling, and over axes alone."""
    is_plain = all(c.axis is not None for c in factor.coordinates) and not factor.divides
    return factor.node is not None and is_plain and constants.is_decided(factor.node)


def _known(factors: tuple[Factor, ...], others: tuple[Axis, ...], rows: Axis, columns: Axis) -> _Matrix | None:
    """The product of ``factors``, which lies in memory once for each distance of a column from a row if it depends on
    no more; None if it takes too much to compute it."""
    distances: list[NDArray[np.float64]] = []
    wholes: list[NDArray[np.float64]] = []
    for factor in factors:
        assert factor.node is not None
        own = [c.axis for c in factor.coordinates]
        found = by_distance(factor.node, own.index(rows), own.index(columns), WORK)
        if found is not None:
            distances.append(_ordered(found, [a for a in own if a not in (rows, columns)], others))
        elif _is_affordable(factor):
            (array,) = interp.run([factor.node], {}, mode="float64").outputs
            array = _ordered(array, own, (*others, rows, columns))
            found = of_array(array)
            (wholes if found is None else distances).append(array if found is None else found)
        else:
            return None
    spread_ = [spread(reduce(_times, distances))] if distances else []
    return _Matrix(factors, others, rows, columns, reduce(_times, [*wholes, *spread_]), not wholes)


def _is_affordable(factor: Factor) -> bool:
    """Whether computing all of a factor takes no more than ``WORK``."""
    assert factor.node is not None
    operations = sum(x.op.kind is Kind.ELEMENTWISE for x in traverse.topological([factor.node]))
    size = factor.node.size
    return isinstance(size, int) and size * (1 + operations) <= WORK


def _is_triangular(matrix: _Matrix) -> bool:
    array = matrix.array
    if not array.any():
        return False  # a factor of zeros is no triangle of anything
    if matrix.by_distance:
        return not array[..., 0, 1:].any() or not array[..., 1:, 0].any()
    return not np.triu(array, 1).any() or not np.tril(array, -1).any()


def _ordered(array: NDArray[Any], own: Sequence[Axis | None], axes: Sequence[Axis]) -> NDArray[np.float64]:
    """``array``, whose first dimensions are over the axes ``own``, over ``axes`` in the place of these."""
    after = range(len(own), array.ndim)
    array = np.transpose(array, [*(own.index(axis) for axis in axes if axis in own), *after]).astype(np.float64)
    return array[(*(slice(None) if axis in own else None for axis in axes), ...)]


def _times(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The product, which is zero where a factor is: what a mask leaves out may be infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where((a == 0) | (b == 0), 0, a * b)


@dataclass(frozen=True)
class _Parted:
    """A triangular matrix in blocks: those on the diagonal, and for the others columns, numbers and rows."""

    matrix: _Matrix
    length: int
    on_diagonal: NDArray[np.float64]  # [.., block, row, column]
    columns: NDArray[np.float64]  # [.., block, row]
    numbers: NDArray[np.float64]  # [.., block, block]
    rows: NDArray[np.float64]  # [.., block, column]

    @classmethod
    def of(cls, matrix: _Matrix, length: int) -> _Parted | None:
        """None if a block is no product of a column, a number and a row."""
        array = matrix.array
        is_upper = bool((array[..., 0, 1:] if matrix.by_distance else np.triu(array, 1)).any())
        if is_upper:
            array = array[..., ::-1, ::-1]
        count = array.shape[-1] // length
        blocks = np.moveaxis(array.reshape(*array.shape[:-2], count, length, count, length), -2, -3)
        each = np.arange(count)
        on_diagonal = blocks[..., each, each, :, :]
        numbers = np.tril(blocks[..., 0, -1], -1)  # where a block is largest if the matrix decays
        below, above = each[1:], each[:-1]
        columns, rows = (np.ones((*array.shape[:-2], count, length)) for _ in range(2))
        corner = numbers[..., below, above][..., None]
        safe = np.where(corner == 0, 1, corner)
        beside = blocks[..., below, above, :, :]
        columns[..., 1:, :] = beside[..., -1] / safe
        rows[..., :-1, :] = beside[..., 0, :] / safe
        # Where the distance decides, each block is one of those in the first column of blocks.
        looked = slice(1) if matrix.by_distance else slice(None)
        with np.errstate(over="ignore", invalid="ignore"):
            right = numbers[..., looked, None, None] * rows[..., None, looked, None, :]
            made = columns[..., :, None, :, None] * right
        whole = np.where(np.tri(count, k=-1, dtype=bool)[:, looked, None, None], blocks[..., looked, :, :], 0)
        info = np.finfo(matrix.factors[0].dtype.numpy)
        least = float(info.smallest_subnormal)  # the steps of numbers that are less than normal
        near = np.abs(made - whole) <= _ROUNDINGS * np.maximum(float(info.eps) * np.abs(whole), least)
        if not near.all():
            return None
        if is_upper:
            on_diagonal, numbers = on_diagonal[..., ::-1, ::-1, ::-1], numbers[..., ::-1, ::-1]
            columns, rows = columns[..., ::-1, ::-1], rows[..., ::-1, ::-1]
        return cls(matrix, length, on_diagonal, columns, numbers, rows)

    def diagonal(self, term: Term, rows: _Split) -> Term | None:
        """What the blocks on the diagonal give."""
        columns = _Split(self.matrix.columns, self.length)
        block = self.constant(self.on_diagonal, (rows.outer, rows.inner, columns.inner))
        return self.term(term, rows, columns, rows.outer, [block])

    def below(self, term: Term, rows: _Split) -> Term | None:
        """What the other blocks give."""
        columns = _Split(self.matrix.columns, self.length)
        parts = [
            self.constant(self.columns, (rows.outer, rows.inner)),
            self.constant(self.numbers, (rows.outer, columns.outer)),
            self.constant(self.rows, (columns.outer, columns.inner)),
        ]
        return self.term(term, rows, columns, None, parts)

    def term(
        self, term: Term, rows: _Split, columns: _Split, outer: Axis | None, parts: list[Factor | None]
    ) -> Term | None:
        """``term`` with ``parts`` in place of the matrix; ``outer`` is the block of a column, if it is none of its
        own."""
        factors: list[Factor] = []
        for factor in term.factors:
            if factor not in self.matrix.factors:
                split = rows.factor(factor)
                split = split and columns.factor(split, outer)
                if split is None:
                    return None
                factors.append(split)
        return Term((*factors, *(part for part in parts if part is not None)))

    def constant(self, array: NDArray[np.float64], axes: tuple[Axis, ...]) -> Factor | None:
        """``array`` as a factor over the matrix' other axes and ``axes``, without the first of these if all is the same
        along it; None if it is one everywhere."""
        if (array == 1).all():
            return None
        first = len(self.matrix.others)
        if (array == np.take(array, [0], first)).all():
            array, axes = np.take(array, 0, first), axes[1:]
        dtype = self.matrix.factors[0].dtype
        coordinates = tuple(map(plain, (*self.matrix.others, *axes)))
        return Factor(ir.constant(np.ascontiguousarray(array).astype(dtype.numpy), dtype), coordinates)
