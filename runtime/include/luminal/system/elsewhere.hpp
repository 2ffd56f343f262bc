// What Linux says and other systems do not, or not to a library that asks for nothing but the C library.
#pragma once

#include <stddef.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Bytes of memory that this process can take; 0: not known.
inline size_t available_memory() { return 0; }

/// Bytes of a huge page, where a program may ask for such; 0 where there are none.
inline size_t huge_page() { return 0; }

/// The CPU that the calling thread is on; -1: not known.
inline int current_cpu() { return -1; }

/// CPUs that a thread may run on, where a program may choose them.
class CpuSet {
  public:
    template <class Thread> static CpuSet of(const Thread&) { return {}; }
    CpuSet without(int) const { return {}; }
    bool operator==(const CpuSet&) const { return false; }
    template <class Thread> void give(const Thread&) const {}
};

}  // namespace LM_RUNTIME
}  // namespace lm
