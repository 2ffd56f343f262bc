// Products that four warps compute together, whose operands lie in shared memory: PTX's wgmma (sm_90a), which runs in
// the background. Where a GPU has none, each warp multiplies its rows by mma.sync, and nothing runs in the background.
#pragma once

#include "luminal/device/fragment_mma.hpp"

#if !defined(LM_METAL) && LM_WARP > 1

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LM_WGMMA 1
#elif defined(LM_CUDA)
#define LM_WITHOUT_WGMMA 1  // under emulation, who compiles kernels may define it
#endif

namespace lm {
inline namespace LM_RUNTIME {

// ---- Matrices in panels -------------------------------------------------------------------------------------------

/// Where element `offset` lies of a matrix with `rows` rows of `row` elements of `size` bytes. A panel has 128 bytes of
/// every row, line by line; the eight parts of line i, of 16 bytes, are at the places p ^ i % 8. (PTX ISA, "Shared Memory
/// Matrix Layout": swizzling of 128 bytes.)
template <int size, int rows, int row> LM_DEVICE int in_panels(int offset) {
    constexpr int wide = 128 / size, part = 16 / size;
    const int line = offset / row, column = offset % row;
    return ((column / wide * rows + line) * wide + column % wide) ^ line % 8 * part;
}

/// Such a matrix of T as an operand: the terms of a sum lie `along_` its rows, or down.
template <class T, int rows, int row, bool along_> struct Panels {
    static_assert(128 % sizeof(T) == 0 && row * sizeof(T) % 128 == 0 && rows % 8 == 0, "whole panels");
    enum { along = along_, wide = 128 / sizeof(T) };

    /// Where the element of that line and term lies, both counted from element `offset`.
    LM_MEMBER int place(int offset, int line, int term) {
        return in_panels<sizeof(T), rows, row>(offset + (along_ ? line * row + term : term * row + line));
    }

    /// Elements from one line to the next, in the matrix, and from one term to the next.
    LM_MEMBER constexpr int line() { return along_ ? row : 1; }
    LM_MEMBER constexpr int term() { return along_ ? 1 : row; }

#if defined(LM_WGMMA)
    /// The operand from element `offset` on, the first of a part in line 0 of eight. PTX ISA, "Matrix Descriptor Format":
    /// bits 0-13 the address, 16-29 from one panel to the next where terms lie down, 32-45 from eight lines to the next
    /// eight, all by 16; 62-63: swizzling of 128 bytes. In such a line no part changes its place, and no address is so
    /// large that what is added would leave its bits.
    LM_MEMBER uint64_t descriptor(const T* first, int offset) {
        constexpr int part = 16 / sizeof(T);
        constexpr uint64_t panels = along_ ? 1 : rows * 128 / 16, lines = 8 * 128 / 16, swizzled = 1;
        const int line = offset / row, column = offset % row;
        const int place = row == wide ? offset : (column / wide * rows + line) * wide + column % wide;
        const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(first));
        return ((address & 0x3ffff) >> 4 | panels << 16 | lines << 32 | swizzled << 62) +
               static_cast<uint32_t>(place / part);
    }
#endif
};

// ---- Fragments ----------------------------------------------------------------------------------------------------

namespace detail {

/// 64 x N sums: each warp has 16 rows. A lane of it has those of N / 8 fragments of mma.m16n8k16, one after the other.
template <int N> struct GroupSums {
    enum { rows = 64, columns = N, depth = 16, elements = N / 2, lanes = 128 };
    LM_MEMBER int row(int lane, int e) { return lane / 32 * 16 + lane % 32 / 4 + 8 * (e / 2 % 2); }
    LM_MEMBER int column(int lane, int e) { return e / 4 * 8 + lane % 4 * 2 + e % 2; }
};

}  // namespace detail

/// wgmma.m64nNk16: operands of T, float16 or bfloat16.
template <class T> struct m64n64k16 : detail::GroupSums<64> { using Element = T; };
template <class T> struct m64n128k16 : detail::GroupSums<128> { using Element = T; };
template <class T> struct m64n256k16 : detail::GroupSums<256> { using Element = T; };

// ---- Products -----------------------------------------------------------------------------------------------------

/// What the thread has written to shared memory so far will be seen by products of groups after the next barrier.
LM_DEVICE void share_with_groups() {
#if defined(LM_WGMMA)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif defined(LM_EMULATED)
    lm_emulated_share();
#endif
}

/// Products may follow that add to sums which the thread has read or written.
LM_DEVICE void group_begin() {
#if defined(LM_WGMMA)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#elif defined(LM_EMULATED)
    lm_emulated_product_fence();
#endif
}

/// Ends a set of products: those that the group has begun since the last set.
LM_DEVICE void group_commit() {
#if defined(LM_WGMMA)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#elif defined(LM_EMULATED)
    lm_emulated_product_commit();
#endif
}

/// Waits until at most the last `sets` of the group's sets are still under way; if that is 0, the N sums may be used.
template <int sets, int N, class Sum> LM_DEVICE void group_wait(Sum sum) {
#if defined(LM_WGMMA)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(sets) : "memory");
    if constexpr (sets == 0) {
        LM_UNROLL for (int e = 0; e < N; ++e) asm volatile("" : "+f"(sum[e])::"memory");  // no use of a sum moves up
    }
#elif defined(LM_EMULATED)
    static_cast<void>(sum);
    lm_emulated_product_wait(sets);
#else
    static_cast<void>(sum);
#endif
}

namespace detail {

#if defined(LM_WGMMA)

#define LM_SUMS_8(e)                                                                                             \
    "+f"(sum[e]), "+f"(sum[e + 1]), "+f"(sum[e + 2]), "+f"(sum[e + 3]), "+f"(sum[e + 4]), "+f"(sum[e + 5]),      \
        "+f"(sum[e + 6]), "+f"(sum[e + 7])
#define LM_SUMS_32(e) LM_SUMS_8(e), LM_SUMS_8(e + 8), LM_SUMS_8(e + 16), LM_SUMS_8(e + 24)
#define LM_REGISTERS_32                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "     \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LM_REGISTERS_64                                                                                        \
    LM_REGISTERS_32                                                                                            \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "   \
    "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LM_REGISTERS_128                                                                                       \
    LM_REGISTERS_64                                                                                            \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "   \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
    "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "   \
    "%121, %122, %123, %124, %125, %126, %127"
/// After the sums come two descriptors, for each operand whether its terms lie down, and whether sums are added to.
#define LM_MULTIPLY(shape, type, registers, adds_to, operands, ...)                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " adds_to ", 0;\nwgmma.mma_async.sync.aligned." shape ".f32." \
                 type "." type " {" registers "}, " operands ";\n}"                                              \
                 : __VA_ARGS__                                                                                   \
                 : "l"(left), "l"(right), "n"(A::along ? 0 : 1), "n"(B::along ? 0 : 1), "r"(int(adds))           \
                 : "memory")
#define LM_MULTIPLY_64(type) \
    LM_MULTIPLY("m64n64k16", type, LM_REGISTERS_32, "%36", "%32, %33, p, 1, 1, %34, %35", LM_SUMS_32(0))
#define LM_MULTIPLY_128(type)                                                                                    \
    LM_MULTIPLY("m64n128k16", type, LM_REGISTERS_64, "%68", "%64, %65, p, 1, 1, %66, %67", LM_SUMS_32(0),        \
                LM_SUMS_32(32))
#define LM_MULTIPLY_256(type)                                                                                    \
    LM_MULTIPLY("m64n256k16", type, LM_REGISTERS_128, "%132", "%128, %129, p, 1, 1, %130, %131", LM_SUMS_32(0),  \
                LM_SUMS_32(32), LM_SUMS_32(64), LM_SUMS_32(96))

/// sum = the product of the operands of two descriptors, added to what it was if it `adds`.
template <class F, class A, class B>
LM_DEVICE void group_multiply(float* sum, uint64_t left, uint64_t right, bool adds) {
    constexpr bool narrow = is_same<typename F::Element, float16>();
    if constexpr (F::columns == 64 && narrow) {
        LM_MULTIPLY_64("f16");
    } else if constexpr (F::columns == 64) {
        LM_MULTIPLY_64("bf16");
    } else if constexpr (F::columns == 128 && narrow) {
        LM_MULTIPLY_128("f16");
    } else if constexpr (F::columns == 128) {
        LM_MULTIPLY_128("bf16");
    } else if constexpr (narrow) {
        LM_MULTIPLY_256("f16");
    } else {
        LM_MULTIPLY_256("bf16");
    }
}

/// The same, where A is in four registers of each lane.
#define LM_MULTIPLY_HELD(shape, type, registers, operands, ...)                                                   \
    asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" registers "}, " operands ";"     \
                 : __VA_ARGS__                                                                                    \
                 : "r"(left.word[0]), "r"(left.word[1]), "r"(left.word[2]), "r"(left.word[3]), "l"(right),        \
                   "n"(B::along ? 0 : 1)                                                                          \
                 : "memory")
#define LM_MULTIPLY_HELD_64(type)                                                                                 \
    LM_MULTIPLY_HELD("m64n64k16", type, LM_REGISTERS_32, "{%32, %33, %34, %35}, %36, 1, 1, 1, %37", LM_SUMS_32(0))
#define LM_MULTIPLY_HELD_128(type)                                                                                \
    LM_MULTIPLY_HELD("m64n128k16", type, LM_REGISTERS_64, "{%64, %65, %66, %67}, %68, 1, 1, 1, %69",              \
                     LM_SUMS_32(0), LM_SUMS_32(32))
#define LM_MULTIPLY_HELD_256(type)                                                                                \
    LM_MULTIPLY_HELD("m64n256k16", type, LM_REGISTERS_128, "{%128, %129, %130, %131}, %132, 1, 1, 1, %133",       \
                     LM_SUMS_32(0), LM_SUMS_32(32), LM_SUMS_32(64), LM_SUMS_32(96))

template <class F, class B> LM_DEVICE void group_multiply_held(float* sum, Words<4> left, uint64_t right) {
    constexpr bool narrow = is_same<typename F::Element, float16>();
    if constexpr (F::columns == 64 && narrow) {
        LM_MULTIPLY_HELD_64("f16");
    } else if constexpr (F::columns == 64) {
        LM_MULTIPLY_HELD_64("bf16");
    } else if constexpr (F::columns == 128 && narrow) {
        LM_MULTIPLY_HELD_128("f16");
    } else if constexpr (F::columns == 128) {
        LM_MULTIPLY_HELD_128("bf16");
    } else if constexpr (narrow) {
        LM_MULTIPLY_HELD_256("f16");
    } else {
        LM_MULTIPLY_HELD_256("bf16");
    }
}

#undef LM_MULTIPLY_HELD_256
#undef LM_MULTIPLY_HELD_128
#undef LM_MULTIPLY_HELD_64
#undef LM_MULTIPLY_HELD
#undef LM_MULTIPLY_256
#undef LM_MULTIPLY_128
#undef LM_MULTIPLY_64
#undef LM_MULTIPLY
#undef LM_REGISTERS_128
#undef LM_REGISTERS_64
#undef LM_REGISTERS_32
#undef LM_SUMS_32
#undef LM_SUMS_8

#elif defined(LM_WITHOUT_WGMMA)

/// The 16 x 16 elements of A, and 16 x 8 of B, from element `offset` on, as lanes hold them for mma.m16n8k16.
template <class A, class T> LM_DEVICE Words<4> rows_of_panels(const T* a, int offset, int lane) {
#if defined(LM_CUDA)
    const int low = lane % 8, line = lane / 8 % 2 * 8, term = lane / 16 * 8;
    const int place = A::along ? A::place(offset, low + line, term) : A::place(offset, line, low + term);
    return load_matrices<4, !A::along>(a + place);
#else
    const LayoutM16N8K16 layout;
    Words<4> r = {};
    for (int e = 0; e < 8; ++e) {
        const T* const element = a + A::place(offset, layout.a_row(lane, e), layout.a_column(lane, e));
        r.word[e / 2] |= static_cast<uint32_t>(element->bits) << 16 * (e % 2);
    }
    return r;
#endif
}
template <class B, class T> LM_DEVICE Words<2> columns_of_panels(const T* b, int offset, int lane) {
#if defined(LM_CUDA)
    const int low = lane % 8, term = lane / 8 % 2 * 8;
    const int place = B::along ? B::place(offset, low, term) : B::place(offset, 0, low + term);
    return load_matrices<2, !B::along>(b + place);
#else
    const LayoutM16N8K16 layout;
    Words<2> r = {};
    for (int e = 0; e < 4; ++e) {
        const T* const element = b + B::place(offset, layout.b_column(lane, e), layout.b_row(lane, e));
        r.word[e / 2] |= static_cast<uint32_t>(element->bits) << 16 * (e % 2);
    }
    return r;
#endif
}

#else

/// Sums are cleared by a product, which is no use of them by the thread.
template <int N> __attribute__((noinline, no_sanitize("thread"))) void clear_by_product(float* sum) {
    for (int e = 0; e < N; ++e) sum[e] = 0.0f;
}

/// Adds the product of the rows of two matrices to the elements of a lane.
template <class F>
__attribute__((no_sanitize("thread"))) inline void add_product(float* result, int lane,
                                                               const float (&left)[F::rows][F::depth],
                                                               const float (&right)[F::columns][F::depth]) {
    for (int e = 0; e < F::elements; ++e) {
        const float* const row = left[F::row(lane, e)];
        const float* const column = right[F::column(lane, e)];
        for (int k = 0; k < F::depth; ++k) result[e] = __builtin_fmaf(row[k], column[k], result[e]);
    }
}

/// What a lane of a group has of a product: where the operands are, and its elements of the result.
template <class F, class A, class B> struct LaneOfGroup {
    using T = typename F::Element;
    const T* a;
    int a_offset;
    const T* b;
    int b_offset;
    float* result;

    __attribute__((no_sanitize("thread"))) static void multiply(void* const* lanes) {
        const LaneOfGroup& all = *static_cast<const LaneOfGroup*>(lanes[0]);
        static float left[F::rows][F::depth], right[F::columns][F::depth];
        for (int k = 0; k < F::depth; ++k) {
            for (int i = 0; i < F::rows; ++i) left[i][k] = decode<T>(all.a[A::place(all.a_offset, i, k)].bits);
            for (int j = 0; j < F::columns; ++j) right[j][k] = decode<T>(all.b[B::place(all.b_offset, j, k)].bits);
        }
        for (int l = 0; l < F::lanes; ++l) {
            add_product<F>(static_cast<const LaneOfGroup*>(lanes[l])->result, l, left, right);
        }
    }
};

/// The same, where the lane holds its elements of A, as for mma.m16n8k16.
template <class F, class B> struct LaneOfHeldGroup {
    using T = typename F::Element;
    Words<4> a;
    const T* b;
    int b_offset;
    float* result;

    __attribute__((no_sanitize("thread"))) static void multiply(void* const* lanes) {
        const LaneOfHeldGroup& all = *static_cast<const LaneOfHeldGroup*>(lanes[0]);
        const LayoutM16N8K16 layout;
        static float left[F::rows][F::depth], right[F::columns][F::depth];
        for (int l = 0; l < F::lanes; ++l) {
            const Words<4> held = static_cast<const LaneOfHeldGroup*>(lanes[l])->a;
            for (int e = 0; e < 8; ++e) {
                const uint16_t bits = static_cast<uint16_t>(held.word[e / 2] >> 16 * (e % 2));
                left[l / 32 * 16 + layout.a_row(l % 32, e)][layout.a_column(l % 32, e)] = decode<T>(bits);
            }
        }
        for (int k = 0; k < F::depth; ++k) {
            for (int j = 0; j < F::columns; ++j) right[j][k] = decode<T>(all.b[B::place(all.b_offset, j, k)].bits);
        }
        for (int l = 0; l < F::lanes; ++l) {
            add_product<F>(static_cast<const LaneOfHeldGroup*>(lanes[l])->result, l, left, right);
        }
    }
};

/// Notes which elements a lane reads: its warp's rows of A and all of B are divided among the lanes, in parts of 16 bytes.
template <class P, class T> LM_DEVICE void read_panels(const T* first, int offset, int lines, int lane) {
    for (int part = lane; part < lines * 2; part += 32) {
        const int line = P::along ? part / 2 : part % (lines / 8) * 8;
        const int term = P::along ? part % 2 * 8 : part / (lines / 8);
        lm_emulated_product_read(first + P::place(offset, line, term), 16);
    }
}

#endif

}  // namespace detail

/// Begins to add the product of F::depth terms to the tile of a group, which has I x J fragments:
///
///     tile[i, j] += sum over k < F::depth of  a[line i, term k] * b[line j, term k]
///
/// `sum` is an array of the lane: its elements of every fragment, one row of fragments after the other. a and b are
/// shared arrays as A and B, which are Panels, say, and their first elements those at the offsets. All lanes of the group
/// call it, with equal arguments but for sum and index, the lane's in its group. Until the product has been waited for,
/// no lane may use its sums, and nobody write what the product reads. Unless it `adds`, the tile is the product.
template <class F, class A, class B, int I, int J, class Sum, class P>
LM_DEVICE void group_tile_step(Sum sum, const P* a, int a_offset, const P* b, int b_offset, int index,
                               bool adds = true) {
    static_assert(is_same<P, typename F::Element>(), "operands of the fragment's type");
    static_cast<void>(index);
    LM_UNROLL for (int i = 0; i < I; ++i) {
        LM_UNROLL for (int j = 0; j < J; ++j) {
            const int top = a_offset + i * F::rows * A::line(), left = b_offset + j * F::columns * B::line();
            const auto added = sum + (i * J + j) * F::elements;
#if defined(LM_WGMMA)
            detail::group_multiply<F, A, B>(added, A::descriptor(a, top), B::descriptor(b, left), adds);
#elif defined(LM_WITHOUT_WGMMA)
            int lane = index % 32;
#if defined(LM_CUDA)
            asm volatile("" : "+r"(lane));  // places of later steps are computed then, not kept in registers until then
#endif
            if (!adds) {
                LM_UNROLL for (int e = 0; e < F::elements; ++e) added[e] = 0.0f;
            }
            const auto rows = detail::rows_of_panels<A>(a, top + index / 32 * 16 * A::line(), lane);
            LM_UNROLL for (int n = 0; n < F::columns / 8; ++n) {
                const auto columns = detail::columns_of_panels<B>(b, left + n * 8 * B::line(), lane);
                m16n8k16<P>::multiply(added + n * 4, rows, columns, lane);
            }
#else
            LM_EMULATED_ACCESS(a, 1024);
            LM_EMULATED_ACCESS(b, 1024);
            float* const result = lm_emulated_product(added, F::elements);
            if (!adds) detail::clear_by_product<F::elements>(added);
            detail::read_panels<A>(a, top + index / 32 * 16 * A::line(), 16, index % 32);
            detail::read_panels<B>(b, left, F::columns, index % 32);
            detail::LaneOfGroup<F, A, B> lane = {a, top, b, left, result};
            lm_emulated_group_together(&lane, detail::LaneOfGroup<F, A, B>::multiply);
#endif
        }
    }
}

/// The same of K * F::depth terms, where each lane holds its elements of A as in a tile of sums: `a` has them from those
/// of the first term on, and a_row from one row of fragments to the next. They are rounded to F's operand type.
template <class F, class B, int I, int J, int K, class P>
LM_DEVICE void held_group_product(float* sum, const float* a, int a_row, const P* b, int b_offset, int index) {
    static_assert(is_same<P, typename F::Element>(), "operands of the fragment's type");
    static_cast<void>(index);
    detail::Words<4> rounded[I][K];
    LM_UNROLL for (int i = 0; i < I; ++i) {
        LM_UNROLL for (int k = 0; k < K; ++k) {
            rounded[i][k] = m16n8k16<P>::rounded_a(a + i * a_row + k * F::depth / 2);
#if defined(LM_WGMMA)
            LM_UNROLL for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(rounded[i][k].word[w])::"memory");
#endif
        }
    }
#if defined(LM_WGMMA)
    // What is done to the sums before is done before the fence.
    LM_UNROLL for (int e = 0; e < I * J * F::elements; ++e) asm volatile("" : "+f"(sum[e])::"memory");
#endif
    group_begin();
    LM_UNROLL for (int k = 0; k < K; ++k) {
        LM_UNROLL for (int i = 0; i < I; ++i) {
            LM_UNROLL for (int j = 0; j < J; ++j) {
                const int right = b_offset + k * F::depth * B::term() + j * F::columns * B::line();
                float* const added = sum + (i * J + j) * F::elements;
#if defined(LM_WGMMA)
                detail::group_multiply_held<F, B>(added, rounded[i][k], B::descriptor(b, right));
#elif defined(LM_WITHOUT_WGMMA)
                const int lane = index % 32;
                LM_UNROLL for (int n = 0; n < F::columns / 8; ++n) {
                    const auto columns = detail::columns_of_panels<B>(b, right + n * 8 * B::line(), lane);
                    m16n8k16<P>::multiply(added + n * 4, rounded[i][k], columns, lane);
                }
#else
                LM_EMULATED_ACCESS(b, 1024);
                float* const result = lm_emulated_product(added, F::elements);
                detail::read_panels<B>(b, right, F::columns, index % 32);
                detail::LaneOfHeldGroup<F, B> lane = {rounded[i][k], b, right, result};
                lm_emulated_group_together(&lane, detail::LaneOfHeldGroup<F, B>::multiply);
#endif
            }
        }
    }
}

}  // namespace LM_RUNTIME
}  // namespace lm

#endif
