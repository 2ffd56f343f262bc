// Sorting by all threads of a block, where the elements lie.
#pragma once

#include "luminal/device/collective.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// The lesser of two elements to the first place.
template <class P, class I> LM_DEVICE void order(P first, I a, I b) {
    const auto x = first[a], y = first[b];
    if (y < x) {
        first[a] = y;
        first[b] = x;
    }
}

}  // namespace detail

/// The integers at first[0 .. count-1] in ascending order, by all `threads` of the block; `index` is the thread's in it.
/// Batcher's bitonic network (1968) in the form in which every step puts the lesser of two elements first: so elements
/// beyond the end, which would be the greatest, never move, and any count will do. Takes log2(count)^2 / 2 steps.
template <int threads, class P, class I> LM_DEVICE void block_sort(P first, I count, int index) {
    for (I run = 1; run < count; run *= 2) {
        // Neighbouring runs of `run` elements are in order: each element meets its mirror image in the other run.
        for (I pair = index;; pair += threads) {
            const I within = pair & (run - 1), low = (pair - within) * 2 + within;
            if (low >= count) break;
            const I high = low + 2 * (run - within) - 1;
            if (high < count) detail::order(first, low, high);
        }
        barrier_of_all_memory();
        for (I stride = run / 2; stride > 0; stride /= 2) {
            for (I pair = index;; pair += threads) {
                const I within = pair & (stride - 1), low = (pair - within) * 2 + within;
                if (low + stride >= count) break;
                detail::order(first, low, low + stride);
            }
            barrier_of_all_memory();
        }
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
