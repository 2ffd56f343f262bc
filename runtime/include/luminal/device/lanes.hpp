// The functions of scalars on vectors, lane by lane. Comparisons give vec<bool, N>.
#pragma once

#include "luminal/device/convert.hpp"
#include "luminal/device/division.hpp"
#include "luminal/device/math.hpp"

namespace lm {
inline namespace LM_RUNTIME {

// One function of vectors for a function of one, two or three scalars.
#define LM_LANEWISE_1(NAME)                                                                                 \
    template <class T, int N> LM_DEVICE auto NAME(vec<T, N> a) {                                            \
        vec<decltype(NAME(a.lane[0])), N> r;                                                                \
        LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = NAME(a.lane[i]);                                  \
        return r;                                                                                           \
    }
#define LM_LANEWISE_2(NAME)                                                                                 \
    template <class T, int N> LM_DEVICE auto NAME(vec<T, N> a, vec<T, N> b) {                               \
        vec<decltype(NAME(a.lane[0], b.lane[0])), N> r;                                                     \
        LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = NAME(a.lane[i], b.lane[i]);                       \
        return r;                                                                                           \
    }
#define LM_LANEWISE_3(NAME)                                                                                 \
    template <class T, int N> LM_DEVICE vec<T, N> NAME(vec<T, N> a, vec<T, N> b, vec<T, N> c) {             \
        vec<T, N> r;                                                                                        \
        LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = NAME(a.lane[i], b.lane[i], c.lane[i]);            \
        return r;                                                                                           \
    }
LM_LANEWISE_1(neg)
LM_LANEWISE_1(abs)
LM_LANEWISE_1(sqrt)
LM_LANEWISE_1(recip)
LM_LANEWISE_1(round_even)
LM_LANEWISE_1(floor)
LM_LANEWISE_1(ceil)
LM_LANEWISE_1(trunc)
LM_LANEWISE_1(bit_not)
LM_LANEWISE_2(add)
LM_LANEWISE_2(sub)
LM_LANEWISE_2(mul)
LM_LANEWISE_2(div)
LM_LANEWISE_2(mod)
LM_LANEWISE_2(lesser)
LM_LANEWISE_2(greater)
LM_LANEWISE_2(max)
LM_LANEWISE_2(less)
LM_LANEWISE_2(equal)
LM_LANEWISE_2(bit_and)
LM_LANEWISE_2(bit_or)
LM_LANEWISE_2(bit_xor)
LM_LANEWISE_2(shl)
LM_LANEWISE_2(shr)
LM_LANEWISE_2(copy_sign)
LM_LANEWISE_3(fma)
LM_LANEWISE_3(multiply_add)
#undef LM_LANEWISE_1
#undef LM_LANEWISE_2
#undef LM_LANEWISE_3

// Of bytes, four at a time.
#define LM_WORDWISE(NAME, T, RESULT)                                                             \
    template <int N> LM_DEVICE vec<T, N> NAME(vec<T, N> a, vec<T, N> b) {                        \
        if constexpr (N % 4 == 0) {                                                              \
            LM_UNROLL for (int i = 0; i < N / 4; ++i) {                                          \
                const uint32_t x = detail::word(a, i), y = detail::word(b, i);                   \
                a = detail::with_word(a, i, RESULT);                                             \
            }                                                                                    \
        } else {                                                                                 \
            LM_UNROLL for (int i = 0; i < N; ++i) a.lane[i] = NAME(a.lane[i], b.lane[i]);        \
        }                                                                                        \
        return a;                                                                                \
    }
LM_WORDWISE(bit_and, uint8_t, x & y)
LM_WORDWISE(bit_and, int8_t, x & y)
LM_WORDWISE(bit_or, uint8_t, x | y)
LM_WORDWISE(bit_or, int8_t, x | y)
LM_WORDWISE(bit_xor, uint8_t, x ^ y)
LM_WORDWISE(bit_xor, int8_t, x ^ y)
// No byte carries into the next: the highest bits are added apart.
LM_WORDWISE(add, uint8_t, ((x & 0x7f7f7f7fu) + (y & 0x7f7f7f7fu)) ^ ((x ^ y) & 0x80808080u))
LM_WORDWISE(add, int8_t, ((x & 0x7f7f7f7fu) + (y & 0x7f7f7f7fu)) ^ ((x ^ y) & 0x80808080u))
#undef LM_WORDWISE

/// condition ? a : b in every lane.
template <class T, int N> LM_DEVICE vec<T, N> select(vec<bool, N> condition, vec<T, N> a, vec<T, N> b) {
    vec<T, N> r;
    LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = condition.lane[i] ? a.lane[i] : b.lane[i];
    return r;
}

template <class T, int N> LM_DEVICE vec<T, N> exp2_scaled(vec<T, N> x, T hi, T lo) {
    LM_UNROLL for (int i = 0; i < N; ++i) x.lane[i] = exp2_scaled(x.lane[i], hi, lo);
    return x;
}
template <int Digits, class T, int N> LM_DEVICE vec<T, N> exp2_scaled(vec<T, N> x, T hi, T lo) {
    LM_UNROLL for (int i = 0; i < N; ++i) x.lane[i] = exp2_scaled<Digits>(x.lane[i], hi, lo);
    return x;
}
template <class T, int N> LM_DEVICE vec<T, N> log2_scaled(vec<T, N> x, T hi, T lo) {
    LM_UNROLL for (int i = 0; i < N; ++i) x.lane[i] = log2_scaled(x.lane[i], hi, lo);
    return x;
}
template <class T, int N> LM_DEVICE vec<T, N> sin_quadrant(vec<T, N> x, int quadrant) {
    LM_UNROLL for (int i = 0; i < N; ++i) x.lane[i] = sin_quadrant(x.lane[i], quadrant);
    return x;
}

// ---- Casts --------------------------------------------------------------------------------------------------------

template <class To, class T, int N> LM_DEVICE vec<compute_t<To>, N> convert(vec<T, N> v) {
    vec<compute_t<To>, N> r;
    if constexpr (is_byte<To>() && is_byte<T>() && N % 4 == 0) {
        LM_UNROLL for (int i = 0; i < N / 4; ++i) r = detail::with_word(r, i, detail::word(v, i));
    } else {
        LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = convert<To>(v.lane[i]);
    }
    return r;
}
/// convert<To>(round_even(v) + zero), an integer of 8 or 16 bits; `zero` is a To.
template <class To, int zero = 0> LM_DEVICE To quantise(float v) {
    return convert<To>(round_even(v) + static_cast<float>(zero));
}
/// What quantise<To, zero>(v) stands for: convert<float>(convert<int32_t>(quantise<To, zero>(v)) - zero).
template <class To, int zero = 0> LM_DEVICE float fake_quantise(float v) {
    return static_cast<float>(static_cast<int32_t>(quantise<To, zero>(v)) - zero);
}
template <class To, int zero = 0, int N> LM_DEVICE vec<To, N> quantise(vec<float, N> v) {
    vec<To, N> r;
    LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = quantise<To, zero>(v.lane[i]);
    return r;
}
template <class To, int zero = 0, int N> LM_DEVICE vec<float, N> fake_quantise(vec<float, N> v) {
    LM_UNROLL for (int i = 0; i < N; ++i) v.lane[i] = fake_quantise<To, zero>(v.lane[i]);
    return v;
}
template <class To, class T, int N> LM_DEVICE vec<To, N> bitcast(vec<T, N> v) {
    vec<To, N> r;
    LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = bitcast<To>(v.lane[i]);
    return r;
}
template <class S, int N> LM_DEVICE vec<compute_t<S>, N> decode(vec<bits_t<S>, N> bits) {
    vec<compute_t<S>, N> r;
    LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = decode<S>(bits.lane[i]);
    return r;
}
template <class S, int N> LM_DEVICE vec<bits_t<S>, N> encode(vec<compute_t<S>, N> v) {
    vec<bits_t<S>, N> r;
    LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = encode<S>(v.lane[i]);
    return r;
}

// ---- Making vectors, taking them apart ----------------------------------------------------------------------------

namespace detail {

/// The type of N lanes: T itself where N is 1.
template <class T, int N> struct lanes_of { using type = vec<T, N>; };
template <class T> struct lanes_of<T, 1> { using type = T; };
template <class T, int N> using lanes_t = typename lanes_of<T, N>::type;

/// A lane of a vector, or a scalar, which is a vector of one lane; v with another value in that lane; how many lanes.
template <class T, int N> LM_DEVICE T lane(vec<T, N> v, int i) { return v.lane[i]; }
template <class T> LM_DEVICE T lane(T v, int) { return v; }
template <class T, int N> LM_DEVICE vec<T, N> with_lane(vec<T, N> v, int i, T value) {
    v.lane[i] = value;
    return v;
}
template <class T> LM_DEVICE T with_lane(T, int, T value) { return value; }
template <class T> struct lane_count { enum { value = 1 }; };
template <class T, int N> struct lane_count<vec<T, N>> { enum { value = N }; };

}  // namespace detail

/// Every lane = value.
template <int N, class T> LM_DEVICE detail::lanes_t<T, N> broadcast(T value) {
    if constexpr (N == 1) {
        return value;
    } else {
        vec<T, N> r;
        LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = value;
        return r;
    }
}

/// start, start + 1, ...; integers wrap.
template <int N, class T> LM_DEVICE detail::lanes_t<T, N> iota(T start) {
    detail::lanes_t<T, N> r{};
    LM_UNROLL for (int i = 0; i < N; ++i) r = detail::with_lane(r, i, add(start, static_cast<T>(i)));
    return r;
}

/// 0, step, 2*step, ...: positions in memory, from the first lane's.
template <int N> LM_DEVICE detail::lanes_t<int32_t, N> multiples(int32_t step) {
    detail::lanes_t<int32_t, N> r{};
    LM_UNROLL for (int i = 0; i < N; ++i) r = detail::with_lane(r, i, i * step);
    return r;
}

/// True in the lanes 0 .. count-1; in none where count <= 0.
template <int N> LM_DEVICE detail::lanes_t<bool, N> lanes_below(int64_t count) {
    detail::lanes_t<bool, N> r{};
    LM_UNROLL for (int i = 0; i < N; ++i) r = detail::with_lane(r, i, i < count);
    return r;
}

/// True in the lanes first .. N-1; in all where first <= 0.
template <int N> LM_DEVICE detail::lanes_t<bool, N> lanes_from(int64_t first) {
    detail::lanes_t<bool, N> r{};
    LM_UNROLL for (int i = 0; i < N; ++i) r = detail::with_lane(r, i, i >= first);
    return r;
}

/// One lane; lane is in [0, N).
template <class V> LM_DEVICE auto extract(V v, int lane) { return detail::lane(v, lane); }

// ---- Reductions of a vector ---------------------------------------------------------------------------------------

/// Whether some lane, whether every lane is true.
template <int N> LM_DEVICE bool any(vec<bool, N> v) {
    bool r = v.lane[0];
    LM_UNROLL for (int i = 1; i < N; ++i) r = r || v.lane[i];
    return r;
}
template <int N> LM_DEVICE bool all(vec<bool, N> v) { return !any(bit_not(v)); }

/// The sum of all lanes, added in a fixed tree: second half onto the first until one lane is left. Integers wrap.
template <class T> LM_DEVICE T reduce_add(T v) { return v; }
template <class T, int N> LM_DEVICE T reduce_add(vec<T, N> v) {
    LM_UNROLL for (int left = N / 2; left > 0; left /= 2) {
        LM_UNROLL for (int i = 0; i < left; ++i) v.lane[i] = add(v.lane[i], v.lane[i + left]);
    }
    return v.lane[0];
}

/// The maximum of all lanes, NaN if one is NaN; any() for bools.
template <class T> LM_DEVICE T reduce_max(T v) { return v; }
template <class T, int N> LM_DEVICE T reduce_max(vec<T, N> v) {
    LM_UNROLL for (int left = N / 2; left > 0; left /= 2) {
        LM_UNROLL for (int i = 0; i < left; ++i) v.lane[i] = max(v.lane[i], v.lane[i + left]);
    }
    return v.lane[0];
}

}  // namespace LM_RUNTIME
}  // namespace lm
