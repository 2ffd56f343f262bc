// luminal.runtime._native: opens a compiled library by its path and runs it on arrays.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "luminal/python.hpp"

namespace py = pybind11;

namespace {

[[noreturn]] void raise_os_error(const std::string& message) {
    PyErr_SetString(PyExc_OSError, message.c_str());
    throw py::error_already_set();
}

/// A shared object, loaded with its symbols kept to itself.
class SharedObject {
  public:
    explicit SharedObject(const std::string& path) : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (handle_ == nullptr) raise_os_error("cannot load the library \"" + path + "\": " + dlerror());
    }
    SharedObject(const SharedObject&) = delete;
    SharedObject& operator=(const SharedObject&) = delete;
    ~SharedObject() { dlclose(handle_); }

    template <class Function>
    void find(const std::string& symbol, Function& function) const {
        void* address = dlsym(handle_, symbol.c_str());
        if (address == nullptr) {
            raise_os_error("the library \"" + path_ + "\" does not export " + symbol +
                           ": it is no library of luminal, or has another name");
        }
        function = reinterpret_cast<Function>(address);
    }

  private:
    std::string path_;
    void* handle_;
};

luminal_python::Functions find_functions(const SharedObject& object, const std::string& name) {
    luminal_python::Functions functions{};
    object.find(name + "_abi_version", functions.abi_version);
    object.find(name + "_metadata_json", functions.metadata_json);
    object.find(name + "_open", functions.open);
    object.find(name + "_close", functions.close);
    object.find(name + "_context_create", functions.context_create);
    object.find(name + "_context_destroy", functions.context_destroy);
    object.find(name + "_output_shape", functions.output_shape);
    object.find(name + "_run", functions.run);
    object.find(name + "_reset", functions.reset);
    object.find(name + "_get_state", functions.get_state);
    object.find(name + "_set_state", functions.set_state);
    object.find(name + "_last_error", functions.last_error);
    return functions;
}

/// A step of a run (-1: the end of the last one), and when it began, in nanoseconds of a steady clock.
using Mark = std::pair<std::int32_t, std::int64_t>;

/// Of the run on this thread, where its library is profiled.
thread_local std::vector<Mark> marks;

void mark_step(void*, std::int32_t step) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    marks.emplace_back(step, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

/// A library together with the shared object that holds its code.
class LoadedLibrary {
  public:
    LoadedLibrary(const std::string& path, const std::string& name, const std::optional<std::string>& weights,
                  int threads, bool profile, bool verify, bool other_weights,
                  const std::optional<std::string>& trace)
        : object_(path),
          library_(find_functions(object_, name), weights, threads, verify, other_weights,
                   profile ? mark_step : nullptr, trace ? trace->c_str() : nullptr) {}

    std::string metadata_json() const { return library_.metadata_json(); }

    std::vector<py::object> run(std::size_t entry, const std::vector<py::object>& inputs) {
        return library_.run(entry, inputs);
    }

    std::pair<std::vector<py::object>, std::vector<Mark>> profile(std::size_t entry,
                                                                  const std::vector<py::object>& inputs) {
        marks.clear();
        std::vector<py::object> outputs = library_.run(entry, inputs);
        return {std::move(outputs), marks};
    }

    void reset() { library_.reset(); }
    py::dict state() { return library_.state(); }
    void set_state(const std::string& name, const py::array& array) { library_.set_state(name, array); }

  private:
    SharedObject object_;  // unloaded after library_ is closed
    luminal_python::Library library_;
};

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "Opens a compiled library by its path and runs it on arrays.";
    py::register_local_exception<luminal_python::LibraryError>(module, "LibraryError", PyExc_RuntimeError);
    py::class_<LoadedLibrary>(module, "Library")
        .def(py::init<const std::string&, const std::string&, const std::optional<std::string>&, int, bool, bool,
                      bool, const std::optional<std::string>&>(),
             py::arg("path"), py::arg("name"), py::arg("weights") = py::none(), py::arg("threads") = 0,
             py::arg("profile") = false, py::arg("verify") = false, py::arg("other_weights") = false,
             py::arg("trace") = py::none())
        .def("metadata_json", &LoadedLibrary::metadata_json)
        .def("run", &LoadedLibrary::run, py::arg("entry"), py::arg("inputs"))
        .def("profile", &LoadedLibrary::profile, py::arg("entry"), py::arg("inputs"))
        .def("reset", &LoadedLibrary::reset)
        .def("state", &LoadedLibrary::state)
        .def("set_state", &LoadedLibrary::set_state, py::arg("name"), py::arg("array"));
}
