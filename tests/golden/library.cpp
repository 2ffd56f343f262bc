// The library "scaled_rows": its entry points, step by step, and what it says about itself.
#include "luminal/cpu.hpp"
#include "luminal/exports.hpp"
#include "luminal/index.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

struct float16;
struct bfloat16;

void square(float* out, const float* x, const int64_t* dims, int64_t begin, int64_t end);
void weigh(float* out, const float* x, const float* w, const int64_t* dims, int64_t begin, int64_t end);

namespace {

// Offsets of the constants in the weights, in bytes.
constexpr int64_t weight0 = 0;  // weight: float32 [24]

void run_main(Context& context, const int64_t* dims, const void* const* in, void* const* out) {
    (void)context, (void)dims, (void)in, (void)out;
    // Mul 'square' (model.py:3)
    context.parallel(0, dims[0], [&](int64_t begin, int64_t end) {
        square(context.arena<float>(0), static_cast<const float*>(in[0]), dims, begin, end);
    });
    // Mul 'weigh' (model.py:4)
    context.parallel(1, dims[0], [&](int64_t begin, int64_t end) {
        weigh(static_cast<float*>(out[0]), context.arena<float>(0), context.weights<float>(weight0), dims, begin, end);
    });
}

void run_weigh_only(Context& context, const int64_t* dims, const void* const* in, void* const* out) {
    (void)context, (void)dims, (void)in, (void)out;
    // Mul 'weigh' (model.py:4)
    context.parallel(2, dims[0], [&](int64_t begin, int64_t end) {
        weigh(static_cast<float*>(out[0]), static_cast<const float*>(in[0]), context.weights<float>(weight0), dims,
                begin, end);
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

constexpr char metadata[] =
    "{\"abi_version\":1,\"name\":\"scaled_rows\",\"dims\":[{\"name\":\"rows\",\"lower\":1,\"upper\":32}],\"entries\":[{\"nam"
    "e\":\"main\",\"structure\":null,\"arena_bytes\":3072,\"inputs\":[{\"name\":\"x\",\"dtype\":\"float32\",\"shape\":[\"rows"
    "\",24]}],\"outputs\":[{\"name\":\"y\",\"dtype\":\"float32\",\"shape\":[\"rows\",24]}]},{\"name\":\"weigh_only\",\"struct"
    "ure\":null,\"arena_bytes\":0,\"inputs\":[{\"name\":\"x\",\"dtype\":\"float32\",\"shape\":[\"rows\",24]}],\"outputs\":[{"
    "\"name\":\"y\",\"dtype\":\"float32\",\"shape\":[\"rows\",24]}]}],\"source\":\"model.py\",\"source_hash\":\"534b6bb67a01"
    "95968fe35167ef3e341fc4c507300c9f6d55c26bbbef1f0cb436\",\"target\":{\"name\":\"avx2\",\"features\":[\"avx2\",\"fm"
    "a\",\"f16c\",\"bmi2\"]},\"constants\":[{\"name\":\"weight\",\"dtype\":\"float32\",\"shape\":[24],\"offset\":0,\"bytes\":9"
    "6}],\"kernels\":[{\"name\":\"square\",\"origins\":[\"Mul 'square' (model.py:3)\"]},{\"name\":\"weigh\",\"origins\":["
    "\"Mul 'weigh' (model.py:3)\"]}]}";

constexpr Model model = {
    "scaled_rows",
    metadata,
    missing_feature,
    {0x53, 0x4b, 0x6b, 0xb6, 0x7a, 0x01, 0x95, 0x96, 0x8f, 0xe3, 0x51, 0x67, 0xef, 0x3e, 0x34, 0x1f, 0xc4, 0xc5, 0x07, 0x30, 0x0c, 0x9f, 0x6d, 0x55, 0xc2, 0x6b, 0xbb, 0xef, 0x1f, 0x0c, 0xb4, 0x36},
    128,
    dims_table,
    entries_table,
    steps_table,
};

}  // namespace
}  // namespace LM_NAMESPACE
}  // namespace lm

LM_DEFINE_ABI(scaled_rows, lm::model);
