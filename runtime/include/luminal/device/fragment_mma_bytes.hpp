// Matrix fragments of signed bytes, with exact sums in int32: PTX's mma.sync for integers (sm_80 and later). Tiles scale
// the sum of each block of terms (fragment.hpp).
#pragma once

#include "luminal/device/fragment_mma.hpp"

#if !defined(LM_METAL)

#if LM_WARP > 1

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

#if defined(LM_EMULATED)
/// PTX ISA, "Matrix Fragments for mma.m16n8k16" and "... for mma.m16n8k32", type .s8: a register has four neighbouring
/// terms; element e of lane l is at these places. B has rows and columns exchanged.
struct LayoutOfBytes {
    int a_row(int lane, int e) const { return lane / 4 + 8 * (e / 4 % 2); }
    int a_column(int lane, int e) const { return 4 * (lane % 4) + e % 4 + 16 * (e / 8); }
    int b_row(int lane, int e) const { return 4 * (lane % 4) + e % 4 + 16 * (e / 4); }
    int b_column(int lane, int) const { return lane / 4; }
};
#endif

/// The bits of four bytes, `stride` apart, the first in the low bits.
template <class P> LM_DEVICE uint32_t four_bytes(P p, int stride) {
    uint32_t r = 0;
    LM_UNROLL for (int k = 0; k < 4; ++k) r |= static_cast<uint32_t>(static_cast<uint8_t>(p[k * stride])) << (8 * k);
    return r;
}

/// mma.m16n8k16 and mma.m16n8k32, by Depth: operands of T, int8_t.
template <class T, int Depth> struct FragmentOfBytes : MmaSums {
    enum { depth = Depth, beside = 2 };
    using A = Words<Depth / 8>;
    using B = Words<Depth / 16>;

    /// 16 x Depth elements a[i * row + k * depth]. Where terms lie side by side and rows are a multiple of 16 apart, a is
    /// aligned to 16 bytes, and sixteen elements are loaded at once.
    template <class P> LM_MEMBER A load_a(P a, int row, int depth, int lane) {
        static_assert(is_same<pointed_t<P>, T>(), "an operand of the fragment's type");
#if defined(LM_CUDA)
        const int line = lane % 8 + 8 * (lane / 8 % 2), right = Depth == 32 ? 16 * (lane / 16) : 0;
        if (depth == 1 && row % 16 == 0) return load_matrices<Depth / 8, false>(a + line * row + right);
#else
        if (depth == 1 && row % 16 == 0) LM_EMULATED_ACCESS(a, 16);
#endif
        A r;
        const P corner = a + lane / 4 * row + lane % 4 * 4 * depth;
        LM_UNROLL for (int w = 0; w < Depth / 8; ++w) {
            r.word[w] = four_bytes(corner + w % 2 * 8 * row + w / 2 * 16 * depth, depth);
        }
        return r;
    }

    /// Depth x 8 elements b[k * depth + j * column], likewise.
    template <class P> LM_MEMBER B load_b(P b, int depth, int column, int lane) {
        static_assert(is_same<pointed_t<P>, T>(), "an operand of the fragment's type");
#if defined(LM_CUDA)
        if constexpr (Depth == 32) {
            const int down = 16 * (lane / 8 % 2);
            if (depth == 1 && column % 16 == 0) return load_matrices<2, false>(b + lane % 8 * column + down);
        }
#else
        if (depth == 1 && column % 16 == 0) LM_EMULATED_ACCESS(b, 16);
#endif
        B r;
        const P corner = b + lane / 4 * column + lane % 4 * 4 * depth;
        LM_UNROLL for (int w = 0; w < Depth / 16; ++w) r.word[w] = four_bytes(corner + w * 16 * depth, depth);
        return r;
    }

    /// That and the Depth x 8 elements beside it, from column 8 on.
    template <class P> LM_MEMBER void load_two_of_b(B& left, B& right, P b, int depth, int column, int lane) {
#if defined(LM_CUDA)
        if (depth == 1 && column % 16 == 0) {
            const int across = lane % 8 + 8 * (lane / (Depth / 2) % 2), down = Depth == 32 ? 16 * (lane / 8 % 2) : 0;
            const Words<Depth / 8> both = load_matrices<Depth / 8, false>(b + across * column + down);
            LM_UNROLL for (int w = 0; w < Depth / 16; ++w) {
                left.word[w] = both.word[w];
                right.word[w] = both.word[Depth / 16 + w];
            }
            return;
        }
#endif
        left = load_b(b, depth, column, lane);
        right = load_b(b + 8 * column, depth, column, lane);
    }

    /// sum[e] = added[e] + the product's element e; both are arrays of the lane.
    LM_MEMBER void multiply(int32_t* sum, A a, B b, const int32_t* added, int lane) {
        static_cast<void>(lane);
#if defined(LM_CUDA)
        if constexpr (Depth == 32) {
            asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                         "{%8, %9}, {%10, %11, %12, %13};"
                         : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
                         : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
                           "r"(b.word[1]), "r"(added[0]), "r"(added[1]), "r"(added[2]), "r"(added[3]));
        } else {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                         "{%7, %8, %9, %10};"
                         : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
                         : "r"(a.word[0]), "r"(a.word[1]), "r"(b.word[0]), "r"(added[0]), "r"(added[1]),
                           "r"(added[2]), "r"(added[3]));
        }
#else
        int32_t left[Depth / 2], right[Depth / 4];
        for (int e = 0; e < Depth / 2; ++e) left[e] = static_cast<int8_t>(a.word[e / 4] >> (8 * (e % 4)));
        for (int e = 0; e < Depth / 4; ++e) right[e] = static_cast<int8_t>(b.word[e / 4] >> (8 * (e % 4)));
        LM_UNROLL for (int e = 0; e < 4; ++e) sum[e] = added[e];
        emulated_product<FragmentOfBytes, LayoutOfBytes>(sum, left, right);
#endif
    }
};

}  // namespace detail

template <class T> struct m16n8k32 : detail::FragmentOfBytes<T, 32> {};
template <> struct m16n8k16<int8_t> : detail::FragmentOfBytes<int8_t, 16> {};

}  // namespace LM_RUNTIME
}  // namespace lm

#endif

#endif
