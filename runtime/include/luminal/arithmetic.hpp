// Elementwise arithmetic on vec<T, N> and scalars: total, with the meaning that numpy gives each operation.
#pragma once

#include "luminal/logic.hpp"

namespace lm {
inline namespace LM_RUNTIME {

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

// ---- Fused multiply-add, minimum and maximum -----------------------------------------------------------------------

namespace detail {

#if defined(LM_NEON)
/// A register of floats in the type that arm_neon.h has for it.
LM_INLINE float32x4_t in_neon(vec<float, 4> v) { return copy_bits<float32x4_t>(v); }
LM_INLINE float64x2_t in_neon(vec<double, 2> v) { return copy_bits<float64x2_t>(v); }
#endif

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
#elif defined(LM_NEON)
template <class V> LM_INLINE V fused_multiply_add(V a, V b, V c) {
    if constexpr (std::is_same_v<element_t<V>, float>) {
        return copy_bits<V>(vfmaq_f32(in_neon(c), in_neon(a), in_neon(b)));
    } else {
        return copy_bits<V>(vfmaq_f64(in_neon(c), in_neon(a), in_neon(b)));
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

namespace detail {

/// a + b in double, rounded to odd: where it is inexact, to the neighbour whose last bit is set. Rounded to float, the
/// sum is then rounded as if once (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
template <class V> LM_INLINE V add_to_odd(V a, V b) {
    using Bits = rebind<int64_t, V>;
    const V total = a + b;
    const V used = total - a;
    const V error = (a - (total - used)) + (b - used);
    const Bits bits = bitcast<int64_t>(total);
    const Bits away = splat<Bits>(1), towards_zero = splat<Bits>(-1), zero = splat<Bits>(0);
    const Bits same_sign = select(equal(less(error, splat<V>(0)), less(total, splat<V>(0))), away, towards_zero);
    const auto inexact = bit_or(less(error, splat<V>(0)), less(splat<V>(0), error));  // not where it is NaN
    const auto even = equal(bits & splat<Bits>(1), zero);
    return bitcast<double>(bits + select(bit_and(inexact, even), same_sign, zero));
}

}  // namespace detail

/// a * b + c for floats, rounded once on every target; slow where not lm::fused.
template <class V> LM_INLINE V multiply_add(V a, V b, V c) {
    static_assert(is_float<V>);
    if constexpr (fused) {
        return fma(a, b, c);
    } else if constexpr (std::is_same_v<element_t<V>, float>) {
        const auto product = mul(lane_cast<double>(a), lane_cast<double>(b));  // exact: 48 bits
        const auto sum = lift([](auto x, auto y) LM_LAMBDA { return detail::add_to_odd(x, y); }, product,
                              lane_cast<double>(c));
        return lane_cast<float>(sum);
    } else {
        return lift([](auto x, auto y, auto z) LM_LAMBDA {
            return generate<lanes<decltype(x)>>([=](int i) LM_LAMBDA {
                return __builtin_fma(extract(x, i), extract(y, i), extract(z, i));
            });
        }, a, b, c);
    }
}

namespace detail {

#if defined(__x86_64__)

// x86's max and min give their second operand where one is NaN or both are zero.
template <class V> LM_INLINE V x86_max(V a, V b) {
    if constexpr (std::is_same_v<element_t<V>, float>) {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_maskz_max_ps(0xffff, a, b);
#endif
#if defined(LM_AVX2)
        if constexpr (sizeof(V) == 32) return _mm256_max_ps(a, b);
#endif
        if constexpr (sizeof(V) == 16) return _mm_max_ps(a, b);
    } else {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_maskz_max_pd(0xff, a, b);
#endif
#if defined(LM_AVX2)
        if constexpr (sizeof(V) == 32) return _mm256_max_pd(a, b);
#endif
        if constexpr (sizeof(V) == 16) return _mm_max_pd(a, b);
    }
}

template <class V> LM_INLINE V x86_min(V a, V b) {
    if constexpr (std::is_same_v<element_t<V>, float>) {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_maskz_min_ps(0xffff, a, b);
#endif
#if defined(LM_AVX2)
        if constexpr (sizeof(V) == 32) return _mm256_min_ps(a, b);
#endif
        if constexpr (sizeof(V) == 16) return _mm_min_ps(a, b);
    } else {
#if defined(LM_AVX512)
        if constexpr (sizeof(V) == 64) return _mm512_maskz_min_pd(0xff, a, b);
#endif
#if defined(LM_AVX2)
        if constexpr (sizeof(V) == 32) return _mm256_min_pd(a, b);
#endif
        if constexpr (sizeof(V) == 16) return _mm_min_pd(a, b);
    }
}

#if defined(LM_AVX512)

/// The larger, with its sign: +0 is above -0; the number beside a NaN.
template <class V> LM_INLINE V larger_number(V a, V b) {
    constexpr int code = 0b0101;
    if constexpr (std::is_same_v<element_t<V>, float>) {
        if constexpr (sizeof(V) == 64) return _mm512_maskz_range_ps(0xffff, a, b, code);
        if constexpr (sizeof(V) == 32) return _mm256_maskz_range_ps(0xff, a, b, code);
        if constexpr (sizeof(V) == 16) return _mm_maskz_range_ps(0xf, a, b, code);
    } else {
        if constexpr (sizeof(V) == 64) return _mm512_maskz_range_pd(0xff, a, b, code);
        if constexpr (sizeof(V) == 32) return _mm256_maskz_range_pd(0xf, a, b, code);
        if constexpr (sizeof(V) == 16) return _mm_maskz_range_pd(0x3, a, b, code);
    }
}

/// a + b in the lanes where either is NaN, elsewhere as in `number`.
template <class V> LM_INLINE V keep_nan(V number, V a, V b) {
    if constexpr (std::is_same_v<element_t<V>, float>) {
        if constexpr (sizeof(V) == 64)
            return _mm512_mask_add_ps(number, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
        if constexpr (sizeof(V) == 32)
            return _mm256_mask_add_ps(number, _mm256_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
        if constexpr (sizeof(V) == 16) return _mm_mask_add_ps(number, _mm_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
    } else {
        if constexpr (sizeof(V) == 64)
            return _mm512_mask_add_pd(number, _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q), a, b);
        if constexpr (sizeof(V) == 32)
            return _mm256_mask_add_pd(number, _mm256_cmp_pd_mask(a, b, _CMP_UNORD_Q), a, b);
        if constexpr (sizeof(V) == 16) return _mm_mask_add_pd(number, _mm_cmp_pd_mask(a, b, _CMP_UNORD_Q), a, b);
    }
}

template <class V> LM_INLINE V max_register(V a, V b) { return keep_nan(larger_number(a, b), a, b); }

/// The largest lane, of those that are numbers.
template <class V> LM_INLINE element_t<V> reduce_numbers(V v) {
    if constexpr (sizeof(V) > 16) {
        const auto half = low(v);
        return reduce_numbers(lift_registers([](auto a, auto b) LM_LAMBDA { return larger_number(a, b); }, half, high(v)));
    } else if constexpr (lanes<V> == 4) {
        const V pairs = larger_number(v, V(__builtin_shufflevector(v, v, 2, 3, 0, 1)));
        return larger_number(pairs, V(__builtin_shufflevector(pairs, pairs, 1, 0, 3, 2)))[0];
    } else {
        return larger_number(v, V(__builtin_shufflevector(v, v, 1, 0)))[0];
    }
}

#else

template <class V> LM_INLINE V max_register(V a, V b) {
    // Both orders agree but for zeros of different signs, where `and` clears the sign, and for NaN, where all bits
    // set are a NaN.
    using U = uint_t<sizeof(element_t<V>)>;
    const auto ordered = bit_and(bitcast<U>(x86_max(a, b)), bitcast<U>(x86_max(b, a)));
    const auto a_nan = bitcast<U>(a != a), b_nan = bitcast<U>(b != b);
    return bitcast<element_t<V>>(bit_or(ordered, bit_or(a_nan, b_nan)));
}

#endif

#elif defined(LM_NEON)

template <class V> LM_INLINE V max_register(V a, V b) {
    if constexpr (std::is_same_v<element_t<V>, float>) return copy_bits<V>(vmaxq_f32(in_neon(a), in_neon(b)));
    if constexpr (std::is_same_v<element_t<V>, double>) return copy_bits<V>(vmaxq_f64(in_neon(a), in_neon(b)));
}

#else

template <class V> LM_INLINE V max_register(V a, V b) {
    // Where a == b the bits differ in the sign of zero alone, and `and` clears it.
    using U = uint_t<sizeof(element_t<V>)>;
    const V same = bitcast<element_t<V>>(bit_and(bitcast<U>(a), bitcast<U>(b)));
    const V ordered = select(less(b, a), a, select(equal(a, b), same, b));
    return select(equal(a, a), ordered, a);
}

#endif

}  // namespace detail

/// a < b ? a : b, so b where the two are equal or unordered.
template <class V> LM_INLINE V lesser(V a, V b) {
    static_assert(is_float<V>);
#if defined(__x86_64__)
    return lift_registers([](auto x, auto y) LM_LAMBDA { return detail::x86_min(x, y); }, a, b);
#else
    return select(less(a, b), a, b);
#endif
}

/// a < b ? b : a, so a where the two are equal or unordered.
template <class V> LM_INLINE V greater(V a, V b) {
    static_assert(is_float<V>);
#if defined(__x86_64__)
    return lift_registers([](auto x, auto y) LM_LAMBDA { return detail::x86_max(y, x); }, a, b);
#else
    return select(less(a, b), b, a);
#endif
}

/// The larger; NaN if either is NaN; max(-0, +0) = +0; or for bools.
template <class V> LM_INLINE V max(V a, V b) {
    if constexpr (is_bool<V>) {
        return bit_or(a, b);
    } else if constexpr (is_integer<V>) {
        // Compilers see one instruction in this where masks would be two.
        return lift_registers([](auto x, auto y) LM_LAMBDA { return x < y ? y : x; }, a, b);
    } else {
        return lift_registers([](auto x, auto y) LM_LAMBDA { return detail::max_register(x, y); }, a, b);
    }
}

template <int A, int B, int N, class = std::enable_if_t<A != B>> LM_INLINE auto max(mask<A, N> a, mask<B, N> b) {
    return bit_or(a, b);
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
#elif defined(LM_NEON)
        return copy_bits<V>(vsqrtq_f32(in_neon(x)));
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
#elif defined(LM_NEON)
        return copy_bits<V>(vsqrtq_f64(in_neon(x)));
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
#elif defined(LM_NEON)
    const auto v = in_neon(x);
    if constexpr (std::is_same_v<T, float>) {
        if constexpr (mode == Rounding::nearest_even) return copy_bits<V>(vrndnq_f32(v));
        if constexpr (mode == Rounding::floor) return copy_bits<V>(vrndmq_f32(v));
        if constexpr (mode == Rounding::ceil) return copy_bits<V>(vrndpq_f32(v));
        if constexpr (mode == Rounding::truncate) return copy_bits<V>(vrndq_f32(v));
    } else {
        if constexpr (mode == Rounding::nearest_even) return copy_bits<V>(vrndnq_f64(v));
        if constexpr (mode == Rounding::floor) return copy_bits<V>(vrndmq_f64(v));
        if constexpr (mode == Rounding::ceil) return copy_bits<V>(vrndpq_f64(v));
        if constexpr (mode == Rounding::truncate) return copy_bits<V>(vrndq_f64(v));
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
#if defined(LM_AVX512)
    } else if constexpr (is_float<V> && sizeof(V) >= 16) {
        // One look for NaN instead of one at every level of the tree.
        const auto numbers = detail::reduce_numbers(v);
        return any(bit_not(equal(v, v))) ? static_cast<element_t<V>>(__builtin_nan("")) : numbers;
#endif
    } else {
        return reduce_max(max(low(v), high(v)));
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
