// What one thread of this machine can do at most: multiply-adds between registers, and reading memory in a stream.
// Compiled with the flags of a target; LM_REGISTER_BYTES is the size of its vector registers.
#include <stdint.h>

typedef float Vector __attribute__((vector_size(LM_REGISTER_BYTES)));

namespace {

constexpr int LANES = LM_REGISTER_BYTES / sizeof(float);
constexpr int CHAINS = 12;  // covers the latency of a multiply-add, and fits sixteen registers

float sum(const Vector (&values)[CHAINS]) {
    float total = 0;
    for (const Vector& value : values) {
        for (int lane = 0; lane < LANES; ++lane) total += value[lane];
    }
    return total;
}

}  // namespace

extern "C" {

/// Floating-point operations of one round of lm_multiply_add.
extern const int64_t lm_round_operations = int64_t{2} * CHAINS * LANES;

/// Rounds of independent multiply-adds; the result depends on all of them.
float lm_multiply_add(int64_t rounds, float factor, float term) {
    Vector values[CHAINS];
    for (int i = 0; i < CHAINS; ++i) values[i] = Vector{} + static_cast<float>(i);
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; ++i) values[i] = values[i] * factor + term;
    }
    return sum(values);
}

/// Reads `count` vectors of aligned memory; the result depends on all of them.
float lm_read(const Vector* data, int64_t count) {
    Vector sums[CHAINS] = {};
    for (int64_t first = 0; first + CHAINS <= count; first += CHAINS) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; ++i) sums[i] += data[first + i];
    }
    return sum(sums);
}
}
