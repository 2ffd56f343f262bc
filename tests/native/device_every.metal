// Every function of the device headers in Metal's shading language.
#include "device_every.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

kernel void types(device int8_t* i8 [[buffer(0)]], device int16_t* i16 [[buffer(1)]],
                  device int32_t* i32 [[buffer(2)]], device int64_t* i64 [[buffer(3)]],
                  device uint8_t* u8 [[buffer(4)]], device uint16_t* u16 [[buffer(5)]],
                  device uint32_t* u32 [[buffer(6)]], device uint64_t* u64 [[buffer(7)]],
                  device float* f32 [[buffer(8)]]) {
    i32[0] = every_byte(u8);
    f32[0] = every_integer_type(i8) + every_integer_type(i16) + every_integer_type(i32) + every_integer_type(i64) +
             every_integer_type(u8) + every_integer_type(u16) + every_integer_type(u32) + every_integer_type(u64) +
             every_float_type(f32);
    i64[0] = every_index(i64[0], i64[1]);
}

kernel void accesses(device int8_t* i8 [[buffer(0)]], device int64_t* i64 [[buffer(1)]],
                     device float* f32 [[buffer(2)]], device float16* f16 [[buffer(3)]],
                     device bfloat16* bf16 [[buffer(4)]], device bool* b [[buffer(5)]],
                     device float8e5m2* f8 [[buffer(6)]], device int4_t* i4 [[buffer(7)]],
                     constant int64_t* dims [[buffer(8)]]) {
    threadgroup float stage[256];
    float mine[64] = {};
    every_access<int32_t>(i8, dims[0]);
    every_access<int64_t>(i64, dims[0]);
    every_access<int64_t>(f32, dims[0]);
    every_access<int32_t>(f16, dims[0]);
    every_access<int32_t>(bf16, dims[0]);
    every_access<int32_t>(b, dims[0]);
    every_access<int32_t>(f8, dims[0]);
    every_access<int32_t>(i4, dims[0]);
    every_access<int32_t>(stage, dims[0]);
    every_access<int32_t>(mine, dims[0]);
    f32[0] = convert<float>(reduce_add(load<2>(dims)));
}

kernel void collectives(device float* f32 [[buffer(0)]], device int64_t* i64 [[buffer(1)]],
                        device int8_t* i8 [[buffer(2)]], device bool* b [[buffer(3)]],
                        device int32_t* counts [[buffer(4)]], device uint32_t* maxima [[buffer(5)]],
                        device Status* status [[buffer(6)]], uint block [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]]) {
    threadgroup float scratch[8];
    const int lane = index;
    f32[lane] = every_reduction(f32[lane], 1);
    i64[lane] = every_reduction(i64[lane], 4);
    i8[lane] = every_reduction(i8[lane], 8);
    b[lane] = warp_reduce_max(shuffle_xor(b[lane], 16));
    f32[block] = block_reduce_add<256>(f32[1], scratch, lane) + block_reduce_max<256>(f32[2], scratch, lane);
    atomic_add(counts, counts[1]);
    atomic_max(counts, counts[1]);
    atomic_add(maxima, maxima[1]);
    atomic_max(maxima, maxima[1]);
    raise(status, LM_INDEX_OUT_OF_RANGE);
}

kernel void tiles(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint index [[thread_index_in_threadgroup]]) {
    alignas(16) threadgroup float stage[32 * 40];
    alignas(16) threadgroup float16 halves[32 * 40];
    alignas(16) threadgroup bfloat16 brains[32 * 40];
    every_copy(stage + 4 * index, x + 4 * index, index < 3);
    every_copy(halves + 8 * index, x + 4 * index, index < 3);
    every_copy(brains + 8 * index, x + 4 * index, index < 3);
    float sum[64] = {};
    tile_step<8, 8>(sum, stage, 1, stage, 1);
    tile_step<8, 4>(sum, halves, 40, brains, 1);
    tile_step<4, 4>(sum, brains, 1, halves, 40);
    every_layout<simdgroup8x8<float>>(sum, stage, index % 32);
    every_layout<simdgroup8x8<float16>>(sum, halves, index % 32);
    every_layout<simdgroup8x8<bfloat16>>(sum, brains, index % 32);
    for (int i = 0; i < 64; ++i) y[64 * index + i] = sum[i];
}

}  // namespace LM_NAMESPACE
}  // namespace lm
