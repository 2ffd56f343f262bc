// What a thread does while it spins.
#pragma once

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Tells the core that this is a spinning loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

}  // namespace LM_RUNTIME
}  // namespace lm
