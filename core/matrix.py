"""Matrix units of CPUs: products of small matrices that one core computes in an instruction, as values."""

from __future__ import annotations

from dataclasses import dataclass

from luminal.core.types import DType, bf16, f32, i8, i32, u8


@dataclass(frozen=True, repr=False)
class MatrixUnit:
    """Registers that hold matrices, and products of them: ``C += A B`` with at most ``rows x depth`` elements of
    ``left`` and ``depth x columns`` of ``right``, summed in ``sum``.

    ``group`` neighbouring rows of B lie interleaved, so that those of one column are side by side. There are
    ``registers`` for all three; a product takes ``cycles``, and its sum can be added to after ``latency``. Code that
    uses it needs ``features``, in the names of ``/proc/cpuinfo``.

    Where its registers hold matrices, schedules are chosen by more. A load takes a ``load`` of a product's cycles (an
    estimate). In more than ``few_steps``, a shorter step at the end counts less than shorter ones all along (an
    estimate). Steps of less than such a part of ``depth``, ``part_of_run`` where a sum is one run and ``part_of_runs``
    where it is several, are slower than dot products (measured: ``docs/experiments/matrix-units.md``).
    """

    name: str
    features: tuple[str, ...]
    left: DType
    right: DType
    sum: DType
    rows: int
    columns: int
    depth: int
    group: int
    registers: int
    cycles: float
    latency: int
    load: float = 0.5
    few_steps: int = 8
    part_of_run: int = 8
    part_of_runs: int = 2

    def __repr__(self) -> str:
        return f"{self.name}[{self.left}]" if self.left == self.right else f"{self.name}[{self.left}, {self.right}]"

    @property
    def in_vectors(self) -> bool:
        """Whether it multiplies a row, and its registers are those of vectors: A is broadcast to all columns."""
        return self.rows == 1


# Intel 64 and IA-32 Architectures Software Developer's Manual. Its volume 1, chapter 18, are the Advanced Matrix
# Extensions. Operands and sums of bfloat16 that are subnormal count as zeros in all of them; integers wrap. Where there
# are tiles of bfloat16, vectors convert to it.
AMX_BF16 = MatrixUnit(
    "tdpbf16ps", ("amx_tile", "amx_bf16", "avx512_bf16"), bf16, bf16, f32,
    rows=16, columns=16, depth=32, group=2, registers=8, cycles=16, latency=52,
)  # fmt: skip
AMX_INT8 = MatrixUnit(
    "tdpbusd", ("amx_tile", "amx_int8"), u8, i8, i32,
    rows=16, columns=16, depth=64, group=4, registers=8, cycles=16, latency=52,
)  # fmt: skip
DOT_BF16 = MatrixUnit(
    "vdpbf16ps", ("avx512_bf16",), bf16, bf16, f32,
    rows=1, columns=16, depth=2, group=2, registers=32, cycles=0.5, latency=6,
)  # fmt: skip
DOT_INT8 = MatrixUnit(
    "vpdpbusd", ("avx512_vnni",), u8, i8, i32,
    rows=1, columns=16, depth=4, group=4, registers=32, cycles=0.5, latency=4,
)  # fmt: skip
# Bytes are widened to 16 bits as they are read; pairs of products are exact in their 32 bits. Sums wait for an addition
# alone.
MADD_INT8 = MatrixUnit(
    "vpmaddwd", ("avx2",), u8, i8, i32,
    rows=1, columns=8, depth=2, group=2, registers=16, cycles=1, latency=1,
)  # fmt: skip
