// exp2_scaled: exponentials to any base.
#pragma once

#include "luminal/math_common.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// Whether the short form has as many significant bits as that.
template <class T> constexpr bool short_form(int digits) { return sizeof(T) == 4 && digits <= 16; }

/// 2^f for |f| <= 1/2 (and something finite and positive for |f| <= 1).
template <int Digits, class V> LM_INLINE V exp2_fraction(V f) {
    if constexpr (short_form<element_t<V>>(Digits)) {
        return polynomial(f, 1, 0x1.62e12ap-1f, 0x1.ec0380p-3f, 0x1.c9fdeep-5f, 0x1.3a022cp-7f);
    } else if constexpr (std::is_same_v<element_t<V>, float>) {
        return polynomial(f, 1, 0x1.62e430p-1f, 0x1.ebfb94p-3f, 0x1.c6af9ep-5f, 0x1.3b67fcp-7f, 0x1.5ef4f8p-10f,
                          0x1.17beaep-13f);
    } else {
        return polynomial(f, 1, 0x1.62e42fefa39efp-1, 0x1.ebfbdff82c5a5p-3, 0x1.c6b08d7049fe6p-5,
                          0x1.3b2ab6fba007bp-7, 0x1.5d87fe78cdbe1p-10, 0x1.4309130efb524p-13, 0x1.ffcbfba86fae1p-17,
                          0x1.62bfc7405d7e2p-20, 0x1.b5267e2df8a85p-24, 0x1.e61bf9c1aaa95p-28, 0x1.e79b13ec89871p-32);
    }
}

#if defined(LM_AVX512)

/// The operand of smaller magnitude, y where x is NaN; y is a number.
template <class V> LM_INLINE V smaller_magnitude(V x, V y) {
    constexpr int code = 0b0010;  // the sign of x, the smaller magnitude
    if constexpr (std::is_same_v<element_t<V>, float>) {
        if constexpr (sizeof(V) == 64) return _mm512_range_ps(x, y, code);
        if constexpr (sizeof(V) == 32) return _mm256_range_ps(x, y, code);
        if constexpr (sizeof(V) == 16) return _mm_range_ps(x, y, code);
    } else {
        if constexpr (sizeof(V) == 64) return _mm512_range_pd(x, y, code);
        if constexpr (sizeof(V) == 32) return _mm256_range_pd(x, y, code);
        if constexpr (sizeof(V) == 16) return _mm_range_pd(x, y, code);
    }
}

/// x * 2^n, of n that is no integer the next lower one; rounded once: overflow, gradual underflow, infinite and NaN n
/// included.
template <class V> LM_INLINE V scale_by_power(V x, V n) {
    if constexpr (std::is_same_v<element_t<V>, float>) {
        if constexpr (sizeof(V) == 64) return _mm512_maskz_scalef_ps(0xffff, x, n);
        if constexpr (sizeof(V) == 32) return _mm256_maskz_scalef_ps(0xff, x, n);
        if constexpr (sizeof(V) == 16) return _mm_maskz_scalef_ps(0xff, x, n);
    } else {
        if constexpr (sizeof(V) == 64) return _mm512_maskz_scalef_pd(0xff, x, n);
        if constexpr (sizeof(V) == 32) return _mm256_maskz_scalef_pd(0xff, x, n);
        if constexpr (sizeof(V) == 16) return _mm_maskz_scalef_pd(0xff, x, n);
    }
}

/// What x is above the next lower integer: 0 of infinities, and NaN of NaN.
template <class V> LM_INLINE V above_integer(V x) {
    constexpr int down = 1;
    if constexpr (sizeof(V) == 64) return _mm512_reduce_ps(x, down);
    if constexpr (sizeof(V) == 32) return _mm256_reduce_ps(x, down);
    if constexpr (sizeof(V) == 16) return _mm_reduce_ps(x, down);
}

/// The short form. A product that is rounded once is near enough: where the result is a normal number it is below 128,
/// and rounding it and the constant adds 2.1 * 2^-18 at most to the polynomial's error of 2^-18.4.
template <class V> LM_INLINE V exp2_short(V x, element_t<V> constant) {
    const V scaled = constant == 1 ? x : x * splat<V>(constant);
    const V f = above_integer(scaled);
    const V fraction = polynomial(f, 1, 0x1.62d6c6p-1f, 0x1.ee2452p-3f, 0x1.abf86ap-5f, 0x1.b7f728p-7f);  // 0 <= f <= 1
    return scale_by_power(fraction, scaled);
}

/// x * constant = n + f. Where x is so large that f means nothing, n alone makes the result 0 or infinite, and f only
/// has to be finite; NaN travels through n.
template <int Digits, class V> LM_INLINE V exp2_register(V x, TwoPart<element_t<V>> constant) {
    if constexpr (short_form<element_t<V>>(Digits)) {
        return exp2_short(x, constant.hi);
    } else {
        const V shift = splat<V>(integer_shift<element_t<V>>);
        // A sum where that does: some cores have units for sums alone.
        const V n = (constant.hi == 1 ? x + shift : fma(x, splat<V>(constant.hi), shift)) - shift;
        const V f = smaller_magnitude(times_minus(x, constant, n), splat<V>(1));
        return scale_by_power(exp2_fraction<Digits>(f), n);
    }
}

#else

/// x limited to [-limit, limit]; NaN stays (x86's min and max return their second operand then, Arm's the NaN).
template <class V> LM_INLINE V limit_magnitude(V x, V limit) {
#if defined(LM_AVX2)
    if constexpr (sizeof(V) == 32) {
        if constexpr (std::is_same_v<element_t<V>, float>) return _mm256_max_ps(neg(limit), _mm256_min_ps(limit, x));
        if constexpr (std::is_same_v<element_t<V>, double>) return _mm256_max_pd(neg(limit), _mm256_min_pd(limit, x));
    }
#endif
#if defined(__x86_64__)
    if constexpr (sizeof(V) == 16) {
        if constexpr (std::is_same_v<element_t<V>, float>) return _mm_max_ps(neg(limit), _mm_min_ps(limit, x));
        if constexpr (std::is_same_v<element_t<V>, double>) return _mm_max_pd(neg(limit), _mm_min_pd(limit, x));
    }
#elif defined(LM_NEON)
    const auto low = in_neon(neg(limit)), high = in_neon(limit), value = in_neon(x);
    if constexpr (std::is_same_v<element_t<V>, float>) return copy_bits<V>(vmaxq_f32(low, vminq_f32(high, value)));
    if constexpr (std::is_same_v<element_t<V>, double>) return copy_bits<V>(vmaxq_f64(low, vminq_f64(high, value)));
#else
    const V above = select(less(limit, x), limit, x);
    return select(less(above, neg(limit)), neg(limit), above);
#endif
}

/// x * constant = n + f; 2^n is applied in two factors, of which only the last can round.
template <int Digits, class V> LM_INLINE V exp2_register(V x, TwoPart<element_t<V>> constant) {
    using T = element_t<V>;
    using Layout = float_layout<T>;
    using U = uint_t<sizeof(T)>;
    using Bits = rebind<U, V>;
    // Results beyond these exponents are infinite or zero, and both factors are still normal numbers.
    const T limit = T(sizeof(T) == 4 ? 160 : 1200) / __builtin_fabs(constant.hi);
    const V inside = limit_magnitude(x, splat<V>(limit));
    const V shift = splat<V>(integer_shift<T>);
    const V shifted = fma(inside, splat<V>(constant.hi + constant.lo), shift);
    const V fraction = exp2_fraction<Digits>(times_minus(inside, constant, shifted - shift));
    const U shift_bits = copy_bits<U>(integer_shift<T>);
    const Bits biased_twice = bitcast<U>(shifted) - splat<Bits>(shift_bits - U{2 * Layout::bias});
    const Bits first = biased_twice >> splat<Bits>(1), second = biased_twice - first;
    const auto power = [](Bits biased) LM_LAMBDA { return bitcast<T>(biased << splat<Bits>(Layout::mantissa_bits)); };
    return fraction * power(first) * power(second);
}

#endif

}  // namespace detail

/// 2^(x * constant) for a compile-time constant, 2^-60 <= |constant| <= 2^60; within 2 ULP. Where `Digits` significant
/// bits suffice, and those are few, a float's are within 2^-16 of themselves, or of the smallest normal number.
///
/// log2(e) gives exp(x), log2(10) gives 10^x: the double nearest to such a constant stands for the real number.
template <int Digits = 64, class V> LM_INLINE V exp2_scaled(V x, double constant) {
    using T = element_t<V>;
    static_assert(is_float<V>);
    auto parts = detail::two_parts<T>(constant);
    if (fused && detail::short_form<T>(Digits)) parts.lo = 0;
    return lift_registers([parts](auto v) LM_LAMBDA { return detail::exp2_register<Digits>(v, parts); }, x);
}

}  // namespace LM_RUNTIME
}  // namespace lm
