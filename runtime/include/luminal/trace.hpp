// A trace of runs: which thread worked on which tasks of which step, and when. It is kept in memory and written when the
// library is closed, as JSON that Perfetto and Chrome's about:tracing open (Google, "Trace Event Format").
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <string.h>

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
        if (events_ != nullptr) unmap_pages(events_, BYTES);
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
        void* const memory = map_pages(BYTES);
        if (memory == nullptr) {
            message.set("no memory for a trace");
            return false;
        }
        events_ = static_cast<Event*>(memory);
        known_ = reinterpret_cast<Thread*>(events_ + CAPACITY);
        return true;
    }

    bool is_open() const { return events_ != nullptr; }

    static int64_t now() { return monotonic_nanoseconds(); }

    /// The calling thread begins a step; with -1, it has ended its last one.
    void begin_step(int32_t step) { add(Event{now(), 0, current_thread(), current_thread(), 0, 0, step}); }

    /// The calling thread has done tasks of the step that `caller` is at.
    void did_tasks(Thread caller, int64_t begin, int64_t end, int64_t began) {
        add(Event{began, now(), current_thread(), caller, begin, end, 0});
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
                    is_step ? "step" : "tasks", static_cast<int>(process_id()), number_of(event.thread),
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
                    static_cast<int>(process_id()), i, i, i + 1 < threads_ ? "," : "");
        }
        fprintf(file_, "]}\n");
    }

  private:
    struct Event {
        int64_t began;
        int64_t ended;     // of a step 0, until it is known
        Thread thread;  // that did it
        Thread caller;  // that runs the model
        int64_t begin;     // tasks; of a step 0
        int64_t end;
        int32_t step;
    };

    static constexpr uint64_t CAPACITY = 1 << 19;
    static constexpr int32_t THREADS = 2048;
    static constexpr size_t BYTES = CAPACITY * sizeof(Event) + THREADS * sizeof(Thread);

    void add(const Event& event) {
        const uint64_t place = used_.fetch_add(1);
        if (place < CAPACITY) events_[place] = event;
    }

    /// The time at which the thread of step event `i` began its next one, or ended its run.
    int64_t end_of_step(uint64_t i) const {
        for (uint64_t j = i + 1; j < count_; ++j) {
            if (events_[j].end == 0 && same_thread(events_[j].thread, events_[i].thread)) return events_[j].began;
        }
        return 0;
    }

    /// The step that the caller of event `i` was at.
    int32_t step_of(uint64_t i) const {
        for (uint64_t j = i; j-- > 0;) {
            if (events_[j].end == 0 && same_thread(events_[j].thread, events_[i].caller)) return events_[j].step;
        }
        return -1;
    }

    /// Threads are numbered in the order in which they appear.
    int32_t number_of(Thread thread) {
        for (int32_t i = 0; i < threads_; ++i) {
            if (same_thread(known_[i], thread)) return i;
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
    Thread* known_ = nullptr;  // the threads, by their numbers
    int32_t threads_ = 0;
};

}  // namespace LM_RUNTIME
}  // namespace lm
