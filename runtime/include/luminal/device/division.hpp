// Division and remainder: integers without traps, floats exactly.
#pragma once

#include "luminal/device/arithmetic.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

namespace detail {

/// A float's exponent (that of subnormals is 1) and its significant bits as an integer.
struct Parts {
    int exponent;
    uint64_t mantissa;
};

/// The parts of a finite magnitude.
template <class T> LM_DEVICE Parts parts(T magnitude) {
    const uint64_t bits = bitcast<bits_t<T>>(magnitude), one = uint64_t{1} << fraction_bits<T>();
    const int exponent = static_cast<int>(bits >> fraction_bits<T>());
    const uint64_t mantissa = bits & (one - 1);
    return exponent == 0 ? Parts{1, mantissa} : Parts{exponent, mantissa | one};
}

/// The remainder of truncated division, exact: a long division of the mantissas.
template <class T> LM_DEVICE T truncated_remainder(T a, T b) {
    const T x = abs(a), y = abs(b);
    if (!(x < infinity<T>()) || y == 0 || y != y) return nan<T>();
    if (x < y) return a;
    const Parts dividend = parts(x), divisor = parts(y);
    // The remainder is below the divisor, so that as many bits of 64 are free.
    const int free = 63 - fraction_bits<T>();
    uint64_t rest = dividend.mantissa % divisor.mantissa;
    for (int left = dividend.exponent - divisor.exponent; left > 0 && rest != 0; left -= free) {
        rest = (rest << (left < free ? left : free)) % divisor.mantissa;
    }
    if (rest == 0) return copy_sign(T{0}, a);
    // Back to a mantissa of full length, as far as the exponent allows.
    const int missing = leading_zeros(rest) - free;
    const int shift = missing < divisor.exponent ? missing : divisor.exponent - 1;
    const uint64_t mantissa = rest << shift;
    const uint64_t exponent = static_cast<uint64_t>(divisor.exponent - shift - 1) << fraction_bits<T>();
    return copy_sign(bitcast<T>(static_cast<bits_t<T>>(exponent + mantissa)), a);
}

}  // namespace detail

/// Floats: IEEE. Integers: the truncated quotient; x / 0 = 0, and the smallest integer by -1 is itself.
template <class T> LM_DEVICE T div(T a, T b) {
    if constexpr (is_float<T>()) {
        return a / b;
    } else if constexpr (is_signed_integer<T>()) {
        if (b == T{-1}) return neg(a);
        return b == 0 ? T{0} : static_cast<T>(a / b);
    } else {
        return b == 0 ? T{0} : static_cast<T>(a / b);
    }
}

/// The remainder of floored division, which has the divisor's sign.
///
/// Integers: x mod 0 = 0. Floats, as numpy and Python: the exact remainder of the truncated division, plus the divisor
/// if the signs differ; a zero result has the divisor's sign; NaN for an infinite x or a zero divisor; by an infinite
/// divisor x itself or, where the signs differ, the divisor.
template <class T> LM_DEVICE T mod(T a, T b) {
    if constexpr (is_float<T>()) {
        const T r = detail::truncated_remainder(a, b);
        if (r == 0) return copy_sign(T{0}, b);
        return (b < 0) != (r < 0) ? r + b : r;
    } else {
        if (b == 0) return T{0};
        const T r = sub(a, mul(div(a, b), b));
        if constexpr (is_signed_integer<T>()) {
            return r != 0 && (r < 0) != (b < 0) ? add(r, b) : r;
        } else {
            return r;
        }
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
