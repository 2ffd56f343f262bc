"""Options of the command line, as several commands have them, and their values. Each function raises
``typer.BadParameter`` for text that makes no sense."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from zipfile import BadZipFile

import numpy as np
import typer
from numpy.typing import NDArray

from luminal import arguments, emitted, mixed
from luminal.api import SEARCHES
from luminal.core import precision as precisions
from luminal.core import target as targets
from luminal.core.errors import InputError
from luminal.core.schedule.numeric import activations as activations_
from luminal.core.schedule.numeric import quantise
from luminal.core.schedule.program import recompute

# The names of targets and of precisions, for help.
TARGETS = (
    f"host, {', '.join(targets.ALL)}, riscv64, wasm32; CPU-SYSTEM for {', '.join(targets.SYSTEMS)}, such as "
    f"avx2-windows; or a GPU: {', '.join(targets.GPUS)}; luminal targets lists them"
)
PRECISIONS = (
    f"what contractions of float32 may round their operands to: {', '.join(precisions.ALL)}; "
    "or by operator, *=bf16,NAME=fp32; default: fp32, nothing"
)
ALGEBRA = (
    "bounded: sums of products in the order that costs least, while the bound of the error does not grow; exact: as "
    "the model spells them; default: bounded"
)
WINOGRAD = (
    "the largest error, relative to the root mean square of outputs, that faster convolutions may have, 1e-3 say "
    "(CPUs, fp32); default: none"
)
ACTIVATIONS = f"what quantised weights multiply is rounded to: {', '.join(activations_.ALL)}; default: nothing"
MEMORY = (
    f"the most bytes that values may take, or {recompute.LOW}: some are computed again instead of kept; default: any"
)
WEIGHTS = f"what large weights are rounded to: {', '.join(quantise.ALL)}; default: nothing"


def target(name: str) -> str:
    """The name of a target."""
    known = ("host", *targets.ALL, *targets.GPUS, *targets.ABROAD)
    if name not in (*known, *targets.ALIASES):
        raise typer.BadParameter(f"expected one of {', '.join(known)}, found {name!r}")
    return name


def _one_of(known: Collection[str]) -> Callable[[str | None], str | None]:
    """For an option that takes one of these names, or none."""

    def check(name: str | None) -> str | None:
        if name is not None and name not in known:
            raise typer.BadParameter(f"expected one of {', '.join(known)}, found {name!r}")
        return name

    return check


def precision(given: str | None) -> str | None:
    """One of the precisions, or those of operators by name."""
    if given is None or "=" not in given:
        return _one_of(precisions.ALL)(given)
    try:
        mixed.parse(given)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    return given


search, weights = _one_of(SEARCHES), _one_of(quantise.ALL)
emit, activations = _one_of(emitted.FORMS), _one_of(activations_.ALL)


def algebra(name: str | None) -> str | None:
    """One of the choices, or the manifest of a library."""
    if name is not None and name not in targets.ALGEBRA and not Path(name).exists():
        raise typer.BadParameter(f"expected {', '.join(targets.ALGEBRA)}, or the manifest of a library, found {name!r}")
    return name


def memory(bound: str | None) -> str | None:
    """A number of bytes, or ``low``."""
    if bound is not None and bound != recompute.LOW and not (bound.isdecimal() and int(bound) > 0):
        raise typer.BadParameter(f"expected {recompute.LOW}, or a number of bytes above 0, found {bound!r}")
    return bound


def winograd(budget: float | None) -> float | None:
    """An error budget."""
    if budget is not None and not (math.isfinite(budget) and budget > 0):
        raise typer.BadParameter(f"expected a finite number above 0, found {budget}")
    return budget


def dims(given: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """``NAME=LOW:HIGH``, ``NAME=LOW:HIGH:STEP`` and ``NAME=SIZE`` as bounds by name."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given or ():
        name, bounds = _pair(text, "NAME=LOW:HIGH", "--dim")
        numbers = [_size(number, text, "--dim") for number in bounds.split(":")]
        if len(numbers) > 3:
            raise typer.BadParameter(f"{text!r}: expected LOW:HIGH:STEP at most", param_hint="--dim")
        low, high, *step = numbers if len(numbers) > 1 else numbers * 2
        if not low <= high:
            raise typer.BadParameter(f"{text!r}: expected the lower bound first", param_hint="--dim")
        if step == [0]:
            raise typer.BadParameter(f"{text!r}: expected a step of 1 or more", param_hint="--dim")
        found[name] = (low, high, *step)
    return found


def sizes(given: Sequence[str] | None) -> dict[str, int]:
    """``NAME=SIZE`` as sizes by name."""
    pairs = (_pair(text, "NAME=SIZE", "--size") for text in given or ())
    return {name: _size(size, f"{name}={size}", "--size") for name, size in pairs}


def arrays(given: Sequence[str] | None, option: str) -> dict[str, NDArray[Any]]:
    """``NAME=FILE.npy`` and ``FILE.npz`` as arrays by name."""
    found: dict[str, NDArray[Any]] = {}
    for text in given or ():
        if "=" not in text and text.endswith(".npz"):
            found |= _archive(Path(text), option)
        else:
            name, path = _pair(text, "NAME=FILE.npy", option)
            found[name] = _array(Path(path), option)
    return found


def mesh(given: Sequence[str] | None) -> dict[str, int] | None:
    """``AXIS=SIZE`` as the axes of a mesh; None where there are none."""
    pairs = [_pair(text, "AXIS=SIZE", "--mesh") for text in given or ()]
    return {axis: _size(size, f"{axis}={size}", "--mesh") for axis, size in pairs} or None


def shard(given: Sequence[str] | None) -> str | dict[str, dict[str, int] | None]:
    """``NAME=AXIS:NUMBER``, or several of an AXIS of the mesh and the NUMBER of the tensor's, and ``NAME=whole``, as
    what lies where; ``auto`` where nothing is said."""
    found: dict[str, dict[str, int] | None] = {}
    for text in given or ():
        name, axes = _pair(text, "NAME=AXIS:NUMBER", "--shard")
        found[name] = None if axes == "whole" else dict(_cut(cut, text) for cut in axes.split(","))
    return found or "auto"


def _cut(cut: str, text: str) -> tuple[str, int]:
    axis, separator, number = cut.partition(":")
    if not (axis and separator and number):
        expected = "NAME=AXIS:NUMBER[,AXIS:NUMBER] or NAME=whole"
        raise typer.BadParameter(f"expected {expected}, found {text!r}", param_hint="--shard")
    return axis, _size(number, text, "--shard")


def _pair(text: str, form: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise typer.BadParameter(f"expected {form}, found {text!r}", param_hint=option)
    return name, value


def _size(text: str, whole: str, option: str) -> int:
    if not text.isdigit():
        raise typer.BadParameter(f"{whole!r}: expected a number, found {text!r}", param_hint=option)
    return int(text)


def _array(path: Path, option: str) -> NDArray[Any]:
    with _reading(path, "numpy.save", ".npy", b"\x93NUMPY", option):
        found: NDArray[Any] = np.load(path, allow_pickle=False)
        return found


def _archive(path: Path, option: str) -> dict[str, NDArray[Any]]:
    with _reading(path, "numpy.savez", ".npz", b"PK", option), np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@contextmanager
def _reading(path: Path, writer: str, kind: str, begins: bytes, option: str) -> Iterator[None]:
    """Around reading a file of a ``kind``, which begins with the bytes ``begins``: errors name the option."""
    try:
        with path.open("rb") as file:
            found = file.read(len(begins))
        if found != begins:
            what = "it is no such file" if found else "it is empty"
            raise typer.BadParameter(
                f"cannot read {path}: expected a {kind} file, as {writer} writes it, found that {what}",
                param_hint=option,
            )
        yield
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        objects = "it holds objects of Python: expected numbers or texts" if "pickle" in str(error) else error
        raise typer.BadParameter(f"cannot read {path} as a numpy file: {objects}", param_hint=option) from error


# ---- what commands declare -------------------------------------------------------------------------------------------

Model = Annotated[Path, typer.Argument(help="an .onnx file, or a .pt2 file that torch.export.save wrote")]
Target = Annotated[str, typer.Option(help=TARGETS, callback=target)]
Precision = Annotated[str | None, typer.Option(help=PRECISIONS, callback=precision)]
Algebra = Annotated[str | None, typer.Option(help=ALGEBRA, callback=algebra)]
Weights = Annotated[str | None, typer.Option(help=WEIGHTS, callback=weights)]
Activations = Annotated[str | None, typer.Option(help=ACTIVATIONS, callback=activations)]
Winograd = Annotated[float | None, typer.Option(help=WINOGRAD, callback=winograd)]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", help="bounds of a symbolic size, NAME=LOW:HIGH, with a step NAME=LOW:HIGH:STEP, or NAME=SIZE to fix it"
    ),
]
Sizes = Annotated[list[str] | None, typer.Option("--size", help="the size of a symbolic dimension, NAME=SIZE")]
Constants = Annotated[list[str] | None, typer.Option("--constant", help="fix an input to a value, NAME=FILE.npy")]
Inputs = Annotated[list[str] | None, typer.Option("--input", help="an input, NAME=FILE.npy, or several, FILE.npz")]
Threads = Annotated[int, typer.Option(min=0, max=arguments.MAX_THREADS, help="threads of a run; 0: one for each CPU")]

Mesh = Annotated[list[str] | None, typer.Option("--mesh", help="an axis of a mesh of processes, AXIS=SIZE")]
Shard = Annotated[
    list[str] | None,
    typer.Option(
        "--shard",
        help="which of its axes an axis of the mesh divides, NAME=AXIS:NUMBER, or NAME=whole; default: as it "
        "costs least",
    ),
]
Link = Annotated[str | None, typer.Option(help="what joins the processes of a mesh, its rate and latency: 25GB/s,10us")]


MicroBatches = Annotated[
    int, typer.Option(help="the parts of a batch that the stages of a pipeline compute one after the other", min=1)
]


def choices(
    target: str, precision: str | None, algebra: str | None, weights: str | None, winograd: float | None,
    activations: str | None, dim: list[str] | None, constant: list[str] | None, threads: int,
) -> dict[str, Any]:  # fmt: skip
    """The options of several commands as arguments of the functions that these call."""
    return {
        "target": target, "precision": precision, "algebra": algebra, "weights": weights, "winograd": winograd,
        "activations": activations, "dims": dims(dim), "constants": arrays(constant, "--constant"), "threads": threads,
    }  # fmt: skip


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as typer takes it, where parameters that are dataclasses stand for options of several commands: each
    field is an option with its default, or one that has to be given where it has none."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values() if is_dataclass(p.annotation)}
    single: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            hints = get_type_hints(groups[parameter.name], include_extras=True)
            single += [
                inspect.Parameter(
                    field.name, parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name]
                )
                for field in fields(groups[parameter.name])
            ]
        else:
            single.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__annotations__ = {}
    called.__signature__ = inspect.Signature(single)  # type: ignore[attr-defined]
    return called


def _default(field: Field[Any]) -> Any:
    """The default of a field as a parameter has it."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default
