// The math library of a thread: exponentials, logarithms, sine and cosine of T, float or double.
//
// Within 2 ULP; NaN, infinities and signed zeros as in the C library. Subnormal numbers count on CUDA, and Metal's GPUs
// flush those of float to zero. Constants come in two parts of T, since Metal has no double.
#pragma once

#include "luminal/device/math_exp2.hpp"
#include "luminal/device/math_log2.hpp"
#include "luminal/device/math_sin.hpp"
