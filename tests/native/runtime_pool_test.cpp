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
        caller.pool->parallel(tasks, 1, add_one, &job);
        caller.pool->parallel(tasks, 1 + round % 5, add_one, &job);
        caller.pool->parallel(tasks, 1 + round * 13 % MAX_TASKS, add_one, &job);  // of which some take part at most
        caller.pool->leave();
        for (int64_t i = 0; i < MAX_TASKS; ++i) caller.failures += job.done[i] != (i < tasks ? 3 : 0);
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

/// Who does the tasks of a job. They go on when as many others than the caller have come as are awaited.
struct Watch {
    pthread_t caller;
    uint32_t number;
    uint32_t awaited;
    lm::Atomic<uint32_t> others;
};

void watch(void* argument, int64_t, int64_t) {
    static thread_local uint32_t seen = 0;
    Watch& job = *static_cast<Watch*>(argument);
    if (!pthread_equal(pthread_self(), job.caller) && seen != job.number) job.others.fetch_add(1);
    seen = job.number;
    while (job.others.load() < job.awaited) usleep(10);
}

/// How many others than the caller do tasks of a job, of which `awaited` at least must come.
uint32_t others(lm::Pool& pool, int64_t tasks, int64_t grain, uint32_t awaited) {
    static uint32_t jobs = 0;
    Watch job{pthread_self(), ++jobs, awaited, {}};
    pool.parallel(tasks, grain, watch, &job);
    return job.others.load();
}

/// A job of a pool of three threads, and how many others than its caller are to do its tasks.
struct Question {
    int callers;
    int64_t tasks;
    int64_t grain;
    uint32_t others;
};

/// As many callers as threads leave no place for workers; neither do jobs too small to share. One caller alone shares.
int who_works() {
    constexpr Question QUESTIONS[] = {
        {1, 100, 100, 0}, {1, 1, 1, 0}, {1, 100, 1, 2}, {1, 100, 50, 1}, {2, 100, 1, 1}, {3, 100, 1, 0},
    };
    int failures = 0;
    for (const Question& question : QUESTIONS) {
        lm::Pool pool;  // of its own: a worker that is late from the job before may take tasks of the next one
        if (!pool.start(3)) return 1;
        for (int i = 0; i < question.callers; ++i) pool.enter();
        failures += others(pool, question.tasks, question.grain, question.others) != question.others;
        for (int i = 0; i < question.callers; ++i) pool.leave();
    }
    return failures;
}

/// The tasks of workers that sleep are done by the caller, which is there first.
int who_comes_first() {
    lm::Pool pool;
    if (!pool.start(3)) return 1;
    pool.enter();
    for (int round = 0; round < 1000; ++round) {
        usleep(200);  // the workers fall asleep
        if (others(pool, 3, 1, 0) < 2) return 0;
    }
    return 1;
}

constexpr uint32_t HELD_TASKS = 64;

/// A job of which task 0, and what is begun with it, is not over before all others are.
struct Held {
    lm::Atomic<uint32_t> done;
};

void hold(void* argument, int64_t begin, int64_t end) {
    Held& job = *static_cast<Held*>(argument);
    const uint32_t count = static_cast<uint32_t>(end - begin);
    while (begin == 0 && job.done.load() < HELD_TASKS - count) usleep(10);
    job.done.fetch_add(count);
}

/// A thread that is held up keeps none of the tasks from the others but those that it has begun.
int who_helps() {
    lm::Pool pool;
    if (!pool.start(2)) return 1;
    pool.enter();
    for (int round = 0; round < 100; ++round) {
        Held job{};
        pool.parallel(HELD_TASKS, 1, hold, &job);
    }
    pool.leave();
    return 0;
}

}  // namespace

int main() {
    int tasks = 0;  // not done exactly once
    for (int threads = 1; threads <= 4; ++threads) {
        for (int callers = 1; callers <= 3; ++callers) {
            tasks += run(threads, callers, 300, false);
            tasks += run(threads, callers, 100, true);
        }
    }
    for (int i = 0; i < 50; ++i) tasks += run(3, 1, 0, false);  // stopped before any job
    const int failures[] = {tasks, who_works(), who_comes_first(), who_helps(), lm::available_cpus() < 1};
    constexpr const char* NAMES[] = {"every task once", "who works", "who comes first", "who helps", "available CPUs"};
    int failed = 0;
    for (int i = 0; i < 5; ++i) {
        if (failures[i] == 0) continue;
        printf("%s: %d failures\n", NAMES[i], failures[i]);
        failed = 1;
    }
    return failed;
}
