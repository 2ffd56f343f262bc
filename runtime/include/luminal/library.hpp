// What a generated library.cpp stands on: libraries, contexts, and the exported C functions.
//
// No C++ runtime library is needed: no exceptions, no RTTI, no containers, no local statics with constructors.
#pragma once

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "luminal/abi.h"
#include "luminal/memory.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"
#include "luminal/pool.hpp"
#include "luminal/status.hpp"
#include "luminal/values.hpp"
#include "luminal/weights.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

/// Lets a class be constructed in memory that we allocated. (The placement form of <new> has default visibility.)
struct InPlace {
    static void* operator new(size_t, void* memory) noexcept { return memory; }
    static void operator delete(void*, void*) noexcept {}
};

class Lock {
  public:
    explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
    ~Lock() { pthread_mutex_unlock(&mutex_); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

  private:
    pthread_mutex_t& mutex_;
};

/// What all contexts of an open model share: weights, threads, options. Constant once open, but for set_weights.
class Library : public InPlace {
  public:
    explicit Library(const Model& model) : model_(model) {}

    const Model& model() const { return model_; }
    const Allocator& allocator() const { return allocator_; }
    bool is_open() const { return open_; }

    int32_t open(const lm_options* caller_options) {
        Message message;
        const int32_t status = open(caller_options, message);
        open_ = status == LM_OK;
        return fail(status, message.text());
    }

    int32_t set_weights(const void* image, size_t bytes) {
        Message message;
        pthread_rwlock_wrlock(&weights_lock_);  // waits for the runs that read the old ones
        const int32_t status = weights_.borrow(image, bytes, model_, message);
        pthread_rwlock_unlock(&weights_lock_);
        return fail(status, message.text());
    }

    /// The constants, kept as they are until release_weights(); null if there are none yet.
    const unsigned char* acquire_weights() {
        pthread_rwlock_rdlock(&weights_lock_);
        return weights_.payload();
    }
    void release_weights() { pthread_rwlock_unlock(&weights_lock_); }

    /// A caller thread starts or ends a run.
    void enter() { pool_.enter(); }
    void leave() { pool_.leave(); }

    /// Tells who profiles that a step begins, or, with -1, that the last one has ended.
    void on_step(int32_t step) const {
        if (options_.on_step != nullptr) options_.on_step(options_.user, step);
    }

    /// `grain` tasks are worth waking a thread for.
    void parallel(int64_t tasks, int64_t grain, lm_task_range body, void* argument) {
        if (options_.parallel_for != nullptr && tasks > grain) {
            options_.parallel_for(options_.user, tasks, body, argument);
        } else {
            pool_.parallel(tasks, body, argument, tasks / grain);
        }
    }

    void add_context() { contexts_.fetch_add(1); }
    void remove_context() { contexts_.fetch_sub(1); }
    uint32_t contexts() const { return contexts_.load(); }

    /// Keeps the message of a status that is not LM_OK; returns the status.
    int32_t fail(int32_t status, const char* text) {
        if (status != LM_OK) {
            Lock lock(error_lock_);
            error_.set("%s", text);
        }
        return status;
    }

    size_t copy_error(char* text, size_t size) {
        Lock lock(error_lock_);
        return static_cast<size_t>(snprintf(text, size, "%s", error_.text()));
    }

  private:
    int32_t open(const lm_options* caller_options, Message& message) {
        const char* missing = model_.missing_feature != nullptr ? model_.missing_feature() : nullptr;
        if (missing != nullptr) {
            message.set("the library of \"%s\" was compiled for machines with %s, which this one lacks", model_.name,
                        missing);
            return LM_UNSUPPORTED;
        }
        int32_t status = read_options(caller_options, message);
        if (status != LM_OK) return status;
        allocator_ = Allocator(options_);
        status = open_weights(message);
        if (status != LM_OK) return status;
        if (options_.parallel_for == nullptr) {
            const int threads = options_.threads > 0 ? options_.threads : available_cpus();
            if (!pool_.start(threads)) {
                message.set("cannot start %d threads: %s", threads, SystemError().text());
                return LM_SYSTEM_ERROR;
            }
        }
        return LM_OK;
    }

    /// Reads options of this version, and those of older (shorter) and newer (longer) ones.
    int32_t read_options(const lm_options* caller_options, Message& message) {
        if (caller_options == nullptr) return LM_OK;
        const size_t size = caller_options->size;
        if (size < sizeof(size_t)) {
            message.set("lm_options.size is %zu; set it to sizeof(lm_options)", size);
            return LM_INVALID_ARGUMENT;
        }
        memcpy(&options_, caller_options, size < sizeof(options_) ? size : sizeof(options_));
        for (size_t i = sizeof(options_); i < size; ++i) {
            if (reinterpret_cast<const unsigned char*>(caller_options)[i] != 0) {
                message.set("lm_options has a field set, at byte %zu, that this older library does not know", i);
                return LM_INVALID_ARGUMENT;
            }
        }
        if ((options_.allocate == nullptr) != (options_.deallocate == nullptr)) {
            message.set("lm_options: set both allocate and deallocate, or neither");
            return LM_INVALID_ARGUMENT;
        }
        if (options_.threads < 0 || options_.threads > Pool::MAX_THREADS) {
            message.set("lm_options.threads is %d, expected 0..%d", options_.threads, Pool::MAX_THREADS);
            return LM_INVALID_ARGUMENT;
        }
        return LM_OK;
    }

    int32_t open_weights(Message& message) {
        if (model_.weights_bytes == 0) return LM_OK;
        if (options_.weights_provider != nullptr) {
            const void* image = nullptr;
            size_t bytes = 0;
            const int32_t refused = options_.weights_provider(options_.user, &image, &bytes);
            if (refused != 0) {
                message.set("the weights provider returned %d", refused);
                return LM_BAD_WEIGHTS;
            }
            return weights_.borrow(image, bytes, model_, message);
        }
        if (options_.weights_path != nullptr) {
            if (options_.weights_path[0] == '\0') return LM_OK;
            return weights_.map(options_.weights_path, model_, message);
        }
        char path[PATH_MAX];
        const int32_t status = default_weights_path(path, message);
        return status == LM_OK ? weights_.map(path, model_, message) : status;
    }

    /// NAME.weights beside the library, or beside the program that the library is linked into.
    int32_t default_weights_path(char (&path)[PATH_MAX], Message& message) const {
        char own[PATH_MAX] = "";
        Dl_info info{};
        if (dladdr(&model_, &info) != 0 && info.dli_fname != nullptr && strchr(info.dli_fname, '/') != nullptr) {
            snprintf(own, sizeof(own), "%s", info.dli_fname);
        } else {
            const ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
            own[length > 0 ? length : 0] = '\0';
        }
        const char* slash = strrchr(own, '/');
        const int folder = slash != nullptr ? static_cast<int>(slash - own) + 1 : 0;
        const int length = snprintf(path, sizeof(path), "%.*s%s.weights", folder, own, model_.name);
        if (folder > 0 && length < static_cast<int>(sizeof(path))) return LM_OK;
        message.set("cannot tell where the library of \"%s\" lies; set lm_options.weights_path", model_.name);
        return LM_BAD_WEIGHTS;
    }

    const Model& model_;
    bool open_ = false;
    lm_options options_{};
    Allocator allocator_;
    Weights weights_;
    pthread_rwlock_t weights_lock_ = PTHREAD_RWLOCK_INITIALIZER;
    Pool pool_;
    Atomic<uint32_t> contexts_;
    pthread_mutex_t error_lock_ = PTHREAD_MUTEX_INITIALIZER;
    Message error_;
};

/// One caller thread's state: the arena, the bound dims, the outcome of the last run. Generated code uses the first
/// part of this class.
class Context : public InPlace {
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

    /// Runs step `step` on the calling thread: for steps too small to share.
    template <class Body>
    void serial(int32_t step, int64_t tasks, const Body& body) {
        if (begin_step(step) && tasks > 0) body(int64_t{0}, tasks);
    }

    // The rest is called by the exported functions.

    explicit Context(Library& library) : library_(library) {}
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    ~Context() {
        const Allocator& allocator = library_.allocator();
        allocator.deallocate(arena_, arena_bytes_);
        allocator.deallocate(tables_, tables_bytes_);
    }

    Library& library() { return library_; }

    /// Allocates everything that runs will need; false if there is no memory.
    bool allocate() {
        const Model& model = library_.model();
        size_t inputs = 0;
        size_t outputs = 0;
        for (const Entry& entry : model.entries) {
            if (static_cast<size_t>(entry.arena_bytes) > arena_bytes_) arena_bytes_ = entry.arena_bytes;
            if (static_cast<size_t>(entry.inputs.size) > inputs) inputs = entry.inputs.size;
            if (static_cast<size_t>(entry.outputs.size) > outputs) outputs = entry.outputs.size;
        }
        const size_t dims = model.dims.size;
        const Allocator& allocator = library_.allocator();
        tables_bytes_ = dims * sizeof(int64_t) + (inputs + outputs) * sizeof(void*);
        if (tables_bytes_ > 0) {
            tables_ = allocator.allocate(tables_bytes_);
            if (tables_ == nullptr) return false;
            dims_ = static_cast<int64_t*>(tables_);
            inputs_ = reinterpret_cast<const void**>(dims_ + dims);
            outputs_ = const_cast<void**>(inputs_ + inputs);
        }
        if (arena_bytes_ > 0) {
            arena_ = static_cast<unsigned char*>(allocator.allocate(arena_bytes_));
            if (arena_ == nullptr) return false;
            if (model.dims.size == 0) allocator.touch(arena_, arena_bytes_);  // every run uses all of it
        }
        return true;
    }

    int32_t run(int32_t entry_index, const lm_value* in, lm_value* out, void* stream) {
        if (busy_.exchange(1) != 0) {
            return library_.fail(LM_INVALID_ARGUMENT,
                                 "the context is in use by another thread; each thread needs its own");
        }
        error_.clear();
        const int32_t status = checked_run(entry_index, in, out, stream);
        busy_.store(0);
        return status;
    }

    int32_t output_shape(int32_t entry_index, const lm_value* in, int32_t output, int64_t* shape) {
        error_.clear();
        int32_t status = LM_OK;
        const Entry* entry = find_entry(entry_index, status);
        if (entry == nullptr) return status;
        if (output < 0 || output >= entry->outputs.size) {
            error_.set("output %d does not exist: entry \"%s\" has %d", output, entry->name, entry->outputs.size);
            return LM_INVALID_ARGUMENT;
        }
        const Tensor& tensor = entry->outputs[output];
        if ((in == nullptr && entry->inputs.size > 0) || (shape == nullptr && tensor.axes.size > 0)) {
            error_.set("the inputs or the shape are a null pointer");
            return LM_INVALID_ARGUMENT;
        }
        status = bind_dims(library_.model(), *entry, in, dims_, error_);
        if (status != LM_OK) return status;
        for (int32_t axis = 0; axis < tensor.axes.size; ++axis) shape[axis] = axis_size(tensor.axes[axis], dims_);
        return LM_OK;
    }

    size_t copy_error(char* text, size_t size) const {
        return static_cast<size_t>(snprintf(text, size, "%s", error_.text()));
    }

  private:
    bool begin_step(int32_t step) {
        if (status_.code() != LM_OK) return false;
        step_ = step;
        library_.on_step(step);
        return true;
    }

    const Entry* find_entry(int32_t index, int32_t& status) {
        const Span<Entry>& entries = library_.model().entries;
        if (index >= 0 && index < entries.size) return &entries[index];
        error_.set("entry %d does not exist: the model has %d", index, entries.size);
        status = LM_INVALID_ARGUMENT;
        return nullptr;
    }

    int32_t checked_run(int32_t entry_index, const lm_value* in, lm_value* out, void* stream) {
        int32_t status = LM_OK;
        const Entry* entry = find_entry(entry_index, status);
        if (entry == nullptr) return status;
        if ((in == nullptr && entry->inputs.size > 0) || (out == nullptr && entry->outputs.size > 0)) {
            error_.set("the inputs or outputs of entry \"%s\" are a null pointer", entry->name);
            return LM_INVALID_ARGUMENT;
        }
        if (stream != nullptr) {
            error_.set("a stream was given, but this library runs on the CPU, which has none: pass NULL");
            return LM_INVALID_ARGUMENT;
        }
        status = bind_values(*entry, in, out);
        return status == LM_OK ? execute(*entry) : status;
    }

    int32_t bind_values(const Entry& entry, const lm_value* in, lm_value* out) {
        int32_t status = bind_dims(library_.model(), entry, in, dims_, error_);
        for (int32_t i = 0; status == LM_OK && i < entry.inputs.size; ++i) {
            status = check_storage("input", entry.inputs[i], in[i], error_);
            inputs_[i] = in[i].data;
        }
        for (int32_t i = 0; status == LM_OK && i < entry.outputs.size; ++i) {
            status = check_output_shape(entry.outputs[i], out[i], dims_, error_);
            if (status == LM_OK) status = check_storage("output", entry.outputs[i], out[i], error_);
            outputs_[i] = out[i].data;
        }
        return status;
    }

    int32_t execute(const Entry& entry) {
        const Model& model = library_.model();
        weights_ = library_.acquire_weights();
        if (weights_ == nullptr && model.weights_bytes > 0) {
            library_.release_weights();
            error_.set("the library of \"%s\" has no weights yet: call %s_set_weights first", model.name, model.name);
            return LM_BAD_WEIGHTS;
        }
        status_.reset();
        library_.enter();
        entry.run(*this, dims_, inputs_, outputs_);
        library_.on_step(-1);
        library_.leave();
        library_.release_weights();
        const int32_t status = status_.code();
        if (status != LM_OK) {
            const char* origin = step_ >= 0 && step_ < model.steps.size ? model.steps[step_] : "unknown";
            error_.set("%s in step %d of entry \"%s\": %s", failure(status), step_, entry.name, origin);
        }
        return status;
    }

    static const char* failure(int32_t status) {
        switch (status) {
            case LM_INDEX_OUT_OF_RANGE: return "an index is out of range";
            default: return "the operator failed";
        }
    }

    Library& library_;
    int32_t step_ = -1;
    Status status_;
    Atomic<uint32_t> busy_;
    unsigned char* arena_ = nullptr;
    size_t arena_bytes_ = 0;
    const unsigned char* weights_ = nullptr;
    void* tables_ = nullptr;
    size_t tables_bytes_ = 0;
    int64_t* dims_ = nullptr;
    const void** inputs_ = nullptr;
    void** outputs_ = nullptr;
    Message error_;
};

}  // namespace LM_NAMESPACE
}  // namespace lm
