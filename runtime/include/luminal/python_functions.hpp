// What a library's binding to Python calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "luminal/abi.h"

namespace luminal_python {

/// The exported functions of one library, without the model's name.
struct Functions {
    int32_t (*abi_version)();
    const char* (*metadata_json)();
    int32_t (*open)(const lm_options*, lm_library**);
    int32_t (*close)(lm_library*);
    int32_t (*context_create)(lm_library*, lm_context**);
    void (*context_destroy)(lm_context*);
    int32_t (*output_shape)(lm_context*, int32_t, const lm_value*, int32_t, int64_t*);
    int32_t (*run)(lm_context*, int32_t, const lm_value*, lm_value*, void*);
    int32_t (*reset)(lm_context*);
    int32_t (*get_state)(lm_context*, int32_t, const lm_value*);
    int32_t (*set_state)(lm_context*, int32_t, const lm_value*);
    std::size_t (*last_error)(const lm_library*, const lm_context*, char*, std::size_t);
};

/// A function of NAME_checkpoint.h: writes all states to the file at `path`, or reads them from it.
using StatesFile = int32_t (*)(lm_context*, const char* path, char* message, std::size_t size);

}  // namespace luminal_python
