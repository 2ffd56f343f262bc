// A tile of a contraction on the matrix unit of an x86-64 processor: Intel's Advanced Matrix Extensions.
#pragma once

#include <string.h>

#include <utility>

#include "luminal/simd.hpp"
#include "luminal/tile.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// sum[i, j] += the sum over k of a[i][k] * b[k / 2][j][k % 2], in float, where subnormals count as zeros.
struct tdpbf16ps {
    using left = bfloat16;
    using right = bfloat16;
    using sum = float;
    /// In registers of these numbers.
    template <int Sum, int Left, int Right> LM_INLINE static void add() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Left), "i"(Right) : "memory");
    }
};

/// sum[i, j] += the sum over k of a[i][k] * b[k / 4][j][k % 4], in integers that wrap.
struct tdpbusd {
    using left = uint8_t;
    using right = int8_t;
    using sum = int32_t;
    /// In registers of these numbers.
    template <int Sum, int Left, int Right> LM_INLINE static void add() {
        asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Left), "i"(Right) : "memory");
    }
};

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

    /// Shapes for tiles of `rows` rows, `wide` registers of sums side by side, and steps of `groups` groups of terms, of
    /// 4 bytes each. In order come the sums, row by row; what a step reads of a; and those through which b passes.
    LM_INLINE void shape(int64_t rows, int wide, int groups) {
        if (rows != rows_ || wide != wide_ || groups != groups_) set(rows, wide, groups);
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

    LM_NOINLINE void set(int64_t rows, int wide, int groups) {
        Shapes shapes;
        const int64_t high = (rows + SIDE - 1) / SIDE;
        for (int64_t i = 0; i < high; ++i) {
            const int64_t height = i + 1 < high ? SIDE : rows - SIDE * i;
            for (int64_t j = 0; j < wide; ++j) shapes.set(i * wide + j, height, BYTES);
            shapes.set(high * wide + i, height, 4 * groups);
        }
        for (int64_t r = high * wide + high; r < COUNT; ++r) shapes.set(r, groups, BYTES);
        asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
        rows_ = rows;
        wide_ = wide;
        groups_ = groups;
    }

    int64_t rows_ = 0;
    int wide_ = 0;
    int groups_ = 0;
};

/// Sums of products by the instruction Product: at most 16*High rows and 16*Wide columns, Depth terms at a time, in
/// groups: as many as 4 bytes hold.
///
/// Each instruction says by "memory" what it reads or writes, which the compilers' own functions for them leave out.
template <class Product, int High, int Wide, int Depth> class MatrixTile {
  public:
    using Left = typename Product::left;
    using Right = typename Product::right;
    using Sum = typename Product::sum;

    /// Sums that start at zero, of 16*(High - 1) < rows <= 16*High rows.
    LM_INLINE MatrixTile(MatrixRegisters& registers, int64_t rows) : rows_(rows) {
        registers.shape(rows, Wide, Depth / GROUP);
        clear(std::make_integer_sequence<int, SUMS>());
    }

    /// The sums that `store` left at a tile, to go on with.
    LM_INLINE MatrixTile(MatrixRegisters& registers, int64_t rows, const Sum* tile, int64_t row) : rows_(rows) {
        registers.shape(rows, Wide, Depth / GROUP);
        load_sums(tile, row, std::make_integer_sequence<int, SUMS>());
    }

    /// sum[i, j] += the sum over k < Depth of a[i*a_row + k] * b[k / GROUP][j][k % GROUP]
    LM_INLINE void step(const Left* a, int64_t a_row, const Right* b) {
        load_rows(a, a_row, std::make_integer_sequence<int, High>());
        multiply(b, std::make_integer_sequence<int, Wide>());
    }

    /// A step of which only the first `terms` are added: nothing else is read.
    LM_INLINE void last(const Left* a, int64_t a_row, const Right* b, int64_t terms) {
        alignas(64) Left left[High * SIDE * Depth] = {};
        alignas(64) Right right[Depth * COLUMNS] = {};
        for (int64_t i = 0; i < rows_; ++i) copy(left + i * Depth, a + i * a_row, terms);
        const int64_t rest = terms % GROUP;
        const int64_t whole = (terms - rest) * COLUMNS;
        copy(right, b, whole);
        for (int64_t j = whole; rest != 0 && j < whole + GROUP * COLUMNS; j += GROUP) copy(right + j, b + j, rest);
        step(left, Depth, right);
    }

    /// What lies from b on for later steps, `Lines` cache lines of it, into the cache.
    template <int Lines> LM_INLINE static void fetch(const Right* b) {
#pragma GCC unroll 64
        for (int i = 0; i < Lines; ++i) prefetch(b + GROUP * SIDE * i);
    }

    /// As many lines as a size that is not fixed asks for.
    LM_INLINE static void fetch(const Right* b, int64_t lines) {
        for (int64_t i = 0; i < lines; ++i) prefetch(b + GROUP * SIDE * i);
    }

    /// tile[i*row + j] = sum[i, j]
    LM_INLINE void store(Sum* tile, int64_t row) const {
        store_sums(tile, row, std::make_integer_sequence<int, SUMS>());
    }

  private:
    static constexpr int SIDE = MatrixRegisters::SIDE;
    static constexpr int COLUMNS = Wide * SIDE;
    static constexpr int GROUP = 4 / static_cast<int>(sizeof(Right));
    static constexpr int SUMS = High * Wide;
    static constexpr int RIGHT = SUMS + High;  // the first register through which b passes
    static_assert(RIGHT < MatrixRegisters::COUNT, "a tile that takes more registers than there are");

    template <class T> LM_INLINE static void copy(T* to, const T* from, int64_t count) {
        memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
    }

    template <int R> LM_INLINE static void load(const void* first, int64_t row_bytes) {
        asm volatile("tileloadd (%0, %1, 1), %%tmm%c2" ::"r"(first), "r"(row_bytes), "i"(R) : "memory");
    }

    template <int R> LM_INLINE static void put(void* first, int64_t row_bytes) {
        asm volatile("tilestored %%tmm%c2, (%0, %1, 1)" ::"r"(first), "r"(row_bytes), "i"(R) : "memory");
    }

    template <int R> LM_INLINE static void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(R) : "memory"); }

    template <int... R> LM_INLINE static void clear(std::integer_sequence<int, R...>) { (zero<R>(), ...); }

    template <int... R>
    LM_INLINE static void load_sums(const Sum* tile, int64_t row, std::integer_sequence<int, R...>) {
        (load<R>(tile + R / Wide * SIDE * row + R % Wide * SIDE, 4 * row), ...);
    }

    template <int... R> LM_INLINE static void store_sums(Sum* tile, int64_t row, std::integer_sequence<int, R...>) {
        (put<R>(tile + R / Wide * SIDE * row + R % Wide * SIDE, 4 * row), ...);
    }

    template <int... I>
    LM_INLINE static void load_rows(const Left* a, int64_t row, std::integer_sequence<int, I...>) {
        (load<SUMS + I>(a + I * SIDE * row, static_cast<int64_t>(sizeof(Left)) * row), ...);
    }

    template <int... J> LM_INLINE static void multiply(const Right* b, std::integer_sequence<int, J...>) {
        (column<J>(b, std::make_integer_sequence<int, High>()), ...);
    }

    /// The sums in the column J of registers.
    template <int J, int... I> LM_INLINE static void column(const Right* b, std::integer_sequence<int, I...>) {
        constexpr int right = RIGHT + J % (MatrixRegisters::COUNT - RIGHT);
        load<right>(b + GROUP * J * SIDE, 4 * COLUMNS);
        (Product::template add<I * Wide + J, SUMS + I, right>(), ...);
    }

    int64_t rows_;
};

}  // namespace LM_RUNTIME
}  // namespace lm
