/* The C interface of the emulator: kernels of a GPU as functions of the CPU. */
#ifndef LM_EMULATOR_H
#define LM_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
#define LM_UNLESS_GIVEN(value) = value
#else
#define LM_UNLESS_GIVEN(value)
#endif

/* A kernel: `call` does what one thread of one block does, `threads` is the number of threads of a block, `parameters`
 * that of its arguments, all of them pointers: arguments[i] is the i-th, and names[i] what faults call it. Its blocks
 * share `requested` bytes for which the host asks. After the parameters come pointers to `maps` of 128 bytes. */
struct lm_emulated_kernel {
    const char* name;
    void (*call)(void* const* arguments, uint32_t block, uint32_t thread);
    uint32_t threads;
    uint32_t parameters;
    const char* const* names;
    uint32_t requested LM_UNLESS_GIVEN(0);
    uint32_t maps LM_UNLESS_GIVEN(0);
};

/* The kernels of an image, ended by one without a name. */
extern const struct lm_emulated_kernel lm_emulated_kernels[];

/* Runs all blocks of a kernel; 0, or another number where a fault was found. Faults are recorded. */
int lm_emulate(const struct lm_emulated_kernel* kernel, uint64_t blocks, void* const* arguments);

/* Declares memory of the device, so that accesses outside all of it, and reads before any write, are found; `written`
 * says that all of it holds values. */
void lm_emulate_buffer(void* base, size_t bytes, int written);
void lm_emulate_release(void* base);

/* Says that the host has written these bytes, which lie in declared memory. */
void lm_emulate_written(void* begin, size_t bytes);

/* The faults found so far as text, one a line; empty where there are none. */
const char* lm_emulate_faults(void);

#ifdef __cplusplus
}
#endif

#endif /* LM_EMULATOR_H */
