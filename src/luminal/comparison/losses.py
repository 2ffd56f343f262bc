"""Which source operators lose most where operands or weights are rounded, and what it costs and gains to keep them.

The interpreter runs the graph as it would be compiled: with everything rounded, with nothing, and with what each
operator multiplies rounded by itself. An error is the root mean square of an output's difference from float64, by that
of the output; of several outputs, the largest. Roundings are independent, so that squares of the errors of operators
add up; what they add up to, and what is left with some operators kept, is run too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from luminal.comparison.measure import finite
from luminal.core import interp, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.origins import Origin
from luminal.core.precision import FP32, STORED, Precision
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.contraction.contraction import operand
from luminal.core.schedule.numeric import quantise
from luminal.core.schedule.numeric.quantise import Scheme
from luminal.core.schedule.numeric.rounding import is_rounded, rounded

GOAL = 0.5  # of the whole error: what the operators that are kept are to leave

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Loss:
    """An operator: the ``error`` of the model's outputs where this operator alone is rounded, its ``share`` of the
    squares of all errors, and what it costs to keep it: ``bytes`` more of weights, and ``products`` (multiplications of
    one run) that are wide again."""

    origin: Origin
    error: float
    share: float
    bytes: int
    products: int


@dataclass(frozen=True)
class Mixed:
    """The operators that ``option`` (a precision, or a scheme of weights) rounds, the one that loses most first.

    ``error`` is that of the outputs with all of them rounded, ``exact`` with none, ``left`` with the first ``kept``
    operators as they are; these are the fewest that are expected to leave half of the error. ``products`` are those of
    all operators."""

    option: str
    losses: tuple[Loss, ...]
    error: float
    exact: float
    kept: int
    left: float
    products: int

    @property
    def precision(self) -> dict[str, str]:
        """The argument of ``luminal.compile`` that keeps them; for weights, beside ``weights``."""
        lower = {} if self.option in quantise.ALL else {"*": self.option}
        return lower | {_key(loss.origin): FP32.name for loss in self.losses[: self.kept]}

    @property
    def bytes(self) -> int:
        """The bytes that weights take more with them."""
        return sum(loss.bytes for loss in self.losses[: self.kept])

    @property
    def wide(self) -> float:
        """The part of all products that is wide with them."""
        return sum(loss.products for loss in self.losses[: self.kept]) / max(1, self.products)

    def table(self, most: int = 12) -> Table:
        """The first operators as a table."""
        title = f"{self.option}: error {self.error:.1e} in all, {self.exact:.1e} without; by operator"
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
        table.add_column("operator", overflow="fold")
        for heading in ("alone", "share", "weights", "products"):
            table.add_column(heading, justify="right", no_wrap=True)
        for loss in self.losses[:most]:
            more, part = f"+{loss.bytes / 1e6:.2f} MB", f"{loss.products / max(1, self.products):.1%}"
            table.add_row(str(loss.origin), f"{loss.error:.1e}", f"{loss.share:.0%}", more, part)
        return table

    @property
    def advice(self) -> str:
        """What to keep, what that leaves of the error, and what it costs."""
        if not self.kept:
            return f"{self.option}: no operator loses anything"
        return (
            f"keeping {self.kept} of {len(self.losses)} leaves an error of {self.left:.1e}, for "
            f"{self.bytes / 1e6:.2f} MB more of weights and {self.wide:.1%} of the products: "
            f"precision={self.precision!r}"
        )

    def as_json(self) -> dict[str, Any]:
        rows = [{"operator": str(x.origin), "error": finite(x.error), "share": x.share, "bytes": x.bytes,
                 "products": x.products} for x in self.losses]  # fmt: skip
        return {
            "option": self.option, "error": finite(self.error), "exact": finite(self.exact), "operators": rows,
            "keep": {"precision": self.precision, "error": finite(self.left), "bytes": self.bytes,
                     "products": self.wide},
            "advice": self.advice,
        }  # fmt: skip


def _key(origin: Origin) -> str:
    return f"{origin.op} {origin.name!r}"


def check(precision: Precision, scheme: Scheme | None) -> None:
    """Raises InputError unless there is one thing to look at, which operators can be kept from."""
    if (scheme is not None) == (precision.stored is not None):
        found = "both" if scheme is not None else f"the precision {precision.name} for all operators, and no weights"
        raise InputError(f"mixed: expected a precision of {', '.join(p.name for p in STORED)}, or weights of "
                         f"{', '.join(quantise.ALL)}; found {found}")  # fmt: skip


def measured(
    graph: Graph,
    inputs: Arrays,
    precision: Precision,
    scheme: Scheme | None,
    watch: Callable[[float], object] = lambda part: None,
) -> Mixed:
    """The operators of ``graph`` that ``precision`` or ``scheme`` rounds, with the loss of each on ``inputs``; what the
    graph keeps ``exact`` already stays so. Raises InputError where neither rounds anything."""
    rounds = _Rounds(graph, inputs, precision, scheme)
    found = rounds.operators()
    if not found:
        raise InputError("mixed: expected a precision or weights that round something; found no such operator")
    alone: dict[Origin, float] = {}
    for number, origin in enumerate(found):
        alone[origin] = rounds.error(found.keys() - {origin})
        watch((number + 1) / (len(found) + 3))
    exact, error = rounds.error(found.keys()), rounds.error(())
    # What an operator adds to the rounding that is there without it.
    added = {origin: max(0.0, value**2 - exact**2) for origin, value in alone.items()}
    total = sum(added.values())
    order = sorted(found, key=lambda origin: (-added[origin], str(origin)))
    losses = tuple(
        Loss(origin, alone[origin], added[origin] / total if total else 0.0, *found[origin]) for origin in order
    )
    kept = _fewest(losses)
    left = rounds.error({loss.origin for loss in losses[:kept]}) if kept else error
    watch(1.0)
    option = precision.name if scheme is None else scheme.name
    return Mixed(option, losses, error, exact, kept, left, rounds.products())


def _fewest(losses: Sequence[Loss]) -> int:
    """How many of the first operators have to be kept for what is left of the error to be half."""
    rest = sum(loss.share for loss in losses)
    if not rest:
        return 0
    for kept, loss in enumerate(losses):
        if rest <= GOAL**2:
            return kept
        rest -= loss.share
    return len(losses)


@dataclass
class _Rounds:
    """A graph run with what some operators multiply rounded."""

    graph: Graph
    inputs: Arrays
    precision: Precision
    scheme: Scheme | None

    def __post_init__(self) -> None:
        self.dims = interp.bind(self.graph.given, self.inputs, {})
        self.expected = interp.run(self.graph, self.inputs, "float64").outputs
        self.contracted = Contracted.of(self.graph)

    def operators(self) -> dict[Origin, tuple[int, int]]:
        """The operators that are rounded: the bytes that their weights take more, and their products."""
        found: dict[Origin, tuple[int, int]] = {}
        for node in self._nodes():
            for origin in self.graph.origins.get(node, ()):
                more, products = found.get(origin, (0, 0))
                found[origin] = more + self._bytes(node), products + self._products(node)
        return found

    def products(self) -> int:
        """All multiplications of contractions."""
        return sum(map(self._products, self.contracted.contractions))

    def error(self, exact: Collection[Origin]) -> float:
        """The error of the outputs with everything rounded but what the operators ``exact`` multiply."""
        graph = replace(self.graph, exact=self.graph.exact | frozenset(exact))
        if self.scheme is not None:
            graph = quantise.quantised(graph, self.scheme)
        if self.precision.unit:
            graph = rounded(Contracted.of(graph), self.precision).graph
        found = interp.run(graph, self.inputs).outputs
        return max(
            (_apart(x, y) for x, y in zip(found, self.expected, strict=True) if x.dtype.kind == "f"), default=0.0
        )

    def _nodes(self) -> list[Node]:
        contractions = self.contracted.contractions
        if self.scheme is None:
            every = traverse.everything(self.graph.roots)
            return [n for n in every if is_rounded(n, contractions, self.precision) and not self.graph.keeps(n)]
        noted = quantise.quantised(self.graph, self.scheme).approximations
        those = {origin for made in noted if made.option == "weights" for origin in made.origins}
        return [node for node in contractions if those & set(self.graph.origins.get(node, ()))]

    def _bytes(self, node: Node) -> int:
        """The bytes that constant operands take more where they are not rounded."""
        bits = self.scheme.dtype.bits if self.scheme is not None else 8 * self._stored()
        sources = {operand(x).source for x in node.inputs[0].inputs}
        return sum(
            int(sym.evaluate(x.size, self.dims)) * (x.dtype.bits - bits) // 8
            for x in sources
            if is_constant(x) and x.dtype.bits > bits
        )

    def _stored(self) -> int:
        return 4 if self.precision.stored is None else self.precision.stored.itemsize

    def _products(self, node: Node) -> int:
        return int(sym.evaluate(sym.product(node.inputs[0].shape), self.dims))


def _apart(found: NDArray[Any], exact: NDArray[Any]) -> float:
    """The root mean square of the difference, by that of ``exact``, over elements where both are finite."""
    x, y = found.astype(np.float64), exact.astype(np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    scale = math.sqrt(float(np.mean(y[both] ** 2))) if both.any() else 0.0
    far = math.sqrt(float(np.mean((x[both] - y[both]) ** 2))) if both.any() else 0.0
    return far / scale if scale else (0.0 if not far else math.inf)
