// As much of an emulator as functions of one thread need: accesses must be aligned.
#pragma once

#include "luminal/device/emulated.hpp"

extern "C" inline void lm_emulated_access(const void* p, uint32_t bytes) {
    if (reinterpret_cast<uintptr_t>(p) % bytes != 0) __builtin_trap();
}
