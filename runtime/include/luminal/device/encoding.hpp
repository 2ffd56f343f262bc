// Types that exist in memory only: decoding exactly, encoding rounded once to nearest even.
#pragma once

#include "luminal/device/float16.hpp"
#include "luminal/narrow.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

#if defined(LM_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define LM_CONVERTS_FLOAT8 1
/// PTX ISA, "cvt": float16 holds every value of both types.
LM_DEVICE float float8_to_float(float8e4m3fn, uint8_t bits) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(bits)));
    return float16_to_float(static_cast<uint16_t>(pair));
}
LM_DEVICE float float8_to_float(float8e5m2, uint8_t bits) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(bits)));
    return float16_to_float(static_cast<uint16_t>(pair));
}
#endif

}  // namespace detail

/// The value of the bits of S, exact. Of integers, the lowest bits of the byte count.
template <class S> LM_DEVICE compute_t<S> decode(bits_t<S> bits) {
    static_assert(is_stored<S>(), "a type of memory alone");
    if constexpr (is_same<S, float16>()) {
        return detail::float16_to_float(bits);
    } else if constexpr (is_same<S, bfloat16>()) {
        return detail::bfloat16_to_float(bits);
    } else if constexpr (is_narrow_integer<S>()) {
        return detail::narrow_to_integer(S{}, bits);
#if defined(LM_CONVERTS_FLOAT8)
    } else if constexpr (is_same<S, float8e4m3fn>() || is_same<S, float8e5m2>()) {
        return detail::float8_to_float(S{}, bits);
#endif
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
