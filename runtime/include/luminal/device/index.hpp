// Arithmetic on indices of either sign. Divisors are positive.
#pragma once

#include "luminal/device/language.hpp"

namespace lm {
inline namespace LM_RUNTIME {

LM_DEVICE int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
LM_DEVICE int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
LM_DEVICE int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
LM_DEVICE int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace LM_RUNTIME
}  // namespace lm
