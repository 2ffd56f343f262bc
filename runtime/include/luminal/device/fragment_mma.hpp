// Matrix fragments of NVIDIA's tensor cores: PTX's mma.sync (sm_80 and later).
#pragma once

#include "luminal/device/emulated_product.hpp"
#include "luminal/device/memory.hpp"

#if !defined(LM_METAL)

#if LM_WARP > 1

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// The registers of one lane.
template <int N> struct Words { uint32_t word[N]; };

/// The bits of two neighbouring elements of a half type, the first in the low half.
template <class P> LM_DEVICE uint32_t pair(P p, int stride) {
    return static_cast<uint32_t>(p->bits) | static_cast<uint32_t>((p + stride)->bits) << 16;
}

/// The bits of two floats rounded to T, a half type, the first in the low half.
template <class T> LM_DEVICE uint32_t rounded_pair(float low, float high) {
#if defined(LM_CUDA)
    uint32_t bits;
    if constexpr (is_same<T, float16>()) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    }
    return bits;
#else
    return static_cast<uint32_t>(encode<T>(low)) | static_cast<uint32_t>(encode<T>(high)) << 16;
#endif
}

#if defined(LM_CUDA)
/// N matrices of 8 x 8 half elements, a row at the address that one lane gives: lanes 8i .. 8i+7 for matrix i. Lane l
/// receives elements 2*(l % 4) and 2*(l % 4) + 1 of row l / 4; with `transposed`, of column l / 4.
template <int N, bool transposed, class P> LM_DEVICE Words<N> load_matrices(P row) {
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    Words<N> r;
    if constexpr (N == 4 && transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r.word[0]), "=r"(r.word[1]), "=r"(r.word[2]), "=r"(r.word[3]) : "r"(address) : "memory");
    } else if constexpr (N == 4) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r.word[0]), "=r"(r.word[1]), "=r"(r.word[2]), "=r"(r.word[3]) : "r"(address) : "memory");
    } else if constexpr (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r.word[0]), "=r"(r.word[1]) : "r"(address) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r.word[0]), "=r"(r.word[1]) : "r"(address) : "memory");
    }
    return r;
}
#endif

#if defined(LM_EMULATED)
/// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "... for mma.m16n8k8", type .tf32:
/// element e of lane l is at row l / 4 + row_of[e] and column `step` * (l % 4) + column_of[e]; B has rows and columns
/// exchanged.
struct MmaLayout {
    int a_row_of[8], a_column_of[8], b_row_of[4];
    int step;

    int a_row(int lane, int e) const { return lane / 4 + a_row_of[e]; }
    int a_column(int lane, int e) const { return step * (lane % 4) + a_column_of[e]; }
    int b_row(int lane, int e) const { return step * (lane % 4) + b_row_of[e]; }
    int b_column(int lane, int) const { return lane / 4; }
};
struct LayoutM16N8K16 : MmaLayout {
    LayoutM16N8K16() : MmaLayout{{0, 0, 8, 8, 0, 0, 8, 8}, {0, 1, 0, 1, 8, 9, 8, 9}, {0, 1, 8, 9}, 2} {}
};
struct LayoutM16N8K8 : MmaLayout {
    LayoutM16N8K8() : MmaLayout{{0, 8, 0, 8}, {0, 0, 4, 4}, {0, 4}, 1} {}
};
#endif

/// What both shapes share: 16 x 8 sums, of which a lane holds two neighbouring columns in two rows.
struct MmaSums {
    enum { rows = 16, columns = 8, elements = 4 };
    LM_MEMBER int row(int lane, int e) { return lane / 4 + 8 * (e / 2); }
    LM_MEMBER int column(int lane, int e) { return 2 * (lane % 4) + e % 2; }
};

}  // namespace detail

/// mma.m16n8k16: operands of T, float16 or bfloat16.
template <class T> struct m16n8k16 : detail::MmaSums {
    enum { depth = 16, beside = 2 };
    using A = detail::Words<4>;
    using B = detail::Words<2>;

    /// 16 x 16 elements a[i * row + k * depth]. Where one stride is 1 and the other a multiple of 8, a is aligned to 16
    /// bytes, and eight elements are loaded at once.
    template <class P> LM_MEMBER A load_a(P a, int row, int depth, int lane) {
        static_assert(is_same<pointed_t<P>, T>(), "an operand of the fragment's type");
#if defined(LM_CUDA)
        const int line = lane % 8 + 8 * (lane / 8 % 2), right = 8 * (lane / 16);
        if (depth == 1 && row % 8 == 0) return detail::load_matrices<4, false>(a + line * row + right);
        const int term = lane % 8 + 8 * (lane / 16), down = 8 * (lane / 8 % 2);
        if (row == 1 && depth % 8 == 0) return detail::load_matrices<4, true>(a + term * depth + down);
#else
        if ((depth == 1 && row % 8 == 0) || (row == 1 && depth % 8 == 0)) LM_EMULATED_ACCESS(a, 16);
#endif
        const P corner = a + lane / 4 * row + lane % 4 * 2 * depth;
        return {{detail::pair(corner, depth), detail::pair(corner + 8 * row, depth),
                 detail::pair(corner + 8 * depth, depth), detail::pair(corner + 8 * row + 8 * depth, depth)}};
    }

    /// 16 x 8 elements b[k * depth + j * column], likewise.
    template <class P> LM_MEMBER B load_b(P b, int depth, int column, int lane) {
        static_assert(is_same<pointed_t<P>, T>(), "an operand of the fragment's type");
#if defined(LM_CUDA)
        const int down = 8 * (lane / 8 % 2);
        if (depth == 1 && column % 8 == 0) return detail::load_matrices<2, false>(b + lane % 8 * column + down);
        if (column == 1 && depth % 8 == 0) return detail::load_matrices<2, true>(b + (lane % 8 + down) * depth);
#else
        if ((depth == 1 && column % 8 == 0) || (column == 1 && depth % 8 == 0)) LM_EMULATED_ACCESS(b, 16);
#endif
        const P corner = b + lane / 4 * column + lane % 4 * 2 * depth;
        return {{detail::pair(corner, depth), detail::pair(corner + 8 * depth, depth)}};
    }

    /// That and the 16 x 8 elements beside it, from column 8 on.
    template <class P> LM_MEMBER void load_two_of_b(B& left, B& right, P b, int depth, int column, int lane) {
#if defined(LM_CUDA)
        const int down = 8 * (lane / 8 % 2), beside = 8 * (lane / 16);
        const bool lines = depth == 1 && column % 8 == 0;
        if (lines || (column == 1 && depth % 8 == 0)) {
            const detail::Words<4> both =
                lines ? detail::load_matrices<4, false>(b + (lane % 8 + beside) * column + down)
                      : detail::load_matrices<4, true>(b + (lane % 8 + down) * depth + beside);
            left = {{both.word[0], both.word[1]}};
            right = {{both.word[2], both.word[3]}};
            return;
        }
#endif
        left = load_b(b, depth, column, lane);
        right = load_b(b + 8 * column, depth, column, lane);
    }

    /// The 16 x 16 elements that are the lane's, rounded: of two fragments of sums beside each other.
    LM_MEMBER A rounded_a(const float* sums) {
        A a;
        LM_UNROLL for (int i = 0; i < 4; ++i) a.word[i] = detail::rounded_pair<T>(sums[2 * i], sums[2 * i + 1]);
        return a;
    }

    /// sum[e] += the product's element e; `sum` is an array of the lane.
    LM_MEMBER void multiply(float* sum, A a, B b, int lane) {
        static_cast<void>(lane);
#if defined(LM_CUDA)
        if constexpr (is_same<T, float16>()) {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                         "{%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                         : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
                           "r"(b.word[1]));
        } else {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                         "{%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                         : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
                           "r"(b.word[1]));
        }
#else
        float left[8], right[4];
        for (int e = 0; e < 8; ++e) left[e] = decode<T>(static_cast<uint16_t>(a.word[e / 2] >> (16 * (e % 2))));
        for (int e = 0; e < 4; ++e) right[e] = decode<T>(static_cast<uint16_t>(b.word[e / 2] >> (16 * (e % 2))));
        detail::emulated_product<m16n8k16, detail::LayoutM16N8K16>(sum, left, right);
#endif
    }
};

/// mma.m16n8k8 in tf32: operands of T, float, rounded to 11 significant bits (to nearest, ties away from zero).
template <class T> struct m16n8k8_tf32 : detail::MmaSums {
    enum { depth = 8, beside = 1 };
    using A = detail::Words<4>;
    using B = detail::Words<2>;

    /// The bits of v, rounded.
    LM_MEMBER uint32_t round(float v) {
#if defined(LM_CUDA)
        uint32_t r;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
        return r;
#else
        const uint32_t bits = bitcast<uint32_t>(v);
        return abs(v) < infinity<float>() ? (bits + 0x1000) & 0xffffe000 : bits;
#endif
    }

    /// 16 x 8 elements a[i * row + k * depth]
    template <class P> LM_MEMBER A load_a(P a, int row, int depth, int lane) {
        static_assert(is_same<pointed_t<P>, T>(), "an operand of the fragment's type");
        const P corner = a + lane / 4 * row + lane % 4 * depth;
        return {{round(*corner), round(corner[8 * row]), round(corner[4 * depth]), round(corner[8 * row + 4 * depth])}};
    }

    /// 8 x 8 elements b[k * depth + j * column]
    template <class P> LM_MEMBER B load_b(P b, int depth, int column, int lane) {
        static_assert(is_same<pointed_t<P>, T>(), "an operand of the fragment's type");
        const P corner = b + lane / 4 * column + lane % 4 * depth;
        return {{round(*corner), round(corner[4 * depth])}};
    }

    /// sum[e] += the product's element e; `sum` is an array of the lane.
    LM_MEMBER void multiply(float* sum, A a, B b, int lane) {
        static_cast<void>(lane);
#if defined(LM_CUDA)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]), "r"(b.word[1]));
#else
        float left[4], right[2];
        for (int e = 0; e < 4; ++e) left[e] = bitcast<float>(a.word[e]);
        for (int e = 0; e < 2; ++e) right[e] = bitcast<float>(b.word[e]);
        detail::emulated_product<m16n8k8_tf32, detail::LayoutM16N8K8>(sum, left, right);
#endif
    }
};

}  // namespace LM_RUNTIME
}  // namespace lm

#endif

#endif
