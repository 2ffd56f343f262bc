// Arithmetic on indices of either sign. Divisors are positive.
#pragma once

#include <stdint.h>

#include "luminal/namespace.hpp"

// Inlined everywhere: kernels and the library that calls them are compiled for different instruction sets, and a
// function kept out of line would be shared between them.
#define LM_INDEX inline __attribute__((always_inline))

namespace lm {
inline namespace LM_RUNTIME {

LM_INDEX int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
LM_INDEX int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
LM_INDEX int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
LM_INDEX int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace LM_RUNTIME
}  // namespace lm
