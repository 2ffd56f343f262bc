// Loads and stores by one thread, in any address space: whole vectors by one access of up to 16 bytes, or lane by lane.
// Types of memory alone are decoded and encoded on the way, bools are bytes 0 and 1.
//
// load and store of N lanes want p aligned to N elements (to 16 bytes, where they have more).
#pragma once

#include "luminal/device/emulated.hpp"
#include "luminal/device/lanes.hpp"

namespace lm {
inline namespace LM_RUNTIME {

namespace detail {

/// The integer type under which a value of T lies in memory, or T itself.
template <class T> using stored_t =
    choose_t<is_stored<T>() || same<T, bool>::value, typename unsigned_of_size<sizeof(T)>::type, T>;

template <class T> LM_DEVICE compute_t<T> from_stored(stored_t<T> v) {
    if constexpr (is_stored<T>()) {
        return decode<T>(v);
    } else if constexpr (is_bool<T>()) {
        return v != 0;
    } else {
        return v;
    }
}
template <class T> LM_DEVICE stored_t<T> to_stored(compute_t<T> v) {
    if constexpr (is_stored<T>()) {
        return encode<T>(v);
    } else if constexpr (is_bool<T>()) {
        return static_cast<uint8_t>(v);
    } else {
        return v;
    }
}

/// The same place as a pointer to another type, in the same address space.
#if defined(LM_ADDRESS_SPACES)
template <class To, class T> LM_DEVICE thread To* as(thread T* p) { return reinterpret_cast<thread To*>(p); }
template <class To, class T> LM_DEVICE device To* as(device T* p) { return reinterpret_cast<device To*>(p); }
template <class To, class T> LM_DEVICE threadgroup To* as(threadgroup T* p) {
    return reinterpret_cast<threadgroup To*>(p);
}
template <class To, class T> LM_DEVICE thread const To* as(thread const T* p) {
    return reinterpret_cast<thread const To*>(p);
}
template <class To, class T> LM_DEVICE device const To* as(device const T* p) {
    return reinterpret_cast<device const To*>(p);
}
template <class To, class T> LM_DEVICE threadgroup const To* as(threadgroup const T* p) {
    return reinterpret_cast<threadgroup const To*>(p);
}
template <class To, class T> LM_DEVICE constant To* as(constant T* p) { return reinterpret_cast<constant To*>(p); }
#else
template <class To, class T> LM_DEVICE To* as(T* p) { return reinterpret_cast<To*>(p); }
template <class To, class T> LM_DEVICE const To* as(const T* p) { return reinterpret_cast<const To*>(p); }
#endif

/// N elements that lie side by side, read or written at once; at most 16 bytes.
#if defined(LM_METAL)
template <class T, int N> using access_t = metal::vec<T, N>;
template <class T> LM_DEVICE constexpr int access_lanes(int lanes) { return lanes < 4 ? lanes : 4; }
#define LM_LANE(v, i) (v)[i]
#elif defined(LM_OPENCL)
template <class T, int N> using access_t = T __attribute__((ext_vector_type(N)));
template <class T> LM_DEVICE constexpr int access_lanes(int lanes) {
    return 16 / static_cast<int>(sizeof(T)) < lanes ? 16 / static_cast<int>(sizeof(T)) : lanes;
}
#define LM_LANE(v, i) (v)[i]
#else
template <class T, int N> using access_t = vec<T, N>;
template <class T> LM_DEVICE constexpr int access_lanes(int lanes) {
    return 16 / static_cast<int>(sizeof(T)) < lanes ? 16 / static_cast<int>(sizeof(T)) : lanes;
}
#define LM_LANE(v, i) (v).lane[i]
#endif

/// One element.
template <class P> LM_DEVICE compute_t<pointed_t<P>> read(P p) {
    using T = pointed_t<P>;
    if constexpr (is_stored<T>()) {
        return decode<T>(p->bits);
    } else {
        return from_stored<T>(*as<stored_t<T>>(p));
    }
}
template <class P> LM_DEVICE void write(P p, compute_t<pointed_t<P>> v) {
    using T = pointed_t<P>;
    if constexpr (is_stored<T>()) {
        p->bits = encode<T>(v);
    } else {
        *as<stored_t<T>>(p) = to_stored<T>(v);
    }
}

}  // namespace detail

/// N consecutive values.
template <int N, class P> LM_DEVICE detail::lanes_t<compute_t<pointed_t<P>>, N> load(P p) {
    using T = pointed_t<P>;
    if constexpr (N == 1) {
        return detail::read(p);
#if defined(LM_CUDA)
    } else if constexpr (is_byte<T>() && detail::access_lanes<T>(N) == N) {
        return *detail::as<vec<T, N>>(p);
#endif
    } else {
        constexpr int piece = detail::access_lanes<T>(N);
        using Access = detail::access_t<detail::stored_t<T>, piece>;
        vec<compute_t<T>, N> r;
        LM_UNROLL for (int first = 0; first < N; first += piece) {
            LM_EMULATED_ACCESS(p + first, sizeof(T) * piece);
            const Access stored = *detail::as<Access>(p + first);
            LM_UNROLL for (int i = 0; i < piece; ++i) r.lane[first + i] = detail::from_stored<T>(LM_LANE(stored, i));
        }
        return r;
    }
}

template <class P> LM_DEVICE void store(P p, compute_t<pointed_t<P>> v) { detail::write(p, v); }
template <class P, int N> LM_DEVICE void store(P p, vec<compute_t<pointed_t<P>>, N> v) {
    using T = pointed_t<P>;
    constexpr int piece = detail::access_lanes<T>(N);
    using Access = detail::access_t<detail::stored_t<T>, piece>;
    LM_UNROLL for (int first = 0; first < N; first += piece) {
        Access stored;
        LM_UNROLL for (int i = 0; i < piece; ++i) LM_LANE(stored, i) = detail::to_stored<T>(v.lane[first + i]);
        LM_EMULATED_ACCESS(p + first, sizeof(T) * piece);
        *detail::as<Access>(p + first) = stored;
    }
}
#undef LM_LANE

// ---- Lane by lane -------------------------------------------------------------------------------------------------

namespace detail {

/// N values of what P points to, as they are computed.
template <class P, int N> using values_t = lanes_t<compute_t<pointed_t<P>>, N>;

}  // namespace detail

/// Lane i = p[i * stride].
template <int N, class P> LM_DEVICE auto load_strided(P p, int64_t stride) {
    detail::values_t<P, N> r{};
    LM_UNROLL for (int i = 0; i < N; ++i) r = detail::with_lane(r, i, detail::read(p + i * stride));
    return r;
}

/// p[i * stride] = lane i, in ascending order.
template <class P, class V> LM_DEVICE void store_strided(P p, int64_t stride, V v) {
    LM_UNROLL for (int i = 0; i < detail::lane_count<V>::value; ++i) detail::write(p + i * stride, detail::lane(v, i));
}

/// Lane i = p[i] where valid, fill elsewhere (not read).
template <int N, class P, class M> LM_DEVICE auto load_masked(P p, M valid, compute_t<pointed_t<P>> fill = {}) {
    detail::values_t<P, N> r{};
    LM_UNROLL for (int i = 0; i < N; ++i) {
        r = detail::with_lane(r, i, detail::lane(valid, i) ? detail::read(p + i) : fill);
    }
    return r;
}

/// p[i] = lane i where valid.
template <class P, class V, class M> LM_DEVICE void store_masked(P p, V v, M valid) {
    LM_UNROLL for (int i = 0; i < detail::lane_count<V>::value; ++i) {
        if (detail::lane(valid, i)) detail::write(p + i, detail::lane(v, i));
    }
}

/// The lanes below count; the others are 0 (not read).
template <int N, class P> LM_DEVICE auto load_partial(P p, int64_t count) {
    return load_masked<N>(p, lanes_below<N>(count));
}
template <class P, class V> LM_DEVICE void store_partial(P p, V v, int64_t count) {
    store_masked(p, v, lanes_below<detail::lane_count<V>::value>(count));
}

/// Lane i = base[index[i]] where valid, fill elsewhere (not read).
template <class P, class I, class M>
LM_DEVICE auto gather(P base, I index, M valid, compute_t<pointed_t<P>> fill = {}) {
    detail::values_t<P, detail::lane_count<I>::value> r{};
    LM_UNROLL for (int i = 0; i < detail::lane_count<I>::value; ++i) {
        r = detail::with_lane(r, i, detail::lane(valid, i) ? detail::read(base + detail::lane(index, i)) : fill);
    }
    return r;
}

/// Lane i = base[index[i]].
template <class P, class I> LM_DEVICE auto gather(P base, I index) {
    return gather(base, index, broadcast<detail::lane_count<I>::value>(true));
}

/// base[index[i]] = lane i where valid, in ascending order: of equal indices the last one stays.
template <class P, class I, class V, class M> LM_DEVICE void scatter(P base, I index, V v, M valid) {
    LM_UNROLL for (int i = 0; i < detail::lane_count<I>::value; ++i) {
        if (detail::lane(valid, i)) detail::write(base + detail::lane(index, i), detail::lane(v, i));
    }
}
template <class P, class I, class V> LM_DEVICE void scatter(P base, I index, V v) {
    scatter(base, index, v, broadcast<detail::lane_count<I>::value>(true));
}

}  // namespace LM_RUNTIME
}  // namespace lm
