// The product of two matrices of which each lane of a warp holds some elements, under emulation.
#pragma once

#include "luminal/device/emulated.hpp"
#include "luminal/device/arithmetic.hpp"

#if defined(LM_EMULATED)

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// sum + the product of two elements.
LM_DEVICE float added_product(float a, float b, float sum) { return __builtin_fmaf(a, b, sum); }
LM_DEVICE int32_t added_product(int32_t a, int32_t b, int32_t sum) { return add(sum, mul(a, b)); }

/// What lane l has of the matrices: element e of A at Layout::a_row(l, e) and Layout::a_column(l, e), likewise of B; and
/// of the sum at F::row(l, e) and F::column(l, e). All are of S, float or int32_t. The warp multiplies, not its threads:
/// no access is one of theirs.
template <class F, int a, int b, class Layout, class S> struct LaneOfProduct {
    S* sum;
    const S (&left)[a];
    const S (&right)[b];

    __attribute__((no_sanitize("thread"))) static void multiply(void* const* lanes) {
        const Layout layout;
        S matrix_a[F::rows][F::depth], matrix_b[F::depth][F::columns];
        for (int l = 0; l < 32; ++l) {
            const LaneOfProduct& lane = *static_cast<const LaneOfProduct*>(lanes[l]);
            for (int e = 0; e < a; ++e) matrix_a[layout.a_row(l, e)][layout.a_column(l, e)] = lane.left[e];
            for (int e = 0; e < b; ++e) matrix_b[layout.b_row(l, e)][layout.b_column(l, e)] = lane.right[e];
        }
        for (int l = 0; l < 32; ++l) {
            S* sum = static_cast<const LaneOfProduct*>(lanes[l])->sum;
            for (int e = 0; e < F::elements; ++e) {
                const int row = F::row(l, e), column = F::column(l, e);
                for (int k = 0; k < F::depth; ++k) {
                    sum[e] = added_product(matrix_a[row][k], matrix_b[k][column], sum[e]);
                }
            }
        }
    }
};

/// sum[e] += the product's element e, added term by term.
template <class F, class Layout, class S, int a, int b>
LM_DEVICE void emulated_product(S* sum, const S (&left)[a], const S (&right)[b]) {
    LaneOfProduct<F, a, b, Layout, S> lane = {sum, left, right};
    lm_emulated_together(&lane, LaneOfProduct<F, a, b, Layout, S>::multiply);
}

}  // namespace detail
}  // namespace LM_RUNTIME
}  // namespace lm

#endif
