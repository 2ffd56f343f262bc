// Vectors: types, halves, and how one function serves every lane count.
//
// vec<T, N> is the register type for N lanes of T:
//   N == 1                     T itself, so that scalar code calls the very same functions;
//   at most a register         a compiler vector (operators work, arrays of them stay in registers);
//   more than a register       wide<Half>, a pair of halves. Compilers accept oversized vectors but compare and
//                              convert them lane by lane, so the halves are explicit;
//   T = bool                   mask<4, N>; comparisons give mask<bytes of a lane, N>, and masks convert implicitly;
//   T = float16, int4_t, ...   vec<compute_t<T>, N>: these types exist in memory only, arithmetic is in float or bytes.
#pragma once

#include <stddef.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "luminal/narrow_types.hpp"

#if defined(__GNUC__) && !defined(__clang__)
// Every function below is inlined, so the calling convention of wide vectors never matters.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define LM_INLINE inline __attribute__((always_inline))
#define LM_LAMBDA __attribute__((always_inline))

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LM_AVX2 1
#endif
#if defined(LM_AVX2) && defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define LM_AVX512 1
#endif
#if defined(__aarch64__)
#define LM_NEON 1
#endif

namespace lm {
inline namespace LM_RUNTIME {

#if defined(LM_AVX512)
inline constexpr int register_bytes = 64;
#elif defined(LM_AVX2)
inline constexpr int register_bytes = 32;
#else
inline constexpr int register_bytes = 16;
#endif

/// Whether fma(a, b, c) rounds once.
#if defined(LM_AVX2) || defined(LM_NEON) || defined(__riscv_v)
inline constexpr bool fused = true;
#else
inline constexpr bool fused = false;
#endif

template <class T> inline constexpr bool is_half = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;
template <class T> inline constexpr bool is_narrow_float = narrow_traits<T>::is_float != 0;
template <class T> inline constexpr bool is_narrow_integer = narrow_traits<T>::is_integer != 0;

/// Whether T exists in memory only.
template <class T> inline constexpr bool is_stored = is_half<T> || is_narrow_float<T> || is_narrow_integer<T>;

/// The type in which a value of storage type T is computed.
template <class T> using compute_t = std::conditional_t<is_half<T>, float, typename narrow_traits<T>::compute>;

template <int Bytes> struct integer_of_size;
template <> struct integer_of_size<1> { using type = int8_t; };
template <> struct integer_of_size<2> { using type = int16_t; };
template <> struct integer_of_size<4> { using type = int32_t; };
template <> struct integer_of_size<8> { using type = int64_t; };
template <int Bytes> using int_t = typename integer_of_size<Bytes>::type;
template <int Bytes> using uint_t = std::make_unsigned_t<int_t<Bytes>>;

template <class T, class...> struct first_of { using type = T; };
template <class... Ts> using first_t = typename first_of<Ts...>::type;

template <class Half> struct wide { Half lo, hi; };
template <int Bytes, int N> struct mask;

template <class T, int N, class = void> struct vector_of { using type = wide<typename vector_of<T, N / 2>::type>; };
template <class T> struct vector_of<T, 1> { using type = compute_t<T>; };
template <class T, int N>
struct vector_of<T, N, std::enable_if_t<(N > 1) && is_stored<T>>> {
    using type = typename vector_of<compute_t<T>, N>::type;
};
template <int N> struct vector_of<bool, N, std::enable_if_t<(N > 1)>> { using type = mask<4, N>; };
template <class T, int N>
struct vector_of<T, N, std::enable_if_t<(N > 1) && std::is_arithmetic_v<T> && !std::is_same_v<T, bool> &&
                                        (sizeof(T) * N <= register_bytes)>> {
    typedef T type __attribute__((vector_size(sizeof(T) * N)));
};
template <class T, int N> using vec = typename vector_of<T, N>::type;

/// A comparison's result: each lane is all ones (true) or all zeros, Bytes wide.
template <int Bytes, int N> struct mask {
    vec<int_t<Bytes>, N> lanes;

    mask() = default;
    LM_INLINE explicit mask(vec<int_t<Bytes>, N> all_ones_or_zeros) : lanes(all_ones_or_zeros) {}
    template <int Other> LM_INLINE mask(mask<Other, N> other);
};

template <class V> inline constexpr bool is_scalar = std::is_arithmetic_v<V>;

template <class V> struct vector_traits {  // a compiler vector
    using element = std::decay_t<decltype(std::declval<V&>()[0])>;
    static constexpr int lanes = sizeof(V) / sizeof(element);
    static constexpr bool wide = false;
};
template <class H> struct vector_traits<wide<H>> {
    using element = typename vector_traits<H>::element;
    static constexpr int lanes = 2 * vector_traits<H>::lanes;
    static constexpr bool wide = true;
};
template <int B, int N> struct vector_traits<mask<B, N>> {
    using element = bool;
    static constexpr int lanes = N;
    static constexpr bool wide = vector_traits<vec<int_t<B>, N>>::wide;
};
template <class T> struct scalar_traits {
    using element = T;
    static constexpr int lanes = 1;
    static constexpr bool wide = false;
};
template <class V> struct traits : std::conditional_t<is_scalar<V>, scalar_traits<V>, vector_traits<V>> {};
template <class V> struct traits<const V> : traits<V> {};

template <class V> using element_t = typename traits<V>::element;
template <class V> inline constexpr int lanes = traits<V>::lanes;
template <class V> inline constexpr bool is_wide = traits<V>::wide;
template <class V> inline constexpr bool is_bool = std::is_same_v<element_t<V>, bool>;
template <class V> inline constexpr bool is_float = std::is_floating_point_v<element_t<V>>;
template <class V> inline constexpr bool is_integer = !is_float<V> && !is_bool<V>;
template <class V> inline constexpr bool is_signed = std::is_signed_v<element_t<V>>;

/// The vector with V's lane count and another element type.
template <class T, class V> using rebind = vec<T, lanes<V>>;
template <class V> using mask_of = std::conditional_t<lanes<V> == 1, bool, mask<sizeof(element_t<V>), lanes<V>>>;

// ---- Bits, halves -------------------------------------------------------------------------------------------------

template <class To, class From> LM_INLINE To copy_bits(From v) {
    static_assert(sizeof(To) == sizeof(From));
    To r;
    __builtin_memcpy(&r, &v, sizeof r);
    return r;
}

template <class V, size_t... I> LM_INLINE auto shuffle_native(V a, V b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, I...);
}
template <size_t Offset, class V, size_t... I> LM_INLINE auto slice_native(V v, std::index_sequence<I...>) {
    return __builtin_shufflevector(v, v, (Offset + I)...);
}

/// The first and the second half of the lanes.
template <class V> LM_INLINE auto low(V v);
template <class V> LM_INLINE auto high(V v);

template <int Which, class V> LM_INLINE auto half(V v) {
    constexpr int n = lanes<V> / 2;
    if constexpr (n == 1) {
        return static_cast<element_t<V>>(v[Which]);
    } else {
        using Half = rebind<element_t<V>, vec<int8_t, n>>;
        return copy_bits<Half>(slice_native<Which * n>(v, std::make_index_sequence<n>()));
    }
}
template <int Which, int B, int N> LM_INLINE auto half(mask<B, N> m) {
    const auto lanes = half<Which>(m.lanes);
    if constexpr (N == 2) {
        return lanes != 0;
    } else {
        return mask<B, N / 2>(lanes);
    }
}
template <int Which, class H> LM_INLINE H half(wide<H> v) { return Which == 0 ? v.lo : v.hi; }

template <class V> LM_INLINE auto low(V v) { return half<0>(v); }
template <class V> LM_INLINE auto high(V v) { return half<1>(v); }

/// The vector of lo's lanes followed by hi's.
template <class V> LM_INLINE vec<element_t<V>, 2 * lanes<V>> join(V lo, V hi) {
    using Whole = vec<element_t<V>, 2 * lanes<V>>;
    if constexpr (is_wide<Whole>) {
        return Whole{lo, hi};
    } else if constexpr (is_scalar<V>) {
        return Whole{lo, hi};
    } else {
        return copy_bits<Whole>(shuffle_native(lo, hi, std::make_index_sequence<2 * lanes<V>>()));
    }
}
template <int B, int N> LM_INLINE mask<B, 2 * N> join(mask<B, N> lo, mask<B, N> hi) {
    return mask<B, 2 * N>(join(lo.lanes, hi.lanes));
}

// ---- One definition for every width -------------------------------------------------------------------------------

/// f over the register-sized pieces of its arguments: f sees scalars, compiler vectors, or masks of them.
template <class F, class... Vs> LM_INLINE auto lift(F f, Vs... v) {
    if constexpr ((is_wide<Vs> || ...)) {
        return join(lift(f, low(v)...), lift(f, high(v)...));
    } else {
        return f(v...);
    }
}

/// lift for functions from V to vectors of To: the pieces are register-sized on both sides.
template <class To, class F, class V> LM_INLINE auto lift_towards(F f, V v) {
    if constexpr (is_wide<V> || is_wide<rebind<To, V>>) {
        return join(lift_towards<To>(f, low(v)), lift_towards<To>(f, high(v)));
    } else {
        return f(v);
    }
}

/// A scalar or short vector in the low lanes of a 16-byte register, zeros above; anything longer as it is. Short ones
/// go through integers: copied in memory, a short store before a long load would stall.
template <class V> LM_INLINE auto pad_register(V v) {
    if constexpr (sizeof(V) >= 16) {
        return v;
    } else if constexpr (is_scalar<V>) {
        return vec<V, 16 / sizeof(V)>{v};
    } else {
        using Word = int_t<(sizeof(V) == 8 ? 8 : 4)>;
        const Word word = static_cast<Word>(copy_bits<uint_t<sizeof(V)>>(v));
        return copy_bits<vec<element_t<V>, 16 / sizeof(element_t<V>)>>(vec<Word, 16 / sizeof(Word)>{word});
    }
}

/// The low bytes of a register as a scalar or a shorter vector.
template <class V, class Register> LM_INLINE V low_bytes(Register r) {
    if constexpr (sizeof(V) == sizeof(Register)) {
        return copy_bits<V>(r);
    } else if constexpr (sizeof(V) >= 16) {
        V v;
        __builtin_memcpy(&v, &r, sizeof v);
        return v;
    } else if constexpr (is_scalar<V>) {
        return copy_bits<vec<V, sizeof(Register) / sizeof(V)>>(r)[0];
    } else {
        using Word = int_t<(sizeof(V) == 8 ? 8 : 4)>;
        const Word word = copy_bits<vec<Word, sizeof(Register) / sizeof(Word)>>(r)[0];
        return copy_bits<V>(static_cast<uint_t<sizeof(V)>>(word));
    }
}

/// lift for functions V x V x ... -> V written with instructions of at least 16 bytes.
template <class F, class V, class... Vs> LM_INLINE V lift_registers(F f, V first, Vs... rest) {
    if constexpr (is_wide<V>) {
        return join(lift_registers(f, low(first), low(rest)...), lift_registers(f, high(first), high(rest)...));
    } else {
        return low_bytes<V>(f(pad_register(first), pad_register(rest)...));
    }
}

// ---- Making vectors -----------------------------------------------------------------------------------------------

template <class V, class F, size_t... I> LM_INLINE V generate_native(F f, int first, std::index_sequence<I...>) {
    return V{f(first + static_cast<int>(I))...};
}

/// Lane i = f(i); f's result decides the element type.
template <int N, class F> LM_INLINE auto generate(F f, int first = 0) {
    using T = decltype(f(0));
    if constexpr (N == 1) {
        return f(first);
    } else if constexpr (std::is_same_v<T, bool>) {
        return mask<4, N>(generate<N>([f](int i) LM_LAMBDA { return -static_cast<int32_t>(f(i)); }, first));
    } else if constexpr (is_wide<vec<T, N>>) {
        return join(generate<N / 2>(f, first), generate<N / 2>(f, first + N / 2));
    } else {
        return generate_native<vec<T, N>>(f, first, std::make_index_sequence<N>());
    }
}

/// Every lane = value.
template <int N, class T> LM_INLINE vec<T, N> broadcast(T value) {
    return generate<N>([value](int) LM_LAMBDA { return value; });
}

/// broadcast to V's lanes and element type.
template <class V> LM_INLINE std::remove_const_t<V> splat(element_t<V> value) { return broadcast<lanes<V>>(value); }

/// start, start + 1, ...; integers wrap.
template <int N, class T> LM_INLINE vec<T, N> iota(T start) {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        const U first = static_cast<U>(start);
        return generate<N>([first](int i) LM_LAMBDA { return static_cast<T>(first + static_cast<U>(i)); });
    } else {
        return generate<N>([start](int i) LM_LAMBDA { return start + static_cast<T>(i); });
    }
}

/// One lane; lane is in [0, N).
template <class V> LM_INLINE element_t<V> extract(V v, int lane) {
    if constexpr (is_scalar<V>) {
        return v;
    } else if constexpr (is_bool<V>) {
        return extract(v.lanes, lane) != 0;
    } else if constexpr (is_wide<V>) {
        return lane < lanes<V> / 2 ? extract(v.lo, lane) : extract(v.hi, lane - lanes<V> / 2);
    } else {
        return v[lane];
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
