// What one thread of this machine can do at most: multiply-adds between registers, products on its matrix units, and
// reading memory in a stream. Compiled with the flags of a target; LM_REGISTER_BYTES is the size of its vector
// registers.
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

#ifdef __x86_64__
/// `rounds` of CHAINS products, of which `round` does four: of tiles 4 and 5 with 6 and 7, all filled with `ones`, added
/// to tiles 0 to 3. Returns an element of one.
template <class Sum, class Round> float products_of_tiles(uint32_t ones, int64_t rounds, Round round) {
    struct alignas(64) {
        uint8_t palette = 1;
        uint8_t start = 0;
        uint8_t reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shapes;
    alignas(64) uint32_t operand[16 * 16];
    alignas(64) Sum sums[16 * 16];
    for (uint32_t& group : operand) group = ones;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
    asm volatile(
        "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
        "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd (%0,%1,1), %%tmm5\n\t"
        "tileloadd (%0,%1,1), %%tmm6\n\ttileloadd (%0,%1,1), %%tmm7" ::"r"(operand),
        "r"(int64_t{64})
        : "memory");
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 3
        for (int chain = 0; chain < CHAINS; chain += 4) round();
    }
    asm volatile("tilestored %%tmm3, (%0,%1,1)\n\ttilerelease" ::"r"(sums), "r"(int64_t{64}) : "memory");
    return static_cast<float>(sums[0]);
}
#endif

}  // namespace

extern "C" {

// Products on matrix units, in the assembler's words, which need no flags of a compiler: they are called where the
// target has the unit, by its name. Each does `rounds` of lm_products products of ones with ones, in several sums, and
// returns an element of one.

extern const int64_t lm_products = CHAINS;

#ifdef __x86_64__
float lm_products_tdpbf16ps(int64_t rounds) {
    return products_of_tiles<float>(0x3f803f80, rounds, [] {
        asm volatile(
            "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
            "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
    });
}

float lm_products_tdpbusd(int64_t rounds) {
    return products_of_tiles<int32_t>(0x01010101, rounds, [] {
        asm volatile(
            "tdpbusd %tmm6, %tmm4, %tmm0\n\ttdpbusd %tmm7, %tmm4, %tmm1\n\t"
            "tdpbusd %tmm6, %tmm5, %tmm2\n\ttdpbusd %tmm7, %tmm5, %tmm3");
    });
}
#endif

#if LM_REGISTER_BYTES >= 32
float lm_products_vpmaddwd(int64_t rounds) {
    typedef int32_t Sums __attribute__((vector_size(32)));
    Sums sums[CHAINS] = {};
    const Sums ones = Sums{} + 0x00010001;
    Sums pair;
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; ++i) {
            asm volatile("vpmaddwd %2, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sums[i]), "=&x"(pair) : "x"(ones));
        }
    }
    return static_cast<float>(sums[0][0]);
}
#endif

#if LM_REGISTER_BYTES == 64
float lm_products_vdpbf16ps(int64_t rounds) {
    typedef uint32_t Pairs __attribute__((vector_size(64)));
    Vector sums[CHAINS] = {};
    const Pairs ones = Pairs{} + 0x3f803f80;
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; ++i) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sums[i]) : "v"(ones));
    }
    return sums[0][0];
}

float lm_products_vpdpbusd(int64_t rounds) {
    typedef int32_t Sums __attribute__((vector_size(64)));
    Sums sums[CHAINS] = {};
    const Sums ones = Sums{} + 0x01010101;
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; ++i) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[i]) : "v"(ones));
    }
    return static_cast<float>(sums[0][0]);
}
#endif

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

/// Reads `count` vectors of aligned memory, `times` over; the result depends on all of them.
float lm_read(const Vector* data, int64_t count, int64_t times) {
    Vector sums[CHAINS] = {};
    for (int64_t time = 0; time < times; ++time) {
        for (int64_t first = 0; first + CHAINS <= count; first += CHAINS) {
#pragma GCC unroll 12
            for (int i = 0; i < CHAINS; ++i) sums[i] += data[first + i];
        }
    }
    return sum(sums);
}
}
