// Elementwise arithmetic on vec<T, N> and scalars: total, with the meaning that numpy gives each operation.
#pragma once

#include "luminal/lane_cast.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

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

// ---- Addition, multiplication -------------------------------------------------------------------------------------

namespace detail {

/// f in arithmetic modulo 2^bits for integers, where overflow of signed types (and of promoted short ones) would
/// otherwise be undefined; f itself for floats.
template <class F, class V, class... Vs> LM_INLINE V wrapping(F f, V a, Vs... rest) {
    using T = element_t<V>;
    if constexpr (is_float<V>) {
        return lift(f, a, rest...);
    } else {
        using U = std::make_unsigned_t<T>;
        return lift([f](auto... v) LM_LAMBDA {
            using UX = first_t<rebind<U, decltype(v)>...>;
            return bitcast<T>(static_cast<UX>(f(promote(bitcast<U>(v))...)));
        }, a, rest...);
    }
}

}  // namespace detail

/// IEEE for floats; integers wrap.
template <class V> LM_INLINE V add(V a, V b) {
    return detail::wrapping([](auto x, auto y) LM_LAMBDA { return x + y; }, a, b);
}
template <class V> LM_INLINE V sub(V a, V b) {
    return detail::wrapping([](auto x, auto y) LM_LAMBDA { return x - y; }, a, b);
}
template <class V> LM_INLINE V mul(V a, V b) {
    return detail::wrapping([](auto x, auto y) LM_LAMBDA { return x * y; }, a, b);
}
/// Floats: the sign bit alone (NaN included). Integers wrap.
template <class V> LM_INLINE V neg(V a) {
    return detail::wrapping([](auto x) LM_LAMBDA { return -x; }, a);
}
template <class V> LM_INLINE V abs(V a) {
    using T = element_t<V>;
    if constexpr (is_float<V>) {
        using U = uint_t<sizeof(T)>;
        const auto bits = bitcast<U>(a);
        return bitcast<T>(bit_and(bits, splat<decltype(bits)>(static_cast<U>(~U{0} >> 1))));
    } else if constexpr (is_signed<V>) {
        return select(less(a, splat<V>(0)), neg(a), a);
    } else {
        return a;
    }
}

/// |magnitude| with the sign bit of sign.
template <class V> LM_INLINE V copy_sign(V magnitude, V sign) {
    using T = element_t<V>;
    using U = uint_t<sizeof(T)>;
    using Bits = rebind<U, V>;
    const Bits sign_bit = splat<Bits>(U(U{1} << (8 * sizeof(T) - 1)));
    return bitcast<T>(bit_or(bitcast<U>(abs(magnitude)), bit_and(bitcast<U>(sign), sign_bit)));
}

// ---- Fused multiply-add, maximum ----------------------------------------------------------------------------------

namespace detail {

#if defined(LM_AVX2)
template <class V> LM_INLINE V fused_multiply_add(V a, V b, V c) {
    if constexpr (std::is_same_v<element_t<V>, float>) {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_fmadd_ps(a, b, c);
#endif
        if constexpr (sizeof(V) == 32) return _mm256_fmadd_ps(a, b, c);
        if constexpr (sizeof(V) == 16) return _mm_fmadd_ps(a, b, c);
    } else {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_fmadd_pd(a, b, c);
#endif
        if constexpr (sizeof(V) == 32) return _mm256_fmadd_pd(a, b, c);
        if constexpr (sizeof(V) == 16) return _mm_fmadd_pd(a, b, c);
    }
}
#else
template <class V> LM_INLINE V fused_multiply_add(V a, V b, V c) {
    return generate<lanes<V>>([=](int i) LM_LAMBDA {
        if constexpr (std::is_same_v<element_t<V>, float>) {
            return __builtin_fmaf(a[i], b[i], c[i]);
        } else {
            return __builtin_fma(a[i], b[i], c[i]);
        }
    });
}
#endif

}  // namespace detail

/// a * b + c for floats: rounded once where lm::fused, else after the product and after the sum.
template <class V> LM_INLINE V fma(V a, V b, V c) {
    static_assert(is_float<V>);
    if constexpr (fused) {
        return lift_registers([](auto x, auto y, auto z) LM_LAMBDA {
            return detail::fused_multiply_add(x, y, z);
        }, a, b, c);
    } else {
        return add(mul(a, b), c);
    }
}

/// The larger; NaN if either is NaN; max(-0, +0) = +0; or for bools.
template <class V> LM_INLINE V max(V a, V b) {
    if constexpr (is_bool<V>) {
        return bit_or(a, b);
    } else if constexpr (is_integer<V>) {
        return select(less(a, b), b, a);
    } else {
        // Where a == b the bits differ in the sign of zero alone, and `and` clears it.
        using U = uint_t<sizeof(element_t<V>)>;
        const V same = bitcast<element_t<V>>(bit_and(bitcast<U>(a), bitcast<U>(b)));
        const V ordered = select(less(b, a), a, select(equal(a, b), same, b));
        return select(equal(a, a), ordered, a);
    }
}

// ---- Square root, reciprocal, rounding ----------------------------------------------------------------------------

namespace detail {

template <class V> LM_INLINE V square_root(V x) {
    if constexpr (std::is_same_v<element_t<V>, float>) {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_maskz_sqrt_ps(0xffff, x);
#endif
#if defined(LM_AVX2)
        if constexpr (sizeof(V) == 32) return _mm256_sqrt_ps(x);
#endif
#if defined(__x86_64__)
        if constexpr (sizeof(V) == 16) return _mm_sqrt_ps(x);
#else
        return generate<lanes<V>>([x](int i) LM_LAMBDA { return __builtin_sqrtf(x[i]); });
#endif
    } else {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_maskz_sqrt_pd(0xff, x);
#endif
#if defined(LM_AVX2)
        if constexpr (sizeof(V) == 32) return _mm256_sqrt_pd(x);
#endif
#if defined(__x86_64__)
        if constexpr (sizeof(V) == 16) return _mm_sqrt_pd(x);
#else
        return generate<lanes<V>>([x](int i) LM_LAMBDA { return __builtin_sqrt(x[i]); });
#endif
    }
}

enum class Rounding { nearest_even = 0, floor = 1, ceil = 2, truncate = 3 };  // x86's codes

template <Rounding mode, class V> LM_INLINE V round_register(V x) {
    using T = element_t<V>;
#if defined(LM_AVX2)
    constexpr int code = static_cast<int>(mode) | _MM_FROUND_NO_EXC;
    if constexpr (std::is_same_v<T, float>) {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_maskz_roundscale_ps(0xffff, x, code);
#endif
        if constexpr (sizeof(V) == 32) return _mm256_round_ps(x, code);
        if constexpr (sizeof(V) == 16) return _mm_round_ps(x, code);
    } else {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_maskz_roundscale_pd(0xff, x, code);
#endif
        if constexpr (sizeof(V) == 32) return _mm256_round_pd(x, code);
        if constexpr (sizeof(V) == 16) return _mm_round_pd(x, code);
    }
#else
    // Adding and subtracting 2^p, where floats are the integers, rounds |x| < 2^p to the nearest even integer.
    const V integers_from = splat<V>(sizeof(T) == 4 ? T(1 << 23) : T(int64_t{1} << 52));
    const V magnitude = abs(x);
    const V nearest = (magnitude + integers_from) - integers_from;
    V r = nearest;
    if constexpr (mode == Rounding::truncate) r = select(less(magnitude, nearest), nearest - splat<V>(1), nearest);
    r = copy_sign(r, x);
    if constexpr (mode == Rounding::floor) r = select(less(x, r), r - splat<V>(1), r);
    if constexpr (mode == Rounding::ceil) r = copy_sign(select(less(r, x), r + splat<V>(1), r), x);
    return select(less(magnitude, integers_from), r, x);
#endif
}

template <Rounding mode, class V> LM_INLINE V round(V a) {
    if constexpr (is_float<V>) {
        return lift_registers([](auto x) LM_LAMBDA { return round_register<mode>(x); }, a);
    } else {
        return a;
    }
}

}  // namespace detail

/// Correctly rounded; NaN below zero, sqrt(-0) = -0.
template <class V> LM_INLINE V sqrt(V a) {
    return lift_registers([](auto x) LM_LAMBDA { return detail::square_root(x); }, a);
}

/// 1 / a, correctly rounded.
template <class V> LM_INLINE V recip(V a) {
    return lift([](auto x) LM_LAMBDA { return splat<decltype(x)>(1) / x; }, a);
}

/// To an integer value, the sign of zero kept: to nearest with ties to even, down, up, towards zero.
template <class V> LM_INLINE V round_even(V a) { return detail::round<detail::Rounding::nearest_even>(a); }
template <class V> LM_INLINE V floor(V a) { return detail::round<detail::Rounding::floor>(a); }
template <class V> LM_INLINE V ceil(V a) { return detail::round<detail::Rounding::ceil>(a); }
template <class V> LM_INLINE V trunc(V a) { return detail::round<detail::Rounding::truncate>(a); }

// ---- Reductions across lanes --------------------------------------------------------------------------------------

/// The sum of all lanes, added in a fixed tree: second half onto the first until one lane is left. Integers wrap.
template <class V> LM_INLINE element_t<V> reduce_add(V v) {
    if constexpr (is_scalar<V>) {
        return v;
    } else {
        return reduce_add(add(low(v), high(v)));
    }
}

/// The maximum of all lanes, NaN if one is NaN; any() for masks.
template <class V> LM_INLINE element_t<V> reduce_max(V v) {
    if constexpr (is_bool<V>) {
        return any(v);
    } else if constexpr (is_scalar<V>) {
        return v;
    } else {
        return reduce_max(max(low(v), high(v)));
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
