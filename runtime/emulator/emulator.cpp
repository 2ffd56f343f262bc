// Runs kernels of a GPU on the CPU, one thread after the other, and looks at every access to memory.
//
// The threads of a block are fibers: each runs until it waits for others. When none can go on, those that wait for each
// other are let go together; where some wait for threads that will never come, that is a fault. Kernels are compiled
// with -fsanitize=thread, which puts a call of __tsan_readN or __tsan_writeN beside every access; those are defined
// here and compare the address with the buffers and shared arrays that exist, and with who touched it since the threads
// last met.
#include "emulator.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "tensor_map.hpp"

namespace {

constexpr uint32_t WARP = 32, GROUP = 4 * WARP;
constexpr size_t STACK_BYTES = 64 << 10;
constexpr size_t MOST_FAULTS = 4;  // of each kind that are told of a launch

// ---- who touched what ------------------------------------------------------------------------------------------------

/// When a thread is, between the barriers that its block and its warp have passed.
struct Time {
    uint32_t epoch = 0, warp_epoch = 0;
    bool operator==(const Time& other) const { return epoch == other.epoch && warp_epoch == other.warp_epoch; }
};

/// Four bytes of memory: who wrote and who read them last in this launch, and when. `bytes` of an access is a mask.
struct Cell {
    struct Touch {
        uint32_t launch = 0, thread = 0;
        Time time;
        uint32_t arrivals = 0;  // of the thread so far
        uint16_t shares = 0;  // of the thread that wrote
        uint8_t bytes = 0;
    };
    Touch writer, readers[2];  // two, so that a thread's own reads do not hide another's
    uint8_t written = 0;  // bytes that hold a value
    uint16_t multiplied = 0;  // lanes of products under way that read it
};

struct Memory {
    std::string name;
    uintptr_t begin = 0;
    size_t bytes = 0;
    bool shared = false;
    bool touched = false;  // by the running block, where it is shared
    std::vector<Cell> cells;
};

enum class State { ready, at_barrier, at_warp_barrier, together, group_together, at_arrival, finished };

struct Copy {
    void* to;
    const void* from;
    uint32_t bytes;
};

/// What a lane has of a product of its group that is under way.
struct Product {
    float* sum;
    std::vector<float> added;
    std::vector<const void*> reads;  // of PART bytes each

    static constexpr uint32_t PART = 16;
    bool adds_to(uintptr_t address, size_t bytes) const {
        const uintptr_t begin = reinterpret_cast<uintptr_t>(sum);
        return address < begin + added.size() * sizeof(float) && begin < address + bytes;
    }
};

/// A box on its way into shared memory: parts of 16 bytes and what they hold, none of which is there yet; and the touch of
/// the thread that copies it.
struct Box {
    std::vector<std::pair<char*, std::vector<char>>> parts;
    Cell::Touch by;
};

/// An mbarrier of `threads`: how many of its phase have `arrived`, and `expected` bytes, of which boxes bring `bytes`.
/// `seen` says of each thread of the block after how many of its arrivals those of this phase, and of that before, come.
struct Arrival {
    uint32_t threads = 1;
    uint32_t phase = 0;
    uint32_t arrived = 0;
    uint64_t expected = 0, bytes = 0;
    std::vector<Box> boxes;
    std::vector<uint32_t> seen, before;

    bool ends() const { return arrived == threads && expected == bytes; }
};

struct Fiber {
    lm_emulated::Context context;
    std::unique_ptr<char[]> stack;
    uint32_t thread = 0;
    State state = State::ready;
    bool all_memory = false;  // what the barrier orders at which it waits
    Time shared_time, global_time;
    void* given = nullptr;  // to the lanes of its warp
    void (*together)(void* const* lanes) = nullptr;
    uint32_t arrivals = 0;                 // how often it has arrived
    std::vector<uint32_t> seen;            // of each thread, how many of its arrivals come before what this one does now
    const void* arrival = nullptr;         // for which it waits
    uint32_t parity = 0;
    std::vector<Copy> copies;              // since the last commit
    std::vector<std::vector<Copy>> groups;  // committed, the oldest first
    std::vector<Product> products;            // since the last commit
    std::vector<std::vector<Product>> sets;   // committed, the oldest first
    uint16_t shares = 0;                      // how often it shared with products what it had written
    bool fenced = false;                      // at least once in this block
    uint32_t fences = 1;
    std::vector<uint32_t> used;  // for each four bytes of the stack, after which fence; none before the first

    bool multiplies() const { return !products.empty() || !sets.empty(); }
};

struct Emulator {
    std::map<uintptr_t, Memory> buffers;  // by address
    std::vector<Memory> shared;           // the arrays of all kernels of the image, by place in its thread storage
    uintptr_t anchor = 0;                 // where a variable of that storage was; 0: they are not known yet
    std::vector<Memory*> touched;
    std::string faults;
    std::map<std::string, size_t> fault_counts;  // of the launch, by kind
    size_t unnamed = 0;

    const lm_emulated_kernel* kernel = nullptr;
    void* const* arguments = nullptr;
    uint32_t launch = 0, block = 0;
    std::vector<Fiber> fibers;
    Fiber* current = nullptr;
    lm_emulated::Context scheduler;
    bool stopped = false;
    std::map<const void*, Arrival> arrivals;  // of the running block
    Memory* last = nullptr;  // where the last access was
};

Emulator& emulator() {
    static Emulator one;
    return one;
}

// ---- faults ----------------------------------------------------------------------------------------------------------

void record(const char* kind, const std::string& what) {
    Emulator& e = emulator();
    if (++e.fault_counts[kind] > MOST_FAULTS) return;
    e.faults += std::string(kind) + ": kernel " + (e.kernel != nullptr ? e.kernel->name : "?") + ", block " +
                std::to_string(e.block);
    if (e.current != nullptr) e.faults += ", thread " + std::to_string(e.current->thread);
    e.faults += ": " + what + "\n";
}

/// Records a fault after which the launch cannot go on: the running thread does not return.
void stop(const char* kind, const std::string& what) {
    record(kind, what);
    emulator().stopped = true;
    emulator().scheduler.resume(emulator().current->context);
}

// ---- memory ----------------------------------------------------------------------------------------------------------

/// The name of a variable in a function, from the symbol that a compiler makes of it: `_ZZ3addvE5stage` is `stage`.
std::string own_name(const std::string& symbol) {
    const size_t end = symbol.rfind('E');
    const size_t length = end == std::string::npos ? 0 : strtoul(symbol.c_str() + end + 1, nullptr, 10);
    const size_t start = symbol.find_first_not_of("0123456789", end + 1);
    return length == 0 || start == std::string::npos ? symbol : symbol.substr(start, length);
}

/// The storage of a thread exists once one of its variables has been used.
thread_local volatile char anchor;

/// The shared arrays: thread-local symbols of the image, by name, from its symbol table.
void find_shared() {
    Emulator& e = emulator();
    anchor = 1;
    e.anchor = reinterpret_cast<uintptr_t>(&anchor);
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(lm_emulated_kernels), &info) == 0) return;
    struct Found {
        uintptr_t base, tls;
    } found{reinterpret_cast<uintptr_t>(info.dli_fbase), 0};
    dl_iterate_phdr(
        [](dl_phdr_info* module, size_t, void* argument) {
            Found* wanted = static_cast<Found*>(argument);
            if (module->dlpi_addr != wanted->base) return 0;
            wanted->tls = reinterpret_cast<uintptr_t>(module->dlpi_tls_data);
            return 1;
        },
        &found);
    FILE* file = fopen(info.dli_fname, "rb");
    if (file == nullptr || found.tls == 0) return;
    std::vector<char> image;
    char part[1 << 16];
    for (size_t got; (got = fread(part, 1, sizeof part, file)) > 0;) image.insert(image.end(), part, part + got);
    fclose(file);
    const Elf64_Ehdr* head = reinterpret_cast<const Elf64_Ehdr*>(image.data());
    const Elf64_Shdr* sections = reinterpret_cast<const Elf64_Shdr*>(image.data() + head->e_shoff);
    for (int i = 0; i < head->e_shnum; ++i) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym* symbols = reinterpret_cast<const Elf64_Sym*>(image.data() + sections[i].sh_offset);
        const char* names = image.data() + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
            if (ELF64_ST_TYPE(symbols[s].st_info) != STT_TLS || symbols[s].st_size == 0) continue;
            Memory memory;
            memory.name = own_name(names + symbols[s].st_name);
            memory.begin = found.tls + symbols[s].st_value;
            memory.bytes = symbols[s].st_size;
            memory.shared = true;
            memory.cells.resize((memory.bytes + 3) / 4 + 1);
            e.shared.push_back(std::move(memory));
        }
    }
    std::sort(e.shared.begin(), e.shared.end(), [](const Memory& a, const Memory& b) { return a.begin < b.begin; });
}

/// Each thread of the system has such storage of its own: moves the arrays to that of the one that calls.
void move_shared() {
    Emulator& e = emulator();
    const uintptr_t here = reinterpret_cast<uintptr_t>(&anchor);
    for (Memory& memory : e.shared) memory.begin += here - e.anchor;
    e.anchor = here;
    e.last = nullptr;
}

bool holds(const Memory& memory, uintptr_t address, size_t bytes) {
    return address >= memory.begin && address + bytes <= memory.begin + memory.bytes;
}

Memory* find(uintptr_t address, size_t bytes) {
    Emulator& e = emulator();
    if (e.last != nullptr && holds(*e.last, address, bytes)) return e.last;
    auto after = e.buffers.upper_bound(address);
    if (after != e.buffers.begin()) {
        Memory& memory = std::prev(after)->second;
        if (holds(memory, address, bytes)) return e.last = &memory;
    }
    auto next = std::upper_bound(e.shared.begin(), e.shared.end(), address,
                                 [](uintptr_t a, const Memory& memory) { return a < memory.begin; });
    if (next != e.shared.begin() && holds(*std::prev(next), address, bytes)) return e.last = &*std::prev(next);
    return nullptr;
}

/// What an address is told from: the argument of the kernel that is closest before it in its memory, or where that
/// memory begins.
struct Place {
    std::string name;
    uintptr_t begin;
};

Place place_of(const Memory& memory, uintptr_t address) {
    const Emulator& e = emulator();
    const char* name = nullptr;
    uintptr_t begin = memory.begin;
    for (uint32_t i = 0; !memory.shared && i < e.kernel->parameters; ++i) {
        const uintptr_t argument = reinterpret_cast<uintptr_t>(e.arguments[i]);
        if (argument < begin || argument > address || (name != nullptr && argument == begin)) continue;
        name = e.kernel->names[i];
        begin = argument;
    }
    return {name != nullptr ? name : memory.name, begin};
}

/// The memory that begins closest before an address, for a message.
std::string near(uintptr_t address) {
    Emulator& e = emulator();
    const Memory* best = nullptr;
    auto consider = [&](const Memory& memory) {
        if (memory.begin <= address && (best == nullptr || memory.begin > best->begin)) best = &memory;
    };
    for (const auto& [begin, memory] : e.buffers) consider(memory);
    for (const Memory& memory : e.shared) consider(memory);
    if (best == nullptr || address > best->begin + best->bytes + (1 << 20)) return "an address in no array";
    const Place place = place_of(*best, address);
    return "byte " + std::to_string(address - place.begin) + " of " + place.name + ", whose memory ends at byte " +
           std::to_string(best->begin + best->bytes - place.begin);
}

/// When the running thread is, for accesses to `memory`: barriers of shared memory do not order others.
Time now(const Memory& memory) {
    const Fiber& fiber = *emulator().current;
    return memory.shared ? fiber.shared_time : fiber.global_time;
}

/// Whether a touch by another thread is ordered before the running one: by a barrier since, of the block or of the warp
/// that both belong to, or by an arrival since for which the running one has waited. In memory that blocks share, nothing
/// orders different blocks.
bool ordered(const Cell::Touch& touch, uint32_t self, Time time, uint32_t threads) {
    if (touch.launch != emulator().launch || touch.thread == self) return true;
    if (touch.thread / threads != self / threads) return false;
    if (touch.time.epoch != time.epoch) return true;
    const std::vector<uint32_t>& seen = emulator().current->seen;
    if (!seen.empty() && seen[touch.thread % threads] > touch.arrivals) return true;
    const bool same_warp = touch.thread % threads / WARP == self % threads / WARP;
    return same_warp && touch.time.warp_epoch != time.warp_epoch;
}

std::string describe(const Memory& memory, uintptr_t address) {
    const Place place = place_of(memory, address);
    return "byte " + std::to_string(address - place.begin) + " of " + place.name;
}

/// An access of a thread to its own variables: sums of products may be among them.
void touch_own(Fiber& fiber, uintptr_t address, size_t bytes) {
    if (fiber.used.empty()) return;
    const uintptr_t stack = reinterpret_cast<uintptr_t>(fiber.stack.get());
    for (size_t at = (address - stack) / 4; at <= (address + bytes - 1 - stack) / 4; ++at) fiber.used[at] = fiber.fences;
    if (!fiber.multiplies()) return;
    auto waits = [&](const Product& product) { return product.adds_to(address, bytes); };
    bool any = std::any_of(fiber.products.begin(), fiber.products.end(), waits);
    for (const auto& set : fiber.sets) any |= std::any_of(set.begin(), set.end(), waits);
    if (any) record("unfinished product", "its sums are used before it was waited for");
}

void touch(uintptr_t address, size_t bytes, bool write, bool atomic) {
    Emulator& e = emulator();
    if (e.current == nullptr) return;
    const uintptr_t stack = reinterpret_cast<uintptr_t>(e.current->stack.get());
    if (address - stack < STACK_BYTES) {
        touch_own(*e.current, address, bytes);
        return;
    }
    Memory* memory = find(address, bytes);
    if (memory == nullptr) {
        stop("out-of-bounds", std::string(write ? "a write" : "a read") + " of " + std::to_string(bytes) +
                                  " bytes at " + near(address));
        return;
    }
    if (memory->shared && !memory->touched) {
        memory->touched = true;
        e.touched.push_back(memory);
    }
    const uint32_t threads = e.kernel->threads;
    const uint32_t self = e.block * threads + e.current->thread;
    const Time time = now(*memory);
    while (bytes > 0) {
        Cell& cell = memory->cells[(address - memory->begin) / 4];
        const size_t first = (address - memory->begin) % 4, count = std::min(bytes, 4 - first);
        const uint8_t mask = static_cast<uint8_t>(((1u << count) - 1) << first);
        if (!write && (cell.written & mask) != mask) record("unwritten read", describe(*memory, address));
        if (!atomic) {
            auto racing = [&](const Cell::Touch& other) {
                return (other.bytes & mask) != 0 && !ordered(other, self, time, threads);
            };
            const bool with_write = racing(cell.writer);
            const Cell::Touch* other = with_write ? &cell.writer : nullptr;
            for (const Cell::Touch& reader : cell.readers) {
                if (other == nullptr && write && racing(reader)) other = &reader;
            }
            if (other != nullptr) {
                record("race", describe(*memory, address) + ", which thread " + std::to_string(other->thread % threads) +
                                   " of block " + std::to_string(other->thread / threads) +
                                   (with_write ? " wrote" : " read") + " with no barrier between");
            }
        }
        if (write && cell.multiplied > 0) {
            record("overwritten operand", describe(*memory, address) + ", which a product under way reads");
        }
        if (write) cell.written |= mask;
        if (!atomic) {
            const Cell::Touch& first = cell.readers[0];
            const bool replaced = first.thread == self || ordered(first, self, time, threads);
            Cell::Touch& mine = write ? cell.writer : cell.readers[replaced ? 0 : 1];
            const bool again = mine.launch == e.launch && mine.thread == self && mine.time == time;
            mine = {e.launch, self, time, e.current->arrivals, e.current->shares,
                    static_cast<uint8_t>(again ? mine.bytes | mask : mask)};
        }
        address += count;
        bytes -= count;
    }
}

/// A copy that was in the background arrives.
void arrive(const std::vector<Copy>& copies) {
    for (const Copy& copy : copies) {
        touch(reinterpret_cast<uintptr_t>(copy.to), copy.bytes, true, false);
        if (copy.from == nullptr) {
            memset(copy.to, 0, copy.bytes);
        } else {
            memcpy(copy.to, copy.from, copy.bytes);
        }
    }
}

/// The cells of a part that a product reads; null where it is in no shared array.
Cell* cells_of(const void* part) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(part);
    Memory* memory = find(address, Product::PART);
    return memory == nullptr || !memory->shared ? nullptr : &memory->cells[(address - memory->begin) / 4];
}

/// Products that were under way end: a lane's sums have changed, and what they read may be written again.
void finish(const std::vector<Product>& products) {
    for (const Product& product : products) {
        for (size_t i = 0; i < product.added.size(); ++i) product.sum[i] += product.added[i];
        for (const void* const part : product.reads) {
            touch(reinterpret_cast<uintptr_t>(part), Product::PART, false, false);
            Cell* const cells = cells_of(part);
            for (uint32_t i = 0; i < Product::PART / 4; ++i) --cells[i].multiplied;
        }
    }
}

/// Adds to what is seen of the arrivals of each thread.
void see(std::vector<uint32_t>& seen, const std::vector<uint32_t>& more) {
    if (seen.size() < more.size()) seen.resize(more.size());
    for (size_t i = 0; i < more.size(); ++i) seen[i] = std::max(seen[i], more[i]);
}

/// Whether the phase of that parity of an arrival has ended: it does where nothing is missing any more, and its boxes
/// are there then.
bool phase_ended(const void* at, uint32_t parity) {
    Emulator& e = emulator();
    const auto found = e.arrivals.find(at);
    if (found == e.arrivals.end()) {
        stop("missing arrival", "a wait at " + near(reinterpret_cast<uintptr_t>(at)) + ", where no arrival was begun");
        return false;
    }
    Arrival& arrival = found->second;
    if (arrival.phase % 2 != parity) return true;
    if (!arrival.ends()) return false;
    for (const Box& box : arrival.boxes) {
        for (const auto& [to, bytes] : box.parts) {
            memcpy(to, bytes.data(), bytes.size());
            Cell* const cells = cells_of(to);
            for (uint32_t i = 0; i < bytes.size() / 4; ++i) {
                cells[i].written = 0xF;
                cells[i].writer = box.by;
            }
        }
    }
    arrival = Arrival{arrival.threads, arrival.phase + 1, 0, 0, 0, {}, {}, std::move(arrival.seen)};
    return true;
}

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
