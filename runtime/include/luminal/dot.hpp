// A tile of a contraction by dot products: vector instructions that multiply groups of neighbouring terms and add them
// to one sum. Intel's AVX512_BF16 and AVX512_VNNI, and pairs of bytes by AVX2.
#pragma once

#include <string.h>

#include "luminal/simd.hpp"
#include "luminal/tile.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// The operands of an instruction that takes a group of terms, 4 bytes of them, in each of 16 lanes as they lie.
template <class L, class R, class S> struct DotOfFour {
    using left = L;
    using right = R;
    using sum = S;
    static constexpr int LANES = 16;
    static constexpr int GROUP = 4 / static_cast<int>(sizeof(R));
    static constexpr bool SIGNED = false;  // bytes on the left may be signed, too
    using Bits = vec<int32_t, LANES>;  // a group in each lane

    /// A group of a in every lane.
    LM_INLINE static Bits broad(int32_t group) { return broadcast<LANES>(group); }

    /// The groups of all columns.
    LM_INLINE static Bits columns(const R* b) {
        Bits bits;
        memcpy(&bits, b, sizeof(Bits));
        return bits;
    }
    LM_INLINE static Bits columns(vec<R, LANES * GROUP> b) { return copy_bits<Bits>(b); }
};

/// sum[j] += the sum over k < 2 of a[k] * b[j][k], in float, where subnormals count as zeros.
struct vdpbf16ps : DotOfFour<bfloat16, bfloat16, float> {
    template <class V> LM_INLINE static void add(V& total, Bits a, Bits b) {
        asm("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
    }
};

/// sum[j] += the sum over k < 4 of a[k] * b[j][k], in integers that wrap.
struct vpdpbusd : DotOfFour<uint8_t, int8_t, int32_t> {
    template <class V> LM_INLINE static void add(V& total, Bits a, Bits b) {
        asm("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
    }
};

#if defined(__AVX2__)
/// sum[j] += the sum over k < 2 of a[k] * b[j][k], in integers that wrap: bytes are widened to 16 bits as they are read,
/// so that a pair of products and their sum are exact.
struct vpmaddwd {
    using left = uint8_t;
    using right = int8_t;
    using sum = int32_t;
    static constexpr int LANES = 8;
    static constexpr int GROUP = 2;
    static constexpr bool SIGNED = true;
    using Bits = vec<int32_t, LANES>;  // two integers of 16 bits in each lane

    LM_INLINE static Bits broad(int32_t group) {
        return reinterpret_cast<Bits>(_mm256_cvtepu8_epi16(_mm_set1_epi16(static_cast<int16_t>(group))));
    }
    LM_INLINE static Bits broad_signed(int32_t group) {
        return reinterpret_cast<Bits>(_mm256_cvtepi8_epi16(_mm_set1_epi16(static_cast<int16_t>(group))));
    }

    LM_INLINE static Bits columns(const int8_t* b) {
        return columns(load<LANES * GROUP>(b));
    }
    LM_INLINE static Bits columns(vec<int8_t, LANES * GROUP> b) {
        return reinterpret_cast<Bits>(_mm256_cvtepi8_epi16(reinterpret_cast<__m128i>(b)));
    }

    LM_INLINE static void add(vec<int32_t, LANES>& total, Bits a, Bits b) {
        total += reinterpret_cast<Bits>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
    }
};
#endif

/// Sums of products by the instruction Dot: Rows x (Vectors * Dot::LANES), a group of Dot::GROUP terms at a time.
template <class Dot, int Rows, int Vectors> class DotTile {
  public:
    using Left = typename Dot::left;
    using Right = typename Dot::right;
    using Sum = typename Dot::sum;

    LM_INLINE DotTile() {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) sum_[i][j] = broadcast<LANES>(Sum{});
        }
    }

    /// The sums that `store` left at a tile, to go on with.
    LM_INLINE DotTile(const Sum* tile, int64_t row) {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) sum_[i][j] = lm::load<LANES>(tile + i * row + j * LANES);
        }
    }

    /// sum[i, j] += the sum over k < GROUP of a[i*a_row + k] * b[j][k]
    LM_INLINE void step(const Left* a, int64_t a_row, const Right* b) {
        add(b, -1, [=](int i) { return Dot::broad(group(a + i * a_row, GROUP)); });
    }

    /// A step of which only the first `terms` are added: nothing else is read of a.
    LM_INLINE void last(const Left* a, int64_t a_row, const Right* b, int64_t terms) {
        const auto kept = static_cast<int32_t>((uint32_t{1} << (32 / GROUP * terms)) - 1);
        add(b, kept, [=](int i) { return Dot::broad(group(a + i * a_row, terms)); });
    }

    /// What lies from b on for later steps, `Lines` cache lines of it, into the cache.
    template <int Lines, class Stored> LM_INLINE static void fetch(const Stored* b) {
#pragma GCC unroll 64
        for (int i = 0; i < Lines; ++i) prefetch(b + GROUP * LANES * i);
    }

    /// tile[i*row + j] = sum[i, j]
    LM_INLINE void store(Sum* tile, int64_t row) const {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) lm::store(tile + i * row + j * LANES, sum_[i][j]);
        }
    }

  protected:
    static constexpr int LANES = Dot::LANES;
    static constexpr int GROUP = Dot::GROUP;
    using Bits = typename Dot::Bits;

    LM_INLINE static int32_t group(const Left* a, int64_t terms) {
        int32_t bits = 0;
        memcpy(&bits, a, static_cast<size_t>(terms) * sizeof(Left));
        return bits;
    }

    /// Adds the products of row i's group, in every lane of `left(i)`, and of each column's, of which the bits `kept`
    /// count.
    template <class Group> LM_INLINE void add(const Right* b, int32_t kept, Group left) {
        Bits right[Vectors];
#pragma GCC unroll 64
        for (int j = 0; j < Vectors; ++j) {
            right[j] = Dot::columns(b + j * GROUP * LANES);
            if (kept != -1) right[j] &= kept;
        }
        add(right, left);
    }

    /// Adds the products of row i's group, in every lane of `left(i)`, and of each column's.
    template <class Group> LM_INLINE void add(const Bits (&right)[Vectors], Group left) {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
            const Bits broad = left(i);
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) Dot::add(sum_[i][j], broad, right[j]);
        }
    }

    vec<Sum, LANES> sum_[Rows][Vectors];
};

/// Sums, in float, of blocks of products of signed bytes: those of a block are summed by Dot, then scaled. Where Dot takes
/// the left bytes as unsigned, 128 is added to each, and one row more, of 128s alone, sums what that adds.
template <class Dot, int Rows, int Vectors> class ScaledDotTile : DotTile<Dot, Rows + !Dot::SIGNED, Vectors> {
    using Tile = DotTile<Dot, Rows + !Dot::SIGNED, Vectors>;
    using Tile::GROUP;
    using Tile::LANES;
    using Tile::sum_;
    static constexpr auto MOVED = static_cast<int32_t>(0x80808080u >> (32 - 8 * GROUP));

  public:
    using Tile::fetch;

    LM_INLINE ScaledDotTile() {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) total_[i][j] = broadcast<LANES>(0.0f);
        }
    }

    /// Adds to the block's sum of row i and column j the sum over k < GROUP of a[i*a_row + k] * b[j][k].
    LM_INLINE void step(const int8_t* a, int64_t a_row, const int8_t* b) { Tile::add(b, -1, moved(a, a_row)); }

    /// The same, where the bytes of B were computed: `right[j]` has those of the columns of a vector.
    LM_INLINE void step(const int8_t* a, int64_t a_row, const vec<int8_t, LANES * GROUP> (&right)[Vectors]) {
        typename Dot::Bits bits[Vectors];
#pragma GCC unroll 64
        for (int j = 0; j < Vectors; ++j) bits[j] = Dot::columns(right[j]);
        Tile::add(bits, moved(a, a_row));
    }

    /// Adds the block's sum of row i and column j, times left[i*left_row] and right[j], to the total; the next block
    /// begins. An infinite left scale counts as NaN, as a sum of terms of both signs, or with a zero, would be.
    LM_INLINE void scale(const float* left, int64_t left_row, const vec<float, LANES> (&right)[Vectors]) {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
            const float scale = left[i * left_row];
            const vec<float, LANES> of_row = broadcast<LANES>(scale + 0.0f * scale);
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) {
                vec<int32_t, LANES> whole = sum_[i][j];
                if constexpr (!Dot::SIGNED) whole = sub(whole, sum_[Rows][j]);
                total_[i][j] = fma(of_row, mul(convert<float>(whole), right[j]), total_[i][j]);
                sum_[i][j] = broadcast<LANES>(int32_t{});
            }
        }
        if constexpr (!Dot::SIGNED) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) sum_[Rows][j] = broadcast<LANES>(int32_t{});
        }
    }

    /// tile[i*row + j] = the total of row i and column j
    LM_INLINE void store(float* tile, int64_t row) const {
#pragma GCC unroll 64
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 64
            for (int j = 0; j < Vectors; ++j) lm::store(tile + i * row + j * LANES, total_[i][j]);
        }
    }

  private:
    /// The group of each row, moved where Dot takes it as unsigned, and that of the row of 128s.
    LM_INLINE static auto moved(const int8_t* a, int64_t a_row) {
        return [=](int i) {
            const auto group = [=] { return Tile::group(reinterpret_cast<const uint8_t*>(a + i * a_row), GROUP); };
            if constexpr (Dot::SIGNED) return Dot::broad_signed(group());
            else return Dot::broad(i < Rows ? group() ^ MOVED : MOVED);
        };
    }

    vec<float, LANES> total_[Rows][Vectors];
};

}  // namespace LM_RUNTIME
}  // namespace lm
