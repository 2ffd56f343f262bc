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

}  // namespace LM_RUNTIME
}  // namespace lm
