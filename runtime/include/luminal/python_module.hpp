// The Python module of an exported model, from a table of what is its own: all else is the same for every model, and
// compiled once (compiled_once.hpp). Needs pybind11.
#pragma once

#include <Python.h>

#include <cstddef>

#include "luminal/compiled_once.hpp"
#include "luminal/python_functions.hpp"

namespace luminal_python {

/// What one model's module has of its own.
struct Model {
    const char* name;
    const char* description;
    Functions functions;
    const char* const* entries;  // names
    std::size_t entry_count;
    bool has_states;
    StatesFile save;  // null: its states have no files
    StatesFile load;
};

/// The module of `model`, which is never destroyed: its functions, and the class `Model`. Null where Python has been told
/// an error.
PyObject* make_module(const Model& model);

}  // namespace luminal_python

#ifndef LM_RUNTIME_ELSEWHERE

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "luminal/python.hpp"

namespace luminal_python {

/// A model with its weights; callable from several Python threads at once.
class Opened : public Library {
  public:
    Opened(const Model& model, const std::optional<std::string>& weights, int threads, bool verify)
        : Library(model.functions, weights, threads, verify, weights.has_value()) {}

    /// Runs an entry on arrays by position or by name; returns a dictionary of the outputs.
    py::dict call(std::size_t entry, const py::args& args, const py::kwargs& kwargs) {
        const std::vector<py::object> outputs = run(entry, bind(input_names(entry), args, kwargs));
        py::dict result;
        for (std::size_t i = 0; i < outputs.size(); ++i) result[py::str(output_names(entry)[i])] = outputs[i];
        return result;
    }
};

/// The model that a module's own functions use: opened at the first call, never closed.
class Shared {
  public:
    explicit Shared(const Model& model) : model_(model) {}

    Opened& get() {
        const auto open = [this] { return std::make_unique<Opened>(model_, std::nullopt, 0, false); };
        return *opened_.call_once_and_store_result(open).get_stored();
    }

  private:
    const Model& model_;
    py::gil_safe_call_once_and_store<std::unique_ptr<Opened>> opened_;
};

inline void define(py::module_& module, const Model& model) {
    // Local to the module: other models' classes have the same name, by which clang's library tells types apart.
    py::class_<Opened> type(module, "Model", "The model with other weights or another number of threads.",
                            py::module_local());
    type.def(py::init([&model](const std::optional<std::string>& weights, int threads, bool verify) {
                 return std::make_unique<Opened>(model, weights, threads, verify);
             }),
             py::arg("weights") = py::none(), py::arg("threads") = 0, py::arg("verify") = false);
    Shared* shared = new Shared(model);
    const auto add = [&](const char* method, const char* function, std::size_t entry) {
        type.def(method, [entry](Opened& opened, const py::args& args, const py::kwargs& kwargs) {
            return opened.call(entry, args, kwargs);
        });
        module.def(function, [shared, entry](const py::args& args, const py::kwargs& kwargs) {
            return shared->get().call(entry, args, kwargs);
        });
    };
    for (std::size_t entry = 0; entry < model.entry_count; ++entry) add(model.entries[entry], model.entries[entry], entry);
    add("__call__", "run", 0);
    if (model.has_states) {
        type.def("reset", &Opened::reset);
        type.def("state", &Opened::state);
        type.def("set_state", &Opened::set_state, py::arg("name"), py::arg("array"));
    }
    const auto add_file = [&](const char* method, StatesFile function) {
        if (function == nullptr) return;
        type.def(method, [function](Opened& opened, const std::string& path) { opened.with_file(function, path); });
    };
    add_file("save", model.save);
    add_file("load", model.load);
    module.def("metadata_json", [&model] { return model.functions.metadata_json(); });
}

LM_RUNTIME_FUNCTION PyObject* make_module(const Model& model) {
    PYBIND11_CHECK_PYTHON_VERSION
    try {
        PYBIND11_ENSURE_INTERNALS_READY
        auto module = py::module_::create_extension_module(model.name, model.description, new PyModuleDef());
        define(module, model);
        return module.release().ptr();
    }
    PYBIND11_CATCH_INIT_EXCEPTIONS
    return nullptr;
}

}  // namespace luminal_python

#endif  // LM_RUNTIME_ELSEWHERE
