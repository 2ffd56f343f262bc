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

#if defined(LM_CUDA) || defined(LM_EMULATE_CUDA)

#if defined(LM_CUDA)
/// 2^x by the device's own instruction, which knows no subnormal numbers.
LM_DEVICE float near_exp2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/// a * b + c, at least 0 and at most 1; 0 for NaN.
LM_DEVICE float fma_in_unit(float a, float b, float c) { return __saturatef(__fmaf_rn(a, b, c)); }
/// a * b + c, rounded down, where c and the result lie where the last place is 1.
LM_DEVICE float fma_down(float a, float b, float c) { return __fmaf_rd(a, b, c); }
#else
/// Emulated, it is one of the two floats around the real result, as a bit of them has it: the nearest or the other.
LM_DEVICE float near_exp2(float x) {
    const double real = __builtin_exp2(static_cast<double>(x));
    const float nearest = static_cast<float>(real);
    if (!(0x1p-126f < nearest && nearest < infinity<float>())) return nearest < 0x1p-126f ? 0.0f : nearest;
    const double beyond = real - static_cast<double>(nearest);
    const uint32_t bits = bitcast<uint32_t>(nearest);
    if (beyond == 0 || (bits >> 3 & 1) != 0) return nearest;
    return bitcast<float>(0 < beyond ? bits + 1 : bits - 1);
}
LM_DEVICE float fma_in_unit(float a, float b, float c) {
    const float sum = fma(a, b, c);
    return 0.0f < sum ? (sum < 1.0f ? sum : 1.0f) : 0.0f;
}
LM_DEVICE float fma_down(float a, float b, float c) {
    return static_cast<float>(__builtin_floor(static_cast<double>(a) * static_cast<double>(b))) + c;
}
#endif

/// The same constant in two parts of one sign, of which the product with an infinity is the infinity.
LM_DEVICE TwoPart<float> of_one_sign(TwoPart<float> factor) {
    if (factor.lo == 0 || (factor.lo < 0) == (factor.hi < 0)) return factor;
    const float hi = bitcast<float>(bitcast<uint32_t>(factor.hi) - 1);  // the next float towards 0
    return {hi, factor.lo + (factor.hi - hi)};
}

/// 2^(x * factor), by the steps of CUDA's expf and exp10f, which differ in the factor. The CUDA Programming Guide,
/// "Mathematical Functions", has at most 1 and 2 ULP for these, from extensive tests. So has the emulation.
LM_DEVICE float near_exp2_scaled(float x, TwoPart<float> factor) {
    // x * factor = n + f, -126 <= n <= 127, where the ends leave f outside [0, 1]: results may be subnormal or infinite.
    // NaN stays in f.
    const float least = 126.0f, range = 253.0f, shift = integer_shift<float>() + 1.0f;
    const float shifted = fma_down(fma_in_unit(x, factor.hi / range, least / range), range, shift);
    const float fraction = times_minus(x, factor, shifted - (shift + least));
    return near_exp2(fraction) * bitcast<float>(bitcast<uint32_t>(shifted) << 23);  // the low bits are n and the bias
}

#define LM_NEAR_EXP2 1
#endif

}  // namespace detail

/// 2^(x * constant), 2^-60 <= |constant| <= 2^60; within 2 ULP.
///
/// The constant is hi + lo: hi the T nearest to it, lo what is left. log2(e) gives exp(x), log2(10) gives 10^x.
template <class T> LM_DEVICE T exp2_scaled(T x, T hi, T lo) {
    static_assert(is_float<T>(), "a float type");
    using U = bits_t<T>;
    const detail::TwoPart<T> factor{hi, lo};
#if defined(LM_NEAR_EXP2)
    if constexpr (sizeof(T) == 4) return detail::near_exp2_scaled(x, detail::of_one_sign(factor));
#endif
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

/// The same where so many significant digits suffice. Where those are few, a float's are within 2^-16 of themselves, or
/// of the smallest normal number: by one rounding of x * hi, and the device's own instruction.
template <int Digits, class T> LM_DEVICE T exp2_scaled(T x, T hi, T lo) {
#if defined(LM_NEAR_EXP2)
    if constexpr (sizeof(T) == 4 && Digits <= 16) return detail::near_exp2(x * hi);
#endif
    return exp2_scaled(x, hi, lo);
}

}  // namespace LM_RUNTIME
}  // namespace lm
