// Comparisons, selection, bits and shifts on vec<T, N>, masks and scalars.
#pragma once

#include "luminal/lane_cast.hpp"

namespace lm {
inline namespace LM_RUNTIME {

// ---- Comparisons and selection ------------------------------------------------------------------------------------

namespace detail {

/// The mask of a compiler's comparison (a bool for scalars).
template <class V, class R> LM_INLINE mask_of<V> comparison(R result) {
    if constexpr (is_scalar<V>) {
        return result;
    } else {
        using M = mask_of<V>;
        return M(copy_bits<decltype(M::lanes)>(result));
    }
}

/// Scalars shorter than int would be promoted to int, whose overflow is undefined: promote them to unsigned instead.
template <class U> LM_INLINE auto promote(U v) {
    if constexpr (is_scalar<U>) {
        return static_cast<std::common_type_t<U, unsigned>>(v);
    } else {
        return v;
    }
}

/// Whether some bit of a compiler vector is set.
template <class I> LM_INLINE bool any_bit(I v) {
    if constexpr (sizeof(I) <= 8) {
        return copy_bits<uint_t<sizeof(I)>>(v) != 0;
#if defined(LM_AVX512)
    } else if constexpr (sizeof(I) == 64) {
        return _mm512_test_epi64_mask(copy_bits<__m512i>(v), copy_bits<__m512i>(v)) != 0;
#endif
#if defined(LM_AVX2)
    } else if constexpr (sizeof(I) == 32) {
        return !_mm256_testz_si256(copy_bits<__m256i>(v), copy_bits<__m256i>(v));
#endif
#if defined(LM_NEON)
    } else if constexpr (sizeof(I) == 16) {
        return vmaxvq_u32(copy_bits<uint32x4_t>(v)) != 0;
#endif
    } else {
        return any_bit(low(v) | high(v));
    }
}

}  // namespace detail

/// a < b; false where unordered; false < true.
template <class V> LM_INLINE auto less(V a, V b) {
    if constexpr (is_bool<V> && !is_scalar<V>) {
        return V(lift([](auto x, auto y) LM_LAMBDA { return ~x & y; }, a.lanes, b.lanes));
    } else {
        return lift([](auto x, auto y) LM_LAMBDA { return detail::comparison<decltype(x)>(x < y); }, a, b);
    }
}

/// a == b; false where unordered, and -0 == +0.
template <class V> LM_INLINE auto equal(V a, V b) {
    if constexpr (is_bool<V> && !is_scalar<V>) {
        return V(lift([](auto x, auto y) LM_LAMBDA { return ~(x ^ y); }, a.lanes, b.lanes));
    } else {
        return lift([](auto x, auto y) LM_LAMBDA { return detail::comparison<decltype(x)>(x == y); }, a, b);
    }
}

/// condition ? a : b in every lane; a and b may be masks themselves.
template <class M, class V> LM_INLINE V select(M condition, V a, V b) {
    static_assert(is_bool<M> && lanes<M> == lanes<V>);
    if constexpr (is_scalar<V>) {
        return condition ? a : b;
    } else if constexpr (is_bool<V>) {
        return V(select(condition, a.lanes, b.lanes));
    } else {
        const mask_of<V> matching = condition;
        return lift([](auto m, auto x, auto y) LM_LAMBDA { return m.lanes ? x : y; }, matching, a, b);
    }
}

// ---- Bits ---------------------------------------------------------------------------------------------------------

namespace detail {

/// f on bits: on a mask's lanes, on integers themselves.
template <class F, class V, class... Vs> LM_INLINE V on_bits(F f, V a, Vs... rest) {
    if constexpr (is_bool<V> && !is_scalar<V>) {
        return V(lift(f, a.lanes, rest.lanes...));
    } else {
        static_assert(!is_float<V>);
        return lift([f](auto... v) LM_LAMBDA { return static_cast<first_t<decltype(v)...>>(f(v...)); }, a, rest...);
    }
}

}  // namespace detail

/// Integers bitwise; masks and bools logically.
template <class V> LM_INLINE V bit_and(V a, V b) {
    return detail::on_bits([](auto x, auto y) LM_LAMBDA { return x & y; }, a, b);
}
template <class V> LM_INLINE V bit_or(V a, V b) {
    return detail::on_bits([](auto x, auto y) LM_LAMBDA { return x | y; }, a, b);
}
template <class V> LM_INLINE V bit_xor(V a, V b) {
    return detail::on_bits([](auto x, auto y) LM_LAMBDA { return x ^ y; }, a, b);
}
template <class V> LM_INLINE V bit_not(V a) {
    if constexpr (std::is_same_v<V, bool>) {
        return !a;
    } else {
        return detail::on_bits([](auto x) LM_LAMBDA { return ~x; }, a);
    }
}
// Masks of different lane widths meet at the narrower one.
template <int A, int B, int N, class = std::enable_if_t<A != B>> LM_INLINE auto bit_and(mask<A, N> a, mask<B, N> b) {
    using M = mask<(A < B ? A : B), N>;
    return bit_and(M(a), M(b));
}
template <int A, int B, int N, class = std::enable_if_t<A != B>> LM_INLINE auto bit_or(mask<A, N> a, mask<B, N> b) {
    using M = mask<(A < B ? A : B), N>;
    return bit_or(M(a), M(b));
}
template <int A, int B, int N, class = std::enable_if_t<A != B>> LM_INLINE auto bit_xor(mask<A, N> a, mask<B, N> b) {
    using M = mask<(A < B ? A : B), N>;
    return bit_xor(M(a), M(b));
}
template <class M, int A, int B, int N, class = std::enable_if_t<A != B>>
LM_INLINE auto select(M condition, mask<A, N> a, mask<B, N> b) {
    using Narrower = mask<(A < B ? A : B), N>;
    return select(condition, Narrower(a), Narrower(b));
}
template <int A, int B, int N, class = std::enable_if_t<A != B>> LM_INLINE auto equal(mask<A, N> a, mask<B, N> b) {
    return bit_not(bit_xor(a, b));
}
template <int A, int B, int N, class = std::enable_if_t<A != B>> LM_INLINE auto less(mask<A, N> a, mask<B, N> b) {
    return bit_and(bit_not(a), b);
}

/// Whether some lane, whether every lane is true.
template <class M> LM_INLINE bool any(M m) {
    if constexpr (is_scalar<M>) {
        return m;
    } else if constexpr (is_wide<M>) {
        return any(bit_or(low(m), high(m)));
    } else {
        return detail::any_bit(m.lanes);
    }
}
template <class M> LM_INLINE bool all(M m) { return !any(bit_not(m)); }

/// The same bits as another element type of the same size.
template <class To, class V> LM_INLINE auto bitcast(V v) {
    static_assert(sizeof(To) == sizeof(element_t<V>));
    return copy_bits<rebind<To, V>>(v);
}

/// a * 2^b modulo 2^bits; 0 where b is outside [0, bits).
template <class V> LM_INLINE V shl(V a, V b) {
    using T = element_t<V>;
    using U = std::make_unsigned_t<T>;
    return lift([](auto x, auto y) LM_LAMBDA {
        using X = decltype(x);
        using UX = rebind<U, X>;
        constexpr U bits = 8 * sizeof(T);
        const UX amount = bitcast<U>(y), value = bitcast<U>(x);
        const UX shifted = static_cast<UX>(detail::promote(value) << (amount & splat<UX>(bits - 1)));
        return bitcast<T>(select(less(amount, splat<UX>(bits)), shifted, splat<UX>(0)));
    }, a, b);
}

/// floor(a / 2^b): arithmetic for signed types, logical for unsigned ones. Where b is outside [0, bits), the limit of
/// large b: 0, or -1 for negative a.
template <class V> LM_INLINE V shr(V a, V b) {
    using T = element_t<V>;
    using U = std::make_unsigned_t<T>;
    return lift([](auto x, auto y) LM_LAMBDA {
        using X = decltype(x);
        using UX = rebind<U, X>;
        constexpr U bits = 8 * sizeof(T);
        const UX amount = bitcast<U>(y);
        const auto inside = less(amount, splat<UX>(bits));
        const X count = bitcast<T>(select(inside, amount, splat<UX>(bits - 1)));
        const X shifted = static_cast<X>(x >> count);
        return is_signed<V> ? shifted : select(inside, shifted, splat<X>(0));
    }, a, b);
}

}  // namespace LM_RUNTIME
}  // namespace lm
