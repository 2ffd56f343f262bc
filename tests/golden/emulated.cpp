// The kernels of this image, as the emulator calls them. They are compiled beside this file, unchanged.
#include "luminal/device/kernel.hpp"

#include "emulator.h"

namespace lm {
inline namespace LM_NAMESPACE {

[[host_name("staged_rows")]] kernel void staged_rows(device float* out [[buffer(0)]], device bool* flags [[buffer(1)]],
        device const float* x [[buffer(2)]], uint block_index [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]]);
static void call_staged_rows(void* const* arguments, uint32_t block_index, uint32_t thread_index) {
    (void)arguments, (void)block_index, (void)thread_index;
    staged_rows(static_cast<float*>(arguments[0]), static_cast<bool*>(arguments[1]),
            static_cast<const float*>(arguments[2]), block_index, thread_index);
}
static const char* const names_of_staged_rows[] = {
    "out (value 'out')",
    "flags (value 'flags')",
    "x (value 'x')",
};

[[host_name("rows_of_a_table")]] kernel void rows_of_a_table(device float* out [[buffer(0)]],
        device const int64_t* rows [[buffer(1)]], device const int64_t* columns [[buffer(2)]],
        device const float* table [[buffer(3)]], device Status* status [[buffer(4)]],
        uint block_index [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]);
static void call_rows_of_a_table(void* const* arguments, uint32_t block_index, uint32_t thread_index) {
    (void)arguments, (void)block_index, (void)thread_index;
    rows_of_a_table(static_cast<float*>(arguments[0]), static_cast<const int64_t*>(arguments[1]),
            static_cast<const int64_t*>(arguments[2]), static_cast<const float*>(arguments[3]),
            static_cast<Status*>(arguments[4]), block_index, thread_index);
}
static const char* const names_of_rows_of_a_table[] = {
    "out (value 'out')",
    "rows (value 'rows')",
    "columns (value 'columns')",
    "table (value 'table')",
    "status",
};

[[host_name("far_apart")]] kernel void far_apart(device float* out [[buffer(0)]], device const float* x [[buffer(1)]],
        constant int64_t* dims [[buffer(2)]], uint block_index [[threadgroup_position_in_grid]],
        uint thread_index [[thread_index_in_threadgroup]]);
static void call_far_apart(void* const* arguments, uint32_t block_index, uint32_t thread_index) {
    (void)arguments, (void)block_index, (void)thread_index;
    far_apart(static_cast<float*>(arguments[0]), static_cast<const float*>(arguments[1]),
            static_cast<const int64_t*>(arguments[2]), block_index, thread_index);
}
static const char* const names_of_far_apart[] = {
    "out (value 'out')",
    "x (value 'x')",
    "dims",
};

}  // namespace LM_NAMESPACE
}  // namespace lm

extern "C" const lm_emulated_kernel lm_emulated_kernels[] = {
    {"staged_rows", lm::call_staged_rows, 64, 3, lm::names_of_staged_rows},
    {"rows_of_a_table", lm::call_rows_of_a_table, 64, 5, lm::names_of_rows_of_a_table},
    {"far_apart", lm::call_far_apart, 64, 3, lm::names_of_far_apart},
    {nullptr, nullptr, 0, 0, nullptr},
};
