// The pieces of a job that fall to one thread, of which others may take some as well.
#pragma once

#include "luminal/atomic.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Consecutive pieces that nobody has begun. Their owner takes them from the front, others from the back, each time an
/// eighth of what is left: few times where all goes evenly, and yet whoever falls behind holds up no more than that.
///
/// Both ends are one word, so that a piece is taken by one. A thread that was held up between looking and taking may
/// find the same word with the pieces of a later job: it takes those, rightly.
class alignas(CACHE_LINE) Pieces {
  public:
    /// Pieces [begin, end), taken together.
    struct Run {
        uint32_t begin;
        uint32_t end;

        uint32_t count() const { return end - begin; }
        explicit operator bool() const { return begin != end; }
    };

    /// Lets pieces be taken, where all have been. What is written before is seen by those who take them.
    void offer(int64_t begin, int64_t end) {
        left_.store_release(packed(Run{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}));
    }

    /// Some from the front or the back; empty where none are left.
    Run take(bool front) {
        uint64_t seen = left_.load_acquire();
        while (true) {
            const Run left{static_cast<uint32_t>(seen >> 32), static_cast<uint32_t>(seen)};
            const uint32_t some = (left.count() + 7) / 8;
            const uint32_t cut = front ? left.begin + some : left.end - some;
            const Run before{left.begin, cut};
            const Run after{cut, left.end};
            if (!left || left_.compare_exchange(seen, packed(front ? after : before))) return front ? before : after;
        }
    }

  private:
    static uint64_t packed(Run run) { return static_cast<uint64_t>(run.begin) << 32 | run.end; }

    Atomic<uint64_t> left_;
};

}  // namespace LM_RUNTIME
}  // namespace lm
