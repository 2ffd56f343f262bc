// Elements that the lanes of a warp hold as fragments of products leave them, dealt out anew, so that each lane has
// neighbours of one row, which it can store at once.
#pragma once

#include "luminal/device/collective.hpp"
#include "luminal/device/memory.hpp"

#if LM_WARP > 1

namespace lm {
inline namespace LM_RUNTIME {

/// A lane has eight elements of a matrix of 16 rows and columns: x[e] is at row lane / 4 + 8 * (e / 2 % 2) and column
/// 2 * (lane % 4) + e % 2 + 8 * (e / 4), and afterwards at row lane / 2 and column 8 * (lane % 2) + e. They pass
/// `through` a shared array of 256 elements, the warp's own, which all its lanes have read when the call ends.
///
/// There, each row has four parts of four elements. In every other pair of rows they stand in the opposite order, so
/// that no bank has to serve two lanes at once: neither the pairs of four rows, nor the parts of four rows.
template <class X, class P> LM_DEVICE void regroup(X x, P through, int lane) {
    using T = pointed_t<P>;
    const int row = lane / 4, turned = row / 2 % 2 * 3;
    LM_UNROLL for (int pair = 0; pair < 4; ++pair) {
        const int part = (pair / 2 * 2 + lane % 4 / 2) ^ turned;
        const vec<T, 2> both = {{x[2 * pair], x[2 * pair + 1]}};
        store(through + (row * 16 + pair % 2 * 128 + part * 4 + lane % 2 * 2), both);
    }
    warp_barrier();
    LM_UNROLL for (int half = 0; half < 2; ++half) {
        const int part = (lane % 2 * 2 + half) ^ (lane / 4 % 2 * 3);
        const auto four = load<4>(through + (lane / 2 * 16 + part * 4));
        LM_UNROLL for (int e = 0; e < 4; ++e) x[half * 4 + e] = four.lane[e];
    }
    warp_barrier();
}

}  // namespace LM_RUNTIME
}  // namespace lm

#endif
