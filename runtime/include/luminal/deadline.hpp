// How long a rank waits for another.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {

inline constexpr double DEFAULT_LIMIT = 300;  // seconds

/// The time by a clock that nobody sets, in seconds.
inline double now() {
    struct timespec time {};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// How many seconds a rank waits for another that was `asked` to wait for so many; 0: what LUMINAL_MPI_LIMIT says.
inline double limit_of_waits(double asked) {
    const char* const named = getenv("LUMINAL_MPI_LIMIT");
    if (asked <= 0 && named != nullptr) asked = strtod(named, nullptr);
    return asked > 0 ? asked : DEFAULT_LIMIT;
}

/// Whether exchanges between ranks run beside kernels: unless LUMINAL_MPI_OVERLAP is 0.
inline bool exchanges_overlap() {
    const char* const overlap = getenv("LUMINAL_MPI_OVERLAP");
    return overlap == nullptr || overlap[0] != '0' || overlap[1] != '\0';
}

}  // namespace LM_RUNTIME
}  // namespace lm
