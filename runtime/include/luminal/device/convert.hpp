// convert<To>(v), encode and decode: every cast between element types, total, rounded at most once.
//
//   integer -> integer     modulo 2^bits
//   integer -> float       to nearest, ties to even
//   float   -> integer     towards zero, saturating; NaN gives 0
//   float64 -> float32     to nearest, ties to even
//   any     -> narrower    a value of the compute type that is the nearest of that type, never rounded in between
//   any     -> bool        v != 0 (NaN is true);  bool -> any: 0 or 1
#pragma once

#include "luminal/device/encoding.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// Float to integer: values out of range never reach the instruction, whose result would be undefined.
template <class To, class T> LM_DEVICE To saturate(T v) {
    using U = bits_t<To>;
    const U top_bit = U{1} << (bit_count<To>() - 1);
    const To largest = static_cast<To>(is_signed_integer<To>() ? static_cast<U>(top_bit - 1) : static_cast<U>(~U{0}));
    const To smallest = is_signed_integer<To>() ? static_cast<To>(top_bit) : To{0};
    // Both bounds are powers of two (or zero) and exact in every float type.
    const T half_range = static_cast<T>(top_bit);
    const T lowest = is_signed_integer<To>() ? -half_range : T{0};
    const T beyond = is_signed_integer<To>() ? half_range : 2 * half_range;
    if (!(v < beyond)) return v == v ? largest : To{0};
    if (v < lowest) return smallest;
    return static_cast<To>(v);
}

/// v rounded to odd: `nearest` is the float nearest to it; where it is inexact, and even, its neighbour on v's side is
/// taken. A second rounding to at most 22 bits then gives what one rounding would have given (Boldo and Melquiond,
/// "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
LM_DEVICE float round_to_odd(float nearest, bool exact, bool too_large) {
    const uint32_t bits = bitcast<uint32_t>(nearest);
    if (exact || (bits & 1) != 0) return nearest;
    return bitcast<float>(too_large ? bits - 1 : bits + 1);
}

/// A float that a type of 16 bits or fewer rounds to the same value as v itself.
template <class T> LM_DEVICE float float_to_round(T v) {
    const float nearest = static_cast<float>(v);
    if constexpr (is_integer<T>() && sizeof(T) >= 4) {
        const T back = saturate<T>(nearest);
        return round_to_odd(nearest, back == v, nearest < 0 ? back < v : v < back);
#if defined(LM_DOUBLE)
    } else if constexpr (is_same<T, double>()) {
        const double back = static_cast<double>(nearest);
        return round_to_odd(nearest, back == v || v != v, abs(v) < abs(back));
#endif
    } else {
        return nearest;
    }
}

}  // namespace detail

template <class To, class T> LM_DEVICE compute_t<To> convert(T v) {
    if constexpr (is_stored<To>() && is_bool<T>()) {
        return decode<To>(encode<To>(v ? 1 : 0));
    } else if constexpr (is_narrow_integer<To>()) {
        if constexpr (is_float<T>()) {
            const T smallest = narrow_traits<To>::smallest, largest = narrow_traits<To>::largest;
            const T inside = v < smallest ? smallest : v < largest ? v : largest;
            return static_cast<compute_t<To>>(v == v ? inside : T{0});
        } else {
            return decode<To>(static_cast<uint8_t>(v));
        }
    } else if constexpr (is_stored<To>()) {
        return rounded<To>(detail::float_to_round(v));
    } else if constexpr (is_bool<To>() && !is_bool<T>()) {
        return !(v == T{0});
    } else if constexpr (is_float<T>() && is_integer<To>()) {
        return detail::saturate<To>(v);
    } else {
        return static_cast<To>(v);
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
