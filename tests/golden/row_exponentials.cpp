// row_exponentials, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     vector column by 16
#include "luminal/lanes.hpp"
#include "luminal/math.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

void row_exponentials(float* __restrict out, const float* __restrict x, const int64_t* dims, int64_t begin,
        int64_t end) {
    const int64_t S = dims[0];
    const int64_t full0 = S / 64 * 64;
    const int64_t full1 = S / 16 * 16;
    for (int64_t r = begin; r < end; ++r) {
        vec<float, 16> most0a = broadcast<16>(-__builtin_inff()), most0b = broadcast<16>(-__builtin_inff()),
                most0c = broadcast<16>(-__builtin_inff()), most0d = broadcast<16>(-__builtin_inff());
        const int64_t n0 = S*r;
        const auto term0 = [&](int64_t j) LM_LAMBDA {
            const vec<float, 16> v0 = load<16>(x + n0 + j);
            return v0;
        };
        for (int64_t j = 0; j < full0; j += 64) {
            most0a = max(most0a, term0(j));
            most0b = max(most0b, term0(j + 16));
            most0c = max(most0c, term0(j + 32));
            most0d = max(most0d, term0(j + 48));
        }
        for (int64_t j = full0; j < full1; j += 16) {
            most0a = max(most0a, term0(j));
        }
        if (full1 < S) {
            const int64_t j = full1;
            const int64_t count0 = S - j;
            const vec<float, 16> v1 = load_partial<16>(x + n0 + j, count0);
            const vec<bool, 16> m0 = lanes_below<16>(count0);
            most0a = max(most0a, select(m0, v1, broadcast<16>(-__builtin_inff())));
        }
        const float s0 = reduce_max(max(max(most0a, most0b), max(most0c, most0d)));
        vec<float, 16> sum0a = broadcast<16>(0.0f), sum0b = broadcast<16>(0.0f), sum0c = broadcast<16>(0.0f),
                sum0d = broadcast<16>(0.0f);
        const float s1 = mul(s0, -1.0f);
        const vec<float, 16> v3 = broadcast<16>(s1);
        const auto term1 = [&](int64_t j) LM_LAMBDA {
            const vec<float, 16> v2 = load<16>(x + n0 + j);
            const vec<float, 16> v4 = add(v2, v3);
            const vec<float, 16> v5 = exp2_scaled(v4, 1.4426950408889634);
            return v5;
        };
        for (int64_t j = 0; j < full0; j += 64) {
            sum0a = add(sum0a, term1(j));
            sum0b = add(sum0b, term1(j + 16));
            sum0c = add(sum0c, term1(j + 32));
            sum0d = add(sum0d, term1(j + 48));
        }
        for (int64_t j = full0; j < full1; j += 16) {
            sum0a = add(sum0a, term1(j));
        }
        if (full1 < S) {
            const int64_t j = full1;
            const int64_t count1 = S - j;
            const vec<float, 16> v6 = load_partial<16>(x + n0 + j, count1);
            const vec<float, 16> v7 = add(v6, v3);
            const vec<float, 16> v8 = exp2_scaled(v7, 1.4426950408889634);
            const vec<bool, 16> m1 = lanes_below<16>(count1);
            sum0a = add(sum0a, select(m1, v8, broadcast<16>(0.0f)));
        }
        const float s2 = reduce_add(add(add(sum0a, sum0b), add(sum0c, sum0d)));
        const float s3 = recip(s2);
        const vec<float, 16> v12 = broadcast<16>(s3);
        for (int64_t j = 0; j < full1; j += 16) {
            const vec<float, 16> v9 = load<16>(x + n0 + j);
            const vec<float, 16> v10 = add(v9, v3);
            const vec<float, 16> v11 = exp2_scaled(v10, 1.4426950408889634);
            const vec<float, 16> v13 = mul(v11, v12);
            store(out + n0 + j, v13);
        }
        if (full1 < S) {
            const int64_t j = full1;
            const int64_t count2 = S - j;
            const vec<float, 16> v14 = load_partial<16>(x + n0 + j, count2);
            const vec<float, 16> v15 = add(v14, v3);
            const vec<float, 16> v16 = exp2_scaled(v15, 1.4426950408889634);
            const vec<float, 16> v17 = mul(v16, v12);
            store_partial(out + n0 + j, v17, count2);
        }
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
