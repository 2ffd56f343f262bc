// Atomic operations on integers of 32 bits in memory that blocks share, and how a kernel reports that a source operator
// must fail. There are none on floats: their sums would depend on the order of threads.
#pragma once

#include "luminal/device/memory.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// *p becomes `desired` if it is `expected`, as one step; what it was before.
#if defined(LM_METAL)
LM_DEVICE int32_t exchange_if(device int32_t* p, int32_t expected, int32_t desired) {
    device metal::atomic_int* word = reinterpret_cast<device metal::atomic_int*>(p);
    int32_t known = expected;
    // The weak form may fail for no reason.
    while (!metal::atomic_compare_exchange_weak_explicit(word, &known, desired, metal::memory_order_relaxed,
                                                         metal::memory_order_relaxed) && known == expected) {
    }
    return known;
}
#elif defined(LM_OPENCL)
LM_DEVICE int32_t exchange_if(device int32_t* p, int32_t expected, int32_t desired) {
    return ::atomic_cmpxchg(p, expected, desired);
}
#elif defined(LM_CUDA)
LM_DEVICE int32_t exchange_if(int32_t* p, int32_t expected, int32_t desired) { return atomicCAS(p, expected, desired); }
#else
LM_DEVICE int32_t exchange_if(int32_t* p, int32_t expected, int32_t desired) {
    int32_t known = expected;
    __atomic_compare_exchange_n(p, &known, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return known;
}
#endif

}  // namespace detail

// *p = *p + v, *p = max(*p, v), as one step; p points to int32_t or uint32_t.
#if defined(LM_METAL)
LM_DEVICE void atomic_add(device int32_t* p, int32_t v) {
    metal::atomic_fetch_add_explicit(reinterpret_cast<device metal::atomic_int*>(p), v, metal::memory_order_relaxed);
}
LM_DEVICE void atomic_add(device uint32_t* p, uint32_t v) {
    metal::atomic_fetch_add_explicit(reinterpret_cast<device metal::atomic_uint*>(p), v, metal::memory_order_relaxed);
}
LM_DEVICE void atomic_max(device int32_t* p, int32_t v) {
    metal::atomic_fetch_max_explicit(reinterpret_cast<device metal::atomic_int*>(p), v, metal::memory_order_relaxed);
}
LM_DEVICE void atomic_max(device uint32_t* p, uint32_t v) {
    metal::atomic_fetch_max_explicit(reinterpret_cast<device metal::atomic_uint*>(p), v, metal::memory_order_relaxed);
}
#elif defined(LM_OPENCL)
template <class T> LM_DEVICE void atomic_add(device T* p, T v) { ::atomic_add(p, v); }
template <class T> LM_DEVICE void atomic_max(device T* p, T v) { ::atomic_max(p, v); }
#elif defined(LM_CUDA)
template <class T> LM_DEVICE void atomic_add(T* p, T v) { atomicAdd(p, v); }
template <class T> LM_DEVICE void atomic_max(T* p, T v) { atomicMax(p, v); }
#else
template <class T> LM_DEVICE void atomic_add(T* p, T v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
template <class T> LM_DEVICE void atomic_max(T* p, T v) {
    T known = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (known < v && !__atomic_compare_exchange_n(p, &known, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
#endif

/// The outcome of one run, as it lies on the device: a member of enum lm_status, 0 before the run.
struct Status { int32_t code; };

#if !defined(LM_ABI_H)
/// What kernels raise: these members of enum lm_status.
enum { LM_INDEX_OUT_OF_RANGE = 2, LM_OPERATOR_FAILED = 3, LM_SINGULAR_MATRIX = 8, LM_OUT_OF_ROOM = 9, LM_UNFIT_BRANCH = 10 };
#endif

/// Reports `code`. The smallest one wins, so that the outcome does not depend on which thread came first.
template <class P> LM_DEVICE void raise(P status, int32_t code) {
    int32_t known = 0;
    while (known == 0 || code < known) {
        const int32_t found = detail::exchange_if(&status->code, known, code);
        if (found == known) return;
        known = found;
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
