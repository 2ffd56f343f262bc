// A small thread pool: the caller and its workers split [0, tasks) into contiguous ranges, one each, so that from one
// step of a model to the next a thread finds in its caches what it wrote. Whoever has done its own range helps others:
// threads rarely run at the same speed, be it that one was asleep when the job began, that its core is a slow one, or
// that something else runs on it for a while.
//
// One word, the epoch, starts a job; another, the pieces of it that are not done, ends it. Both sides spin for some tens
// of microseconds, which covers the gap between two steps of a model, and then sleep on the word.
#pragma once

#include <string.h>

#include "luminal/abi.h"
#include "luminal/atomic.hpp"
#include "luminal/compiled_once.hpp"
#include "luminal/pieces.hpp"
#include "luminal/relax.hpp"
#include "luminal/system.hpp"

namespace lm {
inline namespace LM_RUNTIME {

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
        process_ = process_id();
        cpus_ = CpuSet::of(current_thread());
        threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
        // A spinning thread must not keep off the CPU the one that it waits for.
        spin_nanoseconds_ = threads <= available_cpus() ? SPIN_NANOSECONDS : 0;
        if (threads > 1) {
            const size_t bytes = static_cast<size_t>(threads) * sizeof(Member);
            members_ = static_cast<Member*>(allocate_aligned(CACHE_LINE, bytes));
            if (members_ == nullptr) return false;
            memset(static_cast<void*>(members_), 0, bytes);
            count_ = threads;
            if (!start_workers()) return false;
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
        if (process_id() != process_) threads_.store_relaxed(1);  // forked: the child has no workers
    }
    void leave() { callers_.fetch_sub(1); }

    /// Calls `body(argument, begin, end)` on ranges that cover [0, tasks), and returns when all have returned. Several
    /// threads may call at once: one gets the workers, the others do their own tasks themselves.
    /// A thread takes part for every `grain` tasks at the most, beside workers that are late from the job before.
    void parallel(int64_t tasks, int64_t grain, lm_task_range body, void* argument);

  private:
    static constexpr int64_t SPIN_NANOSECONDS = 50'000;
    static constexpr uint32_t STOP = 1;  // of the epoch word: the workers shall end
    static constexpr uint32_t EPOCH = 2;
    static constexpr uint32_t CALLER_SLEEPS = 1u << 31;

    // Who is done waits for a piece of another's at most: a quarter of what waking a thread takes, or a task.
    static constexpr int64_t PIECES_IN_GRAIN = 4;

    struct Job {
        lm_task_range body;
        void* argument;
        int64_t tasks;
        int64_t pieces;
    };

    /// One of those who do jobs, the caller first, and the pieces of the job that fall to it.
    struct Member {
        Pieces pieces;
        Pool* pool;
        Thread thread;
    };

    static constexpr size_t STACK = 8 << 20;  // bytes at least of a worker; kernels keep arrays there
    bool start_workers() {
        while (started_ < count_) {
            Member& worker = members_[started_];
            worker.pool = this;
            if (!start_thread(worker.thread, STACK, &Pool::worker_main, &worker)) break;
            ++started_;
        }
        if (started_ == count_) return true;
        stop();
        return false;
    }

    /// The first element of a part: parts differ by at most one.
    static int64_t first_of(int64_t part, int64_t elements, int64_t parts) {
        const int64_t base = elements / parts;
        const int64_t extra = elements % parts;
        return part * base + (part < extra ? part : extra);
    }

    /// Tells the workers that there is a job, or to end.
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
        const int own = current_cpu();
        if (own == left_out_ || spin_nanoseconds_ == 0) return;
        const CpuSet before = cpus_.without(left_out_);
        const CpuSet after = cpus_.without(own);
        left_out_ = own;
        for (int i = 1; i < started_; ++i) {
            if (CpuSet::of(members_[i].thread) == before) after.give(members_[i].thread);
        }
    }

    void await_others() {
        if (spin_until([this] { return undone_.load_acquire() == 0; })) return;
        uint32_t value = undone_.fetch_or(CALLER_SLEEPS) | CALLER_SLEEPS;
        while (value != CALLER_SLEEPS) {
            futex_wait(undone_, value);
            value = undone_.load_acquire();
        }
        keep_own_cpu();  // it has been woken where the worker is
    }

    static ThreadResult worker_main(void* argument) {
        Member* worker = static_cast<Member*>(argument);
        worker->pool->work(static_cast<int>(worker - worker->pool->members_));
        return {};
    }

    void work(int own) {
        uint32_t seen = 0;  // the epoch before the first job, even if that job has already been published
        while (((seen = await_epoch(seen)) & STOP) == 0) {
            if (own < parts_.load_relaxed()) take_part(own);
        }
    }

    /// Does pieces of the job, those of member `own` first, until all have been begun. Who comes so late that it finds
    /// those of the next job does these.
    void take_part(int own) {
        const int parts = parts_.load_relaxed();
        do_pieces(own, true);
        for (int i = 1; i < parts; ++i) do_pieces((own + i) % parts, false);
    }

    /// Does pieces of those that fall to a member until all of them have been begun.
    void do_pieces(int member, bool own) {
        uint32_t done = 0;
        while (const Pieces::Run run = members_[member].pieces.take(own)) {
            const Job& job = job_;  // it stays as it is while a piece that has been taken is not done
            job.body(job.argument, first_of(run.begin, job.tasks, job.pieces),
                     first_of(run.end, job.tasks, job.pieces));
            done += run.count();
        }
        if (done != 0 && undone_.fetch_sub(done) == (CALLER_SLEEPS | done)) futex_wake(undone_, 1);
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
        const int64_t deadline = monotonic_nanoseconds() + spin_nanoseconds_;
        do {
            for (int i = 0; i < 32; ++i) {
                if (condition()) return true;
                cpu_relax();
            }
        } while (monotonic_nanoseconds() < deadline);
        return false;
    }

    void stop() {
        if (started_ > 1 && process_id() == process_) {
            publish(STOP);
            for (int i = 1; i < started_; ++i) join_thread(members_[i].thread);
        }
        free_aligned(members_);
        members_ = nullptr;
        count_ = started_ = 1;
    }

    Member* members_ = nullptr;
    int count_ = 1;    // of members
    int started_ = 1;  // and those that run, the caller among them
    Job job_{};
    Atomic<int> parts_;  // members that take part in the job, the first ones
    int64_t process_ = 0;
    Atomic<int> threads_;
    int64_t spin_nanoseconds_ = 0;
    CpuSet cpus_;         // where the workers may run
    int left_out_ = -1;   // but for this one, the caller's

    // Each on its own cache line: the epoch is polled by the workers, undone_ by the caller.
    alignas(CACHE_LINE) Atomic<uint32_t> epoch_;
    alignas(CACHE_LINE) Atomic<uint32_t> undone_;
    alignas(CACHE_LINE) Atomic<uint32_t> sleepers_;
    alignas(CACHE_LINE) Atomic<uint32_t> busy_;
    alignas(CACHE_LINE) Atomic<uint32_t> callers_;
};

#ifndef LM_RUNTIME_ELSEWHERE
LM_RUNTIME_FUNCTION void Pool::parallel(int64_t tasks, int64_t grain, lm_task_range body, void* argument) {
    if (tasks <= 0) return;
    const int64_t threads = threads_.load_relaxed();
    int64_t parts = threads - (static_cast<int64_t>(callers_.load_relaxed()) - 1);
    if (parts > threads) parts = threads;
    if (parts > tasks / grain) parts = tasks / grain;
    if (parts <= 1 || busy_.exchange(1) != 0) {
        body(argument, 0, tasks);
        return;
    }
    int64_t pieces = tasks * PIECES_IN_GRAIN / grain;
    if (pieces > tasks) pieces = tasks;
    if (pieces > INT32_MAX) pieces = INT32_MAX;
    job_ = Job{body, argument, tasks, pieces};
    undone_.store_relaxed(static_cast<uint32_t>(pieces));
    parts_.store_relaxed(static_cast<int>(parts));
    for (int64_t part = 0; part < parts; ++part) {
        members_[part].pieces.offer(first_of(part, pieces, parts), first_of(part + 1, pieces, parts));
    }
    if (sleepers_.load() != 0) keep_own_cpu();
    publish(EPOCH);
    take_part(0);
    await_others();
    busy_.store(0);
}
#endif

}  // namespace LM_RUNTIME
}  // namespace lm
