// Rows of memory that are turned in registers: loaded as columns, or stored lane by lane.
#pragma once

#include "luminal/gather.hpp"
#include "luminal/vector_memory.hpp"

namespace lm {
inline namespace LM_RUNTIME {

/// N vectors of N lanes.
template <class T, int N> struct columns {
    vec<T, N> column[N];

    LM_INLINE vec<T, N> operator[](int j) const { return column[j]; }
};

namespace detail {

/// Of each 2 Step lanes of a and b, the first Step of both, or the last Step of both.
template <int Step, class V, size_t... I> LM_INLINE V first_parts(V a, V b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, (I & Step ? lanes<V> + I - Step : I)...);
}
template <int Step, class V, size_t... I> LM_INLINE V last_parts(V a, V b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, (I & Step ? lanes<V> + I : I + Step)...);
}

/// Lane i of v[j] and lane j of v[i] change places within blocks of 2 Step: first those of Step lanes, then their own.
template <int Step, class V> LM_INLINE void turn_blocks(V (&v)[lanes<V>]) {
    constexpr auto all = std::make_index_sequence<lanes<V>>();
#pragma GCC unroll 64
    for (int i = 0; i < lanes<V>; ++i) {
        if ((i & Step) == 0) {
            const V a = v[i], b = v[i + Step];
            v[i] = first_parts<Step>(a, b, all);
            v[i + Step] = last_parts<Step>(a, b, all);
        }
    }
    if constexpr (Step > 1) turn_blocks<Step / 2>(v);
}

/// Lane i of v[j] and lane j of v[i] change places.
template <class V> LM_INLINE void turn(V (&v)[lanes<V>]) {
    constexpr int half = lanes<V> / 2;
    if constexpr (is_wide<V>) {
        using Half = decltype(V::lo);
        Half quarters[2][2][half];
#pragma GCC unroll 64
        for (int i = 0; i < half; ++i) {
            quarters[0][0][i] = v[i].lo, quarters[0][1][i] = v[i].hi;
            quarters[1][0][i] = v[half + i].lo, quarters[1][1][i] = v[half + i].hi;
        }
        turn(quarters[0][0]), turn(quarters[0][1]), turn(quarters[1][0]), turn(quarters[1][1]);
#pragma GCC unroll 64
        for (int i = 0; i < half; ++i) {
            v[i] = V{quarters[0][0][i], quarters[1][0][i]};
            v[half + i] = V{quarters[0][1][i], quarters[1][1][i]};
        }
    } else {
        turn_blocks<half>(v);
    }
}

/// The columns of a block whose row i is row(i), of elements as they lie in memory.
template <class T, int N, class F> LM_INLINE columns<T, N> turned(F row) {
    vec<stored_t<T>, N> v[N];
#pragma GCC unroll 64
    for (int i = 0; i < N; ++i) v[i] = row(i);
    if constexpr (N > 1) turn(v);
    columns<T, N> result;
#pragma GCC unroll 64
    for (int j = 0; j < N; ++j) result.column[j] = from_stored<T>(v[j]);
    return result;
}

}  // namespace detail

/// N columns of N elements, of which lane i = p[i * stride + column].
template <int N, class T> LM_INLINE columns<T, N> load_columns(const T* p, int64_t stride) {
    const auto first = detail::stored_pointer(p);
    return detail::turned<T, N>([=](int i) LM_LAMBDA { return load<N>(first + i * stride); });
}

/// The first count of N columns, in the first lanes of each as many elements as there are rows; zeros elsewhere.
template <int N, class T>
LM_INLINE columns<T, N> load_columns(const T* p, int64_t stride, int64_t rows, int64_t count) {
    const auto first = detail::stored_pointer(p);
    using V = vec<detail::stored_t<T>, N>;
    return detail::turned<T, N>([=](int i) LM_LAMBDA {
        return i < rows ? load_partial<N>(first + i * stride, count) : splat<V>(0);
    });
}

namespace detail {

/// Lanes First .. First + N - 1 of Rows rows of N lanes that are interleaved: of those up to Row, the rest is anything.
template <int First, int Rows, int Row, class V, size_t... I>
LM_INLINE V interleaved(const V (&row)[Rows], std::index_sequence<I...> lanes_of) {
    if constexpr (Row == 0) {
        return __builtin_shufflevector(row[0], row[0], static_cast<int>((First + I) / Rows)...);
    } else {
        const V before = interleaved<First, Rows, Row - 1>(row, lanes_of);
        constexpr int n = lanes<V>;
        return __builtin_shufflevector(
            before, row[Row],
            static_cast<int>((First + I) % Rows == size_t{Row} ? n + (First + I) / Rows : size_t{I})...);
    }
}

}  // namespace detail

/// Rows vectors of N lanes that lie in memory side by side: the first lane of each, then the second of each, ...
template <class T, int N, int Rows> class Interleaved {
  public:
    template <class V> LM_INLINE void put(int row, V v) { rows_[row] = detail::to_stored<T>(v); }

    LM_INLINE void store(T* p) const { store_from<0>(detail::stored_pointer(p)); }

  private:
    using V = vec<detail::stored_t<T>, N>;

    template <int Part> LM_INLINE void store_from(detail::stored_t<T>* p) const {
        if constexpr (is_wide<V>) {
            if constexpr (Part < Rows) {
                store_strided(p + Part, Rows, rows_[Part]);
                store_from<Part + 1>(p);
            }
        } else if constexpr (Part < Rows) {
            lm::store(p + Part * N,
                      detail::interleaved<Part * N, Rows, Rows - 1>(rows_, std::make_index_sequence<N>()));
            store_from<Part + 1>(p);
        }
    }

    V rows_[Rows];
};

}  // namespace LM_RUNTIME
}  // namespace lm
