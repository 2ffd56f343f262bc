// Arrays on a GPU behind Python: used where they lie, as DLPack tells it, on the stream of whoever made them. What a run
// gives is made by the library that made what it was given. Needs pybind11.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "luminal/abi.h"

namespace luminal_python {

namespace py = pybind11;

/// The enum lm_dtype of a kind of numpy's, 'B' for bfloat16, of that many bytes; 0, which no library accepts, for others.
inline std::int32_t dtype_code(char kind, std::int64_t bytes) {
    switch (kind) {
        case 'b': return bytes == 1 ? LM_BOOL : 0;
        case 'i': return bytes == 1 ? LM_INT8 : bytes == 2 ? LM_INT16 : bytes == 4 ? LM_INT32 : LM_INT64;
        case 'u': return bytes == 1 ? LM_UINT8 : bytes == 2 ? LM_UINT16 : bytes == 4 ? LM_UINT32 : LM_UINT64;
        case 'f': return bytes == 2 ? LM_FLOAT16 : bytes == 4 ? LM_FLOAT32 : bytes == 8 ? LM_FLOAT64 : 0;
        case 'B': return bytes == 2 ? LM_BFLOAT16 : 0;
        case 'c': return bytes == 8 ? LM_COMPLEX64 : bytes == 16 ? LM_COMPLEX128 : 0;
        default: return 0;
    }
}

namespace gpu {

constexpr std::uintptr_t DEFAULT_STREAM = 1;  // DLPack's number for it, and the driver's: CU_STREAM_LEGACY
constexpr std::uintptr_t ALIGNMENT = 16;      // bytes: what lm_value asks of data on a GPU

/// The enum lm_dtype of DLPack's code of a type, of that many bits; 0, which no library accepts, for others.
inline std::int32_t dtype_code_of_dlpack(std::uint8_t code, std::uint8_t bits) {
    constexpr char kinds[] = "iuf?Bcb";
    if (code < sizeof(kinds) - 1) return dtype_code(kinds[code], bits / 8);
    switch (code) {
        case 10: return LM_FLOAT8E4M3FN;
        case 11: return LM_FLOAT8E4M3FNUZ;
        case 12: return LM_FLOAT8E5M2;
        case 13: return LM_FLOAT8E5M2FNUZ;
        case 14: return LM_FLOAT8E8M0;
        default: return 0;
    }
}

/// DLTensor of dlpack.h, with which what a capsule "dltensor" holds begins.
struct Tensor {
    void* data;
    std::int32_t device_type;
    std::int32_t device_id;
    std::int32_t rank;
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

/// Whether a value of Python is an array in the memory of an NVIDIA GPU.
inline bool holds(const py::handle& value) {
    if (py::isinstance<py::array>(value) || !py::hasattr(value, "__dlpack_device__")) return false;
    return py::cast<std::pair<int, int>>(value.attr("__dlpack_device__")()).first == LM_CUDA;
}

/// PyTorch, where it made the array; else nothing.
inline std::optional<py::object> torch_of(const py::object& array) {
    const py::object torch = py::module_::import("sys").attr("modules").attr("get")("torch");
    if (torch.is_none() || !py::isinstance(array, torch.attr("Tensor"))) return std::nullopt;
    return torch;
}

/// The stream on which the caller's work is: PyTorch says so; elsewhere the default stream, which waits for all others.
inline std::uintptr_t stream_of(const py::object& array) {
    const std::optional<py::object> torch = torch_of(array);
    if (!torch) return DEFAULT_STREAM;
    const py::object stream = torch->attr("cuda").attr("current_stream")(array.attr("device"));
    const std::uintptr_t handle = py::cast<std::uintptr_t>(stream.attr("cuda_stream"));
    return handle != 0 ? handle : DEFAULT_STREAM;
}

/// The array itself, or a copy that kernels can read where PyTorch made it and it is not contiguous or not aligned.
inline py::object as_readable(const py::object& array) {
    if (!torch_of(array)) return array;
    const py::object tensor = array.attr("detach")().attr("contiguous")();
    const bool aligned = py::cast<std::uintptr_t>(tensor.attr("data_ptr")()) % ALIGNMENT == 0;
    return aligned ? tensor : tensor.attr("clone")();
}

/// A new array beside `array`, by PyTorch or by the namespace that the array API standard has for such arrays; `type` is
/// the name of its elements' type.
inline py::object empty_like(const py::object& array, const std::vector<std::int64_t>& shape, const py::object& type) {
    const std::optional<py::object> torch = torch_of(array);
    if (!torch && !py::hasattr(array, "__array_namespace__")) {
        throw py::type_error("arrays on a GPU must be PyTorch's or follow the array API standard, found " +
                             py::cast<std::string>(py::type::of(array).attr("__name__")));
    }
    const py::object library = torch ? *torch : array.attr("__array_namespace__")();
    return library.attr("empty")(py::tuple(py::cast(shape)), py::arg("dtype") = library.attr(type),
                                 py::arg("device") = array.attr("device"));
}

/// An array for the duration of a call on a stream, which waits for the work that the array is waiting for.
class Borrowed {
  public:
    Borrowed(const py::object& array, std::uintptr_t stream)
        : array_(array), capsule_(array.attr("__dlpack__")(py::arg("stream") = stream)) {
        tensor_ = static_cast<const Tensor*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"));
        if (tensor_ == nullptr) throw py::error_already_set();
    }

    lm_value value() const {
        lm_value value{};
        value.data = static_cast<char*>(tensor_->data) + tensor_->byte_offset;
        value.dtype = tensor_->lanes == 1 ? dtype_code_of_dlpack(tensor_->code, tensor_->bits) : 0;
        value.rank = tensor_->rank;
        value.shape = tensor_->shape;
        value.strides = tensor_->strides;
        value.device = tensor_->device_type;
        value.device_id = tensor_->device_id;
        return value;
    }

  private:
    py::object array_;
    py::object capsule_;  // gives the tensor back when it is let go
    const Tensor* tensor_;
};

}  // namespace gpu
}  // namespace luminal_python
