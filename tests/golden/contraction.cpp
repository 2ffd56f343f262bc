// contraction, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     vector column by 16
#include "luminal/lanes.hpp"
#include "luminal/math.hpp"
#include "luminal/tile.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

// tile[i, j] = the sum over k of a[i, k] * b[k, j], 32 columns.
template <int Rows>
LM_NOINLINE static void contraction_tile0(float* __restrict tile, const float* __restrict a,
        const float* __restrict b) {
    Tile<float, Rows, 2, 16> sum;
    for (int64_t k = 0; k < 40; ++k) {
        sum.fetch(b + 32*k + 512);
        sum.step(a + k, 40, b + 32*k);
    }
    sum.store(tile, 32);
}

void contraction(float* __restrict out, const float* __restrict a, const float* __restrict b,
        const float* __restrict bias, int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
        const int64_t t = task % 3;
        const int64_t p = task / 3;
        alignas(64) float tile[448];
        const int64_t height = minimum(30 - 14*t, 14);
        const float* const left0 = a + 560*t;
        const float* const right0 = b + 1280*p;
        switch (height) {
            case 2: contraction_tile0<2>(tile, left0, right0); break;
            case 14: contraction_tile0<14>(tile, left0, right0); break;
            default: __builtin_trap();
        }
        const int64_t n1 = 32*p;
        const int64_t n2 = 32*p + 896*t;
        for (int64_t r = 0; r < height; ++r) {
            const int64_t n0 = 32*r;
            const int64_t n3 = n2 + 64*r;
            for (int64_t c = 0; c < 32; c += 16) {
                const vec<float, 16> v0 = load<16>(tile + n0 + c);
                const vec<float, 16> v1 = load<16>(bias + n1 + c);
                const vec<float, 16> v2 = add(v0, v1);
                store(out + n3 + c, v2);
            }
        }
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
