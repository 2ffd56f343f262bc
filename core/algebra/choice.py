"""The forms of a region among which a measurement may choose, and each of them as a graph of its own.

Candidates are the form that the stage takes by itself, what the model spells, and the others that cost little more. Two
forms with the same sums, of the same tensors over as many elements, count as one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from luminal.core import constants, ir, ops, sizes, traverse
from luminal.core import symbolic as sym
from luminal.core.algebra import form, law, write
from luminal.core.algebra.cost import Price, elements
from luminal.core.algebra.factoring import near_sums
from luminal.core.algebra.paths import Path, size
from luminal.core.algebra.terms import Lookup, Region
from luminal.core.algebra.triangular import in_blocks
from luminal.core.decisions import Candidate
from luminal.core.ir import Graph, Node, Origins
from luminal.core.origins import Origin

NEAR = 1.2  # times the least cost, at most, of a form that is a candidate
SPELLED = "as spelled"

# How often a form sums what, of which tensors: over so many elements, to so many.
_Sums: TypeAlias = frozenset[tuple[tuple[frozenset[Node], int, int], int]]


@dataclass(frozen=True)
class Named:
    """A choice by its text, which is all of it that another process gets: ``choice`` is None there."""

    text: str
    choice: Choice | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return Named, (self.text,)


@dataclass(frozen=True)
class Choice:
    """A form of the region ``whole``: ``region`` is that or the same in blocks, and ``paths`` has one for each of its
    terms, or is None for the form as it stands in the graph. ``text`` is its name in records: it says which blocks, by
    number, and the form."""

    text: str
    whole: Region = field(compare=False)
    region: Region = field(compare=False)
    paths: tuple[Path, ...] | None = field(compare=False)
    origins: tuple[Origin, ...] = field(compare=False)

    @property
    def candidate(self) -> Candidate[Named]:
        return Candidate("form", Named(self.text, self))

    @cached_property
    def made(self) -> tuple[Node, Origins]:
        """The node that computes the region so, and the origins of what that is made of."""
        origins: Origins = {}
        with ir.originating(origins, *self.origins):
            node = self.region.root if self.paths is None else write.written(self.region, self.paths)
        return node, origins

    @property
    def node(self) -> Node:
        return self.made[0]


def spelled(region: Region, origins: tuple[Origin, ...]) -> Choice:
    """The form in which the graph has ``region``."""
    return Choice(SPELLED, region, region, None, origins)


def of_paths(
    whole: Region, region: Region, paths: Sequence[Path], origins: tuple[Origin, ...], blocks: str = ""
) -> Choice:
    """The form of ``paths``, over ``whole`` or the same in blocks."""
    return Choice(f"{blocks}{form.written(paths)}", whole, region, tuple(paths), origins)


def near(taken: Choice, other: Choice, region: Region, price: Price, most: float) -> list[Choice]:
    """``taken`` and the forms of ``region`` that cost at most so much, within the law: ``other``, if it differs, and
    all that are found."""
    found = {_sums(choice): choice for choice in (other, taken)}
    ranges = law.Ranges(region.root.dtype) if region.root.dtype.is_float else None
    for blocks, parted in (("", region), *_parted(region)):
        for way in near_sums(parted.terms, elements(region.root), region.root.dtype.itemsize, price, NEAR):
            choice = of_paths(region, parted, way.paths, taken.origins, blocks)
            allowed = ranges is None or ranges.allow(way.paths, region.spelled)
            if way.cost <= most and allowed:
                found.setdefault(_sums(choice), choice)
    return [taken, *(choice for choice in found.values() if choice != taken)]


def _parted(region: Region) -> Iterator[tuple[str, Region]]:
    return ((f"blocks {number}: ", parted) for number, parted in enumerate(in_blocks(region)))


def _sums(choice: Choice) -> _Sums:
    """What a form sums."""
    found = _spelled_sums(choice.region) if choice.paths is None else _path_sums(choice.paths)
    return frozenset(Counter(found).items())


def _path_sums(paths: Iterable[Path]) -> Iterator[tuple[frozenset[Node], int, int]]:
    for step in (step for path in paths for step in path.steps):
        is_sum = len(step.domain) > len(step.coordinates) and not step.constant
        if is_sum:
            yield frozenset(_leaves(step)), round(size(step.domain)), round(size(step.coordinates))


def _leaves(path: Path) -> Iterator[Node]:
    """The tensors of which ``path`` is computed."""
    if path.factor is not None and path.factor.node is not None:
        yield _source(path.factor.node)
        return
    operands = path.factor.added if path.factor is not None else (path.left, path.right)
    for x in operands:
        yield from () if x is None else _leaves(x)


def _spelled_sums(region: Region) -> Iterator[tuple[frozenset[Node], int, int]]:
    inside = set(region.spelled)
    known: dict[Node, frozenset[Node]] = {}

    def leaves(node: Node) -> frozenset[Node]:
        if node not in inside:
            return frozenset([_source(node)])
        if node not in known:
            read = node.inputs[:1] if node.op is ops.GATHER else node.inputs[node.op is ops.SELECT :]
            known[node] = frozenset().union(*map(leaves, read))
        return known[node]

    for node in region.spelled:
        if node.op is ops.SUM_REDUCE:
            yield leaves(node), round(elements(node.inputs[0])), round(elements(node))


def _source(node: Node) -> Node:
    while node.op is ops.VIEW:
        node = node.inputs[0]
    return node


# ---- a form by itself ----------------------------------------------------------------------------------------------


def graphs(choices: Sequence[Choice]) -> list[Graph] | None:
    """A graph for each of the ``choices`` for one region, with an input for each tensor that is not known when
    compiling; None where the inputs' shapes do not tell all sizes."""
    region = choices[0].whole
    names = (f"x{number}" for number in itertools.count())
    inside = set(region.spelled)
    given: dict[Node, Node] = {}
    for node in _read(region):
        source = _source(node)
        if source not in inside and source not in given and not constants.is_decided(source):
            given[source] = ir.input_(next(names), source.shape, source.dtype)
    extents = [extent for node in given.values() for extent in node.shape]
    dims = sorted({v for extent in extents for v in sym.variables(extent)}, key=lambda v: v.name)
    roots = traverse.substitute([choice.node for choice in choices], given)
    told = {solution.symbol for solution in sizes.solve(extents)}
    if not told.issuperset({*dims, *_used(roots)}):
        return None
    return [
        Graph("form", tuple(given.values()), (("y", root),), tuple(dims), dict.fromkeys(_computed(root), c.origins))
        for root, c in zip(roots, choices, strict=True)
    ]


def _read(region: Region) -> Iterator[Node]:
    """The tensors that ``region`` reads, tables of positions included."""
    for factor in (factor for term in region.terms for factor in term.factors):
        yield from () if factor.node is None else (factor.node,)
        yield from (c.position.table for c in factor.coordinates if isinstance(c.position, Lookup))


def _used(roots: Collection[Node]) -> set[sym.Var]:
    return {v for node in traverse.topological(roots) for extent in node.shape for v in sym.variables(extent)}


def _computed(root: Node) -> list[Node]:
    return [node for node in traverse.topological([root]) if node.inputs]
