// One product on tiles of any shapes.
#include <stdint.h>

enum { BFLOAT16, BYTES };

/// Loads tiles 0 (the sums), 1 and 2 from rows of 64 bytes each, adds the product of the two, and stores the sums.
extern "C" void multiply(const uint8_t* shapes, uint8_t* sums, const uint8_t* a, const uint8_t* b, int64_t kind) {
    const int64_t row = 64;
    asm volatile("ldtilecfg (%0)" ::"r"(shapes) : "memory");
    // Addresses in the forms that compilers choose.
    asm volatile("tileloadd (%0,%1,1), %%tmm0" ::"r"(sums), "r"(row) : "memory");
    asm volatile("tileloadd 64(%0,%1,2), %%tmm1" ::"r"(a - 64), "r"(row / 2) : "memory");
    register const uint8_t* right asm("r13") = b - 4096;
    register int64_t quarter asm("r12") = row / 4;
    asm volatile("tileloadd 4096(%0,%1,4), %%tmm2" ::"r"(right), "r"(quarter) : "memory");
    if (kind == BFLOAT16) asm volatile("tdpbf16ps %%tmm2, %%tmm1, %%tmm0" ::: "memory");
    if (kind == BYTES) asm volatile("tdpbusd %%tmm2, %%tmm1, %%tmm0" ::: "memory");
    asm volatile("tilestored %%tmm0, (%0,%1,1)\n\ttilezero %%tmm1\n\ttilestored %%tmm1, (%2,%1,1)\n\ttilerelease"
                 ::"r"(sums), "r"(row), "r"(const_cast<uint8_t*>(a))
                 : "memory");
}
