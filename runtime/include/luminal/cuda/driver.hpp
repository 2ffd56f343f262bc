// The part of NVIDIA's driver interface that the library uses, opened by name when a library is: nothing of CUDA is
// needed to compile or to load it. Names and numbers are those of cuda.h.
#pragma once

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "luminal/abi.h"
#include "luminal/library_base.hpp"
#include "luminal/message.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace cuda {

using Result = int32_t;    // CUresult
using Ordinal = int32_t;   // CUdevice
using Address = uint64_t;  // CUdeviceptr
using DriverContext = struct OpaqueContext*;
using Module = struct OpaqueModule*;
using Function = struct OpaqueFunction*;
using Stream = struct OpaqueStream*;
using Event = struct OpaqueEvent*;
using Graph = struct OpaqueGraph*;
using GraphNode = struct OpaqueGraphNode*;
using GraphExec = struct OpaqueGraphExec*;

inline constexpr Result SUCCESS = 0;
inline constexpr Result OUT_OF_MEMORY = 2;          // CUDA_ERROR_OUT_OF_MEMORY
inline constexpr Result NO_DEVICE = 100;            // CUDA_ERROR_NO_DEVICE
inline constexpr Result INVALID_IMAGE = 200;        // CUDA_ERROR_INVALID_IMAGE
inline constexpr Result NO_BINARY_FOR_GPU = 209;    // CUDA_ERROR_NO_BINARY_FOR_GPU
inline constexpr Result UNSUPPORTED_PTX = 222;      // CUDA_ERROR_UNSUPPORTED_PTX_VERSION
inline constexpr Result NOT_READY = 600;            // CUDA_ERROR_NOT_READY
inline constexpr int32_t CAPABILITY_MAJOR = 75;     // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
inline constexpr int32_t CAPABILITY_MINOR = 76;     // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
inline constexpr int32_t MOST_REQUESTED = 97;       // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
inline constexpr int32_t REQUESTED = 8;             // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
inline constexpr int32_t UINT16 = 1;                // CU_TENSOR_MAP_DATA_TYPE_UINT16
inline constexpr int32_t NOT_INTERLEAVED = 0;       // CU_TENSOR_MAP_INTERLEAVE_NONE
inline constexpr int32_t SWIZZLED_BY_128 = 3;       // CU_TENSOR_MAP_SWIZZLE_128B
inline constexpr int32_t IN_L2_BY_256 = 3;          // CU_TENSOR_MAP_L2_PROMOTION_L2_256B
inline constexpr int32_t ZEROS_OUTSIDE = 0;         // CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
inline constexpr uint32_t EVENT_WITHOUT_TIME = 2;   // CU_EVENT_DISABLE_TIMING
inline constexpr int64_t MOST_BLOCKS = 2147483647;  // of a launch, in the first dimension

/// CUtensorMap.
struct alignas(128) TensorMap {
    uint64_t words[16];
};

/// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNode {
    Function function;
    uint32_t blocks[3];
    uint32_t threads[3];
    uint32_t shared_bytes;
    void** arguments;
    void** extra;
    void* kernel;
    DriverContext context;
};

/// What a call of the driver returned, and of which function.
struct Outcome {
    Result result = SUCCESS;
    const char* function = "";

    bool failed() const { return result != SUCCESS; }
};

/// The functions of a shared library, found one by one.
class Symbols : public InPlace {
  public:
    explicit Symbols(void* library) : library_(library) {}

    /// The name of the first function that the library lacks, or null.
    const char* missing() const { return missing_; }

    void* find(const char* name) {
        void* const address = dlsym(library_, name);
        if (address == nullptr && missing_ == nullptr) missing_ = name;
        return address;
    }

  private:
    void* library_;
    const char* missing_ = nullptr;
};

/// A function of the driver.
template <class... Parameters>
class Call {
  public:
    Call(Symbols& symbols, const char* name)
        : name_(name), address_(reinterpret_cast<Result (*)(Parameters...)>(symbols.find(name))) {}

    Outcome operator()(Parameters... parameters) const { return {address_(parameters...), name_}; }

  private:
    const char* name_;
    Result (*address_)(Parameters...);
};

/// The driver: every function that the library calls, in the version that CUDA 12 and later have.
struct Driver : Symbols {
    explicit Driver(void* library) : Symbols(library) {}

    Call<uint32_t> init{*this, "cuInit"};
    Call<Result, const char**> error_name{*this, "cuGetErrorName"};
    Call<Result, const char**> error_text{*this, "cuGetErrorString"};

    Call<int32_t*> device_count{*this, "cuDeviceGetCount"};
    Call<Ordinal*, int32_t> device_get{*this, "cuDeviceGet"};
    Call<char*, int32_t, Ordinal> device_name{*this, "cuDeviceGetName"};
    Call<char*, Ordinal> device_uuid{*this, "cuDeviceGetUuid"};
    Call<int32_t*, int32_t, Ordinal> device_attribute{*this, "cuDeviceGetAttribute"};
    Call<DriverContext*, Ordinal> context_retain{*this, "cuDevicePrimaryCtxRetain"};
    Call<Ordinal> context_release{*this, "cuDevicePrimaryCtxRelease_v2"};
    Call<DriverContext> context_push{*this, "cuCtxPushCurrent_v2"};
    Call<DriverContext*> context_pop{*this, "cuCtxPopCurrent_v2"};
    Call<> context_synchronize{*this, "cuCtxSynchronize"};

    Call<Module*, const void*> module_load{*this, "cuModuleLoadData"};
    Call<Module> module_unload{*this, "cuModuleUnload"};
    Call<Function*, Module, const char*> module_function{*this, "cuModuleGetFunction"};
    Call<Function, int32_t, int32_t> function_set{*this, "cuFuncSetAttribute"};

    Call<TensorMap*, int32_t, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*,
         int32_t, int32_t, int32_t, int32_t>
        describe{*this, "cuTensorMapEncodeTiled"};

    Call<Address*, size_t> allocate{*this, "cuMemAlloc_v2"};
    Call<Address> free{*this, "cuMemFree_v2"};
    Call<void**, size_t> allocate_host{*this, "cuMemAllocHost_v2"};
    Call<void*> free_host{*this, "cuMemFreeHost"};
    Call<Address, const void*, size_t, Stream> to_device{*this, "cuMemcpyHtoDAsync_v2"};
    Call<void*, Address, size_t, Stream> to_host{*this, "cuMemcpyDtoHAsync_v2"};
    Call<Address, Address, size_t, Stream> copy{*this, "cuMemcpyDtoDAsync_v2"};
    Call<Address, uint8_t, size_t, Stream> fill{*this, "cuMemsetD8Async"};

    Call<Stream*, uint32_t> stream_create{*this, "cuStreamCreate"};
    Call<Stream> stream_destroy{*this, "cuStreamDestroy_v2"};
    Call<Stream> stream_synchronize{*this, "cuStreamSynchronize"};
    Call<Stream> stream_state{*this, "cuStreamQuery"};
    Call<Stream, Event, uint32_t> stream_wait{*this, "cuStreamWaitEvent"};
    Call<Event*, uint32_t> event_create{*this, "cuEventCreate"};
    Call<Event> event_destroy{*this, "cuEventDestroy_v2"};
    Call<Event, Stream> event_record{*this, "cuEventRecord"};
    Call<Event> event_synchronize{*this, "cuEventSynchronize"};
    Call<Event> event_state{*this, "cuEventQuery"};

    Call<Function, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, Stream, void**, void**>
        launch{*this, "cuLaunchKernel"};
    Call<Graph*, uint32_t> graph_create{*this, "cuGraphCreate"};
    Call<Graph> graph_destroy{*this, "cuGraphDestroy"};
    Call<GraphNode*, Graph, const GraphNode*, size_t, const KernelNode*> graph_add{*this, "cuGraphAddKernelNode_v2"};
    Call<GraphExec*, Graph, unsigned long long> graph_instantiate{*this, "cuGraphInstantiateWithFlags"};
    Call<GraphExec, GraphNode, const KernelNode*> graph_set{*this, "cuGraphExecKernelNodeSetParams_v2"};
    Call<GraphExec, Stream> graph_launch{*this, "cuGraphLaunch"};
    Call<GraphExec> graph_exec_destroy{*this, "cuGraphExecDestroy"};

    /// The message "cannot (what was wanted): (what the driver says)", and the status that it stands for.
    __attribute__((format(printf, 4, 5))) int32_t failed(Outcome outcome, Message& message, const char* format,
                                                         ...) const {
        char wanted[256];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(wanted, sizeof(wanted), format, arguments);
        va_end(arguments);
        const char* name = nullptr;
        const char* text = nullptr;
        if (error_name(outcome.result, &name).failed() || name == nullptr) name = "unknown";
        if (error_text(outcome.result, &text).failed() || text == nullptr) text = "an unknown error";
        message.set("cannot %s: %s says %s (%s, %d)", wanted, outcome.function, text, name, outcome.result);
        switch (outcome.result) {
            case OUT_OF_MEMORY: return LM_OUT_OF_MEMORY;
            case NO_DEVICE:
            case INVALID_IMAGE:
            case NO_BINARY_FOR_GPU:
            case UNSUPPORTED_PTX: return LM_UNSUPPORTED;
            default: return LM_SYSTEM_ERROR;
        }
    }
};

/// Opens the driver, or what stands for it. Null where there is none. It stays open: a driver cannot be unloaded.
inline void* open_driver(Message& message) {
    char path[PATH_MAX];
    const char* const other = other_driver("LUMINAL_CUDA_DRIVER", path);
    void* const library = dlopen(other != nullptr ? other : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) message.set("this machine has no CUDA driver, which the library needs: %s", dlerror());
    return library;
}

}  // namespace cuda
}  // namespace LM_RUNTIME
}  // namespace lm
