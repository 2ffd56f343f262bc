// What the math functions share: polynomials, parts of floats, and constants held in two parts.
//
// The polynomials' coefficients are those of ../math_*.hpp, from tests/native/fit_polynomials.py (Remez exchange;
// errors quoted there).
#pragma once

#include "luminal/device/arithmetic.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

template <class T> LM_DEVICE constexpr int exponent_bias() { return sizeof(T) == 4 ? 127 : 1023; }

/// 1.5 * 2^fraction_bits: its last place is 1, so adding it rounds to an integer, which then stands in the low bits.
template <class T> LM_DEVICE constexpr T integer_shift() {
    return static_cast<T>(uint64_t{3} << (fraction_bits<T>() - 1));
}

/// c0 + x * (c1 + x * (c2 + ...)): Horner's scheme.
template <class T> LM_DEVICE T polynomial(T, T c) { return c; }
template <class T, class... C> LM_DEVICE T polynomial(T x, T c, C... higher) {
    return fma(x, polynomial(x, static_cast<T>(higher)...), c);
}

/// x with the lower half of its significant bits cleared, so that products of two such halves are exact.
template <class T> LM_DEVICE T upper_half(T x) {
    const bits_t<T> lower = (bits_t<T>{1} << (sizeof(T) == 4 ? 12 : 27)) - 1;
    return bitcast<T>(static_cast<bits_t<T>>(bitcast<bits_t<T>>(x) & ~lower));
}

/// The real constant hi + lo; hi is the nearest T.
template <class T> struct TwoPart { T hi, lo; };

/// x * constant - n without rounding the product's upper part, where n is near it: the sum cancels.
template <class T> LM_DEVICE T times_minus(T x, TwoPart<T> factor, T n) {
    const T difference = fma(x, factor.hi, -n);
    return factor.lo == 0 ? difference : fma(x, factor.lo, difference);
}

/// x * constant + rest, where rest is small beside the product.
template <class T> LM_DEVICE T times_plus(T x, TwoPart<T> factor, T rest) {
    return fma(x, factor.hi, factor.lo == 0 ? rest : fma(x, factor.lo, rest));
}

}  // namespace detail
}  // namespace LM_RUNTIME
}  // namespace lm
