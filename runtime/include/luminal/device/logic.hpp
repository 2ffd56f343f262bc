// Comparisons, selection, bits and shifts of scalars. Every function is total.
#pragma once

#include "luminal/device/types.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The same bits as another type of the same size.
template <class To, class From> LM_DEVICE To bitcast(From v) {
    static_assert(sizeof(To) == sizeof(From), "bits of another size");
#if defined(LM_METAL)
    return as_type<To>(v);
#elif defined(LM_OPENCL)
    return __builtin_bit_cast(To, v);
#else
    To r;
    __builtin_memcpy(&r, &v, sizeof r);
    return r;
#endif
}

/// A scalar as a vector of one lane.
template <class T> LM_DEVICE T splat(T value) { return value; }

template <class T> LM_DEVICE constexpr int bit_count() { return 8 * static_cast<int>(sizeof(T)); }

/// a < b; false where unordered; false < true.
template <class T> LM_DEVICE bool less(T a, T b) {
    if constexpr (is_bool<T>()) {
        return !a && b;
    } else {
        return a < b;
    }
}

/// a == b; false where unordered, and -0 == +0.
template <class T> LM_DEVICE bool equal(T a, T b) { return a == b; }

/// condition ? a : b
template <class T> LM_DEVICE T select(bool condition, T a, T b) { return condition ? a : b; }

/// Integers bitwise; bools logically.
template <class T> LM_DEVICE T bit_and(T a, T b) { return static_cast<T>(a & b); }
template <class T> LM_DEVICE T bit_or(T a, T b) { return static_cast<T>(a | b); }
template <class T> LM_DEVICE T bit_xor(T a, T b) { return static_cast<T>(a ^ b); }
template <class T> LM_DEVICE T bit_not(T a) {
    if constexpr (is_bool<T>()) {
        return !a;
    } else {
        return static_cast<T>(~a);
    }
}

/// Whether a bool is true: for vectors, whether some lane is, whether every lane is.
LM_DEVICE bool any(bool a) { return a; }
LM_DEVICE bool all(bool a) { return a; }

/// a * 2^b modulo 2^bits; 0 where b is outside [0, bits).
template <class T> LM_DEVICE T shl(T a, T b) {
    using U = bits_t<T>;
    // Short operands would be promoted to int, whose overflow is undefined.
    using Wide = choose_t<(sizeof(T) < 4), uint32_t, U>;
    const U amount = static_cast<U>(b);
    const bool inside = amount < static_cast<U>(bit_count<T>());
    const Wide shifted = static_cast<Wide>(static_cast<U>(a)) << (inside ? amount : U{0});
    return inside ? static_cast<T>(shifted) : T{0};
}

/// floor(a / 2^b): arithmetic for signed types, logical for unsigned ones. Where b is outside [0, bits), the limit of
/// large b: 0, or -1 for negative a.
template <class T> LM_DEVICE T shr(T a, T b) {
    using U = bits_t<T>;
    const U amount = static_cast<U>(b);
    const bool inside = amount < static_cast<U>(bit_count<T>());
    const T shifted = static_cast<T>(a >> (inside ? amount : static_cast<U>(bit_count<T>() - 1)));
    return is_signed_integer<T>() || inside ? shifted : T{0};
}

/// The zero bits above the highest set one; 64 for 0.
LM_DEVICE int leading_zeros(uint64_t v) {
#if defined(LM_METAL)
    return static_cast<int>(metal::clz(v));
#elif defined(LM_OPENCL)
    return static_cast<int>(::clz(v));
#elif defined(LM_CUDA)
    return __clzll(static_cast<long long>(v));
#else
    return v == 0 ? 64 : __builtin_clzll(v);
#endif
}

}  // namespace LM_RUNTIME
}  // namespace lm
