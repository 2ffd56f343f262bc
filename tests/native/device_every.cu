// Every function of the device headers, compiled by nvcc.
#include "device_every.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

extern "C" __global__ void types(int8_t* i8, int16_t* i16, int32_t* i32, int64_t* i64, uint8_t* u8, uint16_t* u16,
                                 uint32_t* u32, uint64_t* u64, float* f32, double* f64) {
    i32[0] = every_byte(u8);
    f32[0] = every_integer_type(i8) + every_integer_type(i16) + every_integer_type(i32) + every_integer_type(i64) +
             every_integer_type(u8) + every_integer_type(u16) + every_integer_type(u32) + every_integer_type(u64) +
             every_float_type(f32) + every_float_type(f64);
    i64[0] = every_index(i64[0], i64[1]);
}

extern "C" __global__ void accesses(int8_t* i8, int64_t* i64, float* f32, double* f64, float16* f16, bfloat16* bf16,
                                    bool* b, float8e5m2* f8, int4_t* i4, const int64_t* dims) {
    every_access<int32_t>(i8, dims[0]);
    every_access<int64_t>(i64, dims[0]);
    every_access<int64_t>(f32, dims[0]);
    every_access<int32_t>(f64, dims[0]);
    every_access<int32_t>(f16, dims[0]);
    every_access<int32_t>(bf16, dims[0]);
    every_access<int32_t>(b, dims[0]);
    every_access<int32_t>(f8, dims[0]);
    every_access<int32_t>(i4, dims[0]);
}

extern "C" __global__ void __launch_bounds__(256) collectives(float* f32, double* f64, int64_t* i64, int8_t* i8,
                                                              bool* b, int32_t* counts, uint32_t* maxima,
                                                              Status* status) {
    __shared__ float scratch[8];
    const int thread = threadIdx.x;
    f32[thread] = every_reduction(f32[thread], 1);
    f64[thread] = every_reduction(f64[thread], 2);
    i64[thread] = every_reduction(i64[thread], 4);
    i8[thread] = every_reduction(i8[thread], 8);
    b[thread] = warp_reduce_max(shuffle_xor(b[thread], 16));
    f32[0] = block_reduce_add<256>(f32[1], scratch, thread) + block_reduce_max<256>(f32[2], scratch, thread);
    atomic_add(counts, counts[1]);
    atomic_max(counts, counts[1]);
    atomic_add(maxima, maxima[1]);
    atomic_max(maxima, maxima[1]);
    raise(status, LM_INDEX_OUT_OF_RANGE);
}

extern "C" __global__ void tiles(const float* x, float* y) {
    alignas(16) __shared__ float stage[32 * 40];
    alignas(16) __shared__ float16 halves[32 * 40];
    alignas(16) __shared__ bfloat16 brains[32 * 40];
    alignas(16) __shared__ int8_t bytes[64 * 80];
    const int thread = threadIdx.x;
    every_copy(stage + 4 * thread, x + 4 * thread, thread < 3);
    every_copy(halves + 8 * thread, x + 4 * thread, thread < 3);
    every_copy(brains + 8 * thread, x + 4 * thread, thread < 3);
    float sum[64] = {};
    tile_step<8, 8>(sum, stage, 1, stage, 1);
    tile_step<8, 4>(sum, halves, 40, brains, 1);
    tile_step<4, 4>(sum, brains, 1, halves, 40);
    every_layout<m16n8k16<float16>>(sum, halves, thread % 32);
    every_layout<m16n8k16<bfloat16>>(sum, brains, thread % 32);
    every_layout<m16n8k8_tf32<float>>(sum, stage, thread % 32);
    every_scaled<m16n8k32<int8_t>>(sum, bytes, stage, halves, thread % 32);
    every_scaled<m16n8k16<int8_t>>(sum, bytes, stage, halves, thread % 32);
#pragma unroll
    for (int i = 0; i < 64; ++i) y[64 * thread + i] = sum[i];
}

template <class F, class T> LM_DEVICE void every_group(float* sum, const T* panels, int thread) {
    using Along = Panels<T, 256, 64, true>;
    using Down = Panels<T, 64, 256, false>;
    group_begin();
    group_tile_step<F, Along, Along, 1, 1>(sum, panels, 16, panels, 32, thread);
    group_tile_step<F, Down, Down, 1, 1>(sum, panels, 16 * 256, panels, 0, thread, false);
    const float held[16] = {};
    held_group_product<F, Along, 1, 1, 2>(sum, held, 0, panels, 32, thread);
    held_group_product<F, Down, 1, 1, 2>(sum, held, 0, panels, 0, thread);
    group_commit();
    share_with_groups();
    group_wait<0, F::elements>(sum);
}

extern "C" __global__ void __launch_bounds__(128) groups(float* y) {
    LM_REQUESTED(float16, halves, 256 * 64, 0);
    LM_REQUESTED(bfloat16, brains, 256 * 64, 32768);
    const int thread = threadIdx.x;
    float sum[128] = {};
    every_group<m64n64k16<float16>>(sum, halves, thread);
    every_group<m64n64k16<bfloat16>>(sum, brains, thread);
    every_group<m64n128k16<float16>>(sum, halves, thread);
    every_group<m64n128k16<bfloat16>>(sum, brains, thread);
    every_group<m64n256k16<float16>>(sum, halves, thread);
    every_group<m64n256k16<bfloat16>>(sum, brains, thread);
    LM_UNROLL for (int e = 0; e < 128; ++e) y[128 * e + thread] = sum[e];
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
extern "C" __global__ void boxes(const __grid_constant__ TensorMap map, float* y) {
    __shared__ uint64_t arrivals[2];
    alignas(1024) __shared__ bfloat16 panels[16 * 128];
    const int thread = threadIdx.x;
    Boxes<2> boxes = boxes_begin<2>(arrivals, thread);
    copy_box<16, 2>(boxes, panels, map, thread, 0, 1);
    copy_box<16, 1>(boxes, panels, map, thread, 0, 1, 2);
    boxes_commit(boxes, thread);
    copy_box<16, 1>(boxes, panels, map, thread, 0, 1, 2, 3);
    copy_box<16, 1>(boxes, panels, map, thread, 0, 1, 2, 3, 4);
    boxes_commit(boxes, thread);
    boxes_wait<1>(boxes);
    boxes_wait<0>(boxes);
    y[thread] = load<1>(panels + thread);
}
#endif

}  // namespace LM_NAMESPACE
}  // namespace lm
