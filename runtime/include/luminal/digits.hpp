// Numbers of 2 or 4 bits that share bytes, the first in the lowest bits.
#pragma once

#include "luminal/simd.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

/// Lanes of uint8_t -> lanes of float: the numbers of type T that begin at the bit `amount` of every lane.
/// The same as convert<float>(convert<T>(shr(bytes, amount))).
template <class T, class V> LM_INLINE auto digits(V bytes, V amount) {
#if defined(LM_AVX512)
    if constexpr (lanes<V> == 16) {
        // A permutation looks up 16 numbers at once by the four lowest bits of each lane.
        const auto numbers = convert<float>(convert<T>(iota<16>(uint8_t{0})));
        __m512i bits = _mm512_cvtepu8_epi32(copy_bits<__m128i>(bytes));
        if (!__builtin_constant_p(amount[0]) || amount[0] != 0) {
            bits = _mm512_srlv_epi32(bits, _mm512_cvtepu8_epi32(copy_bits<__m128i>(amount)));
        }
        return copy_bits<vec<float, 16>>(_mm512_permutexvar_ps(bits, copy_bits<__m512>(numbers)));
    } else
#endif
    return convert<float>(convert<T>(shr(bytes, amount)));
}

}  // namespace LM_NAMESPACE
}  // namespace lm
