// Numbers of 2 or 4 bits that share bytes, the first in the lowest bits.
#pragma once

#include "luminal/simd.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Lanes of uint8_t -> lanes of float: the numbers of the integer type T that begin at the bit `amount`, less than 8, of
/// every lane. The same as convert<float>(convert<T>(shr(bytes, amount))).
template <class T, class V> LM_INLINE auto digits(V bytes, V amount) {
    using U = rebind<uint32_t, V>;
    using I = rebind<int32_t, V>;
    if constexpr (is_scalar<V> || is_wide<U>) {
        return convert<float>(convert<T>(shr(bytes, amount)));
    } else {
        // Shifts of lanes of 32 bits are instructions everywhere, those of bytes nowhere.
        const U bits = lane_cast<uint32_t>(bytes) >> lane_cast<uint32_t>(amount);
#if defined(LM_AVX512)
        if constexpr (lanes<V> == 16) {
            // A permutation looks up 16 numbers at once by the four lowest bits of each lane.
            const auto numbers = convert<float>(convert<T>(iota<16>(uint8_t{0})));
            const __m512i at = copy_bits<__m512i>(bits);  // GCC 12 warns of the unmasked form's own header
            return copy_bits<vec<float, 16>>(_mm512_maskz_permutexvar_ps(0xffff, at, copy_bits<__m512>(numbers)));
        } else
#endif
        if constexpr (std::is_signed_v<compute_t<T>>) {
            constexpr int above = narrow_traits<T>::largest == 7 ? 28 : 30;
            return lane_cast<float>(bitcast<int32_t>(bits << above) >> above);
        } else {
            return lane_cast<float>(copy_bits<I>(bits & splat<U>(narrow_traits<T>::largest)));
        }
    }
}

namespace detail {

/// Lanes of bytes as lanes of 32 bits, which have instructions for shifts; bytes have none.
template <class V> LM_INLINE auto words(V bytes) { return copy_bits<vec<uint32_t, sizeof(V) / 4>>(bytes); }

/// The same byte four times.
constexpr uint32_t four_times(uint32_t byte) { return 0x01010101u * (byte & 0xffu); }

}  // namespace detail

/// Lanes of uint8_t, shifted by Amount, less than 8.
template <int Amount, class V> LM_INLINE V shifted_right(V bytes) {
    return copy_bits<V>(detail::words(bytes) >> Amount & detail::four_times(0xffu >> Amount));
}
template <int Amount, class V> LM_INLINE V shifted_left(V bytes) {
    return copy_bits<V>(detail::words(bytes) << Amount & detail::four_times(0xffu << Amount));
}

/// Lanes of uint8_t -> lanes of bytes: the numbers of the integer type T that begin at the bit Amount of every lane.
template <class T, int Amount, class V> LM_INLINE auto digits_in_bytes(V bytes) {
    using Byte = compute_t<T>;
    constexpr bool is_signed = std::is_signed_v<Byte>;
    constexpr uint32_t mask = is_signed ? 2 * narrow_traits<T>::largest + 1 : narrow_traits<T>::largest;
    const V bits = copy_bits<V>(detail::words(bytes) >> Amount & detail::four_times(mask));
    if constexpr (is_signed) {  // the highest bit counts as negative
        const V highest = splat<V>(static_cast<uint8_t>((mask + 1) / 2));
        return bitcast<Byte>((bits ^ highest) - highest);
    } else {
        return bits;
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
