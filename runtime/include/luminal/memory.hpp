// Where a context's memory comes from: the caller's callbacks, or the operating system.
#pragma once

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "luminal/abi.h"
#include "luminal/control_groups.hpp"
#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

inline constexpr size_t ALIGNMENT = 64;  // a cache line, and the widest vector

/// Each of two values becomes the other.
template <class T>
void exchange(T& a, T& b) {
    const T before = a;
    a = b;
    b = before;
}

/// Where an array would begin of which a portion, the elements from `first` on, lies `offset` bytes into the memory
/// `own`, and the others nowhere.
template <class T>
T* portion(unsigned char* own, int64_t offset, int64_t first) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(own + offset) - static_cast<uintptr_t>(first) * sizeof(T));
}

constexpr size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

/// Bytes of memory that this process can take before others must give some back: what the machine has left, or what
/// control groups leave of what they grant, where caches of files count as used.
inline size_t available_memory(const ControlGroups& groups = {}, const char* machine = "/proc/meminfo") {
    char text[256];
    read_text(machine, text);
    const char* const line = strstr(text, "MemAvailable:");
    long long kilobytes = 0;
    if (line == nullptr || sscanf(line, "MemAvailable: %lld", &kilobytes) != 1) return 0;
    long long least = kilobytes * 1024;
    groups.each("memory", [&least](const ControlGroup& group) {
        long long limit = 0;  // the word "max" where there is none, or a number that no machine has
        long long used = 0;
        const bool known = (group.read("memory.max", limit) && group.read("memory.current", used)) ||
                           (group.read("memory.limit_in_bytes", limit) && group.read("memory.usage_in_bytes", used));
        if (known && limit - used < least) least = limit - used;
    });
    return least > 0 ? static_cast<size_t>(least) : 0;
}

/// Bytes of a huge page, where a program may ask for such; 0 where there are none.
inline size_t huge_page() {
    char modes[64];  // the chosen one in brackets
    read_text("/sys/kernel/mm/transparent_hugepage/enabled", modes);
    if (modes[0] == '\0' || strstr(modes, "[never]") != nullptr) return 0;
    char size[32];
    read_text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", size);
    return static_cast<size_t>(atoll(size));
}

/// Allocates blocks aligned to ALIGNMENT. Large default blocks are anonymous mappings: pages that are never touched
/// cost nothing, so an arena planned for the largest sizes stays cheap when the sizes are small.
class Allocator {
  public:
    Allocator() = default;
    explicit Allocator(const lm_options& options)
        : allocate_(options.allocate), deallocate_(options.deallocate), user_(options.user) {}

    /// Null if there is no memory. `bytes` must not be 0.
    void* allocate(size_t bytes) const {
        if (allocate_ != nullptr) {
            void* memory = allocate_(user_, bytes, ALIGNMENT);
            if (reinterpret_cast<uintptr_t>(memory) % ALIGNMENT == 0) return memory;
            deallocate_(user_, memory, bytes);  // the callback broke its promise; kernels rely on it
            return nullptr;
        }
        if (bytes >= MAPPED) return map(bytes);
        void* memory = nullptr;
        return posix_memalign(&memory, ALIGNMENT, bytes) == 0 ? memory : nullptr;
    }

    /// Brings in the pages of a block before they are needed. A wish, as huge pages are.
    void touch(void* memory, size_t bytes) const {
#ifdef MADV_POPULATE_WRITE
        if (allocate_ == nullptr && bytes >= MAPPED) madvise(memory, round_up(bytes, page()), MADV_POPULATE_WRITE);
#else
        (void)memory, (void)bytes;
#endif
    }

    void deallocate(void* memory, size_t bytes) const {
        if (memory == nullptr) return;
        if (deallocate_ != nullptr) {
            deallocate_(user_, memory, bytes);
        } else if (bytes >= MAPPED) {
            munmap(memory, round_up(bytes, page()));
        } else {
            free(memory);
        }
    }

    /// Pages that no callback gives, huge ones where the system has them; null if there is no memory. `munmap` gives them
    /// back.
    static void* map(size_t bytes) {
        const size_t size = round_up(bytes, page());
        // Huge pages need an aligned start: reserve more, give back what lies before and behind.
        const size_t huge = size >= LEAST_HUGE ? huge_page() : 0;
        const size_t slack = huge != 0 && size >= huge ? huge : 0;
        if (size < bytes || size + slack < size) return nullptr;
        void* mapping = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapping == MAP_FAILED) return nullptr;
        if (slack == 0) return mapping;
        char* const start = static_cast<char*>(mapping);
        const size_t before = (huge - reinterpret_cast<uintptr_t>(start) % huge) % huge;
        if (before > 0) munmap(start, before);
        if (before < slack) munmap(start + before + size, slack - before);
#ifdef MADV_HUGEPAGE
        madvise(start + before, size, MADV_HUGEPAGE);  // a wish
#endif
        return start + before;
    }

  private:
    static constexpr size_t MAPPED = size_t{1} << 16;
    static constexpr size_t LEAST_HUGE = size_t{1} << 20;  // what is smaller fills no huge page of any processor

    static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }  // not 4 KiB everywhere

    void* (*allocate_)(void*, size_t, size_t) = nullptr;
    void (*deallocate_)(void*, void*, size_t) = nullptr;
    void* user_ = nullptr;
};

}  // namespace LM_RUNTIME
}  // namespace lm
