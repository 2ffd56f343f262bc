// What of Metal the library uses: methods with their types, the numbers of enumerations, owned objects.
#pragma once

#include "luminal/metal/objc.hpp"

namespace lm {
inline namespace LM_NAMESPACE {
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
constexpr UInteger STATUS_ERROR = 5;            // MTLCommandBufferStatusError
constexpr UInteger WARP = 32;                   // threads of a SIMD group, which kernels are compiled for

/// The methods, by the class that has them. Made once the runtime is open.
struct Api {
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
class Owned {
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
class Buffer {
  public:
    Buffer() = default;

    /// Empty where there is no memory.
    Buffer(const Api& api, Id device, uint64_t bytes)
        : object_(api, api.new_buffer(device, bytes > 0 ? bytes : 1, STORAGE_MODE_SHARED)),
          bytes_(object_ ? bytes : 0),
          contents_(object_ ? static_cast<unsigned char*>(api.contents(object_.get())) : nullptr) {}

    Id get() const { return object_.get(); }
    uint64_t bytes() const { return bytes_; }
    unsigned char* contents() const { return contents_; }
    explicit operator bool() const { return static_cast<bool>(object_); }

  private:
    Owned object_;
    uint64_t bytes_ = 0;
    unsigned char* contents_ = nullptr;
};

/// An argument of a kernel: a buffer, from a byte on.
struct Slice {
    Id buffer;
    uint64_t offset;
};

}  // namespace metal
}  // namespace LM_NAMESPACE
}  // namespace lm
