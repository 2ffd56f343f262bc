// product, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     thread column by 64
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

extern "C" __global__ void __launch_bounds__(64, 8) product(float* __restrict__ out, const float* __restrict__ a,
        const float* __restrict__ b) {
    alignas(16) __shared__ float stage_a[512];
    alignas(16) __shared__ float stage_b[512];
    const int tid = threadIdx.x;
    float tile[16];
    #pragma unroll 4
    for (int i = 0; i < 4; ++i) {
        #pragma unroll 4
        for (int j = 0; j < 4; ++j) {
            tile[4*i + j] = 0.0f;
        }
    }
    const int n4 = tid / 8;
    const int n5 = 64*n4;
    const int n6 = tid % 8;
    const int n7 = 4*n6;
    #pragma unroll 1
    for (int k = 0; k < 2; ++k) {
        barrier();
        const int n0 = 16*k;
        #pragma unroll 4
        for (int turn = 0; turn < 8; ++turn) {
            const int l = tid + 64*turn;
            const int n1 = l % 16;
            const int n2 = l / 16;
            const float s0 = a[n0 + n1 + 32*n2];
            stage_a[l] = s0;
        }
        const int n3 = 512*k;
        #pragma unroll 2
        for (int turn = 0; turn < 2; ++turn) {
            const int c = tid + 64*turn;
            copy_async<16>(stage_b + 4*c, b + n3 + 4*c);
        }
        copy_commit();
        copy_wait<0>();
        barrier();
        #pragma unroll 4
        for (int term = 0; term < 16; ++term) {
            tile_step<4, 4>(tile, stage_a + n5 + term, 16, stage_b + n7 + 32*term, 1);
        }
    }
    const int n8 = 4*n6 + 128*n4;
    #pragma unroll 4
    for (int i = 0; i < 4; ++i) {
        #pragma unroll 4
        for (int j = 0; j < 4; ++j) {
            const float s1 = tile[4*i + j];
            out[n8 + 32*i + j] = s1;
        }
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
