// The device of an open library, with its kernels compiled.
#pragma once

#include <stdint.h>
#include <string.h>

#include "luminal/model.hpp"
#include "luminal/opencl/api.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace opencl {

/// A kernel: the threads of each of its blocks, the bytes that these share, and its image, which is two numbers of bytes (uint64_t), then so many
/// bytes of SPIR-V and of SPIR, either of which may be missing.
struct Kernel {
    const char* name;
    int32_t threads;
    uint32_t shared;
    const unsigned char* image;
};

/// The kernels of a library.
struct Kernels {
    Span<Kernel> kernels;
};

class Device {
  public:
    Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    /// Finds the device of that number, and has its driver compile the kernels. Once.
    int32_t open(const Kernels& kernels, int32_t number, Message& message) {
        kernels_ = &kernels;
        int32_t status = api_.open(message);
        if (status == LM_OK) status = find(number, message);
        if (status == LM_OK) status = check(message);
        if (status != LM_OK) return status;
        Code code = SUCCESS;
        context_ = Owned<&Api::release_context>(api_, api_.create_context(nullptr, 1, &device_, nullptr, nullptr, &code));
        if (!context_) return failed(code, "make a context", message);
        return compile(message);
    }

    const Api& api() const { return api_; }
    const Kernel& kernel(int32_t number) const { return kernels_->kernels[number]; }
    Id compiled(int32_t number) const { return compiled_[number].get(); }

    /// Of at least one byte, as OpenCL has no others. Empty where there is no memory.
    Buffer allocate(uint64_t bytes) const {
        Code code = SUCCESS;
        return Buffer(api_, api_.create_buffer(context_.get(), 1, bytes > 0 ? bytes : 1, nullptr, &code));
    }
    Owned<&Api::release_queue> new_queue() const {
        Code code = SUCCESS;
        return Owned<&Api::release_queue>(api_, api_.create_queue(context_.get(), device_, nullptr, &code));
    }

    int32_t failed(Code code, const char* what, Message& message) const {
        message.set("the OpenCL device \"%s\" cannot %s: error %d", name_, what, code);
        return LM_SYSTEM_ERROR;
    }

  private:
    /// Devices are numbered over all platforms: GPUs, then accelerators, then CPUs.
    int32_t find(int32_t number, Message& message) {
        Id platforms[16] = {};
        uint32_t count = 0;
        int32_t seen = 0;
        if (api_.get_platforms(16, platforms, &count) != SUCCESS) count = 0;
        for (const uint64_t type : TYPES) {
            for (uint32_t p = 0; p < count && p < 16; ++p) {
                Id devices[16] = {};
                uint32_t found = 0;
                if (api_.get_devices(platforms[p], type, 16, devices, &found) != SUCCESS) continue;
                for (uint32_t d = 0; d < found && d < 16; ++d) {
                    if (seen++ == number) device_ = devices[d];
                }
            }
        }
        if (device_ != nullptr) {
            text(NAME, name_, sizeof(name_));
            return LM_OK;
        }
        if (seen == 0) {
            message.set("this machine has an OpenCL loader, but no device: install a driver, such as pocl for its CPU");
            return LM_UNSUPPORTED;
        }
        message.set("lm_options.device_id is %d, but this machine has %d OpenCL device%s", number, seen,
                    seen == 1 ? "" : "s");
        return LM_INVALID_ARGUMENT;
    }

    /// Whether it computes as the kernels expect.
    int32_t check(Message& message) {
        uint64_t config = 0;
        api_.device_info(device_, SINGLE_CONFIG, sizeof(config), &config, nullptr);
        const char* const missing = (config & ROUNDED_DIVISION) == 0 ? "correctly rounded division and square roots"
                                    : (config & FUSED) == 0          ? "fused multiply-adds"
                                    : (config & NOT_A_NUMBER) == 0   ? "NaN and infinities"
                                                                     : nullptr;
        if (missing != nullptr) {
            message.set("the OpenCL device \"%s\" has no %s", name_, missing);
            return LM_UNSUPPORTED;
        }
        char known[8192];
        text(IL, known, sizeof(known));
        takes_spirv_ = strstr(known, "SPIR-V") != nullptr;
        text(EXTENSIONS, known, sizeof(known));
        takes_spir_ = strstr(known, "cl_khr_spir") != nullptr;
        return LM_OK;
    }

    void text(uint32_t what, char* into, size_t size) const {
        if (api_.device_info(device_, what, size, into, nullptr) != SUCCESS) into[0] = '\0';
    }

    int32_t compile(Message& message) {
        const Span<Kernel>& kernels = kernels_->kernels;
        if (!programs_.allocate(kernels.size) || !compiled_.allocate(kernels.size)) {
            message.set("no memory for the table of %d kernels", kernels.size);
            return LM_OUT_OF_MEMORY;
        }
        for (int32_t i = 0; i < kernels.size; ++i) {
            const int32_t status = compile(kernels[i], programs_[i], compiled_[i], message);
            if (status != LM_OK) return status;
        }
        return LM_OK;
    }

    int32_t compile(const Kernel& kernel, Owned<&Api::release_program>& program, Owned<&Api::release_kernel>& compiled,
                    Message& message) const {
        uint64_t sizes[2];
        memcpy(sizes, kernel.image, sizeof(sizes));
        const unsigned char* const spirv = kernel.image + sizeof(sizes);
        const unsigned char* const spir = spirv + sizes[0];
        const bool portable = takes_spirv_ && sizes[0] > 0;
        Code code = SUCCESS, loaded = SUCCESS;
        if (portable) {
            program = Owned<&Api::release_program>(api_, api_.program_of_il(context_.get(), spirv, sizes[0], &code));
        } else if (takes_spir_ && sizes[1] > 0) {
            const size_t bytes = sizes[1];
            program = Owned<&Api::release_program>(
                api_, api_.program_of_binary(context_.get(), 1, &device_, &bytes, &spir, &loaded, &code));
        } else {
            message.set("the OpenCL device \"%s\" takes %s, and the library has its kernels in %s", name_,
                        takes_spirv_  ? "SPIR-V"
                        : takes_spir_ ? "SPIR"
                                      : "neither SPIR-V nor SPIR",
                        sizes[0] > 0 ? "both" : "SPIR alone: compile it where llvm-spirv is installed");
            return LM_UNSUPPORTED;
        }
        if (!program) return failed(code, "load a kernel", message);
        const char* const options = portable ? "-cl-fp32-correctly-rounded-divide-sqrt"
                                             : "-x spir -spir-std=1.2 -cl-fp32-correctly-rounded-divide-sqrt";
        code = api_.build(program.get(), 1, &device_, options, nullptr, nullptr);
        if (code != SUCCESS) {
            char log[512] = "";
            api_.build_info(program.get(), device_, BUILD_LOG, sizeof(log), log, nullptr);
            message.set("the OpenCL device \"%s\" cannot compile kernel \"%s\": error %d: %s", name_, kernel.name, code,
                        log);
            return LM_UNSUPPORTED;
        }
        compiled = Owned<&Api::release_kernel>(api_, api_.create_kernel(program.get(), kernel.name, &code));
        if (!compiled) return failed(code, "find a kernel in its image", message);
        size_t most = 0;
        api_.kernel_info(compiled.get(), device_, KERNEL_THREADS, sizeof(most), &most, nullptr);
        if (most >= static_cast<size_t>(kernel.threads)) return LM_OK;
        message.set("kernel \"%s\" needs %d threads in a work-group, the OpenCL device \"%s\" has room for %zu",
                    kernel.name, kernel.threads, name_, most);
        return LM_UNSUPPORTED;
    }

    const Kernels* kernels_ = nullptr;
    Api api_{};
    Id device_ = nullptr;
    char name_[128] = "";
    bool takes_spirv_ = false;
    bool takes_spir_ = false;
    Owned<&Api::release_context> context_;
    Array<Owned<&Api::release_program>> programs_;
    Array<Owned<&Api::release_kernel>> compiled_;
};

/// Commands to the device, in order; the first that fails is kept.
class Commands {
  public:
    Commands(const Device& device, Id queue, Mutex& arguments)
        : device_(device), queue_(queue), arguments_(arguments) {}

    /// `blocks` work-groups of a kernel; each of its parameters is a buffer and an offset.
    template <int32_t COUNT>
    void launch(int32_t number, int64_t blocks, const Slice (&slices)[COUNT]) {
        const Id kernel = device_.compiled(number);
        const uint32_t shared = device_.kernel(number).shared;
        const size_t threads = static_cast<size_t>(device_.kernel(number).threads);
        const size_t all = static_cast<size_t>(blocks) * threads;
        const Lock lock(arguments_);  // a kernel's arguments are part of it, until it is enqueued
        for (uint32_t i = 0; i < COUNT; ++i) {
            note(device_.api().set_argument(kernel, 2 * i, sizeof(Id), &slices[i].buffer));
            note(device_.api().set_argument(kernel, 2 * i + 1, sizeof(uint64_t), &slices[i].offset));
        }
        if (shared > 0) note(device_.api().set_argument(kernel, 2 * COUNT, shared, nullptr));
        if (code_ == SUCCESS) {
            note(device_.api().launch(queue_, kernel, 1, nullptr, &all, &threads, 0, nullptr, nullptr));
        }
    }

    void read(void* to, Slice from, size_t bytes) {
        if (bytes > 0 && code_ == SUCCESS) {
            note(device_.api().read(queue_, from.buffer, 1, from.offset, bytes, to, 0, nullptr, nullptr));
        }
    }
    void write(Slice to, const void* from, size_t bytes) {
        if (bytes > 0 && code_ == SUCCESS) {
            note(device_.api().write(queue_, to.buffer, 1, to.offset, bytes, from, 0, nullptr, nullptr));
        }
    }
    void copy(Slice to, Slice from, size_t bytes) {
        if (bytes > 0 && code_ == SUCCESS) {
            note(device_.api().copy(queue_, from.buffer, to.buffer, from.offset, to.offset, bytes, 0, nullptr, nullptr));
        }
    }
    void zero(Slice to, size_t bytes) {
        const unsigned char nothing = 0;
        if (bytes > 0 && code_ == SUCCESS) {
            note(device_.api().fill(queue_, to.buffer, &nothing, 1, to.offset, bytes, 0, nullptr, nullptr));
        }
    }

    /// Waits for all of them.
    int32_t finish(Message& message) {
        note(device_.api().finish(queue_));
        return code_ == SUCCESS ? static_cast<int32_t>(LM_OK) : device_.failed(code_, "carry out the run", message);
    }

  private:
    void note(Code code) {
        if (code_ == SUCCESS) code_ = code;
    }

    const Device& device_;
    Id queue_;
    Mutex& arguments_;
    Code code_ = SUCCESS;
};

}  // namespace opencl
}  // namespace LM_RUNTIME
}  // namespace lm
