// exp2_scaled: exponentials to any base.
#pragma once

#include "luminal/device/math_common.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// 2^f for |f| <= 1/2.
LM_DEVICE float exp2_fraction(float f) {
    return polynomial(f, 1.0f, 0x1.62e430p-1f, 0x1.ebfb94p-3f, 0x1.c6af9ep-5f, 0x1.3b67fcp-7f, 0x1.5ef4f8p-10f,
                      0x1.17beaep-13f);
}
#if defined(LM_DOUBLE)
LM_DEVICE double exp2_fraction(double f) {
    return polynomial(f, 1.0, 0x1.62e42fefa39efp-1, 0x1.ebfbdff82c5a5p-3, 0x1.c6b08d7049fe6p-5, 0x1.3b2ab6fba007bp-7,
                      0x1.5d87fe78cdbe1p-10, 0x1.4309130efb524p-13, 0x1.ffcbfba86fae1p-17, 0x1.62bfc7405d7e2p-20,
                      0x1.b5267e2df8a85p-24, 0x1.e61bf9c1aaa95p-28, 0x1.e79b13ec89871p-32);
}
#endif

}  // namespace detail

/// 2^(x * constant), 2^-60 <= |constant| <= 2^60; within 2 ULP.
///
/// The constant is hi + lo: hi the T nearest to it, lo what is left. log2(e) gives exp(x), log2(10) gives 10^x.
template <class T> LM_DEVICE T exp2_scaled(T x, T hi, T lo) {
    static_assert(is_float<T>(), "a float type");
    using U = bits_t<T>;
    const detail::TwoPart<T> factor{hi, lo};
    // x * constant = n + f; 2^n is applied in two factors, of which only the last can round. Results beyond these
    // exponents are infinite or zero, and both factors are still normal numbers. NaN stays.
    const T limit = T(sizeof(T) == 4 ? 160 : 1200) / abs(hi);
    const T inside = limit < x ? limit : (x < -limit ? -limit : x);
    const T shift = detail::integer_shift<T>();
    const T shifted = fma(inside, hi, shift);
    const T fraction = detail::exp2_fraction(detail::times_minus(inside, factor, shifted - shift));
    const U bias_twice = U{2} * static_cast<U>(detail::exponent_bias<T>());
    const U biased = bitcast<U>(shifted) - (bitcast<U>(shift) - bias_twice);
    const U first = biased >> 1, second = biased - first;
    const int place = detail::fraction_bits<T>();
    return fraction * bitcast<T>(static_cast<U>(first << place)) * bitcast<T>(static_cast<U>(second << place));
}

}  // namespace LM_RUNTIME
}  // namespace lm
