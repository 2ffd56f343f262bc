// Division and remainder: integers without traps, floats exactly.
#pragma once

#include <math.h>

#include "luminal/convert.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// The truncated quotient of integers; b is neither 0 nor -1.
///
/// There is no vector instruction. A float type F with p bits gives the exact result where a and b are below 2^p: the
/// quotient is at least 1/b short of the next integer, more than rounding can bridge.
template <class V> LM_INLINE V quotient(V a, V b) {
    using T = element_t<V>;
    if constexpr (is_scalar<V>) {
        return static_cast<T>(a / b);
    } else if constexpr (sizeof(T) < 8) {
        using F = std::conditional_t<(sizeof(T) < 4), float, double>;
        using Via = std::conditional_t<(sizeof(T) < 4), int32_t, T>;
        const auto divided = lift([](auto x, auto y) LM_LAMBDA { return x / y; }, lane_cast<F>(a), lane_cast<F>(b));
        return lane_cast<T>(lane_cast<Via>(divided));
    } else {
#if defined(LM_AVX512)
        // Beyond 2^53 (also after a negative number's wrap to unsigned) the lanes go one by one.
        const auto far = [](V v) LM_LAMBDA {
            using U = rebind<uint64_t, V>;
            return any(less(splat<U>(uint64_t{1} << 53), bitcast<uint64_t>(abs(v))));
        };
        if (__builtin_expect(!far(a) && !far(b), 1)) {
            return lane_cast<T>(lift([](auto x, auto y) LM_LAMBDA { return x / y; }, lane_cast<double>(a),
                                     lane_cast<double>(b)));
        }
#endif
        return generate<lanes<V>>([=](int i) LM_LAMBDA { return static_cast<T>(extract(a, i) / extract(b, i)); });
    }
}

/// The remainder of truncated division. Quotients of floats below 2^28 truncate correctly in double arithmetic, being
/// further from the next integer than a rounding reaches, and the product is exact; C's fmod does the others.
template <class V> LM_INLINE V truncated_remainder(V a, V b) {
    using T = element_t<V>;
    if constexpr (std::is_same_v<T, float>) {
        const auto x = lane_cast<double>(a), y = lane_cast<double>(b);
        const auto ratio = lift([](auto p, auto q) LM_LAMBDA { return p / q; }, x, y);
        using D = rebind<double, V>;
        const auto near = less(abs(ratio), splat<D>(0x1p28));
        const auto slow = bit_and(bit_not(near), less(abs(a), splat<V>(__builtin_inff())));
        if (__builtin_expect(any(slow), 0)) {
            return generate<lanes<V>>([=](int i) LM_LAMBDA { return fmodf(extract(a, i), extract(b, i)); });
        }
        // x - 0 * infinity would be NaN; the quotient 0 leaves x itself.
        const D whole = trunc(ratio);
        const D product = select(equal(whole, splat<D>(0)), splat<D>(0), mul(whole, y));
        return lane_cast<float>(sub(x, product));
    } else {
        return generate<lanes<V>>([=](int i) LM_LAMBDA { return fmod(extract(a, i), extract(b, i)); });
    }
}

}  // namespace detail

/// Floats: IEEE. Integers: the truncated quotient; x / 0 = 0, and the smallest integer by -1 is itself.
template <class V> LM_INLINE V div(V a, V b) {
    if constexpr (is_float<V>) {
        return lift([](auto x, auto y) LM_LAMBDA { return x / y; }, a, b);
    } else {
        const V zero = splat<V>(0), one = splat<V>(1);
        const auto by_zero = equal(b, zero);
        if constexpr (is_signed<V>) {
            const auto by_minus_one = equal(b, splat<V>(-1));
            const V q = detail::quotient(a, select(bit_or(by_zero, by_minus_one), one, b));
            return select(by_zero, zero, select(by_minus_one, neg(a), q));
        } else {
            return select(by_zero, zero, detail::quotient(a, select(by_zero, one, b)));
        }
    }
}

/// The remainder of floored division, which has the divisor's sign.
///
/// Integers: x mod 0 = 0. Floats, as numpy and Python: the exact remainder of the truncated division, plus the divisor
/// if the signs differ; a zero result has the divisor's sign; NaN for an infinite x or a zero divisor; by an infinite
/// divisor x itself or, where the signs differ, the divisor.
template <class V> LM_INLINE V mod(V a, V b) {
    const V zero = splat<V>(0);
    if constexpr (is_float<V>) {
        const V r = detail::truncated_remainder(a, b);
        const auto differs = bit_xor(less(b, zero), less(r, zero));
        const V shifted = select(differs, add(r, b), r);
        return select(equal(r, zero), copy_sign(zero, b), shifted);
    } else {
        const V r = sub(a, mul(div(a, b), b));
        const V floored = [&]() LM_LAMBDA {
            if constexpr (is_signed<V>) {
                const auto differs = bit_and(less(bit_xor(r, b), zero), bit_not(equal(r, zero)));
                return select(differs, add(r, b), r);
            } else {
                return r;
            }
        }();
        return select(equal(b, zero), zero, floored);
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
