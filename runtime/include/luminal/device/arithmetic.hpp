// Elementwise arithmetic of scalars: total, with the meaning that numpy gives each operation.
#pragma once

#include "luminal/device/logic.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// The bits of a float's fraction.
template <class T> LM_DEVICE constexpr int fraction_bits() { return sizeof(T) == 4 ? 23 : 52; }

/// Unsigned and at least as wide as int: arithmetic modulo 2^bits that is never promoted to a signed type.
template <class T> using wrapping_t = choose_t<(sizeof(T) < 4), uint32_t, bits_t<T>>;

}  // namespace detail

// ---- Addition, multiplication, signs ------------------------------------------------------------------------------

/// IEEE for floats; integers wrap.
template <class T> LM_DEVICE T add(T a, T b) {
    if constexpr (is_float<T>()) {
        return a + b;
    } else {
        using U = detail::wrapping_t<T>;
        return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    }
}
template <class T> LM_DEVICE T sub(T a, T b) {
    if constexpr (is_float<T>()) {
        return a - b;
    } else {
        using U = detail::wrapping_t<T>;
        return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
    }
}
template <class T> LM_DEVICE T mul(T a, T b) {
    if constexpr (is_float<T>()) {
        return a * b;
    } else {
        using U = detail::wrapping_t<T>;
        return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    }
}

/// Floats: the sign bit alone (NaN included). Integers wrap.
template <class T> LM_DEVICE T neg(T a) {
    if constexpr (is_float<T>()) {
        return -a;
    } else {
        return sub(T{0}, a);
    }
}

template <class T> LM_DEVICE T abs(T a) {
    if constexpr (is_float<T>()) {
        using U = bits_t<T>;
        return bitcast<T>(static_cast<U>(bitcast<U>(a) & static_cast<U>(~U{0} >> 1)));
    } else if constexpr (is_signed_integer<T>()) {
        return a < 0 ? neg(a) : a;
    } else {
        return a;
    }
}

/// |magnitude| with the sign bit of sign.
template <class T> LM_DEVICE T copy_sign(T magnitude, T sign) {
    using U = bits_t<T>;
    const U sign_bit = U{1} << (bit_count<T>() - 1);
    return bitcast<T>(static_cast<U>(bitcast<U>(abs(magnitude)) | (bitcast<U>(sign) & sign_bit)));
}

// ---- Constants ----------------------------------------------------------------------------------------------------

template <class T> LM_DEVICE T infinity() {
    static_assert(is_float<T>(), "a float type");
    if constexpr (sizeof(T) == 4) {
        return bitcast<T>(uint32_t{0x7f800000});
    } else {
        return bitcast<T>(uint64_t{0x7ff0000000000000});
    }
}
template <class T> LM_DEVICE T nan() {
    static_assert(is_float<T>(), "a float type");
    if constexpr (sizeof(T) == 4) {
        return bitcast<T>(uint32_t{0x7fc00000});
    } else {
        return bitcast<T>(uint64_t{0x7ff8000000000000});
    }
}

// ---- Fused multiply-add, minimum and maximum ----------------------------------------------------------------------

/// a * b + c for floats, rounded once.
LM_DEVICE float fma(float a, float b, float c) {
#if defined(LM_METAL)
    return metal::fma(a, b, c);
#elif defined(LM_OPENCL)
    return ::fma(a, b, c);
#elif defined(LM_CUDA)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}
#if defined(LM_DOUBLE)
LM_DEVICE double fma(double a, double b, double c) {
#if defined(LM_CUDA)
    return __fma_rn(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
}
#endif
template <class T> LM_DEVICE T multiply_add(T a, T b, T c) { return fma(a, b, c); }

/// a < b ? a : b, so b where the two are equal or unordered.
template <class T> LM_DEVICE T lesser(T a, T b) { return a < b ? a : b; }

/// a < b ? b : a, so a where the two are equal or unordered.
template <class T> LM_DEVICE T greater(T a, T b) { return a < b ? b : a; }

/// The larger; NaN if either is NaN; max(-0, +0) = +0; or for bools.
template <class T> LM_DEVICE T max(T a, T b) {
    if constexpr (is_bool<T>()) {
        return a || b;
    } else if constexpr (is_integer<T>()) {
        return a < b ? b : a;
    } else {
#if defined(LM_CUDA)
        if constexpr (sizeof(T) == 4) {
            T r;
            asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));  // +0 is above -0
            return r;
        } else
#endif
        {
            // Where a == b the bits differ in the sign of zero alone, and `and` clears it.
            using U = bits_t<T>;
            const T same = bitcast<T>(static_cast<U>(bitcast<U>(a) & bitcast<U>(b)));
            const T ordered = b < a ? a : (a == b ? same : b);
            return a == a ? ordered : a;
        }
    }
}

// ---- Square root, reciprocal, rounding ----------------------------------------------------------------------------

/// Correctly rounded; NaN below zero, sqrt(-0) = -0.
LM_DEVICE float sqrt(float a) {
#if defined(LM_METAL)
    return metal::precise::sqrt(a);
#elif defined(LM_OPENCL)
    return ::sqrt(a);  // rounded correctly: the library opens on no other device
#elif defined(LM_CUDA)
    return __fsqrt_rn(a);
#else
    return __builtin_sqrtf(a);
#endif
}
#if defined(LM_DOUBLE)
LM_DEVICE double sqrt(double a) {
#if defined(LM_CUDA)
    return __dsqrt_rn(a);
#else
    return __builtin_sqrt(a);
#endif
}
#endif

/// 1 / a, correctly rounded.
template <class T> LM_DEVICE T recip(T a) { return T{1} / a; }

// To an integer value, the sign of zero kept: to nearest with ties to even, down, up, towards zero. Integers stay.
#if defined(LM_METAL)
#define LM_ROUNDING(NAME, FUNCTION) \
    LM_DEVICE float NAME(float a) { return metal::FUNCTION(a); }
#elif defined(LM_OPENCL)
#define LM_ROUNDING(NAME, FUNCTION) \
    LM_DEVICE float NAME(float a) { return ::FUNCTION(a); }
#elif defined(LM_CUDA)
#define LM_ROUNDING(NAME, FUNCTION)                             \
    LM_DEVICE float NAME(float a) { return ::FUNCTION##f(a); } \
    LM_DEVICE double NAME(double a) { return ::FUNCTION(a); }
#elif defined(LM_DOUBLE)
#define LM_ROUNDING(NAME, FUNCTION)                                       \
    LM_DEVICE float NAME(float a) { return __builtin_##FUNCTION##f(a); } \
    LM_DEVICE double NAME(double a) { return __builtin_##FUNCTION(a); }
#else
#define LM_ROUNDING(NAME, FUNCTION) \
    LM_DEVICE float NAME(float a) { return __builtin_##FUNCTION##f(a); }
#endif
LM_ROUNDING(round_even, rint)
LM_ROUNDING(floor, floor)
LM_ROUNDING(ceil, ceil)
LM_ROUNDING(trunc, trunc)
#undef LM_ROUNDING

template <class T> LM_DEVICE T round_even(T a) { return a; }
template <class T> LM_DEVICE T floor(T a) { return a; }
template <class T> LM_DEVICE T ceil(T a) { return a; }
template <class T> LM_DEVICE T trunc(T a) { return a; }

}  // namespace LM_RUNTIME
}  // namespace lm
