// The words of CUDA and of Metal's shading language that generated kernels use, for a C++ compiler.
//
// Built-in indices are calls, so that reading one is no access to memory; what the threads of a block share lies in
// storage of the OS thread that runs the block.
#pragma once

#include <stdint.h>

extern "C" {
uint32_t lm_emulated_block(void);
uint32_t lm_emulated_thread(void);
}

#if defined(LM_EMULATE_CUDA)

#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __shared__ static thread_local

namespace lm_emulated {
struct Index { uint32_t x; };
}

#define blockIdx (lm_emulated::Index{lm_emulated_block()})
#define threadIdx (lm_emulated::Index{lm_emulated_thread()})

#elif defined(LM_EMULATE_METAL)

#define kernel
#define device
#define constant const
#define threadgroup static thread_local

typedef uint32_t uint;

#endif
