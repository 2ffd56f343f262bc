// A stand-in for NVIDIA's driver on machines without a GPU: the functions that luminal/cuda/driver.hpp finds, with
// kernels carried out by the emulator. Built as a shared library, it lies beside a library that is emulated, or its path
// goes into LUMINAL_CUDA_DRIVER.
//
// Where an image for GPUs would be there is text: "emulated: FILE", the image for the emulator that holds the kernels
// (see device.hpp), beside the stand-in.
//
// It is stricter than the real thing. Memory of the device is memory of the host, but what a host program must not do
// is recorded as a fault: calls without a context, handles that are gone, memory that is freed while work that uses it
// is pending. What is put into a stream is carried out when somebody waits for it, so that whoever reads too early reads
// what was there before. Only the default stream works at once, after all others. A kernel in which the emulator finds
// faults fails like one that crashes a GPU, and they are what cuGetErrorString says of it.
//
// LUMINAL_CUDA_FAIL=function:call:result makes that call of a function fail, counted from 1 since the variable was set.
// Functions that give something back or wait do so and then fail, as the driver does that reports errors of earlier work
// there.
#include "cuda_state.hpp"

#include "cuda_work.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

// ---- for libraries that work on streams ------------------------------------------------------------------------------

namespace {

/// Tells GPUs apart: 16 bytes.
std::string uuid(int32_t ordinal) {
    const int64_t parts[2] = {state().settings["machine"], ordinal};
    return {reinterpret_cast<const char*>(parts), sizeof(parts)};
}

}  // namespace

namespace lm_emulated {

bool put_work(void* handle, std::function<bool()> carry_on, const std::vector<const void*>& uses) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    Stream* const stream = find_stream(static_cast<Stream*>(handle), "a library that works on streams");
    if (stream == nullptr) return false;
    std::vector<Address> used;
    for (const void* const memory : uses) used.push_back(reinterpret_cast<Address>(memory));
    put_steps(*stream, std::move(used), std::move(carry_on));
    try_advance(*stream, stream->put);  // so that it reads too early what its stream does not wait for
    return true;
}

bool is_on_device(const void* begin, size_t bytes) { return on_device(reinterpret_cast<Address>(begin), bytes); }

void was_written(void* begin, size_t bytes) { state().device.written(begin, bytes); }

void record_fault(const std::string& text) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    fault(text);
}

std::string current_gpu() {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    return contexts.empty() ? "" : uuid(state().ordinal);
}

}  // namespace lm_emulated

// ---- for tests -------------------------------------------------------------------------------------------------------

/// Changes a setting (see State in cuda_state.hpp); 0 where there is one of that name.
EXPORT int32_t lm_cuda_set(const char* name, int64_t value) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    const auto found = state().settings.find(name);
    if (found == state().settings.end()) return 1;
    found->second = value;
    return 0;
}

EXPORT int64_t lm_cuda_get(const char* name) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    return state().settings.at(name);
}

/// How often a function was called.
EXPORT int64_t lm_cuda_calls(const char* function) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    return state().calls[function];
}

/// What is not given back: memory, modules, streams, events, graphs, contexts.
EXPORT int64_t lm_cuda_objects() {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    State& s = state();
    const size_t memory = s.device.allocations() + s.pinned.size();
    const size_t handles = s.modules.size() + s.streams.size() + s.events.size() + s.graphs.size() + s.executables.size();
    return static_cast<int64_t>(memory + handles) + s.retained;
}

/// What the host program did wrong since the last call, one a line.
EXPORT const char* lm_cuda_faults() {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    State& s = state();
    s.answer.swap(s.faults);
    s.faults.clear();
    return s.answer.c_str();
}

// ---- the driver ------------------------------------------------------------------------------------------------------

EXPORT int32_t cuInit(uint32_t) {
    ENTER("cuInit");
    if (state().settings["devices"] == 0) return NO_DEVICE;
    state().initialised = true;
    return SUCCESS;
}

EXPORT int32_t cuGetErrorName(int32_t result, const char** name) {
    static const std::map<int32_t, const char*> names = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
        {UNKNOWN, "CUDA_ERROR_UNKNOWN"},
    };
    const auto found = names.find(result);
    *name = found != names.end() ? found->second : nullptr;
    return found != names.end() ? SUCCESS : INVALID_VALUE;
}

EXPORT int32_t cuGetErrorString(int32_t result, const char** text) {
    const char* name = nullptr;
    if (cuGetErrorName(result, &name) != SUCCESS) return INVALID_VALUE;
    *text = result == OUT_OF_MEMORY       ? "out of memory"
            : result == NO_DEVICE         ? "no CUDA-capable device is detected"
            : result == NO_BINARY_FOR_GPU ? "no kernel image is available for execution on the device"
            : result == LAUNCH_FAILED     ? state().reason.c_str()
                                          : "an error";
    return SUCCESS;
}

EXPORT int32_t cuDeviceGetCount(int32_t* count) {
    ENTER("cuDeviceGetCount");
    *count = static_cast<int32_t>(state().settings["devices"]);
    return SUCCESS;
}

EXPORT int32_t cuDeviceGet(int32_t* device, int32_t number) {
    ENTER("cuDeviceGet");
    if (number < 0 || number >= state().settings["devices"]) return INVALID_DEVICE;
    *device = number;
    return SUCCESS;
}

EXPORT int32_t cuDeviceGetName(char* name, int32_t size, int32_t) {
    ENTER("cuDeviceGetName");
    strncpy(name, "Emulated GPU", static_cast<size_t>(size) - 1);
    return SUCCESS;
}

EXPORT int32_t cuDeviceGetUuid(char* bytes, int32_t device) {
    ENTER("cuDeviceGetUuid");
    if (device < 0 || device >= state().settings["devices"]) return INVALID_DEVICE;
    uuid(device).copy(bytes, 16);
    return SUCCESS;
}

EXPORT int32_t cuDeviceGetAttribute(int32_t* value, int32_t attribute, int32_t device) {
    ENTER("cuDeviceGetAttribute");
    const int64_t first = state().settings["first_capability"];
    const int32_t capability = static_cast<int32_t>(device == 0 && first != 0 ? first : state().settings["capability"]);
    if (attribute != 75 && attribute != 76 && attribute != 97) return INVALID_VALUE;
    const int32_t requested = static_cast<int32_t>(state().settings["requested"]);
    *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : requested;
    return SUCCESS;
}

EXPORT int32_t cuDevicePrimaryCtxRetain(void** context, int32_t device) {
    ENTER("cuDevicePrimaryCtxRetain");
    ++state().retained;
    state().ordinal = device;
    *context = THE_CONTEXT;
    return SUCCESS;
}

EXPORT int32_t cuDevicePrimaryCtxRelease_v2(int32_t) {
    const Entered entered("cuDevicePrimaryCtxRelease_v2");
    if (--state().retained < 0) fault("a context is released more often than it was retained");
    return entered.result;
}

EXPORT int32_t cuCtxPushCurrent_v2(void* context) {
    ENTER("cuCtxPushCurrent_v2");
    if (context != THE_CONTEXT || state().retained == 0) fault("a context is made current that does not exist");
    contexts.push_back(context);
    return SUCCESS;
}

EXPORT int32_t cuCtxPopCurrent_v2(void** context) {
    ENTER_TO_END("cuCtxPopCurrent_v2");
    *context = contexts.back();
    contexts.pop_back();
    return entered.result;
}

EXPORT int32_t cuCtxSynchronize() {
    ENTER_TO_END("cuCtxSynchronize");
    finish_all();
    return waited(entered.result);
}

EXPORT int32_t cuModuleLoadData(Module** module, const void* bytes) {
    ENTER_IN_CONTEXT("cuModuleLoadData");
    auto made = std::make_unique<Module>();
    const int32_t result = load(static_cast<const char*>(bytes), *made);
    if (result != SUCCESS) return result;
    *module = made.get();
    state().modules[*module] = std::move(made);
    return SUCCESS;
}

EXPORT int32_t cuModuleUnload(Module* module) {
    ENTER_TO_END("cuModuleUnload");
    if (!known(state().modules, module, "cuModuleUnload")) return INVALID_HANDLE;
    state().modules.erase(module);
    return entered.result;
}

EXPORT int32_t cuModuleGetFunction(const Function** function, Module* module, const char* name) {
    ENTER_IN_CONTEXT("cuModuleGetFunction");
    if (!known(state().modules, module, "cuModuleGetFunction")) return INVALID_HANDLE;
    const lm_emulated_kernel* const kernel = module->image->kernel(name);
    if (kernel == nullptr) return NOT_FOUND;
    std::unique_ptr<Function>& found = module->functions[name];
    if (found == nullptr) found = std::make_unique<Function>(Function{module->image, kernel});
    *function = found.get();
    return SUCCESS;
}

/// What the driver requires of an array and a box; every box that is swizzled by 128 bytes has as many along a line.
EXPORT int32_t cuTensorMapEncodeTiled(void* map, int32_t type, uint32_t rank, Address address, const uint64_t* sizes,
                                      const uint64_t* strides, const uint32_t* box, const uint32_t* every,
                                      int32_t interleave, int32_t swizzle, int32_t, int32_t fill) {
    ENTER_IN_CONTEXT("cuTensorMapEncodeTiled");
    lm_emulated::TensorMap made = {};
    made.itemsize = 2;
    const bool known = type == 1 && interleave == 0 && swizzle == 3 && fill == 0;
    bool right = known && reinterpret_cast<uintptr_t>(map) % 64 == 0 && rank >= 2 && rank <= 5 && address % 16 == 0 &&
                 box[0] * made.itemsize == 128;
    for (uint32_t d = 0; right && d < rank; ++d) {
        right = sizes[d] > 0 && sizes[d] <= uint64_t{1} << 32 && box[d] > 0 && box[d] <= 256 && every[d] == 1;
        made.sizes[d] = sizes[d];
        made.box[d] = box[d];
        if (d + 1 == rank) break;
        right &= strides[d] % 16 == 0 && strides[d] > 0 && strides[d] < uint64_t{1} << 40;
        made.strides[d] = strides[d];
    }
    if (!right) return INVALID_VALUE;
    made.address = address;
    made.rank = rank;
    made.mark = made.MARK;
    memcpy(map, &made, sizeof made);
    return SUCCESS;
}

EXPORT int32_t cuFuncSetAttribute(const Function* function, int32_t attribute, int32_t value) {
    ENTER_IN_CONTEXT("cuFuncSetAttribute");
    for (const auto& [module, owned] : state().modules) {
        for (const auto& [name, known] : module->functions) {
            if (known.get() != function) continue;
            if (attribute != 8 || value < 0 || value > state().settings["requested"]) return INVALID_VALUE;
            known->most_requested = value;
            return SUCCESS;
        }
    }
    fault("cuFuncSetAttribute is given a kernel that does not exist");
    return INVALID_HANDLE;
}

EXPORT int32_t cuMemAlloc_v2(Address* address, size_t bytes) {
    ENTER_IN_CONTEXT("cuMemAlloc_v2");
    if (bytes == 0) return INVALID_VALUE;
    void* const memory = state().device.allocate(bytes, 256, state().settings["memory"]);
    if (memory == nullptr) return OUT_OF_MEMORY;
    *address = reinterpret_cast<Address>(memory);
    return SUCCESS;
}

EXPORT int32_t cuMemFree_v2(Address address) {
    ENTER_TO_END("cuMemFree_v2");
    const size_t bytes = state().device.bytes(reinterpret_cast<void*>(address));
    if (bytes == 0) {
        fault("memory of the device is freed that does not exist");
        return INVALID_VALUE;
    }
    for (const auto& [stream, owned] : state().streams) {
        for (const Operation& operation : stream->pending) {
            for (const Address used : operation.uses) {
                if (used - address < bytes) fault("memory of the device is freed while work that uses it is pending");
            }
        }
    }
    state().device.release(reinterpret_cast<void*>(address));
    return entered.result;
}

EXPORT int32_t cuMemAllocHost_v2(void** memory, size_t bytes) {
    ENTER_IN_CONTEXT("cuMemAllocHost_v2");
    if (bytes == 0) return INVALID_VALUE;
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*memory == nullptr) return OUT_OF_MEMORY;
    state().pinned[*memory] = bytes;
    return SUCCESS;
}

EXPORT int32_t cuMemFreeHost(void* memory) {
    ENTER_TO_END("cuMemFreeHost");
    if (state().pinned.erase(memory) == 0) {
        fault("pinned memory is freed that does not exist");
        return INVALID_VALUE;
    }
    free(memory);
    return entered.result;
}

/// Memory that is not pinned is copied before the call returns, as far as its owner can tell.
EXPORT int32_t cuMemcpyHtoDAsync_v2(Address target, const void* source, size_t bytes, Stream* handle) {
    ENTER_IN_CONTEXT("cuMemcpyHtoDAsync_v2");
    Stream* const stream = find_stream(handle, "cuMemcpyHtoDAsync_v2");
    if (stream == nullptr) return INVALID_HANDLE;
    if (!on_device(target, bytes)) return INVALID_VALUE;
    void* const begin = reinterpret_cast<void*>(target);
    if (state().pinned.count(const_cast<void*>(source)) > 0) {
        put(*stream, {target}, [=] {
            memcpy(begin, source, bytes);
            state().device.written(begin, bytes);
        });
    } else {
        const auto* first = static_cast<const unsigned char*>(source);
        put(*stream, {target}, [begin, bytes, copy = std::vector<unsigned char>(first, first + bytes)] {
            memcpy(begin, copy.data(), bytes);
            state().device.written(begin, bytes);
        });
    }
    return SUCCESS;
}

EXPORT int32_t cuMemcpyDtoHAsync_v2(void* target, Address source, size_t bytes, Stream* handle) {
    ENTER_IN_CONTEXT("cuMemcpyDtoHAsync_v2");
    Stream* const stream = find_stream(handle, "cuMemcpyDtoHAsync_v2");
    if (stream == nullptr) return INVALID_HANDLE;
    if (!on_device(source, bytes)) return INVALID_VALUE;
    put(*stream, {source}, [=] { memcpy(target, reinterpret_cast<const void*>(source), bytes); });
    return SUCCESS;
}

EXPORT int32_t cuMemcpyDtoDAsync_v2(Address target, Address source, size_t bytes, Stream* handle) {
    ENTER_IN_CONTEXT("cuMemcpyDtoDAsync_v2");
    Stream* const stream = find_stream(handle, "cuMemcpyDtoDAsync_v2");
    if (stream == nullptr) return INVALID_HANDLE;
    if (!on_device(target, bytes) || !on_device(source, bytes)) return INVALID_VALUE;
    put(*stream, {target, source}, [=] {
        memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
        state().device.written(reinterpret_cast<void*>(target), bytes);
    });
    return SUCCESS;
}

EXPORT int32_t cuMemsetD8Async(Address target, uint8_t value, size_t bytes, Stream* handle) {
    ENTER_IN_CONTEXT("cuMemsetD8Async");
    Stream* const stream = find_stream(handle, "cuMemsetD8Async");
    if (stream == nullptr) return INVALID_HANDLE;
    if (!on_device(target, bytes)) return INVALID_VALUE;
    put(*stream, {target}, [=] {
        memset(reinterpret_cast<void*>(target), value, bytes);
        state().device.written(reinterpret_cast<void*>(target), bytes);
    });
    return SUCCESS;
}

EXPORT int32_t cuStreamCreate(Stream** stream, uint32_t) {
    ENTER_IN_CONTEXT("cuStreamCreate");
    auto made = std::make_unique<Stream>();
    *stream = made.get();
    state().streams[*stream] = std::move(made);
    return SUCCESS;
}

EXPORT int32_t cuStreamDestroy_v2(Stream* stream) {
    ENTER_TO_END("cuStreamDestroy_v2");
    if (!known(state().streams, stream, "cuStreamDestroy_v2")) return INVALID_HANDLE;
    finish(*stream);
    for (const auto& [event, owned] : state().events) {
        if (event->stream == stream) event->stream = nullptr;
    }
    state().streams.erase(stream);
    return entered.result;
}

EXPORT int32_t cuStreamSynchronize(Stream* handle) {
    ENTER_TO_END("cuStreamSynchronize");
    Stream* const stream = find_stream(handle, "cuStreamSynchronize");
    if (stream == nullptr) return INVALID_HANDLE;
    finish(*stream);
    return waited(entered.result);
}

EXPORT int32_t cuStreamQuery(Stream* handle) {
    ENTER_TO_END("cuStreamQuery");
    Stream* const stream = find_stream(handle, "cuStreamQuery");
    if (stream == nullptr) return INVALID_HANDLE;
    return asked(entered.result, try_advance(*stream, stream->put));
}

/// The work that follows waits for the event as it is recorded now.
EXPORT int32_t cuStreamWaitEvent(Stream* handle, Event* event, uint32_t) {
    ENTER_IN_CONTEXT("cuStreamWaitEvent");
    Stream* const stream = find_stream(handle, "cuStreamWaitEvent");
    if (stream == nullptr || !known(state().events, event, "cuStreamWaitEvent")) return INVALID_HANDLE;
    const Event recorded = *event;
    if (recorded.stream == nullptr || recorded.stream == stream) return SUCCESS;
    put_steps(*stream, {}, [recorded] {
        return state().streams.count(recorded.stream) == 0 || try_advance(*recorded.stream, recorded.position);
    });
    return SUCCESS;
}

EXPORT int32_t cuEventCreate(Event** event, uint32_t) {
    ENTER_IN_CONTEXT("cuEventCreate");
    auto made = std::make_unique<Event>();
    *event = made.get();
    state().events[*event] = std::move(made);
    return SUCCESS;
}

EXPORT int32_t cuEventDestroy_v2(Event* event) {
    ENTER_TO_END("cuEventDestroy_v2");
    if (!known(state().events, event, "cuEventDestroy_v2")) return INVALID_HANDLE;
    state().events.erase(event);
    return entered.result;
}

EXPORT int32_t cuEventRecord(Event* event, Stream* handle) {
    ENTER_IN_CONTEXT("cuEventRecord");
    Stream* const stream = find_stream(handle, "cuEventRecord");
    if (stream == nullptr || !known(state().events, event, "cuEventRecord")) return INVALID_HANDLE;
    event->stream = stream;
    event->position = stream->put;
    return SUCCESS;
}

EXPORT int32_t cuEventSynchronize(Event* event) {
    ENTER_TO_END("cuEventSynchronize");
    if (!known(state().events, event, "cuEventSynchronize")) return INVALID_HANDLE;
    if (event->stream != nullptr) advance(*event->stream, event->position);
    return waited(entered.result);
}

EXPORT int32_t cuEventQuery(Event* event) {
    ENTER_TO_END("cuEventQuery");
    if (!known(state().events, event, "cuEventQuery")) return INVALID_HANDLE;
    return asked(entered.result, event->stream == nullptr || try_advance(*event->stream, event->position));
}

EXPORT int32_t cuLaunchKernel(const Function* function, uint32_t blocks_x, uint32_t blocks_y, uint32_t blocks_z,
                              uint32_t threads_x, uint32_t threads_y, uint32_t threads_z, uint32_t shared_bytes,
                              Stream* handle, void** arguments, void** extra) {
    ENTER_IN_CONTEXT("cuLaunchKernel");
    Stream* const stream = find_stream(handle, "cuLaunchKernel");
    if (stream == nullptr) return INVALID_HANDLE;
    const KernelNode node = {function, {blocks_x, blocks_y, blocks_z}, {threads_x, threads_y, threads_z}, shared_bytes,
                             arguments, extra, nullptr, nullptr};
    Launch launch;
    const int32_t result = read_launch(node, launch);
    if (result == SUCCESS) put(*stream, uses(launch), [launch] { carry_out(launch); });
    return result;
}

EXPORT int32_t cuGraphCreate(Graph** graph, uint32_t) {
    ENTER_IN_CONTEXT("cuGraphCreate");
    auto made = std::make_unique<Graph>();
    *graph = made.get();
    state().graphs[*graph] = std::move(made);
    return SUCCESS;
}

EXPORT int32_t cuGraphDestroy(Graph* graph) {
    ENTER_TO_END("cuGraphDestroy");
    if (!known(state().graphs, graph, "cuGraphDestroy")) return INVALID_HANDLE;
    state().graphs.erase(graph);
    return entered.result;
}

/// Nodes that do not wait for the one before are none of this library's.
EXPORT int32_t cuGraphAddKernelNode_v2(const Launch** node, Graph* graph, const Launch* const* dependencies,
                                       size_t count, const KernelNode* parameters) {
    ENTER_IN_CONTEXT("cuGraphAddKernelNode_v2");
    if (!known(state().graphs, graph, "cuGraphAddKernelNode_v2")) return INVALID_HANDLE;
    const bool chained = graph->nodes.empty() ? count == 0 : count == 1 && dependencies[0] == graph->nodes.back().get();
    if (!chained) fault("a kernel of a graph does not wait for the one before");
    auto launch = std::make_unique<Launch>();
    const int32_t result = read_launch(*parameters, *launch);
    if (result != SUCCESS) return result;
    *node = launch.get();
    graph->nodes.push_back(std::move(launch));
    return SUCCESS;
}

EXPORT int32_t cuGraphInstantiateWithFlags(GraphExec** executable, Graph* graph, unsigned long long) {
    ENTER_IN_CONTEXT("cuGraphInstantiateWithFlags");
    if (!known(state().graphs, graph, "cuGraphInstantiateWithFlags")) return INVALID_HANDLE;
    auto made = std::make_unique<GraphExec>();
    for (const auto& node : graph->nodes) {
        made->places[node.get()] = made->nodes.size();
        made->nodes.push_back(std::make_unique<Launch>(*node));
    }
    *executable = made.get();
    state().executables[*executable] = std::move(made);
    return SUCCESS;
}

EXPORT int32_t cuGraphExecKernelNodeSetParams_v2(GraphExec* executable, const Launch* node,
                                                 const KernelNode* parameters) {
    ENTER_IN_CONTEXT("cuGraphExecKernelNodeSetParams_v2");
    if (!known(state().executables, executable, "cuGraphExecKernelNodeSetParams_v2")) return INVALID_HANDLE;
    const auto place = executable->places.find(node);
    if (place == executable->places.end()) return INVALID_VALUE;
    Launch launch;
    const int32_t result = read_launch(*parameters, launch);
    if (result == SUCCESS) *executable->nodes[place->second] = launch;
    return result;
}

/// A launch keeps the arguments that it was made with.
EXPORT int32_t cuGraphLaunch(GraphExec* executable, Stream* handle) {
    ENTER_IN_CONTEXT("cuGraphLaunch");
    Stream* const stream = find_stream(handle, "cuGraphLaunch");
    if (stream == nullptr || !known(state().executables, executable, "cuGraphLaunch")) return INVALID_HANDLE;
    for (const auto& node : executable->nodes) {
        put(*stream, uses(*node), [launch = *node] { carry_out(launch); });
    }
    return SUCCESS;
}

EXPORT int32_t cuGraphExecDestroy(GraphExec* executable) {
    ENTER_TO_END("cuGraphExecDestroy");
    if (!known(state().executables, executable, "cuGraphExecDestroy")) return INVALID_HANDLE;
    state().executables.erase(executable);
    return entered.result;
}
