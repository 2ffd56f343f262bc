// far_apart, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     thread column by 64
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

[[host_name("far_apart")]] kernel void far_apart(device float* out [[buffer(0)]], device const float* x [[buffer(1)]],
        constant int64_t* dims [[buffer(2)]], uint block_index [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]]) {
    const int64_t n = dims[0];
    const int64_t row = block_index;
    const int64_t tid = thread_index;
    const int64_t n0 = n*row;
    for (int64_t t = tid; t < n; t += 64) {
        const float s0 = x[t];
        out[n0 + t] = s0;
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
