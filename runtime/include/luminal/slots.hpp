// Memory for the threads of a run: as many blocks as may be needed at once, each lent to one thread at a time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "luminal/atomic.hpp"
#include "luminal/memory.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Blocks of equal size. Pages that no thread has ever used cost nothing.
class Slots {
  public:
    Slots() = default;
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;

    /// Room for `count` threads, `bytes` for each; false if there is no memory.
    bool allocate(const Allocator& allocator, int count, size_t bytes) {
        count_ = count;
        slot_bytes_ = round_up(bytes, ALIGNMENT);
        marks_ = static_cast<Mark*>(allocator.allocate(marks_bytes()));
        slots_ = static_cast<unsigned char*>(allocator.allocate(slots_bytes()));
        if (marks_ == nullptr || slots_ == nullptr) return false;
        for (int i = 0; i < count; ++i) marks_[i].taken.store_relaxed(0);
        return true;
    }

    void deallocate(const Allocator& allocator) {
        allocator.deallocate(marks_, marks_bytes());
        allocator.deallocate(slots_, slots_bytes());
    }

    /// The memory that a thread has while this lives. Where more threads come than there is room for, they wait for
    /// each other.
    class Taken {
      public:
        explicit Taken(Slots& slots) : slots_(slots), number_(slots.take()) {}
        Taken(const Taken&) = delete;
        Taken& operator=(const Taken&) = delete;
        ~Taken() { slots_.marks_[number_].taken.store_release(0); }

        unsigned char* memory() const { return slots_.slots_ + static_cast<size_t>(number_) * slots_.slot_bytes_; }

      private:
        Slots& slots_;
        const int number_;
    };

  private:
    struct alignas(CACHE_LINE) Mark {
        Atomic<uint32_t> taken;
    };

    /// The number of a free slot. A CPU has one that it tries first, since its caches may still hold it.
    int take() {
        const int cpu = current_cpu();
        const int first = cpu < 0 ? 0 : cpu % count_;
        while (true) {
            for (int i = 0; i < count_; ++i) {
                const int slot = (first + i) % count_;
                Atomic<uint32_t>& taken = marks_[slot].taken;
                if (taken.load_relaxed() == 0 && taken.exchange(1) == 0) return slot;
            }
            yield_cpu();
        }
    }

    size_t marks_bytes() const { return static_cast<size_t>(count_) * sizeof(Mark); }
    size_t slots_bytes() const { return static_cast<size_t>(count_) * slot_bytes_; }

    int count_ = 0;
    size_t slot_bytes_ = 0;
    Mark* marks_ = nullptr;
    unsigned char* slots_ = nullptr;
};

}  // namespace LM_RUNTIME
}  // namespace lm
