// Loads and stores whose lanes lie apart: strided and indexed.
#pragma once

#include "luminal/vector_memory.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

/// Lane i = p[i * stride].
template <int N, class T> LM_INLINE vec<T, N> load_strided(const T* p, int64_t stride) {
    if constexpr (!detail::is_plain<T>) {
        return detail::from_stored<T>(load_strided<N>(detail::stored_pointer(p), stride));
    } else {
        return generate<N>([=](int i) LM_LAMBDA { return detail::read(p + i * stride); });
    }
}

/// p[i * stride] = lane i, in ascending order.
template <class T, class V> LM_INLINE void store_strided(T* p, int64_t stride, V v) {
    if constexpr (!detail::is_plain<T>) {
        store_strided(detail::stored_pointer(p), stride, detail::to_stored<T>(v));
    } else if constexpr (is_wide<V>) {
        store_strided(p, stride, low(v));
        store_strided(p + (lanes<V> / 2) * stride, stride, high(v));
    } else {
        static_assert(std::is_same_v<element_t<V>, T>, "convert before storing");
#pragma GCC unroll 64
        for (int i = 0; i < lanes<V>; ++i) detail::write(p + i * stride, extract(v, i));
    }
}

namespace detail {

#if defined(LM_AVX2)

/// A register of 4- or 8-byte elements. 8-byte elements take 8-byte indices, 4-byte elements indices of either size.
/// Lanes where valid is false keep fill.
template <class T, class I, class V> LM_INLINE V gather_register(const T* base, I index, mask_of<V> valid, V fill) {
    constexpr int n = lanes<V>;
    constexpr int element = sizeof(T), step = sizeof(element_t<I>);
    const auto ints = reinterpret_cast<const int*>(base);
    const auto longs = reinterpret_cast<const long long*>(base);
#if defined(LM_AVX512)
    if constexpr (element == 4 && step == 4 && n == 16) {
        return copy_bits<V>(_mm512_mask_i32gather_epi32(copy_bits<__m512i>(fill), mask_bits(valid),
                                                        copy_bits<__m512i>(index), ints, 4));
    } else if constexpr (element == 4 && step == 8 && n == 8) {
        return copy_bits<V>(_mm512_mask_i64gather_epi32(copy_bits<__m256i>(fill), mask_bits(valid),
                                                        copy_bits<__m512i>(index), ints, 4));
    } else if constexpr (element == 8 && step == 8 && n == 8) {
        return copy_bits<V>(_mm512_mask_i64gather_epi64(copy_bits<__m512i>(fill), mask_bits(valid),
                                                        copy_bits<__m512i>(index), longs, 8));
    } else
#endif
    if constexpr (element == 4 && step == 4 && n == 8) {
        return copy_bits<V>(_mm256_mask_i32gather_epi32(copy_bits<__m256i>(fill), ints, copy_bits<__m256i>(index),
                                                        copy_bits<__m256i>(valid), 4));
    } else if constexpr (element == 4 && step == 8) {
        static_assert(n == 4);
        return copy_bits<V>(_mm256_mask_i64gather_epi32(copy_bits<__m128i>(fill), ints, copy_bits<__m256i>(index),
                                                        copy_bits<__m128i>(valid), 4));
    } else if constexpr (element == 4) {
        static_assert(n == 4);
        return copy_bits<V>(_mm_mask_i32gather_epi32(copy_bits<__m128i>(fill), ints, copy_bits<__m128i>(index),
                                                     copy_bits<__m128i>(valid), 4));
    } else {
        static_assert(n == 4);
        return copy_bits<V>(_mm256_mask_i64gather_epi64(copy_bits<__m256i>(fill), longs, copy_bits<__m256i>(index),
                                                        copy_bits<__m256i>(valid), 8));
    }
}

#endif

/// Plain elements; whole registers use the gather instruction.
template <class T, class I, class M> LM_INLINE auto gather_plain(const T* base, I index, M valid, T fill) {
#if defined(LM_AVX2)
    using V = rebind<T, I>;
    if constexpr (sizeof(T) >= 4 && lanes<I> >= 4) {
        if constexpr (sizeof(T) > sizeof(element_t<I>)) {
            return gather_plain(base, lane_cast<int64_t>(index), valid, fill);
        } else if constexpr (is_wide<V> || is_wide<I>) {
            return join(gather_plain(base, low(index), low(valid), fill),
                        gather_plain(base, high(index), high(valid), fill));
        } else {
            return gather_register(base, index, mask_of<V>(valid), splat<V>(fill));
        }
    } else
#endif
    {
        return generate<lanes<I>>([=](int i) LM_LAMBDA {
            return extract(valid, i) ? read(base + extract(index, i)) : fill;
        });
    }
}

}  // namespace detail

/// Lane i = base[index[i]] where valid, fill elsewhere (not read). index: signed 32- or 64-bit integers.
template <class T, class I, class M> LM_INLINE auto gather(const T* base, I index, M valid, compute_t<T> fill = {}) {
    static_assert(is_integer<I> && is_signed<I> && sizeof(element_t<I>) >= 4);
    const auto stored = detail::gather_plain(detail::stored_pointer(base), index, valid, detail::stored_fill<T>(fill));
    return detail::from_stored<T>(stored);
}

/// Lane i = base[index[i]].
template <class T, class I> LM_INLINE auto gather(const T* base, I index) {
    return gather(base, index, broadcast<lanes<I>>(true));
}

/// base[index[i]] = lane i where valid, in ascending order: of equal indices the last one stays.
template <class T, class I, class V, class M> LM_INLINE void scatter(T* base, I index, V v, M valid) {
    static_assert(is_integer<I> && is_signed<I> && sizeof(element_t<I>) >= 4);
    if constexpr (!detail::is_plain<T>) {
        scatter(detail::stored_pointer(base), index, detail::to_stored<T>(v), valid);
    } else {
        static_assert(std::is_same_v<element_t<V>, T>, "convert before storing");
        for (int i = 0; i < lanes<V>; ++i) {
            if (extract(valid, i)) detail::write(base + extract(index, i), extract(v, i));
        }
    }
}
template <class T, class I, class V> LM_INLINE void scatter(T* base, I index, V v) {
    scatter(base, index, v, broadcast<lanes<I>>(true));
}

/// A hint that the cache line of p will be read soon.
LM_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

/// A hint that the cache line of p will be read later, when the first-level cache may have dropped it.
LM_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace LM_NAMESPACE
}  // namespace lm
