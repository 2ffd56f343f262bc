// How a kernel reports that a source operator must fail.
#pragma once

#include "luminal/abi.h"
#include "luminal/atomic.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The outcome of one run. A kernel whose operator can fail takes a `Status*`, raises, and goes on with any harmless
/// value; the context starts no further step.
class Status {
  public:
    /// `code` is one of enum lm_status. Callable from all threads of a step; the smallest code wins, so that the
    /// outcome does not depend on which thread came first.
    void raise(int32_t code) {
        int32_t current = code_.load_relaxed();
        while ((current == LM_OK || code < current) && !code_.compare_exchange(current, code)) {
        }
    }

    int32_t code() const { return code_.load_relaxed(); }
    void reset() { code_.store_relaxed(LM_OK); }

  private:
    Atomic<int32_t> code_;
};

}  // namespace LM_RUNTIME
}  // namespace lm
