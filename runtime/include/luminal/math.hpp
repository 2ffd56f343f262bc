// The vector math library: exponentials, logarithms, sine and cosine of vec<T, N>, T float or double.
//
// Within 2 ULP, subnormal arguments and results included, on every instruction set; NaN, infinities and signed zeros as
// in the C library. The common path has no branches; only sines of large arguments leave it, all lanes tested at once.
// A scalar and a lane of a vector give the same bits.
#pragma once

#include "luminal/math_exp2.hpp"
#include "luminal/math_log2.hpp"
#include "luminal/math_sin.hpp"
#include "luminal/simd.hpp"
