// The kernels of metal_example.metal as functions of the CPU, with an emulator that has what they need: one thread after
// the other.
#include "emulator.h"

#define kernel static
#define device
#define constant const
using uint = unsigned;

#include "metal_example.metal"

namespace {

template <class T>
T* pointer(void* const* arguments, int index) {
    return static_cast<T*>(arguments[index]);
}

void call_gather0(void* const* arguments, uint32_t block, uint32_t thread) {
    gather0(pointer<float>(arguments, 0), pointer<int64_t>(arguments, 1), pointer<float>(arguments, 2),
            pointer<int32_t>(arguments, 3), block, thread);
}

void call_scale1(void* const* arguments, uint32_t block, uint32_t thread) {
    scale1(pointer<float>(arguments, 0), pointer<float>(arguments, 1), pointer<float>(arguments, 2),
           pointer<float>(arguments, 3), pointer<int64_t>(arguments, 4), block, thread);
}

int registered = 0;

}  // namespace

extern "C" {

extern const lm_emulated_kernel lm_emulated_kernels[] = {
    {"gather0", call_gather0, 32, 4}, {"scale1", call_scale1, 32, 5}, {nullptr, nullptr, 0, 0}};

int lm_emulate(const lm_emulated_kernel* emulated, uint64_t blocks, void* const* arguments) {
    for (uint64_t block = 0; block < blocks; ++block) {
        for (uint32_t thread = 0; thread < emulated->threads; ++thread) {
            emulated->call(arguments, static_cast<uint32_t>(block), thread);
        }
    }
    return 0;
}

void lm_emulate_buffer(void*, size_t, int) { ++registered; }
void lm_emulate_release(void*) { --registered; }
void lm_emulate_written(void*, size_t) {}
const char* lm_emulate_faults() { return ""; }

/// Device buffers that are registered now.
int example_buffers() { return registered; }
}
