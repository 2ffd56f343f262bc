// Masks of consecutive lanes, and regular positions.
#pragma once

#include "luminal/index.hpp"
#include "luminal/simd.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// True in the lanes 0 .. count-1; in none where count <= 0.
template <int N> LM_INLINE vec<bool, N> lanes_below(int64_t count) {
    const int32_t limit = static_cast<int32_t>(minimum(maximum(count, 0), N));
    return less(iota<N>(int32_t{0}), broadcast<N>(limit));
}

/// True in the lanes first .. N-1; in all where first <= 0.
template <int N> LM_INLINE vec<bool, N> lanes_from(int64_t first) {
    const int32_t limit = static_cast<int32_t>(minimum(maximum(first, 0), N));
    return less(broadcast<N>(limit - 1), iota<N>(int32_t{0}));
}

/// 0, step, 2*step, ...: positions in memory, from the first lane's. (N - 1) * step fits into 32 bits.
template <int N> LM_INLINE vec<int32_t, N> multiples(int32_t step) {
    return mul(iota<N>(int32_t{0}), broadcast<N>(step));
}

}  // namespace LM_RUNTIME
}  // namespace lm
