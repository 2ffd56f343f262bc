// The exported C functions: LM_DEFINE_ABI(NAME, model), once in a library, defines NAME_open and its siblings.
//
// They stand on the classes Library and Context of a device, whose header comes first: exports.hpp for the CPU,
// cuda/exports.hpp for NVIDIA's GPUs. What they do is the same for every model.
#pragma once

#include "luminal/compiled_once.hpp"

namespace lm {
inline namespace LM_RUNTIME {

#ifdef LM_RUNTIME_ELSEWHERE

int32_t open_library(const Model& model, const lm_options* options, lm_library** handle);
int32_t close_library(lm_library* handle);
int32_t set_weights(lm_library* handle, const void* image, size_t bytes);
int32_t create_context(lm_library* handle, lm_context** context_handle);
void destroy_context(lm_context* handle);
int32_t workspace_size(lm_library* handle, int32_t entry, const int64_t* dims, size_t* bytes);
int32_t output_shape(lm_context* handle, int32_t entry, const lm_value* in, int32_t output, int64_t* shape);
int32_t run(lm_context* handle, int32_t entry, const lm_value* in, lm_value* out, void* stream);
int32_t reset(lm_context* handle);
int32_t get_state(lm_context* handle, int32_t state, const lm_value* value);
int32_t set_state(lm_context* handle, int32_t state, const lm_value* value);
size_t last_error(const lm_library* library, const lm_context* context, char* text, size_t size);

#else

// A handle is one of our classes behind an opaque type.
inline Library* unwrap(const lm_library* handle) {
    return reinterpret_cast<Library*>(const_cast<lm_library*>(handle));
}
inline Context* unwrap(const lm_context* handle) {
    return reinterpret_cast<Context*>(const_cast<lm_context*>(handle));
}

LM_RUNTIME_FUNCTION int32_t open_library(const Model& model, const lm_options* options, lm_library** handle) {
    if (handle == nullptr) return LM_INVALID_ARGUMENT;
    *handle = nullptr;
    void* const memory = allocate_aligned(alignof(Library), sizeof(Library));
    if (memory == nullptr) return LM_OUT_OF_MEMORY;
    Library* library = new (memory) Library(model);
    *handle = reinterpret_cast<lm_library*>(library);
    return library->open(options);
}

LM_RUNTIME_FUNCTION int32_t close_library(lm_library* handle) {
    Library* library = unwrap(handle);
    if (library == nullptr) return LM_OK;
    if (library->contexts() > 0) {
        return library->fail(LM_INVALID_ARGUMENT, "the library still has contexts; destroy them before it is closed");
    }
    library->~Library();
    free_aligned(library);
    return LM_OK;
}

LM_RUNTIME_FUNCTION int32_t set_weights(lm_library* handle, const void* image, size_t bytes) {
    return handle == nullptr ? LM_INVALID_ARGUMENT : unwrap(handle)->set_weights(image, bytes);
}

LM_RUNTIME_FUNCTION int32_t create_context(lm_library* handle, lm_context** context_handle) {
    Library* library = unwrap(handle);
    if (context_handle != nullptr) *context_handle = nullptr;
    if (library == nullptr) return LM_INVALID_ARGUMENT;
    if (context_handle == nullptr) return library->fail(LM_INVALID_ARGUMENT, "no place to put the context was given");
    if (!library->is_open()) return LM_INVALID_ARGUMENT;  // last_error still tells why it could not be opened
    void* memory = library->allocator().allocate(sizeof(Context));
    if (memory == nullptr) return library->fail(LM_OUT_OF_MEMORY, "no memory for a context");
    Context* context = new (memory) Context(*library);
    Message message;
    const int32_t status = context->allocate(message);
    if (status != LM_OK) {
        context->~Context();
        library->allocator().deallocate(memory, sizeof(Context));
        return library->fail(status, message.text());
    }
    library->add_context();
    *context_handle = reinterpret_cast<lm_context*>(context);
    return LM_OK;
}

LM_RUNTIME_FUNCTION void destroy_context(lm_context* handle) {
    Context* context = unwrap(handle);
    if (context == nullptr) return;
    Library& library = context->library();
    context->~Context();
    library.allocator().deallocate(context, sizeof(Context));
    library.remove_context();
}

/// Bytes of arena for one entry, after a check of the dims.
LM_RUNTIME_FUNCTION int32_t workspace_size(lm_library* handle, int32_t entry, const int64_t* dims, size_t* bytes) {
    Library* library = unwrap(handle);
    if (library == nullptr) return LM_INVALID_ARGUMENT;
    const Model& model = library->model();
    Message message;
    if (entry < 0 || entry >= model.entries.size) {
        message.set("entry %d does not exist: the model has %d", entry, model.entries.size);
        return library->fail(LM_INVALID_ARGUMENT, message.text());
    }
    if (bytes == nullptr || (dims == nullptr && model.dims.size > 0)) {
        return library->fail(LM_INVALID_ARGUMENT, "the dims or the result are a null pointer");
    }
    for (int32_t i = 0; i < model.dims.size; ++i) {
        const Dim& dim = model.dims[i];
        if (dims[i] < dim.lower || dims[i] > dim.upper) {
            message.set("\"%s\" is %lld, outside its bounds %lld..%lld", dim.name, static_cast<long long>(dims[i]),
                        static_cast<long long>(dim.lower), static_cast<long long>(dim.upper));
            return library->fail(LM_INVALID_ARGUMENT, message.text());
        }
    }
    *bytes = static_cast<size_t>(model.entries[entry].arena_bytes);
    return LM_OK;
}

LM_RUNTIME_FUNCTION int32_t output_shape(lm_context* handle, int32_t entry, const lm_value* in, int32_t output,
                                         int64_t* shape) {
    return handle == nullptr ? LM_INVALID_ARGUMENT : unwrap(handle)->output_shape(entry, in, output, shape);
}

LM_RUNTIME_FUNCTION int32_t run(lm_context* handle, int32_t entry, const lm_value* in, lm_value* out, void* stream) {
    return handle == nullptr ? LM_INVALID_ARGUMENT : unwrap(handle)->run(entry, in, out, stream);
}

LM_RUNTIME_FUNCTION int32_t reset(lm_context* handle) {
    return handle == nullptr ? LM_INVALID_ARGUMENT : unwrap(handle)->reset();
}

LM_RUNTIME_FUNCTION int32_t get_state(lm_context* handle, int32_t state, const lm_value* value) {
    return handle == nullptr ? LM_INVALID_ARGUMENT : unwrap(handle)->get_state(state, value);
}

LM_RUNTIME_FUNCTION int32_t set_state(lm_context* handle, int32_t state, const lm_value* value) {
    return handle == nullptr ? LM_INVALID_ARGUMENT : unwrap(handle)->set_state(state, value);
}

LM_RUNTIME_FUNCTION size_t last_error(const lm_library* library, const lm_context* context, char* text, size_t size) {
    if (context != nullptr) return unwrap(context)->copy_error(text, size);
    if (library != nullptr) return unwrap(library)->copy_error(text, size);
    if (size > 0) text[0] = '\0';
    return 0;
}

#endif  // LM_RUNTIME_ELSEWHERE

}  // namespace LM_RUNTIME
}  // namespace lm

#ifdef _WIN32
#define LM_EXPORT extern "C" __declspec(dllexport)
#else
#define LM_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// clang-format off
#define LM_DEFINE_ABI(NAME, MODEL)                                                                                     \
    LM_EXPORT int32_t NAME##_abi_version(void) { return LM_ABI_VERSION; }                                              \
    LM_EXPORT const char* NAME##_metadata_json(void) { return (MODEL).metadata_json; }                                 \
    LM_EXPORT int32_t NAME##_open(const lm_options* options, lm_library** library) {                                   \
        return lm::open_library(MODEL, options, library);                                                              \
    }                                                                                                                  \
    LM_EXPORT int32_t NAME##_close(lm_library* library) { return lm::close_library(library); }                         \
    LM_EXPORT int32_t NAME##_context_create(lm_library* library, lm_context** context) {                               \
        return lm::create_context(library, context);                                                                   \
    }                                                                                                                  \
    LM_EXPORT void NAME##_context_destroy(lm_context* context) { lm::destroy_context(context); }                       \
    LM_EXPORT int32_t NAME##_workspace_size(lm_library* library, int32_t entry, const int64_t* dims, size_t* bytes) {  \
        return lm::workspace_size(library, entry, dims, bytes);                                                        \
    }                                                                                                                  \
    LM_EXPORT int32_t NAME##_output_shape(lm_context* context, int32_t entry, const lm_value* in, int32_t output,      \
                                          int64_t* shape) {                                                            \
        return lm::output_shape(context, entry, in, output, shape);                                                    \
    }                                                                                                                  \
    LM_EXPORT int32_t NAME##_run(lm_context* context, int32_t entry, const lm_value* in, lm_value* out,                \
                                 void* stream) {                                                                       \
        return lm::run(context, entry, in, out, stream);                                                               \
    }                                                                                                                  \
    LM_EXPORT int32_t NAME##_set_weights(lm_library* library, const void* image, size_t bytes) {                       \
        return lm::set_weights(library, image, bytes);                                                                 \
    }                                                                                                                  \
    LM_EXPORT int32_t NAME##_reset(lm_context* context) { return lm::reset(context); }                                 \
    LM_EXPORT int32_t NAME##_get_state(lm_context* context, int32_t state, const lm_value* value) {                    \
        return lm::get_state(context, state, value);                                                                   \
    }                                                                                                                  \
    LM_EXPORT int32_t NAME##_set_state(lm_context* context, int32_t state, const lm_value* value) {                    \
        return lm::set_state(context, state, value);                                                                   \
    }                                                                                                                  \
    LM_EXPORT size_t NAME##_last_error(const lm_library* library, const lm_context* context, char* text,               \
                                       size_t size) {                                                                  \
        return lm::last_error(library, context, text, size);                                                           \
    }                                                                                                                  \
    static_assert(true, "a semicolon follows")
// clang-format on
