// What of OpenCL 3 the library uses: functions, which are opened by name when a library is, and owned objects. Nothing of
// OpenCL is needed to compile or to load it.
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "luminal/library_base.hpp"
#include "luminal/message.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace opencl {

struct Object;
using Id = Object*;  // cl_platform_id, cl_device_id, cl_context, cl_command_queue, cl_mem, cl_program or cl_kernel
using Code = int32_t;

// Numbers of cl.h.
constexpr Code SUCCESS = 0;
constexpr uint64_t TYPES[] = {1 << 2, 1 << 3, 1 << 1};  // CL_DEVICE_TYPE_GPU, ACCELERATOR, CPU
constexpr uint32_t NAME = 0x102B, EXTENSIONS = 0x1030, LOCAL_BYTES = 0x1023, SINGLE_CONFIG = 0x101B, IL = 0x105B;
constexpr uint32_t BUILD_LOG = 0x1183, KERNEL_THREADS = 0x11B0;
constexpr uint64_t ROUNDED_DIVISION = 1 << 7, FUSED = 1 << 5, NOT_A_NUMBER = 1 << 1;  // of CL_DEVICE_SINGLE_FP_CONFIG

/// The functions, by the names that they have in cl.h without `cl`.
struct Api {
    Code (*get_platforms)(uint32_t, Id*, uint32_t*);
    Code (*get_devices)(Id, uint64_t, uint32_t, Id*, uint32_t*);
    Code (*device_info)(Id, uint32_t, size_t, void*, size_t*);
    Id (*create_context)(const intptr_t*, uint32_t, const Id*, void (*)(const char*, const void*, size_t, void*), void*,
                         Code*);
    Id (*create_queue)(Id, Id, const uint64_t*, Code*);
    Id (*create_buffer)(Id, uint64_t, size_t, void*, Code*);
    Id (*program_of_il)(Id, const void*, size_t, Code*);
    Id (*program_of_binary)(Id, uint32_t, const Id*, const size_t*, const unsigned char* const*, Code*, Code*);
    Code (*build)(Id, uint32_t, const Id*, const char*, void (*)(Id, void*), void*);
    Code (*build_info)(Id, Id, uint32_t, size_t, void*, size_t*);
    Id (*create_kernel)(Id, const char*, Code*);
    Code (*kernel_info)(Id, Id, uint32_t, size_t, void*, size_t*);
    Code (*set_argument)(Id, uint32_t, size_t, const void*);
    Code (*launch)(Id, Id, uint32_t, const size_t*, const size_t*, const size_t*, uint32_t, const Id*, Id*);
    Code (*read)(Id, Id, uint32_t, size_t, size_t, void*, uint32_t, const Id*, Id*);
    Code (*write)(Id, Id, uint32_t, size_t, size_t, const void*, uint32_t, const Id*, Id*);
    Code (*copy)(Id, Id, Id, size_t, size_t, size_t, uint32_t, const Id*, Id*);
    Code (*fill)(Id, Id, const void*, size_t, size_t, size_t, uint32_t, const Id*, Id*);
    Code (*finish)(Id);
    Code (*release_context)(Id);
    Code (*release_queue)(Id);
    Code (*release_buffer)(Id);
    Code (*release_program)(Id);
    Code (*release_kernel)(Id);

    /// LM_UNSUPPORTED where this system has no OpenCL. What is opened stays open: drivers have threads of their own.
    int32_t open(Message& message) {
        char path[PATH_MAX];
        const char* const other = other_driver("LUMINAL_OPENCL_DRIVER", path);
        void* const library = dlopen(other != nullptr ? other : "libOpenCL.so.1", RTLD_LAZY);
        if (library == nullptr) {
            message.set("this system has no OpenCL, which the library was compiled for: %s", dlerror());
            return LM_UNSUPPORTED;
        }
        const bool found =
            find(library, "GetPlatformIDs", get_platforms) && find(library, "GetDeviceIDs", get_devices) &&
            find(library, "GetDeviceInfo", device_info) && find(library, "CreateContext", create_context) &&
            find(library, "CreateCommandQueueWithProperties", create_queue) &&
            find(library, "CreateBuffer", create_buffer) && find(library, "CreateProgramWithIL", program_of_il) &&
            find(library, "CreateProgramWithBinary", program_of_binary) && find(library, "BuildProgram", build) &&
            find(library, "GetProgramBuildInfo", build_info) && find(library, "CreateKernel", create_kernel) &&
            find(library, "GetKernelWorkGroupInfo", kernel_info) && find(library, "SetKernelArg", set_argument) &&
            find(library, "EnqueueNDRangeKernel", launch) && find(library, "EnqueueReadBuffer", read) &&
            find(library, "EnqueueWriteBuffer", write) && find(library, "EnqueueCopyBuffer", copy) &&
            find(library, "EnqueueFillBuffer", fill) && find(library, "Finish", finish) &&
            find(library, "ReleaseContext", release_context) && find(library, "ReleaseCommandQueue", release_queue) &&
            find(library, "ReleaseMemObject", release_buffer) && find(library, "ReleaseProgram", release_program) &&
            find(library, "ReleaseKernel", release_kernel);
        if (found) return LM_OK;
        message.set("the OpenCL of this system is older than 2.1, which the library needs: %s", dlerror());
        return LM_UNSUPPORTED;
    }

  private:
    template <class Function>
    static bool find(void* library, const char* name, Function& function) {
        char whole[64];
        snprintf(whole, sizeof(whole), "cl%s", name);
        function = reinterpret_cast<Function>(dlsym(library, whole));
        return function != nullptr;
    }
};

/// An object that is released with its owner, by one of the functions of Api.
template <Code (*Api::*RELEASE)(Id)>
class Owned : public InPlace {
  public:
    Owned() = default;
    Owned(const Api& api, Id object) : api_(&api), object_(object) {}
    Owned(Owned&& other) noexcept : api_(other.api_), object_(other.object_) { other.object_ = nullptr; }
    Owned& operator=(Owned&& other) noexcept {
        if (this != &other) {
            release();
            api_ = other.api_;
            object_ = other.object_;
            other.object_ = nullptr;
        }
        return *this;
    }
    ~Owned() { release(); }

    Id get() const { return object_; }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    void release() {
        if (object_ != nullptr) (api_->*RELEASE)(object_);
    }

    const Api* api_ = nullptr;
    Id object_ = nullptr;
};

using Buffer = Owned<&Api::release_buffer>;

/// A number of objects that is known when the library is open.
template <class T>
class Array {
  public:
    Array() = default;
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() {
        for (int32_t i = 0; i < size_; ++i) items_[i].~T();
        free(items_);
    }

    /// False where there is no memory. Once.
    bool allocate(int32_t size) {
        if (size == 0) return true;
        items_ = static_cast<T*>(calloc(static_cast<size_t>(size), sizeof(T)));
        if (items_ == nullptr) return false;
        for (; size_ < size; ++size_) new (items_ + size_) T;
        return true;
    }

    int32_t size() const { return size_; }
    T* begin() { return items_; }
    T& operator[](int32_t i) { return items_[i]; }
    const T& operator[](int32_t i) const { return items_[i]; }

  private:
    T* items_ = nullptr;
    int32_t size_ = 0;
};

/// An argument of a kernel: a buffer, from a byte on.
struct Slice {
    Id buffer;
    uint64_t offset;

    Slice operator+(uint64_t bytes) const { return {buffer, offset + bytes}; }
};

}  // namespace opencl
}  // namespace LM_RUNTIME
}  // namespace lm
