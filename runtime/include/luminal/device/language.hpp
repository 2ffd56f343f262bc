// What differs between the languages that read these headers: CUDA, Metal's shading language (MSL), C++ for
// OpenCL, and plain C++, which emulates them.
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

#elif defined(__OPENCL_CPP_VERSION__)

#define LM_OPENCL 1
#define LM_DEVICE inline __attribute__((always_inline))
#define LM_MEMBER static LM_DEVICE
#define thread __private
#define device __global
#define threadgroup __local

typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

#elif defined(__CUDACC__)

#include <stdint.h>

#define LM_CUDA 1
#define LM_DOUBLE 1
#define LM_DEVICE static __device__ __forceinline__
#define LM_MEMBER LM_DEVICE

#else

#include <stdint.h>

#define LM_EMULATED 1
#if defined(LM_EMULATE_CUDA) || !(defined(LM_EMULATE_METAL) || defined(LM_EMULATE_OPENCL))
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

// Languages in which a pointer's type says where it points.
#if defined(LM_METAL) || defined(LM_OPENCL)
#define LM_ADDRESS_SPACES 1
#endif

// Threads that run in step. OpenCL's sub-groups are optional, of any size: there each thread is alone.
#if defined(LM_OPENCL) || defined(LM_EMULATE_OPENCL)
#define LM_WARP 1
#else
#define LM_WARP 32
#endif

// An array of a block for which the host asks when it launches the kernel, from byte `first` on: more than a kernel can
// own.
#if defined(LM_CUDA)
#define LM_REQUESTED(type, name, extent, first)                          \
    extern __shared__ __align__(1024) unsigned char requested_memory[]; \
    type* const name = reinterpret_cast<type*>(requested_memory + (first))
#elif defined(LM_EMULATE_CUDA)
#define LM_REQUESTED(type, name, extent, first) alignas(1024) __shared__ type name[extent]
#endif

#include "luminal/namespace.hpp"
