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

/// As lm_emulated_together, for the lanes of a group of four warps.
void lm_emulated_group_together(void* mine, void (*together)(void* const* lanes));

/// Products of such a group, in the background. One adds `elements` to the lane's sums once it was waited for; the result
/// is where these elements go. What it reads the lanes say, each a part. Nobody may use the sums, nor write what it reads,
/// before the set of products that the lane commits next has been waited for. The lane's sums are fenced after every
/// access to them, and what a thread wrote is shared with products before the barrier that they wait for.
/// wait: at most `sets` of the lane's committed sets, the last ones, may still be under way.
void lm_emulated_share(void);
void lm_emulated_product_fence(void);
float* lm_emulated_product(float* sum, uint32_t elements);
void lm_emulated_product_read(const void* p, uint32_t bytes);
void lm_emulated_product_commit(void);
void lm_emulated_product_wait(uint32_t sets);

/// Copies of boxes in the background. An arrival is begun once; its phase ends when as many bytes have been copied as
/// were expected and so many threads have arrived. Nobody may read a box before it has waited for its phase, or met
/// another who has. Who waits for a phase sees what was done before the arrivals that ended it. `map` is what the driver
/// made, `at` the coordinates.
void lm_emulated_arrival_begin(uint64_t* arrival, uint32_t threads);
void lm_emulated_arrival_expect(uint64_t* arrival, uint32_t bytes);
void lm_emulated_arrival(uint64_t* arrival);
void lm_emulated_arrival_wait(uint64_t* arrival, uint32_t parity);
void lm_emulated_copy_box(void* shared, const void* map, const int32_t* at, uint64_t* arrival);

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
