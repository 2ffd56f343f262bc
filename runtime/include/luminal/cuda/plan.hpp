// What a context keeps of an entry at one set of dimensions, so that the next run of it is one launch: a graph of all
// its kernels, and the dims where kernels read them. Where ranks exchange data, it is one launch for each stretch of
// kernels between.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/cuda/device.hpp"
#include "luminal/memory.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace cuda {

/// Stretches of kernels that follow each other, with a graph for each. They are built once; where a later run has other
/// inputs or outputs, the arguments of the kernels are set anew, in the order in which they were added.
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

    /// Whether ranks exchange data between its stretches.
    bool exchanges() const { return stretches_ > 1; }

    bool is_built() const { return built_; }

    /// It is for no run any more: some of its kernels have other arguments than the rest.
    void spoil() {
        entry_ = nullptr;
        used_ = 1;
    }

    /// Whether the kernels have these arguments.
    bool has(const void* const* inputs, void* const* outputs) const {
        const size_t in = static_cast<size_t>(entry_->inputs.size);
        const size_t out = static_cast<size_t>(entry_->outputs.size);
        return memcmp(pointers_, inputs, in * sizeof(void*)) == 0 &&
               memcmp(pointers_ + in, outputs, out * sizeof(void*)) == 0;
    }

    /// Makes room for so many `launches` in so many `stretches`, and copies the dims to the device.
    int32_t prepare(const Driver& driver, const Allocator& allocator, const Model& model, const Entry& entry,
                    const int64_t* dims, int32_t launches, int32_t stretches, Stream stream, Message& message) {
        const size_t dims_bytes = static_cast<size_t>(model.dims.size) * sizeof(int64_t);
        const size_t pointers = static_cast<size_t>(entry.inputs.size + entry.outputs.size) * sizeof(void*);
        const size_t nodes = static_cast<size_t>(launches) * sizeof(GraphNode);
        const size_t graphs = static_cast<size_t>(stretches) * sizeof(Stretch);
        bytes_ = dims_bytes + pointers + nodes + graphs;
        memory_ = static_cast<unsigned char*>(allocator.allocate(bytes_));
        if (memory_ == nullptr) {
            message.set("no memory for the plan of entry \"%s\"", entry.name);
            return LM_OUT_OF_MEMORY;
        }
        entry_ = &entry;
        dims_ = reinterpret_cast<int64_t*>(memory_);
        pointers_ = reinterpret_cast<const void**>(memory_ + dims_bytes);
        nodes_ = reinterpret_cast<GraphNode*>(memory_ + dims_bytes + pointers);
        graphs_ = reinterpret_cast<Stretch*>(memory_ + dims_bytes + pointers + nodes);
        stretches_ = stretches;
        for (int32_t i = 0; i < stretches; ++i) graphs_[i] = Stretch{};
        memcpy(dims_, dims, dims_bytes);
        const int32_t status = dims_on_device_.allocate(driver, dims_bytes, "the dims", message);
        if (status != LM_OK || dims_bytes == 0) return status;
        Outcome outcome = driver.to_device(dims_on_device_.address(), dims_, dims_bytes, stream);
        if (!outcome.failed()) outcome = driver.stream_synchronize(stream);
        return outcome.failed() ? driver.failed(outcome, message, "copy the dims to the GPU") : LM_OK;
    }

    /// Begins a run, whose kernels are added, or set, for these arguments.
    void begin(const void* const* inputs, void* const* outputs) {
        const size_t in = static_cast<size_t>(entry_->inputs.size);
        memcpy(pointers_, inputs, in * sizeof(void*));
        memcpy(pointers_ + in, outputs, static_cast<size_t>(entry_->outputs.size) * sizeof(void*));
        again();
    }

    /// Begins a run with the arguments of the last one.
    void again() {
        position_ = first_ = 0;
        stretch_ = graphs_;
    }

    /// The next kernel: it waits for the one before.
    Outcome kernel(const Driver& driver, const KernelNode& parameters) {
        GraphNode* const node = nodes_ + position_++;
        if (built_) return driver.graph_set(stretch_->executable, *node, &parameters);
        const bool first = node == nodes_ + first_;
        const Outcome outcome = first ? driver.graph_create(&stretch_->graph, 0) : Outcome{};
        if (outcome.failed()) return outcome;
        return driver.graph_add(node, stretch_->graph, first ? nullptr : node - 1, first ? 0 : 1, &parameters);
    }

    /// All kernels of a stretch are there.
    Outcome end(const Driver& driver) {
        const bool made = stretch_->executable != nullptr || stretch_->graph == nullptr;
        return made ? Outcome{} : driver.graph_instantiate(&stretch_->executable, stretch_->graph, 0);
    }

    /// Launches the kernels of a stretch, if there are any.
    Outcome launch(const Driver& driver, Stream stream) const {
        return stretch_->executable != nullptr ? driver.graph_launch(stretch_->executable, stream) : Outcome{};
    }

    /// Goes on to the next stretch.
    void next() {
        first_ = position_;
        ++stretch_;
    }

    /// All stretches are there.
    void set_built() { built_ = true; }

    /// Frees everything. No launch of it may still run.
    void release(const Driver& driver, const Allocator& allocator) {
        for (int32_t i = 0; i < stretches_; ++i) {
            if (graphs_[i].executable != nullptr) driver.graph_exec_destroy(graphs_[i].executable);
            if (graphs_[i].graph != nullptr) driver.graph_destroy(graphs_[i].graph);
        }
        dims_on_device_.free(driver);
        allocator.deallocate(memory_, bytes_);
        memory_ = nullptr;
        entry_ = nullptr;
        used_ = 0;
        stretches_ = 0;
        built_ = false;
        checked_ = false;
        decides_ = false;
    }

  private:
    struct Stretch {
        Graph graph = nullptr;
        GraphExec executable = nullptr;
    };

    const Entry* entry_ = nullptr;
    uint64_t used_ = 0;
    unsigned char* memory_ = nullptr;  // the four arrays
    size_t bytes_ = 0;
    int64_t* dims_ = nullptr;
    const void** pointers_ = nullptr;  // inputs, then outputs
    GraphNode* nodes_ = nullptr;
    Stretch* graphs_ = nullptr;
    int32_t stretches_ = 0;
    Stretch* stretch_ = nullptr;  // the present one
    int32_t first_ = 0;           // its first kernel
    int32_t position_ = 0;        // the next kernel
    Memory dims_on_device_;
    bool built_ = false;
    bool checked_ = false;
    bool decides_ = false;
};

}  // namespace cuda
}  // namespace LM_RUNTIME
}  // namespace lm
