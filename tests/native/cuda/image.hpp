// Lets the text of a kernel that needs no barrier compile for the CPU, as an image for the stand-in of the driver.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <utility>

#include "emulator.h"

#define __global__
#define __launch_bounds__(threads)

struct Index {
    uint32_t x;
};
static thread_local Index blockIdx;
static thread_local Index threadIdx;

template <class... Parameters>
struct Emulated {
    template <void (*KERNEL)(Parameters...), size_t... I>
    static void carry_out(void* const* arguments, std::index_sequence<I...>) {
        KERNEL(static_cast<Parameters>(arguments[I])...);
    }

    template <void (*KERNEL)(Parameters...)>
    static void call(void* const* arguments, uint32_t block, uint32_t thread) {
        blockIdx.x = block;
        threadIdx.x = thread;
        carry_out<KERNEL>(arguments, std::index_sequence_for<Parameters...>{});
    }

    static constexpr uint32_t COUNT = sizeof...(Parameters);
};

template <class... Parameters>
Emulated<Parameters...> emulated(void (*)(Parameters...));

#define IMAGE(NAME, THREADS)                                                                                 \
    extern "C" {                                                                                             \
    __attribute__((visibility("default"))) extern const lm_emulated_kernel lm_emulated_kernels[] = {         \
        {#NAME, decltype(emulated(NAME))::call<NAME>, THREADS, decltype(emulated(NAME))::COUNT}, {}};        \
    }
