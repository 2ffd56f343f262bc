// The words of CUDA and of Metal's shading language for blocks that run one after the other on the system's threads.
#pragma once

#include "device_threads.hpp"

#if defined(LM_EMULATE_CUDA)

#define __global__
#define __launch_bounds__(threads)
#define __shared__ static

struct Place { uint32_t x; };
inline thread_local Place blockIdx, threadIdx;

#else

using uint = uint32_t;
#define kernel
#define device
#define constant const
#define thread
#define threadgroup static

#endif
