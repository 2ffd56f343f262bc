"""CUDA: NVIDIA's GPUs."""

from __future__ import annotations

from luminal.codegen import dialect_cpp, dialect_device
from luminal.codegen.dialect import BlockSyntax, Dialect, Head
from luminal.core import ops
from luminal.core.grid import blocks_at_once

CUDA = Dialect(
    "cuda",
    "CUDA",
    Head(
        'extern "C" __global__ void __launch_bounds__({threads}{holding}) {name}',
        "const {type}* __restrict__ {name}",
        "{type}* __restrict__ {name}",
        "Status* status",
        "const int64_t* __restrict__ dims",
        map="const __grid_constant__ TensorMap {name}",
        # Of small tiles compilers keep room for more blocks than are needed, and may spill for it.
        holding=lambda threads, registers: f", {blocks}" if (blocks := blocks_at_once(threads, registers)) else "",
    ),
    {**dialect_device.TABLE, ops.EXP2: dialect_device.scaled("exp2_scaled", digits=True)},
    dialect_cpp.REDUCTIONS,
    dialect_device.LIMITS,
    dialect_device.RAISING,
    dialect_device.UNROLL,
    reserved=dialect_device.RESERVED
    | {"blockIdx", "threadIdx", "blockDim", "gridDim", "warpSize", "float2", "float4", "int2", "int4", "uint4", "half"},
    block=BlockSyntax(
        "blockIdx.x",
        "threadIdx.x",
        "{alignment}__shared__ {type} {name}[{extent}];",
        own=48 << 10,  # CUDA C++ Programming Guide, "Shared Memory" of compute capability 8.x and 9.0
        requested="LM_REQUESTED({type}, {name}, {extent}, {first});",
    ),
)
