"""The search of ``core/algebra`` beside equality saturation: ``python -m benchmarks.saturation``, with ``egglog``.

Regions are products of factors over axes with names, sums over axes, and sums of such. Both are given the same, and say
how many multiplications the form takes that they find; what is of constants alone takes none in a run. egglog is given
the identities of products and sums, and runs until nothing is new.
"""
# mypy: ignore-errors

from __future__ import annotations

import json
import math
import resource
import sys
import time
from dataclasses import dataclass
from functools import reduce

from benchmarks import apart

LONGEST = 60.0  # seconds after which saturation is given up
SIZES = (512, 16, 512, 8, 512, 32, 256, 24, 512, 12, 300)


@dataclass(frozen=True)
class Factor:
    """A tensor over some axes; ``data`` of a run, or a constant."""

    name: str
    over: str
    data: bool = False


@dataclass(frozen=True)
class Of:
    """A product (``*``) or a sum (``+``) of two, or a sum over the axes ``over``."""

    op: str
    parts: tuple[Of | Factor, ...]
    over: str = ""


def times(*parts: Of | Factor) -> Of | Factor:
    return reduce(lambda a, b: Of("*", (a, b)), parts)


def plus(*parts: Of | Factor) -> Of | Factor:
    return reduce(lambda a, b: Of("+", (a, b)), parts)


def total(over: str, x: Of | Factor) -> Of:
    return Of("sum", (x,), over)


def attention() -> tuple[dict[str, int], Of]:
    q, k, v = Factor("q", "htd", True), Factor("k", "hsd", True), Factor("v", "hse", True)
    return {"h": 8, "t": 2048, "s": 2048, "d": 64, "e": 64}, total("s", times(total("d", times(q, k)), v))


def two_layers() -> tuple[dict[str, int], Of]:
    x, w, v = Factor("x", "nk", True), Factor("w", "km"), Factor("v", "km")
    return {"n": 256, "k": 512, "m": 512}, plus(total("k", times(x, w)), total("k", times(x, v)))


def block() -> tuple[dict[str, int], Of]:
    """RepVGG's block: the branch by 1 x 1 and the input are read as one element of the window already."""
    x, middle = Factor("x", "piuv", True), Factor("middle", "uv")
    three = times(total("iuv", times(x, Factor("w3", "oiuv"))), Factor("s3", "o"))
    one = times(total("iuv", times(x, times(Factor("w1", "oi"), middle))), Factor("s1", "o"))
    itself = times(total("iuv", times(x, times(Factor("eye", "oi"), middle))), Factor("s0", "o"))
    return {"p": 3136, "i": 64, "o": 64, "u": 3, "v": 3}, plus(three, one, itself)


def chain(count: int) -> tuple[dict[str, int], Of]:
    axes = "abcdefghijk"[: count + 1]
    found = Factor("m0", axes[:2], True)
    for k in range(1, count):
        found = total(axes[k], times(found, Factor(f"m{k}", axes[k : k + 2], True)))
    return dict(zip(axes, SIZES, strict=False)), found


REGIONS = {
    "linear attention": attention,
    "two linear layers of one input": two_layers,
    "RepVGG's block": block,
    **{f"chain of {n} matrices": lambda n=n: chain(n) for n in (6, 8, 10)},
}


# ---- the project's search --------------------------------------------------------------------------------------------


def of_luminal(sizes: dict[str, int], region: Of) -> dict[str, float]:
    import numpy as np

    from luminal.core import ir, ops, traverse
    from luminal.core import target as targets
    from luminal.core.algebra import stage, terms, write
    from luminal.core.algebra.cost import Price
    from luminal.core.types import f32

    axes = tuple(sizes)

    def node(x: Of | Factor) -> tuple[ir.Node, str]:
        """A node, and the axes of its dimensions."""
        if isinstance(x, Factor):
            shape = tuple(sizes[a] for a in x.over)
            return ir.input_(x.name, shape, f32) if x.data else ir.constant(np.ones(shape, np.float32)), x.over
        parts = [node(part) for part in x.parts]
        if x.op == "sum":
            ((of, over),) = parts
            kept = "".join(a for a in over if a not in x.over)
            return ir.reduce(ops.SUM_REDUCE, of, [over.index(a) for a in x.over]), kept
        over = "".join(a for a in axes if any(a in own for _, own in parts))
        shape = tuple(sizes[a] for a in over)
        index = dict(zip(over, ir.axes(shape), strict=True))
        left, right = (ir.view(of, shape, [index[a] for a in own]) for of, own in parts)
        return ir.elementwise(ops.MUL if x.op == "*" else ops.ADD, left, right), over

    root, _ = node(region)
    read = terms.read(root, lambda x: x.op in (ops.MUL, ops.ADD, ops.SUM_REDUCE, ops.VIEW))
    started = time.process_time()
    paths, _ = stage.cheapest_form(read, Price.of(targets.parse("avx2"), f32))
    seconds = time.process_time() - started
    made = write.written(read, paths)
    products = (x for x in traverse.topological([made]) if x.op is ops.MUL)
    return {"seconds": seconds, "multiplications": sum(int(x.size) for x in products), "memory": _peak()}


# ---- equality saturation ---------------------------------------------------------------------------------------------


def of_egglog(sizes: dict[str, int], region: Of) -> dict[str, float]:
    """Axes are bits of a number, and so is whether a value is made of data."""
    from egglog import EGraph, i64, set_

    from benchmarks.identities import Term, analysis, axes, identities, summed, volume

    graph = EGraph()
    names = list(sizes)
    data = 1 << len(names)
    for mask in range(2 * data):
        elements = math.prod(sizes[n] for k, n in enumerate(names) if mask >> k & 1) if mask & data else 0
        graph.register(set_(volume(i64(mask))).to(i64(min(elements, 1 << 60))))

    def term(x: Of | Factor) -> Term:
        if isinstance(x, Factor):
            found = Term(x.name)
            bits = sum(1 << names.index(a) for a in x.over) | (data if x.data else 0)
            graph.register(set_(axes(found)).to(i64(bits)))
            return found
        parts = [term(part) for part in x.parts]
        if x.op == "sum":
            for a in x.over:
                parts[0] = summed(i64(1 << names.index(a)), parts[0])
            return parts[0]
        return parts[0] * parts[1] if x.op == "*" else parts[0] + parts[1]

    root = term(region)
    graph.register(root)
    started = time.process_time()
    graph.run(analysis.saturate())
    before, rows = -1, 0
    while rows != before and time.process_time() - started < LONGEST:
        before = rows
        graph.run(identities + analysis)
        graph.run(analysis.saturate())
        rows = sum(count for name, count in graph.all_function_sizes() if "volume" not in str(name))
    seconds = time.process_time() - started
    _, cost = graph.extract(root, include_cost=True)
    return {"seconds": seconds, "multiplications": cost, "memory": _peak(), "rows": rows, "whole": rows == before}


def _peak() -> int:
    """The most memory of this process, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Print a table in Markdown."""
    if len(sys.argv) > 1:
        options = json.loads(sys.argv[1])
        sizes, region = REGIONS[options["name"]]()
        print(json.dumps((of_egglog if options["egglog"] else of_luminal)(sizes, region)))
        return
    print("| region | luminal: CPU time | multiplications | egglog: CPU time | multiplications | rows | memory |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in REGIONS:
        ours, theirs = (
            apart.run("benchmarks.saturation", {"name": name, "egglog": egglog}) for egglog in (False, True)
        )
        print(
            f"| {name} | {ours['seconds'] * 1e3:.0f} ms | {ours['multiplications']:.4g} "
            f"| {theirs['seconds'] * 1e3:.0f} ms{'' if theirs['whole'] else ', given up'} "
            f"| {theirs['multiplications']:.4g} | {theirs['rows']} | {theirs['memory'] >> 10} MiB |"
        )


if __name__ == "__main__":
    main()
