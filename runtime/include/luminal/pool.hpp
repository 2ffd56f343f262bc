// A small thread pool: the caller and its workers split [0, tasks) into contiguous ranges, one each.
//
// One word, the epoch, starts a job; another, the number of workers still busy, ends it. Both sides spin for some tens
// of microseconds, which covers the gap between two steps of a model, and then sleep on a futex.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "luminal/abi.h"
#include "luminal/atomic.hpp"
#include "luminal/cpus.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

class Pool {
  public:
    static constexpr int MAX_THREADS = 1023;  // the epoch word has ten bits for them

    Pool() = default;
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    ~Pool() { stop(); }

    /// Starts `threads` - 1 workers (the caller is the remaining thread). False, with no worker left, if the system
    /// refuses.
    bool start(int threads) {
        process_ = getpid();
        threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
        // A spinning thread must not keep off the CPU the one that it waits for.
        spin_nanoseconds_ = threads <= available_cpus() ? SPIN_NANOSECONDS : 0;
        if (threads > 1) {
            workers_ = static_cast<Worker*>(calloc(static_cast<size_t>(threads - 1), sizeof(Worker)));
            if (workers_ == nullptr || !start_workers(threads - 1)) return false;
        }
        threads_.store(threads);
        return true;
    }

    /// Threads that can work on one job, the caller's included.
    int threads() const { return threads_.load_relaxed(); }

    /// A caller thread is about to issue jobs, or is done. Callers count as working threads, so that several of them
    /// together with the workers stay within threads().
    void enter() {
        callers_.fetch_add(1);
        if (getpid() != process_) threads_.store_relaxed(1);  // forked: the child has no workers
    }
    void leave() { callers_.fetch_sub(1); }

    /// Calls `body(argument, begin, end)` on ranges that cover [0, tasks), and returns when all have returned. Several
    /// threads may call at once: one gets the workers, the others do their own tasks themselves.
    /// At most `most` threads take part.
    void parallel(int64_t tasks, lm_task_range body, void* argument, int64_t most = MAX_THREADS) {
        if (tasks <= 0) return;
        const int64_t threads = threads_.load_relaxed();
        int64_t parts = threads - (static_cast<int64_t>(callers_.load_relaxed()) - 1);
        if (parts > threads) parts = threads;
        if (parts > tasks) parts = tasks;
        if (parts > most) parts = most;
        if (parts <= 1 || busy_.exchange(1) != 0) {
            body(argument, 0, tasks);
            return;
        }
        job_ = Job{body, argument, tasks, parts};
        running_.store_relaxed(static_cast<uint32_t>(parts - 1));
        publish(static_cast<uint32_t>(parts));
        body(argument, 0, range_begin(1, tasks, parts));
        await_workers();
        busy_.store(0);
    }

  private:
    static constexpr int64_t SPIN_NANOSECONDS = 50'000;
    static constexpr uint32_t PARTS_BITS = 10;
    static constexpr uint32_t PARTS_MASK = (1u << PARTS_BITS) - 1;
    static constexpr uint32_t CALLER_SLEEPS = 1u << 31;

    struct Job {
        lm_task_range body;
        void* argument;
        int64_t tasks;
        int64_t parts;
    };

    struct Worker {
        Pool* pool;
        uint32_t part;
        pthread_t thread;
    };

    /// The workers block all signals: those are for the program's own threads.
    bool start_workers(int count) {
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        while (started_ < count) {
            Worker& worker = workers_[started_];
            worker.pool = this;
            worker.part = static_cast<uint32_t>(started_ + 1);
            if (pthread_create(&worker.thread, nullptr, &Pool::worker_main, &worker) != 0) break;
            ++started_;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (started_ == count) return true;
        stop();
        return false;
    }

    /// First task of a part: parts differ by at most one task.
    static int64_t range_begin(int64_t part, int64_t tasks, int64_t parts) {
        const int64_t base = tasks / parts;
        const int64_t extra = tasks % parts;
        return part * base + (part < extra ? part : extra);
    }

    /// Starts the job for the workers 1 .. parts - 1. The epoch word carries `parts`, so that a worker that is not part
    /// of this job knows it without reading the job, which may already be the next one.
    void publish(uint32_t parts) {
        const uint32_t previous = epoch_.load_relaxed();
        epoch_.store((((previous >> PARTS_BITS) + 1) << PARTS_BITS) | parts);
        // A worker announces itself in sleepers_ before the kernel compares the epoch: either it is seen here, or it
        // sees the new epoch and does not sleep.
        if (sleepers_.load() != 0) futex_wake(epoch_, INT32_MAX);
    }

    void await_workers() {
        if (spin_until([this] { return running_.load_acquire() == 0; })) return;
        uint32_t value = running_.fetch_or(CALLER_SLEEPS) | CALLER_SLEEPS;
        while (value != CALLER_SLEEPS) {
            futex_wait(running_, value);
            value = running_.load_acquire();
        }
    }

    static void* worker_main(void* argument) {
        Worker* worker = static_cast<Worker*>(argument);
        worker->pool->work(worker->part);
        return nullptr;
    }

    void work(uint32_t part) {
        uint32_t seen = 0;  // the epoch before the first job, even if that job has already been published
        while (true) {
            seen = await_epoch(seen);
            const uint32_t parts = seen & PARTS_MASK;
            if (parts == 0) return;  // stop()
            if (part >= parts) continue;
            job_.body(job_.argument, range_begin(part, job_.tasks, job_.parts),
                      range_begin(part + 1, job_.tasks, job_.parts));
            if (running_.fetch_sub(1) == (CALLER_SLEEPS | 1)) futex_wake(running_, 1);
        }
    }

    uint32_t await_epoch(uint32_t seen) {
        if (spin_until([this, seen] { return epoch_.load_acquire() != seen; })) return epoch_.load_acquire();
        sleepers_.fetch_add(1);
        uint32_t value = epoch_.load();
        while (value == seen) {
            futex_wait(epoch_, seen);
            value = epoch_.load();
        }
        sleepers_.fetch_sub(1);
        return value;
    }

    template <class Condition>
    bool spin_until(const Condition& condition) const {
        if (condition()) return true;
        if (spin_nanoseconds_ == 0) return false;
        const int64_t deadline = nanoseconds() + spin_nanoseconds_;
        do {
            for (int i = 0; i < 32; ++i) {
                if (condition()) return true;
                cpu_relax();
            }
        } while (nanoseconds() < deadline);
        return false;
    }

    static int64_t nanoseconds() {
        timespec time{};
        clock_gettime(CLOCK_MONOTONIC, &time);
        return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
    }

    void stop() {
        if (started_ > 0 && getpid() == process_) {
            publish(0);
            for (int i = 0; i < started_; ++i) pthread_join(workers_[i].thread, nullptr);
        }
        free(workers_);
        workers_ = nullptr;
        started_ = 0;
    }

    Worker* workers_ = nullptr;
    int started_ = 0;
    pid_t process_ = 0;
    Atomic<int> threads_;
    int64_t spin_nanoseconds_ = 0;
    Job job_{};

    // Each on its own cache line: the epoch is polled by the workers, running_ by the caller.
    alignas(CACHE_LINE) Atomic<uint32_t> epoch_;
    alignas(CACHE_LINE) Atomic<uint32_t> running_;
    alignas(CACHE_LINE) Atomic<uint32_t> sleepers_;
    alignas(CACHE_LINE) Atomic<uint32_t> busy_;
    alignas(CACHE_LINE) Atomic<uint32_t> callers_;
};

}  // namespace LM_NAMESPACE
}  // namespace lm
