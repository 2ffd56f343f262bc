// float16 and bfloat16: exact decoding, encoding rounded once to nearest even.
//
// Overflow gives infinity, underflow is gradual, NaN keeps its sign and upper payload, and becomes quiet where it is
// encoded.
#pragma once

#include "luminal/arithmetic.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

#if defined(LM_AVX2)

template <class Bits> LM_INLINE auto float16_to_float(Bits h) {
    constexpr int n = lanes<Bits>;
#if defined(LM_AVX512)
    if constexpr (n == 16) return copy_bits<vec<float, n>>(_mm512_maskz_cvtph_ps(0xffff, copy_bits<__m256i>(h)));
#endif
    if constexpr (n == 8) return copy_bits<vec<float, n>>(_mm256_cvtph_ps(copy_bits<__m128i>(h)));
    if constexpr (n < 8) {
        const vec<float, 4> f = _mm_cvtph_ps(copy_bits<__m128i>(pad_register(h)));
        return low_bytes<vec<float, n>>(f);
    }
}

template <class V> LM_INLINE auto float_to_float16(V v) {
    constexpr int n = lanes<V>;
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if defined(LM_AVX512)
    if constexpr (n == 16) {
        return copy_bits<vec<uint16_t, n>>(_mm512_maskz_cvtps_ph(0xffff, copy_bits<__m512>(v), nearest));
    }
#endif
    if constexpr (n == 8) return copy_bits<vec<uint16_t, n>>(_mm256_cvtps_ph(copy_bits<__m256>(v), nearest));
    if constexpr (n < 8) {
        const __m128i h = _mm_cvtps_ph(copy_bits<__m128>(pad_register(v)), nearest);
        return low_bytes<vec<uint16_t, n>>(copy_bits<vec<uint16_t, 8>>(h));
    }
}

#elif defined(LM_NEON)

template <class Bits> LM_INLINE auto float16_to_float(Bits h) {
    const vec<uint16_t, 4> four = low_bytes<vec<uint16_t, 4>>(pad_register(h));
    return low_bytes<rebind<float, Bits>>(copy_bits<vec<float, 4>>(vcvt_f32_f16(copy_bits<float16x4_t>(four))));
}

template <class V> LM_INLINE auto float_to_float16(V v) {
    const float16x4_t h = vcvt_f16_f32(in_neon(pad_register(v)));
    return low_bytes<rebind<uint16_t, V>>(pad_register(copy_bits<vec<uint16_t, 4>>(h)));
}

#else

template <class Bits> LM_INLINE auto float16_to_float(Bits h) {
    using I = rebind<int32_t, Bits>;
    using V = rebind<float, Bits>;
    const auto i = [](int32_t value) LM_LAMBDA { return splat<I>(value); };
    const I word = lane_cast<int32_t>(h);
    const I magnitude = word & i(0x7fff);
    const I normal = (magnitude << i(13)) + i(112 << 23);  // the exponent's bias: 127 - 15
    const I nan_quiet = select(less(i(0x7c00), magnitude), i(0x400000), i(0));
    const I special = (magnitude << i(13)) | i(0x7f800000) | nan_quiet;
    const V subnormal = lane_cast<float>(magnitude) * splat<V>(0x1p-24f);
    const I rational = select(less(magnitude, i(0x400)), bitcast<int32_t>(subnormal), normal);
    const I bits = select(less(magnitude, i(0x7c00)), rational, special);
    return bitcast<float>(bits | ((word & i(0x8000)) << i(16)));
}

template <class V> LM_INLINE auto float_to_float16(V v) {
    using I = rebind<int32_t, V>;
    const auto i = [](int32_t value) LM_LAMBDA { return splat<I>(value); };
    const I word = bitcast<int32_t>(v);
    const I magnitude = word & i(0x7fffffff);
    // Half of the last place less one, plus the last place's own bit: ties go to even.
    const I rounded = magnitude + i(0xfff) + ((magnitude >> i(13)) & i(1));
    const I normal = (rounded >> i(13)) - i(112 << 10);
    const I finite = select(less(normal, i(0x7c00)), normal, i(0x7c00));
    // Below 2^-14 halves are multiples of 2^-24, which is the last place of floats in [0.5, 1).
    const I subnormal = bitcast<int32_t>(abs(v) + splat<V>(0.5f)) - i(0x3f000000);
    const I nan = ((magnitude >> i(13)) & i(0x3ff)) | i(0x7e00);
    const I rational = select(less(magnitude, i(0x38800000)), subnormal, finite);
    const I bits = select(less(i(0x7f800000), magnitude), nan, rational);
    return lane_cast<uint16_t>(bits | ((word >> i(16)) & i(0x8000)));
}

#endif

template <class Bits> LM_INLINE auto bfloat16_to_float(Bits h) {
    using I = rebind<uint32_t, Bits>;
    return bitcast<float>(lane_cast<uint32_t>(h) << splat<I>(16));
}

/// By integers: a NaN keeps its upper payload, and all else is rounded by a sum that carries into the exponent.
template <class V> LM_INLINE auto float_to_bfloat16_bits(V v) {
    using I = rebind<uint32_t, V>;
    const I word = bitcast<uint32_t>(v);
    const I rounded = word + splat<I>(0x7fff) + ((word >> splat<I>(16)) & splat<I>(1));
    const I quiet = word | splat<I>(0x400000);
    return lane_cast<uint16_t>(select(equal(v, v), rounded, quiet) >> splat<I>(16));
}

/// Subnormal numbers may become zeros unless they are `Kept`: the instruction makes zeros of them. They are rare, but to
/// look for them takes as long as a few multiply-adds.
template <bool Kept, class V> LM_INLINE auto float_to_bfloat16(V v) {
#if defined(LM_AVX512) && defined(__AVX512BF16__)
    if constexpr (lanes<V> == 16) {
        constexpr int subnormal = 0x20;
        if (!Kept || __builtin_expect(_mm512_fpclass_ps_mask(v, subnormal) == 0, 1)) {
            return copy_bits<rebind<uint16_t, V>>(_mm512_cvtneps_pbh(v));
        }
    }
#endif
    return float_to_bfloat16_bits(v);
}

/// Whether V is two registers of floats that one instruction rounds, which makes zeros of subnormal numbers.
#if defined(LM_AVX512) && defined(__AVX512BF16__)
template <class V> constexpr bool bfloat16_in_pairs = is_wide<V> && lanes<V> == 32;
template <class V> LM_INLINE auto float_pair_to_bfloat16(V v) {
    return copy_bits<rebind<uint16_t, V>>(_mm512_cvtne2ps_pbh(high(v), low(v)));
}
#else
template <class V> constexpr bool bfloat16_in_pairs = false;
template <class V> auto float_pair_to_bfloat16(V v);
#endif

}  // namespace detail

}  // namespace LM_RUNTIME
}  // namespace lm
