"""C++ for OpenCL: the GPUs of many makers, and CPUs."""

from __future__ import annotations

from luminal.codegen import dialect_cpp, dialect_device
from luminal.codegen.dialect import BlockSyntax, Dialect, Head

# Address spaces and qualifiers, also as the headers call them, types and functions that are always in scope.
_WORDS = frozenset(
    """kernel global local private generic constant device thread threadgroup read_only write_only read_write half uchar
    ushort uint ulong pipe event_t sampler_t get_group_id get_local_id get_global_id float2 float3 float4 int2 int4
    uint2 uint4 half2 half4 exp exp2 log log2 sin cos pow dot cross step sign smoothstep mix clamp degrees radians
    length distance hypot fract rotate popcount shuffle shuffle2 as_int as_float printf""".split()  # noqa: SIM905
)

OPENCL = Dialect(
    "opencl",
    "OpenCL",
    Head(
        "__kernel void {name}",
        # A buffer, and from which byte on: the head of the body makes a pointer of them.
        *("__global uchar* {name}_buffer_, ulong {name}_offset_",) * 2,
        "__global uchar* status_buffer_, ulong status_offset_",
        "__global uchar* dims_buffer_, ulong dims_offset_",
    ),
    dialect_device.TABLE,
    dialect_cpp.REDUCTIONS,
    dialect_device.LIMITS,
    dialect_device.RAISING,
    dialect_device.UNROLL,
    lacks=frozenset({"float64"}),
    reserved=dialect_device.RESERVED | _WORDS,
    block=BlockSyntax(
        "get_group_id(0)",
        "get_local_id(0)",
        # Arrays of the kernel's own would be legal, but pocl tells them by names that C++ does not give, and has all
        # threads of the CPU share those that it misses.
        "__local {type}* const {name} = (__local {type}*)(shared_ + {first});",
        "__local uchar* shared_",
        warp=1,
    ),
)
