"""Matrix units of CPUs: products of small matrices that one core computes in an instruction, as values."""

from __future__ import annotations

from dataclasses import dataclass

from luminal.core.types import DType, bf16, f32


@dataclass(frozen=True, repr=False)
class MatrixUnit:
    """Registers that hold matrices, and products of them: ``C += A B`` with at most ``rows x depth`` and ``depth x
    columns`` elements of ``operand``, summed in ``sum``.

    ``group`` neighbouring rows of B lie interleaved, so that those of one column are side by side. There are
    ``registers`` for all three, and a product takes ``cycles``. Code that uses it needs ``features``, in the names of
    ``/proc/cpuinfo``.
    """

    name: str
    features: tuple[str, ...]
    operand: DType
    sum: DType
    rows: int
    columns: int
    depth: int
    group: int
    registers: int
    cycles: int

    def __repr__(self) -> str:
        return f"{self.name}[{self.operand}]"


# Intel's Advanced Matrix Extensions: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter
# 18. Operands and sums that are subnormal count as zeros.
AMX = (
    MatrixUnit(
        "amx", ("amx_tile", "amx_bf16"), bf16, f32, rows=16, columns=16, depth=32, group=2, registers=8, cycles=16
    ),
)
