// Decoding and encoding of element types of fewer than 16 bits: exact one way, rounded once the other. The types of the
// memory are given by a value, whose bits are not read.
//
// CPUs and GPUs share this text: lanes of float, uint32_t and uint8_t are vectors of them or one scalar.
#pragma once

#include "luminal/narrow_types.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// The bits of the float whose last place is the least positive number of a type: added to it, small numbers are
/// rounded, and lie in its last bits.
LM_INLINE constexpr uint32_t least_in_last_place(int fraction, int bias) {
    return static_cast<uint32_t>(127 + 23 + 1 - bias - fraction) << 23;
}

/// Lanes of uint32_t, bits of the type -> lanes of float, their values.
template <int exponent, int fraction, int bias, narrow_specials specials, class U>
LM_INLINE auto narrow_to_float(narrow_float<exponent, fraction, bias, specials>, U word) {
    const U nan = splat<U>(0x7fc00000);
    if constexpr (specials == POWERS) {
        const U number = select(equal(word, splat<U>(0)), splat<U>(0x400000), word << splat<U>(23));
        return bitcast<float>(select(equal(word, splat<U>(0xff)), nan, number));
    } else {
        constexpr int above = 31 - exponent - fraction;
        constexpr uint32_t sign = 0x80000000u >> above, infinity = sign - (1u << fraction);
        const U magnitude = word & splat<U>(sign - 1);
        const U normal = (magnitude << splat<U>(23 - fraction)) + splat<U>(static_cast<uint32_t>(127 - bias) << 23);
        const U least = splat<U>(least_in_last_place(fraction, bias));
        const U subnormal = bitcast<uint32_t>(bitcast<float>(magnitude + least) - bitcast<float>(least));
        U number = select(less(magnitude, splat<U>(1u << fraction)), subnormal, normal);
        if constexpr (specials == INFINITIES) {
            const U special = select(equal(magnitude, splat<U>(infinity)), splat<U>(0x7f800000), nan);
            number = select(less(magnitude, splat<U>(infinity)), number, special);
        } else if constexpr (specials == LAST_IS_NAN) {
            number = select(equal(magnitude, splat<U>(sign - 1)), nan, number);
        }
        number = number | ((word & splat<U>(sign)) << splat<U>(above));
        if constexpr (specials == MINUS_ZERO_NAN) {
            number = select(equal(word, splat<U>(sign)), nan | splat<U>(0x80000000), number);
        }
        return bitcast<float>(number);
    }
}

/// Lanes of float -> lanes of uint32_t, bits of the nearest number of the type; ties go to even.
template <int exponent, int fraction, int bias, narrow_specials specials, class V>
LM_INLINE auto float_to_narrow(narrow_float<exponent, fraction, bias, specials>, V v) {
    auto word = bitcast<uint32_t>(v);
    using U = decltype(word);
    const U magnitude = word & splat<U>(0x7fffffff);
    const auto is_nan = less(splat<U>(0x7f800000), magnitude);
    if constexpr (specials == POWERS) {
        // Halves go up, but for half the least normal float, which is the least number: it and all below become that.
        const auto is_above = less(word - splat<U>(0x400001), splat<U>(0x7fffffff - 0x400000));
        const U rounded = (word + splat<U>(0x400000)) >> splat<U>(23);
        const U limited = select(less(rounded, splat<U>(0xfe)), rounded, splat<U>(0xfe));
        return select(is_nan, splat<U>(0xff), select(is_above, limited, splat<U>(0)));
    } else {
        constexpr int above = 31 - exponent - fraction, shift = 23 - fraction;
        constexpr uint32_t sign = 0x80000000u >> above, infinity = sign - (1u << fraction);
        constexpr uint32_t beyond = specials == INFINITIES ? infinity : specials == LAST_IS_NAN ? sign - 2 : sign - 1;
        // Half of the last place less one, plus the last place's own bit.
        const U halfway = splat<U>((1u << (shift - 1)) - 1) + ((magnitude >> splat<U>(shift)) & splat<U>(1));
        const U rounded = (magnitude + halfway) >> splat<U>(shift);
        const U normal = rounded - splat<U>(static_cast<uint32_t>(127 - bias) << fraction);
        const U least = splat<U>(least_in_last_place(fraction, bias));
        const U subnormal = bitcast<uint32_t>(bitcast<float>(magnitude) + bitcast<float>(least)) - least;
        const U finite = select(less(normal, splat<U>(beyond)), normal, splat<U>(beyond));
        const auto is_small = less(magnitude, splat<U>(static_cast<uint32_t>(128 - bias) << 23));
        const U number = select(is_small, subnormal, finite);
        const U its_sign = (word >> splat<U>(above)) & splat<U>(sign);
        if constexpr (specials == MINUS_ZERO_NAN) {
            const U zero = splat<U>(0);
            return select(is_nan, splat<U>(sign), select(equal(number, zero), zero, number | its_sign));
        } else if constexpr (specials == ALL_NUMBERS) {
            return select(is_nan, splat<U>(0), number | its_sign);
        } else {
            return select(is_nan, splat<U>(specials == INFINITIES ? sign - 2 : sign - 1), number) | its_sign;
        }
    }
}

/// Lanes of uint8_t: the bits of the type, zeros above.
template <int width, bool has_sign, class B> LM_INLINE B narrow_bits(narrow_integer<width, has_sign>, B bytes) {
    return bit_and(bytes, splat<B>((1 << width) - 1));
}

/// Lanes of uint8_t, whatever lies above the bits of the type -> lanes of int8_t or uint8_t, their values.
template <int width, bool has_sign, class B>
LM_INLINE auto narrow_to_integer(narrow_integer<width, has_sign> type, B bytes) {
    const B bits = narrow_bits(type, bytes);
    if constexpr (has_sign) {
        const B sign = splat<B>(1 << (width - 1));
        return bitcast<int8_t>(sub(bit_xor(bits, sign), sign));
    } else {
        return bits;
    }
}

}  // namespace detail

/// The bits of the elements from p on, floats of 8 or 16 bits in any address space.
template <class P> LM_INLINE auto bits_of(P p) -> decltype(&p->bits) { return &p->bits; }

}  // namespace LM_RUNTIME
}  // namespace lm
