// Libraries that run on NVIDIA's GPUs: the kernels and weights on the device, and contexts that launch the kernels.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/abi.h"
#include "luminal/context_base.hpp"
#include "luminal/cuda/device.hpp"
#include "luminal/cuda/plan.hpp"
#include "luminal/cuda/ranks.hpp"
#include "luminal/library_base.hpp"
#include "luminal/message.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {

using cuda::Address;

/// An open model on its GPU.
class Library : public LibraryBase {
  public:
    explicit Library(const Model& model) : LibraryBase(model) {}

    ~Library() {
        if (device_.context() == nullptr) return;
        const cuda::Current current(device_);
        ranks_.close();
        constants_.free(device_.driver());
    }

    int32_t open(const lm_options* caller_options) {
        Message message;
        int32_t status = prepare(caller_options, message);
        const auto& code = *static_cast<const cuda::Code*>(model().code);
        const bool alone = model_.ranks == 1;
        int32_t number = options_.device_id;
        if (status == LM_OK && !alone) status = ranks_.open(model_, options_, message);
        rank_ = ranks_.rank();
        if (status == LM_OK) status = device_.start(message);
        if (!alone) status = ranks_.choose(device_, status, number, message);
        if (status == LM_OK) status = device_.open(code, number, message);
        if (status == LM_OK) status = open_weights(message);
        if (status == LM_OK) status = upload(message);
        if (!alone) status = join(status, message);
        return opened(status, message);
    }

    int32_t set_weights(const void* image, size_t bytes) {
        return replace_weights(image, bytes, [this](Message& message) { return upload(message); });
    }

    /// The constants on the device, kept as they are until release_weights(); 0 if there are none yet.
    Address acquire_weights() {
        weights_lock_.lock_shared();
        return uploaded_ ? constants_.address() : 0;
    }

    const cuda::Device& device() const { return device_; }
    cuda::Ranks& ranks() { return ranks_; }
    bool is_alone() const { return model_.ranks == 1; }
    bool has_observer() const { return observed_; }

  private:
    int32_t join(int32_t status, Message& message) {
        if (device_.context() == nullptr) return ranks_.join(model_, device_, status, message);
        const cuda::Current current(device_);
        if (status == LM_OK) status = current.check(message);
        return ranks_.join(model_, device_, status, message);
    }

    /// Copies the weights to the device, if there are any, and lets go of the file.
    int32_t upload(Message& message) {
        if (weights_.payload() == nullptr) return LM_OK;
        const cuda::Driver& driver = device_.driver();
        const cuda::Current current(device_);
        const size_t bytes = static_cast<size_t>(weights_bytes());
        uploaded_ = false;
        int32_t status = current.check(message);
        if (status == LM_OK && constants_.bytes() == 0) {
            status = constants_.allocate(driver, bytes, "the weights", message);
        }
        if (status == LM_OK) {
            cuda::Outcome outcome = driver.context_synchronize();  // runs that read the old ones
            if (!outcome.failed()) outcome = driver.to_device(constants_.address(), weights_.payload(), bytes, nullptr);
            if (!outcome.failed()) outcome = driver.context_synchronize();
            if (outcome.failed()) status = driver.failed(outcome, message, "copy the weights to the GPU");
        }
        weights_.release();
        uploaded_ = status == LM_OK;
        return status;
    }

    cuda::Device device_;
    cuda::Memory constants_;
    cuda::Ranks ranks_;
    bool uploaded_ = false;
};

/// One caller thread's state, with its memory on the device. Generated code uses the first part.
///
/// A kernel that raises a status does not keep later steps from running, but each step has a status of its own: that of
/// the first step is what the run returns, as on a CPU.
class Context : public ContextBase<Library> {
  public:
    /// Intermediate tensors: `offset` bytes into the arena, which keeps nothing from one run to the next.
    Address arena(uint64_t offset) const { return arena_.address() + offset; }

    /// What is kept from one run to the next: `offset` bytes into the states.
    Address state(uint64_t offset) const { return states_.address() + offset; }

    /// A constant: `offset` bytes into the payload of the weights file.
    Address weights(uint64_t offset) const { return weights_ + offset; }

    Address input(int32_t number) const { return reinterpret_cast<Address>(inputs_[number]); }
    Address output(int32_t number) const { return reinterpret_cast<Address>(outputs_[number]); }

    /// Where the kernel of a step raises what its operator must refuse.
    Address status(int32_t step) {
        if (!counting_) plan_->set_checked();
        return statuses_.address() + static_cast<uint64_t>(step) * sizeof(int32_t);
    }

    /// The sizes of the dims.
    Address dims() const { return plan_->dims(); }

    /// Whether a condition that steps have computed holds; none does once a step has raised a status, so that loops end.
    bool holds(Address flag) {
        bool value = false;
        return read(&value, flag, sizeof(value), "a condition") && value;
    }

    /// From here on a dim is as large as steps have computed.
    void measure(int32_t dim, Address count) {
        int64_t value = 0;
        if (!read(&value, count, sizeof(value), "a size")) return;
        dims_[dim] = value;
        const Address place = plan_->dims() + static_cast<uint64_t>(dim) * sizeof(int64_t);
        cuda::Outcome outcome = driver().to_device(place, dims_ + dim, sizeof(value), observed_);
        if (!outcome.failed()) outcome = synchronize(observed_);
        if (outcome.failed()) outcome_ = driver().failed(outcome, error_, "write a size to the GPU");
    }

    /// Runs step `step`, which is no kernel.
    template <class Body>
    void host(int32_t step, const Body& body) {
        if (!counting_ && outcome_ == LM_OK) {
            step_ = step;
            library_.on_step(step);
        }
        body();
    }

    /// Begins an exchange between ranks, after the steps before it: once it has been waited for, `result` has what this
    /// one gets.
    void start(int32_t ticket, const Exchange& how, Address operand, Address result, int64_t bytes) {
        decides_ = true;  // a graph holds kernels alone
        if (counting_ || outcome_ != LM_OK) return;
        if (!library_.ranks().start(step_, ticket, how, operand, result, bytes, observed_, exchanged_)) {
            outcome_ = LM_RANK_FAILED;
        }
    }

    /// The place of this rank among `size` of them, `stride` apart.
    int32_t place(int32_t size, int32_t stride) const { return library_.ranks().rank() / stride % size; }

    /// The steps that follow wait for the exchange of that ticket.
    void wait(int32_t ticket) {
        if (counting_ || outcome_ != LM_OK) return;
        if (!library_.ranks().wait(ticket, observed_, exchanged_)) outcome_ = LM_RANK_FAILED;
    }

    /// Runs step `step` of the model after those before it: `blocks` blocks of a kernel with these parameters.
    template <int32_t COUNT>
    void launch(int32_t step, int32_t kernel, int64_t blocks, const Address (&arguments)[COUNT]) {
        void* pointers[COUNT];
        for (int32_t i = 0; i < COUNT; ++i) pointers[i] = const_cast<Address*>(arguments + i);
        if (counting_) {
            ++launches_;
        } else if (outcome_ == LM_OK) {
            outcome_ = launch(step, kernel, blocks, pointers);
        }
    }

    /// The same for a kernel that copies boxes of some of its parameters.
    template <int32_t COUNT, int32_t BOXED>
    void launch(int32_t step, int32_t kernel, int64_t blocks, const Address (&arguments)[COUNT],
                const cuda::Boxed (&boxed)[BOXED]) {
        void* pointers[COUNT + BOXED];
        cuda::TensorMap maps[BOXED];
        for (int32_t i = 0; i < COUNT; ++i) pointers[i] = const_cast<Address*>(arguments + i);
        for (int32_t i = 0; i < BOXED; ++i) pointers[COUNT + i] = maps + i;
        if (counting_) {
            ++launches_;
            return;
        }
        for (int32_t i = 0; i < BOXED && outcome_ == LM_OK; ++i) {
            const cuda::Outcome outcome = boxed[i].describe(driver(), arguments[boxed[i].parameter], maps[i]);
            if (outcome.failed()) {
                outcome_ = driver().failed(outcome, error_, "describe an array of kernel \"%s\"",
                                           library_.device().kernel(kernel).name);
            }
        }
        if (outcome_ == LM_OK) outcome_ = launch(step, kernel, blocks, pointers);
    }

    // The rest is called by the exported functions.

    explicit Context(Library& library) : ContextBase(library) {}

    ~Context() {
        const cuda::Current current(library_.device());
        if (done_ != nullptr) driver().event_synchronize(done_);
        for (cuda::Plan& plan : plans_) plan.release(driver(), library_.allocator());
        arena_.free(driver());
        states_.free(driver());
        statuses_.free(driver());
        statuses_on_host_.free(driver());
        values_.free(driver());
        values_on_host_.free(driver());
        if (done_ != nullptr) driver().event_destroy(done_);
        if (stream_ != nullptr) driver().stream_destroy(stream_);
    }

    /// Allocates everything that runs will need, but for plans and for copies of values of the host.
    int32_t allocate(Message& message) {
        message.set("no memory for a context");
        if (!allocate_tables()) return LM_OUT_OF_MEMORY;
        const cuda::Current current(library_.device());
        const size_t statuses = static_cast<size_t>(library_.model().steps.size) * sizeof(int32_t);
        int32_t status = current.check(message);
        if (status == LM_OK) status = arena_.allocate(driver(), arena_bytes(), "the arena of a context", message);
        const size_t states = static_cast<size_t>(library_.state_bytes());
        if (status == LM_OK) status = states_.allocate(driver(), states, "the states of a context", message);
        if (status == LM_OK) status = statuses_.allocate(driver(), statuses, "the statuses of a context", message);
        if (status == LM_OK) {
            status = statuses_on_host_.allocate(driver(), statuses, "the statuses of a context", message);
        }
        if (status != LM_OK) return status;
        // Work of the caller on the default stream comes before what follows on this one.
        cuda::Outcome outcome = driver().stream_create(&stream_, 0);
        if (!outcome.failed()) outcome = driver().event_create(&done_, cuda::EVENT_WITHOUT_TIME);
        return outcome.failed() ? driver().failed(outcome, message, "make a stream for a context") : LM_OK;
    }

    /// `stream` is the CUstream on which values on the GPU are ready when the run begins. With a stream the run may end
    /// later than the call: where all values lie on the GPU and no step can raise a status. Otherwise the call waits.
    int32_t run(int32_t entry_index, const lm_value* in, lm_value* out, void* stream) {
        const Storage storage{LM_CUDA, library_.device().number(), "CUDA", ALIGNMENT_ON_DEVICE};
        return call(entry_index, in, out, storage, [&](const Entry& entry) {
            return with_weights([&] {
                if (library_.is_alone()) return execute(entry, in, out, static_cast<cuda::Stream>(stream));
                library_.ranks().begin();
                const int32_t status = among_ranks(entry, in, out, static_cast<cuda::Stream>(stream));
                library_.ranks().end();
                return status;
            });
        });
    }

    int32_t get_state(int32_t number, const lm_value* value) {
        return with_state(number, value, [&](const State& state) {
            return move_state("copy a state from the GPU", [&] {
                return driver().to_host(value->data, this->state(state.offset), static_cast<size_t>(state.bytes), stream_);
            });
        });
    }

    int32_t set_state(int32_t number, const lm_value* value) {
        return with_state(number, value, [&](const State& state) {
            return move_state("copy a state to the GPU", [&] {
                return driver().to_device(this->state(state.offset), value->data, static_cast<size_t>(state.bytes), stream_);
            });
        });
    }

  private:
    static constexpr int32_t ALIGNMENT_ON_DEVICE = 16;  // bytes: of the widest access of a kernel
    static constexpr size_t VALUE_ALIGNMENT = 256;      // of copies of values, as the driver aligns allocations
    static constexpr int32_t PLANS = 32;

    const cuda::Driver& driver() const { return library_.device().driver(); }

    /// Waits for what was put into a stream. Where other ranks take part, it does so within their limit; once that is
    /// over, the run has failed.
    cuda::Outcome synchronize(cuda::Stream stream) {
        if (!library_.is_alone() && outcome_ != LM_RANK_FAILED) {
            cuda::Outcome outcome;
            if (library_.ranks().finish(stream, outcome, exchanged_)) return outcome;
            outcome_ = LM_RANK_FAILED;
        }
        return driver().stream_synchronize(stream);
    }

    /// What steps have computed at `from`; false where it is not known: nothing runs yet, or a step has raised a status.
    bool read(void* value, Address from, size_t bytes, const char* what) {
        decides_ = true;
        if (counting_ || outcome_ != LM_OK) return false;
        cuda::Outcome outcome = driver().to_host(value, from, bytes, observed_);
        if (!outcome.failed() && plan_->checked()) {
            outcome = driver().to_host(statuses_on_host_.data(), statuses_.address(), statuses_.bytes(), observed_);
        }
        if (!outcome.failed()) outcome = synchronize(observed_);
        if (outcome.failed()) outcome_ = driver().failed(outcome, error_, "read %s from the GPU", what);
        return outcome_ == LM_OK && !(plan_->checked() && any_status(statuses_on_host_.data()));
    }

    /// What `work()` returns, which may read the weights, on the device.
    template <class Work>
    int32_t with_weights(const Work& work) {
        const cuda::Current current(library_.device());
        const int32_t status = current.check(error_);
        return status == LM_OK ? holding(weights_, work) : status;
    }

    /// Gives the states their first values, unless they have them.
    cuda::Outcome restore_states(cuda::Stream stream) {
        cuda::Outcome outcome;
        for (const State& state : library_.model().states) {
            if (!fresh_ || outcome.failed()) break;
            const Address place = this->state(state.offset);
            const size_t bytes = static_cast<size_t>(state.bytes);
            if (bytes == 0 || !library_.has(state)) continue;
            outcome = state.initial < 0 ? driver().fill(place, 0, bytes, stream)
                                        : driver().copy(place, weights_ + state.initial, bytes, stream);
        }
        fresh_ = fresh_ && outcome.failed();
        return outcome;
    }

    /// Has `copy()`, on the stream of the context, follow the last run, and waits for it.
    template <class Copy>
    int32_t move_state(const char* wanted, const Copy& copy) {
        return with_weights([&] {
            cuda::Outcome outcome = driver().stream_wait(stream_, done_, 0);
            if (!outcome.failed()) outcome = restore_states(stream_);
            if (!outcome.failed()) outcome = copy();
            const cuda::Outcome ended = driver().stream_synchronize(stream_);
            if (!outcome.failed()) outcome = ended;
            return outcome.failed() ? driver().failed(outcome, error_, "%s", wanted) : static_cast<int32_t>(LM_OK);
        });
    }

    // ---- a run ------------------------------------------------------------------------------------------------------

    /// A run of a mesh, for which all ranks come. It waits until all is done, so that a rank that fails is an error of
    /// the run.
    int32_t among_ranks(const Entry& entry, const lm_value* in, const lm_value* out, cuda::Stream caller_stream) {
        const int32_t status = execute(entry, in, out, caller_stream);
        if (status == LM_RANK_FAILED) {
            step_failed(entry, library_.ranks().step(step_), status);
            error_.append(": %s", exchanged_.text());
        } else if (status != LM_OK) {
            library_.ranks().part(error_);
        }
        return status;
    }

    int32_t execute(const Entry& entry, const lm_value* in, const lm_value* out, cuda::Stream caller_stream) {
        int32_t status = find_plan(entry);
        if (status == LM_OK) status = place_values(entry, in, out);
        if (status != LM_OK) return status;
        const cuda::Stream stream = caller_stream != nullptr ? caller_stream : stream_;
        status = enqueue(entry, stream);
        const bool waits = caller_stream == nullptr || values_end_ > 0 || plan_->checked() || !library_.is_alone();
        if (status == LM_OK && !waits) return LM_OK;
        const cuda::Outcome outcome = synchronize(stream);
        if (status == LM_OK && outcome_ == LM_RANK_FAILED) status = outcome_;
        if (status != LM_OK) return status;
        if (outcome.failed()) return driver().failed(outcome, error_, "carry out entry \"%s\"", entry.name);
        status = plan_->checked() ? raised(entry, statuses_on_host_.data()) : LM_OK;
        if (status == LM_OK) copy_outputs(entry, out);
        return status;
    }

    /// All that a run asks of the GPU, in order.
    int32_t enqueue(const Entry& entry, cuda::Stream stream) {
        outcome_ = LM_OK;
        cuda::Outcome outcome = driver().stream_wait(stream, done_, 0);  // for the last run, which has the same arena
        if (!outcome.failed()) outcome = restore_states(stream);
        if (!outcome.failed() && inputs_end_ > 0) {
            outcome = driver().to_device(values_.address(), values_on_host_.data(), inputs_end_, stream);
        }
        if (outcome.failed()) return driver().failed(outcome, error_, "copy inputs to the GPU");
        const bool steps = library_.has_observer() || plan_->decides();
        const int32_t status = steps ? run_steps(entry, stream) : run_plan(entry, stream);
        if (status != LM_OK) return status;
        if (values_end_ > inputs_end_) {
            outcome = driver().to_host(values_on_host_.data() + inputs_end_, values_.address() + inputs_end_,
                                       values_end_ - inputs_end_, stream);
        }
        if (!outcome.failed() && plan_->checked()) {
            outcome = driver().to_host(statuses_on_host_.data(), statuses_.address(), statuses_.bytes(), stream);
        }
        if (!outcome.failed()) outcome = driver().event_record(done_, stream);
        return outcome.failed() ? driver().failed(outcome, error_, "copy outputs from the GPU") : LM_OK;
    }

    /// One launch of the whole entry.
    int32_t run_plan(const Entry& entry, cuda::Stream stream) {
        cuda::Plan& plan = *plan_;
        cuda::Outcome outcome;
        if (!plan.is_built() || !plan.has(inputs_, outputs_)) {
            stepping_ = false;
            outcome = plan.begin(driver(), inputs_, outputs_);
            if (!outcome.failed()) {
                entry.run(*this, dims_, inputs_, outputs_);
                if (outcome_ == LM_OK) outcome = plan.end(driver());
            }
            if (outcome.failed()) outcome_ = driver().failed(outcome, error_, "plan entry \"%s\"", entry.name);
            if (outcome_ != LM_OK) {
                forget(plan);  // some of its kernels have other arguments than the rest
                plan_ = &none_;
                return outcome_;
            }
        }
        if (plan.checked()) outcome = driver().fill(statuses_.address(), 0, statuses_.bytes(), stream);
        if (!outcome.failed()) outcome = plan.launch(driver(), stream);
        return outcome.failed() ? driver().failed(outcome, error_, "launch entry \"%s\"", entry.name) : LM_OK;
    }

    /// Step by step: because conditions of the model decide which follow, or because somebody observes. To an observer,
    /// each ends before the next begins.
    int32_t run_steps(const Entry& entry, cuda::Stream stream) {
        stepping_ = true;
        observed_ = stream;
        if (statuses_.bytes() > 0) {
            const cuda::Outcome outcome = driver().fill(statuses_.address(), 0, statuses_.bytes(), stream);
            if (outcome.failed()) return driver().failed(outcome, error_, "launch entry \"%s\"", entry.name);
        }
        entry.run(*this, dims_, inputs_, outputs_);
        library_.on_step(-1);
        return outcome_;
    }

    int32_t launch(int32_t step, int32_t kernel, int64_t blocks, void** arguments) {
        step_ = step;
        if (stepping_) library_.on_step(step);
        if (blocks <= 0) return LM_OK;
        const cuda::Device& device = library_.device();
        const cuda::Kernel& launched = device.kernel(kernel);
        if (blocks > cuda::MOST_BLOCKS) {
            error_.set("kernel \"%s\" needs %lld blocks, more than one launch may have", launched.name,
                       static_cast<long long>(blocks));
            return LM_UNSUPPORTED;
        }
        const uint32_t grid = static_cast<uint32_t>(blocks);
        const uint32_t threads = static_cast<uint32_t>(launched.threads);
        const uint32_t shared = static_cast<uint32_t>(launched.requested);
        cuda::Outcome outcome;
        if (stepping_) {
            outcome = driver().launch(device.function(kernel), grid, 1, 1, threads, 1, 1, shared, observed_,
                                      arguments, nullptr);
            if (!outcome.failed() && library_.has_observer()) outcome = synchronize(observed_);
        } else {
            outcome = plan_->kernel(driver(), {device.function(kernel), {grid, 1, 1}, {threads, 1, 1}, shared,
                                               arguments, nullptr, nullptr, nullptr});
        }
        return outcome.failed() ? driver().failed(outcome, error_, "launch kernel \"%s\"", launched.name) : LM_OK;
    }

    // ---- values of the host -----------------------------------------------------------------------------------------

    /// Gives values of the host places on the device, inputs first, and copies inputs to where the GPU takes them from.
    int32_t place_values(const Entry& entry, const lm_value* in, const lm_value* out) {
        inputs_end_ = 0;
        for (int32_t i = 0; i < entry.inputs.size; ++i) inputs_end_ += room(in[i]);
        values_end_ = inputs_end_;
        for (int32_t i = 0; i < entry.outputs.size; ++i) values_end_ += room(out[i]);
        const int32_t status = reserve(values_end_);
        if (status != LM_OK) return status;
        size_t offset = 0;
        for (int32_t i = 0; i < entry.inputs.size; ++i) {
            if (room(in[i]) == 0) continue;
            memcpy(values_on_host_.data() + offset, in[i].data, value_bytes(in[i]));
            inputs_[i] = reinterpret_cast<const void*>(values_.address() + offset);
            offset += room(in[i]);
        }
        for (int32_t i = 0; i < entry.outputs.size; ++i) {
            if (room(out[i]) == 0) continue;
            outputs_[i] = reinterpret_cast<void*>(values_.address() + offset);
            offset += room(out[i]);
        }
        return LM_OK;
    }

    void copy_outputs(const Entry& entry, const lm_value* out) const {
        size_t offset = inputs_end_;
        for (int32_t i = 0; i < entry.outputs.size; ++i) {
            if (room(out[i]) > 0) memcpy(out[i].data, values_on_host_.data() + offset, value_bytes(out[i]));
            offset += room(out[i]);
        }
    }

    /// Bytes that a value takes on its way through.
    static size_t room(const lm_value& value) {
        return value.device == LM_CPU ? round_up(value_bytes(value), VALUE_ALIGNMENT) : 0;
    }

    /// Grows what values pass through. The last run that used it has ended: its call waited for that.
    int32_t reserve(size_t bytes) {
        if (bytes <= values_.bytes() && bytes <= values_on_host_.bytes()) return LM_OK;
        const size_t size = bytes < 2 * values_.bytes() ? 2 * values_.bytes() : bytes;
        values_.free(driver());
        values_on_host_.free(driver());
        const int32_t status = values_.allocate(driver(), size, "inputs and outputs", error_);
        return status == LM_OK ? values_on_host_.allocate(driver(), size, "inputs and outputs", error_) : status;
    }

    // ---- plans ------------------------------------------------------------------------------------------------------

    /// Points plan_ to the plan of the entry at its present dims: one that exists, or a new one in the place of the one
    /// that was not used for the longest time.
    int32_t find_plan(const Entry& entry) {
        const Model& model = library_.model();
        cuda::Plan* oldest = plans_;
        for (cuda::Plan& plan : plans_) {
            if (plan.used() > 0 && plan.is_for(entry, dims_, model.dims.size)) {
                plan.use(++clock_);
                plan_ = &plan;
                return LM_OK;
            }
            if (plan.used() < oldest->used()) oldest = &plan;
        }
        forget(*oldest);
        const int32_t count = count_launches(entry);
        const int32_t status =
            oldest->prepare(driver(), library_.allocator(), model, entry, dims_, count, stream_, error_);
        if (status != LM_OK) {
            forget(*oldest);
            return status;
        }
        oldest->use(++clock_);
        if (decides_) oldest->set_decides();
        plan_ = oldest;
        return LM_OK;
    }

    /// How many kernels a run at the present dims launches, if no condition decides.
    int32_t count_launches(const Entry& entry) {
        counting_ = true;
        decides_ = false;
        launches_ = 0;
        entry.run(*this, dims_, inputs_, outputs_);
        counting_ = false;
        return launches_;
    }

    /// Frees a plan, once its last run has ended.
    void forget(cuda::Plan& plan) {
        if (plan.used() > 0) driver().event_synchronize(done_);
        plan.release(driver(), library_.allocator());
    }

    cuda::Memory arena_;
    cuda::Memory states_;
    cuda::Memory statuses_;  // one int32 for each step of the model
    cuda::PinnedMemory statuses_on_host_;
    cuda::Memory values_;  // values of the host: inputs, then outputs
    cuda::PinnedMemory values_on_host_;
    size_t inputs_end_ = 0;
    size_t values_end_ = 0;
    cuda::Stream stream_ = nullptr;
    cuda::Event done_ = nullptr;  // the last run has ended
    Address weights_ = 0;
    cuda::Plan plans_[PLANS];
    cuda::Plan none_;
    cuda::Plan* plan_ = &none_;
    uint64_t clock_ = 0;
    int32_t outcome_ = LM_OK;          // of the launches so far
    bool counting_ = false;            // launches are counted, not done
    int32_t launches_ = 0;
    bool decides_ = false;             // a condition was asked for
    bool stepping_ = false;            // launches are done at once, not planned
    cuda::Stream observed_ = nullptr;  // on which they run then
    int32_t step_ = -1;                // the last of these
    Message exchanged_;                // what went wrong between ranks
};

}  // namespace LM_RUNTIME
}  // namespace lm
