// The state of the emulated CUDA driver (see cuda_driver.cpp): what a host program made, and what is to be carried out on
// its streams.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.hpp"
#include "tensor_map.hpp"

namespace {

enum Result : int32_t {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_FAILED = 719,
    UNKNOWN = 999,
};

using Address = uint64_t;

/// What was put into a stream, and the memory of the device that it uses. It has ended once carrying it out returns true;
/// what waits for others is carried on again and again.
struct Operation {
    std::function<bool()> carry_on;
    std::vector<Address> uses;
};

// ---- what there is ---------------------------------------------------------------------------------------------------

/// A kernel of an image that a module holds.
struct Function {
    std::shared_ptr<lm_emulated::Image> image;
    const lm_emulated_kernel* kernel = nullptr;
    int32_t most_requested = 48 << 10;  // bytes of shared memory that a launch may ask for
};

struct Module {
    std::shared_ptr<lm_emulated::Image> image;
    std::map<std::string, std::unique_ptr<Function>> functions;  // that were asked for
};

/// A kernel with its arguments.
struct Launch {
    std::shared_ptr<lm_emulated::Image> image;
    const lm_emulated_kernel* kernel = nullptr;
    uint64_t blocks = 0;
    std::vector<void*> arguments;
    std::vector<lm_emulated::TensorMap> maps;
};

struct Stream {
    std::deque<Operation> pending;
    uint64_t put = 0;   // operations so far
    uint64_t done = 0;  // of them carried out
};

struct Event {
    Stream* stream = nullptr;
    uint64_t position = 0;  // what must be done on the stream
};

struct Graph {
    std::vector<std::unique_ptr<Launch>> nodes;
};

struct GraphExec {
    std::vector<std::unique_ptr<Launch>> nodes;
    std::map<const void*, size_t> places;  // of the nodes of its graph
};

/// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNode {
    const Function* function;
    uint32_t blocks[3];
    uint32_t threads[3];
    uint32_t shared_bytes;
    void** arguments;
    void** extra;
    void* kernel;
    void* context;
};

/// Handles of one kind.
template <class T>
using Owned = std::map<T*, std::unique_ptr<T>>;

#ifndef LM_EMULATED_CAPABILITY
#define LM_EMULATED_CAPABILITY 90
#endif

struct State {
    std::recursive_mutex lock;
    std::map<std::string, int64_t> settings = {
        {"devices", 1},
        {"capability", LM_EMULATED_CAPABILITY},  // of each device: 90 is 9.0
        {"first_capability", 0},                 // of device 0, where it has another
        {"memory", int64_t{1} << 40},
        {"requested", 227 << 10},  // bytes of shared memory that a block may have
        {"machine", getpid()},     // whose GPUs they are: processes that say the same see the same ones
    };
    bool initialised = false;
    int64_t retained = 0;
    int32_t ordinal = 0;  // of the device whose context was retained last
    lm_emulated::Device device;
    std::map<void*, size_t> pinned;
    Owned<Module> modules;
    Owned<Stream> streams;
    Owned<Event> events;
    Owned<Graph> graphs;
    Owned<GraphExec> executables;
    Stream default_stream;
    int32_t sticky = SUCCESS;  // what the next wait returns
    std::string reason;        // why the last kernel that failed did
    std::string faults;
    std::string answer;  // what the last call of lm_cuda_faults returned
    std::map<std::string, int64_t> calls;
    std::string failure;  // LUMINAL_CUDA_FAIL, as it was last seen
    int64_t failure_calls = 0;
};

State& state() {
    static State* const made = new State;  // never ended: libraries may be closed after main
    return *made;
}

thread_local std::vector<void*> contexts;  // current ones, the last on top

void* const THE_CONTEXT = reinterpret_cast<void*>(&state);

void fault(const std::string& text) { state().faults += text + "\n"; }

// ---- calls -----------------------------------------------------------------------------------------------------------

/// Counts a call of a function; its result where it is told to fail.
int32_t called(const char* function) {
    State& s = state();
    ++s.calls[function];
    const char* const setting = getenv("LUMINAL_CUDA_FAIL");
    const std::string wanted = setting != nullptr ? setting : "";
    if (wanted != s.failure) {
        s.failure = wanted;
        s.failure_calls = 0;
    }
    const size_t colon = wanted.find(':');
    if (colon == std::string::npos || wanted.substr(0, colon) != function) return SUCCESS;
    char* end = nullptr;
    const int64_t call = strtoll(wanted.c_str() + colon + 1, &end, 10);
    const bool fails = ++s.failure_calls == call;
    return fails ? (*end == ':' ? static_cast<int32_t>(strtol(end + 1, nullptr, 10)) : UNKNOWN) : SUCCESS;
}

/// Every function begins with it: one call at a time.
struct Entered {
    explicit Entered(const char* function) : guard(state().lock), result(called(function)) {
        if (!state().initialised && strcmp(function, "cuInit") != 0) {
            fault(std::string(function) + " is called before cuInit");
        }
    }

    std::lock_guard<std::recursive_mutex> guard;
    int32_t result;  // with which the call fails
};

/// What functions that work on a context return without one.
int32_t no_context(const char* function) {
    if (!contexts.empty()) return SUCCESS;
    fault(std::string(function) + " is called without a context");
    return INVALID_CONTEXT;
}

#define ENTER(function)              \
    const Entered entered(function); \
    if (entered.result != SUCCESS) return entered.result
#define ENTER_IN_CONTEXT(function) \
    ENTER(function);               \
    if (no_context(function) != SUCCESS) return INVALID_CONTEXT
// For functions that give something back, or wait.
#define ENTER_TO_END(function)       \
    const Entered entered(function); \
    if (no_context(function) != SUCCESS) return INVALID_CONTEXT

template <class T>
bool known(const Owned<T>& handles, T* handle, const char* function) {
    if (handles.count(handle) > 0) return true;
    fault(std::string(function) + " is given a handle that does not exist");
    return false;
}

/// Whether these bytes lie in one allocation of the device.
bool on_device(Address begin, size_t bytes) {
    return state().device.holds(reinterpret_cast<void*>(begin), bytes);
}

// ---- streams ---------------------------------------------------------------------------------------------------------

/// Carries out what was put into a stream, up to a position, as far as it need not wait for others; true where that is
/// all.
bool try_advance(Stream& stream, uint64_t position) {
    while (stream.done < position && !stream.pending.empty()) {
        if (!stream.pending.front().carry_on()) return false;
        stream.pending.pop_front();
        ++stream.done;
    }
    return true;
}

/// Carries out what was put into a stream, up to a position.
void advance(Stream& stream, uint64_t position) {
    while (!try_advance(stream, position)) usleep(100);
}

void finish(Stream& stream) { advance(stream, stream.put); }

void finish_all() {
    for (auto& [stream, owned] : state().streams) finish(*stream);
    finish(state().default_stream);
}

Stream* const LEGACY_STREAM = reinterpret_cast<Stream*>(1);  // CU_STREAM_LEGACY

Stream* find_stream(Stream* handle, const char* function) {
    if (handle == nullptr || handle == LEGACY_STREAM) return &state().default_stream;
    return known(state().streams, handle, function) ? handle : nullptr;
}

void put_steps(Stream& stream, std::vector<Address> uses, std::function<bool()> carry_on) {
    stream.pending.push_back({std::move(carry_on), std::move(uses)});
    ++stream.put;
    if (&stream == &state().default_stream) finish_all();
}

void put(Stream& stream, std::vector<Address> uses, std::function<void()> carry_out) {
    put_steps(stream, std::move(uses), [carry_out = std::move(carry_out)] {
        carry_out();
        return true;
    });
}

void fail_later(int32_t result) {
    if (state().sticky == SUCCESS) state().sticky = result;
}

/// What a wait returns that is told to return `result`.
int32_t waited(int32_t result) {
    const int32_t earlier = state().sticky;
    state().sticky = SUCCESS;
    return result != SUCCESS ? result : earlier;
}

/// What the question returns whether work has ended, which is told to return `result`; who waits is told the same.
int32_t asked(int32_t result, bool ended) {
    return result != SUCCESS ? result : ended ? state().sticky : static_cast<int32_t>(NOT_READY);
}

void carry_out(const Launch& launch) {
    State& s = state();
    if (s.sticky != SUCCESS) return;  // nothing runs any more before somebody learns of it
    std::vector<void*> arguments = launch.arguments;
    for (const lm_emulated::TensorMap& map : launch.maps) {
        arguments.push_back(const_cast<lm_emulated::TensorMap*>(&map));
    }
    const std::string faults = s.device.run(*launch.image, launch.kernel, launch.blocks, arguments.data());
    if (faults.empty()) return;
    s.reason = faults;
    fail_later(LAUNCH_FAILED);
}

std::vector<Address> uses(const Launch& launch) {
    std::vector<Address> used;
    for (void* const argument : launch.arguments) used.push_back(reinterpret_cast<Address>(argument));
    return used;
}

int32_t read_launch(const KernelNode& node, Launch& launch) {
    bool exists = false;
    for (const auto& [module, owned] : state().modules) {
        for (const auto& [name, function] : module->functions) exists = exists || function.get() == node.function;
    }
    if (!exists) {
        fault("a kernel is launched that does not exist");
        return INVALID_HANDLE;
    }
    const lm_emulated_kernel& kernel = *node.function->kernel;
    const bool one_dimensional =
        node.blocks[1] == 1 && node.blocks[2] == 1 && node.threads[1] == 1 && node.threads[2] == 1;
    if (!one_dimensional || node.blocks[0] == 0 || node.blocks[0] > 2147483647 ||
        node.shared_bytes > static_cast<uint32_t>(node.function->most_requested)) {
        return INVALID_VALUE;
    }
    if (node.shared_bytes != kernel.requested) {
        fault("kernel " + std::string(kernel.name) + " is launched with " + std::to_string(node.shared_bytes) +
              " bytes of shared memory, and needs " + std::to_string(kernel.requested));
    }
    if (node.threads[0] != kernel.threads) {
        fault("kernel " + std::string(kernel.name) + " is launched with " + std::to_string(node.threads[0]) +
              " threads, compiled for " + std::to_string(kernel.threads));
    }
    launch.image = node.function->image;
    launch.kernel = &kernel;
    launch.blocks = node.blocks[0];
    launch.arguments.clear();
    for (uint32_t i = 0; i < kernel.parameters; ++i) {
        void* argument = nullptr;
        memcpy(&argument, node.arguments[i], sizeof(argument));
        if (!on_device(reinterpret_cast<Address>(argument), 1)) {
            fault("argument " + std::to_string(i) + " of kernel " + kernel.name + " does not lie on the device");
        }
        launch.arguments.push_back(argument);
    }
    launch.maps.resize(kernel.maps);
    for (uint32_t i = 0; i < kernel.maps; ++i) {
        memcpy(&launch.maps[i], node.arguments[kernel.parameters + i], sizeof(lm_emulated::TensorMap));
    }
    return SUCCESS;
}

// ---- images ----------------------------------------------------------------------------------------------------------

/// Opens the image that the bytes of a module name.
int32_t load(const char* bytes, Module& module) {
    const std::string mark = "emulated: ";
    if (strncmp(bytes, mark.c_str(), mark.size()) != 0) return NO_BINARY_FOR_GPU;  // for real GPUs
    std::string error;
    module.image = state().device.load(bytes + mark.size(), error);
    if (module.image != nullptr) return SUCCESS;
    fault("an image cannot be opened: " + error);
    return INVALID_IMAGE;
}

}  // namespace
