// What differs between the languages that read these headers: CUDA, Metal's shading language (MSL), and plain C++,
// which emulates either.
//
// LM_DEVICE stands before every function, LM_MEMBER before those that belong to a type, LM_INLINE before those of
// headers that CPUs share.
//
// The headers are one text in what the three have in common: C++14 and `if constexpr`, no standard library, no lambdas,
// no recursion, no static data (MSL wants it in an address space of its own), pointers as template parameters (MSL has
// a type of pointer for each address space), no `half`, `device` or `thread` as names. A function that a device has an
// instruction for has up to three bodies.
//
// Compile without contraction of products and sums (nvcc -fmad=false, Metal's math mode `safe`, -ffp-contract=off), so
// that results are the same everywhere; fma() says where one rounding is wanted.
#pragma once

#if defined(__METAL_VERSION__)

#include <metal_stdlib>

#define LM_METAL 1
#define LM_DEVICE inline __attribute__((always_inline))
#define LM_MEMBER static LM_DEVICE

#elif defined(__CUDACC__)

#include <stdint.h>

#define LM_CUDA 1
#define LM_DOUBLE 1
#define LM_DEVICE static __device__ __forceinline__
#define LM_MEMBER LM_DEVICE

#else

#include <stdint.h>

#define LM_EMULATED 1
#if !defined(LM_EMULATE_METAL)
#define LM_DOUBLE 1
#endif
#define LM_DEVICE inline __attribute__((always_inline))
#define LM_MEMBER static LM_DEVICE

#endif

// The body of a loop with constant bounds, once for every iteration, so that arrays stay in registers.
#if defined(LM_EMULATED) && !defined(__clang__)
#define LM_UNROLL _Pragma("GCC unroll 64")
#elif defined(LM_METAL)
#define LM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LM_UNROLL _Pragma("unroll")
#endif

#define LM_INLINE LM_DEVICE

#include "luminal/namespace.hpp"
