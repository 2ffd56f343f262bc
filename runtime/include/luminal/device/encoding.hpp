// Types that exist in memory only: decoding exactly, encoding rounded once to nearest even.
#pragma once

#include "luminal/device/float16.hpp"
#include "luminal/narrow.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The value of the bits of S, exact. Of integers, the lowest bits of the byte count.
template <class S> LM_DEVICE compute_t<S> decode(bits_t<S> bits) {
    static_assert(is_stored<S>(), "a type of memory alone");
    if constexpr (is_same<S, float16>()) {
        return detail::float16_to_float(bits);
    } else if constexpr (is_same<S, bfloat16>()) {
        return detail::bfloat16_to_float(bits);
    } else if constexpr (is_narrow_integer<S>()) {
        return detail::narrow_to_integer(S{}, bits);
    } else {
        return detail::narrow_to_float(S{}, static_cast<uint32_t>(bits));
    }
}

/// The bits of the S nearest to v.
template <class S> LM_DEVICE bits_t<S> encode(compute_t<S> v) {
    static_assert(is_stored<S>(), "a type of memory alone");
    if constexpr (is_same<S, float16>()) {
        return detail::float_to_float16(v);
    } else if constexpr (is_same<S, bfloat16>()) {
        return detail::float_to_bfloat16(v);
    } else if constexpr (is_narrow_integer<S>()) {
        return detail::narrow_bits(S{}, static_cast<uint8_t>(v));
    } else {
        return static_cast<uint8_t>(detail::float_to_narrow(S{}, v));
    }
}

/// The S nearest to v, as it is computed with.
template <class S> LM_DEVICE compute_t<S> rounded(compute_t<S> v) {
#if defined(LM_CUDA)
    if constexpr (is_same<S, bfloat16>()) return detail::float_rounded_to_bfloat16(v);
#endif
    return decode<S>(encode<S>(v));
}

}  // namespace LM_RUNTIME
}  // namespace lm
