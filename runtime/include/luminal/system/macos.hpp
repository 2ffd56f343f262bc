// macOS.
#pragma once

#include <dlfcn.h>

#include "luminal/atomic.hpp"
#include "luminal/system/elsewhere.hpp"
#include "luminal/system/posix.hpp"

// What sleeps on a word in libSystem: compilers' own libraries call it, and os_sync_wait_on_address needs macOS 14.4.
extern "C" int __ulock_wait(uint32_t operation, void* address, uint64_t value, uint32_t microseconds);
extern "C" int __ulock_wake(uint32_t operation, void* address, uint64_t value);

namespace lm {
inline namespace LM_RUNTIME {

inline constexpr uint32_t COMPARE_AND_WAIT = 1;
inline constexpr uint32_t WAKE_ALL = 0x100;

/// Sleeps while `word` holds `expected`. May return early; the caller looks again.
inline void futex_wait(const Atomic<uint32_t>& word, uint32_t expected) {
    __ulock_wait(COMPARE_AND_WAIT, const_cast<uint32_t*>(word.address()), expected, 0);
}

/// Wakes one of the threads that sleep on `word`, or all where `count` is more.
inline void futex_wake(const Atomic<uint32_t>& word, int count) {
    __ulock_wake(COMPARE_AND_WAIT | (count > 1 ? WAKE_ALL : 0), const_cast<uint32_t*>(word.address()), 0);
}

/// CPUs that this process may keep busy, at least 1.
inline int available_cpus() {
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? static_cast<int>(count) : 1;
}

/// The file of the library that `inside` is an address of; false where it cannot be told.
inline bool own_path(const void* inside, char (&path)[PATH_MAX]) {
    Dl_info info{};
    if (dladdr(inside, &info) == 0 || info.dli_fname == nullptr) return false;
    return snprintf(path, sizeof(path), "%s", info.dli_fname) < static_cast<int>(sizeof(path));
}

}  // namespace LM_RUNTIME
}  // namespace lm
