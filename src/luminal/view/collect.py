"""What a page shows of a compiled model, as values for JSON: ``viewer/src/model.ts`` has the same types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from luminal import inspection
from luminal.codegen import render
from luminal.core import printer, traverse
from luminal.core.ir import Graph, Node
from luminal.core.origins import Origin
from luminal.core.schedule.program.ir import Buffer, Entry, Numbered, Program, numbered, together
from luminal.module import Module
from luminal.profiled import Profile

ARENA = "arena"
NOTHING = "No times: they were not measured."


def collect(module: Module, profile: Profile | None = None) -> dict[str, Any]:
    """The page's values for an entry of ``module``; with times where a ``profile`` of it is at hand.

    A module that was loaded from disk knows neither its graph nor its plan of memory: its operators are shown in the
    order in which they run.
    """
    described = inspection.inspect(module.folder)
    steps = list(_steps(module, described))
    origins = [origin for step in steps for origin in step["operators"]]
    graph = module.graph
    operators, edges = _operators(graph) if graph is not None else _in_order(origins)
    numbers = {row["name"]: number for number, row in enumerate(operators)}
    for name in dict.fromkeys(origins):  # of what options changed, say, which the graph does not have
        if name not in numbers:
            numbers[name] = len(operators)
            operators.append(_operator(name, (), "", ()))
    for step, seconds in zip(steps, _seconds(steps, profile), strict=True):
        step["operators"] = sorted(numbers[name] for name in step["operators"])
        step["seconds"] = seconds
    program = module.program
    memory = {"bytes": 0, "buffers": []} if program is None else _memory(program, module.entry.name)
    return {
        "name": described["name"],
        "about": list(inspection.lines(described)),
        "operators": operators,
        "edges": sorted(edges),
        "kernels": _kernels(module.folder, described["kernels"], steps, numbers),
        "steps": steps,
        "memory": memory,
        "derivations": [_derivation(made, numbers) for made in described.get("approximations", ())],
        "notes": list(_notes(module, profile)),
    }


def _notes(module: Module, profile: Profile | None) -> Iterator[str]:
    if module.graph is None:
        yield "From an exported folder: it has neither the source graph nor the plan of memory, which the model has."
    yield NOTHING if profile is None else f"Times: the medians of runs on {profile.threads} threads."


def _operator(name: str, module: Sequence[str], location: str, primitives: Sequence[str]) -> dict[str, Any]:
    kind = name.partition(" ")[0]
    return {
        "name": name,
        "type": kind,
        "module": list(module),
        "location": location or name.partition("' at ")[2],
        "primitives": list(primitives),
    }


def _operators(graph: Graph) -> tuple[list[dict[str, Any]], set[tuple[int, int]]]:
    """The source operators of ``graph`` with their primitives, and which reads from which. A node that several
    operators share, as equal ones do, is listed with each of the first ``_SHARED``."""
    order = traverse.topological([*graph.inputs, *graph.roots], graph.measured)
    lines = printer.lines(order, graph.names)
    varying = set(graph.inputs)
    for node in order:
        if not varying.isdisjoint(node.inputs):
            varying.add(node)
    found: dict[Origin, list[int]] = {}
    last: dict[Origin, int] = {}
    for place, node in enumerate(order):
        for origin in graph.origins.get(node, ())[:_SHARED]:
            found.setdefault(origin, []).append(place)
            last[origin] = place if node in varying else last.get(origin, len(order) + place)
    # Operators in the order in which they are done with what depends on inputs: what they share comes early, of all.
    found = {origin: found[origin] for origin in sorted(found, key=last.__getitem__)}
    numbers = {origin: number for number, origin in enumerate(found)}
    edges = set()
    # The operators that a node's value comes from: its own, or, where it is of none, those of its operands. What does
    # not depend on an input comes from none: operators share constants, which says nothing of what they compute.
    sources: dict[Node, frozenset[int]] = {}
    computes: dict[Node, list[int]] = {}  # the operators of each node, all of those that share it
    for node in order:
        own = [numbers[origin] for origin in graph.origins.get(node, ()) if origin in numbers]
        computes[node] = own
        for operand in node.inputs:
            reads, shared = sources[operand], set(computes[operand])
            # What operators share is each one's own, and not a result of the first that another reads.
            readers = [number for number in own if number not in shared]
            edges |= {(source, number) for number in readers for source in reads if source < number}
        inherited = frozenset[int]().union(*(sources[operand] for operand in node.inputs))
        sources[node] = frozenset() if node not in varying else frozenset(own[:1]) if own else inherited
    rows = [
        _operator(str(origin), origin.module, origin.location, [lines[place].strip() for place in sorted(places)])
        for origin, places in found.items()
    ]
    return rows, edges


_SHARED = 3


def _in_order(origins: Iterable[str]) -> tuple[list[dict[str, Any]], set[tuple[int, int]]]:
    names = dict.fromkeys(origins)
    return [_operator(name, (), "", ()) for name in names], {(n, n + 1) for n in range(len(names) - 1)}


def _steps(module: Module, described: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is reported as one step, with its kernels as numbers and its operators by name; of a program, those of the
    entry alone."""
    kernels = {row["name"]: number for number, row in enumerate(described["kernels"])}
    rows = described["steps"]
    if module.program is not None:
        entries = module.program.entries
        counts = [len(tuple(numbered(entry.region))) for entry in entries]
        at = [entry.name for entry in entries].index(module.entry.name)
        rows = rows[sum(counts[:at]) : sum(counts[: at + 1])]
    for row in rows:
        if row["kernels"]:
            numbers = [kernels[name] for name in row["kernels"] if name in kernels]
            yield {"kernels": numbers, "operators": list(row["origins"]), "name": " + ".join(row["kernels"])}


def _seconds(steps: Sequence[Mapping[str, Any]], profile: Profile | None) -> list[float | None]:
    """The time of each step. A profile has its launches in the same order."""
    if profile is None:
        return [None] * len(steps)
    names = [launch.name for launch in profile.launches]
    assert names == [step["name"] for step in steps], "the profile is of another program"
    return [launch.seconds for launch in profile.launches]


def _kernels(
    folder: Path, rows: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]], numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    found = []
    for number, row in enumerate(rows):
        own = [step for step in steps if number in step["kernels"]]
        alone = [step["seconds"] for step in own if step["seconds"] is not None]
        # The operators of all its launches; those of a step of several kernels are of all of these.
        operators = {operator for step in own for operator in step["operators"]}
        operators |= {numbers[name] for name in row["origins"] if name in numbers}
        found.append(
            {
                "name": row["name"],
                "operators": sorted(operators),
                "schedule": row["schedule"],
                "code": _code(folder, row["name"]),
                "launches": sum(step["kernels"].count(number) for step in own),
                "seconds": sum(alone) if alone else None,
            }
        )
    return found


def _code(folder: Path, kernel: str) -> str:
    """The generated source of a kernel."""
    paths = (folder / "kernels" / f"{kernel}{host.kernel}" for host in render.HOSTS.values())
    return next((path.read_text(encoding="utf-8") for path in paths if path.is_file()), "")


def _memory(program: Program, name: str) -> dict[str, Any]:
    """The values of an entry in the arena, at the upper bounds of sizes, from the step that first touches each to the
    last; what loops carry is there as long as any step of theirs touches it."""
    entry: Entry = next(entry for entry in program.entries if entry.name == name)
    touched: dict[str, list[int]] = {}
    for number, step in enumerate(_reported(entry)):
        for launch in step:
            for argument in launch.arguments:
                touched.setdefault(argument, []).append(number)
    buffers = [(program.buffer(argument), steps) for argument, steps in touched.items()]
    rows = [_buffer(buffer, steps) for buffer, steps in buffers if buffer.space == ARENA and buffer.size]
    return {"bytes": entry.arena_size, "buffers": rows}


def _reported(entry: Entry) -> Iterator[Sequence[Numbered]]:
    """The steps of an entry as they are reported, those of a phase together."""
    steps = tuple(numbered(entry.region))
    lengths = {first: len(phase.tasks) for first, phase in together(entry.region)}
    at = 0
    while at < len(steps):
        count = lengths.get(at, 1)
        yield steps[at : at + count]
        at += count


def _buffer(buffer: Buffer, steps: Sequence[int]) -> dict[str, Any]:
    shape = ", ".join(str(axis) for axis in buffer.shape)
    return {
        "name": buffer.name,
        "text": f"{buffer.name}: {buffer.dtype}[{shape}]",
        "offset": buffer.offset,
        "bytes": buffer.size,
        "first": min(steps),
        "last": max(steps),
    }


def _derivation(made: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    return {
        "option": made["option"],
        "what": made["what"],
        "form": made.get("form", ""),
        "operators": [numbers[name] for name in made["origins"] if name in numbers],
    }
