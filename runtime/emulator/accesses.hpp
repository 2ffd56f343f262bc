// What the emulator knows of a launch that it runs (see emulator.cpp): the memory of its kernel, who touched which
// bytes of it and when, the threads of a block, and the faults that were found.
#pragma once

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

}  // namespace
