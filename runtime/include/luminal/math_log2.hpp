// log2_scaled: logarithms to any base.
#pragma once

#include "luminal/math_common.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// log(1 + z) - z for 1 + z in [sqrt(1/2), sqrt(2)].
template <class V> LM_INLINE V log1p_minus_argument(V z) {
    if constexpr (std::is_same_v<element_t<V>, float>) {
        const V p = polynomial(z, -0x1.fffff8p-2f, 0x1.555550p-2f, -0x1.000426p-2f, 0x1.99a3f4p-3f, -0x1.54276cp-3f,
                               0x1.227192p-3f, -0x1.0f3762p-3f, 0x1.0848a4p-3f, -0x1.3830c2p-4f);
        return z * z * p;
    } else {
        // With s = z / (2 + z): log(1 + z) = 2 atanh(s) = 2s + s*R(s^2), and 2s = z - z*s = z - (z^2/2 - s*z^2/2).
        const V s = z / (splat<V>(2) + z);
        const V w = s * s;
        const V r = w * polynomial(w, 0x1.5555555555592p-1, 0x1.999999997ff1cp-2, 0x1.24924941e1285p-2,
                                   0x1.c71c521470974p-3, 0x1.74663ce8849d0p-3, 0x1.39a1e919b5603p-3,
                                   0x1.2f03b8e99d335p-3);
        const V half_square = splat<V>(0.5) * z * z;
        return fma(s, half_square + r, neg(half_square));
    }
}

/// scale / ln(2) in two parts.
template <class T> LM_INLINE TwoPart<T> scale_per_natural(double scale) {
    constexpr double log2e = 0x1.71547652b82fep+0;
    const double product = scale * log2e;
    const double error = __builtin_fma(scale, log2e, -product) + scale * tail_of_constant(log2e) +
                         tail_of_constant(scale) * log2e;
    // For ln(2) the quotient is 1 and what is left of the error is its own rounding.
    const double tail = __builtin_fabs(error) < 0x1p-100 * __builtin_fabs(product) ? 0 : error;
    const T rounded = static_cast<T>(product);
    const T hi = fused ? rounded : upper_half(rounded);
    return {hi, static_cast<T>((product - static_cast<double>(hi)) + tail)};
}

/// x = 2^k * (1 + z) with 1 + z in [sqrt(1/2), sqrt(2)); log2(x) * scale = k * scale + log(1 + z) * scale / ln(2);
/// scale > 0.
template <class V> LM_INLINE V log2_register(V x, double scale) {
    using T = element_t<V>;
    using Layout = float_layout<T>;
    using U = uint_t<sizeof(T)>;
    using Bits = rebind<U, V>;
    constexpr int mantissa_bits = Layout::mantissa_bits;
    constexpr T magnify = static_cast<T>(uint64_t{1} << mantissa_bits);

    const auto subnormal = less(x, splat<V>(Layout::smallest_normal));
    const V normal = select(subnormal, x * splat<V>(magnify), x);
    constexpr U one_bits = U{Layout::bias} << mantissa_bits;
    const Bits moved = bitcast<U>(normal) + splat<Bits>(one_bits - Layout::sqrt_half);
    // The exponent as a float: placed in the low bits of 2^mantissa_bits.
    constexpr U magnify_bits = U{Layout::bias + mantissa_bits} << mantissa_bits;
    const V exponent = bitcast<T>((moved >> splat<Bits>(mantissa_bits)) | splat<Bits>(magnify_bits));
    const V k = exponent - select(subnormal, splat<V>(magnify + Layout::bias + mantissa_bits),
                                  splat<V>(magnify + Layout::bias));
    constexpr U mantissa_mask = (U{1} << mantissa_bits) - 1;
    const V z = bitcast<T>((moved & splat<Bits>(mantissa_mask)) + splat<Bits>(Layout::sqrt_half)) - splat<V>(1);

    // k has at most 11 bits, so its product with half of scale's bits is exact.
    const TwoPart<T> per_natural = scale_per_natural<T>(scale);
    const T scale_hi = upper_half(static_cast<T>(scale));
    const T scale_lo = static_cast<T>((scale - static_cast<double>(scale_hi)) + tail_of_constant(scale));
    V rest = splat<V>(static_cast<T>(per_natural.hi + per_natural.lo)) * log1p_minus_argument(z);
    if (scale_lo != 0) rest = fma(k, splat<V>(scale_lo), rest);
    const V finite = fma(k, splat<V>(scale_hi), times_plus(z, per_natural, rest));

    const V zero = splat<V>(0), infinity = splat<V>(Layout::infinity);
    const V nan = splat<V>(static_cast<T>(__builtin_nan("")));
    const V not_finite = select(equal(x, zero), neg(infinity), select(equal(x, infinity), infinity, nan));
    return select(bit_and(less(zero, x), less(x, infinity)), finite, not_finite);
}

}  // namespace detail

/// log2(x) * scale for a compile-time scale, 2^-60 <= |scale| <= 2^60; within 2 ULP.
///
/// ln(2) gives the natural logarithm, log10(2) the decimal one: the double nearest to such a constant stands for the
/// real number. Zero gives minus infinity (times the scale's sign), negative numbers NaN.
template <class V> LM_INLINE V log2_scaled(V x, double scale) {
    static_assert(is_float<V>);
    return lift_registers([scale](auto v) LM_LAMBDA {
        // A negative scale negates last, which gives the zero at 1 its sign.
        return scale < 0 ? neg(detail::log2_register(v, -scale)) : detail::log2_register(v, scale);
    }, x);
}

}  // namespace LM_RUNTIME
}  // namespace lm
