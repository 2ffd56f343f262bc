"""Descriptions of kernels to measure, and of their arguments, which one process can send to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from luminal.core import symbolic as sym
from luminal.core import types
from luminal.core.schedule.program.ir import Kernel, Launch, Program
from luminal.core.sizes import typical
from luminal.core.symbolic import Var

_PERIOD = 262_139  # elements, a prime: neighbours in memory, at any stride, are drawn apart

DEVIATION = 0.25


@dataclass(frozen=True)
class Argument:
    """An array of a kernel: its type, how many elements it has, whether it holds weights, and which argument (itself,
    or an earlier one) has its memory."""

    dtype: str
    elements: int
    weights: bool
    same: int

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))


@dataclass(frozen=True)
class Subject:
    """A kernel of a library of ``codegen.timed``: its ``number`` there, its ``tasks``, how many of them are worth
    waking a thread for, whether it may raise a status, its arrays, and the sizes of its dimensions."""

    number: int
    tasks: int
    grain: int
    checked: bool
    arguments: tuple[Argument, ...]
    sizes: tuple[int, ...]

    def arrays(self, made: Callable[[Argument, int], NDArray[Any]]) -> list[NDArray[Any]]:
        """The arrays of a call; ``made(argument, number)`` makes each one that has memory of its own."""
        found: list[NDArray[Any]] = []
        for place, argument in enumerate(self.arguments):
            found.append(made(argument, place) if argument.same == place else found[argument.same])
        return found


@dataclass(frozen=True)
class Work:
    """A kernel of a contender, how many ``times`` a run of the model launches it, and the ``positions`` at which the
    arrays that it writes, by their number, are to be compared. For a GPU, it is alone in the library of ``folder``,
    which gives the arrays that are ``written``, and has those that are ``constants``."""

    of: Subject
    times: int
    positions: Mapping[int, NDArray[np.int64]]
    folder: str = ""
    written: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()


@dataclass(frozen=True)
class Race:
    """The work of the contenders of one question, as kernels of ``library``, or each in its own folder where that is
    empty. They take turns for ``seconds``, on
    ``threads`` threads, and read at most ``weights`` bytes of weights in turn."""

    library: str
    threads: int
    weights: int
    seconds: float
    contenders: Sequence[Sequence[Work]]


def sizes(dims: Iterable[Var]) -> dict[str, int]:
    """The typical size of each dimension, at which kernels are measured."""
    return {dim.name: typical(sym.expr(dim)) for dim in dims}


def of(program: Program, kernel: Kernel, launch: Launch, number: int, at: Mapping[str, int] | None = None) -> Subject:
    """The description of a launch of ``kernel``, at sizes ``at`` of the program's dimensions, or the typical ones."""
    at = sizes(program.dims) | dict(at or {})
    arguments = []
    for place, name in enumerate(launch.arguments):
        buffer = program.buffer(name)
        elements = int(sym.evaluate(sym.product(buffer.shape), at))
        same = launch.arguments.index(name)
        dtype = kernel.nest.arrays[place].dtype.numpy
        arguments.append(Argument(dtype.name, elements, buffer.space == "constant", same))
    tasks = int(sym.evaluate(kernel.nest.task_count, at))
    dims = tuple(at.get(dim.name, 0) for dim in kernel.nest.dims)
    return Subject(number, tasks, launch.grain, kernel.nest.checked, tuple(arguments), dims)


def drawn(argument: Argument, place: int) -> NDArray[Any]:
    """Values for an argument: the same in every process. Floats are normal, of a deviation that keeps sums of products
    near one, as in a model (exponentials of larger ones are denormal numbers, which take long); integers of 8 bits and
    fewer are any, as those of weights and activations; others are small, so that they are valid indices of most arrays.
    """
    random = np.random.default_rng(place)
    count = min(argument.elements, _PERIOD)
    dtype = argument.numpy
    known = types.from_numpy(dtype)
    if known.is_bool:
        values = random.integers(0, 2, count).astype(bool)
    elif known.is_integer:
        least, most = (int(known.min), int(known.max)) if known.bits <= 8 else (0, 3)
        values = random.integers(least, most, count, endpoint=True).astype(dtype)
    else:
        values = (DEVIATION * random.standard_normal(count)).astype(np.float32).astype(dtype)
    return np.resize(values, argument.elements)
