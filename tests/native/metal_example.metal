// Two kernels as code generation writes them: a gather that may raise a status, and one thread for each column.
#include "luminal/device/kernel.hpp"

kernel void gather0(device const float* x0 [[buffer(0)]], device const int64_t* x1 [[buffer(1)]],
                    device float* x2 [[buffer(2)]], device int32_t* status [[buffer(3)]],
                    uint block [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
    const int64_t row = x1[block];
    const bool inside = row >= 0 && row < 16;
    if (!inside && thread_index == 0) status[0] = 2;
    x2[block * 32 + thread_index] = inside ? x0[row * 32 + thread_index] : 0.0f;
}

kernel void scale1(device const float* x0 [[buffer(0)]], device const float* x1 [[buffer(1)]],
                   device const float* x2 [[buffer(2)]], device float* x3 [[buffer(3)]],
                   constant int64_t* dims [[buffer(4)]], uint block [[threadgroup_position_in_grid]],
                   uint thread_index [[thread_index_in_threadgroup]]) {
    const int64_t last = dims[0] - 1;
    const uint i = block * 32 + thread_index;
    x3[i] = x0[i] * x1[0] + x2[thread_index] + float(last - int64_t(block));
}
