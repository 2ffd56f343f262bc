// Constants that must be finite, of every type: no number is refused, infinity and NaN are, wherever they lie.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "luminal/weights.hpp"

namespace {

constexpr int64_t COUNT = 5;
alignas(64) unsigned char image[4096 + 64];

struct Kind {
    int32_t dtype;
    size_t bytes;
    uint64_t numbers[4];  // zero with a sign, the smallest, one, the largest
    uint64_t others[4];   // both infinities, a NaN, a negative one
};

constexpr Kind KINDS[] = {
    {LM_FLOAT16, 2, {0x8000, 1, 0x3c00, 0xfbff}, {0x7c00, 0xfc00, 0x7e00, 0xfc01}},
    {LM_BFLOAT16, 2, {0x8000, 1, 0x3f80, 0xff7f}, {0x7f80, 0xff80, 0x7fc0, 0xff81}},
    {LM_FLOAT32, 4, {0x80000000, 1, 0x3f800000, 0xff7fffff}, {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001}},
    {LM_FLOAT64,
     8,
     {0x8000000000000000, 1, 0x3ff0000000000000, 0xffefffffffffffff},
     {0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0xfff0000000000001}},
};

int32_t opened(const Kind& kind, lm::Message& message) {
    const lm::Finite finite[] = {{"filter", kind.dtype, 0, COUNT}};
    const lm::Model model = {"model", "", nullptr, {}, {}, 64, {}, {}, {}, finite};
    lm::WeightsHeader header{};
    memcpy(header.magic, "LUMINALW", sizeof(header.magic));
    header.version = 2;
    header.payload_offset = 4096;
    header.payload_bytes = 64;
    header.file_bytes = sizeof(image);
    lm::Checksum checksum(header.payload_bytes);
    checksum.add(lm::Checksum::of_block(image + 4096, header.payload_bytes));
    header.checksum = checksum.value();
    memcpy(image, &header, sizeof(header));
    lm::Weights weights;
    return weights.borrow(image, sizeof(image), model, {}, message);
}

}  // namespace

int main() {
    for (const Kind& kind : KINDS) {
        for (int64_t element = 0; element < COUNT; ++element) {
            for (int number = 0; number < 8; ++number) {
                memset(image + 4096, 0, 64);
                memset(image + 4096 + COUNT * kind.bytes, 0xff, 8);  // what follows is another constant's
                const uint64_t bits = number < 4 ? kind.numbers[number] : kind.others[number - 4];
                memcpy(image + 4096 + static_cast<size_t>(element) * kind.bytes, &bits, kind.bytes);
                lm::Message message;
                char expected[64];
                snprintf(expected, sizeof(expected), "constant \"filter\", element %d,", static_cast<int>(element));
                const int32_t status = opened(kind, message);
                const bool right = number < 4 ? status == LM_OK
                                              : status == LM_BAD_WEIGHTS && strstr(message.text(), expected) != nullptr;
                if (!right) {
                    printf("type %d, element %d, number %d: status %d, \"%s\"\n", kind.dtype,
                           static_cast<int>(element), number, status, message.text());
                    return 1;
                }
            }
        }
    }
    return 0;
}
