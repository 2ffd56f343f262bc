// The GPU of an open library, with its kernels; and memory on it that its owner frees.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/cuda/driver.hpp"
#include "luminal/library_base.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace cuda {

/// A kernel: its name in its image, the threads of each of its blocks, the image, compiled for GPUs, and the bytes of
/// shared memory that a launch asks for.
struct Kernel {
    const char* name;
    int32_t threads;
    const unsigned char* image;
    int32_t requested = 0;
};

/// The kernels of a library, and the compute capability (80 is 8.0) that they need at least.
struct Code {
    int32_t capability;
    Span<Kernel> kernels;
};

/// The GPU of this process: the context that all programs of the process share, and a module for each kernel.
class Device {
  public:
    Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    ~Device() {
        if (context_ != nullptr) {
            driver().context_push(context_);
            for (int32_t i = 0; i < loaded_; ++i) driver().module_unload(modules_[i].module);
            DriverContext popped = nullptr;
            driver().context_pop(&popped);
            driver().context_release(ordinal_);
        }
        ::free(modules_);
    }

    /// Opens the driver. Once.
    int32_t start(Message& message) {
        void* const library = open_driver(message);
        if (library == nullptr) return LM_UNSUPPORTED;
        driver_ = new (driver_memory_) Driver(library);
        if (driver().missing() != nullptr) {
            message.set("the CUDA driver of this machine is too old: it has no %s; install one of CUDA 12 or later",
                        driver().missing());
            return LM_UNSUPPORTED;
        }
        const Outcome outcome = driver().init(0);
        return outcome.failed() ? driver().failed(outcome, message, "start the CUDA driver") : LM_OK;
    }

    /// Takes GPU `number` and loads the kernels, once the driver is open. Once; what a failure leaves is freed with the
    /// device.
    int32_t open(const Code& code, int32_t number, Message& message) {
        code_ = &code;
        number_ = number;
        const int32_t status = choose(message);
        return status == LM_OK ? load(message) : status;
    }

    const Driver& driver() const { return *driver_; }
    DriverContext context() const { return context_; }
    int32_t number() const { return number_; }
    const Kernel& kernel(int32_t kernel) const { return code_->kernels[kernel]; }
    Function function(int32_t kernel) const { return modules_[kernel].function; }

  private:
    struct LoadedKernel {
        Module module;
        Function function;
    };

    int32_t choose(Message& message) {
        int32_t count = 0;
        Outcome outcome = driver().device_count(&count);
        if (outcome.failed()) return driver().failed(outcome, message, "count the GPUs");
        if (count == 0) {
            message.set("this machine has a CUDA driver, but no GPU that it can use");
            return LM_UNSUPPORTED;
        }
        if (number_ < 0 || number_ >= count) {
            message.set("lm_options.device_id is %d, but this machine has %d GPU%s", number_, count,
                        count == 1 ? "" : "s");
            return LM_INVALID_ARGUMENT;
        }
        int32_t major = 0;
        int32_t minor = 0;
        char name[128] = "";
        outcome = driver().device_get(&ordinal_, number_);
        if (!outcome.failed()) outcome = driver().device_name(name, sizeof(name), ordinal_);
        if (!outcome.failed()) outcome = driver().device_attribute(&major, CAPABILITY_MAJOR, ordinal_);
        if (!outcome.failed()) outcome = driver().device_attribute(&minor, CAPABILITY_MINOR, ordinal_);
        if (outcome.failed()) return driver().failed(outcome, message, "describe GPU %d", number_);
        if (major * 10 + minor < code_->capability) {
            message.set("the library was compiled for GPUs of compute capability %d.%d or later; GPU %d, %s, has %d.%d",
                        code_->capability / 10, code_->capability % 10, number_, name, major, minor);
            return LM_UNSUPPORTED;
        }
        outcome = driver().context_retain(&context_, ordinal_);
        if (!outcome.failed()) return LM_OK;
        context_ = nullptr;
        return driver().failed(outcome, message, "use GPU %d, %s", number_, name);
    }

    int32_t load(Message& message);
    int32_t request(const Kernel& kernel, Function function, Message& message);

    const Code* code_ = nullptr;
    int32_t number_ = 0;
    alignas(Driver) unsigned char driver_memory_[sizeof(Driver)] = {};
    const Driver* driver_ = nullptr;  // in driver_memory_, once it is open
    Ordinal ordinal_ = 0;
    DriverContext context_ = nullptr;
    LoadedKernel* modules_ = nullptr;
    int32_t loaded_ = 0;
};

/// Makes the device's context that of the calling thread, while it lives.
class Current {
  public:
    explicit Current(const Device& device)
        : driver_(device.driver()), outcome_(driver_.context_push(device.context())) {}
    ~Current() {
        DriverContext popped = nullptr;
        if (!outcome_.failed()) driver_.context_pop(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

    /// LM_OK, or a message and its status.
    int32_t check(Message& message) const {
        return outcome_.failed() ? driver_.failed(outcome_, message, "use the GPU on this thread") : LM_OK;
    }

  private:
    const Driver& driver_;
    Outcome outcome_;
};

inline int32_t Device::load(Message& message) {
    const Current current(*this);
    int32_t status = current.check(message);
    if (status != LM_OK) return status;
    const Span<Kernel>& kernels = code_->kernels;
    modules_ = static_cast<LoadedKernel*>(calloc(static_cast<size_t>(kernels.size) + 1, sizeof(LoadedKernel)));
    if (modules_ == nullptr) {
        message.set("no memory for the table of %d kernels", kernels.size);
        return LM_OUT_OF_MEMORY;
    }
    for (const Kernel& kernel : kernels) {
        LoadedKernel& found = modules_[loaded_];
        Outcome outcome = driver().module_load(&found.module, kernel.image);
        if (outcome.failed()) return driver().failed(outcome, message, "load kernel \"%s\"", kernel.name);
        ++loaded_;
        outcome = driver().module_function(&found.function, found.module, kernel.name);
        if (outcome.failed()) return driver().failed(outcome, message, "find kernel \"%s\" in its image", kernel.name);
        if (kernel.requested > 0) {
            status = request(kernel, found.function, message);
            if (status != LM_OK) return status;
        }
    }
    return LM_OK;
}

/// Allows launches of a kernel to ask for the shared memory that its blocks need.
inline int32_t Device::request(const Kernel& kernel, Function function, Message& message) {
    int32_t most = 0;
    Outcome outcome = driver().device_attribute(&most, MOST_REQUESTED, ordinal_);
    if (outcome.failed()) return driver().failed(outcome, message, "describe GPU %d", number_);
    if (kernel.requested > most) {
        message.set("kernel \"%s\" needs %d bytes of shared memory for each block, and GPU %d has %d: compile the model "
                    "for its own architecture",
                    kernel.name, kernel.requested, number_, most);
        return LM_UNSUPPORTED;
    }
    outcome = driver().function_set(function, REQUESTED, kernel.requested);
    return outcome.failed() ? driver().failed(outcome, message, "give kernel \"%s\" its shared memory", kernel.name)
                            : LM_OK;
}

/// An array of elements of two bytes from which kernels copy boxes: that of a kernel's parameter, from byte `first` on.
/// Of `rank` dimensions, the first fastest; `strides` are those of the others, in bytes. A box has 128 bytes along the
/// first dimension, and `lines` along the second.
struct Boxed {
    int32_t parameter;
    int64_t first;
    uint32_t rank;
    uint64_t sizes[5];
    uint64_t strides[4];
    uint32_t lines;

    Outcome describe(const Driver& driver, Address array, TensorMap& map) const {
        const uint32_t box[5] = {64, lines, 1, 1, 1};
        const uint32_t every[5] = {1, 1, 1, 1, 1};
        void* const begin = reinterpret_cast<void*>(array + static_cast<uint64_t>(first));
        return driver.describe(&map, UINT16, rank, begin, sizes, strides, box, every, NOT_INTERLEAVED, SWIZZLED_BY_128,
                               IN_L2_BY_256, ZEROS_OUTSIDE);
    }
};

/// Memory on the device. Its owner frees it while the device's context is that of the thread.
class Memory {
  public:
    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    Address address() const { return address_; }
    size_t bytes() const { return bytes_; }

    /// At least `bytes`, of which none need be. `purpose` is for the message.
    int32_t allocate(const Driver& driver, size_t bytes, const char* purpose, Message& message) {
        if (bytes == 0) return LM_OK;
        const Outcome outcome = driver.allocate(&address_, bytes);
        if (outcome.failed()) {
            address_ = 0;
            return driver.failed(outcome, message, "allocate %zu bytes on the GPU for %s", bytes, purpose);
        }
        bytes_ = bytes;
        return LM_OK;
    }

    /// Errors of frees are those of earlier work, or the end of the process: nobody is left to act on them.
    void free(const Driver& driver) {
        if (bytes_ > 0) driver.free(address_);
        address_ = 0;
        bytes_ = 0;
    }

  private:
    Address address_ = 0;
    size_t bytes_ = 0;
};

/// Memory of the host that the GPU can copy from and to by itself.
class PinnedMemory {
  public:
    PinnedMemory() = default;
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;

    unsigned char* data() const { return static_cast<unsigned char*>(data_); }
    size_t bytes() const { return bytes_; }

    int32_t allocate(const Driver& driver, size_t bytes, const char* purpose, Message& message) {
        if (bytes == 0) return LM_OK;
        const Outcome outcome = driver.allocate_host(&data_, bytes);
        if (outcome.failed()) {
            data_ = nullptr;
            return driver.failed(outcome, message, "allocate %zu pinned bytes for %s", bytes, purpose);
        }
        bytes_ = bytes;
        return LM_OK;
    }

    void free(const Driver& driver) {
        if (bytes_ > 0) driver.free_host(data_);
        data_ = nullptr;
        bytes_ = 0;
    }

  private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace cuda
}  // namespace LM_RUNTIME
}  // namespace lm
