"""A kernel's loop nest as the parts of a C++ translation unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from luminal.codegen import signature
from luminal.codegen.cpp import Names
from luminal.codegen.frame import Frame, Value, written
from luminal.codegen.signature import Signature
from luminal.codegen.statements import Statements
from luminal.core import symbolic as sym
from luminal.core.program import Kernel
from luminal.core.schedule.nest import Loop, LoopNest
from luminal.core.symbolic import Int


@dataclass(frozen=True)
class KernelText:
    """A kernel rendered: its signature, the lines of its body, and the functions that stand before it. ``tasks`` is
    the number of its tasks over the nest's dimensions."""

    kernel: Kernel
    signature: Signature
    functions: tuple[tuple[str, ...], ...]
    body: tuple[str, ...]
    tasks: Int


def emit(kernel: Kernel, dims: Mapping[str, int]) -> KernelText:
    """Renders a kernel. ``dims`` numbers the program's dimensions, as the library passes their sizes.

    Raises SpecError where the nest breaks its own rules, UnsupportedError for element types without C++ code.
    """
    nest = kernel.nest
    names = Names()
    sign = signature.of(kernel.name, nest, names)
    frame = Frame(names)
    statements = Statements(kernel.name, frame, {pointer.array: pointer for pointer in sign.pointers})
    with frame.open("") as scope:
        sizes = {frame.declare(dim): dims[dim.name] for dim in nest.dims}
        _tasks(frame, statements, nest)
    # Some sizes only decide how many tasks there are, which the caller knows.
    words = set(re.findall(r"\w+", "\n".join(scope.lines)))
    read = [f"const int64_t {name} = dims[{number}];" for name, number in sizes.items() if name in words]
    return KernelText(
        kernel,
        replace(sign, reads_dims=bool(read)),
        tuple(function.lines for function in statements.functions),
        (*read, *scope.lines),
        sym.product(loop.extent for loop in nest.tasks),
    )


def _tasks(frame: Frame, statements: Statements, nest: LoopNest) -> None:
    """The loop over tasks, with the indices of the parallel loops taken from the task's number."""
    loops = nest.tasks
    body = loops[-1].body if loops else nest.body
    writes = written(body)
    if not loops:
        # One task: called with begin = 0 and end = 1.
        statements.body(body)
        return
    certain = all(sym.always(loop.extent - 1) for loop in loops)
    axis = frame.names.like(loops[0].axis.name if len(loops) == 1 else "task")
    with frame.open(f"for (int64_t {axis} = begin; {axis} < end; ++{axis}) {{", certain=certain, writes=writes):
        if len(loops) == 1:
            frame.bind(loops[0].axis, Value(axis))
        else:
            _decode(frame, statements, loops, axis)
        statements.body(body)


def _decode(frame: Frame, statements: Statements, loops: tuple[Loop, ...], task: str) -> None:
    """Declares the axes of ``loops``: digits of the task's number, the first the most significant."""
    rest = task
    for position, loop in enumerate(reversed(loops)):
        last = position == len(loops) - 1
        name = frame.declare(loop.axis)
        extent = statements.indices.factor(loop.extent)
        frame.line(f"const int64_t {name} = {rest};" if last else f"const int64_t {name} = {rest} % {extent};")
        if not last and position < len(loops) - 2:
            outer = frame.names.fresh("rest")
            frame.line(f"const int64_t {outer} = {rest} / {extent};")
            rest = outer
        elif not last:
            rest = f"{rest} / {extent}"
