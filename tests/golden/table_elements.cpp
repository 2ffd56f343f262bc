// table_elements, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     vector column by 16
#include "luminal/lanes.hpp"
#include "luminal/math.hpp"
#include "luminal/status.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

void table_elements(float* __restrict out, const int64_t* __restrict index, const float* __restrict table,
        Status* status, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < 16; i += 16) {
        const vec<int64_t, 16> v0 = load<16>(index + i);
        const vec<int64_t, 16> v1 = add(v0, broadcast<16>(int64_t{-5}));
        const vec<bool, 16> m0 = bit_and(less(broadcast<16>(int64_t{-1}), v1), less(v1, broadcast<16>(int64_t{10})));
        if (!all(m0)) status->raise(LM_INDEX_OUT_OF_RANGE);
        const vec<int64_t, 16> row = select(m0, v1, broadcast<16>(int64_t{0}));
        const vec<int64_t, 16> at0 = add(mul(row, broadcast<16>(int64_t{3})), broadcast<16>(int64_t{1}));
        const vec<float, 16> v2 = gather(table, at0);
        const vec<int64_t, 16> at1 = add(iota<16>(i), mul(row, broadcast<16>(int64_t{2})));
        const vec<float, 16> v3 = gather(table, at1);
        const vec<float, 16> v4 = add(v2, v3);
        store(out + i, v4);
    }
    {
        const int64_t i = 16;
        const vec<int64_t, 16> v5 = load_partial<16>(index + i, 5);
        const vec<int64_t, 16> v6 = add(v5, broadcast<16>(int64_t{-5}));
        const vec<bool, 16> m1 = bit_and(less(broadcast<16>(int64_t{-1}), v6), less(v6, broadcast<16>(int64_t{10})));
        const vec<bool, 16> m2 = lanes_below<16>(5);
        if (!all(bit_or(m1, bit_not(m2)))) status->raise(LM_INDEX_OUT_OF_RANGE);
        const vec<int64_t, 16> row = select(m1, v6, broadcast<16>(int64_t{0}));
        const vec<int64_t, 16> at2 = add(mul(row, broadcast<16>(int64_t{3})), broadcast<16>(int64_t{1}));
        const vec<float, 16> v7 = gather(table, at2, m2);
        const vec<int64_t, 16> at3 = add(iota<16>(i), mul(row, broadcast<16>(int64_t{2})));
        const vec<float, 16> v8 = gather(table, at3, m2);
        const vec<float, 16> v9 = add(v7, v8);
        store_partial(out + i, v9, 5);
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
