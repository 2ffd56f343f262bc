// padding_by_lanes, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     vector column by 16
#include "luminal/lanes.hpp"
#include "luminal/math.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

void padding_by_lanes(float* __restrict out, const float* __restrict x, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < 80; i += 16) {
        const vec<bool, 16> m0 = lanes_from<16>(3 - i);
        const vec<bool, 16> m1 = lanes_below<16>(73 - i);
        const vec<bool, 16> m2 = bit_and(m0, m1);
        const vec<float, 16> v0 = load_masked<16>(x + i - 3, m2, 7.5f);
        store(out + i, v0);
    }
    {
        const int64_t i = 80;
        const vec<bool, 16> m3 = lanes_from<16>(3 - i);
        const vec<bool, 16> m4 = lanes_below<16>(73 - i);
        const vec<bool, 16> m5 = lanes_below<16>(10);
        const vec<bool, 16> m6 = bit_and(m3, m4);
        const vec<bool, 16> m7 = bit_and(m6, m5);
        const vec<float, 16> v1 = load_masked<16>(x + i - 3, m7, 7.5f);
        store_partial(out + i, v1, 10);
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
