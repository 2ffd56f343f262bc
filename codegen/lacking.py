"""What languages of GPUs lack, said with the source operators that need it."""

from __future__ import annotations

from collections.abc import Callable

from luminal.core.errors import UnsupportedError
from luminal.core.schedule.nest import ir
from luminal.core.schedule.nest.walk import statements, values
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.types import DType


def lacking(language: str, device: str) -> Callable[[Program], None]:
    """A check that raises UnsupportedError where a program computes in float64, with the source operators, and where it
    is for a mesh of devices."""

    def check(program: Program) -> None:
        if program.mesh:
            raise UnsupportedError(
                f"{program.name}: a mesh of devices is for CPUs and for NVIDIA's GPUs, found one of {device}; compile "
                "for another target, or without a mesh"
            )
        for kernel in program.kernels:
            if any(dtype.is_float and dtype.bits == 64 for dtype in _dtypes(kernel)):
                raise UnsupportedError(
                    f"{language} has no float64, in which {made_for(kernel)} computes: convert the model to float32, "
                    f"or compile it for another target"
                )

    return check


def made_for(kernel: Kernel) -> str:
    """The source operators of a kernel, or its name."""
    return "; ".join(kernel.origins) or f"kernel {kernel.name}"


def _dtypes(kernel: Kernel) -> set[DType]:
    """The types of all values that a kernel handles."""
    found = (value for statement in statements(kernel.nest.body) for value in values(statement))
    arrays = {array.dtype for array in kernel.nest.arrays}
    return arrays | {scalar.dtype for value in found for scalar in ir.postorder(value)}
