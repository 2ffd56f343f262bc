// Where a context's memory comes from: the caller's callbacks, or the operating system.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "luminal/abi.h"
#include "luminal/system.hpp"

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
        return allocate_aligned(ALIGNMENT, bytes);
    }

    /// Whether a block of that size consists of zeros when it is new.
    bool zeroes(size_t bytes) const { return PAGES_ARE_ZERO && allocate_ == nullptr && bytes >= MAPPED; }

    /// Makes a block that `zeroes` promised so what it was when it was new; false where that cannot be had.
    bool empty(void* memory, size_t bytes) const {
        return zeroes(bytes) && empty_pages(memory, round_up(bytes, page_bytes()));
    }

    /// Brings in the pages of a block before they are needed. A wish, as huge pages are.
    void touch(void* memory, size_t bytes) const {
        if (allocate_ == nullptr && bytes >= MAPPED) touch_pages(memory, round_up(bytes, page_bytes()));
    }

    void deallocate(void* memory, size_t bytes) const {
        if (memory == nullptr) return;
        if (deallocate_ != nullptr) {
            deallocate_(user_, memory, bytes);
        } else if (bytes >= MAPPED) {
            unmap(memory, bytes);
        } else {
            free_aligned(memory);
        }
    }

    /// Pages that no callback gives, huge ones where the system has them; null if there is no memory. `unmap` gives them
    /// back.
    static void* map(size_t bytes) {
        const size_t size = round_up(bytes, page_bytes());
        // Huge pages need an aligned start: reserve more, give back what lies before and behind.
        const size_t huge = size >= LEAST_HUGE ? huge_page() : 0;
        const size_t slack = huge != 0 && size >= huge ? huge : 0;
        if (size < bytes || size + slack < size) return nullptr;
        void* const mapping = map_pages(size + slack);
        if (mapping == nullptr || slack == 0) return mapping;
        char* const start = static_cast<char*>(mapping);
        const size_t before = (huge - reinterpret_cast<uintptr_t>(start) % huge) % huge;
        if (before > 0) unmap_pages(start, before);
        if (before < slack) unmap_pages(start + before + size, slack - before);
        enlarge_pages(start + before, size);
        return start + before;
    }
    static void unmap(void* memory, size_t bytes) { unmap_pages(memory, round_up(bytes, page_bytes())); }

  private:
    static constexpr size_t MAPPED = size_t{1} << 16;
    static constexpr size_t LEAST_HUGE = size_t{1} << 20;  // what is smaller fills no huge page of any processor

    void* (*allocate_)(void*, size_t, size_t) = nullptr;
    void (*deallocate_)(void*, void*, size_t) = nullptr;
    void* user_ = nullptr;
};

}  // namespace LM_RUNTIME
}  // namespace lm
