// Copies from global into shared memory that run in the background (PTX cp.async, sm_80 and later). Metal and OpenCL have none
// that a thread could start: there a copy is done when the call returns.
#pragma once

#include "luminal/device/memory.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Copies `bytes` (4, 8 or 16; both ends aligned to as many). Where `valid` is false, zeros arrive and nothing is read.
template <int bytes, class Shared, class Global>
LM_DEVICE void copy_async(Shared to, Global from, bool valid = true) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "4, 8 or 16 bytes");
#if defined(LM_CUDA)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    const int read = valid ? bytes : 0;
    if constexpr (bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(bytes), "r"(read)
                     : "memory");
    }
#elif defined(LM_ADDRESS_SPACES)
    LM_UNROLL for (int i = 0; i < bytes / 4; ++i) {
        detail::as<uint32_t>(to)[i] = valid ? detail::as<uint32_t>(from)[i] : 0;
    }
#else
    LM_EMULATED_ACCESS(to, bytes);
    if (valid) LM_EMULATED_ACCESS(from, bytes);
    lm_emulated_copy_async(to, valid ? from : nullptr, bytes);
#endif
}

/// Ends a group of copies: those that the thread has started since the last group.
LM_DEVICE void copy_commit() {
#if defined(LM_CUDA)
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(LM_EMULATED)
    lm_emulated_copy_commit();
#endif
}

/// Waits until at most the last `groups` of the thread's groups are still under way. Others see the copies after the
/// barrier that follows.
template <int groups> LM_DEVICE void copy_wait() {
#if defined(LM_CUDA)
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#elif defined(LM_EMULATED)
    lm_emulated_copy_wait(groups);
#endif
}

}  // namespace LM_RUNTIME
}  // namespace lm
