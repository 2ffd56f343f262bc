// What the emulated driver writes into a CUtensorMap, and the emulator reads there.
#pragma once

#include <stdint.h>

namespace lm_emulated {

/// An array of `rank` dimensions, the first fastest, of which boxes are copied, swizzled by 128 bytes. `strides` are those
/// of the dimensions but the first, in bytes.
struct TensorMap {
    uint64_t address;
    uint32_t rank, itemsize;
    uint64_t sizes[5], strides[4];
    uint32_t box[5];
    uint32_t mark;  // MARK, where it is one

    static constexpr uint32_t MARK = 0x70616d62;
};
static_assert(sizeof(TensorMap) <= 128, "a CUtensorMap");

}  // namespace lm_emulated
