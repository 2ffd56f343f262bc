// What a context keeps of an entry at one set of dimensions, so that the next run of it is one launch: a graph of all
// its kernels, and the dims where kernels read them.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/cuda/device.hpp"
#include "luminal/memory.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace cuda {

/// A graph of kernels that follow each other. It is built once; where a later run has other inputs or outputs, the
/// arguments of its kernels are set anew, in the order in which they were added.
class Plan {
  public:
    Plan() = default;
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    bool is_for(const Entry& entry, const int64_t* dims, int32_t count) const {
        return entry_ == &entry && memcmp(dims_, dims, static_cast<size_t>(count) * sizeof(int64_t)) == 0;
    }

    /// When it was last used; 0: it is for nothing.
    uint64_t used() const { return used_; }
    void use(uint64_t now) { used_ = now; }

    /// The dims on the device.
    Address dims() const { return dims_on_device_.address(); }

    /// Whether one of the steps may raise a status.
    bool checked() const { return checked_; }
    void set_checked() { checked_ = true; }

    /// Whether conditions decide which kernels follow, so that no graph can hold them.
    bool decides() const { return decides_; }
    void set_decides() { decides_ = true; }

    bool is_built() const { return built_; }

    /// Whether the kernels have these arguments.
    bool has(const void* const* inputs, void* const* outputs) const {
        const size_t in = static_cast<size_t>(entry_->inputs.size);
        const size_t out = static_cast<size_t>(entry_->outputs.size);
        return memcmp(pointers_, inputs, in * sizeof(void*)) == 0 &&
               memcmp(pointers_ + in, outputs, out * sizeof(void*)) == 0;
    }

    /// Makes room for so many `launches`, and copies the dims to the device.
    int32_t prepare(const Driver& driver, const Allocator& allocator, const Model& model, const Entry& entry,
                    const int64_t* dims, int32_t launches, Stream stream, Message& message) {
        const size_t dims_bytes = static_cast<size_t>(model.dims.size) * sizeof(int64_t);
        const size_t pointers = static_cast<size_t>(entry.inputs.size + entry.outputs.size) * sizeof(void*);
        bytes_ = dims_bytes + pointers + static_cast<size_t>(launches) * sizeof(GraphNode) + 1;
        memory_ = static_cast<unsigned char*>(allocator.allocate(bytes_));
        if (memory_ == nullptr) {
            message.set("no memory for the plan of entry \"%s\"", entry.name);
            return LM_OUT_OF_MEMORY;
        }
        entry_ = &entry;
        dims_ = reinterpret_cast<int64_t*>(memory_);
        pointers_ = reinterpret_cast<const void**>(memory_ + dims_bytes);
        nodes_ = reinterpret_cast<GraphNode*>(memory_ + dims_bytes + pointers);
        memcpy(dims_, dims, dims_bytes);
        const int32_t status = dims_on_device_.allocate(driver, dims_bytes, "the dims", message);
        if (status != LM_OK || dims_bytes == 0) return status;
        Outcome outcome = driver.to_device(dims_on_device_.address(), dims_, dims_bytes, stream);
        if (!outcome.failed()) outcome = driver.stream_synchronize(stream);
        return outcome.failed() ? driver.failed(outcome, message, "copy the dims to the GPU") : LM_OK;
    }

    /// Begins to add or set the kernels of a run on these arguments.
    Outcome begin(const Driver& driver, const void* const* inputs, void* const* outputs) {
        const size_t in = static_cast<size_t>(entry_->inputs.size);
        memcpy(pointers_, inputs, in * sizeof(void*));
        memcpy(pointers_ + in, outputs, static_cast<size_t>(entry_->outputs.size) * sizeof(void*));
        position_ = 0;
        return built_ ? Outcome{} : driver.graph_create(&graph_, 0);
    }

    /// The next kernel: it waits for the one before.
    Outcome kernel(const Driver& driver, const KernelNode& parameters) {
        GraphNode* const node = nodes_ + position_++;
        if (built_) return driver.graph_set(executable_, *node, &parameters);
        const bool first = node == nodes_;
        return driver.graph_add(node, graph_, first ? nullptr : node - 1, first ? 0 : 1, &parameters);
    }

    /// Ends it.
    Outcome end(const Driver& driver) {
        if (built_) return Outcome{};
        const Outcome outcome = position_ > 0 ? driver.graph_instantiate(&executable_, graph_, 0) : Outcome{};
        built_ = !outcome.failed();
        return outcome;
    }

    /// Launches the kernels, if there are any.
    Outcome launch(const Driver& driver, Stream stream) const {
        return executable_ != nullptr ? driver.graph_launch(executable_, stream) : Outcome{};
    }

    /// Frees everything. No launch of it may still run.
    void release(const Driver& driver, const Allocator& allocator) {
        if (executable_ != nullptr) driver.graph_exec_destroy(executable_);
        if (graph_ != nullptr) driver.graph_destroy(graph_);
        dims_on_device_.free(driver);
        allocator.deallocate(memory_, bytes_);
        memory_ = nullptr;
        entry_ = nullptr;
        used_ = 0;
        position_ = 0;
        graph_ = nullptr;
        executable_ = nullptr;
        built_ = false;
        checked_ = false;
        decides_ = false;
    }

  private:
    const Entry* entry_ = nullptr;
    uint64_t used_ = 0;
    unsigned char* memory_ = nullptr;  // the three arrays
    size_t bytes_ = 0;
    int64_t* dims_ = nullptr;
    const void** pointers_ = nullptr;  // inputs, then outputs
    GraphNode* nodes_ = nullptr;
    int32_t position_ = 0;
    Memory dims_on_device_;
    Graph graph_ = nullptr;
    GraphExec executable_ = nullptr;
    bool built_ = false;
    bool checked_ = false;
    bool decides_ = false;
};

}  // namespace cuda
}  // namespace LM_RUNTIME
}  // namespace lm
