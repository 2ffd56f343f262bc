// A small thread pool: the caller and its workers split [0, tasks) into contiguous ranges, one each.
//
// One word, the epoch, starts a job; another, the number of workers still busy, ends it. Both sides spin for some tens
// of microseconds, which covers the gap between two steps of a model, and then sleep on a futex. A worker that sleeps
// comes late: the ranges that no worker has begun when the caller has done its own, the caller does as well.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "luminal/abi.h"
#include "luminal/atomic.hpp"
#include "luminal/cpus.hpp"
#include "luminal/futex.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

class Pool {
  public:
    static constexpr int MAX_THREADS = 1023;

    Pool() = default;
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    ~Pool() { stop(); }

    /// Starts `threads` - 1 workers (the caller is the remaining thread). False, with no worker left, if the system
    /// refuses.
    bool start(int threads) {
        process_ = getpid();
        cpus_ = CpuSet::of(pthread_self());
        threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
        // A spinning thread must not keep off the CPU the one that it waits for.
        spin_nanoseconds_ = threads <= available_cpus() ? SPIN_NANOSECONDS : 0;
        if (threads > 1) {
            const size_t bytes = static_cast<size_t>(threads - 1) * sizeof(Worker);
            workers_ = static_cast<Worker*>(aligned_alloc(CACHE_LINE, bytes));
            if (workers_ == nullptr) return false;
            memset(static_cast<void*>(workers_), 0, bytes);
            if (!start_workers(threads - 1)) return false;
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
        running_.store_relaxed(static_cast<uint32_t>(parts - 1));  // before a worker that comes late finds its range
        for (int64_t part = 1; part < parts; ++part) {
            Worker& worker = workers_[part - 1];
            worker.range = Range{body, argument, range_begin(part, tasks, parts), range_begin(part + 1, tasks, parts)};
            worker.waits.store_release(1);
        }
        if (sleepers_.load() != 0) keep_own_cpu();
        publish(EPOCH);
        body(argument, 0, range_begin(1, tasks, parts));
        for (int64_t part = 1; part < parts && running_.load_acquire() != 0; ++part) do_range(workers_[part - 1]);
        await_workers();
        busy_.store(0);
    }

  private:
    static constexpr int64_t SPIN_NANOSECONDS = 50'000;
    static constexpr uint32_t STOP = 1;  // of the epoch word: the workers shall end
    static constexpr uint32_t EPOCH = 2;
    static constexpr uint32_t CALLER_SLEEPS = 1u << 31;

    struct Range {
        lm_task_range body;
        void* argument;
        int64_t begin;
        int64_t end;
    };

    /// A worker and its range of a job. `waits` is 1 until somebody begins with the range.
    struct alignas(CACHE_LINE) Worker {
        Pool* pool;
        pthread_t thread;
        Range range;
        Atomic<uint32_t> waits;
    };

    static constexpr int FAULTS[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

    /// The workers block all signals: those are for the program's own threads. But faults are handled where they occur,
    /// or nowhere.
    bool start_workers(int count) {
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        for (const int fault : FAULTS) sigdelset(&all, fault);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        while (started_ < count) {
            Worker& worker = workers_[started_];
            worker.pool = this;
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

    /// Tells the workers that there are ranges to do, or to end.
    void publish(uint32_t change) {
        epoch_.store(epoch_.load_relaxed() + change);
        // A worker announces itself in sleepers_ before the kernel compares the epoch: either it is seen here, or it
        // sees the new epoch and does not sleep.
        if (sleepers_.load() != 0) futex_wake(epoch_, INT32_MAX);
    }

    /// Lets the workers run on any CPU but the caller's. The system would wake them where the caller is, which goes on
    /// working or spins: milliseconds pass until it moves one of the two. Workers whose CPUs somebody else has chosen
    /// since keep them.
    void keep_own_cpu() {
        const int own = sched_getcpu();
        if (own == left_out_ || spin_nanoseconds_ == 0) return;
        const CpuSet before = cpus_.without(left_out_);
        const CpuSet after = cpus_.without(own);
        left_out_ = own;
        for (int i = 0; i < started_; ++i) {
            if (CpuSet::of(workers_[i].thread) == before) after.give(workers_[i].thread);
        }
    }

    void await_workers() {
        if (spin_until([this] { return running_.load_acquire() == 0; })) return;
        uint32_t value = running_.fetch_or(CALLER_SLEEPS) | CALLER_SLEEPS;
        while (value != CALLER_SLEEPS) {
            futex_wait(running_, value);
            value = running_.load_acquire();
        }
        keep_own_cpu();  // it has been woken where the worker is
    }

    static void* worker_main(void* argument) {
        Worker* worker = static_cast<Worker*>(argument);
        worker->pool->work(*worker);
        return nullptr;
    }

    void work(Worker& worker) {
        uint32_t seen = 0;  // the epoch before the first job, even if that job has already been published
        while (((seen = await_epoch(seen)) & STOP) == 0) do_range(worker);
    }

    /// Does the range of `worker`, unless it has none in this job or somebody has begun with it. A worker that comes so
    /// late that it finds the range of the next job does that one.
    void do_range(Worker& worker) {
        if (worker.waits.exchange(0) == 0) return;
        const Range& range = worker.range;
        range.body(range.argument, range.begin, range.end);
        if (running_.fetch_sub(1) == (CALLER_SLEEPS | 1)) futex_wake(running_, 1);
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
            publish(STOP);
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
    CpuSet cpus_;         // where the workers may run
    int left_out_ = -1;   // but for this one, the caller's

    // Each on its own cache line: the epoch is polled by the workers, running_ by the caller.
    alignas(CACHE_LINE) Atomic<uint32_t> epoch_;
    alignas(CACHE_LINE) Atomic<uint32_t> running_;
    alignas(CACHE_LINE) Atomic<uint32_t> sleepers_;
    alignas(CACHE_LINE) Atomic<uint32_t> busy_;
    alignas(CACHE_LINE) Atomic<uint32_t> callers_;
};

}  // namespace LM_NAMESPACE
}  // namespace lm
