// The library "scaled_rows": its entry points, step by step, and what it says about itself.
#include "luminal/cpu.hpp"
#include "luminal/exports.hpp"
#include "luminal/index.hpp"
#include "luminal/narrow_types.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

void square(float* out, const float* x, int64_t begin, int64_t end);
void weigh(float* out, const float* x, const float* w, int64_t begin, int64_t end);

namespace {

// Offsets of the constants in the weights, in bytes.
constexpr int64_t weight0 = 0;  // weight: float32 [24]

void run_main(Context& context, const int64_t* dims, const void* const* in, void* const* out) {
    (void)context, (void)dims, (void)in, (void)out;
    context.parallel(0, dims[0], 1, [&](int64_t begin, int64_t end) {
        // Mul 'square' (model.py:3)
        square(context.arena<float>(0), static_cast<const float*>(in[0]), begin, end);
    });
    context.parallel(1, dims[0], 1, [&](int64_t begin, int64_t end) {
        // Mul 'weigh' (model.py:4)
        weigh(static_cast<float*>(out[0]), context.arena<float>(0), context.weights<float>(weight0), begin, end);
    });
}

void run_weigh_only(Context& context, const int64_t* dims, const void* const* in, void* const* out) {
    (void)context, (void)dims, (void)in, (void)out;
    context.parallel(2, dims[0], 1, [&](int64_t begin, int64_t end) {
        // Mul 'weigh' (model.py:4)
        weigh(static_cast<float*>(out[0]), static_cast<const float*>(in[0]), context.weights<float>(weight0), begin,
                end);
    });
}

constexpr Dim dims_table[] = {
    {"rows", 1, 32},
};

constexpr Axis axes0[] = {symbol("rows", 0), fixed("24", 24)};

constexpr Tensor main_inputs[] = {
    {"x", LM_FLOAT32, axes0},
};
constexpr Tensor main_outputs[] = {
    {"y", LM_FLOAT32, axes0},
};
constexpr Tensor weigh_only_inputs[] = {
    {"x", LM_FLOAT32, axes0},
};
constexpr Tensor weigh_only_outputs[] = {
    {"y", LM_FLOAT32, axes0},
};

constexpr Entry entries_table[] = {
    {"main", main_inputs, main_outputs, 3072, run_main},
    {"weigh_only", weigh_only_inputs, weigh_only_outputs, 0, run_weigh_only},
};

constexpr const char* steps_table[] = {
    "Mul 'square' (model.py:3)",
    "Mul 'weigh' (model.py:4)",
    "Mul 'weigh' (model.py:4)",
};

const char* missing_feature() {
    if (!cpu_supports("avx2")) return "avx2";
    if (!cpu_supports("fma")) return "fma";
    if (!cpu_supports("f16c")) return "f16c";
    if (!cpu_supports("bmi2")) return "bmi2";
    return nullptr;
}

