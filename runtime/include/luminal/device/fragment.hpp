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

/// Adds the product of F::depth terms to the tile of a warp, which has I x J fragments:
///
///     tile[i, j] += sum over k < F::depth of  a[i * a_row + k * a_depth] * b[k * b_depth + j * b_column]
///
/// `sum` is an array of the lane: its elements of every fragment, one row of fragments after the other. a and b are
/// shared arrays of F's operand type. All lanes of the warp call it, with equal arguments but for sum and lane.
template <class F, int I, int J, class Sum, class A, class B>
LM_DEVICE void warp_tile_step(Sum sum, A a, int a_row, int a_depth, B b, int b_depth, int b_column, int lane) {
    typename F::B right[J];
    LM_UNROLL for (int j = 0; j < J; ++j) {
        right[j] = F::load_b(b + j * F::columns * b_column, b_depth, b_column, lane);
    }
    LM_UNROLL for (int i = 0; i < I; ++i) {
        const typename F::A left = F::load_a(a + i * F::rows * a_row, a_row, a_depth, lane);
        LM_UNROLL for (int j = 0; j < J; ++j) F::multiply(sum + (i * J + j) * F::elements, left, right[j], lane);
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm

#endif
