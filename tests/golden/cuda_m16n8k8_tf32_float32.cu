// cuda_m16n8k8_tf32_float32, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     thread column by 64
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

extern "C" __global__ void __launch_bounds__(64, 8) cuda_m16n8k8_tf32_float32(float* __restrict__ out,
        const float* __restrict__ a, const float* __restrict__ b) {
    alignas(16) __shared__ float stage_a[512];
    alignas(16) __shared__ float stage_b[512];
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    float tile[16];
    #pragma unroll 4
    for (int e1 = 0; e1 < 4; ++e1) {
        #pragma unroll 4
        for (int e2 = 0; e2 < 4; ++e2) {
            tile[4*e1 + e2] = 0.0f;
        }
    }
    const int n4 = tid / 32;
    const int n5 = 256*n4;
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
        #pragma unroll 2
        for (int term = 0; term < 16; term += 8) {
            warp_tile_step<m16n8k8_tf32<float>, 1, 4>(tile, stage_a + n5 + term, 16, 1, stage_b + 32*term, 32, 1, lane);
        }
    }
    const int n6 = tid / 4;
    const int n7 = n6 % 8;
    const int n8 = tid % 4;
    const int n9 = 32*n7 + 2*n8 + 512*n4;
    #pragma unroll 4
    for (int e1 = 0; e1 < 4; ++e1) {
        #pragma unroll 4
        for (int e2 = 0; e2 < 4; ++e2) {
            const float s1 = tile[4*e1 + e2];
            const int n10 = e2 % 2;
            const int n11 = e2 / 2;
            out[n9 + n10 + 256*n11 + 8*e1] = s1;
        }
    }
}

}  // namespace LM_NAMESPACE
}  // namespace lm
