// A small library written by hand in the shape that library.cpp is generated in: entry points that share a weight,
// symbolic dims, a step that can raise, a scalar, a tensor that may be empty, a computed size, 16-bit floats.
//
// The test builds it under several names, so the name comes from -DLM_NAMESPACE; a generated file spells it out, and
// includes NAME.h, whose prototypes must agree with what LM_DEFINE_ABI defines.
#include "luminal/exports.hpp"

// NAME.h, EXAMPLE_METADATA and EXAMPLE_MISSING_FEATURE: rendered or written by the test.
#include "example_config.h"

namespace lm {
inline namespace LM_NAMESPACE {

void k0(float* rows, const int64_t* ids, const float* scale, const float* table, Status* status, const int64_t* dims,
        int64_t begin, int64_t end);
void k1(float* squares, const float* rows, const int64_t* dims, int64_t begin, int64_t end);
void k2(float* scores, const float* squares, const float* table, const float* bias, const int64_t* dims, int64_t begin,
        int64_t end);
void k3(float* joined, const float* x, const float* tail, const int64_t* dims, int64_t begin, int64_t end);
void k4(uint16_t* negative, const uint16_t* value, const bool* chosen, const int64_t* dims, int64_t begin,
        int64_t end);

namespace {

// Offsets into the payload of the weights file.
constexpr int64_t TABLE = 0;   // float32 [16, 8]
constexpr int64_t BIAS = 512;  // float32 [16]

void run_embed(Context& context, const int64_t* dims, const void* const* in, void* const* out) {
    context.parallel(0, dims[0], 1, [&](int64_t begin, int64_t end) {
        k0(static_cast<float*>(out[0]), static_cast<const int64_t*>(in[0]), static_cast<const float*>(in[1]),
           context.weights<float>(TABLE), context.status(), dims, begin, end);
    });
}

void run_score(Context& context, const int64_t* dims, const void* const* in, void* const* out) {
    context.serial(1, dims[0], [&](int64_t begin, int64_t end) {
        k1(context.arena<float>(0), static_cast<const float*>(in[0]), dims, begin, end);
    });
    context.parallel(2, dims[0], 1, [&](int64_t begin, int64_t end) {
        k2(static_cast<float*>(out[0]), context.arena<float>(0), context.weights<float>(TABLE),
           context.weights<float>(BIAS), dims, begin, end);
    });
    context.parallel(3, dims[0] * 8 + dims[1], 1, [&](int64_t begin, int64_t end) {
        k3(static_cast<float*>(out[1]), static_cast<const float*>(in[0]), static_cast<const float*>(in[1]), dims,
           begin, end);
    });
}

void run_negate(Context& context, const int64_t* dims, const void* const* in, void* const* out) {
    for (int32_t i = 0; i < 2; ++i) {
        context.parallel(4 + i, dims[0], 1, [&](int64_t begin, int64_t end) {
            k4(static_cast<uint16_t*>(out[i]), static_cast<const uint16_t*>(in[i]), static_cast<const bool*>(in[2]),
               dims, begin, end);
        });
    }
}

int64_t axis_joined(const int64_t* dims) { return dims[0] * 8 + dims[1]; }

constexpr Dim dims_table[] = {{"rows", 1, 64}, {"tail", 0, 4}};

constexpr Axis axes_rows[] = {symbol("rows", 0)};
constexpr Axis axes_rows_8[] = {symbol("rows", 0), fixed("8", 8)};
constexpr Axis axes_rows_16[] = {symbol("rows", 0), fixed("16", 16)};
constexpr Axis axes_tail[] = {symbol("tail", 1)};
constexpr Axis axes_joined[] = {computed("8*rows + tail", axis_joined)};

constexpr Tensor embed_inputs[] = {{"ids", LM_INT64, axes_rows}, {"scale", LM_FLOAT32, {}}};
constexpr Tensor embed_outputs[] = {{"embedding", LM_FLOAT32, axes_rows_8}};
constexpr Tensor score_inputs[] = {{"x", LM_FLOAT32, axes_rows_8}, {"tail", LM_FLOAT32, axes_tail}};
constexpr Tensor score_outputs[] = {{"scores", LM_FLOAT32, axes_rows_16}, {"joined", LM_FLOAT32, axes_joined}};
constexpr Tensor negate_inputs[] = {
    {"half", LM_FLOAT16, axes_rows}, {"brain", LM_BFLOAT16, axes_rows}, {"chosen", LM_BOOL, axes_rows}};
constexpr Tensor negate_outputs[] = {{"minus_half", LM_FLOAT16, axes_rows}, {"minus_brain", LM_BFLOAT16, axes_rows}};

constexpr Entry entries_table[] = {
    {"embed", embed_inputs, embed_outputs, 0, run_embed},
    {"score", score_inputs, score_outputs, 64 * 8 * 4, run_score},
    {"negate", negate_inputs, negate_outputs, 0, run_negate},
};

constexpr const char* steps_table[] = {
    "Gather '/embeddings/Gather' (example.py:3)",
    "Mul '/square/Mul' (example.py:7)",
    "MatMul '/score/MatMul' (example.py:8)",
    "Concat '/joined/Concat' (example.py:9)",
    "Neg '/half/Neg' (example.py:12)",
    "Neg '/brain/Neg' (example.py:13)",
};

// With target features, this asks __builtin_cpu_supports("avx2") and so on, and names the first that is missing.
const char* missing_feature() { return EXAMPLE_MISSING_FEATURE; }

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

constexpr Model model = {
    TEXT(LM_NAMESPACE),
    EXAMPLE_METADATA,
    missing_feature,
    {0x1e, 0x5a, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d,
     0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d},
    {},
    576,
    dims_table,
    entries_table,
    steps_table,
};

}  // namespace
}  // namespace LM_NAMESPACE
}  // namespace lm

// One more macro, so that LM_NAMESPACE is replaced by the name before it is pasted.
#define DEFINE_ABI(NAME) LM_DEFINE_ABI(NAME, lm::model)
DEFINE_ABI(LM_NAMESPACE);
