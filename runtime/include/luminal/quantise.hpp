// Rounding to integers of 8 or 16 bits that stand for real numbers, one of which, `zero`, for 0.
#pragma once

#include "luminal/arithmetic.hpp"
#include "luminal/convert.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// Lanes of float to int32, to nearest with ties to even, where none is out of range.
template <class V> LM_INLINE auto nearest_int32(V v) {
    return lift_towards<int32_t>([](auto x) LM_LAMBDA {
        using R [[maybe_unused]] = rebind<int32_t, decltype(x)>;
#if defined(LM_AVX512)
        if constexpr (sizeof(x) == 64) return copy_bits<R>(_mm512_maskz_cvtps_epi32(0xffff, x));
        else
#endif
#if defined(LM_AVX2)
        if constexpr (sizeof(x) == 32) return copy_bits<R>(_mm256_cvtps_epi32(x));
        else
#endif
#if defined(__x86_64__)
        if constexpr (sizeof(x) == 16) return copy_bits<R>(_mm_cvtps_epi32(x));
        else
#elif defined(LM_NEON)
        if constexpr (sizeof(x) == 16) return copy_bits<R>(vcvtnq_s32_f32(in_neon(x)));
        else
#endif
        return cast_step<int32_t>(round_even(x));
    }, v);
}

/// Lanes of int32: round_even(v) limited to what To can hold once `zero` is added; NaN gives -zero.
template <class To, int zero, class V> LM_INLINE auto limited_int32(V v) {
    static_assert(std::is_integral_v<To> && sizeof(To) <= 2 && static_cast<To>(zero) == zero);
    constexpr int least = std::numeric_limits<To>::min(), most = std::numeric_limits<To>::max();
    const V inside = greater(splat<V>(least - zero), lesser(splat<V>(most - zero), v));  // the least for NaN
    const auto whole = nearest_int32(inside);
#if defined(__x86_64__)  // elsewhere compilers choose instructions that a signalling NaN passes
    if constexpr (least == 0) return whole;
    else
#endif
    return select(equal(v, v), whole, splat<decltype(whole)>(-zero));
}

}  // namespace detail

/// Lanes of float: convert<To>(round_even(v) + zero). `zero` is a To.
template <class To, int zero = 0, class V> LM_INLINE auto quantise(V v) {
    const auto whole = detail::limited_int32<To, zero>(v);
    return lane_cast<To>(add(whole, splat<decltype(whole)>(zero)));
}

/// What quantise<To, zero>(v) stands for: convert<float>(convert<int32_t>(quantise<To, zero>(v)) - zero).
template <class To, int zero = 0, class V> LM_INLINE auto fake_quantise(V v) {
    return lane_cast<float>(detail::limited_int32<To, zero>(v));
}

}  // namespace LM_RUNTIME
}  // namespace lm
