"""Arguments that a model writes into: what it leaves there is an output of the library, copied after the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal import tensors
from luminal.core.errors import InputError
from luminal.structure import Argument


def check(arguments: Sequence[Argument]) -> None:
    """Raises InputError where an argument that the model writes into cannot be written, or shares memory with another
    argument: in eager mode, the other would change at once."""
    written = [argument for argument in arguments if "left" in argument.description]
    for argument in written:
        problem = _problem(argument.value)
        if problem:
            raise InputError(f"{argument.path}: the model writes into it, {problem}")
    if written:
        for one, other in _overlapping(arguments):
            if "left" in one.description or "left" in other.description:
                raise InputError(
                    f"{one.path} and {other.path} share memory, and the model writes into one of them: pass a copy of "
                    "the other"
                )


def write(arguments: Sequence[Argument], results: Sequence[Any]) -> None:
    """Copy what the run left in ``arguments``, which have been checked, from its ``results`` to where they lie."""
    for argument in arguments:
        if "left" not in argument.description:
            continue
        value, result = argument.value, results[argument.description["left"]]
        if "complex" in argument.description:
            result = tensors.complex_numbers(result)
        if tensors.is_torch(value):
            value.detach().copy_(tensors.to_torch(result))
        else:
            value[...] = tensors.to_numpy(result.cpu() if tensors.is_torch(result) else result, argument.path)


def _problem(value: Any) -> str:
    """Why ``value`` cannot be written into as PyTorch would; empty where it can."""
    if not tensors.is_torch(value):
        if not isinstance(value, np.ndarray):
            return f"and it is no PyTorch tensor or numpy array, but {type(value).__name__}: make it one"
        return "" if value.flags.writeable else "and the array is read-only: pass a copy"
    torch = sys.modules["torch"]
    if value.requires_grad and torch.is_grad_enabled():
        return "and it requires a gradient, which compiled models do not compute: call them under torch.no_grad()"
    if value.is_inference() and not torch.is_inference_mode_enabled():
        return "and it was made under torch.inference_mode(): call the model under it too, or pass a clone"
    if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
        return "and several of its elements are one in memory, as expand() leaves them: pass a clone"
    return ""


def _overlapping(arguments: Sequence[Argument]) -> Iterator[tuple[Argument, Argument]]:
    """All pairs of arguments that share memory."""
    spans = []
    for argument in arguments:
        memory = _memory(argument.value)
        if memory is not None and memory.size:
            extents = [(n - 1) * stride for n, stride in zip(memory.shape, memory.strides, strict=True)]
            first = memory.__array_interface__["data"][0] + sum(min(extent, 0) for extent in extents)
            last = first + sum(map(abs, extents)) + memory.itemsize
            spans.append((first, last, memory, argument))
    reached: list[tuple[int, NDArray[Any], Argument]] = []
    for first, last, memory, argument in sorted(spans, key=lambda span: span[0]):
        reached = [span for span in reached if span[0] > first]
        yield from ((other, argument) for _, around, other in reached if np.shares_memory(around, memory))
        reached.append((last, memory, argument))


def _memory(value: Any) -> NDArray[Any] | None:
    """An array at the addresses of ``value``, for these alone: a GPU's memory cannot be read through it."""
    if not tensors.is_torch(value):
        return value if isinstance(value, np.ndarray) else None
    size = value.element_size()
    described = {
        "version": 3,
        "data": (value.data_ptr(), True),
        "shape": tuple(value.shape),
        "strides": tuple(stride * size for stride in value.stride()),
        "typestr": f"|V{size}",
    }
    return np.asarray(SimpleNamespace(__array_interface__=described)) if value.numel() else None
