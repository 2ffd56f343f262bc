"""A kernel's loop nest as the parts of a translation unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from luminal.codegen import integers, roles, signature
from luminal.codegen.cpp import Names
from luminal.codegen.dialect import BlockSyntax, Dialect
from luminal.codegen.dialect_cpp import CPP
from luminal.codegen.frame import Frame, Value, words
from luminal.codegen.signature import Signature
from luminal.codegen.statements import Statements
from luminal.core import symbolic as sym
from luminal.core.costs import COSTS, Prefetching
from luminal.core.matrix import MatrixUnit
from luminal.core.schedule.nest.ir import Alloc, Contract, Loop, LoopNest, Sort
from luminal.core.schedule.nest.walk import arrays_written
from luminal.core.schedule.nest.walk import statements as nested
from luminal.core.schedule.program.ir import Kernel
from luminal.core.symbolic import Int


@dataclass(frozen=True)
class KernelText:
    """A rendered kernel: its signature, the lines of its body, and the functions that precede it. ``tasks`` is the
    number of its tasks, in terms of the nest's dimensions."""

    kernel: Kernel
    signature: Signature
    functions: tuple[tuple[str, ...], ...]
    body: tuple[str, ...]
    tasks: Int

    @property
    def sorts(self) -> bool:
        """Whether it sorts elements."""
        return any(isinstance(s, Sort) for s in nested(self.kernel.nest.body))

    @property
    def transposes(self) -> bool:
        """Whether it transposes blocks of elements in registers."""
        return any(isinstance(s, Loop) and s.kind == "across" for s in nested(self.kernel.nest.body))

    @property
    def units(self) -> tuple[MatrixUnit, ...]:
        """The matrix units that it uses."""
        contracts = (s for s in nested(self.kernel.nest.body) if isinstance(s, Contract))
        return tuple(dict.fromkeys(s.unit for s in contracts if s.unit is not None))

    @property
    def tiles(self) -> tuple[str, ...]:
        """The headers that define the tiles of its functions."""
        special = dict.fromkeys("dot.hpp" if unit.in_vectors else "matrix.hpp" for unit in self.units)
        return tuple(special) or (("tile.hpp",) if self.functions else ())


def emit(
    kernel: Kernel, dims: Mapping[str, int], dialect: Dialect = CPP, prefetch: Prefetching = COSTS.prefetch
) -> KernelText:
    """Renders a kernel in ``dialect``. ``dims`` numbers the program's dimensions, as the library passes their sizes;
    ``prefetch`` says how far ahead tiles fetch what they read.

    Raises SpecError where the nest breaks its own rules, UnsupportedError for element types that the language has not.
    """
    text, read = _emit(kernel, dims, dialect, prefetch, frozenset())
    arrays = {s.name for s in nested(kernel.nest.body) if isinstance(s, Alloc)}
    if dialect.block is None or arrays <= read:
        return text  # a CPU's compiler removes arrays that are never read
    return _emit(kernel, dims, dialect, prefetch, frozenset(arrays - read))[0]


def _emit(
    kernel: Kernel, dims: Mapping[str, int], dialect: Dialect, prefetch: Prefetching, unread: frozenset[str]
) -> tuple[KernelText, set[str]]:
    """The kernel without the arrays ``unread``, and the names of the arrays from which it reads elements."""
    nest = kernel.nest
    names = Names(dialect.reserved)
    sign = signature.of(kernel.name, nest, names, dialect, kernel.fetches)
    frame = Frame(names, dialect, "int64_t" if dialect.block is None else integers.of(nest))
    pointers = {pointer.array: pointer for pointer in sign.pointers}
    statements = Statements(kernel.name, frame, nest, pointers, unread, prefetch, kernel.fetches)
    with frame.open("") as scope:
        sizes = {frame.declare(dim): dims[dim.name] for dim in nest.dims}
        if dialect.block is None:
            _tasks(frame, statements, nest)
        else:
            _block(frame, statements, nest, dialect.block)
    # Some sizes only determine the number of tasks, which the caller computes.
    used = words(scope.lines)
    passed = "dims[{}]" if frame.integer == "int64_t" else "static_cast<int>(dims[{}])"
    read = [
        f"const {frame.integer} {name} = {passed.format(number)};" for name, number in sizes.items() if name in used
    ]
    text = KernelText(
        kernel,
        replace(
            sign,
            reads_dims=bool(read),
            shared=statements.threads.shared_bytes,
            requested=statements.threads.requested,
            maps=tuple(statements.threads.maps),
        ),
        tuple(function.lines for function in statements.functions),
        (*statements.threads.shared, *read, *scope.lines),
        nest.task_count,
    )
    return text, statements.expressions.read


def _tasks(frame: Frame, statements: Statements, nest: LoopNest) -> None:
    """The loop over tasks; the axes of the parallel loops are computed from the task's number."""
    loops = nest.tasks
    body = loops[-1].body if loops else nest.body
    writes = arrays_written(body)
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


def _block(frame: Frame, statements: Statements, nest: LoopNest, syntax: BlockSyntax) -> None:
    """The task of one block of threads."""
    loops = nest.tasks
    if loops:
        axis = frame.names.like(loops[0].axis.name if len(loops) == 1 else "task")
        frame.line(f"const {frame.integer} {axis} = {syntax.task};")
        if len(loops) == 1:
            frame.bind(loops[0].axis, Value(axis))
        else:
            _decode(frame, statements, loops, axis)
    body = loops[-1].body if loops else nest.body
    statements.threads.begin()
    if nest.copiers:
        statements.body(roles.shared(body))
        with statements.threads.copying():
            statements.body(roles.copying(body))
        body = roles.computing(body)
    statements.body(body)


def _decode(frame: Frame, statements: Statements, loops: tuple[Loop, ...], task: str) -> None:
    """Declares the axes of ``loops``: digits of the task's number, the first axis the most significant."""
    rest = task
    for position, loop in enumerate(reversed(loops)):
        last = position == len(loops) - 1
        name = frame.declare(loop.axis)
        extent = statements.indices.factor(loop.extent)
        value = rest if last else f"{rest} % {extent}"
        frame.line(f"const {frame.integer} {name} = {value};")
        if not last and position < len(loops) - 2:
            outer = frame.names.fresh("rest")
            frame.line(f"const {frame.integer} {outer} = {rest} / {extent};")
            rest = outer
        elif not last:
            rest = f"{rest} / {extent}"
