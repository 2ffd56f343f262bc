// sin_quadrant: sine and cosine over the full range.
#pragma once

#include "luminal/convert.hpp"
#include "luminal/math_common.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

/// x = quadrant * pi/2 + (r + tail), |r| <= pi/4 and a little; only quadrant modulo 4 counts.
template <class V> struct Reduced {
    V r, tail;
    rebind<uint_t<sizeof(element_t<V>)>, V> quadrant;
};

/// The reduction for any finite |x| >= 1 (Payne and Hanek, "Radian reduction for trigonometric functions", 1983): of
/// 2/pi only those 192 bits are multiplied that neither give whole turns nor vanish.
inline __attribute__((noinline, cold)) Reduced<double> reduce_large(double x) {
    static constexpr uint64_t two_over_pi[20] = {
        0,  // bits before the point
        0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561, 0xb7246e3a424dd2e0,
        0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4,
        0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
        0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab,
    };
    using uint128_t = unsigned __int128;
    const uint64_t bits = copy_bits<uint64_t>(x);
    const int biased = static_cast<int>(bits >> 52) & 0x7ff;
    if (biased == 0x7ff) return {x - x, 0, 0};
    // |x| = mantissa * 2^(biased - 1075). Bit j after the point of 2/pi counts mantissa * 2^(biased - 1075 - j): a
    // multiple of 4, whole turns, for j < biased - 1076.
    const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
    const int first = biased - 1077 + 64;  // counted from the table's start
    const int word = first / 64, shift = first % 64;
    uint64_t window[3];
    for (int i = 0; i < 3; ++i) {
        const uint64_t next = shift == 0 ? 0 : two_over_pi[word + i + 1] >> (64 - shift);
        window[i] = two_over_pi[word + i] << shift | next;
    }
    // product = |x| * 2/pi modulo 4, in units of 2^-190.
    const uint128_t low = uint128_t{mantissa} * window[2];
    const uint128_t middle = uint128_t{mantissa} * window[1] + static_cast<uint64_t>(low >> 64);
    const uint64_t top = mantissa * window[0] + static_cast<uint64_t>(middle >> 64);
    const uint64_t middle_word = static_cast<uint64_t>(middle), low_word = static_cast<uint64_t>(low);
    uint64_t quadrant = top >> 62;
    uint128_t fraction = uint128_t{top << 2 | middle_word >> 62} << 64 | (middle_word << 2 | low_word >> 62);
    // To the nearest quadrant: the fraction in [-1/2, 1/2).
    const bool below = (fraction >> 127) != 0;
    quadrant += below;
    if (below) fraction = -fraction;
    if (fraction == 0) return {0, 0, 0};
    const uint64_t upper = static_cast<uint64_t>(fraction >> 64);
    const int zeros = upper != 0 ? __builtin_clzll(upper) : 64 + __builtin_clzll(static_cast<uint64_t>(fraction));
    const uint128_t normal = fraction << zeros;
    const auto part = [zeros](uint64_t value, int weight) {  // value * 2^(-weight - zeros), value below 2^53
        return static_cast<double>(value) * copy_bits<double>(static_cast<uint64_t>(1023 - weight - zeros) << 52);
    };
    const double hi = part(static_cast<uint64_t>(normal >> 75), 53);
    const double lo = part(static_cast<uint64_t>(normal >> 22) & ((uint64_t{1} << 53) - 1), 106);
    constexpr double half_pi = 0x1.921fb54442d18p+0, half_pi_tail = 0x1.1a62633145c07p-54;
    const double r = hi * half_pi;
    const double tail = __builtin_fma(hi, half_pi, -r) + (hi * half_pi_tail + lo * half_pi);
    const bool negative = (bits >> 63) != below;
    return {negative ? -r : r, negative ? -tail : tail, (bits >> 63) != 0 ? -quadrant : quadrant};
}

/// reduce_large for those of `lanes` values that lie beyond limit (infinities included).
template <class T, class U>
inline __attribute__((noinline, cold)) void reduce_large_lanes(const T* x, T limit, T* r, T* tail, U* quadrant,
                                                               int lanes) {
    for (int i = 0; i < lanes; ++i) {
        if (!(__builtin_fabs(x[i]) > limit)) continue;
        const Reduced<double> large = reduce_large(x[i]);
        r[i] = static_cast<T>(large.r);
        tail[i] = static_cast<T>(large.tail);
        quadrant[i] = static_cast<U>(large.quadrant);
    }
}

/// `reduced`, made right in the lanes where x is beyond limit.
template <class V> LM_INLINE Reduced<V> with_large(V x, element_t<V> limit, Reduced<V> reduced) {
    using T = element_t<V>;
    if (__builtin_expect(any(less(splat<V>(limit), abs(x))), 0)) {
        constexpr int n = lanes<V>;
        T values[n], r[n], tail[n];
        uint_t<sizeof(T)> quadrant[n];
        __builtin_memcpy(values, &x, sizeof x);
        __builtin_memcpy(r, &reduced.r, sizeof x);
        __builtin_memcpy(tail, &reduced.tail, sizeof x);
        __builtin_memcpy(quadrant, &reduced.quadrant, sizeof x);
        reduce_large_lanes(values, limit, r, tail, quadrant, n);
        __builtin_memcpy(&reduced.r, r, sizeof x);
        __builtin_memcpy(&reduced.tail, tail, sizeof x);
        __builtin_memcpy(&reduced.quadrant, quadrant, sizeof x);
    }
    return reduced;
}

/// Floats reduce in double arithmetic, pi/2 in two parts of which the first has exact multiples; no tail is needed.
template <class V> LM_INLINE Reduced<V> reduce_float(V x) {
    constexpr float limit = 0x1p17f;  // beyond, the quotient's rounding in float would move r too far
    const V shift = splat<V>(integer_shift<float>);
    const V shifted = fma(x, splat<V>(0x1.45f306p-1f), shift);
    const auto n = lane_cast<double>(shifted - shift);
    using D = rebind<double, V>;
    const D upper = fma(n, splat<D>(-0x1.921fb54400000p+0), lane_cast<double>(x));
    const D r = fma(n, splat<D>(-0x1.0b4611a626331p-34), upper);
    return with_large<V>(x, limit, {lane_cast<float>(r), splat<V>(0), bitcast<uint32_t>(shifted)});
}

/// pi/2 in four parts; multiples of the first three are exact, and each subtraction's error joins the tail.
template <class V> LM_INLINE Reduced<V> reduce_double(V x) {
    constexpr double limit = 0x1p19;
    const V shift = splat<V>(integer_shift<double>);
    const V shifted = fma(x, splat<V>(0x1.45f306dc9c883p-1), shift);
    const V n = shifted - shift;
    const V part1 = x - n * splat<V>(0x1.921fb54400000p+0);
    const V second = n * splat<V>(0x1.0b4611a600000p-34), third = n * splat<V>(0x1.3198a2e000000p-69);
    const auto difference_error = [](V a, V b, V difference) LM_LAMBDA {  // Knuth's exact subtraction
        const V b_used = a - difference, a_used = difference + b_used;
        return (a - a_used) + (b_used - b);
    };
    const V part2 = part1 - second;
    const V error2 = difference_error(part1, second, part2);
    const V part3 = part2 - third;
    const V error3 = difference_error(part2, third, part3);
    const V rest = (error2 + error3) - n * splat<V>(0x1.b839a252049c1p-104);
    const V r = part3 + rest;
    return with_large<V>(x, limit, {r, (part3 - r) + rest, bitcast<uint64_t>(shifted)});
}

template <class V> LM_INLINE V sine_kernel(V r, V tail) {
    const V u = r * r;
    if constexpr (std::is_same_v<element_t<V>, float>) {
        return fma(r * u, polynomial(u, -0x1.555544p-3f, 0x1.1106aep-7f, -0x1.990f92p-13f), r);
    } else {
        const V p = polynomial(u, -0x1.5555555555545p-3, 0x1.111111110f26dp-7, -0x1.a01a019b4e184p-13,
                               0x1.71de34ccefbe2p-19, -0x1.ae5ddfc627351p-26, 0x1.5d6bdd8266e9ep-33);
        return r + fma(r * u, p, tail - splat<V>(0.5) * u * tail);
    }
}

template <class V> LM_INLINE V cosine_kernel(V r, V tail) {
    const V u = r * r;
    if constexpr (std::is_same_v<element_t<V>, float>) {
        const V p = polynomial(u, 0x1.555548p-5f, -0x1.6c0af4p-10f, 0x1.99911cp-16f);
        return fma(u * u, p, fma(u, splat<V>(-0.5f), splat<V>(1)));
    } else {
        const V p = polynomial(u, 0x1.5555555555548p-5, -0x1.6c16c16c149a6p-10, 0x1.a01a019bef2c7p-16,
                               -0x1.27e4f77e49039p-22, 0x1.1ee98d8a370e6p-29, -0x1.8f7e04a76b13ep-37);
        const V half = splat<V>(0.5) * u;
        const V upper = splat<V>(1) - half;
        return upper + (((splat<V>(1) - upper) - half) + fma(u * u, p, neg(r * tail)));
    }
}

template <class V> LM_INLINE V sine_register(V x, int quadrant) {
    using T = element_t<V>;
    using U = uint_t<sizeof(T)>;
    using Bits = rebind<U, V>;
    Reduced<V> reduced;
    if constexpr (std::is_same_v<T, float>) {
        reduced = reduce_float(x);
    } else {
        reduced = reduce_double(x);
    }
    const Bits turns = reduced.quadrant + splat<Bits>(static_cast<U>(quadrant & 3));
    const auto odd = equal(turns & splat<Bits>(1), splat<Bits>(1));
    // The sums above lose the sign of zero.
    const V sine = select(equal(x, splat<V>(0)), x, sine_kernel(reduced.r, reduced.tail));
    const V value = select(odd, cosine_kernel(reduced.r, reduced.tail), sine);
    const Bits sign = (turns & splat<Bits>(2)) << splat<Bits>(8 * sizeof(T) - 2);
    return bitcast<T>(bitcast<U>(value) ^ sign);
}

}  // namespace detail

/// sin(x + quadrant * pi/2): 0 is the sine, 1 the cosine, 2 and 3 their negatives; within 2 ULP for every x. NaN for
/// infinities; sin(-0) = -0.
template <class V> LM_INLINE V sin_quadrant(V x, int quadrant) {
    static_assert(is_float<V>);
    return lift_registers([quadrant](auto v) LM_LAMBDA { return detail::sine_register(v, quadrant); }, x);
}

}  // namespace LM_RUNTIME
}  // namespace lm
