"""The graph of one micro-batch: rows of a batch that a pipeline's stages compute apart from the other rows.

A batch is divided as among the ranks of a mesh's axis, by the same rules (``rules.py``), only that nothing may be
exchanged along it. So what the micro-batches give, one after the other, is what the whole batch gives.
"""

from __future__ import annotations

from collections.abc import Collection

from luminal.core import ops, traverse
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.mesh import partition, plan
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.placement import Split
from luminal.core.ops import Group

_APART = Link(1e9, 1e3)  # so slow that no plan uses it where there is another, or before it has to


def of_batch(graph: Graph, count: int, rows: Collection[str]) -> Graph:
    """What one of ``count`` micro-batches runs of ``graph``, where the inputs and outputs named in ``rows`` have rows
    of the batch along their first axis.

    Raises InputError where they cannot be divided by ``count``, or where a row depends on others.
    """
    if count == 1:
        return graph
    splits = {}
    for name, node in (*((n.attr.name, n) for n in graph.given), *graph.returned):
        if name in rows:
            extent = node.shape[0] if node.shape else 1
            if not isinstance(extent, int) or extent % count:
                raise InputError(
                    f"micro_batches: expected a number that divides the {extent} rows of {name!r}, found {count}"
                    + ("" if isinstance(extent, int) else f"; fix the size, as in dims={{'{extent}': {count}}}")
                )
            splits[name] = Split(0, extent // count)
    group = Group("micro-batches", count)
    given = {node: splits[node.attr.name] for node in graph.given if node.attr.name in splits}
    wanted = {name: splits[name] for name, _ in graph.returned if name in splits}
    try:
        chosen = plan.planned(graph, group.axis, count, given, wanted, {}, _APART, Rates())
    except InputError as error:
        whole = ", ".join(sorted({repr(name) for name, _ in graph.returned if name not in splits}))
        raise InputError(
            f"micro_batches: expected what has no {count} parts of rows ({whole or 'no output'}) to depend "
            f"on none of the rows, found that it does ({error}). Take micro_batches=1"
        ) from error
    made, _ = partition.divided(graph, chosen, group, {})
    for node in traverse.topological(made.roots):
        if node.op is ops.EXCHANGE and node.attr.group == group:
            before, after = ("; ".join(map(str, made.origins.get(x, ()))) or str(x) for x in (node.inputs[0], node))
            raise InputError(
                f"micro_batches: from {before} to {after}: expected rows of the batch that do not depend on each other "
                "or on their number, found that micro-batches would have to exchange data. Take micro_batches=1, or "
                'say which inputs and outputs have no rows of the batch: shard={NAME: {"pipeline": None}}'
            )
    return made.computing(made.roots, mesh=graph.mesh)
