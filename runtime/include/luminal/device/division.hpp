// Division and remainder: integers without traps, floats exactly.
#pragma once

#include "luminal/device/arithmetic.hpp"

namespace lm {
inline namespace LM_RUNTIME {

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

#if defined(LM_DOUBLE)

/// 1 / b within an ulp, where that is a normal number; emulated, the neighbour on the far side.
LM_DEVICE float rough_recip(float b) {
#if defined(LM_CUDA)
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    return r;
#else
    const float r = 1 / b, error = fma(-b, r, 1.0f);
    return error == 0 ? r : bitcast<float>(bitcast<uint32_t>(r) + (error > 0 ? 1 : -1));
#endif
}

/// 2^-60 <= |x| < 2^60.
LM_DEVICE bool is_moderate(float x) {
    return (bitcast<uint32_t>(x) << 1) - (uint32_t{127 - 60} << 24) < uint32_t{120} << 24;
}

/// Whether the fraction of x is all ones: the one at which Newton's step may stay an ulp beside the reciprocal.
LM_DEVICE bool is_all_ones(float x) { return ((bitcast<uint32_t>(x) + 1) & 0x7fffff) == 0; }

/// x / y for any operands. Doubles hold every quotient of two floats to many more digits than lie between it and
/// the next number at which the rounding to a float changes.
LM_DEVICE float divide_any(float x, float y) {
    if (y == 0) return x * copy_sign(infinity<float>(), y);
    if (abs(y) == infinity<float>()) return x * copy_sign(0.0f, y);
    if (x == 0 || !(abs(x) < infinity<float>()) || y != y) return x * y;
    const double a = x, b = y;
    const uint64_t bits = bitcast<uint64_t>(b), exponent = bits >> 52 & 0x7ff;
    const double mantissa = bitcast<double>((bits & 0x800fffffffffffff) | uint64_t{1023} << 52);
    double r = rough_recip(static_cast<float>(mantissa)) * bitcast<double>((2046 - exponent) << 52);
    r = fma(r, fma(-b, r, 1.0), r);
    r = fma(r, fma(-b, r, 1.0), r);
    const double q = a * r;
    return static_cast<float>(fma(fma(-b, q, a), r, q));
}

/// x / y, rounded once: Newton's step makes the reciprocal the nearest to 1 / y, and with that the last of two towards
/// the quotient rounds as the quotient does (Markstein, IBM Journal of Research and Development 34, 1990). The compiler's
/// own division calls a function for extreme operands, for which kernels keep registers free, or spill them.
LM_DEVICE float divide(float x, float y) {
    if (!(is_moderate(x) && is_moderate(y)) || is_all_ones(y)) return divide_any(x, y);
    float r = rough_recip(y);
    r = fma(r, fma(-y, r, 1.0f), r);
    float q = x * r;
    q = fma(fma(-y, q, x), r, q);
    return fma(fma(-y, q, x), r, q);
}

LM_DEVICE double divide(double x, double y) { return x / y; }

#else

LM_DEVICE float divide(float x, float y) { return x / y; }

#endif

}  // namespace detail

/// Floats: IEEE. Integers: the truncated quotient; x / 0 = 0, and the smallest integer by -1 is itself.
template <class T> LM_DEVICE T div(T a, T b) {
    if constexpr (is_float<T>()) {
        return detail::divide(a, b);
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

}  // namespace LM_RUNTIME
}  // namespace lm
