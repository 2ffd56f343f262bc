// wide_elements, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     thread column by 64
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

extern "C" __global__ void __launch_bounds__(64) wide_elements(float* __restrict__ out, const float* __restrict__ x,
        const float* __restrict__ y, const int64_t* __restrict__ dims) {
    const int n = static_cast<int>(dims[0]);
    const int block = blockIdx.x;
    const int tid = threadIdx.x;
    if (4*n - 256*block - 4*tid - 1 >= 0) {
        const vec<float, 4> v0 = load<4>(x + 256*block + 4*tid);
        const vec<float, 4> v1 = load_strided<4>(y + 256*block + 4*tid + 1, 1);
        const vec<float, 4> v2 = multiply_add(v0, broadcast<4>(2.0f), v1);
        store(out + 256*block + 4*tid, v2);
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
