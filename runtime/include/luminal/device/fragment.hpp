// Products of small matrices that the lanes of a warp compute together, and the tile of a warp that is made of them.
//
// A fragment F has the extents F::rows x F::depth times F::depth x F::columns, and F::elements, how many elements of
// the result a lane holds: element e of a lane is at F::row(lane, e) and F::column(lane, e). Sums are in float; of bytes
// in int32_t, for a block of terms.
#pragma once

#include "luminal/device/fragment_mma.hpp"
#include "luminal/device/fragment_mma_bytes.hpp"
#include "luminal/device/fragment_simdgroup.hpp"
#include "luminal/device/fragment_wgmma.hpp"

#if LM_WARP > 1

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// J fragments of B beside each other, two at once where the device can.
template <class F, int J, class P> struct RightFragments {
    typename F::B of[J];

    LM_MEMBER RightFragments load(P b, int depth, int column, int lane) {
        RightFragments r;
        LM_UNROLL for (int j = 0; j < J; ++j) {
            const P first = b + j * F::columns * column;
            if constexpr (F::beside == 2 && J % 2 == 0) {
                if (j % 2 == 0) F::load_two_of_b(r.of[j], r.of[j + 1], first, depth, column, lane);
            } else {
                r.of[j] = F::load_b(first, depth, column, lane);
            }
        }
        return r;
    }
};

}  // namespace detail

/// Adds the product of F::depth terms to the tile of a warp, which has I x J fragments:
///
///     tile[i, j] += sum over k < F::depth of  a[i * a_row + k * a_depth] * b[k * b_depth + j * b_column]
///
/// `sum` is an array of the lane: its elements of every fragment, one row of fragments after the other. a and b are
/// shared arrays of F's operand type. All lanes of the warp call it, with equal arguments but for sum and lane.
template <class F, int I, int J, class Sum, class A, class B>
LM_DEVICE void warp_tile_step(Sum sum, A a, int a_row, int a_depth, B b, int b_depth, int b_column, int lane) {
    const detail::RightFragments<F, J, B> right = detail::RightFragments<F, J, B>::load(b, b_depth, b_column, lane);
    LM_UNROLL for (int i = 0; i < I; ++i) {
        const typename F::A left = F::load_a(a + i * F::rows * a_row, a_row, a_depth, lane);
        LM_UNROLL for (int j = 0; j < J; ++j) F::multiply(sum + (i * J + j) * F::elements, left, right.of[j], lane);
    }
}

#if !defined(LM_METAL)
/// The same, where `a` is an array of the lane, too: its elements of the fragments of a tile of sums, from those of the
/// first term on, and a_row from one row of fragments to the next. They are rounded to F's operand type.
template <class F, int I, int J, class B>
LM_DEVICE void held_tile_step(float* sum, const float* a, int a_row, B b, int b_depth, int b_column, int lane) {
    const detail::RightFragments<F, J, B> right = detail::RightFragments<F, J, B>::load(b, b_depth, b_column, lane);
    LM_UNROLL for (int i = 0; i < I; ++i) {
        const typename F::A left = F::rounded_a(a + i * a_row);
        LM_UNROLL for (int j = 0; j < J; ++j) F::multiply(sum + (i * J + j) * F::elements, left, right.of[j], lane);
    }
}

/// The scaled sum of a block of Terms products of signed bytes, which is exact, added to the tile of a warp:
///
///     tile[i, j] += left[i * left_row] * right[j * right_column] *
///                   sum over k < Terms of  a[i * a_row + k * a_depth] * b[k * b_depth + j * b_column]
///
/// `left` and `right` are shared arrays of floats. Of an infinite left[i] NaN comes, as of terms of both signs.
template <class F, int I, int J, int Terms, class A, class B, class L, class R>
LM_DEVICE void scaled_tile_step(float* sum, A a, int a_row, int a_depth, B b, int b_depth, int b_column, L left,
                                int left_row, R right, int right_column, int lane) {
    // The bits of 1.5 * 2^23 + n are n more than those of 1.5 * 2^23: products are summed on top of these, and a
    // subtraction is all that converts a sum, where a device converts few integers at once.
    static_assert(Terms * 128 * 128 < 1 << 22, "the sum of a block, as the low bits of a float");
    constexpr int steps = Terms / F::depth;
    const float origin = 12582912.0f;
    int32_t start[F::elements];
    LM_UNROLL for (int e = 0; e < F::elements; ++e) start[e] = bitcast<int32_t>(origin);
    typename F::A of_a[I][steps];
    float down[I][2];  // a lane has two rows of a fragment, and two columns
    LM_UNROLL for (int i = 0; i < I; ++i) {
        LM_UNROLL for (int n = 0; n < steps; ++n) {
            of_a[i][n] = F::load_a(a + i * F::rows * a_row + n * F::depth * a_depth, a_row, a_depth, lane);
        }
        LM_UNROLL for (int e = 0; e < 2; ++e) {
            const float scale = detail::read(left + (i * F::rows + F::row(lane, 2 * e)) * left_row);
            down[i][e] = fma(scale, 0.0f, scale);
        }
    }
    constexpr int beside = J % F::beside == 0 ? F::beside : 1;
    LM_UNROLL for (int first = 0; first < J; first += beside) {
        detail::RightFragments<F, beside, B> of_b[steps];
        LM_UNROLL for (int n = 0; n < steps; ++n) {
            const B place = b + first * F::columns * b_column + n * F::depth * b_depth;
            of_b[n] = detail::RightFragments<F, beside, B>::load(place, b_depth, b_column, lane);
        }
        LM_UNROLL for (int j = first; j < first + beside; ++j) {
            float across[2];
            LM_UNROLL for (int e = 0; e < 2; ++e) {
                across[e] = detail::read(right + (j * F::columns + F::column(lane, e)) * right_column);
            }
            LM_UNROLL for (int i = 0; i < I; ++i) {
                int32_t part[F::elements];
                F::multiply(part, of_a[i][0], of_b[0].of[j - first], start, lane);
                LM_UNROLL for (int n = 1; n < steps; ++n) {
                    F::multiply(part, of_a[i][n], of_b[n].of[j - first], part, lane);
                }
                LM_UNROLL for (int e = 0; e < F::elements; ++e) {
                    const float whole = bitcast<float>(part[e]) - origin, scale = down[i][e / 2] * across[e % 2];
                    sum[(i * J + j) * F::elements + e] = fma(whole, scale, sum[(i * J + j) * F::elements + e]);
                }
            }
        }
    }
}
#endif

}  // namespace LM_RUNTIME
}  // namespace lm

#endif
