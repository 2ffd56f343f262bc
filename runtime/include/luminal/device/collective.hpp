// What the threads of a warp, or of a block, do together. All of them make the same calls in the same order; a warp is
// 32 threads, which Metal calls a simdgroup; in OpenCL it is one.
#pragma once

#include "luminal/device/emulated.hpp"
#include "luminal/device/lanes.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// No thread of the block passes before all have come here and see what all have written to shared arrays.
LM_DEVICE void barrier() {
#if defined(LM_METAL)
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
#elif defined(LM_OPENCL)
    ::barrier(CLK_LOCAL_MEM_FENCE);
#elif defined(LM_CUDA)
    __syncthreads();
#else
    lm_emulated_barrier(LM_EMULATED_BARRIER);
#endif
}

/// A barrier after which they see what all have written to global arrays, too.
LM_DEVICE void barrier_of_all_memory() {
#if defined(LM_METAL)
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup | metal::mem_flags::mem_device);
#elif defined(LM_OPENCL)
    ::barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#elif defined(LM_CUDA)
    __syncthreads();
#else
    lm_emulated_barrier(1);
#endif
}

/// A barrier of the lanes of a warp, which see what all of them have written to shared arrays.
LM_DEVICE void warp_barrier() {
#if defined(LM_METAL)
    metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
#elif LM_WARP == 1
#elif defined(LM_CUDA)
    __syncwarp();
#else
    lm_emulated_warp_barrier(LM_EMULATED_BARRIER);
#endif
}

// ---- Exchange between lanes ---------------------------------------------------------------------------------------

#if LM_WARP > 1

namespace detail {

#if defined(LM_EMULATED)
/// What a lane gives, and receives from lane (own lane ^ mask).
struct LaneOfShuffle {
    uint32_t given, received;
    int mask;

    __attribute__((no_sanitize("thread"))) static void exchange(void* const* lanes) {
        for (int l = 0; l < 32; ++l) {
            LaneOfShuffle* lane = static_cast<LaneOfShuffle*>(lanes[l]);
            lane->received = static_cast<const LaneOfShuffle*>(lanes[l ^ lane->mask])->given;
        }
    }
};
#endif

LM_DEVICE uint32_t shuffle_word(uint32_t v, int mask) {
#if defined(LM_METAL)
    return metal::simd_shuffle_xor(v, static_cast<ushort>(mask));
#elif defined(LM_CUDA)
    return __shfl_xor_sync(0xffffffff, v, mask);
#else
    LaneOfShuffle lane = {v, 0, mask};
    lm_emulated_together(&lane, LaneOfShuffle::exchange);
    return lane.received;
#endif
}

}  // namespace detail

/// The value of lane (own lane ^ mask); 0 <= mask < 32.
template <class T> LM_DEVICE T shuffle_xor(T v, int mask) {
    if constexpr (is_bool<T>()) {
        return detail::shuffle_word(v, mask) != 0;
    } else if constexpr (sizeof(T) == 8) {
        const uint64_t bits = bitcast<uint64_t>(v);
        const uint32_t low = detail::shuffle_word(static_cast<uint32_t>(bits), mask);
        const uint32_t high = detail::shuffle_word(static_cast<uint32_t>(bits >> 32), mask);
        return bitcast<T>(static_cast<uint64_t>(high) << 32 | low);
    } else if constexpr (sizeof(T) == 4) {
        return bitcast<T>(detail::shuffle_word(bitcast<uint32_t>(v), mask));
    } else {
        return static_cast<T>(detail::shuffle_word(static_cast<uint32_t>(v), mask));
    }
}

// ---- Reductions ---------------------------------------------------------------------------------------------------

/// The sum of all lanes of the warp: in five steps each lane adds the sum of the lane whose number differs in one bit,
/// the highest first. Every lane gets the same bits.
template <class T> LM_DEVICE T warp_reduce_add(T x) {
    LM_UNROLL for (int mask = 16; mask > 0; mask /= 2) x = add(x, shuffle_xor(x, mask));
    return x;
}

/// The maximum of all lanes of the warp, as max() has it.
template <class T> LM_DEVICE T warp_reduce_max(T x) {
    LM_UNROLL for (int mask = 16; mask > 0; mask /= 2) x = max(x, shuffle_xor(x, mask));
    return x;
}

/// Each of the N elements of `x`, an array of the lane: the sum of those of `lanes` neighbouring lanes, a power of two.
template <int lanes, int N, class P> LM_DEVICE void lanes_add(P x) {
    LM_UNROLL for (int mask = lanes / 2; mask > 0; mask /= 2) {
        LM_UNROLL for (int i = 0; i < N; ++i) x[i] = add(x[i], shuffle_xor(x[i], mask));
    }
}

/// Their maximum, likewise, as max() has it.
template <int lanes, int N, class P> LM_DEVICE void lanes_max(P x) {
    LM_UNROLL for (int mask = lanes / 2; mask > 0; mask /= 2) {
        LM_UNROLL for (int i = 0; i < N; ++i) x[i] = max(x[i], shuffle_xor(x[i], mask));
    }
}

namespace detail {

/// Every warp's `x` in `scratch`, known to the block.
template <class Scratch, class T> LM_DEVICE void share(T x, Scratch scratch, int index) {
    if (index % 32 == 0) scratch[index / 32] = x;
    barrier();
}

}  // namespace detail

/// The sum of all `threads` of the block (a multiple of 32): of each warp, then of the warps, by the same steps where
/// they are a power of two, else in order. Every thread gets the same bits. `scratch` is a shared array of threads / 32
/// elements. It may be used again after a barrier, as another reduction has one; `index` is the thread's in its block.
template <int threads, class T, class Scratch> LM_DEVICE T block_reduce_add(T x, Scratch scratch, int index) {
    constexpr int warps = threads / 32;
    static_assert(threads % 32 == 0, "whole warps");
    x = warp_reduce_add(x);
    if constexpr (warps > 1) {
        detail::share(x, scratch, index);
        if constexpr ((warps & (warps - 1)) == 0) {
            x = scratch[index % warps];
            LM_UNROLL for (int mask = warps / 2; mask > 0; mask /= 2) x = add(x, shuffle_xor(x, mask));
        } else {
            x = scratch[0];
            LM_UNROLL for (int warp = 1; warp < warps; ++warp) x = add(x, static_cast<T>(scratch[warp]));
        }
    }
    return x;
}

/// The maximum of all `threads` of the block, likewise.
template <int threads, class T, class Scratch> LM_DEVICE T block_reduce_max(T x, Scratch scratch, int index) {
    constexpr int warps = threads / 32;
    static_assert(threads % 32 == 0, "whole warps");
    x = warp_reduce_max(x);
    if constexpr (warps > 1) {
        detail::share(x, scratch, index);
        if constexpr ((warps & (warps - 1)) == 0) {
            x = scratch[index % warps];
            LM_UNROLL for (int mask = warps / 2; mask > 0; mask /= 2) x = max(x, shuffle_xor(x, mask));
        } else {
            x = scratch[0];
            LM_UNROLL for (int warp = 1; warp < warps; ++warp) x = max(x, static_cast<T>(scratch[warp]));
        }
    }
    return x;
}

#else

/// Halves of the block, one onto the other until one value is left. `scratch` has an element for each thread; it may be
/// used again after a barrier.
#define LM_BLOCK_REDUCTION(NAME, COMBINE)                                                                          \
    template <int threads, class T, class Scratch> LM_DEVICE T NAME(T x, Scratch scratch, int index) {             \
        scratch[index] = x;                                                                                        \
        barrier();                                                                                                 \
        for (int left = threads; left > 1; left = (left + 1) / 2) {                                                \
            const int other = index + (left + 1) / 2;                                                              \
            if (other < left) scratch[index] = COMBINE(static_cast<T>(scratch[index]), static_cast<T>(scratch[other])); \
            barrier();                                                                                             \
        }                                                                                                          \
        return scratch[0];                                                                                         \
    }

LM_BLOCK_REDUCTION(block_reduce_add, add)
LM_BLOCK_REDUCTION(block_reduce_max, max)
#undef LM_BLOCK_REDUCTION

#endif

}  // namespace LM_RUNTIME
}  // namespace lm
