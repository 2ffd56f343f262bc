// Conversions between element types, lane by lane, in the steps for which there are instructions.
#pragma once

#include "luminal/vector.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

#if defined(LM_AVX2)

/// Whether resize_register takes the integer vector V to integers of To bytes.
template <class V, int To, int From = sizeof(element_t<V>)>
inline constexpr bool has_resizing =
#if defined(LM_AVX512)
    (To < From && sizeof(V) >= 16) || (To > From && lanes<V> * To >= 32);
#else
    (To == 4 && From == 8 && sizeof(V) == 32) || (To > From && lanes<V> * To == 32);
#endif

/// Integers widened (by sign or by zeros, as V's type says) or cut to their lower bytes.
template <class To, class V> LM_INLINE auto resize_register(V v) {
    using R = rebind<To, V>;
    constexpr int from = 8 * sizeof(element_t<V>), to = 8 * sizeof(To);
    const auto in = pad_register(v);
#define LM_WIDEN(SIZE, FROM, TO, PREFIX, ...)                                                                  \
    if constexpr (sizeof(R) == SIZE && from == FROM && to == TO) {                                             \
        if constexpr (is_signed<V>) return low_bytes<R>(PREFIX##_cvtepi##FROM##_epi##TO(__VA_ARGS__));         \
        if constexpr (!is_signed<V>) return low_bytes<R>(PREFIX##_cvtepu##FROM##_epi##TO(__VA_ARGS__));        \
    }
    LM_WIDEN(32, 8, 16, _mm256, copy_bits<__m128i>(in))
    LM_WIDEN(32, 8, 32, _mm256, copy_bits<__m128i>(in))
    LM_WIDEN(32, 8, 64, _mm256, copy_bits<__m128i>(in))
    LM_WIDEN(32, 16, 32, _mm256, copy_bits<__m128i>(in))
    LM_WIDEN(32, 16, 64, _mm256, copy_bits<__m128i>(in))
    LM_WIDEN(32, 32, 64, _mm256, copy_bits<__m128i>(in))
#if defined(LM_AVX512)
    // GCC 12 warns of its own header's uninitialised operands; zeroing under a full mask is the same instruction.
    constexpr uint64_t all = ~uint64_t{0} >> (64 - lanes<V>);
    LM_WIDEN(64, 8, 16, _mm512_maskz, all, copy_bits<__m256i>(in))
    LM_WIDEN(64, 8, 32, _mm512_maskz, all, copy_bits<__m128i>(in))
    LM_WIDEN(64, 8, 64, _mm512_maskz, all, copy_bits<__m128i>(in))
    LM_WIDEN(64, 16, 32, _mm512_maskz, all, copy_bits<__m256i>(in))
    LM_WIDEN(64, 16, 64, _mm512_maskz, all, copy_bits<__m128i>(in))
    LM_WIDEN(64, 32, 64, _mm512_maskz, all, copy_bits<__m256i>(in))
#define LM_NARROW(FROM, TO)                                                                                    \
    if constexpr (from == FROM && to == TO) {                                                                  \
        if constexpr (sizeof(V) == 64)                                                                         \
            return low_bytes<R>(_mm512_maskz_cvtepi##FROM##_epi##TO(all, copy_bits<__m512i>(in)));             \
        if constexpr (sizeof(V) == 32)                                                                         \
            return low_bytes<R>(_mm256_maskz_cvtepi##FROM##_epi##TO(all, copy_bits<__m256i>(in)));             \
        if constexpr (sizeof(V) == 16)                                                                         \
            return low_bytes<R>(_mm_maskz_cvtepi##FROM##_epi##TO(all, copy_bits<__m128i>(in)));                \
    }
    LM_NARROW(16, 8)
    LM_NARROW(32, 8)
    LM_NARROW(32, 16)
    LM_NARROW(64, 8)
    LM_NARROW(64, 16)
    LM_NARROW(64, 32)
#undef LM_NARROW
#else
    if constexpr (to < from) {
        const __m256i even_first = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
        return low_bytes<R>(_mm256_permutevar8x32_epi32(copy_bits<__m256i>(in), even_first));
    }
#endif
#undef LM_WIDEN
}

#endif

/// One conversion of scalars or vectors.
template <class To, class V> LM_INLINE auto cast_step(V v) {
    return lift_towards<To>([](auto x) LM_LAMBDA {
        using X = decltype(x);
        if constexpr (is_scalar<X>) {
            return static_cast<To>(x);
        } else {
#if defined(LM_AVX2)
            if constexpr (is_integer<X> && std::is_integral_v<To> && has_resizing<X, sizeof(To)>) {
                return resize_register<To>(x);
            } else
#endif
            {
                return __builtin_convertvector(x, rebind<To, X>);
            }
        }
    }, v);
}

/// Whether cast_step from integers V to integers To is one instruction or a few, not a walk over the lanes.
template <class V, class To> inline constexpr bool resizes =
#if defined(LM_AVX512)
    true;
#elif defined(LM_AVX2)
    sizeof(element_t<V>) <= 2 * sizeof(To);
#else
    2 * sizeof(element_t<V>) >= sizeof(To) && sizeof(element_t<V>) <= 2 * sizeof(To);
#endif

}  // namespace detail

/// Every lane converted as the language does it, which for floats out of an integer's range is undefined.
///
/// Between sizes more than a factor of two apart, compilers take vectors to pieces unless they are led step by step.
template <class To, class V> LM_INLINE auto lane_cast(V v) {
    using T = element_t<V>;
    constexpr int from = sizeof(T), to = sizeof(To);
    if constexpr (is_scalar<V> || std::is_same_v<T, To>) {
        return detail::cast_step<To>(v);
    } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<To> && from < 4) {
        return detail::cast_step<To>(lane_cast<int32_t>(v));
    } else if constexpr (std::is_floating_point_v<T> && std::is_integral_v<To> && to < 4) {
        return lane_cast<To>(detail::cast_step<int32_t>(v));
    } else if constexpr (std::is_integral_v<T> && std::is_integral_v<To> && !detail::resizes<V, To>) {
        // Halfway, keeping the sign where there is one.
        constexpr int between = from < to ? from * 2 : from / 2;
        using Between = std::conditional_t<std::is_signed_v<T>, int_t<between>, uint_t<between>>;
        return detail::cast_step<To>(lane_cast<Between>(v));
    } else {
        return detail::cast_step<To>(v);
    }
}

template <int B, int N> template <int Other>
LM_INLINE mask<B, N>::mask(mask<Other, N> other) : lanes(lane_cast<int_t<B>>(other.lanes)) {}

}  // namespace LM_RUNTIME
}  // namespace lm
