"""CUDA: NVIDIA's GPUs."""

from __future__ import annotations

from luminal.codegen import dialect_cpp, dialect_device
from luminal.codegen.dialect import BlockSyntax, Dialect, Head

CUDA = Dialect(
    "cuda",
    "CUDA",
    Head(
        'extern "C" __global__ void __launch_bounds__({threads}{registers}) {name}',
        "const {type}* __restrict__ {name}",
        "{type}* __restrict__ {name}",
        "Status* status",
        "const int64_t* __restrict__ dims",
        map="const __grid_constant__ TensorMap {name}",
        # One block of a processor is enough: ptxas otherwise keeps room for several, and spills for it.
        registers=", 1",
    ),
    dialect_device.TABLE,
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
