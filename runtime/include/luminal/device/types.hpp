// Types: questions about them, the storage types, vectors.
#pragma once

#include "luminal/device/language.hpp"
#include "luminal/narrow_types.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

template <class A, class B> struct same { enum { value = 0 }; };
template <class A> struct same<A, A> { enum { value = 1 }; };

template <bool condition, class A, class B> struct choose { using type = A; };
template <class A, class B> struct choose<false, A, B> { using type = B; };

template <int bytes> struct unsigned_of_size;
template <> struct unsigned_of_size<1> { using type = uint8_t; };
template <> struct unsigned_of_size<2> { using type = uint16_t; };
template <> struct unsigned_of_size<4> { using type = uint32_t; };
template <> struct unsigned_of_size<8> { using type = uint64_t; };

template <class T> struct plain { using type = T; };
template <class T> struct plain<const T> { using type = T; };

/// What a pointer points to, without its address space.
template <class P> struct pointed;
#if defined(LM_ADDRESS_SPACES)
template <class T> struct pointed<thread T*> { using type = typename plain<T>::type; };
template <class T> struct pointed<device T*> { using type = typename plain<T>::type; };
template <class T> struct pointed<constant T*> { using type = typename plain<T>::type; };
template <class T> struct pointed<threadgroup T*> { using type = typename plain<T>::type; };
#else
template <class T> struct pointed<T*> { using type = typename plain<T>::type; };
#endif

}  // namespace detail

template <class A, class B> LM_DEVICE constexpr bool is_same() { return detail::same<A, B>::value != 0; }
template <class T> LM_DEVICE constexpr bool is_half() { return is_same<T, float16>() || is_same<T, bfloat16>(); }
template <class T> LM_DEVICE constexpr bool is_narrow_integer() { return narrow_traits<T>::is_integer != 0; }
/// Whether T exists in memory only.
template <class T> LM_DEVICE constexpr bool is_stored() {
    return is_half<T>() || is_narrow_integer<T>() || narrow_traits<T>::is_float != 0;
}
template <class T> LM_DEVICE constexpr bool is_float() {
#if defined(LM_DOUBLE)
    if (is_same<T, double>()) return true;
#endif
    return is_same<T, float>();
}
template <class T> LM_DEVICE constexpr bool is_bool() { return is_same<T, bool>(); }
/// Whether T is an integer of 8 bits, which is computed as such.
template <class T> LM_DEVICE constexpr bool is_byte() { return is_same<T, int8_t>() || is_same<T, uint8_t>(); }
template <class T> LM_DEVICE constexpr bool is_integer() { return !is_float<T>() && !is_stored<T>() && !is_bool<T>(); }
template <class T> LM_DEVICE constexpr bool is_signed_integer() {
    return is_same<T, int8_t>() || is_same<T, int16_t>() || is_same<T, int32_t>() || is_same<T, int64_t>();
}

template <bool condition, class A, class B> using choose_t = typename detail::choose<condition, A, B>::type;

/// The unsigned integer of as many bytes.
template <class T> using bits_t = typename detail::unsigned_of_size<sizeof(T)>::type;

/// The type in which a value of storage type T is computed.
template <class T> using compute_t =
    choose_t<detail::same<T, float16>::value || detail::same<T, bfloat16>::value, float,
             typename narrow_traits<T>::compute>;

/// The element type of a pointer in any address space.
template <class P> using pointed_t = typename detail::pointed<P>::type;

/// N values of a compute type T that one thread holds: N is 2, 4 or 8. Aligned as memory wants it for one access, of 16
/// bytes at most.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vec { T lane[N]; };

#if defined(LM_CUDA)
// Bytes are words too, four at a time: nvcc moves the members of a union together, those of an array one by one.
#define LM_BYTES(T, N)                                                        \
    template <> struct alignas(N < 16 ? N : 16) vec<T, N> {                   \
        union {                                                               \
            T lane[N];                                                        \
            uint32_t words[N / 4];                                            \
        };                                                                    \
    };
LM_BYTES(int8_t, 4)
LM_BYTES(int8_t, 8)
LM_BYTES(int8_t, 16)
LM_BYTES(uint8_t, 4)
LM_BYTES(uint8_t, 8)
LM_BYTES(uint8_t, 16)
#undef LM_BYTES
#endif

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

}  // namespace detail

}  // namespace LM_RUNTIME
}  // namespace lm
