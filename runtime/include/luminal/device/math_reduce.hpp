// The reduction of angles: x = quadrant * pi/2 + (r + tail), |r| <= pi/4 and a little. Floats have no tail.
#pragma once

#include "luminal/device/math_common.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// Only quadrant modulo 4 counts.
template <class T> struct Reduced {
    T r, tail;
    uint32_t quadrant;
};

// ---- Large arguments ----------------------------------------------------------------------------------------------

/// An integer of 128 bits.
struct Wide { uint64_t high, low; };

/// a * b + c
LM_DEVICE Wide multiply_add_wide(uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t mask = 0xffffffff, a_high = a >> 32, a_low = a & mask, b_high = b >> 32, b_low = b & mask;
    const uint64_t first = a_low * b_low;
    const uint64_t second = a_high * b_low + (first >> 32);
    const uint64_t third = a_low * b_high + (second & mask);
    const uint64_t low = third << 32 | (first & mask), sum = low + c;
    return {a_high * b_high + (second >> 32) + (third >> 32) + (sum < low ? 1 : 0), sum};
}

LM_DEVICE Wide negative(Wide v) { return {~v.high + (v.low == 0 ? 1 : 0), ~v.low + 1}; }

/// v * 2^count modulo 2^128, 0 <= count < 128
LM_DEVICE Wide shifted_left(Wide v, int count) {
    if (count >= 64) return {v.low << (count - 64), 0};
    return count == 0 ? v : Wide{v.high << count | v.low >> (64 - count), v.low << count};
}

/// Bits 64 * index and on of 2/pi, counted from 64 bits before the point.
LM_DEVICE uint64_t two_over_pi(int index) {
    switch (index) {
        case 1: return 0xa2f9836e4e441529;
        case 2: return 0xfc2757d1f534ddc0;
        case 3: return 0xdb6295993c439041;
        case 4: return 0xfe5163abdebbc561;
        case 5: return 0xb7246e3a424dd2e0;
        case 6: return 0x06492eea09d1921c;
        case 7: return 0xfe1deb1cb129a73e;
        case 8: return 0xe88235f52ebb4484;
        case 9: return 0xe99c7026b45f7e41;
        case 10: return 0x3991d639835339f4;
        case 11: return 0x9c845f8bbdf9283b;
        case 12: return 0x1ff897ffde05980f;
        case 13: return 0xef2f118b5a0a6d1f;
        case 14: return 0x6d367ecf27cb09b7;
        case 15: return 0x4f463f669e5fea2d;
        case 16: return 0x7527bac7ebe5f17b;
        case 17: return 0x3d0739f78a5292ea;
        case 18: return 0x6bfb5fb11f8d5d08;
        case 19: return 0x56033046fc7b6bab;
        default: return 0;
    }
}

/// 64 bits of 2/pi from bit `first` on.
LM_DEVICE uint64_t two_over_pi_from(int first) {
    const int index = first / 64, shift = first % 64;
    const uint64_t word = two_over_pi(index);
    return shift == 0 ? word : word << shift | two_over_pi(index + 1) >> (64 - shift);
}

/// pi/2
template <class T> LM_DEVICE TwoPart<T> half_pi() {
    if constexpr (sizeof(T) == 4) {
        return {0x1.921fb6p+0f, -0x1.777a5cp-25f};
    } else {
        return {static_cast<T>(0x1.921fb54442d18p+0), static_cast<T>(0x1.1a62633145c07p-54)};
    }
}

/// value * 2^exponent
template <class T> LM_DEVICE T scaled(uint64_t value, int exponent) {
    const bits_t<T> biased = static_cast<bits_t<T>>(exponent_bias<T>() + exponent);
    return static_cast<T>(value) * bitcast<T>(static_cast<bits_t<T>>(biased << fraction_bits<T>()));
}

/// The reduction for any |x| >= 1 (Payne and Hanek, "Radian reduction for trigonometric functions", 1983): of 2/pi only
/// those 192 bits are multiplied that neither give whole turns nor vanish.
template <class T> LM_DEVICE Reduced<T> reduce_large(T x) {
    if (!(abs(x) < infinity<T>())) return {nan<T>(), T{0}, 0};
    const int fraction = fraction_bits<T>(), digits = fraction + 1;
    const uint64_t bits = bitcast<bits_t<T>>(abs(x)), one = uint64_t{1} << fraction;
    const uint64_t mantissa = (bits & (one - 1)) | one;
    // |x| = mantissa * 2^exponent. Bit j after the point of 2/pi counts mantissa * 2^(exponent - j): a multiple of 4,
    // whole turns, for j < exponent - 1.
    const int exponent = static_cast<int>(bits >> fraction) - exponent_bias<T>() - fraction;
    const int first = exponent - 2 + 64;
    // |x| * 2/pi modulo 4, in units of 2^-190.
    const Wide low = multiply_add_wide(mantissa, two_over_pi_from(first + 128), 0);
    const Wide middle = multiply_add_wide(mantissa, two_over_pi_from(first + 64), low.high);
    const uint64_t top = mantissa * two_over_pi_from(first) + middle.high;
    uint32_t quadrant = static_cast<uint32_t>(top >> 62);
    Wide rest{top << 2 | middle.low >> 62, middle.low << 2 | low.low >> 62};
    // To the nearest quadrant: the rest in [-1/2, 1/2).
    const bool below = rest.high >> 63 != 0;
    if (below) {
        quadrant += 1;
        rest = negative(rest);
    }
    if (rest.high == 0 && rest.low == 0) return {T{0}, T{0}, quadrant};
    // The rest's first digits, and as many more.
    const int zeros = rest.high != 0 ? leading_zeros(rest.high) : 64 + leading_zeros(rest.low);
    const Wide normal = shifted_left(rest, zeros), next = shifted_left(normal, digits);
    const T hi = scaled<T>(normal.high >> (64 - digits), -digits - zeros);
    const T lo = scaled<T>(next.high >> (64 - digits), -2 * digits - zeros);
    const TwoPart<T> turn = half_pi<T>();
    const T r = hi * turn.hi;
    const T tail = fma(hi, turn.hi, -r) + fma(hi, turn.lo, lo * turn.hi);
    const bool negated = (x < 0) != below;
    return {negated ? -r : r, negated ? -tail : tail, x < 0 ? 0 - quadrant : quadrant};
}

// ---- All arguments ------------------------------------------------------------------------------------------------

/// The error of difference = a - b (Knuth).
template <class T> LM_DEVICE T difference_error(T a, T b, T difference) {
    const T b_used = a - difference, a_used = difference + b_used;
    return (a - a_used) + (b_used - b);
}

/// pi/2 in three parts: n multiples of the first leave x without rounding, being multiples of its last place.
LM_DEVICE Reduced<float> reduce(float x) {
    // Beyond, the quotient's rounding would move r too far.
    if (!(abs(x) <= 0x1p16f)) {
        const Reduced<float> large = reduce_large(x);
        return {large.r + large.tail, 0.0f, large.quadrant};
    }
    const float shifted = fma(x, 0x1.45f306p-1f, integer_shift<float>());
    const float n = shifted - integer_shift<float>();
    const float part1 = fma(n, -0x1.921fb6p+0f, x);
    const float second = n * -0x1.777a5cp-25f, second_error = fma(n, -0x1.777a5cp-25f, -second);
    const float part2 = part1 - second, error2 = difference_error(part1, second, part2);
    const float r = part2 + (fma(n, 0x1.ee59dap-50f, error2) - second_error);
    return {r, 0.0f, bitcast<uint32_t>(shifted)};
}

#if defined(LM_DOUBLE)
/// pi/2 in four parts; multiples of the first three are exact, and each subtraction's error joins the tail.
LM_DEVICE Reduced<double> reduce(double x) {
    if (!(abs(x) <= 0x1p19)) return reduce_large(x);
    const double shifted = fma(x, 0x1.45f306dc9c883p-1, integer_shift<double>());
    const double n = shifted - integer_shift<double>();
    const double part1 = x - n * 0x1.921fb54400000p+0;
    const double second = n * 0x1.0b4611a600000p-34, third = n * 0x1.3198a2e000000p-69;
    const double part2 = part1 - second, error2 = difference_error(part1, second, part2);
    const double part3 = part2 - third, error3 = difference_error(part2, third, part3);
    const double rest = (error2 + error3) - n * 0x1.b839a252049c1p-104;
    const double r = part3 + rest;
    return {r, (part3 - r) + rest, static_cast<uint32_t>(bitcast<uint64_t>(shifted))};
}
#endif

}  // namespace detail
}  // namespace LM_RUNTIME
}  // namespace lm
