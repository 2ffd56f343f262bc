"""The stage: every region of a graph in the form that costs least, within the law."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from luminal.core import ir, ops, traverse
from luminal.core.algebra import alike, by_size, choice, form, functions, law, terms
from luminal.core.algebra.by_size import BySize
from luminal.core.algebra.choice import Choice
from luminal.core.algebra.cost import Price, elements, of_spelled
from luminal.core.algebra.factoring import cheapest_sum
from luminal.core.algebra.paths import Path
from luminal.core.algebra.shared import FREE, READ, Shared, is_factor
from luminal.core.algebra.terms import Lookup, Region
from luminal.core.algebra.triangular import in_blocks
from luminal.core.decisions import FORMULA, structure
from luminal.core.ir import Graph, Node, Origins
from luminal.core.origins import Approximation, Origin
from luminal.core.rewrite import readers as read_by
from luminal.core.rewrite import remade, simplify
from luminal.core.symbolic import Var
from luminal.core.target import Target

_ROOTS = (ops.MUL, ops.ADD, ops.MULTIPLY_ADD, ops.DIV, ops.SUM_REDUCE)  # what a region is computed by at last
# A region, a path for each of its terms, and what it costs as spelled.
_Form: TypeAlias = tuple[Region, list[Path], float]
# By the text of a region and its sizes: its tensors, the paths of its cheapest form, and what that costs.
Forms: TypeAlias = dict[tuple[str, tuple[Var, ...]], tuple[tuple[Node, ...], list[Path], float]]
WORTH = 0.9  # most of the spelled form's cost that another may have to take its place


def improved(graph: Graph, target: Target, known: Forms | None = None) -> Graph:
    """``graph`` with functions in simpler forms, and regions in cheaper ones, each noted in ``approximations``;
    ``graph`` itself where there are none. ``known`` are those that were found in other graphs for this target, to which
    those of this one are added."""
    graph = functions.simpler(graph)
    found: list[Approximation] = []
    origins: Origins = dict(graph.origins)
    forms = {} if known is None else known

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

    def __init__(self, roots: Sequence[Node], target: Target, origins: Origins, known: Forms) -> None:
        self.target = target
        self.origins = origins
        self.known = known
        self.readers = read_by(roots)
        self.decoded = _decoded(roots)
        self.uses: dict[Node, int] = {}  # how many nodes read each, past views and gathers
        downwards = traverse.topological(roots)[::-1]
        for node in downwards:
            read = self.readers.get(node, ())
            self.uses[node] = sum(self.uses.get(x, 1) if x is not None and x.op in FREE else 1 for x in read)
        self.became: dict[Node, Node] = {}
        self.found: list[Approximation] = []
        self.pinned: dict[Node, bool] = {}
        self.forms: dict[Node, Node] = {}
        taken: set[Node] = set()
        shared = Shared(downwards, self.readers, self.uses)
        for node, ends in shared:
            if node not in self.decoded and taken.isdisjoint((node, *ends)):
                taken.update(self.choose_together(ends, node, shared.below(node)))
        for node in downwards:
            if node in taken or node.op not in _ROOTS or node.dtype.compute != node.dtype:
                continue
            if any(reader is not None and reader.op is ops.SUM_REDUCE for reader in self.readers[node]):
                continue  # it is a part of that sum, and never stored
            region = self.read(node, ())
            if any(part.op is ops.SUM_REDUCE for part in region.spelled) and self.choose(node, region):
                taken.update(region.spelled)

    def read(self, root: Node, pinned: Sequence[Node], opened: Collection[Node] = ()) -> Region:
        def inside(node: Node) -> bool:
            if node.op in FREE:
                return True
            apart = node in self.decoded or node in pinned or (self.uses[node] > 1 and node not in opened)
            return node.op in READ and node.dtype == root.dtype and not apart

        return terms.read(root, inside)

    def choose(self, root: Node, region: Region) -> bool:
        """Enters the form of ``region`` that costs least, or that was measured to be faster, if it is worth it."""
        price = Price.of(self.target, root.dtype)
        if not self.asks and not by_size.dims(region) and self.cheapest(region, price) is None:
            return False
        allowed = self.allowed(region)
        if allowed is None:
            return False
        both = self.by_size(allowed, price)
        if both is not None:
            self.enter_both(root, allowed, both)
            return True
        least = self.least(allowed, price)
        taken = self.measured(allowed, least, price)
        if taken.paths is None:
            return False
        before, after = (of_spelled(nodes, price) for nodes in (allowed.spelled, _between(taken.node, taken.region)))
        self.enter(taken, before, after, "" if taken == least else ", as measured")
        return True

    def apart(self, root: Node, price: Price) -> float:
        """What the region of ``root`` costs in the form that it gets by itself."""
        region = self.read(root, ())
        allowed = self.allowed(region)
        least = None if allowed is None else self.least(allowed, price)
        if least is None or least.paths is None:
            return of_spelled(region.spelled, price)
        return of_spelled(_between(least.node, least.region), price)

    def choose_together(self, roots: Sequence[Node], opened: Node, below: Sequence[Node]) -> list[Node]:
        """Enters the forms of several regions, which all read the node ``opened`` through, and those ``below`` it if
        that is cheaper, if together they are worth it, and cost less than if it is computed once; what they compute."""
        price = Price.of(self.target, opened.dtype)
        tried = [self.together(roots, nodes, price) for nodes in ([opened], [opened, *below])[: 2 if below else 1]]
        ways = [way for way in tried if way is not None]
        if not ways:
            return []
        found, before, after = min(ways, key=lambda way: way[2])
        if self.target.forms is None and after >= WORTH * sum(self.apart(root, price) for root in (*roots, opened)):
            return []
        for taken in found:
            self.enter(taken, before, after)
        return list(dict.fromkeys(node for taken in found for node in taken.region.spelled))

    def together(
        self, roots: Sequence[Node], opened: Sequence[Node], price: Price
    ) -> tuple[list[Choice], float, float] | None:
        """The forms of the regions of ``roots``, which read all that is ``opened`` through, and what all together cost
        as spelled, and so; None if they are not worth it."""
        found: list[Choice] = []
        least = 0.0
        for root in roots:
            region = self.allowed(self.read(root, (), opened), opened)
            best = None if region is None or any(is_factor(x, region) for x in opened) else self.best(region, price)
            if region is None or best is None:
                return None
            other, paths, cost = best
            found.append(choice.of_paths(region, other, paths, self.origins_of(region)))
            least += cost
        before = of_spelled(dict.fromkeys(node for taken in found for node in taken.whole.spelled), price)
        if self.target.forms is None and least >= WORTH * before:
            return None
        if not all(taken.paths is not None and self.is_lawful(taken.whole, taken.paths) for taken in found):
            return None
        after = of_spelled(dict.fromkeys(x for taken in found for x in _between(taken.node, taken.region)), price)
        return None if after >= WORTH * before else (found, before, after)

    def allowed(self, region: Region, opened: Collection[Node] = ()) -> Region | None:
        """``region`` without what cancels; None if that is all of it, or if nothing is summed."""
        sums = [node for node in region.spelled if node.op is ops.SUM_REDUCE]
        pinned = [node for node in sums if self.cancels(node)]
        if not sums or region.root in pinned:
            return None
        # What cancels stays as it is, and so do its operands.
        apart = [x for node in pinned for x in (node, node.inputs[0], *node.inputs[0].inputs)]
        return self.read(region.root, apart, opened) if pinned else region

    def is_lawful(self, region: Region, paths: Sequence[Path]) -> bool:
        """Whether the law allows ``region`` in the form of ``paths``."""
        dtype = region.root.dtype
        return not dtype.is_float or law.Ranges(dtype).allow(paths, region.spelled)

    def enter(self, taken: Choice, before: float, after: float, why: str = "") -> None:
        """Enters a form for the root of its region."""
        assert taken.paths is not None
        root, (made, origins) = taken.region.root, taken.made
        self.forms[root] = made
        self.origins.update((node, found) for node, found in origins.items() if node not in self.origins)
        as_was = spelled(root, taken.whole)
        words = f"{as_was} becomes {written(taken.paths)}, for {before:.0f} cycles {after:.0f}{why}"
        key = structure("region", alike.described(taken.region)[0])
        noted = Approximation("algebra", words, taken.origins, key, form.written(taken.paths))
        self.found.append(noted)

    def by_size(self, region: Region, price: Price) -> BySize | None:
        """Two forms of ``region`` of which the size decides, or those that ``Target.forms`` says."""
        if self.target.grid is not None or not by_size.dims(region):
            return None
        if self.target.forms is not None:
            text = self.target.forms.get(structure("region", alike.described(region)[0]))
            return None if text is None else by_size.read(text, region, price)
        both = by_size.found(region, price, lambda one: self.paths(one, price)[0])
        return both if both is None or all(self.is_lawful(region, p) for p in (both.below, both.above)) else None

    def enter_both(self, root: Node, region: Region, both: BySize) -> None:
        """Enters a branch for ``root``."""
        origins: Origins = {}
        of = self.origins_of(region)
        with ir.originating(origins, *of):
            self.forms[root] = both.node(region)
        self.origins.update((node, found) for node, found in origins.items() if node not in self.origins)
        words = (
            f"{spelled(root, region)} becomes {written(both.below)} while {both.dim.name} < {both.bound}, "
            f"else {written(both.above)}"
        )
        key = structure("region", alike.described(region)[0])
        self.found.append(Approximation("algebra", words, of, key, str(both)))

    @property
    def asks(self) -> bool:
        """Whether measurements may choose another form than the cheapest."""
        return self.target.forms is None and self.target.decisions is not FORMULA

    def least(self, region: Region, price: Price) -> Choice:
        """The form of ``region`` that costs least, as spelled if that is worth it."""
        origins = self.origins_of(region)
        as_spelled = choice.spelled(region, origins)
        found = self.cheapest(region, price)
        if found is None:
            return as_spelled
        other, paths, before = found
        if not self.is_lawful(region, paths):
            return as_spelled
        # Cost of a path takes each value for stored. What the nodes cost is compared as well, by one measure for both.
        made = choice.of_paths(region, other, paths, origins, "" if other is region else "blocks: ")
        pays = self.target.forms is not None or of_spelled(_between(made.node, other), price) < WORTH * before
        return made if pays else as_spelled

    def measured(self, region: Region, found: Choice, price: Price) -> Choice:
        """The form of ``region`` that measurements choose; ``found`` where there are none."""
        if not self.asks:
            return found
        before = of_spelled(region.spelled, price)
        as_spelled = choice.spelled(region, found.origins)
        cost = before if found.paths is None else of_spelled(_between(found.node, found.region), price)
        other = as_spelled if before <= choice.NEAR * cost else found
        near = choice.near(found, other, region, price, choice.NEAR * cost)
        if len(near) == 1:
            return found
        described = alike.described(region)[0]
        taken, _ = self.target.decisions.ask("form", lambda: described, [one.candidate for one in near])
        assert taken.choice is not None
        return taken.choice

    def cheapest(self, region: Region, price: Price) -> _Form | None:
        """``region``, with triangular factors in blocks or not, and the paths of the form that costs least; or of the
        one that ``Target.forms`` says. None if there is none, or if it costs no less than what is spelled."""
        before = of_spelled(region.spelled, price)
        found = self.best(region, price)
        if found is None or (self.target.forms is None and found[2] >= WORTH * before):
            return None
        return found[0], found[1], before

    def best(self, region: Region, price: Price) -> tuple[Region, list[Path], float] | None:
        """The same, and its cost, whatever it is."""
        if self.target.forms is not None:
            noted = self.noted(region, price)
            return None if noted is None else (*noted, 0.0)
        best, (paths, cost) = region, self.paths(region, price)
        while True:
            ways = [(*self.paths(other, price), other) for other in in_blocks(best)]
            if not ways or min(way[1] for way in ways) >= cost:
                return best, paths, cost
            paths, cost, best = min(ways, key=lambda way: way[1])

    def paths(self, region: Region, price: Price) -> tuple[list[Path], float]:
        """``cheapest_form``, which is found once for regions that are alike."""
        text, tensors, dims = alike.described(region)
        key = text, dims
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
        if text is not None and by_size.read(text, region, price) is None:
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
    read = [f for term in region.terms for f in term.factors]
    tables = [c.position.table for f in read for c in f.coordinates if isinstance(c.position, Lookup)]
    factors = {x.inputs[0] if x.op is ops.VIEW else x for x in (*tables, *(f.node for f in read)) if x is not None}
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
    if node.op in FREE:
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
