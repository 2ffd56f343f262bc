// What the contexts of all devices have in common: who may call, and what a call was given.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/atomic.hpp"
#include "luminal/library_base.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"
#include "luminal/values.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// One caller thread's state: the bound dims, the pointers of the call, the error.
template <class Library>
class ContextBase : public InPlace {
  public:
    explicit ContextBase(Library& library) : library_(library) {}
    ContextBase(const ContextBase&) = delete;
    ContextBase& operator=(const ContextBase&) = delete;
    ~ContextBase() { library_.allocator().deallocate(tables_, tables_bytes_); }

    Library& library() { return library_; }

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
        if (shape == nullptr && tensor.axes.size > 0) {
            error_.set("the shape is a null pointer");
            return LM_INVALID_ARGUMENT;
        }
        if (in == nullptr && entry != ran_ && entry->inputs.size > 0) {
            error_.set("the inputs are a null pointer, but entry \"%s\" was not the last to run", entry->name);
            return LM_INVALID_ARGUMENT;
        }
        if (in != nullptr || entry != ran_) {
            ran_ = nullptr;
            status = bind_dims(library_.model(), *entry, in, dims_, error_);
        }
        if (status != LM_OK) return status;
        for (int32_t axis = 0; axis < tensor.axes.size; ++axis) shape[axis] = axis_size(tensor.axes[axis], dims_);
        return LM_OK;
    }

    size_t copy_error(char* text, size_t size) const {
        return static_cast<size_t>(snprintf(text, size, "%s", error_.text()));
    }

    /// The next run finds all states as the first one did.
    int32_t reset() {
        if (busy_.exchange(1) != 0) return in_use();
        error_.clear();
        fresh_ = true;
        busy_.store(0);
        return LM_OK;
    }

  protected:
    /// Calls `copy(state)` for the state of that number, whose value has been checked to be one of the host that fits;
    /// its status. Refused while another thread is in this context.
    template <class Copy>
    int32_t with_state(int32_t number, const lm_value* value, const Copy& copy) {
        if (busy_.exchange(1) != 0) return in_use();
        error_.clear();
        int32_t status = check_state(number, value);
        if (status == LM_OK) status = copy(library_.model().states[number]);
        busy_.store(0);
        return status;
    }

    /// Bytes of arena that the entry with the most of it needs.
    size_t arena_bytes() const {
        size_t bytes = 0;
        for (const Entry& entry : library_.model().entries) {
            if (static_cast<size_t>(entry.arena_bytes) > bytes) bytes = entry.arena_bytes;
        }
        return bytes;
    }

    /// Makes room for the dims and pointers of any call; false if there is no memory.
    bool allocate_tables() {
        const Model& model = library_.model();
        size_t inputs = 0;
        size_t outputs = 0;
        for (const Entry& entry : model.entries) {
            if (static_cast<size_t>(entry.inputs.size) > inputs) inputs = entry.inputs.size;
            if (static_cast<size_t>(entry.outputs.size) > outputs) outputs = entry.outputs.size;
        }
        const size_t dims = model.dims.size;
        tables_bytes_ = dims * sizeof(int64_t) + (inputs + outputs) * sizeof(void*);
        if (tables_bytes_ == 0) return true;
        tables_ = library_.allocator().allocate(tables_bytes_);
        if (tables_ == nullptr) return false;
        dims_ = static_cast<int64_t*>(tables_);
        inputs_ = reinterpret_cast<const void**>(dims_ + dims);
        outputs_ = const_cast<void**>(inputs_ + inputs);
        return true;
    }

    /// Checks a call, binds `dims_`, `inputs_` and `outputs_`, and returns what `execute(entry)` returns. Refused while
    /// another thread is in this context.
    template <class Execute>
    int32_t call(int32_t entry_index, const lm_value* in, const lm_value* out, const Storage& storage,
                 const Execute& execute) {
        if (busy_.exchange(1) != 0) return in_use();
        error_.clear();
        int32_t status = LM_OK;
        const Entry* entry = find_entry(entry_index, status);
        if (entry != nullptr) status = bind_values(*entry, in, out, storage);
        ran_ = nullptr;
        if (status == LM_OK) status = execute(*entry);
        if (status == LM_OK) ran_ = entry;
        busy_.store(0);
        return status;
    }

    /// What `work()` returns, while `weights` are those of the library, which nobody replaces meanwhile.
    template <class Weights, class Work>
    int32_t holding(Weights& weights, const Work& work) {
        weights = library_.acquire_weights();
        const bool ready = weights != Weights{} || library_.weights_bytes() == 0;
        const int32_t status = ready ? work() : no_weights();
        library_.release_weights();
        return status;
    }

    /// Gives the states, which lie at `states`, their first values out of `weights`; false where they have them.
    bool restore_states(unsigned char* states, const unsigned char* weights) {
        if (!fresh_) return false;
        for (const State& state : library_.model().states) {
            const size_t bytes = static_cast<size_t>(state.bytes);
            if (!library_.has(state)) continue;
            if (state.initial >= 0) memcpy(states + state.offset, weights + state.initial, bytes);
            else if (!untouched_) memset(states + state.offset, 0, bytes);
        }
        fresh_ = untouched_ = false;
        return true;
    }

    /// Tells which step of the model raised a status.
    int32_t step_failed(const Entry& entry, int32_t step, int32_t status) {
        const Span<const char*>& steps = library_.model().steps;
        const char* origin = step >= 0 && step < steps.size ? steps[step] : "unknown";
        error_.set("%s in step %d of entry \"%s\": %s", failure(status), step, entry.name, origin);
        return status;
    }

    /// Whether any of the statuses of the steps, which were copied here, was raised.
    bool any_status(const unsigned char* statuses) const {
        for (size_t i = 0; i < static_cast<size_t>(library_.model().steps.size) * sizeof(int32_t); ++i) {
            if (statuses[i] != 0) return true;
        }
        return false;
    }

    /// The status of the first step that raised one; `statuses` holds an int32 for each step of the model.
    int32_t raised(const Entry& entry, const unsigned char* statuses) {
        for (int32_t step = 0; step < library_.model().steps.size; ++step) {
            int32_t code = LM_OK;
            memcpy(&code, statuses + static_cast<size_t>(step) * sizeof(code), sizeof(code));
            if (code != LM_OK) return step_failed(entry, step, code);
        }
        return LM_OK;
    }

    Library& library_;
    int64_t* dims_ = nullptr;
    const void** inputs_ = nullptr;
    void** outputs_ = nullptr;
    bool fresh_ = true;  // the states are yet to be given their first values
    bool untouched_ = false;  // their memory is all zeros, and takes none until rows of it are written
    Message error_;

  private:
    int32_t no_weights() {
        const char* name = library_.model().name;
        error_.set("the library of \"%s\" has no weights yet: call %s_set_weights first", name, name);
        return LM_BAD_WEIGHTS;
    }

    int32_t in_use() {
        return library_.fail(LM_INVALID_ARGUMENT, "the context is in use by another thread; each thread needs its own");
    }

    int32_t check_state(int32_t number, const lm_value* value) {
        const Span<State>& states = library_.model().states;
        if (number < 0 || number >= states.size || value == nullptr) {
            error_.set(value == nullptr ? "the value is a null pointer" : "state %d does not exist: the model has %d",
                       number, states.size);
            return LM_INVALID_ARGUMENT;
        }
        const Tensor& tensor = states[number].tensor;
        int32_t status = check_output_shape("state", tensor, *value, dims_, error_);
        if (status == LM_OK) status = check_storage("state", tensor, *value, Storage{}, error_);
        // All ranks refuse a wrong value alike: else those without the state would go on alone.
        if (status == LM_OK && !library_.has(states[number])) {
            error_.set("the state \"%s\" is on the ranks of stage %d, of which this is none", tensor.name,
                       states[number].stage);
            return LM_OTHER_STAGE;
        }
        return status;
    }

    const Entry* find_entry(int32_t index, int32_t& status) {
        const Span<Entry>& entries = library_.model().entries;
        if (index >= 0 && index < entries.size) return &entries[index];
        error_.set("entry %d does not exist: the model has %d", index, entries.size);
        status = LM_INVALID_ARGUMENT;
        return nullptr;
    }

    int32_t bind_values(const Entry& entry, const lm_value* in, const lm_value* out, const Storage& storage) {
        if ((in == nullptr && entry.inputs.size > 0) || (out == nullptr && entry.outputs.size > 0)) {
            error_.set("the inputs or outputs of entry \"%s\" are a null pointer", entry.name);
            return LM_INVALID_ARGUMENT;
        }
        int32_t status = bind_dims(library_.model(), entry, in, dims_, error_);
        for (int32_t i = 0; status == LM_OK && i < entry.inputs.size; ++i) {
            status = check_storage("input", entry.inputs[i], in[i], storage, error_);
            inputs_[i] = in[i].data;
        }
        for (int32_t i = 0; status == LM_OK && i < entry.outputs.size; ++i) {
            status = check_output_shape("output", entry.outputs[i], out[i], dims_, error_);
            if (status == LM_OK) status = check_storage("output", entry.outputs[i], out[i], storage, error_);
            outputs_[i] = out[i].data;
        }
        return status;
    }

    static const char* failure(int32_t status) {
        switch (status) {
            case LM_INDEX_OUT_OF_RANGE: return "an index is out of range";
            case LM_SINGULAR_MATRIX: return "a matrix is singular, or not positive definite";
            case LM_UNFIT_BRANCH: return "a branch is taken that does not fit what follows it";
            case LM_OUT_OF_ROOM: return "a loop makes more rounds than there is room for, or a range more numbers";
            case LM_INVALID_ARGUMENT: return "a text that is no UTF-8 was given";
            case LM_OUT_OF_MEMORY: return "there was no memory for texts";
            case LM_RANK_FAILED: return "another rank failed";
            default: return "the operator failed";
        }
    }

    Atomic<uint32_t> busy_;
    const Entry* ran_ = nullptr;  // the last to run, if dims_ are still its
    void* tables_ = nullptr;
    size_t tables_bytes_ = 0;
};

}  // namespace LM_RUNTIME
}  // namespace lm
