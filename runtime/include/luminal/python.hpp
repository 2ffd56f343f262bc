// Libraries behind Python: arrays as lm_value, statuses as exceptions, contexts lent to whichever thread calls.
// Shared by luminal's own binding and by the module that an exported library carries. Needs pybind11.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "luminal/abi.h"
#include "luminal/dlpack.hpp"
#include "luminal/python_functions.hpp"
#include "luminal/recycled.hpp"
#include "luminal/text_arrays.hpp"

namespace luminal_python {

namespace py = pybind11;

/// What no other exception of Python is for: the machine lacks what the library needs, or a run failed. A RuntimeError.
struct LibraryError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Throws the Python exception that a status stands for.
[[noreturn]] inline void raise(std::int32_t status, const std::string& message) {
    switch (status) {
        case LM_INVALID_ARGUMENT: throw py::value_error(message);
        case LM_INDEX_OUT_OF_RANGE: throw py::index_error(message);
        case LM_OUT_OF_MEMORY: PyErr_SetString(PyExc_MemoryError, message.c_str()); break;
        case LM_BAD_WEIGHTS: PyErr_SetString(PyExc_OSError, message.c_str()); break;
        default: throw LibraryError(message);
    }
    throw py::error_already_set();
}

/// A type that numpy has by ml_dtypes alone: its name in the metadata, and there.
struct ExtensionType {
    std::int32_t code;
    const char* name;
    const char* in_ml_dtypes;
};

constexpr ExtensionType EXTENSION_TYPES[] = {
    {LM_BFLOAT16, "bfloat16", "bfloat16"},
    {LM_INT4, "int4", "int4"},
    {LM_UINT4, "uint4", "uint4"},
    {LM_INT2, "int2", "int2"},
    {LM_UINT2, "uint2", "uint2"},
    {LM_FLOAT8E4M3FN, "float8e4m3fn", "float8_e4m3fn"},
    {LM_FLOAT8E4M3FNUZ, "float8e4m3fnuz", "float8_e4m3fnuz"},
    {LM_FLOAT8E5M2, "float8e5m2", "float8_e5m2"},
    {LM_FLOAT8E5M2FNUZ, "float8e5m2fnuz", "float8_e5m2fnuz"},
    {LM_FLOAT8E8M0, "float8e8m0", "float8_e8m0fnu"},
    {LM_FLOAT4E2M1, "float4e2m1", "float4_e2m1fn"},
};

/// The enum lm_dtype of a numpy type; 0, which no library accepts, for any other.
inline std::int32_t dtype_code(const py::dtype& dtype) {
    if (dtype.byteorder() == '>') return 0;
    const std::int32_t code = dtype_code(dtype.kind(), dtype.itemsize());
    if (code != 0) return code;
    const std::string name = py::cast<std::string>(dtype.attr("name"));
    for (const ExtensionType& type : EXTENSION_TYPES) {
        if (name == type.in_ml_dtypes) return type.code;
    }
    return 0;
}

/// The numpy type of a name in the metadata.
inline py::dtype dtype_named(const std::string& name) {
    if (name == "text") return py::dtype::of<py::object>();
    for (const ExtensionType& type : EXTENSION_TYPES) {
        if (name == type.name) return py::dtype::from_args(py::module_::import("ml_dtypes").attr(type.in_ml_dtypes));
    }
    return py::dtype::from_args(py::str(name));
}

/// A C-contiguous, aligned array with the same elements: the array itself where it is one already.
inline py::array as_contiguous(const py::array& array) {
    constexpr int wanted = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
    if ((array.flags() & wanted) == wanted) return array;
    return py::module_::import("numpy").attr("require")(array, py::none(), "CA");
}

/// The lm_value of a contiguous array; points into the array, which must outlive it.
inline lm_value value_of(const py::array& array) {
    // numpy counts sizes in ssize_t, the ABI in int64_t: the same on every target with 64-bit pointers.
    static_assert(sizeof(py::ssize_t) == sizeof(std::int64_t), "a 64-bit target");
    lm_value value{};
    value.data = const_cast<void*>(array.data());
    value.dtype = dtype_code(array.dtype());
    value.rank = static_cast<std::int32_t>(array.ndim());
    value.shape = reinterpret_cast<const std::int64_t*>(array.shape());
    value.device = LM_CPU;
    return value;
}

/// Orders positional and named arguments as `names`; converts each to an array (lists and scalars too), but for arrays
/// on a GPU.
inline std::vector<py::object> bind(const std::vector<std::string>& names, const py::args& args,
                                    const py::kwargs& kwargs) {
    if (args.size() > names.size()) {
        throw py::type_error(std::to_string(names.size()) + " inputs are expected, but " + std::to_string(args.size()) +
                             " were given");
    }
    std::vector<py::object> arrays;
    for (std::size_t i = 0; i < names.size(); ++i) {
        const py::str name(names[i]);
        const bool named = kwargs.contains(name);
        if (named == (i < args.size())) {
            throw py::type_error("input \"" + names[i] + (named ? "\" is given twice" : "\" is missing"));
        }
        const py::object value = named ? py::object(kwargs[name]) : py::object(args[i]);
        arrays.push_back(gpu::holds(value) ? value : py::object(py::array::ensure(value)));
        if (!arrays.back()) throw py::type_error("input \"" + names[i] + "\" cannot be made a numpy array");
    }
    if (args.size() + kwargs.size() > names.size()) {
        for (const auto& item : kwargs) {
            const std::string name = py::cast<std::string>(item.first);
            if (std::find(names.begin(), names.end(), name) == names.end()) {
                throw py::type_error("there is no input \"" + name + "\"");
            }
        }
    }
    return arrays;
}

/// An open library. Any number of Python threads may call run() at once: each call borrows a context for its duration.
/// A model with states has one context, whose runs wait for each other: each finds what the last one left.
class Library {
  public:
    /// `weights`: the weights file, or none: the one beside the library. `threads`: 0 for one per CPU. `verify`,
    /// `other_weights`, `on_step`, `trace_path`: as in lm_options.
    Library(const Functions& functions, const std::optional<std::string>& weights, int threads, bool verify,
            bool other_weights, void (*on_step)(void*, std::int32_t) = nullptr, const char* trace_path = nullptr)
        : functions_(functions) {
        if (functions_.abi_version() != LM_ABI_VERSION) {
            throw LibraryError("the library has ABI version " + std::to_string(functions_.abi_version()) +
                               ", expected " + std::to_string(LM_ABI_VERSION) + "; compile the model again");
        }
        read_metadata();
        lm_options options{};
        options.size = sizeof(options);
        options.weights_path = weights ? weights->c_str() : nullptr;
        options.threads = threads;
        options.on_step = on_step;
        options.verify = verify ? 1 : 0;
        options.other_weights = other_weights ? 1 : 0;
        options.trace_path = trace_path;
        const std::int32_t status = functions_.open(&options, &library_);
        if (status != LM_OK) {
            const std::string message = error(library_, nullptr);
            functions_.close(library_);
            raise(status, message);
        }
    }

    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    ~Library() {
        for (lm_context* context : idle_) functions_.context_destroy(context);
        functions_.close(library_);
    }

    std::string metadata_json() const { return functions_.metadata_json(); }

    /// The inputs' names of an entry, in order.
    const std::vector<std::string>& input_names(std::size_t entry) const { return entries_.at(entry).inputs; }

    /// The outputs' names of an entry, in order.
    const std::vector<std::string>& output_names(std::size_t entry) const { return entries_.at(entry).outputs; }

    /// Runs an entry on arrays in the order of its inputs; returns new arrays in the order of its outputs: on the GPU
    /// where one of the inputs is, made by the library that made that one, and else numpy's.
    std::vector<py::object> run(std::size_t entry_index, const std::vector<py::object>& arrays) {
        const Entry& entry = entries_.at(entry_index);
        if (arrays.size() != entry.inputs.size()) {
            throw py::value_error("entry \"" + entry.name + "\" takes " + std::to_string(entry.inputs.size()) +
                                  " inputs, but " + std::to_string(arrays.size()) + " were given");
        }
        const auto index = static_cast<std::int32_t>(entry_index);
        const auto found = std::find_if(arrays.begin(), arrays.end(), gpu::holds);
        const std::optional<py::object> on_gpu = found == arrays.end() ? std::nullopt : std::optional(*found);
        const std::uintptr_t stream = on_gpu ? gpu::stream_of(*on_gpu) : 0;
        std::vector<py::array> held;
        std::deque<TextArray> texts;  // which do not move while it grows
        std::vector<gpu::Borrowed> borrowed;
        std::vector<lm_value> in;
        for (const py::object& array : arrays) {
            if (gpu::holds(array)) {
                borrowed.emplace_back(gpu::as_readable(array), stream);
                in.push_back(borrowed.back().value());
            } else if (holds_texts(py::array(array).dtype())) {
                in.push_back(texts.emplace_back(py::array(array), entry.inputs[in.size()]).value());
            } else {
                held.push_back(as_contiguous(py::array(array)));
                in.push_back(value_of(held.back()));
            }
        }
        const Lease context(*this);
        std::vector<py::object> outputs;
        std::vector<lm_value> out;
        std::map<std::size_t, const TextArray*> written;  // the outputs that are texts
        for (std::size_t i = 0; i < entry.outputs.size(); ++i) {
            std::vector<std::int64_t> shape(entry.output_ranks[i]);
            check(functions_.output_shape(context.get(), index, in.data(), static_cast<std::int32_t>(i), shape.data()),
                  context.get());
            if (on_gpu) {
                outputs.push_back(gpu::empty_like(*on_gpu, shape, entry.output_types[i].attr("name")));
                borrowed.emplace_back(outputs.back(), stream);
                out.push_back(borrowed.back().value());
            } else if (holds_texts(entry.output_types[i])) {
                outputs.push_back(py::none());
                out.push_back(texts.emplace_back(shape).value());
                written[i] = &texts.back();
            } else {
                outputs.push_back(results_.array(entry.output_types[i], shape));
                out.push_back(value_of(outputs.back()));
            }
        }
        std::int32_t status = LM_OK;
        {
            const py::gil_scoped_release released;
            status = functions_.run(context.get(), index, in.data(), out.data(), reinterpret_cast<void*>(stream));
        }
        check(status, context.get());
        for (const auto& [i, array] : written) outputs[i] = array->array();
        for (std::size_t i = 0; measures_ && i < entry.outputs.size(); ++i) {
            std::vector<std::int64_t> shape(entry.output_ranks[i]);
            check(functions_.output_shape(context.get(), index, nullptr, static_cast<std::int32_t>(i), shape.data()),
                  context.get());
            outputs[i] = first_elements(outputs[i], shape);
        }
        return outputs;
    }

    /// All states are again as before the first run.
    void reset() {
        const Lease context(*this);
        check(functions_.reset(context.get()), context.get());
    }

    /// Copies of all states that this rank has, by name.
    py::dict state() {
        const Lease context(*this);
        py::dict result;
        for (std::size_t number = 0; number < states_.size(); ++number) {
            py::array array(states_[number].type, states_[number].shape);
            const lm_value value = value_of(array);
            const std::int32_t status = functions_.get_state(context.get(), static_cast<std::int32_t>(number), &value);
            if (status == LM_OTHER_STAGE) continue;
            check(status, context.get());
            result[py::str(states_[number].name)] = array;
        }
        return result;
    }

    /// The next run finds `array` in the state of that name, whose type and shape it must have. Nothing happens where
    /// another rank has the state, which is told the same.
    void set_state(const std::string& name, const py::array& array) {
        const auto named = [&](const State& state) { return state.name == name; };
        const auto found = std::find_if(states_.begin(), states_.end(), named);
        if (found == states_.end()) throw py::value_error("no state is named \"" + name + "\"");
        const Lease context(*this);
        const py::array held = as_contiguous(array);
        const lm_value value = value_of(held);
        const std::int32_t number = static_cast<std::int32_t>(found - states_.begin());
        const std::int32_t status = functions_.set_state(context.get(), number, &value);
        if (status != LM_OTHER_STAGE) check(status, context.get());
    }

    /// Writes all states to a file or reads them from it.
    void with_file(StatesFile function, const std::string& path) {
        const Lease context(*this);
        char message[512] = "";
        const std::int32_t status = function(context.get(), path.c_str(), message, sizeof message);
        if (status != LM_OK) throw py::value_error(message);
    }

  private:
    /// The array of that shape whose elements are the first ones of `array`.
    static py::object first_elements(const py::object& array, const std::vector<std::int64_t>& shape) {
        std::int64_t count = 1;
        for (const std::int64_t size : shape) count *= size;
        const py::object flat = array.attr("reshape")(-1);
        return flat[py::slice(0, count, 1)].attr("reshape")(py::cast(shape));
    }

    struct State {
        std::string name;
        py::dtype type;
        std::vector<std::int64_t> shape;
    };

    struct Entry {
        std::string name;
        std::vector<std::string> inputs;
        std::vector<std::string> outputs;
        std::vector<py::dtype> output_types;
        std::vector<std::size_t> output_ranks;
    };

    /// A context for the duration of one call: an idle one, or a new one if all are in use; the only one, once it is
    /// idle, of a model with states.
    class Lease {
      public:
        explicit Lease(Library& library) : library_(library), context_(library.borrow()) {}
        ~Lease() { library_.give_back(context_); }
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;
        lm_context* get() const { return context_; }

      private:
        Library& library_;
        lm_context* context_;
    };

    lm_context* borrow() {
        lm_context* context = nullptr;
        {
            const py::gil_scoped_release released;  // who has the only context may need it to give that back
            std::unique_lock<std::mutex> lock(mutex_);
            if (!states_.empty()) returned_.wait(lock, [this] { return !lent_; });
            lent_ = true;
            if (!idle_.empty()) {
                context = idle_.back();
                idle_.pop_back();
            }
        }
        if (context != nullptr) return context;
        const std::int32_t status = functions_.context_create(library_, &context);
        if (status != LM_OK) {
            give_back(nullptr);
            raise(status, error(library_, nullptr));
        }
        return context;
    }

    void give_back(lm_context* context) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (context != nullptr) idle_.push_back(context);
        lent_ = false;
        returned_.notify_one();
    }

    void check(std::int32_t status, const lm_context* context) const {
        if (status != LM_OK) raise(status, error(nullptr, context));
    }

    std::string error(const lm_library* library, const lm_context* context) const {
        std::string text(functions_.last_error(library, context, nullptr, 0) + 1, '\0');
        functions_.last_error(library, context, text.data(), text.size());
        text.resize(text.find('\0'));
        return text;
    }

    void read_metadata() {
        const py::object metadata = py::module_::import("json").attr("loads")(functions_.metadata_json());
        for (const py::handle row : metadata["dims"]) measures_ = measures_ || row.contains("measured");
        std::size_t most = 0;  // outputs of an entry
        for (const py::handle row : metadata["entries"]) {
            Entry entry;
            entry.name = py::cast<std::string>(row["name"]);
            for (const py::handle input : row["inputs"]) entry.inputs.push_back(py::cast<std::string>(input["name"]));
            for (const py::handle output : row["outputs"]) {
                entry.outputs.push_back(py::cast<std::string>(output["name"]));
                entry.output_types.push_back(dtype_named(py::cast<std::string>(output["dtype"])));
                entry.output_ranks.push_back(py::len(output["shape"]));
            }
            most = std::max(most, entry.outputs.size());
            entries_.push_back(std::move(entry));
        }
        results_.limit(most);
        for (const py::handle row : metadata["states"]) {
            states_.push_back({py::cast<std::string>(row["name"]), dtype_named(py::cast<std::string>(row["dtype"])),
                               py::cast<std::vector<std::int64_t>>(row["shape"])});
        }
    }

    Functions functions_;
    lm_library* library_ = nullptr;
    std::vector<Entry> entries_;
    std::vector<State> states_;
    Recycler results_;
    bool measures_ = false;  // sizes of outputs may be known after a run only
    std::mutex mutex_;
    std::condition_variable returned_;
    bool lent_ = false;  // the last context that was asked for is in use
    std::vector<lm_context*> idle_;
};

}  // namespace luminal_python
