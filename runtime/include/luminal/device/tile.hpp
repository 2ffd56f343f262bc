// A thread's tile of a contraction: an outer product added to sums in registers.
#pragma once

#include "luminal/device/memory.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// a * b + c; floats round once, integers wrap.
template <class T> LM_DEVICE T accumulate(T a, T b, T c) {
    if constexpr (is_float<T>()) {
        return fma(a, b, c);
    } else {
        return add(mul(a, b), c);
    }
}

/// N elements, `stride` apart, converted to T. Neighbours are read four at a time: they are aligned so.
template <class T, int N, class P> LM_DEVICE auto line(P p, int stride) {
    vec<T, N> r;
    if constexpr (N % 4 == 0) {
        if (stride == 1) {
            LM_UNROLL for (int i = 0; i < N; i += 4) {
                const auto four = convert<T>(load<4>(p + i));
                LM_UNROLL for (int j = 0; j < 4; ++j) r.lane[i + j] = four.lane[j];
            }
            return r;
        }
    }
    LM_UNROLL for (int i = 0; i < N; ++i) r.lane[i] = convert<T>(load<1>(p + i * stride));
    return r;
}

}  // namespace detail

/// sum[i * columns + j] += a[i * a_row] * b[j * b_column]
///
/// `sum` is an array of the thread, a and b are shared. Where a stride is 1 and the tile has a multiple of four such
/// elements, the operand is aligned to four elements (16 bytes at most).
template <int rows, int columns, class Sum, class A, class B>
LM_DEVICE void tile_step(Sum sum, A a, int a_row, B b, int b_column) {
    using T = pointed_t<Sum>;
    const auto left = detail::line<T, rows>(a, a_row);
    const auto right = detail::line<T, columns>(b, b_column);
    LM_UNROLL for (int i = 0; i < rows; ++i) {
        LM_UNROLL for (int j = 0; j < columns; ++j) {
            sum[i * columns + j] = detail::accumulate(left.lane[i], right.lane[j], sum[i * columns + j]);
        }
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm
