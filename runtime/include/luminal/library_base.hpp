// What the libraries of all devices have in common: options, the weights file, errors, the count of contexts.
//
// No C++ runtime library is needed: no exceptions, no RTTI, no containers, no local statics with constructors.
#pragma once

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/atomic.hpp"
#include "luminal/compiled_once.hpp"
#include "luminal/memory.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"
#include "luminal/trace.hpp"
#include "luminal/weights.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// Lets a class be constructed in memory that we allocated. (The placement form of <new> has default visibility.)
struct InPlace {
    static void* operator new(size_t, void* memory) noexcept { return memory; }
    static void operator delete(void*, void*) noexcept {}
};

class Lock {
  public:
    explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
    ~Lock() { mutex_.unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

  private:
    Mutex& mutex_;
};

/// The path of a file beside the library, or beside the program that the library is linked into; false where that cannot
/// be told. `inside` is any address of the library.
inline bool path_beside(const void* inside, const char* file, char (&path)[PATH_MAX]) {
    char own[PATH_MAX];
    if (!own_path(inside, own)) return false;
    const char* slash = strrchr(own, '/');
    const int folder = slash != nullptr ? static_cast<int>(slash - own) + 1 : 0;
    const int length = snprintf(path, sizeof(path), "%.*s%s", folder, own, file);
    return folder > 0 && length < static_cast<int>(sizeof(path));
}

/// What a library for a GPU opens in place of the driver: what an environment variable names, for tests; where the GPU is
/// emulated, a file beside the library; null: nothing.
inline const char* other_driver(const char* variable, char (&path)[PATH_MAX]) {
    const char* const named = getenv(variable);
#ifdef LM_EMULATED_DRIVER
    const bool found = path_beside(reinterpret_cast<const void*>(&other_driver), LM_EMULATED_DRIVER, path);
    return named != nullptr || !found ? named : path;
#else
    (void)path;
    return named;
#endif
}

/// What all contexts of an open model share. Constant once open, but for the weights.
class LibraryBase : public InPlace {
  public:
    static constexpr int32_t MAX_THREADS = 1023;

    explicit LibraryBase(const Model& model) : model_(model) {}
    ~LibraryBase() { trace_.write(model_); }

    const Model& model() const { return model_; }
    const Allocator& allocator() const { return allocator_; }
    bool is_open() const { return open_; }

    /// Tells who profiles that a step begins, or, with -1, that the last one has ended.
    void on_step(int32_t step) {
        if (observed_) observe(step);
    }

    void add_context() { contexts_.fetch_add(1); }
    void remove_context() { contexts_.fetch_sub(1); }
    uint32_t contexts() const { return contexts_.load(); }

    void release_weights() { weights_lock_.unlock_shared(); }

    /// The payload of the weights file, or of this rank's.
    int64_t weights_bytes() const { return model_.weights_of(rank_); }

    /// Of a context on this rank.
    int64_t state_bytes() const { return model_.states_of(rank_); }
    bool has(const State& state) const { return model_.has(state, rank_); }

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

  protected:
    /// Ends an attempt to open.
    int32_t opened(int32_t status, const Message& message) {
        open_ = status == LM_OK;
        return fail(status, message.text());
    }

    /// Checks the host, and reads the options.
    int32_t prepare(const lm_options* caller_options, Message& message) {
        const char* missing = model_.missing_feature != nullptr ? model_.missing_feature() : nullptr;
        if (missing != nullptr) {
            message.set("the library of \"%s\" was compiled for machines with %s, which this one lacks", model_.name,
                        missing);
            return LM_UNSUPPORTED;
        }
        const int32_t status = read_options(caller_options, message);
        if (status != LM_OK) return status;
        allocator_ = Allocator(options_);
        if (options_.trace_path != nullptr && !trace_.open(options_.trace_path, message)) return LM_INVALID_ARGUMENT;
        observed_ = options_.on_step != nullptr || trace_.is_open();
        return LM_OK;
    }

    /// Brings the weights in, into memory of our own where that `reads`, by `parallel` work.
    template <class Parallel = OneThread>
    int32_t open_weights(Message& message, bool reads = false, const Parallel& parallel = {}) {
        if (weights_bytes() == 0) return LM_OK;
        if (options_.weights_provider != nullptr) {
            const void* image = nullptr;
            size_t bytes = 0;
            const int32_t refused = options_.weights_provider(options_.user, &image, &bytes);
            if (refused != 0) {
                message.set("the weights provider returned %d", refused);
                return LM_BAD_WEIGHTS;
            }
            return weights_.borrow(image, bytes, model_, request(false), message);
        }
        if (options_.weights_path != nullptr) {
            if (options_.weights_path[0] == '\0') return LM_OK;
            return open_file(options_.weights_path, message, reads, parallel);
        }
        char path[PATH_MAX];
        const int32_t status = default_weights_path(path, message);
        return status == LM_OK ? open_file(path, message, reads, parallel) : status;
    }

    /// Opens the weights file at `path`. Those of ranks but the first have their number behind its name.
    template <class Parallel>
    int32_t open_file(const char* path, Message& message, bool reads, const Parallel& parallel) {
        char own[PATH_MAX];
        if (rank_ != 0) {
            snprintf(own, sizeof(own), "%s.%d", path, rank_);
            path = own;
        }
        return weights_.open(path, model_, request(reads), message, parallel);
    }

    /// Takes the weights in `image` once no run reads the present ones, and has them prepared.
    template <class Prepare>
    int32_t replace_weights(const void* image, size_t bytes, const Prepare& prepare) {
        Message message;
        weights_lock_.lock();  // waits for the runs, and keeps others from beginning
        WeightsRequest any = request(false);
        any.others = true;
        int32_t status = weights_.borrow(image, bytes, model_, any, message);
        if (status == LM_OK) status = prepare(message);
        weights_lock_.unlock();
        return fail(status, message.text());
    }

    const Model& model_;
    lm_options options_{};
    int32_t rank_ = 0;       // of this process in a mesh
    bool observed_ = false;  // somebody wants to know of steps
    Trace trace_;
    Weights weights_;
    SharedMutex weights_lock_;

  private:
    void observe(int32_t step);

    WeightsRequest request(bool reads) const {
        return {reads, options_.verify != 0, options_.other_weights != 0, rank_};
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
        if (options_.threads < 0 || options_.threads > MAX_THREADS) {
            message.set("lm_options.threads is %d, expected 0..%d", options_.threads, MAX_THREADS);
            return LM_INVALID_ARGUMENT;
        }
        return LM_OK;
    }

    /// NAME.weights beside the library, or beside the program that the library is linked into.
    int32_t default_weights_path(char (&path)[PATH_MAX], Message& message) const {
        char file[PATH_MAX];
        snprintf(file, sizeof(file), "%s.weights", model_.name);
        if (path_beside(&model_, file, path)) return LM_OK;
        message.set("cannot tell where the library of \"%s\" lies; set lm_options.weights_path", model_.name);
        return LM_BAD_WEIGHTS;
    }

    bool open_ = false;
    Allocator allocator_;
    Atomic<uint32_t> contexts_;
    Mutex error_lock_;
    Message error_;
};

#ifndef LM_RUNTIME_ELSEWHERE
LM_RUNTIME_FUNCTION void LibraryBase::observe(int32_t step) {
    if (trace_.is_open()) trace_.begin_step(step);
    if (options_.on_step != nullptr) options_.on_step(options_.user, step);
}
#endif

}  // namespace LM_RUNTIME
}  // namespace lm
