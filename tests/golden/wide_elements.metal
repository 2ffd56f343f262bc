// wide_elements, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     thread column by 64
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

[[host_name("wide_elements")]] kernel void wide_elements(device float* out [[buffer(0)]],
        device const float* x [[buffer(1)]], device const float* y [[buffer(2)]], constant int64_t* dims [[buffer(3)]],
        uint block_index [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
    const int n = static_cast<int>(dims[0]);
    const int block = block_index;
    const int tid = thread_index;
    if (4*n - 256*block - 4*tid - 1 >= 0) {
        const vec<float, 4> v0 = load<4>(x + 256*block + 4*tid);
        const vec<float, 4> v1 = load_strided<4>(y + 256*block + 4*tid + 1, 1);
        const vec<float, 4> v2 = multiply_add(v0, broadcast<4>(2.0f), v1);
        store(out + 256*block + 4*tid, v2);
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
