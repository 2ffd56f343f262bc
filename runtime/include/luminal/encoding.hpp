// Types that exist in memory only: decoding exactly, encoding rounded once to nearest even.
#pragma once

#include "luminal/float16.hpp"
#include "luminal/narrow.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The value of the bits of S, exact: lanes of uint16_t or uint8_t -> lanes of compute_t<S>. Of integers, the lowest bits
/// of each byte count.
template <class S, class Bits> LM_INLINE auto decode(Bits bits) {
    static_assert(is_stored<S> && sizeof(S) == sizeof(element_t<Bits>));
    if constexpr (is_narrow_integer<S>) {
        return lift([](auto b) LM_LAMBDA { return detail::narrow_to_integer(S{}, b); }, bits);
    } else {
        return lift_towards<float>([](auto b) LM_LAMBDA {
            if constexpr (std::is_same_v<S, float16>) {
                return detail::float16_to_float(b);
            } else if constexpr (std::is_same_v<S, bfloat16>) {
                return detail::bfloat16_to_float(b);
            } else {
                return detail::narrow_to_float(S{}, lane_cast<uint32_t>(b));
            }
        }, bits);
    }
}

/// The bits of the S nearest to v: lanes of compute_t<S> -> lanes of uint16_t or uint8_t.
template <class S, class V> LM_INLINE auto encode(V v) {
    static_assert(is_stored<S> && std::is_same_v<element_t<V>, compute_t<S>>);
    return lift([](auto x) LM_LAMBDA {
        if constexpr (std::is_same_v<S, float16>) {
            return detail::float_to_float16(x);
        } else if constexpr (std::is_same_v<S, bfloat16>) {
            return detail::float_to_bfloat16<true>(x);
        } else if constexpr (is_narrow_integer<S>) {
            return detail::narrow_bits(S{}, bitcast<uint8_t>(x));
        } else {
            return lane_cast<uint8_t>(detail::float_to_narrow(S{}, x));
        }
    }, v);
}

/// Floats to be stored, zeros in the place of numbers that are subnormal in the type of memory, where that is faster.
template <class V> struct NormalOrZero { V value; };
template <class V> LM_INLINE NormalOrZero<V> normal_or_zero(V v) { return {v}; }

template <class S, class V> LM_INLINE auto encode(NormalOrZero<V> v) {
    if constexpr (!std::is_same_v<S, bfloat16>) {
        return encode<S>(v.value);
    } else if constexpr (detail::bfloat16_in_pairs<V>) {
        return detail::float_pair_to_bfloat16(v.value);
    } else if constexpr (is_wide<V>) {
        return join(encode<S>(normal_or_zero(low(v.value))), encode<S>(normal_or_zero(high(v.value))));
    } else {
        return detail::float_to_bfloat16<false>(v.value);
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
