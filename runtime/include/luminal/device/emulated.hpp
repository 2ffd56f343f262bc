// What an emulator gives to the emulated bodies of these headers: where a thread is, and what threads do together. All
// threads of the block (of the warp, for functions of a warp) make the same calls in the same order.
#pragma once

#include "luminal/device/language.hpp"

#if defined(LM_EMULATED)

extern "C" {

/// The calling thread's lane in its warp: 0 .. 31.
int32_t lm_emulated_lane(void);

/// No thread of the block, or of the warp, goes on before all have come here. They then see what all have written to
/// shared arrays; where `all_memory` is not 0, to global ones too.
void lm_emulated_barrier(int32_t all_memory);
void lm_emulated_warp_barrier(int32_t all_memory);

/// Every lane of the warp gives something; once all have, `together` is called with what they gave, in order of lanes.
void lm_emulated_together(void* mine, void (*together)(void* const* lanes));

/// Copies `bytes`, or zeros where `global` is null, to shared memory in the background: nobody may read them there, nor
/// write the source, before the group of copies that the thread commits next has been waited for, and others not before
/// a barrier after that.
/// wait: at most `groups` of the thread's committed groups, the last ones, may still be under way.
void lm_emulated_copy_async(void* shared, const void* global, uint32_t bytes);
void lm_emulated_copy_commit(void);
void lm_emulated_copy_wait(uint32_t groups);

/// One access of `bytes`, a power of two, at p: a fault where p is not aligned to as many.
void lm_emulated_access(const void* p, uint32_t bytes);

}

#define LM_EMULATED_ACCESS(p, bytes) lm_emulated_access((p), (bytes))

// Whether a barrier orders all memory: those of CUDA do, those of Metal what they name.
#if defined(LM_EMULATE_METAL)
#define LM_EMULATED_BARRIER 0
#else
#define LM_EMULATED_BARRIER 1
#endif

#else

#define LM_EMULATED_ACCESS(p, bytes)

#endif
