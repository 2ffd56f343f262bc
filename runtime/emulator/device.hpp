// What the stand-ins for drivers share: the memory of an emulated device, and the images whose kernels run on it.
//
// An image is a shared library that holds kernels compiled for the emulator together with the emulator itself. Each
// knows of all memory of the device, whichever was there first.
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "emulator.h"

namespace lm_emulated {

/// An open image, and the functions of its emulator.
class Image {
  public:
    explicit Image(void* opened) : handle_(opened) {}
    Image(const Image&) = delete;
    Image& operator=(const Image&) = delete;
    ~Image() { dlclose(handle_); }

    /// Why it is none; empty if it is one.
    std::string check() {
        const bool whole = find("lm_emulated_kernels", kernels_) && find("lm_emulate", run) &&
                           find("lm_emulate_buffer", declare) && find("lm_emulate_release", release) &&
                           find("lm_emulate_written", written) && find("lm_emulate_faults", faults);
        return whole ? "" : dlerror();
    }

    /// The kernel of that name, or null.
    const lm_emulated_kernel* kernel(const std::string& name) const {
        for (const lm_emulated_kernel* kernel = kernels_; kernel->name != nullptr; ++kernel) {
            if (name == kernel->name) return kernel;
        }
        return nullptr;
    }

    decltype(&lm_emulate) run = nullptr;
    decltype(&lm_emulate_buffer) declare = nullptr;
    decltype(&lm_emulate_release) release = nullptr;
    decltype(&lm_emulate_written) written = nullptr;
    decltype(&lm_emulate_faults) faults = nullptr;

  private:
    template <class Symbol>
    bool find(const char* name, Symbol& symbol) {
        symbol = reinterpret_cast<Symbol>(dlsym(handle_, name));
        return symbol != nullptr;
    }

    void* handle_;
    const lm_emulated_kernel* kernels_ = nullptr;
};

/// The one device of a stand-in. Its functions may be called from any thread; one kernel runs at a time.
class Device {
  public:
    /// Memory of the device, of which all together has `limit` bytes at most; null where there is none left.
    void* allocate(size_t bytes, size_t alignment, int64_t limit) {
        const Guard guard(lock_);
        if (bytes == 0 || used_ + static_cast<int64_t>(bytes) > limit) return nullptr;
        void* memory = nullptr;
        if (posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
        memset(memory, 0xA5, bytes);  // nobody may count on zeros
        used_ += static_cast<int64_t>(bytes);
        memory_[memory] = bytes;
        each([&](Image& image) { image.declare(memory, bytes, 0); });
        return memory;
    }

    void release(void* memory) {
        const Guard guard(lock_);
        each([&](Image& image) { image.release(memory); });
        used_ -= static_cast<int64_t>(memory_[memory]);
        memory_.erase(memory);
        free(memory);
    }

    /// The bytes that were allocated at that address, or 0.
    size_t bytes(void* memory) {
        const Guard guard(lock_);
        const auto found = memory_.find(memory);
        return found != memory_.end() ? found->second : 0;
    }

    /// Whether these bytes lie in one allocation.
    bool holds(void* begin, size_t bytes) {
        const Guard guard(lock_);
        const auto found = around(begin);
        return found != memory_.end() && static_cast<char*>(begin) + bytes <= end(found);
    }

    size_t allocations() {
        const Guard guard(lock_);
        return memory_.size();
    }

    /// Says that the host has written these bytes.
    void written(void* begin, size_t bytes) {
        const Guard guard(lock_);
        each([&](Image& image) { image.written(begin, bytes); });
    }

    /// The image in a file, which lies beside the stand-in unless the whole path is given; null, and why, where it cannot
    /// be opened. Memory that was there before may have been written by anybody.
    std::shared_ptr<Image> load(const std::string& file, std::string& error) {
        const Guard guard(lock_);
        const std::string path = file[0] == '/' ? file : folder() + file;
        void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) {
            error = dlerror();
            return nullptr;
        }
        if (std::shared_ptr<Image> open = images_[handle].lock()) {
            dlclose(handle);
            return open;
        }
        auto image = std::make_shared<Image>(handle);
        error = image->check();
        if (!error.empty()) return nullptr;
        for (const auto& [begin, size] : memory_) image->declare(begin, size, 1);
        images_[handle] = image;
        return image;
    }

    /// Runs a kernel; the faults that were found, empty where there are none.
    std::string run(Image& image, const lm_emulated_kernel* kernel, uint64_t blocks, void* const* arguments) {
        const Guard guard(lock_);
        const size_t known = strlen(image.faults());
        const bool wrong = image.run(kernel, blocks, arguments) != 0;
        for (uint32_t i = 0; i < kernel->parameters; ++i) share(image, arguments[i]);
        std::string found = image.faults() + known;
        while (!found.empty() && found.back() == '\n') found.pop_back();
        return wrong && found.empty() ? "the emulator gives no reason" : found;
    }

  private:
    using Guard = std::lock_guard<std::recursive_mutex>;
    using Memory = std::map<void*, size_t>;

    /// Where the stand-in lies. (The loader of glibc takes "$ORIGIN/FILE" for the same file whoever asks for it.)
    static std::string folder() {
        Dl_info info{};
        const bool found = dladdr(reinterpret_cast<void*>(&Device::folder), &info) != 0;
        const std::string own = found && info.dli_fname != nullptr ? info.dli_fname : "";
        return own.substr(0, own.rfind('/') + 1);
    }

    template <class Function>
    void each(const Function& function) {
        for (const auto& [handle, weak] : images_) {
            if (const std::shared_ptr<Image> image = weak.lock()) function(*image);
        }
    }

    /// What a kernel of one image may have written holds values for those of others.
    void share(const Image& writer, void* argument) {
        const auto found = around(argument);
        if (found == memory_.end()) return;
        each([&](Image& image) {
            if (&image != &writer) image.written(found->first, found->second);
        });
    }

    /// The allocation that an address lies in, or the end.
    Memory::iterator around(void* address) {
        auto after = memory_.upper_bound(address);
        if (after == memory_.begin()) return memory_.end();
        --after;
        return address < end(after) ? after : memory_.end();
    }

    static char* end(Memory::iterator memory) { return static_cast<char*>(memory->first) + memory->second; }

    std::recursive_mutex lock_;
    Memory memory_;
    int64_t used_ = 0;
    std::map<void*, std::weak_ptr<Image>> images_;  // by handle
};

}  // namespace lm_emulated
