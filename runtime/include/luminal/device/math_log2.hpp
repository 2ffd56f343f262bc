// log2_scaled: logarithms to any base.
#pragma once

#include "luminal/device/math_common.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// log(1 + z) - z for 1 + z in [sqrt(1/2), sqrt(2)].
LM_DEVICE float log1p_minus_argument(float z) {
    const float p = polynomial(z, -0x1.fffff8p-2f, 0x1.555550p-2f, -0x1.000426p-2f, 0x1.99a3f4p-3f, -0x1.54276cp-3f,
                               0x1.227192p-3f, -0x1.0f3762p-3f, 0x1.0848a4p-3f, -0x1.3830c2p-4f);
    return z * z * p;
}
#if defined(LM_DOUBLE)
LM_DEVICE double log1p_minus_argument(double z) {
    // With s = z / (2 + z): log(1 + z) = 2 atanh(s) = 2s + s*R(s^2), and 2s = z - z*s = z - (z^2/2 - s*z^2/2).
    const double s = z / (2.0 + z), w = s * s;
    const double r = w * polynomial(w, 0x1.5555555555592p-1, 0x1.999999997ff1cp-2, 0x1.24924941e1285p-2,
                                    0x1.c71c521470974p-3, 0x1.74663ce8849d0p-3, 0x1.39a1e919b5603p-3,
                                    0x1.2f03b8e99d335p-3);
    const double half_square = 0.5 * z * z;
    return fma(s, half_square + r, -half_square);
}
#endif

/// log2(e)
template <class T> LM_DEVICE TwoPart<T> log2_e() {
    if constexpr (sizeof(T) == 4) {
        return {0x1.715476p+0f, 0x1.4ae0c0p-26f};
    } else {
        return {static_cast<T>(0x1.71547652b82fep+0), static_cast<T>(0x1.777d0ffda0d24p-56)};
    }
}

/// The nearest floats to sqrt(1/2), and to 2^-126 or 2^-1022, the smallest normal number.
template <class T> LM_DEVICE constexpr bits_t<T> sqrt_half_bits() {
    return static_cast<bits_t<T>>(sizeof(T) == 4 ? uint64_t{0x3f3504f3} : uint64_t{0x3fe6a09e667f3bcd});
}
template <class T> LM_DEVICE T smallest_normal() { return bitcast<T>(bits_t<T>{1} << fraction_bits<T>()); }

/// log2(x) * scale, scale > 0: x = 2^k * (1 + z) with 1 + z in [sqrt(1/2), sqrt(2)), and
/// log2(x) * scale = k * scale + log(1 + z) * scale / ln(2).
template <class T> LM_DEVICE T log2_positive(T x, TwoPart<T> scale) {
    using U = bits_t<T>;
    const int place = fraction_bits<T>();
    const T magnify = static_cast<T>(uint64_t{1} << place), bias = T(exponent_bias<T>());
    const bool subnormal = x < smallest_normal<T>();
    const T normal = subnormal ? x * magnify : x;
    const U one = bitcast<U>(T{1});
    const U moved = bitcast<U>(normal) + (one - sqrt_half_bits<T>());
    // The exponent as a float: placed in the low bits of 2^place.
    const T exponent = bitcast<T>(static_cast<U>((moved >> place) | bitcast<U>(magnify)));
    const T k = exponent - (subnormal ? magnify + bias + T(place) : magnify + bias);
    const U mantissa_mask = (U{1} << place) - 1;
    const T z = bitcast<T>(static_cast<U>((moved & mantissa_mask) + sqrt_half_bits<T>())) - T{1};

    // scale / ln(2), in two parts too.
    const TwoPart<T> e = log2_e<T>();
    const T product = scale.hi * e.hi;
    const T error = fma(scale.hi, e.hi, -product) + fma(scale.hi, e.lo, scale.lo * e.hi);
    const TwoPart<T> per_natural{product, error};
    // k has at most 11 bits, so its product with half of scale's bits is exact.
    const T scale_hi = upper_half(scale.hi), scale_lo = (scale.hi - scale_hi) + scale.lo;
    T rest = (product + error) * log1p_minus_argument(z);
    if (scale_lo != 0) rest = fma(k, scale_lo, rest);
    const T finite = fma(k, scale_hi, times_plus(z, per_natural, rest));

    const T not_finite = x == 0 ? -infinity<T>() : (x == infinity<T>() ? infinity<T>() : nan<T>());
    return T{0} < x && x < infinity<T>() ? finite : not_finite;
}

}  // namespace detail

/// log2(x) * scale, 2^-60 <= |scale| <= 2^60; within 2 ULP.
///
/// The scale is hi + lo: hi the T nearest to it, lo what is left. ln(2) gives the natural logarithm, log10(2) the
/// decimal one. Zero gives minus infinity (times the scale's sign), negative numbers NaN.
template <class T> LM_DEVICE T log2_scaled(T x, T hi, T lo) {
    static_assert(is_float<T>(), "a float type");
    // A negative scale negates last, which gives the zero at 1 its sign.
    return hi < 0 ? -detail::log2_positive(x, detail::TwoPart<T>{-hi, -lo})
                  : detail::log2_positive(x, detail::TwoPart<T>{hi, lo});
}

}  // namespace LM_RUNTIME
}  // namespace lm
