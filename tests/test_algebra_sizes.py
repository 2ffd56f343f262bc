"""Two forms of a region in one library, where the size of a run decides which is cheaper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import luminal
from luminal.codegen import render
from luminal.core import interp, ir, movement, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.algebra import by_size, stage
from luminal.core.decompose import reduction
from luminal.core.decompose.contraction import matmul
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.symbolic import Int

AVX2 = targets.parse("avx2", None, 2)
F32 = types.f32


def as_graph(root: Node, size: Int) -> Graph:
    inputs = tuple(n for n in traverse.topological([root]) if n.op is ops.INPUT)
    return Graph("m", inputs, (("found", root),), tuple(sym.variables(size)))


def chain(most: int = 4096, inner: int = 512, outer: int = 256) -> Graph:
    """``(x a) b``: for a few rows as it is spelled, for many by the product of ``a`` and ``b`` first."""
    n = sym.var("n", 1, most)
    x, a, b = (ir.input_(name, s, F32) for name, s in (("x", (n, 256)), ("a", (256, inner)), ("b", (inner, outer))))
    return as_graph(matmul(matmul(x, a), b), n)


def attention(most: int) -> Graph:
    """Linear attention: quadratic in the length as it is spelled, for a few tokens cheaper than linear."""
    n = sym.var("n", 1, most)
    q, k, v = (ir.input_(name, (8, n, 256), F32) for name in "qkv")
    return as_graph(matmul(matmul(q, movement.transpose(k, 1, 2)), v), n)


def product() -> Graph:
    n = sym.var("n", 1, 4096)
    return as_graph(matmul(ir.input_("x", (n, 8), F32), ir.input_("w", (8, 8), F32)), n)


def branches(graph: Graph) -> list[Node]:
    return [node for node in traverse.topological(graph.roots) if node.op is ops.COND]


def multiplications(roots: Any, size: int) -> int:
    nodes = [node for node in traverse.topological(roots) if node.op is ops.MUL]
    return sum(int(sym.evaluate(sym.product(node.shape), {"n": size})) for node in nodes)


@pytest.mark.parametrize(
    ("graph", "low", "high"),
    [
        (chain(), 256 * 512 + 512 * 256, 256 * 512 * 256 + 4096 * 256 * 256),
        (attention(700), 8 * 2 * 256, 8 * 2 * 700 * 256 * 256),
    ],
)
def test_each_end_has_its_cheapest_form(graph: Graph, low: int, high: int) -> None:
    found = stage.improved(graph, AVX2)
    (branch,) = branches(found)
    (dim,) = graph.dims
    assert isinstance(dim.hi, int)
    assert multiplications(branch.attr.then, dim.lo) == low
    assert multiplications(branch.attr.other, dim.hi) <= high
    # Either is more than twice as much at the other end, or was spelled.
    assert multiplications(branch.attr.other, dim.lo) > by_size.GAIN * low
    assert multiplications(branch.attr.then, dim.hi) > multiplications(branch.attr.other, dim.hi)
    (noted,) = found.approximations
    assert f"while {dim.name} < " in noted.what and f"{dim.name} < " in noted.form


@pytest.mark.parametrize(
    "graph",
    [
        chain(most=16),  # never as many rows that the other would be cheaper
        chain(inner=264, outer=8),  # as spelled at both ends
        attention(4096),  # memory would be planned for the square of the length
        product(),
    ],
)
def test_one_form_is_enough_where_two_gain_little(graph: Graph) -> None:
    assert not branches(stage.improved(graph, AVX2))


def test_as_spelled_there_is_no_branch() -> None:
    assert not branches(stage.improved(chain(), replace(AVX2, forms={})))
    program = compile_graph(chain(), replace(AVX2, algebra=targets.EXACT))
    assert not program.metadata["approximations"]


def test_the_library_is_right_over_the_whole_range(tmp_path: Path) -> None:
    module = luminal.compile(chain(), threads=1)
    assert isinstance(module, luminal.Module)
    (noted,) = module.manifest["approximations"]
    bound = int(noted["form"].split()[2])
    assert 1 < bound < 4096 and f"while n < {bound}, else" in module.explain()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((256, 512), (512, 256)))
    for rows in (1, 2, 37, bound - 1, bound, bound + 1, 4096):
        x = rng.standard_normal((rows, 256)).astype(np.float32)
        found, wanted = module(x, a, b), x.astype(np.float64) @ a @ b
        magnitude = np.abs(x).astype(np.float64) @ np.abs(a) @ np.abs(b)
        assert (np.abs(found - wanted) <= 4 * np.finfo(np.float32).eps * 30 * magnitude).all(), rows
    # A compilation with the manifest is the same, and so is another.
    module.export(tmp_path / "first", python_module=False)
    for number, options in enumerate(({}, {"algebra": str(tmp_path / "first")})):
        other = luminal.compile(chain(), threads=1, **options)
        assert isinstance(other, luminal.Module)
        other.export(tmp_path / str(number), python_module=False)
        library = (tmp_path / str(number) / "libm.so").read_bytes()
        assert library == (tmp_path / "first" / "libm.so").read_bytes()


def test_the_derivation_is_replayed_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_graph(chain(), AVX2)
    (noted,) = program.metadata["approximations"]
    monkeypatch.setattr(stage, "cheapest_form", None)
    replayed = compile_graph(chain(), replace(AVX2, forms={noted["region"]: noted["form"]}))
    assert render.render(replayed, AVX2).source_hash == render.render(program, AVX2).source_hash


def test_the_bound_is_where_the_costs_meet() -> None:
    """By the multiplications alone at 256 * 512 * 256 / (2 * 256 * 512 - 256 * 256) rows, for which bytes are moved."""
    (noted,) = stage.improved(chain(), AVX2).approximations
    assert 64 < int(noted.form.split()[2]) < 512


def test_regions_alike_but_for_their_sizes_have_forms_of_their_own() -> None:
    """Sums over all rows of products: of two sizes with the same bounds, in one graph or in two."""
    w = ir.input_("w", (8, 64), F32)
    sizes = [sym.var(name, 1, 64) for name in ("rows", "lines")]
    x, y = (ir.input_(str(size), (size, 64), F32) for size in sizes)
    totals = [reduction.sum_(matmul(matmul(each, movement.transpose(w, 0, 1)), w), [0, 1]) for each in (x, y)]
    both = Graph(
        "m",
        (w, x, y),
        tuple(zip(("first", "second"), totals, strict=True)),
        tuple(v for size in sizes for v in sym.variables(size)),
    )
    alone = [
        Graph("m", (w, one), (("y", total),), tuple(sym.variables(size)))
        for one, total, size in zip((x, y), totals, sizes, strict=True)
    ]
    known: stage.Forms = {}
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(s).astype("f") for n, s in (("w", (8, 64)), ("rows", (5, 64)), ("lines", (9, 64)))}
    exact = [each.astype(float).sum(0) @ given["w"].T @ given["w"] for each in (given["rows"], given["lines"])]
    for graph in (both, *alone):
        found = stage.improved(graph, AVX2, known)
        assert found is not graph
        inputs = {str(node.attr.name): given[str(node.attr.name)] for node in graph.inputs}
        results = interp.run(found, inputs, mode="float64").outputs
        wanted = [e.sum() for e, total in zip(exact, totals, strict=True) if any(r is total for r in graph.results)]
        np.testing.assert_allclose(results, wanted, rtol=1e-12)
    before = len(known)
    assert stage.improved(both, AVX2, known) is not both and len(known) == before
