// Libraries that run on a GPU by Metal: the kernels and weights on the device, and contexts that launch the kernels.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/context_base.hpp"
#include "luminal/library_base.hpp"
#include "luminal/message.hpp"
#include "luminal/metal/device.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {

using metal::Slice;

/// An open model on its device.
class Library : public LibraryBase {
  public:
    explicit Library(const Model& model) : LibraryBase(model) {}

    int32_t open(const lm_options* caller_options) {
        Message message;
        int32_t status = prepare(caller_options, message);
        if (status == LM_OK) status = device_.open(*static_cast<const metal::Shaders*>(model().code), message);
        if (status == LM_OK) status = open_weights(message);
        if (status == LM_OK) status = upload(message);
        return opened(status, message);
    }

    int32_t set_weights(const void* image, size_t bytes) {
        return replace_weights(image, bytes, [this](Message& message) { return upload(message); });
    }

    /// The constants, kept as they are until release_weights(); null if there are none yet.
    metal::Id acquire_weights() {
        weights_lock_.lock_shared();
        return constants_.get();
    }

    const metal::Device& device() const { return device_; }
    bool has_observer() const { return observed_; }

  private:
    /// Copies the weights to the device, if there are any, and lets go of the file.
    int32_t upload(Message& message) {
        if (weights_.payload() == nullptr) return LM_OK;
        const metal::AutoreleasePool pool(device_.runtime());
        const uint64_t bytes = static_cast<uint64_t>(model_.weights_bytes);
        metal::Buffer copy = device_.allocate(bytes);
        if (copy) memcpy(copy.contents(), weights_.payload(), bytes);
        weights_.release();
        if (!copy) {
            message.set("no memory on the GPU for the weights: %llu bytes", static_cast<unsigned long long>(bytes));
            return LM_OUT_OF_MEMORY;
        }
        constants_ = static_cast<metal::Buffer&&>(copy);
        return LM_OK;
    }

    metal::Device device_;
    metal::Buffer constants_;
};

/// One caller thread's state, with its buffers and queue on the device. Generated code uses the first part.
///
/// A kernel that raises a status does not keep later steps from running, but each step has a status of its own: that of
/// the first step is what the run returns, as on a CPU.
class Context : public ContextBase<Library> {
  public:
    /// Intermediate tensors: `offset` bytes into the arena, which keeps nothing from one run to the next.
    Slice arena(uint64_t offset) const { return {arena_.get(), offset}; }

    /// What is kept from one run to the next: `offset` bytes into the states.
    Slice state(uint64_t offset) const { return {states_.get(), offset}; }

    /// A constant: `offset` bytes into the payload of the weights file.
    Slice weights(uint64_t offset) const { return {weights_, offset}; }

    Slice input(int32_t number) const { return {inputs_on_device_[number].bound, 0}; }
    Slice output(int32_t number) const { return {outputs_on_device_[number].bound, 0}; }

    /// Where the kernel of a step raises what its operator must refuse.
    Slice status(int32_t step) const { return {statuses_.get(), static_cast<uint64_t>(step) * sizeof(int32_t)}; }

    /// The sizes of the dims.
    Slice dims() const { return {dims_on_device_.get(), 0}; }

    /// Whether a condition that steps have computed holds; none does once a step has raised a status, so that loops end.
    bool holds(Slice flag) {
        bool value = false;
        return read(&value, flag, sizeof(value)) && value;
    }

    /// From here on a dim is as large as steps have computed.
    void measure(int32_t dim, Slice count) {
        int64_t value = 0;
        if (!read(&value, count, sizeof(value))) return;
        dims_[dim] = value;
        memcpy(dims_on_device_.contents() + static_cast<size_t>(dim) * sizeof(value), &value, sizeof(value));
    }

    /// Runs step `step` of the model after those before it: `blocks` blocks of a kernel. `arguments` are its parameters.
    template <int32_t COUNT>
    void launch(int32_t step, int32_t kernel, int64_t blocks, const Slice (&arguments)[COUNT]) {
        if (outcome_ != LM_OK) return;
        library_.on_step(step);
        if (blocks > 0) commands_->launch(kernel, blocks, arguments);
        if (library_.has_observer()) outcome_ = commands_->finish(error_);  // so that the step ends before the next
    }

    // The rest is called by the exported functions.

    explicit Context(Library& library) : ContextBase(library) {}

    /// Allocates everything that runs will need, but for the inputs and outputs.
    int32_t allocate(Message& message) {
        const Model& model = library_.model();
        const metal::Device& device = library_.device();
        const metal::AutoreleasePool pool(device.runtime());
        int32_t inputs = 0;
        int32_t outputs = 0;
        for (const Entry& entry : model.entries) {
            if (entry.inputs.size > inputs) inputs = entry.inputs.size;
            if (entry.outputs.size > outputs) outputs = entry.outputs.size;
        }
        message.set("no memory for a context");
        const bool tables = allocate_tables() && inputs_on_device_.allocate(inputs) && outputs_on_device_.allocate(outputs);
        if (!tables) return LM_OUT_OF_MEMORY;
        message.set("no memory on the GPU for the arena of a context: %llu bytes",
                    static_cast<unsigned long long>(arena_bytes()));
        arena_ = device.allocate(arena_bytes());
        dims_on_device_ = device.allocate(static_cast<uint64_t>(model.dims.size) * sizeof(int64_t));
        statuses_ = device.allocate(static_cast<uint64_t>(model.steps.size) * sizeof(int32_t));
        if (!arena_ || !dims_on_device_ || !statuses_) return LM_OUT_OF_MEMORY;
        message.set("no memory on the GPU for the states of a context: %lld bytes",
                    static_cast<long long>(model.state_bytes));
        states_ = device.allocate(static_cast<uint64_t>(model.state_bytes));
        if (!states_) return LM_OUT_OF_MEMORY;
        message.set("Metal makes no command queue for a context");
        queue_ = device.new_queue();
        return queue_ ? LM_OK : LM_SYSTEM_ERROR;
    }

    /// `stream` is an id<MTLCommandQueue> on which the run follows earlier commands, or null. Returns when it has ended.
    int32_t run(int32_t entry_index, const lm_value* in, lm_value* out, void* stream) {
        const Storage storage{LM_METAL, 0, "buffers of Metal", 1};
        return call(entry_index, in, out, storage, [&](const Entry& entry) {
            const metal::AutoreleasePool pool(library_.device().runtime());
            int32_t status = bind(entry, in, out);
            if (status == LM_OK) status = execute(entry, static_cast<metal::Id>(stream));
            for (int32_t i = 0; status == LM_OK && i < entry.outputs.size; ++i) {
                if (out[i].device != LM_CPU || out[i].data == nullptr) continue;
                memcpy(out[i].data, outputs_on_device_[i].own.contents(), value_bytes(out[i]));
            }
            return status;
        });
    }

    int32_t get_state(int32_t number, const lm_value* value) {
        return with_state(number, value, [&](const State& state) {
            const int32_t status = with_weights([] { return static_cast<int32_t>(LM_OK); });
            if (status == LM_OK) memcpy(value->data, states_.contents() + state.offset, static_cast<size_t>(state.bytes));
            return status;
        });
    }

    int32_t set_state(int32_t number, const lm_value* value) {
        return with_state(number, value, [&](const State& state) {
            const int32_t status = with_weights([] { return static_cast<int32_t>(LM_OK); });
            if (status == LM_OK) memcpy(states_.contents() + state.offset, value->data, static_cast<size_t>(state.bytes));
            return status;
        });
    }

  private:
    const unsigned char* constants() const {
        if (weights_ == nullptr) return nullptr;
        return static_cast<const unsigned char*>(library_.device().api().contents(weights_));
    }

    /// What `work()` returns, which may read the weights, and states that have values.
    template <class Work>
    int32_t with_weights(const Work& work) {
        return holding(weights_, [&] {
            restore_states(states_.contents(), constants());
            return work();
        });
    }

    /// An input or output: the caller's buffer, or one of ours that values of the host pass through.
    struct Value : InPlace {
        metal::Buffer own;
        metal::Id bound = nullptr;
    };

    /// What steps have computed at `from`; false where a step has raised a status.
    bool read(void* value, Slice from, size_t bytes) {
        if (outcome_ == LM_OK) outcome_ = commands_->finish(error_);
        if (outcome_ != LM_OK || any_status(statuses_.contents())) return false;
        const void* const contents = library_.device().api().contents(from.buffer);
        memcpy(value, static_cast<const unsigned char*>(contents) + from.offset, bytes);
        return true;
    }

    /// Finds or makes a buffer for each value, and copies what the host hands in.
    int32_t bind(const Entry& entry, const lm_value* in, const lm_value* out) {
        int32_t status = LM_OK;
        for (int32_t i = 0; status == LM_OK && i < entry.inputs.size; ++i) {
            Value& value = inputs_on_device_[i];
            status = bind("input", entry.inputs[i], in[i], value);
            const bool copied = status == LM_OK && in[i].device == LM_CPU && in[i].data != nullptr;
            if (copied) memcpy(value.own.contents(), in[i].data, value_bytes(in[i]));
        }
        for (int32_t i = 0; status == LM_OK && i < entry.outputs.size; ++i) {
            status = bind("output", entry.outputs[i], out[i], outputs_on_device_[i]);
        }
        return status;
    }

    int32_t bind(const char* role, const Tensor& tensor, const lm_value& given, Value& value) {
        const uint64_t bytes = value_bytes(given);
        if (given.device != LM_CPU) {
            value.bound = static_cast<metal::Id>(given.data);
            const uint64_t found = library_.device().api().length(value.bound);
            if (found >= bytes) return LM_OK;
            error_.set("%s \"%s\" lies in a buffer of %llu bytes, expected %llu", role, tensor.name,
                       static_cast<unsigned long long>(found), static_cast<unsigned long long>(bytes));
            return LM_INVALID_ARGUMENT;
        }
        if (!value.own || value.own.bytes() < bytes) value.own = library_.device().allocate(bytes);
        value.bound = value.own.get();
        if (value.own) return LM_OK;
        error_.set("no memory on the GPU for %s \"%s\": %llu bytes", role, tensor.name,
                   static_cast<unsigned long long>(bytes));
        return LM_OUT_OF_MEMORY;
    }

    int32_t execute(const Entry& entry, metal::Id queue) {
        return with_weights([&] { return carry_out(entry, queue); });
    }

    int32_t carry_out(const Entry& entry, metal::Id queue) {
        const Model& model = library_.model();
        const size_t statuses = static_cast<size_t>(model.steps.size) * sizeof(int32_t);
        const size_t sizes = static_cast<size_t>(model.dims.size) * sizeof(int64_t);
        if (statuses > 0) memset(statuses_.contents(), 0, statuses);
        if (sizes > 0) memcpy(dims_on_device_.contents(), dims_, sizes);
        metal::Commands commands(library_.device(), queue != nullptr ? queue : queue_.get());
        commands_ = &commands;
        outcome_ = LM_OK;
        entry.run(*this, dims_, inputs_, outputs_);
        const int32_t ended = commands.finish(error_);
        if (outcome_ == LM_OK) outcome_ = ended;
        library_.on_step(-1);
        return outcome_ == LM_OK ? raised(entry, statuses_.contents()) : outcome_;
    }

    metal::Owned queue_;
    metal::Buffer arena_;
    metal::Buffer states_;
    metal::Buffer dims_on_device_;
    metal::Buffer statuses_;  // one int32 for each step of the model
    metal::Array<Value> inputs_on_device_;
    metal::Array<Value> outputs_on_device_;
    metal::Id weights_ = nullptr;
    metal::Commands* commands_ = nullptr;  // of the run in progress
    int32_t outcome_ = LM_OK;              // of the commands so far
};

}  // namespace LM_RUNTIME
}  // namespace lm
