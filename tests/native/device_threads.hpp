// An emulator of one block on the system's threads: enough to test the functions of warps and blocks alone.
#pragma once

#include <pthread.h>

#include <cstring>
#include <thread>
#include <vector>

#include "device_emulated.hpp"

namespace emulated {

struct Copy {
    void* to;
    const void* from;
    uint32_t bytes;
    uint32_t group;
};

struct Warp {
    pthread_barrier_t meeting;
    void* given[32];
};

inline pthread_barrier_t meeting;
inline std::vector<Warp>* warps;
inline thread_local int self;
inline thread_local uint32_t group;
inline thread_local std::vector<Copy> copies;

/// Calls f(thread) on each thread of a block; `threads` is a multiple of 32.
template <class F> void run_block(int threads, F f) {
    std::vector<Warp> all(static_cast<size_t>(threads / 32));
    warps = &all;
    pthread_barrier_init(&meeting, nullptr, static_cast<unsigned>(threads));
    for (Warp& warp : all) pthread_barrier_init(&warp.meeting, nullptr, 32);
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
        running.emplace_back([=] {
            self = t;
            f(t);
        });
    }
    for (std::thread& one : running) one.join();
    for (Warp& warp : all) pthread_barrier_destroy(&warp.meeting);
    pthread_barrier_destroy(&meeting);
}

inline Warp& warp() { return (*warps)[static_cast<size_t>(self / 32)]; }

}  // namespace emulated

extern "C" inline int32_t lm_emulated_lane(void) { return emulated::self % 32; }
extern "C" inline void lm_emulated_barrier(int32_t) { pthread_barrier_wait(&emulated::meeting); }
extern "C" inline void lm_emulated_warp_barrier(int32_t) { pthread_barrier_wait(&emulated::warp().meeting); }

extern "C" inline void lm_emulated_together(void* mine, void (*together)(void* const* lanes)) {
    emulated::Warp& warp = emulated::warp();
    warp.given[emulated::self % 32] = mine;
    pthread_barrier_wait(&warp.meeting);
    if (emulated::self % 32 == 0) together(warp.given);
    pthread_barrier_wait(&warp.meeting);
}

// As late as allowed: a copy is done when it is waited for.
extern "C" inline void lm_emulated_copy_async(void* shared, const void* global, uint32_t bytes) {
    emulated::copies.push_back({shared, global, bytes, emulated::group});
}
extern "C" inline void lm_emulated_copy_commit(void) { ++emulated::group; }
extern "C" inline void lm_emulated_copy_wait(uint32_t groups) {
    std::vector<emulated::Copy> later;
    for (const emulated::Copy& copy : emulated::copies) {
        if (copy.group + groups < emulated::group) {
            if (copy.from != nullptr) std::memcpy(copy.to, copy.from, copy.bytes);
            else std::memset(copy.to, 0, copy.bytes);
        } else {
            later.push_back(copy);
        }
    }
    emulated::copies = later;
}
