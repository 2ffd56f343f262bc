// Atomic words on the compiler's builtins.
//
// <atomic> is not used: libstdc++ gives its templates default visibility, and a compiled library exports nothing but
// its C ABI.
#pragma once

#include <stdint.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

inline constexpr int CACHE_LINE = 64;

/// An atomic word. Operations are sequentially consistent unless their name says otherwise.
template <class T>
class Atomic {
  public:
    T load() const { return __atomic_load_n(&value_, __ATOMIC_SEQ_CST); }
    T load_acquire() const { return __atomic_load_n(&value_, __ATOMIC_ACQUIRE); }
    T load_relaxed() const { return __atomic_load_n(&value_, __ATOMIC_RELAXED); }
    void store(T value) { __atomic_store_n(&value_, value, __ATOMIC_SEQ_CST); }
    void store_release(T value) { __atomic_store_n(&value_, value, __ATOMIC_RELEASE); }
    void store_relaxed(T value) { __atomic_store_n(&value_, value, __ATOMIC_RELAXED); }
    T exchange(T value) { return __atomic_exchange_n(&value_, value, __ATOMIC_SEQ_CST); }
    T fetch_add(T value) { return __atomic_fetch_add(&value_, value, __ATOMIC_SEQ_CST); }
    T fetch_sub(T value) { return __atomic_fetch_sub(&value_, value, __ATOMIC_SEQ_CST); }
    T fetch_or(T value) { return __atomic_fetch_or(&value_, value, __ATOMIC_SEQ_CST); }
    bool compare_exchange(T& expected, T desired) {
        return __atomic_compare_exchange_n(&value_, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }

    const T* address() const { return &value_; }

  private:
    T value_ = 0;
};

}  // namespace LM_RUNTIME
}  // namespace lm
