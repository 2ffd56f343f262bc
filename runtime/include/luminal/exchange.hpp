// What ranks exchange with each other.
#pragma once

#include <stdint.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// What is exchanged, and with whom: `size` ranks, `stride` apart. `number` is the root of a broadcast, or how far a
/// shift goes.
struct Exchange {
    enum Kind { gather, transpose, part, broadcast, shift };
    Kind kind;
    int32_t size;
    int32_t stride;
    int32_t number;
};

}  // namespace LM_RUNTIME
}  // namespace lm
