// contraction_in_blocks, made for:
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

// tile[i, j] = the sum over block, step of a[i, block, step] * b[block, step, j], 32 columns.
template <int Rows>
LM_NOINLINE static void contraction_in_blocks_tile0(float* __restrict tile, const float* __restrict a,
        const float* __restrict b, const float* a_ahead, const float* b_ahead) {
    Tile<float, Rows, 2, 16> sum;
    sum.store(tile, 32);
    for (int64_t block = 0; block < 3; ++block) {
        const int64_t n0 = 256*block;
        const int64_t n1 = block % 2;
        const int64_t n2 = 192*n1 + 8*block;
        const int64_t n3 = 88*block;
        const int64_t n4 = 8*block;
        for (int64_t step = 0; step < 8; ++step) {
            sum.fetch(b + n0 + 32*step + 512);
            prefetch_to_l2(a_ahead + n2 + 25*step);
            prefetch(b_ahead + n3 + 11*step);
            sum.step(a + n4 + step, 24, b + n0 + 32*step);
        }
        sum.move_to(tile, 32);
    }
}

void contraction_in_blocks(float* __restrict out, const float* __restrict a, const float* __restrict b,
        const float* __restrict bias, int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
        const int64_t t = task % 3;
        const int64_t p = task / 3;
        alignas(64) float tile[128];
        const int64_t height = minimum(9 - 4*t, 4);
        const float* const left0 = a + 96*t;
        const float* const right0 = b + 768*p;
        const float* const a_ahead0 = a + 96*t + 192;
        const float* const b_ahead0 = b + 768*p + 264*t + 768;
        switch (height) {
            case 1: contraction_in_blocks_tile0<1>(tile, left0, right0, a_ahead0, b_ahead0); break;
            case 4: contraction_in_blocks_tile0<4>(tile, left0, right0, a_ahead0, b_ahead0); break;
            default: __builtin_trap();
        }
        const int64_t n1 = 32*p;
        const int64_t n2 = 32*p + 256*t;
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
