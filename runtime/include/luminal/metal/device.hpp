// The GPU of an open library: its kernels compiled, its weights in one buffer; and the commands of one run.
#pragma once

#include <stdint.h>

#include "luminal/metal/api.hpp"
#include "luminal/model.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace metal {

/// A kernel of the shader text: the threads of each of its blocks.
struct Kernel {
    const char* name;
    int32_t threads;
};

/// The kernels of a library: text that the system compiles when the library is opened.
struct Shaders {
    const char* text;
    Span<Kernel> kernels;
};

class Device {
  public:
    Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    /// Finds the GPU and compiles the kernels for it. Once.
    int32_t open(const Shaders& shaders, Message& message) {
        shaders_ = &shaders;
        const int32_t status = runtime_.open(message);
        if (status != LM_OK) return status;
        api_ = new (api_memory_) Api(runtime_);
        const AutoreleasePool pool(runtime_);
        device_ = Owned(*api_, runtime_.default_device());
        if (!device_) {
            message.set("this machine has no GPU that Metal can use");
            return LM_UNSUPPORTED;
        }
        if (!api_->supports_family(device_.get(), FAMILY_APPLE7)) {
            message.set("the GPU \"%s\" is none of Apple's M1 or later, which the library was compiled for", name());
            return LM_UNSUPPORTED;
        }
        return compile(message);
    }

    const Runtime& runtime() const { return runtime_; }
    const Api& api() const { return *api_; }
    const Kernel& kernel(int32_t number) const { return shaders_->kernels[number]; }
    Id pipeline(int32_t number) const { return pipelines_[number].get(); }

    Buffer allocate(uint64_t bytes) const { return Buffer(*api_, device_.get(), bytes); }
    Owned new_queue() const { return Owned(*api_, api_->new_queue(device_.get())); }

  private:
    const char* name() const { return api_->utf8(api_->name(device_.get())); }

    int32_t compile(Message& message) {
        const Owned options(*api_, api_->make(runtime_.get_class("MTLCompileOptions")));
        set_exact(options.get());
        Id error = nullptr;
        const Id text = api_->string_with_utf8(runtime_.get_class("NSString"), shaders_->text);
        const Owned library(*api_, api_->new_library(device_.get(), text, options.get(), &error));
        if (!library) {
            message.set("Metal cannot compile the kernels: %s", api_->text(error));
            return LM_UNSUPPORTED;
        }
        const Span<Kernel>& kernels = shaders_->kernels;
        if (!pipelines_.allocate(kernels.size)) {
            message.set("no memory for the table of %d kernels", kernels.size);
            return LM_OUT_OF_MEMORY;
        }
        for (int32_t i = 0; i < kernels.size; ++i) {
            const int32_t status = make_pipeline(library.get(), kernels[i], pipelines_[i], message);
            if (status != LM_OK) return status;
        }
        return LM_OK;
    }

    /// Floating point as the source operators define it. Systems before macOS 15 know one switch for all of it.
    void set_exact(Id options) const {
        api_->set_language_version(options, LANGUAGE_3_1);
        if (api_->responds_to(options, api_->set_math_mode.selector())) {
            api_->set_math_mode(options, MATH_MODE_SAFE);
            api_->set_math_functions(options, MATH_FUNCTIONS_PRECISE);
        } else {
            api_->set_fast_math(options, false);
        }
    }

    int32_t make_pipeline(Id library, const Kernel& kernel, Owned& pipeline, Message& message) const {
        const Id name = api_->string_with_utf8(runtime_.get_class("NSString"), kernel.name);
        const Owned function(*api_, api_->new_function(library, name));
        if (!function) {
            message.set("the compiled kernels lack \"%s\"", kernel.name);
            return LM_SYSTEM_ERROR;
        }
        Id error = nullptr;
        pipeline = Owned(*api_, api_->new_pipeline(device_.get(), function.get(), &error));
        if (!pipeline) {
            message.set("Metal cannot prepare kernel \"%s\": %s", kernel.name, api_->text(error));
            return LM_UNSUPPORTED;
        }
        const UInteger most = api_->max_threads(pipeline.get());
        if (most < static_cast<UInteger>(kernel.threads)) {
            message.set("kernel \"%s\" needs %d threads in a threadgroup, the GPU \"%s\" has registers for %lu",
                        kernel.name, kernel.threads, this->name(), most);
            return LM_UNSUPPORTED;
        }
        const UInteger warp = api_->warp(pipeline.get());
        if (warp != WARP) {
            message.set("a SIMD group of the GPU \"%s\" has %lu threads, the kernels are for %lu", this->name(), warp,
                        WARP);
            return LM_UNSUPPORTED;
        }
        return LM_OK;
    }

    const Shaders* shaders_ = nullptr;
    Runtime runtime_;
    alignas(Api) unsigned char api_memory_[sizeof(Api)] = {};
    const Api* api_ = nullptr;  // in api_memory_, once the runtime is open
    Owned device_;
    Array<Owned> pipelines_;
};

/// What one run asks of the GPU: kernels, carried out in the order in which they are given.
class Commands {
  public:
    /// Lives within an autorelease pool.
    Commands(const Device& device, Id queue) : device_(device), queue_(queue) {}

    /// `blocks` threadgroups of a kernel; its parameters are the buffers 0, 1, ...
    template <int32_t COUNT>
    void launch(int32_t kernel, int64_t blocks, const Slice (&arguments)[COUNT]) {
        const Api& api = device_.api();
        begin();
        api.set_pipeline(encoder_, device_.pipeline(kernel));
        for (int32_t i = 0; i < COUNT; ++i) {
            api.set_buffer(encoder_, arguments[i].buffer, arguments[i].offset, static_cast<UInteger>(i));
        }
        const UInteger threads = static_cast<UInteger>(device_.kernel(kernel).threads);
        api.dispatch(encoder_, Size{static_cast<UInteger>(blocks), 1, 1}, Size{threads, 1, 1});
    }

    /// Carries out what has been launched, and waits for it.
    int32_t finish(Message& message) {
        if (!begun_) return LM_OK;
        const Api& api = device_.api();
        api.end(encoder_);
        api.commit(buffer_);
        api.wait(buffer_);
        begun_ = false;
        if (api.status(buffer_) == STATUS_COMPLETED) return LM_OK;
        message.set("the GPU could not carry out the run: %s", api.text(api.error(buffer_)));
        return LM_SYSTEM_ERROR;
    }

  private:
    void begin() {
        if (begun_) return;
        buffer_ = device_.api().command_buffer(queue_);
        encoder_ = device_.api().encoder(buffer_);
        begun_ = true;
    }

    const Device& device_;
    Id queue_;
    bool begun_ = false;
    Id buffer_ = nullptr;  // both belong to the pool
    Id encoder_ = nullptr;
};

}  // namespace metal
}  // namespace LM_RUNTIME
}  // namespace lm
