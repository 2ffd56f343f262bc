// Checks what a caller hands in: types, ranks, sizes, bounds, strides, null pointers. Every refusal says which value it
// is about, what was expected and what was found.
#pragma once

#include <stdint.h>

#include "luminal/message.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {

inline constexpr int64_t UNBOUND = -1;

struct ElementType {
    const char* name;
    int32_t bytes;
    int32_t alignment;
};

/// The row of an enum lm_dtype, or null.
inline const ElementType* element_type(int32_t dtype) {
    static constexpr ElementType types[] = {
        {"bool", 1, 1},             {"int8", 1, 1},             {"int16", 2, 2},            {"int32", 4, 4},
        {"int64", 8, 8},            {"uint8", 1, 1},            {"uint16", 2, 2},           {"uint32", 4, 4},
        {"uint64", 8, 8},           {"float16", 2, 2},          {"bfloat16", 2, 2},         {"float32", 4, 4},
        {"float64", 8, 8},          {"complex64", 8, 4},        {"complex128", 16, 8},      {"int4", 1, 1},
        {"uint4", 1, 1},            {"int2", 1, 1},             {"uint2", 1, 1},            {"float8e4m3fn", 1, 1},
        {"float8e4m3fnuz", 1, 1},   {"float8e5m2", 1, 1},       {"float8e5m2fnuz", 1, 1},   {"float8e8m0", 1, 1},
        {"float4e2m1", 1, 1},       {"text", sizeof(lm_text), alignof(lm_text)},
    };
    static_assert(sizeof(types) / sizeof(types[0]) == LM_TEXT, "one row per type, in the order of the numbers");
    return dtype >= LM_BOOL && dtype <= LM_TEXT ? &types[dtype - LM_BOOL] : nullptr;
}

inline const char* element_type_name(int32_t dtype) {
    const ElementType* type = element_type(dtype);
    return type != nullptr ? type->name : "unknown";
}

/// The bytes of a value whose type and shape were checked.
inline size_t value_bytes(const lm_value& value) {
    size_t bytes = static_cast<size_t>(element_type(value.dtype)->bytes);
    for (int32_t axis = 0; axis < value.rank; ++axis) bytes *= static_cast<size_t>(value.shape[axis]);
    return bytes;
}

/// The shape that a tensor should have, as text: "[batch, 128]".
inline void append_axes(const Tensor& tensor, Message& message) {
    message.append("[");
    for (int32_t i = 0; i < tensor.axes.size; ++i) message.append("%s%s", i > 0 ? ", " : "", tensor.axes[i].text);
    message.append("]");
}

/// Whether a value has the rank of its tensor and sizes at all. `role` is "input" or "output".
inline int32_t check_rank(const char* role, const Tensor& tensor, const lm_value& value, Message& message) {
    if (value.rank != tensor.axes.size) {
        message.set("%s \"%s\" has rank %d, expected rank %d: ", role, tensor.name, value.rank, tensor.axes.size);
        append_axes(tensor, message);
        return LM_INVALID_ARGUMENT;
    }
    if (value.rank > 0 && value.shape == nullptr) {
        message.set("%s \"%s\" has no shape (a null pointer)", role, tensor.name);
        return LM_INVALID_ARGUMENT;
    }
    for (int32_t axis = 0; axis < value.rank; ++axis) {
        if (value.shape[axis] < 0) {
            message.set("%s \"%s\", axis %d, has a negative size, %lld", role, tensor.name, axis,
                        static_cast<long long>(value.shape[axis]));
            return LM_INVALID_ARGUMENT;
        }
    }
    return LM_OK;
}

inline bool is_contiguous(const lm_value& value) {
    if (value.strides == nullptr) return true;
    bool contiguous = true;
    int64_t stride = 1;
    for (int32_t axis = value.rank - 1; axis >= 0; --axis) {
        if (value.shape[axis] == 0) return true;  // no element, no address
        if (value.shape[axis] != 1 && value.strides[axis] != stride) contiguous = false;
        stride *= value.shape[axis];
    }
    return contiguous;
}

/// Where a library takes values: in host memory, and in that of its own device where it has one. `alignment` is what
/// its kernels expect of values on the device, in bytes.
struct Storage {
    int32_t device = LM_CPU;
    int32_t device_id = 0;
    const char* name = "the CPU";
    int32_t alignment = 1;
};

/// Whether the memory of a value is what kernels may read or write. Its shape has been checked.
inline int32_t check_storage(const char* role, const Tensor& tensor, const lm_value& value, const Storage& storage,
                             Message& message) {
    if (value.dtype != tensor.dtype) {
        message.set("%s \"%s\" has element type %s", role, tensor.name, element_type_name(value.dtype));
        if (element_type(value.dtype) == nullptr) message.append(" (%d)", value.dtype);
        message.append(", expected %s", element_type_name(tensor.dtype));
        return LM_INVALID_ARGUMENT;
    }
    if (value.device != LM_CPU && value.device != storage.device) {
        message.set("%s \"%s\" lies on device %d, expected the CPU (%d)", role, tensor.name, value.device, LM_CPU);
        if (storage.device != LM_CPU) message.append(" or %s (%d)", storage.name, storage.device);
        return LM_INVALID_ARGUMENT;
    }
    if (value.device != LM_CPU && value.device_id != storage.device_id) {
        message.set("%s \"%s\" lies on number %d of %s, expected number %d, for which the library was opened", role,
                    tensor.name, value.device_id, storage.name, storage.device_id);
        return LM_INVALID_ARGUMENT;
    }
    if (!is_contiguous(value)) {
        message.set("%s \"%s\" is not contiguous: its strides must be those of a row-major tensor", role, tensor.name);
        return LM_INVALID_ARGUMENT;
    }
    bool empty = false;
    for (int32_t axis = 0; axis < value.rank; ++axis) empty = empty || value.shape[axis] == 0;
    if (value.data == nullptr && !empty) {
        message.set("%s \"%s\" has no data (a null pointer)", role, tensor.name);
        return LM_INVALID_ARGUMENT;
    }
    const int32_t element = element_type(tensor.dtype)->alignment;
    const int32_t alignment = value.device == LM_CPU || storage.alignment < element ? element : storage.alignment;
    if (reinterpret_cast<uintptr_t>(value.data) % static_cast<uintptr_t>(alignment) != 0) {
        message.set("%s \"%s\" is misaligned: the address of its data must be a multiple of %d", role, tensor.name,
                    alignment);
        return LM_INVALID_ARGUMENT;
    }
    return LM_OK;
}

/// Names the place where a dim was bound, for a message about a place that disagrees.
inline void append_binding(const Entry& entry, int32_t dim, Message& message) {
    for (const Tensor& tensor : entry.inputs) {
        for (int32_t axis = 0; axis < tensor.axes.size; ++axis) {
            if (tensor.axes[axis].dim == dim) {
                message.append(" (from input \"%s\", axis %d)", tensor.name, axis);
                return;
            }
        }
    }
}

/// Binds the dims of an entry from the shapes of its inputs: the first occurrence of a dim binds it, within its bounds,
/// later ones must agree; those that occur in expressions alone are solved; those that runs measure are at their upper
/// bounds. Then compares the sizes that are numbers or
/// expressions. Data is not looked at.
inline int32_t bind_dims(const Model& model, const Entry& entry, const lm_value* in, int64_t* dims, Message& message) {
    for (int32_t dim = 0; dim < model.dims.size; ++dim) dims[dim] = model.dims[dim].measured ? model.dims[dim].upper : UNBOUND;
    for (int32_t i = 0; i < entry.inputs.size; ++i) {
        const Tensor& tensor = entry.inputs[i];
        const int32_t status = check_rank("input", tensor, in[i], message);
        if (status != LM_OK) return status;
        for (int32_t axis = 0; axis < tensor.axes.size; ++axis) {
            const int32_t dim = tensor.axes[axis].dim;
            if (dim < 0) continue;
            const int64_t size = in[i].shape[axis];
            const Dim& bounds = model.dims[dim];
            if (dims[dim] == UNBOUND && (size < bounds.lower || size > bounds.upper)) {
                message.set("input \"%s\", axis %d, has size %lld, outside the bounds %lld..%lld of \"%s\"",
                            tensor.name, axis, static_cast<long long>(size), static_cast<long long>(bounds.lower),
                            static_cast<long long>(bounds.upper), bounds.name);
                return LM_INVALID_ARGUMENT;
            }
            if (dims[dim] != UNBOUND && dims[dim] != size) {
                message.set("input \"%s\", axis %d, has size %lld, but \"%s\" is %lld", tensor.name, axis,
                            static_cast<long long>(size), bounds.name, static_cast<long long>(dims[dim]));
                append_binding(entry, dim, message);
                return LM_INVALID_ARGUMENT;
            }
            dims[dim] = size;
        }
    }
    for (const Solution& solution : entry.solved) {
        const int64_t size = in[solution.input].shape[solution.axis];
        const int64_t value = solution.value(size, dims);
        const Dim& bounds = model.dims[solution.dim];
        if (value < bounds.lower || value > bounds.upper) {
            const Tensor& tensor = entry.inputs[solution.input];
            message.set("input \"%s\", axis %d, has size %lld, for which \"%s\" would be outside its bounds %lld..%lld: "
                        "the shape is ",
                        tensor.name, solution.axis, static_cast<long long>(size), bounds.name,
                        static_cast<long long>(bounds.lower), static_cast<long long>(bounds.upper));
            append_axes(tensor, message);
            return LM_INVALID_ARGUMENT;
        }
        dims[solution.dim] = value;
    }
    for (int32_t i = 0; i < entry.inputs.size; ++i) {
        const Tensor& tensor = entry.inputs[i];
        for (int32_t axis = 0; axis < tensor.axes.size; ++axis) {
            const int64_t expected = axis_size(tensor.axes[axis], dims);
            if (in[i].shape[axis] != expected) {
                message.set("input \"%s\", axis %d, has size %lld, expected %lld: the shape is ", tensor.name, axis,
                            static_cast<long long>(in[i].shape[axis]), static_cast<long long>(expected));
                append_axes(tensor, message);
                return LM_INVALID_ARGUMENT;
            }
        }
    }
    return LM_OK;
}

/// Whether an output has the sizes that follow from the dims.
inline int32_t check_output_shape(const char* role, const Tensor& tensor, const lm_value& value, const int64_t* dims,
                                  Message& message) {
    const int32_t status = check_rank(role, tensor, value, message);
    if (status != LM_OK) return status;
    for (int32_t axis = 0; axis < tensor.axes.size; ++axis) {
        const int64_t expected = axis_size(tensor.axes[axis], dims);
        if (value.shape[axis] != expected) {
            message.set("%s \"%s\", axis %d, has size %lld, expected %lld: the shape is ", role, tensor.name, axis,
                        static_cast<long long>(value.shape[axis]), static_cast<long long>(expected));
            append_axes(tensor, message);
            return LM_INVALID_ARGUMENT;
        }
    }
    return LM_OK;
}

}  // namespace LM_RUNTIME
}  // namespace lm
