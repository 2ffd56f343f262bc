// Arrays of texts behind Python: numpy's strings as lm_text and back. Needs pybind11.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "luminal/abi.h"

namespace luminal_python {

namespace py = pybind11;

/// Whether numpy keeps texts in arrays of that type: as objects, or by themselves.
inline bool holds_texts(const py::dtype& dtype) {
    const char kind = dtype.kind();
    return kind == 'O' || kind == 'U' || kind == 'T' || kind == 'S';
}

/// Elements that are texts, for a library to read or to write.
class TextArray {
  public:
    /// The texts of an array, which is the input `name`; throws where an element is none.
    TextArray(const py::array& array, const std::string& name)
        : objects_(array.attr("astype")(py::dtype::of<py::object>())) {
        for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) shape_.push_back(array.shape(axis));
        for (const py::handle element : objects_.attr("reshape")(-1)) texts_.push_back(text_of(element, name));
    }

    /// Empty texts.
    explicit TextArray(std::vector<std::int64_t> shape) : shape_(std::move(shape)) {
        std::size_t count = 1;
        for (const std::int64_t size : shape_) count *= static_cast<std::size_t>(size);
        texts_.resize(count);
    }

    /// Points into this array, which must outlive it.
    lm_value value() {
        lm_value value{};
        value.data = texts_.data();
        value.dtype = LM_TEXT;
        value.rank = static_cast<std::int32_t>(shape_.size());
        value.shape = shape_.data();
        value.device = LM_CPU;
        return value;
    }

    /// An array of Python's strings.
    py::object array() const {
        py::list elements;
        for (const lm_text& text : texts_) elements.append(py::str(text.data != nullptr ? text.data : "", text.size));
        const py::module_ numpy = py::module_::import("numpy");
        const py::object result = numpy.attr("empty")(elements.size(), py::dtype::of<py::object>());
        result[py::slice(0, static_cast<py::ssize_t>(texts_.size()), 1)] = elements;
        return result.attr("reshape")(py::cast(shape_));
    }

  private:
    static lm_text text_of(const py::handle& element, const std::string& name) {
        if (PyBytes_Check(element.ptr())) {
            return {PyBytes_AS_STRING(element.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(element.ptr()))};
        }
        if (!PyUnicode_Check(element.ptr())) {
            throw py::value_error("input \"" + name + "\" holds objects: expected numbers or texts, found " +
                                  py::cast<std::string>(py::type::of(element).attr("__name__")));
        }
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(element.ptr(), &size);  // the string keeps it
        if (data == nullptr) throw py::error_already_set();
        return {data, static_cast<std::size_t>(size)};
    }

    py::object objects_;  // keeps the strings
    std::vector<std::int64_t> shape_;
    std::vector<lm_text> texts_;
};

}  // namespace luminal_python
