// Copies of boxes of arrays into shared memory, each begun by one thread, that run in the background: PTX's
// cp.async.bulk.tensor (sm_90 and later). A barrier of memory, an `arrival`, says when the boxes of a group are there.
#pragma once

#include "luminal/device/collective.hpp"

#if !defined(LM_METAL) && !defined(LM_OPENCL)

namespace lm {
inline namespace LM_RUNTIME {

/// An array as the host describes it: CUtensorMap.
struct alignas(128) TensorMap { uint64_t words[16]; };

/// What a thread knows of the copies of its block: the arrivals of S groups, which are used in turn; which of them is that
/// of the next group to be started, and of the next to be waited for, with the parity of its phase; and how many groups
/// are between these. All threads make the same calls, so that they know the same.
template <int S> struct Boxes {
    uint64_t* arrivals;
    int next, oldest, parity, left;
};

namespace detail {

#if defined(LM_CUDA)
LM_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
#endif

/// In each of its phases an arrival waits for so many threads, and for the bytes of boxes that were expected.
LM_DEVICE void arrival_begin(uint64_t* arrival, uint32_t threads) {
#if defined(LM_CUDA)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(arrival)), "r"(threads) : "memory");
#elif defined(LM_EMULATED)
    lm_emulated_arrival_begin(arrival, threads);
#endif
}

LM_DEVICE void arrival_arrive(uint64_t* arrival) {
#if defined(LM_CUDA)
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(shared_address(arrival))
                 : "memory");
#elif defined(LM_EMULATED)
    lm_emulated_arrival(arrival);
#endif
}

/// Waits until the phase of that parity has ended: it and the phases before.
LM_DEVICE void arrival_wait(uint64_t* arrival, uint32_t parity) {
#if defined(LM_CUDA)
    uint32_t ended = 0;
    while (ended == 0) {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(ended) : "r"(shared_address(arrival)), "r"(parity) : "memory");
    }
#elif defined(LM_EMULATED)
    lm_emulated_arrival_wait(arrival, parity);
#endif
}

}  // namespace detail

/// Begins: `arrivals` is a shared array of S, `index` the thread's in its block. A barrier is inside.
template <int S> LM_DEVICE Boxes<S> boxes_begin(uint64_t* arrivals, int index) {
    if (index == 0) {
        for (int i = 0; i < S; ++i) detail::arrival_begin(arrivals + i, 1);
#if defined(LM_CUDA)
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    barrier();
    return {arrivals, 0, 0, 0, 0};
}

namespace detail {

/// Begins to copy the box of the array `map` at these coordinates, the first fastest. It has `panels` times 128 bytes
/// along the first dimension and `lines` along the second, and comes to `to` in panels (in_panels). Zeros arrive for
/// what lies outside the array. `arrival` waits for the bytes.
template <int lines, int panels, class T, class... Rest>
LM_DEVICE void copy_panels(uint64_t* arrival, T* to, const TensorMap& map, int first, Rest... rest) {
    static_assert(1 <= sizeof...(rest) && sizeof...(rest) <= 4, "two to five dimensions");
    constexpr int wide = 128 / sizeof(T), bytes = lines * panels * 128;
#if defined(LM_CUDA)
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(arrival)),
                 "r"(bytes)
                 : "memory");
#else
    lm_emulated_arrival_expect(arrival, bytes);
#endif
    for (int panel = 0; panel < panels; ++panel) {
        T* const place = to + panel * lines * wide;
        const int at[] = {first + panel * wide, rest...};
#if defined(LM_CUDA)
        const uint32_t shared = shared_address(place), end = shared_address(arrival);
        const uint64_t address = reinterpret_cast<uint64_t>(&map);
#define LM_BOX(rank, coordinates, ...)                                                                              \
    asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, " \
                 coordinates "], [%2];" ::"r"(shared), "l"(address), "r"(end), __VA_ARGS__                          \
                 : "memory")
        if constexpr (sizeof...(rest) == 1) {
            LM_BOX("2d", "{%3, %4}", "r"(at[0]), "r"(at[1]));
        } else if constexpr (sizeof...(rest) == 2) {
            LM_BOX("3d", "{%3, %4, %5}", "r"(at[0]), "r"(at[1]), "r"(at[2]));
        } else if constexpr (sizeof...(rest) == 3) {
            LM_BOX("4d", "{%3, %4, %5, %6}", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]));
        } else {
            LM_BOX("5d", "{%3, %4, %5, %6, %7}", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]));
        }
#undef LM_BOX
#else
        lm_emulated_copy_box(place, &map, at, arrival);
#endif
    }
}

}  // namespace detail

/// The same by the first thread of the block, in the group that is begun next.
template <int lines, int panels, int S, class T, class... Rest>
LM_DEVICE void copy_box(const Boxes<S>& boxes, T* to, const TensorMap& map, int index, int first, Rest... rest) {
    if (index == 0) {
        detail::copy_panels<lines, panels>(boxes.arrivals + boxes.next, to, map, first, rest...);
    }
}

/// Ends a group: the boxes since the last.
template <int S> LM_DEVICE void boxes_commit(Boxes<S>& boxes, int index) {
    if (index == 0) detail::arrival_arrive(boxes.arrivals + boxes.next);
    boxes.next = boxes.next + 1 == S ? 0 : boxes.next + 1;
    ++boxes.left;
}

/// Waits until at most the last `groups` groups are still under way.
template <int groups, int S> LM_DEVICE void boxes_wait(Boxes<S>& boxes) {
    static_assert(groups < S, "so many groups have an arrival each");
    while (boxes.left > groups) {
        detail::arrival_wait(boxes.arrivals + boxes.oldest, static_cast<uint32_t>(boxes.parity));
        boxes.parity ^= boxes.oldest + 1 == S;
        boxes.oldest = boxes.oldest + 1 == S ? 0 : boxes.oldest + 1;
        --boxes.left;
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm

#endif
