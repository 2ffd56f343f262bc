// staged_rows, made for:
//     Op 'layer/op' (model.py:7)
//
// Schedule:
//     parallel row
//     thread column by 64
#include "luminal/device/kernel.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

[[host_name("staged_rows")]] kernel void staged_rows(device float* out [[buffer(0)]], device bool* flags [[buffer(1)]],
        device const float* x [[buffer(2)]], uint block_index [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]]) {
    alignas(16) threadgroup float kept[200];
    threadgroup float scratch[2];
    threadgroup float scratch_2[2];
    threadgroup bool scratch_3[2];
    const int row = block_index;
    const int tid = thread_index;
    float most0 = -infinity<float>();
    const int n0 = 200*row;
    for (int j = tid; j < 200; j += 64) {
        const float s0 = x[n0 + j];
        most0 = max(most0, s0);
    }
    const float s1 = block_reduce_max<64>(most0, scratch, tid);
    const float s3 = mul(s1, -1.0f);
    for (int j = tid; j < 200; j += 64) {
        const float s2 = x[n0 + j];
        const float s4 = add(s2, s3);
        const float s5 = exp2_scaled(s4, 1.442695f, 1.925963e-08f);
        kept[j] = s5;
    }
    barrier();
    float sum0 = 0.0f;
    for (int j = tid; j < 200; j += 64) {
        const float s6 = kept[j];
        sum0 = add(sum0, s6);
    }
    const float s7 = block_reduce_add<64>(sum0, scratch_2, tid);
    bool most1 = false;
    for (int j = tid; j < 200; j += 64) {
        const float s8 = x[n0 + j];
        const bool s9 = less(s8, s1);
        most1 = max(most1, s9);
    }
    const bool s10 = block_reduce_max<64>(most1, scratch_3, tid);
    for (int j = tid; j < 200; j += 64) {
        const float s11 = kept[199 - j];
        const float s12 = div(s11, s7);
        out[n0 + j] = s12;
    }
    if (tid == 0 && 1 - row >= 0) store(flags + row, s10);
}

}  // namespace LM_NAMESPACE
}  // namespace lm
