// Sums of products of the lanes of two vectors; and numbers of 2 or 4 bits that share bytes, beside each other.
#pragma once

#include "luminal/device/lanes.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

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
/// Shifted by an amount less than 8 that all lanes have.
template <int N> LM_DEVICE vec<uint8_t, N> shifted_right(vec<uint8_t, N> bytes, vec<uint8_t, N> amounts) {
    const int amount = amounts.lane[0];
    if constexpr (N % 4 == 0) {
        const uint32_t kept = detail::four_times(0xffu >> amount);
        LM_UNROLL for (int i = 0; i < N / 4; ++i) {
            bytes = detail::with_word(bytes, i, detail::word(bytes, i) >> amount & kept);
        }
    } else {
        LM_UNROLL for (int i = 0; i < N; ++i) bytes.lane[i] = static_cast<uint8_t>(bytes.lane[i] >> amount);
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

// Of a single byte.
template <int Amount> LM_DEVICE uint8_t shifted_right(uint8_t byte) { return static_cast<uint8_t>(byte >> Amount); }
template <int Amount> LM_DEVICE uint8_t shifted_left(uint8_t byte) { return static_cast<uint8_t>(byte << Amount); }
LM_DEVICE uint8_t shifted_right(uint8_t byte, uint8_t amount) { return static_cast<uint8_t>(byte >> amount); }
template <class T, int Amount> LM_DEVICE compute_t<T> digits_in_bytes(uint8_t byte) {
    return convert<T>(static_cast<uint8_t>(byte >> Amount));
}

}  // namespace LM_RUNTIME
}  // namespace lm
