// The kernels of metal_example.metal as the emulator calls them.
#include "luminal/device/kernel.hpp"

#include "emulator.h"

void gather0(const float*, const int64_t*, float*, int32_t*, uint block, uint thread_index);
void scale1(const float*, const float*, const float*, float*, const int64_t*, uint block, uint thread_index);

namespace {

template <class T>
T* pointer(void* const* arguments, int index) {
    return static_cast<T*>(arguments[index]);
}

void call_gather0(void* const* arguments, uint32_t block, uint32_t thread_index) {
    gather0(pointer<float>(arguments, 0), pointer<int64_t>(arguments, 1), pointer<float>(arguments, 2),
            pointer<int32_t>(arguments, 3), block, thread_index);
}

void call_scale1(void* const* arguments, uint32_t block, uint32_t thread_index) {
    scale1(pointer<float>(arguments, 0), pointer<float>(arguments, 1), pointer<float>(arguments, 2),
           pointer<float>(arguments, 3), pointer<int64_t>(arguments, 4), block, thread_index);
}

const char* const names[] = {"x0", "x1", "x2", "x3", "dims"};

}  // namespace

extern "C" const lm_emulated_kernel lm_emulated_kernels[] = {
    {"gather0", call_gather0, 32, 4, names}, {"scale1", call_scale1, 32, 5, names}, {nullptr, nullptr, 0, 0, nullptr}};
