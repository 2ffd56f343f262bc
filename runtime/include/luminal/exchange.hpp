// What ranks exchange with each other.
#pragma once

#include <stdint.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// What is exchanged, and with whom: `size` ranks, `stride` apart. `number` is the root of a broadcast, how far a shift
/// goes, or the member of them that this rank alone sends to, or receives from.
struct Exchange {
    enum Kind { gather, transpose, part, broadcast, shift, send, receive };
    Kind kind;
    int32_t size;
    int32_t stride;
    int32_t number;
};

}  // namespace LM_RUNTIME
}  // namespace lm
