// Runs kernels of a GPU on the CPU, one thread after the other, and looks at every access to memory.
//
// The threads of a block are fibers: each runs until it waits for others. When none can go on, those that wait for each
// other are let go together; where some wait for threads that will never come, that is a fault. Kernels are compiled
// with -fsanitize=thread, which puts a call of __tsan_readN or __tsan_writeN beside every access; those are defined
// here and compare the address with the buffers and shared arrays that exist, and with who touched it since the threads
// last met.
#include "accesses.hpp"

namespace {

// ---- threads ---------------------------------------------------------------------------------------------------------

void wait(State state) {
    Emulator& e = emulator();
    e.current->state = state;
    e.scheduler.resume(e.current->context);
}

void fiber_main() {
    Emulator& e = emulator();
    e.kernel->call(e.arguments, e.block, e.current->thread);
    if (e.current->multiplies()) record("unfinished product", "a thread ends without waiting for it");
    e.current->state = State::finished;
    e.scheduler.resume(e.current->context);
}

std::string some_threads(State state) {
    std::string text;
    size_t count = 0;
    for (const Fiber& fiber : emulator().fibers) {
        if (fiber.state != state) continue;
        if (count++ < 3) text += (text.empty() ? "" : ", ") + std::to_string(fiber.thread);
    }
    return text + (count > 3 ? " and " + std::to_string(count - 3) + " more" : "");
}

/// Whether the barrier at which these threads wait orders accesses to global arrays.
bool all_order_memory(size_t first, size_t end) {
    const std::vector<Fiber>& fibers = emulator().fibers;
    return std::all_of(fibers.begin() + static_cast<ptrdiff_t>(first), fibers.begin() + static_cast<ptrdiff_t>(end),
                       [](const Fiber& fiber) { return fiber.all_memory; });
}

/// Lets the lanes of a warp, or of a group, go that all wait in `state`; whether they did.
bool release_lanes(size_t first, size_t count, State state) {
    std::vector<Fiber>& fibers = emulator().fibers;
    const size_t end = std::min(fibers.size(), first + count);
    for (size_t i = first; i < end; ++i) {
        if (fibers[i].state != state) return false;
    }
    if (state != State::at_warp_barrier) {
        void* given[GROUP];
        for (size_t i = first; i < end; ++i) given[i - first] = fibers[i].given;
        fibers[first].together(given);
    }
    const bool all_memory = all_order_memory(first, end);
    for (size_t i = first; i < end; ++i) {
        fibers[i].state = State::ready;
        if (state != State::at_warp_barrier) continue;
        ++fibers[i].shared_time.warp_epoch;
        fibers[i].global_time.warp_epoch += all_memory;
    }
    return true;
}

/// Lets those go that wait for each other; whether there were any.
bool release() {
    Emulator& e = emulator();
    bool any = false;
    for (size_t first = 0; first < e.fibers.size(); first += WARP) {
        any |= release_lanes(first, WARP, State::together) || release_lanes(first, WARP, State::at_warp_barrier);
    }
    for (size_t first = 0; first < e.fibers.size(); first += GROUP) {
        any |= release_lanes(first, GROUP, State::group_together);
    }
    if (any) return true;
    for (Fiber& fiber : e.fibers) {
        if (fiber.state != State::at_arrival) continue;
        const auto arrival = e.arrivals.find(fiber.arrival);
        if (arrival == e.arrivals.end()) continue;
        if (arrival->second.phase % 2 == fiber.parity && !arrival->second.ends()) continue;
        fiber.state = State::ready;
        any = true;
    }
    if (any) return true;
    for (const Fiber& fiber : e.fibers) {
        if (fiber.state != State::at_barrier) return false;
    }
    const bool all_memory = all_order_memory(0, e.fibers.size());
    for (Fiber& fiber : e.fibers) {
        fiber.state = State::ready;
        ++fiber.shared_time.epoch;
        fiber.global_time.epoch += all_memory;
    }
    return true;
}

void run_block() {
    Emulator& e = emulator();
    for (Memory* memory : e.touched) std::fill(memory->cells.begin(), memory->cells.end(), Cell{});
    for (Memory* memory : e.touched) memory->touched = false;
    e.touched.clear();
    e.arrivals.clear();
    for (Fiber& fiber : e.fibers) {
        fiber.state = State::ready;
        fiber.shared_time = fiber.global_time = {};
        fiber.arrivals = 0;
        fiber.seen.clear();
        fiber.copies.clear();
        fiber.groups.clear();
        fiber.products.clear();
        fiber.sets.clear();
        fiber.fenced = false;
        fiber.context.begin(fiber_main, fiber.stack.get(), STACK_BYTES);
    }
    while (!e.stopped) {
        bool all_finished = true;
        for (Fiber& fiber : e.fibers) {
            if (fiber.state == State::ready && !e.stopped) {
                e.current = &fiber;
                fiber.context.resume(e.scheduler);
                e.current = nullptr;
            }
            all_finished &= fiber.state == State::finished;
        }
        if (e.stopped || all_finished) return;
        const bool ready = std::any_of(e.fibers.begin(), e.fibers.end(),
                                       [](const Fiber& fiber) { return fiber.state == State::ready; });
        if (ready || release()) continue;
        const bool warp = std::any_of(e.fibers.begin(), e.fibers.end(), [](const Fiber& fiber) {
            return fiber.state == State::together || fiber.state == State::at_warp_barrier ||
                   fiber.state == State::group_together;
        });
        const bool arrival = std::any_of(e.fibers.begin(), e.fibers.end(),
                                         [](const Fiber& fiber) { return fiber.state == State::at_arrival; });
        if (arrival) {
            record("missing arrival", "threads " + some_threads(State::at_arrival) + " wait for boxes that do not come");
        } else if (warp) {
            record("missing lanes", "threads " + some_threads(State::together) + some_threads(State::at_warp_barrier) +
                                        some_threads(State::group_together) +
                                        " wait for lanes of their warps that do not come");
        } else {
            record("divergent barrier", "threads " + some_threads(State::at_barrier) + " wait at a barrier, and " +
                                            some_threads(State::finished) + " have ended");
        }
        e.stopped = true;
    }
}

}  // namespace

extern "C" {

// ---- what the device headers call ------------------------------------------------------------------------------------

uint32_t lm_emulated_block(void) { return emulator().block; }
uint32_t lm_emulated_thread(void) { return emulator().current->thread; }
int32_t lm_emulated_lane(void) { return static_cast<int32_t>(emulator().current->thread % WARP); }

void lm_emulated_barrier(int32_t all_memory) {
    emulator().current->all_memory = all_memory != 0;
    wait(State::at_barrier);
}
void lm_emulated_warp_barrier(int32_t all_memory) {
    emulator().current->all_memory = all_memory != 0;
    wait(State::at_warp_barrier);
}

void lm_emulated_together(void* mine, void (*together)(void* const* lanes)) {
    Fiber& fiber = *emulator().current;
    fiber.given = mine;
    fiber.together = together;
    wait(State::together);
}

void lm_emulated_group_together(void* mine, void (*together)(void* const* lanes)) {
    Fiber& fiber = *emulator().current;
    fiber.given = mine;
    fiber.together = together;
    wait(State::group_together);
}

void lm_emulated_access(const void* p, uint32_t bytes) {
    if (reinterpret_cast<uintptr_t>(p) % bytes != 0) {
        stop("misaligned access", std::to_string(bytes) + " bytes at " + near(reinterpret_cast<uintptr_t>(p)));
    }
}

void lm_emulated_copy_async(void* shared, const void* global, uint32_t bytes) {
    lm_emulated_access(shared, bytes);
    if (global != nullptr) touch(reinterpret_cast<uintptr_t>(global), bytes, false, false);
    // Until it arrives, there is no value to read.
    if (Memory* memory = find(reinterpret_cast<uintptr_t>(shared), bytes)) {
        touch(reinterpret_cast<uintptr_t>(shared), bytes, true, false);
        for (uint32_t i = 0; i < bytes; i += 4) {
            memory->cells[(reinterpret_cast<uintptr_t>(shared) - memory->begin + i) / 4].written = 0;
        }
    }
    emulator().current->copies.push_back({shared, global, bytes});
}

void lm_emulated_copy_commit(void) {
    Fiber& fiber = *emulator().current;
    fiber.groups.push_back(std::move(fiber.copies));
    fiber.copies.clear();
}

void lm_emulated_copy_wait(uint32_t groups) {
    Fiber& fiber = *emulator().current;
    while (fiber.groups.size() > groups) {
        arrive(fiber.groups.front());
        fiber.groups.erase(fiber.groups.begin());
    }
}

void lm_emulated_share(void) { ++emulator().current->shares; }

void lm_emulated_product_fence(void) {
    Fiber& fiber = *emulator().current;
    fiber.used.resize(STACK_BYTES / 4);
    fiber.fenced = true;
    ++fiber.fences;
}

float* lm_emulated_product(float* sum, uint32_t elements) {
    Fiber& fiber = *emulator().current;
    const size_t first = (reinterpret_cast<uintptr_t>(sum) - reinterpret_cast<uintptr_t>(fiber.stack.get())) / 4;
    bool used = !fiber.fenced;
    for (size_t i = first; i < first + elements && !used; ++i) used = fiber.used[i] == fiber.fences;
    if (used) record("unfenced product", "its sums were used, and no fence follows");
    fiber.products.push_back({sum, std::vector<float>(elements), {}});
    return fiber.products.back().added.data();
}

void lm_emulated_product_read(const void* p, uint32_t) {
    Emulator& e = emulator();
    const uintptr_t address = reinterpret_cast<uintptr_t>(p);
    lm_emulated_access(p, Product::PART);
    touch(address, Product::PART, false, false);
    Cell* const cells = cells_of(p);
    if (cells == nullptr) {
        stop("out-of-bounds", "a product reads " + near(address));
        return;
    }
    for (uint32_t i = 0; i < Product::PART / 4; ++i) {
        const Cell::Touch& writer = cells[i].writer;
        const Fiber& by = e.fibers[writer.thread % e.kernel->threads];
        if (writer.launch == e.launch && by.shares == writer.shares) {
            record("unshared write", "thread " + std::to_string(by.thread) + " wrote " + describe(*find(address, 4), address) +
                                         ", which a product reads, and has not shared it");
        }
        ++cells[i].multiplied;
    }
    e.current->products.back().reads.push_back(p);
}

void lm_emulated_product_commit(void) {
    Fiber& fiber = *emulator().current;
    fiber.sets.push_back(std::move(fiber.products));
    fiber.products.clear();
}

void lm_emulated_product_wait(uint32_t sets) {
    Fiber& fiber = *emulator().current;
    while (fiber.sets.size() > sets) {
        finish(fiber.sets.front());
        fiber.sets.erase(fiber.sets.begin());
    }
}

void lm_emulated_arrival_begin(uint64_t* arrival, uint32_t threads) {
    emulator().arrivals[arrival] = {};
    emulator().arrivals[arrival].threads = threads;
}

void lm_emulated_arrival_expect(uint64_t* arrival, uint32_t bytes) {
    Arrival& of = emulator().arrivals[arrival];
    if (of.ends()) phase_ended(arrival, of.phase % 2);  // nobody has waited for it
    of.expected += bytes;
}

void lm_emulated_arrival(uint64_t* arrival) {
    Emulator& e = emulator();
    Fiber& fiber = *e.current;
    Arrival& of = e.arrivals[arrival];
    if (of.ends()) phase_ended(arrival, of.phase % 2);  // nobody has waited for it
    if (++of.arrived > of.threads) {
        stop("too many arrivals", "at " + near(reinterpret_cast<uintptr_t>(arrival)) + ", in one of its phases");
    }
    ++fiber.arrivals;
    see(of.seen, fiber.seen);
    of.seen.resize(e.fibers.size());
    of.seen[fiber.thread] = std::max(of.seen[fiber.thread], fiber.arrivals);
}

void lm_emulated_arrival_wait(uint64_t* arrival, uint32_t parity) {
    Fiber& fiber = *emulator().current;
    fiber.arrival = arrival;
    fiber.parity = parity;
    while (!phase_ended(arrival, parity)) wait(State::at_arrival);
    see(fiber.seen, emulator().arrivals[arrival].before);
}

void lm_emulated_copy_box(void* shared, const void* map, const int32_t* at, uint64_t* arrival) {
    constexpr uint32_t PANEL = 128, PART = 16, LINES = 8;
    Emulator& e = emulator();
    lm_emulated::TensorMap of;
    memcpy(&of, map, sizeof of);
    if (of.mark != of.MARK) {
        stop("wrong map", "a box of an array that the driver has not described");
        return;
    }
    lm_emulated_access(shared, PANEL * LINES);
    const uint32_t each = PART / of.itemsize;
    Box box;
    for (uint32_t line = 0; line < of.box[1]; ++line) {
        for (uint32_t part = 0; part < PANEL / PART; ++part) {
            std::vector<char> bytes(PART);
            for (uint32_t k = 0; k < each; ++k) {
                uint64_t address = of.address;
                bool inside = true;
                for (uint32_t d = 0; d < of.rank; ++d) {
                    const int64_t i = at[d] + static_cast<int64_t>(d == 0 ? part * each + k : d == 1 ? line : 0);
                    inside &= 0 <= i && static_cast<uint64_t>(i) < of.sizes[d];
                    address += static_cast<uint64_t>(i) * (d == 0 ? of.itemsize : of.strides[d - 1]);
                }
                if (!inside) continue;
                touch(address, of.itemsize, false, false);
                memcpy(bytes.data() + k * of.itemsize, reinterpret_cast<const void*>(address), of.itemsize);
            }
            char* const to = static_cast<char*>(shared) + line * PANEL + (part ^ line % LINES) * PART;
            touch(reinterpret_cast<uintptr_t>(to), PART, true, false);
            Cell* const cells = cells_of(to);
            if (cells == nullptr) return;
            for (uint32_t i = 0; i < PART / 4; ++i) cells[i].written = 0;  // until it arrives
            box.parts.emplace_back(to, std::move(bytes));
        }
    }
    const Fiber& by = *e.current;  // as if it had written the box, and shared it with products
    box.by = {e.launch, e.block * e.kernel->threads + by.thread, by.shared_time, by.arrivals,
              static_cast<uint16_t>(by.shares - 1), 0xF};
    e.arrivals[arrival].bytes += PANEL * of.box[1];
    e.arrivals[arrival].boxes.push_back(std::move(box));
}

// ---- the interface ---------------------------------------------------------------------------------------------------

int lm_emulate(const lm_emulated_kernel* kernel, uint64_t blocks, void* const* arguments) {
    Emulator& e = emulator();
    if (e.anchor == 0) find_shared();
    move_shared();
    e.fault_counts.clear();
    e.kernel = kernel;
    e.arguments = arguments;
    e.stopped = false;
    ++e.launch;
    if (e.fibers.size() != kernel->threads) {
        e.fibers.clear();
        e.fibers.resize(kernel->threads);
        for (uint32_t i = 0; i < kernel->threads; ++i) {
            e.fibers[i].thread = i;
            e.fibers[i].stack.reset(new char[STACK_BYTES]);
        }
    }
    for (uint64_t block = 0; block < blocks && !e.stopped; ++block) {
        e.block = static_cast<uint32_t>(block);
        run_block();
    }
    return !e.fault_counts.empty();
}

void lm_emulate_buffer(void* base, size_t bytes, int written) {
    Emulator& e = emulator();
    Memory memory;
    memory.name = "buffer " + std::to_string(e.unnamed++);
    memory.begin = reinterpret_cast<uintptr_t>(base);
    memory.bytes = bytes;
    memory.cells.resize(bytes / 4 + 1);
    if (written != 0) {
        for (Cell& cell : memory.cells) cell.written = 0xF;
    }
    e.last = nullptr;
    e.buffers[memory.begin] = std::move(memory);
}

void lm_emulate_release(void* base) {
    emulator().last = nullptr;
    emulator().buffers.erase(reinterpret_cast<uintptr_t>(base));
}

void lm_emulate_written(void* begin, size_t bytes) {
    Memory* memory = find(reinterpret_cast<uintptr_t>(begin), bytes);
    if (memory == nullptr) return;
    for (size_t at = reinterpret_cast<uintptr_t>(begin) - memory->begin, end = at + bytes; at < end; ++at) {
        memory->cells[at / 4].written |= static_cast<uint8_t>(1u << at % 4);
    }
}

const char* lm_emulate_faults(void) { return emulator().faults.c_str(); }

// ---- what instrumented code calls ------------------------------------------------------------------------------------

#define ACCESS(bytes)                                                                                             \
    void __tsan_read##bytes(void* p) { touch(reinterpret_cast<uintptr_t>(p), bytes, false, false); }              \
    void __tsan_write##bytes(void* p) { touch(reinterpret_cast<uintptr_t>(p), bytes, true, false); }              \
    void __tsan_volatile_read##bytes(void* p) { touch(reinterpret_cast<uintptr_t>(p), bytes, false, false); }     \
    void __tsan_volatile_write##bytes(void* p) { touch(reinterpret_cast<uintptr_t>(p), bytes, true, false); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
#undef ACCESS
#define UNALIGNED(bytes)                                                                                          \
    void __tsan_unaligned_read##bytes(void* p) { touch(reinterpret_cast<uintptr_t>(p), bytes, false, false); }    \
    void __tsan_unaligned_write##bytes(void* p) { touch(reinterpret_cast<uintptr_t>(p), bytes, true, false); }
UNALIGNED(2)
UNALIGNED(4)
UNALIGNED(8)
UNALIGNED(16)
#undef UNALIGNED

void __tsan_read_range(void* p, size_t bytes) { touch(reinterpret_cast<uintptr_t>(p), bytes, false, false); }
void __tsan_write_range(void* p, size_t bytes) { touch(reinterpret_cast<uintptr_t>(p), bytes, true, false); }

// clang's. Arrays may begin as copies of constants, which lie in the image.
void* __tsan_memset(void* p, int value, size_t bytes) {
    touch(reinterpret_cast<uintptr_t>(p), bytes, true, false);
    return memset(p, value, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
    Dl_info image;
    if (dladdr(from, &image) == 0) touch(reinterpret_cast<uintptr_t>(from), bytes, false, false);
    touch(reinterpret_cast<uintptr_t>(to), bytes, true, false);
    return memmove(to, from, bytes);
}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) { return __tsan_memmove(to, from, bytes); }

void __tsan_init(void) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void) {}

int32_t __tsan_atomic32_fetch_add(volatile int32_t* p, int32_t v, int) {
    touch(reinterpret_cast<uintptr_t>(p), 4, false, true);
    const int32_t before = *p;
    *p = before + v;
    return before;
}
int32_t __tsan_atomic32_load(const volatile int32_t* p, int) {
    touch(reinterpret_cast<uintptr_t>(p), 4, false, true);
    return *p;
}
void __tsan_atomic32_store(volatile int32_t* p, int32_t v, int) {
    touch(reinterpret_cast<uintptr_t>(p), 4, true, true);
    *p = v;
}
int __tsan_atomic32_compare_exchange_strong(volatile int32_t* p, int32_t* expected, int32_t v, int, int) {
    touch(reinterpret_cast<uintptr_t>(p), 4, true, true);
    if (*p == *expected) {
        *p = v;
        return 1;
    }
    *expected = *p;
    return 0;
}

}  // extern "C"
