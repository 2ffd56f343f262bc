// Matrix fragments of Apple's GPUs: simdgroup_matrix of 8 x 8 elements.
//
// Metal's documentation does not say which lane holds what; the map was found on devices by others, and MLX and
// llama.cpp build on it: row = (lane / 2) % 4 + 4 * (lane / 16), column = 2 * (lane % 2) + 4 * ((lane / 8) % 2) + e.
#pragma once

#include "luminal/device/emulated_product.hpp"
#include "luminal/device/memory.hpp"

#if !defined(LM_CUDA)

#if LM_WARP > 1

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

#if defined(LM_METAL)
template <class T> struct simdgroup_element { using type = T; };
template <> struct simdgroup_element<float16> { using type = half; };
template <> struct simdgroup_element<bfloat16> { using type = bfloat; };
#endif

/// The first column of a lane's pair, and its row.
LM_DEVICE int simdgroup_row(int lane) { return lane / 2 % 4 + 4 * (lane / 16); }
LM_DEVICE int simdgroup_column(int lane) { return 2 * (lane % 2) + 4 * (lane / 8 % 2); }

#if defined(LM_EMULATED)
/// The same as a table: the row of each lane, and the first of its two columns.
struct SimdgroupLayout {
    int rows[32] = {0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 4, 4, 5, 5, 6, 6, 7, 7};
    int columns[32] = {0, 2, 0, 2, 0, 2, 0, 2, 4, 6, 4, 6, 4, 6, 4, 6, 0, 2, 0, 2, 0, 2, 0, 2, 4, 6, 4, 6, 4, 6, 4, 6};

    int a_row(int lane, int) const { return rows[lane]; }
    int a_column(int lane, int e) const { return columns[lane] + e; }
    int b_row(int lane, int e) const { return a_row(lane, e); }
    int b_column(int lane, int e) const { return a_column(lane, e); }
};
#endif

}  // namespace detail

/// simdgroup_matrix<T, 8, 8>: operands of T, float, float16 or bfloat16. One of an operand's two strides is 1.
template <class T> struct simdgroup8x8 {
    enum { rows = 8, columns = 8, depth = 8, elements = 2, beside = 1 };
    LM_MEMBER int row(int lane, int) { return detail::simdgroup_row(lane); }
    LM_MEMBER int column(int lane, int e) { return detail::simdgroup_column(lane) + e; }

#if defined(LM_METAL)
    using Element = typename detail::simdgroup_element<T>::type;
    using A = metal::simdgroup_matrix<Element, 8, 8>;
    using B = A;

    template <class P> LM_MEMBER A load(P p, int down, int right) {
        A matrix;
        const bool transposed = right != 1;
        metal::simdgroup_load(matrix, detail::as<Element>(p), static_cast<ulong>(transposed ? right : down),
                              0, transposed);
        return matrix;
    }
#else
    struct A { float element[2]; };
    using B = A;

    template <class P> LM_MEMBER A load(P p, int down, int right) {
        if (down != 1 && right != 1) __builtin_trap();
        const int lane = lm_emulated_lane();
        const P first = p + row(lane, 0) * down + column(lane, 0) * right;
        return {{detail::read(first), detail::read(first + right)}};
    }
#endif

    /// 8 x 8 elements a[i * row + k * depth]
    template <class P> LM_MEMBER A load_a(P a, int row, int depth, int) {
        static_assert(is_same<pointed_t<P>, T>(), "an operand of the fragment's type");
        return load(a, row, depth);
    }

    /// 8 x 8 elements b[k * depth + j * column]
    template <class P> LM_MEMBER B load_b(P b, int depth, int column, int) {
        static_assert(is_same<pointed_t<P>, T>(), "an operand of the fragment's type");
        return load(b, depth, column);
    }

    /// sum[e] += the product's element e; `sum` is an array of the lane.
    template <class Sum> LM_MEMBER void multiply(Sum sum, A a, B b, int lane) {
        static_cast<void>(lane);
#if defined(LM_METAL)
        metal::simdgroup_float8x8 total;
        total.thread_elements()[0] = sum[0];
        total.thread_elements()[1] = sum[1];
        metal::simdgroup_multiply_accumulate(total, a, b, total);
        sum[0] = total.thread_elements()[0];
        sum[1] = total.thread_elements()[1];
#else
        detail::emulated_product<simdgroup8x8, detail::SimdgroupLayout>(sum, a.element, b.element);
#endif
    }
};

}  // namespace LM_RUNTIME
}  // namespace lm

#endif

#endif
