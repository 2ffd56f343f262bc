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

    /// Whether member `me` of the group gets a message from another one, `source`.
    bool receives(int32_t me, int32_t source) const {
        switch (kind) {
            case part: return false;
            case broadcast: return source == number;
            case shift: return source == me - number;
            default: return true;
        }
    }
};

}  // namespace LM_RUNTIME
}  // namespace lm
