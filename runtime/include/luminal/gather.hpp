// Loads and stores whose lanes lie apart: strided and indexed.
#pragma once

#include "luminal/vector_memory.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Lane i = p[i * stride].
template <int N, class T> LM_INLINE vec<T, N> load_strided(const T* p, int64_t stride) {
    if constexpr (!detail::is_plain<T>) {
        return detail::from_stored<T>(load_strided<N>(detail::stored_pointer(p), stride));
    } else {
        return generate<N>([=](int i) LM_LAMBDA { return detail::read(p + i * stride); });
    }
}

#if defined(LM_AVX512)

namespace detail {

/// p[i * stride] = lane i for 16 lanes of two bytes: a store for every 32 elements, which leaves out those between.
template <class T, class V> LM_INLINE void store_spread(T* p, int stride, V v) {
    const __m512i all = _mm512_castsi256_si512(copy_bits<__m256i>(v));
    for (int first = 0; first < 16 * stride; first += 32) {
        const auto lane = generate<32>([=](int i) LM_LAMBDA { return static_cast<uint16_t>((first + i) / stride); });
        uint32_t there = 0;
#pragma GCC unroll 32
        for (int i = 0; i < 32; ++i) {
            const int at = first + i;
            if (at < 16 * stride && at % stride == 0) there |= uint32_t{1} << i;
        }
        _mm512_mask_storeu_epi16(p + first, there, _mm512_permutexvar_epi16(copy_bits<__m512i>(lane), all));
    }
}

}  // namespace detail

#endif

/// p[i * stride] = lane i, in ascending order.
template <class T, class V> LM_INLINE void store_strided(T* p, int64_t stride, V v) {
    if constexpr (!detail::is_plain<T>) {
        store_strided(detail::stored_pointer(p), stride, detail::to_stored<T>(v));
    } else if constexpr (is_wide<V>) {
        store_strided(p, stride, low(v));
        store_strided(p + (lanes<V> / 2) * stride, stride, high(v));
    } else {
        static_assert(std::is_same_v<element_t<V>, T>, "convert before storing");
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 32 && sizeof(T) == 2) {
            if (2 <= stride && stride <= 4) return detail::store_spread(p, static_cast<int>(stride), v);
        }
#endif
#pragma GCC unroll 64
        for (int i = 0; i < lanes<V>; ++i) detail::write(p + i * stride, extract(v, i));
    }
}

/// p[i / Group * stride + i % Group] = lane i, in ascending order.
template <int Group, class T, class V> LM_INLINE void store_groups(T* p, int64_t stride, V v) {
    if constexpr (!detail::is_plain<T>) {
        store_groups<Group>(detail::stored_pointer(p), stride, detail::to_stored<T>(v));
    } else {
        constexpr int groups = lanes<V> / Group;
        static_assert(lanes<V> == groups * Group);
        if constexpr (is_wide<V> && groups > 1) {
            store_groups<Group>(p, stride, low(v));
            store_groups<Group>(p + groups / 2 * stride, stride, high(v));
        } else if constexpr (Group * sizeof(T) <= 8) {
            static_assert(std::is_same_v<element_t<V>, T>, "convert before storing");
            using Whole = uint_t<Group * sizeof(T)>;
            const auto whole = copy_bits<vec<Whole, groups>>(v);
#pragma GCC unroll 64
            for (int i = 0; i < groups; ++i) {
                detail::write(reinterpret_cast<Whole*>(p + i * stride), static_cast<Whole>(extract(whole, i)));
            }
        } else {
#pragma GCC unroll 64
            for (int i = 0; i < lanes<V>; ++i) detail::write(p + i / Group * stride + i % Group, extract(v, i));
        }
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

}  // namespace LM_RUNTIME
}  // namespace lm
