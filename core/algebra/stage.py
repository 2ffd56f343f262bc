"""The stage: every region of a graph in the form that costs least, within the law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from luminal.core import ir, ops, traverse
from luminal.core.algebra import alike, form, law, terms, write
from luminal.core.algebra.cost import Price, elements, of_spelled
from luminal.core.algebra.factoring import cheapest_sum
from luminal.core.algebra.paths import Path
from luminal.core.algebra.terms import Region
from luminal.core.algebra.triangular import in_blocks
from luminal.core.decisions import structure
from luminal.core.ir import Graph, Node, Origins
from luminal.core.origins import Approximation, Origin
from luminal.core.rewrite import readers as read_by
from luminal.core.rewrite import remade, simplify
from luminal.core.target import Target

# What is read through, and what a region is computed by at last. Views and gathers are read through even if others read
# what they give.
_READ = (ops.MUL, ops.ADD, ops.MULTIPLY_ADD, ops.DIV, ops.SUM_REDUCE, ops.SELECT)
_ROOTS = (ops.MUL, ops.ADD, ops.MULTIPLY_ADD, ops.DIV, ops.SUM_REDUCE)
_FREE = (ops.VIEW, ops.GATHER)
# A region, a path for each of its terms, and what it costs as spelled.
_Form: TypeAlias = tuple[Region, list[Path], float]
_Forms: TypeAlias = dict[str, tuple[tuple[Node, ...], list[Path], float]]
WORTH = 0.9  # most of the spelled form's cost that another may have to take its place


def improved(graph: Graph, target: Target) -> Graph:
    """``graph`` with regions in cheaper forms, each noted in ``approximations``; ``graph`` itself where there are
    none."""
    found: list[Approximation] = []
    origins: Origins = dict(graph.origins)

    forms: _Forms = {}

    def inside(roots: tuple[Node, ...]) -> tuple[Node, ...]:
        search = _Search(roots, target, origins, forms)
        results = remade(roots, origins, search.made, inside, search.became)
        found.extend(search.found)
        return results

    roots = inside(graph.roots)
    if not found:
        return graph
    return simplify(graph.computing(roots, origins=origins, approximations=(*graph.approximations, *found)))


class _Search:
    """Regions of one body, from its results upwards."""

    def __init__(self, roots: Sequence[Node], target: Target, origins: Origins, known: _Forms) -> None:
        self.target = target
        self.origins = origins
        self.known = known
        self.readers = read_by(roots)
        self.decoded = _decoded(roots)
        self.uses: dict[Node, int] = {}  # how many nodes read each, past views and gathers
        downwards = traverse.topological(roots)[::-1]
        for node in downwards:
            read = self.readers.get(node, ())
            self.uses[node] = sum(self.uses.get(x, 1) if x is not None and x.op in _FREE else 1 for x in read)
        self.became: dict[Node, Node] = {}
        self.found: list[Approximation] = []
        self.pinned: dict[Node, bool] = {}
        self.forms: dict[Node, Node] = {}
        taken: set[Node] = set()
        for node in downwards:
            if node in taken or node.op not in _ROOTS or node.dtype.compute != node.dtype:
                continue
            if any(reader is not None and reader.op is ops.SUM_REDUCE for reader in self.readers[node]):
                continue  # it is a part of that sum, and never stored
            region = self.read(node, ())
            if any(part.op is ops.SUM_REDUCE for part in region.spelled) and self.choose(node, region):
                taken.update(region.spelled)

    def read(self, root: Node, pinned: Sequence[Node]) -> Region:
        def inside(node: Node) -> bool:
            if node.op in _FREE:
                return True
            apart = node in self.decoded or node in pinned or self.uses[node] > 1
            return node.op in _READ and node.dtype == root.dtype and not apart

        return terms.read(root, inside)

    def choose(self, root: Node, region: Region) -> bool:
        """Enters the form of ``region`` that costs least, if it is worth it."""
        price = Price.of(self.target, root.dtype)
        if self.target.forms is None and self.cheapest(region, price) is None:
            return False
        pinned = [node for node in region.spelled if node.op is ops.SUM_REDUCE and self.cancels(node)]
        if pinned:
            # What cancels stays as it is, and so do its operands.
            apart = [x for node in pinned for x in (node, node.inputs[0], *node.inputs[0].inputs)]
            region = self.read(root, apart)
        found = None if root in pinned else self.cheapest(region, price)
        if found is None:
            return False
        region, paths, before = found
        if root.dtype.is_float and not law.Ranges(root.dtype).allow(paths, region.spelled):
            return False
        origins: Origins = {}
        with ir.originating(origins, *self.origins_of(region)):
            made = write.written(region, paths)
        # Cost of a path takes each value for stored. What the nodes cost is compared as well, by one measure for both.
        after = of_spelled(_between(made, region), price)
        if after >= WORTH * before:
            return False
        self.forms[root] = made
        self.origins.update((node, found) for node, found in origins.items() if node not in self.origins)
        words = f"{spelled(root, region)} becomes {written(paths)}, for {before:.0f} cycles {after:.0f}"
        key, _ = alike.described(region)
        noted = Approximation("algebra", words, self.origins_of(region), structure("region", key), form.written(paths))
        self.found.append(noted)
        return True

    def cheapest(self, region: Region, price: Price) -> _Form | None:
        """``region``, with triangular factors in blocks or not, and the paths of the form that costs least; or of the
        one that ``Target.forms`` says. None if there is none, or if it costs no less than what is spelled."""
        before = of_spelled(region.spelled, price)
        if self.target.forms is not None:
            noted = self.noted(region, price)
            return None if noted is None else (*noted, before)
        best, (paths, cost) = region, self.paths(region, price)
        while True:
            ways = [(*self.paths(other, price), other) for other in in_blocks(best)]
            if not ways or min(way[1] for way in ways) >= cost:
                return (best, paths, before) if cost < WORTH * before else None
            paths, cost, best = min(ways, key=lambda way: way[1])

    def paths(self, region: Region, price: Price) -> tuple[list[Path], float]:
        """``cheapest_form``, which is found once for regions that are alike."""
        key, tensors = alike.described(region)
        if key not in self.known:
            self.known[key] = tensors, *cheapest_form(region, price)
            return self.known[key][1:]
        others, paths, cost = self.known[key]
        by = dict(zip(others, tensors, strict=True))
        return [alike.renewed(path, by) for path in paths], cost

    def noted(self, region: Region, price: Price) -> tuple[Region, list[Path]] | None:
        """The form that ``Target.forms`` has for ``region``, or for one in blocks of it."""
        assert self.target.forms is not None
        text = self.target.forms.get(structure("region", alike.described(region)[0]))
        if text is not None:
            return region, form.read(text, region, price)
        return next((found for other in in_blocks(region) if (found := self.noted(other, price))), None)

    def origins_of(self, region: Region) -> tuple[Origin, ...]:
        return ir.joined((), tuple(dict.fromkeys(o for node in region.spelled for o in self.origins.get(node, ()))))

    def cancels(self, node: Node) -> bool:
        if node not in self.pinned:
            self.pinned[node] = law.cancels(node)
        return self.pinned[node]

    def made(self, node: Node, operands: Sequence[Node]) -> Node:
        return self.moved(self.forms[node]) if node in self.forms else traverse.rebuild(node, operands)

    def moved(self, node: Node) -> Node:
        """A new node over what old ones have become."""
        if node not in self.became:
            self.became[node] = traverse.rebuild(node, [self.moved(x) for x in node.inputs])
        return self.became[node]


def _decoded(roots: Sequence[Node]) -> set[Node]:
    """What is computed of constants and is not folded, from positions too, as by taking bytes apart: narrow weights,
    which kernels decode as they read them. A function of positions and numbers alone is none."""
    found: set[Node] = set()
    positions: set[Node] = set()
    for node in traverse.topological(roots):
        if node.op is ops.IOTA and isinstance(node.size, int):
            positions.add(node)
        elif node.inputs and all(x.op is ops.CONSTANT or x in found or x in positions for x in node.inputs):
            stored = any(x in found or (x.op is ops.CONSTANT and x.size != 1) for x in node.inputs)
            (found if stored or not positions.intersection(node.inputs) else positions).add(node)
    return found


def _between(root: Node, region: Region) -> list[Node]:
    """The nodes under ``root`` that compute ``region`` of its factors."""
    factors = {factor.node for term in region.terms for factor in term.factors}
    found: dict[Node, None] = {}
    open_ = [root]
    while open_:
        node = open_.pop()
        if node not in found and node not in factors and node.inputs:
            found[node] = None
            open_ += node.inputs
    return list(found)


def cheapest_form(region: Region, price: Price) -> tuple[list[Path], float]:
    """The paths of the cheapest form of ``region``, and their cost."""
    found = cheapest_sum(region.terms, elements(region.root), region.root.dtype.itemsize, price)
    return list(found.paths), found.cost


def spelled(node: Node, region: Region) -> str:
    """The form of a region as it stands in the graph, in words."""
    if node not in region.spelled:
        return name(node)
    if node.op in _FREE:
        return spelled(node.inputs[0], region)
    parts = [spelled(x, region) for x in node.inputs[node.op is ops.SELECT :]]
    if node.op is ops.SUM_REDUCE:
        return f"sum{list(node.attr.axes)} {parts[0]}"
    if node.op is ops.MULTIPLY_ADD:
        return f"({parts[0]} * {parts[1]} + {parts[2]})"
    return f"({_SIGNS[node.op].join(parts)})"


_SIGNS = {ops.SELECT: " | ", ops.MUL: " * ", ops.ADD: " + ", ops.DIV: " / "}


def written(paths: Sequence[Path]) -> str:
    """Paths in words."""
    return " + ".join(map(_path, paths))


def _path(path: Path) -> str:
    if path.factor is not None:
        return f"({written(path.factor.added)})" if path.factor.node is None else name(path.factor.node)
    assert path.left is not None
    sign = "" if path.right is None else " / " if path.right.divides else " * "
    right = "" if path.right is None else _path(path.right)
    over = [str(c) for c in path.domain if c not in path.coordinates]
    product = f"({_path(path.left)}{sign}{right})"
    if path.constant:
        return f"constant{product}"
    return f"sum[{', '.join(over)}] {product}" if over else product


def name(node: Node) -> str:
    """A factor in words."""
    node = node.inputs[0] if node.op is ops.VIEW else node
    return str(node.attr.name) if node.op is ops.INPUT else f"{node.op}{list(node.shape)}"
