"""Models divided among the processes of a mesh: what users say of it, and the graphs of all ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from luminal import destination, dtensors
from luminal.codegen.host import INCLUDE
from luminal.core import ir
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.mesh import divide
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.partition import Weight
from luminal.core.mesh.plan import Plan
from luminal.core.mesh.traffic import sent
from luminal.core.ops import Group
from luminal.core.rewrite import simplify

Mesh: TypeAlias = Mapping[str, int]
Shard: TypeAlias = "str | Mapping[str, Mapping[str, int | None] | None]"

Parts: TypeAlias = Mapping[str, divide.Divided]

MOST = 4096  # ranks
_UNITS = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Divided:
    """The graphs of the entries, for each rank; of each entry the plans, and how its named constants and its states
    are split, in words; and of states that are split how they are."""

    ranks: tuple[Mapping[str, Graph], ...]
    plans: Mapping[str, tuple[Plan, ...]]
    cuts: Mapping[str, Mapping[str, tuple[str, ...]]]
    states: Mapping[str, Weight]


def read(mesh: Any, shard: Any, model: Any) -> tuple[dict[str, int] | None, Any]:
    """``mesh``, which may be PyTorch's, as its axes with their sizes, and ``shard`` with what PyTorch says of
    placements in ``model`` as a mapping by name. Raises InputError for what is none."""
    if mesh is None:
        return None, shard
    axes = parse(dtensors.mesh(mesh))
    return axes, dtensors.shard(shard, axes, model)


def divided(graphs: Mapping[str, Graph], mesh: Any, shard: Any = "auto", link: str | None = None) -> Divided:
    """``graphs`` divided among the ranks of ``mesh``; arguments as for ``luminal.compile``.

    Raises InputError for a mesh that is none, and for what cannot be divided as ``shard`` says.
    """
    check_no_stages(mesh)
    parts = plans(graphs, mesh, shard, link)
    return of_ranks(parts, range(math.prod(mesh.values())))


def check_no_stages(mesh: Any) -> None:
    """Raises InputError where a mesh has stages, for what cannot be cut into them."""
    if mesh is not None and divide.PIPELINE in parse(mesh):
        raise InputError(
            f"mesh: stages, along {divide.PIPELINE!r}, are for models that luminal.compile or luminal.plan is given, "
            f"found {dict(mesh)}; divide this along other axes"
        )


def plans(graphs: Mapping[str, Graph], mesh: Any, shard: Any = "auto", link: str | None = None) -> Parts:
    """How the graph of each entry is divided; arguments and errors as for ``divided``."""
    mesh = parse(mesh)
    asked = parse_shard(shard, mesh)
    # An entry may have constants that it does not read, with their names.
    graphs = {entry: simplify(graph) for entry, graph in graphs.items()}
    if not isinstance(shard, dtensors.Placed):
        check_names(graphs, asked)
    return lain(graphs, mesh, asked, parse_link(link), divide.Laid())


def check_names(graphs: Mapping[str, Graph], asked: Collection[str]) -> None:
    """Raises InputError where ``graphs`` have none of a name that placements are asked for."""
    known = set().union(*(names(graph) for graph in graphs.values()))
    unknown = sorted({*asked} - known)
    if unknown:
        raise InputError(
            f"shard: expected names of inputs, outputs and parameters, found {', '.join(unknown)}; inputs and outputs "
            f"are {', '.join(dict.fromkeys(_ends(graphs)))}"
        )


def lain(
    graphs: Mapping[str, Graph], mesh: Mapping[str, int], asked: Mapping[str, Mapping[str, int | None]], link: Link,
    laid: divide.Laid, free: Collection[str] = (),
) -> dict[str, divide.Divided]:  # fmt: skip
    """How ``graphs`` are divided, one after the other, where others have ``laid`` states and weights; see
    ``divide.divide``. Names that are ``asked`` for may be those of other graphs."""
    parts: dict[str, divide.Divided] = {}
    for entry, graph in graphs.items():
        its = {name: axes for name, axes in asked.items() if name in names(graph)}
        parts[entry] = divide.divide(graph, mesh, its, link, Rates(), laid, free)
    return parts


def of_ranks(parts: Parts, wanted: Iterable[int]) -> Divided:
    """The graphs of the ranks ``wanted``."""
    parts = {entry: part.joined() for entry, part in parts.items()}
    ranks = tuple({entry: part.of(rank) for entry, part in parts.items()} for rank in wanted)
    cuts = {}
    for entry, part in parts.items():
        named = {name: part.weights[node] for node, name in part.graph.names.items() if node in part.weights}
        held = {name: state for name, state in part.states.items() if state.cuts}
        cuts[entry] = {
            name: tuple(f"{cut} along {group.axis}" for group, cut in weight.cuts)
            for name, weight in {**named, **held}.items()
        }
    states = {name: state for part in parts.values() for name, state in part.states.items() if state.cuts}
    return Divided(ranks, {entry: part.plans for entry, part in parts.items()}, cuts, states)


def from_first(graph: Graph, mesh: Any) -> Graph:
    """``graph``, which is divided later, with what one rank returns as the outputs of all, the first of those that
    compute it: where ranks are given inputs of their own, such as seeds. Raises InputError as ``parse`` does."""
    axes = parse(mesh)

    def told(node: Node) -> Node:
        stride = math.prod(axes.values())
        for axis, size in axes.items():
            stride //= size
            if size > 1 and axis != divide.PIPELINE:  # the stage that gives an output sends it to the others
                node = ir.exchange("broadcast", Group(axis, size, stride), node, 0)
        return node

    count = len(graph.returned)
    results = [told(node) if number < count else node for number, node in enumerate(graph.results)]
    return graph.computing([*results, *graph.measured.values()])


def names(graph: Graph) -> set[str]:
    """The names that ``shard`` may have an entry for."""
    return {*graph.names.values(), *(n.attr.name for n in graph.inputs), *(name for name, _ in graph.returned)}


def _ends(graphs: Mapping[str, Graph]) -> Iterator[str]:
    """The names of what callers give and get."""
    for graph in graphs.values():
        yield from (str(node.attr.name) for node in graph.given)
        yield from (name for name, _ in graph.returned)


def parse(mesh: Any) -> dict[str, int]:
    """The axes of a mesh. Raises InputError where ``mesh`` has none, or their product is too large."""
    fine = isinstance(mesh, Mapping) and mesh and all(isinstance(k, str) and k for k in mesh)
    sizes = list(mesh.values()) if fine else []
    if not fine or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise InputError(f'mesh: expected axes with their sizes, as in {{"tensor": 2}}, found {mesh!r}')
    if not 1 < math.prod(sizes) <= MOST:
        raise InputError(f"mesh: expected 2 .. {MOST} ranks, found {math.prod(sizes)}")
    return dict(mesh)


def parse_shard(shard: Any, mesh: Mapping[str, int]) -> dict[str, dict[str, int | None]]:
    """What is asked for, by name: for each axis of the mesh an axis of the tensor or None. ``None`` in the place of a
    mapping says None of all axes. Raises InputError."""
    if shard == "auto":
        return {}
    if not isinstance(shard, Mapping):
        raise InputError(f"shard: expected 'auto', or a mapping by name, found {shard!r}")
    found: dict[str, dict[str, int | None]] = {}
    for name, axes in shard.items():
        its = dict.fromkeys(mesh) if axes is None else axes
        if not isinstance(its, Mapping) or not all(n is None or isinstance(n, int) for n in its.values()):
            raise InputError(f'shard: expected {{"AXIS OF THE MESH": AXIS OF THE TENSOR}} for {name!r}, found {axes!r}')
        found[name] = dict(its)
    return found


def parse_link(text: str | None) -> Link:
    """The link that ``25GB/s,10us`` describes; None: that of processes of one machine. Raises InputError."""
    if text is None:
        return Link()
    found = re.fullmatch(r"([\d.]+) ?(k|M|G)?B/s, ?([\d.]+) ?(m|u|n)?s", text.strip())
    if found is None:
        raise InputError(f"link: expected a rate and a time such as 25GB/s,10us, found {text!r}")
    rate, more, time, less = found.groups()
    return Link(float(rate) * _UNITS[f"{more or ''}B/s"], float(time) * _UNITS[f"{less or ''}s"])


def explained(divided_: Divided) -> list[str]:
    """The plans in words: how each named weight lies, and what a rank sends in a run."""
    lines = []
    for entry, graph in divided_.ranks[0].items():
        before = f"{entry}: " if len(divided_.plans) > 1 else ""
        for name, cuts in sorted(divided_.cuts[entry].items()):
            lines += [f"{before}{name}: {', '.join(cuts) or 'whole'}"]
        for axis, traffic in sent(graph).items():
            lines.append(f"{before}{axis}: a rank sends {traffic.messages} messages, {traffic.bytes} bytes, in a run")
    return lines


def write_shim(path: Path) -> None:
    """Writes the C file that lets libraries run over an MPI older than 5. Raises InputError where it cannot."""
    with destination.writing(path, "file"):
        path.write_text((INCLUDE / "luminal" / "mpi_shim.c").read_text(encoding="utf-8"), encoding="utf-8")
