// Row `ids[r]` of the table, times row r of x.
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

extern "C" __global__ void __launch_bounds__(8)
    lookup(float* __restrict__ out, const int64_t* __restrict__ ids, const float* __restrict__ x,
           const float* __restrict__ table, Status* status, const int64_t* __restrict__ dims) {
    const int64_t row = blockIdx.x;
    const bool inside = row < dims[0] && ids[row] >= 0 && ids[row] < 16;
    if (!inside && threadIdx.x == 0) raise(status, LM_INDEX_OUT_OF_RANGE);
    for (int column = threadIdx.x; column < 24; column += 8) {
        out[row * 24 + column] = x[row * 24 + column] * (inside ? table[ids[row] * 24 + column] : 0.0f);
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
