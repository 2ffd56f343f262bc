"""Metal's shading language: Apple's GPUs."""

from __future__ import annotations

from luminal.codegen import dialect_cpp, dialect_device
from luminal.codegen.dialect import BlockSyntax, Dialect, Head

# Address spaces (``thread`` is one), kinds of function, and types that are always in scope.
_WORDS = frozenset(
    """access as_type bfloat constant depth2d device fragment half kernel mesh metal object packed_float4 ray_data
    sampler simd texture2d thread threadgroup threadgroup_imageblock uchar uint ulong ushort vertex visible
    float2 float3 float4 half2 half4 int2 int4 uint2 uint4""".split()  # noqa: SIM905
)

METAL = Dialect(
    "metal",
    "Metal",
    Head(
        '[[host_name("{name}")]] kernel void {name}',
        "device const {type}* {name}",
        "device {type}* {name}",
        "device Status* status",
        "constant int64_t* dims",
        " [[buffer({number})]]",
        ("uint block_index [[threadgroup_position_in_grid]]", "uint thread_index [[thread_index_in_threadgroup]]"),
    ),
    dialect_device.TABLE,
    dialect_cpp.REDUCTIONS,
    dialect_device.LIMITS,
    dialect_device.RAISING,
    dialect_device.UNROLL,
    lacks=frozenset({"float64"}),
    reserved=dialect_device.RESERVED | _WORDS | {"block_index", "thread_index"},
    block=BlockSyntax("block_index", "thread_index", "{alignment}threadgroup {type} {name}[{extent}];"),
)
