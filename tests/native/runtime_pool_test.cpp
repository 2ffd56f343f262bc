// The thread pool on its own: every task is done exactly once, whoever calls, however many there are, whether the
// workers spin or sleep. Meant to run under the thread sanitizer.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "luminal/pool.hpp"

namespace {

constexpr int64_t MAX_TASKS = 257;

struct Job {
    int64_t done[MAX_TASKS];  // plain: the pool must order the accesses
};

void add_one(void* argument, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++static_cast<Job*>(argument)->done[i];
}

struct Caller {
    lm::Pool* pool;
    int rounds;
    bool pause;
    int failures;
};

void* call(void* argument) {
    Caller& caller = *static_cast<Caller*>(argument);
    for (int round = 0; round < caller.rounds; ++round) {
        Job job{};
        const int64_t tasks = (round * 37) % (MAX_TASKS + 1);
        caller.pool->enter();
        caller.pool->parallel(tasks, add_one, &job);
        caller.pool->parallel(tasks, add_one, &job);
        caller.pool->leave();
        for (int64_t i = 0; i < MAX_TASKS; ++i) caller.failures += job.done[i] != (i < tasks ? 2 : 0);
        if (caller.pause && round % 8 == 0) usleep(200);  // long enough for the workers to fall asleep
    }
    return nullptr;
}

int run(int threads, int callers, int rounds, bool pause) {
    lm::Pool pool;
    if (!pool.start(threads) || pool.threads() != threads) return 1;
    Caller state[8];
    pthread_t ids[8];
    for (int i = 0; i < callers; ++i) {
        state[i] = Caller{&pool, rounds, pause, 0};
        if (pthread_create(&ids[i], nullptr, call, &state[i]) != 0) return 1;
    }
    int failures = 0;
    for (int i = 0; i < callers; ++i) {
        pthread_join(ids[i], nullptr);
        failures += state[i].failures;
    }
    return failures;
}

/// Who does the tasks of a job. The caller goes on when as many others have come as it awaits.
struct Watch {
    pthread_t caller;
    lm::Atomic<uint32_t> by_others;
    uint32_t awaited;
};

void watch(void* argument, int64_t, int64_t) {
    Watch& job = *static_cast<Watch*>(argument);
    if (!pthread_equal(pthread_self(), job.caller)) job.by_others.fetch_add(1);
    else while (job.by_others.load() < job.awaited) usleep(10);
}

/// As many callers as threads leave no place for workers; neither do jobs too small to share. One caller alone shares.
int who_works() {
    lm::Pool pool;
    if (!pool.start(3)) return 1;
    Watch job{pthread_self(), {}, 0};
    pool.enter();
    pool.parallel(100, watch, &job, 1);
    pool.parallel(1, watch, &job);
    int failures = job.by_others.load() != 0;
    job.awaited = 2;
    pool.parallel(100, watch, &job);
    failures += job.by_others.load() != 2;
    job.awaited = 3;
    pool.enter();
    pool.parallel(100, watch, &job);
    failures += job.by_others.load() != 3;
    pool.enter();
    pool.parallel(100, watch, &job);
    failures += job.by_others.load() != 3;
    for (int i = 0; i < 3; ++i) pool.leave();
    return failures;
}

/// The ranges of workers that sleep are done by the caller, which is there first.
int who_comes_first() {
    lm::Pool pool;
    if (!pool.start(3)) return 1;
    pool.enter();
    for (int round = 0; round < 1000; ++round) {
        Watch job{pthread_self(), {}, 0};
        usleep(200);  // the workers fall asleep
        pool.parallel(3, watch, &job);
        if (job.by_others.load() < 2) return 0;
    }
    return 1;
}

}  // namespace

int main() {
    int failures = 0;
    for (int threads = 1; threads <= 4; ++threads) {
        for (int callers = 1; callers <= 3; ++callers) {
            failures += run(threads, callers, 300, false);
            failures += run(threads, callers, 100, true);
        }
    }
    for (int i = 0; i < 50; ++i) failures += run(3, 1, 0, false);  // stopped before any job
    failures += who_works();
    failures += who_comes_first();
    if (lm::available_cpus() < 1) ++failures;
    if (failures != 0) printf("%d tasks were not done exactly once\n", failures);
    return failures == 0 ? 0 : 1;
}
