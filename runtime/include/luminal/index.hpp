// Arithmetic on indices, for operands of either sign. Divisors are positive.
#pragma once

#include <stdint.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
inline int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
inline int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace LM_NAMESPACE
}  // namespace lm
