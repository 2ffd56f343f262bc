// float16 and bfloat16: exact decoding, encoding rounded once to nearest even.
//
// Overflow gives infinity, underflow is gradual. NaN stays NaN; what NVIDIA's GPUs encode does not keep its sign and
// upper payload.
#pragma once

#include "luminal/device/arithmetic.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

#if defined(LM_METAL)

LM_DEVICE float float16_to_float(uint16_t h) { return static_cast<float>(as_type<half>(h)); }
LM_DEVICE uint16_t float_to_float16(float v) { return as_type<uint16_t>(static_cast<half>(v)); }

#elif defined(LM_CUDA)

LM_DEVICE float float16_to_float(uint16_t h) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}
LM_DEVICE uint16_t float_to_float16(float v) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

#else

LM_DEVICE float float16_to_float(uint16_t h) {
    const uint32_t sign = uint32_t{h} >> 15 << 31, magnitude = h & 0x7fffu;
    if (magnitude < 0x400) {  // subnormal: a multiple of 2^-24
        return copy_sign(static_cast<float>(magnitude) * 0x1p-24f, bitcast<float>(sign));
    }
    const uint32_t normal = (magnitude << 13) + (112u << 23);  // the exponent's bias: 127 - 15
    const uint32_t special = magnitude << 13 | 0x7f800000 | (magnitude > 0x7c00 ? 0x400000u : 0u);
    return bitcast<float>(sign | (magnitude < 0x7c00 ? normal : special));
}

LM_DEVICE uint16_t float_to_float16(float v) {
    const uint32_t word = bitcast<uint32_t>(v), sign = word >> 16 & 0x8000, magnitude = word & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude < 0x38800000) {
        // Below 2^-14 halves are multiples of 2^-24, which is the last place of floats in [0.5, 1).
        return static_cast<uint16_t>(sign | (bitcast<uint32_t>(abs(v) + 0.5f) - 0x3f000000));
    }
    // Half of the last place less one, plus the last place's own bit: ties go to even.
    const uint32_t normal = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112u << 10);
    return static_cast<uint16_t>(sign | (normal < 0x7c00 ? normal : 0x7c00));
}

#endif

#if defined(LM_CUDA)

LM_DEVICE float bfloat16_to_float(uint16_t h) { return bitcast<float>(static_cast<uint32_t>(h) << 16); }
LM_DEVICE uint16_t float_to_bfloat16(float v) {
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}
/// The upper half of a pair whose lower is zero is the float itself.
LM_DEVICE float float_rounded_to_bfloat16(float v) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(v), "f"(0.0f));
    return bitcast<float>(bits);
}

#else

LM_DEVICE float bfloat16_to_float(uint16_t h) {
    const uint32_t word = static_cast<uint32_t>(h) << 16;
    const float number = bitcast<float>(word);
    return number == number ? number : bitcast<float>(word | 0x400000);
}

LM_DEVICE uint16_t float_to_bfloat16(float v) {
    const uint32_t word = bitcast<uint32_t>(v);
    const uint32_t rounded = word + 0x7fff + (word >> 16 & 1);
    return static_cast<uint16_t>((v == v ? rounded : word | 0x400000) >> 16);
}

#endif

}  // namespace detail

}  // namespace LM_RUNTIME
}  // namespace lm
