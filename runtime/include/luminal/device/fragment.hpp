// Products of small matrices that the lanes of a warp compute together, and the tile of a warp that is made of them.
//
// A fragment F has the extents F::rows x F::depth times F::depth x F::columns, and F::elements, how many elements of
// the result a lane holds: element e of a lane is at F::row(lane, e) and F::column(lane, e). Sums are in float.
#pragma once

#include "luminal/device/fragment_mma.hpp"
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
#endif

}  // namespace LM_RUNTIME
}  // namespace lm

#endif
