// A tile of a contraction on the matrix unit of an x86-64 processor: Intel's Advanced Matrix Extensions.
#pragma once

#include <string.h>

#include <utility>

#include "luminal/simd.hpp"
#include "luminal/tile.hpp"

namespace lm {
inline namespace LM_NAMESPACE {

/// The unit's registers and the shapes that they have, of which setting takes longer than a product. The destructor
/// gives them up, so that a thread which is switched out has less to save.
class MatrixRegisters {
  public:
    static constexpr int COUNT = 8;
    static constexpr int SIDE = 16;   // most rows of one
    static constexpr int BYTES = 64;  // most bytes of a row

    MatrixRegisters() = default;
    MatrixRegisters(const MatrixRegisters&) = delete;
    MatrixRegisters& operator=(const MatrixRegisters&) = delete;
    LM_INLINE ~MatrixRegisters() {
        if (rows_ != 0) asm volatile("tilerelease" ::: "memory");
    }

    /// Shapes for tiles of `rows` rows, `wide` registers of sums side by side, and steps of `depth` terms. In order
    /// come the sums, row by row; what a step reads of a; and those through which b passes.
    LM_INLINE void shape(int64_t rows, int wide, int depth) {
        if (rows != rows_ || wide != wide_ || depth != depth_) set(rows, wide, depth);
    }

  private:
    /// The operand of `ldtilecfg`: bytes of a row and number of rows of each register.
    struct alignas(64) Shapes {
        uint8_t palette = 1;
        uint8_t start_row = 0;
        uint8_t reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};

        void set(int64_t r, int64_t its_rows, int64_t its_bytes) {
            rows[r] = static_cast<uint8_t>(its_rows);
            bytes[r] = static_cast<uint16_t>(its_bytes);
        }
    };

    LM_NOINLINE void set(int64_t rows, int wide, int depth) {
        Shapes shapes;
        const int64_t high = (rows + SIDE - 1) / SIDE;
        for (int64_t i = 0; i < high; ++i) {
            const int64_t height = i + 1 < high ? SIDE : rows - SIDE * i;
            for (int64_t j = 0; j < wide; ++j) shapes.set(i * wide + j, height, BYTES);
            shapes.set(high * wide + i, height, 2 * depth);
        }
        for (int64_t r = high * wide + high; r < COUNT; ++r) shapes.set(r, depth / 2, BYTES);
        asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
        rows_ = rows;
        wide_ = wide;
        depth_ = depth;
    }

    int64_t rows_ = 0;
    int wide_ = 0;
    int depth_ = 0;
};

/// Sums in float of products of bfloat16: at most 16*High rows and 16*Wide columns, Depth terms at a time.
///
/// Each instruction says by "memory" what it reads or writes, which the compilers' own functions for them leave out.
template <int High, int Wide, int Depth> class MatrixTile {
  public:
    /// Sums that start at zero, of 16*(High - 1) < rows <= 16*High rows.
    LM_INLINE MatrixTile(MatrixRegisters& registers, int64_t rows) : rows_(rows) {
        registers.shape(rows, Wide, Depth);
        clear(std::make_integer_sequence<int, SUMS>());
    }

    /// The sums that `store` left at a tile, to go on with.
    LM_INLINE MatrixTile(MatrixRegisters& registers, int64_t rows, const float* tile, int64_t row) : rows_(rows) {
        registers.shape(rows, Wide, Depth);
        load_sums(tile, row, std::make_integer_sequence<int, SUMS>());
    }

    /// sum[i, j] += the sum over k < Depth of a[i*a_row + k] * b[k / 2][j][k % 2]
    LM_INLINE void step(const bfloat16* a, int64_t a_row, const bfloat16* b) {
        load_rows(a, a_row, std::make_integer_sequence<int, High>());
        multiply(b, std::make_integer_sequence<int, Wide>());
    }

    /// A step of which only the first `terms` are added: nothing else is read.
    LM_INLINE void last(const bfloat16* a, int64_t a_row, const bfloat16* b, int64_t terms) {
        alignas(64) bfloat16 left[High * SIDE * Depth] = {};
        alignas(64) bfloat16 right[Depth * COLUMNS] = {};
        for (int64_t i = 0; i < rows_; ++i) copy(left + i * Depth, a + i * a_row, terms);
        const int64_t pairs = terms / 2 * 2 * COLUMNS;
        copy(right, b, pairs);
        for (int64_t j = 0; terms % 2 != 0 && j < COLUMNS; ++j) right[pairs + 2 * j] = b[pairs + 2 * j];
        step(left, Depth, right);
    }

    /// What lies from b on for later steps, `Lines` cache lines of it, into the cache.
    template <int Lines> LM_INLINE static void fetch(const bfloat16* b) {
#pragma GCC unroll 64
        for (int i = 0; i < Lines; ++i) prefetch(b + 32 * i);
    }

    /// tile[i*row + j] = sum[i, j]
    LM_INLINE void store(float* tile, int64_t row) const {
        store_sums(tile, row, std::make_integer_sequence<int, SUMS>());
    }

  private:
    static constexpr int SIDE = MatrixRegisters::SIDE;
    static constexpr int COLUMNS = Wide * SIDE;
    static constexpr int SUMS = High * Wide;
    static constexpr int RIGHT = SUMS + High;  // the first register through which b passes
    static_assert(RIGHT < MatrixRegisters::COUNT, "a tile that takes more registers than there are");

    LM_INLINE static void copy(bfloat16* to, const bfloat16* from, int64_t count) {
        memcpy(to, from, static_cast<size_t>(count) * sizeof(bfloat16));
    }

    template <int R> LM_INLINE static void load(const void* first, int64_t row_bytes) {
        asm volatile("tileloadd (%0, %1, 1), %%tmm%c2" ::"r"(first), "r"(row_bytes), "i"(R) : "memory");
    }

    template <int R> LM_INLINE static void put(void* first, int64_t row_bytes) {
        asm volatile("tilestored %%tmm%c2, (%0, %1, 1)" ::"r"(first), "r"(row_bytes), "i"(R) : "memory");
    }

    template <int R> LM_INLINE static void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(R) : "memory"); }

    template <int Sum, int Left, int Right> LM_INLINE static void product() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Left), "i"(Right) : "memory");
    }

    template <int... R> LM_INLINE static void clear(std::integer_sequence<int, R...>) { (zero<R>(), ...); }

    template <int... R>
    LM_INLINE static void load_sums(const float* tile, int64_t row, std::integer_sequence<int, R...>) {
        (load<R>(tile + R / Wide * SIDE * row + R % Wide * SIDE, 4 * row), ...);
    }

    template <int... R> LM_INLINE static void store_sums(float* tile, int64_t row, std::integer_sequence<int, R...>) {
        (put<R>(tile + R / Wide * SIDE * row + R % Wide * SIDE, 4 * row), ...);
    }

    template <int... I>
    LM_INLINE static void load_rows(const bfloat16* a, int64_t row, std::integer_sequence<int, I...>) {
        (load<SUMS + I>(a + I * SIDE * row, 2 * row), ...);
    }

    template <int... J> LM_INLINE static void multiply(const bfloat16* b, std::integer_sequence<int, J...>) {
        (column<J>(b, std::make_integer_sequence<int, High>()), ...);
    }

    /// The sums in the column J of registers.
    template <int J, int... I> LM_INLINE static void column(const bfloat16* b, std::integer_sequence<int, I...>) {
        constexpr int right = RIGHT + J % (MatrixRegisters::COUNT - RIGHT);
        load<right>(b + 2 * J * SIDE, 4 * COLUMNS);
        (product<I * Wide + J, SUMS + I, right>(), ...);
    }

    int64_t rows_;
};

}  // namespace LM_NAMESPACE
}  // namespace lm
