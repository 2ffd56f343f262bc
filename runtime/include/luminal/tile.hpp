// A tile of a contraction: an outer product summed over steps, in registers.
#pragma once

#include "luminal/digits.hpp"
#include "luminal/simd.hpp"

#define LM_NOINLINE __attribute__((noinline))

namespace lm {
inline namespace LM_RUNTIME {

/// Sums of products of type T: Rows x (Vectors * Lanes). Loops over registers are unrolled, so that each sum is one.
template <class T, int Rows, int Vectors, int Lanes> class Tile {
  public:
    LM_INLINE Tile() {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) sum_[i][j] = broadcast<Lanes>(compute_t<T>{});
        }
    }

    /// sum[i, j] += a[i * a_row] * b[j]
    template <class A, class B> LM_INLINE void step(const A* a, int64_t a_row, const B* b) {
        vec<T, Lanes> right[Vectors];
#pragma GCC unroll 64
        for (int j = 0; j < Vectors; ++j) right[j] = convert<compute_t<T>>(load<Lanes>(b + j * Lanes));
        multiply(a, a_row, right);
    }

    /// sum[i, j] += a[i * a_row] * right[j]
    template <class A> LM_INLINE void multiply(const A* a, int64_t a_row, const vec<T, Lanes> (&right)[Vectors]) {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
            const vec<T, Lanes> left = broadcast<Lanes>(convert<compute_t<T>>(load<1>(a + i * a_row)));
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) sum_[i][j] = multiply_add(left, right[j], sum_[i][j]);
        }
    }

    /// The row of b for a later step, into the cache.
    template <class B> LM_INLINE static void fetch(const B* b) {
#pragma GCC unroll 64
        for (int j = 0; j < Vectors * Lanes; j += 64 / static_cast<int>(sizeof(B))) prefetch(b + j);
    }

    /// tile[i * row + j] = sum[i, j]
    LM_INLINE void store(T* tile, int64_t row) const {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) lm::store(tile + i * row + j * Lanes, sum_[i][j]);
        }
    }

    /// tile[i * row + j] += sum[i, j], and the sums start again at zero.
    LM_INLINE void move_to(T* tile, int64_t row) {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) {
                T* const place = tile + i * row + j * Lanes;
                lm::store(place, add(load<Lanes>(place), sum_[i][j]));
                sum_[i][j] = broadcast<Lanes>(compute_t<T>{});
            }
        }
    }

    /// tile[i * row + j] += sum[i, j] * right[j], and the sums start again at zero.
    LM_INLINE void move_to(T* tile, int64_t row, const vec<T, Lanes> (&right)[Vectors]) {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) {
                T* const place = tile + i * row + j * Lanes;
                lm::store(place, multiply_add(sum_[i][j], right[j], load<Lanes>(place)));
                sum_[i][j] = broadcast<Lanes>(compute_t<T>{});
            }
        }
    }

  private:
    LM_INLINE static vec<T, Lanes> multiply_add(vec<T, Lanes> a, vec<T, Lanes> b, vec<T, Lanes> c) {
        if constexpr (is_float<vec<T, Lanes>>) return fma(a, b, c);
        else return add(c, mul(a, b));
    }

    vec<T, Lanes> sum_[Rows][Vectors];
};

}  // namespace LM_RUNTIME
}  // namespace lm
