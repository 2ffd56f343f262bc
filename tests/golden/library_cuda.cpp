// The library "mirrored": its entry points, step by step, and what it says about itself.
#include "luminal/cuda/exports.hpp"
#include "luminal/index.hpp"

// images.cpp: the kernels, compiled.
extern "C" {
extern const unsigned char mirrored_model_lookup[];
extern const unsigned char mirrored_model_mirror[];
}

namespace lm {
inline namespace LM_NAMESPACE {
namespace {

enum KernelNumber : int32_t {
    lookup,
    mirror,
};

// Each kernel's name, the threads of its blocks, and its image.
constexpr cuda::Kernel kernels_table[] = {
    {"lookup", 8, mirrored_model_lookup},
    {"mirror", 24, mirrored_model_mirror},
};

// Offsets of the constants in the weights, in bytes.
constexpr int64_t weight0 = 0;  // table: float32 [16, 24]
constexpr int64_t weight1 = 1536;  // bias: float32 [24]

void run_main(Context& context, const int64_t* dims, const void* const*, void* const*) {
    (void)context, (void)dims;
    // Gather 'rows' (model.py:3)
    context.launch(0, lookup, dims[0], {context.arena(0), context.input(0), context.input(1), context.weights(weight0),
            context.status(0), context.dims()});
    // Add 'mirrored' (model.py:4)
    context.launch(1, mirror, dims[0], {context.output(0), context.arena(0), context.weights(weight1), context.dims()});
}

void run_mirror_only(Context& context, const int64_t* dims, const void* const*, void* const*) {
    (void)context, (void)dims;
    // Add 'mirrored' (model.py:4)
    context.launch(2, mirror, dims[0], {context.output(0), context.input(0), context.weights(weight1), context.dims()});
}

constexpr Dim dims_table[] = {
    {"rows", 1, 64},
};

constexpr Axis axes0[] = {symbol("rows", 0)};
constexpr Axis axes1[] = {symbol("rows", 0), fixed("24", 24)};

constexpr Tensor main_inputs[] = {
    {"ids", LM_INT64, axes0},
    {"x", LM_FLOAT32, axes1},
};
constexpr Tensor main_outputs[] = {
    {"y", LM_FLOAT32, axes1},
};
constexpr Tensor mirror_only_inputs[] = {
    {"x", LM_FLOAT32, axes1},
};
constexpr Tensor mirror_only_outputs[] = {
    {"y", LM_FLOAT32, axes1},
};

constexpr Entry entries_table[] = {
    {"main", main_inputs, main_outputs, 6144, run_main},
    {"mirror_only", mirror_only_inputs, mirror_only_outputs, 0, run_mirror_only},
};

constexpr const char* steps_table[] = {
    "Gather 'rows' (model.py:3)",
    "Add 'mirrored' (model.py:4)",
    "Add 'mirrored' (model.py:4)",
};

// What the library needs of the machine it asks of the CUDA driver, when it is opened.
constexpr const char* (*missing_feature)() = nullptr;

constexpr cuda::Code model_code = {80, kernels_table};

