// sin_quadrant: sine and cosine.
#pragma once

#include "luminal/device/math_reduce.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace detail {

LM_DEVICE float sine_kernel(float r, float) {
    const float u = r * r;
    return fma(r * u, polynomial(u, -0x1.555544p-3f, 0x1.1106aep-7f, -0x1.990f92p-13f), r);
}
LM_DEVICE float cosine_kernel(float r, float) {
    const float u = r * r;
    return fma(u * u, polynomial(u, 0x1.555548p-5f, -0x1.6c0af4p-10f, 0x1.99911cp-16f), fma(u, -0.5f, 1.0f));
}

#if defined(LM_DOUBLE)
LM_DEVICE double sine_kernel(double r, double tail) {
    const double u = r * r;
    const double p = polynomial(u, -0x1.5555555555545p-3, 0x1.111111110f26dp-7, -0x1.a01a019b4e184p-13,
                                0x1.71de34ccefbe2p-19, -0x1.ae5ddfc627351p-26, 0x1.5d6bdd8266e9ep-33);
    return r + fma(r * u, p, tail - 0.5 * u * tail);
}
LM_DEVICE double cosine_kernel(double r, double tail) {
    const double u = r * r;
    const double p = polynomial(u, 0x1.5555555555548p-5, -0x1.6c16c16c149a6p-10, 0x1.a01a019bef2c7p-16,
                                -0x1.27e4f77e49039p-22, 0x1.1ee98d8a370e6p-29, -0x1.8f7e04a76b13ep-37);
    const double half = 0.5 * u, upper = 1.0 - half;
    return upper + (((1.0 - upper) - half) + fma(u * u, p, -(r * tail)));
}
#endif

}  // namespace detail

/// sin(x + quadrant * pi/2): 0 is the sine, 1 the cosine, 2 and 3 their negatives; within 2 ULP for every x. NaN for
/// infinities; sin(-0) = -0.
template <class T> LM_DEVICE T sin_quadrant(T x, int quadrant) {
    static_assert(is_float<T>(), "a float type");
    const detail::Reduced<T> reduced = detail::reduce(x);
    const uint32_t turns = reduced.quadrant + static_cast<uint32_t>(quadrant);
    // The sums above lose the sign of zero.
    const T sine = x == 0 ? x : detail::sine_kernel(reduced.r, reduced.tail);
    const T value = (turns & 1) != 0 ? detail::cosine_kernel(reduced.r, reduced.tail) : sine;
    return (turns & 2) != 0 ? -value : value;
}

}  // namespace LM_RUNTIME
}  // namespace lm
