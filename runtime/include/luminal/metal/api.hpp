// What of Metal the library uses: methods with their types, the numbers of enumerations, owned objects.
#pragma once

#include <stdlib.h>

#include "luminal/library_base.hpp"
#include "luminal/metal/objc.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace metal {

/// MTLSize.
struct Size {
    UInteger width;
    UInteger height;
    UInteger depth;
};

constexpr UInteger STORAGE_MODE_SHARED = 0;     // MTLResourceStorageModeShared: one memory for CPU and GPU
constexpr UInteger LANGUAGE_3_1 = (3 << 16) + 1;  // MTLLanguageVersion3_1: the first with bfloat
constexpr Integer MATH_MODE_SAFE = 0;           // MTLMathModeSafe: as IEEE 754 says
constexpr Integer MATH_FUNCTIONS_PRECISE = 1;   // MTLMathFloatingPointFunctionsPrecise
constexpr Integer FAMILY_APPLE7 = 1007;         // MTLGPUFamilyApple7: M1, the first with simdgroup matrices
constexpr UInteger STATUS_COMPLETED = 4;        // MTLCommandBufferStatusCompleted, the status of success
constexpr UInteger WARP = 32;                   // threads of a SIMD group, which kernels are compiled for

/// The methods, by the class that has them. Made once the runtime is open.
struct Api : InPlace {
    explicit Api(const Runtime& opened) : runtime(opened) {}

    const Runtime& runtime;

    // NSObject
    Method<Id()> make{runtime, "new"};
    Method<Id()> retain{runtime, "retain"};
    Method<void()> release{runtime, "release"};
    Method<bool(Selector)> responds_to{runtime, "respondsToSelector:"};
    // NSString
    Method<Id(const char*)> string_with_utf8{runtime, "stringWithUTF8String:"};
    Method<const char*()> utf8{runtime, "UTF8String"};
    // NSError
    Method<Id()> description{runtime, "localizedDescription"};
    // MTLCompileOptions
    Method<void(UInteger)> set_language_version{runtime, "setLanguageVersion:"};
    Method<void(Integer)> set_math_mode{runtime, "setMathMode:"};
    Method<void(Integer)> set_math_functions{runtime, "setMathFloatingPointFunctions:"};
    Method<void(bool)> set_fast_math{runtime, "setFastMathEnabled:"};
    // MTLDevice
    Method<Id()> name{runtime, "name"};
    Method<bool(Integer)> supports_family{runtime, "supportsFamily:"};
    Method<Id()> new_queue{runtime, "newCommandQueue"};
    Method<Id(Id, Id, Id*)> new_library{runtime, "newLibraryWithSource:options:error:"};
    Method<Id(Id, Id*)> new_pipeline{runtime, "newComputePipelineStateWithFunction:error:"};
    Method<Id(UInteger, UInteger)> new_buffer{runtime, "newBufferWithLength:options:"};
    // MTLLibrary
    Method<Id(Id)> new_function{runtime, "newFunctionWithName:"};
    // MTLComputePipelineState
    Method<UInteger()> max_threads{runtime, "maxTotalThreadsPerThreadgroup"};
    Method<UInteger()> warp{runtime, "threadExecutionWidth"};
    // MTLBuffer
    Method<void*()> contents{runtime, "contents"};
    Method<UInteger()> length{runtime, "length"};
    // MTLCommandQueue
    Method<Id()> command_buffer{runtime, "commandBuffer"};
    // MTLCommandBuffer
    Method<Id()> encoder{runtime, "computeCommandEncoder"};
    Method<void()> commit{runtime, "commit"};
    Method<void()> wait{runtime, "waitUntilCompleted"};
    Method<UInteger()> status{runtime, "status"};
    Method<Id()> error{runtime, "error"};
    // MTLComputeCommandEncoder
    Method<void(Id)> set_pipeline{runtime, "setComputePipelineState:"};
    Method<void(Id, UInteger, UInteger)> set_buffer{runtime, "setBuffer:offset:atIndex:"};
    Method<void(Size, Size)> dispatch{runtime, "dispatchThreadgroups:threadsPerThreadgroup:"};
    Method<void()> end{runtime, "endEncoding"};

    /// What an NSError says.
    const char* text(Id failure) const {
        const char* found = utf8(description(failure));
        return found != nullptr ? found : "Metal gives no reason";
    }
};

/// An object that is released with its owner. Methods called `new...` hand over what they return.
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
        if (object_ != nullptr) api_->release(object_);
    }

    const Api* api_ = nullptr;
    Id object_ = nullptr;
};

/// Memory that both the CPU and the GPU reach.
class Buffer : public InPlace {
  public:
    Buffer() = default;

    /// Of at least one byte, as Metal has no others. Empty where there is no memory.
    Buffer(const Api& api, Id device, uint64_t bytes)
        : api_(&api), object_(api, api.new_buffer(device, bytes > 0 ? bytes : 1, STORAGE_MODE_SHARED)) {}

    Id get() const { return object_.get(); }
    explicit operator bool() const { return static_cast<bool>(object_); }
    uint64_t bytes() const { return object_ ? api_->length(object_.get()) : 0; }

    /// For the CPU to read and write, while no commands do.
    unsigned char* contents() const { return static_cast<unsigned char*>(api_->contents(object_.get())); }

  private:
    const Api* api_ = nullptr;
    Owned object_;
};

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

}  // namespace metal
}  // namespace LM_RUNTIME
}  // namespace lm
