// Element types that exist in memory only: floats of 16 bits, and types of fewer bits, a line for each, which says what
// its bits mean. CPUs and GPUs share this text.
//
// Those of fewer bits lie one element to a byte: the lowest bits count, the others are ignored where an element is read
// and 0 where it is written. Floats are computed as float, integers as int8_t or uint8_t.
#pragma once

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// IEEE binary16 and bfloat16.
struct float16 { uint16_t bits; };
struct bfloat16 { uint16_t bits; };

/// Which bits of a float type are no numbers.
enum narrow_specials {
    INFINITIES,      // as IEEE 754 has it: the greatest exponent is kept for infinities and NaN
    LAST_IS_NAN,     // those that are all ones, of either sign; what is beyond the largest number becomes that
    MINUS_ZERO_NAN,  // those of -0, so that zero has no sign; what is beyond the largest number becomes that
    ALL_NUMBERS,     // none: NaN becomes 0, what is beyond the largest number becomes that
    POWERS,          // an exponent alone, without sign or zero; all ones are NaN, what is beyond either end becomes that
};

/// A sign, an exponent and a fraction: (-1)^sign 2^(exponent - bias) 1.fraction, or 2^(1 - bias) 0.fraction where the
/// exponent is 0.
template <int exponent, int fraction, int bias, narrow_specials specials> struct narrow_float { uint8_t bits; };

using float8e4m3fn = narrow_float<4, 3, 7, LAST_IS_NAN>;
using float8e4m3fnuz = narrow_float<4, 3, 8, MINUS_ZERO_NAN>;
using float8e5m2 = narrow_float<5, 2, 15, INFINITIES>;
using float8e5m2fnuz = narrow_float<5, 2, 16, MINUS_ZERO_NAN>;
using float8e8m0 = narrow_float<8, 0, 127, POWERS>;
using float4e2m1 = narrow_float<2, 1, 1, ALL_NUMBERS>;

/// An integer, in two's complement where it has a sign.
template <int width, bool has_sign> struct narrow_integer { uint8_t bits; };

using int4_t = narrow_integer<4, true>;
using int2_t = narrow_integer<2, true>;
using uint4_t = narrow_integer<4, false>;
using uint2_t = narrow_integer<2, false>;

/// What such a type is, and the type in which it is computed.
template <class T> struct narrow_traits {
    enum { is_float = 0, is_integer = 0 };
    using compute = T;
};
template <int exponent, int fraction, int bias, narrow_specials specials>
struct narrow_traits<narrow_float<exponent, fraction, bias, specials>> {
    enum { is_float = 1, is_integer = 0 };
    using compute = float;
};
template <int bits> struct narrow_traits<narrow_integer<bits, true>> {
    enum { is_float = 0, is_integer = 1, smallest = -(1 << (bits - 1)), largest = (1 << (bits - 1)) - 1 };
    using compute = int8_t;
};
template <int bits> struct narrow_traits<narrow_integer<bits, false>> {
    enum { is_float = 0, is_integer = 1, smallest = 0, largest = (1 << bits) - 1 };
    using compute = uint8_t;
};

}  // namespace LM_RUNTIME
}  // namespace lm
