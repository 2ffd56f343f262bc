"""The command line: ``luminal check | compile | run | diff | bench | profile | view | inspect | doctor | verify |
tune`` and, for language models, ``generate | chat | serve``.

Exit codes: 0 all is well; 1 the answer is no (a mismatch, something unsupported, a build or a run that failed); 2 the
command or what it was given is at fault.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich import filesize
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

import luminal
from luminal import arguments, cli_folders, cli_llm, cli_mesh, destination, options, profiled, subject
from luminal.codegen import interface
from luminal.comparison.references import OnnxRuntime, Reference
from luminal.comparison.sources import open_source
from luminal.console import err, out, say
from luminal.core import config
from luminal.core import target as targets
from luminal.core.errors import BuildError, InputError, LuminalError, SpecError, UnsupportedError
from luminal.coverage import Coverage, Operator, coverage
from luminal.display import Display
from luminal.options import (
    Activations,
    Algebra,
    Constants,
    Dims,
    Inputs,
    Link,
    Mesh,
    MicroBatches,
    Model,
    Precision,
    Shard,
    Sizes,
    Target,
    Threads,
    Weights,
    Winograd,
    choices,
)
from luminal.runtime.loader import LibraryError
from luminal.specialised import Specialised
from luminal.tensors import from_file, to_file
from luminal.timing import interleaved, ratio, text
from luminal.tuning import outcome as tuned
from luminal.tuning.records import Records
from luminal.tuning.records import save as save_records


class Commands(TyperGroup):
    """Reports the errors that luminal raises on purpose in a line or two, and ends with their exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever reads has enough of it, as head has: the library of commands ends quietly
            raise
        except (LuminalError, LibraryError, MemoryError, OSError) as error:
            if ctx.params["debug"]:
                raise
            message = str(error) or "no memory is left"  # what Python itself says of that is empty
            err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
            if isinstance(error, SpecError):
                err.print("this is a defect in luminal; --debug shows where")
            failed = UnsupportedError | BuildError | SpecError | LibraryError | MemoryError
            ctx.exit(1 if isinstance(error, failed) else 2)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"luminal {luminal.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks of errors")] = False,
    version: Annotated[bool, typer.Option("--version", help="show the version", callback=_version)] = False,
) -> None:
    """Ahead-of-time compiler for deep-learning models: ONNX and PyTorch to native libraries."""
    config.check()


@app.command()
def check(
    model: Model,
    dim: Dims = None,
    constant: Constants = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object, in JSON")] = False,
) -> None:
    """List a model's operators, and everything in it that cannot be compiled, before any code is generated."""
    with Display(err) as display:
        display.report("check", 0.0)
        dims, constants = options.dims(dim), options.arrays(constant, "--constant")
        found = coverage(model, dims=dims, constants=constants)
        display.report("check", 1.0)
    if as_json:
        typer.echo(json.dumps({"model": model.name, "supported": not found.places, **asdict(found)}, indent=2))
    else:
        _show(model.name, found)
    raise typer.Exit(1 if found.places else 0)


def _show(name: str, found: Coverage) -> None:
    """The operators, and the places that cannot be compiled."""
    table = Table(title=f"{name}: {len(found.operators)} operators", title_justify="left")
    for heading in ("operator", "opset", "nodes", "cases of its suite that pass", "supported"):
        table.add_column(heading, justify="right" if heading in ("opset", "nodes") else "left", overflow="fold")
    for operator in found.operators:
        cases = "none" if operator.cases is None else f"{operator.cases[0]} of {operator.cases[1]}"
        opset = "" if operator.opset is None else str(operator.opset)
        table.add_row(escape(operator.name), opset, str(operator.nodes), cases, escape(_support(operator)))
    out.print(table)
    for relation in found.relations:
        out.print(f"{name} needs that {escape(relation)}", highlight=False)
    if not found.places:
        out.print(f"{name}: every operator is supported", highlight=False)
        return
    table = Table(title=f"{name}: {len(found.places)} unsupported", title_justify="left")
    for heading in ("operator", "node", "operands", "where", "what to do"):
        table.add_column(heading, overflow="fold")
    for place in found.places:
        table.add_row(*map(escape, (place.op, place.node, "\n".join(place.operands), place.location, place.advice)))
    out.print(table)


def _support(operator: Operator) -> str:
    """Whether an operator can be compiled; else why not, of the first of its places."""
    if not operator.places:
        return "yes"
    some = "no" if len(operator.places) >= operator.nodes else f"not {len(operator.places)}"
    return f"{some}: {operator.places[0].advice}"


@app.command("compile")
def compile_(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder to write")],
    target: Target = "host",
    precision: Precision = None,
    algebra: Algebra = None,
    weights: Weights = None,
    winograd: Winograd = None,
    activations: Activations = None,
    dim: Dims = None,
    constant: Constants = None,
    name: Annotated[str | None, typer.Option(help="the name of the library; default: the model's")] = None,
    seed: Annotated[int, typer.Option(help="of the model's random numbers, if it draws any")] = 0,
    emit: Annotated[str, typer.Option(help="library, static, source or wheel", callback=options.emit)] = "library",
    emulate: Annotated[
        bool, typer.Option("--emulate", help="a library for this machine, in which the target's GPU is emulated")
    ] = False,
    search: Annotated[
        str, typer.Option(help="quick: measure schedules before, for about 60 s; none", callback=options.search)
    ] = "none",
    memory: Annotated[str | None, typer.Option(help=options.MEMORY, callback=options.memory)] = None,
    explain: Annotated[bool, typer.Option("--explain", help="say what options changed of the model")] = False,
    threads: Annotated[
        int,
        typer.Option(
            min=0, max=arguments.MAX_THREADS, help="take schedules that were tuned for so many; 0: one for each CPU"
        ),
    ] = 0,
    mesh: Mesh = None,
    shard: Shard = None,
    link: Link = None,
    micro_batches: MicroBatches = 1,
) -> None:
    """Compile a model to a folder with its library, headers, weights and sources."""
    started = time.perf_counter()
    destination.export(output, "--output", name or interface.library_name(model.stem))
    with _going_on() if search != "none" else nullcontext(), Display(err) as display:
        module = luminal.compile(
            model,
            **choices(target, precision, algebra, weights, winograd, activations, dim, constant, threads),
            name=name,
            emulate=emulate,
            seed=seed,
            search=search,
            mesh=options.mesh(mesh),
            shard=options.shard(shard),
            link=link,
            micro_batches=micro_batches,
            memory=int(memory) if memory and memory.isdecimal() else memory,
            progress=display.report,
        )
        if isinstance(module, Specialised):
            module.export(output)  # says what decides shapes, and has to be given
        module.export(output, emit=emit, progress=display.report)
    for path in sorted(path for path in output.iterdir() if path.is_file()):
        say(f"  {filesize.decimal(path.stat().st_size):>10}  {path.name}")
    say(f"{output} in {text(time.perf_counter() - started)}")
    for line in tuned.lines(module.tuned) if module.tuned is not None else ():
        say(line)
    chosen = {"algebra": algebra, "weights": weights, "winograd": winograd, "activations": activations}
    for option, value in chosen.items():
        if value is not None:
            say(f"--{option} {value}: operators computed so, listed in manifest.json: {module.approximated(option)}")
    if explain:
        out.print(module.explain() or "no option changed anything", highlight=False, markup=False)
    reason = targets.obstacle(targets.parse(target))
    if emulate:
        say(f"the library emulates {target} on this machine: slowly, and with every access to memory checked")
    elif reason:
        say(f"the library cannot run here: {reason}")


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="a compiled model: the folder that compile wrote")],
    inputs: Inputs = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="save the outputs: a folder of .npy files, or one .npz file")
    ] = None,
    threads: Threads = 0,
) -> None:
    """Run a compiled model on arrays, and show what it gives."""
    if output is not None and output.suffix == ".npy":
        raise InputError(f"--output {str(output)!r}: expected the name of a folder, or of one file that ends in .npz")
    if output is not None:
        (destination.file if output.suffix == ".npz" else destination.folder)(output, "--output")
    module = luminal.load(folder, threads=threads)
    given = options.arrays(inputs, "--input")
    problems = []
    unknown = sorted(set(given) - set(module.input_names))
    if unknown:
        problems.append(f"--input names {', '.join(unknown)}; the inputs are {', '.join(module.input_names)}")
    missing = [t for t in module.library.entries[0].inputs if t.name not in given]
    if missing:
        wanted = "; ".join(f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]" for t in missing)
        problems.append(f"give these inputs as --input NAME=FILE.npy: {wanted}")
    if problems:
        raise InputError("\n".join(problems))
    given = {t.name: from_file(given[t.name], t.dtype) for t in module.library.entries[0].inputs}
    started = time.perf_counter()
    try:
        results = module.run(given)
    except (ValueError, IndexError) as error:  # what the library says of inputs that do not fit
        raise InputError(str(error)) from error
    seconds = time.perf_counter() - started
    for name, array in results.items():
        say(f"{name}: {array.dtype}{list(array.shape)}{_summary(array)}")
    say(f"in {text(seconds)}")
    if output is not None:
        _save(output, results)


@app.command()
def diff(
    model: Annotated[Path, typer.Argument(metavar="A", help="an .onnx or .pt2 file, an exported folder, or FILE@NAME")],
    against: Annotated[
        str | None,
        typer.Argument(
            metavar="B",
            help="another one, or a name of what runs A: onnxruntime, torch, interpreter, luminal, or a target",
        ),
    ] = None,
    inputs: Inputs = None,
    reference: Annotated[str, typer.Option(help="auto, onnxruntime, torch or interpreter")] = "auto",
    target: Target = "host",
    precision: Precision = None,
    algebra: Algebra = None,
    weights: Weights = None,
    winograd: Winograd = None,
    activations: Activations = None,
    dim: Dims = None,
    constant: Constants = None,
    seed: Annotated[int, typer.Option(help="of the inputs that are drawn")] = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(help="distance from the reference, by the output's scale; default: what rounding explains"),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="the folder for a reproducer of a mismatch")] = None,
    html: Annotated[Path | None, typer.Option(help="write the report as a page of HTML")] = None,
    by_operator: Annotated[
        bool, typer.Option("--mixed", help="say which operators lose most in --precision or --weights")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object, in JSON")] = False,
    threads: Threads = 0,
) -> None:
    """Compile a model and compare it with the framework that it came from and with float64; or compare A with B."""
    if html is not None:
        destination.file(html, "--html")
    with Display(err) as display:
        found = luminal.diff(
            str(model) if against is not None or "@" in str(model) else model,
            options.arrays(inputs, "--input") or None,
            against,
            reference=reference,
            **choices(target, precision, algebra, weights, winograd, activations, dim, constant, threads),
            seed=seed,
            tolerance=tolerance,
            save=save,
            mixed=by_operator,
            progress=display.report,
        )
    if html is not None:
        html.write_text(found.html(), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        out.print(found)
    raise typer.Exit(0 if found.ok and not found.undecided else 1)


@app.command()
def bench(
    model: Model,
    size: Sizes = None,
    target: Target = "host",
    precision: Precision = None,
    algebra: Algebra = None,
    weights: Weights = None,
    winograd: Winograd = None,
    activations: Activations = None,
    dim: Dims = None,
    constant: Constants = None,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 21,
    threads: Threads = 0,
    kernels: Annotated[bool, typer.Option("--kernels", help="time its kernels instead, beside the peak")] = False,
) -> None:
    """Time a model beside the framework that it came from: same inputs, same threads, taking turns."""
    chosen = choices(target, precision, algebra, weights, winograd, activations, dim, constant, threads)
    machine = subject.target(chosen)
    targets.check_supported(machine)
    if kernels and machine.grid is not None:
        raise InputError(f"--kernels: the peak beside the times is that of a CPU, found the target {target}")
    with Display(err) as display:
        module, values, at = subject.drawn(model, size, chosen, display)
        title = f"{model.name}{at}, {runs} runs"
        if kernels:
            found = profiled.measure(
                module, values, runs, threads, title=title,
                watch=lambda done, total: display.report("time", done / total),
            )  # fmt: skip
            for shown in found.tables():
                out.print(shown)
            return
        contenders: dict[str, Callable[[], object]] = {"luminal": lambda: module.run(values)}
        reference = _reference(model, chosen["dims"], chosen["constants"], threads)
        if reference is not None:
            contenders[reference.name] = lambda: reference.run(values)
        timings = interleaved(contenders, runs, watch=lambda done, total: display.report("time", done / total))
    table = Table(title=title)
    for heading in ("", "median", "fastest", "luminal takes"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, timing in timings.items():
        times = "" if name == "luminal" else ratio(timings["luminal"].median / timing.median)
        table.add_row(name, text(timing.median), text(timing.best), times)
    out.print(table)


@app.command()
def profile(
    model: Annotated[Path, typer.Argument(help="a model, or the folder of an exported one")],
    size: Sizes = None,
    inputs: Inputs = None,
    target: Target = "host",
    precision: Precision = None,
    algebra: Algebra = None,
    weights: Weights = None,
    winograd: Winograd = None,
    activations: Activations = None,
    dim: Dims = None,
    constant: Constants = None,
    runs: Annotated[int, typer.Option(min=3, help="runs that are measured")] = 21,
    threads: Threads = 0,
    trace: Annotated[Path | None, typer.Option(help="write a trace with every thread, for Perfetto or Chrome")] = None,
    roofline: Annotated[Path | None, typer.Option(help="write a picture of kernels below the peak, SVG")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object, in JSON")] = False,
) -> None:
    """Say where the time of a model goes: by kernel and by source operator, beside the machine's peak."""
    for path, option in ((trace, "--trace"), (roofline, "--roofline")):
        if path is not None:
            destination.file(path, option)
    given = options.arrays(inputs, "--input")
    with Display(err) as display:
        if model.is_dir():
            module = luminal.load(model, threads=threads)
            values, at = subject.for_folder(module, given), ""
        else:
            chosen = choices(target, precision, algebra, weights, winograd, activations, dim, constant, threads)
            targets.check_supported(subject.target(chosen))
            module, values, at = subject.drawn(model, size, chosen, display)
            values |= given
        try:
            found = profiled.measure(
                module, values, runs, threads, title=f"{model.name}{'' if given else at}",
                watch=lambda done, total: display.report("time", done / total),
            )  # fmt: skip
            if trace is not None:
                profiled.trace(module, values, trace, threads=threads)
        except ValueError as error:  # what the library says of inputs that do not fit
            raise InputError(str(error)) from error
    if roofline is not None:
        roofline.write_text(found.roofline(), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
        return
    for table in found.tables():
        out.print(table)


@app.command()
def view(
    model: Annotated[Path, typer.Argument(help="a model, or the folder of an exported one")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the page to write; default: NAME.html")] = None,
    size: Sizes = None,
    inputs: Inputs = None,
    target: Target = "host",
    precision: Precision = None,
    algebra: Algebra = None,
    weights: Weights = None,
    winograd: Winograd = None,
    activations: Activations = None,
    dim: Dims = None,
    constant: Constants = None,
    threads: Threads = 0,
    time: Annotated[
        bool, typer.Option("--time/--no-time", help="whether kernels are measured, on this machine")
    ] = True,
) -> None:
    """Write a page of HTML that shows a model: source graph, kernels, their code, memory, time. It works offline."""
    output = destination.file(output or Path(f"{model.resolve().stem}.html"), "--output")
    chosen = choices(target, precision, algebra, weights, winograd, activations, dim, constant, threads)
    with Display(err) as display:
        made = subject.page(model, options.arrays(inputs, "--input"), size, chosen, time, display)
    output.write_text(made, encoding="utf-8")
    say(f"{output}: {filesize.decimal(output.stat().st_size)}")


@app.command()
def tune(
    model: Model,
    budget: Annotated[
        float,
        typer.Option(min=1, help="seconds to measure for, about: a compiler that is at work ends first; inf: no limit"),
    ],
    target: Target = "host",
    precision: Precision = None,
    algebra: Algebra = None,
    weights: Weights = None,
    winograd: Winograd = None,
    activations: Activations = None,
    dim: Dims = None,
    constant: Constants = None,
    threads: Threads = 0,
    again: Annotated[bool, typer.Option("--again", help="measure what was measured before, too")] = False,
    workers: Annotated[
        str | None, typer.Option(help="measure on the machines of the Ray cluster at this address, not on this one")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="write what all records choose to a file, as it comes with the package")
    ] = None,
) -> None:
    """Measure schedules for a model's kernels on this machine; later compilations take the fastest.

    Each candidate is compared with the interpreter, and taken where it was faster than the default in the same run.
    Symbolic sizes are the geometric means of their bounds. Records are kept in the cache (LUMINAL_RECORDS names another
    file); an interrupted search goes on where it was.
    """
    if save is not None:
        destination.file(save, "--save")
    with _going_on(again), Display(err) as display:
        found = luminal.tune(
            model,
            budget=budget,
            **choices(target, precision, algebra, weights, winograd, activations, dim, constant, threads),
            again=again,
            workers=workers,
            progress=display.report,
        )
    for outcome in found if isinstance(found, list) else [found]:
        if outcome.answers:
            out.print(tuned.table(outcome))
        for line in tuned.lines(outcome):
            say(line)
    if save is not None:
        say(f"{save_records(save, Records())} choices in {save}")


@contextmanager
def _going_on(again: bool = False) -> Iterator[None]:
    """For a search: an interrupt says what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        how = "without --again, the same command" if again else "the same command"
        say(f"interrupted: what was measured is in {Records().path}; {how} goes on there")
        raise


def _reference(
    model: Path, dims: dict[str, tuple[int, ...]], constants: dict[str, NDArray[Any]], threads: int
) -> Reference | None:
    """The framework that ``model`` is for, on as many threads; None where it is not installed."""
    if model.suffix != ".pt2":
        found = importlib.util.find_spec("onnxruntime")
        return None if found is None else OnnxRuntime(model, constants, threads, fastest=True)
    if threads:
        import torch

        torch.set_num_threads(threads)
    return open_source(model, dims=dims, constants=constants).reference


# ---- output ----------------------------------------------------------------------------------------------------------


def _summary(array: NDArray[Any]) -> str:
    if not array.size or array.dtype.kind in "c":
        return ""
    wide = array.astype(np.float64)
    return f", {wide.min():g} .. {wide.max():g}, mean {wide.mean():g}"


def _save(path: Path, results: dict[str, NDArray[Any]]) -> None:
    if path.suffix == ".npz":
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{name: to_file(array) for name, array in results.items()})  # type: ignore[arg-type]
        return
    path.mkdir(parents=True, exist_ok=True)
    for name, array in results.items():
        np.save(path / f"{name.replace('/', '_')}.npy", to_file(array))


cli_folders.add(app)
cli_llm.add(app)
cli_mesh.add(app)
