"""``luminal.diff``: compiled library, reference and float64 oracle on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from luminal import api, arguments, destination
from luminal import mixed as by_operator
from luminal.comparison import again, locate, losses, pairs, sides, survival
from luminal.comparison import inputs as drawing
from luminal.comparison.oracle import Oracle
from luminal.comparison.references import Interpreter
from luminal.comparison.report import Finding, Report, Trial
from luminal.comparison.rows import row
from luminal.comparison.sources import Source, open_source
from luminal.core import target as targets
from luminal.core.decompose import random
from luminal.core.errors import InputError, LuminalError
from luminal.core.ir import Graph
from luminal.core.precision import FP32
from luminal.core.schedule.numeric import activations as rounded
from luminal.core.schedule.numeric import quantise
from luminal.core.schedule.numeric import winograd as filtering
from luminal.core.target import Target
from luminal.module import Module
from luminal.progress import Progress, Stages


def diff(
    model: Any,
    inputs: Any = None,
    against: Any = None,
    *,
    reference: str = "auto",
    target: str | Target = "host",
    precision: by_operator.Choice = None,
    algebra: str | None = None,
    weights: str | None = None,
    winograd: float | None = None,
    activations: str | None = None,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    threads: int = 0,
    save: str | Path | None = None,
    mixed: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compile ``model`` and compare what the library computes with a reference and with float64.

    ``diff(a, b)``, or ``diff(a, b, inputs)``, compares two sides: see ``pairs.between``, which is then called.
    ``inputs`` are a sequence, or a mapping by name.

    ``reference`` is ``onnxruntime`` (for ONNX models), ``torch`` (for PyTorch models), ``interpreter``, or ``auto``:
    the framework that the model came from, unless the model draws random numbers. ``inputs`` are used as they are;
    without them, and for PyTorch models besides them, inputs are drawn from what the model does with them, with
    ``seed``, at sizes that leave tails and at the smallest within the bounds. The other arguments are those of
    ``luminal.compile``.

    An output agrees if NaN and infinities are where the reference has them, integers are equal, and floats are no
    further from float64 and from the reference, relative to the output's largest magnitude, than rounding explains; but
    for elements that follow from values beside a tie of rounding (see ``oracle.Allowed``). What a run leaves of states
    is compared as outputs are. ``tolerance`` replaces that with one bound on the distance from the reference.

    Where an output disagrees, the report names the first source operator that diverges and the stage that introduced
    it; a reproducer is written to the folder ``save`` (one of its own in the system's temporary folder).

    With ``mixed``, the report also says which operators lose most by the ``precision`` or the ``weights`` that are
    chosen, and what it costs and gains to keep them (``losses.Mixed``); ``precision`` by operator then does so.

    A GPU that this machine has not is emulated, and the report says so; likewise of a ``precision`` that was chosen,
    whose roundings of operands are allowed for, and of ``weights`` that are rounded: what the graph with the rounded
    weights is away from float64 is allowed, and the table says how far that is; so it is with a budget ``winograd`` and
    with rounded ``activations``.

    Raises the errors of ``luminal.compile``; ModelError where the reference cannot run the model, InputError for inputs
    that do not fit, a ``tolerance`` that is no finite number of 0 or more, and a folder ``save`` that cannot be
    written, TargetError where this machine cannot run code for ``target``.
    """
    if against is None and sides.is_side(inputs):
        inputs, against = None, inputs
    elif against is not None and sides.is_side(inputs):
        inputs, against = against, inputs
    if save is not None:
        destination.folder(save, "save")
    threads, seed = arguments.threads(threads), random.parse(seed) % 2**64  # numpy's generators take no sign
    chosen = arguments.target(target, precision, threads, algebra)
    scheme, budget, rounding = quantise.parse(weights), filtering.parse(winograd, chosen), rounded.parse(activations)
    approximate = None
    if (scheme, budget, rounding) != (None, None, None):
        approximate = partial(api.approximated, scheme=scheme, budget=budget, target=chosen, activations=rounding)
    arguments.check_tolerance(tolerance)
    if mixed:
        losses.check(chosen.precision, scheme)
    if against is not None or sides.is_folder(model) or sides.has_name(model):
        if approximate is not None or reference != "auto" or mixed or "=" in (by_operator.text(precision) or ""):
            raise InputError(
                "weights, winograd, activations, reference, mixed, precision by operator: not of two sides; export "
                "with these options, and compare the folder"
            )
        return pairs.between(
            model, against, inputs, dims=dims, constants=constants, target=chosen, seed=seed, tolerance=tolerance,
            threads=threads, save=save, progress=progress,
        )  # fmt: skip
    emulate = targets.needs_emulation(chosen)
    if not emulate:
        targets.check_supported(chosen)
    stages = Stages(progress)
    with stages("open"):
        source = open_source(model, inputs, reference, dims, constants, threads)
        source = replace(source, graph=by_operator.applied({"main": source.graph}, precision)["main"])
    graph = source.graph
    module = api.compile(
        graph, target=chosen, weights=weights, winograd=winograd, activations=activations, threads=threads,
        emulate=emulate, progress=progress,
    )  # fmt: skip
    assert isinstance(module, Module)
    trials: list[Trial] = []
    failed: tuple[dict[str, NDArray[Any]], Trial] | None = None
    first: dict[str, NDArray[Any]] = {}
    for made, values in _inputs(source, seed):
        with stages(f"compare on {made} inputs"):
            trial = _trial(made, values, module, source, tolerance, chosen, approximate)
        first = first or values
        trials.append(trial)
        if failed is None and not trial.ok:
            failed = (values, trial)
    finding = None
    if failed is not None:
        with stages("locate"):
            wrong = [k for k, row in enumerate(failed[1].rows) if not row.ok]
            try:
                # Rounded weights are no mismatch: what is wrong besides differs from the interpreter's.
                compiled = graph if approximate is None else approximate(graph)
                reference_ = source.reference if compiled is graph else Interpreter(compiled)
                finding = locate.locate(compiled, reference_, failed[0], wrong, chosen, tolerance, save)
            except LuminalError as error:  # what was found so far is worth more than this error alone
                explanation = f"the search ended with {type(error).__name__}: {error}"
                finding = Finding(None, "an unknown stage", failed[1].rows[wrong[0]].distance, explanation)
            choices = {"precision": by_operator.text(precision), "algebra": algebra, "weights": weights,
                       "winograd": winograd, "activations": activations, "tolerance": tolerance}  # fmt: skip
            if not constants and finding.folder is not None:  # constants would have to be given as files
                finding = _reproduced(finding, source, failed[0], target, choices, threads)
    name = target if isinstance(target, str) else target.name
    named = by_operator.text(precision) or ""
    chosen_precision = [named] if "=" in named else [] if chosen.precision == FP32 else [chosen.precision.name]
    called = ", ".join(
        [
            name,
            *chosen_precision,
            *([f"algebra {chosen.algebra} (regions: {module.approximated('algebra')})"] if algebra else []),
            *([f"weights of {scheme} (operators: {module.approximated('weights')})"] if scheme else []),
            *([f"winograd {budget:g} (operators: {module.approximated('winograd')})"] if budget else []),
            *([f"activations in {rounding} (operators: {module.approximated('activations')})"] if rounding else []),
            *(["emulated"] if emulate else []),
        ]
    )
    lost = None
    if mixed:
        with stages("operators"):
            lost = losses.measured(graph, first, chosen.precision, scheme, partial(stages.advance, "operators"))
    return Report(graph.name, source.reference.name, called, tuple(trials), finding, lost)


def _inputs(source: Source, seed: int) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Sets of inputs, each with a word for how it was made."""
    if source.examples is not None:
        yield "given", dict(source.examples)
        if source.reference.name != "torch":
            return
    graph = source.graph
    yield "drawn", drawing.draw(graph, drawing.sizes(graph), seed)
    if any(dim.lo != drawing.sizes(graph)[dim.name] for dim in graph.dims):
        yield "smallest", drawing.draw(graph, drawing.sizes(graph, smallest=True), seed + 1)


def _reproduced(
    finding: Finding, source: Source, inputs: Mapping[str, NDArray[Any]], target: str | Target,
    choices: Mapping[str, Any], threads: int,
) -> Finding:  # fmt: skip
    """``finding`` with a model that shows it and the command line for that; as it is where these cannot be written."""

    def differs(path: Path, values: Mapping[str, NDArray[Any]]) -> bool:
        return not _agrees(path, values, target, choices, threads)

    given = {"target": target if isinstance(target, str) else target.name, **choices}
    line = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    try:
        return again.write(finding, source.reference, inputs, line, differs)
    except (LuminalError, OSError, ValueError):  # what was found is worth more than a model of it
        return finding


def _agrees(
    path: Path, inputs: Mapping[str, NDArray[Any]], target: str | Target, choices: Mapping[str, Any], threads: int
) -> bool:
    """Whether luminal agrees with the framework on a model and inputs, without a search."""
    source = open_source(path, inputs)
    source = replace(source, graph=by_operator.applied({"main": source.graph}, choices["precision"])["main"])
    chosen = arguments.target(target, choices["precision"], threads, choices["algebra"])
    scheme, budget = quantise.parse(choices["weights"]), filtering.parse(choices["winograd"], chosen)
    rounding = rounded.parse(choices["activations"])
    approximate = None
    if (scheme, budget, rounding) != (None, None, None):
        approximate = partial(api.approximated, scheme=scheme, budget=budget, target=chosen, activations=rounding)
    module = api.compile(
        source.graph, target=chosen, weights=choices["weights"], winograd=choices["winograd"],
        activations=choices["activations"], threads=threads, emulate=targets.needs_emulation(chosen),
    )  # fmt: skip
    assert isinstance(module, Module)
    return _trial("given", inputs, module, source, choices["tolerance"], chosen, approximate).ok


# ---- comparison ----------------------------------------------------------------------------------------------------


def _run(module: Module, graph: Graph, values: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The outputs by name, and what the run leaves of states."""
    if graph.states:
        module.reset()
    found = module.run(values)
    left = module.state if graph.states else {}
    return found | {state.output: left[state.name] for state in graph.states}


def _trial(
    made: str,
    values: Mapping[str, NDArray[Any]],
    module: Module,
    source: Source,
    tolerance: float | None,
    target: Target,
    approximate: Callable[[Graph], Graph] | None,
) -> Trial:
    graph = source.graph
    oracle = Oracle(graph, values, tolerance, target.precision, approximate)
    try:
        oracle.compute(graph.results)
    except (IndexError, InputError) as error:
        raise InputError(f"the {made} inputs do not fit the model: {error}; pass inputs of your own") from error
    expected = source.reference.run(values)
    fault, made_there = survival.run(module, values)
    if fault:
        found = {name: survival.opposite(expected[name]) for name, _ in graph.outputs}
    elif made_there is not None and not graph.states:
        found = made_there
    else:
        found = _run(module, graph, values)
    strict = tolerance is None
    rows = [
        row(name, found[name], expected[name], oracle.exact(n), oracle.allowed(n), strict) for name, n in graph.outputs
    ]
    rows = [replace(one, problem=fault) for one in rows] if fault else rows
    # Sizes that data decides are no part of the inputs.
    dims = {dim.name: oracle.dims[dim.name] for dim in graph.dims if dim.name in oracle.dims}
    return Trial(made, dims, tuple(rows))
