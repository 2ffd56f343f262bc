"""What CUDA and Metal share and C++ for CPUs does not: the functions of ``luminal/device/``."""

from __future__ import annotations

from luminal.codegen import dialect_cpp
from luminal.codegen.dialect import Call, Row, round_to
from luminal.core import ops
from luminal.core.ops import Op
from luminal.core.types import DType

# Least integers without macros: Metal has not the C library's.
LIMITS = {
    "int32_t": "int32_t{-2147483647 - 1}",
    "int64_t": "int64_t{-9223372036854775807 - 1}",
    "float": "infinity<float>()",
    "double": "infinity<double>()",
}
RAISING = "raise(status, {code});"
UNROLL = "#pragma unroll {count}"

RESERVED = frozenset(
    """barrier barrier_of_all_memory warp_barrier shuffle_xor warp_reduce_add warp_reduce_max block_reduce_add
    block_reduce_max atomic_add atomic_max raise tile_step warp_tile_step copy_async copy_commit copy_wait
    held_tile_step lanes_add lanes_max group_tile_step group_begin group_commit group_wait share_with_groups in_panels
    copy_box boxes_begin boxes_commit boxes_wait slots_begin slot_wait_empty slot_copy slot_filled slot_wait_full
    slot_give_back fewer_registers more_registers regroup scaled_tile_step infinity nan
    copy_sign lesser greater quantise fake_quantise
    dot digits_in_bytes shifted_left shifted_right
    multiples lanes_below lanes_from""".split()  # noqa: SIM905
)


def two_parts(value: float, dtype: DType) -> tuple[str, str]:
    """Literals of ``hi`` and ``lo``, whose sum is ``value``: ``hi`` is ``value`` rounded to the compute type of
    ``dtype``, ``lo`` the remainder."""
    compute = dtype.compute
    hi = compute.numpy.type(value)
    lo = compute.numpy.type(value - float(hi))
    high, low = (dialect_cpp.CPP.literal(part.tobytes(), compute) for part in (hi, lo))
    return high, low


def scaled(name: str, digits: bool = False) -> Row:
    """The row of a function with a scale; of one that may be computed to few ``digits``, with their number."""

    def row(call: Call) -> str:
        hi, lo = two_parts(float(call.attr.scale), call.dtype)
        enough = f"<{call.attr.digits}>" if digits and call.attr.digits is not None else ""
        return round_to(f"{name}{enough}({call.operands[0]}, {hi}, {lo})", call.dtype)

    return row


TABLE: dict[Op, Row] = {**dialect_cpp.TABLE, ops.LOG2: scaled("log2_scaled"), ops.EXP2: scaled("exp2_scaled")}
