// contraction0, made for:
//     MatMul 'hidden'
//     Add 'bias'
//     Mul 'identity'
//     Relu 'activation'
//
// Schedule:
//     Reorder(order=('a0', 'a1'))
//     ReorderReduction(name='sum0', order=('k0',))
//     Tensorise(m='a0', n='a1', max_rows=4, columns=24, lanes=8)
//     Parallelise(count=1)
#include "luminal/lanes.hpp"
#include "luminal/math.hpp"
#include "luminal/tile.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

// tile[i, j] = the sum over k0 of a[i, k0] * b[k0, j], 24 columns.
template <int Rows>
LM_NOINLINE static void contraction0_tile0(float* __restrict tile, const float* __restrict a,
        const float* __restrict b) {
    Tile<float, Rows, 3, 8> sum;
    for (int64_t k0 = 0; k0 < 6; ++k0) {
        sum.fetch(b + 24*k0 + 384);
        sum.step(a + k0, 6, b + 24*k0);
    }
    sum.store(tile, 24);
}

void contraction0(const float* __restrict x0, const float* __restrict x1, const float* __restrict x2,
        float* __restrict x3, const int64_t* dims, int64_t begin, int64_t end) {
    const int64_t rows = dims[0];
    const int64_t n0 = (rows + 3) / 4;
    for (int64_t a0_1 = begin; a0_1 < end; ++a0_1) {
        const int64_t a0_first = (a0_1*rows) / n0;
        const int64_t n1 = (rows + a0_1*rows) / n0;
        const int64_t a0_rows = n1 - a0_first;
        alignas(64) float tile[96];
        const float* const left0 = x0 + 6*a0_first;
        switch (a0_rows) {
            case 1: contraction0_tile0<1>(tile, left0, x1); break;
            case 2: contraction0_tile0<2>(tile, left0, x1); break;
            case 3: contraction0_tile0<3>(tile, left0, x1); break;
            case 4: contraction0_tile0<4>(tile, left0, x1); break;
            default: __builtin_trap();
        }
        for (int64_t a0_0 = 0; a0_0 < a0_rows; ++a0_0) {
            const int64_t a0 = a0_first + a0_0;
            const int64_t n2 = 24*a0_0;
            const int64_t n3 = 20*a0;
            for (int64_t a1_0 = 0; a1_0 < 16; a1_0 += 8) {
                const vec<float, 8> v0 = load<8>(tile + n2 + a1_0);
                const vec<float, 8> v1 = load<8>(x2 + a1_0);
                const vec<float, 8> v2 = add(v0, v1);
                const vec<float, 8> v3 = greater(v2, broadcast<8>(0.0f));
                store(x3 + n3 + a1_0, v3);
            }
            {
                const int64_t a1_0 = 16;
                const vec<float, 8> v4 = load_partial<8>(tile + n2 + a1_0, 4);
                const vec<float, 8> v5 = load_partial<8>(x2 + a1_0, 4);
                const vec<float, 8> v6 = add(v4, v5);
                const vec<float, 8> v7 = greater(v6, broadcast<8>(0.0f));
                store_partial(x3 + n3 + a1_0, v7, 4);
            }
        }
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm

// row1, made for:
//     Softmax 'normalisation'
//
// Schedule:
//     Reorder(order=('a0', 'a1'))
//     Merge(outer='a0', inner='a1')
//     Vectorise(axis='a2', lanes=8)
//     Parallelise(count=1)
//     Accumulate(count=4, part=1024)
#include "luminal/lanes.hpp"
#include "luminal/math.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

void row1(const float* __restrict x0, float* __restrict x1, int64_t begin, int64_t end) {
    for (int64_t a0a1 = begin; a0a1 < end; ++a0a1) {
        alignas(64) float row0[5];
        vec<float, 8> most0a = broadcast<8>(-__builtin_inff()), most0b = broadcast<8>(-__builtin_inff()),
                most0c = broadcast<8>(-__builtin_inff()), most0d = broadcast<8>(-__builtin_inff());
        const int64_t n0 = 5*a0a1;
        const auto term0 = [&](int64_t a2) LM_LAMBDA {
            const vec<float, 8> v0 = load<8>(x0 + n0 + a2);
            return v0;
        };
        for (int64_t a2 = 0; a2 < 0; a2 += 32) {
            most0a = max(most0a, term0(a2));
            most0b = max(most0b, term0(a2 + 8));
            most0c = max(most0c, term0(a2 + 16));
            most0d = max(most0d, term0(a2 + 24));
        }
        {
            const int64_t a2 = 0;
            const vec<float, 8> v1 = load_partial<8>(x0 + n0 + a2, 5);
            const vec<bool, 8> m0 = lanes_below<8>(5);
            most0a = max(most0a, select(m0, v1, broadcast<8>(-__builtin_inff())));
        }
        const float s0 = reduce_max(max(max(most0a, most0b), max(most0c, most0d)));
        vec<float, 8> sum0a = broadcast<8>(0.0f), sum0b = broadcast<8>(0.0f), sum0c = broadcast<8>(0.0f),
                sum0d = broadcast<8>(0.0f);
        const float s1 = mul(s0, -1.0f);
        const vec<float, 8> v3 = broadcast<8>(s1);
        const auto term1 = [&](int64_t a2) LM_LAMBDA {
            const vec<float, 8> v2 = load<8>(x0 + n0 + a2);
            const vec<float, 8> v4 = add(v2, v3);
            const vec<float, 8> v5 = exp2_scaled(v4, 1.4426950408889634);
            store(row0 + a2, v5);
            return v5;
        };
        for (int64_t a2 = 0; a2 < 0; a2 += 32) {
            sum0a = add(sum0a, term1(a2));
            sum0b = add(sum0b, term1(a2 + 8));
            sum0c = add(sum0c, term1(a2 + 16));
            sum0d = add(sum0d, term1(a2 + 24));
        }
        {
            const int64_t a2 = 0;
            const vec<float, 8> v6 = load_partial<8>(x0 + n0 + a2, 5);
            const vec<float, 8> v7 = add(v6, v3);
            const vec<float, 8> v8 = exp2_scaled(v7, 1.4426950408889634);
            store_partial(row0 + a2, v8, 5);
            const vec<bool, 8> m1 = lanes_below<8>(5);
            sum0a = add(sum0a, select(m1, v8, broadcast<8>(0.0f)));
        }
        const float s2 = reduce_add(add(add(sum0a, sum0b), add(sum0c, sum0d)));
        const float s3 = recip(s2);
        const vec<float, 8> v10 = broadcast<8>(s3);
        const vec<float, 8> v9 = load_partial<8>(row0, 5);
        const vec<float, 8> v11 = mul(v9, v10);
        store_partial(x1 + n0, v11, 5);
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
