// A stand-in for the Objective-C runtime and Metal on machines without them: the classes and methods that
// luminal/metal/*.hpp uses, with kernels carried out by the emulator. Built as a shared library, it lies beside a library
// that is emulated, or its path goes into LUMINAL_METAL_RUNTIME.
//
// The kernels of a shader text are found in an image for the emulator that holds them compiled (see device.hpp):
// emulated_kernels.so beside the stand-in, or the one that LUMINAL_METAL_IMAGE names when the text is "compiled".
//
// Memory that the CPU never asked the address of is unwritten until a kernel writes it.
//
// It is stricter than the real thing. What a host program must not do is recorded as a fault: messages to objects that
// are gone, methods that a class lacks, arguments that are not bound, commands that are not ended. Commands are carried
// out when they are waited for, so that whoever reads too early reads what was there before.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// ---- objects ---------------------------------------------------------------------------------------------------------

using Selector = const std::string*;
using Method = void (*)();

struct Class;

struct Object {
    explicit Object(Class* is) : isa(is) {}
    virtual ~Object() = default;
    virtual void end() {}  // gives back what it holds; the object itself stays, so that later messages to it are noticed

    Class* isa;
    std::atomic<int64_t> references{1};
};

struct Class : Object {
    Class(std::string called, Class* meta) : Object(meta), name(std::move(called)) {}

    std::string name;
    std::map<Selector, Method> methods;
};

/// What a test may change, and what it may ask.
struct State {
    std::mutex lock;
    std::set<std::string> selectors;
    std::map<std::string, std::unique_ptr<Class>> classes;
    std::vector<std::unique_ptr<Object>> objects;
    std::map<std::string, int64_t> settings = {
        {"device", 1},       // there is a GPU
        {"apple7", 1},       // of the family Apple7 or later
        {"math_mode", 1},    // the system is macOS 15 or later
        {"memory", int64_t{1} << 40},
        {"max_threads", 1024},
        {"simd_width", 32},
        {"fail_run", 0},     // the GPU gives up
    };
    lm_emulated::Device device;
    std::string faults;
    std::string answer;  // what the last call of lm_metal_faults returned
};

State& state() {
    static State* const made = new State;  // never ended: objects may outlive main
    return *made;
}

void fault(const std::string& text) {
    const std::lock_guard<std::mutex> guard(state().lock);
    state().faults += text + "\n";
}

int64_t setting(const char* name) {
    const std::lock_guard<std::mutex> guard(state().lock);
    return state().settings.at(name);
}

thread_local std::vector<std::vector<Object*>> pools;

template <class T, class... Arguments>
T* make(Arguments&&... arguments) {
    auto made = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    T* const object = made.get();
    const std::lock_guard<std::mutex> guard(state().lock);
    state().objects.push_back(std::move(made));
    return object;
}

void release(Object* object) {
    if (--object->references == 0) object->end();
}

Object* autorelease(Object* object) {
    if (pools.empty()) {
        fault("an object of class " + object->isa->name + " is autoreleased outside all pools");
    } else {
        pools.back().push_back(object);
    }
    return object;
}

Object* retain(Object* object, Selector) {
    ++object->references;
    return object;
}

void release_method(Object* object, Selector) { release(object); }

Method find_method(const Object* object, Selector asked) {
    static const std::set<std::string> since_macos_15 = {"setMathMode:", "setMathFloatingPointFunctions:"};
    if (since_macos_15.count(*asked) != 0 && setting("math_mode") == 0) return nullptr;
    const auto found = object->isa->methods.find(asked);
    return found != object->isa->methods.end() ? found->second : nullptr;
}

bool responds(Object* object, Selector, Selector asked) { return find_method(object, asked) != nullptr; }

uint64_t nothing() { return 0; }

// ---- NSString, NSError -----------------------------------------------------------------------------------------------

Class* class_named(const char* name);

struct String : Object {
    explicit String(std::string value) : Object(class_named("NSString")), text(std::move(value)) {}
    std::string text;
};

struct Error : Object {
    explicit Error(std::string value) : Object(class_named("NSError")), text(std::move(value)) {}
    std::string text;
};

Object* string_with_utf8(Class*, Selector, const char* text) { return autorelease(make<String>(text)); }
const char* utf8(String* self, Selector) { return self->text.c_str(); }
Object* description(Error* self, Selector) { return autorelease(make<String>(self->text)); }

void set_error(Object** place, const std::string& text) {
    if (place != nullptr) *place = autorelease(make<Error>(text));
}

// ---- MTLCompileOptions -----------------------------------------------------------------------------------------------

struct Options : Object {
    Options() : Object(class_named("MTLCompileOptions")) {}
    long math_mode = 2;  // as the system has them: fast
    long math_functions = 0;
    bool fast_math = true;
    unsigned long language = 0;
};

Object* new_options(Class*, Selector) { return make<Options>(); }
void set_language(Options* self, Selector, unsigned long version) { self->language = version; }
void set_math_mode(Options* self, Selector, long mode) { self->math_mode = mode; }
void set_math_functions(Options* self, Selector, long functions) { self->math_functions = functions; }
void set_fast_math(Options* self, Selector, bool on) { self->fast_math = on; }

// ---- MTLLibrary, MTLFunction, MTLComputePipelineState ----------------------------------------------------------------

using Image = std::shared_ptr<lm_emulated::Image>;

struct Device : Object {
    Device() : Object(class_named("MTLDevice")) {}
};

struct Library : Object {
    Library(std::string shaders, Image opened)
        : Object(class_named("MTLLibrary")), text(std::move(shaders)), image(std::move(opened)) {}
    void end() override { image.reset(); }

    std::string text;
    Image image;
};

/// A kernel as both its text and its image have it.
struct Function : Object {
    Function(Image opened, const lm_emulated_kernel* found, std::vector<uint32_t> bindings)
        : Object(class_named("MTLFunction")),
          image(std::move(opened)),
          kernel(found),
          buffers(std::move(bindings)) {}
    void end() override { image.reset(); }

    Image image;
    const lm_emulated_kernel* kernel;
    std::vector<uint32_t> buffers;  // the numbers in [[buffer(n)]], in the order of the parameters
};

struct Pipeline : Object {
    explicit Pipeline(const Function& function)
        : Object(class_named("MTLComputePipelineState")),
          image(function.image),
          kernel(function.kernel),
          buffers(function.buffers) {}
    void end() override { image.reset(); }

    Image image;
    const lm_emulated_kernel* kernel;
    std::vector<uint32_t> buffers;
};

/// The complaint of a compiler about the first #error of a text that no condition guards; empty where there is none.
std::string complaint(const std::string& text) {
    size_t line = 1;
    size_t begin = 0;
    int conditions = 0;
    while (begin < text.size()) {
        size_t end = text.find('\n', begin);
        if (end == std::string::npos) end = text.size();
        conditions += text.compare(begin, 3, "#if") == 0 ? 1 : text.compare(begin, 6, "#endif") == 0 ? -1 : 0;
        if (conditions == 0 && text.compare(begin, 6, "#error") == 0) {
            const std::string message = text.substr(begin + 6, end - begin - 6);
            return "program_source:" + std::to_string(line) + ":2: error:" + message;
        }
        begin = end + 1;
        ++line;
    }
    return "";
}

Object* new_library(Device*, Selector, String* text, Options* options, Object** error) {
    const bool exact = setting("math_mode") != 0 ? options->math_mode == 0 && options->math_functions == 1
                                                 : !options->fast_math;
    if (!exact) fault("a shader text is compiled with fast math");
    std::string wrong = complaint(text->text);
    const char* const other = getenv("LUMINAL_METAL_IMAGE");
    Image image;
    if (wrong.empty()) image = state().device.load(other != nullptr ? other : "emulated_kernels.so", wrong);
    if (image != nullptr) return make<Library>(text->text, image);
    set_error(error, wrong);
    return nullptr;
}

/// The parameters of a kernel, as text; null where the shader text has no such kernel.
std::unique_ptr<std::string> parameters_of(const std::string& text, const std::string& kernel) {
    const std::string head = "kernel void " + kernel + "(";
    const size_t begin = text.find(head);
    if (begin == std::string::npos) return nullptr;
    size_t end = begin + head.size();
    for (int depth = 1; end < text.size() && depth > 0; ++end) {
        depth += text[end] == '(' ? 1 : text[end] == ')' ? -1 : 0;
    }
    return std::make_unique<std::string>(text.substr(begin, end - begin));
}

Object* new_function(Library* self, Selector, String* name) {
    const auto parameters = parameters_of(self->text, name->text);
    if (!parameters) return nullptr;
    std::vector<uint32_t> buffers;
    const std::string binding = "[[buffer(";
    for (size_t at = parameters->find(binding); at != std::string::npos; at = parameters->find(binding, at + 1)) {
        buffers.push_back(static_cast<uint32_t>(strtoul(parameters->c_str() + at + binding.size(), nullptr, 10)));
    }
    if (const lm_emulated_kernel* const kernel = self->image->kernel(name->text)) {
        return make<Function>(self->image, kernel, buffers);
    }
    fault("the image lacks the kernel " + name->text + " of the shader text");
    return nullptr;
}

unsigned long max_threads(Object*, Selector) { return static_cast<unsigned long>(setting("max_threads")); }
unsigned long simd_width(Object*, Selector) { return static_cast<unsigned long>(setting("simd_width")); }

// ---- MTLBuffer -------------------------------------------------------------------------------------------------------

/// Memory comes in pages on a GPU: a buffer's is aligned to one.
constexpr size_t PAGE = 4096;

struct Buffer : Object {
    Buffer(void* bytes, size_t count) : Object(class_named("MTLBuffer")), memory(bytes), length(count) {}
    void end() override { state().device.release(memory); }

    void* memory;
    size_t length;
    bool host = false;  // the CPU has its address
};

Object* new_buffer(Device*, Selector, unsigned long length, unsigned long options) {
    if (length == 0) fault("a buffer of no bytes is asked for");
    if (options != 0) fault("a buffer is asked for in a storage mode other than shared");
    void* const memory = state().device.allocate(length, PAGE, setting("memory"));
    return memory != nullptr ? make<Buffer>(memory, length) : nullptr;
}

/// What the CPU may have written counts as written.
void* contents(Buffer* self, Selector) {
    if (!self->host) state().device.written(self->memory, self->length);
    self->host = true;
    return self->memory;
}

unsigned long length(Buffer* self, Selector) { return self->length; }

// ---- MTLCommandQueue, MTLCommandBuffer, MTLComputeCommandEncoder -----------------------------------------------------

constexpr unsigned long ARGUMENTS = 31;  // the buffer arguments that a function may have

struct Size {
    unsigned long width;
    unsigned long height;
    unsigned long depth;
};

struct Binding {
    Buffer* buffer = nullptr;
    size_t offset = 0;
};

struct Dispatch {
    Pipeline* pipeline;
    std::vector<Binding> bindings;
    uint64_t blocks;
};

struct Queue : Object {
    Queue() : Object(class_named("MTLCommandQueue")) {}
};

struct Commands : Object {
    Commands() : Object(class_named("MTLCommandBuffer")) {}

    void end() override {
        if (encoding) fault("an MTLComputeCommandEncoder is released before its encoding has ended");
        if (error != nullptr) release(error);
    }

    std::vector<Dispatch> dispatches;
    bool encoding = false;
    unsigned long status = 0;  // not enqueued; 3: committed, 4: completed, 5: error
    Object* error = nullptr;
};

struct Encoder : Object {
    explicit Encoder(Commands* of) : Object(class_named("MTLComputeCommandEncoder")), commands(of) {}
    Commands* commands;
    Pipeline* pipeline = nullptr;
    std::vector<Binding> bindings = std::vector<Binding>(ARGUMENTS);
    bool ended = false;
};

Object* new_queue(Object*, Selector) { return make<Queue>(); }
Object* command_buffer(Object*, Selector) { return autorelease(make<Commands>()); }

Object* command_encoder(Commands* self, Selector) {
    if (self->encoding || self->status != 0) fault("a command buffer is encoded twice at once, or after its commit");
    self->encoding = true;
    return autorelease(make<Encoder>(self));
}

void set_pipeline(Encoder* self, Selector, Pipeline* pipeline) { self->pipeline = pipeline; }

void set_buffer(Encoder* self, Selector, Buffer* buffer, unsigned long offset, unsigned long index) {
    if (index >= ARGUMENTS) {
        fault("argument " + std::to_string(index) + " is bound, but a kernel has 31 at most");
    } else if (buffer == nullptr || offset >= buffer->length) {
        fault("argument " + std::to_string(index) + " is bound to no buffer, or beyond its end");
    } else {
        self->bindings[index] = {buffer, offset};
    }
}

void dispatch(Encoder* self, Selector, Size groups, Size threads) {
    const Pipeline* const pipeline = self->pipeline;
    if (self->ended || pipeline == nullptr) {
        fault("a dispatch lacks a pipeline, or comes after the end of its encoder");
        return;
    }
    const std::string name = pipeline->kernel->name;
    if (groups.width == 0 || groups.width > UINT32_MAX || groups.height != 1 || groups.depth != 1) {
        fault("kernel " + name + " is dispatched with a grid that is empty or not one-dimensional");
        return;
    }
    if (threads.width != pipeline->kernel->threads || threads.height != 1 || threads.depth != 1) {
        fault("kernel " + name + " is dispatched with " + std::to_string(threads.width) + " threads, compiled for " +
              std::to_string(pipeline->kernel->threads));
        return;
    }
    std::vector<Binding> bindings;
    for (const uint32_t index : pipeline->buffers) {
        if (index >= ARGUMENTS || self->bindings[index].buffer == nullptr) {
            fault("argument " + std::to_string(index) + " of kernel " + name + " is not bound");
            return;
        }
        bindings.push_back(self->bindings[index]);
    }
    self->commands->dispatches.push_back({self->pipeline, bindings, groups.width});
}

void end_encoding(Encoder* self, Selector) {
    self->ended = true;
    self->commands->encoding = false;
}

void commit(Commands* self, Selector) {
    if (self->encoding || self->status != 0) fault("a command buffer is committed twice, or while it is encoded");
    self->status = 3;
}

/// What went wrong; empty if nothing did.
std::string carry_out(const Dispatch& dispatch) {
    const Pipeline& pipeline = *dispatch.pipeline;
    std::vector<void*> arguments;
    for (const Binding& binding : dispatch.bindings) {
        if (binding.buffer->references <= 0) {
            fault(std::string("kernel ") + pipeline.kernel->name + " runs on a buffer that is gone");
            return "a buffer is gone";
        }
        arguments.push_back(static_cast<char*>(binding.buffer->memory) + binding.offset);
    }
    return state().device.run(*pipeline.image, pipeline.kernel, dispatch.blocks, arguments.data());
}

void wait_until_completed(Commands* self, Selector) {
    static std::mutex gpu;  // one command buffer at a time
    const std::lock_guard<std::mutex> guard(gpu);
    if (self->status != 3) fault("a command buffer is waited for that was not committed");
    std::string wrong = setting("fail_run") != 0 ? "Caused GPU Hang Error" : "";
    for (size_t i = 0; i < self->dispatches.size() && wrong.empty(); ++i) wrong = carry_out(self->dispatches[i]);
    if (!wrong.empty()) self->error = make<Error>(wrong);
    self->status = wrong.empty() ? 4 : 5;
}

unsigned long command_status(Commands* self, Selector) { return self->status; }
Object* command_error(Commands* self, Selector) { return self->error; }

// ---- MTLDevice -------------------------------------------------------------------------------------------------------

Object* device_name(Object*, Selector) { return autorelease(make<String>("Emulated GPU")); }
bool supports_family(Object*, Selector, long family) { return family <= 1006 || setting("apple7") != 0; }

Object* new_pipeline(Object*, Selector, Function* function, Object**) { return make<Pipeline>(*function); }

// ---- classes ---------------------------------------------------------------------------------------------------------

Selector selector(const std::string& name) {
    const std::lock_guard<std::mutex> guard(state().lock);
    return &*state().selectors.insert(name).first;
}

template <class Function>
std::pair<Selector, Method> method(const char* name, Function* function) {
    return {selector(name), reinterpret_cast<Method>(function)};
}

Class* define(const char* name, std::map<Selector, Method> methods, std::map<Selector, Method> of_class = {}) {
    auto meta = std::make_unique<Class>(std::string(name) + " (the class)", nullptr);
    meta->methods = std::move(of_class);
    auto made = std::make_unique<Class>(name, meta.get());
    made->methods = std::move(methods);
    made->methods.insert({method("retain", retain), method("release", release_method),
                          method("respondsToSelector:", responds)});
    Class* const result = made.get();
    state().classes[result->name] = std::move(made);
    state().classes[meta->name] = std::move(meta);
    return result;
}

bool define_all() {
    define("NSString", {method("UTF8String", utf8)}, {method("stringWithUTF8String:", string_with_utf8)});
    define("NSError", {method("localizedDescription", description)});
    define("MTLCompileOptions",
           {method("setLanguageVersion:", set_language), method("setMathMode:", set_math_mode),
            method("setMathFloatingPointFunctions:", set_math_functions),
            method("setFastMathEnabled:", set_fast_math)},
           {method("new", new_options)});
    define("MTLDevice",
           {method("name", device_name), method("supportsFamily:", supports_family),
            method("newCommandQueue", new_queue), method("newLibraryWithSource:options:error:", new_library),
            method("newComputePipelineStateWithFunction:error:", new_pipeline),
            method("newBufferWithLength:options:", new_buffer)});
    define("MTLLibrary", {method("newFunctionWithName:", new_function)});
    define("MTLFunction", {});
    define("MTLComputePipelineState",
           {method("maxTotalThreadsPerThreadgroup", max_threads), method("threadExecutionWidth", simd_width)});
    define("MTLBuffer", {method("contents", contents), method("length", length)});
    define("MTLCommandQueue", {method("commandBuffer", command_buffer)});
    define("MTLCommandBuffer",
           {method("computeCommandEncoder", command_encoder), method("commit", commit),
            method("waitUntilCompleted", wait_until_completed), method("status", command_status),
            method("error", command_error)});
    define("MTLComputeCommandEncoder",
           {method("setComputePipelineState:", set_pipeline), method("setBuffer:offset:atIndex:", set_buffer),
            method("dispatchThreadgroups:threadsPerThreadgroup:", dispatch), method("endEncoding", end_encoding)});
    return true;
}

Class* class_named(const char* name) {
    static const bool defined = define_all();
    (void)defined;
    const auto found = state().classes.find(name);
    return found != state().classes.end() ? found->second.get() : nullptr;
}

}  // namespace

// ---- the Objective-C runtime -----------------------------------------------------------------------------------------

/// The method that a message asks for. A message to nil returns 0.
EXPORT void (*lm_metal_method(Object* receiver, Selector asked))() {
    const auto none = reinterpret_cast<Method>(nothing);
    if (receiver == nullptr) return none;
    if (receiver->references <= 0) {
        fault("\"" + *asked + "\" is sent to an object of class " + receiver->isa->name + " that is gone");
        return none;
    }
    if (const Method found = find_method(receiver, asked)) return found;
    fault("an object of class " + receiver->isa->name + " does not understand \"" + *asked + "\"");
    return none;
}

#if !defined(__x86_64__)
#error "objc_msgSend is written for x86-64"
#endif

// Finds the method and jumps to it, with the arguments untouched: those in registers are saved meanwhile, those on the
// stack (structures by value, as MTLSize) stay where they are.
__asm__(R"(
    .text
    .globl objc_msgSend
    .type objc_msgSend, @function
objc_msgSend:
    pushq %rbp
    movq %rsp, %rbp
    subq $192, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    call lm_metal_method@PLT
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    leave
    jmp *%r11
    .size objc_msgSend, . - objc_msgSend
)");

EXPORT Object* objc_getClass(const char* name) { return class_named(name); }
EXPORT const void* sel_registerName(const char* name) { return selector(name); }

EXPORT void* objc_autoreleasePoolPush() {
    pools.emplace_back();
    return reinterpret_cast<void*>(pools.size());
}

EXPORT void objc_autoreleasePoolPop(void* pool) {
    if (reinterpret_cast<uintptr_t>(pool) != pools.size()) fault("autorelease pools are not ended in order");
    while (!pools.empty() && pools.size() >= reinterpret_cast<uintptr_t>(pool)) {
        const std::vector<Object*> objects = std::move(pools.back());
        pools.pop_back();
        for (Object* object : objects) release(object);
    }
}

EXPORT Object* MTLCreateSystemDefaultDevice() { return setting("device") != 0 ? make<Device>() : nullptr; }

// ---- what tests ask --------------------------------------------------------------------------------------------------

/// A setting (see State).
EXPORT int64_t lm_metal_get(const char* name) { return setting(name); }

/// Changes a setting; -1 where there is none of that name.
EXPORT int lm_metal_set(const char* name, int64_t value) {
    const std::lock_guard<std::mutex> guard(state().lock);
    const auto found = state().settings.find(name);
    if (found == state().settings.end()) return -1;
    found->second = value;
    return 0;
}

/// Objects that have not been released.
EXPORT int64_t lm_metal_objects() {
    const std::lock_guard<std::mutex> guard(state().lock);
    int64_t count = 0;
    for (const auto& object : state().objects) count += object->references > 0 ? 1 : 0;
    return count;
}

/// The faults of the host program since the last call, one a line.
EXPORT const char* lm_metal_faults() {
    const std::lock_guard<std::mutex> guard(state().lock);
    state().answer.swap(state().faults);
    state().faults.clear();
    return state().answer.c_str();
}
