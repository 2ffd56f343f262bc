// What the vector math functions share: the layout of floats, polynomials, and constants held in two parts.
//
// The polynomials' coefficients come from tests/native/fit_polynomials.py (Remez exchange; errors quoted there).
#pragma once

#include "luminal/arithmetic.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

template <class T> struct float_layout;
template <> struct float_layout<float> {
    static constexpr int mantissa_bits = 23, bias = 127;
    static constexpr uint32_t sqrt_half = 0x3f3504f3;     // bits of the float nearest to sqrt(1/2)
    static constexpr uint32_t upper_half = 0xfffff000;    // 12 of 24 significant bits
    static constexpr float smallest_normal = 0x1p-126f, infinity = __builtin_inff();
};
template <> struct float_layout<double> {
    static constexpr int mantissa_bits = 52, bias = 1023;
    static constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
    static constexpr uint64_t upper_half = 0xfffffffff8000000;  // 26 of 53 significant bits
    static constexpr double smallest_normal = 0x1p-1022, infinity = __builtin_inf();
};

/// 1.5 * 2^mantissa_bits: its last place is 1, so adding it rounds to an integer, which then stands in the low bits.
template <class T> inline constexpr T integer_shift =
    static_cast<T>(uint64_t{3} << (float_layout<T>::mantissa_bits - 1));

/// c0 + x * (c1 + x * (c2 + ...)): Horner's scheme. Schemes with shorter chains were not faster for exponentials alone:
/// the chains of neighbouring vectors overlap, and what counts is the number of instructions.
template <class V> LM_INLINE V polynomial(V, element_t<V> c) { return splat<V>(c); }
template <class V, class... C> LM_INLINE V polynomial(V x, element_t<V> c, C... higher) {
    return fma(x, polynomial(x, static_cast<element_t<V>>(higher)...), splat<V>(c));
}

/// x with the lower half of its significant bits cleared, so that products of two such halves are exact.
template <class V> LM_INLINE V upper_half(V x) {
    using T = element_t<V>;
    using Bits = rebind<uint_t<sizeof(T)>, V>;
    return bitcast<T>(bit_and(bitcast<uint_t<sizeof(T)>>(x), splat<Bits>(float_layout<T>::upper_half)));
}

/// constant - (double)constant for the constants of exponentials and logarithms to other bases, their negatives and
/// their multiples by powers of two; 0 for any other value.
LM_INLINE double tail_of_constant(double constant) {
    constexpr double known[][2] = {
        {0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56},   // log2(e)
        {0x1.a934f0979a371p+1, 0x1.7f2495fb7fa6dp-53},   // log2(10)
        {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56},   // ln(2)
        {0x1.34413509f79ffp-2, -0x1.9dc1da994fd21p-59},  // log10(2)
    };
    for (const auto& [value, tail] : known) {
        const double ratio = constant / value;
        const bool power_of_two = (copy_bits<uint64_t>(ratio) << 12) == 0;
        if (power_of_two && ratio * value == constant) return ratio * tail;
    }
    return 0;
}

/// A real constant as hi + lo. hi has so few bits that times(x) below loses nothing.
template <class T> struct TwoPart { T hi, lo; };

/// The constant in two parts of T; hi is half as wide where products cannot be fused.
template <class T> LM_INLINE TwoPart<T> two_parts(double constant) {
    const T rounded = static_cast<T>(constant);
    const T hi = fused ? rounded : upper_half(rounded);
    return {hi, static_cast<T>((constant - static_cast<double>(hi)) + tail_of_constant(constant))};
}

/// x * constant - n without rounding the product's upper part, where n is near it: the sum cancels.
template <class V> LM_INLINE V times_minus(V x, TwoPart<element_t<V>> constant, V n) {
    const V hi = splat<V>(constant.hi), lo = splat<V>(constant.lo);
    if constexpr (fused) {
        const V difference = constant.hi == 1 ? x - n : fma(x, hi, neg(n));
        return constant.lo == 0 ? difference : fma(x, lo, difference);
    } else {
        const V upper = upper_half(x), lower = x - upper;
        return ((upper * hi - n) + lower * hi) + x * lo;
    }
}

/// x * constant + rest, where rest is small beside the product.
template <class V> LM_INLINE V times_plus(V x, TwoPart<element_t<V>> constant, V rest) {
    const V hi = splat<V>(constant.hi), lo = splat<V>(constant.lo);
    if constexpr (fused) {
        return fma(x, hi, constant.lo == 0 ? rest : fma(x, lo, rest));
    } else {
        const V upper = upper_half(x), lower = x - upper;
        return upper * hi + (lower * hi + (x * lo + rest));
    }
}

}  // namespace detail
}  // namespace LM_RUNTIME
}  // namespace lm
