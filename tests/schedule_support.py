"""Runs whole programs in the interpreter of loop nests: the oracle between the graph and the compiled library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from luminal.core import symbolic as sym
from luminal.core import types
from luminal.core.ir import Graph
from luminal.core.program import Buffer, Launch, Phase, Program
from luminal.core.schedule import run_nest

Array = np.ndarray[Any, Any]


def check_outputs(graph: Graph, expected: Sequence[Array], found: Mapping[str, Array], depth: int) -> None:
    """The outputs of ``graph``: exact, or for floats as near as sums of ``depth`` terms are in any order."""
    for (output, node), value in zip(graph.outputs, expected, strict=True):
        assert found[output].shape == value.shape and found[output].dtype == value.dtype
        if not node.dtype.is_float:
            np.testing.assert_array_equal(found[output], value)
            continue
        # Both sum in float32, in different orders: the error of a sum of n terms grows as sqrt(n).
        eps = max(node.dtype.eps, types.f32.eps)
        scale = float(np.abs(value.astype(np.float64)).max(initial=1.0))
        difference = np.abs(found[output].astype(np.float64) - value.astype(np.float64))
        assert difference.max(initial=0.0) <= 4 * np.sqrt(depth) * eps * scale


def run_program(
    program: Program, inputs: dict[str, Array], seed: int = 0, run_kernel: Callable[..., bool] = run_nest.run
) -> dict[str, Array]:
    """The outputs of ``program``, every kernel run by ``run_kernel`` on buffers in one real arena.

    Each share of a phase runs through all its steps before the next begins, in an order drawn from ``seed``: as far
    apart as threads can drift.
    """
    (entry,) = program.entries
    sizes: dict[str, int] = {}
    for tensor in entry.inputs:
        for extent, size in zip(tensor.shape, inputs[tensor.name].shape, strict=True):
            variable = sym.as_var(extent)
            if variable is not None:
                sizes[variable.name] = size
    arena = np.full(entry.arena_size, 0xFF, np.uint8)  # NaN in every float type: stale memory shows
    flat: dict[str, Array] = {}
    for buffer in program.buffers:
        flat[buffer.name] = _memory(program, buffer, sizes, arena, inputs)

    def run(step: Launch, tasks: range | None) -> None:
        nest = program.kernels[step.kernel].nest
        arrays = {a.name: flat[name] for a, name in zip(nest.arrays, step.arguments, strict=True)}
        if not run_kernel(nest, arrays, sizes, tasks):
            raise IndexError("a checked index was out of range")

    phases = {phase.first: phase for phase in entry.phases}
    number = 0
    while number < len(entry.steps):
        phase = phases.get(number, Phase(number, number, 1, (1,)))
        if phase.last == number:
            run(entry.steps[number], None)
        else:
            for share in np.random.default_rng(seed).permutation(int(sym.evaluate(phase.shares, sizes))).tolist():
                for step, tasks in zip(entry.steps[number : phase.last + 1], phase.tasks, strict=True):
                    run(step, range(share * tasks, (share + 1) * tasks))
        number = phase.last + 1
    return {t.name: flat[t.name].reshape([int(sym.evaluate(d, sizes)) for d in t.shape]) for t in entry.outputs}


def _memory(program: Program, buffer: Buffer, sizes: dict[str, int], arena: Array, inputs: dict[str, Array]) -> Array:
    count = int(sym.evaluate(sym.product(buffer.shape), sizes))
    if buffer.space == "input":
        return np.ascontiguousarray(inputs[buffer.name]).reshape(-1)
    if buffer.space == "constant":
        return np.ascontiguousarray(program.constants[buffer.name]).reshape(-1)
    if buffer.space == "output":
        return np.full(count * buffer.dtype.itemsize, 0xFF, np.uint8).view(buffer.dtype.numpy)
    extent = count * buffer.dtype.itemsize
    return arena[buffer.offset : buffer.offset + extent].view(buffer.dtype.numpy)
