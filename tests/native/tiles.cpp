// Intel's Advanced Matrix Extensions on a processor that lacks them. There, their instructions raise a signal, whose
// handler carries them out: the same machine code runs as on a processor that has them.
//
// Decoding, semantics and faults are those of the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2
// (LDTILECFG, TDPBF16PS, TDPBUSD, TILELOADD, TILERELEASE, TILESTORED, TILEZERO). A fault aborts with a message.
#include <immintrin.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

constexpr int TILES = 8;
constexpr int ROWS = 16;
constexpr int ROW_BYTES = 64;

struct Tile {
    int rows;
    int row_bytes;
    uint8_t data[ROWS][ROW_BYTES];
};

/// The registers of a thread.
struct State {
    bool configured;
    Tile tiles[TILES];
};

thread_local State state;

[[noreturn]] void fail(const char* message) {
    const char* const parts[] = {"emulated tiles: ", message, "\n"};
    for (const char* part : parts) {
        if (write(STDERR_FILENO, part, strlen(part)) < 0) break;
    }
    abort();
}

void expect(bool condition, const char* otherwise) {
    if (!condition) fail(otherwise);
}

// ---- what instructions do -------------------------------------------------------------------------------------------

void configure(const uint8_t* from) {
    State made = {};
    if (from[0] != 0) {
        expect(from[0] == 1, "ldtilecfg: a palette other than 1");
        expect(from[1] == 0, "ldtilecfg: a first row other than 0 is not emulated");
        for (int i = 2; i < 16; ++i) expect(from[i] == 0, "ldtilecfg: a reserved byte that is not zero");
        for (int t = 0; t < 16; ++t) {
            uint16_t row_bytes = 0;
            memcpy(&row_bytes, from + 16 + 2 * t, sizeof(row_bytes));
            const int rows = from[48 + t];
            if (t >= TILES) {
                expect(rows == 0 && row_bytes == 0, "ldtilecfg: a shape of a tile that there is not");
                continue;
            }
            expect(rows <= ROWS, "ldtilecfg: more than 16 rows");
            expect(row_bytes <= ROW_BYTES, "ldtilecfg: rows of more than 64 bytes");
            expect((rows == 0) == (row_bytes == 0), "ldtilecfg: rows without bytes, or bytes without rows");
            made.tiles[t].rows = rows;
            made.tiles[t].row_bytes = row_bytes;
        }
        made.configured = true;
    }
    state = made;
}

Tile& tile(int number) {
    expect(state.configured, "a tile is used before ldtilecfg");
    expect(number < TILES, "a tile that there is not");
    expect(state.tiles[number].rows != 0, "a tile without rows is used");
    return state.tiles[number];
}

void load(Tile& to, const uint8_t* from, int64_t stride) {
    memset(to.data, 0, sizeof(to.data));
    for (int row = 0; row < to.rows; ++row) memcpy(to.data[row], from + row * stride, to.row_bytes);
}

void store(const Tile& from, uint8_t* to, int64_t stride) {
    for (int row = 0; row < from.rows; ++row) memcpy(to + row * stride, from.data[row], from.row_bytes);
}

void check_product(const Tile& sum, const Tile& a, const Tile& b) {
    expect(&sum != &a && &sum != &b && &a != &b, "a product whose tiles are not three");
    expect(sum.row_bytes % 4 == 0 && a.row_bytes % 4 == 0, "a product of rows that end within a group");
    expect(sum.rows == a.rows, "a product whose sums have other rows than a");
    expect(sum.row_bytes == b.row_bytes, "a product whose sums have other columns than b");
    expect(a.row_bytes / 4 == b.rows, "a product whose b has other rows than a has groups");
}

/// What lies beyond the columns and rows of the sums becomes zero.
void clear_rest(Tile& sum) {
    for (int row = 0; row < ROWS; ++row) {
        const int kept = row < sum.rows ? sum.row_bytes : 0;
        memset(sum.data[row] + kept, 0, static_cast<size_t>(ROW_BYTES - kept));
    }
}

float widened(uint32_t group, int half) {
    const uint32_t bits = half == 0 ? group << 16 : group & 0xffff0000;
    float value = 0;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/// Even and odd terms are summed apart, by multiply-adds. To be called while subnormal numbers count as zeros.
__attribute__((noinline)) void multiply_bfloat16(Tile& sum, const Tile& a, const Tile& b) {
    for (int i = 0; i < sum.rows; ++i) {
        float sums[2][ROW_BYTES / 4] = {};
        for (int k = 0; k < b.rows; ++k) {
            uint32_t left = 0;
            uint32_t right[ROW_BYTES / 4];
            memcpy(&left, a.data[i] + 4 * k, sizeof(left));
            memcpy(right, b.data[k], sizeof(right));
            for (int half = 0; half < 2; ++half) {
                for (int j = 0; j < ROW_BYTES / 4; ++j) {
                    sums[half][j] = fmaf(widened(left, half), widened(right[j], half), sums[half][j]);
                }
            }
        }
        float total[ROW_BYTES / 4];
        memcpy(total, sum.data[i], sizeof(total));
        for (int j = 0; j < ROW_BYTES / 4; ++j) total[j] += sums[0][j] + sums[1][j];
        memcpy(sum.data[i], total, sizeof(total));
    }
}

void multiply_bytes(Tile& sum, const Tile& a, const Tile& b) {
    for (int i = 0; i < sum.rows; ++i) {
        uint32_t total[ROW_BYTES / 4];
        memcpy(total, sum.data[i], sizeof(total));
        for (int k = 0; k < b.rows; ++k) {
            for (int j = 0; j < ROW_BYTES / 4; ++j) {
                for (int t = 0; t < 4; ++t) {
                    const int product = a.data[i][4 * k + t] * static_cast<int8_t>(b.data[k][4 * j + t]);
                    total[j] += static_cast<uint32_t>(product);
                }
            }
        }
        memcpy(sum.data[i], total, sizeof(total));
    }
}

// ---- decoding -------------------------------------------------------------------------------------------------------

constexpr int REGISTERS[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

enum Prefix { NONE, P66, PF3, PF2 };

/// An instruction of three opcode bytes and a ModRM byte, with the address that its operand has in memory.
struct Instruction {
    int prefix;
    int opcode;
    int mode;  // 3 where the operand is a register
    int reg;
    int rm;
    int other;  // the register in the prefix
    bool has_index;
    int64_t base;
    int64_t index;  // scaled
    int length;
};

/// Whether there is such an instruction at `at`.
bool decode(const uint8_t* at, const mcontext_t& machine, Instruction& found) {
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84) != 0) return false;  // VEX.128.0F38.W0
    const auto value = [&](int number) { return static_cast<int64_t>(machine.gregs[REGISTERS[number]]); };
    const int index_high = (at[1] & 0x40) != 0 ? 0 : 8;
    const int base_high = (at[1] & 0x20) != 0 ? 0 : 8;
    found = {};
    found.prefix = at[2] & 3;
    found.other = ~at[2] >> 3 & 15;
    found.opcode = at[3];
    found.mode = at[4] >> 6;
    found.reg = (at[4] >> 3 & 7) | ((at[1] & 0x80) != 0 ? 0 : 8);
    found.rm = at[4] & 7;
    const uint8_t* next = at + 5;
    bool relative = false;
    bool absolute = false;
    if (found.mode != 3) {
        if (found.rm == 4) {
            const int number = (*next >> 3 & 7) | index_high;
            found.has_index = number != 4;
            if (found.has_index) found.index = value(number) * (1 << (*next >> 6));
            absolute = found.mode == 0 && (*next & 7) == 5;
            if (!absolute) found.base = value((*next & 7) | base_high);
            ++next;
        } else if (found.mode == 0 && found.rm == 5) {
            relative = true;
        } else {
            found.base = value(found.rm | base_high);
        }
        if (found.mode == 1) {
            found.base += static_cast<int8_t>(*next);
            next += 1;
        } else if (found.mode == 2 || relative || absolute) {
            int32_t displacement = 0;
            memcpy(&displacement, next, sizeof(displacement));
            found.base += displacement;
            next += 4;
        }
    }
    found.length = static_cast<int>(next - at);
    if (relative) found.base += reinterpret_cast<int64_t>(next);
    return true;
}

/// Whether `x` is an instruction of these extensions, which is then done.
bool run(const Instruction& x) {
    const bool in_memory = x.mode != 3;
    uint8_t* const base = reinterpret_cast<uint8_t*>(x.base);
    switch (x.opcode << 8 | x.prefix << 1 | static_cast<int>(in_memory)) {
        case 0x4900 | NONE << 1 | 1:
            if (x.reg != 0) return false;
            configure(base);
            return true;
        case 0x4900 | NONE << 1 | 0:
            if (x.reg != 0 || x.rm != 0) return false;
            state = {};
            return true;
        case 0x4900 | PF2 << 1 | 0:
            if (x.rm != 0) return false;
            memset(tile(x.reg).data, 0, sizeof(Tile::data));
            return true;
        case 0x4b00 | PF2 << 1 | 1:
            expect(x.rm == 4, "a tile is loaded from an address without an index byte");
            load(tile(x.reg), base, x.has_index ? x.index : 0);
            return true;
        case 0x4b00 | PF3 << 1 | 1:
            expect(x.rm == 4, "a tile is stored to an address without an index byte");
            store(tile(x.reg), base, x.has_index ? x.index : 0);
            return true;
        case 0x5c00 | PF3 << 1 | 0:
        case 0x5e00 | P66 << 1 | 0: {
            Tile& sum = tile(x.reg);
            check_product(sum, tile(x.rm), tile(x.other));
            if (x.opcode == 0x5e) {
                multiply_bytes(sum, tile(x.rm), tile(x.other));
            } else {
                _mm_setcsr(0x9fc0);  // subnormal numbers count as zeros, no exceptions, rounding to nearest
                multiply_bfloat16(sum, tile(x.rm), tile(x.other));
            }
            clear_rest(sum);
            return true;
        }
        default: return false;
    }
}

// ---- the signal -----------------------------------------------------------------------------------------------------

struct sigaction before;

/// The return from a handler restores the registers, those of floating-point modes among them.
void handle(int number, siginfo_t*, void* context) {
    mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
    const auto* const at = reinterpret_cast<const uint8_t*>(machine.gregs[REG_RIP]);
    Instruction found;
    if (decode(at, machine, found) && run(found)) {
        machine.gregs[REG_RIP] += found.length;
    } else {
        sigaction(number, &before, nullptr);  // to which the instruction leads again
    }
}

}  // namespace

/// Others take the signal from time to time, as Ray does where it begins: this takes it back.
extern "C" void emulate_tiles() {
    struct sigaction action = {};
    if (sigaction(SIGILL, nullptr, &action) == 0 && action.sa_sigaction == handle) return;
    action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before);
}
