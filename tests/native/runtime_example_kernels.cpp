// The kernels of the example library: plain functions that do the tasks [begin, end). A generated kernels/*.cpp has the
// same shape.
#include <stdint.h>

#include "luminal/namespace.hpp"
#include "luminal/status.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

/// rows[r, c] = scale * table[ids[r], c]; one task a row.
void k0(float* rows, const int64_t* ids, const float* scale, const float* table, Status* status, const int64_t* dims,
        int64_t begin, int64_t end) {
    (void)dims;
    for (int64_t row = begin; row < end; ++row) {
        int64_t index = ids[row];
        if (index < 0 || index >= 16) {
            status->raise(LM_INDEX_OUT_OF_RANGE);
            index = 0;
        }
        for (int64_t column = 0; column < 8; ++column) rows[row * 8 + column] = scale[0] * table[index * 8 + column];
    }
}

/// squares[r, c] = rows[r, c]^2; one task a row.
void k1(float* squares, const float* rows, const int64_t* dims, int64_t begin, int64_t end) {
    (void)dims;
    for (int64_t i = begin * 8; i < end * 8; ++i) squares[i] = rows[i] * rows[i];
}

/// scores[r, n] = bias[n] + sum over k of squares[r, k] * table[n, k]; one task a row.
void k2(float* scores, const float* squares, const float* table, const float* bias, const int64_t* dims, int64_t begin,
        int64_t end) {
    (void)dims;
    for (int64_t row = begin; row < end; ++row) {
        for (int64_t n = 0; n < 16; ++n) {
            float sum = bias[n];
            for (int64_t k = 0; k < 8; ++k) sum += squares[row * 8 + k] * table[n * 8 + k];
            scores[row * 16 + n] = sum;
        }
    }
}

/// joined = x, then tail; one task an element of the result.
void k3(float* joined, const float* x, const float* tail, const int64_t* dims, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) joined[i] = i < dims[0] * 8 ? x[i] : tail[i - dims[0] * 8];
}

/// negative[i] = -value[i] where `chosen`, for any 16-bit float; one task an element.
void k4(uint16_t* negative, const uint16_t* value, const bool* chosen, const int64_t* dims, int64_t begin,
        int64_t end) {
    (void)dims;
    for (int64_t i = begin; i < end; ++i) negative[i] = static_cast<uint16_t>(value[i] ^ (chosen[i] ? 0x8000 : 0));
}

}  // namespace LM_NAMESPACE
}  // namespace lm
