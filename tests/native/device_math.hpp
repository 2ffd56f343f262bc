// The math functions of GPU kernels, called as those of CPUs: with a constant of one double instead of two parts.
#pragma once

#include "luminal/device/functions.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

/// What the double lacks of the real constant that it stands for.
inline double tail_of(double constant) {
    const double known[][2] = {
        {0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56},   // log2(e)
        {0x1.a934f0979a371p+1, 0x1.7f2495fb7fa6dp-53},   // log2(10)
        {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56},   // ln(2)
        {0x1.34413509f79ffp-2, -0x1.9dc1da994fd21p-59},  // log10(2)
    };
    for (const auto& row : known) {
        const double ratio = constant / row[0];
        if (ratio == 1 || ratio == -0.125) return ratio * row[1];
    }
    return 0;
}

template <class V> auto exp2_scaled(V x, double constant) {
    using T = decltype(extract(x, 0));
    const T hi = static_cast<T>(constant);
    return exp2_scaled(x, hi, static_cast<T>((constant - static_cast<double>(hi)) + tail_of(constant)));
}
/// Of few digits: GPU kernels compute them all.
template <int Digits, class V> auto exp2_scaled(V x, double constant) { return exp2_scaled(x, constant); }

template <class V> auto log2_scaled(V x, double constant) {
    using T = decltype(extract(x, 0));
    const T hi = static_cast<T>(constant);
    return log2_scaled(x, hi, static_cast<T>((constant - static_cast<double>(hi)) + tail_of(constant)));
}

}  // namespace LM_NAMESPACE
}  // namespace lm
