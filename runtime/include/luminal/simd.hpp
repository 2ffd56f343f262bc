// Vectors for generated kernels: types, memory, arithmetic, casts, reductions.
//
// Compile with
//     -std=c++17 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math
// and, for the instruction set,
//     AVX-512   -mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma -mf16c -mbmi2 -mprefer-vector-width=512
//     AVX2      -mavx2 -mfma -mf16c -mbmi2
//     x86-64    nothing more
//     AArch64   nothing more: NEON is part of it
//     RISC-V    -march=rv64gcv
// Contraction has to be off: results must not depend on which product the compiler fuses with which sum; fma() says
// where that is wanted. -ffast-math and its parts (reciprocals, reassociation, finite-only, no signed zeros) break the
// results. The other two flags drop errno and the floating-point exception flags, which nothing here reads; they change
// no value. The rounding mode is to nearest, and subnormals are neither flushed nor read as zero.
#pragma once

#include "luminal/arithmetic.hpp"
#include "luminal/convert.hpp"
#include "luminal/division.hpp"
#include "luminal/gather.hpp"
#include "luminal/logic.hpp"
#include "luminal/quantise.hpp"
#include "luminal/vector_memory.hpp"
