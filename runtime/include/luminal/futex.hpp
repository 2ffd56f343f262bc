// Sleeping on an atomic word, as Linux lets a thread do.
#pragma once

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "luminal/atomic.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Sleeps while `word` holds `expected`. May return early; the caller looks again.
inline void futex_wait(const Atomic<uint32_t>& word, uint32_t expected) {
    syscall(SYS_futex, word.address(), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

/// Wakes at most `count` threads that sleep on `word`.
inline void futex_wake(const Atomic<uint32_t>& word, int count) {
    syscall(SYS_futex, word.address(), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace LM_RUNTIME
}  // namespace lm
