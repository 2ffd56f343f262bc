// Runs a kernel of the table, block by block.
#include "emulator.hpp"

#include "emulator.h"

extern "C" const lm_emulated_kernel lm_emulated_kernels[];

extern "C" void run_kernel(int number, void* const* arguments, uint32_t blocks) {
    const lm_emulated_kernel& run = lm_emulated_kernels[number];
    for (uint32_t block = 0; block < blocks; ++block) {
        emulated::run_block(static_cast<int>(run.threads), [&](int index) {
#if defined(LM_EMULATE_CUDA)
            blockIdx.x = block;
            threadIdx.x = static_cast<uint32_t>(index);
#endif
            run.call(arguments, block, static_cast<uint32_t>(index));
        });
    }
}
