// Two kernels as code generation writes them: a gather that may raise a status, and one thread for each column.
#ifdef __METAL_VERSION__
#include <metal_stdlib>
using namespace metal;
#endif

kernel void gather0(device const float* x0 [[buffer(0)]], device const int64_t* x1 [[buffer(1)]],
                    device float* x2 [[buffer(2)]], device int32_t* status [[buffer(3)]],
                    uint block [[threadgroup_position_in_grid]], uint thread [[thread_index_in_threadgroup]]) {
    const int64_t row = x1[block];
    const bool inside = row >= 0 && row < 16;
    if (!inside && thread == 0) status[0] = 2;
    x2[block * 32 + thread] = inside ? x0[row * 32 + thread] : 0.0f;
}

kernel void scale1(device const float* x0 [[buffer(0)]], device const float* x1 [[buffer(1)]],
                   device const float* x2 [[buffer(2)]], device float* x3 [[buffer(3)]],
                   constant const int64_t* dims [[buffer(4)]], uint block [[threadgroup_position_in_grid]],
                   uint thread [[thread_index_in_threadgroup]]) {
    const int64_t last = dims[0] - 1;
    x3[block * 32 + thread] = x0[block * 32 + thread] * x1[0] + x2[thread] + float(last - int64_t(block));
}
