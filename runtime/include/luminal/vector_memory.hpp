// Loads and stores of vectors: whole, partial, masked, strided, gathered. Nothing outside the named lanes is touched,
// no alignment is needed. Types of memory alone are decoded and encoded on the way, bools are bytes 0 and 1.
#pragma once

#include "luminal/encoding.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// The integer type under which a value of T lies in memory, or T itself.
template <class T, class = void> struct stored { using type = T; };
template <class T> struct stored<T, std::enable_if_t<is_stored<T>>> { using type = uint_t<sizeof(T)>; };
template <> struct stored<bool> { using type = uint8_t; };
template <class T> using stored_t = typename stored<T>::type;
template <class T> inline constexpr bool is_plain = std::is_same_v<T, stored_t<T>>;

/// vec<stored_t<T>, N> -> vec<T, N> and back.
template <class T, class S> LM_INLINE auto from_stored(S v) {
    if constexpr (is_stored<T>) {
        return decode<T>(v);
    } else if constexpr (std::is_same_v<T, bool>) {
        return bit_not(equal(v, splat<S>(0)));
    } else {
        return v;
    }
}
template <class T, class V> LM_INLINE auto to_stored(V v) {
    if constexpr (is_stored<T>) {
        return encode<T>(v);
    } else if constexpr (std::is_same_v<T, bool>) {
        if constexpr (is_scalar<V>) {
            return static_cast<uint8_t>(v);
        } else {
            const auto ones = bitcast<uint8_t>(mask<1, lanes<V>>(v).lanes);
            return bit_and(ones, splat<decltype(ones)>(1));
        }
    } else {
        static_assert(std::is_same_v<element_t<V>, T>, "convert before storing");
        return v;
    }
}
template <class T> LM_INLINE const stored_t<T>* stored_pointer(const T* p) {
    return reinterpret_cast<const stored_t<T>*>(p);
}
template <class T> LM_INLINE stored_t<T>* stored_pointer(T* p) { return reinterpret_cast<stored_t<T>*>(p); }

/// fill as it would lie in memory.
template <class T> LM_INLINE stored_t<T> stored_fill(compute_t<T> fill) { return to_stored<T>(fill); }

// A type through which any object may be read, at any alignment.
template <class T> struct in_memory { typedef T type __attribute__((may_alias, aligned(1))); };
template <class T> LM_INLINE T read(const T* p) {
    return *reinterpret_cast<const typename in_memory<T>::type*>(p);
}
template <class T> LM_INLINE void write(T* p, T v) { *reinterpret_cast<typename in_memory<T>::type*>(p) = v; }

}  // namespace detail

/// N consecutive values.
template <int N, class T> LM_INLINE vec<T, N> load(const T* p) {
    if constexpr (!detail::is_plain<T>) {
        return detail::from_stored<T>(load<N>(detail::stored_pointer(p)));
    } else if constexpr (is_wide<vec<T, N>>) {
        return join(load<N / 2>(p), load<N / 2>(p + N / 2));
    } else {
        vec<T, N> v;
        __builtin_memcpy(&v, p, sizeof v);
        return v;
    }
}

template <class T, class V> LM_INLINE void store(T* p, V v) {
    if constexpr (!detail::is_plain<T>) {
        store(detail::stored_pointer(p), detail::to_stored<T>(v));
    } else if constexpr (is_wide<V>) {
        store(p, low(v));
        store(p + lanes<V> / 2, high(v));
    } else {
        static_assert(std::is_same_v<element_t<V>, T>, "convert before storing");
        __builtin_memcpy(p, &v, sizeof v);
    }
}

// ---- Some lanes ---------------------------------------------------------------------------------------------------

namespace detail {

#if defined(LM_AVX512)

/// Bit i = lane i of m.
template <int B, int N> LM_INLINE uint64_t mask_bits(mask<B, N> m) {
    if constexpr (is_wide<mask<B, N>>) {
        return mask_bits(low(m)) | mask_bits(high(m)) << (N / 2);
    } else if constexpr (B * N < 16) {
        return mask_bits(mask<B, 16 / B>(pad_register(m.lanes)));
    } else {
        const auto v = m.lanes;
#define LM_MASK_BITS(BYTES, SIZE, PREFIX, LANE, REGISTER) \
    if constexpr (B == BYTES && B * N == SIZE) return PREFIX##_movepi##LANE##_mask(copy_bits<REGISTER>(v));
        LM_MASK_BITS(1, 64, _mm512, 8, __m512i)
        LM_MASK_BITS(2, 64, _mm512, 16, __m512i)
        LM_MASK_BITS(4, 64, _mm512, 32, __m512i)
        LM_MASK_BITS(8, 64, _mm512, 64, __m512i)
        LM_MASK_BITS(1, 32, _mm256, 8, __m256i)
        LM_MASK_BITS(2, 32, _mm256, 16, __m256i)
        LM_MASK_BITS(4, 32, _mm256, 32, __m256i)
        LM_MASK_BITS(8, 32, _mm256, 64, __m256i)
        LM_MASK_BITS(1, 16, _mm, 8, __m128i)
        LM_MASK_BITS(2, 16, _mm, 16, __m128i)
        LM_MASK_BITS(4, 16, _mm, 32, __m128i)
        LM_MASK_BITS(8, 16, _mm, 64, __m128i)
#undef LM_MASK_BITS
    }
}

/// Bits of the lanes below count.
template <int N> LM_INLINE uint64_t count_bits(int64_t count) {
    constexpr uint64_t all = ~uint64_t{0} >> (64 - N);
    const int64_t within = count < 0 ? 0 : count > N ? N : count;
    return N == 64 && within == 0 ? 0 : all >> (N - within);
}

/// Loads and stores under a bit mask; vectors of less than 16 bytes use the low lanes of a register.
template <class V> LM_INLINE V load_bits(const element_t<V>* p, uint64_t bits, V fill) {
    constexpr int bytes = sizeof(element_t<V>);
    if constexpr (sizeof(V) < 16) {
        return low_bytes<V>(load_bits(p, bits, pad_register(fill)));
    } else {
#define LM_LOAD_BITS(BYTES, SIZE, PREFIX, LANE, REGISTER) \
    if constexpr (bytes == BYTES && sizeof(V) == SIZE)    \
        return copy_bits<V>(PREFIX##_mask_loadu_epi##LANE(copy_bits<REGISTER>(fill), bits, p));
        LM_LOAD_BITS(1, 64, _mm512, 8, __m512i)
        LM_LOAD_BITS(2, 64, _mm512, 16, __m512i)
        LM_LOAD_BITS(4, 64, _mm512, 32, __m512i)
        LM_LOAD_BITS(8, 64, _mm512, 64, __m512i)
        LM_LOAD_BITS(1, 32, _mm256, 8, __m256i)
        LM_LOAD_BITS(2, 32, _mm256, 16, __m256i)
        LM_LOAD_BITS(4, 32, _mm256, 32, __m256i)
        LM_LOAD_BITS(8, 32, _mm256, 64, __m256i)
        LM_LOAD_BITS(1, 16, _mm, 8, __m128i)
        LM_LOAD_BITS(2, 16, _mm, 16, __m128i)
        LM_LOAD_BITS(4, 16, _mm, 32, __m128i)
        LM_LOAD_BITS(8, 16, _mm, 64, __m128i)
#undef LM_LOAD_BITS
    }
}
template <class V> LM_INLINE void store_bits(element_t<V>* p, V v, uint64_t bits) {
    constexpr int bytes = sizeof(element_t<V>);
    if constexpr (sizeof(V) < 16) {
        store_bits(p, pad_register(v), bits);
    } else {
#define LM_STORE_BITS(BYTES, SIZE, PREFIX, LANE, REGISTER) \
    if constexpr (bytes == BYTES && sizeof(V) == SIZE)     \
        PREFIX##_mask_storeu_epi##LANE(p, bits, copy_bits<REGISTER>(v));
        LM_STORE_BITS(1, 64, _mm512, 8, __m512i)
        LM_STORE_BITS(2, 64, _mm512, 16, __m512i)
        LM_STORE_BITS(4, 64, _mm512, 32, __m512i)
        LM_STORE_BITS(8, 64, _mm512, 64, __m512i)
        LM_STORE_BITS(1, 32, _mm256, 8, __m256i)
        LM_STORE_BITS(2, 32, _mm256, 16, __m256i)
        LM_STORE_BITS(4, 32, _mm256, 32, __m256i)
        LM_STORE_BITS(8, 32, _mm256, 64, __m256i)
        LM_STORE_BITS(1, 16, _mm, 8, __m128i)
        LM_STORE_BITS(2, 16, _mm, 16, __m128i)
        LM_STORE_BITS(4, 16, _mm, 32, __m128i)
        LM_STORE_BITS(8, 16, _mm, 64, __m128i)
#undef LM_STORE_BITS
    }
}

#endif

/// Plain elements under a condition per lane: whether(i) for lane i.
template <int N, class T, class W> LM_INLINE vec<T, N> load_where(const T* p, W whether, T fill) {
    return generate<N>([=](int i) LM_LAMBDA { return whether(i) ? read(p + i) : fill; });
}
template <class T, class V, class W> LM_INLINE void store_where(T* p, V v, W whether) {
    for (int i = 0; i < lanes<V>; ++i) {
        if (whether(i)) write(p + i, extract(v, i));
    }
}

#if defined(LM_AVX2)
/// AVX2 has masked moves of 4- and 8-byte lanes.
template <class V> inline constexpr bool has_vector_mask =
    (sizeof(element_t<V>) == 4 || sizeof(element_t<V>) == 8) && (sizeof(V) == 16 || sizeof(V) == 32);

template <class V, class M> LM_INLINE V load_vector_mask(const element_t<V>* p, M valid, V fill) {
    if constexpr (sizeof(element_t<V>) == 4 && sizeof(V) == 32) {
        const auto q = reinterpret_cast<const int*>(p);
        return select(valid, copy_bits<V>(_mm256_maskload_epi32(q, copy_bits<__m256i>(valid))), fill);
    } else if constexpr (sizeof(element_t<V>) == 4) {
        const auto q = reinterpret_cast<const int*>(p);
        return select(valid, copy_bits<V>(_mm_maskload_epi32(q, copy_bits<__m128i>(valid))), fill);
    } else if constexpr (sizeof(V) == 32) {
        const auto q = reinterpret_cast<const long long*>(p);
        return select(valid, copy_bits<V>(_mm256_maskload_epi64(q, copy_bits<__m256i>(valid))), fill);
    } else {
        const auto q = reinterpret_cast<const long long*>(p);
        return select(valid, copy_bits<V>(_mm_maskload_epi64(q, copy_bits<__m128i>(valid))), fill);
    }
}
template <class V, class M> LM_INLINE void store_vector_mask(element_t<V>* p, V v, M valid) {
    if constexpr (sizeof(element_t<V>) == 4 && sizeof(V) == 32) {
        _mm256_maskstore_epi32(reinterpret_cast<int*>(p), copy_bits<__m256i>(valid), copy_bits<__m256i>(v));
    } else if constexpr (sizeof(element_t<V>) == 4) {
        _mm_maskstore_epi32(reinterpret_cast<int*>(p), copy_bits<__m128i>(valid), copy_bits<__m128i>(v));
    } else if constexpr (sizeof(V) == 32) {
        _mm256_maskstore_epi64(reinterpret_cast<long long*>(p), copy_bits<__m256i>(valid), copy_bits<__m256i>(v));
    } else {
        _mm_maskstore_epi64(reinterpret_cast<long long*>(p), copy_bits<__m128i>(valid), copy_bits<__m128i>(v));
    }
}
#endif

/// count, limited to what 32-bit lanes hold without a wrap.
LM_INLINE int32_t clamp_count(int64_t count) {
    return static_cast<int32_t>(count < 0 ? 0 : count > 64 ? 64 : count);
}
template <class V> LM_INLINE mask_of<V> lanes_below(int64_t count) {
    using I = rebind<int_t<sizeof(element_t<V>)>, V>;
    return less(iota<lanes<V>>(element_t<I>{0}), splat<I>(static_cast<element_t<I>>(clamp_count(count))));
}

}  // namespace detail

/// The lanes below count are loaded, the others are fill and not read; any count is allowed.
template <int N, class T> LM_INLINE vec<T, N> load_partial(const T* p, int64_t count, compute_t<T> fill = {}) {
    using V = vec<T, N>;
    if constexpr (!detail::is_plain<T>) {
        const auto stored = load_partial<N>(detail::stored_pointer(p), count, detail::stored_fill<T>(fill));
        return detail::from_stored<T>(stored);
    } else if constexpr (is_scalar<V>) {
        return count > 0 ? detail::read(p) : fill;
    } else if constexpr (is_wide<V>) {
        return join(load_partial<N / 2>(p, count, fill), load_partial<N / 2>(p + N / 2, count - N / 2, fill));
    } else {
#if defined(LM_AVX512)
        return detail::load_bits(p, detail::count_bits<N>(count), splat<V>(fill));
#else
#if defined(LM_AVX2)
        if constexpr (detail::has_vector_mask<V>) {
            return detail::load_vector_mask(p, detail::lanes_below<V>(count), splat<V>(fill));
        }
#endif
        return detail::load_where<N>(p, [count](int i) LM_LAMBDA { return i < count; }, fill);
#endif
    }
}

/// Moves N elements as they lie in memory, and puts zeros where they would lie. Few are moved as one integer.
template <int N, class T> LM_INLINE void move_elements(T* to, const T* from) {
    __builtin_memmove(static_cast<void*>(to), static_cast<const void*>(from), N * sizeof(T));
}
template <int N, class T> LM_INLINE void clear_elements(T* to) {
    __builtin_memset(static_cast<void*>(to), 0, N * sizeof(T));
}

/// Stores the lanes below count.
template <class T, class V> LM_INLINE void store_partial(T* p, V v, int64_t count) {
    if constexpr (!detail::is_plain<T>) {
        store_partial(detail::stored_pointer(p), detail::to_stored<T>(v), count);
    } else if constexpr (is_scalar<V>) {
        if (count > 0) detail::write<T>(p, v);
    } else if constexpr (is_wide<V>) {
        store_partial(p, low(v), count);
        store_partial(p + lanes<V> / 2, high(v), count - lanes<V> / 2);
    } else {
        static_assert(std::is_same_v<element_t<V>, T>, "convert before storing");
#if defined(LM_AVX512)
        detail::store_bits(p, v, detail::count_bits<lanes<V>>(count));
#else
#if defined(LM_AVX2)
        if constexpr (detail::has_vector_mask<V>) {
            detail::store_vector_mask(p, v, detail::lanes_below<V>(count));
            return;
        }
#endif
        detail::store_where(p, v, [count](int i) LM_LAMBDA { return i < count; });
#endif
    }
}

/// Lanes where valid is false are fill and not read.
template <int N, class T, class M>
LM_INLINE vec<T, N> load_masked(const T* p, M valid, compute_t<T> fill = {}) {
    using V = vec<T, N>;
    if constexpr (!detail::is_plain<T>) {
        const auto stored = load_masked<N>(detail::stored_pointer(p), valid, detail::stored_fill<T>(fill));
        return detail::from_stored<T>(stored);
    } else if constexpr (is_scalar<V>) {
        return valid ? detail::read(p) : fill;
    } else if constexpr (is_wide<V>) {
        return join(load_masked<N / 2>(p, low(valid), fill), load_masked<N / 2>(p + N / 2, high(valid), fill));
    } else {
#if defined(LM_AVX512)
        return detail::load_bits(p, detail::mask_bits(valid), splat<V>(fill));
#else
#if defined(LM_AVX2)
        if constexpr (detail::has_vector_mask<V>) {
            return detail::load_vector_mask(p, mask_of<V>(valid), splat<V>(fill));
        }
#endif
        return detail::load_where<N>(p, [valid](int i) LM_LAMBDA { return extract(valid, i); }, fill);
#endif
    }
}

/// Stores the lanes where valid is true.
template <class T, class V, class M> LM_INLINE void store_masked(T* p, V v, M valid) {
    if constexpr (!detail::is_plain<T>) {
        store_masked(detail::stored_pointer(p), detail::to_stored<T>(v), valid);
    } else if constexpr (is_scalar<V>) {
        if (valid) detail::write<T>(p, v);
    } else if constexpr (is_wide<V>) {
        store_masked(p, low(v), low(valid));
        store_masked(p + lanes<V> / 2, high(v), high(valid));
    } else {
        static_assert(std::is_same_v<element_t<V>, T>, "convert before storing");
#if defined(LM_AVX512)
        detail::store_bits(p, v, detail::mask_bits(valid));
#else
#if defined(LM_AVX2)
        if constexpr (detail::has_vector_mask<V>) {
            detail::store_vector_mask(p, v, mask_of<V>(valid));
            return;
        }
#endif
        detail::store_where(p, v, [valid](int i) LM_LAMBDA { return extract(valid, i); });
#endif
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
