"""What a block of threads can run: the conditions on every schedule that divides a task among threads."""

from __future__ import annotations

from collections.abc import Iterator

from luminal.core.errors import ScheduleError
from luminal.core.grid import REGISTER, BlockLimits
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import Body, headers, inside, statements


def check(nest: ln.LoopNest, limits: BlockLimits) -> None:
    """Raises ScheduleError where blocks cannot run ``nest``: too many threads, too much shared memory, too many
    registers, or threads that would wait for others in divergent code."""
    if nest.threads > limits.threads:
        raise ScheduleError(f"synchronise threads: {nest.threads} threads in a block, {limits.threads} are the most")
    taken = shared_bytes(nest)
    if taken > limits.shared:
        raise ScheduleError(f"synchronise threads: {taken} bytes of shared arrays, {limits.shared} are there")
    held = registers(nest) + limits.spare
    if held > limits.registers:
        raise ScheduleError(f"synchronise threads: about {held} registers in each thread, {limits.registers} are there")
    for statement in statements(nest.body):
        for loop in divided(statement):
            if loop.lanes != nest.threads:
                raise ScheduleError(
                    f"synchronise threads: the loop over {str(loop.axis)!r} is divided among {loop.lanes} of "
                    f"{nest.threads} threads"
                )
            check_apart(inside(statement), loop.axis.name, "synchronise threads")


def check_apart(body: Body, axis: str, transform: str) -> None:
    """Raises ScheduleError where ``body``, in a loop over ``axis`` that threads divide, contains something that all
    threads do together: some would wait for others that have no such iteration, or another one."""
    found = next((what for s in statements(body) if (what := _together(s))), "")
    if found:
        raise ScheduleError(f"{transform}: {found} lies inside the loop over {axis!r}, where threads go different ways")


def _together(statement: ln.Statement) -> str:
    """What all threads do together in ``statement``; empty where nothing."""
    match statement:
        case ln.Barrier():
            return "a barrier"
        case ln.Sort():
            return f"a sort of {statement.array} by all threads"
        case ln.Reduction() if any(divided(statement)):
            return f"the reduction {statement.name} by all threads"
        case ln.Loop() if any(divided(statement)):
            return f"the loop over {str(statement.axis)!r}, itself divided among threads,"
        case _:
            return ""


def divided(statement: ln.Statement) -> Iterator[ln.Loop]:
    """The loops of ``statement`` itself that are divided among threads."""
    return (loop for loop in headers(statement) if loop.kind == "thread")


def shared_bytes(nest: ln.LoopNest) -> int:
    """The bytes of all shared arrays of ``nest``."""
    shared = (s for s in statements(nest.body) if isinstance(s, ln.Alloc) and s.space == "shared")
    return sum(array.extent * array.dtype.itemsize for array in shared)


def registers(nest: ln.LoopNest) -> int:
    """An estimate of the registers that a thread needs: for its own arrays, all alive at once, and for the operands of
    a step of a product, without single values."""
    arrays = sum(_bytes(array, nest) for array in _private(nest.body))
    steps = (_step_bytes(s) for s in statements(nest.body) if isinstance(s, ln.Contract))
    return -(-(arrays + max(steps, default=0)) // REGISTER)


def _private(body: Body, apart: bool = False) -> Iterator[ln.Alloc]:
    """The arrays of which each thread has its own copy, or a part, in registers."""
    for statement in body:
        if isinstance(statement, ln.Alloc) and (statement.space == "registers" or apart):
            yield statement
        within = apart or any(divided(statement))
        yield from _private(inside(statement), within)


def _bytes(array: ln.Alloc, nest: ln.LoopNest) -> int:
    """Bytes that a thread holds of an array in registers."""
    parts = nest.threads if array.space == "registers" else 1
    return array.extent // parts * max(REGISTER, array.dtype.compute.itemsize)


def _step_bytes(contract: ln.Contract) -> int:
    """Bytes of the operands of a step of a product: a column of A and a row of B, or a lane's part of their
    fragments, if they are not read from shared memory."""
    lines, fragment = contract.max_rows + contract.columns, contract.fragment
    if fragment is None:
        return lines * contract.dtype.compute.itemsize
    if fragment.panels:
        return 0
    return lines * fragment.depth // fragment.warp * fragment.dtype.itemsize
