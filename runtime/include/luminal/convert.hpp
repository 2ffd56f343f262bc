// convert<To>(v): every cast between element types, total, rounded at most once.
//
//   integer -> integer     modulo 2^bits
//   integer -> float       to nearest, ties to even
//   float   -> integer     towards zero, saturating; NaN gives 0
//   float64 -> float32     to nearest, ties to even
//   any     -> narrower    lanes of the compute type, whose values are the nearest of that type, never rounded in between
//   any     -> bool        v != 0 (NaN is true);  bool -> any: 0 or 1
#pragma once

#include <limits>

#include "luminal/encoding.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

#if defined(LM_AVX512)

/// 16 floats to integers of 8 or 16 bits, which the instructions saturate.
template <class To> LM_INLINE auto saturate_short(__m512 v) {
    constexpr __mmask16 all = 0xffff;
    // Of a number and NaN this minimum is the second operand.
    const __m512 bounded = _mm512_maskz_min_ps(all, _mm512_set1_ps(std::numeric_limits<To>::max()), v);
    if constexpr (std::is_signed_v<To>) {
        const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
        const __m512i whole = _mm512_maskz_cvttps_epi32(number, bounded);
        if constexpr (sizeof(To) == 1) return _mm512_maskz_cvtsepi32_epi8(all, whole);
        else return _mm512_maskz_cvtsepi32_epi16(all, whole);
    } else {
        // What is far below zero, or NaN, becomes the least int32.
        const __m512i whole = _mm512_maskz_max_epi32(all, _mm512_maskz_cvttps_epi32(all, bounded), _mm512_setzero_si512());
        if constexpr (sizeof(To) == 1) return _mm512_maskz_cvtusepi32_epi8(all, whole);
        else return _mm512_maskz_cvtusepi32_epi16(all, whole);
    }
}

#endif

/// Float to integer: out-of-range lanes never reach the instruction, whose result would be undefined.
template <class To, class V> LM_INLINE auto saturate_lanes(V v) {
    using T = element_t<V>;
    using R = rebind<To, V>;
    // Both bounds are powers of two (or zero) and exact in every float type.
    constexpr T half_range = static_cast<T>(uint64_t{1} << (8 * sizeof(To) - 1));
    constexpr T lowest = std::is_signed_v<To> ? -half_range : T{0};
    constexpr T beyond = std::is_signed_v<To> ? half_range : 2 * half_range;
    constexpr To smallest = std::numeric_limits<To>::min(), largest = std::numeric_limits<To>::max();
    const auto too_large = bit_not(less(v, splat<V>(beyond)));  // or NaN
    const auto too_small = less(v, splat<V>(lowest));
    const V inside = select(bit_or(too_large, too_small), splat<V>(0), v);
    // Short integers go through int32, for which there are instructions.
    using Via = std::conditional_t<(sizeof(To) < 4), int32_t, To>;
    const R truncated = lane_cast<To>(lane_cast<Via>(inside));
    const R above = select(equal(v, v), splat<R>(largest), splat<R>(0));
    return select(too_large, above, select(too_small, splat<R>(smallest), truncated));
}

template <class To, class V> LM_INLINE auto saturate(V v) {
#if defined(LM_AVX512)
    if constexpr (sizeof(To) <= 2 && std::is_same_v<element_t<V>, float> && sizeof(V) == 64 && !is_wide<V>) {
        return copy_bits<rebind<To, V>>(saturate_short<To>(v));
    } else
#endif
    return saturate_lanes<To>(v);
}

/// float64 -> float32 rounded to odd: the nearer neighbour towards zero with its last bit set if inexact. A second
/// rounding to at most 22 bits then gives what one rounding would have given (Boldo and Melquiond, "Emulation of FMA
/// and correctly rounded sums: proved algorithms using rounding to odd", 2008).
template <class V> LM_INLINE auto round_to_odd(V v) {
    using F = rebind<float, V>;
    using I = rebind<int32_t, V>;
    const F nearest = lane_cast<float>(v);
    const V back = lane_cast<double>(nearest);
    const I bits = bitcast<int32_t>(nearest);
    const I one = splat<I>(1);
    const auto exact = equal(back, v);
    const auto is_odd = equal(bit_and(bits, one), one);
    const I other = select(less(abs(v), abs(back)), sub(bits, one), add(bits, one));
    return bitcast<float>(select(bit_or(exact, is_odd), bits, other));
}

/// A float that a type of 16 bits or fewer rounds to the same value as v itself.
template <class V> LM_INLINE auto float_to_round(V v) {
    using T = element_t<V>;
    if constexpr (std::is_same_v<T, float>) {
        return v;
    } else if constexpr (std::is_same_v<T, double>) {
        return round_to_odd(v);
    } else if constexpr (sizeof(T) <= 2) {
        return lane_cast<float>(v);
    } else if constexpr (sizeof(T) == 4) {
        return round_to_odd(lane_cast<double>(v));
    } else {
        // Round to odd at bit 11 where float64 could not hold all bits: clear the lower ones, set bit 11 if any was.
        const auto rest = bit_and(v, splat<V>(0x7ff));
        const auto sticky = select(equal(rest, splat<V>(0)), splat<V>(0), splat<V>(0x800));
        const auto jammed = bit_or(sub(v, rest), sticky);
        const T limit = T{1} << 53;
        auto fits = less(v, splat<V>(limit));
        if constexpr (is_signed<V>) fits = bit_and(fits, less(splat<V>(-limit), v));
        return round_to_odd(lane_cast<double>(select(fits, v, jammed)));
    }
}

/// Floats saturate, integers wrap.
template <class To, class V> LM_INLINE auto to_narrow_integer(V v) {
    if constexpr (is_float<V>) {
        using Byte = compute_t<To>;
        using R = rebind<Byte, V>;
        constexpr Byte smallest = narrow_traits<To>::smallest, largest = narrow_traits<To>::largest;
        const R whole = saturate<Byte>(v);
        const R limited = select(less(splat<R>(largest), whole), splat<R>(largest), whole);
        return select(less(limited, splat<R>(smallest)), splat<R>(smallest), limited);
    } else {
        return decode<To>(lane_cast<uint8_t>(v));
    }
}

}  // namespace detail

template <class To, class V> LM_INLINE auto convert(V v) {
    using T = element_t<V>;
    if constexpr (is_stored<To> && is_bool<V>) {
        using R = rebind<compute_t<To>, V>;
        return select(v, splat<R>(1), splat<R>(decode<To>(encode<To>(compute_t<To>{0}))));
    } else if constexpr (is_narrow_integer<To>) {
        return detail::to_narrow_integer<To>(v);
    } else if constexpr (is_stored<To>) {
        return decode<To>(encode<To>(detail::float_to_round(v)));
    } else if constexpr (std::is_same_v<To, T>) {
        return v;
    } else if constexpr (std::is_same_v<To, bool>) {
        return bit_not(equal(v, splat<V>(0)));
    } else if constexpr (is_bool<V>) {
        return select(v, splat<rebind<To, V>>(1), splat<rebind<To, V>>(0));
    } else if constexpr (is_float<V> && std::is_integral_v<To>) {
        return detail::saturate<To>(v);
    } else {
        return lane_cast<To>(v);
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
