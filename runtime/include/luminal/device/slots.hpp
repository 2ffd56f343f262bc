// Slots of shared memory that some warps of a block fill with boxes, and others read: PTX's mbarrier (sm_90 and later).
// Each slot has two arrivals. One says that it is full: the boxes have arrived. The other says that it is empty: every
// warp that reads it has given it back. Nobody else waits for anybody.
#pragma once

#include "luminal/device/copy_box.hpp"

#if !defined(LM_METAL) && !defined(LM_OPENCL)

namespace lm {
inline namespace LM_RUNTIME {

/// What a thread knows of S slots: their arrivals, first those that say full, then those that say empty; and of each slot
/// in a bit, whether it has been used an odd number of times by the thread's side.
template <int S> struct Slots {
    uint64_t* arrivals;
    uint32_t odd;
};

/// Begins: `arrivals` is a shared array of 2 * S, `index` the thread's in its block, `warps` those that read. A barrier is
/// inside.
template <int S, int warps> LM_DEVICE Slots<S> slots_begin(uint64_t* arrivals, int index) {
    static_assert(S <= 32, "a bit for each slot");
    if (index == 0) {
        for (int i = 0; i < S; ++i) {
            detail::arrival_begin(arrivals + i, 1);
#if defined(LM_CUDA)
            detail::arrival_begin(arrivals + S + i, warps);
#else
            detail::arrival_begin(arrivals + S + i, warps * 32);
#endif
        }
#if defined(LM_CUDA)
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    barrier();
    return {arrivals, 0};
}

// ---- Those that fill: one thread ----------------------------------------------------------------------------------

/// Waits until the slot is empty.
template <int slot, int S> LM_DEVICE void slot_wait_empty(const Slots<S>& slots) {
    detail::arrival_wait(slots.arrivals + S + slot, (slots.odd >> slot & 1) ^ 1);  // the first time at once
}

/// Begins to copy a box into the slot, as copy_box does.
template <int slot, int lines, int panels, int S, class T, class... Rest>
LM_DEVICE void slot_copy(const Slots<S>& slots, T* to, const TensorMap& map, int first, Rest... rest) {
    detail::copy_panels<lines, panels>(slots.arrivals + slot, to, map, first, rest...);
}

/// No more boxes come into the slot: once they have arrived, it is full.
template <int slot, int S> LM_DEVICE void slot_filled(Slots<S>& slots) {
    detail::arrival_arrive(slots.arrivals + slot);
    slots.odd ^= 1u << slot;
}

// ---- Those that read: all threads of their warps -------------------------------------------------------------------

/// Waits until the slot is full.
template <int slot, int S> LM_DEVICE void slot_wait_full(Slots<S>& slots) {
    detail::arrival_wait(slots.arrivals + slot, slots.odd >> slot & 1);
    slots.odd ^= 1u << slot;
}

/// The thread reads the slot no more.
template <int slot, int S> LM_DEVICE void slot_give_back(const Slots<S>& slots, int index) {
#if defined(LM_CUDA)
    __syncwarp();
    if (index % 32 == 0) detail::arrival_arrive(slots.arrivals + S + slot);
#else
    static_cast<void>(index);
    detail::arrival_arrive(slots.arrivals + S + slot);
#endif
}

// ---- Registers -----------------------------------------------------------------------------------------------------

/// The thread, as all of its group of four warps, goes on with so many registers, less than it has, or more: those that
/// others have given up.
template <int count> LM_DEVICE void fewer_registers() {
#if defined(LM_WGMMA)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count> LM_DEVICE void more_registers() {
#if defined(LM_WGMMA)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

}  // namespace LM_RUNTIME
}  // namespace lm

#endif
