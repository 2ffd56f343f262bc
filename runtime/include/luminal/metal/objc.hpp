// The Objective-C runtime and Metal, opened by name when a library is: nothing of either is needed to compile or to load
// it. A method is called as compilers call it: objc_msgSend, through a pointer of the method's own type.
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "luminal/abi.h"
#include "luminal/library_base.hpp"
#include "luminal/message.hpp"
#include "luminal/namespace.hpp"

namespace lm {
inline namespace LM_RUNTIME {
namespace metal {

struct Object;
using Id = Object*;       // an object, a class, or nil
using Selector = void*;   // the name of a method, unique in the process
using UInteger = unsigned long;  // NSUInteger
using Integer = long;            // NSInteger

/// The entry points of the Objective-C runtime, and the function of Metal that finds a GPU.
struct Runtime {
    Id (*get_class)(const char* name) = nullptr;
    Selector (*register_name)(const char* name) = nullptr;
    void (*send)() = nullptr;  // objc_msgSend: cast to the type of the method
    void* (*push_pool)() = nullptr;
    void (*pop_pool)(void* pool) = nullptr;
    Id (*default_device)() = nullptr;

    /// LM_UNSUPPORTED where this system has no Objective-C or no Metal. One library may stand for both. What is opened
    /// stays open: Objective-C cannot be unloaded.
    int32_t open(Message& message) {
        char path[PATH_MAX];
        const char* const other = other_driver("LUMINAL_METAL_RUNTIME", path);
        const char* const language = other != nullptr ? other : "/usr/lib/libobjc.A.dylib";
        const char* const framework = other != nullptr ? other : "/System/Library/Frameworks/Metal.framework/Metal";
        // A program without graphics has no default device before this one is there too.
        if (other == nullptr) dlopen("/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics", RTLD_LAZY);
        void* const objc = dlopen(language, RTLD_LAZY);
        void* const metal = objc != nullptr ? dlopen(framework, RTLD_LAZY) : nullptr;
        if (metal == nullptr) {
            message.set("this system has no Metal, which the library was compiled for: %s", dlerror());
            return LM_UNSUPPORTED;
        }
        const bool found = find(objc, "objc_getClass", get_class) && find(objc, "sel_registerName", register_name) &&
                           find(objc, "objc_msgSend", send) && find(objc, "objc_autoreleasePoolPush", push_pool) &&
                           find(objc, "objc_autoreleasePoolPop", pop_pool) &&
                           find(metal, "MTLCreateSystemDefaultDevice", default_device);
        if (found) return LM_OK;
        message.set("the Metal of this system lacks a function: %s", dlerror());
        return LM_UNSUPPORTED;
    }

  private:
    template <class Function>
    static bool find(void* library, const char* name, Function& function) {
        function = reinterpret_cast<Function>(dlsym(library, name));
        return function != nullptr;
    }
};

template <class Type>
class Method;

/// A method, called with the receiver first. A message to nil does nothing and returns 0.
template <class Result, class... Arguments>
class Method<Result(Arguments...)> {
  public:
    Method(const Runtime& runtime, const char* name)
        : send_(reinterpret_cast<Result (*)(Id, Selector, Arguments...)>(runtime.send)),
          selector_(runtime.register_name(name)) {}

    Result operator()(Id receiver, Arguments... arguments) const { return send_(receiver, selector_, arguments...); }
    Selector selector() const { return selector_; }

  private:
    Result (*send_)(Id, Selector, Arguments...);
    Selector selector_;
};

/// Objects that methods return without handing them over live until the end of the innermost pool of the thread.
class AutoreleasePool {
  public:
    explicit AutoreleasePool(const Runtime& runtime) : runtime_(runtime), pool_(runtime.push_pool()) {}
    ~AutoreleasePool() { runtime_.pop_pool(pool_); }
    AutoreleasePool(const AutoreleasePool&) = delete;
    AutoreleasePool& operator=(const AutoreleasePool&) = delete;

  private:
    const Runtime& runtime_;
    void* pool_;
};

}  // namespace metal
}  // namespace LM_RUNTIME
}  // namespace lm
