// A small library for Metal written by hand in the shape that library.cpp is generated in: a step that can raise, an
// intermediate tensor, weights, a symbolic dim, a scalar.
#include "luminal/metal/exports.hpp"

// EXAMPLE_SHADERS, EXAMPLE_THREADS and EXAMPLE_METADATA: written by the test.
#include "metal_example_config.h"

namespace lm {
inline namespace LM_NAMESPACE {
namespace {

enum Kernels : int32_t { gather0, scale1 };

constexpr metal::Kernel kernels_table[] = {{"gather0", 32}, {"scale1", EXAMPLE_THREADS}};

constexpr int64_t TABLE = 0;    // float32 [16, 32]
constexpr int64_t BIAS = 2048;  // float32 [32]

void run_forward(Context& context, const int64_t* dims, const void* const*, void* const*) {
    context.launch(0, gather0, dims[0],
                   {context.weights(TABLE), context.input(0), context.arena(64), context.status(0)});
    context.launch(1, scale1, dims[0],
                   {context.arena(64), context.input(1), context.weights(BIAS), context.output(0), context.dims()});
}

constexpr Dim dims_table[] = {{"rows", 0, 64}};
constexpr Axis axes0[] = {symbol("rows", 0)};
constexpr Axis axes1[] = {symbol("rows", 0), fixed("32", 32)};
constexpr Tensor forward_inputs[] = {{"ids", LM_INT64, axes0}, {"scale", LM_FLOAT32, {}}};
constexpr Tensor forward_outputs[] = {{"scaled", LM_FLOAT32, axes1}};
constexpr Entry entries_table[] = {{"forward", forward_inputs, forward_outputs, 64 + 64 * 32 * 4, run_forward}};
constexpr const char* steps_table[] = {"Gather '/table/Gather' (example.py:3)", "Mul '/scale/Mul' (example.py:7)"};

constexpr metal::Shaders shaders = {EXAMPLE_SHADERS, kernels_table};

constexpr Model model = {
    "metal_example",
    EXAMPLE_METADATA,
    nullptr,
    {0x1e, 0x5a, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d,
     0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d},
    {},
    2048 + 128,
    dims_table,
    entries_table,
    steps_table,
    {},
    {},
    0,
    0,
    0,
    {},
    &shaders,
};

}  // namespace
}  // namespace LM_NAMESPACE
}  // namespace lm

LM_DEFINE_ABI(metal_example, lm::model);
