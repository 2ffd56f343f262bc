"""The whole path, chained: read a model, compile it, build it, load it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from luminal import arguments, artifact, entries, meshes, mixed, pipelined_training, pipelines, planning, sharded
from luminal.codegen import interface, render
from luminal.codegen.names import identifiers
from luminal.core import device, pipeline
from luminal.core.algebra.stage import Forms
from luminal.core.decompose import random
from luminal.core.errors import InputError, LuminalError, ModelError, ShapeError, Unsupported
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.numeric import activations as activations_
from luminal.core.schedule.numeric import quantise
from luminal.core.schedule.numeric import winograd as filtering
from luminal.core.target import Target
from luminal.module import Module
from luminal.planning import Outlook
from luminal.progress import Progress, Stages
from luminal.runtime import loader
from luminal.specialised import PerSignature, PerValue, Specialised
from luminal.tuning import devices, records
from luminal.tuning import search as tuning
from luminal.tuning.bench import Bench
from luminal.tuning.outcome import Outcome
from luminal.tuning.workers import Cluster, RemoteBench

SEARCHES = ("none", "quick")

Dims: TypeAlias = Mapping[str, Any]
Constants: TypeAlias = Mapping[str, Any]
Choices: TypeAlias = Mapping[str, tuple[quantise.Scheme | None, float | None]]  # by the entry


def compile(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    target: str | Target = "host",
    precision: mixed.Choice = None,
    algebra: str | None = None,
    weights: str | Mapping[str, str] | None = None,
    winograd: float | Mapping[str, float] | None = None,
    activations: str | None = None,
    dims: Dims | None = None,
    constants: Constants | None = None,
    name: str | None = None,
    threads: int = 0,
    emulate: bool = False,
    seed: int = 0,
    search: str = "none",
    mesh: meshes.Mesh | None = None,
    shard: meshes.Shard = "auto",
    link: str | None = None,
    micro_batches: int = 1,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> Module | Specialised:
    """Compile a model to a native library and load it.

    ``model`` is a path, the bytes or the ``ModelProto`` of an ONNX model, a ``torch.nn.Module``, an
    ``ExportedProgram``, a ``torch.fx.GraphModule``, or a ``Graph``. A module needs example ``inputs`` (but not one of
    functional ATen operators, as ``make_fx`` makes it, which is taken as it is); without them it is compiled at its
    first call, and again only when types, ranks or undeclared sizes change. So is an ONNX model of which inputs of a
    few numbers decide shapes or branches, if ``constants`` does not fix them: for each of their values. A mapping of
    names to such models makes one library with an entry for each, which share their weights and states: ``inputs`` are
    then a mapping too, and ``module["decode"]`` is the entry of that name. What ``dims`` and ``constants`` name holds
    for the entries that have it; under the name of an entry, they may have a mapping for it alone, and so may
    ``weights`` and ``winograd``.

    ``dims`` declares symbolic dimensions and their bounds, as in ``{"batch": (1, 32)}``; one library serves every size
    within. ``constants`` fixes inputs by name. ``target`` is ``host``, ``x86-64``, ``avx2``, ``avx512``,
    ``avx512-vnni`` (that and dot products of int8), ``avx512-bf16`` (and of bfloat16), ``amx`` (and matrix units for
    both), ``aarch64`` or ``riscv64``, or a GPU: ``cuda:sm_80``, ``cuda:sm_89``, ``cuda:sm_90``, ``cuda:sm_100``,
    ``metal``; or ``opencl``. A module for a machine unlike this one can be exported, not called; but with ``emulate``,
    a GPU is emulated on this machine: slowly, and with every access to memory checked.
    With ``threads`` 0 there is one for each CPU that the
    process may use. Work is divided to suit that number, or 8 where 0 is given with another target than ``host``; the
    library runs on any number, to the same bits.
    ``precision`` is what contractions of float32 may round their operands to: ``fp32``, exact, unless another is
    chosen; ``bf16``, 8 significant bits, or ``fp16``, 11 of them up to 65504, in which they are stored; or on NVIDIA's
    GPUs ``tf32``, 11 significant bits. They are summed in float32. A mapping of names of source operators says so for
    each, ``{"*": "bf16", "head": "fp32"}`` (see ``luminal.mixed``); one of ``fp32`` keeps its weights from ``weights``.
    ``algebra`` is ``bounded``: sums of products may be computed in another order than the model spells, or factored,
    where that costs less and does not make the bound of the error larger (see ``luminal.core.algebra``). With
    ``exact`` they are computed as the model spells them, with the manifest of a library, or its folder, in the forms
    that were found for that.
    ``weights`` rounds the large matrices of constants that contractions read to integers: ``int8`` with a scale for
    each output channel, ``int4`` with one for each 32 numbers of a channel, ``int4-64`` or ``int4-128`` (see
    ``luminal.core.schedule.numeric.quantise``); they are read as such.
    ``activations`` rounds what quantised weights multiply, those that ``weights`` rounds and those that the model has:
    to ``bf16``, or to ``q8``, 8-bit integers with a scale for each 32 (see
    ``luminal.core.schedule.numeric.activations``).
    ``winograd`` is an error budget, 1e-3 say, within which convolutions of float32 with constant filters may be
    computed by minimal filtering, where that is faster on a CPU: the largest error of a convolution by itself, with
    standard normal inputs, relative to the root mean square of its outputs (see
    ``luminal.core.schedule.numeric.winograd``).
    ``seed`` is that of the model's random numbers, if it draws any: each call draws others, the same after each
    opening of the library (see ``luminal.core.decompose.random``).
    ``mesh`` divides the model among processes that ``mpirun`` starts, on CPUs or NVIDIA GPUs: ``{"tensor": 2}`` has the
    axes with their sizes. ``shard`` says what lies where: a mapping of names of inputs, outputs and parameters to
    ``{axis of the mesh: axis of the tensor, or None}``; everything else as it costs least, with ``auto`` all but inputs
    and outputs, which are whole. Both may be PyTorch's: a ``DeviceMesh``; DTensors or placements by name, or a plan of
    ``parallelize_module``. ``link`` is the rate between processes and the time of a message, ``25GB/s,10us`` say
    (see ``luminal.meshes``). Along the axis ``pipeline`` ranks have stages of the model, which they compute for
    ``micro_batches``, parts of the batch, one after the other (see ``luminal.pipelines``).
    ``memory`` is the most bytes that the values of an entry may take beside its weights and states, or ``low``: then
    values are computed again instead of kept, those first that cost least, with ``low`` for at most a third more work
    (see ``luminal.core.schedule.program.recompute``). ``progress(stage, fraction)`` is called as work goes on.

    Where tuning has measured schedules for this machine and so many threads, those are taken
    (``luminal.tuning.records``); with ``search="quick"``, about 60 seconds are spent on measuring before, for a CPU.

    Raises UnsupportedError, which lists every operator that luminal cannot compile; ModelError for a model that cannot
    be read; BuildError where no compiler is found; InputError where something else than a GPU is to be emulated;
    TargetError where the target does not have the precision, or is none of this machine's while schedules are to be
    measured; RecordsError where what was measured cannot be read; InputError for other names, for ``threads`` that are
    none of 0 .. 1023, for a ``seed`` that is no integer of 64 bits, for a ``winograd`` that is no finite number
    above 0, or with a GPU or a precision other than ``fp32``, and for a ``memory`` that is not enough.
    """
    arguments.check_memory(memory)
    mesh, shard = meshes.read(mesh, shard, model)
    pipelines.check_micro_batches(micro_batches, mesh)
    if memory is not None and pipelines.is_one(mesh):
        raise InputError("memory: expected no bound where a mesh has stages, whose values are held by several ranks")
    threads, seed, rounding = arguments.threads(threads), random.parse(seed), activations_.parse(activations)
    chosen, choices = options(target, precision, algebra, weights, winograd, threads, search, _names(model))
    if emulate and chosen.grid is None:
        raise InputError(f"emulate: expected a GPU as the target, found {target!r}")
    same: dict[str, Any] = {
        "target": chosen, "precision": precision, "weights": weights, "winograd": winograd, "activations": activations,
        "dims": dims, "constants": constants, "name": name, "threads": threads, "emulate": emulate, "seed": seed,
        "search": search, "mesh": mesh, "shard": shard, "link": link,
        "micro_batches": micro_batches, "memory": memory,
    }  # fmt: skip
    if inputs is None and is_module(model) and not _is_traced(model):
        return PerSignature(model, compile, same)
    stages = Stages(progress)
    try:
        with stages("import"):
            found = _entries(model, inputs, dims, constants, name)
            graphs = {entry: _seeded(graph, seed) for entry, graph in mixed.applied(found, precision).items()}
    except LuminalError as error:
        if not error.deciding or isinstance(model, Mapping):
            raise
        return PerValue(model, compile, same, error, names(model, None, dims)[0], _sizes(model, dims))
    graphs = _approximated(graphs, choices, chosen, stages, rounding)
    called = next(iter(graphs.values())).name if name is None else name
    ranks: list[dict[str, Graph]] = []
    plan: list[str] = []
    cuts: dict[str, Any] = {}
    staged: pipelines.OfStages | None = None
    wholes = graphs
    if mesh is not None and pipelines.is_one(mesh):
        with stages("divide"):
            if isinstance(model, pipelined_training.Entries):
                model.update(graphs)
                staged = pipelined_training.staged(model, mesh, shard, link, micro_batches)
            else:
                staged = pipelines.staged(graphs, mesh, shard, link, micro_batches)
            graphs, *ranks = map(staged.graphs, staged.ranks)
            plan = staged.explained()
            cuts = {name: sharded.to_json(state.cuts) for name, state in staged.cuts.items()}
    elif mesh is not None:
        with stages("divide"):
            divided = meshes.divided(graphs, mesh, shard, link)
            graphs, *ranks = map(dict, divided.ranks)
            plan = meshes.explained(divided)
            cuts = {name: sharded.to_json(state.cuts) for name, state in divided.states.items()}
    tuned = None
    if search == "quick":
        with stages("tune"):
            tuned = tuning.tune(called, graphs, chosen, cpus(threads), tuning.QUICK, progress=stages.advance)
    with stages("compile"):
        chosen = replace(chosen, decisions=records.decisions(chosen, cpus(threads)))
        known: Forms = {}
        program = compile_graphs(called, graphs, chosen, stages.inside("compile"), memory, known)
        others = [compile_graphs(called, other, chosen, memory=memory, known=known) for other in ranks]
        if staged is not None:
            program, *others = (staged.joined(each, chosen) for each in (program, *others))
            graphs = wholes
        if mesh is not None:
            about = {"plan": plan, "sharded": cuts, **({} if staged is None else {"stages": staged.manifest})}
            program, *others = (replace(p, metadata={**p.metadata, **about}) for p in (program, *others))
    return artifact.opened(
        program, chosen, stages, emulate,
        lambda folder: Module(folder, threads, graphs, stages.seconds, chosen, program, tuned), others,
    )  # fmt: skip


def options(
    target: str | Target = "host",
    precision: mixed.Choice = None,
    algebra: str | None = None,
    weights: str | Mapping[str, str] | None = None,
    winograd: float | Mapping[str, float] | None = None,
    threads: int = 0,
    search: str = "none",
    named: Collection[str] = ("main",),
) -> tuple[Target, Choices]:
    """The target that is asked for and, for each of the entries that are ``named``, the scheme of its weights and its
    error budget. Raises as ``compile`` does."""
    chosen = arguments.target(target, precision, threads, algebra)
    if search not in SEARCHES:
        raise InputError(f"search: expected one of {', '.join(SEARCHES)}, found {search!r}")
    schemes, budgets = entries.option("weights", weights, named), entries.option("winograd", winograd, named)
    return chosen, {name: (quantise.parse(schemes[name]), filtering.parse(budgets[name], chosen)) for name in named}


def _sizes(model: Any, dims: Dims | None) -> Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, int]]:
    """The sizes of a call of an ONNX model that ``dims`` does not declare, by the shapes of its inputs."""
    _, importer, program = front_end(model)
    return lambda shapes: importer.sizes(program, dims, shapes)


def for_any_sizes(model: Any, **options: Any) -> Specialised:
    """An ONNX ``model``, compiled by ``options`` as ``compile`` does it, that serves calls of any sizes: what goes
    beyond the default bounds is compiled for at the call; so is all where the model holds for some sizes alone.

    Raises as ``compile``, but where it is sizes, which a call gives, that the model does not hold for.
    """
    every, open_ = names(model, None, options.get("dims"))
    module: Module | Specialised | None = None
    reason: LuminalError = LuminalError()
    try:
        module = compile(model, **options)
    except (ShapeError, InputError) as error:
        if not open_:
            raise
        reason = error
    if isinstance(module, Specialised):
        return module
    found = PerValue(model, compile, options, reason, every, _sizes(model, options.get("dims")))
    if module is not None:
        found.add(module, {})
    return found


def _names(model: Any) -> Collection[str]:
    """The names of the entries that a library of ``model`` has."""
    return list(model) if isinstance(model, Mapping) else ["main"]


def tune(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    budget: float,
    target: str | Target = "host",
    precision: mixed.Choice = None,
    algebra: str | None = None,
    weights: str | Mapping[str, str] | None = None,
    winograd: float | Mapping[str, float] | None = None,
    activations: str | None = None,
    dims: Dims | None = None,
    constants: Constants | None = None,
    threads: int = 0,
    again: bool = False,
    workers: str | None = None,
    progress: Progress | None = None,
) -> Outcome | list[Outcome]:
    """Measure schedules for the kernels of a model on this machine, for about ``budget`` seconds, and record them for
    all models that are compiled later; arguments as for ``compile``. A compiler, or a run of the model, that is at work
    when the time is over ends first; an infinite budget lasts until everything is measured. What was measured before is
    left as it is, unless it is to be measured ``again``. ``print`` shows what is returned as a table.

    With ``workers``, the address of a Ray cluster, the machines of that measure instead (see
    ``luminal.tuning.workers``), and what is returned is a list: an outcome for each kind of machine among them, which
    share the budget. ``target`` is then theirs, and so are the CPUs that ``threads`` of 0 stands for.

    A GPU is measured on the machine that has it, without ``workers``.

    Raises InputError for a budget that is not positive, or where no machine can measure, TargetError where this one has
    no such GPU, LostError where all machines were lost, and else as ``compile`` does.
    """
    arguments.check_budget(budget)
    threads, rounding = arguments.threads(threads), activations_.parse(activations)
    stages = Stages(progress)

    def chosen(target: str | Target) -> tuple[Target, Choices]:
        return options(target, precision, algebra, weights, winograd, threads, named=_names(model))

    def measured(graphs: dict[str, Graph], by: tuple[Target, Choices], seconds: float, bench: Bench) -> Outcome:
        name = next(iter(graphs.values())).name
        graphs = _approximated(graphs, by[1], by[0], stages, rounding)
        with stages("tune"):
            return tuning.tune(
                name, graphs, by[0], bench.threads, seconds, again=again, progress=stages.advance, bench=bench
            )

    def imported() -> dict[str, Graph]:
        with stages("import"):
            return mixed.applied(_entries(model, inputs, dims, constants, None), precision)

    if workers is None:
        here = chosen(target)
        return measured(imported(), here, budget, devices.bench(here[0], cpus(threads)))
    with Cluster(workers) as cluster:
        groups = cluster.groups(target)
        there = [chosen(group.target) for group in groups]
        benches = [
            RemoteBench(cluster, replace(group, target=by[0]), threads or group.cpus)
            for group, by in zip(groups, there, strict=True)
        ]
        graphs = imported()
        return [measured(graphs, by, budget / len(groups), b) for by, b in zip(there, benches, strict=True)]


def plan(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    mesh: meshes.Mesh,
    shard: meshes.Shard = "auto",
    link: str | None = None,
    micro_batches: int = 1,
    node: str | None = None,
    measured: float | None = None,
    target: str | Target = "host",
    precision: mixed.Choice = None,
    algebra: str | None = None,
    weights: str | Mapping[str, str] | None = None,
    activations: str | None = None,
    dims: Dims | None = None,
    constants: Constants | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Outlook:
    """Foretell what runs of a model take when it is divided among the ranks of ``mesh``: time, memory and traffic of
    each rank, beside one rank alone. Nothing is run; arguments as for ``compile``.

    ``node`` describes what a rank computes and moves in a second with its ``threads``, ``"500GFLOP/s,40GB/s"``; by
    default this machine is measured. Of GPUs it has to be given: the rates that kernels are to reach. ``measured`` are
    the seconds that a run of the first entry takes on one rank, where that is known: all kernels then take longer, or
    less long, in proportion. What is symbolic has a typical size between its bounds; fix it by ``dims``.
    ``luminal.planning`` says what the forecast leaves out.

    Raises InputError for a ``node`` or a ``measured`` time that is none, UnsupportedError for GPUs that exchange no
    data, and else as ``compile`` does.
    """
    threads, rounding = arguments.threads(threads), activations_.parse(activations)
    if measured is not None and not (math.isfinite(measured) and measured > 0):
        raise InputError(f"measured: expected seconds of a run, found {measured!r}")
    chosen, choices = options(target, precision, algebra, weights, None, threads, named=_names(model))
    if chosen.grid is not None and node is None:
        raise InputError(
            f"node: expected what {chosen.name} computes and moves in a second, such as 60TFLOP/s,3TB/s: a GPU is not "
            "measured here"
        )
    each = None if chosen.grid is not None else cpus(threads)
    stages, joined = Stages(progress), meshes.parse_link(link)
    axes, shard = meshes.read(mesh, shard, model)
    mesh = meshes.parse(axes)
    pipelines.check_micro_batches(micro_batches, mesh)
    rates = None if node is None else planning.parse_node(node)
    with stages("import"):
        graphs = mixed.applied(_entries(model, inputs, dims, constants, None), precision)
    graphs = _approximated(graphs, choices, chosen, stages, rounding)
    staged: pipelines.Pipelined | None = None
    with stages("divide"):
        if pipelines.is_one(mesh):
            staged = pipelines.staged(graphs, mesh, shard, link, micro_batches)
            its, words = staged.graphs(0), staged.explained()
        else:
            first = meshes.of_ranks(meshes.plans(graphs, mesh, shard, link), [0])
            its, words = dict(first.ranks[0]), meshes.explained(first)
    with stages("compile"):
        chosen = replace(chosen, decisions=records.decisions(chosen, cpus(threads)))
        name = next(iter(graphs.values())).name
        alone, divided = (compile_graphs(name, each, chosen) for each in (graphs, its))
        divided = divided if staged is None else staged.joined(divided, chosen)
        render.HOSTS[chosen.dialect].check(divided)
    if rates is None:
        with stages("measure"):
            rates = planning.measured_node(chosen, cpus(threads))

    def foretold(rates: planning.Node) -> Outlook:
        return planning.outlook(mesh, alone, divided, chosen, each, rates, joined, words)

    found = foretold(rates)
    if measured is not None:
        scaled = found.scaled(measured)
        found = scaled if staged is None else foretold(scaled.node)  # ranks wait for each other by what each computes
    return found


def _approximated(
    graphs: dict[str, Graph], choices: Choices, target: Target, stages: Stages, activations: str | None = None
) -> dict[str, Graph]:
    """``graphs``, each ``approximated`` as is chosen for it. Weights are rounded together, for entries to share."""
    schemes = dict.fromkeys(scheme for scheme, _ in choices.values() if scheme is not None)
    if schemes:
        with stages("quantise"):
            for scheme in schemes:
                alike = {entry: graph for entry, graph in graphs.items() if choices[entry][0] == scheme}
                made = quantise.together([*alike.values()], scheme)
                graphs = {**graphs, **dict(zip(alike, made, strict=True))}
    if activations is not None:
        graphs = {entry: activations_.rounded(graph, activations) for entry, graph in graphs.items()}
    if any(budget is not None for _, budget in choices.values()):
        with stages("filter"):
            graphs = {entry: approximated(graph, None, choices[entry][1], target) for entry, graph in graphs.items()}
    return graphs


def approximated(
    graph: Graph, scheme: quantise.Scheme | None, budget: float | None, target: Target, activations: str | None = None
) -> Graph:
    """``graph`` with weights rounded by ``scheme``, ``activations`` that quantised weights multiply, and convolutions
    within the error ``budget``, where there are and where that pays on ``target``."""
    graph = graph if scheme is None else quantise.quantised(graph, scheme)
    graph = graph if activations is None else activations_.rounded(graph, activations)
    return graph if budget is None else filtering.transformed(pipeline.rewritten(graph, target), budget, target)


def cpus(threads: int) -> int:
    """The threads of a run: as many as asked for, or one for each CPU that the process may use."""
    return threads or device.cpus()


def _entries(
    model: Any, inputs: Any, dims: Dims | None, constants: Constants | None, name: str | None
) -> dict[str, Graph]:
    """The graph of each entry: of ``main``, or of those that ``model`` maps names to."""
    if not isinstance(model, Mapping):
        return {"main": read(model, inputs, dims=dims, constants=constants, name=name)}
    if not model or not (inputs is None or isinstance(inputs, Mapping)):
        raise InputError("expected a model for each entry, and their inputs by the names of the entries")
    entries.check("inputs", inputs or {}, model)
    given = {entry: (inputs or {}).get(entry) for entry in model}
    known = {}
    for entry, part in model.items():
        with _of(entry):
            known[entry] = entries.Names(*names(part, given[entry], dims))
    sizes, fixed = entries.dims(dims, known), entries.constants(constants, known)

    def graph(entry: str, states: frozenset[str]) -> Graph:
        with _of(entry):
            return read(model[entry], given[entry], dims=sizes[entry], constants=fixed[entry], name=name, states=states)

    def graphs(states: frozenset[str] = frozenset()) -> dict[str, Graph]:
        return {entry: graph(entry, states) for entry in model}

    found = graphs()
    states = [frozenset(state.name for state in graph.states) - {random.STATE} for graph in found.values()]
    together = frozenset().union(*states)
    # What one entry updates is no constant to another that reads it.
    return found if all(own == together for own in states) else graphs(together)


@contextmanager
def _of(entry: str) -> Iterator[None]:
    """Errors say that they are of this entry."""
    try:
        yield
    except LuminalError as error:
        raise error.saying(f"entry {entry!r}: {error}") from error.__cause__


def _seeded(graph: Graph, seed: int) -> Graph:
    """``graph`` with its random numbers from another seed."""
    first = random.first(seed)
    states = tuple(replace(s, initial=first) if s.name == random.STATE else s for s in graph.states)
    return replace(graph, states=states)


def check_name(name: str | None) -> None:
    """Raises InputError for a name that a library cannot have."""
    if name is not None and (not isinstance(name, str) or identifiers([name]) != [name]):
        raise InputError(f"name: expected an identifier of C and C++, which symbols begin with, found {name!r}")
    if name is not None and interface.library_name(name) != name:
        raise InputError(
            f"name: the system has a library, a header or a function {name!r} of its own, which the model's would "
            f"hide or clash with: take another name than {name!r}, such as {interface.library_name(name)!r}"
        )


def read(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    dims: Dims | None = None,
    constants: Constants | None = None,
    name: str | None = None,
    states: Collection[str] | None = None,
) -> Graph:
    """``model`` as a graph of primitives, by the front end for its kind; arguments as for ``compile``. ``states`` are
    buffers of a PyTorch model that other entries update; None where there are no others."""
    if isinstance(model, Graph):
        return model
    check_name(name)
    suite, importer, program = front_end(model)
    graph: Graph
    if suite == "onnx":
        graph = importer.load(model, dims=dims, constants=constants, name=name)
    else:
        graph = importer.load(program, inputs, dims=dims, constants=constants, name=name, states=states)
    if name is None:  # what the model is called, as an identifier: of its file, its class or its graph
        called = Path(model).stem if isinstance(model, str | os.PathLike) else graph.name
        graph = replace(graph, name=interface.library_name(called))
    return graph


def names(model: Any, inputs: Any, dims: Dims | None) -> tuple[list[str], list[str]]:
    """The names of the inputs of ``model``, and those of the sizes that it has without ``dims``."""
    if isinstance(model, Graph):
        return [node.attr.name for node in model.inputs], [size.name for size in model.dims]
    _, importer, program = front_end(model)
    found: tuple[list[str], list[str]] = importer.declared_names(program, inputs, dims)
    return found


def check(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    dims: Dims | None = None,
    constants: Constants | None = None,
) -> list[Unsupported]:
    """Every operator of ``model`` that luminal cannot compile, with node, types, source line and advice."""
    suite, importer, program = front_end(model)
    arguments = (program,) if suite == "onnx" else (program, inputs)
    return importer.unsupported(*arguments, dims=dims, constants=constants)  # type: ignore[no-any-return]


def front_end(model: Any) -> tuple[str, Any, Any]:
    """Which front end ``model`` is for, ``onnx`` or ``torch``; its importer, which brings in its own framework, and
    only when it is asked for; and what that takes."""
    path = isinstance(model, str | os.PathLike)
    kinds = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    if path and not Path(model).is_file():  # said before a framework is imported, which takes seconds
        raise ModelError(_no_file(Path(model)))
    if (path and Path(model).suffix == ".pt2") or "torch" in kinds:
        from luminal.frontends.fx import importer as fx

        return "torch", fx, _program(model)
    if path or isinstance(model, bytes) or "onnx" in kinds:
        from luminal.frontends.onnx import importer as onnx

        return "onnx", onnx, model
    found = type(model).__name__
    if isinstance(model, Module):
        found = "a compiled model; give the one that it was compiled from"
    elif callable(model):
        found += "; make a function the forward of a module"
    raise ModelError(
        "expected the path, bytes or ModelProto of an ONNX model, a torch.nn.Module, an ExportedProgram or a "
        f"GraphModule, found {found}"
    )


def _no_file(path: Path) -> str:
    """What is wrong with a path at which no model lies."""
    if not path.is_dir():
        return f"there is no file {str(path)!r}"
    compiled = (path / loader.MANIFEST).is_file()
    advice = "; it holds a compiled model, which luminal.load opens and luminal run runs" if compiled else ""
    return f"expected the file of a model, found the folder {str(path)!r}{advice}"


def _program(model: Any) -> Any:
    """``model``, or the ExportedProgram that the file of that path holds."""
    if not isinstance(model, str | os.PathLike):
        return model
    from luminal.frontends.fx import export

    return export.open_program(model)


def is_module(model: Any) -> bool:
    """Whether ``model`` is a module of PyTorch."""
    return any(kind.__module__ == "torch.nn.modules.module" for kind in type(model).__mro__)


def _is_traced(model: Any) -> bool:
    """Whether ``model`` is a graph of ATen operators, which has types and sizes of its own."""
    if not any(kind.__module__ == "torch.fx.graph_module" for kind in type(model).__mro__):
        return False
    from luminal.frontends.fx import program

    return program.is_aten(model)
