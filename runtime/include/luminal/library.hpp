// Libraries that run on the CPU: the threads, and contexts whose steps they share.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/abi.h"
#if defined(_WIN32) || defined(__wasm__)
#include "luminal/alone.hpp"
#else
#include "luminal/collectives.hpp"
#endif
#include "luminal/compiled_once.hpp"
#include "luminal/context_base.hpp"
#include "luminal/library_base.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"
#include "luminal/pool.hpp"
#include "luminal/slots.hpp"
#include "luminal/status.hpp"
#include "luminal/texts.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// An open model with its threads.
class Library : public LibraryBase {
  public:
    explicit Library(const Model& model) : LibraryBase(model) {}

    int32_t open(const lm_options* caller_options) {
        Message message;
        int32_t status = prepare(caller_options, message);
        const bool alone = model_.ranks == 1;
        if (status == LM_OK && !alone) status = ranks_.open(model_, options_, message);
        rank_ = ranks_.rank();
        const int32_t most = options_.parallel_for == nullptr ? options_.threads : MAX_THREADS;  // those are another's
        if (status == LM_OK && !alone) status = ranks_.divide_cpus(most, message);
        if (status == LM_OK) status = start_threads(message);
        if (status == LM_OK) {
            pool_.enter();
            status = open_weights(message, options_.allocate == nullptr,
                                  [this](int64_t tasks, lm_task_range body, void* argument) {
                                      pool_.parallel(tasks, 1, body, argument);
                                  });
            pool_.leave();
        }
        if (!alone) status = ranks_.agree(model_, status, message);
        return opened(status, message);
    }

    int32_t set_weights(const void* image, size_t bytes) {
        return replace_weights(image, bytes, [](Message&) { return LM_OK; });
    }

    /// The constants, kept as they are until release_weights(); null if there are none yet.
    const unsigned char* acquire_weights() {
        weights_lock_.lock_shared();
        return weights_.payload();
    }

    void forget_first_values() const { weights_.forget_first_values(); }

    /// A caller thread starts or ends a run. Those of a mesh take turns.
    void enter() {
        if (model_.ranks > 1) ranks_.begin();
        pool_.enter();
    }
    void leave() {
        pool_.leave();
        if (model_.ranks > 1) ranks_.end();
    }

    Communicator& ranks() { return ranks_; }

    /// The threads that may be in one run at once; of parallel_for, those that can gain something.
    int threads() const {
        return options_.parallel_for == nullptr ? pool_.threads() : cpus_of_machine();
    }

    /// `grain` tasks are worth waking a thread for.
    void parallel(int64_t tasks, int64_t grain, lm_task_range body, void* argument) {
        if (ranks_.is_open()) {
            advancing(tasks, grain, body, argument);
        } else {
            divide(tasks, grain, body, argument);
        }
    }

  private:
    void divide(int64_t tasks, int64_t grain, lm_task_range body, void* argument) {
        if (elsewhere_ && tasks / grain > 1) {
            share(tasks, grain, body, argument);
        } else {
            pool_.parallel(tasks, grain, body, argument);
        }
    }

    /// While exchanges between ranks are under way: the calling thread, which alone calls MPI, lets them go on between
    /// its tasks.
    __attribute__((noinline)) void advancing(int64_t tasks, int64_t grain, lm_task_range body, void* argument) {
        Advancing between{ranks_, current_thread(), grain, body, argument};
        divide(tasks, grain, &Advancing::run, &between);
    }

    struct Advancing {
        Communicator& ranks;
        Thread caller;
        int64_t grain;
        lm_task_range body;
        void* argument;

        static void run(void* self, int64_t begin, int64_t end) {
            const Advancing& between = *static_cast<const Advancing*>(self);
            const bool own = same_thread(current_thread(), between.caller);
            while (begin < end) {
                const bool whole = !own || !between.ranks.is_open() || end - begin <= between.grain;
                const int64_t next = whole ? end : begin + between.grain;
                between.body(between.argument, begin, next);
                if (own && between.ranks.is_open()) between.ranks.advance();
                begin = next;
            }
        }
    };

    /// By the threads of the caller of the library, or with a trace.
    void share(int64_t tasks, int64_t grain, lm_task_range body, void* argument);

    struct Traced {
        Trace& trace;
        Thread caller;
        lm_task_range body;
        void* argument;

        static void run(void* self, int64_t begin, int64_t end) {
            const Traced& traced = *static_cast<const Traced*>(self);
            const int64_t began = Trace::now();
            traced.body(traced.argument, begin, end);
            traced.trace.did_tasks(traced.caller, begin, end, began);
        }
    };

    int32_t start_threads(Message& message) {
        elsewhere_ = options_.parallel_for != nullptr || trace_.is_open();
        if (options_.parallel_for != nullptr) return LM_OK;
        const int wanted = options_.threads > 0 ? options_.threads : available_cpus();
        const int threads = wanted < SYSTEM_THREADS ? wanted : SYSTEM_THREADS;
        if (pool_.start(threads)) return LM_OK;
        message.set("cannot start %d threads: %s", threads, SystemError().text());
        return LM_SYSTEM_ERROR;
    }

    static_assert(MAX_THREADS == Pool::MAX_THREADS, "what the options may ask for");
    Pool pool_;
    Communicator ranks_;
    bool elsewhere_ = false;  // work is not simply handed to the pool
};

#ifndef LM_RUNTIME_ELSEWHERE
LM_RUNTIME_FUNCTION void Library::share(int64_t tasks, int64_t grain, lm_task_range body, void* argument) {
    Traced traced{trace_, current_thread(), body, argument};
    if (trace_.is_open()) {
        body = &Traced::run;
        argument = &traced;
    }
    if (options_.parallel_for != nullptr) {
        options_.parallel_for(options_.user, tasks, body, argument);
    } else {
        pool_.parallel(tasks, grain, body, argument);
    }
}
#endif

/// One caller thread's state, with its arena and the outcome of the last run. Generated code uses the first part.
class Context : public ContextBase<Library> {
  public:
    /// Intermediate tensors: `offset` bytes into the arena, which keeps nothing from one run to the next.
    template <class T>
    T* arena(int64_t offset) const {
        return reinterpret_cast<T*>(arena_ + offset);
    }

    /// A constant: `offset` bytes into the payload of the weights file.
    template <class T>
    const T* weights(int64_t offset) const {
        return reinterpret_cast<const T*>(weights_ + offset);
    }

    /// What is kept from one run to the next: `offset` bytes into the states.
    template <class T>
    T* state(int64_t offset) const {
        return reinterpret_cast<T*>(states_ + offset);
    }

    /// Whether a condition that steps have computed holds; none does once a step has raised a status, so that loops end.
    bool holds(const bool* flag) const { return status_.code() == LM_OK && *flag; }

    /// From here on a dim is as large as steps have computed.
    void measure(int32_t dim, const int64_t* count) {
        if (status_.code() == LM_OK) dims_[dim] = *count;
    }

    /// Where kernels raise what their operators must refuse.
    Status* status() { return &status_; }

    /// Runs step `step` of the model: calls `body(begin, end)` on ranges that cover [0, tasks), on several threads, one for
    /// every `grain` tasks at the most.
    /// Tasks must not depend on each other. Does nothing once a step has raised a status.
    template <class Body>
    void parallel(int32_t step, int64_t tasks, int64_t grain, const Body& body) {
        if (!begin_step(step)) return;
        library_.parallel(
            tasks, grain,
            [](void* argument, int64_t begin, int64_t end) { (*static_cast<const Body*>(argument))(begin, end); },
            const_cast<Body*>(&body));
    }

    /// Runs a phase, several steps of which `step` is one: calls `body(share, share + 1)` for every share in [0, shares),
    /// so that what one step writes of a share is still in the cache when the next step reads it.
    template <class Body>
    void by_share(int32_t step, int64_t shares, int64_t grain, const Body& body) {
        parallel(step, shares, grain, [&body](int64_t begin, int64_t end) {
            for (int64_t share = begin; share < end; ++share) body(share, share + 1);
        });
    }

    /// The same where a share has portions of buffers that are nowhere as a whole: `body(share, share + 1, own)` has the
    /// memory `own` for them while it runs.
    template <class Body>
    void with_portions(int32_t step, int64_t shares, int64_t grain, const Body& body) {
        parallel(step, shares, grain, [this, &body](int64_t begin, int64_t end) {
            const Slots::Taken taken(slots_);
            for (int64_t share = begin; share < end; ++share) body(share, share + 1, taken.memory());
        });
    }

    /// Runs step `step` on the calling thread: for steps too small to share.
    template <class Body>
    void serial(int32_t step, int64_t tasks, const Body& body) {
        if (begin_step(step) && tasks > 0) body(int64_t{0}, tasks);
        if (library_.ranks().is_open()) library_.ranks().advance();
    }

    /// Runs step `step`, which is no kernel, on the calling thread.
    template <class Body>
    void host(int32_t step, const Body& body) {
        if (begin_step(step)) body();
    }

    /// Begins an exchange between ranks: once it has been waited for, `result` has what this one gets.
    void start(int32_t ticket, const Exchange& how, const void* operand, void* result, int64_t bytes) {
        if (!library_.ranks().start(ticket, how, operand, result, bytes, exchanged_)) status_.raise(LM_RANK_FAILED);
    }

    /// The place of this rank among `size` of them, `stride` apart.
    int32_t place(int32_t size, int32_t stride) const { return library_.ranks().rank() / stride % size; }

    /// Waits for the exchange of that ticket.
    void wait(int32_t ticket) {
        if (!library_.ranks().wait(ticket, exchanged_)) status_.raise(LM_RANK_FAILED);
    }

    /// The texts of this run.
    Texts& texts() { return texts_; }

    // The rest is called by the exported functions.

    explicit Context(Library& library) : ContextBase(library) {}
    ~Context() {
        slots_.deallocate(library_.allocator());
        if (library_.ranks().is_broken()) return;  // messages that are under way may still be written there
        library_.allocator().deallocate(arena_, arena_size_);
        library_.allocator().deallocate(states_, states_size_);
    }

    /// Allocates everything that runs will need.
    int32_t allocate(Message& message) {
        message.set("no memory for the arena of a context");
        if (!allocate_tables() || !allocate_states() || !allocate_slots()) return LM_OUT_OF_MEMORY;
        arena_size_ = arena_bytes();
        if (arena_size_ == 0) return LM_OK;
        arena_ = static_cast<unsigned char*>(library_.allocator().allocate(arena_size_));
        if (arena_ == nullptr) return LM_OUT_OF_MEMORY;
        if (library_.model().dims.size == 0) library_.allocator().touch(arena_, arena_size_);  // runs use all of it
        return LM_OK;
    }

    int32_t run(int32_t entry_index, const lm_value* in, lm_value* out, void* stream) {
        return call(entry_index, in, out, Storage{}, [&](const Entry& entry) {
            if (stream == nullptr) return execute(entry);
            error_.set("a stream was given, but this library runs on the CPU, which has none: pass NULL");
            return static_cast<int32_t>(LM_INVALID_ARGUMENT);
        });
    }

    int32_t get_state(int32_t number, const lm_value* value) {
        return with_state(number, value, [&](const State& state) {
            const int32_t status = with_weights([] { return static_cast<int32_t>(LM_OK); });
            if (status == LM_OK) memcpy(value->data, states_ + state.offset, static_cast<size_t>(state.bytes));
            return status;
        });
    }

    int32_t set_state(int32_t number, const lm_value* value) {
        return with_state(number, value, [&](const State& state) {
            const int32_t status = with_weights([] { return static_cast<int32_t>(LM_OK); });
            if (status == LM_OK) memcpy(states_ + state.offset, value->data, static_cast<size_t>(state.bytes));
            return status;
        });
    }

  private:
    bool allocate_slots() {
        const Model& model = library_.model();
        if (model.portion_bytes == 0) return true;
        const int threads = library_.threads();
        const int count = threads < model.portions_at_once ? threads : model.portions_at_once;
        return slots_.allocate(library_.allocator(), count, static_cast<size_t>(model.portion_bytes));
    }

    bool allocate_states() {
        states_size_ = static_cast<size_t>(library_.state_bytes());
        if (states_size_ == 0) return true;
        states_ = static_cast<unsigned char*>(library_.allocator().allocate(states_size_));
        untouched_ = library_.allocator().zeroes(states_size_);
        return states_ != nullptr;
    }

    bool begin_step(int32_t step) {
        if (status_.code() != LM_OK) return false;
        step_ = step;
        library_.on_step(step);
        return true;
    }

    /// What `work()` returns, which may read the weights, and states that have values.
    template <class Work>
    int32_t with_weights(const Work& work) {
        return holding(weights_, [&] {
            if (fresh_ && !untouched_ && states_size_ > 0) {
                untouched_ = library_.allocator().empty(states_, states_size_);
            }
            if (restore_states(states_, weights_)) library_.forget_first_values();
            return work();
        });
    }

    int32_t execute(const Entry& entry) {
        return with_weights([&] {
            status_.reset();
            texts_.begin(library_.model().texts, status_);
            library_.enter();
            entry.run(*this, dims_, inputs_, outputs_);
            library_.on_step(-1);
            library_.leave();
            const int32_t status = status_.code();
            if (status == LM_OK) return status;
            step_failed(entry, step_, status);
            if (status == LM_RANK_FAILED) error_.append(": %s", exchanged_.text());
            else if (library_.model().ranks > 1) library_.ranks().part(error_);
            return status;
        });
    }

    Message exchanged_;  // what went wrong between ranks
    int32_t step_ = -1;
    Status status_;
    Slots slots_;
    Texts texts_;
    unsigned char* arena_ = nullptr;
    size_t arena_size_ = 0;
    unsigned char* states_ = nullptr;
    size_t states_size_ = 0;
    const unsigned char* weights_ = nullptr;
};

}  // namespace LM_RUNTIME
}  // namespace lm
