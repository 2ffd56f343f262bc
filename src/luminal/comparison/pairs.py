"""Two sides of any kind on the same inputs: models in their frameworks, luminal for any target, exported libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal import api, tensors
from luminal.comparison import inputs as drawing
from luminal.comparison import locate, sides, survival
from luminal.comparison.foreign import Foreign
from luminal.comparison.measure import limit
from luminal.comparison.oracle import Allowed, Bound, Oracle
from luminal.comparison.references import Interpreter
from luminal.comparison.report import Finding, Report, Row, Trial
from luminal.comparison.rows import row
from luminal.comparison.sides import Compiled, Opened, Side
from luminal.comparison.sources import Source
from luminal.core import target as targets
from luminal.core.errors import InputError, LuminalError
from luminal.core.ir import Graph, Node
from luminal.core.precision import FP32
from luminal.core.target import Target
from luminal.core.types import from_numpy
from luminal.module import Module
from luminal.progress import Progress, Stages

Arrays = dict[str, NDArray[Any]]


def between(
    a: Any,
    b: Any,
    inputs: Any = None,
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    target: Target,
    seed: int = 0,
    tolerance: float | None = None,
    threads: int = 0,
    save: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compare ``a`` with ``b``.

    Each is a model (an ONNX or ``.pt2`` file, or an object), the folder of an exported library, or a name of what runs
    the other side's model: ``onnxruntime``, ``torch``, ``interpreter``, ``luminal``, or a target, emulated or under
    qemu where this machine is no such; ``FILE@NAME`` is both. A model alone is compiled for ``target`` as ``a``, and
    run by its framework as ``b``; without ``b``, that is the framework of the same model.

    Inputs go by name where both have the same names, else by position; so do outputs. Of a side whose graph is known,
    how far it may be from float64 follows from its roundings; two exported libraries may be as far apart as roundings
    on any path explain. Where outputs disagree, a side that luminal compiled here is searched as by ``luminal.diff``.

    Raises InputError where the sides do not fit together, and the errors of ``luminal.diff``.
    """
    first, second = sides.parse(a), sides.parse(b if b is not None else _usual(a))
    if first.model is None and second.model is None:
        raise InputError(f"{a!r} and {b!r}: expected a model on one side, found two names; write FILE@NAME for one")
    if (first.is_folder and second.model is None) or (second.is_folder and first.model is None):
        raise InputError("expected a model, or a second library, beside a library, which nothing else can run")
    # A name alone runs the other's model, and is what that model is compared with.
    one = Side(first.model if first.model is not None else second.model, first.by)
    two = Side(second.model if second.model is not None else first.model, second.by)
    options = {"inputs": inputs, "dims": dims, "constants": constants}
    stages = Stages(progress)
    with stages("open"):
        left = sides.opened(one, options, "luminal", target, threads)
        usual = "luminal" if second.model is not None and first.model is None else ""
        right = sides.opened(two, options, usual, target, threads)
    lead = left if left.source is not None or right.source is None else right
    source = lead.source
    names = _paired(lead.inputs, (right if lead is left else left).inputs)
    outputs = _outputs(left, right)
    trials: list[Trial] = []
    failed: Arrays | None = None
    for made, values in _inputs(lead, inputs, seed):
        renamed = {names[name]: value for name, value in values.items()}
        with stages(f"compare on {made} inputs"):
            given = (values, renamed) if lead is left else (renamed, values)
            trial = _trial(made, (left, right), given, outputs, tolerance)
        trials.append(trial)
        if failed is None and not trial.ok:
            failed = values
    finding = None
    if failed is not None:
        with stages("locate"):
            rows = next(trial for trial in trials if not trial.ok).rows
            finding = _located(left, right, source, failed, rows, target, tolerance, save)
    called = source.graph.name if source is not None else left.runs.name
    name = left.runs.name if target.precision == FP32 else f"{left.runs.name}, {target.precision.name}"
    return Report(called, right.runs.name, name, tuple(trials), finding)


def _usual(a: Any) -> Any:
    side = sides.parse(a)
    if side.model is None or side.is_folder:
        raise InputError(f"{a!r}: expected something to compare with; name a model file or another library as well")
    return side.model


def _paired(left: list[tuple[str, Any]], right: list[tuple[str, Any]]) -> dict[str, str]:
    """The input of the right side for each of the left."""
    a, b = dict(left), dict(right)
    pairs = {name: name for name in a} if set(a) == set(b) else dict(zip(a, b, strict=False))
    if len(a) != len(b) or any(a[x] != b[y] for x, y in pairs.items()):
        shown = (", ".join(f"{name}: {dtype}" for name, dtype in given.items()) for given in (a, b))
        raise InputError(
            "the inputs differ: {} on one side, {} on the other; expected the same number and types".format(*shown)
        )
    return pairs


def _outputs(left: Opened, right: Opened) -> list[tuple[str, str]]:
    a, b = left.outputs, right.outputs
    if set(a) == set(b):
        return [(name, name) for name in a]
    if len(a) != len(b):
        raise InputError(f"the outputs differ: {', '.join(a)} on one side, {', '.join(b)} on the other; "
                         "expected as many")  # fmt: skip
    return list(zip(a, b, strict=True))


def _inputs(lead: Opened, given: Any, seed: int) -> Iterator[tuple[str, Arrays]]:
    """Sets of inputs, by the names of the side that knows most of them, each with a word for how it was made."""
    if lead.source is None:
        assert isinstance(lead.runs, Compiled)
        arrays = {} if given is None else _named(given, [name for name, _ in lead.inputs])
        yield "given" if arrays else "drawn", _drawn(lead.runs.module, arrays, seed)
        return
    if lead.source.examples is not None:
        yield "given", dict(lead.source.examples)
        return
    graph = lead.source.graph
    yield "drawn", drawing.draw(graph, drawing.sizes(graph), seed)
    if any(dim.lo != drawing.sizes(graph)[dim.name] for dim in graph.dims):
        yield "smallest", drawing.draw(graph, drawing.sizes(graph, smallest=True), seed + 1)


def _drawn(module: Module, given: Arrays, seed: int) -> Arrays:
    """Inputs of an exported library, of its least sizes where they are not given: floats are normal, others 0 or 1,
    which is an index of most axes. Raises InputError for an input that has to be given."""
    random = np.random.default_rng(seed)
    least = {dim.name: dim.lower for dim in module.interface.dims}
    values: Arrays = {}
    for spec in module.entry.inputs:
        shape = [axis if isinstance(axis, int) else least.get(axis) for axis in spec.shape]
        if spec.name in given:
            values[spec.name] = tensors.from_file(given[spec.name], spec.dtype)
        elif None in shape or spec.dtype == object:
            raise InputError(f"give the input {spec.name!r}: it is of texts, or its size follows from others")
        else:
            sizes = [axis for axis in shape if axis is not None]
            is_float = from_numpy(spec.dtype).is_float
            drawn = random.standard_normal(sizes) if is_float else random.integers(0, 2, sizes)
            values[spec.name] = drawn.astype(spec.dtype)
    return values


def _named(given: Any, names: list[str]) -> Arrays:
    pairs = dict(given) if isinstance(given, Mapping) else dict(zip(names, given, strict=True))
    return {name: tensors.to_numpy(value, name) for name, value in pairs.items()}


def _trial(
    made: str, both: tuple[Opened, Opened], given: tuple[Arrays, Arrays], outputs: list[tuple[str, str]],
    tolerance: float | None,
) -> Trial:  # fmt: skip
    found, expected = (side.runs.run(values) for side, values in zip(both, given, strict=True))
    oracles = [_oracle(made, side, values, tolerance) for side, values in zip(both, given, strict=True)]
    known = [oracle for oracle in oracles if oracle is not None]
    # Two models, or two libraries, are held to each other alone.
    strict = tolerance is None and bool(known) and known[0].graph.results == known[-1].graph.results
    rows = []
    for names in outputs:
        a, b = found[names[0]], expected[names[1]]
        bounds = [
            _bound(a.dtype, tolerance) if oracle is None else _allowed(oracle, side, name)
            for oracle, side, name in zip(oracles, both, names, strict=True)
        ]
        exact = next((o.exact(_output(o, name)) for o, name in zip(oracles, names, strict=True) if o is not None), b)
        rows.append(row(names[0], a, b, exact, Allowed(*bounds), strict))
    dims = {dim.name: o.dims[dim.name] for o in known[:1] for dim in o.graph.dims if dim.name in o.dims}
    return Trial(made, dims, tuple(rows))


def _oracle(made: str, side: Opened, values: Arrays, tolerance: float | None) -> Oracle | None:
    if side.source is None:
        return None
    target = side.runs.target if isinstance(side.runs, Compiled | Foreign) else None
    oracle = Oracle(side.source.graph, values, tolerance, FP32 if target is None else target.precision)
    try:
        oracle.compute(side.source.graph.results)
    except (IndexError, InputError) as error:
        raise InputError(f"the {made} inputs do not fit the model: {error}; pass inputs of your own") from error
    return oracle


def _output(oracle: Oracle, name: str) -> Node:
    return dict(oracle.graph.outputs)[name]


def _allowed(oracle: Oracle, side: Opened, name: str) -> Bound:
    allowed = oracle.allowed(_output(oracle, name))
    return allowed.own if isinstance(side.runs, Compiled | Foreign) else allowed.reference


def _bound(dtype: np.dtype[Any], tolerance: float | None) -> Bound:
    """How far a side may be of which nothing is known but the type of its output."""
    known = from_numpy(dtype)
    if not known.is_float:
        return Bound(0.0, 0.0)
    most = limit(known.eps / 2) if tolerance is None else tolerance / 2
    return Bound(most, most)


def _located(
    left: Opened, right: Opened, source: Source | None, values: Arrays, rows: Sequence[Row], target: Target,
    tolerance: float | None, save: str | Path | None,
) -> Finding | None:  # fmt: skip
    """Where the mismatch comes from: a side that luminal compiled here is searched, with its target; where there is
    only an exported library, a new compilation of the other side's model is."""
    if source is None:
        return None
    runs = [side.runs for side in (left, right)]
    framework = next((x for x in runs if not isinstance(x, Compiled | Foreign)), None)
    chosen = next((x.target for x in runs if isinstance(x, Compiled) and x.target is not None), target)
    bad = [k for k, one in enumerate(rows) if not one.ok]
    far = rows[bad[0]].distance
    library = next((side for side in (left, right) if side.source is None), None)
    try:
        if library is not None and not _wrong_here(source.graph, chosen, values, tolerance):
            how = f"the model, compiled anew, agrees with the interpreter; {library.runs.name} computes something else"
            return Finding(None, "another model or version", far, how)
        return locate.locate(source.graph, framework or Interpreter(source.graph), values, bad, chosen, tolerance, save)
    except LuminalError as error:  # what was found so far is worth more than this error alone
        return Finding(None, "an unknown stage", far, f"the search ended with {type(error).__name__}: {error}")


def _wrong_here(graph: Graph, target: Target, values: Arrays, tolerance: float | None) -> bool:
    """Whether ``graph``, compiled for ``target``, disagrees with the interpreter."""
    if targets.obstacle(target) and not targets.needs_emulation(target):
        return False
    module = api.compile(graph, target=target, emulate=targets.needs_emulation(target))
    assert isinstance(module, Module)
    oracle = Oracle(graph, values, tolerance, target.precision)
    oracle.compute(graph.results)
    given = {node.attr.name: values[node.attr.name] for node in graph.given}
    if survival.fault(module, given):
        return True
    found = module.run(given)
    return any(oracle.refutes(node, found[name]) for name, node in graph.returned)
