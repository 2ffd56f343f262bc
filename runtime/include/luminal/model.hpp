// What a generated library says about itself: constant tables, which the rest of the runtime reads.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "luminal/abi.h"
#include "luminal/namespace.hpp"

/// Where the description of a model lies in its library: a section of its own, in which tools find it without running
/// anything. A checksum of 8 hexadecimal digits stands behind the end of the text.
#ifdef __APPLE__
#define LM_DESCRIPTION __attribute__((used, section("__TEXT,__luminal")))
#else
#define LM_DESCRIPTION __attribute__((used, section(".luminal")))
#endif

namespace lm {
inline namespace LM_RUNTIME {

class Context;

/// A constant array of any length.
template <class T>
struct Span {
    const T* data = nullptr;
    int32_t size = 0;

    constexpr Span() = default;
    template <size_t N>
    constexpr Span(const T (&array)[N]) : data(array), size(static_cast<int32_t>(N)) {}

    constexpr const T& operator[](int32_t i) const { return data[i]; }
    constexpr const T* begin() const { return data; }
    constexpr const T* end() const { return data + size; }
};

/// A symbolic dimension and its bounds, both included. Its index in Model::dims is its index in every `dims` array.
struct Dim {
    const char* name;
    int64_t lower;
    int64_t upper;
    bool measured = false;  // a run computes it; until then it is at its upper bound
};

/// The size of one axis: a number, a dim, or an expression of dims.
struct Axis {
    const char* text;                                        // as messages show it: "128", "batch", "2*sequence"
    int64_t size = -1;                                       // a number, or -1
    int32_t dim = -1;                                        // index of a dim, or -1
    int64_t (*expression)(const int64_t* dims) = nullptr;    // otherwise
};

constexpr Axis fixed(const char* text, int64_t size) { return {text, size, -1, nullptr}; }
constexpr Axis symbol(const char* text, int32_t dim) { return {text, -1, dim, nullptr}; }
constexpr Axis computed(const char* text, int64_t (*expression)(const int64_t* dims)) {
    return {text, -1, -1, expression};
}

inline int64_t axis_size(const Axis& axis, const int64_t* dims) {
    return axis.size >= 0 ? axis.size : axis.dim >= 0 ? dims[axis.dim] : axis.expression(dims);
}

/// An input or output: contiguous, row-major.
struct Tensor {
    const char* name;
    int32_t dtype;  // enum lm_dtype
    Span<Axis> axes;
};

/// A dim that occurs in expressions alone: what the size of one axis of an input makes of it.
struct Solution {
    int32_t dim;
    int32_t input;
    int32_t axis;
    int64_t (*value)(int64_t size, const int64_t* dims);
};

/// One way to call the model. Each dim that the entry uses occurs by itself on some axis of its inputs, or is solved.
struct Entry {
    const char* name;
    Span<Tensor> inputs;
    Span<Tensor> outputs;
    int64_t arena_bytes;  // at the bounds of the dims
    void (*run)(Context& context, const int64_t* dims, const void* const* in, void* const* out);
    Span<Solution> solved = {};  // each over dims that are known before it
};

/// A constant that must hold finite numbers alone: kernels leave out products of them with zeros.
struct Finite {
    const char* name;
    int32_t dtype;   // enum lm_dtype
    int64_t offset;  // into the payload of the weights file, in bytes
    int64_t count;   // elements
    int32_t stage = 0;  // of a pipeline, whose ranks have it
};

/// A value that a context keeps from one run to the next. Its axes are numbers.
struct State {
    Tensor tensor;
    int64_t offset;   // from the start of the states of a context, in bytes
    int64_t bytes;
    int64_t initial;  // its first value: an offset into the payload of the weights file, or -1: zeros
    int32_t stage = -1;  // of a pipeline, whose ranks have it; -1: all have
};

struct Model {
    const char* name;
    const char* metadata_json;
    const char* (*missing_feature)();  // the instruction set that this machine lacks, or null: it has all
    uint8_t source_hash[32];           // the same 32 bytes as in the weights file
    uint8_t content_id[16];            // that of the weights that the model was compiled with
    int64_t weights_bytes;             // payload of the weights file; 0: there is none
    Span<Dim> dims;
    Span<Entry> entries;
    Span<const char*> steps;  // the origin of each step, by its number: "Gather '/embeddings/Gather' (model.py:12)"
    Span<Finite> finite = {};
    Span<State> states = {};
    int64_t state_bytes = 0;       // of all states that a rank has, at the most
    int64_t portion_bytes = 0;     // that a thread needs for what a share has of buffers
    int32_t portions_at_once = 0;  // threads at most that need them
    Span<lm_text> texts = {};      // whose numbers are among the constants
    const void* code = nullptr;    // the kernels, where a device runs them: cuda::Code or metal::Shaders
    int32_t ranks = 1;             // processes that run the model together, of which each has its own weights
    int32_t tickets = 0;           // exchanges between them that may be under way at once
    int32_t stages = 1;            // of a pipeline: a rank has the weights of one,
    int32_t stage_stride = 1;      // those so many ranks behind it of the next,
    const int64_t* stage_bytes = nullptr;  // in files with payloads of these sizes
    const int64_t* stage_states = nullptr;  // and of its states these bytes

    constexpr int32_t stage_of(int32_t rank) const { return rank / stage_stride % stages; }

    /// The payload of the weights file of a rank.
    constexpr int64_t weights_of(int32_t rank) const {
        return stage_bytes != nullptr ? stage_bytes[stage_of(rank)] : weights_bytes;
    }

    /// Bytes of the states of a rank.
    constexpr int64_t states_of(int32_t rank) const {
        return stage_states != nullptr ? stage_states[stage_of(rank)] : state_bytes;
    }

    constexpr bool has(const State& state, int32_t rank) const {
        return state.stage < 0 || state.stage == stage_of(rank);
    }
};

}  // namespace LM_RUNTIME
}  // namespace lm
