// Libraries that run by OpenCL: the kernels and weights on the device, and contexts that launch the kernels.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/context_base.hpp"
#include "luminal/library_base.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"
#include "luminal/opencl/device.hpp"

namespace lm {
inline namespace LM_RUNTIME {

using opencl::Slice;

/// An open model on its device.
class Library : public LibraryBase {
  public:
    explicit Library(const Model& model) : LibraryBase(model) {}

    int32_t open(const lm_options* caller_options) {
        Message message;
        int32_t status = prepare(caller_options, message);
        if (status == LM_OK) {
            status = device_.open(*static_cast<const opencl::Kernels*>(model().code), options_.device_id, message);
        }
        if (status == LM_OK) queue_ = device_.new_queue();
        if (status == LM_OK) status = open_weights(message);
        if (status == LM_OK) status = upload(message);
        return opened(status, message);
    }

    int32_t set_weights(const void* image, size_t bytes) {
        return replace_weights(image, bytes, [this](Message& message) { return upload(message); });
    }

    /// The constants, kept as they are until release_weights(); null if there are none yet.
    opencl::Id acquire_weights() {
        weights_lock_.lock_shared();
        return constants_.get();
    }

    const opencl::Device& device() const { return device_; }
    Mutex& arguments() { return arguments_; }
    bool has_observer() const { return observed_; }

  private:
    /// Copies the weights to the device, if there are any, and lets go of the file.
    int32_t upload(Message& message) {
        if (weights_.payload() == nullptr) return LM_OK;
        const uint64_t bytes = static_cast<uint64_t>(model_.weights_bytes);
        opencl::Buffer copy = device_.allocate(bytes);
        if (!copy) {
            message.set("no memory on the device for the weights: %llu bytes", static_cast<unsigned long long>(bytes));
            return LM_OUT_OF_MEMORY;
        }
        opencl::Commands commands(device_, queue_.get(), arguments_);
        commands.write({copy.get(), 0}, weights_.payload(), bytes);
        const int32_t status = commands.finish(message);
        weights_.release();
        if (status == LM_OK) constants_ = static_cast<opencl::Buffer&&>(copy);
        return status;
    }

    opencl::Device device_;
    opencl::Owned<&opencl::Api::release_queue> queue_;
    opencl::Buffer constants_;
    Mutex arguments_;
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

    Slice input(int32_t number) const { return {inputs_on_device_[number].buffer.get(), 0}; }
    Slice output(int32_t number) const { return {outputs_on_device_[number].buffer.get(), 0}; }

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
        commands_->write(dims() + static_cast<uint64_t>(dim) * sizeof(value), &value, sizeof(value));
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
        const opencl::Device& device = library_.device();
        int32_t inputs = 0;
        int32_t outputs = 0;
        for (const Entry& entry : model.entries) {
            if (entry.inputs.size > inputs) inputs = entry.inputs.size;
            if (entry.outputs.size > outputs) outputs = entry.outputs.size;
        }
        message.set("no memory for a context");
        const bool tables = allocate_tables() && inputs_on_device_.allocate(inputs) &&
                            outputs_on_device_.allocate(outputs) && found_.allocate(model.steps.size);
        if (!tables) return LM_OUT_OF_MEMORY;
        message.set("no memory on the device for a context: %llu bytes of arena, %lld of states",
                    static_cast<unsigned long long>(arena_bytes()), static_cast<long long>(model.state_bytes));
        arena_ = device.allocate(arena_bytes());
        dims_on_device_ = device.allocate(static_cast<uint64_t>(model.dims.size) * sizeof(int64_t));
        statuses_ = device.allocate(status_bytes());
        states_ = device.allocate(static_cast<uint64_t>(model.state_bytes));
        if (!arena_ || !dims_on_device_ || !statuses_ || !states_) return LM_OUT_OF_MEMORY;
        message.set("OpenCL makes no command queue for a context");
        queue_ = device.new_queue();
        return queue_ ? LM_OK : LM_SYSTEM_ERROR;
    }

    /// Values lie in host memory; there is no stream. Returns when the run has ended.
    int32_t run(int32_t entry_index, const lm_value* in, lm_value* out, void* stream) {
        (void)stream;
        return call(entry_index, in, out, Storage{}, [&](const Entry& entry) {
            return with_commands([&] {
                int32_t status = bind(entry, in, out);
                if (status == LM_OK) status = carry_out(entry);
                for (int32_t i = 0; status == LM_OK && i < entry.outputs.size; ++i) {
                    commands_->read(out[i].data, output(i), value_bytes(out[i]));
                }
                const int32_t ended = commands_->finish(error_);
                return status == LM_OK ? ended : status;
            });
        });
    }

    int32_t get_state(int32_t number, const lm_value* value) {
        return with_state(number, value, [&](const State& state) {
            return with_commands([&] {
                commands_->read(value->data, this->state(state.offset), static_cast<size_t>(state.bytes));
                return commands_->finish(error_);
            });
        });
    }

    int32_t set_state(int32_t number, const lm_value* value) {
        return with_state(number, value, [&](const State& state) {
            return with_commands([&] {
                commands_->write(this->state(state.offset), value->data, static_cast<size_t>(state.bytes));
                return commands_->finish(error_);
            });
        });
    }

  private:
    /// What `work()` returns, which may give commands and read the weights, and states that have values.
    template <class Work>
    int32_t with_commands(const Work& work) {
        return holding(weights_, [&] {
            opencl::Commands commands(library_.device(), queue_.get(), library_.arguments());
            commands_ = &commands;
            for (const State& state : library_.model().states) {
                if (!fresh_) break;
                const Slice place = this->state(static_cast<uint64_t>(state.offset));
                if (state.initial < 0) commands.zero(place, static_cast<size_t>(state.bytes));
                else commands.copy(place, weights(static_cast<uint64_t>(state.initial)), static_cast<size_t>(state.bytes));
            }
            fresh_ = false;
            return work();
        });
    }

    /// Room on the device for an input or output.
    struct Value : InPlace {
        opencl::Buffer buffer;
        uint64_t bytes = 0;
    };

    struct Raised : InPlace {
        int32_t code = LM_OK;
    };

    size_t status_bytes() const { return static_cast<size_t>(library_.model().steps.size) * sizeof(int32_t); }

    /// The statuses, which the steps so far may have raised.
    const unsigned char* statuses() {
        commands_->read(found_.begin(), {statuses_.get(), 0}, status_bytes());
        if (outcome_ == LM_OK) outcome_ = commands_->finish(error_);
        return reinterpret_cast<const unsigned char*>(found_.begin());
    }

    /// What steps have computed at `from`; false where a step has raised a status.
    bool read(void* value, Slice from, size_t bytes) {
        commands_->read(value, from, bytes);
        const unsigned char* const raised = statuses();
        return outcome_ == LM_OK && !any_status(raised);
    }

    /// Makes a buffer for each value, and copies the inputs there.
    int32_t bind(const Entry& entry, const lm_value* in, const lm_value* out) {
        int32_t status = LM_OK;
        for (int32_t i = 0; status == LM_OK && i < entry.inputs.size; ++i) {
            status = bind("input", entry.inputs[i], in[i], inputs_on_device_[i]);
            if (status == LM_OK) commands_->write(input(i), in[i].data, value_bytes(in[i]));
        }
        for (int32_t i = 0; status == LM_OK && i < entry.outputs.size; ++i) {
            status = bind("output", entry.outputs[i], out[i], outputs_on_device_[i]);
        }
        return status;
    }

    int32_t bind(const char* role, const Tensor& tensor, const lm_value& given, Value& value) {
        const uint64_t bytes = value_bytes(given);
        if (!value.buffer || value.bytes < bytes) {
            value.buffer = library_.device().allocate(bytes);
            value.bytes = bytes;
        }
        if (value.buffer) return LM_OK;
        error_.set("no memory on the device for %s \"%s\": %llu bytes", role, tensor.name,
                   static_cast<unsigned long long>(bytes));
        return LM_OUT_OF_MEMORY;
    }

    int32_t carry_out(const Entry& entry) {
        const Model& model = library_.model();
        commands_->zero({statuses_.get(), 0}, status_bytes());
        commands_->write(dims(), dims_, static_cast<size_t>(model.dims.size) * sizeof(int64_t));
        outcome_ = LM_OK;
        entry.run(*this, dims_, inputs_, outputs_);
        const unsigned char* const found = statuses();
        library_.on_step(-1);
        return outcome_ == LM_OK ? raised(entry, found) : outcome_;
    }

    opencl::Owned<&opencl::Api::release_queue> queue_;
    opencl::Buffer arena_;
    opencl::Buffer states_;
    opencl::Buffer dims_on_device_;
    opencl::Buffer statuses_;      // one int32 for each step of the model
    opencl::Array<Raised> found_;  // the same, on the host
    opencl::Array<Value> inputs_on_device_;
    opencl::Array<Value> outputs_on_device_;
    opencl::Id weights_ = nullptr;
    opencl::Commands* commands_ = nullptr;  // of the run in progress
    int32_t outcome_ = LM_OK;               // of the commands so far
};

}  // namespace LM_RUNTIME
}  // namespace lm
