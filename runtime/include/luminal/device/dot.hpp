// Sums of products of the lanes of two vectors; and numbers of 2 or 4 bits that share bytes, beside each other.
#pragma once

#include "luminal/device/lanes.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// Bytes 4 * i .. 4 * i + 3, the first in the lowest bits.
template <class T, int N> LM_DEVICE uint32_t word(vec<T, N> v, int i) {
#if defined(LM_CUDA)
    return v.words[i];
#else
    uint32_t r = 0;
    LM_UNROLL for (int j = 0; j < 4; ++j) {
        r |= static_cast<uint32_t>(static_cast<uint8_t>(v.lane[4 * i + j])) << (8 * j);
    }
    return r;
#endif
}
template <class T, int N> LM_DEVICE vec<T, N> with_word(vec<T, N> v, int i, uint32_t bits) {
#if defined(LM_CUDA)
    v.words[i] = bits;
#else
    LM_UNROLL for (int j = 0; j < 4; ++j) v.lane[4 * i + j] = static_cast<T>(static_cast<uint8_t>(bits >> (8 * j)));
#endif
    return v;
}

/// The same byte four times.
LM_DEVICE constexpr uint32_t four_times(uint32_t byte) { return 0x01010101u * (byte & 0xffu); }

/// sum + the products of four bytes each.
template <class A, class B> LM_DEVICE int32_t four_products(uint32_t a, uint32_t b, int32_t sum) {
#if defined(LM_CUDA)
    if constexpr (is_signed_integer<A>() && is_signed_integer<B>()) {
        asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(sum));
    } else if constexpr (is_signed_integer<A>()) {
        asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(sum));
    } else if constexpr (is_signed_integer<B>()) {
        asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(sum));
    } else {
        asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(sum));
    }
    return sum;
#else
    LM_UNROLL for (int j = 0; j < 4; ++j) {
        const A left = static_cast<A>(static_cast<uint8_t>(a >> (8 * j)));
        const B right = static_cast<B>(static_cast<uint8_t>(b >> (8 * j)));
        sum = add(sum, static_cast<int32_t>(left) * static_cast<int32_t>(right));
    }
    return sum;
#endif
}

}  // namespace detail

/// sum + the products of the lanes: of bytes, exactly (int32, which wraps); of floats, four chains of fused
/// multiply-adds that join in the end.
template <class A, class B, int N, class S> LM_DEVICE S dot(vec<A, N> a, vec<B, N> b, S sum) {
    if constexpr (is_byte<A>() && is_byte<B>() && N % 4 == 0) {
        LM_UNROLL for (int i = 0; i < N / 4; ++i) {
            sum = detail::four_products<A, B>(detail::word(a, i), detail::word(b, i), sum);
        }
        return sum;
    } else if constexpr (is_integer<S>()) {
        LM_UNROLL for (int i = 0; i < N; ++i) sum = add(sum, static_cast<S>(a.lane[i]) * static_cast<S>(b.lane[i]));
        return sum;
    } else {
        constexpr int chains = N < 4 ? N : 4;
        vec<S, N> r = mul(a, b);
        LM_UNROLL for (int i = chains; i < N; ++i) {
            r.lane[i % chains] = fma(a.lane[i], b.lane[i], r.lane[i % chains]);
        }
        LM_UNROLL for (int i = 0; i < chains; ++i) sum = add(sum, r.lane[i]);
        return sum;
    }
}

/// Lanes of uint8_t, shifted by Amount, less than 8.
template <int Amount, int N> LM_DEVICE vec<uint8_t, N> shifted_right(vec<uint8_t, N> bytes) {
    if constexpr (N % 4 == 0) {
        LM_UNROLL for (int i = 0; i < N / 4; ++i) {
            bytes = detail::with_word(bytes, i, detail::word(bytes, i) >> Amount & detail::four_times(0xffu >> Amount));
        }
    } else {
        LM_UNROLL for (int i = 0; i < N; ++i) bytes.lane[i] = static_cast<uint8_t>(bytes.lane[i] >> Amount);
    }
    return bytes;
}
template <int Amount, int N> LM_DEVICE vec<uint8_t, N> shifted_left(vec<uint8_t, N> bytes) {
    if constexpr (N % 4 == 0) {
        LM_UNROLL for (int i = 0; i < N / 4; ++i) {
            bytes = detail::with_word(bytes, i, detail::word(bytes, i) << Amount & detail::four_times(0xffu << Amount));
        }
    } else {
        LM_UNROLL for (int i = 0; i < N; ++i) bytes.lane[i] = static_cast<uint8_t>(bytes.lane[i] << Amount);
    }
    return bytes;
}

/// Lanes of uint8_t -> lanes of bytes: the numbers of the integer type T that begin at the bit Amount of every lane.
template <class T, int Amount, int N> LM_DEVICE vec<compute_t<T>, N> digits_in_bytes(vec<uint8_t, N> bytes) {
    vec<compute_t<T>, N> r;
    if constexpr (N % 4 == 0) {
        constexpr bool is_signed = is_signed_integer<compute_t<T>>();
        constexpr uint32_t mask = is_signed ? 2 * narrow_traits<T>::largest + 1 : narrow_traits<T>::largest;
        LM_UNROLL for (int i = 0; i < N / 4; ++i) {
            uint32_t bits = detail::word(bytes, i) >> Amount & detail::four_times(mask);
            if constexpr (is_signed) {  // the highest bit counts as negative: no byte borrows from the next
                constexpr uint32_t high = detail::four_times((mask + 1) / 2), top = detail::four_times(0x80);
                bits = (((bits ^ high) | top) - high) ^ top;
            }
            r = detail::with_word(r, i, bits);
        }
    } else {
        LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = convert<T>(static_cast<uint8_t>(bytes.lane[i] >> Amount));
    }
    return r;
}

}  // namespace LM_RUNTIME
}  // namespace lm
