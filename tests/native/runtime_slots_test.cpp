// Slots on their own: no two threads have the same memory at once, whether there are as many slots as threads or fewer.
// Meant to run under the thread sanitizer.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "luminal/slots.hpp"

namespace {

constexpr int THREADS = 4;
constexpr int ROUNDS = 2000;
constexpr size_t BYTES = 1000;

struct Worker {
    lm::Slots* slots;
    unsigned char number;
    int failures;
};

void* work(void* argument) {
    Worker& worker = *static_cast<Worker*>(argument);
    for (int round = 0; round < ROUNDS; ++round) {
        const lm::Slots::Taken taken(*worker.slots);
        unsigned char* const own = taken.memory();
        worker.failures += reinterpret_cast<uintptr_t>(own) % lm::ALIGNMENT != 0;
        memset(own, worker.number, BYTES);  // plain: the slots must order the accesses
        for (size_t i = 0; i < BYTES; ++i) worker.failures += own[i] != worker.number;
    }
    return nullptr;
}

int run(int count) {
    const lm::Allocator allocator;
    lm::Slots slots;
    if (!slots.allocate(allocator, count, BYTES)) return 1;
    Worker workers[THREADS];
    pthread_t ids[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        workers[i] = Worker{&slots, static_cast<unsigned char>(i + 1), 0};
        if (pthread_create(&ids[i], nullptr, work, &workers[i]) != 0) return 1;
    }
    int failures = 0;
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(ids[i], nullptr);
        failures += workers[i].failures;
    }
    slots.deallocate(allocator);
    return failures;
}

/// All of them can be had at once.
int all_at_once() {
    const lm::Allocator allocator;
    lm::Slots slots;
    if (!slots.allocate(allocator, 2, BYTES)) return 1;
    int failures = 0;
    {
        const lm::Slots::Taken first(slots);
        const lm::Slots::Taken second(slots);
        failures += first.memory() == second.memory();
    }
    slots.deallocate(allocator);
    return failures;
}

}  // namespace

int main() {
    int failures = all_at_once();
    for (int count = 1; count <= 2 * THREADS; count *= 2) failures += run(count);
    if (failures != 0) printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
