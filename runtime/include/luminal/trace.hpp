// A trace of runs: which thread worked on which tasks of which step, and when. It is kept in memory and written when the
// library is closed, as JSON that Perfetto and Chrome's about:tracing open (Google, "Trace Event Format").
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "luminal/abi.h"
#include "luminal/atomic.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Any number of threads record at once; nothing is allocated or written meanwhile.
class Trace {
  public:
    Trace() = default;
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;
    ~Trace() {
        if (events_ != nullptr) munmap(events_, BYTES);
        if (file_ != nullptr) fclose(file_);
    }

    /// The file is opened at once, so that a path that cannot be written is found before anything runs.
    bool open(const char* path, Message& message) {
        file_ = fopen(path, "w");
        if (file_ == nullptr) {
            message.set("cannot write the trace \"%s\": %s", path, SystemError().text());
            return false;
        }
        // Pages that no event reaches take no memory.
        void* memory = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            message.set("no memory for a trace");
            return false;
        }
        events_ = static_cast<Event*>(memory);
        known_ = reinterpret_cast<pthread_t*>(events_ + CAPACITY);
        return true;
    }

    bool is_open() const { return events_ != nullptr; }

    static int64_t now() {
        timespec time{};
        clock_gettime(CLOCK_MONOTONIC, &time);
        return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
    }

    /// The calling thread begins a step; with -1, it has ended its last one.
    void begin_step(int32_t step) { add(Event{now(), 0, pthread_self(), pthread_self(), 0, 0, step}); }

    /// The calling thread has done tasks of the step that `caller` is at.
    void did_tasks(pthread_t caller, int64_t begin, int64_t end, int64_t began) {
        add(Event{began, now(), pthread_self(), caller, begin, end, 0});
    }

    /// Writes what was recorded. No thread records any more.
    void write(const Model& model) {
        if (!is_open()) return;
        const uint64_t recorded = used_.load();
        count_ = recorded < CAPACITY ? recorded : CAPACITY;
        fprintf(file_, "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"model\": \"%s\", \"lost\": %llu}, \"traceEvents\": [\n",
                model.name, static_cast<unsigned long long>(recorded - count_));
        for (uint64_t i = 0; i < count_; ++i) {
            Event& event = events_[i];
            if (event.ended == 0 && event.step >= 0) event.ended = end_of_step(i);
            if (event.ended == 0) continue;  // the end of a run, or a run that failed
            const bool is_step = event.end == 0;
            const int32_t step = is_step ? event.step : step_of(i);
            fprintf(file_, "{\"ph\": \"X\", \"cat\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"name\": \"",
                    is_step ? "step" : "tasks", static_cast<int>(getpid()), number_of(event.thread),
                    static_cast<double>(event.began - events_[0].began) * 1e-3,
                    static_cast<double>(event.ended - event.began) * 1e-3);
            write_text(step >= 0 && step < model.steps.size ? model.steps[step] : "");
            fprintf(file_, "\", \"args\": {\"step\": %d", step);
            if (!is_step) {
                fprintf(file_, ", \"first\": %lld, \"end\": %lld", static_cast<long long>(event.begin),
                        static_cast<long long>(event.end));
            }
            fprintf(file_, "}},\n");
        }
        for (int32_t i = 0; i < threads_; ++i) {
            fprintf(file_,
                    "{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"thread_name\", \"args\": {\"name\": \"thread %d\"}}%s\n",
                    static_cast<int>(getpid()), i, i, i + 1 < threads_ ? "," : "");
        }
        fprintf(file_, "]}\n");
    }

  private:
    struct Event {
        int64_t began;
        int64_t ended;     // of a step 0, until it is known
        pthread_t thread;  // that did it
        pthread_t caller;  // that runs the model
        int64_t begin;     // tasks; of a step 0
        int64_t end;
        int32_t step;
    };

    static constexpr uint64_t CAPACITY = 1 << 19;
    static constexpr int32_t THREADS = 2048;
    static constexpr size_t BYTES = CAPACITY * sizeof(Event) + THREADS * sizeof(pthread_t);

    void add(const Event& event) {
        const uint64_t place = used_.fetch_add(1);
        if (place < CAPACITY) events_[place] = event;
    }

    /// The time at which the thread of step event `i` began its next one, or ended its run.
    int64_t end_of_step(uint64_t i) const {
        for (uint64_t j = i + 1; j < count_; ++j) {
            if (events_[j].end == 0 && pthread_equal(events_[j].thread, events_[i].thread) != 0) return events_[j].began;
        }
        return 0;
    }

    /// The step that the caller of event `i` was at.
    int32_t step_of(uint64_t i) const {
        for (uint64_t j = i; j-- > 0;) {
            if (events_[j].end == 0 && pthread_equal(events_[j].thread, events_[i].caller) != 0) return events_[j].step;
        }
        return -1;
    }

    /// Threads are numbered in the order in which they appear.
    int32_t number_of(pthread_t thread) {
        for (int32_t i = 0; i < threads_; ++i) {
            if (pthread_equal(known_[i], thread) != 0) return i;
        }
        if (threads_ == THREADS) return THREADS;
        known_[threads_] = thread;
        return threads_++;
    }

    void write_text(const char* text) {
        for (; *text != '\0'; ++text) {
            const unsigned char character = static_cast<unsigned char>(*text);
            if (character < 32) {
                fprintf(file_, "\\u%04x", character);
            } else {
                if (character == '"' || character == '\\') fputc('\\', file_);
                fputc(character, file_);
            }
        }
    }

    FILE* file_ = nullptr;
    Event* events_ = nullptr;
    Atomic<uint64_t> used_;
    uint64_t count_ = 0;
    pthread_t* known_ = nullptr;  // the threads, by their numbers
    int32_t threads_ = 0;
};

}  // namespace LM_RUNTIME
}  // namespace lm
