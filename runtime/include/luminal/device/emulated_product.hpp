// The product of two matrices of which each lane of a warp holds some elements, under emulation.
#pragma once

#include "luminal/device/emulated.hpp"
#include "luminal/device/arithmetic.hpp"

#if defined(LM_EMULATED)

namespace lm {
inline namespace LM_NAMESPACE {
namespace detail {

/// sum[e] += the element of A * B at F::row(lane, e), F::column(lane, e), added term by term. Lane l holds `a` elements
/// of A, number e being at layout.a_row(l, e) and layout.a_column(l, e), and `b` of B.
///
/// The warp does this, not its threads: no access counts as one of theirs.
template <class F, int a, int b, class Layout>
__attribute__((noinline, no_sanitize("thread"))) void emulated_product(float* sum, const float (&left)[a],
                                                                       const float (&right)[b], Layout layout,
                                                                       int lane) {
    float all_a[32][a], all_b[32][b], matrix_a[F::rows][F::depth], matrix_b[F::depth][F::columns];
    lm_emulated_exchange(left, all_a, sizeof left);
    lm_emulated_exchange(right, all_b, sizeof right);
    for (int l = 0; l < 32; ++l) {
        for (int e = 0; e < a; ++e) matrix_a[layout.a_row(l, e)][layout.a_column(l, e)] = all_a[l][e];
        for (int e = 0; e < b; ++e) matrix_b[layout.b_row(l, e)][layout.b_column(l, e)] = all_b[l][e];
    }
    for (int e = 0; e < F::elements; ++e) {
        const int row = F::row(lane, e), column = F::column(lane, e);
        for (int k = 0; k < F::depth; ++k) sum[e] = __builtin_fmaf(matrix_a[row][k], matrix_b[k][column], sum[e]);
    }
}

}  // namespace detail
}  // namespace LM_NAMESPACE
}  // namespace lm

#endif
