// An emulator with what these kernels need: one thread after the other.
#include "emulator.h"

extern "C" {

int lm_emulate(const lm_emulated_kernel* kernel, uint64_t blocks, void* const* arguments) {
    for (uint64_t block = 0; block < blocks; ++block) {
        for (uint32_t thread = 0; thread < kernel->threads; ++thread) {
            kernel->call(arguments, static_cast<uint32_t>(block), thread);
        }
    }
    return 0;
}

void lm_emulate_buffer(void*, size_t, int) {}
void lm_emulate_release(void*) {}
void lm_emulate_written(void*, size_t) {}
const char* lm_emulate_faults() { return ""; }
}
