// What the processor and the system support, asked of the processor itself (on Arm and RISC-V, where programs may not ask it,
// of the system): the compilers' own builtins for it need a runtime library that not every linker brings.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif (defined(__aarch64__) || defined(__riscv)) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

#if defined(__x86_64__)

/// One bit of a CPUID answer, and the register states (XCR0) that the system must save for it.
struct CpuFeature {
    const char* name;
    uint32_t leaf;
    uint32_t subleaf;
    int word;  // of eax, ebx, ecx, edx
    int bit;
    uint64_t state;
};

inline constexpr uint64_t STATE_YMM = 0x6;
inline constexpr uint64_t STATE_ZMM = 0xe6;
inline constexpr uint64_t STATE_TILES = 0x60000;

inline constexpr CpuFeature CPU_FEATURES[] = {
    {"fma", 1, 0, 2, 12, STATE_YMM},        {"f16c", 1, 0, 2, 29, STATE_YMM},
    {"avx2", 7, 0, 1, 5, STATE_YMM},        {"bmi2", 7, 0, 1, 8, 0},
    {"avx512f", 7, 0, 1, 16, STATE_ZMM},    {"avx512dq", 7, 0, 1, 17, STATE_ZMM},
    {"avx512bw", 7, 0, 1, 30, STATE_ZMM},   {"avx512vl", 7, 0, 1, 31, STATE_ZMM},
    {"avx512_vnni", 7, 0, 2, 11, STATE_ZMM}, {"avx512_bf16", 7, 1, 0, 5, STATE_ZMM},
    {"amx_bf16", 7, 0, 3, 22, STATE_TILES}, {"amx_tile", 7, 0, 3, 24, STATE_TILES},
    {"amx_int8", 7, 0, 3, 25, STATE_TILES},
};

/// Register states that the system saves.
inline uint64_t saved_states() {
    uint32_t words[4] = {};
    if (__get_cpuid(1, &words[0], &words[1], &words[2], &words[3]) == 0 || (words[2] >> 27 & 1) == 0) return 0;
    uint32_t low = 0;
    uint32_t high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

/// Whether this process may use the states. Linux saves those of tiles only for processes that asked for them: it may
/// be asked again, and grants them to all threads.
inline bool allowed(uint64_t states) {
#if defined(__linux__)
    constexpr long REQUEST_PERMISSION = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long TILE_DATA = 18;
    if ((states & STATE_TILES) != 0) return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#endif
    (void)states;
    return true;
}

/// Whether code that uses the feature (by its name in /proc/cpuinfo) runs here; false for names that are not known.
/// After it said so of those that have states of their own, this process may use them.
__attribute__((cold)) inline bool cpu_supports(const char* name) {
    for (const CpuFeature& feature : CPU_FEATURES) {
        if (strcmp(feature.name, name) != 0) continue;
        uint32_t words[4] = {};
        const bool answered =
            __get_cpuid_count(feature.leaf, feature.subleaf, &words[0], &words[1], &words[2], &words[3]) != 0;
        if (!answered) return false;
        const bool present = (words[feature.word] >> feature.bit & 1) != 0;
        return present && (saved_states() & feature.state) == feature.state && allowed(feature.state);
    }
    return false;
}

#elif defined(__aarch64__) && defined(__linux__)

/// One bit of the system's word AT_HWCAP.
struct CpuFeature {
    const char* name;
    int bit;
};

inline constexpr CpuFeature CPU_FEATURES[] = {{"fp", 0}, {"asimd", 1}};

/// Whether code that uses the feature (by its name in /proc/cpuinfo) runs here; false for names that are not known.
inline bool cpu_supports(const char* name) {
    for (const CpuFeature& feature : CPU_FEATURES) {
        if (strcmp(feature.name, name) == 0) return (getauxval(AT_HWCAP) >> feature.bit & 1) != 0;
    }
    return false;
}

#elif defined(__aarch64__)

/// Whether code that uses the feature (by its name on Linux) runs here. Every processor of this kind has these.
inline bool cpu_supports(const char* name) { return strcmp(name, "fp") == 0 || strcmp(name, "asimd") == 0; }

#elif defined(__riscv) && defined(__linux__)

/// Whether code that uses the extension, of one letter, runs here: AT_HWCAP has a bit for each letter.
inline bool cpu_supports(const char* name) {
    return name[0] >= 'a' && name[0] <= 'z' && name[1] == 0 && (getauxval(AT_HWCAP) >> (name[0] - 'a') & 1) != 0;
}

#elif defined(__wasm__)

/// Whether code that uses the feature runs here: an engine refuses a module with instructions that it lacks.
inline bool cpu_supports(const char* name) { return strcmp(name, "simd128") == 0; }

#else

inline bool cpu_supports(const char*) { return false; }

#endif

}  // namespace LM_RUNTIME
}  // namespace lm
