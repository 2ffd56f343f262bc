// What threads of a block do together, behind a C interface: tests/test_device_warp.py.
#define LM_NAMESPACE device_warp_test
#include "device_threads.hpp"
#include "luminal/device/functions.hpp"

namespace {

constexpr int THREADS = 96;

template <int threads, class T> void reduce_block(const T* x, T* warp_sum, T* warp_max, T* sums, T* maxima) {
    T scratch[threads / 32], other[threads / 32];
    emulated::run_block(threads, [&](int index) {
        warp_sum[index] = lm::warp_reduce_add(x[index]);
        warp_max[index] = lm::warp_reduce_max(x[index]);
        sums[index] = lm::block_reduce_add<threads>(x[index], scratch, index);
        maxima[index] = lm::block_reduce_max<threads>(x[index], other, index);
    });
}

template <class T> void reduce(const T* x, T* warp_sum, T* warp_max, T* sums, T* maxima) {
    reduce_block<THREADS>(x, warp_sum, warp_max, sums, maxima);
}

template <class T> void shuffle(const T* x, int mask, T* out) {
    emulated::run_block(32, [&](int lane) { out[lane] = lm::shuffle_xor(x[lane], mask); });
}

}  // namespace

extern "C" void reduce_f32(const float* x, float* a, float* b, float* c, float* d) { reduce(x, a, b, c, d); }
extern "C" void reduce_four(const float* x, float* a, float* b, float* c, float* d) { reduce_block<128>(x, a, b, c, d); }
extern "C" void reduce_f64(const double* x, double* a, double* b, double* c, double* d) { reduce(x, a, b, c, d); }
extern "C" void reduce_i64(const int64_t* x, int64_t* a, int64_t* b, int64_t* c, int64_t* d) { reduce(x, a, b, c, d); }

extern "C" void shuffle_f32(const float* x, int mask, float* out) { shuffle(x, mask, out); }
extern "C" void shuffle_f64(const double* x, int mask, double* out) { shuffle(x, mask, out); }
extern "C" void shuffle_i8(const int8_t* x, int mask, int8_t* out) { shuffle(x, mask, out); }
extern "C" void shuffle_bool(const bool* x, int mask, bool* out) { shuffle(x, mask, out); }

/// Every thread adds and offers its value, and raises its code unless that is 0.
extern "C" void meet(const int32_t* x, const int32_t* codes, int32_t* sum, int32_t* largest, int32_t* status) {
    lm::Status outcome{0};
    emulated::run_block(THREADS, [&](int index) {
        lm::atomic_add(sum, x[index]);
        lm::atomic_max(largest, x[index]);
        if (codes[index] != 0) lm::raise(&outcome, codes[index]);
    });
    *status = outcome.code;
}

/// Two groups of copies: what is there after none, the first, both were waited for. The last of `from` is not valid.
extern "C" void copy_groups(const float* from, float* none, float* first, float* both) {
    alignas(16) float to[12] = {};
    emulated::run_block(32, [&](int lane) {
        if (lane != 0) return;
        lm::copy_async<16>(to, from);
        lm::copy_commit();
        lm::copy_async<8>(to + 4, from + 4);
        lm::copy_async<4>(to + 6, from + 6);
        to[8] = to[9] = to[10] = to[11] = 1;
        lm::copy_async<16>(to + 8, from + 8, false);
        lm::copy_commit();
        std::memcpy(none, to, sizeof to);
        lm::copy_wait<1>();
        std::memcpy(first, to, sizeof to);
        lm::copy_wait<0>();
        std::memcpy(both, to, sizeof to);
    });
}

/// sum += a * b over `depth` terms by one thread; 8 x 8 and 8 x 4 and 4 x 4 tiles.
#define TILE(NAME, ROWS, COLUMNS, T)                                                                                 \
    extern "C" void NAME(const T* a, int a_row, int a_depth, const T* b, int b_depth, int b_column, float* sum,      \
                         int depth) {                                                                                \
        for (int k = 0; k < depth; ++k) {                                                                            \
            lm::tile_step<ROWS, COLUMNS>(sum, a + k * a_depth, a_row, b + k * b_depth, b_column);                    \
        }                                                                                                            \
    }
TILE(tile_8x8, 8, 8, float)
TILE(tile_8x4, 8, 4, float)
TILE(tile_4x4, 4, 4, float)
TILE(tile_8x8_float16, 8, 8, lm::float16)

// ---- Fragments ----------------------------------------------------------------------------------------------------

/// A warp's tile of 2 x 3 fragments: sum[lane][fragment][element], and the place that each element says it has.
#define FRAGMENT(NAME, F, T)                                                                                         \
    extern "C" void NAME(const void* a, int a_row, int a_depth, const void* b, int b_depth, int b_column,            \
                         float* sum, int depth) {                                                                    \
        emulated::run_block(32, [&](int lane) {                                                                      \
            float* mine = sum + lane * 6 * lm::F::elements;                                                          \
            for (int k = 0; k < depth; k += lm::F::depth) {                                                          \
                lm::warp_tile_step<lm::F, 2, 3>(mine, static_cast<const T*>(a) + k * a_depth, a_row, a_depth,        \
                                                static_cast<const T*>(b) + k * b_depth, b_depth, b_column, lane);    \
            }                                                                                                        \
        });                                                                                                          \
    }                                                                                                                \
    extern "C" void NAME##_places(int* rows, int* columns) {                                                         \
        for (int lane = 0; lane < 32; ++lane) {                                                                      \
            for (int e = 0; e < lm::F::elements; ++e) {                                                              \
                rows[lane * lm::F::elements + e] = lm::F::row(lane, e);                                              \
                columns[lane * lm::F::elements + e] = lm::F::column(lane, e);                                        \
            }                                                                                                        \
        }                                                                                                            \
    }
/// The same of bytes, of one block of 64 terms with scales, for a tile of 2 x J fragments.
#define SCALED(NAME, F, J)                                                                                           \
    extern "C" void NAME(const void* a, int a_row, int a_depth, const void* b, int b_depth, int b_column,            \
                         const float* left, const float* right, float* sum) {                                        \
        emulated::run_block(32, [&](int lane) {                                                                      \
            lm::scaled_tile_step<lm::F, 2, J, 64>(sum + lane * 2 * J * lm::F::elements,                              \
                                                  static_cast<const int8_t*>(a), a_row, a_depth,                     \
                                                  static_cast<const int8_t*>(b), b_depth, b_column, left, 1, right,  \
                                                  1, lane);                                                          \
        });                                                                                                          \
    }
SCALED(m16n8k32_int8_3, m16n8k32<int8_t>, 3)
SCALED(m16n8k32_int8_4, m16n8k32<int8_t>, 4)
SCALED(m16n8k16_int8_3, m16n8k16<int8_t>, 3)
SCALED(m16n8k16_int8_4, m16n8k16<int8_t>, 4)
FRAGMENT(m16n8k16_float16, m16n8k16<lm::float16>, lm::float16)
FRAGMENT(m16n8k16_bfloat16, m16n8k16<lm::bfloat16>, lm::bfloat16)
FRAGMENT(m16n8k8_tf32, m16n8k8_tf32<float>, float)
FRAGMENT(simdgroup8x8_float, simdgroup8x8<float>, float)
FRAGMENT(simdgroup8x8_float16, simdgroup8x8<lm::float16>, lm::float16)
FRAGMENT(simdgroup8x8_bfloat16, simdgroup8x8<lm::bfloat16>, lm::bfloat16)
