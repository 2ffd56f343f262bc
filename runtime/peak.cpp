// What one thread of this machine can do at most: multiply-adds between registers, products of tiles where it has
// matrix units, and reading memory in a stream. Compiled with the flags of a target; LM_REGISTER_BYTES is the size of
// its vector registers.
#include <stdint.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

constexpr int TILES = 4;  // that sums are kept in: covers the latency of a product

#ifdef __x86_64__
constexpr int TILE_BYTES = 1024;  // 16 rows of 64 bytes

struct alignas(64) TileConfiguration {
    uint8_t palette = 1;
    uint8_t start = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// In the assembler's words, which need no flags of a compiler: only machines that have the instructions come here.
void load_ones(const void* ones) {
    const TileConfiguration configuration;
    asm volatile("ldtilecfg %0" ::"m"(configuration));
    asm volatile(
        "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
        "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd (%0,%1,1), %%tmm5\n\t"
        "tileloadd (%0,%1,1), %%tmm6\n\ttileloadd (%0,%1,1), %%tmm7" ::"r"(ones),
        "r"(int64_t{64})
        : "memory");
}

void take_sums(void* sums) {
    asm volatile("tilestored %%tmm3, (%0,%1,1)\n\ttilerelease" ::"r"(sums), "r"(int64_t{64}) : "memory");
}
#endif

}  // namespace

extern "C" {

/// Whether this machine multiplies tiles, and the system lets this process do it: 1 for bfloat16, 2 for int8, or both.
int lm_matrix_units() {
#ifdef __x86_64__
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1)) return 0;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) != 0) return 0;
    return static_cast<int>((d >> 22 & 1) | (d >> 25 & 1) << 1);
#else
    return 0;
#endif
}

/// Operations of one round of lm_multiply_tiles_bf16: a tile has 16 rows of 32 numbers. Of int8 it has twice as many.
extern const int64_t lm_tile_operations = int64_t{2} * TILES * 16 * 16 * 32;

/// Rounds of independent products of tiles of ones, where lm_matrix_units says that there are; an element of a sum.
float lm_multiply_tiles_bf16([[maybe_unused]] int64_t rounds) {
#ifdef __x86_64__
    alignas(64) uint16_t ones[TILE_BYTES / 2];
    alignas(64) float sums[TILE_BYTES / 4];
    for (uint16_t& one : ones) one = 0x3f80;
    load_ones(ones);
    for (int64_t round = 0; round < rounds; ++round) {
        asm volatile(
            "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
            "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
    }
    take_sums(sums);
    return sums[TILE_BYTES / 4 - 1];
#else
    return 0;
#endif
}

/// The same of int8.
float lm_multiply_tiles_int8([[maybe_unused]] int64_t rounds) {
#ifdef __x86_64__
    alignas(64) int8_t ones[TILE_BYTES];
    alignas(64) int32_t sums[TILE_BYTES / 4];
    for (int8_t& one : ones) one = 1;
    load_ones(ones);
    for (int64_t round = 0; round < rounds; ++round) {
        asm volatile(
            "tdpbssd %tmm6, %tmm4, %tmm0\n\ttdpbssd %tmm7, %tmm4, %tmm1\n\t"
            "tdpbssd %tmm6, %tmm5, %tmm2\n\ttdpbssd %tmm7, %tmm5, %tmm3");
    }
    take_sums(sums);
    return static_cast<float>(sums[TILE_BYTES / 4 - 1]);
#else
    return 0;
#endif
}

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
