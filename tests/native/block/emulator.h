// The kernels of an image, as codegen describes them.
#pragma once

#include <stdint.h>

struct lm_emulated_kernel {
    const char* name;
    void (*call)(void* const* arguments, uint32_t block, uint32_t thread);
    uint32_t threads;
};
